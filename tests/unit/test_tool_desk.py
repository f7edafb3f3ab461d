"""The tool calls of a turn (PROTOCOL 5, B2, E4, X2): who may run, when, how often, and what the model is told."""

from __future__ import annotations

import threading
import time
from typing import Any

import anyio
import anyio.to_thread
import pytest

from app.agents.context import Denied, OpenCall, ToolResult, TurnOver
from app.events.types import SideEffects, ToolEnd, ToolStart, ToolStatus
from app.tools import ToolError, tool
from tests.performers import OpenGuards, Scene, free

pytestmark = pytest.mark.anyio


class Clock:
    """Who is inside at once, and in which order they came in."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.most = 0
        self.order: list[int] = []

    def work(self, number: int, seconds: float) -> int:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.order.append(number)
        time.sleep(seconds)
        with self.lock:
            self.inside -= 1
        return number


def calls(name: str, count: int) -> list[OpenCall]:
    return [OpenCall(id=f"{name}{n}", name=name, arguments={"n": n}) for n in range(count)]


async def batch(scene: Scene, *asked: OpenCall) -> list[ToolResult]:
    with anyio.fail_after(20):
        return await scene.desk().run_batch(asked)


async def test_safe_calls_run_together_within_the_bound() -> None:
    """Several at once, never more than `parallel`; results in the order of asking."""
    clock = Clock()

    @tool(side_effects="none")
    def safe(n: int) -> int:
        return clock.work(n, 0.02)

    scene = Scene(tools=[safe], parallel=3)
    results = await batch(scene, *calls("safe", 9))
    assert [r.content for r in results] == [str(n) for n in range(9)]
    assert 2 <= clock.most <= 3
    starts = [place for place, event in enumerate(scene.stage.events) if isinstance(event, ToolStart)]
    assert starts == list(range(9)), "all starts are durable, in one go, before any runs"


@pytest.mark.parametrize("side_effects", ["unsafe", "idempotent"])
async def test_unsafe_calls_run_one_after_another_in_the_order_of_asking(side_effects: SideEffects) -> None:
    """An unsafe call never runs beside another unsafe one; an idempotent one may."""
    clock = Clock()

    @tool(side_effects=side_effects)
    def one(n: int) -> int:
        return clock.work(n, 0.02)

    scene = Scene(tools=[one])
    await batch(scene, *calls("one", 5))
    if side_effects == "unsafe":
        assert (clock.most, clock.order) == (1, [0, 1, 2, 3, 4])
        assert [t[0] for t in scene.stage.tools()] == ["start", "end"] * 5
    else:
        assert clock.most > 1


async def test_a_call_that_needs_a_person_holds_up_no_safe_one() -> None:
    """Approvals are asked one by one; what is safe runs meanwhile."""
    looked = anyio.Event()

    @tool(side_effects="none")
    async def look(n: int) -> int:
        looked.set()
        return n

    @tool(side_effects="none", approval="Pay {n}?")
    def pay(n: int) -> int:
        return n

    async def answer(call: OpenCall) -> tuple[bool, str]:
        await looked.wait()
        return (call.id != "pay1", "the user did not approve it: too dear")

    scene = Scene(tools=[look, pay])
    scene.stage.answer = answer
    results = await batch(scene, *calls("pay", 3), *calls("look", 1))
    assert [call.id for call in scene.stage.asked] == ["pay0", "pay1", "pay2"]
    assert [r.status for r in results] == ["ok", "denied", "ok", "ok"]
    assert results[1].content == "not run: the user did not approve it: too dear"
    assert ("start", "pay1", "pay") in scene.stage.tools(), "denied: tool_start, tool_end denied"
    assert ("end", "pay1", "denied") in scene.stage.tools()


async def test_nobody_is_asked_about_a_call_that_cannot_be_made() -> None:
    """Arguments that do not fit are told to the model at once."""

    @tool(side_effects="unsafe", approval=True)
    def pay(n: int) -> int:
        raise AssertionError("not to be run")

    scene = Scene(tools=[pay])
    [result] = await batch(scene, OpenCall(id="c", name="pay", arguments={"n": "many"}))
    assert result.status == "error"
    assert scene.stage.asked == []
    assert scene.stage.tools() == [("start", "c", "pay"), ("end", "c", "error")]


async def test_an_unknown_tool_is_told_with_the_names_that_there_are() -> None:
    """The model can mend its call; nothing begins."""

    @tool(side_effects="none")
    def look(n: int) -> int:
        return n

    scene = Scene(tools=[look])
    results = await batch(scene, OpenCall(id="c1", name="lok", arguments={}), *calls("look", 1))
    assert results[0].status == "error"
    assert "'lok'" in results[0].content
    assert "look" in results[0].content
    assert results[1].status == "ok"
    assert [t[1] for t in scene.stage.tools()] == ["look0", "look0"]


async def test_what_a_tool_raises_is_told_and_caught() -> None:
    """Section 5, 9: `tool_end` `error`, the model is told a short message without a stack, and the watchers hear of it."""

    @tool(side_effects="none")
    def fail(n: int) -> int:
        if n:
            raise ToolError("the ledger is closed")
        raise KeyError("no month 13")

    scene = Scene(tools=[fail])
    results = await batch(scene, *calls("fail", 2))
    assert [r.status for r in results] == ["error", "error"]
    assert "no month 13" in results[0].content
    assert "Traceback" not in results[0].content
    assert "the ledger is closed" in results[1].content
    assert [where for where, _ in scene.guards.errors] == ["tool:fail", "tool:fail"]


# -- time (B2)


@pytest.mark.parametrize(
    ("own", "default", "left", "reserve", "limit"),
    [(0.15, 10, 60, 1, 0.15), (None, 0.15, 60, 1, 0.15), (10, 10, 1.15, 1.0, 0.15)],
    ids=["its own", "the default", "what is left of the turn"],
)
async def test_a_tool_gets_the_least_of_its_times(
    own: float | None, default: float, left: float, reserve: float, limit: float
) -> None:
    """B2: `min(its own timeout, time left − reserve)`; after an unsafe one the model hears that the outcome is unknown."""
    let_go = threading.Event()

    @tool(side_effects="unsafe", timeout=own)
    def hang() -> None:
        let_go.wait(20)

    scene = Scene(tools=[hang], tool_timeout=default, seconds=left, reserve=reserve)
    started = time.monotonic()
    [result] = await batch(scene, OpenCall(id="c", name="hang", arguments={}))
    took = time.monotonic() - started
    let_go.set()
    assert (result.status, result.content.startswith("Timeout")) == ("timeout", True)
    assert "unknown" in result.content
    assert limit * 0.6 <= took < limit + 3
    assert await anyio.to_thread.run_sync(free, scene.tool_threads)


async def test_with_nothing_left_the_function_is_not_entered() -> None:
    """B2: `tool_start` is sent, then `tool_end` `timeout`; for each call of the batch."""
    ran: list[int] = []

    @tool(side_effects="none")
    def look(n: int) -> None:
        ran.append(n)

    @tool(side_effects="unsafe")
    def pay(n: int) -> None:
        ran.append(n)

    scene = Scene(tools=[look, pay], seconds=0.5, reserve=1)
    results = await batch(scene, *calls("look", 2), *calls("pay", 2))
    assert [r.status for r in results] == ["timeout"] * 4
    assert ran == []
    assert sorted(t[0] for t in scene.stage.tools()) == ["end"] * 4 + ["start"] * 4


# -- durability (E4)


@pytest.mark.parametrize("side_effects", ["none", "unsafe"])
async def test_a_call_whose_start_is_not_durable_is_not_run(side_effects: SideEffects) -> None:
    """E4, section 5: `tool_start`, `tool_end` `error`; the model is told and goes on."""
    ran: list[int] = []

    @tool(side_effects=side_effects)
    def one(n: int) -> None:
        ran.append(n)

    scene = Scene(tools=[one])
    scene.stage.can_store = False
    results = await batch(scene, *calls("one", 2))
    assert ran == []
    assert [(r.status, "could not record" in r.content) for r in results] == [("error", True)] * 2
    assert sorted(t[0] for t in scene.stage.tools()) == ["end"] * 2 + ["start"] * 2


async def test_the_function_is_entered_only_after_its_start_is_on_the_stage() -> None:
    """E4: at the moment of entry its start is there; each call has its own idempotency key (X2)."""
    scene = Scene()
    seen: list[tuple[str, bool]] = []

    @tool(side_effects="unsafe")
    def pay(ctx: Any, n: int) -> None:
        call_id = ctx.idempotency_key.partition(":")[2]
        seen.append((ctx.idempotency_key, call_id in scene.stage.content.tools))

    scene.tools = [pay]
    await batch(scene, *calls("pay", 2))
    assert seen == [("turn_1:pay0", True), ("turn_1:pay1", True)]


# -- hooks


class ToolHooks(OpenGuards):
    """Deny `no`, change the arguments of `more`, rewrite results."""

    async def before_tool(
        self, *, tool_call_id: str, name: str, arguments: dict[str, Any], side_effects: SideEffects
    ) -> dict[str, Any]:
        if name == "no":
            raise Denied("not allowed here")
        return {"n": arguments["n"] + 100} if name == "more" else arguments

    async def after_tool(
        self, *, tool_call_id: str, name: str, arguments: dict[str, Any], side_effects: SideEffects, status: ToolStatus,
        result: str,
    ) -> str:  # fmt: skip
        if name == "long":
            return "short"
        if name == "hidden":
            raise Denied("the result is not for you")
        return result


async def test_hooks_deny_change_and_rewrite() -> None:
    """PROTOCOL 9: before_tool `Deny` is `tool_end` `denied`; `Replace` is what runs and is shown; after_tool `Deny` replaces
    the result by its words."""
    ran: list[tuple[str, int]] = []

    def make(called: str, side_effects: SideEffects) -> Any:
        @tool(name=called, side_effects=side_effects)
        def one(n: int) -> str:
            ran.append((called, n))
            return "x" * 5000 if called == "long" else f"{called} {n}"

        return one

    scene = Scene(tools=[make(n, "none") for n in ("no", "more", "long", "hidden")], guards=ToolHooks())
    results = await batch(scene, *(OpenCall(id=n, name=n, arguments={"n": 1}) for n in ("no", "more", "long", "hidden")))
    assert sorted(ran) == [("hidden", 1), ("long", 1), ("more", 101)]
    assert [(r.status, r.content) for r in results] == [
        ("denied", "not run: not allowed here"),
        ("ok", "more 101"),
        ("ok", "short"),
        ("ok", "the result is not for you"),
    ]
    shown = {event.tool_call_id: event.arguments for event in scene.stage.of(ToolStart)}
    assert shown["more"] == {"n": 101}
    ends = {event.tool_call_id: event for event in scene.stage.of(ToolEnd)}
    assert (ends["long"].preview, ends["long"].truncated) == ("short", False)
    assert (ends["hidden"].preview, ends["hidden"].truncated) == ("the result is not for you", False)


# -- cancel


async def pressed(scene: Scene, when: threading.Event, *asked: OpenCall) -> None:
    async def press() -> None:
        await anyio.to_thread.run_sync(when.wait)
        scene.cancel.cancel()

    with anyio.fail_after(15):
        async with anyio.create_task_group() as group:
            group.start_soon(press)
            with pytest.raises(TurnOver):
                await scene.desk().run_batch(asked)


async def test_a_cancel_in_a_batch_gives_what_had_begun_its_end_and_begins_nothing_more() -> None:
    """E4, PROTOCOL 3 tool_end: `cancelled` for what came back after the cancel, `unknown` for what did not; the rest of the
    batch never begins."""
    begun, let_go = threading.Event(), threading.Event()
    ran: list[str] = []

    @tool(side_effects="none")
    def good(ctx: Any, n: int) -> str:
        stop = threading.Event()
        ctx.on_cancel(stop.set)
        ran.append("good")
        stop.wait(20)
        return "stopped"

    @tool(side_effects="unsafe")
    def deaf(n: int) -> None:
        ran.append(f"deaf{n}")
        begun.set()
        let_go.wait(20)

    scene = Scene(tools=[good, deaf])
    await pressed(scene, begun, *calls("deaf", 2), *calls("good", 1))
    let_go.set()
    assert "deaf1" not in ran
    told = {t[1]: t[2] for t in scene.stage.tools() if t[0] == "end"}
    assert told == {"deaf0": "unknown", **({"good0": "cancelled"} if "good" in ran else told)}
    assert len([t for t in scene.stage.tools() if t[0] == "start"]) == len(told)
    assert await anyio.to_thread.run_sync(free, scene.tool_threads)


async def test_calls_that_wait_for_their_place_are_cancelled_unentered() -> None:
    """PROTOCOL 3: `cancelled`: its function had not been entered."""
    begun, ran = threading.Event(), []

    @tool(side_effects="none")
    def one(ctx: Any, n: int) -> str:
        ran.append(n)
        stop = threading.Event()
        ctx.on_cancel(stop.set)
        begun.set()
        stop.wait(20)
        return "late"

    scene = Scene(tools=[one], parallel=1)
    await pressed(scene, begun, *calls("one", 3))
    assert len(ran) == 1
    assert [end.status for end in scene.stage.of(ToolEnd)] == ["cancelled"] * 3


async def test_a_batch_of_a_turn_that_is_over_begins_nothing() -> None:
    """`TurnOver`, and no event."""

    @tool(side_effects="unsafe")
    def pay(n: int) -> None:
        raise AssertionError("not to be run")

    scene = Scene(tools=[pay])
    scene.cancel.cancel()
    with pytest.raises(TurnOver):
        await batch(scene, *calls("pay", 2))
    assert scene.stage.events == []
