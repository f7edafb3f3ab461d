"""Agents that the service runs while it is measured: sync generators, as most that users bring."""

from __future__ import annotations

import time
from collections.abc import Iterator

from app.agents import AgentContext
from benchmarks.tokens import Wish, speak


def talk(ctx: AgentContext) -> Iterator[str]:
    """Say what the input wishes for."""
    wish = Wish.of(str(ctx.input)) or Wish(tokens=20, rate=20)
    if wish.idle:
        while not ctx.cancelled:
            time.sleep(0.5)
        return
    yield from speak(wish)
