"""Who writes to a viewer: whoever publishes while its task waits, the task itself when the connection is full (R7, E7)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from app.api.sse import TurnStream
from app.api.viewers import Viewer, Viewers
from app.config import Limits
from app.events.codec import encode
from app.events.content import TurnContent
from app.events.envelope import event_id, frame
from app.events.types import TextDelta
from app.limits.budget import Timeouts
from app.turn_log.log import TurnLog
from app.turn_log.subscription import Subscription

pytestmark = pytest.mark.anyio


class Connection:
    """The server's side of ASGI: takes bytes at once while `open_` is set, otherwise makes the sender wait."""

    def __init__(self) -> None:
        self.open_ = anyio.Event()
        self.open_.set()
        self.body = b""
        self.ended = False
        self.waiting = 0
        self.senders: list[asyncio.Task[Any] | None] = []
        self.failure: Exception | None = None
        self.gone = anyio.Event()

    def fill(self) -> None:
        if self.open_.is_set():
            self.open_ = anyio.Event()

    async def send(self, message: Any) -> None:
        if message["type"] != "http.response.body":
            return
        if not self.open_.is_set():
            self.waiting += 1
            try:
                await self.open_.wait()
            finally:
                self.waiting -= 1
        if self.failure is not None:
            raise self.failure
        self.senders.append(asyncio.current_task())
        self.body += message["body"]
        self.ended = not message.get("more_body", False)

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


def new_log() -> TurnLog:
    log = TurnLog(TurnContent(turn_id="turn_1", conversation_id="conv_1", message_id="msg_1", profile="default"))
    log.content.last_seq = 0
    return log


def publish(log: TurnLog) -> bytes:
    """The frame of one more event, which every reader is told of."""
    event = TextDelta(block=1, text=f"word {log.last_seq + 1} ")
    event.seq, event.ts = log.last_seq + 1, 1
    log.content.apply(event)
    framed = frame(encode(event), event_id(log.turn_id, log.epoch, event.seq))
    log.append(framed)
    log.wake()
    return framed


@asynccontextmanager
async def streaming(log: TurnLog, connection: Connection) -> AsyncIterator[asyncio.Task[None]]:
    """A stream of `log` to `connection`, that has sent its early bytes and waits."""
    viewers = Viewers(Limits(), Timeouts())
    viewer = Viewer(
        Subscription(log), form="sse", heartbeat=False, user=("", "local"), address="127.0.0.1", timeouts=Timeouts()
    )
    stream = TurnStream(viewer, viewers, closed=lambda _: None)
    task = asyncio.create_task(stream({"type": "http"}, connection.receive, connection.send))
    while not connection.body and not task.done():
        await anyio.sleep(0)
    await anyio.sleep(0)
    await anyio.sleep(0)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert len(viewers) == 0
        assert log.readers == 0


async def test_what_is_published_is_written_before_publishing_returns() -> None:
    """A viewer that waits gets the frame from whoever publishes; no switch of tasks lies between."""
    log, connection = new_log(), Connection()
    async with streaming(log, connection) as task:
        framed = publish(log)
        assert connection.body.endswith(framed)
        assert connection.senders[-1] is asyncio.current_task()
        assert not task.done()


async def test_a_full_connection_is_waited_for_by_the_viewers_own_task() -> None:
    """Publishing never waits for a viewer (R7); what it missed leaves in order, in one write, once there is room."""
    log, connection = new_log(), Connection()
    async with streaming(log, connection) as task:
        connection.fill()
        frames = [publish(log) for _ in range(5)]
        await anyio.sleep(0)
        assert connection.waiting == 1
        connection.open_.set()
        with anyio.fail_after(5):
            while not connection.body.endswith(b"".join(frames)):
                await anyio.sleep(0)
        assert connection.senders[-1] is task


async def test_the_turns_end_closes_a_viewer_that_was_written_to_directly() -> None:
    """The last frame, `stream_end` and the end of the body come in this order (F6)."""
    log, connection = new_log(), Connection()
    async with streaming(log, connection) as task:
        framed = publish(log)
        log.end()
        with anyio.fail_after(5):
            await asyncio.wait([task])
        assert task.exception() is None
        before, _, after = connection.body.partition(framed)
        assert before.startswith(b": ok\nretry: ")
        assert b'"type":"stream_end","reason":"done"' in after
        assert connection.ended


async def test_a_write_that_fails_ends_its_own_stream_and_not_the_publisher() -> None:
    """What the connection raises comes out of the viewer's task; whoever publishes does not see it."""
    log, connection = new_log(), Connection()
    async with streaming(log, connection) as task:
        connection.failure = OSError("the peer is gone")
        publish(log)
        with anyio.fail_after(5):
            await asyncio.wait([task])
        assert isinstance(task.exception(), OSError)


async def test_a_stuck_write_ends_with_its_cancelled_task() -> None:
    """A viewer that is given up leaves no write behind that waits."""
    log, connection = new_log(), Connection()
    async with streaming(log, connection) as task:
        connection.fill()
        publish(log)
        await anyio.sleep(0)
        assert connection.waiting == 1
        task.cancel()
        with anyio.fail_after(5):
            await asyncio.wait([task])
        assert connection.waiting == 0


@pytest.mark.parametrize("seed", range(20))
async def test_any_schedule_of_full_and_free_gives_every_frame_once_in_order(seed: int) -> None:
    """Whoever writes, the bytes are the log's (R2, E7)."""
    chance = random.Random(seed)
    log, connection = new_log(), Connection()
    frames: list[bytes] = []
    async with streaming(log, connection) as task:
        for _ in range(150):
            match chance.randrange(5):
                case 0:
                    connection.fill()
                case 1:
                    connection.open_.set()
                case 2:
                    await anyio.sleep(0)
                case _:
                    frames.append(publish(log))
        log.end()
        connection.open_.set()
        with anyio.fail_after(5):
            await asyncio.wait([task])
        _, _, body = connection.body.partition(b"\n")[2].partition(b"\n")
        assert body.startswith(b"".join(frames))
        assert body.count(b"id: ") == len(frames)
        assert connection.ended
