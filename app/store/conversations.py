"""Conversations: whose they are, and in which order they are listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, select, tuple_, update
from sqlalchemy import delete as delete_from
from sqlalchemy import insert as insert_into
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.columns import from_json, to_json_or_none, to_text, to_text_or_none
from app.store.tables import conversations as table
from app.store.tables import turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One conversation. Moments are epoch milliseconds; `metadata` is the client's own JSON object."""

    id: str
    user_id: str
    tenant: str = ""
    title: str | None = None
    profile: str | None = None
    metadata: dict[str, Any] | None = None
    created_at: int
    updated_at: int


# Written once: these run for every turn.
_COLUMNS = [column for column in table.c if column.name != "deleting"]
_GET = select(*_COLUMNS).where(
    table.c.id == bindparam("of"),
    table.c.tenant == bindparam("in"),
    table.c.user_id == bindparam("by"),
    table.c.deleting.is_(False),
)
_TOUCH = (
    update(table)
    .where(table.c.id == bindparam("of"), table.c.updated_at < bindparam("at"))
    .values(updated_at=bindparam("at"))
)
_NAME = update(table).where(table.c.id == bindparam("of"), table.c.title.is_(None)).values(title=bindparam("new_title"))


async def insert(conn: AsyncConnection, row: Conversation) -> None:
    """Store a new conversation.

    Raises:
        app.store.errors.Conflict: the id is taken.
    """
    await conn.execute(
        insert_into(table).values(
            id=row.id,
            user_id=row.user_id,
            tenant=row.tenant,
            title=to_text_or_none(row.title),
            profile=row.profile,
            metadata=to_json_or_none(row.metadata),
            created_at=row.created_at,
            updated_at=row.updated_at,
        )
    )


async def get(conn: AsyncConnection, conversation_id: str, *, tenant: str, user_id: str) -> Conversation | None:
    """The conversation, if it is this user's own; None otherwise, whatever the reason (A2)."""
    mine = {"of": to_text(conversation_id), "in": tenant, "by": user_id}
    row = (await conn.execute(_GET, mine)).mappings().first()
    return None if row is None else _conversation(row)


async def list_page(
    conn: AsyncConnection, *, tenant: str, user_id: str, limit: int, before: tuple[int, str] | None = None
) -> list[Conversation]:
    """At most `limit` of the user's conversations, newest first, from behind `before`, a row's `(created_at, id)`."""
    mine = (table.c.tenant == tenant, table.c.user_id == user_id, table.c.deleting.is_(False))
    found = select(*_COLUMNS).where(*mine)
    if before is not None:
        found = found.where(tuple_(table.c.created_at, table.c.id) < tuple_(before[0], to_text(before[1])))
    found = found.order_by(table.c.created_at.desc(), table.c.id.desc()).limit(limit)
    return [_conversation(row) for row in (await conn.execute(found)).mappings()]


async def touch(conn: AsyncConnection, conversation_id: str, *, updated_at: int) -> None:
    """Set when something last happened in it; a moment before the stored one changes nothing."""
    await conn.execute(_TOUCH, {"of": conversation_id, "at": updated_at})


async def set_title(conn: AsyncConnection, conversation_id: str, *, title: str | None) -> None:
    """Give it another title, or none."""
    await conn.execute(update(table).where(table.c.id == conversation_id).values(title=to_text_or_none(title)))


async def mark_deleting(conn: AsyncConnection, conversation_id: str) -> None:
    """From now on it is gone for its user; whoever runs a turn of it stops that (`turns.stops_asked`)."""
    await conn.execute(update(table).where(table.c.id == conversation_id).values(deleting=True))


async def is_deleting(conn: AsyncConnection, conversation_id: str) -> bool:
    """Whether it is marked."""
    return bool(await conn.scalar(select(table.c.deleting).where(table.c.id == conversation_id)))


async def delete_marked(conn: AsyncConnection) -> None:
    """Delete what was marked and has no turn that is not done, for processes that died in between."""
    unsettled = select(turns.c.id).where(turns.c.conversation_id == table.c.id, turns.c.status != "done").exists()
    await conn.execute(delete_from(table).where(table.c.deleting, ~unsettled))


async def delete(conn: AsyncConnection, conversation_id: str) -> bool:
    """Whether it was there. Its turns, messages, journal, approvals, reactions and tickets go with it."""
    return (await conn.execute(delete_from(table).where(table.c.id == conversation_id))).rowcount == 1


def _conversation(row: RowMapping) -> Conversation:
    return Conversation(**{**row, "metadata": from_json(row["metadata"])})


async def name(conn: AsyncConnection, conversation_id: str, *, title: str) -> None:
    """Give it a title, if it has none."""
    if title:
        await conn.execute(_NAME, {"of": conversation_id, "new_title": to_text(title)})
