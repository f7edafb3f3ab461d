"""Turns that a dead process left behind: forward where the journal allows it, else settled (PROTOCOL 5, X1, X2).

A turn is taken over by raising its epoch, so that an owner which only slept can write nothing more (E7). What was shown is
folded from the journal; then one of four ways: a stored ending is completed, a stored cancel is settled, a turn that may go
on goes on where it was, everything else ends as `recovered`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import anyio
import structlog

from app.agents.context import OpenCall, ToolResult
from app.agents.transcript import Message, calls_of
from app.clock import now_ms
from app.errors import EarlybyteError
from app.events.content import TurnContent
from app.observability import metrics
from app.store import approvals, conversations, journal, turns
from app.store.approvals import Approval
from app.store.engine import Connection
from app.store.journal import Entry
from app.store.lease import Lease
from app.store.turns import TurnRow
from app.turns import state
from app.turns.journaled import content_of, has_begun
from app.turns.live import LiveTurn, Recovery
from app.turns.parts import Parts
from app.turns.supervisor import Supervisor

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Left:
    """One turn as it was left: its row in the new epoch, its journal and its approvals."""

    row: TurnRow
    entries: list[Entry]
    approvals: list[Approval]
    deleting: bool

    @property
    def begun(self) -> bool:
        """Whether it has run."""
        return has_begun(self.row, self.entries)


async def keep_recovering(parts: Parts, supervisor: Supervisor, lease: Lease) -> None:
    """Take over, once a second, what processes hand on or leave behind; what waits for a turn of theirs is let go on."""
    while not supervisor.draining:
        await anyio.sleep(1)
        try:
            await recover(parts, supervisor, lease)
        except EarlybyteError as error:
            log.warning("could not look for turns without an owner", error=error.message)
        except Exception:
            log.exception("recovery broke")


async def recover(parts: Parts, supervisor: Supervisor, lease: Lease) -> int:
    """How many turns were taken over; each is in the supervisor's hands when this returns."""
    owners = await parts.store.read(lambda conn: turns.other_owners(conn, parts.owner))
    if not owners or supervisor.draining:
        return 0
    named = {owner for owner in owners if owner is not None}
    dead = named - await lease.living(named)
    if not dead and None not in owners:
        return 0
    left = await parts.store.write(lambda conn: _claim_all(conn, parts.owner, dead))
    for one in left:
        try:
            turn = _revive(one, parts)
        except Exception as error:
            # A journal that this version cannot read: one turn that stays as it is must not keep the others from going on.
            log.critical("turn not recovered", turn_id=one.row.id, error=f"{type(error).__name__}: {error}")
            continue
        log.info("turn recovered", turn_id=turn.id, was=one.row.status, decided=str(turn.decision.cause or ""))
        supervisor.accept(turn)
    for one in left:
        revived = supervisor.get(one.row.id)
        if revived is not None:
            supervisor.start(revived)
    if left:
        metrics.turns_recovered.inc(len(left))
        log.info("turns taken over", count=len(left))
    return len(left)


async def _claim_all(conn: Connection, owner: str, dead: Collection[str]) -> list[_Left]:
    left: list[_Left] = []
    for row in await turns.left_behind(conn, dead):
        if not await turns.claim(conn, row.id, owner=owner, epoch_from=row.epoch):
            continue
        left.append(
            _Left(
                row=replace(row, epoch=row.epoch + 1, owner=owner),
                entries=await journal.load(conn, row.id),
                approvals=await approvals.for_turn(conn, row.id),
                deleting=await conversations.is_deleting(conn, row.conversation_id),
            )
        )
    return left


def _revive(left: _Left, parts: Parts) -> LiveTurn:
    """The turn in memory again, with its way decided."""
    row = left.row
    content = content_of(left.row, left.entries)
    turn_log = parts.logs.open(content)
    assistant = parts.assistants.get(row.profile) or parts.assistants["default"]
    turn = LiveTurn(row, assistant, turn_log)
    turn.accepted_at -= max(0.0, (now_ms() - row.created_at) / 1000)
    if left.begun:
        turn.recovery = _recovery(left, content)
        turn.row = _with_time_back(row, content, approval_seconds=parts.settings.timeouts.approval)
        cause = _cause(left, turn, content, reserve=parts.settings.timeouts.reserve)
        if cause is not None:
            turn.stop(cause)
    elif row.cancel_requested or left.deleting:
        turn.stop(state.Cancelled(deleted=left.deleting))
    for approval in left.approvals:
        if approval.decision in ("approve", "deny"):
            turn.answer(approval.id, approval.decision, approval.decided_by or "", approval.comment)
    return turn


def _with_time_back(row: TurnRow, content: TurnContent, *, approval_seconds: float) -> TurnRow:
    """The row with its deadline moved by the time that it has waited for a person (B4)."""
    asked = [a["expires_at"] - int(approval_seconds * 1000) for a in content.approvals.values() if "decision" not in a]
    if row.status != "waiting" or not asked or row.deadline_at is None:
        return row
    return replace(row, deadline_at=row.deadline_at + max(0, now_ms() - min(asked)))


def _cause(left: _Left, turn: LiveTurn, content: TurnContent, *, reserve: float) -> state.Cause | None:
    """Why the turn must end now; None when it may go forward."""
    row = left.row
    if row.terminal is not None:
        return state.Stored(row.terminal)
    if row.cancel_requested or left.deleting:
        return state.Cancelled(deleted=left.deleting)
    if row.profile != turn.assistant.name:
        return state.Recovered()
    waits = row.status == "waiting"
    if not waits and row.deadline_at is not None and row.deadline_at - now_ms() <= reserve * 1000:
        return state.Recovered()
    if turn.assistant.agent is not None:
        # A user's own agent cannot be entered in the middle; it is started again only where nothing was seen or done.
        fresh = not content.visible and not content.tool_begun
        return None if fresh and turn.assistant.profile.restartable else state.Recovered()
    # Something visible of a model call that did not end: it cannot be made again.
    return state.Recovered() if _shown_since_last_step(left) else None


def _shown_since_last_step(left: _Left) -> bool:
    """Whether text came after the last step that is on record."""
    return _last_block(left.entries[_last_step(left.entries) :]) > 0


def _last_step(entries: list[Entry]) -> int:
    """How many entries there are up to the last step, it included."""
    return max((place for place, entry in enumerate(entries, 1) if entry.kind == "step"), default=0)


def _last_block(entries: list[Entry]) -> int:
    """The last block of text in them; 0 when there is none."""
    events = [event for entry in entries if entry.kind == "events" for event in entry.body]
    return max((event["block"] for event in events if event["type"] == "text_delta"), default=0)


def _recovery(left: _Left, content: TurnContent) -> Recovery:
    steps: list[tuple[Message, dict[str, ToolResult]]] = []
    for entry in left.entries:
        body: dict[str, Any] = entry.body
        if entry.kind == "step":
            steps.append((body, {}))
        elif entry.kind == "result":
            for message, results in steps:
                if any(call["id"] == body["tool_call_id"] for call in message.get("tool_calls") or []):
                    results[body["tool_call_id"]] = ToolResult(**body)
    open_calls: list[OpenCall] = []
    if steps:
        message, results = steps[-1]
        asked = {a["tool_call_id"]: a["approval_id"] for a in content.approvals.values()}
        open_calls = [
            OpenCall(
                id=call.id,
                name=call.name,
                arguments=call.arguments,
                started=call.id in content.tools,
                approval_id=asked.get(call.id),
            )
            for call in calls_of(message)
            if call.id not in results
        ]
    next_n = max((entry.n for entry in left.entries), default=0) + 1
    block = _last_block(left.entries[: _last_step(left.entries)])
    return Recovery(steps=steps, block=block, open_calls=open_calls, step=len(steps), next_n=next_n)
