"""Reads: short, read-only, and never a leaked connection."""

from __future__ import annotations

import asyncio
import random

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.clock import monotonic
from app.errors import StoreUnavailable
from app.store import conversations
from app.store.engine import Store
from tests.stores import anyio_backend, conversation, postgres, store, store_url

__all__ = ["anyio_backend", "postgres", "store", "store_url"]
pytestmark = pytest.mark.anyio


async def count(conn: AsyncConnection) -> int:
    return int(await conn.scalar(text("SELECT count(*) FROM conversations")) or 0)


async def test_cancelled_reads_leak_no_connection(store: Store) -> None:
    """With a pool of two, after 200 reads cancelled at random awaits both connections still serve."""
    await store.write(lambda conn: conversations.insert(conn, conversation()))
    chance = random.Random(7)

    async def several(conn: AsyncConnection) -> int:
        await count(conn)
        await conn.scalar(text("SELECT 1"))
        return await count(conn)

    cancelled = 0
    for _ in range(200):
        task = asyncio.create_task(store.read(several))
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            await anyio.sleep(chance.random() * 0.003)
        cancelled += task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert cancelled > 50

    together = anyio.Event()
    inside = 0

    async def both(conn: AsyncConnection) -> int:
        nonlocal inside
        inside += 1
        if inside == 2:
            together.set()
        await together.wait()
        return await count(conn)

    with anyio.fail_after(5):
        assert await asyncio.gather(store.read(both), store.read(both)) == [1, 1]


async def test_a_read_waits_two_seconds_for_a_connection_and_no_longer(store: Store) -> None:
    """While both connections are taken a third read is refused after 2 s; afterwards reads work."""
    release = anyio.Event()

    async def hold(conn: AsyncConnection) -> None:
        await conn.scalar(text("SELECT 1"))
        await release.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.read, hold)
        tasks.start_soon(store.read, hold)
        await anyio.wait_all_tasks_blocked()
        started = monotonic()
        with pytest.raises(StoreUnavailable):
            await store.read(count)
        assert 1.8 < monotonic() - started < 3
        release.set()
    assert await store.read(count) == 0


async def test_a_read_cannot_write(store: Store) -> None:
    """A statement that writes is refused on a reading connection."""
    with pytest.raises(StoreUnavailable):
        await store.read(lambda conn: conversations.insert(conn, conversation()))
    assert await store.read(count) == 0


async def test_a_read_sees_one_moment(store: Store) -> None:
    """A commit between two statements of one read is not seen by the second."""

    async def twice(conn: AsyncConnection) -> tuple[int, int]:
        first = await count(conn)
        await store.write(lambda other: conversations.insert(other, conversation()))
        return first, await count(conn)

    assert await store.read(twice) == (0, 0)
    assert await store.read(count) == 1


async def test_an_exception_of_the_reader_comes_through(store: Store) -> None:
    """What the operation raises is raised, and its connection serves the next."""

    async def fail(conn: AsyncConnection) -> None:
        await count(conn)
        raise LookupError("mine")

    for _ in range(5):
        with pytest.raises(LookupError, match="mine"):
            await store.read(fail)
    assert await store.read(count) == 0
