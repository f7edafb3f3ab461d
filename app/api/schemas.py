"""What the API takes and gives, for validation and for OpenAPI."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, JsonValue, Tag, model_validator

from app.events.codec import clean

JsonObject = dict[str, JsonValue]
# Levels of a body. Parsers and encoders in our way give up somewhere above 200, each in its own manner.
_DEEPEST = 64


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("it must not be empty")
    return text


def _picture(url: str) -> str:
    if not url.startswith(("http://", "https://", "data:image/")):
        raise ValueError("it must be an http, https or data:image URL")
    return url


# The patterns are for OpenAPI; what is checked says it in a sentence of ours.
Said = Annotated[str, AfterValidator(_said), Field(json_schema_extra={"pattern": r"\S"})]
PictureUrl = Annotated[str, AfterValidator(_picture), Field(json_schema_extra={"pattern": r"^(https?://|data:image/)"})]


class Body(BaseModel):
    """A request body: closed, so that a misspelt field is told and not passed over."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _sound(cls, value: Any) -> Any:
        return _sound(value) if isinstance(value, dict) else value


def _sound(value: Any, depth: int = 0) -> Any:
    """The same JSON value, with lone surrogates, which JSON can say and UTF-8 cannot, as U+FFFD (F4).

    Raises:
        ValueError: a number that is none, or deeper than anything that will read it later can follow.
    """
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    match value:
        case str():
            return clean(value)
        case float() if not math.isfinite(value):
            raise ValueError("NaN and infinite numbers are not JSON")
        case dict():
            return {clean(key): _sound(item, depth + 1) for key, item in value.items()}
        case list():
            return [_sound(item, depth + 1) for item in value]
    return value


class TextPart(Body):
    """Text of the user."""

    type: Literal["text"]
    text: Said


class ImageUrl(Body):
    """Where a picture is: an http(s) or data URL."""

    url: PictureUrl
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Body):
    """A picture of the user."""

    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


def _form(value: object) -> str | None:
    """Which form of input was meant, so that only that one's faults are told."""
    if isinstance(value, str):
        return "text"
    return "parts" if isinstance(value, list) else None


Input = Annotated[
    Annotated[Said, Tag("text")] | Annotated[list[Part], Field(min_length=1, max_length=100), Tag("parts")],
    Discriminator(_form, custom_error_type="input_form", custom_error_message="it must be text or a list of parts"),
]


class NewConversation(Body):
    """`POST /v1/conversations`."""

    profile: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    title: Annotated[str, Field(max_length=500)] | None = None
    metadata: JsonObject | None = None


class NewTurn(Body):
    """`POST /v1/conversations/{id}/turns`."""

    input: Input
    profile: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    on_busy: Literal["reject", "enqueue", "interrupt"] = "reject"
    on_disconnect: Literal["continue", "cancel"] = "continue"
    metadata: JsonObject | None = None


class ApprovalAnswer(Body):
    """`POST /v1/turns/{id}/approvals/{approval_id}`."""

    decision: Literal["approve", "deny"]
    comment: Annotated[str, Field(max_length=2000)] | None = None


class NewReaction(Body):
    """`PUT /v1/messages/{id}/reaction`."""

    reaction: Literal["like", "dislike"]
    comment: Annotated[str, Field(max_length=2000)] | None = None


class SignIn(Body):
    """`POST /v1/session`."""

    key: Annotated[str, Field(min_length=1, max_length=500)]


class Conversation(BaseModel):
    """A conversation. Moments are epoch milliseconds."""

    id: str
    title: str | None
    profile: str | None
    created_at: int
    updated_at: int
    metadata: JsonObject | None = None


class Reaction(BaseModel):
    """What the caller thinks of a message."""

    reaction: Literal["like", "dislike"]
    comment: str | None = None


class Message(BaseModel):
    """A message of the history; `html` is its text as sanitised HTML, for one message only."""

    id: str
    conversation_id: str
    turn_id: str
    role: Literal["user", "assistant"]
    status: Literal["complete", "partial", "cancelled", "apology"]
    text: str
    blocks: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    extras: list[dict[str, Any]]
    created_at: int
    parts: list[dict[str, Any]] | None = None
    reasoning: list[dict[str, Any]] | None = None
    approvals: list[dict[str, Any]] | None = None
    terminal: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    reaction: Literal["like", "dislike"] | None = None
    html: str | None = None


class ConversationList(BaseModel):
    """A page of conversations, newest first."""

    items: list[Conversation]
    next_cursor: str | None = None


class MessageList(BaseModel):
    """A page of messages, oldest first."""

    items: list[Message]
    next_cursor: str | None = None


class AcceptedTurn(BaseModel):
    """A turn that was started, or found by its key."""

    turn_id: str
    conversation_id: str
    message_id: str
    status: Literal["queued", "running", "waiting", "done"]
    events_url: str
    cancel_url: str


class Turn(BaseModel):
    """A turn with everything so far; the content of a `snapshot`, with whole tool outputs."""

    id: str
    conversation_id: str
    message_id: str
    profile: str
    status: Literal["queued", "running", "waiting", "done"]
    epoch: int
    created_at: int
    blocks: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    extras: list[dict[str, Any]]
    approvals: list[dict[str, Any]]
    last_seq: int
    reasoning: list[dict[str, Any]] | None = None
    terminal: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


class ActiveTurn(BaseModel):
    """The open turn of a conversation."""

    turn_id: str
    conversation_id: str
    message_id: str
    status: Literal["queued", "running", "waiting"]
    events_url: str
    cancel_url: str


class AdminTurn(BaseModel):
    """A turn as its tenant's admin sees it: no word of what was said."""

    id: str
    conversation_id: str
    user_id: str
    profile: str
    status: Literal["queued", "running", "waiting", "done"]
    created_at: int
    started_at: int | None = None
    ended_at: int | None = None
    reason: str | None = None


class AdminTurnList(BaseModel):
    """A page of turns, newest first."""

    items: list[AdminTurn]
    next_cursor: str | None = None


class CancelAnswer(BaseModel):
    """Where a cancelled turn is."""

    turn_id: str
    status: Literal["queued", "running", "waiting", "done"]


class ApprovalResult(BaseModel):
    """An answered approval."""

    approval_id: str
    decision: Literal["approve", "deny"]


class Ticket(BaseModel):
    """A ticket for one turn's events; `expires_in` are the seconds for the first connect."""

    ticket: str
    expires_in: int


class Session(BaseModel):
    """Who is signed in."""

    user_id: str
    role: str


class Health(BaseModel):
    """`ok`, or why not."""

    status: str


class Problem(BaseModel):
    """RFC 9457, with a stable `code`."""

    type: str
    title: str
    status: int
    code: str
    detail: str
