"""The open streams of this process: keep-alive, write limits, lag, connection age and drain, from one shared ticker.

A viewer is a cursor on a log and a place in this list; it has no queue of its own, so a slow one costs nothing but its
cursor (R7). Whoever publishes writes to it at once, and its task is woken only when the connection does not take the bytes
or something ends: a switch of tasks for each frame and viewer costs as much as the frame (docs/performance.md). Nothing
here depends on anything that a tool or a model can block (F5).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import anyio
import structlog
from starlette.types import Send

from app.api.transport import untaken
from app.clock import monotonic
from app.config import Limits
from app.errors import EarlybyteError
from app.events.codec import encode
from app.events.envelope import frame, line
from app.events.types import EndReason, Event, Heartbeat, StreamEnd
from app.limits.budget import Timeouts
from app.observability import metrics
from app.turn_log.subscription import Subscription

log = structlog.get_logger(__name__)

Form = Literal["sse", "ndjson"]
# A snapshot is written in pieces of this size (F4), as is everything else (`app.turn_log.subscription`).
PIECE_BYTES = 64 << 10
# What a viewer may be behind, and for how long without coming nearer (R7).
LAG_EVENTS = 1000
LAG_BYTES = 256 << 10
LAG_SECONDS = 10.0


class TooManyViewers(EarlybyteError):
    """There are too many open streams."""

    code = "too_many_viewers"


class _Unfinished:
    """What is left of a write that was begun outside its task; to be awaited once."""

    __slots__ = ("_coroutine", "_pending")

    def __init__(self, coroutine: Coroutine[Any, Any, None], pending: object) -> None:
        self._coroutine = coroutine
        self._pending = pending

    def __await__(self) -> Generator[Any, Any, None]:
        pending = self._pending
        while True:
            try:
                answer = yield pending
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, answer)
            try:
                pending = step()
            except StopIteration:
                return


class Viewer:
    """One open connection that follows a turn, as a sequence of pieces to write."""

    __slots__ = (
        "_born",
        "_fresh",
        "_lag_best",
        "_lag_since",
        "_left",
        "_max_age",
        "_ping_after",
        "_ping_due",
        "_rest",
        "_send",
        "_taken_at",
        "_task",
        "_unfinished",
        "_waiter",
        "_woken",
        "_write",
        "aborted",
        "address",
        "closing",
        "form",
        "gone",
        "heartbeat",
        "last_byte",
        "on_id",
        "sending_since",
        "subscription",
        "user",
    )

    def __init__(
        self,
        subscription: Subscription,
        *,
        form: Form,
        heartbeat: bool,
        user: tuple[str, str],
        address: str,
        timeouts: Timeouts,
        on_id: Callable[[], None] | None = None,
    ) -> None:
        self.subscription = subscription
        self.form = form
        self.heartbeat = heartbeat
        self.user = user
        self.address = address
        self.on_id = on_id
        self.closing: EndReason | None = None
        self.gone = False
        self.aborted = False
        self.sending_since: float | None = None
        self.last_byte = monotonic()
        self._born = self.last_byte
        self._fresh = True
        self._ping_after = timeouts.keep_alive * random.uniform(0.9, 1.1)  # noqa: S311 - jitter, not a secret
        self._max_age = timeouts.connection_age * random.uniform(0.9, 1.1)  # noqa: S311
        self._ping_due = False
        self._rest: list[bytes] = []
        self._write: Callable[[bytes], Coroutine[Any, Any, None]] | None = None
        self._unfinished: Awaitable[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False
        self._task: asyncio.Task[object] | None = None
        self._lag_since = 0.0
        self._lag_best = (0, 0)
        # Bytes that the peer has not taken yet, where that can be known, and when it last took some of this write.
        self._send: Send | None = None
        self._left: int | None = None
        self._taken_at = 0.0

    def __repr__(self) -> str:
        return f"<Viewer {self.subscription} {self.closing or ''}>"

    # -- the writing side

    def wake(self) -> None:
        """There may be something to write: it is written now if the task waits and the connection takes it."""
        waiter = self._waiter
        if waiter is None:
            self._woken = True
        elif not waiter.done() and not self._write_now():
            waiter.set_result(None)

    def _write_now(self) -> bool:
        """Write what there is, from outside the task; whether nothing is left for the task to do."""
        if self._write is None:
            return False
        piece = self.next()
        if not piece:
            return piece is not None
        writing = self._write(piece)
        try:
            pending = writing.send(None)
        except StopIteration:
            self.last_byte = monotonic()
            return not self._rest and self.closing is None and self.subscription.behind == 0
        except Exception as error:
            self._unfinished = _failed(error)
            return False
        # The connection is full: the task waits for it, as for any write of its own.
        self._unfinished = _Unfinished(writing, pending)
        return False

    async def wait(self) -> None:
        """Until there may be something to write that was not written by `wake`."""
        if not self._woken:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._woken = False
        if self._unfinished is not None:
            unfinished, self._unfinished = self._unfinished, None
            with self.sending():
                await unfinished

    def next(self) -> bytes | None:
        """The next bytes to write; empty when there are none now, None when the stream is over."""
        if self._rest:
            return self._rest.pop(0)
        if self.gone or self.closing == "done":
            return None
        if self.closing != "lagging":
            frames = self.subscription.take()
            if frames:
                self._ping_due = False
                return self._written(frames)
        if self.closing is not None:
            return self._goodbye(self.closing)
        if self.subscription.finished:
            return self._goodbye("done")
        if self._ping_due:
            self._ping_due = False
            return self._keep_alive()
        return b""

    def _written(self, frames: list[bytes]) -> bytes:
        if self._fresh:
            self._fresh = False
            metrics.first_event_seconds.observe(monotonic() - self._born)
        if self.on_id is not None and frames[-1].startswith(b"id:"):
            self.on_id()
            self.on_id = None
        if self.form == "ndjson":
            frames = [line(one) for one in frames]
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        if len(data) > PIECE_BYTES and len(frames) == 1:
            self._rest = [data[i : i + PIECE_BYTES] for i in range(PIECE_BYTES, len(data), PIECE_BYTES)]
            return data[:PIECE_BYTES]
        return data

    def _goodbye(self, reason: EndReason) -> bytes:
        self.closing = "done"
        metrics.stream_ends.labels(reason).inc()
        return self.encode(StreamEnd(reason=reason, resume=reason != "done"))

    def _keep_alive(self) -> bytes:
        metrics.keep_alives.inc()
        if self.form == "ndjson":
            beat = b" "
        else:
            beat = b": ping\n"
        if not self.heartbeat:
            return beat
        turn_log = self.subscription.log
        elapsed = int((monotonic() - turn_log.phase_since) * 1000)
        return beat + self.encode(Heartbeat(phase=turn_log.phase, elapsed_ms=elapsed))

    def encode(self, event: Event) -> bytes:
        """An event about this connection, in its form."""
        framed = frame(encode(event))
        return framed if self.form == "sse" else line(framed)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Around one write: the ticker watches how long it takes."""
        self.sending_since = self._taken_at = monotonic()
        self._left = None
        try:
            yield
        finally:
            self.last_byte = monotonic()
            self.sending_since = None

    def bind(
        self,
        task: asyncio.Task[object] | None,
        write: Callable[[bytes], Coroutine[Any, Any, None]] | None = None,
        send: Send | None = None,
    ) -> None:
        """The task that writes, which an abort interrupts; with `write`, `wake` may write while that task waits.

        `send` is the server's own, which may show how much the peer has taken: one that takes little is slow, not stuck.
        """
        self._task = task
        self._write = write
        self._send = send

    # -- the ticker's side

    def end(self, reason: EndReason) -> None:
        """End the stream in order, with `stream_end`."""
        if self.closing is None:
            self.closing = reason
            self.wake()

    def tick(self, now: float, timeouts: Timeouts) -> None:
        """Look after this viewer."""
        if self.sending_since is not None:
            if self.stuck_for(now) > timeouts.viewer_write:
                self.abort("viewer_write", timeouts.viewer_write)
            else:
                self._watch_lag(now)
            return
        self._lag_since = 0.0
        if now - self._born > self._max_age:
            self.end("rotated")
        elif now - self.last_byte >= self._ping_after:
            self._ping_due = True
            self.wake()

    def stuck_for(self, now: float) -> float:
        """For how many seconds the peer has taken nothing of a write that waits for it."""
        if self.sending_since is None:
            return 0.0
        left = untaken(self._send)
        if left is not None and self._left is not None and left < self._left:
            self._taken_at = now
        self._left = left
        return now - self._taken_at

    def _watch_lag(self, now: float) -> None:
        behind = self.subscription.behind
        if behind <= LAG_EVENTS and self.subscription.bytes_behind <= LAG_BYTES:
            self._lag_since = 0.0
        elif not self._lag_since or (behind, self._left or 0) < self._lag_best:
            self._lag_since, self._lag_best = now, (behind, self._left or 0)
        elif now - self._lag_since > LAG_SECONDS:
            # Told after the write that is under way; where that does not end, `viewer_write` ends it.
            self.closing = "lagging"

    def abort(self, rung: str, value: float) -> None:
        """Give up a viewer that takes nothing."""
        if not self.aborted:
            self.aborted = True
            metrics.viewers_dropped.labels(rung).inc()
            log.info("viewer dropped: timeout", rung=rung, timeout=value, turn_id=self.subscription.log.turn_id)
            if self._task is not None:
                self._task.cancel()


async def _failed(error: Exception) -> None:
    raise error


class Viewers:
    """All viewers of this process."""

    def __init__(self, limits: Limits, timeouts: Timeouts) -> None:
        self._limits = limits
        self.timeouts = timeouts
        self._viewers: set[Viewer] = set()
        self.draining = False

    def __repr__(self) -> str:
        return f"<Viewers {len(self._viewers)}{' draining' if self.draining else ''}>"

    def __len__(self) -> int:
        return len(self._viewers)

    def __iter__(self) -> Iterator[Viewer]:
        return iter(list(self._viewers))

    def check_room(self, *, user: tuple[str, str] | None, address: str) -> Literal["user", "address", "service"] | None:
        """Whose cap a further viewer would break; None when it fits. `user` is None for the keyless local user."""
        limits = self._limits
        if len(self._viewers) >= limits.viewers:
            return "service"
        if user is not None:
            if sum(v.user == user for v in self._viewers) >= limits.viewers_per_user:
                return "user"
            if sum(v.address == address for v in self._viewers) >= limits.viewers_per_address:
                return "address"
        return None

    def add(self, viewer: Viewer) -> None:
        """A stream has opened."""
        self._viewers.add(viewer)

    def remove(self, viewer: Viewer) -> None:
        """A stream is over."""
        self._viewers.discard(viewer)

    async def run(self) -> None:
        """The ticker: twenty looks in a keep-alive interval, so that each is on time within its jitter."""
        interval = min(0.5, max(0.02, self.timeouts.keep_alive / 20))
        while True:
            asked = monotonic()
            await anyio.sleep(interval)
            now = monotonic()
            metrics.loop_lag_seconds.observe(max(0.0, now - asked - interval))
            for viewer in tuple(self._viewers):
                viewer.tick(now, self.timeouts)
