"""Following a turn. A GET only attaches: it never starts work, so a proxy may repeat it as it likes (R9)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from app.api import documents
from app.api.auth import Principal
from app.api.routes.turns import Id
from app.api.service import Running
from app.api.streams import attach, check_room, cursor_of, form_of, refuse
from app.turns.admission import Draining
from app.turns.capacity import OverCapacity
from app.turns.queries import find_turn

router = APIRouter(tags=["turns"])


@router.get(
    "/v1/turns/{turn_id}/events",
    response_class=Response,
    responses=documents.problems(401, 403, 404, 422, 429, 503)
    | documents.stream("The events after the cursor, then live.")
    | {204: {"description": "The client has seen the turn to its end."}},
)
async def follow(
    request: Request,
    service: Running,
    turn_id: Id,
    ticket: Annotated[str | None, Query(description="A ticket, in place of other credentials.")] = None,
    last_event_id: Annotated[str | None, Query(description="A cursor, where no header can be set.")] = None,
    from_: Annotated[str | None, Query(alias="from", description="`snapshot`: begin with one.")] = None,
    heartbeat: Annotated[str | None, Query(description="`data`: keep-alives as events, too.")] = None,
    header: Annotated[str | None, Header(alias="Last-Event-ID", description="A cursor.")] = None,
) -> Response:
    """Attach a viewer: SSE, or NDJSON by `Accept` (R1–R9)."""
    form = form_of(request) or "sse"
    principal = await _principal(request, service, turn_id, ticket)
    found = await find_turn(turn_id, principal, service.parts, service.supervisor)
    if ticket is not None and principal.via == "ticket":
        service.tickets.check_age(found.log, found.row.ended_at)
    try:
        check_room(service, principal, request)
    except (OverCapacity, Draining) as error:
        return refuse(service, form, error)
    return attach(service, found, principal, request, form, ticket=ticket if principal.via == "ticket" else None)


async def _principal(request: Request, service: Running, turn_id: str, ticket: str | None) -> Principal:
    if ticket is None or service.gate.keyless:
        return await service.gate.authenticate(request)
    cursor, _ = cursor_of(request)
    return await service.tickets.redeem(ticket, turn_id=turn_id, cursor=cursor)
