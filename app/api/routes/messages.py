"""Single messages and what people think of them."""

from __future__ import annotations

from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Body, Response

from app.api import documents, schemas
from app.api.markdown import render
from app.api.problems import MessageNotSaved, NotReactable
from app.api.routes.turns import Id
from app.api.service import Asker, Running, Service
from app.clock import now_ms
from app.store import conversations, messages, reactions
from app.store.engine import Connection
from app.store.messages import Message
from app.turns.admission import NotFound

router = APIRouter(tags=["messages"])
# Text up to this length is rendered on the loop.
SHORT_CHARS = 2000


@router.get(
    "/v1/messages/{message_id}",
    response_model=schemas.Message,
    response_model_exclude_unset=True,
    responses=documents.problems(401, 403, 404, 422, 503),
)
async def get_message(service: Running, principal: Asker, message_id: Id) -> dict[str, Any]:
    """One message, with its text as sanitised HTML."""
    row = await _own(service, principal, message_id)
    reacted = await service.parts.store.read(lambda conn: reactions.for_messages(conn, [message_id], principal.user_id))
    reaction = reacted[message_id].reaction if message_id in reacted else None
    # Two microseconds a character: what is long must not hold up the streams.
    html = render(row.text) if len(row.text) < SHORT_CHARS else await anyio.to_thread.run_sync(render, row.text)
    return documents.message(row, reaction=reaction, html=html)


@router.put(
    "/v1/messages/{message_id}/reaction",
    response_model=schemas.Reaction,
    response_model_exclude_none=True,
    responses=documents.problems(401, 403, 404, 408, 409, 413, 422, 503),
)
async def react(
    service: Running, principal: Asker, message_id: Id, body: Annotated[schemas.NewReaction, Body()]
) -> dict[str, Any]:
    """Like or dislike an answer; one reaction for each user and message."""
    await _reactable(service, principal, message_id)
    await service.parts.store.write(
        lambda conn: reactions.put(
            conn,
            message_id=message_id,
            user_id=principal.user_id,
            reaction=body.reaction,
            comment=body.comment,
            at=now_ms(),
        ),
        timeout=2.0,
    )
    return {"reaction": body.reaction, "comment": body.comment}


@router.delete(
    "/v1/messages/{message_id}/reaction", status_code=204, responses=documents.problems(401, 403, 404, 409, 422, 503)
)
async def take_back(service: Running, principal: Asker, message_id: Id) -> Response:
    """Take a reaction back; harmless when there is none."""
    await _reactable(service, principal, message_id)
    await service.parts.store.write(
        lambda conn: reactions.delete(conn, message_id=message_id, user_id=principal.user_id), timeout=2.0
    )
    return Response(status_code=204)


async def _reactable(service: Service, principal: Asker, message_id: str) -> Message:
    row = await _own(service, principal, message_id)
    if row.role != "assistant" or row.status == "apology":
        raise NotReactable
    return row


async def _own(service: Service, principal: Asker, message_id: str) -> Message:
    async def load(conn: Connection) -> Message | None:
        row = await messages.get(conn, message_id)
        if row is None:
            return None
        own = await conversations.get(conn, row.conversation_id, tenant=principal.tenant, user_id=principal.user_id)
        return row if own is not None else None

    row = await service.parts.store.read(load)
    if row is not None:
        return row
    for turn in service.supervisor.turns():
        mine = (turn.row.tenant, turn.row.user_id) == (principal.tenant, principal.user_id)
        if turn.row.message_id == message_id and mine:
            raise MessageNotSaved
    if service.parts.unsaved.belongs_to(message_id, tenant=principal.tenant, user_id=principal.user_id):
        raise MessageNotSaved
    raise NotFound(f"There is no message {message_id}.")
