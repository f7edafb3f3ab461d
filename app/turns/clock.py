"""The time of one turn: a deadline that stands still while the turn waits for a person (B4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.clock import monotonic
from app.limits.deadline import Deadline


class TurnClock:
    """Calls `expired` once when the turn's time is over. `pause` and `resume` nest."""

    def __init__(self, deadline: Deadline, expired: Callable[[], object]) -> None:
        self.deadline = deadline
        self._expired = expired
        self._pauses = 0
        self._paused_at = 0.0
        self._left_at_pause = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    def __repr__(self) -> str:
        return f"<TurnClock {self.remaining():.1f} s left{', paused' if self._pauses else ''}>"

    def remaining(self) -> float:
        """Seconds left, as if a pause ended now."""
        return self._left_at_pause if self._pauses else self.deadline.remaining()

    def pause(self) -> None:
        """The turn waits for a person from now on."""
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = monotonic()
            self._left_at_pause = self.deadline.remaining()
            self.stop()

    def resume(self) -> None:
        """The wait is over; its time is given back."""
        self._pauses -= 1
        if self._pauses == 0:
            self.deadline.extend(monotonic() - self._paused_at)
            self._arm()

    def stop(self) -> None:
        """Never call `expired` any more, until a `resume`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.deadline.remaining(), self._expired)
