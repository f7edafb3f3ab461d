"""A moment after which a turn is over, on the monotonic clock: a changed wall clock moves nothing (PROTOCOL 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from app.clock import monotonic, now_ms


class Deadline:
    """The end of a span of `seconds` that begins now.

    Not thread-safe for `extend`, which only the owner of the turn calls; `remaining` may be read from any thread.
    """

    def __init__(self, seconds: float, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds

    @classmethod
    def from_wall_ms(
        cls, at_ms: int, *, clock: Callable[[], float] = monotonic, wall_ms: Callable[[], int] = now_ms
    ) -> Self:
        """The deadline that another process stored as epoch milliseconds; it may be over already."""
        return cls((at_ms - wall_ms()) / 1000, clock=clock)

    def wall_ms(self, *, wall_ms: Callable[[], int] = now_ms) -> int:
        """The moment as epoch milliseconds, to be stored for the process that may take the turn over."""
        return wall_ms() + round((self._at - self._clock()) * 1000)

    def remaining(self) -> float:
        """Seconds left; 0 when it is over, never less."""
        return max(0.0, self._at - self._clock())

    @property
    def expired(self) -> bool:
        """Whether nothing is left."""
        return self._clock() >= self._at

    def extend(self, seconds: float) -> None:
        """Move the moment back by `seconds`: the time that a wait for an approval took (B4)."""
        self._at += seconds

    def __repr__(self) -> str:
        return f"<Deadline {self._at - self._clock():+.3f} s>"
