"""Worker threads for code that blocks and may never come back.

Python cannot end a thread from outside. So code that ignores a cancel is left behind: nobody waits for it, its place in
the limit is free again, and it is counted until it ends, so that whoever admits new work can take it into account.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


class _Count:
    """How many calls there are of each kind; `lock` decides every race between begin, end and giving up."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.busy = 0
        self.abandoned = 0


class _State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ABANDONED = "abandoned"
    OVER = "over"


class WorkerThreads:
    """At most `limit` calls at a time, each in a thread of its own; more wait, first come first served.

    Made anywhere, used from one event loop. Abandoned calls are not among the `limit`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._limiter: anyio.CapacityLimiter | None = None
        self._count = _Count()

    @property
    def busy(self) -> int:
        """Calls that are running now and are waited for."""
        return self._count.busy

    @property
    def abandoned(self) -> int:
        """Calls that were given up and whose threads are still running."""
        return self._count.abandoned

    async def run(self, fn: Callable[[], T]) -> T:
        """What `fn` returns or raises, run in a worker thread with a copy of the caller's context variables.

        A cancel takes effect at once: a call that has not begun never begins, one that has begun is abandoned.
        """
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self.limit)
        call = _ThreadCall(self._count, fn)
        try:
            result = await anyio.to_thread.run_sync(call.run, abandon_on_cancel=True, limiter=self._limiter)
        except BaseException:
            call.give_up()
            raise
        # Empty only for a call that was given up, and then the line above has raised.
        return result[0]

    def __repr__(self) -> str:
        return f"<WorkerThreads {self.busy} of {self.limit} busy, {self.abandoned} abandoned>"


class _ThreadCall(Generic[T]):
    """One call and where it stands."""

    def __init__(self, count: _Count, fn: Callable[[], T]) -> None:
        self._count = count
        self._fn = fn
        self._state = _State.WAITING

    def run(self) -> list[T]:
        with self._count.lock:
            if self._state is not _State.WAITING:
                return []
            self._state = _State.RUNNING
            self._count.busy += 1
        try:
            return [self._fn()]
        finally:
            with self._count.lock:
                if self._state is _State.ABANDONED:
                    self._count.abandoned -= 1
                else:
                    self._count.busy -= 1
                self._state = _State.OVER

    def give_up(self) -> None:
        with self._count.lock:
            if self._state is _State.WAITING:
                self._state = _State.OVER
            elif self._state is _State.RUNNING:
                self._state = _State.ABANDONED
                self._count.busy -= 1
                self._count.abandoned += 1
