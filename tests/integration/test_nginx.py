"""The shipped nginx block, before a real service: it streams, repeats no work, and keeps secrets out of its log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from tests.breaking_proxy import Breaks, breaking_proxy
from tests.event_stream import Stream
from tests.nginx import Nginx, free_port, nginx
from tests.service import Service, wait_until
from tests.upstream import Finish, Head, Pause, Text, Upstream, drip, say

GZIP = "gzip on; gzip_min_length 1; gzip_types text/event-stream application/x-ndjson text/plain;"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    def plan(request: object) -> object:
        text = str(getattr(request, "body", ""))
        if "silent" in text:
            return [Head(), Pause(4.0), Text("at last"), Finish()]
        return drip("word {} ", 20, 0.05) if "drip" in text else say("hello")

    with Upstream(plan) as one:
        yield one


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    with Service(upstream, config={"server": {"trusted_proxies": ["127.0.0.1"]}}, start=False) as one:
        one.write_config()
        one.key = one.make_key("ada")
        yield one.start()


@pytest.fixture(scope="module")
def api(service: Service, upstream: Upstream) -> Iterator[Service]:
    """A process for short requests on the same store."""
    config = {"server": {"role": "api", "trusted_proxies": ["127.0.0.1"]}, "store": service.config["store"]}
    with Service(upstream, config=config) as one:
        yield one


@pytest.fixture(scope="module")
def front(service: Service) -> Iterator[Nginx]:
    with nginx([service.port], http=GZIP) as one:
        yield one


Open = Callable[..., Stream]


@pytest.fixture
def go(service: Service) -> Iterator[Open]:
    """A request through an nginx, by default with the user's key; every response is closed at the end."""
    with contextlib.ExitStack() as opened:

        def send(front: Nginx, method: str, path: str, body: bytes | None = None, **headers: str) -> Stream:
            sent = {"Content-Type": "application/json", "Accept-Encoding": "gzip", **service.headers(), **headers}
            return opened.enter_context(Stream(front.port, method, path, headers=sent, body=body))

        yield send


def test_events_come_as_they_are_made_through_the_shipped_block(front: Nginx, service: Service, go: Open) -> None:
    """F1, F2: with gzip on around it, the stream is not compressed, the early bytes come first, and events one by one."""
    path = f"/v1/conversations/{service.conversation()}/turns"
    stream = go(front, "POST", path, b'{"input": "drip"}', Accept="text/event-stream")
    stream.read_to_end()
    assert "content-encoding" not in stream.headers
    assert stream.raw.startswith(b": ok\nretry: ")
    deltas = stream.of("text_delta")
    assert len(deltas) > 10
    spread = deltas[-1].at - deltas[0].at
    assert spread > 0.5, "twenty words, a twentieth of a second apart, did not come over time"
    assert max(event.at - event["ts"] / 1000 - (time.monotonic() - time.time()) for event in deltas) < 0.5


def test_resume_works_through_the_shipped_block(front: Nginx, service: Service, go: Open) -> None:
    """R2, R5: the cursor passes the proxy, and so does the 204 after the end."""
    turn = service.start_turn("drip")
    first = go(front, "GET", f"/v1/turns/{turn}/events", Accept="text/event-stream")
    first.wait_for(lambda s: len(s.events) >= 4)
    first.close()
    cursor = first.events[3].id or ""
    rest = go(front, "GET", f"/v1/turns/{turn}/events", Accept="text/event-stream", **{"Last-Event-ID": cursor})
    rest.read_to_end()
    assert rest.events[0].seq == (first.events[3].seq or 0) + 1
    over = go(front, "GET", f"/v1/turns/{turn}/events", Accept="text/event-stream", **{"Last-Event-ID": rest.last_id})
    assert over.status == 204


def test_no_ticket_reaches_the_log_of_the_proxy(front: Nginx, service: Service, go: Open) -> None:
    """A4: a ticket travels in the query, and the shipped log has none."""
    turn = service.start_turn("hello")
    ticket = service.call("POST", f"/v1/turns/{turn}/tickets").json["ticket"]
    stream = go(front, "GET", f"/v1/turns/{turn}/events?ticket={ticket}", Authorization="")
    stream.read_to_end()
    assert stream.of("completion")
    wait_until(lambda: f"/v1/turns/{turn}/events" in front.log, what="the log line")
    assert ticket not in front.log
    assert "?" not in front.log


def test_figures_stay_inside(front: Nginx, service: Service, go: Open) -> None:
    """A4: /metrics is there for the inside, and 404 through the proxy."""
    assert service.call("GET", "/metrics").status == 200
    assert go(front, "GET", "/metrics").status == 404


def test_an_eventsource_is_told_to_come_back_when_no_server_answers(go: Open) -> None:
    """R6: nginx's own 502 becomes 200, a comment and `retry`, since an EventSource never comes back from an error."""
    with nginx([free_port()]) as front:
        stream = go(front, "GET", "/v1/turns/turn_x/events", Accept="text/event-stream")
        stream.read_to_end()
        assert stream.status == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.parser.retry == 3000
        assert not stream.events
        post = go(front, "POST", "/v1/conversations/c/turns", b"{}")
        assert post.status == 502


def test_a_refusal_of_the_service_passes_through(front: Nginx, service: Service, go: Open) -> None:
    """A wrong key on the events path is still 401: only nginx's own errors are turned."""
    turn = service.start_turn("hello")
    service.settled(turn)
    reply = go(front, "GET", f"/v1/turns/{turn}/events", Authorization="Bearer wrong")
    assert reply.status == 401
    assert reply.json["code"] == "unauthenticated"


def test_a_silent_model_behind_a_short_read_timeout_runs_one_turn(upstream: Upstream, service: Service, go: Open) -> None:
    """F2, F5, R9: two servers in the proxy and a model that is silent for longer than its read timeout: one run."""
    before = len(upstream.requests)
    change = ("proxy_read_timeout 75s;", "proxy_read_timeout 2s;")
    with nginx([service.port, service.port], change=change) as front:
        path = f"/v1/conversations/{service.conversation()}/turns"
        stream = go(front, "POST", path, b'{"input": "silent"}', Accept="text/event-stream")
        stream.read_to_end()
        # Cut by the proxy after its two seconds; the turn goes on, and the client comes back to it.
        turn = str(stream.events[0]["turn_id"])
        done = service.settled(turn)
        assert done["blocks"] == [{"block": 1, "text": "at last"}]
    assert len(upstream.requests) == before + 1


def test_each_role_gets_what_is_its_own(service: Service, api: Service, go: Open) -> None:
    """Turns and streams go to the one upstream, which is named twice, and all that is short to the other."""
    with nginx([service.port, service.port], api=api.port) as front:
        made = go(front, "POST", "/v1/conversations", b"{}")
        conversation = made.json["id"]
        stream = go(
            front, "POST", f"/v1/conversations/{conversation}/turns", b'{"input": "drip"}', Accept="text/event-stream"
        )
        stream.wait_for("text_delta")
        turn = str(stream.events[0]["turn_id"])
        ticket = go(front, "POST", f"/v1/turns/{turn}/tickets").json["ticket"]
        other = go(front, "GET", f"/v1/turns/{turn}/events?ticket={ticket}", Authorization="")
        assert go(front, "POST", f"/v1/turns/{turn}/cancel").status == 202
        for one in (stream, other):
            one.read_to_end()
            assert one.of("completion")[0]["status"] == "cancelled"
        assert len(go(front, "GET", f"/v1/conversations/{conversation}/messages").json["items"]) == 2
    short = [line for line in api.log().splitlines() if '"path":"/v1/' in line]
    for ending in ("/tickets", "/cancel", "/messages"):
        assert [line for line in short if f'{ending}"' in line]
    assert not [line for line in short if '/events"' in line or '/turns"' in line]


@pytest.mark.parametrize("early", [0, 5], ids=["before the early bytes", "after them"])
def test_a_connection_that_is_reset_repeats_no_work(early: int, service: Service, upstream: Upstream, go: Open) -> None:
    """R9, X1: the upstream resets the first connection of each request before or after its first bytes. A GET goes on to
    the second address, or comes back by itself; a POST is never repeated, and comes back with its key."""
    before = len(upstream.requests)
    breaks = Breaks(reset_after=early)
    with breaking_proxy(service.port, breaks) as broken, nginx([broken, service.port], api=service.port) as front:
        turn = service.start_turn("drip")
        first = go(front, "GET", f"/v1/turns/{turn}/events", Accept="text/event-stream")
        first.read_to_end()
        if early:
            assert first.broken
            first = go(front, "GET", f"/v1/turns/{turn}/events", Accept="text/event-stream")
            first.read_to_end()
        assert first.of("completion")[0]["status"] == "complete"
        path = f"/v1/conversations/{service.conversation()}/turns"
        key = {"Idempotency-Key": f"reset {early}"}
        for _ in range(4):
            posted = go(front, "POST", path, b'{"input": "drip"}', Accept="text/event-stream", **key)
            posted.read_to_end()
            if posted.of("completion"):
                break
        assert posted.of("completion")[0]["status"] == "complete"
    assert len(upstream.requests) == before + 2
