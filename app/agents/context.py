"""What an agent may see of its turn, and the ports through which it acts on it.

`Stage` is where an agent performs: `app.turns.recorder` stands behind it. `Guards` are the hooks around model and tools.
`AgentContext` is what a user's own agent gets (PROTOCOL 9).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from threading import Thread
from typing import Any, Literal, Protocol

import msgspec
import structlog

from app.clock import monotonic
from app.errors import EarlybyteError
from app.events.types import Event, SideEffects, ToolEnd, ToolStatus
from app.limits.cancel import Cancel

log = structlog.get_logger(__name__)


class TurnOver(EarlybyteError):
    """The turn has ended or was cancelled; nothing more is taken from its agent."""

    code = "turn_over"


class Transient(EarlybyteError):
    """Raised by an agent of your own: it failed in a way that may pass, and may be started again if it has shown nothing."""

    code = "transient"


class ToolCallFailed(EarlybyteError):
    """A tool that an agent called did not end well; `status` tells how, the message is what a model would be told."""

    code = "tool_call_failed"

    def __init__(self, message: str, *, status: ToolStatus) -> None:
        super().__init__(message)
        self.status = status


class AgentMisbehaved(EarlybyteError):
    """An agent sent something that an agent may not send."""

    code = "internal"


class Denied(EarlybyteError):
    """A hook denied what was about to happen; the message is for the user."""

    code = "denied"


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one call of a batch ended, and what the model is told of it."""

    tool_call_id: str
    status: ToolStatus
    content: str


class OpenCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of a step that must be brought to its end.

    `arguments` is None when they are broken. `started` says that its `tool_start` is in the journal already (recovery);
    `approval_id` that its approval was asked for.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    started: bool = False
    approval_id: str | None = None


class Stage(Protocol):
    """Where an agent performs. All of it runs on the loop; the synchronous parts never wait."""

    def say(self, block: int, text: str) -> None:
        """Add to the answer."""

    def think(self, block: int, text: str) -> None:
        """Add to the reasoning."""

    def show(self, event: Event) -> None:
        """Add any other event that needs not be durable."""

    def restarted(self, attempt: int, reason: str) -> None:
        """A model call that had shown nothing is made again."""

    def used(self, input_tokens: int | None, output_tokens: int | None, model: str) -> None:
        """Tokens of one step; None where the provider told nothing."""

    def journal_step(self, message: dict[str, Any], results: Sequence[ToolResult] = ()) -> None:
        """Note the assistant's part of a step with its tool calls, and results that are known at once.

        It becomes durable with the first `tool_start` of the step, so that a crash after that can go forward from it.
        """

    def note_result(self, result: ToolResult) -> None:
        """Note the result of a call that has no events."""

    async def start_tools(self, events: Sequence[Event]) -> bool:
        """Make `tool_start`s durable, then show them (E4); False when they could not be made so within 2 s."""

    async def end_tool(self, event: ToolEnd, result: ToolResult, output: str) -> None:
        """Show a `tool_end` and journal it with the result; storage trouble does not hold it up."""

    async def ask_approval(
        self, *, call: OpenCall, title: str, prompt: str, arguments: dict[str, Any] | None
    ) -> tuple[bool, str]:
        """Wait for a person; whether they approved, and the words for the model where they did not."""

    def set_phase(self, phase: Literal["model", "tool"]) -> None:
        """Say what the turn is doing (`model`, `tool`), for heartbeats."""

    @property
    def shown(self) -> int:
        """A number that grows whenever something visible is shown: text, commentary, an image or a card."""

    @property
    def tool_begun(self) -> bool:
        """Whether any tool of the turn has begun."""


class Guards(Protocol):
    """The hooks around model and tools.

    Each returns what to go on with, or raises `Denied`.
    """

    async def before_generation(self, messages: list[dict[str, Any]], *, step: int) -> list[dict[str, Any]]:
        """The messages to send."""

    async def before_tool(
        self, *, tool_call_id: str, name: str, arguments: dict[str, Any], side_effects: SideEffects
    ) -> dict[str, Any]:
        """The arguments to call with."""

    async def after_tool(
        self,
        *,
        tool_call_id: str,
        name: str,
        arguments: dict[str, Any],
        side_effects: SideEffects,
        status: ToolStatus,
        result: str,
    ) -> str:
        """The result to tell the model."""

    def on_error(self, where: str, words: str) -> None:
        """Tell the watchers of an error that was caught; waits for nobody."""


class Deadline(Protocol):
    """How much time the turn has."""

    def remaining(self) -> float:
        """Seconds left; negative when over."""


class AgentContext:
    """What an agent of your own sees and may do (PROTOCOL 9).

    `input` is what the user sent, as text; `parts` the same as a list of parts; `history` the conversation before it in Chat
    Completions form, always well-formed. `deadline` is on the clock of `time.monotonic`.
    """

    def __init__(
        self,
        *,
        input: str,  # noqa: A002 - the name of the attribute that agents read
        parts: list[dict[str, Any]],
        history: list[dict[str, Any]],
        user_id: str,
        conversation_id: str,
        turn_id: str,
        profile: str,
        system: str,
        deadline: Deadline,
        cancel: Cancel,
        call: Callable[[str, dict[str, Any]], Any],
    ) -> None:
        self.input = input
        self.parts = parts
        self.history = history
        self.user_id = user_id
        self.conversation_id = conversation_id
        self.turn_id = turn_id
        self.profile = profile
        self.system = system
        self._deadline = deadline
        self._cancel = cancel
        self._call = call

    def __repr__(self) -> str:
        return f"<AgentContext {self.turn_id} cancelled={self.cancelled}>"

    @property
    def deadline(self) -> float:
        """The moment at which the turn is over, on the monotonic clock."""
        return monotonic() + self._deadline.remaining()

    def remaining(self) -> float:
        """Seconds left in the turn."""
        return self._deadline.remaining()

    @property
    def cancelled(self) -> bool:
        """Whether the turn was cancelled or is over."""
        return self._cancel.cancelled

    def on_cancel(self, fn: Callable[[], None]) -> None:
        """Have `fn` called, from another thread, when the turn is cancelled: close there what your agent may block on.

        What it raises is logged and goes no further.
        """

        def quietly() -> None:
            try:
                fn()
            except Exception as error:  # one agent's mistake must not keep its turn from stopping
                log.warning("agent on_cancel failed", turn_id=self.turn_id, error=type(error).__name__)

        # A thread of its own: it may block, and a cancel comes on the event loop.
        self._cancel.on_cancel(lambda: Thread(target=quietly, name="on_cancel", daemon=True).start())

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any | Awaitable[Any]:
        """What the tool returned, after a call with the journal, the events and the limits of the service.

        In a worker thread it blocks; in an async agent it is awaited: `await ctx.call_tool(…)`.

        Raises:
            ToolCallFailed: it did not end well; `status` is that of its `tool_end`, the message what a model would be told.
            TurnOver: the turn is over.
        """
        return self._call(name, arguments)
