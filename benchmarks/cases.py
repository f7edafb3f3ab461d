"""The cases: what is loaded how, beside what, and which figure counts. docs/performance.md says why these.

Every figure of a case comes from one call, each contender in a fresh process on the server's core, taking turns.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from benchmarks import machine
from benchmarks.client import Run, Watch, follow, open_all, request
from benchmarks.servers import Nchan, Ours, Program, Upstream, floor, naive
from benchmarks.tokens import Wish, stamped

# A load is on time while this share of its tokens comes within 0.1 s of the moment they were due.
ALL = 0.999
# Above this share of waiting for a processor, delays are those of a busy machine.
DISTURBED = 0.05
UPSTREAM_P99 = 0.060


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    repeats: int = 3
    seconds: float = 10.0
    quick: bool = False
    # Seconds of the churn case; 1800 shows what two minutes cannot.
    churn: float = 120.0
    cores: machine.Cores = field(default_factory=machine.Cores.split)

    @property
    def core(self) -> int:
        return self.cores.server

    @property
    def clients_core(self) -> int:
        return min(self.cores.client)


@dataclass
class Measured:
    """All runs of one contender in one case."""

    case: str
    who: str
    load: str
    runs: list[Run] = field(default_factory=list)
    # Figures of its own, one value a run.
    extra: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.extra.setdefault(name, []).append(value)

    def median(self, of: Callable[[Run], float | None]) -> float | None:
        values = [value for run in self.runs if (value := of(run)) is not None]
        return statistics.median(values) if values else None

    def figures(self) -> dict[str, float]:
        """The medians, by name; times in milliseconds, memory in MiB, processor in seconds per million tokens."""
        found: dict[str, float | None] = {
            "cpu": self.median(lambda run: run.per_million if run.tokens else None),
            "cpu, steady": self.median(lambda run: run.steady_per_million),
            "delay p50": self.median(lambda run: _ms(run.delays, 0.5)),
            "delay p99": self.median(lambda run: _ms(run.delays, 0.99)),
            "on time": self.median(lambda run: run.on_time if run.tokens else None),
            "first byte p50": self.median(lambda run: _ms(run.first_bytes, 0.5)),
            "first byte p99": self.median(lambda run: _ms(run.first_bytes, 0.99)),
            "memory": self.median(lambda run: run.peak_memory / 2**20 if run.samples else None),
            "tokens": self.median(lambda run: float(run.tokens) if run.tokens else None),
            "client": self.median(lambda run: run.client_share if run.wall else None),
            "disturbed": self.median(lambda run: run.disturbed if run.wall else None),
            "failed": float(sum(run.failed for run in self.runs)),
            **{name: statistics.median(values) for name, values in self.extra.items()},
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def complaints(self) -> list[str]:
        return [complaint for run in self.runs for complaint in run.complaints][:3]


@dataclass(frozen=True)
class Verdict:
    """One figure beside its goal."""

    what: str
    value: float
    goal: float
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal


@dataclass
class Outcome:
    """A case: who was measured, and what came out."""

    measured: list[Measured] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def of(self, who: str) -> dict[str, float]:
        """The figures of one contender; empty when it was not measured."""
        return next((one.figures() for one in self.measured if one.who == who), {})

    def ratio(self, what: str, goal: float, *, to: str, name: str = "cpu", mine: str = "Earlybyte") -> None:
        ours, theirs = self.of(mine).get(name), self.of(to).get(name)
        if ours is not None and theirs:
            self.verdicts.append(Verdict(what, ours / theirs, goal, "×"))


def _ms(values: object, share: float) -> float | None:
    ordered = sorted(values)  # type: ignore[call-overload]
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 if ordered else None


def say(what: str) -> None:
    """Progress, on standard error."""
    print(what, file=sys.stderr, flush=True)


async def warm(program: Program) -> None:
    """A few short turns, so that nothing is measured that happens once."""
    asked = await program.turns(Wish(tokens=20, rate=100), 8)
    await follow(program.port, program.pid, asked, rate=100, patience=10)
    await asyncio.sleep(0.2)


async def load(program: Program, wish: Wish, count: int, *, patience: float) -> Run:
    """`count` turns like `wish`, opened at 100 a second and read to their end."""
    await warm(program)
    run = await follow(program.port, program.pid, await program.turns(wish, count), rate=100, patience=patience)
    say(
        f"    {program.name:10} {run.per_million:7.1f} s/M, delay p99 {_ms(run.delays, 0.99) or 0:7.1f} ms, "
        f"first byte p99 {_ms(run.first_bytes, 0.99) or 0:6.1f} ms, on time {run.on_time:.2%}, client {run.client_share:.0%}"
        + (f", disturbed {run.disturbed:.0%}" if run.disturbed > DISTURBED else "")
    )
    return run


async def burst(plan: Plan) -> Outcome:
    """Fifty turns of a sync agent that says tokens as fast as it can."""
    full, few = (5_000, 400) if plan.quick else (20_000, 1_000)
    makers: list[tuple[Callable[[int], Program], int]] = [
        (lambda core: Ours(core=core), full),
        (floor, full),
        (naive, few),
    ]
    outcome = Outcome([Measured("burst", who, f"50 turns × {n} tokens") for (_, n), who in zip(makers, _WHO, strict=True)])
    for _ in range(plan.repeats):
        for (make, tokens), measured in zip(makers, outcome.measured, strict=True):
            async with make(plan.core) as program:
                measured.runs.append(await load(program, Wish(tokens=tokens), 50, patience=90))
    outcome.ratio("burst: CPU to the floor's", 2, to="floor")
    return outcome


async def paced(plan: Plan) -> Outcome:
    """Five hundred turns at twenty tokens a second: what a busy evening looks like."""
    wish = Wish(tokens=int(20 * plan.seconds), rate=20)
    makers: list[Callable[[int], Program]] = [lambda core: Ours(core=core), floor, naive]
    outcome = Outcome([Measured("paced", who, f"500 turns × {wish.tokens} tokens at 20/s") for who in _WHO])
    for _ in range(plan.repeats):
        for make, measured in zip(makers, outcome.measured, strict=True):
            async with make(plan.core) as program:
                measured.runs.append(await load(program, wish, 500, patience=plan.seconds + 50))
    mine = outcome.of("Earlybyte")
    outcome.ratio("paced: CPU to the floor's", 4, to="floor")
    outcome.verdicts += [
        Verdict("paced: delay p99", mine["delay p99"], 25, " ms"),
        Verdict("paced: tokens on time", mine["on time"] * 100, ALL * 100, " %", at_least=True),
        Verdict("paced: first byte p99", mine["first byte p99"], 50, " ms"),
    ]
    return outcome


async def upstream(plan: Plan) -> Outcome:
    """The same from a real HTTP upstream; then more and more turns, until it is no longer on time."""
    wish = Wish(tokens=int(20 * plan.seconds), rate=20)
    main = Measured("upstream", "Earlybyte", f"400 turns × {wish.tokens} tokens at 20/s")
    outcome = Outcome([main])
    for _ in range(plan.repeats):
        main.runs.append(await _from_upstream(plan, wish, 400))
    mine = main.figures()
    outcome.verdicts += [
        Verdict("upstream, 400 turns: delay p99", mine["delay p99"], UPSTREAM_P99 * 1000, " ms"),
        Verdict("upstream, 400 turns: tokens on time", mine["on time"] * 100, ALL * 100, " %", at_least=True),
    ]
    good, bad = await _find_limit(plan, wish)
    outcome.remarks.append(
        f"From a real upstream one core is on time (p99 ≤ 60 ms) with {good} turns, and no longer with {bad}."
        if bad
        else f"From a real upstream one core is on time (p99 ≤ 60 ms) with {good} turns; more was not tried."
    )
    outcome.verdicts.append(Verdict("upstream: turns on time on one core", good, 400, at_least=True))
    return outcome


async def _from_upstream(plan: Plan, wish: Wish, count: int) -> Run:
    async with Upstream(core=plan.clients_core) as model, Ours(core=plan.core, profile=model.profile()) as program:
        return await load(program, wish, count, patience=wish.tokens / wish.rate + 50)


async def _find_limit(plan: Plan, wish: Wish) -> tuple[int, int | None]:
    """The most turns that were on time, and the fewest that were not, in steps of fifty; a miss gets a second chance."""
    count, step, good, bad = 400, 100, 0, None
    for _ in range(4 if plan.quick else 9):
        say(f"    {count} turns from the upstream:")
        fine = False
        for _ in range(1 if plan.quick else 2):
            run = await _from_upstream(plan, wish, count)
            fine = (_ms(run.delays, 0.99) or 1e9) <= UPSTREAM_P99 * 1000 and run.on_time >= ALL and not run.failed
            if fine:
                break
        good = max(good, count) if fine else good
        bad = bad if fine else min(bad or count, count)
        if bad and bad - good <= 50:
            break
        count = (good + bad) // 100 * 50 if bad else good + step
    return good, bad


async def fan_out(plan: Plan) -> Outcome:
    """One turn, a thousand viewers, three hundred events."""
    viewers, events, rate = (1000, 90, 30) if plan.quick else (1000, 300, 30)
    ours = Measured("fan-out", "Earlybyte", f"{viewers} viewers × {events} events at {rate}/s")
    nchan = Measured("fan-out", "nchan", ours.load)
    outcome = Outcome([ours])
    missing = Nchan.missing()
    if missing:
        outcome.remarks.append(f"fan-out without nchan: {missing}")
    else:
        outcome.measured.append(nchan)
    for _ in range(plan.repeats):
        async with Ours(core=plan.core) as program:
            await warm(program)
            start = time.monotonic() + viewers / 100 + 2
            turn = await program.start_turn(Wish(tokens=events, rate=rate, at=start))
            asked = [request("GET", f"/v1/turns/{turn}/events")] * viewers
            ours.runs.append(await _fan(program, asked, start, events, None))
        if not missing:
            async with Nchan(core=plan.core) as program:
                start = time.monotonic() + viewers / 100 + 2
                asked = [request("GET", "/events")] * viewers
                nchan.runs.append(
                    await _fan(program, asked, start, events, lambda p=program: _publish(p.port, events, rate))
                )
    outcome.ratio("fan-out: CPU to nchan's", 1.8, to="nchan")
    outcome.verdicts.append(Verdict("fan-out: delay p99", outcome.of("Earlybyte")["delay p99"], 60, " ms"))
    return outcome


async def _fan(
    program: Program, asked: list[bytes], start: float, events: int, publish: Callable[[], Awaitable[None]] | None
) -> Run:
    run = Run()
    streams = await open_all(run, program.port, asked, rate=100, expected=events)
    if publish is None:
        await asyncio.wait([stream.first for stream in streams], timeout=max(0.1, start - time.monotonic()))
    await asyncio.sleep(max(0.0, start - 0.3 - time.monotonic()))
    async with Watch(run, program.pid):
        if publish is not None:
            await asyncio.sleep(0.3)
            await publish()
        await asyncio.wait([stream.ended for stream in streams], timeout=60)
    for stream in streams:
        if not stream.ended.done():
            run.complain("a viewer did not see the end")
            stream.leave()
    say(
        f"    {program.name:10} {run.per_million:7.2f} s/M deliveries, delay p99 {_ms(run.delays, 0.99) or 0:7.1f} ms, "
        f"client {run.client_share:.0%}"
    )
    return run


async def _publish(port: int, events: int, rate: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start = time.monotonic()
    for number in range(1, events + 1):
        due = start + (number - 1) / rate
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        data = {"type": "text_delta", "seq": number, "ts": time.time_ns() // 1_000_000, "block": 1, "text": stamped()}
        body = json.dumps(data, separators=(",", ":"))
        writer.write(f"POST /publish HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
    writer.close()


async def idle(plan: Plan) -> Outcome:
    """Viewers that wait: what each costs in memory."""
    count = 1000 if plan.quick else 5000
    makers: list[Callable[[int], Program]] = [lambda core: Ours(core=core), floor, naive]
    outcome = Outcome([Measured("idle", who, f"{count} viewers, 250 opened a second") for who in _WHO])
    for _ in range(1 if plan.quick else min(2, plan.repeats)):
        for make, measured in zip(makers, outcome.measured, strict=True):
            async with make(plan.core) as program:
                await warm(program)
                if isinstance(program, Ours):
                    turn = await program.start_turn(Wish(idle=True))
                    asked = [request("GET", f"/v1/turns/{turn}/events")] * (count + 20)
                else:
                    asked = await program.turns(Wish(idle=True), count + 20)
                run = Run()
                before = await open_all(run, program.port, asked[:20], rate=250)
                await asyncio.sleep(0.5)
                empty = machine.resident_bytes(program.pid)
                async with Watch(run, program.pid):
                    streams = await open_all(run, program.port, asked[20:], rate=250)
                    await asyncio.wait([stream.first for stream in streams], timeout=30)
                    await asyncio.sleep(1.0)
                    each = (machine.resident_bytes(program.pid) - empty) / count / 1024
                for stream in [*before, *streams]:
                    stream.leave()
                measured.runs.append(run)
                measured.add("KiB each", each)
                say(f"    {program.name:10} {each:6.1f} KiB each, {run.failed} failed")
    outcome.verdicts.append(Verdict("idle viewers: memory of each", outcome.of("Earlybyte")["KiB each"], 30, " KiB"))
    return outcome


async def history(plan: Plan) -> Outcome:
    """The paced load with a checkpoint every second, and with none before the end."""
    wish = Wish(tokens=int(20 * plan.seconds), rate=20)
    on = Measured("history", "checkpoint every 1 s", f"500 turns × {wish.tokens} tokens at 20/s")
    off = Measured("history", "no checkpoint before the end", on.load)
    outcome = Outcome([on, off])
    for _ in range(plan.repeats):
        for measured, seconds in ((on, 1), (off, 3600)):
            async with Ours(core=plan.core, rungs={"checkpoint": seconds}) as program:
                measured.runs.append(await load(program, wish, 500, patience=plan.seconds + 50))
    outcome.ratio("history: CPU with checkpoints to that without", 1.3, to=off.who, mine=on.who)
    outcome.ratio("history: the same while all turns speak", 1.3, to=off.who, mine=on.who, name="cpu, steady")
    return outcome


async def churn(plan: Plan) -> Outcome:
    """Fifty streams opened a second, every other one left in the middle: nothing may grow."""
    measured = Measured("churn", "Earlybyte", f"50 opens a second for {plan.churn:.0f} s, half of them left early")
    run = Run()
    measured.runs.append(run)
    # Logs are kept for a quarter of an hour by design; with a small limit that is full early, the rest can be seen.
    async with Ours(core=plan.core, limits={"logs_bytes": 16 << 20}) as program:
        await warm(program)
        held: list[float] = []
        async with Watch(run, program.pid):
            for _ in range(max(4, int(plan.churn / _ROUND))):
                asked = await program.turns(Wish(tokens=10, rate=20), int(50 * _ROUND))
                streams = await open_all(run, program.port, asked, rate=50)
                for stream in streams[::2]:
                    stream.leave()
                await asyncio.wait([stream.ended for stream in streams[1::2]], timeout=30)
                held.append(machine.resident_bytes(program.pid) / 2**20)
                say(f"    {held[-1]:6.1f} MiB after {len(held) * int(50 * _ROUND)} streams")
        settled = held[len(held) // 2 :]
        thousands = (len(settled) - 1) * 50 * _ROUND / 1000
        growth = (settled[-1] - settled[0]) * 1024 / max(1.0, thousands)
    measured.add("KiB a thousand streams", growth)
    outcome = Outcome([measured])
    # A thousand streams that leaked a task each would leave a megabyte.
    outcome.verdicts.append(Verdict("churn: growth in the second half, per thousand streams", growth, 256, " KiB"))
    return outcome


_ROUND = 10.0
_WHO = ("Earlybyte", "floor", "naive")
CASES: dict[str, Callable[[Plan], Awaitable[Outcome]]] = {
    "burst": burst,
    "paced": paced,
    "upstream": upstream,
    "fan-out": fan_out,
    "idle": idle,
    "history": history,
    "churn": churn,
}
