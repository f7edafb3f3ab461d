"""All that a tool may see of the turn around it, and how it speaks to the person who watches (PROTOCOL 9)."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import structlog

from app.clock import monotonic
from app.events import ActionCard, Commentary, Event, Image, ToolProgress
from app.limits.cancel import Cancel
from app.tools.errors import ToolError, ToolOver
from app.tools.process import ProcessRequest, ProcessResult, run_blocking
from app.tools.wording import clean, cut

_log = structlog.get_logger()

# PROTOCOL 3: `tool_progress` is coalesced to 5 a second.
_PROGRESS_SECONDS = 0.2
_KINDS: dict[str, type[Event]] = {"image": Image, "action_card": ActionCard, "commentary": Commentary}


def _nowhere(_: Event) -> None:
    """Events of a context that belongs to no turn, as in a test of a tool."""


class ToolContext:
    """The call that a tool serves. Every part may be used from any thread.

    `idempotency_key` is the same for every run of this call, also after a crash (X2): pass it on to whoever takes one.
    `deadline` is a moment on the monotonic clock. `emit_sink` is called from any thread, one event at a time, in order;
    it must not block, least of all for the event loop, which calls it too.
    Once the call is over or cancelled, `progress` and `emit` raise `ToolOver`, which ends a tool that goes on unheard.
    """

    def __init__(
        self,
        *,
        idempotency_key: str = "",
        conversation_id: str = "",
        turn_id: str = "",
        tool_call_id: str = "",
        user_id: str = "local",
        profile: str = "default",
        deadline: float = math.inf,
        emit_sink: Callable[[Event], None] = _nowhere,
    ) -> None:
        self.idempotency_key = idempotency_key
        self.conversation_id = conversation_id
        self.turn_id = turn_id
        self.tool_call_id = tool_call_id
        self.user_id = user_id
        self.profile = profile
        self._deadline = deadline
        self._sink = emit_sink
        self._cancel = Cancel()
        # Apart from the cancel: children also die at an end in order, which must not run anybody's `on_cancel`.
        self._children = Cancel()
        self._cancel.on_cancel(self._children.cancel)
        # Guards what follows, and keeps events in the order in which they were accepted.
        self._lock = threading.RLock()
        self._over = False
        self._schedule: Callable[[float, Callable[[], None]], None] | None = None
        self._progress: ToolProgress | None = None
        self._progress_at = -math.inf
        self._flush_is_due = False

    @property
    def cancelled(self) -> bool:
        """Whether the call should stop: the user cancelled, its time is over, or the service stops."""
        return self._cancel.cancelled

    def remaining(self) -> float:
        """Seconds until this call times out; never negative."""
        return max(0.0, self._deadline - monotonic())

    def on_cancel(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Have `fn` called, from another thread, when the call should stop: to close what blocks. Returns the undo.

        Called at once when it should stop already. What `fn` raises is logged and goes no further.
        """

        def quietly() -> None:
            try:
                fn()
            except Exception as error:  # one tool's mistake must not keep the others from stopping
                _log.warning("tool on_cancel failed", tool_call_id=self.tool_call_id, error=type(error).__name__)

        return self._cancel.on_cancel(quietly)

    def progress(self, message: str | None = None, fraction: float | None = None) -> None:
        """Show how far the tool is; `fraction` from 0 to 1. At most 5 a second are shown, always the latest.

        Raises:
            ToolError: `message` is not a string or `fraction` not a number.
            ToolOver: the call is over or cancelled.
        """
        if message is not None and not isinstance(message, str):
            raise ToolError("progress takes a string as its message.")
        if fraction is not None and (isinstance(fraction, bool) or not isinstance(fraction, int | float)):
            raise ToolError("progress takes a number from 0 to 1 as its fraction.")
        if fraction is not None and math.isnan(fraction):
            fraction = None
        event = ToolProgress(
            tool_call_id=self.tool_call_id,
            message=None if message is None else cut(clean(message))[0],
            fraction=None if fraction is None else min(1.0, max(0.0, float(fraction))),
        )
        with self._lock:
            self._refuse_when_over()
            wait = self._progress_at + _PROGRESS_SECONDS - monotonic()
            self._progress = event
            if wait <= 0:
                self._flush()
            elif not self._flush_is_due and self._schedule is not None:
                self._flush_is_due = True
                self._schedule(wait, self._flush_when_due)

    def emit(self, event: Event | Mapping[str, Any]) -> None:
        """Show an image, an action card or a commentary: an event of `app.events`, or a dict with `type`.

        Unknown fields of a dict are ignored. Images and cards get the id of this call.

        Raises:
            ToolError: another kind of event, or fields that are missing or of a wrong type.
            ToolOver: the call is over or cancelled.
        """
        checked = _checked(event, self.tool_call_id)
        with self._lock:
            self._refuse_when_over()
            self._sink(checked)

    # `Any`, since a union would make every tool cast: the caller knows whether it is a coroutine.
    def run_process(
        self,
        argv: Sequence[str],
        *,
        input: str | bytes | None = None,  # noqa: A002 - as subprocess.run calls it
        timeout: float | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Any:
        """Run a program to its end and give a `ProcessResult`: `returncode, stdout, stderr, truncated`.

        In a thread (a sync tool) it blocks; on an event loop (an async tool) it returns an awaitable of the same. The
        child is not run by a shell, has a group of its own, and dies with all its descendants within 1 s of the
        `timeout` in seconds, the end or cancel of the call, a drain, and the death of the service. An exit code other
        than 0 is a result, no error.

        Raises:
            ToolError: `argv` is no list of strings, or the program cannot be started.
            ProcessTimeout: it took longer than `timeout`, or than what is left of the call.
            ProcessCancelled: the call is over or cancelled.
        """
        left = min(math.inf if timeout is None else timeout, self.remaining())
        request = ProcessRequest.checked(argv, input=input, timeout=left, cwd=cwd, env=env)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return run_blocking(request, self._children)
        return self._run_beside_the_loop(request)

    async def _run_beside_the_loop(self, request: ProcessRequest) -> ProcessResult:
        stop = Cancel()
        unlink = self._children.on_cancel(stop.cancel)
        try:
            # A place of its own: children are limited by the calls that start them, never by each other.
            return await anyio.to_thread.run_sync(
                partial(run_blocking, request, stop), abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )
        except BaseException:
            stop.cancel()
            raise
        finally:
            unlink()

    # --- for the one who runs the call: app.tools.execution ---

    def begin_call(self, deadline: float, schedule: Callable[[float, Callable[[], None]], None]) -> None:
        """The call starts: it is over at `deadline`; `schedule(seconds, fn)` runs `fn` later, from any thread."""
        self._deadline = min(self._deadline, deadline)
        self._schedule = schedule

    def stop_call(self) -> None:
        """Ask the tool to stop, kill its children, and hear nothing more from it."""
        self._cancel.cancel()

    def end_call(self) -> None:
        """The call is over: the last progress goes out, nothing after it; children that are left die."""
        with self._lock:
            if not self._over and not self._cancel.cancelled:
                self._flush()
            self._over = True
            self._progress = None
            self._schedule = None
        self._children.cancel()

    def _flush_when_due(self) -> None:
        with self._lock:
            self._flush_is_due = False
            if not self._over and not self._cancel.cancelled:
                self._flush()

    def _flush(self) -> None:
        event, self._progress = self._progress, None
        if event is not None:
            self._progress_at = monotonic()
            self._sink(event)

    def _refuse_when_over(self) -> None:
        if self._over or self._cancel.cancelled:
            raise ToolOver

    def __repr__(self) -> str:
        state = "over" if self._over else "cancelled" if self.cancelled else f"{self.remaining():.1f} s left"
        return f"<ToolContext {self.tool_call_id or 'of no call'}: {state}>"


def _checked(event: Event | Mapping[str, Any], tool_call_id: str) -> Event:
    """The event as its own class, with every field checked, its place in the turn left open."""
    fields = msgspec.to_builtins(event) if isinstance(event, Event) else event
    if not isinstance(fields, Mapping):
        raise ToolError("emit takes an event, or a dict with `type`.")
    kind = fields.get("type")
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ToolError(f"emit takes image, action_card and commentary, not {kind!r}.")
    own = {key: value for key, value in fields.items() if key not in ("seq", "ts", "tool_call_id")}
    if cls is not Commentary and tool_call_id:
        own["tool_call_id"] = tool_call_id
    try:
        return msgspec.convert(own, type=cls)
    except msgspec.ValidationError as error:
        raise ToolError(f"emit of {kind}: {error}.") from None
