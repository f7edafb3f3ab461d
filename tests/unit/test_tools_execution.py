"""One tool call, whatever the tool does: one outcome, in time, in plain words (PROTOCOL 3 tool_end, B2, 9)."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.events import ActionCard, Commentary, Event, Image, TextDelta, ToolProgress
from app.limits.cancel import Cancel
from app.limits.threads import WorkerThreads
from app.tools import Tool, ToolContext, ToolError, ToolOver, tool
from app.tools.execution import GRACE_SECONDS, ToolOutcome, run_call

pytestmark = pytest.mark.anyio


@pytest.fixture
def release():
    """What deaf tools wait for; set at the end, so that no thread outlives its test by long."""
    event = threading.Event()
    yield event
    event.set()


async def run(
    one: Tool,
    arguments: dict[str, Any] | None = None,
    *,
    timeout: float = 5,
    ctx: ToolContext | None = None,
    threads: WorkerThreads | None = None,
    cancel: Cancel | None = None,
) -> ToolOutcome:
    return await run_call(
        one,
        ctx or ToolContext(tool_call_id="c1", turn_id="t1"),
        arguments or {},
        timeout=timeout,
        threads=threads or WorkerThreads(4),
        cancel=cancel or Cancel(),
    )


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(5):
        while not condition():
            await anyio.sleep(0.005)


async def test_sync_tools_run_in_a_thread_and_async_ones_on_the_loop():
    """PROTOCOL 9, first rule."""
    loop_thread = threading.get_ident()

    @tool
    def sync_one() -> bool:
        return threading.get_ident() == loop_thread

    @tool
    async def async_one() -> bool:
        await anyio.sleep(0)
        return threading.get_ident() == loop_thread

    outcome = await run(sync_one)
    assert (outcome.status, outcome.result, outcome.entered, outcome.returned) == ("ok", "false", True, True)
    assert (await run(async_one)).result == "true"


async def test_result_is_json_or_the_string_itself_with_a_preview_of_two_kibibytes():
    """The whole result goes to the model, a beginning of whole characters to people."""

    @tool
    def shout(text: str) -> str:
        return text

    @tool
    def wrap(text: str) -> dict:
        return {"t": text}

    assert (await run(shout, {"text": "plain"})).result == "plain"
    assert (await run(wrap, {"text": "ü"})).result == '{"t":"ü"}'
    long = await run(shout, {"text": "€" * 1000})
    assert (long.result, long.truncated) == ("€" * 1000, True)
    assert long.preview == "€" * 682
    assert len((await run(shout, {"text": "x" * 2048})).preview or "") == 2048
    assert (await run(shout, {"text": "x" * 2048})).truncated is False


async def test_lone_surrogates_do_not_break_the_encoding_of_anything():
    """PROTOCOL F4: they become U+FFFD, in results, previews and errors."""

    @tool
    def broken(fail: bool) -> Any:
        if fail:
            raise ValueError("bad \ud800")
        return {"half \ud83d": "\udc00"}

    for fail in (False, True):
        outcome = await run(broken, {"fail": fail})
        outcome.result.encode()
        assert outcome.preview is not None
        outcome.preview.encode()
    assert json.loads((await run(broken, {"fail": False})).result) == {"half \ufffd": "\ufffd"}


@pytest.mark.parametrize("is_async", [False, True])
async def test_whatever_a_tool_raises_is_an_outcome_in_one_short_sentence(is_async: bool):
    """Also what would end the service, the task or the loop: `SystemExit`, `KeyboardInterrupt`, a cancel of its own."""

    def make(error: BaseException) -> Tool:
        if is_async:

            async def fails() -> str:
                raise error

            return tool(fails)

        def fails_in_thread() -> str:
            raise error

        return tool(fails_in_thread)

    for error, words in [
        (ToolError("No such customer."), "No such customer."),
        (ValueError("bad\nstack"), "ValueError: bad"),
        (SystemExit(1), "SystemExit: 1"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration(), "StopIteration"),
        (asyncio.CancelledError(), "CancelledError"),
        (GeneratorExit(), "GeneratorExit"),
        (ExceptionGroup("many", [ValueError("x")]), "ExceptionGroup: many (1 sub-exception)"),
    ]:
        # An async function that raises StopIteration gets a RuntimeError from Python itself.
        if is_async and isinstance(error, StopIteration):
            continue
        outcome = await run(make(error))
        assert (outcome.status, outcome.result, outcome.returned) == ("error", words, True)


async def test_log_of_a_failing_tool_names_the_place_and_not_the_text():
    """The text may hold a secret; the operator gets the kind and the line, and at `debug` all of it."""

    @tool
    def leaks() -> str:
        raise RuntimeError("password hunter2")

    with capture_logs() as logs:
        await run(leaks)
    line, detail = logs
    assert (line["event"], line["error"]) == ("tool error", "RuntimeError")
    assert line["at"].startswith("test_tools_execution.py:")
    assert "hunter2" not in str(line)
    # Who needs the text asks for it.
    assert detail["log_level"] == "debug"
    assert "hunter2" in str(detail["exc_info"])


async def test_result_that_is_no_json_is_an_error():
    """PROTOCOL 9: what the function returns must be JSON or a string."""

    @tool
    def odd() -> Any:
        return {1, 2}

    async def inner() -> str:
        return ""

    @tool
    def forgets_to_wait() -> Any:
        return inner()

    for one in (odd, forgets_to_wait):
        outcome = await run(one)
        assert outcome.status == "error"
        assert "neither a string nor JSON" in outcome.result


async def test_arguments_that_do_not_fit_do_not_enter_the_function():
    """The model is told which argument and why."""
    entered = []

    @tool
    def pay(amount: float) -> str:
        entered.append(amount)
        return ""

    outcome = await run(pay, {"amount": "much"})
    assert (outcome.status, outcome.entered, entered) == ("error", False, [])
    assert outcome.result.startswith("Invalid arguments: amount: Input should be a valid number")


@pytest.mark.parametrize("side_effects", ["none", "idempotent", "unsafe"])
async def test_deaf_function_times_out_at_once_and_its_thread_is_counted(release: threading.Event, side_effects: Any):
    """The outcome does not wait; the context is cancelled; only for an unsafe tool it is said to be unknown."""
    seen: list[ToolContext] = []

    @tool(side_effects=side_effects)
    def deaf(ctx: ToolContext) -> str:
        seen.append(ctx)
        release.wait(10)
        return ""

    threads = WorkerThreads(1)
    with capture_logs() as logs:
        outcome = await run(deaf, timeout=0.1, threads=threads)
    assert (outcome.status, outcome.entered, outcome.returned) == ("timeout", True, False)
    assert 90 <= outcome.duration_ms < 600
    assert ("unknown" in outcome.result) == (side_effects == "unsafe")
    assert seen[0].cancelled
    assert seen[0].remaining() == 0
    # B3: one line that has the word, the rung and its value.
    assert [(line["event"], line["rung"], line["timeout"]) for line in logs] == [("tool timeout", "tool", 0.1)]
    await until(lambda: threads.abandoned == 1)
    # It holds up nobody, although the limit is one.
    assert (await run(tool(name="next")(lambda: "fine"), threads=threads)).result == "fine"
    release.set()
    await until(lambda: threads.abandoned == 0)


async def test_async_function_that_swallows_its_cancel_times_out_at_once():
    """Nothing waits for it, however often it catches what should stop it."""
    stop = anyio.Event()

    @tool
    async def stubborn() -> str:
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue
        return ""

    with anyio.fail_after(2):
        outcome = await run(stubborn, timeout=0.1)
        assert (outcome.status, outcome.returned) == ("timeout", False)
        stop.set()
        await anyio.wait_all_tasks_blocked()


async def test_without_time_left_the_function_is_not_entered():
    """B2."""
    entered: list[int] = []

    @tool
    def late() -> str:
        entered.append(1)
        return ""

    for timeout in (0, -1.5):
        outcome = await run(late, timeout=timeout)
        assert (outcome.status, outcome.entered, entered) == ("timeout", False, [])
        assert "not run" in outcome.result


async def test_call_that_waits_for_a_thread_and_is_stopped_never_runs(release: threading.Event):
    """Neither after a cancel nor after a timeout, also when a thread becomes free later."""
    entered = []
    busy = threading.Event()

    @tool
    def hold() -> str:
        busy.set()
        release.wait(10)
        return ""

    @tool
    def second() -> str:
        entered.append(1)
        return ""

    threads, cancel = WorkerThreads(1), Cancel()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: run(hold, threads=threads))
        await until(busy.is_set)
        outcome = await run(second, threads=threads, timeout=0.05)
        assert (outcome.status, outcome.entered) == ("timeout", False)
        assert "not run" in outcome.result

        async def stop() -> None:
            await anyio.wait_all_tasks_blocked()
            cancel.cancel()

        group.start_soon(stop)
        started = time.monotonic()
        outcome = await run(second, threads=threads, cancel=cancel)
        assert (outcome.status, outcome.entered) == ("cancelled", False)
        # One that has not begun needs no grace.
        assert time.monotonic() - started < GRACE_SECONDS
        release.set()
    await run(tool(name="last")(lambda: "x"), threads=threads)
    assert entered == []


async def test_call_of_a_turn_that_is_cancelled_already_is_not_entered():
    """A cancel that came first wins."""
    cancel = Cancel()
    cancel.cancel()
    outcome = await run(tool(name="t")(lambda: "x"), cancel=cancel)
    assert (outcome.status, outcome.entered) == ("cancelled", False)


async def test_function_that_comes_back_after_the_cancel_is_cancelled_and_its_result_told():
    """Its effect has taken place, so the model must know what it returned."""
    cancel = Cancel()

    @tool
    def polite(ctx: ToolContext) -> str:
        threading.Timer(0, cancel.cancel).start()
        while not ctx.cancelled:
            time.sleep(0.001)
        return "half done"

    outcome = await run(polite, cancel=cancel)
    assert (outcome.status, outcome.entered, outcome.returned) == ("cancelled", True, True)
    assert "half done" in outcome.result


async def test_async_function_is_cancelled_where_it_waits():
    """It need not look at the context."""
    cancel = Cancel()
    cleaned = []

    @tool
    async def waits() -> str:
        cancel.cancel()
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append(1)

    with anyio.fail_after(GRACE_SECONDS):
        outcome = await run(waits, cancel=cancel)
    assert (outcome.status, outcome.returned, cleaned) == ("cancelled", True, [1])


async def test_deaf_function_is_unknown_half_a_second_after_the_cancel(release: threading.Event):
    """It may yet take effect (PROTOCOL 3, `unknown`)."""
    threads, cancel = WorkerThreads(1), Cancel()

    @tool
    def deaf() -> str:
        cancel.cancel()
        release.wait(10)
        return ""

    outcome = await run(deaf, cancel=cancel, threads=threads)
    assert (outcome.status, outcome.entered, outcome.returned) == ("unknown", True, False)
    assert 450 <= outcome.duration_ms < 1000
    assert "unknown" in outcome.result
    await until(lambda: threads.abandoned == 1)


async def test_cancel_of_the_surrounding_scope_goes_on_after_the_same_grace(release: threading.Event):
    """The tool is told, given its grace, and left; the cancellation is not swallowed."""
    seen: list[ToolContext] = []
    threads = WorkerThreads(1)

    @tool
    def deaf(ctx: ToolContext) -> str:
        seen.append(ctx)
        release.wait(10)
        return ""

    started = time.monotonic()
    with anyio.move_on_after(0.1) as scope:
        await run(deaf, threads=threads)
    assert scope.cancelled_caught
    assert time.monotonic() - started < 0.1 + GRACE_SECONDS + 0.4
    assert seen[0].cancelled
    await until(lambda: threads.abandoned == 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 0.012), st.floats(0, 0.012), st.booleans()), min_size=1, max_size=8))
def test_cancel_and_end_race_to_one_truthful_outcome(races: list[tuple[float, float, bool]]):
    """Random schedules: `ok` only if it returned; not entered means not entered; nothing is said after the end."""

    async def one(work: float, stop_after: float, deaf: bool, threads: WorkerThreads) -> None:
        cancel, log, over = Cancel(), [], threading.Event()

        @tool
        def works(ctx: ToolContext) -> str:
            log.append("entered")
            end = time.monotonic() + work
            while time.monotonic() < end and (deaf or not ctx.cancelled):
                time.sleep(0.0005)
            log.append("returned")
            return "x"

        ctx = ToolContext(emit_sink=lambda event: log.append("late") if over.is_set() else None)
        timer = threading.Timer(stop_after, cancel.cancel)
        timer.start()
        outcome = await run(works, ctx=ctx, threads=threads, cancel=cancel)
        over.set()
        seen = list(log)
        assert outcome.status in ("ok", "cancelled")
        assert outcome.entered == ("entered" in seen)
        assert outcome.returned == ("returned" in seen)
        assert outcome.entered or outcome.status == "cancelled"
        with pytest.raises(ToolOver):
            ctx.progress("late")
        timer.join()

    async def main() -> None:
        threads = WorkerThreads(2)
        async with anyio.create_task_group() as group:
            for race in races:
                group.start_soon(one, *race, threads)
        assert (threads.busy, threads.abandoned) == (0, 0)

    anyio.run(main)


async def test_progress_is_coalesced_and_the_last_one_is_never_lost():
    """At most 5 a second, the latest wins, and quiet after a burst still shows its last value."""
    shown: list[tuple[float, ToolProgress]] = []

    @tool
    async def busy(ctx: ToolContext) -> str:
        for number in range(200):
            ctx.progress(f"{number}", number / 200)
            await anyio.sleep(0.001)
        await until(lambda: shown[-1][1].message == "199")
        ctx.progress("end")
        return ""

    ctx = ToolContext(tool_call_id="c1", emit_sink=lambda event: shown.append((time.monotonic(), event)))  # type: ignore[arg-type]
    assert (await run(busy, ctx=ctx)).status == "ok"
    messages = [event.message for _, event in shown]
    assert messages[0] == "0"
    assert messages[-2:] == ["199", "end"]
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(shown)]
    # The very last may come early: the call is over and nothing follows it.
    assert all(gap >= 0.19 for gap in gaps[:-1])
    assert [float(m) for m in messages[:-1] if m] == sorted(float(m) for m in messages[:-1] if m)


async def test_progress_from_a_thread_is_shown_after_a_quiet_while():
    """The timer is the loop's, the call a thread's."""
    shown: list[Event] = []

    @tool
    def busy(ctx: ToolContext) -> str:
        ctx.progress("a")
        ctx.progress("b", 7)
        ctx.progress("c", float("nan"))
        end = time.monotonic() + 3
        while len(shown) < 2 and time.monotonic() < end:
            time.sleep(0.005)
        return str(len(shown))

    outcome = await run(busy, ctx=ToolContext(tool_call_id="c1", emit_sink=shown.append))
    assert outcome.result == "2"
    assert shown == [ToolProgress(tool_call_id="c1", message="a"), ToolProgress(tool_call_id="c1", message="c")]


def test_emit_takes_three_kinds_as_events_or_dicts_and_nothing_else():
    """Fields are checked, unknown ones ignored, the call's own id and no place in the turn are set."""
    shown: list[Event] = []
    ctx = ToolContext(tool_call_id="c1", emit_sink=shown.append)
    ctx.emit(Commentary(text="so far", seq=9, ts=9))
    ctx.emit({"type": "image", "url": "https://x.example/a.png", "alt": "a", "width": 4, "new_field": 1, "seq": 5})
    ctx.emit(
        {
            "type": "action_card", "card_id": "k", "kind": "invoice", "title": "T", "tool_call_id": "another",
            "fields": [{"label": "Sum", "value": "1", "x": 1}], "actions": [{"title": "Open", "url": "https://x.example"}],
        }
    )  # fmt: skip
    assert shown[0] == Commentary(text="so far")
    assert shown[1] == Image(url="https://x.example/a.png", alt="a", width=4, tool_call_id="c1")
    assert isinstance(shown[2], ActionCard)
    assert (shown[2].tool_call_id, shown[2].fields[0].value) == ("c1", "1")
    for wrong, words in [
        (TextDelta(block=1, text="x"), "not 'text_delta'"),
        ({"type": "error", "code": "internal"}, "not 'error'"),
        ({"text": "x"}, "not None"),
        ({"type": ["image"]}, r"not \['image'\]"),
        ("text", "emit takes an event, or a dict"),
        ({"type": "image", "url": "x"}, "emit of image: Object missing required field `alt`"),
        ({"type": "image", "url": 1, "alt": ""}, r"emit of image: Expected `str`, got `int` - at `\$.url`"),
        (Image(url=3, alt=""), r"emit of image: Expected `str`, got `int`"),  # type: ignore[arg-type]
        ({"type": "commentary"}, "missing required field `text`"),
    ]:
        with pytest.raises(ToolError, match=words):
            ctx.emit(wrong)  # type: ignore[arg-type]
    assert len(shown) == 3


async def test_after_the_end_a_tool_is_heard_no_more_and_told_so():
    """A function that goes on after its timeout ends at its next word; nothing of it reaches the turn."""
    shown: list[Event] = []
    end: list[BaseException] = []
    go_on = threading.Event()

    @tool
    def goes_on(ctx: ToolContext) -> str:
        go_on.wait(5)
        try:
            ctx.emit(Commentary(text="late"))
        except ToolOver as error:
            end.append(error)
        ctx.progress("later")
        return ""

    threads = WorkerThreads(1)
    outcome = await run(goes_on, ctx=ToolContext(emit_sink=shown.append), timeout=0.05, threads=threads)
    assert outcome.status == "timeout"
    await until(lambda: threads.abandoned == 1)
    go_on.set()
    await until(lambda: threads.abandoned == 0)
    assert len(end) == 1
    assert shown == []


async def test_on_cancel_is_called_once_from_the_cancelling_thread_and_may_fail():
    """What one callback raises neither stops the others nor reaches the one who cancels; an end in order calls none."""
    called: list[str] = []
    cancel = Cancel()

    def fails() -> None:
        called.append("fails")
        raise RuntimeError

    @tool
    def watches(ctx: ToolContext, stop: bool) -> str:
        ctx.on_cancel(fails)
        ctx.on_cancel(lambda: called.append("second"))
        ctx.on_cancel(lambda: called.append("taken back"))()
        if stop:
            cancel.cancel()
            ctx.on_cancel(lambda: called.append("at once"))
        return ""

    assert (await run(watches, {"stop": False}, cancel=cancel)).status == "ok"
    assert called == []
    assert (await run(watches, {"stop": True}, cancel=cancel)).status == "cancelled"
    assert called == ["fails", "second", "at once"]


async def test_remaining_counts_down_from_the_timeout_of_the_call():
    """`remaining()` is in seconds and never longer than the turn allows."""

    @tool
    def look(ctx: ToolContext) -> float:
        return ctx.remaining()

    assert 1.5 < float((await run(look, timeout=2)).result) <= 2
    tight = ToolContext(deadline=time.monotonic() + 1)
    assert 0.5 < float((await run(look, timeout=2, ctx=tight)).result) <= 1
