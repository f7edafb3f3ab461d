"""An nginx configuration as nginx reads it: which location serves a path, and which directives are in force there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import crossplane  # type: ignore[import-untyped]  # it has no types

from app.errors import ConfigError

Directive = dict[str, Any]


@dataclass(frozen=True)
class Level:
    """One block (`http`, `server`, `location`) with its directives."""

    name: str
    directives: list[Directive] = field(default_factory=list)

    def all(self, name: str) -> list[list[str]]:
        """The arguments of each directive of this name, in this block itself."""
        return [d.get("args", []) for d in self.directives if d["directive"] == name]

    def blocks(self, name: str) -> list[Directive]:
        """The blocks of this name in this block."""
        return [d for d in self.directives if d["directive"] == name and "block" in d]


@dataclass(frozen=True)
class Place:
    """The blocks around a location, from `http` inwards."""

    levels: list[Level]

    @property
    def where(self) -> str:
        """Its name for people."""
        return self.levels[-1].name

    def last(self, name: str) -> list[str] | None:
        """The arguments of the innermost directive of this name; None where there is none."""
        for level in reversed(self.levels):
            found = level.all(name)
            if found:
                return found[-1]
        return None

    def every(self, name: str) -> list[list[str]]:
        """All that are in force of a directive that may stand several times: those of the innermost level that has any."""
        for level in reversed(self.levels):
            found = level.all(name)
            if found:
                return found
        return []

    def value(self, name: str, default: str) -> str:
        """The first argument of the innermost directive."""
        found = self.last(name)
        return found[0] if found else default


class NginxFile:
    """A parsed file, its includes followed where they are there."""

    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            raise ConfigError(f"--nginx {path}: there is no such file.")
        parsed = crossplane.parse(path, combine=True, check_ctx=False, check_args=False, strict=False)
        errors = [e["error"] for c in parsed["config"] for e in c.get("errors", [])] + [e["error"] for e in parsed["errors"]]
        self.errors = [str(error) for error in errors]
        roots = parsed["config"][0]["parsed"] if parsed["config"] else []
        self.http = Level("http", _http(roots))
        self.servers = [_server(block) for block in self.http.blocks("server")]
        self.upstreams = {b["args"][0]: Level(f"upstream {b['args'][0]}", b["block"]) for b in self.http.blocks("upstream")}

    def places(self, path: str) -> list[Place]:
        """For each server: the location that nginx chooses for `path`; servers that choose none are left out."""
        found = (_choose([self.http, server], path) for server in self.servers)
        return [place for place in found if place is not None]


def _http(roots: list[Directive]) -> list[Directive]:
    """What is inside `http`, also in a file that is included into it."""
    inside = [inner for d in roots if d["directive"] == "http" for inner in d.get("block", [])]
    return inside or roots


def _server(block: Directive) -> Level:
    names = [" ".join(d["args"]) for d in block["block"] if d["directive"] == "server_name"]
    return Level(f"server {names[0]}" if names else "server", block["block"])


def _choose(levels: list[Level], path: str) -> Place | None:
    """The location, as nginx chooses it: exact, then the longest prefix (final with ^~), then the first expression."""
    prefix: Directive | None = None
    regex: Directive | None = None
    for block in levels[-1].blocks("location"):
        args = block["args"]
        modifier, pattern = (args[0], args[1]) if len(args) > 1 else ("", args[0])
        if modifier == "=" and pattern == path:
            return _descend(levels, block, path)
        if modifier in ("", "^~") and path.startswith(pattern):
            if prefix is None or len(pattern) > len(prefix["args"][-1]):
                prefix = block
        elif modifier in ("~", "~*") and regex is None and _matches(pattern, path, modifier):
            regex = block
    final = prefix is not None and prefix["args"][0] == "^~"
    chosen = prefix if final or regex is None else regex
    if chosen is None:
        return Place(levels) if levels[-1].all("proxy_pass") or levels[-1].all("return") else None
    return _descend(levels, chosen, path)


def _descend(levels: list[Level], block: Directive, path: str) -> Place:
    inner = [*levels, Level(f"location {' '.join(block['args'])}", block["block"])]
    return _choose(inner, path) or Place(inner)


def _matches(pattern: str, path: str, modifier: str) -> bool:
    try:
        return re.search(pattern, path, re.IGNORECASE if modifier == "~*" else 0) is not None
    except re.error:
        return False
