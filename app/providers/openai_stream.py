"""The Chat Completions stream, put together. Pure: events in, chunks out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.providers.chunks import Alive, Chunk, Reasoning, StepEnd, Text
from app.providers.classify import stream_error
from app.providers.errors import ProtocolViolation, ProviderError
from app.providers.finish import FinishMark, is_failure
from app.providers.json_text import decode_json, mend
from app.providers.sse_decoder import ServerEvent
from app.providers.tool_calls import CallAssembler

_ALIVE = Alive()


class OpenAIStep:
    """One answer. Only choice 0 counts; `message` in a chunk repeats the answer and is never appended."""

    def __init__(self, *, argument_bytes: int = 8 << 20, tool_calls: int = 128) -> None:
        self._calls = CallAssembler(argument_bytes=argument_bytes, calls=tool_calls)
        self._mark = FinishMark()
        self._done = False
        self._model: str | None = None
        self._input_tokens: int | None = None
        self._output_tokens: int | None = None

    @property
    def finished(self) -> bool:
        """Whether a finish reason was seen."""
        return self._mark.value is not None

    @property
    def done(self) -> bool:
        """Whether `[DONE]` was seen."""
        return self._done

    def take(self, event: ServerEvent) -> Iterator[Chunk]:
        """What one event brings.

        Raises:
            ProtocolViolation: it is not a chunk.
            ProviderError: it reports an error.
        """
        data = event.data.strip()
        if not data or data.startswith(":"):
            return
        if data == "[DONE]":
            self._done = True
            return
        failed = event.name == "error"
        try:
            chunk = decode_json(data)
        except ValueError as error:
            if failed:
                raise stream_error(data) from error
            if event.name in ("", "message") or data.startswith("{"):
                raise ProtocolViolation("A chunk of the model's stream is not JSON.", detail=data[:200]) from error
            return
        if chunk is None:
            return
        if not isinstance(chunk, dict):
            if failed:
                raise stream_error(chunk)
            if event.name in ("", "message"):
                raise ProtocolViolation("A chunk of the model's stream is not an object.", detail=data[:200])
            return
        _raise_error(chunk, failed)
        self._note(chunk)
        for choice in _dicts(chunk.get("choices")):
            if choice.get("index") in (None, 0, "0"):
                yield from self._choice(choice)

    def take_whole(self, answer: object) -> Iterator[Chunk]:
        """What a whole `chat.completion` brings.

        Raises:
            ProtocolViolation: it is not one.
            ProviderError: it reports an error.
        """
        if not isinstance(answer, dict):
            raise ProtocolViolation("The model endpoint's answer is not an object.")
        _raise_error(answer, False)
        self._note(answer)
        choices = _dicts(answer.get("choices"))
        if not choices:
            raise ProtocolViolation("The model endpoint's answer has no choices.")
        choice = choices[0]
        yield from self._choice({**choice, "delta": choice.get("message") or choice.get("delta")})
        self._done = True

    def end(self) -> StepEnd:
        """The end, with the calls that were asked for."""
        calls = self._calls.finished()
        finish = self._mark.settled(len(calls))
        return StepEnd(
            finish=finish,
            tool_calls=calls if finish == "tool_calls" else (),
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            model=self._model,
        )

    def _choice(self, choice: dict[str, Any]) -> Iterator[Chunk]:
        self._usage(choice.get("usage"))
        delta = choice.get("delta")
        if isinstance(delta, dict):
            yield from self._delta(delta)
        reason = choice.get("finish_reason")
        if is_failure(reason) and not self.finished:
            raise ProviderError("The model endpoint reported an error.", detail=f"finish_reason {reason}")
        self._mark.take(reason)

    def _delta(self, delta: dict[str, Any]) -> Iterator[Chunk]:
        # One text under several names: the first that says something counts.
        for key in ("reasoning_content", "reasoning", "thinking", "reasoning_details"):
            if thought := _words(delta.get(key)):
                yield Reasoning(thought)
                break
        yield from _content(delta.get("content"))
        if refusal := _words(delta.get("refusal")):
            yield Text(refusal)
        calls = delta.get("tool_calls")
        if isinstance(calls, dict):
            calls = [calls]
        if not calls and isinstance(delta.get("function_call"), dict):
            calls = [{"index": 0, "function": delta["function_call"]}]
        if isinstance(calls, list) and calls:
            self._calls.add(calls)
            yield _ALIVE

    def _note(self, chunk: dict[str, Any]) -> None:
        model = chunk.get("model")
        if isinstance(model, str) and model:
            self._model = mend(model)
        self._usage(chunk.get("usage"))

    def _usage(self, usage: object) -> None:
        if isinstance(usage, dict):
            self._input_tokens = _count(usage.get("prompt_tokens"), self._input_tokens)
            self._output_tokens = _count(usage.get("completion_tokens"), self._output_tokens)

    def __repr__(self) -> str:
        return f"<OpenAIStep {len(self._calls)} calls, {self._mark!r}{' done' if self._done else ''}>"


def _raise_error(chunk: dict[str, Any], failed: bool) -> None:
    """Raise what a chunk reports, whatever else it says."""
    error = chunk.get("error")
    if not error:
        error = next((found for choice in _dicts(chunk.get("choices")) if (found := choice.get("error"))), None)
    if not error and (failed or (not chunk.get("choices") and "error" in (chunk.get("object"), chunk.get("type")))):
        error = chunk
    if isinstance(error, str) and chunk.get("code"):
        error = {"code": chunk["code"], "message": error}
    if error:
        raise stream_error(error)


def _content(content: object) -> Iterator[Chunk]:
    """Text and thinking out of `content`: a string, or a list of parts."""
    if isinstance(content, str):
        if content:
            yield Text(content)
        return
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            if part:
                yield Text(part)
        elif isinstance(part, dict):
            kind = part.get("type")
            if kind in ("thinking", "reasoning", "reasoning_text"):
                if thought := _words(part.get("thinking") or part.get("reasoning") or part.get("text")):
                    yield Reasoning(thought)
            elif kind in (None, "text", "output_text", "refusal") and (
                text := _words(part.get("text") or part.get("refusal"))
            ):
                yield Text(text)


def _words(value: object) -> str:
    """The text of a value: a string, an object with a text in it, or a list of those."""
    match value:
        case str():
            return value
        case list():
            return "".join(_words(item) for item in value)
        case dict():
            return _words(value.get("text") or value.get("content") or value.get("value") or value.get("summary"))
        case _:
            return ""


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _count(value: object, before: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else before
