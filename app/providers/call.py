"""From the bytes of a reply to chunks, in every dialect: what ends a stream, what cuts it, what is only logged.

`[DONE]`, the dialect's own last event or a finish mark allows the end. After a finish mark the stream is read on, but
nothing that happens there can spoil the answer, and a silence is not waited for long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec
import structlog

from app.limits.cancel import Cancel
from app.providers.chunks import Chunk, StepEnd
from app.providers.errors import LimitExceeded, ProtocolViolation, ProviderError, StreamIncomplete
from app.providers.http import Reply, Upstream, UpstreamLimits
from app.providers.json_text import decode_json
from app.providers.sse_decoder import EventDecoder, ServerEvent

# How long the end of the body may take once nothing more is wanted.
_AFTER_DONE_SECONDS = 0.2
# White space that a reply may begin with.
_HEAD_BYTES = 4096
_BOM = b"\xef\xbb\xbf"
_log = structlog.get_logger(__name__)


class StepReader(Protocol):
    """Puts the events of one answer together; pure, one for each call."""

    @property
    def finished(self) -> bool:
        """Whether a finish mark was seen: the stream may end."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing more is wanted."""
        ...

    def take(self, event: ServerEvent) -> Iterator[Chunk]:
        """What one event brings."""
        ...

    def take_whole(self, answer: object) -> Iterator[Chunk]:
        """What an answer brings that came as one JSON document, because the endpoint does not stream."""
        ...

    def end(self) -> StepEnd:
        """The end, once `finished` or `done`."""
        ...


class OutgoingCall(msgspec.Struct, frozen=True):
    """A request in the form of one dialect, ready to be sent; its headers hold the key."""

    url: str
    headers: dict[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"<OutgoingCall {self.url} {len(self.body)} bytes>"


def run_call(
    upstream: Upstream, call: OutgoingCall, reader: StepReader, *, limits: UpstreamLimits, cancel: Cancel
) -> Iterator[Chunk]:
    """The chunks of one model call, the last a `StepEnd`. Iterate to the end, so that the connection can be used again.

    Raises:
        ProviderError: the call failed before the model had finished; keys are taken out of its detail.
    """
    try:
        with upstream.post(call.url, headers=call.headers, body=call.body, cancel=cancel) as reply:
            pieces = _unless_late(reply.pieces(), reader)
            first, is_json = _first_piece(pieces)
            chunks = _whole(first, pieces, reader, limits) if is_json else _events(first, pieces, reply, reader, limits)
            yield from chunks
            if not (reader.finished or reader.done):
                raise StreamIncomplete
            yield reader.end()
            if not reply.whole:
                reply.end_within(_AFTER_DONE_SECONDS)
                _read_on(pieces)
    except ProviderError as error:
        error.code = upstream.redact(error.code)
        error.detail = upstream.redact(error.detail)
        raise


def _events(
    first: bytes, pieces: Iterator[bytes], reply: Reply, reader: StepReader, limits: UpstreamLimits
) -> Iterator[Chunk]:
    decoder = EventDecoder(stream_bytes=limits.upstream_bytes)
    piece: bytes | None = first
    while piece is not None:
        try:
            for event in decoder.feed(piece):
                yield from reader.take(event)
                if reader.done:
                    return
        except ProviderError as error:
            _only_late(error, reader)
            return
        if reader.finished:
            # From the last byte on: there are endpoints that send their mark first.
            reply.end_within(limits.after_finish_timeout)
        piece = next(pieces, None)
    try:
        for event in decoder.flush():
            yield from reader.take(event)
    except ProtocolViolation as error:
        # The last event has no blank line and does not parse: it was cut off.
        if not reader.finished:
            raise StreamIncomplete(detail=error.detail) from error
    except ProviderError as error:
        _only_late(error, reader)


def _whole(first: bytes, pieces: Iterator[bytes], reader: StepReader, limits: UpstreamLimits) -> Iterator[Chunk]:
    document = bytearray(first)
    for piece in pieces:
        document += piece
        if len(document) > limits.upstream_bytes:
            raise LimitExceeded("The model's answer is longer than `upstream_bytes` allows.")
    try:
        answer = decode_json(bytes(document).decode("utf-8-sig", "replace"))
    except ValueError as error:
        raise ProtocolViolation("The model endpoint's answer is not JSON.", detail=str(document[:200])) from error
    yield from reader.take_whole(answer)


def _first_piece(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """The first bytes, enough to tell a JSON document from an event stream: no line of a stream begins with a brace.

    The content type does not tell: there are event streams that are called JSON, and the other way round.
    """
    head = b""
    for piece in pieces:
        head += piece
        start = head.removeprefix(_BOM).lstrip()
        if (start and not _BOM.startswith(head)) or len(head) > _HEAD_BYTES:
            return head, start.startswith(b"{")
    return head, head.removeprefix(_BOM).lstrip().startswith(b"{")


def _unless_late(pieces: Iterator[bytes], reader: StepReader) -> Iterator[bytes]:
    """The pieces; a connection that breaks after the model has finished is only the end of them."""
    try:
        yield from pieces
    except ProviderError as error:
        _only_late(error, reader)


def _read_on(pieces: Iterator[bytes]) -> None:
    """Read to the end of the body, so that the connection can be used again; the answer is already out."""
    try:
        for _ in pieces:
            pass
    except ProviderError:
        pass


def _only_late(error: ProviderError, reader: StepReader) -> None:
    if not (reader.finished or reader.done) or error.code == "cancelled":
        raise error
    if not reader.done:
        _log.info("upstream_error_after_finish", code=error.code)
