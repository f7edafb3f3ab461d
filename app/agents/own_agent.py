"""Agents that users bring (PROTOCOL 9): sync and async generators, and callbacks, made alike.

A sync agent runs in a worker thread behind the bridge; an async one in a task of its own, so that one which ignores its
cancellation holds up nobody. Either way its items arrive here in order, and its end is the end of the stream.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import structlog
from anyio.abc import TaskGroup

from app.agents.bridge import Bridge
from app.agents.context import AgentContext, AgentMisbehaved, OpenCall, Stage, ToolCallFailed, Transient, TurnOver
from app.agents.speech import Speech
from app.agents.tool_desk import ToolDesk
from app.agents.transcript import assistant_message
from app.errors import ConfigError, EarlybyteError
from app.events import types
from app.events.codec import Unknown, clean, from_fields
from app.ids import new_id
from app.limits import foreign
from app.limits.cancel import Cancel
from app.limits.groups import task_group
from app.limits.threads import WorkerThreads
from app.providers.chunks import ToolCall

log = structlog.get_logger(__name__)

ALLOWED = (
    types.ReasoningDelta,
    types.Commentary,
    types.ToolStart,
    types.ToolProgress,
    types.ToolEnd,
    types.Image,
    types.ActionCard,
    types.Notice,
    types.Usage,
)
AgentFunction = Callable[..., Any]


@dataclass
class _ToolRequest:
    """`call_tool`, on its way to the loop in its place between the agent's other items."""

    name: str
    arguments: dict[str, Any]
    answer: Future[Any] = field(default_factory=Future)


def load_agent(spec: str) -> AgentFunction:
    """The function that `package.module:name` names.

    Raises:
        ConfigError: there is no such module or name, or it is not callable; names the spec.
    """
    module_name, _, name = spec.partition(":")
    if not name:
        raise ConfigError(f"agent = {spec!r} must have the form package.module:name")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise ConfigError(f"agent = {spec!r} cannot be loaded: {reason}") from error
    agent = getattr(module, name, None)
    if not callable(agent):
        raise ConfigError(f"agent = {spec!r}: the module {module_name} has no function called {name}")
    _check_takes_context(spec, agent)
    return agent  # type: ignore[no-any-return]  # checked to be callable


def _check_takes_context(spec: str, agent: AgentFunction) -> None:
    try:
        signature = inspect.signature(agent)
    except (TypeError, ValueError):
        return  # One that does not tell is called as it is.
    for given in ((None,), (None, None)):
        with suppress(TypeError):
            signature.bind(*given)
            return
    raise ConfigError(f"agent = {spec!r} must take the context, or the context and on_delta; it takes {signature}.")


class OwnAgent:
    """Runs a user's agent function on a stage."""

    def __init__(
        self,
        function: AgentFunction,
        *,
        stage: Stage,
        speech: Speech,
        desk: ToolDesk,
        cancel: Cancel,
        threads: WorkerThreads,
    ) -> None:
        self._function = function
        self._stage = stage
        self._speech = speech
        self._desk = desk
        self._cancel = cancel
        self._threads = threads

    async def run(self, make_context: Callable[[Callable[[str, dict[str, Any]], Any]], AgentContext]) -> None:
        """Nothing, once the agent has ended by itself.

        Raises:
            Transient: the agent asked to be started again.
            TurnOver: the turn was cancelled.
            Exception: whatever the agent raised.
        """
        bridge: Bridge[object] = Bridge(direct=lambda items: self._take_directly(bridge, items))
        forget = self._cancel.on_cancel(lambda: bridge.close(TurnOver()))
        on_loop = _runs_on_loop(self._function)
        try:
            async with task_group() as group:
                if on_loop:
                    self._start_task(bridge, make_context(_asker(bridge, on_loop=True)), group)
                else:
                    context = make_context(_asker(bridge, on_loop=False))
                    group.start_soon(self._threads.run, partial(bridge.work, partial(self._produce, bridge, context)))
                try:
                    while (items := await bridge.next_batch()) is not None:
                        for item in items:
                            self._take(item, group)
                finally:
                    forget()
                    bridge.close(TurnOver())
                    group.cancel_scope.cancel()
        finally:
            if not self._cancel.cancelled:
                self._speech.flush()
        if self._cancel.cancelled:
            raise TurnOver

    # -- the agent's side

    def _produce(self, bridge: Bridge[object], context: AgentContext) -> None:
        function = self._function
        if _takes_callback(function):
            function(context, _callback(bridge))
            return
        result = function(context)
        if isinstance(result, str):
            bridge.put(result)
        elif isinstance(result, Iterable):
            try:
                for item in result:
                    bridge.put(item)
            finally:
                close = getattr(result, "close", None)
                if close is not None:
                    close()
        elif result is not None:
            raise AgentMisbehaved(f"the agent returned {type(result).__name__}; it must yield text or events")

    def _start_task(self, bridge: Bridge[object], context: AgentContext, group: TaskGroup) -> None:
        """Run an async agent apart: one that swallows its cancellation is given up, not waited for."""
        task = foreign.start(partial(self._perform, bridge, context))
        task.add_done_callback(lambda done: bridge.finish(None if done.cancelled() else done.result().error))

        async def watch() -> None:
            try:
                await asyncio.wait([task])
            finally:
                foreign.give_up(task)

        group.start_soon(watch)

    async def _perform(self, bridge: Bridge[object], context: AgentContext) -> None:
        function = self._function
        if _takes_callback(function):
            await function(context, _callback(bridge, on_loop=True))
            return
        result = function(context)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, str):
            await bridge.put_on_loop(result)
        elif isinstance(result, AsyncIterator):
            async for item in result:
                await bridge.put_on_loop(item)
        elif result is not None:
            raise AgentMisbehaved(f"the agent returned {type(result).__name__}; it must yield text or events")

    # -- the loop's side

    def _take_directly(self, bridge: Bridge[object], items: Sequence[object]) -> int:
        # A slow model's batch is one piece; a quick one's is joined to one event.
        pieces = list(_words(items))
        try:
            if pieces:
                self._speech.say(pieces[0] if len(pieces) == 1 else "".join(pieces))
        except Exception as error:
            bridge.close(error)
            return len(items)
        return len(pieces)

    def _take(self, item: object, group: TaskGroup) -> None:
        match item:
            case str():
                self._speech.say(item)
            case None:
                self._speech.boundary()
            case _ToolRequest():
                self._speech.boundary()
                group.start_soon(self._call_tool, item)
            case dict():
                self._show(from_fields(item))
            case _:
                self._show(item)

    def _show(self, event: object) -> None:
        if not isinstance(event, ALLOWED):
            kind = event.type if isinstance(event, Unknown) else type(event).__name__
            raise AgentMisbehaved(f"the agent sent {kind}, which an agent may not send")
        if isinstance(event, types.ReasoningDelta):
            self._speech.think(event.text)
        elif isinstance(event, types.Usage):
            self._stage.used(event.input_tokens, event.output_tokens, event.model)
        else:
            if isinstance(event, types.ToolStart | types.ToolEnd):
                self._speech.boundary()
            self._stage.show(msgspec.structs.replace(event, seq=0, ts=0))

    async def _call_tool(self, request: _ToolRequest) -> None:
        call = OpenCall(id=new_id("call"), name=request.name, arguments=request.arguments)
        text = self._speech.take_step_text()
        self._stage.journal_step(assistant_message(text, [ToolCall(id=call.id, name=call.name, arguments=call.arguments)]))
        try:
            [result] = await self._desk.run_batch([call])
        except BaseException as error:
            failure = error if isinstance(error, EarlybyteError) else TurnOver()
            _settle(request.answer, lambda: request.answer.set_exception(failure))
            if isinstance(error, TurnOver):
                return
            raise
        self._speech.boundary()
        if result.status == "ok":
            _settle(request.answer, lambda: request.answer.set_result(_value(result.content)))
        else:
            refused = ToolCallFailed(result.content, status=result.status)
            _settle(request.answer, lambda: request.answer.set_exception(refused))


def _words(items: Sequence[object]) -> Iterator[str]:
    """The plain text that `items` begin with."""
    for item in items:
        if not isinstance(item, str):
            return
        yield item


def _as_json(name: str, arguments: Any) -> dict[str, Any]:
    """The arguments of `call_tool` as a model would have sent them.

    Raises:
        ToolCallFailed: they are not a JSON object.
    """
    try:
        value = json.loads(json.dumps(clean(arguments), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ToolCallFailed(f"The arguments of {name} are not a JSON object.", status="error")
    return value


def _settle(answer: Future[Any], settle: Callable[[], None]) -> None:
    if not answer.done():
        settle()


def _value(content: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content


def _runs_on_loop(function: AgentFunction) -> bool:
    # Behind `functools.partial` and well-behaved decorators.
    plain: Any = function
    while isinstance(plain, partial):
        plain = plain.func
    plain = inspect.unwrap(plain)
    target = plain if inspect.isroutine(plain) else getattr(plain, "__call__", plain)  # noqa: B004
    return inspect.isasyncgenfunction(target) or inspect.iscoroutinefunction(target)


def _takes_callback(function: AgentFunction) -> bool:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return len([p for p in parameters if p.kind in positional and p.default is p.empty]) >= 2


def _callback(bridge: Bridge[object], *, on_loop: bool = False) -> Callable[[str | None], None]:
    """`on_delta`: text, or None for a tool boundary; from any thread."""
    loop_thread = threading.get_ident() if on_loop else None

    def on_delta(text: str | None) -> None:
        if text is not None and not isinstance(text, str):
            raise AgentMisbehaved(f"on_delta takes text or None, not {type(text).__name__}")
        if text == "":
            bridge.check_open()
            return
        bridge.put(text, wait=threading.get_ident() != loop_thread)

    return on_delta


def _asker(bridge: Bridge[object], *, on_loop: bool) -> Callable[[str, dict[str, Any]], Any]:
    def ask(name: str, arguments: dict[str, Any]) -> Any:
        request = _ToolRequest(name, _as_json(name, arguments))
        if on_loop:
            bridge.put(request, wait=False)
            return asyncio.wrap_future(request.answer)
        bridge.put(request)
        return bridge.wait_for(request.answer)

    return ask


__all__ = ["ALLOWED", "AgentFunction", "AgentMisbehaved", "OwnAgent", "Transient", "load_agent"]
