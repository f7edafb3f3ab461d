"""The story of one turn, from top to bottom.

It begins with `turn_started`. The hooks may change or refuse the input; the user's message enters the history; the agent
thinks, speaks and uses tools on the stage. However that ends, there is one cause, one terminal event and one message, and
the conversation is free again. Whoever watches is not known here: a closed browser ends a viewer, not a turn.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import anyio
import msgspec
import structlog

from app.agents.context import AgentContext, Denied, Transient, TurnOver
from app.agents.own_agent import OwnAgent
from app.agents.speech import AnswerTooLong, Speech
from app.agents.tool_desk import Caller, ToolDesk, ToolLimits
from app.agents.tool_loop import BrokenCalls, LoopLimits, LoopState, ModelFailed, StepLimit, ToolLoop, describe
from app.agents.transcript import STOPPED, Message, history, user_message
from app.clock import monotonic, now_ms
from app.errors import StoreUnavailable
from app.events.codec import to_fields
from app.events.types import (
    Completion,
    Event,
    MessageSaved,
    MessageSaveFailed,
    Terminal,
    TurnStarted,
    UsageTotal,
)
from app.limits.deadline import Deadline
from app.limits.groups import task_group
from app.limits.retry import RetryDecision, call_with_retries
from app.providers.errors import UpstreamRejected
from app.store import messages as stored
from app.store import turns
from app.store.engine import Connection
from app.turns import outcome, state
from app.turns.clock import TurnClock
from app.turns.guards import TurnGuards
from app.turns.live import LiveTurn
from app.turns.parts import Parts
from app.turns.recorder import Recorder
from app.turns.stage import TurnStage
from app.turns.state import Cause, State
from app.turns.unsaved import ConversationGone, Save

log = structlog.get_logger(__name__)

# How long the ending is offered to the store before it is shown all the same (E3).
ENDING_SECONDS = 0.25
# How long the message is tried to be saved before the conversation goes on without it (PROTOCOL 5).
SAVE_SECONDS = 5.0
# How long tools that were told to stop may take to come back, before their end is unknown.
GRACE_SECONDS = 0.8


async def run_turn(turn: LiveTurn, parts: Parts) -> None:
    """Run one turn to its settlement, or to its handing on; never raises for anything that the turn does."""
    structlog.contextvars.bind_contextvars(turn_id=turn.id)
    run = _Run(turn, parts)
    run.begin()
    cause = await run.think()
    if turn.handed_on and not turn.decision.made:
        await run.leave()
        return
    ending = await run.end(cause)
    await run.save(ending)


class _Run:
    """The parts of one turn's story, in the order in which they happen."""

    def __init__(self, turn: LiveTurn, parts: Parts) -> None:
        self.turn = turn
        self.parts = parts
        recovery = turn.recovery
        self.recorder = Recorder(turn.log, parts.store, next_n=recovery.next_n if recovery else 1)
        self.guards = TurnGuards(turn, parts.background)
        self.clock = TurnClock(self._deadline(), lambda: turn.stop(state.DeadlinePassed()))
        self.stage = TurnStage(
            turn,
            self.recorder,
            parts.store,
            self.clock,
            approval_seconds=parts.settings.timeouts.approval,
            background=parts.background,
        )
        content = turn.log.content
        limit = parts.settings.limits.answer_chars
        self.speech = Speech(self.stage, max_chars=limit, chars=content.chars, block=content.last_block)
        self.input: str | list[dict[str, Any]] = turn.row.input
        self.user_message_saved = turn.row.received
        # Whether `on_receive` has let the input into the history.
        self.received = turn.row.received or not turn.assistant.hooks.has("on_receive")
        self._loop_thread = threading.get_ident()

    # -- the beginning

    def begin(self) -> None:
        """Say that the turn runs."""
        turn = self.turn
        turn.move(State.RUNNING)
        turn.started_at = monotonic()
        turn.log.set_position(None)
        turn.log.set_phase("model")
        turn.recorder = self.recorder
        if turn.log.content.last_seq == 0:
            row = turn.row
            started = TurnStarted(
                turn_id=row.id,
                conversation_id=row.conversation_id,
                message_id=row.message_id,
                profile=row.profile,
                epoch=turn.log.epoch,
                protocol=1,
            )
            self.recorder.record_closing(started, journaled=False)
        log.info("turn started", profile=turn.row.profile, recovered=turn.recovery is not None)

    def _deadline(self) -> Deadline:
        row = self.turn.row
        if self.turn.recovery is not None and row.deadline_at is not None:
            return Deadline.from_wall_ms(row.deadline_at)
        return Deadline(self.parts.settings.timeouts.turn)

    # -- the middle

    async def think(self) -> Cause:
        """Run hooks and agent until there is a cause for the turn to end; the first cause wins."""
        turn = self.turn
        cause: Cause | None = None
        with anyio.CancelScope() as scope:
            turn.on_stop = lambda: self._interrupt(scope)
            if turn.cancel.cancelled:
                scope.cancel()
            try:
                cause = await self._receive_and_run()
            except Exception as error:
                cause = self._cause_of(error)
        turn.on_stop = None
        self.clock.stop()
        if turn.handed_on and not turn.decision.made:
            return cause or state.ShutDown()
        if cause is not None:
            turn.decision.decide(cause)
        turn.decision.decide(state.AgentFailed())
        self.recorder.shut = True
        assert turn.decision.cause is not None
        return turn.decision.cause

    def _interrupt(self, scope: anyio.CancelScope) -> None:
        """The end was decided from outside: let go of the agent, at once or when its tools have had a moment."""
        if not self.turn.handed_on and not isinstance(self.turn.decision.cause, state.Cancelled):
            with suppress(AnswerTooLong):
                self.speech.flush()
        self.recorder.shut = True
        if self.stage.under_way:
            scope.deadline = min(scope.deadline, anyio.current_time() + GRACE_SECONDS)
        else:
            scope.cancel()

    async def _receive_and_run(self) -> Cause:
        recovery = self.turn.recovery
        if not self.turn.row.received:
            self.input = await self.guards.on_receive(self.input)
        self.received = True
        past: list[Message] = []

        async def look_back() -> None:
            past.extend(await self._load_history())

        async with task_group() as group:
            group.start_soon(self._store_start)
            group.start_soon(look_back)
        past_steps: list[Message] = []
        if recovery is not None:
            past_steps = self.stage.adopt(recovery.steps)
            if not recovery.open_calls and self.turn.log.content.loose_reasoning:
                self.stage.restarted(2, "recovered")
        if self.turn.assistant.agent is not None:
            return await self._run_own_agent(self.turn.assistant.agent, past)
        return await self._run_model(past, past_steps)

    async def _run_model(self, past: list[Message], steps: list[Message]) -> Cause:
        assistant, recovery = self.turn.assistant, self.turn.recovery
        timeouts, retries = self.parts.settings.timeouts, self.parts.settings.retries
        system = assistant.profile.system
        head = [{"role": "system", "content": system}] if system else []
        assert assistant.provider is not None
        loop = ToolLoop(
            provider=assistant.provider,
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
        messages = [*head, *past, user_message(_parts(self.input)), *steps]
        how = await loop.run(
            LoopState(
                messages=messages,
                step=recovery.step if recovery else 0,
                open_calls=recovery.open_calls if recovery else [],
            )
        )
        return state.Finished(how)

    async def _run_own_agent(self, function: Any, past: list[Message]) -> Cause:
        agent = OwnAgent(
            function,
            stage=self.stage,
            speech=self.speech,
            desk=self._desk(),
            cancel=self.turn.cancel,
            threads=self.parts.threads,
        )
        row = self.turn.row
        parts = _parts(self.input)
        tool_begun = False

        async def attempt(number: int) -> None:
            nonlocal tool_begun
            if number > 1:
                self.speech.new_call()
                self.stage.restarted(number, "transient")
            tool_begun = False
            await agent.run(
                lambda call: AgentContext(
                    input="\n\n".join(str(p["text"]) for p in parts if p.get("type") == "text"),
                    parts=parts,
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
        loop = asyncio.get_running_loop()

        def emit(event: Event) -> None:
            if threading.get_ident() == self._loop_thread:
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

    def _cause_of(self, error: Exception) -> Cause:
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

    # -- what is read and written on the way

    async def _load_history(self) -> list[Message]:
        """The conversation before this turn, as a model is shown it; the unsaved answers of this process included."""
        row = self.turn.row
        before = 2 * row.place
        remembered = await self.parts.store.read(lambda conn: stored.history(conn, row.conversation_id, before_place=before))
        by_turn: dict[str, dict[int, list[Message]]] = {}
        for one in remembered:
            by_turn.setdefault(one.turn_id, {})[one.place] = one.model_messages
        for save in self.parts.unsaved.of_conversation(row.conversation_id):
            for message in (save.user_message, save.reply):
                if message is not None and message.model_messages and message.place < before:
                    by_turn.setdefault(save.turn_id, {})[message.place] = message.model_messages
        ordered = sorted(by_turn.values(), key=min)
        whole = [[m for place in sorted(turn) for m in turn[place]] for turn in ordered]
        return history(whole, max_chars=self.parts.settings.limits.history_chars)

    async def _store_start(self) -> None:
        """Put the user's message into the history and the turn on record as running; waited for only shortly."""
        row = self.turn.row
        if self.user_message_saved:
            return
        message = self._user_message()
        deadline_at = self.clock.deadline.wall_ms()

        async def op(conn: Connection) -> None:
            await stored.insert(conn, message)
            await turns.update(
                conn,
                row.id,
                if_epoch=row.epoch,
                status="running",
                received=True,
                input=self.input,
                started_at=now_ms(),
                deadline_at=deadline_at,
            )

        try:
            await self.parts.store.write(op, timeout=ENDING_SECONDS)
            self.user_message_saved = True
        except StoreUnavailable as error:
            # It is saved with the reply, at the latest.
            log.warning("user message not stored yet", error=error.message)

    def _user_message(self) -> stored.Message:
        row = self.turn.row
        parts = _parts(self.input)
        return stored.Message(
            id=row.user_message_id,
            conversation_id=row.conversation_id,
            turn_id=row.id,
            place=2 * row.place,
            role="user",
            status="complete",
            text="\n\n".join(str(p["text"]) for p in parts if p.get("type") == "text"),
            content={"parts": parts},
            model_messages=[user_message(parts)],
            created_at=row.created_at,
        )

    # -- the end

    async def end(self, cause: Cause) -> Terminal:
        """Close what is open, ask the hooks about the text, offer the ending to the store, and show it."""
        self.stage.close_open()
        ending = await self._checked(outcome.terminal(cause, self._facts(), self.parts.settings.texts))
        self.recorder.number(ending)
        await self.recorder.offer_ending(ending, timeout=ENDING_SECONDS)
        self.recorder.append_ending(ending)
        self.turn.move(State.ENDED)
        self.guards.on_delivery(ending)
        return ending

    async def _checked(self, ending: Terminal) -> Terminal:
        """The ending after the hooks have seen the whole text, inside the reserve (E2)."""
        if not isinstance(ending, Completion) or ending.replaced or isinstance(self.turn.decision.cause, state.Stored):
            return ending
        text = ending.text or ""
        try:
            with anyio.fail_after(max(1.0, self.parts.settings.timeouts.reserve)):
                new = await self.guards.after_generation(ending, text)
        except Denied as denied:
            return outcome.refused(denied.message, self._facts())
        except TimeoutError:
            log.warning("hooks timeout", rung="reserve", timeout=self.parts.settings.timeouts.reserve)
            return ending
        if new == text:
            return ending
        return msgspec.structs.replace(ending, text=new, chars=len(new), replaced=True)

    def _facts(self) -> outcome.Facts:
        content = self.recorder.content
        usage = None
        if content.input_tokens or content.output_tokens:
            usage = UsageTotal(input_tokens=content.input_tokens, output_tokens=content.output_tokens)
        return outcome.Facts(
            text=content.text,
            produced=content.produced,
            seen=content.visible,
            tool_begun=content.tool_begun,
            usage=usage,
        )

    async def save(self, ending: Terminal) -> None:
        """Save the message in one transaction and settle the turn; what cannot be saved now is kept and owed."""
        status = outcome.message_status(ending)
        save = self._save(ending, status)
        message_id = self.turn.row.message_id
        told: Event = MessageSaved(message_id=message_id, status=status)  # type: ignore[arg-type]  # one of the four
        try:
            await self._try_to_save(save)
        except ConversationGone:
            told = MessageSaveFailed(message_id=message_id, code="conversation_deleted")
        except StoreUnavailable as error:
            log.error("message not saved", timeout=SAVE_SECONDS, error=error.message)  # noqa: TRY400 - no stack is wanted
            self.guards.on_error("store", error.message)
            self.parts.unsaved.add(save)
            told = MessageSaveFailed(message_id=message_id, code="store_unavailable")
        self.recorder.record_closing(told, journaled=False)
        self.turn.move(State.DONE)
        self.turn.log.end()
        self.turn.settled.set()
        self._sum_up(ending, status)

    async def _try_to_save(self, save: Save) -> None:
        if isinstance(self.turn.decision.cause, state.Cancelled) and self.turn.decision.cause.deleted:
            raise ConversationGone
        give_up_at = monotonic() + SAVE_SECONDS
        pause = 0.1
        while True:
            try:
                await self.parts.unsaved.write(save, timeout=max(0.1, give_up_at - monotonic()))
            except StoreUnavailable:
                if monotonic() + pause >= give_up_at:
                    raise
                await anyio.sleep(pause)
                pause = min(1.0, pause * 2)
            else:
                return

    def _save(self, ending: Terminal, status: str) -> Save:
        row, content = self.turn.row, self.recorder.content
        transcript = self.stage.transcript()
        text = content.text
        if isinstance(ending, Completion) and ending.replaced:
            transcript = _with_replaced_text(transcript, text)
        if isinstance(self.turn.decision.cause, state.Cancelled):
            transcript.append({"role": "user", "content": STOPPED})
        if not isinstance(ending, Completion):
            text = ending.message
        reply = stored.Message(
            id=row.message_id,
            conversation_id=row.conversation_id,
            turn_id=row.id,
            place=2 * row.place + 1,
            role="assistant",
            status=status,  # type: ignore[arg-type]  # one of the four
            text=text,
            content={**content.to_document(), "terminal": to_fields(ending)},
            model_messages=transcript or None,
            created_at=ending.ts,
        )
        return Save(
            turn_id=row.id,
            conversation_id=row.conversation_id,
            tenant=row.tenant,
            user_id=row.user_id,
            epoch=row.epoch,
            user_message=None if self.user_message_saved or not self.received else self._user_message(),
            reply=reply,
            terminal=to_fields(ending),
            # message_saved, which is told after the save, has the next number.
            last_seq=content.last_seq + 1,
        )

    def _sum_up(self, ending: Terminal, status: str) -> None:
        turn, facts = self.turn, self._facts()
        seconds = monotonic() - (turn.started_at or turn.accepted_at)
        reason = ending.finish_reason if isinstance(ending, Completion) else ending.code
        log.info(
            "turn ended",
            status=status,
            reason=reason,
            seconds=round(seconds, 3),
            waited=round((turn.started_at or turn.accepted_at) - turn.accepted_at, 3),
            chars=len(facts.text),
            tools=len(self.recorder.content.tools),
            events=self.recorder.content.last_seq,
        )
        self.guards.on_turn_end(ending, status=status, text=facts.text, usage=facts.usage, ms=int(seconds * 1000))

    async def leave(self) -> None:
        """Hand the turn on: what is known goes into the journal, and nobody owns it any more."""
        row = self.turn.row
        try:
            await self.recorder.flush(timeout=2.0)
            await self.parts.store.write(lambda conn: turns.disown(conn, row.id, epoch=row.epoch), timeout=2.0)
        except StoreUnavailable as error:
            log.warning("turn handed on without its last words", error=error.message)
        self.turn.settled.set()
        log.info("turn handed on")


def _parts(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": given}] if isinstance(given, str) else given


def _with_replaced_text(transcript: list[Message], text: str) -> list[Message]:
    """The same steps, with the answer that a hook put in the place of all that was said."""
    steps = [
        {**{k: v for k, v in message.items() if k != "_blocks"}, "content": None}
        if message.get("role") == "assistant"
        else message
        for message in transcript
        if message.get("role") != "assistant" or message.get("tool_calls")
    ]
    return [*steps, {"role": "assistant", "content": text}] if text else steps
