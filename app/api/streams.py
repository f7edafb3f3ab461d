"""Opening a stream on a turn: cursor, caps, and what ends it before it begins (R1, R5, R6)."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from app.api.auth import Principal
from app.api.service import Service
from app.api.sse import EndedStream, TurnStream
from app.api.viewers import Form, TooManyViewers, Viewer
from app.turn_log.subscription import Subscription
from app.turns.admission import Draining
from app.turns.capacity import OverCapacity
from app.turns.live import LiveTurn
from app.turns.queries import FoundTurn

# How long an unwatched turn with `on_disconnect: cancel` goes on, in seconds (H6).
GONE_PATIENCE, TOLD_PATIENCE = 10.0, 60.0


def form_of(request: Request) -> Form | None:
    """The stream that the client accepts; None when it asks for none."""
    accept = request.headers.get("accept", "")
    if "text/event-stream" in accept:
        return "sse"
    return "ndjson" if "application/x-ndjson" in accept else None


def cursor_of(request: Request) -> tuple[str | None, bool]:
    """The cursor that the client comes with, header before query, and whether it came in the header (R1)."""
    header = request.headers.get("last-event-id")
    if header:
        return header, True
    return request.query_params.get("last_event_id") or None, False


def check_room(service: Service, principal: Principal, request: Request) -> None:
    """Nothing, when a further viewer fits.

    Raises:
        OverCapacity: it does not.
        Draining: the process is about to stop.
    """
    if service.draining:
        raise Draining
    user = None if principal.anonymous else (principal.tenant, principal.user_id)
    whose = service.viewers.check_room(user=user, address=service.gate.address(request))
    if whose is not None:
        raise OverCapacity(TooManyViewers().message, whose=whose, retry_after=10)


def attach(
    service: Service, found: FoundTurn, principal: Principal, request: Request, form: Form, *, ticket: str | None = None
) -> Response:
    """A response that follows the turn: its stream, or 204 when the client has seen it to its end (R5)."""
    cursor, in_header = cursor_of(request)
    from_snapshot = request.query_params.get("from") == "snapshot" and not in_header
    subscription = Subscription(found.log, cursor=cursor, from_snapshot=from_snapshot)
    if subscription.finished and cursor is not None and not from_snapshot:
        return Response(status_code=204)
    viewer = Viewer(
        subscription,
        form=form,
        heartbeat=request.query_params.get("heartbeat") == "data" and form == "sse",
        user=(principal.tenant, principal.user_id),
        address=service.gate.address(request),
        timeouts=service.viewers.timeouts,
        on_id=partial(service.tickets.used, ticket) if ticket is not None else None,
    )
    if found.live is not None:
        found.live.viewer_came()
    return TurnStream(viewer, service.viewers, closed=partial(_left, found.live))


def refuse(service: Service, form: Form, error: OverCapacity | Draining) -> Response:
    """What an EventSource gets instead of a 4xx or 5xx, from which it would never come back (R6).

    Raises:
        OverCapacity, Draining: for other clients, which can read a status.
    """
    if form != "sse":
        raise error
    return EndedStream(form, "draining" if isinstance(error, Draining) else "busy")


def _left(live: LiveTurn | None, viewer: Viewer) -> None:
    if live is not None:
        live.viewer_left(patience=GONE_PATIENCE if viewer.gone or viewer.aborted else TOLD_PATIENCE)
