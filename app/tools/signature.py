"""From a function's signature and docstring to what the model sees, and from what the model sends to its arguments."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo

from app.errors import ConfigError
from app.tools.context import ToolContext
from app.tools.errors import ToolError
from app.tools.wording import clean

_MAX_PROBLEMS = 5
_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Raises|Examples?|Notes?|Attributes|Todo|See Also):\s*$")
_ARGUMENT = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
# The types of JSON Schema, for schemas that are given by hand.
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class Signature:
    """How a function takes its arguments.

    `context` is the parameter that gets the `ToolContext`, None if there is none. `names` maps the fields of `model`
    to the parameters; `takes_all` is for `**arguments`, whose names only a schema by hand can tell.
    """

    context: str | None
    names: dict[str, str]
    model: type[BaseModel]
    takes_all: bool
    schema: dict[str, Any]

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function's hints say, defaults left to the function.

        Raises:
            ToolError: in words that let the model mend its call; the values themselves are not repeated.
        """
        if self.takes_all:
            self._check_by_hand(arguments)
        if self.context in arguments:
            raise ToolError(f"Invalid arguments: {self.context}: there is no such argument.")
        try:
            parsed = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToolError(f"Invalid arguments: {_problems(error)}.") from None
        except RecursionError:
            raise ToolError("Invalid arguments: they are nested too deeply.") from None
        given = parsed.model_fields_set
        values = {name: getattr(parsed, field) for field, name in self.names.items() if field in given}
        return values | dict(parsed.model_extra or {})

    def _check_by_hand(self, arguments: Mapping[str, Any]) -> None:
        """What a schema by hand says of the top level: required, unknown, type. Deeper rules are the function's own."""
        properties = self.schema.get("properties", {})
        required = self.schema.get("required", [])
        problems = [f"{name}: this argument is required" for name in required if name not in arguments]
        if self.schema.get("additionalProperties") is False:
            problems += [f"{name}: there is no such argument" for name in arguments if name not in properties]
        for name, value in arguments.items():
            wanted = properties.get(name, {}).get("type") if isinstance(properties.get(name), dict) else None
            kinds = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
            if kinds and not any(_is_kind(value, kind) for kind in kinds):
                problems.append(f"{name}: Input should be of type {' or '.join(kinds)}")
        if problems:
            raise ToolError(f"Invalid arguments: {clean('; '.join(problems[:_MAX_PROBLEMS]))}.")


def read_signature(
    function: Callable[..., Any], name: str, schema: Mapping[str, Any] | None, local_names: Mapping[str, Any]
) -> Signature:
    """The signature of a tool's function; `local_names` are those that its hints may use beside the module's own.

    Raises:
        ConfigError: the function cannot be a tool; names the tool and the parameter.
    """
    parameters = list(inspect.signature(function).parameters.values())
    plain = _plain(function)
    hints = dict(getattr(plain, "__annotations__", {}))
    context = _context_parameter(parameters, hints, plain, local_names)
    takes_all, wanted = False, []
    for parameter in parameters:
        if parameter.name == context:
            continue
        match parameter.kind:
            case inspect.Parameter.VAR_KEYWORD if schema is not None:
                takes_all = True
            case inspect.Parameter.VAR_KEYWORD:
                raise ConfigError(f"tool '{name}': **{parameter.name} needs schema=, which tells the model the names.")
            case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.POSITIONAL_ONLY:
                raise ConfigError(f"tool '{name}': '{parameter.name}' cannot be passed by its name.")
            case _:
                wanted.append(parameter)
    for parameter in wanted:
        if parameter.name not in hints:
            raise ConfigError(f"tool '{name}': parameter '{parameter.name}' has no type hint.")
        if isinstance(parameter.default, FieldInfo):
            raise ConfigError(f"tool '{name}': write '{parameter.name}' as Annotated[type, Field(…)] = default.")
    types = _resolve(plain, name, {p.name: hints[p.name] for p in wanted}, local_names)
    model, names = _build_model(name, wanted, types, argument_descriptions(function.__doc__), allow_more=takes_all)
    shown = dict(schema) if schema is not None else _shown_schema(model, name)
    if shown.get("type") != "object":
        raise ConfigError(f'tool \'{name}\': schema= must be a JSON Schema with "type": "object".')
    return Signature(context=context, names=names, model=model, takes_all=takes_all, schema=shown)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind `functools.partial`, or the method that a callable object is called by: it has the hints."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def description_of(doc: str | None) -> str:
    """What a Google-form docstring says before its first section, as the model gets it."""
    lines: list[str] = []
    for line in inspect.cleandoc(doc or "").splitlines():
        if _SECTION.match(line):
            break
        lines.append(line.rstrip())
    return "\n".join(lines).strip()


def argument_descriptions(doc: str | None) -> dict[str, str]:
    """The `Args:` section of a Google-form docstring, by argument."""
    lines = inspect.cleandoc(doc or "").splitlines()
    section: list[str] = []
    inside = False
    for line in lines:
        if line and not line[0].isspace():
            inside = line.strip() in ("Args:", "Arguments:", "Parameters:")
        elif inside:
            section.append(line)
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in textwrap.dedent("\n".join(section)).splitlines():
        # An argument begins at the left edge; what is indented below it goes on with it.
        match = None if line[:1].isspace() else _ARGUMENT.match(line)
        if match:
            current = found.setdefault(match[1].lstrip("*"), [])
        current.append(match[2] if match else line.strip())
    return {name: text for name, words in found.items() if (text := " ".join(filter(None, words)))}


def _context_parameter(
    parameters: list[inspect.Parameter],
    hints: dict[str, Any],
    function: Callable[..., Any],
    local_names: Mapping[str, Any],
) -> str | None:
    for position, parameter in enumerate(parameters):
        if parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            continue
        hint = hints.get(parameter.name)
        if isinstance(hint, str):
            # Also where the name is imported for type checkers only, and could not be resolved.
            last = hint.strip("'\" ").rpartition(".")[2]
            named = local_names.get(last, getattr(function, "__globals__", {}).get(last))
            if last == "ToolContext" or named is ToolContext:
                return parameter.name
        elif isinstance(hint, type) and issubclass(hint, ToolContext):
            return parameter.name
        if position == 0 and parameter.name == "ctx":
            return parameter.name
    return None


def _resolve(
    function: Callable[..., Any], name: str, hints: dict[str, Any], local_names: Mapping[str, Any]
) -> dict[str, Any]:
    resolved: dict[str, Any] = {}
    names = dict(local_names)
    for parameter, hint in hints.items():
        try:
            holder = SimpleNamespace(__annotations__={parameter: hint})
            resolved |= get_type_hints(holder, getattr(function, "__globals__", {}), names, include_extras=True)
        except Exception as error:
            raise ConfigError(f"tool '{name}': the type hint of '{parameter}' cannot be used: {error}.") from error
    return resolved


def _build_model(
    name: str,
    parameters: list[inspect.Parameter],
    types: dict[str, Any],
    descriptions: dict[str, str],
    *,
    allow_more: bool,
) -> tuple[type[BaseModel], dict[str, str]]:
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for number, parameter in enumerate(parameters):
        # Neutral field names with the real one as alias: an argument may be called `schema` or `copy` or `_x`.
        field = f"argument_{number}"
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        # Left out where the docstring has none, or it would hide one given by Annotated[…, Field(description=…)].
        said: Any = {"description": descriptions[parameter.name]} if parameter.name in descriptions else {}
        fields[field] = (types[parameter.name], Field(default, alias=parameter.name, **said))
        names[field] = parameter.name
    config = ConfigDict(extra="allow" if allow_more else "forbid", arbitrary_types_allowed=False)
    try:
        return create_model(name, __config__=config, **fields), names
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"tool '{name}': the model cannot be told about its type hints: {reason}") from error


def _shown_schema(model: type[BaseModel], name: str) -> dict[str, Any]:
    try:
        schema = model.model_json_schema(by_alias=True)
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"tool '{name}': the model cannot be told about its type hints: {reason}") from error
    schema.setdefault("properties", {})
    bare = _without_titles(schema)
    assert isinstance(bare, dict)
    return bare


def _without_titles(node: Any) -> Any:
    """A schema without pydantic's titles, which repeat the names; a property that is called `title` stays."""
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    bare = {}
    for key, value in node.items():
        if key in ("properties", "$defs") and isinstance(value, dict):
            bare[key] = {name: _without_titles(below) for name, below in value.items()}
        elif key in ("default", "const", "enum", "examples"):
            bare[key] = value
        elif key != "title":
            bare[key] = _without_titles(value)
    return bare


def _problems(error: ValidationError) -> str:
    words = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_PROBLEMS]:
        place = ".".join(str(part) for part in problem["loc"])
        match problem["type"]:
            case "missing":
                said = "this argument is required"
            case "extra_forbidden":
                said = "there is no such argument"
            case _:
                said = problem["msg"]
        words.append(f"{place}: {said}" if place else said)
    return clean("; ".join(words))


def _is_kind(value: Any, kind: object) -> bool:
    allowed = _JSON_TYPES.get(kind) if isinstance(kind, str) else None
    if allowed is None:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, allowed) or (kind == "integer" and isinstance(value, float) and value.is_integer())
