"""From worker threads to the loop: order, loss, back-pressure, the end (ARCHITECTURE, the way of one turn, 4)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agents.bridge import Bridge
from app.agents.context import TurnOver
from app.errors import EarlybyteError

pytestmark = pytest.mark.anyio

Item = tuple[int, int]


def in_thread(bridge: Bridge[Any], produce: Any) -> threading.Thread:
    """A producer in a thread of its own, as `WorkerThreads` runs it."""
    thread = threading.Thread(target=bridge.work, args=(produce,), daemon=True)
    thread.start()
    return thread


async def joined(*threads: threading.Thread) -> None:
    for thread in threads:
        await anyio.to_thread.run_sync(partial(thread.join, 10))
        assert not thread.is_alive()


async def drained(bridge: Bridge[Any]) -> list[Any]:
    """All that comes the long way, to the end."""
    items: list[Any] = []
    with anyio.fail_after(20):
        while (batch := await bridge.next_batch()) is not None:
            items.extend(batch)
    return items


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    refuse=st.integers(1, 7),
    most=st.integers(0, 5),
    max_items=st.integers(1, 8),
    pause=st.integers(0, 3),
)
def test_items_of_any_schedule_come_once_and_in_order(
    counts: list[int], refuse: int, most: int, max_items: int, pause: int
) -> None:
    """Each producer's items arrive in its order, none lost, none twice, whatever the short way takes and however slow the
    consumer is; what waits stays within the bound of every producer (promises of the bridge)."""

    async def scenario() -> None:
        taken: list[Item] = []
        at_once = 0

        def direct(items: Sequence[Item]) -> int:
            nonlocal at_once
            at_once = max(at_once, len(items))
            ready = 0
            while ready < min(most, len(items)) and items[ready][1] % refuse:
                ready += 1
            taken.extend(items[:ready])
            return ready

        bridge: Bridge[Item] = Bridge(direct=direct, max_items=max_items)

        def produce_all() -> None:
            def one(number: int, count: int) -> None:
                for place in range(count):
                    bridge.put((number, place))

            threads = [threading.Thread(target=one, args=(n, count), daemon=True) for n, count in enumerate(counts)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)

        thread = in_thread(bridge, produce_all)
        with anyio.fail_after(20):
            while (batch := await bridge.next_batch()) is not None:
                assert batch, "a wake-up with nothing"
                at_once = max(at_once, len(batch))
                taken.extend(batch)
                for _ in range(pause):
                    await asyncio.sleep(0)
        await joined(thread)
        assert len(taken) == sum(counts)
        for number, count in enumerate(counts):
            assert [place for n, place in taken if n == number] == list(range(count))
        assert at_once <= max_items

    anyio.run(scenario)


@settings(max_examples=40)
@given(close_after=st.integers(0, 30), max_items=st.integers(1, 6), direct=st.booleans())
def test_close_at_any_moment_keeps_a_beginning_and_frees_the_thread(close_after: int, max_items: int, direct: bool) -> None:
    """What was handed over before the close is an unbroken beginning; the producer gets `TurnOver`, blocked or not."""

    async def scenario() -> None:
        got: list[int] = []
        ended_by: list[BaseException] = []

        def take(items: Sequence[int]) -> int:
            if direct:
                got.extend(items)
            return len(items) if direct else 0

        bridge: Bridge[int] = Bridge(direct=take, max_items=max_items)

        def produce() -> None:
            try:
                for number in range(1_000_000):
                    bridge.put(number)
            except TurnOver as over:
                ended_by.append(over)
                raise

        thread = in_thread(bridge, produce)
        with anyio.fail_after(20):
            while len(got) < close_after:
                if direct:
                    await asyncio.sleep(0)
                else:
                    got.extend(await bridge.next_batch() or [])
            bridge.close()
            before = len(got)
            got.extend(await drained(bridge))
        await joined(thread)
        assert ended_by, "the producer was not told"
        assert got == list(range(len(got)))
        assert len(got) - before <= max_items
        with pytest.raises(TurnOver):
            bridge.put(1)

    anyio.run(scenario)


async def test_a_blocked_put_is_freed_by_close() -> None:
    """Nobody takes anything: the thread waits in `put` at the bound, and leaves when the turn is over."""
    bridge: Bridge[int] = Bridge(max_items=3)
    count = 0

    def produce() -> None:
        nonlocal count
        while True:
            bridge.put(count)
            count += 1

    thread = in_thread(bridge, produce)
    with anyio.fail_after(10):
        while count < 3:
            await anyio.sleep(0.001)
    with anyio.move_on_after(0.1):
        while count == 3:
            await anyio.sleep(0.001)
    assert count == 3, "more was taken than the bound allows"
    bridge.close()
    await joined(thread)


async def test_the_end_of_the_thread_is_the_end_of_the_stream() -> None:
    """Nothing waits for a sentinel: also a producer that hands over nothing ends the stream."""
    for items in ([], [1], list(range(100))):
        bridge: Bridge[int] = Bridge()
        thread = in_thread(bridge, lambda bridge=bridge, items=items: [bridge.put(item) for item in items])
        assert await drained(bridge) == items
        assert await bridge.next_batch() is None, "the end must stay the end"
        await joined(thread)


async def test_an_error_comes_after_the_items_before_it() -> None:
    """What the producer raised is raised once everything before it was taken."""
    bridge: Bridge[int] = Bridge()

    def produce() -> None:
        for number in range(5):
            bridge.put(number)
        raise ValueError("broken")

    thread = in_thread(bridge, produce)
    got: list[int] = []
    with pytest.raises(ValueError, match="broken"):
        while (batch := await bridge.next_batch()) is not None:
            got.extend(batch)
    assert got == [0, 1, 2, 3, 4]
    await joined(thread)


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
async def test_what_is_no_exception_comes_out_as_one(raised: BaseException) -> None:
    """A thread that dies of `sys.exit` or of a cancellation of its own ends its turn, never the loop (PROTOCOL 5)."""
    bridge: Bridge[int] = Bridge()

    def produce() -> None:
        raise raised

    thread = in_thread(bridge, produce)
    with anyio.fail_after(10), pytest.raises(EarlybyteError, match=type(raised).__name__):
        await bridge.next_batch()
    await joined(thread)


async def test_after_the_end_nothing_more_is_taken() -> None:
    """PROTOCOL 9: after the turn's end `on_delta` raises; a thread that the producer left behind gets no word in."""
    said: list[int] = []

    def direct(items: Sequence[int]) -> int:
        said.extend(items)
        return len(items)

    bridge: Bridge[int] = Bridge(direct=direct)
    thread = in_thread(bridge, lambda: bridge.put(1))
    await joined(thread)
    assert await drained(bridge) == []
    with pytest.raises(TurnOver):
        bridge.put(2)
    await asyncio.sleep(0)
    assert said == [1]


async def test_the_loop_is_woken_far_less_often_than_items_come() -> None:
    """One wake-up per drain, not per item: a burst of 5,000 items needs few of them."""
    drains = 0
    gate = threading.Event()

    def direct(items: Sequence[int]) -> int:
        nonlocal drains
        drains += 1
        return len(items)

    bridge: Bridge[int] = Bridge(direct=direct, max_items=10_000)

    def produce() -> None:
        for number in range(5_000):
            bridge.put(number)
        gate.set()

    thread = in_thread(bridge, produce)
    # The loop is busy while the burst comes.
    assert gate.wait(10)
    assert await drained(bridge) == []
    await joined(thread)
    assert 1 <= drains <= 50


async def test_a_quick_producer_is_taken_in_batches_and_its_first_item_and_its_end_at_once() -> None:
    """A loop that keeps up with each item would pay for each; the window joins them, and delays neither start nor end."""
    batches: list[list[int]] = []
    first = anyio.Event()

    def direct(items: Sequence[int]) -> int:
        batches.append(list(items))
        first.set()
        return len(items)

    bridge: Bridge[int] = Bridge(direct=direct, window=60)
    bridge.put(0)
    with anyio.fail_after(5):
        await first.wait()
    for item in range(1, 100):
        bridge.put(item)
        await asyncio.sleep(0)
    assert batches == [[0]]
    with anyio.fail_after(5):
        bridge.finish()
        assert await bridge.next_batch() is None
    assert batches == [[0], list(range(1, 100))]


async def test_the_short_way_is_closed_while_older_items_are_on_the_long_one() -> None:
    """Order: once something went the long way, later items follow it until the consumer has come back for more."""
    shown: list[str] = []

    def direct(items: Sequence[str]) -> int:
        ready = 0
        while ready < len(items) and items[ready].islower():
            ready += 1
        shown.extend(items[:ready])
        return ready

    bridge: Bridge[str] = Bridge(direct=direct, window=0)
    for item in "abCd":
        bridge.put(item)
        await asyncio.sleep(0)
    assert shown == ["a", "b"]
    with anyio.fail_after(5):
        assert await bridge.next_batch() == ["C"]
        bridge.put("e")
        await asyncio.sleep(0)
        assert shown == ["a", "b"], "e overtook d"
        assert await bridge.next_batch() == ["d"]
        assert await bridge.next_batch() == ["e"]
    async with anyio.create_task_group() as group:
        group.start_soon(bridge.next_batch)
        await asyncio.sleep(0)
        bridge.put("f")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert shown == ["a", "b", "f"]
        bridge.close()


async def test_an_answer_that_is_waited_for_ends_with_the_turn() -> None:
    """A thread that waits for a tool's result is freed when the turn is over, and one that comes later at once."""
    bridge: Bridge[int] = Bridge()
    answer: Future[int] = Future()
    raised: list[type[BaseException]] = []
    begun = threading.Event()

    def produce() -> None:
        begun.set()
        try:
            bridge.wait_for(answer)
        except BaseException as error:
            raised.append(type(error))
            raise

    thread = in_thread(bridge, produce)
    assert begun.wait(10)
    with anyio.fail_after(10):
        while not bridge._answers:
            await anyio.sleep(0.001)
    bridge.close()
    await joined(thread)
    assert raised == [TurnOver]
    with pytest.raises(TurnOver):
        bridge.wait_for(Future())
    known: Future[int] = Future()
    known.set_result(7)
    assert bridge.wait_for(known) == 7


async def test_a_producer_on_the_loop_lets_the_consumer_go_on() -> None:
    """An async agent that is quicker than its consumer waits without blocking the loop; order is kept."""
    bridge: Bridge[int] = Bridge(max_items=2)
    most = 0

    async def produce() -> None:
        nonlocal most
        for number in range(20):
            await bridge.put_on_loop(number)
            most = max(most, bridge._waiting)
        bridge.finish()

    async with anyio.create_task_group() as group:
        group.start_soon(produce)
        got = await drained(bridge)
    assert got == list(range(20))
    assert all(b == a + 1 for a, b in pairwise(got))
    assert most <= 2
