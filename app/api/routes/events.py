"""Following a turn. A GET only attaches: it never starts work, so a proxy may repeat it as it likes (R9)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.api import documents
from app.api.routes.turns import Id
from app.api.service import Running
from app.api.streams import Wished, attach, check_room, refuse
from app.turns.admission import Draining
from app.turns.capacity import OverCapacity
from app.turns.queries import find_turn

router = APIRouter(tags=["turns"])


@router.get(
    "/v1/turns/{turn_id}/events",
    response_class=Response,
    responses=documents.problems(401, 403, 404, 421, 422, 429, 503)
    | documents.stream("The events after the cursor, then live.")
    | {204: {"description": "The client has seen the turn to its end."}},
)
async def follow(
    request: Request,
    service: Running,
    turn_id: Id,
    wished: Wished,
    ticket: Annotated[str | None, Query(description="A ticket, in place of other credentials.")] = None,
) -> Response:
    """Attach a viewer: SSE, or NDJSON by `Accept` (R1–R9)."""
    if ticket is None or service.gate.keyless:
        principal = await service.gate.authenticate(request)
    else:
        principal = await service.tickets.redeem(ticket, turn_id=turn_id, cursor=wished.cursor)
    found = await find_turn(turn_id, principal, service.parts, service.supervisor)
    if found.elsewhere:
        service.check_runs_turns()
    by_ticket = ticket if principal.via == "ticket" else None
    if by_ticket is not None:
        service.tickets.check_age(found.log, found.row.ended_at)
    try:
        check_room(service, principal, request)
        return attach(service, found, principal, request, wished, ticket=by_ticket)
    except (OverCapacity, Draining) as error:
        return refuse(wished.form or "sse", error)
