"""Approvals: questions to a person, each answered once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass

from sqlalchemy import insert as insert_into
from sqlalchemy import select, update
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from app.events.types import Decision
from app.store.columns import to_text, to_text_or_none
from app.store.tables import approvals as table


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """One approval; `decision` is None while it is open. Moments are epoch milliseconds."""

    id: str
    turn_id: str
    tool_call_id: str
    expires_at: int
    decision: Decision | None = None
    decided_by: str | None = None
    comment: str | None = None
    decided_at: int | None = None


async def insert(conn: AsyncConnection, row: Approval) -> None:
    """Store a new approval.

    Raises:
        app.store.errors.Conflict: the id is taken, or the turn is gone.
    """
    await conn.execute(insert_into(table).values({**asdict(row), "comment": to_text_or_none(row.comment)}))


async def get(conn: AsyncConnection, approval_id: str) -> Approval | None:
    """The approval, whoever's turn it belongs to; the caller checks that."""
    row = (await conn.execute(select(table).where(table.c.id == to_text(approval_id)))).mappings().first()
    return None if row is None else _approval(row)


async def decide(
    conn: AsyncConnection, approval_id: str, *, decision: Decision, by: str, comment: str | None = None, at: int
) -> Approval | None:
    """The approval after this answer. The first answer wins: a later one changes nothing and sees the first."""
    answer = {"decision": decision, "decided_by": by, "comment": to_text_or_none(comment), "decided_at": at}
    await conn.execute(update(table).where(table.c.id == approval_id, table.c.decision.is_(None)).values(answer))
    return await get(conn, approval_id)


async def for_turn(conn: AsyncConnection, turn_id: str) -> list[Approval]:
    """The approvals of a turn in the order they were asked for."""
    found = select(table).where(table.c.turn_id == turn_id).order_by(table.c.id)
    return [_approval(row) for row in (await conn.execute(found)).mappings()]


async def answered(conn: AsyncConnection, turn_ids: Collection[str]) -> list[Approval]:
    """The approvals of these turns that a person has answered."""
    found = select(table).where(table.c.turn_id.in_(turn_ids), table.c.decision.in_(("approve", "deny")))
    return [_approval(row) for row in (await conn.execute(found)).mappings()]


async def cancel_open(
    conn: AsyncConnection, turn_id: str, *, at: int, decision: Decision = "cancelled", by: str = "system"
) -> list[str]:
    """Ids of the turn's approvals that were open and are closed now."""
    still_open = update(table).where(table.c.turn_id == turn_id, table.c.decision.is_(None))
    closed = still_open.values(decision=decision, decided_by=by, decided_at=at).returning(table.c.id)
    return sorted((await conn.scalars(closed)).all())


def _approval(row: RowMapping) -> Approval:
    return Approval(**row)
