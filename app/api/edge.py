"""What every request passes first, as plain ASGI: the open service's door, and the size and the time of the body.

Plain ASGI, since Starlette's own base class for middleware costs two tasks and a hop for each chunk of a stream.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import structlog
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import BodyTooLarge, BodyTooLate, BodyTooSlow, Forbidden, for_error, problem
from app.api.service import Service
from app.clock import monotonic

log = structlog.get_logger(__name__)


class Edge:
    """Refuses what may not come in before a route sees it. A body must be there within `body_seconds` (`request`, B3)."""

    def __init__(self, app: ASGIApp, *, service: Callable[[], Service], body_bytes: int, body_seconds: float) -> None:
        self._app = app
        self._service = service
        self._body_bytes = body_bytes
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["earlybyte.began"] = monotonic()
        connection = HTTPConnection(scope)
        try:
            self._service().gate.check_origin_of_open_service(connection)
        except Forbidden as error:
            await for_error(error)(scope, receive, send)
            return
        length = connection.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._body_bytes:
            words = str(BodyTooLarge(self._body_bytes).detail)
            await problem(413, "too_large", words, headers={"Connection": "close"})(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        seen = 0
        whole = False
        give_up_at: float | None = None

        async def counted() -> Message:
            nonlocal seen, whole, give_up_at
            if whole:
                # What comes now is that the client has left, at any time.
                return await receive()
            give_up_at = give_up_at or anyio.current_time() + self._body_seconds
            service = self._service()
            message: Message | None = None
            with anyio.CancelScope(deadline=give_up_at) as scope:
                service.reading.add(scope)
                try:
                    message = await receive()
                finally:
                    service.reading.discard(scope)
            if message is None and service.draining:
                raise BodyTooLate
            if message is None:
                log.warning("request timeout", rung="request", timeout=self._body_seconds)
                raise BodyTooSlow
            whole = not message.get("more_body", False)
            seen += len(message.get("body", b""))
            if seen > self._body_bytes:
                raise BodyTooLarge(self._body_bytes)
            return message

        return counted
