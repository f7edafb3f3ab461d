"""Months, as people name them and as the books know them (`2026-05`)."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

from app.clock import now_ms

_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_ISO = re.compile(r"(?<![\d-])(20\d\d)-(0[1-9]|1[0-2])(?!\d)")
_NAMED = re.compile(
    r"\b(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\b\.?(?:,?\s+(20\d\d))?",
    re.IGNORECASE,
)
_AGO = re.compile(r"\b(\d{1,2}|one|two|three|four)\s+months?\s+ago\b", re.IGNORECASE)
_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4}
# "may" and "march" are also verbs: they are months where a word or a capital letter says so.
_BEFORE_MONTH = re.compile(r"\b(?:in|for|of|and|about|during|from|since)\s+$", re.IGNORECASE)


def today() -> date:
    """Today's date, UTC."""
    return datetime.fromtimestamp(now_ms() / 1000, UTC).date()


def month_of(day: date) -> str:
    """The month that holds `day`."""
    return f"{day.year:04d}-{day.month:02d}"


def shifted(month: str, by: int) -> str:
    """The month `by` months after `month`; before it where `by` is negative."""
    number = int(month[:4]) * 12 + int(month[5:]) - 1 + by
    return f"{number // 12:04d}-{number % 12 + 1:02d}"


def title(month: str) -> str:
    """The month for a person: `May 2026`."""
    return f"{_NAMES[int(month[5:]) - 1]} {month[:4]}"


def find_month(text: str, day: date) -> str | None:
    """The month that `text` names, seen from `day`; None where it names none.

    A month without a year is the latest one that is not in the future.
    """
    if found := _ISO.search(text):
        return found[0]
    this, lower = month_of(day), text.lower()
    if found := _AGO.search(text):
        return shifted(this, -int(_NUMBERS.get(found[1].lower(), found[1])))
    if re.search(r"\bmonth before last\b", lower):
        return shifted(this, -2)
    if re.search(r"\b(last|previous) month\b", lower):
        return shifted(this, -1)
    if re.search(r"\b(this|current) month\b|\bmonth so far\b", lower):
        return this
    for named in _NAMED.finditer(text):
        if named[1].lower() in ("may", "march", "mar") and not _is_month(text, named):
            continue
        number = next(n for n, name in enumerate(_NAMES, 1) if name.lower().startswith(named[1].lower()[:3]))
        year = int(named[2]) if named[2] else day.year if number <= day.month else day.year - 1
        return f"{year:04d}-{number:02d}"
    return None


def _is_month(text: str, named: re.Match[str]) -> bool:
    before, after = text[: named.start()], text[named.end() :].strip(" .?!").lower()
    if after.startswith(("i ", "we ", "you ")):
        return False
    alone = not before.strip() and not after
    return bool(named[2] or named[1][0].isupper() or alone or _BEFORE_MONTH.search(before))
