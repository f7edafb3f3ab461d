"""Idempotency-Key: the first request starts the turn, a repeat attaches to it (PROTOCOL H3)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest

from tests.plan_by_words import ANSWER, by_words
from tests.service import Reply, Service, wait_until
from tests.upstream import Upstream

DAY = 24 * 3600 * 1000


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(by_words) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    with Service(upstream, config={"limits": {"turns_per_user": 3}}, start=False) as running:
        running.key = running.make_key("ann")
        running.start()
        yield running


@pytest.fixture(scope="module")
def bob(service: Service) -> str:
    return service.make_key("bob")


_numbers = iter(range(1, 1000))


@pytest.fixture
def key() -> str:
    return f"test-{next(_numbers)}"


def _post(service: Service, conversation: str, body: object, key: str, **more: str) -> Reply:
    path = f"/v1/conversations/{conversation}/turns"
    return service.call("POST", path, body, headers={"Idempotency-Key": key, **more})


def test_a_repeat_attaches_to_the_same_turn_and_starts_nothing(service: Service, upstream: Upstream, key: str) -> None:
    """After its end and while it runs, the same key and body are the same turn, and one model call (H3)."""
    conversation = service.conversation()
    before = len(upstream.requests)
    first = _post(service, conversation, {"input": "hang"}, key)
    again = _post(service, conversation, {"input": "hang"}, key)
    assert (first.status, again.status) == (202, 202)
    assert again.json["turn_id"] == first.json["turn_id"]
    assert again.json["message_id"] == first.json["message_id"]
    service.call("POST", first.json["cancel_url"])
    service.settled(first.json["turn_id"])
    late = _post(service, conversation, {"input": "hang"}, key)
    assert (late.json["turn_id"], late.json["status"]) == (first.json["turn_id"], "done")
    assert len(upstream.requests) - before <= 1
    assert len(service.messages(conversation)) == 2


def test_the_same_json_in_another_spelling_is_the_same_body(service: Service, key: str) -> None:
    """Order of keys, whitespace, escapes and the spelling of numbers do not matter: bodies are compared as JSON (H3)."""
    conversation = service.conversation()
    first = _post(service, conversation, b'{"input":"caf\xc3\xa9","metadata":{"a":1,"b":[true,null]}}', key)
    again = _post(service, conversation, b' { "metadata" : {"b": [true , null], "a" : 1.0}, "input" : "caf\\u00e9" }\n', key)
    assert (first.status, again.status) == (202, 202)
    assert again.json["turn_id"] == first.json["turn_id"]
    service.settled(first.json["turn_id"])


@pytest.mark.parametrize(
    "other",
    [
        {"input": "hello!"},
        {"input": "hello", "profile": "anthropic"},
        {"input": "hello", "metadata": {}},
        {"input": "hello", "metadata": {"n": True}},
        {"input": "hello", "on_busy": "enqueue"},
        {"input": [{"type": "text", "text": "hello"}]},
    ],
    ids=["input", "profile", "metadata", "true", "on_busy", "parts"],
)
def test_another_body_under_the_same_key_is_409(service: Service, key: str, other: dict[str, object]) -> None:
    """409 `idempotency_key_reused`, whatever differs (H3)."""
    conversation = service.conversation()
    same = {"metadata": {"n": 1}} if other.get("metadata") else {}
    first = _post(service, conversation, {"input": "hello", **same}, key)
    refused = _post(service, conversation, other, key)
    assert (refused.status, refused.code) == (409, "idempotency_key_reused")
    service.settled(first.json["turn_id"])


def test_the_same_key_in_another_conversation_is_409(service: Service, key: str) -> None:
    """The conversation belongs to what is compared (H3)."""
    first = _post(service, service.conversation(), {"input": "hello"}, key)
    refused = _post(service, service.conversation(), {"input": "hello"}, key)
    assert (refused.status, refused.code) == (409, "idempotency_key_reused")
    service.settled(first.json["turn_id"])


def test_a_repeat_may_accept_another_form(service: Service, key: str) -> None:
    """JSON first, then SSE, then NDJSON: the same turn from its first event (H2, H3)."""
    conversation = service.conversation()
    turn = _post(service, conversation, {"input": "hello"}, key).json["turn_id"]
    headers = {"Idempotency-Key": key}
    with service.stream("hello", conversation, headers=headers) as sse:
        sse.read_to_end()
    with service.stream("hello", conversation, headers=headers, accept="application/x-ndjson") as lines:
        lines.read_to_end()
    for stream in (sse, lines):
        assert stream.status == 200
        assert stream.events[0].type == "turn_started"
        assert stream.events[0]["turn_id"] == turn
        assert stream.text == ANSWER
    assert [event.json for event in sse.events] == [event.json for event in lines.events]


def test_a_repeat_with_a_cursor_goes_on_after_it(service: Service, key: str) -> None:
    """The same POST with Last-Event-ID resumes; with the last id of all it is 204 (H3, R5)."""
    conversation = service.conversation()
    headers = {"Idempotency-Key": key}
    with service.stream("hello", conversation, headers=headers) as whole:
        whole.read_to_end()
    cursor = whole.events[1].id
    assert cursor is not None
    with service.stream("hello", conversation, headers={**headers, "Last-Event-ID": cursor}) as rest:
        rest.read_to_end()
    assert [event.raw for event in rest.events] == [event.raw for event in whole.events[2:]]
    with service.stream("hello", conversation, headers={**headers, "Last-Event-ID": whole.last_id}) as none:
        assert none.status == 204


def test_many_at_once_with_one_key_are_one_turn(service: Service, upstream: Upstream, key: str) -> None:
    """Eight equal requests at the same moment: one turn, one model call, eight equal answers (H3)."""
    conversation = service.conversation()
    before = len(upstream.requests)
    replies: list[Reply] = []

    def ask() -> None:
        replies.append(_post(service, conversation, {"input": "hello"}, key))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply.status for reply in replies] == [202] * 8
    [turn] = {reply.json["turn_id"] for reply in replies}
    service.settled(turn)
    assert len(upstream.requests) - before == 1


def test_keys_belong_to_their_user(service: Service, bob: str, key: str) -> None:
    """Two users with the same key and words have a turn each, and neither learns of the other's (H3, A2)."""
    mine = service.post("hello", headers={"Idempotency-Key": key}).json["turn_id"]
    other = service.post("hello", headers={"Idempotency-Key": key}, key=bob)
    assert other.status == 202
    assert other.json["turn_id"] != mine
    service.settled(mine)
    service.settled(other.json["turn_id"], key=bob)


def test_a_refusal_uses_no_key(service: Service, key: str) -> None:
    """After 404, 409 busy, 413 and 422 the same key starts a turn as if never seen (H3, H5)."""
    conversation = service.conversation()
    assert _post(service, "conv_none", {"input": "hello"}, key).code == "not_found"
    assert _post(service, conversation, {"input": "hello", "profile": "nobody"}, key).code == "unknown_profile"
    assert _post(service, conversation, {"input": "a" * 100_001}, key).code == "too_large"
    assert _post(service, conversation, {"input": ""}, key).code == "invalid_request"
    open_turn = service.start_turn("hang", conversation)
    assert _post(service, conversation, {"input": "hello"}, key).code == "conversation_busy"
    service.call("POST", f"/v1/turns/{open_turn}/cancel")
    service.settled(open_turn)
    accepted = _post(service, conversation, {"input": "hello"}, key)
    assert accepted.status == 202
    service.settled(accepted.json["turn_id"])


def test_the_key_is_looked_up_before_busy_and_capacity(service: Service, key: str) -> None:
    """A repeat is answered while its own turn makes the conversation busy and its user is at the cap (H3)."""
    conversation = service.conversation()
    turns = [_post(service, conversation, {"input": "hang"}, key).json["turn_id"]]
    turns += [service.start_turn("hang") for _ in range(2)]
    full = service.post("hello")
    assert (full.status, full.code) == (429, "over_capacity")
    assert _post(service, conversation, {"input": "hang"}, key).json["turn_id"] == turns[0]
    for turn in turns:
        service.call("POST", f"/v1/turns/{turn}/cancel")
        service.settled(turn)


def test_a_key_is_forgotten_after_a_day(service: Service, key: str) -> None:
    """23 hours later it is known, 25 hours later it starts a turn of its own, also with another body (H3)."""
    conversation = service.conversation()
    first = _post(service, conversation, {"input": "hello"}, key).json["turn_id"]
    service.settled(first)

    def age(hours: int) -> None:
        with service.database() as database:
            moment = int(time.time() * 1000) - hours * 3600 * 1000
            database.execute("UPDATE idempotency_keys SET created_at = ? WHERE key = ?", (moment, key))

    age(23)
    assert _post(service, conversation, {"input": "hello"}, key).json["turn_id"] == first
    assert _post(service, conversation, {"input": "other"}, key).status == 409
    age(25)
    second = _post(service, conversation, {"input": "other"}, key)
    assert second.status == 202
    assert second.json["turn_id"] != first
    service.settled(second.json["turn_id"])


@pytest.mark.parametrize("bad", ["", "k" * 256, "a\tb", "caf\u0085"])
def test_a_key_that_is_none_is_422(service: Service, bad: str) -> None:
    """A key has 1 to 255 printable characters (H3)."""
    reply = _post(service, service.conversation(), {"input": "hello"}, bad)
    assert (reply.status, reply.code) == (422, "invalid_request")


def test_the_longest_key_is_taken(service: Service) -> None:
    """255 characters, spaces and Latin-1 letters among them (H3)."""
    key = "caf\u00e9 ~!" + "k" * 248
    conversation = service.conversation()
    reply = _post(service, conversation, {"input": "hello"}, key)
    assert reply.status == 202
    assert _post(service, conversation, {"input": "hello"}, key).json["turn_id"] == reply.json["turn_id"]
    service.settled(reply.json["turn_id"])


def test_a_key_is_known_after_a_restart(service: Service, upstream: Upstream, key: str) -> None:
    """It is in the store, not in the process: a repeat after a restart finds the old turn (H3)."""
    conversation = service.conversation()
    turn = _post(service, conversation, {"input": "hello"}, key).json["turn_id"]
    service.settled(turn)
    service.stop()
    service.start()
    before = len(upstream.requests)
    again = _post(service, conversation, {"input": "hello"}, key)
    assert (again.json["turn_id"], again.json["status"]) == (turn, "done")
    with service.stream("hello", conversation, headers={"Idempotency-Key": key}) as stream:
        stream.read_to_end()
    assert stream.types == ["snapshot", "stream_end"]
    assert json.dumps(stream.events[0]["blocks"]) == json.dumps([{"block": 1, "text": ANSWER}])
    wait_until(lambda: len(service.messages(conversation)) == 2)
    assert len(upstream.requests) == before
