"""`chat`: one input, one turn, at the terminal.

Exit codes: 0 complete; 3 partial; 130 cancelled; 4 the turn ended without an answer; 5 the service refused or could not
be reached; 2 wrong usage or configuration.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
from anyio.abc import TaskGroup

from app.cli.chat_client import ChatClient, Refused, Unreachable
from app.cli.chat_screen import Screen
from app.cli.serve import InProcess, address, listen
from app.config import KEY_VARIABLE, Settings, secret
from app.errors import ConfigError, EarlybyteError
from app.limits.groups import task_group
from app.observability.logging import configure, mask

_REFUSED = 5
_CANCELLED = 130
_MORE = "EARLYBYTE_SERVER__LOG_LEVEL=debug"
# Seconds for a connection, and for the answer to anything but a stream.
_CONNECT = 5.0


def chat(settings: Settings, arguments: argparse.Namespace) -> int:
    """Say `arguments.text` and follow the turn; returns the exit code.

    Raises:
        EarlybyteError: the text or the key cannot be read, or a service in this process cannot start.
    """
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    if not text.strip():
        raise ConfigError("There is nothing to say: the text is empty.")
    try:
        return anyio.run(_chat, settings, arguments, text)
    except (Refused, Unreachable) as error:
        print(f"earlybyte: {mask(error.message)}", file=sys.stderr)
        return _REFUSED


async def _chat(settings: Settings, arguments: argparse.Namespace, text: str) -> int:
    key = key_of(arguments)
    async with (
        _service(settings, arguments.url) as url,
        httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(_CONNECT, read=settings.timeouts.client_watchdog),
            # A proxy of the environment is for addresses elsewhere.
            trust_env=arguments.url is not None,
        ) as http,
    ):
        client = ChatClient(http)
        screen = Screen(sys.stdout, sys.stderr)
        conversation = arguments.conversation or await client.open_conversation(arguments.profile)
        return await _Talk(client, screen, approve=arguments.yes).run(conversation, text, arguments.profile)


def key_of(arguments: argparse.Namespace) -> str | None:
    """The API key that `--key`, `--key-file` or else the environment variable EARLYBYTE_KEY gives.

    Raises:
        ConfigError: the file cannot be read.
    """
    if arguments.key:
        return str(arguments.key)
    if arguments.key_file is None:
        # Any stream may be watched by `probe --raw`: a key goes to a stranger only where it was meant for them.
        return None if getattr(arguments, "raw", False) else secret(KEY_VARIABLE)
    try:
        return Path(arguments.key_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"The key file {arguments.key_file} cannot be read.") from None


class _Talk:
    """One turn, its approvals and its interruptions."""

    def __init__(self, client: ChatClient, screen: Screen, *, approve: bool) -> None:
        self._client = client
        self._screen = screen
        self._approve = approve
        self._asking: dict[str, anyio.CancelScope] = {}
        # One question at a time: the terminal has one keyboard.
        self._keyboard = anyio.Lock()

    async def run(self, conversation: str, text: str, profile: str | None) -> int:
        async with task_group() as tasks:
            turn = await self._client.start_turn(conversation, text, profile)
            tasks.start_soon(self._watch_interrupts, tasks, turn)
            async with aclosing(self._client.events(turn)) as events:
                async for event in events:
                    self._take(tasks, turn, event)
            tasks.cancel_scope.cancel()
        # None: left by a second Ctrl-C, or nothing more to come without an ending.
        return _CANCELLED if self._screen.exit_code is None else self._screen.exit_code

    def _take(self, tasks: TaskGroup, turn: str, event: dict[str, Any]) -> None:
        self._screen.show(event)
        match event.get("type"):
            case "approval_required":
                tasks.start_soon(self._ask, turn, event)
            case "approval_resolved":
                self._closed(str(event.get("approval_id")))
            case "snapshot":
                for approval in event.get("approvals", []):
                    known = str(approval.get("approval_id")) in self._asking
                    if approval.get("decision"):
                        self._closed(str(approval.get("approval_id")))
                    elif not known:
                        tasks.start_soon(self._ask, turn, approval)
            case _:
                pass

    def _closed(self, approval: str) -> None:
        if approval in self._asking:
            self._asking[approval].cancel()

    async def _ask(self, turn: str, event: dict[str, Any]) -> None:
        approval = str(event.get("approval_id"))
        with anyio.CancelScope() as scope:
            self._asking[approval] = scope
            async with self._keyboard:
                decision = await self._decision(event)
            try:
                await self._client.decide(turn, approval, decision)
            except EarlybyteError as error:
                self._screen.note(error.message)

    async def _decision(self, event: dict[str, Any]) -> str:
        if self._approve:
            self._screen.ask(event, "")
            return "approve"
        self._screen.ask(event)
        if not sys.stdin.isatty():
            self._screen.note("denied, because nobody can be asked here (--yes approves)")
            return "deny"
        while True:
            # The terminal hands over whole lines, so that reading one after this does not block.
            await anyio.wait_readable(sys.stdin)
            answer = sys.stdin.readline()
            if answer.strip().lower() in {"y", "yes"}:
                return "approve"
            if answer == "" or answer.strip().lower() in {"n", "no"}:
                return "deny"
            self._screen.note("y or n?")

    async def _watch_interrupts(self, tasks: TaskGroup, turn: str) -> None:
        with anyio.open_signal_receiver(signal.SIGINT) as interrupts:
            cancelling = False
            async for _ in interrupts:
                if cancelling:
                    tasks.cancel_scope.cancel()
                    return
                cancelling = True
                self._screen.note("stopping … (Ctrl-C again leaves at once)")
                tasks.start_soon(self._cancel, turn)

    async def _cancel(self, turn: str) -> None:
        try:
            await self._client.cancel(turn)
        except EarlybyteError as error:
            self._screen.note(error.message)


@asynccontextmanager
async def _service(settings: Settings, url: str | None) -> AsyncIterator[str]:
    """The address to talk to: `url`, the configured one, or a service of this process if nothing listens there."""
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {url} must begin with http:// or https://.")
        yield url.rstrip("/")
        return
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.server.host, settings.server.host)  # noqa: S104
    if settings.server.port and await _listens(host, settings.server.port):
        yield f"http://[{host}]:{settings.server.port}" if ":" in host else f"http://{host}:{settings.server.port}"
        return
    async with _own_service(settings) as own:
        where = f"Nothing listens on {host} port {settings.server.port}"
        print(f"{where}: serving within this process ({_MORE} shows its log).", file=sys.stderr)
        yield own


async def _listens(host: str, port: int) -> bool:
    try:
        with anyio.fail_after(_CONNECT):
            stream = await anyio.connect_tcp(host, port)
    except (OSError, TimeoutError):
        return False
    await stream.aclose()
    return True


@asynccontextmanager
async def _own_service(settings: Settings) -> AsyncIterator[str]:
    from app.bootstrap import preflight

    if settings.server.log_level != "debug":
        # The terminal belongs to the conversation; what goes wrong in the turn is told by its events.
        configure("critical", stream=sys.stderr, brief=True)
    preflight(settings)
    with listen(settings, "127.0.0.1", 0) as sock:
        ready = anyio.Event()
        server = InProcess(settings, capture=False, access_log=False, on_listening=ready.set)
        async with task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            await ready.wait()
            try:
                yield address(sock)
            finally:
                server.should_exit = True
