"""Conversations and their history."""

from __future__ import annotations

import re
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Body, Query, Response
from fastapi.responses import JSONResponse

from app.api import documents, schemas
from app.api.problems import InvalidRequest
from app.api.routes.turns import Id
from app.api.service import Asker, Running, Service
from app.clock import now_ms
from app.ids import new_id
from app.store import conversations, messages, reactions, turns
from app.store.conversations import Conversation
from app.store.engine import Connection
from app.store.turns import TurnRow
from app.turns.admission import NotFound, UnknownProfile
from app.turns.state import Cancelled

router = APIRouter(tags=["conversations"])
Limit = Annotated[int, Query(ge=1, le=100)]
# What OpenAPI says of cursors; that they are used as given is checked by hand, with a sentence of ours.
Cursor = Annotated[str | None, Query(json_schema_extra={"pattern": r"^[0-9]{1,15}\.[0-9A-Za-z_]{1,64}$"})]
MessageCursor = Annotated[str | None, Query(json_schema_extra={"pattern": r"^[0-9]{1,15}$"})]
# How long a DELETE waits for a turn to stop.
STOP_SECONDS = 8.0


@router.post(
    "/v1/conversations",
    status_code=201,
    response_model=schemas.Conversation,
    responses=documents.problems(401, 403, 404, 408, 413, 422, 503),
)
async def create_conversation(
    service: Running, principal: Asker, body: Annotated[schemas.NewConversation | None, Body()] = None
) -> Response:
    """A new conversation."""
    given = body or schemas.NewConversation()
    if given.profile is not None and given.profile not in service.parts.assistants:
        raise UnknownProfile(f"There is no profile called {given.profile!r}.")
    now = now_ms()
    row = Conversation(
        id=new_id("conv"),
        user_id=principal.user_id,
        tenant=principal.tenant,
        title=given.title,
        profile=given.profile,
        metadata=given.metadata,
        created_at=now,
        updated_at=now,
    )
    await service.parts.store.write(lambda conn: conversations.insert(conn, row), timeout=2.0)
    location = {"Location": f"/v1/conversations/{row.id}"}
    return JSONResponse(documents.conversation(row), status_code=201, headers=location)


@router.get(
    "/v1/conversations",
    response_model=schemas.ConversationList,
    response_model_exclude_unset=True,
    responses=documents.problems(401, 403, 422, 503),
)
async def list_conversations(service: Running, principal: Asker, limit: Limit = 50, cursor: Cursor = None) -> dict[str, Any]:
    """The caller's own conversations, newest first."""
    before = _position(cursor) if cursor is not None else None
    rows = await service.parts.store.read(
        lambda conn: conversations.list_page(
            conn, tenant=principal.tenant, user_id=principal.user_id, limit=limit + 1, before=before
        )
    )
    page: dict[str, Any] = {"items": [documents.conversation(row) for row in rows[:limit]]}
    if len(rows) > limit:
        page["next_cursor"] = f"{rows[limit - 1].created_at}.{rows[limit - 1].id}"
    return page


def _position(cursor: str) -> tuple[int, str]:
    found = re.fullmatch(r"([0-9]{1,15})\.([0-9A-Za-z_]{1,64})", cursor)
    if found is None:
        raise InvalidRequest("cursor: it must be the next_cursor of an earlier page.")
    return int(found[1]), found[2]


@router.get(
    "/v1/conversations/{conversation_id}",
    response_model=schemas.Conversation,
    response_model_exclude_unset=True,
    responses=documents.problems(401, 403, 404, 422, 503),
)
async def get_conversation(service: Running, principal: Asker, conversation_id: Id) -> dict[str, Any]:
    """One conversation."""
    return documents.conversation(await _own(service, principal, conversation_id))


@router.delete(
    "/v1/conversations/{conversation_id}",
    status_code=204,
    responses=documents.problems(401, 403, 404, 422, 503),
)
async def delete_conversation(service: Running, principal: Asker, conversation_id: Id) -> Response:
    """Delete a conversation with all that is in it; a running turn is stopped first."""
    await _own(service, principal, conversation_id)
    await service.parts.store.write(lambda conn: conversations.mark_deleting(conn, conversation_id), timeout=2.0)
    mine = [turn for turn in service.supervisor.turns() if turn.row.conversation_id == conversation_id]
    for turn in mine:
        service.supervisor.cancel(turn, Cancelled(deleted=True))
    with anyio.move_on_after(STOP_SECONDS):
        for turn in mine:
            await turn.settled.wait()
        # Whoever runs one of its turns elsewhere has heard of it within half a second.
        while any(row.owner is not None for row in await _unsettled(service, conversation_id)):  # noqa: ASYNC110
            await anyio.sleep(0.1)
    await service.parts.store.write(lambda conn: conversations.delete(conn, conversation_id), timeout=2.0)
    return Response(status_code=204)


@router.get(
    "/v1/conversations/{conversation_id}/messages",
    response_model=schemas.MessageList,
    response_model_exclude_unset=True,
    responses=documents.problems(401, 403, 404, 422, 503),
)
async def list_messages(
    service: Running, principal: Asker, conversation_id: Id, limit: Limit = 50, cursor: MessageCursor = None
) -> dict[str, Any]:
    """The history, oldest first."""
    if cursor is not None and re.fullmatch("[0-9]{1,15}", cursor) is None:
        raise InvalidRequest("cursor: it must be the next_cursor of an earlier page.")
    after = int(cursor) if cursor is not None else None

    async def load(conn: Connection) -> tuple[list[messages.Message], dict[str, reactions.Reaction]]:
        own = await conversations.get(conn, conversation_id, tenant=principal.tenant, user_id=principal.user_id)
        if own is None:
            raise NotFound(f"There is no conversation {conversation_id}.")
        rows = await messages.list_page(conn, conversation_id, limit=limit + 1, after=after)
        return rows, await reactions.for_messages(conn, [row.id for row in rows], principal.user_id)

    rows, reacted = await service.parts.store.read(load)
    items = [
        documents.message(row, reaction=reacted[row.id].reaction if row.id in reacted else None) for row in rows[:limit]
    ]
    page: dict[str, Any] = {"items": items}
    if len(rows) > limit:
        page["next_cursor"] = str(rows[limit - 1].place)
    return page


@router.get(
    "/v1/conversations/{conversation_id}/active",
    response_model=schemas.ActiveTurn,
    responses=documents.problems(401, 403, 404, 422, 503) | {204: {"description": "No turn of it is open."}},
)
async def get_active(service: Running, principal: Asker, conversation_id: Id) -> Response:
    """The open turn of a conversation."""
    await _own(service, principal, conversation_id)
    live = next(iter(service.supervisor.open_in(conversation_id)), None)
    if live is not None:
        row, status = live.row, live.log.status
    else:
        open_elsewhere = [row for row in await _unsettled(service, conversation_id) if row.status in turns.OPEN]
        if not open_elsewhere or open_elsewhere[0].owner == service.parts.owner:
            return Response(status_code=204)
        row = open_elsewhere[0]
        status = row.status  # type: ignore[assignment]  # one of the open ones
    return JSONResponse(
        {
            "turn_id": row.id,
            "conversation_id": row.conversation_id,
            "message_id": row.message_id,
            "status": status,
            **documents.urls(row.id),
        }
    )


async def _unsettled(service: Service, conversation_id: str) -> list[TurnRow]:
    return await service.parts.store.read(lambda conn: turns.unsettled_in_conversation(conn, conversation_id))


async def _own(service: Service, principal: Asker, conversation_id: str) -> Conversation:
    row = await service.parts.store.read(
        lambda conn: conversations.get(conn, conversation_id, tenant=principal.tenant, user_id=principal.user_id)
    )
    if row is None:
        raise NotFound(f"There is no conversation {conversation_id}.")
    return row
