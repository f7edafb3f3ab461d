"""A tool's child process: whatever ends the call or the service, nothing of it is left a second later."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.event_stream import Stream
from tests.plan_by_words import last_words
from tests.service import Service, wait_until
from tests.upstream import Request, Script, Upstream, say, use

RUNGS = {"tool": 2, "turn": 6, "request": 7, "drain": 8, "shutdown": 9, "reserve": 0.5,
         "model_first_token": 3, "model_between_tokens": 3}  # fmt: skip
# Each child sleeps for a time of its own, by which it is found among the processes of the machine.
_marks = (f"6{os.getpid()}.{n}" for n in itertools.count(1))


def _plan(request: Request) -> Script:
    if request.body["messages"][-1]["role"] == "tool":
        return say("told")
    # The child leaves its own group and has a child, too.
    shell = f"setsid sleep {last_words(request)} & sleep {last_words(request)}"
    return use(("call_1", "run_program", {"argv": ["sh", "-c", shell]}))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Upstream(_plan) as upstream, Service(upstream, rungs=RUNGS) as running:
        yield running


def _children(mark: str) -> list[int]:
    """The processes that sleep for so long."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"sleep" in (words := (entry / "cmdline").read_bytes()) and mark.encode() in words:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _started(service: Service) -> tuple[str, Stream]:
    """A turn whose tool has both of its children."""
    mark = next(_marks)
    stream = service.stream(mark)
    # The shell, which names the time as well, and two sleeps.
    wait_until(lambda: len(_children(mark)) >= 3, what="the children")
    return mark, stream


def _gone_by(mark: str, moment: float) -> None:
    wait_until(lambda: not _children(mark), timeout=max(0.1, moment - time.monotonic()), what="the children's end")


def test_no_child_is_left_after_its_timeout(service: Service) -> None:
    """PROTOCOL 9, `run_process`: it dies with all its descendants on timeout; the model is told and goes on."""
    mark, stream = _started(service)
    end = stream.wait_for("tool_end")
    _gone_by(mark, end.at + 1)
    assert end["status"] == "timeout"
    assert stream.read_to_end().of("completion")[0]["status"] == "complete"


def test_no_child_is_left_after_a_cancel(service: Service) -> None:
    """PROTOCOL 9, `run_process`: within a second of the cancel, which ends the turn as `cancelled`."""
    mark, stream = _started(service)
    turn = stream.events[0]["turn_id"]
    assert service.call("POST", f"/v1/turns/{turn}/cancel").status == 202
    _gone_by(mark, time.monotonic() + 1)
    stream.read_to_end()
    assert [e["status"] for e in stream.of("tool_end")] == ["cancelled"]
    assert stream.of("completion")[0]["status"] == "cancelled"


def test_no_child_is_left_after_a_crash(service: Service) -> None:
    """PROTOCOL 9, `run_process`: the death of the service is the child's, too; the call, which is safe, runs again."""
    mark, stream = _started(service)
    turn = stream.events[0]["turn_id"]
    service.kill9()
    _gone_by(mark, time.monotonic() + 1)
    service.start()
    assert [t["status"] for t in service.settled(turn)["tools"]] == ["timeout"]
    assert not _children(mark)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_child_is_left_after_a_drain(service: Service, number: signal.Signals) -> None:
    """PROTOCOL 9, `run_process`; section 5: the turn has its time to finish, and its child is gone when the process is.

    SIGINT goes to the whole group, as from a terminal.
    """
    mark, stream = _started(service)
    os.killpg(service.pid, number)
    assert service.wait_exit(RUNGS["shutdown"]) == 0
    _gone_by(mark, time.monotonic() + 1)
    assert stream.read_to_end(5).broken is None
    assert stream.of("completion")[0]["status"] == "complete"
    assert stream.events[-1]["reason"] == "done"
    service.start()
