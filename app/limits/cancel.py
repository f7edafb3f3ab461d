"""The switch that stops blocking work from another thread: a model's stream, a tool, a child process."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Cancel:
    """A one-way switch that one thread sets and another feels at once.

    `on_cancel(fn)` registers what frees a blocked thread (shut a socket, wake a sleeper); it runs in the thread that
    cancels, at once when the switch is already set, and must not raise or block.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether the switch is set."""
        return self._event.is_set()

    def wait(self, timeout: float) -> bool:
        """Sleep for `timeout` seconds or until cancelled; True when cancelled."""
        return self._event.wait(timeout)

    def on_cancel(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Register `fn`; returns a function that takes it back."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(fn)
                return lambda: self._remove(fn)
        fn()
        return lambda: None

    def _remove(self, fn: Callable[[], None]) -> None:
        with self._lock:
            if fn in self._callbacks:
                self._callbacks.remove(fn)

    def cancel(self) -> None:
        """Set the switch and run the callbacks, each once."""
        with self._lock:
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for fn in callbacks:
            fn()

    def __repr__(self) -> str:
        return f"<Cancel {'set' if self.cancelled else 'not set'}>"
