"""Every tool call of a turn, whoever asks for it: hooks, approval, journal, run, result (PROTOCOL 5, X2, B2).

Calls of one batch that are safe to run together do; `unsafe` ones and those that need a person run one after another, in
the order in which the model asked. `tool_start` is durable before the function is entered (E4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio

from app.agents.context import Deadline, Denied, Guards, OpenCall, Stage, ToolResult, TurnOver
from app.events.types import Event, ToolEnd, ToolStart, ToolStatus
from app.limits.cancel import Cancel
from app.limits.groups import task_group
from app.limits.threads import WorkerThreads
from app.observability import tracing
from app.tools.context import ToolContext
from app.tools.errors import ToolError
from app.tools.execution import ToolOutcome, run_call
from app.tools.tool import Tool

_UNKNOWN = "outcome unknown: the service stopped while this was running, so it may or may not have taken effect"


@dataclass(frozen=True, kw_only=True)
class ToolLimits:
    """Seconds, and how many calls of a batch run at once."""

    timeout: float
    reserve: float
    parallel: int = 8


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Whose turn it is."""

    turn_id: str
    conversation_id: str
    user_id: str
    profile: str


class ToolDesk:
    """Runs the tool calls of one turn."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        *,
        caller: Caller,
        stage: Stage,
        guards: Guards,
        deadline: Deadline,
        cancel: Cancel,
        threads: WorkerThreads,
        limits: ToolLimits,
        emit: Callable[[Event], None],
    ) -> None:
        self._tools = tools
        self._caller = caller
        self._stage = stage
        self._guards = guards
        self._deadline = deadline
        self._cancel = cancel
        self._threads = threads
        self._limits = limits
        self._emit = emit
        self._parallel = anyio.CapacityLimiter(limits.parallel)

    async def run_batch(self, calls: Sequence[OpenCall]) -> list[ToolResult]:
        """One result for each call, in the same order; calls that are cancelled have one, too.

        Raises:
            TurnOver: the turn was cancelled meanwhile; what had begun has its `tool_end`.
        """
        self._stage.set_phase("tool")
        results: dict[str, ToolResult] = {}
        together = [call for call in calls if self._may_run_together(call)]
        in_turn = [call for call in calls if call not in together]
        async with task_group() as group:
            if together:
                group.start_soon(self._run_together, together, results)
            if in_turn:
                group.start_soon(self._run_in_turn, in_turn, results)
        self._stage.set_phase("model")
        if self._cancel.cancelled:
            raise TurnOver
        return [results[call.id] for call in calls]

    def _may_run_together(self, call: OpenCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.side_effects != "unsafe" and not tool.approval

    async def _run_together(self, calls: Sequence[OpenCall], results: dict[str, ToolResult]) -> None:
        allowed = [ready for call in calls if (ready := await self._prepare(call, results)) is not None]
        fresh = [call for call in allowed if not call.started]
        ok = await self._stage.start_tools([self._start(call) for call in fresh]) if fresh else True
        async with task_group() as group:
            for call in allowed:
                if call.started or ok:
                    group.start_soon(self._run_bounded, call, results)
                else:
                    await self._not_durable(call, results)

    async def _run_bounded(self, call: OpenCall, results: dict[str, ToolResult]) -> None:
        async with self._parallel:
            await self._run(call, results)

    async def _run_in_turn(self, calls: Sequence[OpenCall], results: dict[str, ToolResult]) -> None:
        for call in calls:
            if self._cancel.cancelled:
                return
            tool = self._tools.get(call.name)
            if call.started and (tool is None or tool.side_effects == "unsafe"):
                # Begun before a crash: never twice (X2).
                await self._end(call, _not_run("unknown", _UNKNOWN), results)
                continue
            ready = await self._prepare(call, results)
            if ready is None:
                continue
            if not ready.started and not await self._stage.start_tools([self._start(ready)]):
                await self._not_durable(ready, results)
                continue
            await self._run(ready, results)

    # -- the parts of one call

    async def _prepare(self, call: OpenCall, results: dict[str, ToolResult]) -> OpenCall | None:
        """The call as hooks and people allow it; None when it has its result already."""
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(self._tools) or "none"
            words = f"not run: there is no tool called {call.name!r}; the tools are: {names}"
            results[call.id] = ToolResult(tool_call_id=call.id, status="error", content=words)
            self._stage.note_result(results[call.id])
            return None
        if call.started:
            return call
        arguments = call.arguments or {}
        try:
            arguments = await self._guards.before_tool(
                tool_call_id=call.id, name=call.name, arguments=arguments, side_effects=tool.side_effects
            )
        except Denied as denied:
            await self._deny(call, denied.message, results)
            return None
        call = OpenCall(id=call.id, name=call.name, arguments=arguments, approval_id=call.approval_id)
        if tool.approval:
            try:
                tool.validate(arguments)
            except ToolError as error:
                # Nobody is asked about a call that cannot be made.
                self._stage.show(self._start(call))
                await self._end(call, _not_run("error", error.message), results)
                return None
            approved, words = await self._stage.ask_approval(
                call=call, title=tool.title, prompt=tool.prompt(arguments), arguments=tool.redacted(arguments)
            )
            if self._cancel.cancelled:
                return None
            if not approved:
                await self._deny(call, words, results)
                return None
        return call

    def _start(self, call: OpenCall) -> ToolStart:
        tool = self._tools[call.name]
        return ToolStart(
            tool_call_id=call.id,
            name=call.name,
            title=tool.title,
            side_effects=tool.side_effects,
            arguments=(shown := tool.redacted(call.arguments or {})),
            truncated=shown is None,
        )

    async def _deny(self, call: OpenCall, words: str, results: dict[str, ToolResult]) -> None:
        # Not durable on purpose: nothing runs, so there is nothing to protect from a second run.
        self._stage.show(self._start(call))
        await self._end(call, _not_run("denied", f"not run: {words}"), results)

    async def _not_durable(self, call: OpenCall, results: dict[str, ToolResult]) -> None:
        if self._cancel.cancelled:
            return
        self._stage.show(self._start(call))
        words = "not run: the service could not record that it was about to run it; try again later"
        await self._end(call, _not_run("error", words), results)

    async def _run(self, call: OpenCall, results: dict[str, ToolResult]) -> None:
        tool = self._tools[call.name]
        own = tool.timeout if tool.timeout is not None else self._limits.timeout
        timeout = min(own, self._deadline.remaining() - self._limits.reserve)
        with tracing.tool(name=tool.name, call_id=call.id, side_effects=tool.side_effects) as span:
            outcome = await run_call(
                tool,
                self._context(call),
                call.arguments or {},
                timeout=timeout,
                threads=self._threads,
                cancel=self._cancel,
            )
            span.set(status=outcome.status)
            if outcome.status in ("error", "timeout", "unknown"):
                span.fail(outcome.status if outcome.status != "error" else "tool_error")
        await self._end(call, outcome, results)

    def _context(self, call: OpenCall) -> ToolContext:
        caller = self._caller
        return ToolContext(
            turn_id=caller.turn_id,
            tool_call_id=call.id,
            conversation_id=caller.conversation_id,
            user_id=caller.user_id,
            profile=caller.profile,
            idempotency_key=f"{caller.turn_id}:{call.id}",
            emit_sink=self._emit,
        )

    async def _end(self, call: OpenCall, outcome: ToolOutcome, results: dict[str, ToolResult]) -> None:
        told = outcome.result
        if not self._cancel.cancelled and outcome.status not in ("denied", "unknown"):
            try:
                told = await self._guards.after_tool(
                    tool_call_id=call.id,
                    name=call.name,
                    arguments=call.arguments or {},
                    side_effects=self._tools[call.name].side_effects,
                    status=outcome.status,
                    result=told,
                )
            except Denied as denied:
                told = denied.message
        if not outcome.entered:
            tracing.current().event("tool_not_run", tool=call.name, tool_call_id=call.id, status=outcome.status)
        if outcome.status == "error":
            self._guards.on_error(f"tool:{call.name}", outcome.result[:300])
        result = ToolResult(tool_call_id=call.id, status=outcome.status, content=told)
        results[call.id] = result
        unchanged = told == outcome.result
        event = ToolEnd(
            tool_call_id=call.id,
            status=outcome.status,
            duration_ms=outcome.duration_ms,
            preview=outcome.preview if unchanged else told or None,
            truncated=outcome.truncated and unchanged,
        )
        await self._stage.end_tool(event, result, told)


def _not_run(status: ToolStatus, words: str) -> ToolOutcome:
    """The outcome of a call whose function was not entered here."""
    return ToolOutcome(
        status=status, result=words, preview=words, truncated=False, duration_ms=0, entered=False, returned=False
    )
