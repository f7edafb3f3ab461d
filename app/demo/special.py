"""What the demo can be asked to do wrong: to be slow, silent, cut off, refused. Found in the user's words by a table."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

Failure = Literal["", "at once", "in the middle", "first", "reject"]
Mood = Literal["", "empty", "think only", "length", "filter", "broken call", "broken calls", "long", "loop", "think tags"]

MAX_SILENCE = 120.0
_COUNTS = {"once": 1, "twice": 2, "two times": 2, "three times": 3, "1": 1, "2": 2, "3": 3}


@dataclass(frozen=True, slots=True)
class Special:
    """The wishes about behaviour in one message, and the words that are left of it.

    `silence` is in seconds; `slowness` stretches the pace; `first` is how many tries fail before one works; `late` says
    that the failure waits for the tools; `bare` that nothing visible comes before the ending asked for.
    """

    rest: str
    silence: float = 0.0
    slowness: float = 1.0
    failure: Failure = ""
    first: int = 0
    mood: Mood = ""
    late: bool = False
    bare: bool = False

    @property
    def asked(self) -> bool:
        """Whether any behaviour was asked for."""
        return bool(self.silence or self.slowness != 1.0 or self.failure or self.mood)


_SILENCE = re.compile(
    r"\b(?:be|stay|keep|remain)?\s*(?:silent|quiet)\s+for\s+(?P<n>\d+(?:\.\d+)?)\s*(?P<unit>s\b|sec\w*|min\w*)?",
    re.IGNORECASE,
)
_FIRST = re.compile(
    r"\b(?:fail|break) (?P<n>once|twice|(?:two|three|[123]) times?)\b[, ]*(?:and )?"
    r"(?:then (?:answer|work|succeed|go on|recover))?",
    re.IGNORECASE,
)
_SLOW = re.compile(r"\b(?:be (?:very )?slow|(?:very )?slowly|take your time|slow down)\b(?! report)", re.IGNORECASE)
_BARE = re.compile(r"\b(?:at once|without (?:any )?text|silently|before anything)\b", re.IGNORECASE)
_LATE = re.compile(r"\bthen (?:fail|break)\b|\bfail after\b", re.IGNORECASE)

_FAILURES: tuple[tuple[Failure, str], ...] = (
    ("in the middle", r"\b(?:fail|break|crash|stop) (?:in the middle|mid-?way|half ?-?way)\b"),
    ("reject", r"^\s*(?:please )?reject\b|\b(?:reject (?:me|this|it|the request)|be rejected|refuse the request)\b"),
    ("at once", r"\b(?:always fail|fail (?:at once|now|always|every time|for good|after (?:that|the tools?)))\b"),
    ("at once", r"\bthen (?:fail|break)\b|^\s*(?:please )?fail\s*[.!]*\s*$"),
)
_MOODS: tuple[tuple[Mood, str], ...] = (
    ("empty", r"\b(?:say|answer) nothing\b|\bempty answer\b"),
    ("think only", r"\b(?:only|just) think\b|\bthink only\b"),
    ("length", r"\bcut (?:it|yourself|the answer) (?:short|off)\b|\bcut short\b|\brun out of tokens\b"),
    ("filter", r"\bcontent[ -]?filter(?:ed)?\b|\bbe filtered\b"),
    ("broken calls", r"\bbroken (?:tool )?(?:calls|arguments)\b"),
    ("broken call", r"\bbroken (?:tool )?call\b"),
    ("long", r"\blong answer\b|\banswer at length\b|\bwrite (?:me )?(?:an? )?(?:essay|long)\b"),
    ("loop", r"\bloop\b|\bcall .*\bfor ?ever\b|\bsame tool (?:for ?ever|again and again)\b"),
    ("think tags", r"\bthink[ -]?tags?\b"),
)


def find_special(text: str) -> Special:
    """The behaviour that `text` asks for."""
    special = Special(rest=text, late=bool(_LATE.search(text)), bare=bool(_BARE.search(text)))
    if found := _SILENCE.search(text):
        minutes = (found["unit"] or "").lower().startswith("min")
        seconds = float(found["n"]) * (60 if minutes else 1)
        special = _without(special, found, silence=min(MAX_SILENCE, seconds))
    if found := _SLOW.search(special.rest):
        special = _without(special, found, slowness=6.0)
    if found := _FIRST.search(special.rest):
        count = _COUNTS.get(found["n"].lower(), int(found["n"][0]) if found["n"][0].isdigit() else 1)
        special = _without(special, found, failure="first", first=count)
    for failure, pattern in _FAILURES:
        if not special.failure and (found := re.search(pattern, special.rest, re.IGNORECASE)):
            special = _without(special, found, failure=failure)
    for mood, pattern in _MOODS:
        if not special.mood and (found := re.search(pattern, special.rest, re.IGNORECASE)):
            special = _without(special, found, mood=mood)
    return special


def _without(special: Special, found: re.Match[str], **changes: object) -> Special:
    rest = f"{special.rest[: found.start()]} {special.rest[found.end() :]}"
    return replace(special, rest=rest, **changes)  # type: ignore[arg-type]  # names and types of its own fields
