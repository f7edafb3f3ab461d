"""The measuring itself: a client that counts wrong, or a distribution that is another, makes every figure worthless."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.cases import CASES, Measured, Outcome, Verdict
from benchmarks.client import Run, Stream
from benchmarks.tokens import LATE_STEP, TOKEN, WIDTH, Wish, age, speak, stamped
from benchmarks.upstream import Field

pytestmark = pytest.mark.anyio


def answer(tokens: list[str], *, end: str = "done") -> bytes:
    """A stream as the service writes it: a completion repeats the text, and must not be counted."""
    frames = [f'id: turn_1-1-{n}\ndata: {{"type":"text_delta","text":"{token}"}}\n\n' for n, token in enumerate(tokens, 1)]
    frames.append(f'data: {{"type":"completion","text":"{"".join(tokens)}"}}\n\n')
    frames.append(f'data: {{"type":"stream_end","reason":"{end}"}}\n\n')
    return ("HTTP/1.1 200 OK\r\n\r\n: ok\nretry: 2000\n" + "".join(frames)).encode()


@pytest.mark.parametrize("seed", range(30))
async def test_the_client_counts_every_token_once_however_the_bytes_are_cut(seed: int) -> None:
    """Reads end anywhere, in the head, in a token, in the mark after which nothing counts."""
    chance = random.Random(seed)
    run = Run()
    stream = Stream(run, b"")
    data = answer([stamped() for _ in range(40)])
    while data and not stream.ended.done():
        size = chance.choice((1, 3, 10, 40, 200, 900))
        stream.data_received(data[:size])
        data = data[size:]
    assert (run.tokens, run.done, run.failed) == (40, 1, 0)
    assert len(run.first_bytes) == 1
    assert all(delay < 5 for delay in run.delays)


async def test_a_stream_that_breaks_or_is_refused_counts_as_failed() -> None:
    """Nothing that went wrong may look like a quick answer."""
    run = Run()
    broken, refused, drained = (Stream(run, b"") for _ in range(3))
    broken.data_received(answer([stamped()])[:80])
    broken.connection_lost(None)
    refused.data_received(b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}")
    drained.data_received(answer([stamped()], end="draining"))
    assert (run.failed, run.done) == (2, 0)
    assert all(stream.ended.done() for stream in (broken, refused, drained))


def test_a_token_tells_its_age_and_its_lateness() -> None:
    """Ten characters; the age is right across the wrap of the clock, the lateness to one step."""
    token = stamped(0.1)
    assert len(token) == WIDTH
    found = TOKEN.fullmatch(token.encode())
    assert found is not None
    now = time.monotonic_ns() // 1000
    delay, since_due = age(found, now + 250_000)
    assert 0.25 <= delay < 2
    assert 0.1 - LATE_STEP <= round(since_due - delay, 6) <= 0.1
    assert age(found, now + 250_000 + (1 << 28))[0] == pytest.approx(delay)


def test_an_agent_follows_its_timetable() -> None:
    """Twenty tokens at two hundred a second take a tenth of a second, however long each of them takes."""
    started = time.monotonic()
    tokens = list(speak(Wish(tokens=21, rate=200)))
    assert len(tokens) == 21
    assert time.monotonic() - started >= 0.1


def test_the_endpoints_turns_are_as_long_as_the_fields() -> None:
    """p50 2 s, p90 15 s, p99 30 s, one in 500 over 60 s; one turn in five uses tools."""
    field = Field(speed=1, seed=7)
    lengths = sorted(field.length() for _ in range(40_000))
    for share, seconds in ((0.5, 2), (0.9, 15), (0.99, 30), (0.998, 60)):
        assert lengths[int(share * len(lengths))] == pytest.approx(seconds, rel=0.12)
    tool = {"function": {"name": "look", "parameters": {"required": ["q"], "properties": {"q": {"type": "string"}}}}}
    request = {"messages": [{"role": "user", "content": "hello"}], "tools": [tool]}
    calls = sum(bool(field.answer(request).calls) for _ in range(4000))
    assert calls / 4000 == pytest.approx(0.2, abs=0.03)
    assert not any(field.answer({**request, "tools": []}).calls for _ in range(100))


async def test_the_report_holds_every_figure_and_needs_nothing_from_outside(tmp_path: Path) -> None:
    """One page with its plots inside, the goals with what was reached, the machine."""
    run = Run(streams=1, tokens=2, cpu=0.5, wall=1.0)
    run.delays.extend([0.001, 0.2])
    run.first_bytes.append(0.004)
    outcome = Outcome([Measured("paced", "Earlybyte", "1 turn", [run])], [Verdict("paced: delay p99", 200, 25, " ms")])
    written = report.write({"paced": outcome}, {"processor": "<one>"}, tmp_path)
    page = written[1].read_text()
    assert "MISSED" in report.table({"paced": outcome})
    assert page.count("<svg") >= 2
    assert "&lt;one&gt;" in page
    assert not any(outside in page for outside in ("http://", "https://", "<script", "<link"))


def test_every_case_says_what_it_measures() -> None:
    """The help of the command and the progress on the terminal are made of it."""
    assert all(case.__doc__ for case in CASES.values())
    assert asyncio.iscoroutinefunction(CASES["paced"])
