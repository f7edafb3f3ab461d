"""The way most people write it: FastAPI and sse-starlette, a hop to the loop and a pydantic model for each token."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Literal

import anyio
import anyio.from_thread
import anyio.to_thread
from fastapi import FastAPI, Request
from pydantic import BaseModel
from sse_starlette.sse import EventSourceResponse

from benchmarks.tokens import Wish, speak

app = FastAPI()
_threads: list[anyio.CapacityLimiter] = []


class TextDelta(BaseModel):
    type: Literal["text_delta"] = "text_delta"
    seq: int
    ts: int
    block: int
    text: str


@app.post("/turn")
async def turn(request: Request) -> EventSourceResponse:
    wish = Wish.of((await request.body()).decode()) or Wish()
    return EventSourceResponse(_idle() if wish.idle else _events(wish))


async def _idle() -> AsyncIterator[dict[str, Any]]:
    yield {"comment": "ok"}
    await anyio.sleep_forever()


async def _events(wish: Wish) -> AsyncIterator[dict[str, Any]]:
    if not _threads:
        _threads.append(anyio.CapacityLimiter(2000))
    send, receive = anyio.create_memory_object_stream[TextDelta](100)

    def work() -> None:
        for seq, text in enumerate(speak(wish), 1):
            event = TextDelta(seq=seq, ts=time.time_ns() // 1_000_000, block=1, text=text)
            anyio.from_thread.run(send.send, event)
        anyio.from_thread.run_sync(send.close)

    yield {"comment": "ok"}
    async with anyio.create_task_group() as group:
        group.start_soon(partial(anyio.to_thread.run_sync, work, limiter=_threads[0]))
        async for event in receive:
            yield {"id": f"turn_0000000000000000-1-{event.seq}", "data": event.model_dump_json()}
    yield {"data": '{"type":"stream_end","reason":"done","resume":false}'}
