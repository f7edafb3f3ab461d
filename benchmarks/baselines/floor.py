"""The floor: what cannot be saved. An ASGI app that sends each event as ready bytes, one send per event, timers of asyncio.

No threads, no framework, no log, no second viewer, no history. Same server, same loop, same bytes on the wire.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.tokens import Wish, stamped

_FRAME = b'id: turn_0000000000000000-1-%d\ndata: {"type":"text_delta","seq":%d,"ts":%d,"block":1,"text":"%b"}\n\n'
_END = b'data: {"type":"stream_end","reason":"done","resume":false}\n\n'
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache, no-transform")]


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    wish = Wish.of(body.decode()) or Wish()
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": b": ok\nretry: 2000\n", "more_body": True})
    if wish.idle:
        await receive()
        return
    start = max(wish.at, time.monotonic())
    for number in range(1, wish.tokens + 1):
        late = 0.0
        if wish.rate:
            due = start + (number - 1) / wish.rate
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            late = max(0.0, time.monotonic() - due)
        data = _FRAME % (number, number, time.time_ns() // 1_000_000, stamped(late).encode())
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": _END, "more_body": False})
