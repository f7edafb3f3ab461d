"""Stores for tests: each on a fresh database, of both kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.store import conversations, turns
from app.store.engine import Store
from app.store.schema import migrate
from tests.postgres import PostgresServer, postgres

__all__ = [
    "anyio_backend",
    "conversation",
    "postgres",
    "postgres_store",
    "postgres_url",
    "sqlite_url",
    "store",
    "store_url",
    "turn",
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite+aiosqlite:///{tmp_path}/store.db"


@pytest.fixture
async def postgres_url(postgres: PostgresServer, anyio_backend: str) -> str:
    """A PostgreSQL database with the schema."""
    url = await postgres.new_database()
    await migrate(url)
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
async def store_url(request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str) -> str:
    """A database of either kind, empty but for its schema (SQLite: not even there)."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/store.db"
    url: str = await request.getfixturevalue("postgres").new_database()
    await migrate(url)
    return url


@pytest.fixture
async def postgres_store(postgres_url: str) -> AsyncIterator[Store]:
    """An open store in PostgreSQL, with two readers."""
    opened = await Store.open(postgres_url, pool=2)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """An open store of either kind, with two readers."""
    opened = await Store.open(store_url, pool=2)
    try:
        yield opened
    finally:
        await opened.close()


def conversation(
    name: str = "conv_1", *, user_id: str = "ann", at: int = 1000, **more: object
) -> conversations.Conversation:
    """A conversation of Ann's."""
    values: dict[str, object] = {"id": name, "user_id": user_id, "created_at": at, "updated_at": at} | more
    return conversations.Conversation(**values)  # type: ignore[arg-type]  # each test names columns as it needs


def turn(name: str = "turn_1", *, conversation_id: str = "conv_1", place: int = 1, **more: object) -> turns.TurnRow:
    """A queued turn of Ann's."""
    values: dict[str, object] = {
        "id": name,
        "conversation_id": conversation_id,
        "user_id": "ann",
        "message_id": f"msg_{name}",
        "user_message_id": f"msg_{name}_user",
        "profile": "default",
        "input": "hello",
        "place": place,
        "status": "queued",
        "created_at": 1000 + place,
    } | more
    return turns.TurnRow(**values)  # type: ignore[arg-type]  # each test names columns as it needs
