"""The built-in agent: a model step, its tool calls, again (PROTOCOL 5, X1, X3).

One owner of retries: a model call that has shown nothing is made again, whatever came before it, and never one that has. No
tool ever runs because of a retry: results are kept in `messages`, and only the call that failed is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec
import structlog

from app.agents.bridge import Bridge
from app.agents.context import Guards, OpenCall, Stage, ToolResult, TurnOver
from app.agents.speech import AnswerTooLong, Speech
from app.agents.token_watch import TokenWatch
from app.agents.tool_desk import ToolDesk
from app.agents.transcript import INVALID_ARGUMENTS, Message, assistant_message, calls_of, completed, tool_message
from app.errors import EarlybyteError
from app.ids import new_id
from app.limits.cancel import Cancel
from app.limits.groups import task_group
from app.limits.retry import RetryDecision, call_with_retries
from app.limits.threads import WorkerThreads
from app.observability import tracing
from app.providers.chunks import Alive, Chunk, Reasoning, StepEnd, Text
from app.providers.errors import LimitExceeded, ProviderError
from app.providers.provider import ModelRequest, Provider, ToolSpec

log = structlog.get_logger(__name__)


class StepLimit(EarlybyteError):
    """The model still asks for tools after `max_steps` steps."""

    code = "tool_limit"


class BrokenCalls(EarlybyteError):
    """The model sent tool calls with broken arguments twice in a row (X3)."""

    code = "upstream_invalid"


class ModelFailed(EarlybyteError):
    """A model call failed for good; `cause` is the failure of its last try."""

    code = "upstream_unavailable"

    def __init__(self, cause: ProviderError, *, shown: bool) -> None:
        super().__init__(cause.message)
        self.cause = cause
        self.shown = shown


@dataclass(frozen=True, kw_only=True)
class LoopLimits:
    """Steps, attempts and seconds of one turn's model calls; `after_tool` is `forward` or `salvage`."""

    max_steps: int
    max_output_tokens: int
    attempts: int
    after_tool: Literal["forward", "salvage"]
    first_token: float
    between_tokens: float
    reserve: float


@dataclass(kw_only=True)
class LoopState:
    """Where the loop is: the messages so far, and after a crash the calls of a step that are still open."""

    messages: list[Message]
    step: int = 0
    broken: int = 0
    open_calls: list[OpenCall] = field(default_factory=list)


class ToolLoop:
    """Runs one turn of a model with tools on a stage."""

    def __init__(
        self,
        *,
        provider: Provider,
        model: str,
        tools: Sequence[ToolSpec],
        conversation_id: str,
        stage: Stage,
        speech: Speech,
        desk: ToolDesk,
        guards: Guards,
        cancel: Cancel,
        threads: WorkerThreads,
        limits: LoopLimits,
        remaining: Callable[[], float],
    ) -> None:
        self._provider = provider
        self._model = model
        self._tools = list(tools)
        self._conversation_id = conversation_id
        self._stage = stage
        self._speech = speech
        self._desk = desk
        self._guards = guards
        self._cancel = cancel
        self._threads = threads
        self._limits = limits
        self._remaining = remaining

    async def run(self, state: LoopState) -> Literal["stop", "length", "content_filter"]:
        """How the model ended its answer; everything it said and did is on the stage by then.

        Raises:
            ModelFailed, BrokenCalls, StepLimit, AnswerTooLong, app.agents.context.Denied, TurnOver.
        """
        if state.open_calls:
            with tracing.step(state.step):
                await self._run_tools(state, state.open_calls)
        while state.step < self._limits.max_steps:
            state.step += 1
            with tracing.step(state.step):
                end, text = await self._model_step(state)
                if end.finish != "tool_calls":
                    return end.finish
                await self._act(state, end, text)
        raise StepLimit

    async def _act(self, state: LoopState, end: StepEnd, text: str) -> None:
        """Do what the model asked for, and put it and its results into the messages."""
        end = _with_fresh_ids(end, state.messages)
        message = assistant_message(text, end.tool_calls, dialect=self._provider.dialect, blocks=end.blocks)
        state.messages.append(message)
        if any(call.arguments is None for call in end.tool_calls):
            self._refuse_broken(state, message)
            return
        state.broken = 0
        self._stage.journal_step(message)
        await self._run_tools(state, calls_of(message))

    async def _run_tools(self, state: LoopState, calls: Sequence[OpenCall]) -> None:
        results = await self._desk.run_batch(calls)
        state.messages.extend(tool_message(result) for result in results)
        state.open_calls = []
        self._speech.boundary()

    def _refuse_broken(self, state: LoopState, message: Message) -> None:
        """A batch in which one call is broken runs none of it; the model is told, once."""
        results = [ToolResult(tool_call_id=call.id, status="error", content=INVALID_ARGUMENTS) for call in calls_of(message)]
        self._stage.journal_step(message, results)
        state.messages.extend(tool_message(result) for result in results)
        self._speech.boundary()
        state.broken += 1
        if state.broken == 2:
            raise BrokenCalls
        log.warning("broken tool arguments", calls=[call.name for call in calls_of(message)])

    async def _model_step(self, state: LoopState) -> tuple[StepEnd, str]:
        """One model call, tried again by X1; its end and the text it added to the answer."""
        messages = await self._guards.before_generation(completed(state.messages), step=state.step)
        request = ModelRequest(
            model=self._model,
            messages=messages,
            tools=self._tools,
            max_output_tokens=self._limits.max_output_tokens,
            conversation_id=self._conversation_id,
        )

        async def attempt(number: int) -> StepEnd:
            if number > 1:
                self._speech.new_call()
                self._stage.restarted(number, reason)
            with tracing.chat(
                model=self._model,
                provider=self._provider.dialect,
                server=self._provider.server,
                attempt=number,
                max_output_tokens=self._limits.max_output_tokens,
            ) as span:
                return await self._call_model(request, span)

        reason = ""

        def judge(error: Exception) -> RetryDecision:
            nonlocal reason
            if not isinstance(error, ModelFailed):
                return RetryDecision(retry=False)
            reason = type(error.cause).code
            forward = not self._stage.tool_begun or self._limits.after_tool == "forward"
            may = error.cause.transient and not error.shown and forward and not self._cancel.cancelled
            return RetryDecision(retry=may, retry_after=error.cause.retry_after)

        async def note(number: int, error: Exception) -> None:
            cause = error.cause if isinstance(error, ModelFailed) else error
            log.warning("model call failed, trying again", attempt=number, error=describe(cause))
            self._guards.on_error("model", describe(cause))

        end = await call_with_retries(
            attempt,
            attempts=self._limits.attempts,
            may_retry=judge,
            remaining=lambda: self._remaining() - self._limits.reserve,
            on_retry=note,
        )
        return end, self._speech.take_step_text()

    async def _call_model(self, request: ModelRequest, span: tracing.Span) -> StepEnd:
        """One try of one model call: a blocking iterator in a worker thread, its chunks on the stage."""
        call = Cancel()
        shown = self._stage.shown
        bridge: Bridge[Chunk] = Bridge(direct=lambda chunks: self._take_directly(bridge, watch, chunks))
        watch = TokenWatch(
            first=self._limits.first_token,
            between=self._limits.between_tokens,
            expired=lambda error: _stop(call, bridge, error),
        )
        forget = self._cancel.on_cancel(lambda: _stop(call, bridge, TurnOver()))
        end: StepEnd | None = None

        def produce() -> None:
            for chunk in self._provider.stream(request, call):
                bridge.put(chunk)

        try:
            async with task_group() as group:
                group.start_soon(self._threads.run, partial(bridge.work, produce))
                try:
                    while (chunks := await bridge.next_batch()) is not None:
                        end = self._take(watch, chunks) or end
                finally:
                    forget()
                    watch.stop()
                    span.first_chunk(watch.first_after)
                    call.cancel()
                    bridge.close()
                    group.cancel_scope.cancel()
            self._speech.flush()
        except LimitExceeded as error:
            log.warning("upstream limit exceeded", error=describe(error))
            self._speech.flush()
            raise AnswerTooLong from error
        except ProviderError as error:
            if not self._cancel.cancelled:
                self._speech.flush()
            raise ModelFailed(error, shown=self._stage.shown != shown) from error
        except Exception:
            # A fault of ours: what was held comes before this ending, too.
            if not self._cancel.cancelled:
                self._speech.flush()
            raise
        if self._cancel.cancelled:
            raise TurnOver
        if end is None:
            raise ModelFailed(ProviderError(detail="the provider ended without an end of step"), shown=True)
        span.answered(finish=end.finish, model=end.model or "")
        span.used(end.input_tokens, end.output_tokens)
        self._stage.used(end.input_tokens, end.output_tokens, end.model or self._model)
        return end

    def _take_directly(self, bridge: Bridge[Chunk], watch: TokenWatch, chunks: Sequence[Chunk]) -> int:
        """The short way of plain deltas, from the drain callback: how many of `chunks` were taken."""
        plain = next((i for i, chunk in enumerate(chunks) if isinstance(chunk, StepEnd)), len(chunks))
        try:
            self._take(watch, chunks[:plain])
        except Exception as error:
            bridge.close(error)
            return len(chunks)
        return plain

    def _take(self, watch: TokenWatch, chunks: Sequence[Chunk]) -> StepEnd | None:
        """Put a batch on the stage: neighbouring pieces as one, so that under load events merge by themselves."""
        end: StepEnd | None = None
        pieces: list[str] = []
        kind: type[Chunk] = Text
        for chunk in chunks:
            if type(chunk) is not kind and pieces:
                self._utter(kind, pieces)
                pieces = []
            match chunk:
                case Text(text) | Reasoning(text):
                    kind = type(chunk)
                    pieces.append(text)
                case StepEnd():
                    end = chunk
                case Alive():
                    pass
        if pieces:
            self._utter(kind, pieces)
        if chunks:
            watch.beat()
        return end

    def _utter(self, kind: type[Chunk], pieces: list[str]) -> None:
        text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        if kind is Text:
            self._speech.say(text)
        else:
            self._speech.think(text)


def _with_fresh_ids(end: StepEnd, messages: Sequence[Message]) -> StepEnd:
    """The same step, its calls told apart from earlier ones: some endpoints count `call_0` anew in each answer (X2)."""
    used = {call["id"] for message in messages for call in message.get("tool_calls") or []}
    fresh = {call.id: new_id("call") for call in end.tool_calls if call.id in used}
    if not fresh:
        return end
    calls = tuple(msgspec.structs.replace(call, id=fresh.get(call.id, call.id)) for call in end.tool_calls)
    blocks = end.blocks and [
        {**block, "id": fresh[block["id"]]} if block.get("id") in fresh else block for block in end.blocks
    ]
    return msgspec.structs.replace(end, tool_calls=calls, blocks=blocks)


def _stop(call: Cancel, bridge: Bridge[Chunk], error: Exception) -> None:
    bridge.close(error)
    call.cancel()


def describe(error: BaseException) -> str:
    """One line for the log: class, code, message and detail of an error of ours."""
    detail = getattr(error, "detail", "")
    code = getattr(error, "code", "")
    return f"{type(error).__name__} {code}: {error}{f' ({detail})' if detail else ''}"
