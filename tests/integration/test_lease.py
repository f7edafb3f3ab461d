"""The lease: one process that runs turns on a store, and who is alive. On both databases, with real processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.errors import ConfigError
from app.store.lease import Lease
from app.store.schema import migrate
from tests.service import PROJECT
from tests.stores import anyio_backend, postgres, store_url

__all__ = ["anyio_backend", "postgres", "store_url"]
pytestmark = pytest.mark.anyio

_HOLD = """
import sys, anyio
from app.store.lease import Lease

async def hold():
    lease = await Lease.take(sys.argv[1], sys.argv[2])
    print("held", flush=True)
    await anyio.sleep_forever()

anyio.run(hold)
"""


@pytest.fixture
async def url(store_url: str) -> str:
    await migrate(store_url)
    return store_url


@contextmanager
def holder(url: str, owner: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lease until it is killed."""
    with subprocess.Popen([sys.executable, "-c", _HOLD, url, owner], cwd=PROJECT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


async def test_only_one_has_it(url: str) -> None:
    """The second is refused with a sentence that says what to do, and can have it when the first is done."""
    first = await Lease.take(url, "proc_1")
    with pytest.raises(ConfigError, match=r'runs turns on .*memory://.*server\.role = "api"'):
        await Lease.take(url, "proc_2", patience=0.2)
    await first.close()
    second = await Lease.take(url, "proc_2", patience=0.2)
    await second.close()


async def test_it_says_who_is_alive(url: str) -> None:
    """An owner lives until its process has closed its lease; names that nobody has are dead."""
    first = await Lease.take(url, "proc_1")
    await first.hand_over()
    second = await Lease.take(url, "proc_2", patience=0.2)
    assert await second.living({"proc_1", "proc_2", "proc_3"}) == {"proc_1", "proc_2"}
    assert await first.living({"proc_1", "proc_2", "proc_3"}) == {"proc_1", "proc_2"}
    await first.close()
    assert await second.living({"proc_1", "proc_2"}) == {"proc_2"}
    await second.close()


async def test_a_killed_process_leaves_it_at_once(url: str, tmp_path: Path) -> None:
    """`kill -9` frees the lease and the sign of life; nothing has to time out, and no file stays."""
    with holder(url, "proc_dead"), pytest.raises(ConfigError, match="Another process"):
        await Lease.take(url, "proc_1", patience=0.2)
    lease = await Lease.take(url, "proc_1")
    assert await lease.living({"proc_dead"}) == set()
    await lease.close()
    assert not list(tmp_path.glob("*proc_*"))


async def test_who_starts_waits_a_moment_for_who_leaves(url: str) -> None:
    """A restart does not fail because the old process takes a second to go."""
    with holder(url, "proc_old") as process:
        timer = threading.Timer(0.5, process.kill)
        timer.start()
        lease = await Lease.take(url, "proc_new")
        await lease.close()
        timer.join()
