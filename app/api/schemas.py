"""What the API takes and gives, for validation and for OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

JsonObject = dict[str, JsonValue]


class Body(BaseModel):
    """A request body: closed, so that a misspelt field is told and not passed over."""

    model_config = ConfigDict(extra="forbid")


class TextPart(Body):
    """Text of the user."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """Where a picture is: an http(s) or data URL."""

    url: Annotated[str, Field(min_length=1, pattern=r"^(https?://|data:image/)")]
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Body):
    """A picture of the user."""

    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class NewConversation(Body):
    """`POST /v1/conversations`."""

    profile: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    title: Annotated[str, Field(max_length=500)] | None = None
    metadata: JsonObject | None = None


class NewTurn(Body):
    """`POST /v1/conversations/{id}/turns`."""

    input: str | Annotated[list[Part], Field(min_length=1, max_length=100)]
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
