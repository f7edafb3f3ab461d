"""Hooks at every node, which do what the turn's metadata asks for: `{"closed": {"before_tool": "deny"}}`.

There is one that fails open and one that fails closed at each node that may answer, sync and async. Those that watch note
what they were told in the file that `TEST_LEDGER` names.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import asdict
from typing import Any, get_args

from app.hooks import Deny, HookEvent, Node, Replace, hook
from app.hooks.payloads import WATCHING

# Long enough for a hook that does nothing on a machine that is busy.
LIMIT = 1.2
# Far longer than a hook may take, and short enough for its thread to come back while the tests run.
LONG = 7.0
SECRET = "made-up-secret-of-a-hook"
REPLACEMENTS = {
    "on_receive": Replace(text="replaced input"),
    "before_generation": Replace(messages=[{"role": "user", "content": "replaced messages"}]),
    "before_tool": Replace(arguments={"value": "replaced arguments"}),
    "after_tool": Replace(result={"replaced": "result"}),
    "after_generation": Replace(text="replaced answer"),
}
WRONG = {node: Replace(arguments={}) if node != "before_tool" else Replace(text="x") for node in REPLACEMENTS}


def words(node: str) -> str:
    """What a user reads where `node` denied."""
    return f"Not at {node}, please."


def note(hook_name: str, event: HookEvent, **more: Any) -> None:
    row = {"hook": hook_name, "node": event.node, "turn": event.turn_id, **more}
    handle = os.open(os.environ["TEST_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, (json.dumps(row, default=str) + "\n").encode())
    finally:
        os.close(handle)


def _asked(event: HookEvent, name: str) -> str:
    """What the hook `name` is to do for this turn; `deny@2` is for the second model call alone."""
    what, _, step = str(event.metadata.get(name, {}).get(event.node, "")).partition("@")
    return what if not step or str(getattr(event, "step", "")) == step else ""


def _answer(event: HookEvent, name: str, what: str) -> Any:
    match what:
        case "deny":
            return Deny(words(event.node))
        case "replace":
            return REPLACEMENTS[event.node]
        case "replace long":
            return Replace(text="long " * 20_000)
        case "deny long":
            return Deny("long " * 20_000)
        case "rubbish":
            return {"deny": SECRET}
        case "wrong":
            return WRONG[event.node]
        case "raise":
            raise RuntimeError(SECRET)
        case "exit":
            raise SystemExit(SECRET)
        case "note":
            note(name, event, told=asdict(event))
    return None


def _sync(name: str) -> Any:
    def run(event: HookEvent) -> Any:
        what = _asked(event, name)
        if what == "sleep":
            time.sleep(LONG)
        elif what == "spin":
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                pass
        if what in ("sleep", "spin"):
            note(name, event, woke=True)
        return _answer(event, name, what)

    return run


def _async(name: str) -> Any:
    async def run(event: HookEvent) -> Any:
        what = _asked(event, name)
        if what == "sleep":
            await asyncio.sleep(LONG)
            note(name, event, woke=True)
        return _answer(event, name, what)

    return run


def _all() -> dict[str, Any]:
    found = {}
    for node in get_args(Node):
        for rule in ("open",) if node in WATCHING else ("open", "closed"):
            for form, make in (("", _sync), ("_async", _async)):
                name = f"{rule}{form}"
                define = hook(node, name=name, timeout=LIMIT, on_failure=rule)  # type: ignore[arg-type]  # one of the two
                found[f"{node}_{name}"] = define(make(name))
    return found


globals().update(_all())


@hook("on_turn_end", order=1)
async def counts_ends(event: Any) -> None:
    told = {key: getattr(event, key) for key in ("status", "finish_reason", "code", "text", "model", "message_id")}
    note("counts_ends", event, **told, usage=event.usage and asdict_of(event.usage))


@hook("on_delivery", order=1)
def counts_deliveries(event: Any) -> None:
    note("counts_deliveries", event, kind=type(event.terminal).__name__)


@hook("on_error", order=1)
async def counts_errors(event: Any) -> None:
    note("counts_errors", event, where=event.where, error=event.error)


def asdict_of(usage: Any) -> dict[str, int]:
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
