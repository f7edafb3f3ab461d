"""Messages: what a conversation consists of, and what of it a model is shown again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import bindparam, select
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from app.events.types import MessageStatus
from app.store.columns import from_json, to_json, to_json_or_none, to_text
from app.store.statements import insert_new
from app.store.tables import messages as table

Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `content` is what a snapshot holds (a reply) or the input's parts (a user's message).

    `model_messages` is what a model is shown of it, in Chat Completions form; None for nothing.
    """

    id: str
    conversation_id: str
    turn_id: str
    place: int
    role: Role
    status: MessageStatus
    text: str
    content: Any
    model_messages: list[dict[str, Any]] | None = None
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What the model is shown of one message, without the weight of its content."""

    id: str
    turn_id: str
    place: int
    role: Role
    model_messages: list[dict[str, Any]]


async def insert(conn: AsyncConnection, row: Message) -> bool:
    """Whether the message is new. One with the same id stays as it is, so a save may be repeated.

    Raises:
        app.store.errors.Conflict: the turn has another message of this role, or the conversation is gone.
    """
    values = {
        "id": row.id,
        "conversation_id": row.conversation_id,
        "turn_id": row.turn_id,
        "place": row.place,
        "role": row.role,
        "status": row.status,
        "text": to_text(row.text),
        "content": to_json(row.content),
        "model_messages": to_json_or_none(row.model_messages),
        "created_at": row.created_at,
    }
    return (await conn.execute(insert_new(conn, table, "id"), values)).rowcount == 1


async def get(conn: AsyncConnection, message_id: str) -> Message | None:
    """The message, whoever owns its conversation; the caller checks that."""
    row = (await conn.execute(select(table).where(table.c.id == to_text(message_id)))).mappings().first()
    return None if row is None else _message(row)


async def list_page(conn: AsyncConnection, conversation_id: str, *, limit: int, after: int | None = None) -> list[Message]:
    """At most `limit` messages, oldest first, from behind the place `after`."""
    found = select(table).where(table.c.conversation_id == conversation_id).order_by(table.c.place).limit(limit)
    if after is not None:
        found = found.where(table.c.place > after)
    return [_message(row) for row in (await conn.execute(found)).mappings()]


# Written once: it runs for every turn.
_HISTORY = (
    select(table.c.id, table.c.turn_id, table.c.place, table.c.role, table.c.model_messages)
    .where(
        table.c.conversation_id == bindparam("of"),
        table.c.place < bindparam("before"),
        table.c.model_messages.is_not(None),
    )
    .order_by(table.c.place.desc())
)


async def history(
    conn: AsyncConnection, conversation_id: str, *, before_place: int, limit: int | None = None
) -> list[Remembered]:
    """What a model is shown of the messages before `before_place` (a message's place), oldest first.

    With `limit` only the newest that many. Messages that are never shown (apologies without tools) are left out.
    """
    found = _HISTORY if limit is None else _HISTORY.limit(limit)
    rows = (await conn.execute(found, {"of": conversation_id, "before": before_place})).mappings().all()
    return [Remembered(**{**row, "model_messages": from_json(row["model_messages"])}) for row in reversed(rows)]


async def for_turn(conn: AsyncConnection, turn_id: str) -> list[Message]:
    """The messages of one turn: the user's, then the reply, as far as they are saved."""
    found = select(table).where(table.c.turn_id == turn_id).order_by(table.c.place)
    return [_message(row) for row in (await conn.execute(found)).mappings()]


def _message(row: RowMapping) -> Message:
    decoded = {"content": from_json(row["content"]), "model_messages": from_json(row["model_messages"])}
    return Message(**{**row, **decoded})
