"""A store that does not take the answer: it is shown all the same, kept, and saved when the store is back (E3)."""

from __future__ import annotations

import contextlib
import resource
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service import Service, wait_until
from tests.upstream import Upstream, drip, say, use


def plan(request: Any) -> Any:
    messages = request.body["messages"]
    if messages[-1]["role"] == "tool":
        return say("told")
    text = str([m["content"] for m in messages if m["role"] == "user"][-1])
    if "tool" in text:
        return [*drip("word{} ", 20, 0.05)[:-1], *use(("t1", "record", {"value": "v"}))]
    return drip("word{} ", 30, 0.05) if "text" in text else say("known")


@pytest.fixture
def world() -> Iterator[tuple[Upstream, Service]]:
    with Upstream(plan) as upstream, Service(upstream) as service:
        yield upstream, service


@contextlib.contextmanager
def locked(service: Service) -> Iterator[threading.Event]:
    """The store locked by another connection, until the block ends or the event is set."""
    release = threading.Event()
    held = threading.Event()

    def hold() -> None:
        connection = sqlite3.connect(service.store_file, timeout=20, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        held.set()
        release.wait(60)
        connection.execute("ROLLBACK")
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    try:
        yield release
    finally:
        release.set()
        thread.join()


def test_an_answer_is_shown_kept_and_saved_later_when_the_store_is_locked(world: tuple[Upstream, Service]) -> None:
    """E3, section 5: `completion` half a second after the last delta at the latest, then `message_save_failed`; the next
    turn knows the text, and the message is in the history when the store is back."""
    upstream, service = world
    conversation = service.conversation()
    stream = service.stream("text", conversation)
    stream.wait_for("text_delta")
    with locked(service):
        stream.read_to_end(40)
    ending = stream.of("completion")[0]
    assert ending["status"] == "complete"
    assert ending["ts"] - stream.of("text_delta")[-1]["ts"] < 500
    assert stream.types[-2:] == ["message_save_failed", "stream_end"]
    service.stream("and now", conversation).read_to_end()
    contents = [m.get("content") for m in upstream.requests[-1].body["messages"] if m["role"] == "assistant"]
    assert contents == [stream.text]
    wait_until(lambda: len(service.messages(conversation)) == 4, what="the message in the history")
    assert [m["text"] for m in service.messages(conversation)][1] == stream.text


@contextlib.contextmanager
def full(service: Service) -> Iterator[None]:
    """The store cannot grow by a byte, as on a disk that is full, until the block ends."""
    before = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
    size = max(path.stat().st_size for path in service.folder.glob("store.db*"))
    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (min(size, 4096), before[1]))
    try:
        yield
    finally:
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, before)


def test_an_answer_outlives_a_full_disk(world: tuple[Upstream, Service]) -> None:
    """The same for a store that has no room: shown at once, owed, and in the history when there is room again."""
    _, service = world
    conversation = service.conversation()
    stream = service.stream("text", conversation)
    stream.wait_for("text_delta")
    with full(service):
        stream.wait_for("completion")
        assert stream.of("completion")[0]["ts"] - stream.of("text_delta")[-1]["ts"] < 500
        stream.read_to_end(30)
        assert [event["code"] for event in stream.of("message_save_failed")] == ["store_unavailable"]
        assert service.call("GET", "/livez").status == 200
    wait_until(lambda: len(service.messages(conversation)) == 2, 30, "the message in the history")
    assert service.messages(conversation)[-1]["text"] == stream.text
    assert service.settled(service.start_turn("known", conversation))["terminal"]["status"] == "complete"


def test_a_tool_whose_start_is_not_on_record_is_not_run(world: tuple[Upstream, Service]) -> None:
    """E4, section 5: within two seconds or not at all; the model is told and goes on."""
    upstream, service = world
    stream = service.stream("tool")
    stream.wait_for("text_delta")
    with locked(service) as release:
        stream.wait_for("tool_end")
        release.set()
        stream.read_to_end(40)
    assert [e["status"] for e in stream.of("tool_end")] == ["error"]
    assert len(stream.of("tool_start")) == 1
    assert not service.ledger(phase="begin", tool="record")
    assert "not run" in str(upstream.requests[-1].body["messages"][-1]["content"])
    assert stream.of("completion")[0]["status"] == "complete"


def test_a_tool_runs_when_its_start_is_on_record_within_two_seconds(world: tuple[Upstream, Service]) -> None:
    """The store says no after one; it is asked again until the two are over (section 5)."""
    _, service = world
    stream = service.stream("tool")
    stream.wait_for("text_delta")
    with locked(service) as release:
        stream.wait_for(lambda s: s.text.count("word") == 20)
        threading.Timer(1.5, release.set).start()
        stream.read_to_end(40)
    assert [e["status"] for e in stream.of("tool_end")] == ["ok"]
    assert len(service.ledger(phase="begin", tool="record")) == 1


def test_a_turn_is_refused_while_the_store_takes_nothing(world: tuple[Upstream, Service]) -> None:
    """F2: the decision takes at most two seconds, else 503; a refused turn leaves nothing behind (H5)."""
    _, service = world
    conversation = service.conversation()
    with locked(service):
        reply = service.post("text", conversation)
        assert (reply.status, reply.code) == (503, "store_unavailable")
        assert reply.headers["retry-after"]
    assert service.call("GET", f"/v1/conversations/{conversation}/active").status == 204
    wait_until(lambda: service.stream("and now", conversation).read_to_end().text == "known", what="the next turn")
    assert service.messages(conversation)[0]["text"] == "and now"
