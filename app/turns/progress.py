"""The progress of tools that an agent runs by itself, five a second at most and always the latest (PROTOCOL 3)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import anyio

from app.clock import monotonic
from app.events.types import ToolProgress

_SECONDS = 0.2


class Progress:
    """Shows at once what comes after a while, and holds back what comes too soon until it may be shown."""

    def __init__(self, show: Callable[[ToolProgress], None], background: Callable[[Awaitable[None]], None]) -> None:
        self._show = show
        self._background = background
        self._shown_at: dict[str, float] = {}
        self._held: dict[str, ToolProgress] = {}

    def __repr__(self) -> str:
        return f"<Progress held={len(self._held)}>"

    def take(self, event: ToolProgress) -> None:
        """Show it now or in a moment, unless a later one of its call comes first."""
        wait = self._shown_at.get(event.tool_call_id, -math.inf) + _SECONDS - monotonic()
        if wait <= 0:
            self._let_out(event)
            return
        due = event.tool_call_id in self._held
        self._held[event.tool_call_id] = event
        if not due:
            self._background(self._later(event.tool_call_id, wait))

    async def _later(self, tool_call_id: str, wait: float) -> None:
        await anyio.sleep(wait)
        self._let_out(self._held.pop(tool_call_id))

    def _let_out(self, event: ToolProgress) -> None:
        self._shown_at[event.tool_call_id] = monotonic()
        self._show(event)
