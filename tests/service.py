"""The running service for tests: a real process with its own folder, store and port, and requests to it."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import http.client
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio

from app.clock import now_ms
from app.ids import new_id, new_secret
from app.store import keys
from app.store.engine import Store
from tests.event_stream import Stream
from tests.upstream import Upstream

T = TypeVar("T")

PROJECT = Path(__file__).parent.parent
TOOLS = "tests.tools_for_tests"
UPSTREAM_KEY = "made-up-upstream-key"
_ANNOUNCED = "Earlybyte serves http://"


def wait_until(look: Callable[[], T], timeout: float = 20.0, what: str = "it") -> T:
    """The first true value of `look`, asked again and again."""
    give_up_at = time.monotonic() + timeout
    while not (value := look()):
        assert time.monotonic() < give_up_at, f"{what} did not happen in {timeout} s"
        time.sleep(0.01)
    return value


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The stable code of a problem, which must be one."""
        assert self.headers["content-type"] == "application/problem+json", (self.status, self.headers, self.body[:200])
        document = self.json
        assert document["status"] == self.status
        assert document["detail"]
        return str(document["code"])


class Service:
    """The program under test. `config` is laid over a working default; `rungs` go to `[timeouts]`.

    With `upstream` the profile `default` speaks the OpenAI dialect to it and `anthropic` the other one; `profile` is laid
    over both. `env` is added to the environment. Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        upstream: Upstream | None = None,
        *,
        config: dict[str, Any] | None = None,
        rungs: dict[str, float] | None = None,
        profile: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        start: bool = True,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="eb-test-"))
        self.config_file = self.folder / "earlybyte.toml"
        self.log_file = self.folder / "service.log"
        self.ledger_file = self.folder / "ledger.jsonl"
        self.store_file = self.folder / "store.db"
        self.log_file.touch()
        self.ledger_file.touch()
        self.key: str | None = None
        self.process: subprocess.Popen[bytes] | None = None
        base: dict[str, Any] = {
            "server": {"host": "127.0.0.1", "port": 0},
            "store": {"url": f"sqlite+aiosqlite:///{self.store_file}"},
        }
        if upstream is not None:
            shared = {
                "model": "scripted",
                "base_url": f"{upstream.url}/v1",
                "api_key_env": "TEST_UPSTREAM_KEY",
                "tools": [TOOLS],
                **(profile or {}),
            }
            base["profiles"] = {
                "default": {"provider": "openai", **shared},
                "anthropic": {"provider": "anthropic", **shared},
            }
        self.config = _merged(_merged(base, {"timeouts": rungs} if rungs else {}), config or {})
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("EARLYBYTE_", "OPENAI_", "ANTHROPIC_"))}
        self.env = inherited | {
            "PYTHONPATH": os.pathsep.join((str(PROJECT), str(self.folder))),
            "PYTHONUNBUFFERED": "1",
            "TEST_UPSTREAM_KEY": UPSTREAM_KEY,
            "TEST_LEDGER": str(self.ledger_file),
            **(env or {}),
        }
        self._streams: list[Stream] = []
        if start:
            self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Service port={self.port} {'down' if self.process is None else self.process.pid}>"

    @property
    def port(self) -> int:
        return int(self.config["server"]["port"])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    # -- life

    def write_config(self) -> None:
        """The configuration as a file, for whoever starts a program on it."""
        self.config_file.write_text(_toml(self.config), encoding="utf-8")

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process and wait for nothing."""
        self.write_config()
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app", "serve", "--config", str(self.config_file)],
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_the_tests,  # noqa: PLW1509 - one call of the C library, no lock
            )
        return self.process

    def start(self, timeout: float = 30.0) -> Self:
        """Start the process, on the same port as before if it had one, and wait until it serves."""
        before = len(self.log())
        process = self.launch()

        def announced() -> str:
            said = self.log()[before:]
            assert process.poll() is None, f"the service did not start:\n{said[-3000:]}"
            _, found, rest = said.partition(_ANNOUNCED)
            return rest.partition("\n")[0] if found and "\n" in rest else ""

        where = wait_until(announced, timeout, "the service's start").split(" ")[0]
        self.config["server"]["port"] = int(where.rpartition(":")[2])
        self.write_config()
        return self

    def refuses_to_start(self, timeout: float = 20.0) -> tuple[int, str]:
        """The exit code and all that was said, when it does not come up."""
        before = len(self.log())
        process = self.launch()
        try:
            code = process.wait(timeout)
        finally:
            self.kill9()
        return code, self.log()[before:]

    def sigterm(self) -> float:
        """Ask it to stop; the moment of that."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return time.monotonic()

    def wait_exit(self, timeout: float = 30.0) -> int:
        """Its exit code."""
        assert self.process is not None
        code = self.process.wait(timeout)
        self.process = None
        return code

    def kill9(self) -> None:
        """End the process as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End the process in order if it takes no longer than a moment."""
        self._leave()
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(3)
            self.kill9()

    def _leave(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    def close(self) -> None:
        """End the process at once and forget its folder."""
        self._leave()
        self.kill9()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """All that the process has written to standard output and standard error."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def ledger(self, **like: Any) -> list[dict[str, Any]]:
        """What the tools for tests have noted, one row for each run that began."""
        rows = [json.loads(line) for line in self.ledger_file.read_text(encoding="utf-8").splitlines()]
        return [row for row in rows if all(row.get(key) == value for key, value in like.items())]

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """The SQLite store from outside; committed at the end."""
        connection = sqlite3.connect(self.store_file, timeout=20)
        try:
            yield connection
            connection.commit()
        finally:
            connection.close()

    # -- the command line

    def cli(self, *arguments: str, stdin: str | None = None, timeout: float = 40.0) -> subprocess.CompletedProcess[str]:
        """Another command of the program with the same configuration."""
        self.write_config()
        return subprocess.run(
            [sys.executable, "-m", "app", *arguments, "--config", str(self.config_file)],
            env=self.env,
            cwd=self.folder,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def make_key(self, user: str, *, role: str = "user", tenant: str = "", **more: int | None) -> str:
        """A fresh API key of `user`, put into the store directly; `more` are `expires_at` and `revoked_at`, in ms."""
        key = new_secret("eb")
        row = keys.ApiKey(
            id=new_id("key"),
            key_hash=hashlib.sha256(key.encode()).hexdigest(),
            user_id=user,
            tenant=tenant,
            role="admin" if role == "admin" else "user",
            created_at=now_ms(),
            **more,
        )

        async def insert() -> None:
            store = await Store.open(str(self.config["store"]["url"]))
            try:
                await store.write(lambda conn: keys.insert_key(conn, row))
            finally:
                await store.close()

        with ThreadPoolExecutor(1) as pool:  # a thread of its own, since a test may have a loop in this one
            pool.submit(anyio.run, insert).result()
        return key

    # -- requests

    def headers(self, key: str | None = "mine") -> dict[str, str]:
        token = self.key if key == "mine" else key
        return {"Authorization": f"Bearer {token}"} if token else {}

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: dict[str, str] | None = None,
        key: str | None = "mine",
        timeout: float = 30.0,
    ) -> Reply:
        """One request. `body` is bytes as they are, or anything else as JSON; `key` is `self.key` unless given."""
        data, sent = _body(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body=data, headers={**sent, **self.headers(key), **(headers or {})})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def open(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        accept: str = "text/event-stream",
        headers: dict[str, str] | None = None,
        key: str | None = "mine",
    ) -> Stream:
        """A response that may be a stream; closed with the service if the test does not."""
        data, sent = _body(body)
        stream = Stream(
            self.port,
            method,
            path,
            headers={"Accept": accept, **sent, **self.headers(key), **(headers or {})},
            body=data,
        )
        self._streams.append(stream)
        return stream

    def conversation(self, *, key: str | None = "mine", **fields: Any) -> str:
        """The id of a new conversation."""
        reply = self.call("POST", "/v1/conversations", fields, key=key)
        assert reply.status == 201, reply
        return str(reply.json["id"])

    def post(
        self,
        text: object,
        conversation: str | None = None,
        *,
        headers: dict[str, str] | None = None,
        key: str | None = "mine",
        **fields: Any,
    ) -> Reply:
        """Start a turn and take the JSON answer."""
        conversation = conversation or self.conversation(key=key)
        path = f"/v1/conversations/{conversation}/turns"
        return self.call("POST", path, {"input": text, **fields}, headers=headers, key=key)

    def start_turn(self, text: object, conversation: str | None = None, **more: Any) -> str:
        """The id of a new turn."""
        reply = self.post(text, conversation, **more)
        assert reply.status == 202, reply
        return str(reply.json["turn_id"])

    def stream(
        self,
        text: object,
        conversation: str | None = None,
        *,
        accept: str = "text/event-stream",
        headers: dict[str, str] | None = None,
        key: str | None = "mine",
        **fields: Any,
    ) -> Stream:
        """Start a turn and follow it in the same response."""
        conversation = conversation or self.conversation(key=key)
        path = f"/v1/conversations/{conversation}/turns"
        return self.open("POST", path, {"input": text, **fields}, accept=accept, headers=headers, key=key)

    def attach(
        self,
        turn: str,
        last_id: str | None = None,
        *,
        query: str = "",
        accept: str = "text/event-stream",
        headers: dict[str, str] | None = None,
        key: str | None = "mine",
    ) -> Stream:
        """Follow a turn, after `last_id` if there is one."""
        more = {**({"Last-Event-ID": last_id} if last_id is not None else {}), **(headers or {})}
        return self.open("GET", f"/v1/turns/{turn}/events{query}", accept=accept, headers=more, key=key)

    def turn(self, turn: str, *, key: str | None = "mine") -> dict[str, Any]:
        """A turn's document."""
        reply = self.call("GET", f"/v1/turns/{turn}", key=key)
        assert reply.status == 200, reply
        document: dict[str, Any] = reply.json
        return document

    def settled(self, turn: str, *, key: str | None = "mine", timeout: float = 30.0) -> dict[str, Any]:
        """A turn's document, once it is done."""
        return wait_until(
            lambda: (doc := self.turn(turn, key=key))["status"] == "done" and doc, timeout, f"the end of {turn}"
        )

    def messages(self, conversation: str, *, key: str | None = "mine") -> list[dict[str, Any]]:
        """A conversation's history."""
        reply = self.call("GET", f"/v1/conversations/{conversation}/messages", key=key)
        assert reply.status == 200, reply
        items: list[dict[str, Any]] = reply.json["items"]
        return items


def _body(body: object) -> tuple[bytes | None, dict[str, str]]:
    if body is None:
        return None, {}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return data, {"Content-Type": "application/json"}


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(under)
    for key, value in over.items():
        out[key] = _merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def _toml(table: dict[str, Any], above: str = "") -> str:
    """TOML of nested tables with plain values; JSON's spelling of those is TOML's, too."""
    lines = [f"[{above}]"] if above else []
    lines += [f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in table.items() if not isinstance(v, dict)]
    below = [_toml(v, f"{above}.{k}" if above else k) for k, v in table.items() if isinstance(v, dict)]
    return "\n".join([*lines, *below]) + "\n"


def _die_with_the_tests() -> None:
    if os.uname().sysname == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
