"""Slow, stuck and departing viewers: they cost their turn and the others nothing (PROTOCOL R7, H6; section 6)."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.event_stream import SSEParser
from tests.plan_by_words import WIDE, by_words
from tests.service import Service, wait_until
from tests.upstream import Finish, Pause, Request, Script, Text, Upstream


def _flood(request: Request) -> Script:
    """Some 300 KB a second, for as long as the turn may run; other words as usual."""
    if "flood" not in request.raw.decode():
        yield from by_words(request)
        return
    for number in range(1_000_000):
        yield Text(f"{number:07} " + "x" * 1400)
        yield Pause(0.005)
    yield Finish()


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(_flood) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    """One in which a viewer that takes nothing is given up after two seconds."""
    limits = {"answer_chars": 100_000_000, "log_bytes": 4_000_000}
    with Service(upstream, rungs={"viewer_write": 2.0}, config={"limits": limits}) as running:
        yield running


def _raw_viewer(service: Service, turn: str, *, room: int = 8192) -> socket.socket:
    """A connection that has asked for the turn's events and takes them only when the test reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    sock.connect(("127.0.0.1", service.port))
    head = f"GET /v1/turns/{turn}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    sock.sendall(head.encode())
    return sock


def _viewers(service: Service) -> int:
    found = re.search(r"^earlybyte_open_viewers (\d+)", service.call("GET", "/metrics").body.decode(), re.MULTILINE)
    assert found, service.call("GET", "/metrics").body[-2000:]
    return int(found[1])


def _memory(service: Service) -> int:
    """Resident bytes of the process."""
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{service.pid}/status").read_text())[1]) * 1024  # type: ignore[index]


def test_a_viewer_that_never_reads_is_dropped_and_harms_nobody(service: Service) -> None:
    """It is closed after `viewer_write`; memory stays bounded; another viewer gets all, without a pause (R7, section 6)."""
    turn = service.start_turn("flood")
    with contextlib.ExitStack() as stuck, service.attach(turn) as reader:
        reader.wait_for("text_delta")
        before = _memory(service)
        for _ in range(5):
            stuck.enter_context(contextlib.closing(_raw_viewer(service, turn)))
        wait_until(lambda: _viewers(service) == 6, what="six viewers")
        wait_until(lambda: _viewers(service) == 1, 20, "the going of the stuck viewers")
        gained = _memory(service) - before
        at = len(reader.events)
        reader.wait_for(lambda s: len(s.events) > at + 50)
        service.call("POST", f"/v1/turns/{turn}/cancel")
        reader.read_to_end()
    assert gained < 40 << 20
    numbers = [int(n) for n in re.findall(r"(\d{7}) ", reader.text)]
    assert numbers == list(range(len(numbers)))
    gaps = [b[0] - a[0] for a, b in zip(reader.pieces, reader.pieces[1:], strict=False)]
    assert max(gaps) < 2.0
    said = [line for line in service.log().splitlines() if "viewer_write" in line]
    assert len(said) == 5
    assert all("timeout" in line for line in said)
    assert '"level":"error"' not in service.log()


@pytest.mark.slow
def test_a_viewer_that_falls_behind_is_told_lagging_and_resumes(upstream: Upstream) -> None:
    """Reading a tenth of what is made, it is told `lagging` after 10 s, closed, and goes on by id without a gap (R7)."""
    limits = {"answer_chars": 100_000_000}
    with Service(upstream, config={"limits": limits}) as service:
        _fall_behind(service, service.start_turn("flood"))


def _fall_behind(service: Service, turn: str) -> None:
    parser, pieces = SSEParser(), []
    with contextlib.closing(_raw_viewer(service, turn)) as sock:
        sock.settimeout(20)
        begun = time.monotonic()
        while True:
            piece = sock.recv(4096)
            if not piece:
                break
            pieces.append(piece)
            if b'"lagging"' in b"".join(pieces[-2:]):
                break
            assert time.monotonic() - begun < 50, "never told"
            if time.monotonic() - begun < 25:
                time.sleep(0.05)  # the pace of a slow line, about 80 KB a second
        took = time.monotonic() - begun
    head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
    assert b" 200 " in head
    seen = parser.feed(_unchunked(body), 0.0)
    assert seen[-1].json == {"type": "stream_end", "reason": "lagging", "resume": True}
    assert took > 9
    with service.attach(turn, parser.last_id) as stream:
        stream.wait_for(lambda s: s.events)
        assert stream.events[0].seq == (seen[-2].seq or 0) + 1
        service.call("POST", f"/v1/turns/{turn}/cancel")
        stream.read_to_end()


def _unchunked(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        out += rest[:length]
        body = rest[length + 2 :]
        if not length:
            break
    return out


def test_a_viewer_that_is_slow_but_takes_something_is_not_dropped(service: Service) -> None:
    """`viewer_write` is for peers that take nothing: one that takes a little all the time gets it all (section 6)."""
    turn = service.start_turn("wide 12")
    service.settled(turn)
    with contextlib.closing(_raw_viewer(service, turn)) as sock:
        sock.settimeout(20)
        data = b""
        while b"stream_end" not in data[-200:]:
            piece = sock.recv(16_384)
            assert piece, "closed before its end"
            data += piece
            time.sleep(0.1)  # the pace of a slow line: four times the write limit for all of it
    assert len(data) > len(WIDE) * 12


def test_slow_is_not_stuck_however_long_a_write_takes(service: Service) -> None:
    """On a line of 14 KB/s one write takes longer than `viewer_write`, and the peer takes some of it all the time."""
    turn = service.start_turn("wide 12")
    service.settled(turn)
    with contextlib.closing(socket.socket()) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", service.port))
        sock.sendall(f"GET /v1/turns/{turn}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        begun = time.monotonic()
        while time.monotonic() - begun < 8:
            assert sock.recv(1400)
            time.sleep(0.1)
        assert "viewer_write" not in service.log().rpartition(turn)[2]
        assert _viewers(service) == 1
    wait_until(lambda: _viewers(service) == 0, what="the going of the slow viewer")


@pytest.mark.slow
def test_an_unwatched_turn_is_cancelled_only_where_that_was_asked_for(upstream: Upstream) -> None:
    """`on_disconnect: cancel`: 10 s after the last viewer has gone, not while one is left, not before the first (H6).

    A viewer that was sent away by a `stream_end` has 60 s to come back.
    """
    with Service(upstream, rungs={"connection_age": 3.0}) as service:

        def begun(**fields: str) -> str:
            with service.stream("hang", **fields) as stream:
                stream.wait_for("text_delta")
                return str(stream.wait_for("turn_started")["turn_id"])

        gone = begun(on_disconnect="cancel")
        left_at = time.monotonic()
        by_default = begun()
        back_again = begun(on_disconnect="cancel")
        watched = begun(on_disconnect="cancel")
        rotated = begun(on_disconnect="cancel")
        never_watched = service.start_turn("hang", on_disconnect="cancel")
        with service.attach(rotated) as stream:
            assert stream.read_to_end().events[-1]["reason"] == "rotated"
        with service.attach(watched) as stays, service.attach(watched):
            stays.wait_for("text_delta")
            with service.attach(back_again) as stream:
                stream.wait_for("text_delta")
            came_back_at = time.monotonic()
            wait_until(lambda: service.turn(gone)["status"] == "done", 20, "the end of the unwatched turn")
            assert time.monotonic() - left_at > 9.5
            assert service.turn(gone)["terminal"]["finish_reason"] == "cancelled"
            if time.monotonic() - came_back_at < 8:
                assert service.turn(back_again)["status"] == "running"
            for other in (by_default, watched, rotated, never_watched):
                assert service.turn(other)["status"] == "running"
            wait_until(lambda: service.turn(back_again)["status"] == "done", 20, "the end of the one left later")
            assert time.monotonic() - came_back_at > 9.5
        for other in (by_default, rotated, never_watched):
            assert service.turn(other)["status"] == "running"
