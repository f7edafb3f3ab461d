"""Calling the hooks of a node: in order, each within its time, none able to hold up or break a turn by accident."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import structlog

from app.errors import ConfigError
from app.hooks.hook import Deny, Hook, HookFailure, Replace
from app.hooks.payloads import PAYLOADS, WATCHING, HookEvent, Node
from app.limits.foreign import Ended, capture, give_up, start
from app.limits.threads import WorkerThreads
from app.tools.registry import import_module
from app.tools.wording import clean, where_raised

_log = structlog.get_logger()

# What a user reads when a hook that must not be left out has failed.
NEUTRAL_WORDS = "This cannot be done at the moment."
# Threads for sync hooks, and as many again that may hang before sync hooks are refused a thread.
_THREADS = 16

P = TypeVar("P", bound=HookEvent)


@dataclass(frozen=True, slots=True)
class Denied:
    """A hook said no; `hook` is its name, `failed` whether it failed closed instead of deciding."""

    words: str
    hook: str
    failed: bool = False


class HookChain:
    """The hooks of one profile, ready to run. Used from one event loop, by any number of turns at once."""

    def __init__(self, hooks: Iterable[Hook] = (), *, threads: WorkerThreads | None = None) -> None:
        self._threads = threads or WorkerThreads(_THREADS)
        self._hooks: dict[Node, list[Hook]] = {}
        for one in sorted(hooks, key=lambda h: (h.order, h.name)):
            self._hooks.setdefault(one.node, []).append(one)

    @classmethod
    def load(cls, modules: Sequence[str], *, threads: WorkerThreads | None = None) -> HookChain:
        """The hooks that are defined in `modules`; a module that is listed twice counts once.

        Raises:
            ConfigError: a module cannot be imported or has no hooks; says which and why.
        """
        found: dict[int, Hook] = {}
        for name in dict.fromkeys(modules):
            hooks = [value for value in vars(import_module(name, "hooks")).values() if isinstance(value, Hook)]
            if not hooks:
                raise ConfigError(f"hooks: '{name}' has no hooks; put @hook(…) above a function.")
            found |= {id(one): one for one in hooks}
        return cls(found.values(), threads=threads)

    def has(self, node: Node) -> bool:
        """Whether anybody listens at `node`; where not, a payload need not be built."""
        return node in self._hooks

    def hooks(self, node: Node) -> Sequence[Hook]:
        """The hooks of `node` in the order in which they run."""
        return tuple(self._hooks.get(node, ()))

    async def run(self, node: Node, payload: P) -> P | Denied:
        """The payload as the hooks leave it, or the first no.

        Takes at most the sum of the hooks' time limits. A hook that fails is logged, then left out (`open`) or taken as
        a no in neutral words (`closed`).
        """
        _fits(node, payload)
        for one in self._hooks.get(node, ()):
            try:
                answer = await self._ask(one, payload)
                match answer:
                    case None:
                        pass
                    case Deny():
                        return Denied(clean(answer.words), one.name)
                    case Replace():
                        # A copy: the hook may keep what it gave, and change it later from its thread.
                        payload = cast(P, copy.deepcopy(answer).applied_to(payload))
                    case _:
                        raise HookFailure(f"it answered {type(answer).__name__}, not None, Deny or Replace")
            except Exception as failure:
                _report(one, failure)
                if one.on_failure == "closed":
                    return Denied(NEUTRAL_WORDS, one.name, failed=True)
        return payload

    async def watch(self, node: Node, payload: HookEvent) -> None:
        """Tell the hooks of a node that only watches. Raises nothing; takes at most the sum of their time limits.

        Run it in a task beside the turn: nothing depends on its end.
        """
        _fits(node, payload)
        for one in self._hooks.get(node, ()):
            try:
                answer = await self._ask(one, payload)
                if answer is not None:
                    raise HookFailure(f"it answered {type(answer).__name__} at a node that only watches")
            except Exception as failure:
                _report(one, failure)

    async def _ask(self, one: Hook, payload: HookEvent) -> object:
        """What the hook answers.

        Raises:
            HookFailure: it took too long, raised something that is no `Exception`, or cannot get a thread.
            Exception: what it raised.
        """
        own = copy.deepcopy(payload)
        if not one.is_async and self._threads.abandoned >= self._threads.limit:
            raise HookFailure(f"{self._threads.abandoned} earlier hooks still hang in their threads")
        task = start(partial(_call_async, one, own) if one.is_async else partial(self._call_sync, one, own))
        try:
            await asyncio.wait({task}, timeout=one.timeout)
            if not task.done():
                raise HookFailure(f"timeout: rung hook, {one.timeout:g} s")
        finally:
            give_up(task)
        end = Ended(error=asyncio.CancelledError()) if task.cancelled() else task.result()
        if isinstance(end.error, Exception):
            raise end.error
        if end.error is not None:
            raise HookFailure(f"it raised {type(end.error).__name__}")
        if inspect.iscoroutine(end.value):
            end.value.close()
        return end.value

    async def _call_sync(self, one: Hook, payload: HookEvent) -> object:
        return await self._threads.run(partial(capture, partial(one.function, payload)))

    def __repr__(self) -> str:
        listed = ", ".join(f"{node}: {[one.name for one in hooks]}" for node, hooks in self._hooks.items())
        return f"<HookChain {listed or 'empty'}>"


async def _call_async(one: Hook, payload: HookEvent) -> Any:
    return await one.function(payload)


def _fits(node: Node, payload: HookEvent) -> None:
    if not isinstance(payload, PAYLOADS[node]):
        raise TypeError(f"{node} takes {PAYLOADS[node].__name__}, not {type(payload).__name__}")


def _report(one: Hook, failure: Exception) -> None:
    # The text of a foreign exception may hold anything; the log gets its kind and its place.
    reason = str(failure) if isinstance(failure, HookFailure) else type(failure).__name__
    place = None if isinstance(failure, HookFailure) else where_raised(failure)
    then = "watched" if one.node in WATCHING else one.on_failure
    _log.warning("hook failed", hook=one.name, node=one.node, reason=reason, at=place, on_failure=then)
    if place is not None:
        _log.debug("hook failure in full", hook=one.name, exc_info=failure)
