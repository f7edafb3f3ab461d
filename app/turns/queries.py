"""Read models: what the API shows of turns, from memory while they are here and from the store after that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.events import codec
from app.events.content import TurnContent
from app.events.envelope import fit
from app.events.types import Event
from app.store import journal, messages, turns
from app.store.engine import Connection
from app.store.journal import Entry
from app.store.turns import TurnRow
from app.turn_log.log import TurnLog
from app.turns.admission import NotFound
from app.turns.journaled import content_of
from app.turns.live import LiveTurn
from app.turns.parts import Parts
from app.turns.supervisor import Supervisor


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks."""

    tenant: str
    user_id: str


@dataclass(frozen=True, kw_only=True)
class FoundTurn:
    """A turn that the caller may see; `live` while this process runs it."""

    row: TurnRow
    log: TurnLog
    live: LiveTurn | None

    @property
    def elsewhere(self) -> bool:
        """Whether it is open, but not in this process: it can be looked at and stopped here, not followed."""
        return self.live is None and not self.log.ended


async def find_turn(
    turn_id: str, caller: Caller, parts: Parts, supervisor: Supervisor, *, of_tenant: bool = False
) -> FoundTurn:
    """The caller's own turn with a log of it; with `of_tenant` that of anybody in the caller's tenant.

    A turn that is no longer in memory gets a log without frames, made from its stored message: readers get a snapshot. So
    does one that runs in another process, made from its journal: it is as it was a second ago, and nobody writes to it.

    Raises:
        NotFound: no such turn, or another user's (A2).
        StoreUnavailable: it is not in memory, and the store does not answer.
    """
    live = supervisor.get(turn_id)
    if live is not None:
        _check_owner(live.row, caller, of_tenant=of_tenant)
        return FoundTurn(row=live.row, log=live.log, live=live)

    async def load(conn: Connection) -> tuple[TurnRow | None, list[messages.Message], list[Entry]]:
        row = await turns.get(conn, turn_id)
        if row is None:
            return None, [], []
        open_ = row.status in turns.OPEN
        return row, await messages.for_turn(conn, turn_id), await journal.load(conn, turn_id) if open_ else []

    row, found, entries = await parts.store.read(load)
    if row is None:
        raise NotFound(f"There is no turn {turn_id}.")
    _check_owner(row, caller, of_tenant=of_tenant)
    log = parts.logs.get(turn_id)
    if log is None and row.status in ("queued", "running", "waiting"):
        log = TurnLog(content_of(row, entries))
        log.status = row.status
    elif log is None:
        log = _log_of_stored(row, next((m for m in found if m.role == "assistant"), None))
    return FoundTurn(row=row, log=log, live=None)


def _check_owner(row: TurnRow, caller: Caller, *, of_tenant: bool) -> None:
    if row.tenant != caller.tenant or (row.user_id != caller.user_id and not of_tenant):
        raise NotFound(f"There is no turn {row.id}.")


def _log_of_stored(row: TurnRow, reply: messages.Message | None) -> TurnLog:
    document: dict[str, Any] = dict(reply.content) if reply is not None else {"terminal": row.terminal}
    document["last_seq"] = max(row.last_seq, document.get("last_seq", 0))
    document["epoch"] = row.epoch
    content = TurnContent.from_document(
        document,
        turn_id=row.id,
        conversation_id=row.conversation_id,
        message_id=row.message_id,
        profile=row.profile,
    )
    if content.terminal is not None:
        # The row has it with the whole text, which the blocks have, too.
        ending = codec.from_fields(content.terminal)
        content.terminal = codec.to_fields(fit(ending)[0]) if isinstance(ending, Event) else content.terminal
    log = TurnLog(content)
    log.end()
    return log


def turn_document(found: FoundTurn) -> dict[str, Any]:
    """What `GET /v1/turns/{id}` answers: the content of a snapshot, with whole tool outputs."""
    log, row = found.log, found.row
    return {
        "id": row.id,
        "conversation_id": row.conversation_id,
        "message_id": row.message_id,
        "profile": row.profile,
        "status": log.status,
        "created_at": row.created_at,
        **log.content.to_document(),
    }
