"""The built-in agent: steps, tools, retries, ends (PROTOCOL 5, X1, X3), with a scripted model and real threads."""

from __future__ import annotations

import json
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

from app.agents.context import Denied, OpenCall, TurnOver
from app.agents.speech import AnswerTooLong
from app.agents.tool_loop import BrokenCalls, LoopState, ModelFailed, StepLimit
from app.agents.transcript import INVALID_ARGUMENTS
from app.events.types import AttemptRestarted, ToolEnd
from app.limits.cancel import Cancel
from app.providers.chunks import Alive, Chunk, Reasoning, StepEnd, Text
from app.providers.errors import LimitExceeded, ProviderError, StreamIncomplete, UpstreamRejected, UpstreamUnavailable
from app.tools import tool
from tests.performers import STOP, OpenGuards, Scene, ScriptedProvider, free, wants

pytestmark = pytest.mark.anyio

QUICK = UpstreamUnavailable("down", retry_after=0.0)


def effects() -> tuple[list[Any], Any, Any]:
    """A list that two tools write to: `look` (none) and `pay` (unsafe)."""
    ran: list[Any] = []

    @tool(side_effects="none")
    def look(q: int = 0) -> dict[str, int]:
        ran.append(("look", q))
        return {"q": q}

    @tool(side_effects="unsafe")
    def pay(q: int = 0) -> dict[str, int]:
        ran.append(("pay", q))
        return {"paid": q}

    return ran, look, pay


async def test_a_plain_answer_is_said_and_ends() -> None:
    """One call, its text and thinking in order, usage once per step."""
    scene = Scene()
    provider = ScriptedProvider([Reasoning("hm"), Text("Hel"), Alive(), Text("lo"), STOP])
    with anyio.fail_after(10):
        assert await scene.run_model(provider) == "stop"
    assert (scene.stage.text, scene.stage.thoughts) == ("Hello", "hm")
    assert scene.stage.kinds[-1] == "usage"
    assert scene.stage.kinds.count("usage") == 1
    assert free(scene.threads)


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter"])
async def test_the_models_own_end_is_passed_on(finish: Any) -> None:
    """PROTOCOL 5: `length` and `content_filter` end the turn; what was held as a possible tag is let go before."""
    scene = Scene()
    with anyio.fail_after(10):
        assert await scene.run_model(ScriptedProvider([Text("text <thi"), StepEnd(finish=finish)])) == finish
    assert scene.stage.text == "text <thi"


async def test_tools_run_and_the_model_goes_on_with_their_results() -> None:
    """A step, its calls in order of asking, the results in the next request, a new block for the text after them."""
    ran, look, pay = effects()
    scene = Scene(tools=[look, pay])
    provider = ScriptedProvider(
        [Text("Let me see."), wants(("c1", "pay", {"q": 1}), ("c2", "look", {"q": 2}), ("c3", "pay", {"q": 3}))],
        [Text("Done."), STOP],
    )
    with anyio.fail_after(10):
        assert await scene.run_model(provider) == "stop"
    assert sorted(ran) == [("look", 2), ("pay", 1), ("pay", 3)]
    second = provider.requests[1].messages
    assert [m["role"] for m in second] == ["user", "assistant", "tool", "tool", "tool"]
    assert second[1]["content"] == "Let me see."
    assert [m["tool_call_id"] for m in second[2:]] == ["c1", "c2", "c3"]
    assert [m["content"] for m in second[2:]] == ['{"paid":1}', '{"q":2}', '{"paid":3}']
    assert [(b.number, b.text) for b in scene.stage.content.blocks] == [(1, "Let me see."), (2, "Done.")]
    assert [m for m, _ in scene.stage.steps] == [second[1]], "the step is journaled once, before its tools"


async def test_ids_that_a_model_uses_again_are_told_apart() -> None:
    """E4, X2: endpoints that count `call_0` anew in each answer exist; two calls are two, with keys of their own."""
    keys: list[str] = []

    @tool(side_effects="unsafe")
    def pay(ctx: Any, q: int) -> int:
        keys.append(ctx.idempotency_key)
        return q

    scene = Scene(tools=[pay])
    blocks = [{"type": "tool_use", "id": "call_0", "name": "pay", "input": {"q": 2}}]
    again = StepEnd(finish="tool_calls", tool_calls=wants(("call_0", "pay", {"q": 2})).tool_calls, blocks=blocks)
    provider = ScriptedProvider([wants(("call_0", "pay", {"q": 1}))], [again], [Text("ok"), STOP])
    with anyio.fail_after(10):
        await scene.run_model(provider)
    assert len(set(keys)) == 2
    starts = [call for what, call, _ in scene.stage.tools() if what == "start"]
    assert len(set(starts)) == 2
    assert scene.stage.tools() == [(w, starts[i // 2], s) for i, (w, _, s) in enumerate(scene.stage.tools())]
    third = provider.requests[2].messages
    assert [m["content"] for m in third if m["role"] == "tool"] == ["1", "2"]
    asked = [m["tool_calls"][0]["id"] for m in third if m["role"] == "assistant"]
    assert asked == [m["tool_call_id"] for m in third if m["role"] == "tool"]
    assert third[3]["_blocks"]["blocks"][0]["id"] == asked[1], "what goes back verbatim must name the same call"
    assert blocks[0]["id"] == "call_0"


# -- X1


async def test_a_call_that_has_shown_nothing_is_made_again() -> None:
    """X1, section 5: transient, nothing visible: `attempt_restarted`, and only the second attempt's thinking remains."""
    scene = Scene()
    provider = ScriptedProvider([Reasoning("lost"), QUICK], [Reasoning("kept"), Text("ok"), STOP])
    with anyio.fail_after(10):
        assert await scene.run_model(provider) == "stop"
    assert [(e.attempt, e.reason) for e in scene.stage.of(AttemptRestarted)] == [(2, "upstream_unavailable")]
    assert (scene.stage.text, scene.stage.thoughts) == ("ok", "kept")
    assert provider.requests[0].messages == provider.requests[1].messages
    assert len(scene.guards.errors) == 1


@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_attempts_are_counted_exactly(attempts: int) -> None:
    """X1, `[retries] attempts`: the first included; then the last error goes up."""
    scene = Scene(attempts=attempts)
    provider = ScriptedProvider(*[[QUICK]] * 5)
    with anyio.fail_after(10), pytest.raises(ModelFailed) as caught:
        await scene.run_model(provider)
    assert caught.value.cause is QUICK
    assert len(provider.requests) == attempts
    assert [e.attempt for e in scene.stage.of(AttemptRestarted)] == list(range(2, attempts + 1))


@pytest.mark.parametrize("shown", ["visible", "held <thi"])
async def test_a_call_that_has_shown_something_is_never_made_again(shown: str) -> None:
    """X1: after visible output of the failing call: salvage. What was held is let go first, and counts."""
    scene = Scene()
    provider = ScriptedProvider([Text(shown), StreamIncomplete()], [Text("again"), STOP])
    with anyio.fail_after(10), pytest.raises(ModelFailed) as caught:
        await scene.run_model(provider)
    assert caught.value.shown
    assert (len(provider.requests), scene.stage.text) == (1, shown)


async def test_a_rejection_is_not_tried_again() -> None:
    """Section 5: any 4xx that is not transient."""
    scene = Scene()
    provider = ScriptedProvider([UpstreamRejected("no")], [STOP])
    with anyio.fail_after(10), pytest.raises(ModelFailed) as caught:
        await scene.run_model(provider)
    assert isinstance(caught.value.cause, UpstreamRejected)
    assert len(provider.requests) == 1


@pytest.mark.parametrize(("after_tool", "requests"), [("forward", 3), ("salvage", 2)])
async def test_after_a_tool_the_model_call_is_made_again_and_no_tool_is(after_tool: Any, requests: int) -> None:
    """X1: forward with the journaled results; `after_tool = "salvage"` turns even that off. The tool ran once."""
    ran, _, pay = effects()
    scene = Scene(tools=[pay], after_tool=after_tool)
    provider = ScriptedProvider([Text("t"), wants(("c1", "pay", {"q": 1}))], [QUICK], [Text("ok"), STOP])
    with anyio.fail_after(10):
        if after_tool == "forward":
            assert await scene.run_model(provider) == "stop"
            assert provider.requests[1].messages == provider.requests[2].messages
        else:
            with pytest.raises(ModelFailed):
                await scene.run_model(provider)
    assert len(provider.requests) == requests
    assert ran == [("pay", 1)]


async def test_a_wait_that_the_endpoint_asks_for_is_not_begun_past_the_reserve() -> None:
    """X1: inside the deadline; the reserve is kept for the answer."""
    scene = Scene(seconds=5, reserve=1)
    provider = ScriptedProvider([UpstreamUnavailable("busy", retry_after=4.5)], [STOP])
    with anyio.fail_after(3), pytest.raises(ModelFailed):
        await scene.run_model(provider)
    assert len(provider.requests) == 1


@pytest.mark.parametrize(
    ("chunks", "rung"),
    [([], "model_first_token"), ([Text("a")], "model_between_tokens"), ([Alive()], "model_between_tokens")],
)
async def test_a_silent_model_is_a_timeout_and_its_thread_is_freed(chunks: list[Chunk], rung: str) -> None:
    """PROTOCOL 6: first token, then between tokens; the call is cancelled, so that the thread is free."""
    scene = Scene(first_token=0.15, between_tokens=0.15, attempts=1)
    provider = ScriptedProvider([*chunks, lambda cancel: cancel.wait(20), STOP])
    with anyio.fail_after(10), pytest.raises(ModelFailed) as caught:
        await scene.run_model(provider)
    assert rung in caught.value.cause.detail
    assert caught.value.cause.transient
    assert provider.cancels[0].cancelled
    assert free(scene.threads)


async def test_chunks_that_show_nothing_keep_a_model_alive() -> None:
    """A model that writes long arguments is not silent."""
    scene = Scene(first_token=0.4, between_tokens=0.4)
    moves: list[Any] = []
    for _ in range(8):
        moves += [lambda cancel: cancel.wait(0.1), Alive()]
    with anyio.fail_after(20):
        assert await scene.run_model(ScriptedProvider([*moves, Text("ok"), STOP])) == "stop"


async def test_a_model_that_ends_without_an_end_is_a_failure() -> None:
    """The port's rule is broken: never a blank success."""
    scene = Scene()
    with anyio.fail_after(10), pytest.raises(ModelFailed):
        await scene.run_model(ScriptedProvider([Text("a")], [Text("b")]))


async def test_what_a_provider_raises_by_mistake_ends_the_turn_with_its_text() -> None:
    """PROTOCOL 5, 9: our own code raises: never tried again; what was held is let go before the ending."""
    scene = Scene()
    provider = ScriptedProvider([Text("<th"), ZeroDivisionError()], [STOP])
    with anyio.fail_after(10), pytest.raises(ZeroDivisionError):
        await scene.run_model(provider)
    assert (scene.stage.text, len(provider.requests)) == ("<th", 1)


async def test_a_provider_whose_thread_dies_does_not_take_the_loop_along() -> None:
    """PROTOCOL 5: `SystemExit` in a model's thread ends one turn."""
    scene = Scene()
    with anyio.fail_after(10), pytest.raises(Exception, match="SystemExit"):
        await scene.run_model(ScriptedProvider([SystemExit(1)]))


# -- X3


async def test_a_batch_with_one_broken_call_runs_none_of_it() -> None:
    """X3: no tool events; each call gets its result in the history, and the model goes on."""
    ran, look, pay = effects()
    scene = Scene(tools=[look, pay])
    provider = ScriptedProvider(
        [wants(("c1", "pay", {"q": 1}), ("c2", "look", None))],
        [wants(("c3", "look", {"q": 3}))],
        [Text("ok"), STOP],
    )
    with anyio.fail_after(10):
        assert await scene.run_model(provider) == "stop"
    assert ran == [("look", 3)]
    assert scene.stage.tools() == [("start", "c3", "look"), ("end", "c3", "ok")]
    told = [m for m in provider.requests[1].messages if m["role"] == "tool"]
    assert [(m["tool_call_id"], m["content"]) for m in told] == [("c1", INVALID_ARGUMENTS), ("c2", INVALID_ARGUMENTS)]


async def test_a_second_broken_batch_in_a_row_ends_the_turn() -> None:
    """X3; a good batch between two broken ones begins the count anew."""
    ran, look, _ = effects()
    broken, good = [wants(("c1", "look", None))], [wants(("c2", "look", {"q": 2}))]
    provider = ScriptedProvider(broken, good, [wants(("c3", "look", None))], [wants(("c4", "look", None))], [STOP])
    scene = Scene(tools=[look])
    with anyio.fail_after(10), pytest.raises(BrokenCalls):
        await scene.run_model(provider)
    assert len(provider.requests) == 4
    assert ran == [("look", 2)]


async def test_the_step_limit_ends_a_model_that_never_stops_asking() -> None:
    """Section 5, `max_steps`: the tools of the last step still have their results."""
    ran, look, _ = effects()
    provider = ScriptedProvider(*[[wants((f"c{n}", "look", {"q": n}))] for n in range(9)])
    scene = Scene(tools=[look], max_steps=3)
    with anyio.fail_after(10), pytest.raises(StepLimit):
        await scene.run_model(provider)
    assert len(provider.requests) == 3
    assert len(ran) == len(scene.stage.of(ToolEnd)) == 3


# -- limits


async def test_an_answer_over_its_limit_stops_the_stream() -> None:
    """Section 8, `answer_chars`: what fits is shown; the upstream is let go at once."""
    scene = Scene(answer_chars=10)
    provider = ScriptedProvider([Text("12345"), Text("67890"), Text("more"), lambda cancel: cancel.wait(20), STOP])
    with anyio.fail_after(10), pytest.raises(AnswerTooLong):
        await scene.run_model(provider)
    assert scene.stage.text == "1234567890"
    assert provider.cancels[0].cancelled
    assert free(scene.threads)


async def test_an_upstream_over_its_limit_ends_like_a_too_long_answer() -> None:
    """Section 8, `upstream_bytes`: not tried again."""
    scene = Scene()
    provider = ScriptedProvider([Text("some"), LimitExceeded()], [STOP])
    with anyio.fail_after(10), pytest.raises(AnswerTooLong):
        await scene.run_model(provider)
    assert (scene.stage.text, len(provider.requests)) == ("some", 1)


# -- cancel, hooks, recovery


async def test_a_cancel_frees_the_model_and_is_no_failure() -> None:
    """E6: while the model is silent: `TurnOver`, its thread free, nothing tried again."""
    scene = Scene()
    begun = threading.Event()
    provider = ScriptedProvider([Text("a"), lambda cancel: (begun.set(), cancel.wait(20)), UpstreamUnavailable()], [STOP])

    async def press() -> None:
        await anyio.to_thread.run_sync(begun.wait)
        scene.cancel.cancel()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(press)
            with pytest.raises(TurnOver):
                await scene.run_model(provider)
    assert len(provider.requests) == 1
    assert free(scene.threads)


async def test_a_turn_cancelled_while_it_waits_for_a_thread_never_calls_the_model() -> None:
    """Case from the field: pool of 1 busy, second turn cancelled."""
    scene = Scene()
    scene.threads.limit = 1
    hold = threading.Event()
    provider = ScriptedProvider([Text("a"), STOP])
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(scene.threads.run, hold.wait)
            while not scene.threads.busy:
                await anyio.sleep(0.001)

            async def press() -> None:
                await anyio.sleep(0.05)
                scene.cancel.cancel()

            group.start_soon(press)
            with pytest.raises(TurnOver):
                await scene.run_model(provider)
            hold.set()
    assert free(scene.threads)
    assert provider.requests == []


async def test_a_hook_may_change_what_the_model_is_sent_or_refuse() -> None:
    """PROTOCOL 9, before_generation: for each model call, with its number; a no ends the turn before the model is asked."""

    class Hooks(OpenGuards):
        async def before_generation(self, messages: list[dict[str, Any]], *, step: int) -> list[dict[str, Any]]:
            if step == 2:
                raise Denied("not this")
            return [{"role": "system", "content": "be kind"}, *messages]

    _, look, _ = effects()
    scene = Scene(tools=[look], guards=Hooks())
    provider = ScriptedProvider([wants(("c1", "look", {}))], [STOP])
    with anyio.fail_after(10), pytest.raises(Denied, match="not this"):
        await scene.run_model(provider)
    assert [m["role"] for m in provider.requests[0].messages] == ["system", "user"]
    assert len(provider.requests) == 1


async def test_a_recovered_step_finishes_its_open_calls_and_goes_on() -> None:
    """X2: an open `none` call runs again under its id without a second start; an open `unsafe` one is `unknown`; a call
    that had not begun begins now. Then the model is told."""
    ran, look, pay = effects()
    scene = Scene(tools=[look, pay])
    before = wants(("c1", "pay", {"q": 1}), ("c2", "look", {"q": 2}), ("c3", "pay", {"q": 3}))
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": json.dumps(c.arguments)},
            }
            for c in before.tool_calls
        ],
    }
    state = LoopState(
        messages=[{"role": "user", "content": "x"}, message],
        step=1,
        open_calls=[
            OpenCall(id="c1", name="pay", arguments={"q": 1}, started=True),
            OpenCall(id="c2", name="look", arguments={"q": 2}, started=True),
            OpenCall(id="c3", name="pay", arguments={"q": 3}),
        ],
    )
    provider = ScriptedProvider([Text("ok"), STOP])
    with anyio.fail_after(10):
        assert await scene.run_model(provider, state=state) == "stop"
    assert sorted(ran) == [("look", 2), ("pay", 3)]
    told = scene.stage.tools()
    assert [t for t in told if t[0] == "start"] == [("start", "c3", "pay")]
    assert {t[1:] for t in told if t[0] == "end"} == {("c1", "unknown"), ("c2", "ok"), ("c3", "ok")}
    results = {m["tool_call_id"]: m["content"] for m in provider.requests[0].messages if m["role"] == "tool"}
    assert "unknown" in results["c1"]
    assert results["c2"] == '{"q":2}'


async def test_a_call_whose_cancel_is_set_before_it_begins_ends_at_once() -> None:
    """A turn that was stopped between two steps asks nobody."""
    scene = Scene()
    scene.cancel.cancel()
    provider = ScriptedProvider([lambda cancel: cancel.wait(20), STOP])
    with anyio.fail_after(5), pytest.raises(TurnOver):
        await scene.run_model(provider)
    assert free(scene.threads)


async def test_the_error_that_is_told_names_class_code_and_detail() -> None:
    """For the log only: one line."""
    scene = Scene(attempts=2)
    error = ProviderError("upstream words", code="overloaded", detail="HTTP 529", retry_after=0.0)
    with anyio.fail_after(10), pytest.raises(ModelFailed):
        await scene.run_model(ScriptedProvider([error], [error]))
    assert scene.guards.errors == [("model", "ProviderError overloaded: upstream words (HTTP 529)")]


def test_cancel_runs_each_callback_once_and_at_once_when_it_is_set_already() -> None:
    """The switch that frees blocked threads."""
    cancel, ran = Cancel(), []
    undo = cancel.on_cancel(lambda: ran.append("undone"))
    cancel.on_cancel(lambda: ran.append("first"))
    undo()
    cancel.cancel()
    cancel.cancel()
    cancel.on_cancel(lambda: ran.append("late"))()
    assert ran == ["first", "late"]
    assert cancel.wait(0)
