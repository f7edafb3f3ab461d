"""What answers the turn, set to work: the model loop or a user's own agent, on the turn's stage.

Everything that an agent may use is put around it here: tools behind a desk, hooks, time, retries. What it raises comes out
as the cause that ends the turn.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import structlog

from app.agents.context import AgentContext, Denied, Transient, TurnOver
from app.agents.own_agent import AgentFunction, OwnAgent
from app.agents.speech import AnswerTooLong, Speech
from app.agents.tool_desk import Caller, ToolDesk, ToolLimits
from app.agents.tool_loop import BrokenCalls, LoopLimits, LoopState, ModelFailed, StepLimit, ToolLoop, describe
from app.agents.transcript import Message, user_message
from app.events.types import Event
from app.limits.retry import RetryDecision, call_with_retries
from app.providers.errors import UpstreamRejected
from app.providers.provider import Provider
from app.turns import state
from app.turns.clock import TurnClock
from app.turns.guards import TurnGuards
from app.turns.live import LiveTurn
from app.turns.parts import Parts
from app.turns.stage import TurnStage
from app.turns.state import Cause

log = structlog.get_logger(__name__)


class Thinking:
    """One turn's agent at work."""

    def __init__(
        self, turn: LiveTurn, parts: Parts, *, stage: TurnStage, speech: Speech, guards: TurnGuards, clock: TurnClock
    ) -> None:
        self.turn = turn
        self.parts = parts
        self.stage = stage
        self.speech = speech
        self.guards = guards
        self.clock = clock

    async def run(self, given: list[dict[str, Any]], past: list[Message]) -> Cause:
        """The cause for which the agent ended by itself; `given` is what the user sent, `past` the conversation before it.

        Raises:
            Exception: whatever went wrong; `cause_of` says what it means.
        """
        steps = self._go_on()
        if self.turn.assistant.agent is not None:
            return await self._run_own_agent(self.turn.assistant.agent, given, past)
        assert self.turn.assistant.provider is not None
        return await self._run_model(self.turn.assistant.provider, [*past, user_message(given), *steps])

    def _go_on(self) -> list[Message]:
        """After a crash: what the steps so far have told the model."""
        recovery = self.turn.recovery
        if recovery is None:
            return []
        if not recovery.open_calls and self.turn.log.content.loose_reasoning:
            self.stage.restarted(2, "recovered")
        return self.stage.past_steps()

    async def _run_model(self, provider: Provider, messages: list[Message]) -> Cause:
        assistant, recovery = self.turn.assistant, self.turn.recovery
        timeouts, retries = self.parts.settings.timeouts, self.parts.settings.retries
        system = assistant.profile.system
        head = [{"role": "system", "content": system}] if system else []
        loop = ToolLoop(
            provider=provider,
            model=assistant.profile.model,
            tools=assistant.tool_specs,
            conversation_id=self.turn.row.conversation_id,
            stage=self.stage,
            speech=self.speech,
            desk=self._desk(),
            guards=self.guards,
            cancel=self.turn.cancel,
            threads=self.parts.threads,
            limits=LoopLimits(
                max_steps=assistant.profile.max_steps,
                max_output_tokens=assistant.profile.max_output_tokens,
                attempts=retries.attempts,
                after_tool=retries.after_tool,
                first_token=timeouts.model_first_token,
                between_tokens=timeouts.model_between_tokens,
                reserve=timeouts.reserve,
            ),
            remaining=self.clock.remaining,
        )
        how = await loop.run(
            LoopState(
                messages=[*head, *messages],
                step=recovery.step if recovery else 0,
                open_calls=recovery.open_calls if recovery else [],
            )
        )
        return state.Finished(how)

    async def _run_own_agent(self, function: AgentFunction, given: list[dict[str, Any]], past: list[Message]) -> Cause:
        agent = OwnAgent(
            function,
            stage=self.stage,
            speech=self.speech,
            desk=self._desk(),
            cancel=self.turn.cancel,
            threads=self.parts.threads,
        )
        row = self.turn.row

        async def attempt(number: int) -> None:
            if number > 1:
                self.speech.new_call()
                self.stage.restarted(number, "transient")
            await agent.run(
                lambda call: AgentContext(
                    input="\n\n".join(str(p["text"]) for p in given if p.get("type") == "text"),
                    parts=given,
                    history=past,
                    user_id=row.user_id,
                    conversation_id=row.conversation_id,
                    turn_id=row.id,
                    profile=row.profile,
                    system=self.turn.assistant.profile.system or "",
                    deadline=self.clock,
                    cancel=self.turn.cancel,
                    call=call,
                )
            )

        def judge(error: Exception) -> RetryDecision:
            fresh = not self.stage.shown and not self.stage.tool_begun and not self.stage.steps
            return RetryDecision(retry=isinstance(error, Transient) and fresh)

        async def note(number: int, error: Exception) -> None:
            log.warning("agent failed, trying again", attempt=number, error=describe(error))
            self.guards.on_error("agent", describe(error))

        await call_with_retries(
            attempt,
            attempts=self.parts.settings.retries.attempts,
            may_retry=judge,
            remaining=lambda: self.clock.remaining() - self.parts.settings.timeouts.reserve,
            on_retry=note,
        )
        return state.Finished("stop")

    def _desk(self) -> ToolDesk:
        row, timeouts = self.turn.row, self.parts.settings.timeouts
        loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()

        def emit(event: Event) -> None:
            if threading.get_ident() == loop_thread:
                self.stage.emitted(event)
            else:
                loop.call_soon_threadsafe(self.stage.emitted, event)

        return ToolDesk(
            self.turn.assistant.tools,
            caller=Caller(turn_id=row.id, conversation_id=row.conversation_id, user_id=row.user_id, profile=row.profile),
            stage=self.stage,
            guards=self.guards,
            deadline=self.clock,
            cancel=self.turn.cancel,
            threads=self.parts.tool_threads,
            limits=ToolLimits(timeout=timeouts.tool, reserve=timeouts.reserve),
            emit=emit,
        )

    def cause_of(self, error: Exception) -> Cause:
        """What a failure means for the turn. The only place where exceptions become causes."""
        match error:
            case TurnOver():
                return state.AgentFailed()
            case Denied():
                return state.Denied(error.message)
            case AnswerTooLong():
                return state.Finished("length")
            case StepLimit():
                return state.StepsSpent()
            case BrokenCalls():
                return state.CallsBroken()
            case ModelFailed(cause=UpstreamRejected()):
                self._caught("model", error.cause)
                return state.UpstreamRefused()
            case ModelFailed():
                self._caught("model", error.cause)
                return state.UpstreamFailed()
            case Transient():
                self._caught("agent", error)
                return state.UpstreamFailed()
        log.error("agent failed", error=f"{type(error).__name__}: {error}", exc_info=error)
        self.guards.on_error("agent", f"{type(error).__name__}: {error}")
        return state.AgentFailed()

    def _caught(self, where: str, error: BaseException) -> None:
        log.warning("failed", where=where, error=describe(error))
        self.guards.on_error(where, describe(error))
