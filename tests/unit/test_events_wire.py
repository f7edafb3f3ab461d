"""Events on the wire (F3, F4, PROTOCOL 3): golden bytes, hostile text, sizes, unknown kinds, the JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events import codec, types
from app.events.envelope import (
    MAX_ARGUMENT_BYTES,
    MAX_FRAME_BYTES,
    MAX_PREVIEW_BYTES,
    EventTooLarge,
    cut,
    event_id,
    fit,
    frame,
    line,
)
from app.events.schema import schema
from tests.event_stream import SSEParser

TS = 1_700_000_000_000
# Every kind once, with each of its optional fields: the event, and the exact bytes of its JSON.
GOLDEN: list[tuple[types.Event, str]] = [
    (
        types.TurnStarted(
            seq=1, ts=TS, turn_id="turn_1", conversation_id="conv_1", message_id="msg_1", profile="default", epoch=1,
            protocol=1,
        ),
        ('{"type":"turn_started","seq":1,"ts":1700000000000,"turn_id":"turn_1","conversation_id":"conv_1",'
        '"message_id":"msg_1","profile":"default","epoch":1,"protocol":1}'),
    ),
    (types.Queued(position=2), '{"type":"queued","position":2}'),
    (
        types.TextDelta(seq=2, ts=TS, block=1, text="Grüß 🐤"),
        '{"type":"text_delta","seq":2,"ts":1700000000000,"block":1,"text":"Grüß 🐤"}',
    ),
    (
        types.ReasoningDelta(seq=3, ts=TS, block=1, text="hm"),
        '{"type":"reasoning_delta","seq":3,"ts":1700000000000,"block":1,"text":"hm"}',
    ),
    (types.Commentary(seq=4, ts=TS, text="So far."), '{"type":"commentary","seq":4,"ts":1700000000000,"text":"So far."}'),
    (
        types.ToolStart(
            seq=5, ts=TS, tool_call_id="c1", name="look", title="Looking", side_effects="none", arguments={"q": 1}
        ),
        ('{"type":"tool_start","seq":5,"ts":1700000000000,"tool_call_id":"c1","name":"look","title":"Looking",'
        '"side_effects":"none","arguments":{"q":1}}'),
    ),
    (
        types.ToolStart(
            seq=5, ts=TS, tool_call_id="c1", name="look", title="Looking", side_effects="unsafe", truncated=True
        ),
        ('{"type":"tool_start","seq":5,"ts":1700000000000,"tool_call_id":"c1","name":"look","title":"Looking",'
        '"side_effects":"unsafe","truncated":true}'),
    ),
    (
        types.ToolProgress(seq=6, ts=TS, tool_call_id="c1", message="half", fraction=0.5),
        '{"type":"tool_progress","seq":6,"ts":1700000000000,"tool_call_id":"c1","message":"half","fraction":0.5}',
    ),
    (
        types.ToolEnd(seq=7, ts=TS, tool_call_id="c1", status="ok", duration_ms=0, preview="{}", truncated=True),
        ('{"type":"tool_end","seq":7,"ts":1700000000000,"tool_call_id":"c1","status":"ok","duration_ms":0,'
        '"preview":"{}","truncated":true}'),
    ),
    (
        types.Image(seq=8, ts=TS, url="https://x/y.png", alt="a", width=1, height=2, tool_call_id="c1"),
        ('{"type":"image","seq":8,"ts":1700000000000,"url":"https://x/y.png","alt":"a","width":1,"height":2,'
        '"tool_call_id":"c1"}'),
    ),
    (
        types.ActionCard(
            seq=9, ts=TS, card_id="k", kind="invoice", title="I", fields=[types.CardField(label="a", value="b")],
            actions=[types.CardAction(title="Open", url="https://x"), types.CardAction(title="Go", input="go")],
        ),
        ('{"type":"action_card","seq":9,"ts":1700000000000,"card_id":"k","kind":"invoice","title":"I",'
        '"fields":[{"label":"a","value":"b"}],"actions":[{"title":"Open","url":"https://x"},{"title":"Go","input":"go"}]}'),
    ),
    (
        types.ApprovalRequired(
            seq=10, ts=TS, approval_id="a", tool_call_id="c1", name="n", title="t", prompt="p?", expires_at=TS, arguments={}
        ),
        ('{"type":"approval_required","seq":10,"ts":1700000000000,"approval_id":"a","tool_call_id":"c1","name":"n",'
        '"title":"t","prompt":"p?","expires_at":1700000000000,"arguments":{}}'),
    ),
    (
        types.ApprovalResolved(seq=11, ts=TS, approval_id="a", decision="approve", by="ann"),
        '{"type":"approval_resolved","seq":11,"ts":1700000000000,"approval_id":"a","decision":"approve","by":"ann"}',
    ),
    (
        types.AttemptRestarted(seq=12, ts=TS, attempt=2, reason="timeout"),
        '{"type":"attempt_restarted","seq":12,"ts":1700000000000,"attempt":2,"reason":"timeout"}',
    ),
    (
        types.Notice(seq=13, ts=TS, level="info", code="c", text="t", data={"a": [1, None]}),
        '{"type":"notice","seq":13,"ts":1700000000000,"level":"info","code":"c","text":"t","data":{"a":[1,null]}}',
    ),
    (
        types.Usage(seq=14, ts=TS, input_tokens=0, output_tokens=3, model="m"),
        '{"type":"usage","seq":14,"ts":1700000000000,"input_tokens":0,"output_tokens":3,"model":"m"}',
    ),
    (
        types.Completion(
            seq=15, ts=TS, status="complete", finish_reason="stop", chars=0, text="", replaced=True,
            usage=types.UsageTotal(input_tokens=1, output_tokens=0),
        ),
        ('{"type":"completion","seq":15,"ts":1700000000000,"status":"complete","finish_reason":"stop","chars":0,'
        '"text":"","replaced":true,"usage":{"input_tokens":1,"output_tokens":0}}'),
    ),
    (
        types.Completion(seq=15, ts=TS, status="partial", finish_reason="length", chars=9),
        '{"type":"completion","seq":15,"ts":1700000000000,"status":"partial","finish_reason":"length","chars":9}',
    ),
    (
        types.Error(seq=15, ts=TS, code="internal", message="Sorry.", retryable=False),
        '{"type":"error","seq":15,"ts":1700000000000,"code":"internal","message":"Sorry.","retryable":false}',
    ),
    (
        types.MessageSaved(seq=16, ts=TS, message_id="msg_1", status="apology"),
        '{"type":"message_saved","seq":16,"ts":1700000000000,"message_id":"msg_1","status":"apology"}',
    ),
    (
        types.MessageSaveFailed(seq=16, ts=TS, message_id="msg_1", code="store_unavailable"),
        '{"type":"message_save_failed","seq":16,"ts":1700000000000,"message_id":"msg_1","code":"store_unavailable"}',
    ),
    (
        types.Snapshot(
            turn_id="turn_1", conversation_id="conv_1", message_id="msg_1", profile="p", epoch=2, status="done",
            blocks=[{"block": 1, "text": "x"}], tools=[], extras=[], approvals=[], last_seq=0,
            reasoning=[{"block": 1, "text": "r"}], terminal={"type": "error"}, truncated=True,
        ),
        ('{"type":"snapshot","turn_id":"turn_1","conversation_id":"conv_1","message_id":"msg_1","profile":"p","epoch":2,'
        '"status":"done","blocks":[{"block":1,"text":"x"}],"tools":[],"extras":[],"approvals":[],"last_seq":0,'
        '"reasoning":[{"block":1,"text":"r"}],"terminal":{"type":"error"},"truncated":true}'),
    ),
    (types.StreamEnd(reason="done", resume=False), '{"type":"stream_end","reason":"done","resume":false}'),
    (types.Heartbeat(phase="tool", elapsed_ms=0), '{"type":"heartbeat","phase":"tool","elapsed_ms":0}'),
]  # fmt: skip
NASTY = [
    "a\rb",
    "a\nb",
    "a\r\nb",
    "\x00",
    "a\u2028b",
    "a\u2029b",
    "a\u0085b",
    "\ud800",
    "x\udc00y",
    "\ufeff",
    "\n\ndata: x\n\n",
    "",
]


def parsed(data: bytes) -> list[tuple[str | None, dict[str, Any]]]:
    """Id and JSON of every event that a client dispatches."""
    return [(seen.id, seen.json) for seen in SSEParser().feed(data, 0.0)]


def test_the_golden_events_are_every_kind() -> None:
    """A kind without golden bytes would not be checked below."""
    assert {type(event) for event, _ in GOLDEN} == set(codec.KNOWN)


@pytest.mark.parametrize(("event", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes_of_every_kind_parse_back(event: types.Event, golden: str) -> None:
    """F3, F4: exact bytes; one frame is one event for a parser written from the standard; the same object comes back."""
    data = codec.encode(event)
    assert data.decode() == golden
    id_ = event_id("turn_1", 1, event.seq) if event.seq else None
    framed = frame(data, id_)
    assert framed == (f"id: {id_}\n" if id_ else "").encode() + b"data: " + data + b"\n\n"
    assert parsed(framed * 2) == [(id_, json.loads(golden))] * 2
    assert line(framed) == data + b"\n"
    assert codec.decode(data) == event
    assert codec.decode(golden) == event


@pytest.mark.parametrize(("event", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_the_schema_takes_every_golden_event_and_no_broken_one(event: types.Event, golden: str) -> None:
    """`/v1/schema/events.json` is true: it takes what is sent, and what later versions may add; not a missing field."""
    validator = jsonschema_rs.validator_for(schema())
    fields = json.loads(golden)
    validator.validate(fields)
    validator.validate({**fields, "later_field": 1})
    assert not validator.is_valid({**fields, "type": "no_such_kind"})
    required = [name for name in fields if name not in {"type", "seq", "ts", *optional_of(type(event))}]
    for name in required:
        assert not validator.is_valid({key: value for key, value in fields.items() if key != name}), name


def optional_of(kind: type[types.Event]) -> set[str]:
    return {f.name for f in msgspec.structs.fields(kind) if not f.required}


def string_fields(event: types.Event) -> list[str]:
    return [name for name in event.__struct_fields__ if isinstance(getattr(event, name), str)]


@pytest.mark.parametrize("nasty", NASTY)
@pytest.mark.parametrize("event", [event for event, _ in GOLDEN], ids=lambda event: type(event).__name__)
def test_no_text_in_any_field_changes_the_number_of_events(event: types.Event, nasty: str) -> None:
    """CR, LF, CRLF, NUL, line separators, lone surrogates in every string field: three frames stay three events, one line
    each; surrogates become U+FFFD, the rest comes back as it was."""
    hostile = msgspec.structs.replace(event, **dict.fromkeys(string_fields(event), nasty))
    if isinstance(hostile, types.ToolStart | types.Notice | types.ActionCard):
        nested = {nasty: [nasty, {"k": nasty}]}
        hostile = (
            msgspec.structs.replace(hostile, fields=[types.CardField(label=nasty, value=nasty)])
            if isinstance(hostile, types.ActionCard)
            else msgspec.structs.replace(
                hostile, **{"arguments" if isinstance(hostile, types.ToolStart) else "data": nested}
            )
        )
    data = codec.encode(hostile)
    assert not any(separator in data for separator in (b"\r", b"\n", b"\x00"))
    assert len(data.decode().splitlines()) == 1, "a reader of lines would cut it"
    framed = frame(data, "turn_1-1-1")
    stream = frame(b'{"type":"a"}', "turn_1-1-0") + framed + frame(b'{"type":"b"}', "turn_1-1-2")
    events = parsed(stream)
    assert [id_ for id_, _ in events] == ["turn_1-1-0", "turn_1-1-1", "turn_1-1-2"]
    expected = nasty.replace("\ud800", "\ufffd").replace("\udc00", "\ufffd")
    for name in string_fields(event):
        assert events[1][1][name] == expected
    assert len((line(framed) * 3).decode().splitlines()) == 3


@given(st.text(st.characters(codec=None, categories=None), max_size=200), st.integers(1, 40))
def test_any_text_in_any_cut_of_the_stream_is_one_event(text: str, size: int) -> None:
    """F3 for all of Unicode, surrogates included, and every cutting of the bytes into reads."""
    framed = frame(codec.encode(types.TextDelta(seq=1, ts=1, block=1, text=text)), "turn_1-1-1")
    parser = SSEParser()
    events = [seen for i in range(0, len(framed), size) for seen in parser.feed(framed[i : i + size], 0.0)]
    assert len(events) == 1
    got = events[0].json["text"]
    assert got == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# -- unknown kinds and fields


def test_kinds_and_fields_of_a_later_version_are_no_error() -> None:
    """PROTOCOL 3: that is what lets the contract grow without a common release."""
    event = codec.decode('{"type":"sparkle","seq":3,"glitter":{"a":1}}')
    assert event == codec.Unknown(type="sparkle", fields={"type": "sparkle", "seq": 3, "glitter": {"a": 1}})
    later = codec.decode('{"type":"text_delta","seq":3,"ts":1,"block":1,"text":"x","mood":"good"}')
    assert later == types.TextDelta(seq=3, ts=1, block=1, text="x")
    assert codec.decode("{}") == codec.Unknown(type="None", fields={})
    for broken in ("[]", '"x"', "1", '{"type":"text_delta","block":"x","text":"y"}', '{"type":"completion"}'):
        with pytest.raises(msgspec.ValidationError):
            codec.decode(broken)
    with pytest.raises(msgspec.DecodeError):
        codec.decode("{")


@given(st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5) | st.lists(st.booleans())))
def test_whatever_object_comes_is_kept(fields: dict[str, Any]) -> None:
    """No kind of a later version can break a reader, whatever its fields are."""
    event = codec.from_fields({**fields, "type": "later"})
    assert isinstance(event, codec.Unknown)
    assert event.fields == {**fields, "type": "later"}


# -- sizes (F4)


def framed_size(event: types.Event) -> int:
    return len(frame(codec.encode(event), "t" * 48 + "-123456789-123456789"))


@given(
    st.sampled_from(["a", "ü", "€", "🐤", "\u2028", "\x00", "\ud800", '"', "a🐤\u2028"]),
    st.sampled_from([0, 1, 9_999, 10_000, 10_001, 33_333, 70_000]),
    st.sampled_from([types.TextDelta, types.ReasoningDelta]),
)
def test_a_long_delta_is_split_between_code_points(char: str, count: int, kind: type[types.TextDelta]) -> None:
    """F4: every piece fits a frame; joined they are the text, so no character was cut."""
    text = char * count
    pieces = fit(kind(block=3, text=text))
    assert "".join(piece.text for piece in pieces) == text  # type: ignore[attr-defined]
    for piece in pieces:
        assert isinstance(piece, kind)
        assert piece.block == 3
        assert framed_size(piece) <= MAX_FRAME_BYTES
        assert piece.text or count == 0


@pytest.mark.parametrize("char", ["x", "€", "\u2028", "\x01", "\ud800"])
def test_arguments_over_sixteen_kibibytes_are_left_out(char: str) -> None:
    """F4, for tool starts and approvals: measured in bytes as sent, told by `truncated`."""
    start = types.ToolStart(tool_call_id="c", name="n", title="t", side_effects="none", arguments={"a": char * 20_000})
    ask = types.ApprovalRequired(
        approval_id="a", tool_call_id="c", name="n", title="t", prompt="p", expires_at=1, arguments={"a": char * 20_000}
    )
    for event in (start, ask):
        [fitted] = fit(event)
        assert (fitted.arguments, fitted.truncated) == (None, True)  # type: ignore[attr-defined]
    whole = msgspec.structs.replace(start, arguments={"a": "x" * (MAX_ARGUMENT_BYTES - len('{"a":""}'))})
    assert fit(whole) == [whole]
    [over] = fit(msgspec.structs.replace(start, arguments={"a": "x" * (MAX_ARGUMENT_BYTES - len('{"a":""}') + 1)}))
    assert over.arguments is None  # type: ignore[attr-defined]


@given(st.text(st.sampled_from(["a", "ü", "€", "🐤", "\ud800"]), min_size=0, max_size=40), st.integers(1, 200))
def test_a_preview_over_two_kibibytes_is_cut_between_characters(piece: str, times: int) -> None:
    """F4: at most 2,048 bytes as sent, a beginning of the whole, told by `truncated` exactly when cut."""
    preview = piece * times
    as_sent = codec.clean(preview)
    [end] = fit(types.ToolEnd(tool_call_id="c", status="ok", duration_ms=1, preview=preview))
    assert isinstance(end, types.ToolEnd)
    assert end.preview is not None
    shown = codec.clean(end.preview)
    assert as_sent.startswith(shown)
    assert len(shown.encode()) <= MAX_PREVIEW_BYTES
    assert end.truncated == (len(as_sent.encode()) > MAX_PREVIEW_BYTES)
    if end.truncated:
        assert len(shown.encode()) > MAX_PREVIEW_BYTES - 4, "more was cut than needed"


@pytest.mark.parametrize(("char", "count", "kept"), [("x", 10_000, True), ("x", 64_000, True), ("x", 65_536, False),
                                                     ("🐤", 20_000, False), ("\u2028", 11_000, False)])  # fmt: skip
def test_a_completions_text_is_left_out_when_it_does_not_fit(char: str, count: int, kept: bool) -> None:
    """F4: all else stays, `chars` too."""
    [event] = fit(types.Completion(status="complete", finish_reason="stop", chars=count, text=char * count))
    assert isinstance(event, types.Completion)
    assert (event.text == char * count) if kept else (event.text is None)
    assert event.chars == count
    assert framed_size(event) <= MAX_FRAME_BYTES


HUGE = "ab\u2028🐤" * 30_000


@pytest.mark.parametrize(
    "event",
    [
        types.Commentary(text=HUGE),
        types.Notice(level="info", code="c", text=HUGE, data={"x": HUGE}),
        types.Notice(level="info", code="c", text="t", data={"x": HUGE}),
        types.Error(code="denied", message=HUGE, retryable=False),
        types.ApprovalRequired(
            approval_id="a", tool_call_id="c", name="n", title=HUGE, prompt=HUGE, expires_at=1, arguments={"a": "x" * 16_000}
        ),
        types.ToolStart(tool_call_id="c", name="n", title=HUGE, side_effects="none", arguments={"a": "x" * 16_000}),
        types.ToolEnd(tool_call_id="c", status="ok", duration_ms=1, preview=HUGE),
        types.ToolProgress(tool_call_id="c", message=HUGE),
    ],
    ids=lambda event: type(event).__name__,
)
def test_words_that_are_too_long_are_cut_to_a_frame(event: types.Event) -> None:
    """F4: whatever a hook, a tool or an agent says, its event keeps its kind and fits; it is neither lost nor an error."""
    for part in fit(event):
        assert type(part) is type(event)
        assert framed_size(part) <= MAX_FRAME_BYTES


@pytest.mark.parametrize(
    "event",
    [
        types.Image(url="data:image/png;base64," + "A" * 70_000, alt="a"),
        types.ActionCard(card_id="k", kind="k", title=HUGE, fields=[], actions=[]),
        types.Notice(level="info", code=HUGE, text="t"),
        types.ToolStart(tool_call_id=HUGE, name="n", title="t", side_effects="none"),
        types.ToolEnd(tool_call_id=HUGE, status="ok", duration_ms=1),
        types.Usage(input_tokens=1, output_tokens=1, model=HUGE),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_cannot_be_cut_is_refused(event: types.Event) -> None:
    """F4: no frame over 64 KiB leaves; the writer says something else instead."""
    with pytest.raises(EventTooLarge):
        fit(event)


@given(st.text(st.characters(codec=None, categories=None), max_size=60), st.integers(0, 80))
def test_cut_gives_the_longest_beginning_that_fits(text: str, max_bytes: int) -> None:
    """As it will be sent: lone surrogates count as U+FFFD."""
    clean = codec.clean(text)
    got = cut(text, max_bytes)
    assert clean.startswith(got)
    assert len(got.encode()) <= max_bytes
    assert got == clean or len(clean[: len(got) + 1].encode()) > max_bytes
