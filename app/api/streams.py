"""Opening a stream on a turn: cursor, caps, and what ends it before it begins (R1, R5, R6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import Depends, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from app.api.auth import Principal
from app.api.service import Service
from app.api.sse import EndedStream, TurnStream
from app.api.viewers import Form, TooManyViewers, Viewer
from app.observability import metrics
from app.turn_log.subscription import Subscription
from app.turns.admission import Draining
from app.turns.capacity import OverCapacity
from app.turns.live import LiveTurn
from app.turns.queries import FoundTurn

_FORMS: dict[str, Form | None] = {"text/event-stream": "sse", "application/x-ndjson": "ndjson", "application/json": None}
# How long an unwatched turn with `on_disconnect: cancel` goes on, in seconds (H6).
GONE_PATIENCE, TOLD_PATIENCE = 10.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How a client wants to follow a turn. `form` is None when it asks for no stream; `cursor` is what it has seen (R1)."""

    form: Form | None
    cursor: str | None
    from_snapshot: bool
    heartbeat: bool


def form_of(accept: str) -> Form | None:
    """The form of a stream that an `Accept` header asks for; None when it asks for JSON, or for anything (H2).

    The highest quality wins; of equals a stream is meant, since other clients do not name one.
    """
    quality = dict.fromkeys(_FORMS, 0.0)
    for entry in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        if kind in quality:
            stated = next((p.partition("=")[2] for p in parameters if p.replace(" ", "").startswith("q=")), "1")
            quality[kind] = max(quality[kind], _quality(stated))
    best = max(quality, key=lambda kind: quality[kind])
    return _FORMS[best] if quality[best] > 0 else None


def _quality(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 1.0


async def wish(
    request: Request,
    header: Annotated[str | None, Header(alias="Last-Event-ID", description="A cursor.")] = None,
    last_event_id: Annotated[str | None, Query(description="A cursor, where no header can be set.")] = None,
    from_: Annotated[str | None, Query(alias="from", description="`snapshot`: begin with one.")] = None,
    heartbeat: Annotated[str | None, Query(description="`data`: keep-alives as events, too.")] = None,
) -> Wish:
    """What the request says of it: the header wins over the query, and a cursor in it over `from` (R1, R3)."""
    return Wish(
        form=form_of(",".join(request.headers.getlist("accept"))),
        cursor=header or last_event_id or None,
        from_snapshot=from_ == "snapshot" and not header,
        heartbeat=heartbeat == "data",
    )


Wished = Annotated[Wish, Depends(wish)]


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
    service: Service, found: FoundTurn, principal: Principal, request: Request, wished: Wish, *, ticket: str | None = None
) -> Response:
    """A response that follows the turn: its stream, or 204 when the client has seen it to its end (R5).

    Raises:
        Draining: another process has it, which is about to leave, or has left and is followed by this one in a moment.
    """
    if found.elsewhere:
        raise Draining
    form = wished.form or "sse"
    subscription = Subscription(found.log, cursor=wished.cursor, from_snapshot=wished.from_snapshot)
    kind = "snapshot" if subscription.seq < 0 else "start" if subscription.seq == 0 else "resume"
    if subscription.finished and wished.cursor is not None and not wished.from_snapshot:
        metrics.attaches.labels("after the end").inc()
        return Response(status_code=204)
    metrics.attaches.labels(kind).inc()
    viewer = Viewer(
        subscription,
        form=form,
        heartbeat=wished.heartbeat and form == "sse",
        user=(principal.tenant, principal.user_id),
        address=service.gate.address(request),
        timeouts=service.viewers.timeouts,
        on_id=partial(service.tickets.used, ticket) if ticket is not None else None,
    )
    if found.live is not None:
        found.live.viewer_came()
    return TurnStream(viewer, service.viewers, closed=partial(_left, found.live))


def refuse(form: Form, error: OverCapacity | Draining) -> Response:
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
