"""What the scripted model sees: the last wish, the tool calls made for it so far, and what was said before.

Read from messages in Chat Completions form, by `read_situation`. Pure, like all that follows from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from app.providers.provider import ModelRequest, ToolSpec

INVALID = "not run: invalid arguments"
# Wishes are short; a pasted text is not searched to its end.
_READ_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call and what the tool answered."""

    name: str
    arguments: dict[str, Any]
    answer: str

    @property
    def value(self) -> dict[str, Any] | None:
        """What the tool returned, where it is a JSON object; None for words, such as those of a failure."""
        try:
            value = json.loads(self.answer)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Exchange:
    """Something that the user said, the calls of each step that followed, and all that was answered."""

    asked: str
    pictures: int
    steps: tuple[tuple[Call, ...], ...]
    answered: str


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the model decides by; the same messages give an equal one on the same day."""

    now: Exchange
    earlier: tuple[Exchange, ...]
    offered: Mapping[str, ToolSpec]
    today: date
    mark: str

    @property
    def words(self) -> str:
        """The user's words as the rules read them: one line, each line break a full stop, at most 2,000 characters."""
        lines = [" ".join(line.split()) for line in self.now.asked[:_READ_CHARS].splitlines()]
        return ". ".join(line for line in lines if line)

    @property
    def steps(self) -> tuple[tuple[Call, ...], ...]:
        """The steps of this turn whose calls were run."""
        return tuple(step for step in self.now.steps if any(call.answer != INVALID for call in step))

    @property
    def broken(self) -> int:
        """The steps of this turn that were refused for their arguments."""
        return len(self.now.steps) - len(self.steps)

    @property
    def done(self) -> tuple[Call, ...]:
        """The calls of this turn that were run, in order."""
        return tuple(call for step in self.steps for call in step)


def read_situation(request: ModelRequest, today: date) -> Situation:
    """The situation that a model call finds."""
    exchanges: list[Exchange] = []
    span: list[Mapping[str, Any]] = []
    for message in request.messages:
        if message.get("role") == "user":
            if span:
                exchanges.append(_exchange(span))
            span = [message]
        elif span:
            span.append(message)
    exchanges.append(_exchange(span) if span else Exchange("", 0, (), ""))
    last = exchanges[-1]
    mark = f"{request.conversation_id}\n{len(request.messages)}\n{last.asked}"
    return Situation(
        now=last,
        earlier=tuple(exchanges[:-1]),
        offered={spec.name: spec for spec in request.tools},
        today=today,
        mark=hashlib.sha256(mark.encode("utf-8", "replace")).hexdigest()[:20],
    )


def _exchange(span: Sequence[Mapping[str, Any]]) -> Exchange:
    answers = {str(m.get("tool_call_id")): _text(m.get("content")) for m in span if m.get("role") == "tool"}
    steps: list[tuple[Call, ...]] = []
    for message in span:
        calls = message.get("tool_calls") or [] if message.get("role") == "assistant" else []
        if calls:
            steps.append(tuple(_call(call, answers) for call in calls))
    said = [_text(message.get("content")) for message in span if message.get("role") == "assistant"]
    content = span[0].get("content")
    parts = content if isinstance(content, list) else []
    pictures = sum(1 for part in parts if isinstance(part, dict) and part.get("type") == "image_url")
    return Exchange(_text(content), pictures, tuple(steps), "".join(said))


def _call(call: Mapping[str, Any], answers: Mapping[str, str]) -> Call:
    function = call.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        arguments = {}
    name = str(function.get("name", ""))
    return Call(name, arguments if isinstance(arguments, dict) else {}, answers.get(str(call.get("id")), ""))


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict) and "text" in part).strip()
