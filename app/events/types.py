"""Every event, one class each (PROTOCOL 3).

The wire form is the class: `type` is the tag, optional fields are left out when they are None (F4), and `seq` and `ts` are
given by the turn's one writer. Events without an id (`queued`, `stream_end`, `heartbeat`, `snapshot`) keep `seq` and `ts`
at 0, which leaves them out as well.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SideEffects = Literal["none", "idempotent", "unsafe"]
ToolStatus = Literal["ok", "error", "timeout", "denied", "cancelled", "unknown"]
Decision = Literal["approve", "deny", "expired", "cancelled"]
CompletionStatus = Literal["complete", "partial", "cancelled"]
FinishReason = Literal[
    "stop",
    "refused",
    "cancelled",
    "length",
    "content_filter",
    "tool_limit",
    "deadline",
    "upstream_error",
    "shutdown",
    "recovered",
]
ErrorCode = Literal[
    "upstream_unavailable",
    "upstream_rejected",
    "upstream_invalid",
    "upstream_interrupted",
    "empty_answer",
    "content_filter",
    "turn_timeout",
    "denied",
    "recovered",
    "limit_exceeded",
    "internal",
]
EndReason = Literal["done", "draining", "rotated", "lagging", "busy", "expired"]
MessageStatus = Literal["complete", "partial", "cancelled", "apology"]


class Event(msgspec.Struct, tag_field="type", omit_defaults=True, kw_only=True, gc=False):
    """What all events share: their place in the turn and the moment (epoch milliseconds), both given by the recorder."""

    seq: int = 0
    ts: int = 0


class TurnStarted(Event, tag="turn_started", kw_only=True):
    """The turn runs; always its first event, and only once."""

    turn_id: str
    conversation_id: str
    message_id: str
    profile: str
    epoch: int
    # Without a default, so that it is always on the wire.
    protocol: int


class Queued(Event, tag="queued", kw_only=True):
    """The turn waits for its conversation or for a run slot; `position` counts from 1. Not in the log."""

    position: int


class TextDelta(Event, tag="text_delta", kw_only=True):
    """A piece of the answer. `block` numbers the text blocks from 1."""

    block: int
    text: str


class ReasoningDelta(Event, tag="reasoning_delta", kw_only=True):
    """A piece of the model's thinking, beside the answer."""

    block: int
    text: str


class Commentary(Event, tag="commentary", kw_only=True):
    """A whole interim remark between tools; not part of the answer's text."""

    text: str


class ToolStart(Event, tag="tool_start", kw_only=True):
    """A tool is about to run; durable before it does (E4). `arguments` are redacted by the tool's own rule."""

    tool_call_id: str
    name: str
    title: str
    side_effects: SideEffects
    arguments: dict[str, Any] | None = None
    truncated: bool = False


class ToolProgress(Event, tag="tool_progress", kw_only=True):
    """Progress of a running tool, at most five a second; `fraction` is from 0 to 1."""

    tool_call_id: str
    message: str | None = None
    fraction: float | None = None


class ToolEnd(Event, tag="tool_end", kw_only=True):
    """How a tool call ended; exactly one for each `tool_start`."""

    tool_call_id: str
    status: ToolStatus
    duration_ms: int
    preview: str | None = None
    truncated: bool = False


class Image(Event, tag="image", kw_only=True):
    """A picture made by a tool or an agent; sizes in pixels."""

    url: str
    alt: str
    width: int | None = None
    height: int | None = None
    tool_call_id: str | None = None


class CardField(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """One labelled value on a card."""

    label: str
    value: str


class CardAction(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """Something to do from a card: open `url`, or send `input` as the next input."""

    title: str
    url: str | None = None
    input: str | None = None


class ActionCard(Event, tag="action_card", kw_only=True):
    """A card with fields and actions, made by a tool or an agent."""

    card_id: str
    kind: str
    title: str
    fields: list[CardField]
    actions: list[CardAction]
    tool_call_id: str | None = None


class ApprovalRequired(Event, tag="approval_required", kw_only=True):
    """A call waits for a person's yes; comes before the call's `tool_start`. `expires_at` is epoch milliseconds."""

    approval_id: str
    tool_call_id: str
    name: str
    title: str
    prompt: str
    expires_at: int
    arguments: dict[str, Any] | None = None
    truncated: bool = False


class ApprovalResolved(Event, tag="approval_resolved", kw_only=True):
    """The answer to an approval; `by` is a user id, or `system` where nobody answered."""

    approval_id: str
    decision: Decision
    by: str


class AttemptRestarted(Event, tag="attempt_restarted", kw_only=True):
    """A model call that had shown nothing is made again; `attempt` counts the tries of that call."""

    attempt: int
    reason: str


class Notice(Event, tag="notice", kw_only=True):
    """Something worth telling that is not part of the answer."""

    level: Literal["info", "warning", "error"]
    code: str
    text: str
    data: dict[str, Any] | None = None


class Usage(Event, tag="usage", kw_only=True):
    """Tokens of one step, as the provider counted them."""

    input_tokens: int
    output_tokens: int
    model: str


class UsageTotal(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """Tokens of the whole turn."""

    input_tokens: int
    output_tokens: int


class Completion(Event, tag="completion", kw_only=True):
    """Terminal: the turn produced an answer. `text` is the whole answer, `chars` its code points (E2, F4)."""

    status: CompletionStatus
    finish_reason: FinishReason
    chars: int
    text: str | None = None
    replaced: bool = False
    usage: UsageTotal | None = None


class Error(Event, tag="error", kw_only=True):
    """Terminal: the turn produced nothing. `message` is a plain sentence of apology."""

    code: ErrorCode
    message: str
    retryable: bool


class MessageSaved(Event, tag="message_saved", kw_only=True):
    """The reply is in the history."""

    message_id: str
    status: MessageStatus


class MessageSaveFailed(Event, tag="message_save_failed", kw_only=True):
    """The reply could not be saved yet; the service keeps it and goes on trying."""

    message_id: str
    code: str


class Snapshot(Event, tag="snapshot", kw_only=True):
    """All of the turn up to `last_seq`; replaces what the client has. Built by `app.events.content`."""

    turn_id: str
    conversation_id: str
    message_id: str
    profile: str
    epoch: int
    status: str
    blocks: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    extras: list[dict[str, Any]]
    approvals: list[dict[str, Any]]
    last_seq: int
    reasoning: list[dict[str, Any]] | None = None
    terminal: dict[str, Any] | None = None
    truncated: bool = False


class StreamEnd(Event, tag="stream_end", kw_only=True):
    """The last event of a connection, about the connection only. `resume`: whether to come back."""

    reason: EndReason
    resume: bool


class Heartbeat(Event, tag="heartbeat", kw_only=True):
    """A keep-alive that JavaScript can see; sent only where `?heartbeat=data` asks for it (F5)."""

    phase: Literal["model", "tool", "queued", "approval"]
    elapsed_ms: int


Terminal = Completion | Error
