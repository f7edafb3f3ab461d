"""A want: one tool call that the user asked for, and whether it can be made with the tools that are offered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.providers.provider import ToolSpec

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class Want:
    """A tool to call with these arguments; `question` asks for what is still missing, empty where nothing is."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    question: str = ""


def fitted(want: Want, spec: ToolSpec) -> dict[str, Any] | None:
    """The arguments as the tool's schema takes them, unknown ones left out; None where one is missing or wrong."""
    properties = spec.schema.get("properties") or {}
    open_ended = not properties and spec.schema.get("additionalProperties") is not False
    arguments = {name: value for name, value in want.arguments.items() if name in properties or open_ended}
    if any(name not in arguments for name in spec.schema.get("required") or []):
        return None
    if not all(_fits(value, properties.get(name)) for name, value in arguments.items()):
        return None
    return arguments


def guessed(spec: ToolSpec, given: Mapping[str, Any], number: float | None, words: str) -> Want:
    """A want for a tool that is not ours: required arguments that were not given are guessed by their types."""
    arguments = dict(given)
    properties = spec.schema.get("properties") or {}
    for name in spec.schema.get("required") or []:
        if name in arguments:
            continue
        for kind in _kinds(properties.get(name)):
            match kind:
                case "number":
                    arguments[name] = 1 if number is None else number
                case "integer":
                    arguments[name] = 1 if number is None else int(number)
                case "string":
                    arguments[name] = words
                case "boolean":
                    arguments[name] = True
                case "array":
                    arguments[name] = []
                case "object":
                    arguments[name] = {}
                case _:
                    continue
            break
    return Want(spec.name, arguments)


def _fits(value: object, schema: object) -> bool:
    if not isinstance(schema, dict):
        return True
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return bool(value == schema["const"])
    if branches := schema.get("anyOf"):
        return any(_fits(value, branch) for branch in branches)
    kinds = _kinds(schema)
    if isinstance(value, bool) and kinds:
        return "boolean" in kinds
    return not kinds or any(isinstance(value, _TYPES.get(kind, (object,))) for kind in kinds)


def _kinds(schema: object) -> list[str]:
    if not isinstance(schema, dict):
        return []
    kind = schema.get("type")
    own = [kind] if isinstance(kind, str) else list(kind) if isinstance(kind, list) else []
    return own + [below for branch in schema.get("anyOf") or [] for below in _kinds(branch)]
