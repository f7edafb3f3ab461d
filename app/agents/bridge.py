"""From a worker thread to the event loop (ARCHITECTURE, the way of one turn, 4; ADR 0003).

The thread appends to a bounded buffer and wakes the loop once per drain, not once per item. What the turn must act on
comes out of an anyio memory object stream, in batches. A batch of plain deltas may take the short way: while the
consumer has nothing in hand, the drain callback gives it to `direct`, which saves a task switch for each token of a slow
model. Order holds because the short way is open only while nothing older is on the long one.

One producer's drains are at least `WINDOW` apart. The first item after a pause goes at once, so a model that is slower than
that is never held up; one that is quicker is taken in batches, even by a loop that could keep up with each of its items.

Promises: items come out in the order in which they went in; the end of the thread is the end of the stream, so nothing
waits for a sentinel; a full buffer blocks the thread; after `close` the thread is freed at its next `put`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import anyio

from app.agents.context import TurnOver
from app.clock import monotonic
from app.errors import EarlybyteError

T = TypeVar("T")
# Seconds between two drains of one bridge. Shorter than anybody can see; at twenty tokens a second it is never waited for.
WINDOW = 0.005


class ProducerDied(EarlybyteError):
    """A producer ended by something that is no `Exception`, such as `SystemExit`, which must not end the loop as well."""

    code = "internal"


class Bridge(Generic[T]):
    """Any number of producers, one consumer on the loop.

    `direct(items)` takes a beginning of `items` and returns how many; it runs on the loop and must not block.
    `max_items` is how many items may wait before `put` blocks; `window` are the seconds between two drains.
    """

    def __init__(
        self, *, direct: Callable[[Sequence[T]], int] | None = None, max_items: int = 1024, window: float = WINDOW
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._direct = direct
        self._max_items = max_items
        self._window = window
        self._send, self._receive = anyio.create_memory_object_stream[list[T]](math.inf)
        # Taken by itself, three times for each item: through a Condition's own methods it would cost twice as much.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._blocked = 0
        self._buffer: deque[T] = deque()
        self._waiting = 0
        self._scheduled = False
        self._drained_at = -math.inf
        self._closed = False
        self._in_hand = 0
        # Items in the stream or in the consumer's hand: not zero from the moment they are sent, since a receiver that
        # waits gets a batch before its task runs again.
        self._on_long_way = 0
        self._producer_done = False
        self._error: Exception | None = None
        self._answers: set[Future[Any]] = set()

    def __repr__(self) -> str:
        return f"<Bridge waiting={self._waiting} on_long_way={self._on_long_way} closed={self._closed}>"

    # -- the producer's side

    def put(self, item: T, *, wait: bool = True) -> None:
        """Hand over one item, from any thread; blocks while the buffer is full, unless told not to `wait`.

        Raises:
            TurnOver: the turn has ended or was cancelled; nothing more is taken.
        """
        with self._lock:
            while wait and self._waiting >= self._max_items and not self._closed:
                self._wait_for_room()
            if self._closed:
                raise TurnOver
            self._buffer.append(item)
            self._waiting += 1
            if self._scheduled:
                return
            self._scheduled = True
        self._wake(self._drain_when_due)

    def check_open(self) -> None:
        """Nothing, while items are taken.

        Raises:
            TurnOver: the turn has ended or was cancelled.
        """
        if self._closed:
            raise TurnOver

    def _wait_for_room(self) -> None:
        self._blocked += 1
        try:
            self._room.wait()
        finally:
            self._blocked -= 1

    async def put_on_loop(self, item: T) -> None:
        """`put` for a producer that is a task: lets the loop go round while the buffer is full."""
        while self._waiting >= self._max_items and not self._closed:  # noqa: ASYNC110 - the consumer tells threads, not tasks
            await anyio.sleep(0.005)
        self.put(item, wait=False)

    def wait_for(self, answer: Future[Any]) -> Any:
        """The result of `answer`, waited for in the producer's thread; the end of the turn ends the wait.

        Raises:
            TurnOver: the turn has ended.
            Exception: what the answer is.
        """
        with self._lock:
            if self._closed and not answer.done():
                raise TurnOver
            self._answers.add(answer)
        try:
            return answer.result()
        finally:
            with self._lock:
                self._answers.discard(answer)

    def work(self, produce: Callable[[], None]) -> None:
        """Run `produce` in this thread; however it ends, the stream ends with it. Never raises."""
        error: BaseException | None = None
        try:
            produce()
        except BaseException as failure:
            error = failure
        self._wake(self.finish, error)

    def _wake(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            # The loop is gone: the process is stopping and nobody listens any more.
            self._closed = True

    # -- the loop's side

    async def next_batch(self) -> list[T] | None:
        """The next items that were not taken the short way; None at the end of the producer.

        Raises:
            Exception: what ended the producer, after everything that it handed over before.
        """
        self._release(self._in_hand)
        self._on_long_way -= self._in_hand
        self._in_hand = 0
        try:
            batch = await self._receive.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._receive.close()
            if self._error is not None:
                raise self._error from None
            return None
        self._in_hand = len(batch)
        return batch

    def finish(self, error: BaseException | None = None) -> None:
        """The producer has ended, with `error` or in order; a thread that it left behind gets no word in any more."""
        if self._buffer:
            self._drain()
        self._shut()
        self._end(error)

    def close(self, error: BaseException | None = None) -> None:
        """Take nothing more: the next `put` raises, what is held is dropped, the consumer sees the end (or `error`)."""
        self._shut()
        with self._lock:
            answers = list(self._answers)
        for answer in answers:
            if not answer.done():
                answer.set_exception(TurnOver())
        self._end(error)
        # A consumer that waits now has been woken by the line above.
        self._receive.close()

    def _shut(self) -> None:
        with self._lock:
            self._closed = True
            self._buffer.clear()
            self._room.notify_all()

    def _end(self, error: BaseException | None) -> None:
        if not self._producer_done:
            self._producer_done = True
            if error is not None and not isinstance(error, Exception):
                error = ProducerDied(f"the producer ended by {type(error).__name__}")
            self._error = error
            self._send.close()

    def _drain_when_due(self) -> None:
        left = self._drained_at + self._window - monotonic()
        if left > 0:
            self._loop.call_later(left, self._drain)
        else:
            self._drain()

    def _drain(self) -> None:
        with self._lock:
            self._scheduled = False
            if self._closed or not self._buffer:
                return
            items = list(self._buffer)
            self._buffer.clear()
        self._drained_at = monotonic()
        taken = 0
        if self._direct is not None and self._on_long_way == 0:
            taken = self._direct(items)
            self._release(taken)
        if taken < len(items) and not self._producer_done:
            self._on_long_way += len(items) - taken
            self._send.send_nowait(items[taken:])

    def _release(self, count: int) -> None:
        if count:
            with self._lock:
                self._waiting -= count
                if self._blocked:
                    self._room.notify_all()
