"""Whether a turn may begin: idempotency first, then busy, then capacity, in one short store transaction (F2, H3–H5).

The answer is a value (`Admitted`) or a refusal that leaves nothing behind. Nothing slow happens here: no hook, no model.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio
import structlog

from app.clock import now_ms
from app.errors import EarlybyteError, StoreUnavailable
from app.events.content import TurnContent
from app.ids import new_id
from app.store import conversations, idempotency, turns
from app.store.engine import Connection
from app.store.errors import Conflict
from app.store.idempotency import IdempotencyKey
from app.store.turns import TurnRow
from app.turns.live import LiveTurn
from app.turns.parts import Parts
from app.turns.state import Cancelled
from app.turns.supervisor import DAY_MS, Supervisor

log = structlog.get_logger(__name__)
# How long the decision may take before the answer is 503 (F2).
ADMISSION_SECONDS = 2.0


class NotFound(EarlybyteError):
    """There is no such thing, or it is not yours."""

    code = "not_found"


class ConversationBusy(EarlybyteError):
    """Another turn of this conversation is open."""

    code = "conversation_busy"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"The turn {turn_id} of this conversation is open; wait for it, or use on_busy.")
        self.turn_id = turn_id


class KeyReused(EarlybyteError):
    """This Idempotency-Key was used with another request."""

    code = "idempotency_key_reused"


class UnknownProfile(EarlybyteError):
    """There is no such profile."""

    code = "unknown_profile"


class Draining(EarlybyteError):
    """The service is about to stop; try again in a moment."""

    code = "draining"


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    """What a caller asks for. `user` is (tenant, id); `anonymous` marks the keyless local user, who has no caps.

    `traceparent` is the request's, where it is wanted for the spans of the turn.
    """

    conversation_id: str
    tenant: str
    user_id: str
    anonymous: bool
    address: str
    input: str | list[dict[str, Any]]
    profile: str | None
    on_busy: Literal["reject", "enqueue", "interrupt"]
    on_disconnect: Literal["continue", "cancel"]
    metadata: dict[str, Any] | None
    idempotency_key: str | None
    body: Any
    traceparent: str | None = None


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """The turn that answers the request; `fresh` when this request started it."""

    turn_id: str
    conversation_id: str
    message_id: str
    status: str
    fresh: bool


def body_hash(conversation_id: str, body: Any) -> str:
    """SHA-256 of a request: the body as canonical JSON, so that spelling does not matter, and the conversation."""
    canonical = json.dumps([conversation_id, _as_numbers(body)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _as_numbers(value: Any) -> Any:
    """The same JSON value with 1.0 as 1: they are one number."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _as_numbers(one) for key, one in value.items()}
        case list():
            return [_as_numbers(one) for one in value]
    return value


async def admit(request: TurnRequest, parts: Parts, supervisor: Supervisor) -> Admitted:
    """The turn for this request, started or found.

    Raises:
        NotFound, UnknownProfile, ConversationBusy, KeyReused, Draining, app.turns.capacity.OverCapacity: refused.
        StoreUnavailable: the decision could not be stored within 2 s.
    """
    admission = _Admission(request, parts, supervisor)
    with anyio.CancelScope(shield=True):
        try:
            admitted = await admission.store()
        except Conflict:
            # Another replica was first with this key; the second look finds it.
            admitted = await admission.store()
    return admitted


class _Admission:
    """One decision, made inside its transaction."""

    def __init__(self, request: TurnRequest, parts: Parts, supervisor: Supervisor) -> None:
        self._request = request
        self._parts = parts
        self._supervisor = supervisor
        self._refused = False

    async def store(self) -> Admitted:
        accepted: list[LiveTurn] = []
        interrupted: list[LiveTurn] = []
        self._refused = False

        async def op(conn: Connection) -> Admitted:
            return await self._decide(conn, accepted, interrupted)

        try:
            admitted = await self._parts.store.write(op, timeout=ADMISSION_SECONDS)
        except BaseException as error:
            # The decision may still be on its way in the store; it must not take a turn in any more.
            self._refused = True
            for turn in accepted:
                self._supervisor.withdraw(turn)
                if isinstance(error, StoreUnavailable):
                    # It may yet be stored: a refused turn leaves nothing behind (H5).
                    self._supervisor.background(self._undo(turn.id))
            raise
        for turn in interrupted:
            self._supervisor.cancel(turn, Cancelled())
        for turn in accepted:
            self._supervisor.start(turn)
            if self._supervisor.is_running(turn):
                return replace(admitted, status="running")
        return admitted

    async def _decide(self, conn: Connection, accepted: list[LiveTurn], interrupted: list[LiveTurn]) -> Admitted:
        request = self._request
        hashed = body_hash(request.conversation_id, request.body)
        known = await self._known(conn, hashed)
        if known is not None:
            return known
        conversation = await conversations.get(conn, request.conversation_id, tenant=request.tenant, user_id=request.user_id)
        if conversation is None:
            raise NotFound(f"There is no conversation {request.conversation_id}.")
        if self._supervisor.draining:
            raise Draining
        profile = request.profile or conversation.profile or "default"
        assistant = self._parts.assistants.get(profile)
        if assistant is None:
            raise UnknownProfile(f"There is no profile called {profile!r}.")
        open_turns = self._supervisor.open_in(request.conversation_id)
        elsewhere = await self._elsewhere(conn)
        if (open_turns or elsewhere) and request.on_busy == "reject":
            raise ConversationBusy(open_turns[0].id if open_turns else elsewhere[0])
        if request.on_busy == "interrupt":
            interrupted.extend(open_turns)
            for turn_id in [*(turn.id for turn in open_turns), *elsewhere]:
                # On record, so that a crash in between does not bring it back, and other processes know.
                await turns.request_cancel(conn, turn_id)
        user = None if request.anonymous else (request.tenant, request.user_id)
        self._supervisor.check_capacity(user=user, address=request.address, leaving=interrupted)
        row = TurnRow(
            id=new_id("turn"),
            conversation_id=request.conversation_id,
            user_id=request.user_id,
            tenant=request.tenant,
            message_id=new_id("msg"),
            user_message_id=new_id("msg"),
            profile=profile,
            input=request.input,
            metadata=request.metadata,
            on_disconnect=request.on_disconnect,
            place=await turns.next_place(conn, request.conversation_id),
            status="queued",
            owner=self._parts.owner,
            created_at=now_ms(),
        )
        await turns.insert(conn, row)
        if request.idempotency_key is not None:
            await idempotency.insert(
                conn,
                IdempotencyKey(
                    tenant=request.tenant,
                    user_id=request.user_id,
                    key=request.idempotency_key,
                    conversation_id=request.conversation_id,
                    turn_id=row.id,
                    body_hash=hashed,
                    created_at=row.created_at,
                ),
            )
        if self._refused:
            raise StoreUnavailable
        content = TurnContent(
            turn_id=row.id, conversation_id=row.conversation_id, message_id=row.message_id, profile=profile
        )
        # In memory before the commit, so that a repeat in the same batch finds its log.
        turn_log = self._parts.logs.open(content)
        turn = LiveTurn(row, assistant, turn_log, address=request.address, traceparent=request.traceparent)
        turn.waits_for.update(elsewhere)
        accepted.append(turn)
        self._supervisor.accept(turn)
        return Admitted(
            turn_id=row.id,
            conversation_id=row.conversation_id,
            message_id=row.message_id,
            status="queued",
            fresh=True,
        )

    async def _elsewhere(self, conn: Connection) -> list[str]:
        """Open turns of the conversation that other processes run, or are to take over."""
        rows = await turns.open_in_conversation(conn, self._request.conversation_id)
        return [row.id for row in rows if row.owner != self._parts.owner and self._supervisor.get(row.id) is None]

    async def _known(self, conn: Connection, hashed: str) -> Admitted | None:
        """The turn that this key has started, if it has and is not older than a day (H3)."""
        request = self._request
        if request.idempotency_key is None:
            return None
        key = await idempotency.get(conn, tenant=request.tenant, user_id=request.user_id, key=request.idempotency_key)
        if key is None:
            return None
        row = await turns.get(conn, key.turn_id)
        if row is None or key.created_at < now_ms() - DAY_MS:
            await idempotency.delete(conn, tenant=key.tenant, user_id=key.user_id, key=key.key)
            return None
        if key.body_hash != hashed:
            raise KeyReused
        status = "done" if row.status in ("ended", "done") else row.status
        return Admitted(
            turn_id=row.id,
            conversation_id=row.conversation_id,
            message_id=row.message_id,
            status=status,
            fresh=False,
        )

    async def _undo(self, turn_id: str) -> None:
        """Take back a turn that was stored after its request had been refused."""
        for _ in range(60):
            try:
                await self._parts.store.write(lambda conn: turns.delete(conn, turn_id))
            except StoreUnavailable:
                await anyio.sleep(1)
            else:
                return
