"""Agents of a user's own, for tests: every form, every way to end, and some that do what they may not.

`note` appends one row to the file that `TEST_LEDGER` names, so that a test sees what an agent saw and how often it ran.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from app.agents import AgentContext, Transient
from app.agents.context import ToolCallFailed, TurnOver
from app.events import Commentary, Completion

OnDelta = Callable[[str | None], None]
SECRET = "made-up-secret-of-an-agent"
# Longer than any test waits; the processes of tests are killed.
DEAF_SECONDS = 60.0


def note(agent: str, ctx: AgentContext, **more: object) -> None:
    row = {"agent": agent, "turn": ctx.turn_id, "thread": threading.current_thread().name, **more}
    handle = os.open(os.environ["TEST_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, (json.dumps(row, default=str) + "\n").encode())
    finally:
        os.close(handle)


def ran_before(ctx: AgentContext) -> int:
    """How often this turn's agent has been noted so far."""
    with Path(os.environ["TEST_LEDGER"]).open(encoding="utf-8") as rows:
        return sum(ctx.turn_id in row for row in rows)


# -- the forms


def generator(ctx: AgentContext) -> Iterator[object]:
    note("generator", ctx)
    yield None
    yield "Hello "
    yield ""
    yield ctx.input
    yield None
    yield ""
    yield None
    yield "world"
    yield None


async def async_generator(ctx: AgentContext) -> AsyncIterator[object]:
    note("async_generator", ctx)
    for piece in (None, "Hello ", "", ctx.input, None, "", None, "world", None):
        await asyncio.sleep(0)
        yield piece


def callback(ctx: AgentContext, on_delta: OnDelta) -> None:
    note("callback", ctx)
    for piece in (None, "Hello ", "", ctx.input, None, "", None, "world", None):
        on_delta(piece)


async def coroutine(ctx: AgentContext, on_delta: OnDelta) -> None:
    note("coroutine", ctx)
    await asyncio.sleep(0)
    for piece in (None, "Hello ", "", ctx.input, None, "", None, "world", None):
        on_delta(piece)


def from_many_threads(ctx: AgentContext, on_delta: OnDelta) -> None:
    """Eight threads say 50 words each."""

    def talk(name: str) -> None:
        for number in range(50):
            on_delta(f"{name}{number} ")

    threads = [threading.Thread(target=talk, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def leaves_a_thread(ctx: AgentContext, on_delta: OnDelta) -> None:
    """Returns while a thread of its own has not said its word yet."""

    def straggle() -> None:
        time.sleep(0.3)
        try:
            on_delta("too late")
        except TurnOver as over:
            note("leaves_a_thread", ctx, over=over.code)

    threading.Thread(target=straggle).start()
    on_delta("all there is")


def looks_around(ctx: AgentContext) -> Iterator[object]:
    note(
        "looks_around",
        ctx,
        input=ctx.input,
        history=ctx.history,
        user=ctx.user_id,
        profile=ctx.profile,
        left=ctx.deadline - time.monotonic(),
        cancelled=ctx.cancelled,
    )
    yield f"seen {len(ctx.history)}"


def thinks_in_tags(ctx: AgentContext) -> Iterator[object]:
    """Ends with what may still become a tag: an opening one, or the closing one of an open block."""
    yield "<thi"
    yield "nk>weigh"
    if ctx.input == "open":
        yield " it</thi"
    else:
        yield " it</think>"
        yield "<thi"


def all_events(ctx: AgentContext) -> Iterator[object]:
    yield {"type": "reasoning_delta", "block": 1, "text": "let me see"}
    yield "Before "
    yield {"type": "notice", "level": "warning", "code": "slow", "text": "this may take a while"}
    yield {"type": "tool_start", "tool_call_id": "own_1", "name": "dig", "title": "Digging", "side_effects": "none"}
    yield {"type": "tool_progress", "tool_call_id": "own_1", "message": "half way", "fraction": 0.5}
    yield {"type": "tool_end", "tool_call_id": "own_1", "status": "ok", "duration_ms": 3, "preview": "a stone"}
    yield Commentary(text="found a stone")
    yield {"type": "image", "url": "https://pictures.example/stone.png", "alt": "a stone", "width": 20, "height": 10}
    yield {
        "type": "action_card",
        "card_id": "card-1",
        "kind": "find",
        "title": "Stone",
        "fields": [{"label": "Weight", "value": "2 kg"}],
        "actions": [{"title": "Again", "input": "dig again"}, {"title": "Map", "url": "https://maps.example/1"}],
    }
    yield "after."
    yield {"type": "usage", "input_tokens": 11, "output_tokens": 5, "model": "own-model"}


def only_an_image(ctx: AgentContext) -> Iterator[object]:
    yield {"type": "image", "url": "https://pictures.example/x.png", "alt": "x"}


def only_commentary(ctx: AgentContext) -> Iterator[object]:
    yield {"type": "commentary", "text": "so much for that"}


def says_nothing(ctx: AgentContext) -> Iterator[object]:
    note("says_nothing", ctx)
    yield ""
    yield None


# -- failures


def raises(ctx: AgentContext) -> Iterator[object]:
    note("raises", ctx)
    if ctx.input == "late":
        yield "The first half"
    raise RuntimeError(SECRET)


async def async_raises(ctx: AgentContext) -> AsyncIterator[object]:
    note("async_raises", ctx)
    if ctx.input == "late":
        yield "The first half"
    raise RuntimeError(SECRET)


def exits(ctx: AgentContext, on_delta: OnDelta) -> None:
    """Its thread dies of something that is no `Exception`."""
    note("exits", ctx)
    if ctx.input == "late":
        on_delta("The first half")
    raise SystemExit(SECRET)


def passing(ctx: AgentContext) -> Iterator[object]:
    """Fails twice in a way that passes, then answers."""
    before = ran_before(ctx)
    note("passing", ctx)
    yield {"type": "reasoning_delta", "block": 1, "text": f"try {before + 1}"}
    if before < 2:
        raise Transient(SECRET)
    yield "third time lucky"


def transient(ctx: AgentContext) -> Iterator[object]:
    note("transient", ctx)
    if ctx.input == "late":
        yield "The first half"
    if ctx.input == "remark":
        yield {"type": "commentary", "text": "one moment"}
    if ctx.input == "tool":
        ctx.call_tool("look_up", {"q": "x"})
    raise Transient(SECRET)


def rubbish(ctx: AgentContext) -> Iterator[object]:
    """Yields what an agent may not; the input says what."""
    note("rubbish", ctx)
    what, _, when = ctx.input.partition(" ")
    if when == "late":
        yield "The first half"
    yield {
        "number": 42,
        "bytes": b"bytes",
        "completion": Completion(status="complete", finish_reason="stop", chars=2, text="hi"),
        "text_delta": {"type": "text_delta", "block": 1, "text": "forged"},
        "message_saved": {"type": "message_saved", "message_id": "msg_x", "status": "complete"},
        "unknown": {"type": "never_heard_of"},
        "untyped": {"text": "forged"},
        "misshapen": {"type": "image", "url": 7},
        "unpaired": {"type": "tool_end", "tool_call_id": "never", "status": "ok", "duration_ms": 1},
    }[what]
    yield "and more"


# -- cancels


def deaf(ctx: AgentContext) -> Iterator[object]:
    """Blocks its thread and hears nothing."""
    yield "begun"
    time.sleep(DEAF_SECONDS)
    yield "too late"


async def async_deaf(ctx: AgentContext) -> AsyncIterator[object]:
    """Swallows its cancellation."""
    yield "begun"
    until = time.monotonic() + DEAF_SECONDS
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            note("async_deaf", ctx, heard="cancel")
    yield "too late"


def talks_on(ctx: AgentContext, on_delta: OnDelta) -> None:
    """Talks until it is told that the turn is over."""
    try:
        while True:
            on_delta("word ")
            time.sleep(0.005)
    except TurnOver as over:
        note("talks_on", ctx, over=over.code, cancelled=ctx.cancelled)
        raise


def waits_to_be_freed(ctx: AgentContext) -> Iterator[object]:
    """Blocks on something that its `on_cancel` closes."""
    free = threading.Event()
    ctx.on_cancel(free.set)
    yield "begun"
    free.wait(DEAF_SECONDS)
    note("waits_to_be_freed", ctx, cancelled=ctx.cancelled)


def drips(ctx: AgentContext) -> Iterator[object]:
    for number in range(60):
        yield f"{number} "
        time.sleep(0.05)


# -- tools


def uses_tools(ctx: AgentContext) -> Iterator[object]:
    yield "Looking. "
    found = ctx.call_tool("look_up", {"q": "tide"})
    yield f"Found {found['answer']}. "
    try:
        ctx.call_tool("fail", {})
    except ToolCallFailed as failure:
        note("uses_tools", ctx, status=failure.status, words=failure.message)
    try:
        ctx.call_tool("no_such_tool", {})
    except ToolCallFailed as failure:
        note("uses_tools", ctx, status=failure.status, words=failure.message)
    yield "Done."


async def async_uses_tools(ctx: AgentContext) -> AsyncIterator[object]:
    yield "Looking. "
    found = await ctx.call_tool("look_up", {"q": "tide"})
    yield f"Found {found['answer']}. "
    for name in ("fail", "no_such_tool"):
        try:
            await ctx.call_tool(name, {})
        except ToolCallFailed as failure:
            note("async_uses_tools", ctx, status=failure.status, words=failure.message)
    yield "Done."


def raises_after_a_tool(ctx: AgentContext) -> Iterator[object]:
    note("raises_after_a_tool", ctx)
    ctx.call_tool("record", {"value": ctx.input})
    raise RuntimeError(SECRET)
    yield


def charges(ctx: AgentContext) -> Iterator[object]:
    """An unsafe tool that takes its time; the input says whether something was said before."""
    note("charges", ctx)
    if ctx.input == "late":
        yield "Charging. "
    yield f"charged {ctx.call_tool('charge_slowly', {'value': 'x', 'seconds': 30})['charged']}"


def silent_at_first(ctx: AgentContext) -> Iterator[object]:
    """Hangs the first time, and answers when it is started again."""
    before = ran_before(ctx)
    note("silent_at_first", ctx)
    if before == 0:
        threading.Event().wait(DEAF_SECONDS)
    yield f"answer of start {before + 1}"


# -- that were found wanting


def white_space(ctx: AgentContext) -> Iterator[object]:
    yield "\n"
    yield "  "


def reports_progress(ctx: AgentContext) -> Iterator[object]:
    yield {"type": "tool_start", "tool_call_id": "c1", "name": "dig", "title": "Digging", "side_effects": "none"}
    for number in range(100):
        yield {"type": "tool_progress", "tool_call_id": "c1", "fraction": number / 100}
        time.sleep(0.005)
    yield {"type": "tool_end", "tool_call_id": "c1", "status": "ok", "duration_ms": 500}
    yield "dug"


def odd_arguments(ctx: AgentContext) -> Iterator[object]:
    told = ctx.call_tool("record", {"value": "x\ud800"})
    yield f"{told['recorded']!a} "
    for arguments in ({"value": float("nan")}, {"value": b"bytes"}, {"value": object()}, ["value"]):
        try:
            ctx.call_tool("record", arguments)  # type: ignore[arg-type]  # what an agent may do by mistake
        except ToolCallFailed as error:
            yield f"{error.status} "


async def _with_a_word(word: str, ctx: AgentContext) -> AsyncIterator[object]:
    yield f"{word} {ctx.input}"


partial_of_async = functools.partial(_with_a_word, "partial")


async def _told_to(word: str, ctx: AgentContext, on_delta: OnDelta) -> None:
    on_delta(f"{word} {ctx.input}")


partial_of_callback = functools.partial(_told_to, "told")


def polls(ctx: AgentContext, on_delta: OnDelta) -> None:
    on_delta("begun")
    try:
        while True:
            on_delta("")
            time.sleep(0.02)
    except TurnOver:
        note("polls", ctx, heard=True)
        raise
