"""`@hook`, and what a hook may answer (PROTOCOL 9)."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, TypeGuard, get_args

from app.errors import ConfigError
from app.hooks.payloads import (
    WATCHING,
    AfterGeneration,
    AfterTool,
    BeforeGeneration,
    BeforeTool,
    HookEvent,
    Messages,
    Node,
    OnReceive,
)
from app.tools.errors import ToolError
from app.tools.wording import clean, encode_result

OnFailure = Literal["open", "closed"]


class HookFailure(Exception):
    """A hook did not do what a hook may do; says what, in words for the log."""


class _Unset(Enum):
    """What was not given. An enum, since a copy of a member is the member."""

    UNSET = "left out"


_UNSET = _Unset.UNSET


@dataclass(frozen=True, slots=True)
class Deny:
    """Stop here; `words` are for the user, or after a tool for the model."""

    words: str

    def __post_init__(self) -> None:
        words: object = self.words
        if not isinstance(words, str) or not words.strip():
            raise TypeError("Deny needs words, a string.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Go on with something else; exactly the one thing that the node works with.

    `text` for `on_receive` and `after_generation`, `messages` for `before_generation`, `arguments` for `before_tool`,
    `result` (a string or JSON) for `after_tool`.
    """

    text: str | _Unset = _UNSET
    messages: Messages | _Unset = _UNSET
    arguments: dict[str, Any] | _Unset = _UNSET
    result: Any = _UNSET

    def applied_to(self, payload: HookEvent) -> HookEvent:
        """The payload with the replacement in it.

        Raises:
            HookFailure: the node takes another kind of replacement, or it is of a wrong type.
        """
        wanted = _WANTED.get(payload.node)
        given = [name for name in ("text", "messages", "arguments", "result") if getattr(self, name) is not _UNSET]
        if wanted is None or given != [wanted]:
            raise HookFailure(f"{payload.node} takes {wanted or 'no'} replacement, not {', '.join(given) or 'nothing'}")
        match payload:
            case OnReceive() if isinstance(self.text, str):
                return payload.with_text(clean(self.text))
            case AfterGeneration() if isinstance(self.text, str):
                return replace(payload, text=clean(self.text))
            case BeforeGeneration() if _are_messages(self.messages) and _is_json(self.messages):
                return replace(payload, messages=self.messages)
            case BeforeTool() if isinstance(self.arguments, dict) and _is_json(self.arguments):
                return replace(payload, arguments=self.arguments)
            case AfterTool():
                try:
                    return replace(payload, result=encode_result(self.result))
                except ToolError:
                    raise HookFailure("the result is neither a string nor JSON") from None
        raise HookFailure(f"the replacement of {wanted} has a wrong type")


_WANTED: dict[Node, str] = {
    "on_receive": "text",
    "before_generation": "messages",
    "before_tool": "arguments",
    "after_tool": "result",
    "after_generation": "text",
}


def _is_json(value: object) -> bool:
    """Whether it can be sent to a model, shown and stored as it is."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return not isinstance(value, dict) or all(isinstance(key, str) for key in value)


def _are_messages(value: object) -> TypeGuard[Messages]:
    return isinstance(value, list) and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value)


@dataclass(frozen=True, eq=False)
class Hook:
    """A function and when to call it. Calling it calls the plain function. `timeout` is in seconds."""

    node: Node
    name: str
    order: int
    timeout: float
    on_failure: OnFailure
    is_async: bool
    function: Callable[..., Any]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The function itself, unwatched, as in a test."""
        return self.function(*args, **kwargs)


def hook(
    node: Node,
    *,
    order: int = 50,
    timeout: float = 2.0,
    on_failure: OnFailure = "open",
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Hook]:
    """A `Hook` made of the function below it, which takes the node's payload.

    It answers None to go on, `Deny(words)` or `Replace(…)`. A sync function runs in a worker thread. Hooks of a node
    run by `order`, then by `name`.

    Args:
        node: where in the turn it is called.
        order: lower runs earlier.
        timeout: seconds that it may take, waiting for a thread included.
        on_failure: what happens when it raises, overruns its time or answers nonsense: `open` goes on without it,
            `closed` acts as a `Deny`.
        name: for the log and the order; the function's name if left out.

    Raises:
        ConfigError: it cannot be a hook; says which and why.
    """

    def decorate(fn: Callable[..., Any]) -> Hook:
        own_name = name or str(getattr(fn, "__name__", "")) or repr(fn)
        _check(fn, own_name, node, order=order, timeout=timeout, on_failure=on_failure)
        return Hook(
            node=node,
            name=own_name,
            order=order,
            timeout=float(timeout),
            on_failure=on_failure,
            is_async=inspect.iscoroutinefunction(fn),
            function=fn,
        )

    return decorate


def _check(fn: object, name: str, node: Any, *, order: Any, timeout: Any, on_failure: Any) -> None:
    if isinstance(fn, Hook):
        raise ConfigError(f"hook '{name}': it is a hook already.")
    if not callable(fn) or isinstance(fn, type) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigError(f"hook '{name}': only a plain or async function can be a hook.")
    if node not in get_args(Node):
        raise ConfigError(f"hook '{name}': there is no node {node!r}; there are {', '.join(get_args(Node))}.")
    if isinstance(order, bool) or not isinstance(order, int):
        raise ConfigError(f"hook '{name}': order is a whole number, not {order!r}.")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ConfigError(f"hook '{name}': timeout is a number of seconds above 0, not {timeout!r}.")
    if on_failure not in get_args(OnFailure):
        raise ConfigError(f"hook '{name}': on_failure is open or closed, not {on_failure!r}.")
    if node in WATCHING and on_failure == "closed":
        raise ConfigError(f"hook '{name}': {node} only watches, so it cannot be on_failure=\"closed\".")
    try:
        inspect.signature(fn).bind(None)
    except TypeError:
        raise ConfigError(f"hook '{name}': it must take one argument, the event.") from None
