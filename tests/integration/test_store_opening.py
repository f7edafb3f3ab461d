"""Opening a store: new, old, broken, by several processes at once; and what a process leaves when it is killed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from app.clock import monotonic
from app.errors import ConfigError
from app.store import conversations
from app.store.connect import opening_engine, parse
from app.store.engine import Store
from app.store.schema import migrate
from app.store.tables import metadata
from tests.postgres import PostgresServer
from tests.stores import anyio_backend, conversation, postgres, postgres_url, sqlite_url, store_url

__all__ = ["anyio_backend", "postgres", "postgres_url", "sqlite_url", "store_url"]
pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]

# A process that opens the store, waits for a line on its input, and stores `count` conversations, telling of each.
WRITER = """
import anyio, sys
from app.store import conversations
from app.store.engine import Store

async def main(url, name, count):
    store = await Store.open(url)
    print("open", flush=True)
    sys.stdin.readline()
    for n in range(int(count)):
        row = conversations.Conversation(id=f"{name}-{n:04}", user_id="ann", created_at=n, updated_at=n)
        await store.write(lambda conn: conversations.insert(conn, row))
        print(row.id, flush=True)
    await store.close()

anyio.run(main, *sys.argv[1:])
"""


def start_writer(url: str, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", WRITER, url, name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


async def ids(store: Store) -> set[str]:
    async def op(conn: AsyncConnection) -> set[str]:
        return set((await conn.scalars(text("SELECT id FROM conversations"))).all())

    return await store.read(op)


def differences(conn: Connection) -> list[object]:
    options = {"compare_type": True, "render_as_batch": True}
    return list(compare_metadata(MigrationContext.configure(conn, opts=options), metadata))


async def test_the_migrations_make_exactly_the_tables_of_the_code(store_url: str) -> None:
    """Neither side has a table, column, index or constraint that the other lacks."""
    await migrate(store_url)
    engine = opening_engine(parse(store_url))
    async with engine.connect() as conn:
        assert await conn.run_sync(differences) == []
        await conn.exec_driver_sql("ALTER TABLE tickets ADD COLUMN more TEXT")
        assert len(await conn.run_sync(differences)) == 1
    await engine.dispose()


async def test_a_second_migration_changes_nothing(store_url: str) -> None:
    """`migrate` may be run at any time."""
    assert await migrate(store_url) == await migrate(store_url)


async def test_reopening_keeps_the_data(store_url: str) -> None:
    """What one store committed the next one reads."""
    first = await Store.open(store_url)
    await first.write(lambda conn: conversations.insert(conn, conversation()))
    await first.close()
    second = await Store.open(store_url)
    assert await ids(second) == {"conv_1"}
    await second.close()


async def test_sqlite_is_set_up_to_survive_a_power_cut(sqlite_url: str) -> None:
    """Write-ahead log, every commit synced, foreign keys on, one second of patience."""
    store = await Store.open(sqlite_url)

    async def settings(conn: AsyncConnection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [await conn.scalar(text(f"PRAGMA {name}")) for name in names]

    assert await store.write(settings) == ["wal", 2, 1, 1000]
    await store.close()


async def test_processes_that_start_at_once_on_a_new_file_all_work(sqlite_url: str) -> None:
    """Four processes create, migrate and fill the same file; each gets all of its rows in."""
    children = [start_writer(sqlite_url, f"p{n}", 25) for n in range(4)]
    with anyio.fail_after(40):
        results = [await anyio.to_thread.run_sync(child.communicate, "go\n") for child in children]
    assert [(child.returncode, error) for child, (_, error) in zip(children, results, strict=True)] == [(0, "")] * 4
    store = await Store.open(sqlite_url)
    assert await ids(store) == {f"p{n}-{row:04}" for n in range(4) for row in range(25)}
    await store.close()


async def test_migrations_that_run_at_once_on_a_new_postgresql_database_all_succeed(postgres: PostgresServer) -> None:
    """One works, the others wait and find nothing to do."""
    url = await postgres.new_database()
    revisions: list[str] = []

    async def one() -> None:
        revisions.append(await migrate(url))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(one)
    assert len(revisions) == 3
    assert len(set(revisions)) == 1
    store = await Store.open(url)
    await store.close()


async def test_a_killed_process_loses_nothing_that_it_was_told_was_stored(store_url: str) -> None:
    """After SIGKILL in the middle of writing, every id that `write` had returned for is there."""
    child = start_writer(store_url, "k", 100_000)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("go\n")
    child.stdin.flush()

    def told() -> set[str]:
        assert child.stdout is not None
        lines = [child.stdout.readline().strip() for _ in range(60)]
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
        return {line for line in [*lines, *rest.split("\n")[:-1]] if line.startswith("k-")}

    with anyio.fail_after(30):
        confirmed = await anyio.to_thread.run_sync(told)
    assert len(confirmed) >= 59
    store = await Store.open(store_url)
    stored = await ids(store)
    assert confirmed <= stored
    # At most the one that was on its way.
    assert len(stored - confirmed) <= 1
    await store.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://root:hunter2@db/x", ["mysql://root:***@db/x", "postgresql+asyncpg://"]),
        ("postgresql://ann:hunter2@db/x", ["postgresql://ann:***@db/x", "postgresql+asyncpg://"]),
        ("sqlite:///x.db", ["sqlite:///x.db", "sqlite+aiosqlite:///"]),
        ("sqlite+aiosqlite://", ["names no file"]),
        ("sqlite+aiosqlite:///:memory:", ["names no file"]),
        ("hunter2", ["is not a database URL"]),
    ],
)
async def test_a_url_that_cannot_be_used_is_refused_with_words_and_without_its_password(url: str, words: list[str]) -> None:
    """The sentence shows the URL masked, and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        await Store.open(url)
    assert all(word in caught.value.message for word in words), caught.value.message
    assert "hunter2" not in caught.value.message


async def test_a_file_that_cannot_be_there_is_refused(tmp_path: Path) -> None:
    """A missing folder, or a folder in the file's place, is named."""
    with pytest.raises(ConfigError, match=r"nowhere does not exist"):
        await Store.open(f"sqlite+aiosqlite:///{tmp_path}/nowhere/store.db")
    with pytest.raises(ConfigError, match=r"is a folder"):
        await Store.open(f"sqlite+aiosqlite:///{tmp_path}")


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Somebody's letter is not overwritten."""
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Ann, " * 500)
    with pytest.raises(ConfigError, match=r"letter\.txt cannot be opened"):
        await Store.open(f"sqlite+aiosqlite:///{letter}")
    assert letter.read_text() == "Dear Ann, " * 500


async def test_a_schema_from_the_future_is_refused_and_left_alone(store_url: str) -> None:
    """A revision that this version does not know is named, on both ways in."""
    await migrate(store_url)
    engine = opening_engine(parse(store_url))
    async with engine.begin() as conn:
        await conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    await engine.dispose()
    for way in (Store.open, migrate):
        with pytest.raises(ConfigError, match=r"9999.*newer version"):
            await way(store_url)


# Opens the store as another user. What is imported later must be imported before: that user may not see our files.
OTHER_USER = """
import os, sys
import anyio, aiosqlite, sqlalchemy.dialects.sqlite.aiosqlite
import anyio._backends._asyncio
from app.errors import ConfigError
from app.store.engine import Store

url, uid = sys.argv[1:]
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
try:
    anyio.run(Store.open, url)
except ConfigError as error:
    print(error.message)
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may look into; those that pytest gives are for their owner only."""
    folder = Path(tempfile.mkdtemp(prefix="eb-store-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("existing", [True, False])
async def test_a_file_without_permission_is_refused(public_folder: Path, existing: bool) -> None:
    """A file that this user may not write, or cannot create, is refused by name, not with a stack."""
    path = public_folder / "store.db"
    url = f"sqlite+aiosqlite:///{path}"
    if existing:
        store = await Store.open(url)
        await store.close()
        path.chmod(0o444)
    public_folder.chmod(0o555)
    with anyio.fail_after(30):
        done = await anyio.run_process(
            [sys.executable, "-c", OTHER_USER, url, "65534"], env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
    assert f"[store] url {url} cannot be opened" in done.stdout.decode()
    assert done.stderr == b""


async def test_a_locked_file_is_refused_in_the_end(sqlite_url: str) -> None:
    """A program that keeps a new file locked is reported within ten seconds."""
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite+aiosqlite:///"), isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        started = monotonic()
        with pytest.raises(ConfigError, match="locks it"):
            await Store.open(sqlite_url)
        assert monotonic() - started < 10
    finally:
        other.close()


async def test_postgresql_without_the_schema_says_what_to_run(postgres: PostgresServer) -> None:
    """An empty database is not filled at open: `earlybyte migrate` does that."""
    url = await postgres.new_database()
    with pytest.raises(ConfigError, match="the schema is missing; run `earlybyte migrate`"):
        await Store.open(url)


async def test_postgresql_that_cannot_be_reached_is_refused_within_seconds(postgres: PostgresServer) -> None:
    """A closed port and an unknown database are reported alike, with the password masked."""
    closed = "postgresql+asyncpg://ann:hunter2@127.0.0.1:1/x"
    unknown = f"postgresql+asyncpg://postgres:hunter2@127.0.0.1:{postgres.port}/no_such_database"
    for url in (closed, unknown):
        started = monotonic()
        with pytest.raises(ConfigError, match=r":\*\*\*@127.0.0.1.*cannot be opened") as caught:
            await Store.open(url)
        assert "hunter2" not in caught.value.message
        assert monotonic() - started < 5
