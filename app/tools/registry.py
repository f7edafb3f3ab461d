"""From the configuration's words to tools: `module`, or `module:name` (PROTOCOL 8)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from app.errors import ConfigError, EarlybyteError
from app.tools.tool import Tool
from app.tools.wording import error_words


def load_tools(specs: Sequence[str]) -> dict[str, Tool]:
    """The tools that `specs` name, by tool name, in the order of the specs and of their definition.

    `module` stands for every tool that is defined in that module, `module:name` for one, under its name in the module.

    Raises:
        ConfigError: a module cannot be imported or has no tools, a name is no tool, or two tools share a name.
    """
    tools: dict[str, Tool] = {}
    origin: dict[str, str] = {}
    for spec in specs:
        for found in _find(spec):
            if found.name in tools:
                other = origin[found.name]
                where = f"in '{spec}'" if other == spec else f"in '{other}' and in '{spec}'"
                raise ConfigError(f"tools: the name '{found.name}' is taken twice, {where}; set name= on one of them.")
            tools[found.name] = found
            origin[found.name] = spec
    return tools


def import_module(spec: str, setting: str) -> ModuleType:
    """The module `spec`, which the setting `setting` names.

    Raises:
        ConfigError: it cannot be imported; one sentence with the reason, without a trace.
    """
    try:
        return importlib.import_module(spec)
    except KeyboardInterrupt:
        raise
    except EarlybyteError as error:
        raise ConfigError(f"{setting}: '{spec}' cannot be used: {error.message}") from error
    except BaseException as error:  # a module's import is foreign code; SystemExit is a failure too
        raise ConfigError(f"{setting}: '{spec}' cannot be imported: {error_words(error)}.") from error


def _find(spec: str) -> list[Tool]:
    name, colon, attribute = spec.partition(":")
    if not name or (colon and not attribute):
        raise ConfigError(f"tools: '{spec}' is neither a module nor module:name.")
    module = import_module(name, "tools")
    if colon:
        one = getattr(module, attribute, None)
        if one is None:
            raise ConfigError(f"tools: '{spec}': the module has no '{attribute}'.")
        if not isinstance(one, Tool):
            raise ConfigError(f"tools: '{spec}': '{attribute}' is no tool; put @tool above it.")
        return [one]
    # By identity: a tool may have two names in its module.
    present = {id(value): value for value in vars(module).values() if isinstance(value, Tool)}
    own = [one for one in present.values() if module.__name__ in (one.module, one.function.__module__)]
    if not own and present:
        elsewhere = sorted({one.module for one in present.values()})
        raise ConfigError(f"tools: '{spec}' defines no tool itself; list where they come from: {', '.join(elsewhere)}.")
    if not own:
        raise ConfigError(f"tools: '{spec}' has no tools; put @tool above a function.")
    return own
