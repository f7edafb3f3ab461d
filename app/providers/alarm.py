"""Something to do later, on one shared thread: a thread of its own per call would cost more than what it guards."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from app.clock import monotonic


class Alarm:
    """Runs functions at set moments, late rather than early; they must not raise or block.

    The thread starts with the first use and is a daemon: what has not rung at the end of the process never does.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._live: set[int] = set()
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def after(self, seconds: float, fn: Callable[[], None]) -> Callable[[], None]:
        """Have `fn` called in `seconds`; returns a function that takes it back unless it is already running."""
        with self._changed:
            if self._closed:
                return lambda: None
            number = next(self._numbers)
            moment = monotonic() + seconds
            sooner = not self._due or moment < self._due[0][0]
            heapq.heappush(self._due, (moment, number, fn))
            self._live.add(number)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="upstream-alarm", daemon=True)
                self._thread.start()
            elif sooner:
                self._changed.notify()
        return lambda: self._live.discard(number)

    def close(self) -> None:
        """End the thread; what has not rung never does."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._live.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                wait = self._due[0][0] - monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                _, number, fn = heapq.heappop(self._due)
                rings = number in self._live
                self._live.discard(number)
            if rings:
                fn()

    def __repr__(self) -> str:
        return f"<Alarm {len(self._live)} set>"
