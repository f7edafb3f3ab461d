"""Anthropic's Messages stream, put together. Pure: events in, chunks out.

Kinds of events, blocks and deltas that are not known are skipped; so are the provider's own tools (`server_tool_use`
and the like), which are not ours to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.providers.anthropic_request import wire_id
from app.providers.chunks import Alive, Chunk, Reasoning, StepEnd, Text, ToolCall
from app.providers.classify import stream_error
from app.providers.errors import LimitExceeded, ProtocolViolation
from app.providers.finish import FinishMark
from app.providers.json_text import decode_json, mend, mend_all
from app.providers.sse_decoder import ServerEvent
from app.providers.tool_calls import parse_arguments, usable_id

_ALIVE = Alive()
_OWN_EVENTS = frozenset(
    [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]
)
_OWN_BLOCKS = frozenset(("text", "thinking", "redacted_thinking", "tool_use"))
_IMPLIED = {"text_delta": "text", "thinking_delta": "thinking"}


class _Block:
    """One block while its deltas come in."""

    __slots__ = ("kind", "signature", "size", "start", "words")

    def __init__(self, kind: str, start: dict[str, Any]) -> None:
        self.kind = kind
        self.start = start
        self.words: list[str] = []
        self.signature: list[str] = []
        self.size = 0


class AnthropicStep:
    """One answer."""

    def __init__(self, *, argument_bytes: int = 8 << 20, tool_calls: int = 128) -> None:
        self._argument_bytes = argument_bytes
        self._limit = tool_calls
        self._blocks: list[_Block] = []
        # None: a block that is skipped with all its deltas.
        self._by_index: dict[int, _Block | None] = {}
        self._last_index = -1
        self._mark = FinishMark()
        self._done = False
        self._model: str | None = None
        self._input_tokens: int | None = None
        self._output_tokens: int | None = None

    @property
    def finished(self) -> bool:
        """Whether a stop reason was seen."""
        return self._mark.value is not None

    @property
    def done(self) -> bool:
        """Whether `message_stop` was seen."""
        return self._done

    def take(self, event: ServerEvent) -> Iterator[Chunk]:
        """What one event brings.

        Raises:
            ProtocolViolation: it is one of the dialect's own events, but not JSON.
            ProviderError: it reports an error.
        """
        data = event.data.strip()
        if not data or data.startswith(":"):
            return
        if data == "[DONE]":
            self._done = True
            return
        try:
            doc = decode_json(data)
        except ValueError as error:
            if event.name == "error":
                raise stream_error(data) from error
            if event.name in _OWN_EVENTS or event.name in ("", "message"):
                raise ProtocolViolation("An event of the model's stream is not JSON.", detail=data[:200]) from error
            return
        if not isinstance(doc, dict):
            if event.name == "error":
                raise stream_error(doc)
            if doc is not None and event.name in _OWN_EVENTS:
                raise ProtocolViolation("An event of the model's stream is not an object.", detail=data[:200])
            return
        kind = doc.get("type")
        if kind == "error" or event.name == "error" or doc.get("error"):
            raise stream_error(doc.get("error") or doc)
        yield from self._event(kind if isinstance(kind, str) else event.name, doc)

    def take_whole(self, answer: object) -> Iterator[Chunk]:
        """What a whole message brings.

        Raises:
            ProtocolViolation: it is not one.
            ProviderError: it reports an error.
        """
        if not isinstance(answer, dict):
            raise ProtocolViolation("The model endpoint's answer is not an object.")
        if answer.get("error") or answer.get("type") == "error":
            raise stream_error(answer.get("error") or answer)
        if not isinstance(answer.get("content"), list):
            raise ProtocolViolation("The model endpoint's answer has no content.")
        self._started(answer)
        for index, block in enumerate(answer["content"]):
            yield from self._block_start({"index": index, "content_block": block})
        self._mark.take(answer.get("stop_reason"))
        self._done = True

    def end(self) -> StepEnd:
        """The end, with the calls that were asked for, and all blocks as they must go back."""
        blocks: list[dict[str, Any]] = []
        calls: list[ToolCall] = []
        for block in self._blocks:
            whole = self._whole(block, calls)
            if whole is not None:
                blocks.append(whole)
        finish = self._mark.settled(len(calls))
        return StepEnd(
            finish=finish,
            tool_calls=tuple(calls) if finish == "tool_calls" else (),
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            model=self._model,
            blocks=blocks or None,
        )

    def _event(self, kind: str, doc: dict[str, Any]) -> Iterator[Chunk]:
        match kind:
            case "message_start":
                self._started(_dict(doc.get("message")))
            case "content_block_start":
                yield from self._block_start(doc)
            case "content_block_delta":
                yield from self._delta(doc)
            case "message_delta":
                self._usage(doc.get("usage"))
                self._mark.take(_dict(doc.get("delta")).get("stop_reason"))
            case "message_stop":
                self._done = True

    def _started(self, message: dict[str, Any]) -> None:
        model = message.get("model")
        self._model = mend(model) if isinstance(model, str) and model else self._model
        self._usage(message.get("usage"))

    def _block_start(self, doc: dict[str, Any]) -> Iterator[Chunk]:
        start = _dict(doc.get("content_block"))
        kind = start.get("type")
        index = self._last_index = _index(doc)
        if not isinstance(kind, str) or kind not in _OWN_BLOCKS:
            self._by_index[index] = None
            return
        block = _Block(kind, start)
        self._by_index[index] = block
        self._blocks.append(block)
        match kind:
            case "text":
                yield from self._append(block, start.get("text"))
            case "thinking":
                yield from self._append(block, start.get("thinking"))
                block.signature.append(_text(start.get("signature")))
            case "tool_use":
                if sum(one.kind == "tool_use" for one in self._blocks) > self._limit:
                    raise LimitExceeded("The model asked for too many tool calls at once.")
                yield _ALIVE
            case _:
                yield _ALIVE

    def _delta(self, doc: dict[str, Any]) -> Iterator[Chunk]:
        delta = _dict(doc.get("delta"))
        index = self._last_index if doc.get("index") is None else _index(doc)
        kind = delta.get("type")
        block = self._by_index.get(index)
        skipped = index in self._by_index and block is None
        implied = _IMPLIED.get(kind) if isinstance(kind, str) else None
        if implied is not None and not skipped and (block is None or block.kind != implied):
            # A translator left out the start of the block; text and thinking say all about themselves.
            block = _Block(implied, {"type": implied})
            self._by_index[index] = block
            self._last_index = index
            self._blocks.append(block)
        if block is None:
            yield _ALIVE
            return
        match kind, block.kind:
            case "text_delta", "text":
                yield from self._append(block, delta.get("text"))
            case "thinking_delta", "thinking":
                yield from self._append(block, delta.get("thinking"))
            case "signature_delta", "thinking":
                block.signature.append(_text(delta.get("signature")))
                yield _ALIVE
            case "input_json_delta", "tool_use":
                part = _text(delta.get("partial_json"))
                block.size += len(part)
                if block.size > self._argument_bytes:
                    raise LimitExceeded("The arguments of a tool call are too large.")
                block.words.append(part)
                yield _ALIVE
            case _:
                yield _ALIVE

    def _append(self, block: _Block, words: object) -> Iterator[Chunk]:
        text = _text(words)
        if text:
            block.words.append(text)
            yield Text(text) if block.kind == "text" else Reasoning(text)

    def _whole(self, block: _Block, calls: list[ToolCall]) -> dict[str, Any] | None:
        """A block as it goes back to the provider; a call is also added to `calls`. None for an empty text."""
        words = mend("".join(block.words))
        match block.kind:
            case "text":
                return {"type": "text", "text": words} if words else None
            case "thinking":
                return {"type": "thinking", "thinking": words, "signature": "".join(block.signature)}
            case "redacted_thinking":
                whole: dict[str, Any] = mend_all(block.start)
                return whole
        name = mend(_text(block.start.get("name")))
        given = block.start.get("input")
        arguments = mend_all(given) if isinstance(given, dict) and not words.strip() else parse_arguments(words)
        arguments = arguments if name else None
        call_id = usable_id(mend(_text(block.start.get("id"))), {call.id for call in calls})
        calls.append(ToolCall(call_id, name or "unnamed", arguments))
        return {"type": "tool_use", "id": wire_id(call_id), "name": name or "unnamed", "input": arguments or {}}

    def _usage(self, usage: object) -> None:
        if isinstance(usage, dict):
            self._input_tokens = _count(usage.get("input_tokens"), self._input_tokens)
            self._output_tokens = _count(usage.get("output_tokens"), self._output_tokens)

    def __repr__(self) -> str:
        return f"<AnthropicStep {len(self._blocks)} blocks, {self._mark!r}{' done' if self._done else ''}>"


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _index(doc: dict[str, Any]) -> int:
    index = doc.get("index")
    return index if isinstance(index, int) else -1


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object, before: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else before
