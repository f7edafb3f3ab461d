"""The writer's promises, on real SQLite files and a real PostgreSQL server."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncConnection

from app.clock import monotonic
from app.errors import StoreUnavailable
from app.store import conversations
from app.store.engine import Store
from app.store.errors import Conflict
from tests.postgres import PostgresServer
from tests.stores import (
    anyio_backend,
    conversation,
    postgres,
    postgres_store,
    postgres_url,
    sqlite_url,
    store,
    store_url,
)

__all__ = ["anyio_backend", "postgres", "postgres_store", "postgres_url", "sqlite_url", "store", "store_url"]
pytestmark = pytest.mark.anyio


class OwnError(Exception):
    """Something that an operation raises by itself."""


@pytest.fixture
def commits() -> Iterator[list[object]]:
    """Grows by one entry at each COMMIT of any engine."""
    seen: list[object] = []

    def committed(conn: object) -> None:
        seen.append(conn)

    event.listen(Engine, "commit", committed)
    yield seen
    event.remove(Engine, "commit", committed)


async def insert(store: Store, name: str, *, timeout: float | None = None) -> None:
    await store.write(lambda conn: conversations.insert(conn, conversation(name)), timeout=timeout)


async def names(store: Store) -> list[str]:
    async def op(conn: AsyncConnection) -> list[str]:
        return list((await conn.scalars(text("SELECT id FROM conversations ORDER BY id"))).all())

    return await store.read(op)


def file_of(url: str) -> str:
    return url.removeprefix("sqlite+aiosqlite:///")


async def test_operations_that_wait_together_share_one_commit(store: Store, commits: list[object]) -> None:
    """Twenty writes submitted at once cost one commit, and all are stored."""
    async with anyio.create_task_group() as tasks:
        for n in range(20):
            tasks.start_soon(insert, store, f"c{n:02}")
    assert len(commits) == 1
    assert await names(store) == [f"c{n:02}" for n in range(20)]


async def test_operations_run_and_are_answered_in_the_order_of_submission(store: Store) -> None:
    """Order of running and order of answering both equal the order of submission."""
    ran: list[int] = []
    answered: list[int] = []

    async def write(n: int) -> None:
        async def op(conn: AsyncConnection) -> int:
            ran.append(n)
            await conn.execute(text("SELECT 1"))
            return n

        answered.append(await store.write(op))

    await asyncio.gather(*(write(n) for n in range(50)))
    assert ran == answered == list(range(50))


async def test_an_operation_is_not_answered_before_it_can_be_read(store: Store) -> None:
    """What `write` has returned from, another connection sees."""
    for n in range(5):
        await insert(store, f"c{n}")
        assert len(await names(store)) == n + 1


async def test_one_failing_operation_fails_alone(store: Store, commits: list[object]) -> None:
    """A taken id and an exception of its own fail their operations only; what they wrote before is not stored."""
    await insert(store, "taken")

    async def half(conn: AsyncConnection) -> None:
        await conversations.insert(conn, conversation("half"))
        raise OwnError

    before = len(commits)
    results = await asyncio.gather(
        insert(store, "a"), insert(store, "taken"), store.write(half), insert(store, "b"), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), Conflict, OwnError, type(None)]
    assert len(commits) == before + 1
    assert await names(store) == ["a", "b", "taken"]
    assert store.down_since is None


async def test_a_single_failing_operation_leaves_nothing_behind(store: Store) -> None:
    """Without companions an operation has no savepoint; it is still all or nothing."""

    async def half(conn: AsyncConnection) -> None:
        await conversations.insert(conn, conversation("half"))
        raise OwnError

    with pytest.raises(OwnError):
        await store.write(half)
    assert await names(store) == []
    await insert(store, "next")
    assert await names(store) == ["next"]


async def test_errors_hold_neither_sql_nor_values(store: Store) -> None:
    """The text of a conflict does not show the statement or what was to be stored."""
    await insert(store, "very-secret-id")
    with pytest.raises(Conflict) as caught:
        await insert(store, "very-secret-id")
    assert "INSERT" not in str(caught.value)
    assert "very-secret-id" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(st.sampled_from(["store", "raise", "conflict", "cancel", "yield"]), max_size=25))
async def test_any_mix_of_failures_and_cancels_stores_exactly_what_was_answered(store: Store, plan: list[str]) -> None:
    """Whatever fails or is cancelled around it, a write that returned is stored, and one that raised is not."""
    prefix = f"{monotonic()}-"
    await insert(store, prefix + "taken")
    answers: dict[str, str] = {}

    async def one(name: str, action: str) -> None:
        async def op(conn: AsyncConnection) -> None:
            await conversations.insert(conn, conversation(prefix + ("taken" if action == "conflict" else name)))
            if action == "raise":
                raise OwnError

        try:
            await store.write(op)
            answers[name] = "stored"
        except (OwnError, Conflict):
            answers[name] = "failed"

    tasks: list[asyncio.Task[None]] = []
    cancelled = set()
    for n, action in enumerate(plan):
        tasks.append(asyncio.create_task(one(f"{n:03}", action)))
        if action == "yield":
            await anyio.lowlevel.checkpoint()
        if action == "cancel":
            await anyio.lowlevel.checkpoint()
            if tasks[-1].cancel():
                cancelled.add(f"{n:03}")
    await asyncio.gather(*tasks, return_exceptions=True)
    await insert(store, prefix + "zzz-last")
    stored = {name.removeprefix(prefix) for name in await names(store) if name.startswith(prefix)} - {
        "taken",
        "zzz-last",
    }
    confirmed = {name for name, answer in answers.items() if answer == "stored"}
    failed = {name for name, answer in answers.items() if answer == "failed"}
    assert confirmed <= stored
    assert not failed & stored
    assert stored - confirmed <= cancelled


async def test_a_write_withdrawn_by_its_timeout_never_runs(sqlite_url: str) -> None:
    """While the file is locked a caller gives up after its timeout; its operation is not run when the lock is gone."""
    store = await Store.open(sqlite_url)
    blocker = sqlite3.connect(file_of(sqlite_url), isolation_level=None)
    try:
        blocker.execute("BEGIN EXCLUSIVE")
        started = monotonic()
        with pytest.raises(StoreUnavailable):
            await insert(store, "withdrawn", timeout=0.1)
        assert monotonic() - started < 0.9
        blocker.execute("COMMIT")
        await insert(store, "later")
        assert await names(store) == ["later"]
        assert store.down_since is None
    finally:
        blocker.close()
        await store.close()


async def test_a_write_withdrawn_by_a_cancel_never_runs(sqlite_url: str) -> None:
    """A caller that is cancelled while its operation waits takes the operation with it."""
    store = await Store.open(sqlite_url)
    blocker = sqlite3.connect(file_of(sqlite_url), isolation_level=None)
    try:
        blocker.execute("BEGIN EXCLUSIVE")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(insert, store, "withdrawn")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        blocker.execute("COMMIT")
        await insert(store, "later")
        assert await names(store) == ["later"]
    finally:
        blocker.close()
        await store.close()


async def test_a_caller_that_leaves_in_mid_operation_does_not_harm_the_batch(store: Store) -> None:
    """The operation of a cancelled caller runs to its end, and so does its neighbour in the same transaction."""
    entered = anyio.Event()
    go_on = anyio.Event()

    async def slow(conn: AsyncConnection) -> None:
        await conversations.insert(conn, conversation("slow"))
        entered.set()
        await go_on.wait()

    slow_task = asyncio.create_task(store.write(slow))
    await anyio.lowlevel.checkpoint()
    neighbour = asyncio.create_task(insert(store, "neighbour"))
    with anyio.fail_after(5):
        await entered.wait()
        slow_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow_task
        go_on.set()
        await neighbour
    assert await names(store) == ["neighbour", "slow"]


async def test_a_locked_file_is_unavailable_within_two_seconds_and_works_again_afterwards(sqlite_url: str) -> None:
    """Another connection's exclusive lock fails every waiting write after a second; `down_since` tells of it."""
    store = await Store.open(sqlite_url)
    blocker = sqlite3.connect(file_of(sqlite_url), isolation_level=None)
    try:
        blocker.execute("BEGIN EXCLUSIVE")
        started = monotonic()
        results = await asyncio.gather(insert(store, "a"), insert(store, "b"), return_exceptions=True)
        assert [type(result) for result in results] == [StoreUnavailable, StoreUnavailable]
        assert 0.8 < monotonic() - started < 2.5
        assert store.down_since is not None
        assert started - 0.1 <= store.down_since <= monotonic()
        blocker.execute("COMMIT")
        await insert(store, "c")
        assert store.down_since is None
        assert await names(store) == ["c"]
    finally:
        blocker.close()
        await store.close()


async def test_every_write_is_answered_however_it_meets_a_failure(sqlite_url: str) -> None:
    """Writes that arrive at any moment of a failing batch, and while its connection is replaced, all get an answer."""
    store = await Store.open(sqlite_url)
    blocker = sqlite3.connect(file_of(sqlite_url), isolation_level=None)
    answers: list[str] = []

    async def one(name: str) -> None:
        try:
            await insert(store, name)
            answers.append("stored")
        except StoreUnavailable:
            answers.append("refused")

    try:
        blocker.execute("BEGIN EXCLUSIVE")
        count = 0
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                while answers.count("refused") < 2 or len(answers) < 500:
                    tasks.start_soon(one, f"c{count:06}")
                    count += 1
                    await anyio.sleep(0.0002)
                blocker.execute("COMMIT")
        assert len(answers) == count
    finally:
        blocker.close()
        await store.close()


async def test_reads_go_on_while_another_process_writes(sqlite_url: str) -> None:
    """The write-ahead log lets readers see the last commit while somebody else holds the write lock."""
    store = await Store.open(sqlite_url)
    await insert(store, "a")
    blocker = sqlite3.connect(file_of(sqlite_url), isolation_level=None)
    try:
        blocker.execute("BEGIN IMMEDIATE")
        blocker.execute("DELETE FROM conversations")
        assert await names(store) == ["a"]
    finally:
        blocker.close()
        await store.close()


async def test_a_connection_that_became_read_only_is_replaced(store: Store) -> None:
    """A write refused as read-only is StoreUnavailable; the next one gets a fresh connection and is stored."""
    lock = "PRAGMA query_only=ON" if store.dialect == "sqlite" else "SET default_transaction_read_only = on"

    async def turn_read_only(conn: AsyncConnection) -> None:
        await conn.exec_driver_sql(lock)

    await store.write(turn_read_only)
    with pytest.raises(StoreUnavailable):
        await insert(store, "refused")
    assert store.down_since is not None
    await insert(store, "stored")
    assert store.down_since is None
    assert await names(store) == ["stored"]


async def test_a_full_disk_fails_the_batch_and_space_heals_it(sqlite_url: str) -> None:
    """When the file cannot grow, all of the batch is refused and nothing of it is stored; later writes work."""
    store = await Store.open(sqlite_url)

    async def limit(conn: AsyncConnection) -> None:
        pages = await conn.scalar(text("PRAGMA page_count"))
        await conn.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    async def big(conn: AsyncConnection) -> None:
        await conversations.insert(conn, conversation("big", title="x" * 1_000_000))

    try:
        await store.write(limit)
        results = await asyncio.gather(
            insert(store, "before"), store.write(big), insert(store, "after"), return_exceptions=True
        )
        assert [type(result) for result in results] == [StoreUnavailable] * 3
        assert await names(store) == []
        await store.write(big)
        assert await names(store) == ["big"]
    finally:
        await store.close()


async def test_a_connection_that_died_while_idle_is_replaced_without_a_trace(
    postgres_store: Store, postgres_url: str, postgres: PostgresServer
) -> None:
    """After all server processes are terminated, the next writes and reads work as if nothing had happened."""
    for n in range(3):
        await insert(postgres_store, f"c{n}")
        await asyncio.gather(*(names(postgres_store) for _ in range(2)))
        assert await postgres.terminate_backends(postgres_url) >= 2
    await insert(postgres_store, "last")
    assert await names(postgres_store) == ["c0", "c1", "c2", "last"]
    assert postgres_store.down_since is None


async def test_a_connection_lost_in_mid_transaction_fails_the_batch_and_heals(
    postgres_store: Store, postgres_url: str, postgres: PostgresServer
) -> None:
    """Operations are not run a second time: those of the lost transaction are refused, later ones are stored."""
    runs = 0

    async def die(conn: AsyncConnection) -> None:
        nonlocal runs
        runs += 1
        await postgres.terminate_backends(postgres_url)
        await conversations.insert(conn, conversation("lost"))

    results = await asyncio.gather(
        insert(postgres_store, "a"), postgres_store.write(die), insert(postgres_store, "b"), return_exceptions=True
    )
    assert [type(result) for result in results] == [StoreUnavailable] * 3
    assert runs == 1
    await insert(postgres_store, "c")
    assert await names(postgres_store) == ["c"]


async def test_a_row_locked_elsewhere_fails_its_operation_only(
    postgres_store: Store, postgres_url: str, postgres: PostgresServer
) -> None:
    """PostgreSQL locks rows: who waits for one over a second is refused alone, the rest of the batch is stored."""
    await insert(postgres_store, "locked")
    other = await postgres.connect(postgres_url.rpartition("/")[2])
    try:
        held = other.transaction()
        await held.start()
        await other.execute("UPDATE conversations SET title = 'held' WHERE id = 'locked'")
        results = await asyncio.gather(
            insert(postgres_store, "a"),
            postgres_store.write(lambda conn: conversations.set_title(conn, "locked", title="mine")),
            insert(postgres_store, "b"),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [type(None), StoreUnavailable, type(None)]
        await held.rollback()
    finally:
        await other.close()
    assert await names(postgres_store) == ["a", "b", "locked"]


async def test_a_large_batch_does_not_hold_up_the_event_loop(store: Store) -> None:
    """While a thousand operations share a transaction, other tasks get their turn at least every 150 ms."""
    done = False
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        last = monotonic()
        while not done:
            await anyio.sleep(0.001)
            longest, last = max(longest, monotonic() - last), monotonic()

    writes = [asyncio.create_task(insert(store, f"c{n:04}")) for n in range(1000)]
    await anyio.lowlevel.checkpoint()
    ticker = asyncio.create_task(tick())
    await asyncio.gather(*writes)
    done = True
    await ticker
    assert len(await names(store)) == 1000
    assert longest < 0.15


async def test_closing_commits_what_was_queued(store_url: str) -> None:
    """`close` answers every write that was submitted before it; one that comes later is refused."""
    store = await Store.open(store_url)
    writes = [asyncio.create_task(insert(store, f"c{n}")) for n in range(10)]
    await anyio.lowlevel.checkpoint()
    await store.close()
    await asyncio.gather(*writes)
    with pytest.raises(StoreUnavailable):
        await insert(store, "late")
    with pytest.raises(StoreUnavailable):
        await names(store)
    await store.close()
    again = await Store.open(store_url)
    assert await names(again) == [f"c{n}" for n in range(10)]
    await again.close()
