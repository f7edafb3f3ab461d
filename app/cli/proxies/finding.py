"""What a check has found: one line each, with the mend."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "WRONG"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`what` was seen `where`; `mend` says what to do about it, empty when it is right."""

    verdict: Verdict
    where: str
    what: str
    mend: str = ""

    def __str__(self) -> str:
        line = f"{self.verdict:<6}{self.where}: {self.what}"
        return f"{line}\n      {self.mend}" if self.mend else line


def ok(where: str, what: str) -> Finding:
    """It is right."""
    return Finding(verdict="ok", where=where, what=what)


def note(where: str, what: str, mend: str) -> Finding:
    """It works, and could be better."""
    return Finding(verdict="note", where=where, what=what, mend=mend)


def wrong(where: str, what: str, mend: str) -> Finding:
    """It will break a stream, repeat work, or leak a secret."""
    return Finding(verdict="WRONG", where=where, what=what, mend=mend)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw]?)")


def seconds(text: str) -> float | None:
    """A duration such as `75s`, `2m40s`, `1h 30m` or `60` in seconds; None when it is none."""
    text = text.strip().lower()
    parts = _PART.findall(text)
    if not parts or re.sub(r"\s", "", text) != "".join(number + unit for number, unit in parts):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
