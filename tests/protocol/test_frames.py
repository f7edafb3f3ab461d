"""What goes over the wire: headers, early bytes, frames, keep-alives, ends, and coming back (PROTOCOL 2 and 4)."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator

import httpx
import httpx_sse
import pytest

from tests.event_stream import Stream
from tests.plan_by_words import ANSWER, WIDE, by_words
from tests.service import Service
from tests.upstream import Upstream

EARLY = re.compile(rb": ok\nretry: (\d+)\n")
KEEP_ALIVE = 0.3


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(by_words) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    """A service whose keep-alives come after a third of a second."""
    with Service(upstream, rungs={"keep_alive": KEEP_ALIVE}, config={"limits": {"answer_chars": 8_000_000}}) as running:
        yield running


@pytest.fixture(scope="module")
def finished(service: Service) -> Stream:
    """A turn with a tool, read to its end by the viewer that started it."""
    return service.stream('call show {"tag": "a"}').read_to_end()


def _turn_of(stream: Stream) -> str:
    return str(stream.wait_for("turn_started")["turn_id"])


# -- headers and early bytes (F1, F2)


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_a_stream_has_the_headers_that_keep_proxies_from_holding_it(service: Service, accept: str) -> None:
    """Type, no caching, no transforming, no buffering; never a length or an encoding, whatever is asked for (F1)."""
    started = service.stream("hello", accept=accept, headers={"Accept-Encoding": "gzip, br, deflate, zstd"})
    attached = service.attach(service.start_turn("hello"), accept=accept, headers={"Accept-Encoding": "gzip"})
    for stream in (started, attached):
        stream.read_to_end()
        assert stream.status == 200
        kind = "text/event-stream; charset=utf-8" if accept == "text/event-stream" else "application/x-ndjson"
        assert stream.headers["content-type"] == kind
        assert stream.headers["cache-control"] == "no-cache, no-transform"
        assert stream.headers["x-accel-buffering"] == "no"
        assert not stream.headers.keys() & {"content-length", "content-encoding"}


def test_the_first_bytes_come_before_the_model_says_anything(service: Service) -> None:
    """Comment and `retry` leave with the headers, with no blank line after them, while the model is silent (F2)."""
    conversation = service.conversation()
    with service.stream("silent", conversation) as stream:
        stream.wait_for(lambda s: s.raw, 5)
        assert EARLY.match(stream.raw)
        assert b"\n\n" not in EARLY.match(stream.raw)[0]  # type: ignore[index]  # matched above
        stream.wait_for("turn_started")
        service.call("POST", f"/v1/turns/{_turn_of(stream)}/cancel")
        stream.read_to_end()


def test_retry_is_jittered_between_1500_and_3000(service: Service, finished: Stream) -> None:
    """So that a thousand browsers do not come back in the same moment (F2)."""
    retries = set()
    for _ in range(12):
        with service.attach(_turn_of(finished)) as stream:
            retries.add(stream.read_to_end().parser.retry)
    assert len(retries) > 3
    assert all(retry is not None and 1500 <= retry <= 3000 for retry in retries)


def test_an_event_can_be_read_before_the_next_is_made(service: Service) -> None:
    """Nothing waits for a buffer to fill: the first delta is here while the model hangs (F2, F3)."""
    with service.stream("hang", headers={"Accept-Encoding": "gzip"}) as stream:
        assert stream.wait_for("text_delta", 10)["text"] == "begun"
        service.call("POST", f"/v1/turns/{_turn_of(stream)}/cancel")
        stream.read_to_end()


# -- frames (F3, F4)


def test_a_frame_is_an_id_and_one_line_of_compact_json(finished: Stream) -> None:
    """`id:` and `data:` alone, LF only, ids of 64 harmless bytes, JSON without spaces and without nulls (F3, F4)."""
    assert {"tool_start", "image", "action_card", "commentary", "text_delta", "completion"} <= set(finished.types)
    raw = finished.raw
    assert b"\r" not in raw
    assert set(finished.parser.fields) == {"retry", "id", "data"}
    turn = _turn_of(finished)
    for number, event in enumerate(finished.events[:-1], 1):
        assert event.id == f"{turn}-1-{number}"
        assert re.fullmatch(r"[0-9A-Za-z_-]{1,64}", event.id)
        assert event.seq == number
        text = json.dumps(event.json, separators=(",", ":"), ensure_ascii=False)
        assert event.raw == f"id: {event.id}\ndata: {text}\n".encode()
        assert "null" not in [json.dumps(value) for value in event.json.values()]
    last = finished.events[-1]
    assert (last.id, last.json) == (None, {"type": "stream_end", "reason": "done", "resume": False})
    assert EARLY.sub(b"", raw, count=1) == b"".join(event.raw + b"\n" for event in finished.events)


def test_ndjson_is_the_same_events_in_the_same_order(service: Service, finished: Stream) -> None:
    """One event a line, equal to the data of the frames; the early byte is a space, so that each line is JSON (H2, F1)."""
    with service.attach(_turn_of(finished), accept="application/x-ndjson") as lines:
        lines.read_to_end()
    assert lines.raw.startswith(b" {")
    assert [event.json for event in lines.events] == [event.json for event in finished.events]
    data = [event.raw.partition(b"data: ")[2] for event in finished.events]
    assert lines.raw == b" " + b"".join(data)


def test_ndjson_resumes_by_turn_epoch_and_seq(service: Service, finished: Stream) -> None:
    """The cursor of a line is `<turn_id>-<epoch>-<seq>`, which its client puts together (H2, R2)."""
    turn = _turn_of(finished)
    with service.attach(turn, f"{turn}-1-3", accept="application/x-ndjson") as rest:
        rest.read_to_end()
    assert [event.json for event in rest.events] == [event.json for event in finished.events[3:]]


def test_no_frame_is_larger_than_64_kib(service: Service) -> None:
    """Long deltas are split, the whole text is not repeated in a completion that it would not fit (F4, E2)."""
    with service.stream("wide 5") as stream:
        stream.read_to_end()
    assert stream.text == WIDE * 5
    assert all(len(event.raw) + 1 <= 65_536 for event in stream.events)
    completion = stream.of("completion")[0]
    assert completion.get("text") is None
    assert completion["chars"] == len(WIDE) * 5


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_a_large_delta_reaches_who_watches_at_once(service: Service, accept: str) -> None:
    """What comes in one piece and fills many frames is there before the next event, keep-alives go on, and the end comes."""
    stream = service.stream("lump 400000", accept=accept)
    stream.wait_for(lambda s: sum(len(event["text"]) for event in s.of("text_delta")) >= 400_000, timeout=10)
    assert "end" not in stream.of("text_delta")[-1]["text"]
    stream.read_to_end()
    assert len(stream.text) == 400_003
    assert stream.types[-1] == "stream_end"


def test_a_large_snapshot_comes_whole(service: Service) -> None:
    """A snapshot may have 4 MiB and is written in pieces with nothing between, keep-alives neither (F4, F5)."""
    turn = service.start_turn("big 3000000")
    service.settled(turn)
    with service.attach(turn, "garbage") as stream:
        stream.read_to_end()
    assert stream.types == ["snapshot", "stream_end"]
    snapshot = stream.events[0]
    assert "truncated" not in snapshot.json
    text = "".join(block["text"] for block in snapshot["blocks"])
    assert text == ("0123456789abcdef" * 512) * (3_000_000 // 8192)
    assert stream.parser.torn == 0


def test_a_snapshot_over_4_mib_loses_its_oldest_and_says_so(service: Service) -> None:
    """It is at most 4 MiB, `truncated`, and still ends where the turn ended (F4, `snapshot`)."""
    turn = service.start_turn("big 5000000")
    service.settled(turn, timeout=50)
    with service.attach(turn, query="?from=snapshot") as stream:
        stream.read_to_end()
    snapshot = stream.events[0]
    assert snapshot["truncated"] is True
    assert len(snapshot.raw) <= 4 << 20
    assert snapshot["terminal"]["type"] == "completion"


def test_a_snapshot_of_a_stored_message_is_that_of_the_turn(upstream: Upstream) -> None:
    """Whether the log is still in memory makes no difference: the same blocks, the same ending, nothing cut without need."""
    with Service(upstream, config={"limits": {"answer_chars": 8_000_000}}) as running:
        turn = running.start_turn("lump 2400000")
        running.settled(turn)
        before = running.attach(turn, query="?from=snapshot").read_to_end().events[0]
        running.stop()
        running.start()
        after = running.attach(turn, query="?from=snapshot").read_to_end().events[0]
    assert {k: v for k, v in after.json.items() if k != "ts"} == {k: v for k, v in before.json.items() if k != "ts"}
    assert "truncated" not in after.json
    assert sum(len(block["text"]) for block in after["blocks"]) == 2_400_003


def test_the_history_has_every_character_that_was_shown(service: Service) -> None:
    """Also U+0000, which a text column of PostgreSQL cannot hold."""
    conversation = service.conversation()
    stream = service.stream("nul", conversation).read_to_end()
    assert stream.text == "a\x00b\x00 c"
    assert [message["text"] for message in service.messages(conversation)] == ["nul", stream.text]


# -- keep-alives (F5)


def test_silence_is_broken_by_pings_without_blank_lines(service: Service) -> None:
    """After the interval (±10 %) comes `: ping` and a line end, again and again, and never an empty event (F5)."""
    with service.stream("silent") as stream:
        stream.wait_for(lambda s: len([c for c in s.parser.comments if c[1] == "ping"]) >= 6)
        quiet = stream.raw[stream.raw.rindex(b"\n\n") + 2 :]
        assert re.fullmatch(rb"(: ping\n)+", quiet)
        times = [at for at, text in stream.parser.comments if text == "ping"]
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert min(gaps) >= KEEP_ALIVE * 0.85
        assert sorted(gaps)[len(gaps) // 2] < KEEP_ALIVE * 1.1 + 0.3
        service.call("POST", f"/v1/turns/{_turn_of(stream)}/cancel")
        stream.read_to_end()


def test_the_keep_alive_of_ndjson_is_one_space(service: Service) -> None:
    """A space before a line keeps the line one JSON object (H2)."""
    with service.stream("silent", accept="application/x-ndjson") as stream:
        stream.wait_for(lambda s: s.raw.endswith(b"\n   "))
        service.call("POST", f"/v1/turns/{_turn_of(stream)}/cancel")
        stream.read_to_end()
    assert [json.loads(line)["type"] for line in stream.raw.decode().splitlines()] == stream.types


@pytest.mark.parametrize(
    ("words", "phase"),
    [("silent", "model"), ('call block {"seconds": 1.5}', "tool"), ('call guarded {"value": "x"}', "approval")],
)
def test_heartbeats_say_what_the_turn_is_doing(service: Service, words: str, phase: str) -> None:
    """`?heartbeat=data` adds events with phase and time, at the times of the pings, without id and seq (F5)."""
    turn = service.start_turn(words)
    with service.attach(turn, query="?heartbeat=data") as stream:
        beats = lambda s: [beat for beat in s.of("heartbeat") if beat["phase"] == phase]  # noqa: E731 - used twice
        stream.wait_for(lambda s: len(beats(s)) >= 3)
        found = beats(stream)
        assert [beat["elapsed_ms"] for beat in found] == sorted(beat["elapsed_ms"] for beat in found)
        assert all(beat.id is None and beat.json.keys() == {"type", "phase", "elapsed_ms"} for beat in found)
        last = stream.last_id
        assert last.startswith(turn)
        pings = [text for _, text in stream.parser.comments if text == "ping"]
        assert len(pings) >= 3
        service.call("POST", f"/v1/turns/{turn}/cancel")
        stream.read_to_end()


def test_a_queued_turn_beats_as_queued(service: Service) -> None:
    """Before its turn comes, a viewer's heartbeats say `queued` (F5)."""
    conversation = service.conversation()
    first = service.start_turn("silent", conversation)
    second = service.start_turn("hello", conversation, on_busy="enqueue")
    with service.attach(second, query="?heartbeat=data") as stream:
        assert stream.wait_for("heartbeat")["phase"] == "queued"
        service.call("POST", f"/v1/turns/{first}/cancel")
        assert stream.read_to_end().text == ANSWER


def test_no_keep_alive_ever_tears_a_frame(upstream: Upstream) -> None:
    """60 KB frames with a keep-alive of a millisecond: every frame parses, and pings were in between (F5)."""
    with Service(upstream, rungs={"keep_alive": 0.001}) as restless:
        with restless.stream("wide 16") as stream:
            stream.read_to_end(50)
        assert stream.text == WIDE * 16
        assert len(stream.parser.comments) > 5
        assert stream.parser.torn == 0
        with restless.attach(_turn_of(stream), "garbage") as snapshot:
            snapshot.read_to_end()
        assert snapshot.types == ["snapshot", "stream_end"]
        assert snapshot.parser.torn == 0


# -- coming back (R1–R5, R9)


def test_each_cursor_is_served_with_exactly_the_rest(service: Service, finished: Stream) -> None:
    """After any known id come the same bytes as the first time, from the header and from the query (R1, R2, E7)."""
    turn = _turn_of(finished)
    logged = [event for event in finished.events if event.id]
    for place, event in enumerate(logged[:-1]):
        assert event.id is not None
        in_header = service.attach(turn, event.id).read_to_end()
        in_query = service.attach(turn, query=f"?last_event_id={event.id}").read_to_end()
        for stream in (in_header, in_query):
            assert [seen.raw for seen in stream.events] == [seen.raw for seen in finished.events[place + 1 :]]


def test_the_header_wins_over_the_query_and_over_from(service: Service, finished: Stream) -> None:
    """A reconnecting EventSource repeats its URL and adds the header, which is the newer word (R1, R3)."""
    turn, first, second = _turn_of(finished), finished.events[0].id, finished.events[1].id
    assert second is not None
    stream = service.attach(turn, second, query=f"?last_event_id={first}&from=snapshot").read_to_end()
    assert stream.types == finished.types[2:]


def test_the_end_is_told_once_and_then_204(service: Service, finished: Stream) -> None:
    """With the last id an attach is 204, which stops an EventSource; without a cursor all comes again (R4, R5)."""
    turn = _turn_of(finished)
    for stream in (service.attach(turn, finished.last_id), service.attach(turn, query=f"?last_event_id={finished.last_id}")):
        assert (stream.status, stream.body) == (204, b"")
    again = service.attach(turn).read_to_end()
    assert [event.raw for event in again.events] == [event.raw for event in finished.events]


def test_a_cursor_that_cannot_be_served_becomes_one_snapshot(service: Service, finished: Stream) -> None:
    """Garbage, the future, another epoch, another turn's: a snapshot with all of this turn, never 500 (R3)."""
    turn = _turn_of(finished)
    other = service.stream("hello").read_to_end()
    bad = [
        "garbage",
        "0",
        f"{turn}-1-999",
        f"{turn}-1-{len(finished.events)}",
        f"{turn}-2-1",
        f"{turn}-0-1",
        f"{turn}-1--1",
        f"{turn}-1-01e",
        f"{turn}",
        other.last_id,
        "x" * 3000,
        "caf\u00e9 \u00ff",
        "%00",
    ]
    for cursor in bad:
        stream = service.attach(turn, cursor).read_to_end()
        assert stream.status == 200, cursor
        assert stream.types == ["snapshot", "stream_end"], cursor
        snapshot = stream.events[0]
        assert snapshot["turn_id"] == turn
        assert snapshot.id == f"{turn}-1-{snapshot['last_seq']}" == finished.last_id
        assert snapshot.seq is None
        assert snapshot["terminal"]["type"] == "completion"


def test_a_snapshot_of_a_running_turn_goes_on_live(service: Service) -> None:
    """Snapshot and deltas after it are the whole text, at every moment of joining (R3, `snapshot`)."""
    with service.stream("drip 20") as whole:
        turn = _turn_of(whole)
        late = []
        for count in range(1, 20, 4):
            whole.wait_for(lambda s, count=count: len(s.of("text_delta")) >= count)
            late.append(service.attach(turn, query="?from=snapshot"))
        whole.read_to_end()
    for stream in late:
        stream.read_to_end()
        assert stream.types.count("snapshot") == 1
        assert stream.types[0] == "snapshot"
        before = "".join(block["text"] for block in stream.events[0]["blocks"])
        assert before + stream.text == whole.text


def test_cuts_anywhere_lose_and_repeat_nothing(service: Service) -> None:
    """Three viewers that leave and come back by id, again and again, each see every event once, the same bytes (R2, R4)."""
    turn = service.start_turn("drip 30")
    whole = service.attach(turn)
    for step in (1, 2, 5):
        seen: list[bytes] = []
        cursor: str | None = None
        while True:
            with service.attach(turn, cursor) as stream:
                if stream.status == 204:
                    break
                stream.wait_for(lambda s, step=step: len(s.events) >= step or s.over)
                got = [event for event in list(stream.events) if event.id]
            seen += [event.raw for event in got]
            cursor = got[-1].id if got else cursor
        whole.read_to_end()
        assert seen == [event.raw for event in whole.events if event.id]


def test_attaching_never_starts_work(service: Service, upstream: Upstream, finished: Stream) -> None:
    """Twenty GETs of a finished turn, as a proxy or an EventSource might repeat them: no model call, no message (R9)."""
    turn = _turn_of(finished)
    conversation = service.turn(turn)["conversation_id"]
    before = len(upstream.requests), len(service.messages(conversation))
    for _ in range(20):
        with service.attach(turn) as stream:
            stream.read_to_end()
    assert (len(upstream.requests), len(service.messages(conversation))) == before


def test_an_attach_without_accept_gets_sse(service: Service, finished: Stream) -> None:
    """EventSource always says `text/event-stream`; who says nothing at all gets the same (section 1)."""
    with service.attach(_turn_of(finished), accept="*/*") as stream:
        assert stream.form == "sse"
        assert stream.read_to_end().types == finished.types


# -- other people's clients


def test_httpx_sse_reads_the_stream(service: Service) -> None:
    """A common client raises nothing, sees every event as `message`, with its id, pings and all (F2, F3, F5)."""
    conversation = service.conversation()
    url = f"{service.url}/v1/conversations/{conversation}/turns"
    with httpx.Client(timeout=20) as client:
        with httpx_sse.connect_sse(client, "POST", url, json={"input": 'call slow {"seconds": 1}'}) as source:
            events = list(source.iter_sse())
    kinds = [event.json()["type"] for event in events]
    assert kinds[0] == "turn_started"
    assert kinds[-1] == "stream_end"
    assert {event.event for event in events} == {"message"}
    assert [event.id for event in events[:-1]] == [f"{events[0].json()['turn_id']}-1-{n}" for n in range(1, len(events))]
    assert events[0].retry is not None


# -- a connection's end (F6, R8)


def test_a_connection_is_rotated_and_resumes_without_gap(upstream: Upstream) -> None:
    """After its age (±10 %) a stream ends in order with `rotated`, `resume` true; by id it goes on (F6, R8)."""
    with Service(upstream, rungs={"connection_age": 1.0}) as service:
        turn = service.start_turn("drip 60")
        streams: list[Stream] = []
        cursor = None
        while not streams or streams[-1].events[-1].json != {"type": "stream_end", "reason": "done", "resume": False}:
            stream = service.attach(turn, cursor)
            begun = time.monotonic()
            stream.read_to_end()
            assert stream.broken is None
            if stream.events[-1]["reason"] != "done":
                assert stream.events[-1].json == {"type": "stream_end", "reason": "rotated", "resume": True}
                assert 0.85 < time.monotonic() - begun < 3
            cursor = stream.last_id or cursor
            streams.append(stream)
        assert len(streams) > 2
        whole = service.attach(turn).read_to_end()
    joined = [event.raw for stream in streams for event in stream.events if event.id]
    assert joined == [event.raw for event in whole.events if event.id]
