"""A tool's child process and all its descendants die with the call, and with the service (PROTOCOL 9, `run_process`).

Real processes throughout: a tree whose members left their group, their session and their parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from app.limits.cancel import Cancel
from app.limits.threads import WorkerThreads
from app.tools import ProcessCancelled, ProcessResult, ProcessTimeout, Tool, ToolContext, ToolError, tool
from app.tools.execution import ToolOutcome, run_call
from app.tools.process import OUTPUT_BYTES, kill_all, live_processes

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]

# Each writes its pid to <dir>/<name>: the child, a grandchild, one in a session of its own, one that forked twice (its
# parent is gone), and one that ignores every signal that can be ignored. Then all sleep.
TREE = """
import os, signal, sys, time
def note(name):
    with open(os.path.join(sys.argv[1], name + ".part"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(os.path.join(sys.argv[1], name + ".part"), os.path.join(sys.argv[1], name))
def sleep():
    time.sleep(60)
    os._exit(0)
if os.fork() == 0:
    note("grandchild"); sleep()
if os.fork() == 0:
    os.setsid(); note("session"); sleep()
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0:
        note("daemon"); sleep()
    os._exit(0)
os.waitpid(middle, 0)
if os.fork() == 0:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    note("deaf"); sleep()
note("child")
if sys.argv[2:] == ["leave"]:
    while len(os.listdir(sys.argv[1])) < 5 or any(name.endswith(".part") for name in os.listdir(sys.argv[1])):
        time.sleep(0.005)
    sys.exit(7)
sleep()
"""
MEMBERS = {"child", "grandchild", "session", "daemon", "deaf"}


def tree(where: Path, *more: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", TREE, str(where), *more]


def members(where: Path) -> dict[str, int]:
    return {entry.name: int(entry.read_text()) for entry in where.iterdir() if entry.suffix != ".part"}


def alive(where: Path) -> list[str]:
    return [name for name, pid in members(where).items() if Path(f"/proc/{pid}").exists()]


def running(word: str) -> list[int]:
    """Processes that have `word` in their command line, zombies left out: those have none."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert wait_for(lambda: live_processes() == 0, 2)
    for pid in members(tmp_path).values() if tmp_path.exists() else ():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@tool(name="sync_tree")
def sync_tree(ctx: ToolContext, where: str) -> str:
    """Run the tree from a worker thread."""
    ctx.run_process(tree(Path(where)))
    return "ended"


@tool(name="async_tree")
async def async_tree(ctx: ToolContext, where: str) -> str:
    """Run the tree from the loop."""
    await ctx.run_process(tree(Path(where)))
    return "ended"


both = pytest.mark.parametrize("one", [sync_tree, async_tree], ids=["sync", "async"])


async def call(one: Tool, where: Path, *, timeout: float = 30, cancel: Cancel | None = None) -> ToolOutcome:
    threads = WorkerThreads(2)
    return await run_call(
        one, ToolContext(), {"where": str(where)}, timeout=timeout, threads=threads, cancel=cancel or Cancel()
    )


async def grown(where: Path) -> None:
    with anyio.fail_after(10):
        while set(members(where)) != MEMBERS:
            await anyio.sleep(0.01)


@both
async def test_timeout_of_the_call_kills_the_whole_tree(one: Tool, tmp_path: Path):
    """Within 1 s of the timeout nothing is left, wherever it has gone."""
    outcome = await call(one, tmp_path, timeout=1.0)
    assert outcome.status == "timeout"
    assert set(members(tmp_path)) == MEMBERS
    assert wait_for(lambda: not alive(tmp_path), 1), alive(tmp_path)


@both
async def test_cancel_kills_the_whole_tree_and_frees_the_tool(one: Tool, tmp_path: Path):
    """The tool comes back within its grace, so its outcome is known."""
    cancel, outcomes = Cancel(), []

    async def run() -> None:
        outcomes.append(await call(one, tmp_path, cancel=cancel))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await grown(tmp_path)
        started = time.monotonic()
        cancel.cancel()
    assert time.monotonic() - started < 1
    assert wait_for(lambda: not alive(tmp_path), 1 - (time.monotonic() - started)), alive(tmp_path)
    assert [(o.status, o.returned) for o in outcomes] == [("cancelled", True)]


@both
async def test_drain_kills_the_whole_tree_of_every_call(one: Tool, tmp_path: Path):
    """`kill_all` ends what runs; the tool is told."""
    outcomes = []

    async def run() -> None:
        outcomes.append(await call(one, tmp_path))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await grown(tmp_path)
        assert kill_all() == 1
        started = time.monotonic()
    assert time.monotonic() - started < 1
    assert not alive(tmp_path)
    assert [o.status for o in outcomes] == ["error"]
    assert "was killed: the call is over" in outcomes[0].result


async def test_cancelled_scope_around_an_async_tool_kills_the_tree(tmp_path: Path):
    """Also where the awaitable itself is cancelled, by the tool's own scope."""

    @tool
    async def impatient(ctx: ToolContext, where: str) -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: ctx.run_process(tree(Path(where))))
            await grown(Path(where))
            group.cancel_scope.cancel()
        return "gave up"

    assert (await call(impatient, tmp_path)).result == "gave up"
    assert wait_for(lambda: not alive(tmp_path), 1), alive(tmp_path)


async def test_children_left_behind_by_a_call_that_ended_in_order_die_too(tmp_path: Path):
    """A tool that starts a child from a thread of its own and returns leaves nothing."""
    ended: list[BaseException] = []

    @tool
    def leaves(ctx: ToolContext, where: str) -> str:
        def run() -> None:
            try:
                ctx.run_process(tree(Path(where)))
            except ToolError as error:
                ended.append(error)

        threading.Thread(target=run).start()
        assert wait_for(lambda: set(members(Path(where))) == MEMBERS, 10)
        return "done"

    assert (await call(leaves, tmp_path)).status == "ok"
    assert wait_for(lambda: not alive(tmp_path), 1), alive(tmp_path)
    assert wait_for(lambda: len(ended) == 1, 1)
    assert isinstance(ended[0], ProcessCancelled)


def test_descendants_that_outlive_the_child_are_killed_and_its_code_is_passed_on(tmp_path: Path):
    """A child that ends in order takes its family with it: the result does not wait for a forgotten daemon."""
    started = time.monotonic()
    result = ToolContext().run_process(tree(tmp_path, "leave"))
    assert (result.returncode, result.stderr) == (7, "")
    assert set(members(tmp_path)) == MEMBERS
    assert not alive(tmp_path)
    assert time.monotonic() - started < 5


SERVICE = """
import multiprocessing, os, sys, time
from app.tools import ToolContext
if sys.argv[1] == "forked":
    # A process that a tool forked holds copies of all descriptors, also of the lifeline.
    def fork_later():
        while len([n for n in os.listdir(sys.argv[2]) if not n.endswith(".part")]) < 5:
            time.sleep(0.01)
        pid = os.fork()
        if pid == 0:
            with open(sys.argv[3], "w") as file:
                file.write(str(os.getpid()))
            time.sleep(30)
            os._exit(0)
    import threading
    threading.Thread(target=fork_later, daemon=True).start()
ToolContext().run_process(sys.argv[4:])
"""


@pytest.mark.parametrize("kind", ["plain", "forked"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill-9", "term"])
def test_death_of_the_service_kills_the_whole_tree(tmp_path: Path, tmp_path_factory: Any, kind: str, number: int):
    """`kill -9` of the service: within 1 s nothing is left, also when a forked process still holds the pipe."""
    copy = tmp_path_factory.mktemp("copy") / "pid"
    command = [sys.executable, "-c", SERVICE, kind, str(tmp_path), str(copy), *tree(tmp_path)]
    service = subprocess.Popen(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": os.defpath})
    try:
        assert wait_for(lambda: set(members(tmp_path)) == MEMBERS, 15)
        assert kind == "plain" or wait_for(copy.exists, 5)
        assert set(alive(tmp_path)) == MEMBERS
        service.send_signal(number)
        service.wait(5)
        assert wait_for(lambda: not alive(tmp_path), 1), alive(tmp_path)
    finally:
        service.kill()
        service.wait()
        if copy.exists() and copy.read_text():
            os.kill(int(copy.read_text()), signal.SIGKILL)


def test_child_that_kills_its_watcher_is_killed_with_its_group():
    """The last resort: the group of the child is known to the service."""
    marker = f"31.{time.monotonic_ns() % 10**9}"  # of this run alone
    with pytest.raises(ToolError, match="killed together with the process that watched it"):
        ToolContext().run_process(["sh", "-c", f"sleep {marker} & sleep 0.2; kill -9 $PPID; sleep {marker}"])
    assert wait_for(lambda: not running(marker), 1), [Path(f"/proc/{pid}/stat").read_text() for pid in running(marker)]


def test_bomb_of_forks_is_stopped():
    """Processes that go on forking are stopped before they are killed, so that none escapes the sweep."""
    bomb = "import os,time\nfor _ in range(6): os.fork()\nwhile True:\n    if os.fork() == 0: os._exit(0)\n    os.wait()"
    started = time.monotonic()
    with pytest.raises(ProcessTimeout):
        ToolContext().run_process([sys.executable, "-I", "-S", "-c", bomb, "bomb-of-test"], timeout=0.5)
    assert wait_for(lambda: not running("bomb-of-test"), 2)
    assert time.monotonic() - started < 3


def test_result_holds_code_and_both_outputs():
    """An exit code other than 0 is a result; a signal is 128 + its number."""
    run = ToolContext().run_process
    assert run(["sh", "-c", "echo out; echo err >&2; exit 3"]) == ProcessResult(3, "out\n", "err\n", False)
    assert run(["sh", "-c", "kill -9 $$"]).returncode == 137
    assert run(["sh", "-c", "kill -15 $$"]).returncode == 143
    assert run([sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'\\xff\\xe2\\x82\\xac')"]).stdout == "\ufffd€"


def test_input_reaches_the_child_and_full_pipes_block_nobody():
    """Much in and much out at once, on both streams; the first mebibyte of each is kept, whole characters only."""
    echo = "import sys; d = sys.stdin.buffer.read(); sys.stderr.buffer.write(d); sys.stdout.buffer.write(d)"
    result = ToolContext().run_process([sys.executable, "-c", echo], input="x" + "€" * 2_000_000)
    assert (result.returncode, result.truncated) == (0, True)
    assert result.stdout == result.stderr == "x" + "€" * ((OUTPUT_BYTES - 1) // 3)
    small = ToolContext().run_process(["cat"], input=b"small")
    assert (small.stdout, small.truncated) == ("small", False)


def test_child_that_does_not_read_its_input_is_no_error():
    """Neither one that closes it nor one that ends early."""
    run = ToolContext().run_process
    assert run(["true"], input="x" * 5_000_000).returncode == 0
    assert run(["sh", "-c", "exec <&-; sleep 0.1; echo fine"], input="x" * 5_000_000).stdout == "fine\n"
    assert run(["cat"]).stdout == ""


def test_child_gets_its_own_directory_and_exactly_the_environment_given(tmp_path: Path):
    """`env` replaces the environment, with nothing added."""
    result = ToolContext().run_process(["/usr/bin/env"], env={"A": "1"}, cwd=tmp_path)
    assert result.stdout == "A=1\n"
    assert ToolContext().run_process(["pwd"], cwd=tmp_path).stdout == f"{tmp_path.resolve()}\n"


def test_child_has_a_group_of_its_own_and_no_descriptor_of_the_service():
    """It cannot keep itself alive by the lifeline, nor read what the service has open."""
    code = "import os; print(os.getpgrp() == os.getpid(), sorted(os.listdir('/proc/self/fd'), key=int)[:-1])"
    result = ToolContext().run_process([sys.executable, "-I", "-S", "-c", code])
    assert result.stdout == "True ['0', '1', '2']\n"


def test_child_has_the_usual_signal_handling():
    """Neither the interpreter's ignored signals nor the watcher's handlers are handed down."""
    status = ToolContext().run_process(["cat", "/proc/self/status"]).stdout
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
    # 32 and 33 are the C library's own; its posix_spawn leaves them ignored.
    assert int(masks["SigIgn"], 16) & ~(0b11 << 31) == 0
    assert int(masks["SigBlk"], 16) == 0


@pytest.mark.parametrize(
    ("argv", "options", "words"),
    [
        ("ls -l", {}, "not one string"),
        (b"ls", {}, "not one string"),
        ([], {}, "at least one string"),
        (["ls", 1], {}, "at least one string"),
        (["ls", "a\0b"], {}, "NUL"),
        (["no-such-program-at-all"], {}, "'no-such-program-at-all' cannot be started: No such file or directory"),
        (["/"], {}, "'/' cannot be started: Permission denied"),
        (["ls"], {"cwd": "/no/such/place"}, "'ls' cannot be started: No such file or directory"),
    ],
)
def test_what_cannot_be_started_is_said(argv: Any, options: dict[str, Any], words: str):
    """A sentence for the model; nothing is left running."""
    with pytest.raises(ToolError, match=words):
        ToolContext().run_process(argv, **options)


def test_own_timeout_of_a_child_is_an_error_and_no_end_of_the_call():
    """The tool may go on, and run another."""
    ctx = ToolContext()
    started = time.monotonic()
    with pytest.raises(ProcessTimeout, match=r"'sleep' was killed: it did not end within 0\.2 s"):
        ctx.run_process(["sleep", "60"], timeout=0.2)
    assert time.monotonic() - started < 1.2
    assert ctx.run_process(["echo", "on"]).stdout == "on\n"


def test_child_may_not_take_longer_than_the_call_has_left():
    """B2 reaches into the child."""
    with pytest.raises(ProcessTimeout):
        ToolContext(deadline=time.monotonic() + 0.2).run_process(["sleep", "60"], timeout=50)


async def test_many_children_at_once_do_not_wait_for_each_other():
    """Thirty children of async tools at the same time, none in the other's way, no descriptor lost."""
    before = open_descriptors()
    results: list[str] = []

    async def one(number: int) -> None:
        results.append((await ToolContext().run_process(["echo", str(number)])).stdout)

    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(one, number)
    assert sorted(results) == sorted(f"{number}\n" for number in range(30))
    assert open_descriptors() <= before + 1
