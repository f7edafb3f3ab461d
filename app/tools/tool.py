"""`@tool`: what makes a plain function something that a model may call (PROTOCOL 9).

Everything that can be wrong with a tool is found when it is defined, and said with its name; a call only runs it.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, get_args, overload

from app.errors import ConfigError
from app.events.types import SideEffects
from app.tools.context import ToolContext
from app.tools.signature import Signature, description_of, read_signature

Redact = tuple[str, ...] | Callable[[dict[str, Any]], dict[str, Any]]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MASK = "…"


@dataclass(frozen=True, eq=False, repr=False)
class Tool:
    """A function with all that the service needs to offer it and to run it. Calling it calls the plain function.

    `schema` is the JSON Schema of its arguments; `timeout` is in seconds, None for the configured default; `approval`
    says whether a person must allow each call; `module` is where it was defined.
    """

    name: str
    title: str
    description: str
    schema: dict[str, Any]
    side_effects: SideEffects
    timeout: float | None
    approval: bool
    is_async: bool
    module: str
    function: Callable[..., Any]
    signature: Signature
    approval_words: str | None
    redact: Redact

    def __post_init__(self) -> None:
        # As `functools.wraps` does, which cannot: the instance is frozen.
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            self.__dict__[attribute] = getattr(self.function, attribute, None)
        self.__dict__["__wrapped__"] = self.function

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The function itself, unwatched, as in a test."""
        return self.function(*args, **kwargs)

    def prompt(self, arguments: Mapping[str, Any]) -> str:
        """The question for the person who must allow a call; `{name}` in it becomes the redacted argument."""
        if self.approval_words is None:
            return f"{self.title}?"
        shown = self.redacted(arguments) or {}
        words = []
        for text, name, form, _ in Formatter().parse(self.approval_words):
            words += [text, "" if name is None else _formatted(shown.get(name, "(not given)"), form or "")]
        return "".join(words)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function takes them, of the types of its hints.

        Raises:
            ToolError: they do not fit; one sentence that lets the model mend its call.
        """
        return self.signature.validate(arguments)

    def redacted(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arguments that may be shown, by the tool's own rule; None when the rule fails, so that nothing leaks."""
        try:
            shown = copy.deepcopy(dict(arguments))
            hidden = () if callable(self.redact) else self.redact
            if callable(self.redact):
                shown = self.redact(shown)
                json.dumps(shown, allow_nan=False)
                return dict(shown)
        except BaseException:  # the rule is foreign code, and this is called where nothing may fail
            return None
        return {name: _MASK if name in hidden else value for name, value in shown.items()}

    def call(self, ctx: ToolContext, arguments: Mapping[str, Any]) -> Any:
        """Run the function with validated arguments: its result, or for an async one a coroutine."""
        if self.signature.context is None:
            return self.function(**arguments)
        return self.function(**{self.signature.context: ctx}, **arguments)

    def __repr__(self) -> str:
        return f"<Tool {self.name}: {self.side_effects}{', needs approval' if self.approval else ''}>"


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    title: str | None = None,
    side_effects: SideEffects = "unsafe",
    timeout: float | None = None,
    approval: bool | str = False,
    name: str | None = None,
    schema: Mapping[str, Any] | None = None,
    redact: str | tuple[str, ...] | list[str] | Callable[[dict[str, Any]], dict[str, Any]] = (),
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    title: str | None = None,
    side_effects: SideEffects = "unsafe",
    timeout: float | None = None,
    approval: bool | str = False,
    name: str | None = None,
    schema: Mapping[str, Any] | None = None,
    redact: str | tuple[str, ...] | list[str] | Callable[[dict[str, Any]], dict[str, Any]] = (),
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """A `Tool` made of the function below it; also as a bare `@tool`.

    The docstring tells the model what the tool does and, in a Google-form `Args:` section, what each argument means;
    the type hints become the schema. A parameter that is annotated `ToolContext`, or a first one called `ctx`, gets
    the context and is not shown to the model.

    Args:
        function: what the bare `@tool` stands above.
        title: words for a person while it runs ("Creating the invoice").
        side_effects: `none`, `idempotent` (may be run again with the same key) or `unsafe` (never run twice, X2).
        timeout: seconds; None takes the configured default (B2).
        approval: whether a person must allow each call; a string is the question, in which
            `{argument}`, or `{argument:.2f}`, is filled in.
        name: what the model calls it; the function's name if left out.
        schema: the JSON Schema of the arguments, by hand; needed for a function that takes `**arguments`.
        redact: the arguments that nobody is shown, or a function from the arguments to those that may be shown.

    Raises:
        ConfigError: the function cannot be a tool; says which and why.
    """
    # For hints that name classes of an enclosing function, and for the module that `load_tools` asks about.
    caller = sys._getframe(1)  # noqa: SLF001 - the documented way to the caller
    local_names, module = dict(caller.f_locals), str(caller.f_globals.get("__name__", ""))

    def decorate(fn: Callable[..., Any]) -> Tool:
        own_name = name if name is not None else str(getattr(fn, "__name__", ""))
        _check(fn, own_name, side_effects=side_effects, timeout=timeout, approval=approval)
        signature = read_signature(fn, own_name, schema, local_names)
        if isinstance(approval, str):
            _check_question(own_name, approval, signature)
        return Tool(
            name=own_name,
            title=title or own_name.replace("_", " ").replace("-", " ").strip().capitalize(),
            description=description_of(fn.__doc__),
            schema=signature.schema,
            side_effects=side_effects,
            timeout=None if timeout is None else float(timeout),
            approval=bool(approval),
            is_async=inspect.iscoroutinefunction(fn),
            module=module,
            function=fn,
            signature=signature,
            approval_words=approval if isinstance(approval, str) else None,
            redact=_redact_rule(redact, own_name, signature),
        )

    return decorate if function is None else decorate(function)


def _formatted(value: object, form: str) -> str:
    """A value in the form that the question asks for, or as it is where that does not fit it."""
    try:
        return format(value, form)
    except (TypeError, ValueError):
        return str(value)


def _check_question(name: str, question: str, signature: Signature) -> None:
    try:
        named = [field for _, field, _, _ in Formatter().parse(question) if field is not None]
    except ValueError as error:
        raise ConfigError(f"tool '{name}': the question of approval cannot be read: {error}.") from None
    known = signature.schema.get("properties", {})
    unknown = [field for field in named if field not in known]
    if unknown and not (signature.takes_all and not known):
        there = f"there are {', '.join(known)}" if known else "there are none"
        raise ConfigError(f"tool '{name}': approval asks for {{{unknown[0]}}}, which is no argument; {there}.")


def _check(fn: object, name: str, *, side_effects: str, timeout: Any, approval: bool | str) -> None:
    if isinstance(fn, Tool):
        raise ConfigError(f"tool '{name}': it is a tool already.")
    if not callable(fn) or isinstance(fn, type):
        raise ConfigError(f"tool '{name or fn!r}': only a function can be a tool.")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"tool '{name}': a name has 1 to 64 of the characters a-z, A-Z, 0-9, _ and -; set name=.")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigError(f"tool '{name}': a tool returns its result, it does not yield.")
    if side_effects not in get_args(SideEffects):
        raise ConfigError(f"tool '{name}': side_effects is none, idempotent or unsafe, not {side_effects!r}.")
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf
    ):
        raise ConfigError(f"tool '{name}': timeout is a number of seconds above 0, not {timeout!r}.")
    if not isinstance(approval, bool | str):
        raise ConfigError(f"tool '{name}': approval is True, False or the question to ask, not {approval!r}.")


def _redact_rule(redact: object, name: str, signature: Signature) -> Redact:
    if callable(redact):
        return redact
    names = (redact,) if isinstance(redact, str) else tuple(redact) if isinstance(redact, tuple | list) else None
    if names is None or not all(isinstance(item, str) for item in names):
        raise ConfigError(f"tool '{name}': redact is the names of arguments, or a function.")
    for item in names:
        # A misspelt name would show what it was meant to hide.
        if not signature.takes_all and item not in signature.names.values():
            raise ConfigError(f"tool '{name}': redact names '{item}', which is no argument.")
    return names
