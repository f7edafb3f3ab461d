"""The programs under test, each a process on the server's core with a folder of its own: ours, floor, naive, nchan."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.client import request
from benchmarks.tokens import Wish

PROJECT = Path(__file__).parent.parent
_NCHAN = tuple(
    Path(folder) / "ngx_nchan_module.so"
    for folder in ("/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/share/nginx/modules", "/etc/nginx/modules")
)


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Program:
    """A child process on one core; `port` is where it serves. Use as an async context manager."""

    name = "program"

    def __init__(self, *, core: int) -> None:
        self.core = core
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="earlybyte-bench-"))
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def __aenter__(self) -> Self:
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                self.command(),
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(PROJECT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: os.sched_setaffinity(0, {self.core}),  # noqa: PLW1509 - one system call
            )
        give_up_at = time.monotonic() + 60
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > give_up_at:
                said = self.log()
                await self.__aexit__()
                raise RuntimeError(f"{self.name} did not start:\n{said[-2000:]}")
            await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, 1.5)
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    async def turns(self, wish: Wish, count: int) -> list[bytes]:
        """Requests that start `count` turns, each of which does what `wish` says."""
        raise NotImplementedError


class Ours(Program):
    """The service itself, as `earlybyte serve` runs it: SQLite on disk, logs on, every promise kept."""

    name = "Earlybyte"

    def __init__(
        self,
        *,
        core: int,
        rungs: Mapping[str, float] | None = None,
        profile: Mapping[str, Any] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(core=core)
        groups: dict[str, Mapping[str, Any]] = {
            "server": {"port": self.port},
            "store": {"url": f"sqlite+aiosqlite:///{self.folder / 'bench.db'}"},
            "limits": {"turns": 2000, "queued": 100, "viewers": 10_000} | dict(limits or {}),
            "timeouts": rungs or {},
            "profiles.default": profile or {"provider": "agent", "agent": "benchmarks.agents:talk"},
        }
        lines = []
        for name, values in groups.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        (self.folder / "earlybyte.toml").write_text("\n".join(lines) + "\n")

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "app", "serve", "--config", str(self.folder / "earlybyte.toml")]

    async def turns(self, wish: Wish, count: int) -> list[bytes]:
        made = await asyncio.to_thread(self._conversations, count)
        body = json.dumps({"input": wish.text()})
        return [request("POST", f"/v1/conversations/{one}/turns", body) for one in made]

    async def start_turn(self, wish: Wish) -> str:
        """The id of a turn that nobody watches yet."""
        return await asyncio.to_thread(self._start_turn, wish)

    def _start_turn(self, wish: Wish) -> str:
        [conversation] = self._conversations(1)
        answer = self._post(
            http.client.HTTPConnection("127.0.0.1", self.port), f"/{conversation}/turns", {"input": wish.text()}
        )
        return str(answer["turn_id"])

    def _conversations(self, count: int) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            return [str(self._post(connection, "", {})["id"]) for _ in range(count)]
        finally:
            connection.close()

    @staticmethod
    def _post(connection: http.client.HTTPConnection, path: str, body: object) -> dict[str, Any]:
        connection.request("POST", f"/v1/conversations{path}", json.dumps(body), {"Content-Type": "application/json"})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer


class Baseline(Program):
    """An ASGI app on the same uvicorn, with the same loop and parser."""

    def __init__(self, name: str, app: str, *, core: int) -> None:
        super().__init__(core=core)
        self.name = name
        self._app = app

    def command(self) -> Sequence[str]:
        serve = [sys.executable, "-m", "uvicorn", self._app, "--port", str(self.port)]
        return [*serve, "--no-access-log", "--log-level", "warning", "--backlog", "4096"]

    async def turns(self, wish: Wish, count: int) -> list[bytes]:
        return [request("POST", "/turn", wish.text())] * count


def floor(core: int) -> Baseline:
    return Baseline("floor", "benchmarks.baselines.floor:app", core=core)


def naive(core: int) -> Baseline:
    return Baseline("naive", "benchmarks.baselines.naive:app", core=core)


class Upstream(Program):
    """The model endpoint, on a core of the client's."""

    name = "model endpoint"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "benchmarks.upstream", "--port", str(self.port)]

    def profile(self) -> dict[str, Any]:
        """The profile of a service that asks it."""
        return {"provider": "openai", "model": "benchmark", "base_url": f"http://127.0.0.1:{self.port}/v1"}


class Nchan(Program):
    """nginx with nchan: one worker, one channel, subscribers as EventSource."""

    name = "nchan"

    @staticmethod
    def missing() -> str | None:
        """What is missing to run it."""
        if shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
            return "nginx is not installed"
        if not any(path.exists() for path in _NCHAN):
            return "nginx has no nchan module (Debian: libnginx-mod-nchan)"
        return None

    def command(self) -> Sequence[str]:
        module = next(path for path in _NCHAN if path.exists())
        temp = "\n".join(
            f"  {kind}_temp_path {self.folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (self.folder / "nginx.conf").write_text(
            f"""
load_module {module};
daemon off; worker_processes 1; pid {self.folder}/pid; error_log {self.folder}/error.log; worker_rlimit_nofile 20000;
events {{ worker_connections 10000; }}
http {{
  access_log off;
{temp}
  server {{
    listen 127.0.0.1:{self.port} backlog=4096;
    location = /publish {{ nchan_publisher; nchan_channel_id turn; nchan_message_buffer_length 1000; }}
    location = /events {{ nchan_subscriber eventsource; nchan_channel_id turn; nchan_subscriber_first_message newest; }}
  }}
}}
"""
        )
        nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert nginx is not None
        return [nginx, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), "-e", str(self.folder / "error.log")]
