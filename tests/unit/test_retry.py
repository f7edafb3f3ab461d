"""Trying again: how often, how long between, and when not (PROTOCOL 5, X1)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.limits.retry import RetryDecision, call_with_retries

AGAIN = RetryDecision(retry=True)


class Broken(Exception):
    """A failure of the made-up endpoint."""


@dataclass
class Endpoint:
    """Fails as often as it is told to, and a clock that moves only by waiting."""

    failures: int
    decision: RetryDecision = AGAIN
    left: float = 1000.0
    calls: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    told: list[tuple[int, str]] = field(default_factory=list)
    asked: int = 0

    async def call(self, attempt: int) -> str:
        await anyio.lowlevel.checkpoint()
        self.calls.append(attempt)
        if attempt <= self.failures:
            raise Broken(f"number {attempt}")
        return f"answer {attempt}"

    def may_retry(self, error: Exception) -> RetryDecision:
        self.asked += 1
        return self.decision

    async def on_retry(self, attempt: int, error: Exception) -> None:
        self.told.append((attempt, str(error)))

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.left -= seconds
        await anyio.lowlevel.checkpoint()

    async def run(self, attempts: int = 3, seed: int = 0) -> str:
        return await call_with_retries(
            self.call,
            attempts=attempts,
            may_retry=self.may_retry,
            remaining=lambda: self.left,
            on_retry=self.on_retry,
            rng=random.Random(seed),
            sleep=self.sleep,
        )


@pytest.mark.anyio
async def test_a_call_that_succeeds_is_made_once_and_nobody_is_told() -> None:
    """Nothing is retried that did not fail."""
    endpoint = Endpoint(failures=0)
    assert await endpoint.run() == "answer 1"
    assert (endpoint.calls, endpoint.waits, endpoint.told) == ([1], [], [])


@pytest.mark.anyio
async def test_each_new_attempt_is_announced_with_its_number_and_the_error_before_it() -> None:
    """`attempt_restarted` counts the tries of the call (section 3)."""
    endpoint = Endpoint(failures=2)
    assert await endpoint.run() == "answer 3"
    assert endpoint.calls == [1, 2, 3]
    assert endpoint.told == [(2, "number 1"), (3, "number 2")]
    assert endpoint.asked == 2


@pytest.mark.anyio
async def test_the_last_error_comes_out_as_it_was_when_the_attempts_are_spent() -> None:
    """At most two more attempts by default; no wrapper hides the cause."""
    endpoint = Endpoint(failures=9)
    with pytest.raises(Broken, match="number 3"):
        await endpoint.run()
    assert endpoint.calls == [1, 2, 3]
    assert len(endpoint.waits) == 2


@pytest.mark.anyio
async def test_what_may_not_be_tried_again_is_raised_at_once() -> None:
    """The decision is the caller's."""
    endpoint = Endpoint(failures=9, decision=RetryDecision(retry=False, retry_after=1))
    with pytest.raises(Broken, match="number 1"):
        await endpoint.run()
    assert (endpoint.calls, endpoint.waits) == ([1], [])


@given(seed=st.integers(), attempts=st.integers(2, 9))
def test_waits_are_spread_below_a_rising_cap(seed: int, attempts: int) -> None:
    """Full jitter: anything from nothing to the cap, which doubles from half a second up to eight."""
    endpoint = Endpoint(failures=99)
    with pytest.raises(Broken):
        anyio.run(endpoint.run, attempts, seed)
    assert len(endpoint.waits) == attempts - 1
    for n, wait in enumerate(endpoint.waits):
        assert 0 <= wait <= min(8.0, 0.5 * 2**n)


@given(seed=st.integers(), asked=st.floats(0, 100))
def test_an_asked_for_wait_is_never_undercut(seed: int, asked: float) -> None:
    """Retry-After is honoured; up to a tenth is added, so that those who were sent away together do not meet again."""
    endpoint = Endpoint(failures=1, decision=RetryDecision(retry=True, retry_after=asked))
    anyio.run(endpoint.run, 3, seed)
    assert asked <= endpoint.waits[0] <= asked * 1.1


@pytest.mark.anyio
async def test_a_wait_that_does_not_fit_into_the_time_left_is_not_begun() -> None:
    """Inside the deadline, or not at all: the error comes at once, while there is time left to say so."""
    endpoint = Endpoint(failures=9, decision=RetryDecision(retry=True, retry_after=30), left=29)
    with pytest.raises(Broken, match="number 1"):
        await endpoint.run()
    assert (endpoint.waits, endpoint.told) == ([], [])


@pytest.mark.anyio
async def test_the_time_left_is_asked_anew_before_each_wait() -> None:
    """Two waits of 30 s do not fit into 50 s, one does."""
    endpoint = Endpoint(failures=9, decision=RetryDecision(retry=True, retry_after=30), left=50)
    with pytest.raises(Broken, match="number 2"):
        await endpoint.run()
    assert len(endpoint.waits) == 1


@pytest.mark.anyio
async def test_a_cancel_is_not_an_error_and_is_never_retried() -> None:
    """Cancellation passes through a running attempt."""
    endpoint = Endpoint(failures=9)
    started = anyio.Event()

    async def hang(attempt: int) -> str:
        endpoint.calls.append(attempt)
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await call_with_retries(
                hang, attempts=3, may_retry=endpoint.may_retry, remaining=lambda: 9.0, on_retry=endpoint.on_retry
            )

        tasks.start_soon(run)
        with anyio.fail_after(5):
            await started.wait()
        tasks.cancel_scope.cancel()
    assert (endpoint.calls, endpoint.asked) == ([1], 0)


@pytest.mark.anyio
async def test_a_cancel_ends_a_wait() -> None:
    """A person who stops a turn does not wait for a backoff to pass."""
    waiting = anyio.Event()

    async def fail(_attempt: int) -> str:
        raise Broken

    async def on_retry(_attempt: int, _error: Exception) -> None:
        waiting.set()

    async def run() -> None:
        await call_with_retries(
            fail,
            attempts=3,
            may_retry=lambda _error: RetryDecision(retry=True, retry_after=3600),
            remaining=lambda: 9999.0,
            on_retry=on_retry,
        )

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await waiting.wait()
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_what_the_announcement_raises_ends_the_call() -> None:
    """A turn that was cancelled meanwhile must not go on calling."""

    async def refuse(_attempt: int, _error: Exception) -> None:
        raise LookupError("over")

    endpoint = Endpoint(failures=9)
    with pytest.raises(LookupError, match="over"):
        await call_with_retries(
            endpoint.call, attempts=3, may_retry=endpoint.may_retry, remaining=lambda: 9.0, on_retry=refuse
        )
    assert endpoint.calls == [1]
