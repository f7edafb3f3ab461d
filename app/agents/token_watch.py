"""The two timeouts of a model call, watched from the loop: until the first token, and between tokens (PROTOCOL 6).

One timer for each call that looks at the time of the last token when it fires: nothing is paid per token, and comments or
pings that keep the socket busy do not keep a silent model alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from app.clock import monotonic
from app.providers.errors import ProviderError

log = structlog.get_logger(__name__)


class ModelTimeout(ProviderError):
    """The model was silent for too long."""

    code = "timeout"


class TokenWatch:
    """Calls `expired` with a `ModelTimeout` when no token came for the seconds of the rung that is in force."""

    def __init__(self, *, first: float, between: float, expired: Callable[[ModelTimeout], None]) -> None:
        self._rung, self._limit = "model_first_token", first
        self._between = between
        self._expired = expired
        self._began = self._last = monotonic()
        # Seconds to the first token, once it is there.
        self.first_after: float | None = None
        self._timer = asyncio.get_running_loop().call_later(first, self._look)

    def __repr__(self) -> str:
        return f"<TokenWatch {self._rung} {self._limit} s, last token {monotonic() - self._last:.1f} s ago>"

    def beat(self) -> None:
        """A token came."""
        self._last = monotonic()
        if self._rung == "model_first_token":
            self._rung, self._limit = "model_between_tokens", self._between
            self.first_after = self._last - self._began
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._between, self._look)

    def stop(self) -> None:
        """The call is over."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self._last + self._limit - monotonic()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._look)
            return
        log.warning("model timeout", rung=self._rung, timeout=self._limit)
        self._expired(ModelTimeout(detail=f"timeout: {self._rung} = {self._limit} s"))
