"""The one seam from frames to the wire, on sse-starlette's response (ARCHITECTURE; ADR 0004).

The library's response brings five tasks and a cancel scope for every send; ours is fed with ready bytes and needs one task
beside the request's own: the one that sees the client go. Early bytes leave with the headers, nothing awaited between (F2).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from sse_starlette.sse import EventSourceResponse
from starlette.types import Receive, Scope, Send

from app.api.viewers import Form, Viewer, Viewers
from app.clock import monotonic
from app.events.codec import encode
from app.events.envelope import frame, line
from app.events.types import EndReason, StreamEnd
from app.observability import metrics

_MEDIA = {"sse": "text/event-stream", "ndjson": "application/x-ndjson"}
_HEADERS = {"Cache-Control": "no-cache, no-transform"}


async def _nothing() -> AsyncIterator[bytes]:
    """The library wants a content; ours comes from the viewer, and this is never asked for any."""
    yield b""


def early_bytes(form: Form, *, retry_ms: tuple[int, int] = (1500, 3000)) -> bytes:
    """What leaves together with the headers: a comment and a jittered `retry`, without a blank line (F2)."""
    if form == "ndjson":
        return b" "
    return b": ok\nretry: %d\n" % random.randint(*retry_ms)  # noqa: S311 - jitter, not a secret


class FrameResponse(EventSourceResponse):
    """Headers and early bytes, then pieces of ready frames."""

    def __init__(self, form: Form, *, early: bytes) -> None:
        super().__init__(_nothing(), headers=_HEADERS, media_type=_MEDIA[form], sep="\n", ping=0)
        self.early = early

    async def start(self, scope: Scope, send: Send) -> None:
        """Headers and early bytes, in one go."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.early, "more_body": True})
        if "earlybyte.began" in scope:
            metrics.first_byte_seconds.observe(monotonic() - scope["earlybyte.began"])


class TurnStream(FrameResponse):
    """A viewer's connection, from its first byte to `stream_end` or to the client's going."""

    def __init__(self, viewer: Viewer, viewers: Viewers, *, closed: Callable[[Viewer], None]) -> None:
        super().__init__(viewer.form, early=early_bytes(viewer.form))
        self.viewer = viewer
        self._viewers = viewers
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the turn, the connection or the client is over."""
        viewer = self.viewer
        send_frame: Send = scope.get("earlybyte.send", send)

        def write(piece: bytes) -> Coroutine[Any, Any, None]:
            message = {"type": "http.response.body", "body": piece, "more_body": True}
            return send_frame(message)  # type: ignore[return-value]  # in ASGI it is a coroutine

        viewer.bind(asyncio.current_task())
        self._viewers.add(viewer)
        viewer.subscription.open(viewer.wake)
        listener: asyncio.Task[None] | None = None
        try:
            await self.start(scope, send)
            listener = asyncio.get_running_loop().create_task(self._listen(receive))
            viewer.bind(asyncio.current_task(), write, send_frame)
            while (piece := viewer.next()) is not None:
                if piece:
                    with viewer.sending():
                        await write(piece)
                else:
                    await viewer.wait()
            if not viewer.gone:
                with viewer.sending():
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not viewer.aborted:
                raise
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        finally:
            if listener is not None:
                listener.cancel()
            viewer.subscription.close()
            self._viewers.remove(viewer)
            self._closed(viewer)

    async def _listen(self, receive: Receive) -> None:
        """Wait for the client to go."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.viewer.gone = True
        self.viewer.wake()


class EndedStream(FrameResponse):
    """A stream that is over before it begins: an EventSource must not be told so by a status (R6)."""

    def __init__(self, form: Form, reason: EndReason) -> None:
        super().__init__(form, early=early_bytes(form, retry_ms=(5000, 15000)))
        framed = frame(encode(StreamEnd(reason=reason, resume=True)))
        self._goodbye = framed if form == "sse" else line(framed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Early bytes and `stream_end`."""
        await self.start(scope, send)
        await send({"type": "http.response.body", "body": self._goodbye, "more_body": False})
