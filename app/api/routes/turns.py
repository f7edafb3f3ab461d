"""Turns: start, look, cancel, approve, tickets."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Body, Header, Path, Request, Response
from fastapi.responses import JSONResponse

from app.api import documents, schemas
from app.api.problems import ApprovalClosed, ApprovalConflict, InvalidRequest, TooLarge
from app.api.service import Asker, Running, Service
from app.api.streams import Wished, attach, check_room
from app.clock import now_ms
from app.errors import StoreUnavailable
from app.observability import tracing
from app.store import approvals, turns
from app.store.engine import Connection
from app.turns.admission import Admitted, NotFound, TurnRequest, admit
from app.turns.queries import FoundTurn, find_turn, turn_document

router = APIRouter(tags=["turns"])
# How long the answer to a cancel waits for the store.
_CANCEL_SECONDS = 0.25
Id = Annotated[str, Path(max_length=64)]
_KEY_CHARS = 255
# What OpenAPI says of it: the printable part of Latin-1, which is what a header can carry as it is.
_PRINTABLE = r"^[ -~\u00a1-\u00ac\u00ae-\u00ff]{1,255}$"
IdempotencyKey = Annotated[str | None, Header(json_schema_extra={"pattern": _PRINTABLE})]


@router.post(
    "/v1/conversations/{conversation_id}/turns",
    status_code=202,
    response_model=schemas.AcceptedTurn,
    responses=documents.problems(401, 403, 404, 408, 409, 413, 421, 422, 429, 503)
    | documents.stream("With `Accept: text/event-stream` or `application/x-ndjson`: the turn's events.")
    | {202: {"links": documents.turn_links("$response.body#/turn_id")}},
)
async def start_turn(  # noqa: PLR0917 - FastAPI reads these as the parameters of the request
    request: Request,
    service: Running,
    principal: Asker,
    conversation_id: Id,
    body: Annotated[schemas.NewTurn, Body()],
    wished: Wished,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Start a turn, or attach to the one that the same `Idempotency-Key` started before (H1–H6)."""
    service.check_runs_turns()
    _check_input(body, service.parts.settings.limits.input_chars)
    key = _printable(idempotency_key)
    if wished.form is not None:
        check_room(service, principal, request)
    admitted = await admit(
        TurnRequest(
            conversation_id=conversation_id,
            tenant=principal.tenant,
            user_id=principal.user_id,
            anonymous=principal.anonymous,
            address=service.gate.address(request),
            input=_given(body),
            profile=body.profile,
            on_busy=body.on_busy,
            on_disconnect=body.on_disconnect,
            metadata=body.metadata,
            idempotency_key=key,
            body=body.model_dump(mode="json", exclude_unset=True),
            traceparent=tracing.incoming(request.headers.get("traceparent")),
        ),
        service.parts,
        service.supervisor,
    )
    if wished.form is not None:
        found = await find_turn(admitted.turn_id, principal, service.parts, service.supervisor)
        return attach(service, found, principal, request, wished)
    return _accepted(admitted, service)


def _printable(key: str | None) -> str | None:
    """An `Idempotency-Key`, from UTF-8 where it is that.

    Raises:
        InvalidRequest: it is empty, too long, or has characters that cannot be printed.
    """
    if key is None:
        return None
    with suppress(UnicodeDecodeError):
        key = key.encode("latin-1").decode()
    if not key.isprintable() or not 1 <= len(key) <= _KEY_CHARS:
        raise InvalidRequest(f"Idempotency-Key must be 1 to {_KEY_CHARS} printable characters.")
    return key


def _given(body: schemas.NewTurn) -> str | list[dict[str, Any]]:
    if isinstance(body.input, str):
        return body.input
    return [part.model_dump(mode="json", exclude_none=True) for part in body.input]


def _check_input(body: schemas.NewTurn, max_chars: int) -> None:
    if isinstance(body.input, str):
        chars = len(body.input)
    else:
        chars = sum(len(part.text) for part in body.input if isinstance(part, schemas.TextPart))
    if chars > max_chars:
        raise TooLarge(f"The input has {chars} characters; {max_chars} is the most.")


def _accepted(admitted: Admitted, service: Service) -> Response:
    live = service.supervisor.get(admitted.turn_id)
    status = live.log.status if live is not None and not admitted.fresh else admitted.status
    body = {
        "turn_id": admitted.turn_id,
        "conversation_id": admitted.conversation_id,
        "message_id": admitted.message_id,
        "status": status,
        **documents.urls(admitted.turn_id),
    }
    return JSONResponse(body, status_code=202, headers={"Location": f"/v1/turns/{admitted.turn_id}"})


@router.get(
    "/v1/turns/{turn_id}",
    response_model=schemas.Turn,
    response_model_exclude_none=True,
    responses=documents.problems(401, 403, 404, 422, 503),
)
async def get_turn(service: Running, principal: Asker, turn_id: Id) -> dict[str, Any]:
    """The state of a turn and everything so far."""
    return turn_document(await _find(service, principal, turn_id))


@router.post(
    "/v1/turns/{turn_id}/cancel",
    response_model=schemas.CancelAnswer,
    responses=documents.problems(401, 403, 404, 422, 503)
    | {202: {"model": schemas.CancelAnswer, "description": "It is stopping."}},
)
async def cancel_turn(service: Running, principal: Asker, turn_id: Id) -> Response:
    """Stop a turn; 202 while it is stopping, 200 when it is over already. An admin may stop those of its tenant."""
    admin = principal.role == "admin"
    found = await find_turn(turn_id, principal, service.parts, service.supervisor, of_tenant=admin)
    live = found.live
    if found.elsewhere:
        # Whoever runs it looks for this twice a second.
        stopping = await service.parts.store.write(lambda conn: turns.request_cancel(conn, turn_id), timeout=2.0)
        status = found.log.status if stopping else "done"
        return JSONResponse({"turn_id": turn_id, "status": status}, status_code=202 if stopping else 200)
    stopping = live is not None and live.open
    if live is not None and stopping and service.supervisor.cancel(live):
        # It has taken effect; it is answered when it also outlives the process, or the store is slow.
        stored = anyio.Event()
        service.supervisor.background(_store_cancel(service, turn_id, stored))
        with anyio.move_on_after(_CANCEL_SECONDS):
            await stored.wait()
    return JSONResponse({"turn_id": turn_id, "status": found.log.status}, status_code=202 if stopping else 200)


async def _store_cancel(service: Service, turn_id: str, stored: anyio.Event) -> None:
    try:
        await service.parts.store.write(lambda conn: turns.request_cancel(conn, turn_id))
    except StoreUnavailable:
        # The cancel has won in this process; only a crash before the ending would forget it.
        return
    finally:
        stored.set()


@router.post(
    "/v1/turns/{turn_id}/approvals/{approval_id}",
    response_model=schemas.ApprovalResult,
    responses=documents.problems(401, 403, 404, 408, 409, 413, 422, 503),
)
async def answer_approval(
    service: Running, principal: Asker, turn_id: Id, approval_id: Id, body: Annotated[schemas.ApprovalAnswer, Body()]
) -> dict[str, str]:
    """Answer an approval; the same answer again is fine at any time."""
    found = await _find(service, principal, turn_id)
    live = found.live
    if live is not None:
        answerable = live.open and not live.decision.made
    else:
        answerable = found.elsewhere and not found.row.cancel_requested

    async def op(conn: Connection) -> approvals.Approval | None:
        row = await approvals.get(conn, approval_id)
        if row is None or row.turn_id != turn_id or not answerable or row.expires_at <= now_ms():
            return row
        return await approvals.decide(
            conn, approval_id, decision=body.decision, by=principal.user_id, comment=body.comment, at=now_ms()
        )

    row = await service.parts.store.write(op, timeout=2.0)
    if row is None or row.turn_id != turn_id:
        raise NotFound(f"There is no approval {approval_id}.")
    if row.decision is None or row.decision in ("expired", "cancelled"):
        raise ApprovalClosed
    if row.decision != body.decision:
        raise ApprovalConflict(f"This approval was answered with {row.decision} before.")
    if live is not None:
        live.answer(approval_id, row.decision, row.decided_by or principal.user_id, row.comment)
    return {"approval_id": approval_id, "decision": row.decision}


@router.post(
    "/v1/turns/{turn_id}/tickets",
    status_code=201,
    response_model=schemas.Ticket,
    responses=documents.problems(401, 403, 404, 422, 503),
)
async def issue_ticket(service: Running, principal: Asker, turn_id: Id) -> dict[str, Any]:
    """A ticket for an EventSource to read this one turn as `?ticket=`; it is a secret."""
    await _find(service, principal, turn_id)
    ticket = await service.tickets.issue(turn_id, principal)
    return {"ticket": ticket, "expires_in": 60}


async def _find(service: Service, principal: Asker, turn_id: str) -> FoundTurn:
    return await find_turn(turn_id, principal, service.parts, service.supervisor)
