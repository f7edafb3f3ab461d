"""A real nginx for tests: the shipped file with other addresses, in a folder of its own, stopped by process id."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.needs import require
from tests.service import wait_until

SHIPPED = Path(__file__).parent.parent / "deploy" / "nginx" / "earlybyte.conf"


class Nginx:
    """A running nginx on `port`; its access log is `log`."""

    def __init__(self, folder: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.process = process
        self._log = folder / "access.log"

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text(encoding="utf-8") if self._log.exists() else ""


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def nginx(
    service_ports: Sequence[int | str], *, api: int | None = None, http: str = "", change: tuple[str, str] | None = None
) -> Iterator[Nginx]:
    """The shipped block before these ports (or addresses) for streams, and the port `api` for the rest (default: the first).

    `http` is put outside of it, `change` replaces something in it.
    """
    program = require("nginx", shutil.which("nginx") or shutil.which("/usr/sbin/nginx"), "apt install nginx")
    folder = Path(tempfile.mkdtemp(prefix="eb-nginx-"))
    port = free_port()
    servers = [f"    server {one if isinstance(one, str) else f'127.0.0.1:{one}'} max_fails=0;" for one in service_ports]
    short = servers[0] if api is None else f"    server 127.0.0.1:{api} max_fails=0;"
    block = SHIPPED.read_text(encoding="utf-8")
    for old, new in (
        ("    server stream:8000 max_fails=0;", "\n".join(servers)),
        ("    server api:8000 max_fails=0;", short),
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        ("/var/log/nginx/access.log", f"{folder}/access.log"),
        *([change] if change else []),
    ):
        assert old in block, old
        block = block.replace(old, new)
    temps = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;\n"
        f"events {{ worker_connections 1024; }}\nhttp {{\n{temps}\n{http}\n{block}\n}}\n"
    )
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(config)], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: _listens(port, process), 20, "nginx's start")
        yield Nginx(folder, port, process)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        process.wait(10)
        assert process.stderr is not None
        process.stderr.close()
        shutil.rmtree(folder, ignore_errors=True)


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, process.communicate()[1].decode()
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
