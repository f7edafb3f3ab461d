"""An agent's words on their way to the stage: think tags taken out, surrogate halves joined, blocks numbered, length held.

Text after a tool boundary opens the next block; a boundary with no text since the last one opens nothing. What the filter
still holds is let go by `flush`, which must come before every ending and before every decision about trying again.
"""

from __future__ import annotations

from app.agents.context import Stage
from app.agents.think_tags import SurrogateJoiner, ThinkFilter
from app.errors import EarlybyteError


class AnswerTooLong(EarlybyteError):
    """The answer is longer than `[limits] answer_chars`."""

    code = "limit_exceeded"


class Speech:
    """The one way of text and reasoning from an agent to its stage."""

    def __init__(self, stage: Stage, *, max_chars: int, chars: int = 0, block: int = 0) -> None:
        self._stage = stage
        self._max_chars = max_chars
        self._chars = chars
        self._block = block
        self._open = False
        self._step: list[str] = []
        self._filter = ThinkFilter()
        self._thoughts = SurrogateJoiner()

    def __repr__(self) -> str:
        return f"<Speech block={self._block} chars={self._chars}>"

    @property
    def _next(self) -> int:
        """The block that text would go to now; reasoning before it carries the same number."""
        return self._block if self._open else self._block + 1

    def say(self, text: str) -> None:
        """Add answer text, think tags and all.

        Raises:
            AnswerTooLong: the limit is reached; what fitted has been said.
        """
        for kind, piece in self._filter.feed(text):
            self._pass_on(kind, piece)

    def think(self, text: str) -> None:
        """Add reasoning that came in a field of its own."""
        piece = self._thoughts.feed(text)
        if piece:
            self._stage.think(self._next, piece)

    def flush(self) -> None:
        """Let go of what is held back: a piece that is no tag becomes text, an open tag's content stays reasoning."""
        held = self._thoughts.flush()
        if held:
            self._stage.think(self._next, held)
        for kind, piece in self._filter.flush():
            self._pass_on(kind, piece)

    def take_step_text(self) -> str:
        """The answer text since the last time it was taken: what one step said."""
        text = "".join(self._step)
        self._step = []
        return text

    def boundary(self) -> None:
        """A tool boundary, or the start of a further model call: the next text opens a new block."""
        self.flush()
        self._open = False
        self._filter = ThinkFilter()
        self._thoughts = SurrogateJoiner()

    def new_call(self) -> None:
        """A further try of a model call that has shown nothing: think tags may come again; no new block is opened."""
        self._filter = ThinkFilter()
        self._thoughts = SurrogateJoiner()

    def _pass_on(self, kind: str, piece: str) -> None:
        if not piece:
            return
        if kind == "reasoning":
            self._stage.think(self._next, piece)
            return
        room = self._max_chars - self._chars
        if room <= 0:
            raise AnswerTooLong
        if not self._open:
            self._block += 1
            self._open = True
        self._chars += min(len(piece), room)
        self._step.append(piece[:room])
        self._stage.say(self._block, piece[:room])
        if len(piece) > room:
            raise AnswerTooLong
