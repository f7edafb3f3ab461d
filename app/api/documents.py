"""The shapes that several routes share: URLs of a turn, messages as JSON, and what OpenAPI says of problems and streams."""

from __future__ import annotations

from typing import Any

from app.store.conversations import Conversation
from app.store.messages import Message

_EXAMPLE = ': ok\nretry: 2113\nid: turn_01-1-1\ndata: {"type":"turn_started","seq":1,"ts":1767225600000,…}\n\n'


def urls(turn_id: str) -> dict[str, str]:
    """Where a turn is followed and stopped."""
    return {"events_url": f"/v1/turns/{turn_id}/events", "cancel_url": f"/v1/turns/{turn_id}/cancel"}


def conversation(row: Conversation) -> dict[str, Any]:
    """A conversation as JSON."""
    document = {
        "id": row.id,
        "title": row.title,
        "profile": row.profile,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }
    return document if row.metadata is None else {**document, "metadata": row.metadata}


def message(row: Message, *, reaction: str | None = None, html: str | None = None) -> dict[str, Any]:
    """A message as JSON: the content of a reply, or the parts of a user's input."""
    document: dict[str, Any] = {
        "id": row.id,
        "conversation_id": row.conversation_id,
        "turn_id": row.turn_id,
        "role": row.role,
        "status": row.status,
        "text": _text(row),
        "blocks": [],
        "tools": [],
        "extras": [],
        "created_at": row.created_at,
    }
    if row.role == "user":
        document["blocks"] = [{"block": 1, "text": document["text"]}] if row.text else []
        document["parts"] = row.content.get("parts", [])
    else:
        wanted = ("blocks", "tools", "extras", "reasoning", "approvals", "terminal", "usage")
        document |= {name: row.content[name] for name in wanted if name in row.content}
    if reaction is not None:
        document["reaction"] = reaction
    if html is not None:
        document["html"] = html
    return document


def _text(row: Message) -> str:
    """The text as it was shown: a text column cannot hold every character, but the content beside it can."""
    if "\ufffd" not in row.text or row.status == "apology":
        return row.text
    if row.role == "user":
        return "\n\n".join(str(part["text"]) for part in row.content.get("parts", []) if part.get("type") == "text")
    return "".join(block["text"] for block in row.content.get("blocks", []))


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for refusals with these statuses."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    words = {
        401: "No valid credentials.",
        403: "Not allowed.",
        404: "Not there, or not yours.",
        408: "The body did not come to its end in time.",
        409: "In conflict with what is.",
        413: "Too large.",
        421: "This process has the role `api`.",
        422: "The request cannot be used.",
        429: "Too many at once; see Retry-After.",
        503: "Not at the moment; see Retry-After.",
    }
    return {status: {"description": words[status], "content": content} for status in statuses}


def stream(description: str) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI response of a stream."""
    # `itemSchema` is one event (OpenAPI 3.2, and before that as FastAPI does).
    frame = {"type": "object", "properties": {name: {"type": "string"} for name in ("id", "data")}, "required": ["data"]}
    event = {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
    return {
        200: {
            "description": description + " Each event is one of `/v1/schema/events.json`.",
            "content": {
                "text/event-stream": {"itemSchema": frame, "example": _EXAMPLE},
                "application/x-ndjson": {"itemSchema": event},
            },
        }
    }


def turn_links(identifier: str) -> dict[str, Any]:
    """OpenAPI links from an answer that names a turn to what can be done with it."""
    names = ("get_turn", "follow", "cancel_turn", "issue_ticket")
    return {name: {"operationId": name, "parameters": {"turn_id": identifier}} for name in names}
