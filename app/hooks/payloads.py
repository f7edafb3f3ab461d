"""What a hook is told, one class for each node (PROTOCOL 9).

A payload is read-only. Each hook gets a copy of its own, so that one which overran its time and goes on in its thread
cannot change what the turn works with.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from app.events import Completion, Error
from app.events.types import SideEffects, ToolStatus, UsageTotal

Node = Literal[
    "on_receive",
    "before_generation",
    "before_tool",
    "after_tool",
    "after_generation",
    "on_delivery",
    "on_turn_end",
    "on_error",
]
WATCHING: frozenset[Node] = frozenset({"on_delivery", "on_turn_end", "on_error"})

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEvent:
    """What all nodes tell: whose turn it is. `metadata` is what the client sent with the turn."""

    node: ClassVar[Node]

    turn_id: str
    conversation_id: str
    user_id: str
    profile: str
    tenant: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnReceive(HookEvent):
    """The user's input before it enters the history: `input` as it came, a string or a list of parts."""

    node = "on_receive"
    input: str | list[dict[str, Any]]

    @property
    def text(self) -> str:
        """The text of the input; the text parts of a list, joined by line ends."""
        if isinstance(self.input, str):
            return self.input
        return "\n".join(str(part.get("text", "")) for part in self.input if part.get("type") == "text")

    def with_text(self, text: str) -> OnReceive:
        """The same with another text; images stay, after it."""
        if isinstance(self.input, str):
            return replace(self, input=text)
        others = [part for part in self.input if part.get("type") != "text"]
        return replace(self, input=[{"type": "text", "text": text}, *others])


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeGeneration(HookEvent):
    """A model call that is about to be made: its messages in Chat Completions form; `step` counts from 1."""

    node = "before_generation"
    messages: Messages
    model: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeTool(HookEvent):
    """A tool call that is about to run."""

    node = "before_tool"
    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    side_effects: SideEffects


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterTool(HookEvent):
    """A tool call that is over; `result` is what the model will be told."""

    node = "after_tool"
    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    side_effects: SideEffects
    status: ToolStatus
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterGeneration(HookEvent):
    """The whole text of the answer before the terminal event, whatever the ending (E2)."""

    node = "after_generation"
    text: str
    status: str
    finish_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDelivery(HookEvent):
    """The answer has been handed on: the terminal event is in the log, or a chat platform has acknowledged a message.

    `platform` and `platform_message_id` are None for the log.
    """

    node = "on_delivery"
    message_id: str
    terminal: Completion | Error | None = None
    platform: str | None = None
    platform_message_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTurnEnd(HookEvent):
    """The turn is settled. `status` is that of the stored message: `complete, partial, cancelled, apology`.

    `finish_reason` is given for a `completion`, `code` for an `error`. `usage` sums the turn's tokens; None where the
    provider counted none.
    """

    node = "on_turn_end"
    message_id: str
    status: str
    finish_reason: str | None = None
    code: str | None = None
    text: str = ""
    model: str | None = None
    usage: UsageTotal | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnError(HookEvent):
    """An error that was caught: `where` names the part (`model`, `tool:<name>`, `store`), `error` says what."""

    node = "on_error"
    where: str
    error: str


PAYLOADS: dict[Node, type[HookEvent]] = {
    cls.node: cls
    for cls in (
        OnReceive,
        BeforeGeneration,
        BeforeTool,
        AfterTool,
        AfterGeneration,
        OnDelivery,
        OnTurnEnd,
        OnError,
    )
}
