"""Whether one more turn fits, and when to come again if not (H5). Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from app.config import Limits
from app.errors import EarlybyteError


class OverCapacity(EarlybyteError):
    """There is no room for another turn at the moment."""

    code = "over_capacity"

    def __init__(self, message: str, *, whose: Literal["user", "address", "service"], retry_after: int) -> None:
        super().__init__(message)
        self.whose = whose
        self.retry_after = retry_after


class Durations:
    """How long the last turns took, for an honest guess when a place will be free."""

    def __init__(self, keep: int = 50) -> None:
        self._seconds: deque[float] = deque(maxlen=keep)

    def add(self, seconds: float) -> None:
        """One turn has taken this long."""
        self._seconds.append(seconds)

    @property
    def mean(self) -> float:
        """Seconds of a usual turn; 2 before any is known."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else 2.0


def check(limits: Limits, *, waiting: int, room: int, of_user: int, of_address: int, recent: Durations) -> None:
    """Nothing, when a further turn fits.

    `room` is the number of free run slots, `waiting` the turns that wait already.

    Raises:
        OverCapacity: it does not; says for whom, and in how many seconds a place will probably be free.
    """
    if of_user >= limits.turns_per_user:
        words = f"You have {of_user} turns open, and {limits.turns_per_user} is the most; wait for one to end."
        raise OverCapacity(words, whose="user", retry_after=_soon(recent.mean))
    if of_address >= limits.turns_per_address:
        words = f"There are {of_address} turns open from your address, and {limits.turns_per_address} is the most."
        raise OverCapacity(words, whose="address", retry_after=_soon(recent.mean))
    if waiting >= limits.queued + max(0, room):
        seconds = recent.mean * (waiting + 1) / max(1, limits.turns)
        raise OverCapacity("The service is full; try again later.", whose="service", retry_after=_soon(seconds))


def _soon(seconds: float) -> int:
    return max(1, min(60, math.ceil(seconds)))
