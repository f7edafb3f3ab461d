"""The demo's model: a script behind the provider port, so that every event can be seen without a key or a network.

It goes through the same loop, tools, retries and limits as any other model. What it does is decided by `write_script`;
here it is only played, at the pace of a person who reads.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import date
from itertools import cycle
from typing import assert_never

from app.demo import months
from app.demo.script import Break, Pause, Say, Script, Think, write_script
from app.demo.situation import read_situation
from app.limits.cancel import Cancel
from app.providers.chunks import Alive, Chunk, Reasoning, StepEnd, Text
from app.providers.errors import StreamIncomplete, UpstreamUnavailable
from app.providers.provider import ModelRequest

# Words of a piece and the seconds after it: about 40 pieces a second, none like the one before.
_RHYTHM = ((1, 0.018), (2, 0.026), (1, 0.02), (3, 0.033), (2, 0.024))
_FIRST_TOKEN_SECONDS = 0.3
_CALL_PIECES = 4
_REMEMBERED = 1000


class DemoModel:
    """A `Provider` of the dialect `demo`; the same messages give the same chunks on the same day.

    `pace` stretches the waits between pieces; 0 leaves out every wait, those that the user asks for too. `today` is asked
    at each call, for words such as "last month".
    """

    dialect = "demo"
    server: tuple[str, int] | None = None

    def __init__(self, pace: float = 1.0, *, today: Callable[[], date] = months.today) -> None:
        self._pace = pace
        self._today = today
        self._lock = threading.Lock()
        # How often a call that shall fail a few times has been tried, by its situation.
        self._tries: OrderedDict[str, int] = OrderedDict()

    def stream(self, request: ModelRequest, cancel: Cancel) -> Iterator[Chunk]:
        """See `Provider.stream`.

        Raises:
            StreamIncomplete: `cancel` was set.
            app.providers.errors.ProviderError: the user asked for a failure.
        """
        situation = read_situation(request, self._today())
        script = write_script(situation)
        self._wait(cancel, _FIRST_TOKEN_SECONDS * self._pace)
        if script.first and self._is_to_fail(situation.mark, script.first):
            raise UpstreamUnavailable("The model failed.", detail="the demo was asked to fail a few times")
        spoken = 0
        for chunk in self._play(script, cancel):
            if isinstance(chunk, Text | Reasoning):
                spoken += len(chunk.text.split())
            yield chunk
        yield StepEnd(
            finish=script.finish,
            tool_calls=script.calls,
            input_tokens=_count(request),
            output_tokens=spoken + 8 * len(script.calls),
            model=request.model or "demo",
        )

    def close(self) -> None:
        """See `Provider.close`; there is nothing to give back."""

    def _play(self, script: Script, cancel: Cancel) -> Iterator[Chunk]:
        pace = self._pace * script.slowness
        for part in script.parts:
            match part:
                case Say(text, size):
                    for piece, seconds in _pieces(text, size):
                        yield Text(piece)
                        self._wait(cancel, seconds * pace)
                case Think(text):
                    for piece, seconds in _pieces(text):
                        yield Reasoning(piece)
                        self._wait(cancel, seconds * pace)
                case Pause(seconds):
                    self._wait(cancel, seconds if self._pace else 0.0)
                case Break(error):
                    raise error
                case _:
                    assert_never(part)
        for _ in range(_CALL_PIECES * len(script.calls)):
            yield Alive()
            self._wait(cancel, 0.02 * pace)

    def _wait(self, cancel: Cancel, seconds: float) -> None:
        if cancel.cancelled or (seconds > 0 and cancel.wait(seconds)):
            raise StreamIncomplete("The model was stopped.")

    def _is_to_fail(self, mark: str, first: int) -> bool:
        """Whether this try is one of the `first` ones of its call; after them the count begins anew."""
        with self._lock:
            tries = self._tries.pop(mark, 0) + 1
            if tries > first:
                return False
            self._tries[mark] = tries
            while len(self._tries) > _REMEMBERED:
                self._tries.popitem(last=False)
            return True

    def __repr__(self) -> str:
        return f"<DemoModel pace {self._pace:g}>"


def _pieces(text: str, size: int = 0) -> Iterator[tuple[str, float]]:
    """`text` in pieces, nothing lost, each with the seconds to wait after it."""
    if size:
        yield from ((text[at : at + size], _RHYTHM[0][1]) for at in range(0, len(text), size))
        return
    words = re.findall(r"\s*\S+\s*", text)
    at = 0
    for count, seconds in cycle(_RHYTHM):
        if at >= len(words):
            return
        yield "".join(words[at : at + count]), seconds
        at += count


def _count(request: ModelRequest) -> int:
    """The words of all messages: a rough count of tokens, as no tokens are there to be counted."""
    texts = (str(message.get("content") or "") for message in request.messages)
    return sum(len(text.split()) for text in texts)
