"""Where settings come from: the file and the environment, and the sentence that says which of them is wrong.

Knows the shape of the settings only through the model that it is given, so that a new setting needs no line here.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeGuard, get_args, get_origin
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ValidationError

from app.errors import ConfigError

PREFIX = "EARLYBYTE_"
DEFAULT_FILE = "earlybyte.toml"
# Names under the prefix that are no settings: which file to read, the key of a client, and how strict the tests are.
_NOT_SETTINGS = {"EARLYBYTE_CONFIG", "EARLYBYTE_KEY", "EARLYBYTE_REQUIRE_ALL"}

# pydantic's words for what TOML calls by other names.
_REASONS = {
    "tuple_type": "it must be a list",
    "dict_type": "it must be a table",
    "model_type": "it must be a table",
    "model_attributes_type": "it must be a table",
    "string_type": "it must be text",
    "too_short": "it must not be empty",
    "string_too_short": "it must not be empty",
}

Place = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """Raw values by group and name, and for each place in them the file or variable that it came from."""

    values: dict[str, object]
    origins: dict[Place, str]

    def sentence(self, error: ValidationError, model: type[BaseModel]) -> str:
        """One sentence for the first thing that is wrong: where, which key, which value, and what is allowed."""
        first = error.errors(include_url=False)[0]
        place = tuple(str(part) for part in first["loc"] if not isinstance(part, int))
        start = f"{self._origin(place)}: " if self._origin(place) else ""
        name = ".".join(place)
        if first["type"] == "extra_forbidden":
            return f"{start}{name} is not a setting; {_guess(place[-1], _keys(model, place[:-1]))}"
        reason = _REASONS.get(first["type"]) or str(first.get("ctx", {}).get("error", first["msg"]))
        reason = reason.replace("Input should be", "it must be").split(", unable to")[0].rstrip(".")
        value = first["input"]
        if isinstance(value, dict):
            return f"{start}[{name}] is not allowed: {reason}."
        if place[-1].endswith(("_env", "endpoint")):
            # Whoever puts a key where its variable's name belongs, or into an address, must not read it in a log.
            return f"{start}{name} is not allowed: {reason}."
        shown = json.dumps(without_password(value) if isinstance(value, str) else value, default=str, ensure_ascii=False)
        return f"{start}{name} = {shown} is not allowed: {reason}."

    def located(self, sentence: str) -> str:
        """The sentence with the files and variables before it that the settings named in it came from."""
        origins = []
        for place, origin in self.origins.items():
            name = ".".join(place) if len(place) > 1 else f"[{place[0]}]"
            if origin not in origins and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w|\.\w)", sentence):
                origins.append(origin)
        return f"{' and '.join(origins)}: {sentence}" if origins else sentence

    def _origin(self, place: Place) -> str:
        for length in range(len(place), 0, -1):
            if place[:length] in self.origins:
                return self.origins[place[:length]]
        return ""


def read(
    path: str | None, environ: Mapping[str, str], model: type[BaseModel], options: Mapping[Place, str] | None = None
) -> Found:
    """The values of the file at `path`, those of the environment over them, and `options` of the command line over both.

    No file is needed when `path` is None. An option has the name of its setting: `--port` for `("server", "port")`.

    Raises:
        ConfigError: the file is missing, unreadable or not TOML, or a variable under the prefix names no setting.
    """
    file = path or (DEFAULT_FILE if Path(DEFAULT_FILE).exists() else None)
    values = _parse(file) if file else {}
    origins: dict[Place, str] = {}
    if file:
        origins.update(dict.fromkeys(_places(values), file))
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in _NOT_SETTINGS:
            place, annotation = _setting(variable, values, model)
            _put(values, place, _value(environ[variable], annotation), model)
            origins[place] = variable
    for place, text in (options or {}).items():
        _put(values, place, text, model)
        origins[place] = f"--{place[-1]}"
    return Found(values, origins)


def without_password(url: str) -> str:
    """The URL with `***` in place of a password, fit for a log; other text comes back as it is."""
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
    except ValueError:
        return "***"
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{address}"))


def _parse(file: str) -> dict[str, object]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"The configuration file {file} does not exist.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not valid TOML: it is not UTF-8 text.") from None
    except OSError as error:
        raise ConfigError(f"The configuration file {file} cannot be read: {error.strerror}.") from None


def _places(values: Mapping[str, object], above: Place = ()) -> list[Place]:
    places: list[Place] = []
    for key, value in values.items():
        places.append((*above, key))
        if isinstance(value, dict):
            places += _places(value, (*above, key))
    return places


def _setting(variable: str, values: Mapping[str, object], model: type[BaseModel]) -> tuple[Place, object]:
    """The place that a variable names, and the type of the value there."""
    parts = variable.removeprefix(PREFIX).lower().split("__")
    group = model.model_fields.get(parts[0])
    annotation: object = None if group is None else group.annotation
    place: Place = (parts[0],)
    rest = parts[1:]
    if get_origin(annotation) is dict and rest:
        # A name of the user's own; a variable's name cannot tell its case or a hyphen, so the file's spelling wins.
        known = values.get(parts[0])
        names = {str(n).lower().replace("-", "_"): str(n) for n in known} if isinstance(known, dict) else {}
        place += (names.get(rest[0], rest[0]),)
        annotation, rest = get_args(annotation)[1], rest[1:]
    if len(rest) == 1 and _is_model(annotation) and rest[0] in annotation.model_fields:
        return (*place, rest[0]), annotation.model_fields[rest[0]].annotation
    if not rest and len(place) > 1 and annotation is str:
        return place, annotation
    raise ConfigError(f"The environment variable {variable} is not a setting; {_guess_variable(variable, place, model)}")


def _guess_variable(variable: str, place: Place, model: type[BaseModel]) -> str:
    """The variable that was probably meant, else how variables are named."""
    names: list[str] = []
    for group, field in model.model_fields.items():
        kind: object = field.annotation
        middle = ""
        if get_origin(kind) is dict:
            own_name = place[1] if len(place) > 1 and place[0] == group else "default"
            kind, middle = get_args(kind)[1], f"{own_name}__".upper()
        if _is_model(kind):
            names += [f"{PREFIX}{group.upper()}__{middle}{name.upper()}" for name in kind.model_fields]
    close = get_close_matches(variable, names, n=1, cutoff=0.8)
    if close:
        return f"did you mean {close[0]}?"
    near = [name for name in names if name.startswith(f"{PREFIX}{place[0].upper()}__")]
    if near:
        return f"allowed are {', '.join(near)}."
    return f"settings are named {PREFIX}<GROUP>__<NAME>, with the groups {', '.join(model.model_fields)}."


def _is_model(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _keys(model: type[BaseModel], place: Place) -> list[str]:
    """The keys that are allowed in the table at `place`."""
    kind: object = model
    for part in place:
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif _is_model(kind):
            kind = kind.model_fields[part].annotation
    return list(kind.model_fields) if _is_model(kind) else []


def _guess(name: str, allowed: list[str]) -> str:
    close = get_close_matches(name, allowed, n=1, cutoff=0.7)
    return f"did you mean {close[0]}?" if close else f"allowed are {', '.join(allowed)}."


def _value(text: str, annotation: object) -> object:
    """The text of a variable as its setting wants it: lists as JSON or comma-separated; empty is None where allowed."""
    if get_origin(annotation) is tuple:
        if text.lstrip().startswith("["):
            try:
                return json.loads(text)
            except ValueError:
                return text
        return [part.strip() for part in text.split(",") if part.strip()]
    if text == "" and type(None) in get_args(annotation):
        return None
    return text


def _put(values: dict[str, object], place: Place, value: object, model: type[BaseModel]) -> None:
    if place[0] not in values and get_origin(model.model_fields[place[0]].annotation) is dict:
        # Nothing of this group is in the file: the variable changes the default, it does not replace it.
        default = model.model_fields[place[0]].get_default(call_default_factory=True)
        values[place[0]] = {k: v.model_dump() if isinstance(v, BaseModel) else v for k, v in default.items()}
    table: dict[str, object] = values
    for part in place[:-1]:
        below = table.setdefault(part, {})
        if not isinstance(below, dict):
            return  # not a table in the file: validation says so
        table = below
    table[place[-1]] = value
