"""Many streams from one process: raw sockets, a search for tokens in the bytes, nothing parsed.

It must be lighter than what it measures. `Run.client_share` says how much of its core it used: above 0.85 the figures of
delay are the client's own, and the report says so. `Run.disturbed` says whether others used the machine meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self, cast

from benchmarks import machine
from benchmarks.tokens import TOKEN, age

ON_TIME = 0.1
_KEPT = 64
_END = re.compile(rb'"stream_end","reason":"(\w+)"')


@dataclass
class Sample:
    """What was seen at a moment: seconds since the start, processor seconds of the server, its memory, tokens received."""

    at: float
    cpu: float
    memory: int
    tokens: int


@dataclass
class Run:
    """Everything about one run under load."""

    streams: int = 0
    tokens: int = 0
    late: int = 0
    done: int = 0
    failed: int = 0
    delays: array[float] = field(default_factory=lambda: array("d"))
    first_bytes: array[float] = field(default_factory=lambda: array("d"))
    samples: list[Sample] = field(default_factory=list)
    cpu: float = 0.0
    wall: float = 0.0
    client_cpu: float = 0.0
    client_waited: float = 0.0
    all_open_at: float = 0.0
    first_end_at: float = 0.0
    complaints: list[str] = field(default_factory=list)

    @property
    def client_share(self) -> float:
        return self.client_cpu / self.wall if self.wall else 0.0

    @property
    def disturbed(self) -> float:
        """The share of the time in which the client wanted to run and could not: others used the machine."""
        return self.client_waited / self.wall if self.wall else 0.0

    @property
    def per_million(self) -> float:
        """Processor seconds of the server per million tokens, opening and ending of the streams included."""
        return self.cpu / self.tokens * 1e6 if self.tokens else float("nan")

    @property
    def steady_per_million(self) -> float | None:
        """The same while all streams were open and none had ended; None when there was no such time."""
        inside = [s for s in self.samples if self.all_open_at + 0.2 <= s.at <= self.first_end_at - 0.1]
        if len(inside) < 4 or inside[-1].tokens - inside[0].tokens < 2000:
            return None
        return (inside[-1].cpu - inside[0].cpu) / (inside[-1].tokens - inside[0].tokens) * 1e6

    @property
    def on_time(self) -> float:
        return 1 - self.late / self.tokens if self.tokens else 0.0

    @property
    def peak_memory(self) -> int:
        return max((sample.memory for sample in self.samples), default=0)

    def complain(self, what: str) -> None:
        self.failed += 1
        if len(self.complaints) < 5:
            self.complaints.append(what)


class Stream(asyncio.Protocol):
    """One stream. It is over at `stream_end`, or after `expected` tokens where the server sends no such event."""

    __slots__ = (
        "_asked",
        "_counting",
        "_expected",
        "_head",
        "_over",
        "_request",
        "_run",
        "_tail",
        "ended",
        "first",
        "transport",
    )

    def __init__(self, run: Run, request: bytes, *, expected: int | None = None) -> None:
        self._run = run
        self._request = request
        self._expected = expected
        self._asked = time.monotonic()
        self._head: bytes | None = b""
        self._tail = b""
        self._counting = True
        self._over = False
        self.transport: asyncio.Transport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns() // 1000
        if self._head is not None:
            data = self._begin(self._head + data)
            if self._head is not None or not data:
                return
        data = self._tail + data
        start = 0
        if self._counting:
            run = self._run
            # A completion repeats the whole text.
            mark = data.find(b'"completion"')
            before = run.tokens
            for found in TOKEN.finditer(data, 0, len(data) if mark < 0 else mark):
                delay, since_due = age(found, now)
                run.delays.append(delay)
                run.tokens += 1
                run.late += since_due > ON_TIME
                start = found.end()
            self._counting = mark < 0
            if self._expected is not None:
                self._expected -= run.tokens - before
                if self._expected <= 0:
                    self._end(True)
                    return
        if over := _END.search(data, start):
            self._end(over[1] == b"done")
            return
        self._tail = data[max(start, len(data) - _KEPT) :]

    def _begin(self, data: bytes) -> bytes:
        """What follows the head of the answer, once it is here."""
        head, found, rest = data.partition(b"\r\n\r\n")
        if not found:
            self._head = data
            return b""
        if b" 200 " not in head[:16]:
            self._run.complain(data[:300].decode("latin-1"))
            self._end(False)
            return b""
        if not rest:
            self._head = data
            return b""
        self._head = None
        self._run.first_bytes.append(time.monotonic() - self._asked)
        if not self.first.done():
            self.first.set_result(None)
        return rest

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._over:
            self._run.complain(f"the connection broke: {exc}")
            self._end(False)

    def _end(self, well: bool) -> None:
        if self._over:
            return
        self._over = True
        self._run.done += well
        for future in (self.first, self.ended):
            if not future.done():
                future.set_result(None)
        if self.transport is not None:
            self.transport.close()

    def leave(self) -> None:
        """Go away without waiting for the end."""
        self._over = True
        if self.transport is not None:
            self.transport.abort()


def request(method: str, path: str, body: str | None = None) -> bytes:
    """The bytes of a request for a stream."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    data = body.encode()
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


async def open_all(
    run: Run, port: int, requests: Sequence[bytes], *, rate: float, expected: int | None = None
) -> list[Stream]:
    """Open a stream for each request, `rate` a second, waiting for none of them."""
    loop = asyncio.get_running_loop()
    start = time.monotonic()
    streams: list[Stream] = []
    opening: set[asyncio.Task[object]] = set()

    async def connect(stream: Stream) -> None:
        try:
            await loop.create_connection(lambda: stream, "127.0.0.1", port)
        except OSError as error:
            stream.connection_lost(error)

    for number, asked in enumerate(requests):
        if (wait := start + number / rate - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        stream = Stream(run, asked, expected=expected)
        streams.append(stream)
        task = asyncio.create_task(connect(stream))
        opening.add(task)
        task.add_done_callback(opening.discard)
    run.streams = len(streams)
    return streams


class Watch:
    """Around a run: looks at the server four times a second, and counts the processor time of both sides."""

    def __init__(self, run: Run, pid: int) -> None:
        self._run = run
        self._pid = pid

    async def __aenter__(self) -> Self:
        gc.collect()
        gc.freeze()
        gc.disable()
        self.start = time.monotonic()
        self._client = time.process_time()
        self._waited = machine.waited_seconds(os.getpid())
        self._cpu = machine.cpu_seconds(self._pid)
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sample()
        self._task.cancel()
        run = self._run
        run.cpu = machine.cpu_seconds(self._pid) - self._cpu
        run.wall = time.monotonic() - self.start
        run.client_cpu = time.process_time() - self._client
        run.client_waited = machine.waited_seconds(os.getpid()) - self._waited
        gc.enable()
        gc.unfreeze()

    @property
    def now(self) -> float:
        return time.monotonic() - self.start

    def _sample(self) -> None:
        cpu = machine.cpu_seconds(self._pid) - self._cpu
        self._run.samples.append(Sample(self.now, cpu, machine.resident_bytes(self._pid), self._run.tokens))

    async def _look(self) -> None:
        while True:
            self._sample()
            await asyncio.sleep(0.25)


async def follow(port: int, pid: int, requests: Sequence[bytes], *, rate: float, patience: float) -> Run:
    """Open all, read all to their end; those that are not over after `patience` seconds count as failed."""
    run = Run()
    async with Watch(run, pid) as watch:
        streams = await open_all(run, port, requests, rate=rate)
        run.all_open_at = watch.now
        ends = [stream.ended for stream in streams]
        await asyncio.wait(ends, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        run.first_end_at = watch.now
        await asyncio.wait(ends, timeout=patience)
    for stream in streams:
        if not stream.ended.done():
            run.complain(f"not over after {patience:.0f} s")
            stream.leave()
    return run


def pin(cores: frozenset[int]) -> None:
    """Keep this process, and what it starts, on these cores."""
    os.sched_setaffinity(0, cores)
