from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.providers.errors import LimitExceeded
from app.providers.sse_decoder import EventDecoder, ServerEvent

WIRE = Path(__file__).parent.parent / "data" / "wire"


def decode(*pieces: bytes, **caps: int) -> list[tuple[str, str]]:
    decoder = EventDecoder(**caps)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return [(event.name, event.data) for event in [*events, *decoder.flush()]]


GOLDEN = {
    "LF": (b"data: a\n\ndata: b\n\n", [("", "a"), ("", "b")]),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [("", "a"), ("", "b")]),
    "CR": (b"data: a\r\rdata: b\r\r", [("", "a"), ("", "b")]),
    "mixed line ends": (b"data: a\r\n\ndata: b\n\r\ndata: c\r\n\r", [("", "a"), ("", "b"), ("", "c")]),
    "BOM": (b"\xef\xbb\xbfdata: a\n\n", [("", "a")]),
    "a BOM later is no BOM": (b"\n\xef\xbb\xbfdata: a\n\n", []),
    "with and without one space": (b"data:a\n\ndata: b\n\ndata:  c\n\n", [("", "a"), ("", "b"), ("", " c")]),
    "comments": (b":\n: x\ndata: a\n:y\ndata: b\n\n:z\n\n", [("", "a\nb")]),
    "many data lines": (b"data: {\ndata:  1\ndata: }\n\n", [("", "{\n 1\n}")]),
    "blocks without data": (b"event: ping\n\nid: 4\nretry: 10\n\ndata\n\ndata:\n\ndata: a\n\n", [("", "a")]),
    "a name belongs to its own event": (b"event: x\n\nevent: error\ndata: a\n\ndata: b\n\n", [("error", "a"), ("", "b")]),
    "two empty lines of data": (b"data\ndata\n\n", [("", "\n")]),
    "unknown fields": (b"foo: bar\nbaz\ndata: a\n\n", [("", "a")]),
    "separators that are plain text": (
        "data: a\u2028b\u2029c\u0085d\x0b\x0c\x1c\n\n".encode(),
        [("", "a\u2028b\u2029c\u0085d\x0b\x0c\x1c")],
    ),
    "a last event without its blank line": (b"data: a\n\ndata: b\n", [("", "a"), ("", "b")]),
    "a last line without its end": (b"data: a\n\nevent: e\ndata: b", [("", "a"), ("e", "b")]),
    "bytes that are not UTF-8": (b"data: a\xffb\xe2\x82\n\n", [("", "a\ufffdb\ufffd")]),
    "NUL": (b"data: a\0b\nid: \0\n\n", [("", "a\0b")]),
    "nothing": (b"", []),
    "only a piece of a BOM": (b"\xef\xbb", []),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_stream_is_read_as_the_standard_says(name: str) -> None:
    """Each form of the event stream grammar gives its events, whole and byte by byte."""
    data, events = GOLDEN[name]
    assert decode(data) == events
    assert decode(*(data[i : i + 1] for i in range(len(data)))) == events


fragments = st.sampled_from(
    [
        b"data: ",
        b"data:",
        b"data",
        b"event: e",
        b"event: ",
        b"id: 1",
        b":",
        b" ",
        b"x",
        b"{}",
        b"\n",
        b"\n",
        b"\r",
        b"\r\n",
        "é".encode(),
        "🚀".encode(),
        "\u2028".encode(),
        b"\xef\xbb\xbf",
        b"\xff",
        b"\x00",
    ]
)


@given(st.lists(fragments, max_size=40).map(b"".join), st.lists(st.integers(0, 120), max_size=12))
def test_any_cutting_gives_the_same_events(data: bytes, cuts: list[int]) -> None:
    """Where the reads end does not change one event."""
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(places)]
    assert decode(*pieces) == decode(data)


@given(
    st.lists(st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), min_size=1), max_size=6),
    st.sampled_from(["\n", "\r", "\r\n"]),
)
def test_what_was_written_is_read_back(payloads: list[str], end: str) -> None:
    """One line of text as data comes back as it was, in order, whatever the line end."""
    stream = "".join(f"data: {payload}{end}{end}" for payload in payloads).encode()
    assert decode(stream) == [("", payload) for payload in payloads]


@given(st.integers(1, 60), st.integers(1, 7))
def test_stream_cap_stops_at_the_same_byte_for_any_cutting(cap: int, size: int) -> None:
    """The events before the cap are given, then the error, however the bytes come."""
    data = b"data: abc\n\n" * 6
    decoder, seen = EventDecoder(stream_bytes=cap), []
    if cap < len(data):
        with pytest.raises(LimitExceeded):
            for start in range(0, len(data), size):
                for event in decoder.feed(data[start : start + size]):
                    seen.append(event)
    assert len(seen) == cap // 11 or cap >= len(data)
    assert all(event == ServerEvent("", "abc") for event in seen)


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_line_and_event_caps_end_the_stream(size: int) -> None:
    """A line or an event over its cap is an error, also when it comes in small pieces and never ends."""
    for data, caps in (
        (b"data: " + b"x" * 100, {"line_bytes": 50}),
        (b": " + b"x" * 100, {"line_bytes": 50}),
        (b"data: " + b"x" * 100 + b"\n\n", {"line_bytes": 50}),
        (b"data: xxxx\n" * 20, {"event_bytes": 50}),
    ):
        with pytest.raises(LimitExceeded):
            decode(*(data[i : i + size] for i in range(0, len(data), size)), **caps)


def test_long_event_costs_linear_work_byte_by_byte() -> None:
    """A 300 KB stream fed byte by byte copies no byte more than a few times: the line buffer is only appended to.

    Counted, not timed: the decoder's own buffer reports each byte that is added to it and each one taken out.
    """
    data = (WIRE / "60-huge-arguments.sse").read_bytes()

    class Counting(bytearray):
        moved = 0

        def __iadd__(self, other: bytes) -> Self:  # type: ignore[override]
            Counting.moved += len(other)
            super().__iadd__(other)
            return self

        def __bytes__(self) -> bytes:
            Counting.moved += len(self)
            return bytes(memoryview(self))

    decoder = EventDecoder()
    decoder._tail = Counting()
    events = [event for i in range(len(data)) for event in decoder.feed(data[i : i + 1])]
    assert Counting.moved <= 3 * len(data)
    assert [event.data for event in events][-1] == "[DONE]"
    assert all(json.loads(event.data) for event in events[:-1])
