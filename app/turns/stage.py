"""The turn as its agent performs on it: what `app.agents.context.Stage` asks for, over the recorder and the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import anyio
import structlog

from app.agents.context import AgentMisbehaved, OpenCall, ToolResult
from app.agents.transcript import Message, assistant_message, tool_message
from app.clock import monotonic, now_ms
from app.errors import EarlybyteError
from app.events.envelope import fit
from app.events.types import (
    ApprovalRequired,
    ApprovalResolved,
    AttemptRestarted,
    Decision,
    Event,
    ReasoningDelta,
    TextDelta,
    ToolEnd,
    ToolProgress,
    ToolStart,
    Usage,
)
from app.ids import new_id
from app.observability import metrics, tracing
from app.store import approvals, journal, turns
from app.store.engine import Connection, Store
from app.turns.clock import TurnClock
from app.turns.live import LiveTurn
from app.turns.progress import Progress
from app.turns.recorder import Recorder
from app.turns.state import State

log = structlog.get_logger(__name__)
# How long a tool waits to be put on record before it is not run at all (PROTOCOL 5).
DURABLE_SECONDS = 2.0
_PAUSE_SECONDS = 0.1


class TurnStage:
    """One turn's stage. Everything but the ends of tools and approvals is ignored once the turn's end is decided."""

    def __init__(
        self,
        turn: LiveTurn,
        recorder: Recorder,
        store: Store,
        clock: TurnClock,
        *,
        approval_seconds: float,
        background: Callable[[Awaitable[None]], None],
    ) -> None:
        self._turn = turn
        self._recorder = recorder
        self._store = store
        self._clock = clock
        self._approval_seconds = approval_seconds
        self._background = background
        self._waiting = 0
        # Ids of tool calls and approvals that are under way, which an interrupt gives a moment to end by themselves.
        self.under_way: set[str] = set()
        self.steps: list[tuple[Message, dict[str, ToolResult]]] = []
        self._block_of_step = 0
        self._progress = Progress(self.emitted, background)

    def __repr__(self) -> str:
        return f"<TurnStage {self._turn.id} steps={len(self.steps)} under_way={len(self.under_way)}>"

    # -- showing

    def say(self, block: int, text: str) -> None:
        """Add to the answer."""
        if not self._recorder.content.chars and self._turn.started_at is not None:
            metrics.first_text_seconds.observe(monotonic() - self._turn.started_at)
        self._recorder.record(TextDelta(block=block, text=text))

    def think(self, block: int, text: str) -> None:
        """Add to the reasoning."""
        self._recorder.record(ReasoningDelta(block=block, text=text))

    def show(self, event: Event) -> None:
        """Add any other event; a tool's start and end must come in pairs."""
        tools = self._recorder.content.tools
        match event:
            case ToolStart() if event.tool_call_id in tools:
                raise AgentMisbehaved(f"the tool call {event.tool_call_id} was started twice")
            case ToolEnd() | ToolProgress() if "status" in tools.get(event.tool_call_id, {"status": ""}):
                if isinstance(event, ToolEnd):
                    raise AgentMisbehaved(f"the tool call {event.tool_call_id} ended without having been started")
            case ToolProgress():
                self._progress.take(event)
            case _:
                self._recorder.record(event)

    def emitted(self, event: Event) -> None:
        """An event that a running tool sent."""
        if isinstance(event, ToolProgress) and "status" in self._recorder.content.tools.get(event.tool_call_id, {}):
            return
        self._recorder.record(event)

    def restarted(self, attempt: int, reason: str) -> None:
        """A model call that had shown nothing is made again."""
        metrics.attempts_restarted.labels(reason).inc()
        self._recorder.record(AttemptRestarted(attempt=attempt, reason=reason))

    def used(self, input_tokens: int | None, output_tokens: int | None, model: str) -> None:
        """Tokens of one step, where the provider told them."""
        if input_tokens is not None or output_tokens is not None:
            self._recorder.record(
                Usage(input_tokens=input_tokens or 0, output_tokens=output_tokens or 0, model=model or "unknown")
            )

    def set_phase(self, phase: Literal["model", "tool"]) -> None:
        """Say what the turn is doing, for heartbeats."""
        self._turn.log.set_phase(phase)

    @property
    def shown(self) -> int:
        """Grows whenever something visible is shown."""
        return self._recorder.shown

    @property
    def tool_begun(self) -> bool:
        """Whether any tool of the turn has begun."""
        return self._recorder.content.tool_begun

    # -- steps and tools

    def journal_step(self, message: Message, results: Sequence[ToolResult] = ()) -> None:
        """Note the assistant's part of a step, and results that are known at once."""
        self.steps.append((message, {result.tool_call_id: result for result in results}))
        self._block_of_step = self._recorder.content.last_block
        self._recorder.note("step", message)
        for result in results:
            self._note_result(result)

    def adopt(self, steps: Sequence[tuple[Message, dict[str, ToolResult]]], *, block: int) -> None:
        """Take over the steps of a process that died; `block` is the last block of text that belongs to them."""
        self.steps = list(steps)
        self._block_of_step = block
        self.under_way = {call_id for call_id, tool in self._recorder.content.tools.items() if "status" not in tool}

    def past_steps(self) -> list[Message]:
        """What a model is shown of the steps so far: each with the results that are known."""
        messages: list[Message] = []
        for message, results in self.steps:
            messages.append(message)
            messages.extend(tool_message(result) for result in results.values())
        return messages

    async def start_tools(self, events: Sequence[Event]) -> bool:
        """Make the starts durable, then show them (E4); False when they could not be made so, or the turn is over."""
        if self._turn.is_over():
            return False
        # What cannot be shown must not get into the journal, where it would be in the way of all that follows.
        events = [part for event in events for part in fit(event)]
        self._recorder.note_events(events)
        try:
            await self._flush_within(DURABLE_SECONDS)
        except EarlybyteError as error:
            log.warning("tool not run: its start is not durable", timeout=DURABLE_SECONDS, error=error.message)
            return False
        if self._turn.is_over():
            return False
        for event in events:
            self._recorder.record_closing(event, journaled=False)
            if isinstance(event, ToolStart):
                self.under_way.add(event.tool_call_id)
        return True

    async def _flush_within(self, seconds: float) -> None:
        """Flush, again and again while the store refuses: one that is locked says so before the time is over."""
        give_up_at = monotonic() + seconds
        while True:
            try:
                await self._recorder.flush(timeout=max(0.05, give_up_at - monotonic()))
            except EarlybyteError:
                if monotonic() + _PAUSE_SECONDS >= give_up_at or self._turn.is_over():
                    raise
                await anyio.sleep(_PAUSE_SECONDS)
            else:
                return

    def note_result(self, result: ToolResult) -> None:
        """Note the result of a call that has no events, such as one of a tool that there is not."""
        self._keep(result)
        self._note_result(result)

    async def end_tool(self, event: ToolEnd, result: ToolResult, output: str) -> None:
        """Show the end and journal it with the result; storage trouble does not hold it up."""
        if event.tool_call_id not in self._recorder.content.tools:
            # The turn ended between the start being durable and being shown.
            return
        self._recorder.content.outputs[event.tool_call_id] = output
        metrics.tool_seconds.labels(event.status).observe(event.duration_ms / 1000)
        self._recorder.record_closing(event)
        self.under_way.discard(event.tool_call_id)
        self._keep(result)
        self._note_result(result)
        self._background(self._flush_quietly())

    def _keep(self, result: ToolResult) -> None:
        for message, results in self.steps:
            if any(call["id"] == result.tool_call_id for call in message.get("tool_calls") or []):
                results[result.tool_call_id] = result

    def _note_result(self, result: ToolResult) -> None:
        self._recorder.note(
            "result", {"tool_call_id": result.tool_call_id, "status": result.status, "content": result.content}
        )

    async def _flush_quietly(self) -> None:
        try:
            await self._recorder.flush()
        except EarlybyteError as error:
            log.warning("journal behind", turn_id=self._turn.id, error=error.message)

    # -- approvals

    async def ask_approval(
        self, *, call: OpenCall, title: str, prompt: str, arguments: dict[str, Any] | None
    ) -> tuple[bool, str]:
        """Wait for a person; whether they approved, and the words for the model where they did not."""
        known = self._recorder.content.approvals.get(call.approval_id or "", {})
        if "decision" in known:
            # Answered and told before a crash: the answer holds.
            return _verdict(known["decision"], None)
        approval_id, seconds = await self._ask(call, title, prompt, arguments)
        if approval_id is None:
            return (False, "the service could not ask for approval")
        self.under_way.add(approval_id)
        span = tracing.current()
        span.event("approval_required", approval_id=approval_id, tool=call.name, tool_call_id=call.id)
        self._wait(True)
        try:
            decision, by, comment = await self._turn.wait_for_answer(approval_id, seconds)
        finally:
            self._wait(False)
            self.under_way.discard(approval_id)
        if self._turn.handed_on:
            span.event("approval_resolved", approval_id=approval_id, decision="handed_on")
            return (False, "the service stopped")
        if decision in ("expired", "cancelled"):
            closing = await self._close_approval(approval_id, decision, by)
            decision, by, comment = closing
        if decision == "expired":
            log.warning("approval timeout", rung="approval", timeout=self._approval_seconds, turn_id=self._turn.id)
        span.event("approval_resolved", approval_id=approval_id, decision=decision)
        self._recorder.record_closing(ApprovalResolved(approval_id=approval_id, decision=decision, by=by))
        return _verdict(decision, comment)

    async def _ask(
        self, call: OpenCall, title: str, prompt: str, arguments: dict[str, Any] | None
    ) -> tuple[str | None, float]:
        """Put the question on record and show it; its id (None: not possible) and the seconds to wait."""
        if call.approval_id is not None:
            known = self._recorder.content.approvals.get(call.approval_id, {})
            return call.approval_id, max(0.0, (int(known.get("expires_at", 0)) - now_ms()) / 1000)
        row = approvals.Approval(
            id=new_id("appr"),
            turn_id=self._turn.id,
            tool_call_id=call.id,
            expires_at=now_ms() + int(self._approval_seconds * 1000),
        )
        event = ApprovalRequired(
            approval_id=row.id,
            tool_call_id=call.id,
            name=call.name,
            title=title,
            prompt=prompt,
            expires_at=row.expires_at,
            arguments=arguments,
            truncated=arguments is None,
        )
        self._recorder.note_events(fit(event))
        entries = self._recorder.entries()

        async def op(conn: Connection) -> None:
            await journal.append_all(conn, self._turn.id, epoch=self._turn.row.epoch, entries=entries)
            await approvals.insert(conn, row)
            await turns.update(conn, self._turn.id, if_epoch=self._turn.row.epoch, status="waiting")

        try:
            await self._store.write(op, timeout=DURABLE_SECONDS)
        except EarlybyteError as error:
            log.warning("approval not asked: the question is not durable", timeout=DURABLE_SECONDS, error=error.message)
            self._background(self._withdraw_question(row.id))
            return None, 0.0
        self._recorder.journaled(entries[-1].n)
        if self._turn.is_over():
            return None, 0.0
        self._recorder.record_closing(event, journaled=False)
        return row.id, self._approval_seconds

    async def _withdraw_question(self, approval_id: str) -> None:
        """Close a question that may yet have been stored after its time; nobody was asked."""
        epoch, deadline = self._turn.row.epoch, self._clock.deadline.wall_ms()

        async def op(conn: Connection) -> None:
            closed = await approvals.decide(conn, approval_id, decision="cancelled", by="system", at=now_ms())
            if closed is not None:
                await turns.resumed(conn, self._turn.id, epoch=epoch, deadline_at=deadline)

        try:
            await self._store.write(op)
        except EarlybyteError as error:
            log.warning("question not withdrawn", approval_id=approval_id, error=error.message)

    async def _close_approval(
        self, approval_id: str, decision: Literal["expired", "cancelled"], by: str
    ) -> tuple[Any, str, str | None]:
        """Close the question in the store; an answer that came first stands, unless the turn is over anyway."""
        try:
            with anyio.move_on_after(0.5, shield=True):
                row = await self._store.write(
                    lambda conn: approvals.decide(conn, approval_id, decision=decision, by=by, at=now_ms()), timeout=0.4
                )
                if row is not None and row.decision is not None and decision == "expired":
                    return row.decision, row.decided_by or by, row.comment
        except EarlybyteError as error:
            log.warning("approval not closed in the store", approval_id=approval_id, error=error.message)
        return decision, by, None

    def _wait(self, waiting: bool) -> None:
        self._waiting += 1 if waiting else -1
        if waiting and self._waiting == 1:
            self._clock.pause()
            if self._turn.open:
                self._turn.move(State.WAITING)
            self._turn.log.set_phase("approval")
        elif not waiting and self._waiting == 0:
            self._clock.resume()
            if self._turn.state is State.WAITING:
                self._turn.move(State.RUNNING)
            self._turn.log.set_phase("tool")
            if not self._turn.handed_on:
                self._background(self._store_running())

    async def _store_running(self) -> None:
        deadline = self._clock.deadline.wall_ms()
        try:
            await self._store.write(
                lambda conn: turns.resumed(conn, self._turn.id, epoch=self._turn.row.epoch, deadline_at=deadline)
            )
        except EarlybyteError as error:
            log.warning("turn not marked as running", turn_id=self._turn.id, error=error.message)

    # -- the end

    def close_open(self) -> None:
        """Close what the ending finds open: approvals as cancelled, running tools as unknown (E4)."""
        content = self._recorder.content
        for approval_id, approval in list(content.approvals.items()):
            if "decision" not in approval:
                self._recorder.record_closing(ApprovalResolved(approval_id=approval_id, decision="cancelled", by="system"))
        for call_id, tool in list(content.tools.items()):
            if "status" not in tool:
                self._recorder.record_closing(ToolEnd(tool_call_id=call_id, status="unknown", duration_ms=0))

    def transcript(self) -> list[Message]:
        """What a later turn's model is shown of this one: steps with their results, then the text after the last."""
        messages: list[Message] = []
        for message, results in self.steps:
            messages.append(message)
            for call in message.get("tool_calls") or []:
                result = results.get(call["id"])
                if result is None:
                    status = self._recorder.content.tools.get(call["id"], {}).get("status", "cancelled")
                    words = "outcome unknown" if status == "unknown" else "cancelled: not run"
                    result = ToolResult(tool_call_id=call["id"], status=status, content=words)
                messages.append(tool_message(result))
        rest = "".join(b.text for b in self._recorder.content.blocks if b.number > self._block_of_step)
        if rest:
            messages.append(assistant_message(rest))
        return messages


def _verdict(decision: Decision, comment: str | None) -> tuple[bool, str]:
    """Whether an approval lets its call run, and the words for the model where it does not."""
    words = {
        "approve": "",
        "deny": "the user did not approve it",
        "expired": "nobody approved it in time",
        "cancelled": "the turn was cancelled",
    }[decision]
    return (decision == "approve", f"{words}: {comment}" if comment else words)
