"""The two clocks. `now_ms` is wall-clock time for people and for what outlives the process; `monotonic` is for durations."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000


def monotonic() -> float:
    """Seconds on a clock that never goes back; comparable only within this process."""
    return time.monotonic()
