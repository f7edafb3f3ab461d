"""Small parts of a turn: capacity (H5), the clock that stands still (B4), what the journal keeps of deltas."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config import Limits
from app.events import types
from app.limits.deadline import Deadline
from app.turns.capacity import Durations, OverCapacity, check
from app.turns.clock import TurnClock
from app.turns.recorder import merged

# -- capacity


def refusal(limits: Limits, **load: Any) -> OverCapacity | None:
    given_load = {"waiting": 0, "room": 1, "of_user": 0, "of_address": 0, "recent": Durations()} | load
    try:
        check(limits, **given_load)
    except OverCapacity as over:
        return over
    return None


@given(
    turns=st.integers(1, 5), queued=st.integers(0, 5), running=st.integers(0, 8), waiting=st.integers(0, 12),
    of_user=st.integers(0, 4), of_address=st.integers(0, 4),
)  # fmt: skip
def test_a_turn_is_refused_exactly_over_its_limits(
    turns: int, queued: int, running: int, waiting: int, of_user: int, of_address: int
) -> None:
    """H5: over `turns` a turn queues until `queued` of them wait; the caller's own caps come first."""
    limits = Limits(turns=turns, queued=queued, turns_per_user=3, turns_per_address=4)
    over = refusal(limits, waiting=waiting, room=turns - running, of_user=of_user, of_address=of_address)
    if of_user >= 3:
        assert over is not None
        assert over.whose == "user"
    elif of_address >= 4:
        assert over is not None
        assert over.whose == "address"
    else:
        free = max(0, turns - running)
        assert (over is not None) == (waiting - free >= queued)
        assert over is None or over.whose == "service"


def test_retry_after_is_an_honest_guess() -> None:
    """H5, "a true `Retry-After`": from the last turns, at least a second, at most a minute, more when more wait."""
    limits, recent = Limits(turns=2, queued=1), Durations(keep=3)
    assert refusal(limits, waiting=9, room=0, recent=recent).retry_after >= 1  # type: ignore[union-attr]
    for seconds in (1000.0, 4.0, 4.0, 4.0):
        recent.add(seconds)
    assert recent.mean == 4.0, "only the last ones count"
    assert refusal(limits, waiting=9, room=0, recent=recent).retry_after == 20  # type: ignore[union-attr]
    assert refusal(limits, waiting=1, room=0, recent=recent).retry_after == 4  # type: ignore[union-attr]
    assert refusal(limits, waiting=999, room=0, recent=recent).retry_after == 60  # type: ignore[union-attr]
    assert refusal(limits, of_user=99, recent=recent).retry_after == 4  # type: ignore[union-attr]


# -- the clock


@pytest.mark.anyio
async def test_the_deadline_stands_still_while_the_turn_waits_for_a_person() -> None:
    """B4: the wait is given back, nested waits once; `expired` is called once, and not during a wait."""
    expired: list[float] = []
    loop = asyncio.get_running_loop()
    begun = loop.time()
    clock = TurnClock(Deadline(0.2), lambda: expired.append(loop.time()))
    clock.pause()
    clock.pause()
    await anyio.sleep(0.3)
    assert expired == []
    assert 0.1 < clock.remaining() <= 0.2
    clock.resume()
    assert expired == []
    await anyio.sleep(0.1)
    assert expired == [], "one wait is still on"
    clock.resume()
    assert 0.1 < clock.remaining() <= 0.2
    with anyio.fail_after(10):
        while not expired:
            await anyio.sleep(0.01)
    assert expired[0] - begun >= 0.58
    await anyio.sleep(0.05)
    assert len(expired) == 1


@pytest.mark.anyio
async def test_a_stopped_clock_is_silent() -> None:
    """After the turn's end nothing ticks."""
    expired: list[int] = []
    clock = TurnClock(Deadline(0.05), lambda: expired.append(1))
    clock.stop()
    clock.stop()
    await anyio.sleep(0.1)
    assert expired == []


# -- what is journaled

deltas = st.lists(
    st.one_of(
        st.builds(lambda b, t: types.TextDelta(block=b, text=t), st.integers(1, 2), st.text("ab", max_size=3)),
        st.builds(lambda b, t: types.ReasoningDelta(block=b, text=t), st.integers(1, 2), st.text("ab", max_size=3)),
        st.just(None),
    ),
    max_size=25,
)


def runs(events: list[types.Event]) -> list[tuple[str, int, str]]:
    """Kind, block and text of each unbroken run of deltas; other events by their seq."""
    found: list[tuple[str, int, str]] = []
    for event in events:
        if isinstance(event, types.TextDelta | types.ReasoningDelta):
            kind = type(event).__name__
            if found and found[-1][:2] == (kind, event.block):
                found[-1] = (kind, event.block, found[-1][2] + event.text)
            else:
                found.append((kind, event.block, event.text))
        else:
            found.append(("other", event.seq, ""))
    return found


@given(deltas)
def test_merging_neighbouring_deltas_loses_nothing_and_leaves_the_events_alone(parts: list[types.Event | None]) -> None:
    """The journal holds one delta where the log has many: same order, text and last seq; what viewers have is untouched."""
    events: list[types.Event] = []
    for place, part in enumerate(parts):
        event = part if part is not None else types.Commentary(text="c")
        event.seq = place + 1
        events.append(event)
    before = [(event.seq, getattr(event, "text", "")) for event in events]
    whole = merged(events)
    assert [(event.seq, getattr(event, "text", "")) for event in events] == before
    assert runs(whole) == runs(events)
    assert len(whole) == len(runs(events)), "neighbours are one"
    assert [event.seq for event in whole] == sorted(event.seq for event in whole)
    assert not events or whole[-1].seq == len(events)
