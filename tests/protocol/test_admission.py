"""One turn at a time per conversation, queues and caps (PROTOCOL H4, H5, R6)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.event_stream import Stream
from tests.plan_by_words import ANSWER, by_words, last_words
from tests.service import Service, wait_until
from tests.upstream import Upstream

LIMITS = {"turns": 4, "queued": 2, "turns_per_user": 3, "viewers": 6, "viewers_per_user": 3}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(by_words) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    with Service(upstream, config={"limits": LIMITS}, start=False) as running:
        running.key = running.make_key("ann")
        running.start()
        yield running


@pytest.fixture(scope="module")
def others(service: Service) -> list[str]:
    return [service.make_key(name) for name in ("bob", "cy", "dee")]


@pytest.fixture
def opened(service: Service) -> Iterator[list[tuple[str, str | None]]]:
    """Turns (id, key) that the test leaves open; stopped after it."""
    turns: list[tuple[str, str | None]] = []
    yield turns
    for turn, key in turns:
        service.call("POST", f"/v1/turns/{turn}/cancel", key=key)
    for turn, key in turns:
        service.settled(turn, key=key)


def _hang(service: Service, opened: list[tuple[str, str | None]], conversation: str | None = None, **more: object) -> str:
    key = more.pop("key", service.key)
    assert key is None or isinstance(key, str)
    turn = service.start_turn("hang", conversation, key=key, **more)
    opened.append((turn, key))
    return turn


def _retry_after(value: str | None) -> int:
    assert value is not None
    seconds = int(value)
    assert 1 <= seconds <= 60
    return seconds


# -- one at a time (H4)


def test_a_second_turn_is_refused_and_told_which_one_is_open(service: Service, opened: list[tuple[str, str | None]]) -> None:
    """By default 409 `conversation_busy`, naming the open turn; nothing of the refused one is left (H4, H5)."""
    conversation = service.conversation()
    turn = _hang(service, opened, conversation)
    for headers in ({}, {"Accept": "text/event-stream"}):
        refused = service.post("hello", conversation, headers=headers)
        assert (refused.status, refused.code, refused.json["turn_id"]) == (409, "conversation_busy", turn)
    explicit = service.post("hello", conversation, on_busy="reject")
    assert explicit.code == "conversation_busy"
    with service.database() as database:
        rows = database.execute("SELECT count(*) FROM turns WHERE conversation_id = ?", (conversation,)).fetchone()
    assert rows == (1,)


def test_queued_turns_run_in_the_order_in_which_they_came(service: Service, upstream: Upstream) -> None:
    """`enqueue` waits, first come first served; viewers are told their position, which counts down (H4, `queued`)."""
    conversation = service.conversation()
    first = service.start_turn("hang", conversation)
    upstream_before = len(upstream.requests)
    second = service.stream("second", conversation, on_busy="enqueue")
    second.wait_for("queued")
    third = service.stream("third", conversation, on_busy="enqueue")
    third.wait_for("queued")
    assert second.of("queued")[0]["position"] == 1
    assert third.of("queued")[0]["position"] == 2
    service.call("POST", f"/v1/turns/{first}/cancel")
    for stream in (second, third):
        stream.read_to_end()
        assert stream.text == ANSWER
    positions = [event["position"] for event in third.of("queued")]
    assert positions == sorted(positions, reverse=True)
    assert positions[-1] == 1
    assert all(event.id is None and event.seq is None for event in third.of("queued"))
    assert third.types.index("queued") < third.types.index("turn_started")
    said = [last_words(request) for request in upstream.requests[upstream_before:]]
    assert said[-2:] == ["second", "third"]
    assert [message["text"] for message in service.messages(conversation)[::2]] == ["hang", "second", "third"]


def test_a_queued_turn_is_202_queued_and_can_be_cancelled(service: Service, opened: list[tuple[str, str | None]]) -> None:
    """Its status is `queued`; a cancel ends it without a model call, its viewer gets an ordinary ending (H4, E5)."""
    conversation = service.conversation()
    _hang(service, opened, conversation)
    reply = service.post("second", conversation, on_busy="enqueue")
    assert (reply.status, reply.json["status"]) == (202, "queued")
    turn = reply.json["turn_id"]
    assert service.turn(turn)["status"] == "queued"
    with service.attach(turn) as stream:
        stream.wait_for("queued")
        assert service.call("POST", f"/v1/turns/{turn}/cancel").status == 202
        stream.wait_for("stream_end")
    assert stream.types[-3:] == ["completion", "message_saved", "stream_end"]
    assert stream.of("completion")[0]["status"] == "cancelled"


def test_interrupt_cancels_the_open_turn_first(service: Service) -> None:
    """`interrupt`: the open turn ends `cancelled` and is saved, then the new one runs (H4)."""
    conversation = service.conversation()
    with service.stream("hang", conversation) as old:
        old.wait_for("text_delta")
        with service.stream("hello", conversation, on_busy="interrupt") as new:
            old.read_to_end()
            new.read_to_end()
    assert old.of("completion")[0]["status"] == "cancelled"
    assert new.text == ANSWER
    history = [(message["role"], message["status"]) for message in service.messages(conversation)]
    assert history == [("user", "complete"), ("assistant", "cancelled"), ("user", "complete"), ("assistant", "complete")]


def test_the_turn_that_is_interrupted_takes_no_place(service: Service, opened: list[tuple[str, str | None]]) -> None:
    """A user at the cap may interrupt: the new turn comes for the old one (H4, H5)."""
    conversation = service.conversation()
    for where in (conversation, None, None):
        _hang(service, opened, where)
    assert service.post("hello").status == 429
    turn = service.start_turn("hello", conversation, on_busy="interrupt")
    assert service.settled(turn)["terminal"]["status"] == "complete"


def test_a_turn_that_waits_for_an_approval_is_open(service: Service, opened: list[tuple[str, str | None]]) -> None:
    """Its conversation is busy (H4), and `active` shows it as `waiting` (section 1)."""
    conversation = service.conversation()
    turn = service.start_turn('call guarded {"value": "x"}', conversation)
    opened.append((turn, service.key))
    wait_until(lambda: service.turn(turn)["status"] == "waiting", what="the wait for an approval")
    assert service.post("hello", conversation).code == "conversation_busy"
    assert service.call("GET", f"/v1/conversations/{conversation}/active").json["status"] == "waiting"


# -- caps (H5)


def test_a_user_over_the_cap_is_429_and_leaves_nothing_behind(
    service: Service, others: list[str], upstream: Upstream, opened: list[tuple[str, str | None]]
) -> None:
    """`turns_per_user`: 429 with Retry-After, before anything ran or was stored; another user is not concerned (H5)."""
    for _ in range(3):
        _hang(service, opened)
    wait_until(lambda: all(service.turn(turn)["blocks"] for turn, _ in opened), what="three running turns")
    conversation = service.conversation()
    before = len(upstream.requests)
    for accept in ("application/json", "text/event-stream"):
        refused = service.post("hello", conversation, headers={"Accept": accept, "Idempotency-Key": "over"})
        assert (refused.status, refused.code) == (429, "over_capacity")
        _retry_after(refused.headers.get("retry-after"))
    assert len(upstream.requests) == before
    assert service.messages(conversation) == []
    with service.database() as database:
        assert database.execute("SELECT count(*) FROM turns WHERE conversation_id = ?", (conversation,)).fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM idempotency_keys WHERE key = 'over'").fetchone() == (0,)
    turn = service.start_turn("hello", key=others[0])
    service.settled(turn, key=others[0])


def test_a_full_service_queues_and_then_refuses_with_503(
    service: Service, others: list[str], opened: list[tuple[str, str | None]]
) -> None:
    """Over `turns` the next ones queue until `queued` of them wait; then 503 with Retry-After, until there is room (H5)."""
    for key in (others[0], others[0], others[1], others[1]):
        _hang(service, opened, key=key)
    wait_until(lambda: all(service.turn(t, key=k)["blocks"] for t, k in opened), what="four running turns")
    waiting = [service.stream("hello", key=others[2]) for _ in range(2)]
    for stream in waiting:
        stream.wait_for("queued")
    assert [stream.of("queued")[-1]["position"] for stream in waiting] == [1, 2]
    for accept in ("application/json", "text/event-stream", "application/x-ndjson"):
        refused = service.post("hello", headers={"Accept": accept})
        assert (refused.status, refused.code) == (503, "over_capacity")
        _retry_after(refused.headers.get("retry-after"))
    turn, key = opened[0]
    service.call("POST", f"/v1/turns/{turn}/cancel", key=key)
    for stream in waiting:
        assert stream.read_to_end().text == ANSWER
    service.settled(service.start_turn("hello"))


def test_a_turn_of_a_busy_conversation_holds_up_nobody_elses(
    service: Service, others: list[str], opened: list[tuple[str, str | None]]
) -> None:
    """It waits for its conversation without taking a run slot that another turn could use (H4)."""
    conversation = service.conversation()
    _hang(service, opened, conversation)
    queued = service.start_turn("hello", conversation, on_busy="enqueue")
    opened.append((queued, service.key))
    free = service.start_turn("hello", key=others[0])
    assert service.settled(free, key=others[0])["blocks"] == [{"block": 1, "text": ANSWER}]
    assert service.turn(queued)["status"] == "queued"


# -- caps on viewers (R6)


def _is_busy(stream: Stream) -> None:
    assert stream.status == 200
    stream.read_to_end()
    assert re.fullmatch(rb': ok\nretry: \d+\ndata: \{"type":"stream_end","reason":"busy","resume":true\}\n\n', stream.raw)
    assert stream.parser.retry is not None
    assert 5000 <= stream.parser.retry <= 15000


def test_a_viewer_over_the_cap_is_told_busy_with_a_long_retry(
    service: Service, others: list[str], opened: list[tuple[str, str | None]]
) -> None:
    """On a GET: 200, early bytes with `retry` 5–15 s, `stream_end` `busy`; a streamed POST is 429, and 503 for all (R6)."""
    turn = _hang(service, opened)
    theirs = _hang(service, opened, key=others[0])
    mine = [service.attach(turn) for _ in range(3)]
    for stream in mine:
        stream.wait_for("text_delta")
    over = [service.attach(turn) for _ in range(5)]
    for stream in over:
        _is_busy(stream)
    assert len({stream.parser.retry for stream in over}) > 1, "not jittered"
    refused = service.stream("hello")
    assert (refused.status, refused.json["code"]) == (429, "over_capacity")
    _retry_after(refused.headers.get("retry-after"))
    lines = service.attach(turn, accept="application/x-ndjson")
    assert (lines.status, lines.json["code"]) == (429, "over_capacity")
    others_viewers = [service.attach(theirs, key=others[0]) for _ in range(3)]
    for stream in others_viewers:
        stream.wait_for("text_delta")
    _is_busy(service.attach(theirs, key=others[0]))
    full = service.stream("hello", key=others[1])
    assert (full.status, full.json["code"]) == (503, "over_capacity")
    for stream in (*mine, *others_viewers):
        stream.close()

    def room() -> bool:
        with service.attach(turn) as stream:
            return bool(stream.wait_for(lambda s: s.events)) and stream.types[0] != "stream_end"

    wait_until(room, what="room for a viewer")


def test_refusals_of_ownership_stay_statuses_for_a_viewer(service: Service, others: list[str]) -> None:
    """401 and 404 are statuses on a GET with `Accept: text/event-stream`, too (R6)."""
    turn = service.start_turn("hello")
    service.settled(turn)
    assert service.attach(turn, key=None).status == 401
    assert service.attach(turn, key=others[0]).status == 404
    assert service.attach("turn_none").status == 404


def test_the_keyless_local_user_has_no_caps_of_a_user(upstream: Upstream) -> None:
    """`local` is every user of this machine: only the caps of the whole service hold for it (H5)."""
    limits = {"turns_per_user": 1, "turns_per_address": 1, "viewers_per_user": 1, "viewers_per_address": 1}
    with Service(upstream, config={"limits": limits}) as open_service:
        turns = [open_service.start_turn("hang") for _ in range(3)]
        viewers = [open_service.attach(turn) for turn in turns]
        for viewer in viewers:
            viewer.wait_for("text_delta")


# -- when nothing can be decided, and when the end is near (F2, R6)


def test_a_decision_that_cannot_be_stored_is_503_within_2_seconds(service: Service) -> None:
    """While another program holds the store: 503 with Retry-After, and later nothing of it is left (F2, H5)."""
    conversation = service.conversation()
    headers = {"Idempotency-Key": "locked"}
    with service.database() as database:
        database.execute("BEGIN IMMEDIATE")
        for accept in ("application/json", "text/event-stream"):
            begun = time.monotonic()
            refused = service.post("hello", conversation, headers={**headers, "Accept": accept})
            assert (refused.status, refused.code) == (503, "store_unavailable")
            _retry_after(refused.headers.get("retry-after"))
            assert time.monotonic() - begun < 6
        database.rollback()

    def accepted() -> str | None:
        reply = service.post("hello", conversation, headers=headers)
        return str(reply.json["turn_id"]) if reply.status == 202 else None

    service.settled(str(wait_until(accepted, what="the store's return")))

    def only_one() -> bool:
        with service.database() as database:
            rows = database.execute("SELECT count(*) FROM turns WHERE conversation_id = ?", (conversation,))
            return bool(rows.fetchone() == (1,))

    wait_until(only_one, what="the going of the refused ones")
    assert len(service.messages(conversation)) == 2


def test_a_draining_service_sends_new_viewers_away_by_an_event(upstream: Upstream) -> None:
    """After SIGTERM: a GET is 200 with a long `retry` and `draining`, a POST 503; then it ends in order (R6)."""
    with Service(upstream) as service:
        conversation = service.conversation()
        stays = service.stream("drip 60")
        stays.wait_for("text_delta")
        turn = stays.events[0]["turn_id"]
        service.sigterm()
        wait_until(lambda: service.call("GET", "/readyz").status == 503, what="the drain")
        with service.attach(turn) as late:
            assert late.status == 200
            late.read_to_end()
        assert late.events[-1].json == {"type": "stream_end", "reason": "draining", "resume": True}
        assert late.parser.retry is not None
        assert 5000 <= late.parser.retry <= 15000
        for accept in ("application/json", "text/event-stream"):
            refused = service.post("hello", conversation, headers={"Accept": accept})
            assert (refused.status, refused.code) == (503, "draining")
            _retry_after(refused.headers.get("retry-after"))
        assert stays.read_to_end().types[-3:] == ["completion", "message_saved", "stream_end"]
        assert stays.events[-1]["reason"] == "done"
        assert service.wait_exit() == 0
