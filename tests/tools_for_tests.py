"""Tools that tests offer to a model. Each run of a body appends one row to the file that `TEST_LEDGER` names.

So a test counts effects instead of believing the events.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from app.tools import ToolContext, tool


def _note(name: str, ctx: ToolContext, phase: str = "begin", /, **arguments: object) -> None:
    path = os.environ.get("TEST_LEDGER")
    if not path:
        return
    row = {"phase": phase, "tool": name, "arguments": arguments, "key": ctx.idempotency_key, "pid": os.getpid()}
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, (json.dumps({**row, "at": time.time()}) + "\n").encode())
    finally:
        os.close(handle)


@tool(title="Recording a value", side_effects="unsafe")
def record(ctx: ToolContext, value: str) -> dict[str, Any]:
    """Record a value."""
    _note("record", ctx, value=value)
    return {"recorded": value}


@tool(title="Looking up", side_effects="none")
def look_up(ctx: ToolContext, q: str) -> dict[str, Any]:
    """Look something up."""
    _note("look_up", ctx, q=q)
    return {"answer": f"about {q}"}


@tool(title="Counting", side_effects="none")
def count(ctx: ToolContext, number: int, exact: bool = True) -> dict[str, Any]:
    """Count to a number."""
    _note("count", ctx, number=number, exact=exact)
    return {"number": number, "exact": exact}


@tool(title="Working slowly", side_effects="none")
def slow(ctx: ToolContext, seconds: float) -> dict[str, Any]:
    """Sleep in short steps, watching for a cancel."""
    _note("slow", ctx, seconds=seconds)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if ctx.cancelled:
            _note("slow", ctx, "cancelled", seconds=seconds)
            return {"slept": False}
        time.sleep(0.02)
    return {"slept": True}


@tool(title="Charging slowly", side_effects="unsafe")
def charge_slowly(ctx: ToolContext, value: str, seconds: float) -> dict[str, Any]:
    """Take effect at once, and some seconds to say so."""
    _note("charge_slowly", ctx, value=value, seconds=seconds)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not ctx.cancelled:
        time.sleep(0.02)
    _note("charge_slowly", ctx, "end", value=value, seconds=seconds)
    return {"charged": value}


@tool(title="Blocking", side_effects="none")
def block(ctx: ToolContext, seconds: float) -> dict[str, Any]:
    """Block the thread in one call, deaf to cancels."""
    _note("block", ctx, seconds=seconds)
    time.sleep(seconds)
    return {"blocked": seconds}


@tool(title="Failing", side_effects="none")
def fail(ctx: ToolContext) -> dict[str, Any]:
    """Always raise."""
    _note("fail", ctx)
    raise RuntimeError("this tool fails on purpose")


@tool(title="Paying out", side_effects="unsafe", approval=True)
def guarded(ctx: ToolContext, value: str) -> dict[str, Any]:
    """Record a value, after a person has agreed."""
    _note("guarded", ctx, value=value)
    return {"recorded": value}


@tool(title="Showing things", side_effects="none")
def show(ctx: ToolContext, tag: str) -> dict[str, Any]:
    """Emit a remark, a picture and a card, all named after `tag`."""
    _note("show", ctx, tag=tag)
    ctx.emit({"type": "commentary", "text": f"remark {tag}"})
    ctx.emit({"type": "image", "url": f"https://pictures.example/{tag}.png", "alt": f"picture {tag}"})
    ctx.emit(
        {
            "type": "action_card",
            "card_id": f"card-{tag}",
            "kind": "invoice",
            "title": f"Card {tag}",
            "fields": [{"label": "Amount", "value": "12.50"}],
            "actions": [{"title": "Open", "url": "https://example.test/open"}],
        }
    )
    return {"shown": tag}


@tool(title="Telling a lot", side_effects="none")
def tell(ctx: ToolContext, size: int) -> str:
    """A result of `size` characters."""
    _note("tell", ctx, size=size)
    return "x" * size


@tool(title="Stamping slowly", side_effects="idempotent")
def stamp_slowly(ctx: ToolContext, value: str, seconds: float) -> dict[str, Any]:
    """Take effect at once, however often, and some seconds to say so."""
    _note("stamp_slowly", ctx, value=value, seconds=seconds)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not ctx.cancelled:
        time.sleep(0.02)
    return {"stamped": value}


@tool(title="Running a program", side_effects="none")
def run_program(ctx: ToolContext, argv: list[str]) -> dict[str, Any]:
    """Run a child process to its end."""
    _note("run_program", ctx, argv=argv)
    result = ctx.run_process(argv)
    return {"code": result.returncode}
