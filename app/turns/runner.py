"""The story of one turn, from top to bottom.

It begins with `turn_started`. The hooks may change or refuse the input; the user's message enters the history; the agent
thinks, speaks and uses tools on the stage (`thinking`). However that ends, there is one cause, one terminal event
(`outcome`) and one message (`bookkeeping`), and the conversation is free again. Whoever watches is not known here: a
closed browser ends a viewer, not a turn.
"""

from __future__ import annotations

from contextlib import suppress

import anyio
import msgspec
import structlog

from app.agents.context import Denied
from app.agents.speech import AnswerTooLong, Speech
from app.agents.transcript import Message
from app.clock import monotonic
from app.errors import StoreUnavailable
from app.events.types import Completion, Event, MessageSaved, MessageSaveFailed, Terminal, TurnStarted, UsageTotal
from app.limits.deadline import Deadline
from app.limits.groups import task_group
from app.observability import metrics, tracing
from app.store.errors import Fenced
from app.turns import outcome, state
from app.turns.bookkeeping import SAVE_SECONDS, Bookkeeping
from app.turns.clock import TurnClock
from app.turns.guards import TurnGuards
from app.turns.live import LiveTurn
from app.turns.parts import Parts
from app.turns.recorder import Recorder
from app.turns.stage import TurnStage
from app.turns.state import Cause, State
from app.turns.thinking import Thinking
from app.turns.unsaved import ConversationGone

log = structlog.get_logger(__name__)

# How long the ending is offered to the store before it is shown all the same (E3).
ENDING_SECONDS = 0.25
# How long tools that were told to stop may take to come back, before their end is unknown.
GRACE_SECONDS = 0.8


async def run_turn(turn: LiveTurn, parts: Parts) -> None:
    """Run one turn to its settlement, or to its handing on; never raises for anything that the turn does."""
    structlog.contextvars.bind_contextvars(turn_id=turn.id)
    with tracing.turn(_invocation(turn)) as span:
        if span.trace_id:
            structlog.contextvars.bind_contextvars(trace_id=span.trace_id)
        await _tell(_Run(turn, parts, span), turn)


def _invocation(turn: LiveTurn) -> tracing.Invocation:
    provider, recovered = turn.assistant.provider, turn.recovery is not None
    return tracing.Invocation(
        turn_id=turn.id,
        conversation_id=turn.row.conversation_id,
        profile=turn.row.profile,
        provider=provider.dialect if provider is not None else "earlybyte",
        model=turn.assistant.profile.model,
        parent=turn.traceparent,
        # What a turn waited for before its process died is not this trace's.
        waited=0.0 if recovered else max(0.0, monotonic() - turn.accepted_at),
        recovered=recovered,
    )


async def _tell(run: _Run, turn: LiveTurn) -> None:
    run.begin()
    cause = await run.think()
    if turn.handed_on and not turn.decision.made:
        await run.books.leave()
        run.span.set(status="handed_on")
        turn.settled.set()
        log.info("turn handed on")
        return
    try:
        ending = await run.end(cause)
    except Exception as error:
        ending = run.end_plainly(error)
    await run.save(ending)


class _Run:
    """The parts of one turn's story, in the order in which they happen."""

    def __init__(self, turn: LiveTurn, parts: Parts, span: tracing.Span) -> None:
        self.turn = turn
        self.parts = parts
        self.span = span
        recovery = turn.recovery
        self.recorder = Recorder(turn.log, parts.store, next_n=recovery.next_n if recovery else 1)
        self.guards = TurnGuards(turn, parts.background)
        self.clock = TurnClock(self._deadline(), self._out_of_time)
        self.stage = TurnStage(
            turn,
            self.recorder,
            parts.store,
            self.clock,
            approval_seconds=parts.settings.timeouts.approval,
            background=parts.background,
        )
        if recovery is not None:
            # Also of a turn that only ends now: the next model is shown what was done.
            self.stage.adopt(recovery.steps, block=recovery.block)
        content = turn.log.content
        limit = parts.settings.limits.answer_chars
        self.speech = Speech(self.stage, max_chars=limit, chars=content.chars, block=content.last_block)
        self.books = Bookkeeping(turn, parts, recorder=self.recorder, stage=self.stage)
        self.thinking = Thinking(turn, parts, stage=self.stage, speech=self.speech, guards=self.guards, clock=self.clock)

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

    def _out_of_time(self) -> None:
        if self.turn.stop(state.DeadlinePassed()):
            log.warning("turn timeout", rung="turn", timeout=self.parts.settings.timeouts.turn, turn_id=self.turn.id)

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
                past = await self._receive()
                cause = await self.thinking.run(self.books.given, past)
            except Exception as error:
                cause = self.thinking.cause_of(error)
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

    async def _receive(self) -> list[Message]:
        """Let the user's message into the history, by the hooks' leave; the conversation before it."""
        books = self.books
        if not self.turn.row.received:
            books.input = await self.guards.on_receive(books.input)
        books.received = True
        past: list[Message] = []

        async def look_back() -> None:
            past.extend(await books.load_history())

        async with task_group() as group:
            group.start_soon(books.store_start, self.clock.deadline.wall_ms())
            group.start_soon(look_back)
        return past

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

    def end_plainly(self, error: Exception) -> Terminal:
        """The ending that comes when the one above broke by a fault of ours: there is always one (E1)."""
        log.critical("ending broke", error=f"{type(error).__name__}: {error}", exc_info=error)
        self.guards.on_error("turn", f"{type(error).__name__}: {error}")
        ending = outcome.terminal(state.AgentFailed(), self._facts(), self.parts.settings.texts)
        self.recorder.number(ending)
        self.recorder.append_ending(ending)
        self.turn.move(State.ENDED)
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
        save = self.books.save_of(ending, status)
        message_id = self.turn.row.message_id
        told: Event = MessageSaved(message_id=message_id, status=status)  # type: ignore[arg-type]  # one of the four
        try:
            with tracing.save():
                await self.books.try_to_save(save)
        except (ConversationGone, Fenced) as error:
            told = MessageSaveFailed(message_id=message_id, code=error.code)
        except StoreUnavailable as error:
            log.error("message not saved", timeout=SAVE_SECONDS, error=error.message)  # noqa: TRY400 - no stack is wanted
            self.guards.on_error("store", error.message)
            self.parts.unsaved.add(save)
            metrics.saves_failed.inc()
            told = MessageSaveFailed(message_id=message_id, code="store_unavailable")
        except Exception as error:
            # Not for want of a store: trying again would not help. The next process does, by the stored ending.
            log.critical("message cannot be saved", error=f"{type(error).__name__}: {error}", exc_info=error)
            self.guards.on_error("store", f"{type(error).__name__}: {error}")
            told = MessageSaveFailed(message_id=message_id, code="internal")
        self.recorder.record_closing(told, journaled=False)
        self.turn.log.saved = isinstance(told, MessageSaved)
        self.turn.move(State.DONE)
        self.turn.log.end()
        self.turn.settled.set()
        self._sum_up(ending, status)

    def _sum_up(self, ending: Terminal, status: str) -> None:
        turn, facts = self.turn, self._facts()
        seconds = monotonic() - (turn.started_at or turn.accepted_at)
        reason = ending.finish_reason if isinstance(ending, Completion) else ending.code
        metrics.turns_ended.labels(status, reason).inc()
        if status == "partial":
            metrics.salvaged.labels(reason).inc()
        metrics.turn_seconds.observe(seconds)
        metrics.longest_gap_seconds.observe(self.recorder.longest_gap_ms / 1000)
        metrics.queued_seconds.observe((turn.started_at or turn.accepted_at) - turn.accepted_at)
        self._describe(ending, status, reason)
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

    def _describe(self, ending: Terminal, status: str, reason: str) -> None:
        """Put on the turn's span how it ended."""
        usage, failed = self._facts().usage, outcome.failure(ending)
        self.span.set(status=status, reason=reason)
        if usage is not None:
            self.span.used(usage.input_tokens, usage.output_tokens)
        if failed is not None:
            self.span.fail(failed)
