"""Agents that users bring (PROTOCOL 9): every form, every way to end, and what they may not do."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from app.agents.context import AgentContext, AgentMisbehaved, ToolCallFailed, Transient, TurnOver
from app.agents.own_agent import load_agent
from app.agents.speech import AnswerTooLong
from app.errors import ConfigError, EarlybyteError
from app.events import (
    ActionCard,
    Commentary,
    Completion,
    Image,
    Notice,
    Queued,
    ReasoningDelta,
    TextDelta,
    ToolEnd,
    ToolStart,
)
from app.events.types import Usage
from app.tools import ToolError, tool
from tests.agents_for_tests import generator
from tests.performers import Scene, free

pytestmark = pytest.mark.anyio
OnDelta = Callable[[str | None], None]


def sync_generator(ctx: AgentContext) -> Iterator[object]:
    yield "Hello "
    yield ctx.input
    yield None
    yield ""
    yield None
    yield Commentary(text="so far")
    yield "world"


async def async_generator(ctx: AgentContext) -> AsyncIterator[object]:
    for item in sync_generator(ctx):
        await asyncio.sleep(0)
        yield item


def callback(ctx: AgentContext, on_delta: OnDelta) -> None:
    on_delta("Hello ")
    on_delta(ctx.input)
    on_delta(None)
    on_delta("")
    on_delta(None)
    on_delta("world")


async def async_callback(ctx: AgentContext, on_delta: OnDelta) -> None:
    await asyncio.sleep(0)
    callback(ctx, on_delta)


class Callable_:
    def __call__(self, ctx: AgentContext) -> Iterator[object]:
        yield from sync_generator(ctx)


class AsyncCallable:
    async def __call__(self, ctx: AgentContext) -> AsyncIterator[object]:
        async for item in async_generator(ctx):
            yield item


def plain(ctx: AgentContext) -> str:
    return "Hello " + ctx.input


async def coroutine(ctx: AgentContext) -> str:
    await asyncio.sleep(0)
    return "Hello " + ctx.input


def nothing(ctx: AgentContext) -> None:
    return None


async def run(scene: Scene, agent: Callable[..., Any], *, within: float = 10) -> None:
    with anyio.fail_after(within):
        await scene.run_agent(agent)


@pytest.mark.parametrize(
    "agent", [sync_generator, async_generator, callback, async_callback, Callable_(), AsyncCallable(), plain, coroutine]
)
async def test_every_form_of_agent_speaks_in_order_and_ends(agent: Callable[..., Any]) -> None:
    """PROTOCOL 9: text, boundaries (one with no text since the last opens nothing, `""` is nothing), and the end of the
    function is the end of the stream."""
    scene = Scene()
    await run(scene, agent)
    blocks = [(b.number, b.text) for b in scene.stage.content.blocks]
    assert blocks == [(1, "Hello hello"), (2, "world")][: 1 if agent in (plain, coroutine) else 2]
    assert await anyio.to_thread.run_sync(free, scene.threads)


async def test_an_agent_that_says_nothing_ends_too() -> None:
    """Nothing waits for a sentinel."""
    scene = Scene()
    await run(scene, nothing)
    assert scene.stage.events == []


async def test_sync_agents_run_in_a_thread_and_async_ones_on_the_loop() -> None:
    """PROTOCOL 9."""
    seen: list[int] = []

    def in_thread(ctx: AgentContext) -> Iterator[str]:
        seen.append(threading.get_ident())
        yield "a"

    async def on_loop(ctx: AgentContext) -> AsyncIterator[str]:
        seen.append(threading.get_ident())
        yield "a"

    await run(Scene(), in_thread)
    await run(Scene(), on_loop)
    assert seen[0] != threading.get_ident() == seen[1]


async def test_a_callback_may_be_used_from_many_threads() -> None:
    """PROTOCOL 9: `on_delta` from any thread; each thread's words keep their order, none is lost."""

    def agent(ctx: AgentContext, on_delta: OnDelta) -> None:
        def speak(letter: str) -> None:
            for number in range(200):
                on_delta(f"{letter}{number};")

        threads = [threading.Thread(target=speak, args=(letter,)) for letter in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    scene = Scene()
    await run(scene, agent)
    words = scene.stage.text.split(";")[:-1]
    assert len(words) == 800
    for letter in "abcd":
        assert [w for w in words if w[0] == letter] == [f"{letter}{n}" for n in range(200)]


async def test_allowed_events_go_to_the_stage_and_the_rest_of_them_not() -> None:
    """PROTOCOL 9, allowed events: as a class or a dict; seq and ts are the service's; own tools open a new block."""

    def agent(ctx: AgentContext) -> Iterator[object]:
        yield "one"
        yield ToolStart(tool_call_id="t1", name="n", title="t", side_effects="none", seq=99, ts=99)
        yield {"type": "tool_end", "tool_call_id": "t1", "status": "ok", "duration_ms": 1, "later": True}
        yield "two"
        yield {"type": "reasoning_delta", "block": 7, "text": "hm"}
        yield ReasoningDelta(block=1, text="m")
        yield Image(url="u", alt="a")
        yield {"type": "action_card", "card_id": "k", "kind": "k", "title": "t", "fields": [], "actions": []}
        yield Notice(level="info", code="c", text="t")
        yield Usage(input_tokens=1, output_tokens=2, model="mine")

    scene = Scene()
    await run(scene, agent)
    assert scene.stage.kinds == [
        "text_delta", "tool_start", "tool_end", "text_delta", "reasoning_delta", "reasoning_delta", "image", "action_card",
        "notice", "usage",
    ]  # fmt: skip
    assert [event.seq for event in scene.stage.events] == list(range(1, 11))
    assert [(b.number, b.text) for b in scene.stage.content.blocks] == [(1, "one"), (2, "two")]
    assert len(scene.stage.of(ActionCard)) == 1


@pytest.mark.parametrize(
    "rubbish",
    [
        TextDelta(block=1, text="x"), Completion(status="complete", finish_reason="stop", chars=0), Queued(position=1), 5,
        b"x", ["a"], object(), {"type": "completion"}, {"type": "no_such"}, {}, {"type": "image", "url": 5},
        {"type": "image"}, {"type": "text_delta", "block": 1, "text": "x"}, Exception("as a value"), {1: 2},
    ],
    ids=lambda value: re.sub(r" at 0x[0-9a-f]+", "", repr(value)),
)  # fmt: skip
@pytest.mark.parametrize("on_loop", [False, True])
async def test_rubbish_ends_the_turn_as_internal_after_what_was_said(rubbish: object, on_loop: bool) -> None:
    """PROTOCOL 9: anything else is `internal`; what came before it stands."""

    def agent(ctx: AgentContext) -> Iterator[object]:
        yield "before"
        yield rubbish
        yield "after"

    async def on_the_loop(ctx: AgentContext) -> AsyncIterator[object]:
        for item in agent(ctx):
            yield item

    scene = Scene()
    with pytest.raises(Exception) as caught:
        await run(scene, on_the_loop if on_loop else agent)
    assert not isinstance(caught.value, (Transient, TurnOver, TimeoutError))
    assert scene.stage.text == "before"
    assert await anyio.to_thread.run_sync(free, scene.threads)


@pytest.mark.parametrize("returned", [5, b"bytes", object()])
async def test_a_function_that_returns_rubbish_is_told_apart(returned: object) -> None:
    """A function that is neither generator nor text."""
    with pytest.raises((AgentMisbehaved, TypeError, EarlybyteError)):
        await run(Scene(), lambda ctx: returned)


@pytest.mark.parametrize("delta", [5, b"x", ["x"], {"type": "image"}])
async def test_on_delta_takes_text_or_none_only(delta: Any) -> None:
    """The mistake is told where it was made: in the agent's own thread."""
    seen: list[BaseException] = []

    def agent(ctx: AgentContext, on_delta: OnDelta) -> None:
        try:
            on_delta(delta)
        except BaseException as error:
            seen.append(error)
            raise

    with pytest.raises(AgentMisbehaved):
        await run(Scene(), agent)
    assert len(seen) == 1


@pytest.mark.parametrize("raised", [ValueError("mine"), Transient("later"), AnswerTooLong(), StopIteration()], ids=repr)
@pytest.mark.parametrize("kind", ["generator", "async", "callback"])
async def test_what_an_agent_raises_comes_after_what_it_said(raised: Exception, kind: str) -> None:
    """PROTOCOL 5: the agent's own code raises; held pieces are let go first."""

    def generator(ctx: AgentContext) -> Iterator[str]:
        yield "<thi"
        raise raised

    async def on_loop(ctx: AgentContext) -> AsyncIterator[str]:
        yield "<thi"
        raise raised

    def with_callback(ctx: AgentContext, on_delta: OnDelta) -> None:
        on_delta("<thi")
        raise raised

    scene = Scene()
    expected: type[Exception] = RuntimeError if isinstance(raised, StopIteration) else type(raised)
    with pytest.raises(expected):
        await run(scene, {"generator": generator, "async": on_loop, "callback": with_callback}[kind])
    assert scene.stage.text == "<thi"


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("on_loop", [False, True])
async def test_an_agent_whose_thread_or_task_dies_ends_its_turn_only(raised: BaseException, on_loop: bool) -> None:
    """PROTOCOL 5, "or its thread dies": `sys.exit` and a cancellation of its own are failures of the agent."""

    def agent(ctx: AgentContext) -> Iterator[str]:
        yield "some"
        raise raised

    async def on_the_loop(ctx: AgentContext) -> AsyncIterator[str]:
        yield "some"
        raise raised

    scene = Scene()
    with pytest.raises(EarlybyteError, match="ended by"):
        await run(scene, on_the_loop if on_loop else agent)
    assert scene.stage.text == "some"


# -- cancel


async def press_when(event: threading.Event, scene: Scene) -> None:
    await anyio.to_thread.run_sync(event.wait)
    scene.cancel.cancel()


async def cancelled_run(scene: Scene, agent: Callable[..., Any], begun: threading.Event) -> None:
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(press_when, begun, scene)
            with pytest.raises(TurnOver):
                await scene.run_agent(agent)


@pytest.mark.parametrize("kind", ["generator", "async", "callback"])
async def test_after_a_cancel_the_agent_gets_turn_over_and_its_words_are_dropped(kind: str) -> None:
    """PROTOCOL 9: `on_delta` raises `TurnOver` in the agent's thread; a generator is closed; nothing more is shown."""
    scene, begun, ends = Scene(), threading.Event(), []

    def talk(say: Callable[[str], Any]) -> None:
        try:
            while True:
                say("x")
                begun.set()
                time.sleep(0.001)
        except BaseException as error:
            ends.append(type(error))
            raise

    def with_callback(ctx: AgentContext, on_delta: OnDelta) -> None:
        talk(on_delta)

    def generator(ctx: AgentContext) -> Iterator[str]:
        try:
            while True:
                yield "x"
                begun.set()
                time.sleep(0.001)
        except BaseException as error:
            ends.append(type(error))
            raise

    async def on_loop(ctx: AgentContext) -> AsyncIterator[str]:
        try:
            while True:
                yield "x"
                begun.set()
                await asyncio.sleep(0.001)
        except BaseException as error:
            ends.append(type(error))
            raise

    await cancelled_run(scene, {"generator": generator, "async": on_loop, "callback": with_callback}[kind], begun)
    said = scene.stage.text
    with anyio.fail_after(5):
        while not ends:
            await anyio.sleep(0.005)
    await anyio.sleep(0.02)
    assert scene.stage.text == said
    expected = {"generator": GeneratorExit, "async": asyncio.CancelledError, "callback": TurnOver}
    assert ends == [expected[kind]] or (kind == "async" and ends == [GeneratorExit])
    assert await anyio.to_thread.run_sync(free, scene.threads)


async def test_an_agent_that_ignores_its_cancel_holds_up_nobody() -> None:
    """PROTOCOL 9: its thread is counted until it ends; the turn is over at once."""
    scene, begun, let_go = Scene(), threading.Event(), threading.Event()

    def deaf(ctx: AgentContext) -> Iterator[str]:
        yield "a"
        begun.set()
        let_go.wait(20)
        yield "b"

    await cancelled_run(scene, deaf, begun)
    assert scene.threads.abandoned == 1
    let_go.set()
    assert await anyio.to_thread.run_sync(free, scene.threads)
    assert scene.stage.text == "a"


async def test_an_async_agent_that_swallows_its_cancel_holds_up_nobody() -> None:
    """The same on the loop: it is given up, not waited for."""
    scene, begun = Scene(), threading.Event()
    let_go = asyncio.Event()

    async def deaf(ctx: AgentContext) -> AsyncIterator[str]:
        yield "a"
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                pass
        yield "b"

    await cancelled_run(scene, deaf, begun)
    let_go.set()
    await anyio.sleep(0.02)
    assert scene.stage.text == "a"


async def test_on_cancel_frees_what_blocks_whatever_it_raises() -> None:
    """PROTOCOL 9: called from another thread than the agent's; one that raises or blocks keeps nobody else from stopping."""
    scene, begun, freed, hold = Scene(), threading.Event(), threading.Event(), threading.Event()
    where: list[int] = []

    def agent(ctx: AgentContext) -> Iterator[str]:
        def broken() -> None:
            where.append(threading.get_ident())
            raise OSError("already closed")

        ctx.on_cancel(broken)
        ctx.on_cancel(lambda: hold.wait(20))
        ctx.on_cancel(freed.set)
        begun.set()
        where.append(threading.get_ident())
        freed.wait(20)
        yield str(ctx.cancelled)

    started = time.monotonic()
    await cancelled_run(scene, agent, begun)
    assert time.monotonic() - started < 5, "the loop waited for a callback"
    hold.set()
    assert await anyio.to_thread.run_sync(free, scene.threads)
    assert len(set(where)) == 2
    assert scene.stage.text == ""


# -- call_tool


@tool(side_effects="unsafe")
def add(a: int, b: int) -> dict[str, int]:
    """Add."""
    return {"sum": a + b}


@tool(side_effects="none")
def fail() -> str:
    """Fail."""
    raise ToolError("no such invoice")


@tool(side_effects="none")
def words() -> str:
    """Say words."""
    return "plain words"


async def test_call_tool_blocks_in_a_thread_and_is_awaited_on_the_loop() -> None:
    """PROTOCOL 9: what the tool returned, with its events between the words around it, and a step in the journal."""

    def agent(ctx: AgentContext) -> Iterator[str]:
        yield "before "
        result = ctx.call_tool("add", {"a": 1, "b": 2})
        yield f"sum {result['sum']}, {ctx.call_tool('words', {})}"

    async def on_loop(ctx: AgentContext) -> AsyncIterator[str]:
        yield "before "
        result = await ctx.call_tool("add", {"a": 1, "b": 2})
        yield f"sum {result['sum']}, {await ctx.call_tool('words', {})}"

    for one in (agent, on_loop):
        scene = Scene(tools=[add, words])
        await run(scene, one)
        assert [(b.number, b.text) for b in scene.stage.content.blocks] == [(1, "before "), (2, "sum 3, plain words")]
        assert scene.stage.kinds == [
            "text_delta", "tool_start", "tool_end", "tool_start", "tool_end", "text_delta",
        ]  # fmt: skip
        [first, second] = [message for message, _ in scene.stage.steps]
        assert first["content"] == "before "
        assert second["content"] is None
        calls = [m["tool_calls"][0]["id"] for m in (first, second)]
        assert [t[1] for t in scene.stage.tools()] == [calls[0]] * 2 + [calls[1]] * 2


@pytest.mark.parametrize(
    ("name", "arguments", "status", "words_"),
    [("fail", {}, "error", "no such invoice"), ("no_such", {}, "error", "no tool"), ("add", {"a": "x"}, "error", "")],
)
async def test_a_tool_that_does_not_end_well_raises_in_the_agent(
    name: str, arguments: dict[str, Any], status: str, words_: str
) -> None:
    """PROTOCOL 9: `ToolCallFailed` with the status of its `tool_end`; the agent may go on."""
    caught: list[ToolCallFailed] = []

    def agent(ctx: AgentContext) -> Iterator[str]:
        try:
            ctx.call_tool(name, arguments)
        except ToolCallFailed as failed:
            caught.append(failed)
        yield "went on"

    scene = Scene(tools=[add, fail])
    await run(scene, agent)
    assert [one.status for one in caught] == [status]
    assert words_ in caught[0].message
    assert scene.stage.text == "went on"


async def test_a_cancel_in_the_tool_frees_the_agent_too() -> None:
    """PROTOCOL 9: `TurnOver` in the agent's thread; the tool's end is told once."""
    scene, begun = Scene(), threading.Event()
    ends: list[type[BaseException]] = []

    @tool(side_effects="none")
    def wait(ctx: Any) -> str:
        begun.set()
        freed = threading.Event()
        ctx.on_cancel(freed.set)
        freed.wait(20)
        return "late"

    def agent(ctx: AgentContext) -> Iterator[str]:
        try:
            ctx.call_tool("wait", {})
        except BaseException as error:
            ends.append(type(error))
            raise
        yield "never"

    scene.tools = [wait]
    await cancelled_run(scene, agent, begun)
    assert await anyio.to_thread.run_sync(free, scene.threads)
    assert ends == [TurnOver]
    assert [end.status for end in scene.stage.of(ToolEnd)] in (["cancelled"], [])


async def test_tools_called_from_several_threads_at_once_all_answer() -> None:
    """A callback agent may call tools from its own threads."""
    got: list[int] = []

    def agent(ctx: AgentContext, on_delta: OnDelta) -> None:
        def call(number: int) -> None:
            got.append(ctx.call_tool("add", {"a": number, "b": 0})["sum"])

        threads = [threading.Thread(target=call, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        on_delta("done")

    scene = Scene(tools=[add])
    await run(scene, agent)
    assert sorted(got) == list(range(6))
    assert len(scene.stage.of(ToolStart)) == len(scene.stage.of(ToolEnd)) == 6
    assert scene.stage.text == "done"


# -- loading


@pytest.mark.parametrize(
    ("spec", "words_"),
    [
        ("no_colon", "package.module:name"), ("tests.no_such_module:x", "cannot be loaded"),
        ("tests.performers:no_such", "no function"), ("tests.performers:STOP", "no function"),
        ("app.clock:now_ms", "must take the context"), ("tests.agents_for_tests:ran_before_all", "no function"),
    ],
)  # fmt: skip
def test_an_agent_that_cannot_be_loaded_is_refused_by_name(spec: str, words_: str) -> None:
    """Section 8, `agent = "package.module:name"`: at the start, in one sentence."""
    with pytest.raises(ConfigError, match=words_) as caught:
        load_agent(spec)
    assert spec in caught.value.message


def test_a_named_function_is_loaded() -> None:
    """The function itself."""
    assert load_agent("tests.agents_for_tests:generator") is generator
