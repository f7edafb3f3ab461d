"""Running one tool call: whatever the tool does, there is one outcome, in time, and it is said in plain words.

The function may hang, raise anything, or ignore every signal. So it runs apart (`app.limits.foreign`), and this only
waits for the first of three: its end, its time, or a cancel.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import structlog

from app.clock import monotonic
from app.events.types import ToolStatus
from app.limits.cancel import Cancel
from app.limits.foreign import Ended, capture, give_up, start
from app.limits.threads import WorkerThreads
from app.tools.context import ToolContext
from app.tools.errors import ToolError
from app.tools.tool import Tool
from app.tools.wording import cut, encode_result, error_words, where_raised

_log = structlog.get_logger()

# How long a cancelled function has to come back before its end is reported as unknown.
GRACE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """How one call ended.

    `result` is what the model is told: the returned string, JSON, or a sentence about what went wrong. `preview` is the
    first 2 KiB of it for a person, `truncated` whether that is not all. `entered` says whether the function was begun,
    `returned` whether it came back, by returning or raising; entered and not returned, it may still take effect.
    """

    status: ToolStatus
    result: str
    preview: str | None
    truncated: bool
    duration_ms: int
    entered: bool
    returned: bool


async def run_call(
    tool: Tool,
    ctx: ToolContext,
    arguments: Mapping[str, Any],
    *,
    timeout: float,
    threads: WorkerThreads,
    cancel: Cancel,
) -> ToolOutcome:
    """The outcome of one call, at the latest `timeout` seconds from now, or `GRACE_SECONDS` after `cancel` is set.

    Arguments that do not fit, exceptions, timeouts and cancels are outcomes, not errors. Waiting for a thread counts as
    time of the call; with no time left at all the function is not entered (B2). When this is over, `ctx` sends nothing
    more and the call's child processes are dying. If the surrounding scope is cancelled, the call is stopped with the
    same grace and the cancellation goes on: set `cancel` to get an outcome.

    Statuses: `timeout`: the function is not waited for and may go on in its thread (`threads.abandoned`). `cancelled`:
    it had not begun, or came back after the cancel. `unknown`: it was still running `GRACE_SECONDS` after it.
    """
    run = _Run(tool, ctx, timeout)
    try:
        if cancel.cancelled:
            return run.cancelled(None)
        if timeout <= 0:
            return run.timed_out()
        return await _watch(run, tool.validate(arguments), threads, cancel)
    except ToolError as error:
        return run.outcome("error", error.message)
    finally:
        ctx.end_call()


async def _watch(run: _Run, arguments: dict[str, Any], threads: WorkerThreads, cancel: Cancel) -> ToolOutcome:
    """Start the function and wait for the first of its end, its time and a cancel."""
    ctx, loop = run.ctx, asyncio.get_running_loop()
    ctx.begin_call(run.started + run.timeout, lambda seconds, fn: _call_later(loop, seconds, fn))
    stopped = loop.create_future()
    unlink_stop = cancel.on_cancel(lambda: _set_from_any_thread(loop, stopped))
    unlink_ctx = cancel.on_cancel(ctx.stop_call)
    task = start(partial(run.work, arguments, threads))
    try:
        await asyncio.wait({task, stopped}, timeout=run.left(), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return run.ended(_result(task))
        if stopped.done():
            await _let_it_come_back(run, task)
            return run.cancelled(_result(task) if task.done() else None)
        return run.timed_out()
    except asyncio.CancelledError:
        ctx.stop_call()
        with anyio.CancelScope(shield=True):
            await _let_it_come_back(run, task)
        raise
    finally:
        unlink_stop()
        unlink_ctx()
        stopped.cancel()
        if not task.done():
            run.revoke()
            ctx.stop_call()
            give_up(task)


async def _let_it_come_back(run: _Run, task: asyncio.Task[Ended]) -> None:
    """Wait for the function's end, at most the grace; one that has not begun never does."""
    if run.revoke() or run.tool.is_async:
        task.cancel()
    await asyncio.wait({task}, timeout=GRACE_SECONDS)


class _Run:
    """One call on its way: what is known of it, and the words for each ending."""

    def __init__(self, tool: Tool, ctx: ToolContext, timeout: float) -> None:
        self.tool = tool
        self.ctx = ctx
        self.timeout = timeout
        self.started = monotonic()
        self.entered = False
        self.returned = False
        # Whether it came back after it had been told to stop; asked at its end, not when the loop hears of it.
        self.returned_late = False
        self._revoked = False
        self._lock = threading.Lock()

    def left(self) -> float:
        return max(0.0, self.started + self.timeout - monotonic())

    def revoke(self) -> bool:
        """Forbid the function to begin; False when it has begun."""
        with self._lock:
            self._revoked = not self.entered
            return self._revoked

    async def work(self, arguments: dict[str, Any], threads: WorkerThreads) -> object:
        if not self.tool.is_async:
            return await threads.run(partial(capture, partial(self._call_sync, arguments)))
        if not self._enter():
            return None
        try:
            return encode_result(await self.tool.call(self.ctx, arguments))
        finally:
            self._leave()

    def _call_sync(self, arguments: dict[str, Any]) -> str | None:
        if not self._enter():
            return None
        try:
            value = self.tool.call(self.ctx, arguments)
            if asyncio.iscoroutine(value):
                value.close()
            # Here, not on the loop: a large result takes long to encode.
            return encode_result(value)
        finally:
            self._leave()

    def _enter(self) -> bool:
        with self._lock:
            self.entered = not self._revoked
            return self.entered

    def _leave(self) -> None:
        self.returned = True
        self.returned_late = self.ctx.cancelled

    def ended(self, end: Ended) -> ToolOutcome:
        if self.returned_late or not self.entered:
            return self.cancelled(end)
        if end.error is None:
            return self.outcome("ok", str(end.value))
        if not isinstance(end.error, ToolError):
            # The text of a foreign error may hold anything; the log gets its kind and its place.
            kind, place = type(end.error).__name__, where_raised(end.error)
            _log.warning("tool error", tool=self.tool.name, error=kind, at=place, **self._ids())
            _log.debug("tool error in full", exc_info=end.error, **self._ids())
        return self.outcome("error", error_words(end.error))

    def timed_out(self) -> ToolOutcome:
        self.revoke()
        # B3: one line with the word, the rung and its value.
        value = round(self.timeout, 3)
        _log.warning("tool timeout", rung="tool", timeout=value, tool=self.tool.name, entered=self.entered, **self._ids())
        if not self.entered:
            return self.outcome("timeout", "Timeout: the tool was not run, since no time was left for it.")
        words = f"Timeout: the tool did not answer within {self.timeout:.3g} s."
        if self.tool.side_effects == "unsafe":
            words += " The outcome is unknown: it may or may not have taken effect. Do not simply run it again."
        return self.outcome("timeout", words)

    def cancelled(self, end: Ended | None) -> ToolOutcome:
        if not self.entered:
            return self.outcome("cancelled", "Cancelled: the tool was not run.")
        running = "Cancelled while the tool was running"
        if not self.returned:
            return self.outcome("unknown", f"{running}. The outcome is unknown: it may or may not have taken effect.")
        if end is None or end.error is not None:
            return self.outcome("cancelled", f"{running}; it stopped without a result.")
        return self.outcome("cancelled", f"{running}. It still returned: {end.value}")

    def outcome(self, status: ToolStatus, result: str) -> ToolOutcome:
        preview, truncated = cut(result)
        return ToolOutcome(
            status=status,
            result=result,
            preview=preview or None,
            truncated=truncated,
            duration_ms=round((monotonic() - self.started) * 1000),
            entered=self.entered,
            returned=self.returned,
        )

    def _ids(self) -> dict[str, str]:
        return {"turn_id": self.ctx.turn_id, "tool_call_id": self.ctx.tool_call_id}


def _result(task: asyncio.Task[Ended]) -> Ended:
    """How it ended; a task that was cancelled before its first step has no result of its own."""
    return Ended(error=asyncio.CancelledError()) if task.cancelled() else task.result()


def _set_from_any_thread(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    def set_it() -> None:
        if not future.done():
            future.set_result(None)

    try:
        loop.call_soon_threadsafe(set_it)
    except RuntimeError:
        pass  # The loop is closed: nobody waits any more.


def _call_later(loop: asyncio.AbstractEventLoop, seconds: float, fn: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(loop.call_later, seconds, fn)
    except RuntimeError:
        pass  # The loop is closed: nobody watches any more.
