"""What stands around an agent in a test without a service: a stage that takes notes, a scripted model, open hooks.

They implement the ports of `app.agents` and hold what a test wants to look at; nothing of the service is replaced by them
but storage and network.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.agents.context import AgentContext, OpenCall, ToolResult
from app.agents.own_agent import AgentFunction, OwnAgent
from app.agents.speech import Speech
from app.agents.tool_desk import Caller, ToolDesk, ToolLimits
from app.agents.tool_loop import LoopLimits, LoopState, ToolLoop
from app.clock import monotonic
from app.events.content import TurnContent
from app.events.types import (
    AttemptRestarted,
    Event,
    ReasoningDelta,
    SideEffects,
    TextDelta,
    ToolEnd,
    ToolStart,
    ToolStatus,
    Usage,
)
from app.limits.cancel import Cancel
from app.limits.deadline import Deadline
from app.limits.threads import WorkerThreads
from app.providers.chunks import Chunk, StepEnd, ToolCall
from app.providers.provider import ModelRequest
from app.tools.tool import Tool

Answer = tuple[bool, str]


class NotingStage:
    """A stage without storage: `events` in order, `steps` as they were journaled, `durable` in order of starts."""

    def __init__(self) -> None:
        self.content = TurnContent(turn_id="turn_1", conversation_id="conv_1", message_id="msg_1", profile="default")
        self.events: list[Event] = []
        self.steps: list[tuple[dict[str, Any], list[ToolResult]]] = []
        self.results: list[ToolResult] = []
        self.phases: list[str] = []
        self.asked: list[OpenCall] = []
        self.can_store = True
        self.answer: Callable[[OpenCall], Awaitable[Answer]] | None = None
        self.thread = threading.get_ident()
        self._shown = 0

    def _add(self, event: Event) -> None:
        assert threading.get_ident() == self.thread, "an event from another thread"
        before = self.content.chars + len(self.content.extras)
        event.seq = len(self.events) + 1
        self.content.apply(event)
        self._shown += self.content.chars + len(self.content.extras) != before
        self.events.append(event)

    def say(self, block: int, text: str) -> None:
        self._add(TextDelta(block=block, text=text))

    def think(self, block: int, text: str) -> None:
        self._add(ReasoningDelta(block=block, text=text))

    def show(self, event: Event) -> None:
        self._add(event)

    def restarted(self, attempt: int, reason: str) -> None:
        self._add(AttemptRestarted(attempt=attempt, reason=reason))

    def used(self, input_tokens: int | None, output_tokens: int | None, model: str) -> None:
        self._add(Usage(input_tokens=input_tokens or 0, output_tokens=output_tokens or 0, model=model))

    def journal_step(self, message: dict[str, Any], results: Sequence[ToolResult] = ()) -> None:
        self.steps.append((message, list(results)))

    def note_result(self, result: ToolResult) -> None:
        self.results.append(result)

    async def start_tools(self, events: Sequence[Event]) -> bool:
        if not self.can_store:
            return False
        for event in events:
            self._add(event)
        return True

    async def end_tool(self, event: ToolEnd, result: ToolResult, output: str) -> None:
        self.results.append(result)
        self._add(event)

    async def ask_approval(self, *, call: OpenCall, title: str, prompt: str, arguments: dict[str, Any] | None) -> Answer:
        self.asked.append(call)
        return await self.answer(call) if self.answer is not None else (True, "")

    def set_phase(self, phase: Literal["model", "tool"]) -> None:
        self.phases.append(phase)

    @property
    def shown(self) -> int:
        return self._shown

    @property
    def tool_begun(self) -> bool:
        return self.content.tool_begun

    # -- looking

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def kinds(self) -> list[str]:
        return [str(event.__struct_config__.tag) for event in self.events]

    @property
    def text(self) -> str:
        return self.content.text

    @property
    def thoughts(self) -> str:
        return "".join(block.text for block in self.content.reasoning)

    def tools(self) -> list[tuple[str, str, str]]:
        """(`start` or `end`, call id, name or status), in order."""
        told: list[tuple[str, str, str]] = []
        for event in self.events:
            if isinstance(event, ToolStart):
                told.append(("start", event.tool_call_id, event.name))
            elif isinstance(event, ToolEnd):
                told.append(("end", event.tool_call_id, event.status))
        return told


class OpenGuards:
    """Hooks that let everything pass; a test overrides what it is about. `errors` are the caught ones."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, str]] = []
        self.requests: list[tuple[int, list[dict[str, Any]]]] = []

    async def before_generation(self, messages: list[dict[str, Any]], *, step: int) -> list[dict[str, Any]]:
        self.requests.append((step, messages))
        return messages

    async def before_tool(
        self, *, tool_call_id: str, name: str, arguments: dict[str, Any], side_effects: SideEffects
    ) -> dict[str, Any]:
        return arguments

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
        return result

    def on_error(self, where: str, words: str) -> None:
        self.errors.append((where, words))


Move = Chunk | BaseException | Callable[[Cancel], object]


class ScriptedProvider:
    """A model that plays one list of moves for each call: chunks, exceptions to raise, functions to run in its thread."""

    dialect = "openai"
    server = None

    def __init__(self, *calls: Sequence[Move]) -> None:
        self.calls = list(calls)
        self.requests: list[ModelRequest] = []
        self.cancels: list[Cancel] = []

    def stream(self, request: ModelRequest, cancel: Cancel) -> Iterator[Chunk]:
        self.requests.append(request)
        self.cancels.append(cancel)
        for move in self.calls[len(self.requests) - 1]:
            if isinstance(move, BaseException):
                raise move
            if callable(move):
                move(cancel)
            else:
                yield move

    def close(self) -> None:
        pass


def wants(*calls: tuple[str, str, dict[str, Any] | None]) -> StepEnd:
    """The end of a step that asks for tools: (id, name, arguments) each."""
    return StepEnd(
        finish="tool_calls",
        tool_calls=tuple(ToolCall(id=call_id, name=name, arguments=arguments) for call_id, name, arguments in calls),
        input_tokens=1,
        output_tokens=1,
    )


STOP = StepEnd(finish="stop", input_tokens=3, output_tokens=2, model="scripted")


@dataclass
class Scene:
    """One turn's agent parts, put together as the service does."""

    stage: NotingStage = field(default_factory=NotingStage)
    guards: OpenGuards = field(default_factory=OpenGuards)
    cancel: Cancel = field(default_factory=Cancel)
    threads: WorkerThreads = field(default_factory=lambda: WorkerThreads(8))
    tool_threads: WorkerThreads = field(default_factory=lambda: WorkerThreads(8))
    tools: Sequence[Tool] = ()
    seconds: float = 60.0
    reserve: float = 1.0
    tool_timeout: float = 10.0
    parallel: int = 8
    answer_chars: int = 1_000_000
    attempts: int = 3
    after_tool: Literal["forward", "salvage"] = "forward"
    max_steps: int = 5
    first_token: float = 20.0
    between_tokens: float = 20.0

    def __post_init__(self) -> None:
        self.deadline = Deadline(self.seconds)
        self.speech = Speech(self.stage, max_chars=self.answer_chars)

    def desk(self) -> ToolDesk:
        return ToolDesk(
            {tool.name: tool for tool in self.tools},
            caller=Caller(turn_id="turn_1", conversation_id="conv_1", user_id="ann", profile="default"),
            stage=self.stage,
            guards=self.guards,
            deadline=self.deadline,
            cancel=self.cancel,
            threads=self.tool_threads,
            limits=ToolLimits(timeout=self.tool_timeout, reserve=self.reserve, parallel=self.parallel),
            emit=lambda event: None,
        )

    def loop(self, provider: ScriptedProvider) -> ToolLoop:
        return ToolLoop(
            provider=provider,
            model="m",
            tools=[],
            conversation_id="conv_1",
            stage=self.stage,
            speech=self.speech,
            desk=self.desk(),
            guards=self.guards,
            cancel=self.cancel,
            threads=self.threads,
            limits=LoopLimits(
                max_steps=self.max_steps,
                max_output_tokens=100,
                attempts=self.attempts,
                after_tool=self.after_tool,
                first_token=self.first_token,
                between_tokens=self.between_tokens,
                reserve=self.reserve,
            ),
            remaining=self.deadline.remaining,
        )

    async def run_model(self, provider: ScriptedProvider, *, state: LoopState | None = None) -> str:
        return await self.loop(provider).run(state or LoopState(messages=[{"role": "user", "content": "hello"}]))

    async def run_agent(self, function: AgentFunction) -> None:
        agent = OwnAgent(
            function,
            stage=self.stage,
            speech=self.speech,
            desk=self.desk(),
            cancel=self.cancel,
            threads=self.threads,
        )
        await agent.run(
            lambda call: AgentContext(
                input="hello",
                parts=[{"type": "text", "text": "hello"}],
                history=[],
                user_id="ann",
                conversation_id="conv_1",
                turn_id="turn_1",
                profile="default",
                system="",
                deadline=self.deadline,
                cancel=self.cancel,
                call=call,
            )
        )


def free(threads: WorkerThreads, *, within: float = 5.0) -> bool:
    """Whether no call is running or abandoned any more, soon."""
    until = monotonic() + within
    while threads.busy or threads.abandoned:
        if monotonic() > until:
            return False
        threading.Event().wait(0.005)
    return True
