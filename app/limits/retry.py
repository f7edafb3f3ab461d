"""Trying again: the one place where a failed call is made anew, so that retries cannot multiply (PROTOCOL 5, X1).

Whether a failure may be tried again is the caller's decision, given as a value. How long to wait is decided here: full
jitter over an exponential cap, so that clients which failed together do not come back together; a wait that the
endpoint asked for is kept, and a wait that does not fit into the time left is not begun.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

T = TypeVar("T")

# How much is added at random to a wait that the endpoint asked for, as a share of it.
_SPREAD = 0.1


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """Whether a call may be made again, and the wait in seconds that the endpoint asked for (None: none)."""

    retry: bool
    retry_after: float | None = None


async def call_with_retries(
    call: Callable[[int], Awaitable[T]],
    *,
    attempts: int,
    may_retry: Callable[[Exception], RetryDecision],
    remaining: Callable[[], float],
    on_retry: Callable[[int, Exception], Awaitable[None]],
    base: float = 0.5,
    cap: float = 8.0,
    rng: random.Random | None = None,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> T:
    """The result of the first attempt that succeeds.

    `call` gets the number of the attempt, from 1. After a failure `may_retry` is asked, once; it must be quick and must
    not raise. The wait before attempt n + 1 is random between 0 and `min(cap, base * 2**(n-1))` seconds; an asked-for
    `retry_after` is never undercut, and up to a tenth of it is added. `on_retry` gets the number of the next attempt
    and the error, before the wait. Nothing is waited for past `remaining()` seconds.

    Raises:
        Exception: the last error as it was, when it may not be tried again, when `attempts` are spent, or when the wait
            does not fit into the time left. What `on_retry` raises ends it, too.
    """
    random_source = rng or random.Random()  # noqa: S311 - jitter, not a secret
    numbers = itertools.count(1)
    verdict = RetryDecision(retry=False)

    def judge(error: BaseException) -> bool:
        nonlocal verdict
        # Cancellation is not an Exception, so it always passes through.
        verdict = may_retry(error) if isinstance(error, Exception) else RetryDecision(retry=False)
        return verdict.retry

    def wait(state: RetryCallState) -> float:
        if verdict.retry_after is not None:
            return max(0.0, verdict.retry_after) * (1 + random_source.uniform(0, _SPREAD))
        return random_source.uniform(0, min(cap, base * 2 ** (state.attempt_number - 1)))

    def spent(state: RetryCallState) -> bool:
        return state.attempt_number >= attempts or state.upcoming_sleep >= remaining()

    async def announce(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, Exception):
            await on_retry(state.attempt_number + 1, error)

    async def attempt() -> T:
        return await call(next(numbers))

    retrying = AsyncRetrying(
        retry=retry_if_exception(judge),
        wait=wait,
        stop=spent,
        before_sleep=announce,
        sleep=sleep,
        reraise=True,
    )
    return await retrying(attempt)
