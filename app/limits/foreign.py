"""Running code that is not ours: it may raise anything, never end, or swallow the cancel that should stop it.

It runs in a task that belongs to no task group, since a group would wait for a task that ignores its cancel, and with
it the whole turn. This is one of the named places that use asyncio directly. A task that was given up is kept here, and
counted, until it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

_running: set[asyncio.Task[Ended]] = set()
_given_up: set[asyncio.Task[Ended]] = set()


@dataclass(frozen=True, slots=True)
class Ended:
    """How foreign code ended: what it returned, or what it raised (also `SystemExit`, or a cancel of its own)."""

    value: object = None
    error: BaseException | None = None


def capture(fn: Callable[[], object]) -> Ended:
    """How `fn` ended; what it raises is a value, of whatever kind. For a thread: a raised `SystemExit` ends nothing."""
    try:
        return Ended(value=fn())
    except BaseException as error:  # whatever foreign code raises is a value here
        return Ended(error=error)


def start(work: Callable[[], Awaitable[object]]) -> asyncio.Task[Ended]:
    """A task that runs `work` and never raises: its result is an `Ended`.

    Wait for it with `asyncio.wait`, which leaves it alone when the time is over or the waiter is cancelled, and pass it
    to `give_up` when it is no longer wanted.
    """
    task = asyncio.get_running_loop().create_task(_guarded(work))
    _running.add(task)
    task.add_done_callback(_forget)
    return task


def give_up(task: asyncio.Task[Ended]) -> None:
    """Cancel `task` and wait for nothing."""
    if not task.done():
        _given_up.add(task)
        task.cancel()


def stragglers() -> int:
    """Tasks that were given up and have not ended yet."""
    return len(_given_up)


async def _guarded(work: Callable[[], Awaitable[object]]) -> Ended:
    try:
        value = await work()
    except BaseException as error:  # whatever foreign code raises is a value here
        return Ended(error=error)
    return value if isinstance(value, Ended) else Ended(value=value)


def _forget(task: asyncio.Task[Ended]) -> None:
    _running.discard(task)
    _given_up.discard(task)
