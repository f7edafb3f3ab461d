"""The journal: what of a running turn must survive a crash, in order (E4, X2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import bindparam, insert, select
from sqlalchemy import delete as delete_from
from sqlalchemy.ext.asyncio import AsyncConnection

from app.clock import now_ms
from app.store.columns import from_json, to_json
from app.store.errors import Fenced
from app.store.statements import insert_new
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


_VALUES = ("n", "kind", "body", "created_at")
# Written once: of all statements this one runs most. The turn is locked (where there are row locks), so that no `claim`
# can come between the look at its epoch and the commit.
_APPEND = insert(table).from_select(
    ["turn_id", "epoch", *_VALUES],
    select(turns.c.id, turns.c.epoch, *(bindparam(name, type_=table.c[name].type).label(name) for name in _VALUES))
    .where(turns.c.id == bindparam("of"), turns.c.epoch == bindparam("in"))
    .with_for_update(read=True),
)
# Locked in one order, so that two processes never wait for each other.
_OWNED = (
    select(turns.c.id, turns.c.epoch)
    .where(turns.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(turns.c.id)
    .with_for_update(read=True)
)
_DELETE = delete_from(table).where(table.c.turn_id == bindparam("of"))


async def append(conn: AsyncConnection, turn_id: str, *, n: int, epoch: int, kind: EntryKind, body: object) -> None:
    """Add the entry `n` in the name of `epoch`.

    Raises:
        Fenced: the turn is in another epoch, or gone. Nothing is stored, so a paused old owner cannot write on (E7).
        app.store.errors.Conflict: `n` is taken.
    """
    entry = {"of": turn_id, "in": epoch, "n": n, "kind": kind, "body": to_json(body), "created_at": now_ms()}
    if (await conn.execute(_APPEND, entry)).rowcount != 1:
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
    await conn.execute(_DELETE, {"of": turn_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Entries of one turn, written in the name of one epoch."""

    turn_id: str
    epoch: int
    entries: Sequence[Entry]


async def append_all(conn: AsyncConnection, turn_id: str, *, epoch: int, entries: Sequence[Entry]) -> None:
    """Add entries in the name of `epoch`; those that are there already stay, so a write may be repeated.

    Raises:
        Fenced: the turn is in another epoch, or gone. Nothing is stored.
    """
    if await append_batches(conn, [Batch(turn_id=turn_id, epoch=epoch, entries=entries)]):
        raise Fenced(f"The turn {turn_id} is no longer in epoch {epoch}.")


async def append_batches(conn: AsyncConnection, batches: Sequence[Batch]) -> set[str]:
    """Like `append_all` for many turns with two statements; ids of the turns that are in another epoch, or gone."""
    ids = [batch.turn_id for batch in batches]
    found = await conn.execute(_OWNED, {"ids": ids})
    epochs = {row.id: row.epoch for row in found}
    rows = [
        {
            "turn_id": batch.turn_id,
            "n": entry.n,
            "epoch": batch.epoch,
            "kind": entry.kind,
            "body": to_json(entry.body),
            "created_at": entry.created_at,
        }
        for batch in batches
        if epochs.get(batch.turn_id) == batch.epoch
        for entry in batch.entries
    ]
    if rows:
        await conn.execute(insert_new(conn, table, "turn_id", "n"), rows)
    return {batch.turn_id for batch in batches if epochs.get(batch.turn_id) != batch.epoch}
