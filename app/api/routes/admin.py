"""What an admin may see of the turns of its tenant: which there are, never what they say (A2)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from app.api import documents, schemas
from app.api.problems import Forbidden, InvalidRequest
from app.api.service import Asker, Running
from app.store import turns
from app.store.turns import TurnRow

router = APIRouter(tags=["admin"])
_CURSOR = "^turn_[0-9a-z]{1,59}$"


@router.get(
    "/v1/admin/turns",
    response_model=schemas.AdminTurnList,
    response_model_exclude_none=True,
    responses=documents.problems(401, 403, 422, 503),
)
async def list_turns(
    service: Running,
    principal: Asker,
    status: Literal["queued", "running", "waiting", "done"] | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    cursor: Annotated[str | None, Query(json_schema_extra={"pattern": _CURSOR})] = None,
) -> dict[str, Any]:
    """The turns of the admin's tenant, newest first; any of them can be cancelled by `POST /v1/turns/{id}/cancel`."""
    if principal.role != "admin":
        raise Forbidden("Only an admin may list the turns of others.")
    if cursor is not None and re.fullmatch(_CURSOR, cursor) is None:
        raise InvalidRequest("cursor: it must be the next_cursor of an earlier page.")
    rows = await service.parts.store.read(
        lambda conn: turns.list_page(conn, tenant=principal.tenant, limit=limit + 1, status=status, before=cursor)
    )
    page: dict[str, Any] = {"items": [_document(row) for row in rows[:limit]]}
    if len(rows) > limit:
        page["next_cursor"] = rows[limit - 1].id
    return page


def _document(row: TurnRow) -> dict[str, Any]:
    terminal = row.terminal or {}
    return {
        "id": row.id,
        "conversation_id": row.conversation_id,
        "user_id": row.user_id,
        "profile": row.profile,
        "status": "running" if row.status == "ended" else row.status,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "reason": terminal.get("finish_reason") or terminal.get("code"),
    }
