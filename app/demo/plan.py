"""What to do about the user's words: batches of wants, one after another, or a question, or just talk. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from app.demo.intents import QUESTIONS, Around, find_category, find_want
from app.demo.months import find_month, month_of, shifted
from app.demo.situation import Call, Situation
from app.demo.wants import Want, guessed
from app.demo.words import find_amount

# Where one wish ends and the next begins. A comma or a full stop counts only before a space, as in no amount.
_SEPARATOR = re.compile(r"(\s*(?:[,;]\s|[.?!]\s|\n|\s&\s|\b(?:and|plus|also|then|afterwards)\b)\s*)+", re.IGNORECASE)
_NEXT_STEP = re.compile(r"\bthen\b|\bafterwards\b", re.IGNORECASE)
_FOLLOW_UP = re.compile(
    r"^\W*(?:and|what about|how about|now|same|again|the)\b|\bmonth (?:before|after)\b|\b(?:previous|next) (?:month|one)\b",
    re.IGNORECASE,
)
_GO_AHEAD = re.compile(
    r"^\W*(?:(?:yes|ok|okay|sure|please|go ahead)\W+)*(?:do|pay|settle) (?:it|that|this)\b", re.IGNORECASE
)
_REMEMBERED = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """The batches of tool calls to make, in order; `question` where something is missing before any can be made."""

    batches: tuple[tuple[Want, ...], ...] = ()
    question: str = ""


def make_plan(words: str, situation: Situation) -> Plan:
    """The plan for `words`; an empty one where they ask for no tool."""
    if named := _by_name(words, situation):
        return Plan(batches=((named,),))
    words = _completed(words, situation)
    around = Around(today=situation.today, before=_said_before(situation))
    batches: list[list[Want]] = []
    for clause, next_step in _clauses(words, around):
        want = find_want(clause, around)
        if want is None:
            continue
        if not batches or next_step:
            batches.append([])
        if want not in batches[-1]:
            batches[-1].append(want)
    if not batches and (again := _follow_up(words, situation)):
        batches = [[again]]
    question = next((want.question for batch in batches for want in batch if want.question), "")
    return Plan(tuple(tuple(batch) for batch in batches), question)


def _clauses(words: str, around: Around) -> Iterator[tuple[str, bool]]:
    """The wishes in `words`, each with whether it comes in a step of its own.

    A piece that asks for nothing by itself belongs to the piece before it: "Smith and Sons" is one name.
    """
    pieces: list[tuple[str, str]] = []
    at, separator = 0, ""
    for found in _SEPARATOR.finditer(words):
        pieces.append((separator, words[at : found.start()]))
        at, separator = found.end(), found[0]
    pieces.append((separator, words[at:]))
    clause, first = "", ""
    for separator, piece in pieces:
        if clause.strip() and find_want(piece, around) and find_want(clause, around):
            yield clause, bool(_NEXT_STEP.search(first))
            clause, first = piece, separator
        else:
            clause = f"{clause}{separator}{piece}"
    yield clause, bool(_NEXT_STEP.search(first))


def _by_name(words: str, situation: Situation) -> Want | None:
    """The tool that is called by its very name, as in `use slow_lookup {"seconds": 3}`."""
    for name, spec in situation.offered.items():
        plain = rf"\b(?:call|use|run|try)\s+(?:the\s+)?(?:tool\s+)?[`'\"]?{re.escape(name)}(?![\w-])"
        found = re.search(plain, words, re.IGNORECASE)
        if not found and "_" in name:
            found = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", words)
        if found:
            rest = words[found.end() :].strip(" `'\".,:")
            given = _json_object(rest)
            text = re.sub(r"^(?:with|for|on)\s+", "", rest)
            return guessed(spec, given, find_amount(rest), text or words)
    return None


def _json_object(text: str) -> dict[str, Any]:
    start = text.find("{")
    if start < 0:
        return {}
    try:
        value, _ = json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _completed(words: str, situation: Situation) -> str:
    """`words` with the sentence that they complete, where the last answers were our questions."""
    around = Around(today=situation.today)
    answer = words
    for exchange in reversed(situation.earlier):
        joint = next((word for question, word in QUESTIONS.items() if exchange.answered.strip().endswith(question)), "")
        # A new wish is no answer to the question.
        if not joint or exchange.steps or (answer is words and find_want(words, around)):
            break
        bare = re.sub(r"^\W*(?:for|to|over|of|in|it(?:'s| is))\s+", "", answer.strip(), flags=re.IGNORECASE)
        answer = f"{exchange.asked.strip(' .?!')} {joint} {bare}"
    return answer


def _said_before(situation: Situation) -> list[str]:
    recent = situation.earlier[-_REMEMBERED:]
    return [exchange.asked for exchange in reversed(recent)]


def _follow_up(words: str, situation: Situation) -> Want | None:
    """The last call again, for another month or category: "and the month before?", "what about travel?"."""
    if _GO_AHEAD.search(words):
        return find_want("pay it", Around(today=situation.today, before=_said_before(situation)))
    if not situation.earlier:
        return None
    last = _last_read(situation)
    if last is None or len(words) > 80:
        return None
    known = last.arguments.get("month")
    base = known if isinstance(known, str) and re.fullmatch(r"\d{4}-\d\d", known) else month_of(situation.today)
    lower, month = words.lower(), find_month(words, situation.today)
    if re.search(r"\bbefore\b|\b(?:previous|earlier)\b", lower):
        month = shifted(base, -1)
    elif re.search(r"\b(?:month|one) after\b|\bnext\b", lower):
        month = shifted(base, 1)
    category = find_category(words)
    if not month and not (category and _FOLLOW_UP.search(words)):
        return None
    want = Want(last.name, {name: value for name, value in last.arguments.items() if value})
    if month:
        want = replace(want, arguments={**want.arguments, "month": month})
    if category and last.name == "list_transactions":
        want = replace(want, arguments={**want.arguments, "category": category})
    return want


def _last_read(situation: Situation) -> Call | None:
    for exchange in reversed(situation.earlier):
        for step in reversed(exchange.steps):
            for call in reversed(step):
                if call.name in ("list_transactions", "spending_chart"):
                    return call
    return None
