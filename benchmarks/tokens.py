"""Tokens that carry the moment of their production, and what a client learns from the bytes it gets.

A token is ten characters: `~`, microseconds of the monotonic clock (which all processes of a machine share) in seven hex
digits, and in two more how late it was produced by its own timetable, in steps of four milliseconds. Nothing has to be
parsed to count and time them, so the client stays light, whatever surrounds them on the wire.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

WIDTH = 10
LATE_STEP = 0.004
_WRAP = 1 << 28
TOKEN = re.compile(rb"~([0-9a-f]{7})([0-9a-f]{2})")


@dataclass(frozen=True)
class Wish:
    """What a turn shall do, told in its input: `tokens` at `rate` a second (0: as fast as it can), not before `at`.

    `at` is a moment on the monotonic clock; `idle` says nothing at all and stays.
    """

    tokens: int = 0
    rate: float = 0.0
    at: float = 0.0
    idle: bool = False

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Wish | None:
        """The wish in `text`, None when it is something else."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None


def stamped(late: float = 0.0) -> str:
    """A token that is produced now."""
    return f"~{(time.monotonic_ns() // 1000) % _WRAP:07x}{min(int(late / LATE_STEP), 255):02x}"


def speak(wish: Wish) -> Iterator[str]:
    """The tokens of a wish, by its timetable, in a thread; as fast as it can means giving up the GIL for each."""
    start = max(wish.at, time.monotonic())
    for number in range(wish.tokens):
        if not wish.rate:
            if number == 0 and (wait := start - time.monotonic()) > 0:
                time.sleep(wait)
            yield stamped()
            time.sleep(0)
            continue
        due = start + number / wish.rate
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        yield stamped(max(0.0, time.monotonic() - due))


def age(found: re.Match[bytes], now_us: int) -> tuple[float, float]:
    """Seconds from a token's production until now, and from the moment when it was due."""
    delay = ((now_us - int(found[1], 16)) % _WRAP) / 1e6
    return delay, delay + int(found[2], 16) * LATE_STEP
