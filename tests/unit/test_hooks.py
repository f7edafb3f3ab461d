"""Hooks: their order, their answers, and that none can hold up or break a turn (PROTOCOL 9)."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest
from structlog.testing import capture_logs

from app.errors import ConfigError
from app.events import Completion
from app.hooks import (
    AfterGeneration,
    AfterTool,
    BeforeGeneration,
    BeforeTool,
    Denied,
    Deny,
    Hook,
    HookChain,
    Node,
    OnDelivery,
    OnError,
    OnReceive,
    OnTurnEnd,
    Replace,
    hook,
)
from app.hooks.chain import NEUTRAL_WORDS
from app.hooks.payloads import PAYLOADS
from app.limits.threads import WorkerThreads

pytestmark = pytest.mark.anyio

WHO: dict[str, Any] = {"turn_id": "t", "conversation_id": "c", "user_id": "u", "profile": "default"}
RECEIVED = OnReceive(**WHO, input="hello")
MESSAGES = [{"role": "user", "content": "hello"}]
GENERATION = BeforeGeneration(**WHO, messages=MESSAGES, model="m", step=1)
CALL: dict[str, Any] = {"tool_call_id": "c1", "name": "pay", "arguments": {"n": 1}, "side_effects": "unsafe"}
BEFORE_TOOL = BeforeTool(**WHO, **CALL)
AFTER_TOOL = AfterTool(**WHO, **CALL, status="ok", result="paid")
ANSWER = AfterGeneration(**WHO, text="answer", status="complete", finish_reason="stop")
DELIVERED = OnDelivery(
    **WHO, message_id="m", terminal=Completion(status="complete", finish_reason="stop", chars=1, text="a")
)
ENDED = OnTurnEnd(**WHO, message_id="m", status="complete", finish_reason="stop")
FAILED = OnError(**WHO, where="model", error="gone")


@pytest.fixture
def release():
    """What hanging hooks wait for; set at the end."""
    event = threading.Event()
    yield event
    event.set()


def failures(logs: list[Any]) -> list[tuple[str, str]]:
    return [(line["hook"], line["reason"]) for line in logs if line["event"] == "hook failed"]


async def test_hooks_run_by_order_then_by_name_and_each_sees_what_the_one_before_made():
    """The order of definition does not matter."""

    def adds(name: str, order: int) -> Hook:
        return hook("on_receive", order=order, name=name)(lambda event: Replace(text=f"{event.text} {name}"))

    chain = HookChain([adds("d", 60), adds("b", 50), adds("a", 50), adds("c", 55), adds("z", -1)])
    result = await chain.run("on_receive", RECEIVED)
    assert isinstance(result, OnReceive)
    assert result.text == "hello z a b c d"
    assert [one.name for one in chain.hooks("on_receive")] == ["z", "a", "b", "c", "d"]
    assert not chain.has("before_tool")


async def test_without_hooks_the_payload_itself_comes_back():
    """Nothing is copied for nobody."""
    assert await HookChain().run("on_receive", RECEIVED) is RECEIVED


async def test_sync_hooks_run_off_the_loop_and_async_ones_on_it():
    """PROTOCOL 9: sync ones off the loop."""
    here, seen = threading.get_ident(), {}

    @hook("on_receive")
    def sync_one(event: OnReceive) -> None:
        seen["sync"] = threading.get_ident() == here

    @hook("on_receive")
    async def async_one(event: OnReceive) -> None:
        seen["async"] = threading.get_ident() == here

    assert await HookChain([sync_one, async_one]).run("on_receive", RECEIVED) == RECEIVED
    assert seen == {"sync": False, "async": True}


async def test_deny_stops_the_chain_with_its_words():
    """No later hook is asked."""
    asked = []

    @hook("before_tool", order=1)
    async def no(event: BeforeTool) -> Deny:
        return Deny(f"No {event.name} today. \ud800")

    @hook("before_tool", order=2)
    async def later(event: BeforeTool) -> None:
        asked.append(1)

    assert await HookChain([no, later]).run("before_tool", BEFORE_TOOL) == Denied("No pay today. \ufffd", "no")
    assert asked == []


@pytest.mark.parametrize(
    ("payload", "answer", "field", "value"),
    [
        (RECEIVED, Replace(text="new"), "input", "new"),
        (
            GENERATION,
            Replace(messages=[{"role": "system", "content": "x"}]),
            "messages",
            [{"role": "system", "content": "x"}],
        ),
        (BEFORE_TOOL, Replace(arguments={"n": 2}), "arguments", {"n": 2}),
        (AFTER_TOOL, Replace(result="hidden"), "result", "hidden"),
        (AFTER_TOOL, Replace(result={"n": 1}), "result", '{"n":1}'),
        (AFTER_TOOL, Replace(result=None), "result", "null"),
        (ANSWER, Replace(text=""), "text", ""),
    ],
)
async def test_each_node_takes_its_own_replacement(payload: Any, answer: Replace, field: str, value: object):
    """Everything else in the payload stays."""
    one = hook(payload.node, name="h")(lambda event: answer)
    result = await HookChain([one]).run(payload.node, payload)
    assert getattr(result, field) == value
    unchanged = [name for name in ("turn_id", "metadata", "status", "model", "name") if hasattr(payload, name)]
    assert all(getattr(result, name) == getattr(payload, name) for name in unchanged)


async def test_replaced_text_of_an_input_of_parts_keeps_its_images():
    """The text parts become one; what is no text stays."""
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    parts = OnReceive(**WHO, input=[{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}])
    assert parts.text == "a\nb"
    one = hook("on_receive", name="h")(lambda event: Replace(text="c"))
    result = await HookChain([one]).run("on_receive", parts)
    assert isinstance(result, OnReceive)
    assert result.input == [{"type": "text", "text": "c"}, image]


def raises(event: object) -> None:
    raise ValueError("secret")


def leaves(event: object) -> None:
    raise SystemExit


async def waits(event: object) -> None:
    await anyio.sleep(10)


async def cancels_itself(event: object) -> None:
    raise asyncio.CancelledError


async def interrupts(event: object) -> None:
    raise KeyboardInterrupt


async def swallows(event: object) -> None:
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.6)
        except asyncio.CancelledError:
            continue


def empty_deny(event: object) -> Deny:
    return Deny("  ")


def forgotten_await(event: object) -> Any:
    return waits(event)


BAD: list[tuple[Any, str]] = [
    (raises, "ValueError"),
    (leaves, "it raised SystemExit"),
    (waits, "timeout: rung hook, 0.2 s"),
    (cancels_itself, "it raised CancelledError"),
    (interrupts, "it raised KeyboardInterrupt"),
    (swallows, "timeout: rung hook, 0.2 s"),
    (lambda event: True, "it answered bool, not None, Deny or Replace"),
    (lambda event: "no", "it answered str, not None, Deny or Replace"),
    (lambda event: Deny, "it answered type, not None, Deny or Replace"),
    (lambda event: Replace(), "on_receive takes text replacement, not nothing"),
    (lambda event: Replace(result="x"), "on_receive takes text replacement, not result"),
    (lambda event: Replace(text="x", messages=[]), "on_receive takes text replacement, not text, messages"),
    (lambda event: Replace(text=5), "the replacement of text has a wrong type"),  # type: ignore[arg-type]
    (lambda event: setattr(event, "input", "changed"), "FrozenInstanceError"),
    (empty_deny, "TypeError"),
    (forgotten_await, "it answered coroutine, not None, Deny or Replace"),
]


@pytest.mark.parametrize(("function", "reason"), BAD, ids=[reason for _, reason in BAD])
@pytest.mark.parametrize("on_failure", ["open", "closed"])
async def test_hook_that_fails_is_left_out_or_denies_by_its_rule(function: Any, reason: str, on_failure: Any):
    """Raising, sleeping over its time, answering nonsense: `open` asks the next hook, `closed` is a neutral no."""
    one = hook("on_receive", timeout=0.2, on_failure=on_failure, name="bad")(function)
    after = hook("on_receive", order=99, name="after")(lambda event: Replace(text=event.text + "!"))
    started = time.monotonic()
    with capture_logs() as logs:
        result = await HookChain([one, after]).run("on_receive", RECEIVED)
    assert time.monotonic() - started < 1.2
    assert failures(logs) == [("bad", reason)]
    assert "secret" not in str([line for line in logs if line["log_level"] != "debug"])
    if on_failure == "closed":
        assert result == Denied(NEUTRAL_WORDS, "bad", failed=True)
    else:
        assert isinstance(result, OnReceive)
        assert result.text == "hello!"
    # Lets the one that swallows its cancel come to its end.
    if function is swallows:
        await anyio.sleep(0.6)


async def test_wrong_types_of_replacement_are_failures_at_every_node():
    """A list that holds no messages, arguments that are no object, a result that is no JSON."""
    for payload, answer in [
        (GENERATION, Replace(messages=[{"content": "no role"}])),
        (GENERATION, Replace(messages="x")),  # type: ignore[arg-type]
        (BEFORE_TOOL, Replace(arguments=[1])),  # type: ignore[arg-type]
        (BEFORE_TOOL, Replace(arguments={1: 2})),  # type: ignore[dict-item]
        (BEFORE_TOOL, Replace(arguments={"x": object()})),
        (BEFORE_TOOL, Replace(arguments={"x": float("nan")})),
        (GENERATION, Replace(messages=[{"role": "user", "content": {1, 2}}])),
        (AFTER_TOOL, Replace(result={1, 2})),
        (ANSWER, Replace(text=None)),  # type: ignore[arg-type]
    ]:
        one = hook(payload.node, on_failure="closed", name="h")(lambda event, answer=answer: answer)
        result = await HookChain([one]).run(payload.node, payload)
        assert result == Denied(NEUTRAL_WORDS, "h", failed=True)


async def test_cpu_bound_sync_hook_neither_freezes_the_loop_nor_outlasts_its_limit():
    """A hook of 2 s with a limit of 0.5 s: other work on the loop goes on all the while, and so does the turn."""
    stop = threading.Event()

    @hook("on_receive", timeout=0.5)
    def burns(event: OnReceive) -> None:
        end = time.monotonic() + 2
        while time.monotonic() < end and not stop.is_set():
            sum(range(1000))

    gaps: list[float] = []

    async def watch_the_loop() -> None:
        last = time.monotonic()
        while True:
            await anyio.sleep(0.005)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    threads = WorkerThreads(4)
    async with anyio.create_task_group() as group:
        group.start_soon(watch_the_loop)
        started = time.monotonic()
        with capture_logs() as logs:
            assert await HookChain([burns], threads=threads).run("on_receive", RECEIVED) == RECEIVED
        took = time.monotonic() - started
        group.cancel_scope.cancel()
    assert 0.45 < took < 1
    assert failures(logs) == [("burns", "timeout: rung hook, 0.5 s")]
    assert len(gaps) > 10
    # A freeze of the loop would be one gap of half a second; the median says that all the others are small, too.
    assert max(gaps) < 0.3
    assert sorted(gaps)[len(gaps) // 2] < 0.1
    stop.set()
    with anyio.fail_after(5):
        while threads.abandoned:
            await anyio.sleep(0.005)


async def test_hooks_that_hang_for_ever_do_not_use_up_threads_without_end(release: threading.Event):
    """Once as many hang as there are threads, further ones fail at once by their rule."""

    @hook("on_receive", timeout=0.05, on_failure="closed")
    def hangs(event: OnReceive) -> None:
        release.wait(20)

    threads = WorkerThreads(2)
    chain = HookChain([hangs], threads=threads)
    with capture_logs() as logs:
        for _ in range(4):
            assert isinstance(await chain.run("on_receive", RECEIVED), Denied)
            # The thread is counted when the loop comes round, not before the answer.
            await anyio.wait_all_tasks_blocked()
    timeout, refused = "timeout: rung hook, 0.05 s", "2 earlier hooks still hang in their threads"
    assert [reason for _, reason in failures(logs)] == [timeout, timeout, refused, refused]
    assert threads.abandoned == 2


async def test_hook_works_on_a_copy_that_nobody_else_sees():
    """Neither changes in place, nor changes to a replacement after it was given, reach the turn."""
    kept: list[dict[str, Any]] = []

    @hook("before_generation", order=1)
    async def meddles(event: BeforeGeneration) -> None:
        event.messages.append({"role": "user", "content": "injected"})
        event.messages[0]["content"] = "changed"

    @hook("before_generation", order=2)
    async def keeps(event: BeforeGeneration) -> Replace:
        kept.append({"role": "user", "content": "given"})
        return Replace(messages=[*event.messages, kept[0]])

    result = await HookChain([meddles, keeps]).run("before_generation", GENERATION)
    kept[0]["content"] = "changed later"
    assert isinstance(result, BeforeGeneration)
    assert result.messages == [{"role": "user", "content": "hello"}, {"role": "user", "content": "given"}]
    assert MESSAGES == [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("payload", [DELIVERED, ENDED, FAILED], ids=lambda p: p.node)
async def test_hooks_that_watch_are_all_told_and_break_nothing(payload: Any):
    """Those that sleep, raise or answer are logged; those after them are told all the same."""
    told: list[object] = []
    bad = [waits, raises, leaves, cancels_itself, lambda event: Deny("no"), lambda event: Replace(text="x")]
    hooks = [hook(payload.node, timeout=0.1, order=i, name=f"h{i}")(function) for i, function in enumerate(bad)]
    last = hook(payload.node, order=99, name="last")(told.append)
    started = time.monotonic()
    with capture_logs() as logs:
        assert await HookChain([*hooks, last]).watch(payload.node, payload) is None
    assert time.monotonic() - started < 1
    assert [name for name, _ in failures(logs)] == ["h0", "h1", "h2", "h3", "h4", "h5"]
    assert told == [payload]


async def test_cancel_of_the_turn_reaches_the_hook_and_goes_on():
    """A turn that is cancelled does not wait for its hooks, and the cancel is not taken for the hook's failure."""
    cancelled = []

    @hook("on_receive", timeout=10)
    async def slow(event: OnReceive) -> None:
        try:
            await anyio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    with capture_logs() as logs, anyio.move_on_after(0.05) as scope:
        await HookChain([slow]).run("on_receive", RECEIVED)
    assert scope.cancelled_caught
    await anyio.wait_all_tasks_blocked()
    assert cancelled == [1]
    assert failures(logs) == []


async def test_payload_of_another_node_is_a_mistake_of_the_caller():
    """It is raised at once, not handed to hooks."""
    with pytest.raises(TypeError, match="on_receive takes OnReceive, not BeforeTool"):
        await HookChain().run("on_receive", BEFORE_TOOL)


def test_every_node_has_a_payload():
    """The table of PROTOCOL 9 is complete."""
    assert set(PAYLOADS) == set(get_args(Node))


def test_wrong_definitions_are_refused_with_the_name_of_the_hook():
    """Found when it is defined, not in a turn."""

    def fine(event: object) -> None:
        """Is fine."""

    def takes_two(event: object, more: object) -> None:
        """Takes too many."""

    def yields(event: object):
        yield event

    for function, node, options, words in [
        (fine, "on_recieve", {}, "hook 'fine': there is no node 'on_recieve'"),
        (fine, "on_receive", {"timeout": 0}, "hook 'fine': timeout"),
        (fine, "on_receive", {"timeout": float("inf")}, "hook 'fine': timeout"),
        (fine, "on_receive", {"order": "first"}, "hook 'fine': order"),
        (fine, "on_receive", {"on_failure": "maybe"}, "hook 'fine': on_failure"),
        (fine, "on_turn_end", {"on_failure": "closed"}, "hook 'fine': on_turn_end only watches"),
        (takes_two, "on_receive", {}, "hook 'takes_two': it must take one argument"),
        (yields, "on_receive", {}, "hook 'yields': only a plain or async function"),
        (hook("on_error")(fine), "on_receive", {"name": "again"}, "hook 'again': it is a hook already"),
    ]:
        with pytest.raises(ConfigError, match=words):
            hook(node, **options)(function)  # type: ignore[arg-type]


_numbers = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_module(text: str) -> str:
        name = f"hooks_of_test_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write_module


async def test_modules_are_loaded_once_each_and_work_together(write: Any):
    """Hooks of several modules make one chain; a module listed twice, by the service and a profile, counts once."""
    text = (
        "from app.hooks import Replace, hook\n"
        "@hook('on_receive', order={0})\n"
        "def h{0}(event):\n"
        "    return Replace(text=event.text + ' {0}')\n"
    )
    second, first = write(text.format(2)), write(text.format(1))
    result = await HookChain.load([second, first, second]).run("on_receive", RECEIVED)
    assert isinstance(result, OnReceive)
    assert result.text == "hello 1 2"


def test_modules_that_cannot_be_used_are_named_with_the_reason(write: Any):
    """One sentence, no trace."""
    for module, reason in [
        ("no_such_module_at_all", "ModuleNotFoundError"),
        (write("x = 1"), "has no hooks"),
        (write("1 / 0"), "ZeroDivisionError"),
        (
            write("from app.hooks import hook\n@hook('nowhere')\ndef h(event):\n    pass\n"),
            "hook 'h': there is no node",
        ),
        (write("raise SystemExit"), "SystemExit"),
    ]:
        with pytest.raises(ConfigError, match=f"hooks: '{module}'.*{reason}") as caught:
            HookChain.load([module])
        assert "\n" not in caught.value.message
