"""The machine: what it is, which core does what, and what a process has used of it (Linux, from /proc)."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PACKAGES = ("uvicorn", "uvloop", "httptools", "starlette", "fastapi", "sse-starlette", "anyio", "sqlalchemy", "msgspec")


@dataclass(frozen=True)
class Cores:
    """One core for the server, the others for clients and model endpoints; both the same where there is only one."""

    server: int
    client: frozenset[int]

    @classmethod
    def split(cls) -> Cores:
        mine = sorted(os.sched_getaffinity(0))
        return cls(server=mine[0], client=frozenset(mine[1:] or mine))

    @property
    def shared(self) -> bool:
        return self.server in self.client


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and its living descendants, user and kernel."""
    total = 0
    for one in family(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def waited_seconds(pid: int) -> float:
    """How long a process's main thread was ready to run and had no processor; 0 where the kernel does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def resident_bytes(pid: int) -> int:
    """Memory of a process and its descendants, as it stands in RAM."""
    total = 0
    for one in family(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * _PAGE
    return total


def allow_many_files() -> int:
    """Raise the limit of open files as far as it goes; the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def describe() -> dict[str, str]:
    """The machine and the versions that count."""
    model, memory = "unknown", "unknown"
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        kib = int(Path("/proc/meminfo").read_text().split()[1])
        memory = f"{kib / 1048576:.0f} GiB"
    versions = []
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return {
        "processor": f"{model}, {len(os.sched_getaffinity(0))} cores for us",
        "memory": memory,
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(versions),
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }
