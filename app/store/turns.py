"""Turns: their order within a conversation, who runs them, and how they ended.

A turn changes hands by `claim`, which raises its epoch; writes that name the epoch they believe in (`if_epoch`) change
nothing once another process has taken over (E7).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

from sqlalchemy import ColumnElement, Update, bindparam, func, or_, select
from sqlalchemy import delete as delete_from
from sqlalchemy import insert as insert_into
from sqlalchemy import update as update_table
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.columns import from_json, to_json, to_text
from app.store.tables import conversations, idempotency_keys
from app.store.tables import turns as table

TurnStatus = Literal["queued", "running", "waiting", "ended", "done"]
OPEN: tuple[TurnStatus, ...] = ("queued", "running", "waiting")
_JSON = frozenset({"input", "metadata", "terminal"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """One turn as it is stored. Moments are epoch milliseconds; `terminal` is the terminal event once there is one."""

    id: str
    conversation_id: str
    user_id: str
    tenant: str = ""
    message_id: str
    user_message_id: str
    profile: str
    input: str | list[dict[str, Any]]
    metadata: dict[str, Any] | None = None
    on_disconnect: str = "continue"
    place: int
    status: TurnStatus
    epoch: int = 1
    owner: str | None = None
    cancel_requested: bool = False
    received: bool = False
    created_at: int
    started_at: int | None = None
    deadline_at: int | None = None
    ended_at: int | None = None
    last_seq: int = 0
    terminal: dict[str, Any] | None = None


_COLUMNS = tuple(TurnRow.__dataclass_fields__)
# Written once: these run for every turn.
_INSERT = insert_into(table)
_LOCK_CONVERSATION = select(conversations.c.id).where(conversations.c.id == bindparam("of")).with_for_update(key_share=True)
_LAST_PLACE = select(func.max(table.c.place)).where(table.c.conversation_id == bindparam("of"))
_END = (
    update_table(table)
    .where(table.c.id == bindparam("of"), table.c.epoch == bindparam("in"), table.c.terminal.is_(None))
    .values(status="ended", **{name: bindparam(f"new_{name}") for name in ("terminal", "last_seq", "ended_at")})
)
_SETTLE = (
    update_table(table)
    .where(table.c.id == bindparam("of"), table.c.epoch == bindparam("in"))
    .values(
        status="done",
        owner=None,
        input=to_json(""),
        last_seq=bindparam("new_last_seq"),
        terminal=func.coalesce(table.c.terminal, bindparam("new_terminal")),
        ended_at=func.coalesce(table.c.ended_at, bindparam("new_ended_at")),
    )
)


async def insert(conn: AsyncConnection, row: TurnRow) -> None:
    """Store a new turn.

    Raises:
        app.store.errors.Conflict: the id is taken, or the conversation is not there.
    """
    await conn.execute(_INSERT, _encoded({name: getattr(row, name) for name in _COLUMNS}))


async def get(conn: AsyncConnection, turn_id: str) -> TurnRow | None:
    """The turn, whoever owns it; the caller compares user and tenant."""
    row = (await conn.execute(select(table).where(table.c.id == to_text(turn_id)))).mappings().first()
    return None if row is None else _turn(row)


async def update(conn: AsyncConnection, turn_id: str, *, if_epoch: int | None = None, **columns: object) -> bool:
    """Whether the turn is there (and, with `if_epoch`, still in that epoch) and the named `columns` were set.

    Values are as in `TurnRow`; JSON columns are encoded here.
    """
    values = {f"new_{name}": value for name, value in _encoded(columns).items()}
    statement = _update(tuple(columns), fenced=if_epoch is not None)
    return (await conn.execute(statement, {"of": turn_id, "in": if_epoch, **values})).rowcount == 1


@cache
def _update(names: tuple[str, ...], *, fenced: bool) -> Update:
    where: list[ColumnElement[bool]] = [table.c.id == bindparam("of")]
    if fenced:
        where.append(table.c.epoch == bindparam("in"))
    return update_table(table).where(*where).values({name: bindparam(f"new_{name}") for name in names})


async def next_place(conn: AsyncConnection, conversation_id: str) -> int:
    """The place of the next turn of the conversation, from 1.

    The conversation stays locked until the transaction ends, so that two processes never give out the same place.
    """
    if conn.dialect.name != "sqlite":
        # There the writer has the whole database to itself.
        await conn.execute(_LOCK_CONVERSATION, {"of": conversation_id})
    return int(await conn.scalar(_LAST_PLACE, {"of": conversation_id}) or 0) + 1


async def open_in_conversation(conn: AsyncConnection, conversation_id: str) -> list[TurnRow]:
    """The turns that have not ended (queued, running, waiting), in order of place; the first is the one to run."""
    return await _all(conn, table.c.conversation_id == conversation_id, table.c.status.in_(OPEN))


async def unsettled_in_conversation(conn: AsyncConnection, conversation_id: str) -> list[TurnRow]:
    """The open turns and those that have ended but whose message is not saved, in order of place (H4)."""
    return await _all(conn, table.c.conversation_id == conversation_id, table.c.status != "done")


async def left_behind(conn: AsyncConnection, dead: Collection[str]) -> list[TurnRow]:
    """Every turn that is not done and belongs to nobody or to one of the `dead` owners, in the order of acceptance."""
    return await _all(conn, table.c.status != "done", or_(table.c.owner.is_(None), table.c.owner.in_(dead)))


async def claim(conn: AsyncConnection, turn_id: str, *, owner: str, epoch_from: int) -> bool:
    """Whether `owner` has the turn now, in epoch `epoch_from + 1`; False when another was first, or it is done."""
    taken = update_table(table).where(table.c.id == turn_id, table.c.epoch == epoch_from, table.c.status != "done")
    return (await conn.execute(taken.values(owner=owner, epoch=epoch_from + 1))).rowcount == 1


async def end(
    conn: AsyncConnection, turn_id: str, *, epoch: int, terminal: dict[str, Any], last_seq: int, ended_at: int
) -> bool:
    """Whether this is now the turn's stored ending; False when it has one, or is in another epoch (E1)."""
    values = {"new_terminal": to_json(terminal), "new_last_seq": last_seq, "new_ended_at": ended_at}
    return (await conn.execute(_END, {"of": turn_id, "in": epoch, **values})).rowcount == 1


async def finish(conn: AsyncConnection, turn_id: str, *, epoch: int) -> bool:
    """Whether the turn of this epoch is done now and owned by nobody; for the transaction that saves its message."""
    return await update(conn, turn_id, if_epoch=epoch, status="done", owner=None)


async def request_cancel(conn: AsyncConnection, turn_id: str) -> bool:
    """Whether the turn is open and its cancel is on record, now or since before; False when it has ended."""
    wish = update_table(table).where(table.c.id == turn_id, table.c.status.in_(OPEN)).values(cancel_requested=True)
    return (await conn.execute(wish)).rowcount == 1


async def count_by_status(conn: AsyncConnection) -> dict[TurnStatus, int]:
    """How many turns there are in each status but `done`; statuses without turns are left out."""
    found = select(table.c.status, func.count()).where(table.c.status != "done").group_by(table.c.status)
    return {cast(TurnStatus, status): count for status, count in await conn.execute(found)}


async def count_open_of_user(conn: AsyncConnection, *, tenant: str, user_id: str) -> int:
    """How many turns of this user have not ended."""
    mine = select(func.count()).where(table.c.tenant == tenant, table.c.user_id == user_id, table.c.status.in_(OPEN))
    return int(await conn.scalar(mine) or 0)


async def stops_asked(conn: AsyncConnection, owner: str) -> dict[str, bool]:
    """The open turns of `owner` that somebody, perhaps through another process, has asked to stop; True for those whose
    conversation is being deleted.
    """
    asked = (
        select(table.c.id, conversations.c.deleting)
        .join(conversations, conversations.c.id == table.c.conversation_id)
        .where(table.c.owner == owner, table.c.status.in_(OPEN), or_(table.c.cancel_requested, conversations.c.deleting))
    )
    return {str(row.id): bool(row.deleting) for row in await conn.execute(asked)}


async def unsettled_of(conn: AsyncConnection, turn_ids: Collection[str]) -> set[str]:
    """Those of these turns that are not done."""
    return set((await conn.scalars(select(table.c.id).where(table.c.id.in_(turn_ids), table.c.status != "done"))).all())


async def other_owners(conn: AsyncConnection, owner: str) -> set[str | None]:
    """Who but `owner` has turns that are not done; None stands for those that belong to nobody."""
    others = select(table.c.owner).where(table.c.status != "done", or_(table.c.owner.is_(None), table.c.owner != owner))
    return set((await conn.scalars(others.distinct())).all())


async def list_page(
    conn: AsyncConnection, *, tenant: str, limit: int, status: TurnStatus | None = None, before: str | None = None
) -> list[TurnRow]:
    """At most `limit` turns of a tenant, newest first, from behind the id `before` (ids rise with time); for admins."""
    found = select(table).where(table.c.tenant == tenant).order_by(table.c.id.desc()).limit(limit)
    if status is not None:
        found = found.where(table.c.status == status)
    if before is not None:
        found = found.where(table.c.id < to_text(before))
    return [_turn(row) for row in (await conn.execute(found)).mappings()]


async def _all(conn: AsyncConnection, *where: ColumnElement[bool]) -> list[TurnRow]:
    found = select(table).where(*where).order_by(table.c.conversation_id, table.c.place, table.c.id)
    return [_turn(row) for row in (await conn.execute(found)).mappings()]


def _encoded(columns: dict[str, object]) -> dict[str, object]:
    return {name: to_json(v) if name in _JSON and v is not None else v for name, v in columns.items()}


def _turn(row: RowMapping) -> TurnRow:
    return TurnRow(**{name: from_json(value) if name in _JSON else value for name, value in row.items()})


async def resumed(conn: AsyncConnection, turn_id: str, *, epoch: int, deadline_at: int) -> bool:
    """Whether a turn that waited for an approval is on record as running again, with its moved deadline."""
    waiting = update_table(table).where(table.c.id == turn_id, table.c.epoch == epoch, table.c.status == "waiting")
    return (await conn.execute(waiting.values(status="running", deadline_at=deadline_at))).rowcount == 1


async def disown(conn: AsyncConnection, turn_id: str, *, epoch: int) -> bool:
    """Whether the turn of this epoch belongs to nobody now, as it is; the next process takes it over."""
    return await update(conn, turn_id, if_epoch=epoch, owner=None)


async def settle(
    conn: AsyncConnection, turn_id: str, *, epoch: int, terminal: dict[str, Any], last_seq: int, ended_at: int
) -> bool:
    """Whether the turn of this epoch is done, with nothing left of it but its message; an ending that it has stays (E1)."""
    values = {"new_terminal": to_json(terminal), "new_last_seq": last_seq, "new_ended_at": ended_at}
    return (await conn.execute(_SETTLE, {"of": turn_id, "in": epoch, **values})).rowcount == 1


async def delete(conn: AsyncConnection, turn_id: str) -> None:
    """Forget a turn and the idempotency key that started it, as if it had never been asked for."""
    await conn.execute(delete_from(idempotency_keys).where(idempotency_keys.c.turn_id == turn_id))
    await conn.execute(delete_from(table).where(table.c.id == turn_id))


async def begin(
    conn: AsyncConnection, turn_id: str, *, epoch: int, given: object, started_at: int, deadline_at: int
) -> bool:
    """Whether the turn is on record as running, with what `on_receive` made of its input; never one that has ended."""
    fresh = update_table(table).where(
        table.c.id == turn_id, table.c.epoch == epoch, table.c.status.in_(("queued", "running"))
    )
    begun = {"status": "running", "received": True, "input": given, "started_at": started_at, "deadline_at": deadline_at}
    return (await conn.execute(fresh.values(_encoded(begun)))).rowcount == 1
