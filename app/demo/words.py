"""Amounts, names, references and accounts out of a sentence. Small rules for English, not a grammar."""

from __future__ import annotations

import re

_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?\b")
_DATE = re.compile(r"(?<!\d)20\d\d-\d\d(?:-\d\d)?(?!\d)")
_REFERENCE = re.compile(
    r"\b(?:with |and )?(?:the )?(?:reference|ref\.?|bill (?:no\.?|number)|invoice (?:no\.?|number))[ :#]*"
    r"(?P<value>[\w/-]*\d[\w/-]*)",
    re.IGNORECASE,
)
_AMOUNT = re.compile(
    r"(?P<sign>(?<![\w)])[-−]\s?)?(?P<before>€|\beur(?:os?)?\b)?\s?(?P<minus>[-−])?"
    r"(?<![\w.,])(?P<number>\d{1,3}(?:[.,' ]\d{3})+(?:[.,]\d{1,2})?|\d+(?:[.,]\d{1,2})?)(?!\w|[.,]\d|-\d)"
    r"(?P<after>\s?(?:€|euros?\b|eur\b))?",
    re.IGNORECASE,
)
# Words that end a name, and that are none by themselves.
_STOP = (
    r"over|of|for|about|amounting|worth|with|by|on|at|from|to|in|due|please|now|today|reference|ref|iban|account|then"
    r"|using|via|that|which|because|thanks"
)
_NAME = rf"(?P<name>(?!(?:{_STOP})\b)[^\W\d_][^\s,;:!?€]*(?:\s+(?!(?:{_STOP}|the)\b)[^\W\d_&+][^\s,;:!?€]*|\s+[&+])*)"
_NOT_A_NAME = {
    *("it", "that", "this", "them", "me", "my", "our", "the", "a", "an", "bill", "bills", "invoice", "invoices", "him"),
    *("her", "everything", "all", "something", "someone", "somebody", "services", "yes", "no", "ok", "okay"),
    *("euro", "euros", "money", "customer", "client", "account", "again", "us", "you", "both", "one", "eur"),
    *("month", "year", "week", "last", "next", "reminder", "new"),
}


def find_amount(text: str) -> float | None:
    """The first amount in euros that `text` names, one with a currency before all others; None where it names none."""
    plain = _IBAN.sub(" ", _REFERENCE.sub(" ", _DATE.sub(" ", text)))
    found = [match for match in _AMOUNT.finditer(plain) if not re.fullmatch(r"20\d\d", match["number"])]
    found = found or list(_AMOUNT.finditer(plain))
    marked = [match for match in found if match["before"] or match["after"]]
    if not found:
        return None
    match = (marked or found)[0]
    number = _as_number(match["number"])
    return -number if match["sign"] or match["minus"] else number


def find_reference(text: str) -> str:
    """What follows `reference` or `bill number`; empty where nothing does."""
    found = _REFERENCE.search(text)
    return found["value"] if found else ""


def find_iban(text: str) -> str:
    """The first account number; empty where there is none."""
    found = _IBAN.search(text)
    return found[0] if found else ""


def names_after(text: str, *words: str) -> list[str]:
    """The names that follow one of `words` (`for`, `to`), in order; none that are amounts or empty words."""
    found = re.finditer(rf"\b(?:{'|'.join(words)})\s+(?:the\s+|my\s+|our\s+|a\s+|an\s+)*{_NAME}", text, re.IGNORECASE)
    return [name for match in found if (name := tidy_name(match["name"]))]


def tidy_name(text: str) -> str:
    """`text` as a name: empty words at both ends dropped, the first letter large; empty where nothing is left."""
    words = text.strip(" .,!?\"'").split()
    while words and words[-1].lower().strip(".") in _NOT_A_NAME:
        words.pop()
    while words and words[0].lower() in _NOT_A_NAME:
        words.pop(0)
    name = " ".join(words)
    return name[:1].upper() + name[1:]


def _as_number(text: str) -> float:
    """`1,200.50`, `1.200,50`, `84,50` and `1'200` alike: one or two digits after the last mark are cents."""
    cents = re.search(r"[.,](\d{1,2})$", text)
    whole = text[: cents.start()] if cents else text
    return float(re.sub(r"\D", "", whole) + (f".{cents[1]}" if cents else ""))
