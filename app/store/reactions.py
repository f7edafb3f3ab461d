"""Reactions: one for each user and message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import delete as delete_from
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.columns import to_text_or_none
from app.store.statements import insert_into
from app.store.tables import reactions as table

ReactionKind = Literal["like", "dislike"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What one user thinks of one message. Moments are epoch milliseconds."""

    message_id: str
    user_id: str
    reaction: ReactionKind
    comment: str | None = None
    created_at: int
    updated_at: int


async def put(
    conn: AsyncConnection, *, message_id: str, user_id: str, reaction: ReactionKind, comment: str | None, at: int
) -> None:
    """Store the reaction in place of an earlier one, whose `created_at` stays.

    Raises:
        app.store.errors.Conflict: the message is not there.
    """
    changed = {"reaction": reaction, "comment": to_text_or_none(comment), "updated_at": at}
    new = insert_into(conn, table).values(message_id=message_id, user_id=user_id, created_at=at, **changed)
    await conn.execute(new.on_conflict_do_update(index_elements=["message_id", "user_id"], set_=changed))


async def delete(conn: AsyncConnection, *, message_id: str, user_id: str) -> bool:
    """Whether there was one."""
    mine = delete_from(table).where(table.c.message_id == message_id, table.c.user_id == user_id)
    return (await conn.execute(mine)).rowcount == 1


async def for_messages(conn: AsyncConnection, ids: Sequence[str], user_id: str) -> dict[str, Reaction]:
    """The user's reactions to these messages, by message id; messages without one are left out."""
    found = select(table).where(table.c.message_id.in_(ids), table.c.user_id == user_id)
    return {row["message_id"]: Reaction(**row) for row in (await conn.execute(found)).mappings()}
