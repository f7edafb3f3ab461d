"""`serve`: the service on a listening socket of our own.

The socket is ours because accepted sockets inherit its options: without a small send buffer and TCP_USER_TIMEOUT a
stuck peer holds megabytes for a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, NoReturn

import uvicorn

from app.config import Settings
from app.errors import ConfigError, EarlybyteError
from app.observability.logging import configure

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# Bytes that the kernel may hold for one viewer (it doubles the number): a few seconds of the fastest model, no more.
_SEND_BUFFER = 65_536
# Seconds of silence before the kernel asks whether the peer is still there, and between its questions. With `tcp_user`
# a peer that is gone without a word is given up 35 s after its last sign of life, also on a quiet stream.
_PROBE_AFTER = 5
_PROBE_EVERY = 5


def serve(settings: Settings) -> NoReturn:
    """Serve until a signal comes and the drain is over; then the process ends, with exit code 0.

    Raises:
        ConfigError: the configuration cannot be used, or the address is taken.
        EarlybyteError: the service could not start.
    """
    configure(settings.server.log_level)
    from app.bootstrap import preflight

    preflight(settings)
    with listen(settings, settings.server.host, settings.server.port) as sock:
        # Raised again by uvicorn when its graceful stop is over; then they are no failure.
        signal.signal(signal.SIGTERM, _leave)
        server = InProcess(settings, capture=True, access_log=True, on_listening=lambda: _announce(settings, sock))
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[sock])
    _leave()


def _leave(*_: object) -> NoReturn:
    """End the process now: everything is closed, and Python would wait for threads whose tools ignore their cancel."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _announce(settings: Settings, sock: socket.socket) -> None:
    provider = settings.profiles["default"].provider
    print(f"Earlybyte serves {address(sock)} (profile default: {provider})", file=sys.stderr, flush=True)


class InProcess(uvicorn.Server):
    """The service in this process: uvicorn, set as ARCHITECTURE asks, with errors at the start as exceptions.

    `capture` lets uvicorn handle SIGINT and SIGTERM; `on_listening` is called when connections are accepted.
    """

    def __init__(self, settings: Settings, *, capture: bool, access_log: bool, on_listening: Callable[[], None]) -> None:
        from app.main import create_app

        self.capture = capture
        self.on_listening = on_listening
        self.app = _Startup(create_app(settings))
        timeouts = settings.timeouts
        super().__init__(
            uvicorn.Config(
                self.app,
                # uvloop and httptools, where the platform has them.
                loop="auto",
                http="auto",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=access_log,
                server_header=False,
                # X-Forwarded-For is believed only from `server.trusted_proxies`, and only by our own code.
                proxy_headers=False,
                timeout_keep_alive=math.ceil(timeouts.server_keep_alive),
                # uvicorn's own stop begins when the drain is over, and has what the ladder leaves for it.
                timeout_graceful_shutdown=math.ceil(timeouts.shutdown - timeouts.drain),
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the service and listen.

        Raises:
            EarlybyteError: what the service itself gave as the reason for not starting.
        """
        try:
            await super().startup(sockets=sockets)
        except SystemExit:
            if self.app.failure is not None:
                raise self.app.failure from None
            raise EarlybyteError("The service could not start; the log says why.") from None
        self.on_listening()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, or leave them to whoever started us."""
        if not self.capture:
            yield
            return
        with super().capture_signals():
            yield


class _Startup:
    """Keeps our own error from the start of the application, of which the ASGI protocol carries only a trace."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self.app = app
        self.failure: EarlybyteError | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        failed = False

        async def hold_failure(event: Message) -> None:
            nonlocal failed
            failed = event["type"] == "lifespan.startup.failed"
            if not failed:
                await send(event)

        try:
            await self.app(scope, receive, hold_failure)
        except Exception as error:
            self.failure = _ours(error)
            if not failed or self.failure is None:
                raise
        if failed:
            await send({"type": "lifespan.startup.failed", "message": ""})


def _ours(error: BaseException) -> EarlybyteError | None:
    """Our own error in `error`, which may be the group that a task group makes of it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, EarlybyteError) else None


def listen(settings: Settings, host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: connections are refused until the service is ready.

    Raises:
        ConfigError: the address is taken, forbidden or unknown.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise ConfigError(f"server.host = {host} is not an address of this machine.") from None
    # IPv4 first: `localhost` then means what `127.0.0.1` means.
    family, _, _, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(settings.timeouts.tcp_user * 1000))
        sock.bind(where)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {port} of {host} is in use by another program; stop that one, or take another: "
                "`serve --port 9000`, server.port, or EARLYBYTE_SERVER__PORT."
            ) from None
        raise ConfigError(f"Cannot listen on {host} port {port}: {error.strerror}.") from None
    return sock


def address(sock: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
