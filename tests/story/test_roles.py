"""Separate budgets: a process with the role `stream` runs turns and serves viewers, one with `api` answers short requests.

They share the store and nothing else; what people ask of a turn at the `api` reaches its owner within a second.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from app.store.schema import migrate
from tests.plan_by_words import by_words
from tests.postgres import PostgresServer, postgres
from tests.service import Service, wait_until
from tests.upstream import Upstream

__all__ = ["postgres"]


@dataclass
class Pair:
    """Two processes on one store."""

    stream: Service
    api: Service


def on_store_of(other: Service, upstream: Upstream, **more: Any) -> Service:
    """Another service on the same store; not started."""
    config = {"store": {"url": other.config["store"]["url"]}, **more}
    return Service(upstream, config=config, env={"TEST_LEDGER": str(other.ledger_file)}, start=False)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(by_words) as upstream:
        yield upstream


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def pair(request: pytest.FixtureRequest, upstream: Upstream) -> Iterator[Pair]:
    config: dict[str, Any] = {"server": {"role": "stream"}}
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = anyio.run(server.new_database)
        anyio.run(migrate, url)
        config["store"] = {"url": url}
    with (
        Service(upstream, config=config) as stream,
        on_store_of(stream, upstream, server={"role": "api", "port": 0}) as api,
    ):
        yield Pair(stream, api.start())


def test_a_cancel_at_the_api_reaches_the_turn_within_a_second(pair: Pair) -> None:
    """202 while it stops, 200 when it is over, as everywhere."""
    stream = pair.stream.stream("drip 400")
    stream.wait_for("text_delta")
    turn = str(stream.events[0]["turn_id"])
    asked = time.monotonic()
    assert pair.api.call("POST", f"/v1/turns/{turn}/cancel").status == 202
    stream.wait_for("completion")
    assert time.monotonic() - asked < 1.5  # 1 s, and something for a machine that is busy with other tests
    assert stream.of("completion")[0]["status"] == "cancelled"
    stream.wait_for("message_saved")
    again = pair.api.call("POST", f"/v1/turns/{turn}/cancel")
    assert (again.status, again.json["status"]) == (200, "done")


@pytest.mark.parametrize(("decision", "rows"), [("approve", 1), ("deny", 0)])
def test_an_approval_at_the_api_reaches_the_turn_within_a_second(pair: Pair, decision: str, rows: int) -> None:
    """The answer is stored and heard; the same again is 200, another one 409, also after the end."""
    value = f"{decision} by way of the store"
    stream = pair.stream.stream(f'call guarded {{"value": "{value}"}}')
    stream.wait_for("approval_required")
    asked = stream.of("approval_required")[0]
    turn = str(stream.events[0]["turn_id"])
    assert pair.api.turn(turn)["status"] == "waiting"
    path = f"/v1/turns/{turn}/approvals/{asked['approval_id']}"
    answered = time.monotonic()
    assert pair.api.call("POST", path, {"decision": decision}).status == 200
    stream.wait_for("approval_resolved")
    assert time.monotonic() - answered < 1.5
    stream.wait_for("completion")
    assert stream.of("approval_resolved")[0]["decision"] == decision
    assert len(pair.stream.ledger(arguments={"value": value})) == rows
    other = {"approve": "deny", "deny": "approve"}[decision]
    assert pair.api.call("POST", path, {"decision": decision}).status == 200
    assert pair.api.call("POST", path, {"decision": other}).status == 409


def test_the_api_shows_a_turn_that_runs_elsewhere(pair: Pair) -> None:
    """State and everything up to the last checkpoint; which turn is open; the history when it is done."""
    conversation = pair.api.conversation()
    stream = pair.stream.stream("drip 60", conversation)
    stream.wait_for("text_delta")
    turn = str(stream.events[0]["turn_id"])
    active = pair.api.call("GET", f"/v1/conversations/{conversation}/active")
    assert (active.status, active.json["turn_id"], active.json["status"]) == (200, turn, "running")
    seen = wait_until(lambda: (doc := pair.api.turn(turn))["blocks"] and doc, what="a checkpoint")
    assert seen["status"] == "running"
    assert "".join(f"{n} " for n in range(60)).startswith(seen["blocks"][0]["text"])
    stream.read_to_end(20)
    assert pair.api.turn(turn)["status"] == "done"
    assert pair.api.call("GET", f"/v1/conversations/{conversation}/active").status == 204
    assert [message["role"] for message in pair.api.messages(conversation)] == ["user", "assistant"]


def test_deleting_at_the_api_stops_the_turn_first(pair: Pair) -> None:
    """The viewer sees the end of the turn and why nothing was saved; then all of it is gone, everywhere."""
    conversation = pair.api.conversation()
    stream = pair.stream.stream("drip 400", conversation)
    stream.wait_for("text_delta")
    assert pair.api.call("DELETE", f"/v1/conversations/{conversation}").status == 204
    stream.read_to_end(10)
    assert stream.of("completion")[0]["status"] == "cancelled"
    assert stream.of("message_save_failed")[0]["code"] == "conversation_deleted"
    for service in (pair.api, pair.stream):
        assert service.call("GET", f"/v1/conversations/{conversation}").status == 404
        assert service.call("GET", f"/v1/turns/{stream.events[0]['turn_id']}").status == 404


def test_a_ticket_of_the_api_opens_the_stream(pair: Pair) -> None:
    """An EventSource gets its ticket where short requests are answered."""
    stream = pair.stream.stream("drip 20")
    stream.wait_for("text_delta")
    turn = str(stream.events[0]["turn_id"])
    ticket = pair.api.call("POST", f"/v1/turns/{turn}/tickets").json["ticket"]
    other = pair.stream.attach(turn, query=f"?ticket={ticket}")
    other.read_to_end(20)
    assert other.text == "".join(f"{n} " for n in range(20))


def test_the_api_runs_no_turn_and_follows_none(pair: Pair) -> None:
    """Sent to the wrong process, a request is told so; nothing has begun. A turn that is over can be read anywhere."""
    conversation = pair.api.conversation()
    refused = pair.api.post("hello", conversation)
    assert (refused.status, refused.code) == (421, "wrong_role")
    assert pair.api.messages(conversation) == []
    stream = pair.stream.stream("drip 20", conversation)
    stream.wait_for("text_delta")
    turn = str(stream.events[0]["turn_id"])
    assert pair.api.attach(turn).status == 421
    stream.read_to_end(20)
    over = pair.api.attach(turn)
    over.read_to_end(10)
    assert over.types == ["snapshot", "stream_end"]


def test_many_streams_do_not_slow_what_is_short(pair: Pair) -> None:
    """200 turns that stream for long: a short request is answered as before. Ratios, since machines differ."""
    conversation = pair.api.conversation()

    def short() -> float:
        times = []
        for _ in range(40):
            began = time.monotonic()
            assert pair.api.call("GET", f"/v1/conversations/{conversation}/messages").status == 200
            times.append(time.monotonic() - began)
        return sorted(times)[len(times) // 2]

    before = short()
    turns = [pair.stream.start_turn("drip 400") for _ in range(20)]
    with ExitStack() as viewers:
        for number in range(200):
            # Nobody reads; what there is to send fits into the buffers.
            viewer = viewers.enter_context(socket.create_connection(("127.0.0.1", pair.stream.port)))
            viewer.sendall(f"GET /v1/turns/{turns[number % 20]}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        opened = "earlybyte_open_viewers 200.0"
        wait_until(lambda: opened in pair.stream.call("GET", "/metrics").body.decode(), what="200 streams")
        while_streaming = short()
    for turn in turns:
        pair.api.call("POST", f"/v1/turns/{turn}/cancel")
    for turn in turns:
        pair.stream.settled(turn)
    assert while_streaming < max(0.1, 8 * before)


def test_a_second_process_that_would_run_turns_is_refused(upstream: Upstream) -> None:
    """With `memory://` there is one; the sentence says what to do. The first one does not notice."""
    with (
        Service(upstream) as first,
        on_store_of(first, upstream, server={"role": "stream", "port": 0}) as second,
    ):
        code, said = second.refuses_to_start()
        assert code == 2
        assert "runs turns on" in said
        assert 'server.role = "api"' in said
        assert "Traceback" not in said
        stream = first.stream("drip 3")
        stream.read_to_end(10)
        assert stream.of("completion")[0]["status"] == "complete"


RUNGS = {"tool": 20, "turn": 25, "request": 26, "drain": 27, "shutdown": 28, "kill": 30,
         "model_first_token": 20, "model_between_tokens": 20}  # fmt: skip


def test_the_next_process_begins_while_the_last_one_drains(upstream: Upstream) -> None:
    """A deploy: what waits is handed on at once, what runs ends where it is, and each conversation keeps its order."""
    with (
        Service(upstream, rungs=RUNGS) as old,
        on_store_of(old, upstream, server={"port": 0}, timeouts=RUNGS) as new,
    ):
        waiting = old.stream('call guarded {"value": "handed on"}')
        waiting.wait_for("approval_required")
        conversation = old.conversation()
        running = old.stream("drip 100", conversation)
        running.wait_for("text_delta")
        queued = old.start_turn("drip 3", conversation, on_busy="enqueue")
        old.sigterm()
        new.start()
        # What was handed on: the question is still open, and an answer to the new process is heard.
        turn = str(waiting.events[0]["turn_id"])
        wait_until(lambda: new.turn(turn)["status"] == "waiting", what="the turn that waits")
        question = waiting.of("approval_required")[0]["approval_id"]
        assert new.call("POST", f"/v1/turns/{turn}/approvals/{question}", {"decision": "approve"}).status == 200
        assert new.settled(turn)["terminal"]["status"] == "complete"
        assert len(old.ledger(arguments={"value": "handed on"})) == 1
        # What runs in the old process keeps its conversation busy in the new one.
        assert new.post("too soon", conversation).status == 409
        last = new.start_turn("drip 2", conversation, on_busy="enqueue")
        running.read_to_end(20)
        assert running.text == "".join(f"{n} " for n in range(100))
        assert running.of("message_saved")
        assert old.wait_exit(20) == 0
        ended = [new.settled(one)["terminal"] for one in (queued, last)]
        assert [one["status"] for one in ended] == ["complete", "complete"]
        texts = [message["text"] for message in new.messages(conversation) if message["role"] == "assistant"]
        assert [len(text.split()) for text in texts] == [100, 3, 2]
