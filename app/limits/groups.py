"""A task group whose single failure comes out as itself.

anyio wraps what a task group raises in an exception group. Where one failure is the only thing that can come out, the
wrapping hides it from `except` clauses; this takes it off again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """A task group; a failure leaves it bare, the first one where there are several.

    Raises:
        Exception: what the body or a task raised, without a group around it.
    """
    try:
        async with anyio.create_task_group() as group:
            yield group
    except BaseExceptionGroup as failures:
        first = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__
