"""Idempotency keys: which turn a repeated request belongs to (H3)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import delete as delete_from
from sqlalchemy import insert as insert_into
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.tables import idempotency_keys as table


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """A key and the turn that its first request started; `body_hash` is the SHA-256 of the body as canonical JSON."""

    tenant: str
    user_id: str
    key: str
    conversation_id: str
    turn_id: str
    body_hash: str
    created_at: int


async def get(conn: AsyncConnection, *, tenant: str, user_id: str, key: str) -> IdempotencyKey | None:
    """The user's key, if it was used; how old it may be is for the caller to judge."""
    found = select(table).where(table.c.tenant == tenant, table.c.user_id == user_id, table.c.key == key)
    row = (await conn.execute(found)).mappings().first()
    return None if row is None else IdempotencyKey(**row)


async def insert(conn: AsyncConnection, row: IdempotencyKey) -> None:
    """Store a key, in the transaction that stores its turn.

    Raises:
        app.store.errors.Conflict: the key was used meanwhile; look again.
    """
    await conn.execute(insert_into(table).values(asdict(row)))


async def delete_older_than(conn: AsyncConnection, ms: int) -> int:
    """How many keys were made before the moment `ms` (epoch milliseconds) and are forgotten now."""
    return (await conn.execute(delete_from(table).where(table.c.created_at < ms))).rowcount


async def delete(conn: AsyncConnection, *, tenant: str, user_id: str, key: str) -> None:
    """Forget one key, so that it may be used again."""
    forgotten = delete_from(table).where(table.c.tenant == tenant, table.c.user_id == user_id, table.c.key == key)
    await conn.execute(forgotten)
