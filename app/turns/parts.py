"""What every turn of this process uses, built once by `app.bootstrap`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from app.config import Settings
from app.limits.threads import WorkerThreads
from app.store.engine import Store
from app.turn_log.log import TurnLogs
from app.turns.assistant import Assistant
from app.turns.unsaved import Unsaved


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts around a turn.

    `threads` run models and agents, `tool_threads` run tools. `background` runs an awaitable that nobody waits for, in a
    task group that outlives the turn. `owner` is this process's name in the store, fresh at each start.
    """

    settings: Settings
    store: Store
    logs: TurnLogs
    assistants: Mapping[str, Assistant]
    threads: WorkerThreads
    tool_threads: WorkerThreads
    unsaved: Unsaved
    background: Callable[[Awaitable[None]], None]
    owner: str
