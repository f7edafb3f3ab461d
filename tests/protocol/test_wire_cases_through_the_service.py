"""Recorded faults of real endpoints through the whole service: a real HTTP upstream, a turn, and what its viewer gets.

Each stream is fed whole, byte by byte where it is small, and cut at random; a later request of the same turn that brings
tool results is answered by one more word, and a second attempt by the same bytes again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.event_stream import Stream
from tests.model_history import faults_of, tool_results
from tests.plan_by_words import last_words
from tests.service import Service
from tests.upstream import Raw, Request, Script, Upstream, say

WIRE = Path(__file__).parent.parent / "data" / "wire"
DIALECTS = {case["file"]: case["dialect"] for case in json.loads((WIRE / "index.json").read_text())}
CUTS: dict[str, dict[str, int]] = {
    "whole": {},
    "byte by byte": {"size": 1},
    "random": {"seed": 1},
    "random too": {"seed": 2},
}
SMALL = 3_000
WAYS = [
    (name, cut)
    for name in DIALECTS
    for cut in CUTS
    if cut != "byte by byte" or (WIRE / f"{name}.sse").stat().st_size < SMALL
]
LAST = "~last~"
NEXT = "and now?"
# Above this a tool_start's arguments are left out (F4).
SHOWN_ARGUMENTS = 16 * 1024


@dataclass(frozen=True)
class Played:
    """One turn with a recorded stream: its model calls, and those of the next turn of the conversation."""

    stream: Stream
    requests: list[Request]
    next_requests: list[Request]
    runs: list[dict[str, Any]]
    saved: dict[str, Any]

    @property
    def first(self) -> list[Request]:
        """The calls of the first step, one for each attempt."""
        return [request for request in self.requests if not tool_results(request)]

    @property
    def second(self) -> list[Request]:
        """The calls that brought tool results."""
        return [request for request in self.requests if tool_results(request)]


def _plan(request: Request) -> Script:
    words = last_words(request)
    if NEXT in words or tool_results(request):
        return say(LAST)
    name, cut = words.split("|")[:2]
    return [Raw((WIRE / f"{name}.sse").read_bytes(), **CUTS[cut])]


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(_plan) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    with Service(upstream, profile={"tools": ["tests.tools_of_wire_cases"]}) as running:
        yield running


def _play(service: Service, upstream: Upstream, name: str, cut: str) -> Played:
    profile = "anthropic" if DIALECTS[name] == "anthropic" else "default"
    conversation = service.conversation(profile=profile)
    words = f"{name}|{cut}|{conversation}"
    stream = service.stream(words, conversation).read_to_end()
    turn = stream.wait_for("turn_started")["turn_id"]
    service.stream(f"{NEXT}|{conversation}", conversation).read_to_end()
    requests = [request for request in list(upstream.requests) if conversation.encode() in request.raw]
    return Played(
        stream=stream,
        requests=[request for request in requests if NEXT not in last_words(request)],
        next_requests=[request for request in requests if NEXT in last_words(request)],
        runs=[row for row in service.ledger() if row["key"].startswith(f"{turn}:")],
        saved=next(m for m in service.messages(conversation) if m["turn_id"] == turn and m["role"] == "assistant"),
    )


@pytest.fixture(scope="module")
def played(service: Service, upstream: Upstream) -> Iterator[dict[tuple[str, str], Future[Played]]]:
    """All the turns, many at a time; each test waits for its own."""
    with ThreadPoolExecutor(12) as pool:
        yield {way: pool.submit(_play, service, upstream, *way) for way in WAYS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("name", "cut"), WAYS)
def test_recorded_stream_through_the_service(name: str, cut: str, played: dict[tuple[str, str], Future[Played]]) -> None:
    """Text, reasoning, tools that ran, ending, history: as expected, however the bytes are cut (X1, X3, X4, E1, E4, E5)."""
    got = played[name, cut].result(50)
    want = json.loads((WIRE / f"{name}.expected.json").read_text())
    _check_order(got.stream)
    _check_words(got, want)
    _check_tools(got, want)
    _check_ending(got, want)
    assert got.next_requests
    for request in (*got.requests, *got.next_requests):
        assert faults_of(request) == []


def _check_order(stream: Stream) -> None:
    numbered = [event for event in stream.events if event.seq is not None]
    assert [event.seq for event in numbered] == list(range(1, len(numbered) + 1))
    assert stream.types[-2:] == ["message_saved", "stream_end"]
    assert stream.types[-3] in ("completion", "error")
    assert sum(kind in ("completion", "error") for kind in stream.types) == 1
    assert stream.events[-1].json == {"type": "stream_end", "reason": "done", "resume": False}


def _check_words(got: Played, want: dict[str, Any]) -> None:
    stream = got.stream
    text = want["text"] + (LAST if got.second else "")
    assert stream.text == text
    reasoning = ""
    for event in stream.events:
        if event.type == "attempt_restarted":
            reasoning = ""  # what an attempt thought that was given up
        elif event.type == "reasoning_delta":
            reasoning += event["text"]
    assert reasoning == want["reasoning"]
    end = stream.events[-3]
    if end.type == "completion":
        assert (end["text"], end["chars"], end.get("replaced")) == (text, len(text), None)
        assert got.saved["text"] == text
    else:
        assert got.saved["status"] == "apology"


def _check_tools(got: Played, want: dict[str, Any]) -> None:
    calls = [(call["name"], json.loads(call["arguments"])) for call in want["tool_calls"]]
    starts, ends = got.stream.of("tool_start"), got.stream.of("tool_end")
    ids = [start["tool_call_id"] for start in starts]
    assert [start["name"] for start in starts] == [name for name, _ in calls]
    for start, (_, arguments) in zip(starts, calls, strict=True):
        if len(json.dumps(arguments)) > SHOWN_ARGUMENTS:
            assert start["truncated"] is True
        else:
            assert start["arguments"] == arguments
    assert sorted(end["tool_call_id"] for end in ends) == sorted(set(ids)) == sorted(ids)
    assert {end["status"] for end in ends} <= {"ok"}
    for call_id, call in zip(ids, want["tool_calls"], strict=True):
        assert call["id"] in (None, call_id)
    # What really ran, in full and once each, under its key.
    ran = {row["key"].partition(":")[2]: (row["tool"], row["arguments"]) for row in got.runs}
    assert len(got.runs) == len(ran)
    assert ran == dict(zip(ids, calls, strict=True))


def _check_ending(got: Played, want: dict[str, Any]) -> None:
    end, finish = got.stream.events[-3], want["finish"]
    kind = (end.type, end.get("status") or end.get("code"), end.get("finish_reason"))
    produced = bool(want["text"])
    told = bool(calls := want["tool_calls"]) or want["error"] == "invalid_tool_arguments"
    if finish in ("error", "incomplete"):
        assert kind == (("completion", "partial", "upstream_error") if produced else ("error", "upstream_unavailable", None))
        assert len(got.first) == (1 if produced else 3)
    elif told:
        # The model is told the results, or that nothing was run, and goes on.
        assert kind == ("completion", "complete", "stop")
        [request] = got.second
        _check_sent_back(got, request, want)
        if not calls:
            assert set(tool_results(request).values()) == {"not run: invalid arguments"}
    elif finish in ("length", "content_filter"):
        code = "limit_exceeded" if finish == "length" else "content_filter"
        assert kind == (("completion", "partial", finish) if produced else ("error", code, None))
    else:
        assert kind == (("completion", "complete", "stop") if produced else ("error", "empty_answer", None))
    if not told:
        assert got.second == []


def _check_sent_back(got: Played, request: Request, want: dict[str, Any]) -> None:
    """What the provider signed comes back verbatim and in its place, or it refuses the next step."""
    if request.dialect != "anthropic":
        return
    sent = (WIRE / f"{last_words(got.first[0]).split('|')[0]}.sse").read_bytes()
    signed = re.findall(rb'"(?:signature|data)":"([^"]+)"', sent)
    [answer] = [message for message in request.body["messages"] if message["role"] == "assistant"]
    thoughts = [part for part in answer["content"] if part["type"] in ("thinking", "redacted_thinking")]
    assert [(part.get("signature") or part.get("data")).encode() for part in thoughts] == signed
    assert "".join(part.get("thinking", "") for part in thoughts) == want["reasoning"]


def test_every_recorded_stream_has_its_expectation() -> None:
    """No case is left out: the index names each file of the folder, and each has what must come of it."""
    assert sorted(DIALECTS) == sorted(path.stem for path in WIRE.glob("*.sse"))
    assert sorted(DIALECTS) == sorted(path.name.removesuffix(".expected.json") for path in WIRE.glob("*.expected.json"))
    assert len(DIALECTS) >= 47
