"""What a service holds comes back: memory, descriptors and threads after many turns, disconnects, cancels and resets."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.plan_by_words import by_words
from tests.service import Service, wait_until
from tests.upstream import Upstream

# Seconds after which idle threads have left their pool, and a little more.
IDLE = 12.0


@dataclass(frozen=True)
class Held:
    """What the process holds. `memory` is resident bytes."""

    memory: int
    descriptors: int
    threads: int


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(by_words) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    # Logs are kept for a quarter of an hour by design; here for the last few turns only.
    limits = {"logs_bytes": 2_000_000, "viewers": 5000, "turns": 400}
    with Service(upstream, config={"limits": limits}, env={"MALLOC_ARENA_MAX": "2"}) as running:
        yield running


def held(service: Service) -> Held:
    status = Path(f"/proc/{service.pid}/status").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE)}
    return Held(numbers["VmRSS"] * 1024, len(list(Path(f"/proc/{service.pid}/fd").iterdir())), numbers["Threads"])


def open_viewers(service: Service) -> int:
    found = re.search(r"^earlybyte_open_viewers (\d+)", service.call("GET", "/metrics").body.decode(), re.MULTILINE)
    assert found
    return int(found[1])


def follow(service: Service, turn: str) -> socket.socket:
    """A viewer that has got its first bytes."""
    sock = socket.create_connection(("127.0.0.1", service.port), timeout=20)
    sock.sendall(f"GET /v1/turns/{turn}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert sock.recv(12) == b"HTTP/1.1 200"
    return sock


def reset(sock: socket.socket) -> None:
    """Leave as a phone does that has lost its network: no farewell."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def work(service: Service, rounds: int) -> None:
    """Turns that end, viewers that go in the middle, and turns that are cancelled."""

    def one(number: int) -> None:
        match number % 5:
            case 0:
                turn = service.start_turn("drip 20")
                reset(follow(service, turn))
            case 1:
                turn = service.start_turn("hang")
                service.call("POST", f"/v1/turns/{turn}/cancel")
            case 2:
                turn = service.start_turn('call show {"tag": "x"}')
            case _:
                turn = service.start_turn("hello")
        service.settled(turn)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(one, number) for number in range(rounds)]:
            done.result()


@pytest.mark.slow
def test_many_turns_disconnects_and_cancels_leave_nothing(service: Service) -> None:
    """Memory, descriptors and threads are after 400 turns what they were after 100."""
    work(service, 100)
    time.sleep(IDLE)
    service.settled(service.start_turn("hello"))
    before = held(service)
    work(service, 400)
    wait_until(lambda: open_viewers(service) == 0, what="no viewer")
    time.sleep(IDLE)
    service.settled(service.start_turn("hello"))
    after = held(service)
    assert after.descriptors <= before.descriptors + 3, (before, after)
    assert after.threads <= before.threads + 2, (before, after)
    assert after.memory <= before.memory + (24 << 20), (before, after)


@pytest.mark.slow
def test_a_thousand_viewers_reset_at_once_are_gone_at_once(service: Service) -> None:
    """A network that fails takes all of them: tasks, descriptors and memory come back, and the turn goes on (R7)."""
    turn = service.start_turn("drip 400")
    keeper = service.attach(turn)
    keeper.wait_for("text_delta")
    seen: list[Held] = []
    with contextlib.ExitStack() as stack:
        # The first time, pools and arenas get their size.
        for _ in range(2):
            viewers = [follow(service, turn) for _ in range(1000)]
            wait_until(lambda: open_viewers(service) == 1001, what="a thousand viewers")
            for viewer in viewers:
                stack.callback(viewer.close)
                reset(viewer)
            wait_until(lambda: open_viewers(service) == 1, what="their going")
            seen.append(held(service))
    assert seen[1].descriptors <= seen[0].descriptors + 5
    assert seen[1].memory <= seen[0].memory + (16 << 20)
    service.call("POST", f"/v1/turns/{turn}/cancel")
    keeper.read_to_end()
    assert keeper.of("completion")[0]["status"] == "cancelled"
    assert "Traceback" not in service.log()
