"""A service that is told to stop while hardly anything, or only something odd, goes on: it leaves, and soon."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.event_stream import Stream
from tests.plan_by_words import by_words
from tests.service import Service
from tests.upstream import Upstream

RUNGS = {"tool": 3, "turn": 6, "request": 7, "drain": 8, "shutdown": 9, "reserve": 0.5,
         "model_first_token": 3, "model_between_tokens": 3}  # fmt: skip


@dataclass
class Left:
    """A service that has left: its exit code, after how many seconds, and what its clients saw."""

    service: Service
    code: int
    took: float
    streams: list[Stream] = field(default_factory=list)


def _idle(service: Service) -> list[Stream]:
    return []


def _viewers(service: Service) -> list[Stream]:
    """Five viewers of a turn that waits for a person."""
    first = service.stream('call guarded {"value": "v"}')
    first.wait_for("approval_required")
    turn = str(first.events[0]["turn_id"])
    others = [service.attach(turn) for _ in range(4)]
    for stream in others:
        stream.wait_for("approval_required")
    return [first, *others]


def _silent(service: Service) -> list[Stream]:
    """A turn whose model has said nothing: it has its time, and ends by its own timeouts."""
    stream = service.stream("silent")
    stream.wait_for("turn_started")
    return [stream]


def _speaking(service: Service) -> list[Stream]:
    stream = service.stream("drip 40")
    stream.wait_for("text_delta")
    return [stream]


def _half_sent(service: Service) -> list[Stream]:
    """A client that never sends the rest of its request, one that keeps an idle connection, one that reads nothing."""
    head = (
        "POST /v1/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    for bytes_ in (head.encode(), b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
        connection = socket.create_connection(("127.0.0.1", service.port))
        connection.sendall(bytes_)
        _kept.append(connection)
    turn = service.start_turn("big 400000")
    service.settled(turn)
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect(("127.0.0.1", service.port))
    stuck.sendall(f"GET /v1/turns/{turn}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode())
    _kept.append(stuck)
    assert stuck.recv(10) == b"HTTP/1.1 2"
    return []


_kept: list[socket.socket] = []
# What goes on, and how it is told to stop.
CASES: dict[str, tuple[Callable[[Service], list[Stream]], Callable[[int], None]]] = {
    "idle": (_idle, lambda pid: os.kill(pid, signal.SIGTERM)),
    "viewers": (_viewers, lambda pid: os.kill(pid, signal.SIGTERM)),
    "silent": (_silent, lambda pid: os.kill(pid, signal.SIGTERM)),
    "interrupted": (_speaking, lambda pid: os.killpg(pid, signal.SIGINT)),
    "both signals": (_speaking, lambda pid: [os.killpg(pid, n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGINT)]),
    "half sent": (_half_sent, lambda pid: os.kill(pid, signal.SIGTERM)),
}


@pytest.fixture(scope="module")
def left() -> Iterator[dict[str, Left]]:
    with contextlib.ExitStack() as stack, Upstream(by_words) as upstream:

        def leave(name: str) -> Left:
            prepare, tell = CASES[name]
            service = stack.enter_context(Service(upstream, rungs=RUNGS))
            streams = prepare(service)
            asked = time.monotonic()
            tell(service.pid)
            code = service.wait_exit(40)
            took = time.monotonic() - asked
            for stream in streams:
                stream.read_to_end(5)
            return Left(service, code, took, streams)

        with ThreadPoolExecutor(len(CASES)) as pool:
            yield dict(zip(CASES, pool.map(leave, CASES), strict=True))
        for connection in _kept:
            connection.close()


@pytest.mark.parametrize("name", CASES)
def test_the_process_leaves_in_order_and_in_time(left: dict[str, Left], name: str) -> None:
    """Section 5 and 6, SIGTERM: exit code 0 within the graceful stop, whatever clients and models do; with nothing to wait
    for, at once."""
    assert left[name].code == 0
    assert left[name].took < (RUNGS["shutdown"] + 1 if name in ("half sent", "silent") else 4)


@pytest.mark.parametrize("name", ["viewers", "silent", "interrupted", "both signals"])
def test_every_body_ends_in_order(left: dict[str, Left], name: str) -> None:
    """F6: `stream_end` and the final chunk for each viewer; those of a turn that is handed on are told to come back."""
    for stream in left[name].streams:
        assert stream.broken is None
        assert stream.types[-1] == "stream_end"
        expected = ("draining", True) if name == "viewers" else ("done", False)
        assert (stream.events[-1]["reason"], stream.events[-1]["resume"]) == expected


@pytest.mark.parametrize("name", ["interrupted", "both signals"])
def test_a_signal_to_the_whole_group_does_not_pass_by_the_drain(left: dict[str, Left], name: str) -> None:
    """Section 5: the turn that runs finishes, though SIGINT reached every process, and more signals followed."""
    [stream] = left[name].streams
    assert stream.text == "".join(f"{n} " for n in range(40))
    assert stream.of("completion")[0]["status"] == "complete"
    assert stream.of("message_saved")


def test_a_request_whose_end_never_comes_is_answered_all_the_same(left: dict[str, Left]) -> None:
    """A client that sends half a body holds up nothing, and is told so."""
    assert left["half sent"].code == 0
    half_sent = _kept[0]
    half_sent.settimeout(5)
    assert half_sent.recv(12) == b"HTTP/1.1 503"


def test_nothing_was_logged_that_nobody_expects(left: dict[str, Left]) -> None:
    """No traceback and no critical line came from leaving."""
    for one in left.values():
        assert "Traceback" not in one.service.log()
        assert '"level":"critical"' not in one.service.log()
