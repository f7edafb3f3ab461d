"""Thinking out of the answer's text: `<think>…</think>` at its head, over any cutting into pieces.

Only the head counts, where nothing but white space has been seen: there thinking opens (several times if need be) and
orphan closing tags are dropped. A tag later in the answer is text. A block that never closes is thinking to the end.
"""

from __future__ import annotations

import re
from typing import Literal

from app.providers.json_text import mend

Part = tuple[Literal["text", "reasoning"], str]
_HEAD_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE | re.ASCII)
_CLOSER = re.compile(r"</think(?:ing)?>", re.IGNORECASE | re.ASCII)
_OPENERS = ("<think>", "<thinking>")
_CLOSERS = ("</think>", "</thinking>")


class SurrogateJoiner:
    """Characters whose two halves came in two pieces, made whole; a half that stays alone becomes U+FFFD."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    @property
    def holds(self) -> bool:
        """Whether half a character is held back."""
        return bool(self._held)

    def feed(self, text: str) -> str:
        """`text` with what was held before it; a high half at its end is held back."""
        if self._held:
            text, self._held = self._held + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        return mend(text)

    def flush(self) -> str:
        """What is still held, now that nothing follows."""
        held, self._held = self._held, ""
        return "\ufffd" if held else ""


class ThinkFilter:
    """One model call's text, told apart into answer and thinking. Holds back only what may still become a tag."""

    __slots__ = ("_held", "_joiner", "_state")

    def __init__(self) -> None:
        self._state: Literal["head", "thinking", "answer"] = "head"
        self._held = ""
        self._joiner = SurrogateJoiner()

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain now, in order; never empty ones."""
        if not self._joiner.holds and self._state == "answer" and text.isascii():
            # The usual case, once for each token.
            return [("text", text)] if text else []
        text = self._joiner.feed(text)
        if not text:
            return []
        if self._state == "answer":
            return [("text", text)]
        return self._take(text)

    def flush(self) -> list[Part]:
        """What is still held, at the end of the call: as text, or as thinking if a block is open."""
        parts = self.feed(self._joiner.flush() or "")
        held, self._held = self._held, ""
        if held and self._state == "thinking":
            parts.append(("reasoning", held))
        elif held:
            self._state = "answer"
            parts.append(("text", held))
        return parts

    def _take(self, text: str) -> list[Part]:
        text, self._held = self._held + text, ""
        parts: list[Part] = []
        while text:
            if self._state == "thinking":
                text = self._thinking(text, parts)
            elif self._state == "head":
                text = self._head(text, parts)
            else:
                parts.append(("text", text))
                break
        return parts

    def _head(self, text: str, parts: list[Part]) -> str:
        start = len(text) - len(text.lstrip())
        if start:
            parts.append(("text", text[:start]))
            text = text[start:]
        if tag := _HEAD_TAG.match(text):
            if not tag.group(1):
                self._state = "thinking"
            return text[tag.end() :]
        if text and _may_become(text, _OPENERS + _CLOSERS):
            self._held = text
            return ""
        if text:
            self._state = "answer"
        return text

    def _thinking(self, text: str, parts: list[Part]) -> str:
        if tag := _CLOSER.search(text):
            if tag.start():
                parts.append(("reasoning", text[: tag.start()]))
            self._state = "head"
            return text[tag.end() :]
        # A closing tag has one "<", so only the last one can begin it.
        start = text.rfind("<", max(0, len(text) - len("</thinking>")))
        if start >= 0 and _may_become(text[start:], _CLOSERS):
            text, self._held = text[:start], text[start:]
        if text:
            parts.append(("reasoning", text))
        return ""

    def __repr__(self) -> str:
        return f"<ThinkFilter {self._state}, {len(self._held)} held>"


def _may_become(text: str, tags: tuple[str, ...]) -> bool:
    start = text.lower()
    return any(tag.startswith(start) for tag in tags)
