"""Admission against a real PostgreSQL that is slow at the wrong moment (F2, H5)."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from app.errors import StoreUnavailable
from app.providers.chunks import Text
from app.store import conversations
from app.store.engine import Store
from tests.performers import STOP, ScriptedProvider
from tests.postgres import PostgresServer
from tests.stores import anyio_backend, conversation, postgres, postgres_store, postgres_url
from tests.workshop import CONVERSATION, Workshop, kinds

__all__ = ["anyio_backend", "postgres", "postgres_store", "postgres_url"]
pytestmark = pytest.mark.anyio


async def test_a_request_refused_for_time_leaves_nothing_behind(
    postgres: PostgresServer, postgres_url: str, postgres_store: Store
) -> None:
    """F2, H5: the decision is half made in the store when the request is refused after 2 s. When it goes on, no turn may
    come of it: the conversation is free, nothing is queued, and the history holds only the turn after it."""
    store = postgres_store
    await store.write(lambda conn: conversations.insert(conn, conversation(CONVERSATION)))
    locks = [
        ("LOCK TABLE conversations IN ACCESS EXCLUSIVE MODE", 0.8),
        ("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE", 1.6),
        # Lets the decision read and not write; granted when the one before is given up.
        ("LOCK TABLE turns IN SHARE MODE", 2.5),
    ]

    async def in_the_way(statement: str, until: float) -> None:
        """Each wait is shorter than the store's own patience with a lock; together they are longer than an admission's."""
        conn = await postgres.connect(postgres_url.rpartition("/")[2])
        try:
            async with conn.transaction():
                await conn.execute(statement)
                await anyio.sleep(until - (asyncio.get_running_loop().time() - begun))
        finally:
            await conn.close()

    async with Workshop(store, ScriptedProvider([Text("ok"), STOP])).work() as shop:
        begun = asyncio.get_running_loop().time()
        async with anyio.create_task_group() as group:
            for statement, until in locks:
                group.start_soon(in_the_way, statement, until)
                await anyio.sleep(0.1)
            with pytest.raises(StoreUnavailable):
                await shop.ask("refused")
            assert asyncio.get_running_loop().time() - begun > 1.9, "the store gave up by itself"
        log = await shop.answer("taken")
        assert kinds(log)[-1] == "message_saved"
        assert [m.text for m in await shop.messages()] == ["taken", "ok"]
        assert list(shop.supervisor.turns()) == []
        assert shop.supervisor.waiting == 0
