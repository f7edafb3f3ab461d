"""Tools with the names that the recorded streams call. Each takes any object, notes it and answers with it."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from app.tools import ToolContext, tool

# Those that must run, and those that must not: they are called in streams that are cut or broken.
RUN = (
    "alpha balance beta bulk dim find_tram go label look north now one ping_all say seal south two uptime weigh".split()  # noqa: SIM905
)
NOT_RUN = ("bash", "pay", "search", "web", "write")


def _note(name: str, ctx: ToolContext, /, **arguments: Any) -> dict[str, Any]:
    row = json.dumps({"tool": name, "arguments": arguments, "key": ctx.idempotency_key}) + "\n"
    handle = os.open(Path(os.environ["TEST_LEDGER"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, row.encode())
    finally:
        os.close(handle)
    return {"got": sorted(arguments)}


def _define(name: str) -> object:
    def run(ctx: ToolContext, **arguments: Any) -> dict[str, Any]:
        return partial(_note, name, ctx)(**arguments)

    return tool(name=name, title=f"Doing {name}", side_effects="unsafe", schema={"type": "object"})(run)


globals().update({f"tool_{name}": _define(name) for name in (*RUN, *NOT_RUN)})
