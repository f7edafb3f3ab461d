"""A PostgreSQL server of our own for the tests: temporary folder, free port, gone at the end."""

from __future__ import annotations

import ctypes
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest

from tests.needs import require

_HOW = "apt install postgresql, or put initdb and postgres on the PATH"


def binary(name: str) -> str | None:
    """The path of a PostgreSQL program: from the PATH, else the newest of the usual folders."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name), reverse=True)
    candidates = [shutil.which(name), *(str(folder / name) for folder in folders), f"/usr/local/bin/{name}"]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


@dataclass
class PostgresServer:
    """A running server that trusts loopback. `process` is the postmaster."""

    port: int
    process: subprocess.Popen[bytes]
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def url(self, database: str) -> str:
        return f"postgresql+asyncpg://postgres@127.0.0.1:{self.port}/{database}"

    async def connect(self, database: str = "postgres") -> asyncpg.Connection:
        """A connection past the store, to look on or to get in the way."""
        return await asyncpg.connect(host="127.0.0.1", port=self.port, user="postgres", database=database)

    async def new_database(self) -> str:
        """The URL of a fresh, empty database."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        conn = await self.connect()
        try:
            await conn.execute(f'CREATE DATABASE "{name}"')
        finally:
            await conn.close()
        return self.url(name)

    async def terminate_backends(self, database_url: str) -> int:
        """How many server processes of that database were ended, as an administrator or a restart would."""
        conn = await self.connect()
        try:
            ended = await conn.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
                database_url.rpartition("/")[2],
            )
        finally:
            await conn.close()
        return len(ended)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the whole run; skips where PostgreSQL is not installed."""
    initdb = require("PostgreSQL", binary("initdb"), _HOW)
    server = require("PostgreSQL", binary("postgres"), _HOW)
    folder = tempfile.mkdtemp(prefix="eb-pg-")
    try:
        account = _unprivileged(folder)
        subprocess.run(
            [initdb, "-D", f"{folder}/data", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=folder,
            **account,
        )
        port = _free_port()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "fsync": "off",
            "deadlock_timeout": "100ms",
        }
        process = subprocess.Popen(
            [server, "-D", f"{folder}/data", *(f"--{name}={value}" for name, value in options.items())],
            stderr=subprocess.PIPE,
            cwd=folder,
            preexec_fn=_die_with_the_tests,  # noqa: PLW1509 - one call of the C library, no lock
            **account,
        )
        try:
            _wait_until_ready(process)
            yield PostgresServer(port, process)
        finally:
            process.send_signal(signal.SIGINT)  # "fast": ends the sessions, then itself
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stderr is not None
            process.stderr.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged(folder: str) -> dict[str, object]:
    """Keyword arguments that run a child as somebody who is not root, with `folder` given to them."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, account.pw_uid, account.pw_gid)
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return require("an account for PostgreSQL", {}, "it does not run as root; add the user postgres")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _die_with_the_tests() -> None:
    if os.uname().sysname == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG


def _wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    """Read the server's log until it takes connections, and go on reading in a thread so that it never blocks."""
    assert process.stderr is not None
    stream, said, ready = process.stderr, [], threading.Event()

    def read() -> None:
        try:
            for line in stream:
                if not ready.is_set():
                    said.append(line)
                if b"ready to accept connections" in line:
                    ready.set()
        except ValueError:
            return  # closed at the end

    threading.Thread(target=read, daemon=True).start()
    if not ready.wait(30):
        pytest.fail("PostgreSQL did not start: " + b"".join(said).decode(errors="replace"))
