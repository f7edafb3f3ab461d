"""The journal: what of a running turn must survive a crash, in order (E4, X2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import delete as delete_from
from sqlalchemy import insert, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.clock import now_ms
from app.store.columns import from_json, to_json
from app.store.errors import Fenced
from app.store.tables import journal as table
from app.store.tables import turns

EntryKind = Literal["events", "step", "result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry. `events`: a list of events · `step`: the assistant's part of a step · `result`: one tool's result."""

    n: int
    epoch: int
    kind: EntryKind
    body: Any
    created_at: int


async def append(conn: AsyncConnection, turn_id: str, *, n: int, epoch: int, kind: EntryKind, body: object) -> None:
    """Add the entry `n` in the name of `epoch`.

    Raises:
        Fenced: the turn is in another epoch, or gone. Nothing is stored, so a paused old owner cannot write on (E7).
        app.store.errors.Conflict: `n` is taken.
    """
    # Locked (where rows are), so that no `claim` can come between this look at the epoch and the commit.
    values = (literal(n).label("n"), literal(kind).label("kind"), literal(to_json(body)).label("body"))
    owned = (
        select(turns.c.id, turns.c.epoch, *values, literal(now_ms(), table.c.created_at.type).label("created_at"))
        .where(turns.c.id == turn_id, turns.c.epoch == epoch)
        .with_for_update(read=True)
    )
    entry = insert(table).from_select(["turn_id", "epoch", "n", "kind", "body", "created_at"], owned)
    if (await conn.execute(entry)).rowcount != 1:
        raise Fenced(f"The turn {turn_id} is no longer in epoch {epoch}.")


async def load(conn: AsyncConnection, turn_id: str) -> list[Entry]:
    """All entries of the turn, in order of `n`."""
    found = select(table).where(table.c.turn_id == turn_id).order_by(table.c.n)
    return [
        Entry(n=row.n, epoch=row.epoch, kind=row.kind, body=from_json(row.body), created_at=row.created_at)
        for row in await conn.execute(found)
    ]


async def delete(conn: AsyncConnection, turn_id: str) -> None:
    """Forget the entries of a turn; for the transaction that saves its message."""
    await conn.execute(delete_from(table).where(table.c.turn_id == turn_id))
