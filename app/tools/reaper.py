"""The process between the service and a tool's child: it makes sure that nothing of the child is left behind.

Run as a script by `app.tools.process`, never imported: `python -I -S reaper.py <life> <status> <argv …>`. `life` is
the read end of a pipe whose write end only the service holds: its end of file means that the service wants the child
dead, or is dead itself, also by SIGKILL. `status` is a pipe to the service that gets `started <pid>` and then
`exit <code>`, or `failed <why>`.

On Linux the reaper is the sub-reaper of all that the child starts, so that a grandchild which left its group, its
session and its parent is still found below the reaper. Elsewhere it kills the child's process group.

Only the standard library, and little of it: this runs once for each child.
"""

# pathlib would double the time that this takes to start.
# ruff: noqa: PTH112, PTH123, PTH208

from __future__ import annotations

import os
import select
import signal
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
# What a shell's background job, and Python itself, would have the child ignore.
_DEFAULT = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM]
# How often the service's life is checked beside the pipe: a process forked by a tool may hold a copy of the write end.
_PARENT_CHECK_SECONDS = 0.4


def main() -> int:
    """Start the child, wait for its end or the service's, kill what is left; the child's exit code."""
    life, status, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    service = os.getppid()
    for fd in (life, status):
        os.set_inheritable(fd, False)
    _become_subreaper()
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    # Handlers, not SIG_IGN: a child would inherit that. A stop of the whole service must not stop the clean-up.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        child = os.posix_spawnp(argv[0], argv, _environment(), setpgroup=0, setsigdef=_DEFAULT)
    except (OSError, ValueError) as error:
        _tell(status, f"failed {getattr(error, 'strerror', None) or error}")
        return 127
    _tell(status, f"started {child}")
    _let_go_of_output()
    code = _wait(child, life, wake_read, service)
    leftover = _kill_all(child)
    if code is None:
        code = leftover
    _tell(status, f"exit {code}")
    return code


def _wait(child: int, life: int, wake: int, service: int) -> int | None:
    """The exit code of the child, or None when the service wants it dead or is gone."""
    while True:
        _, code = _reap(child)
        if code is not None:
            return code
        readable, _, _ = select.select([life, wake], [], [], _PARENT_CHECK_SECONDS)
        if life in readable or os.getppid() != service:
            return None
        if wake in readable:
            os.read(wake, 4096)


def _reap(child: int) -> tuple[bool, int | None]:
    """Collect what has died: whether no process is left below this one, and the child's code if it was among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True, code
        if pid == 0:
            return False, code
        if pid == child:
            raw = os.waitstatus_to_exitcode(status)
            code = raw if raw >= 0 else 128 - raw


def _kill_all(child: int) -> int:
    """Kill every descendant until none is left; the child's exit code, if it dies here.

    Whether one is left is asked of the kernel, by `waitpid`, not of a list: a list is old when it is read. A process
    that is stuck in the kernel is waited for; the service does not wait for us.
    """
    result = 128 + signal.SIGKILL
    pause = 0.001
    while True:
        # Stopped first, so that none can start another while its siblings are being killed.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in _descendants(os.getpid()):
                _signal(pid, number)
        if not os.path.isdir("/proc/self"):
            try:
                os.killpg(child, signal.SIGKILL)
            except OSError:
                pass
        empty, code = _reap(child)
        if code is not None:
            result = code
        if empty:
            return result
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def _descendants(root: int) -> list[int]:
    """The processes below `root`, from /proc; empty where there is none."""
    children: dict[int, list[int]] = {}
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    for entry in entries:
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                # The name stands in brackets and may hold anything, so count from its end: state, parent. The state
                # says nothing: a process whose first thread has ended looks dead while its other threads run.
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _become_subreaper() -> None:
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _environment() -> dict[str, str]:
    """The environment as the service gave it: without the locale that Python itself adds at start (PEP 538)."""
    environment = dict(os.environ)
    try:
        with open("/proc/self/environ", "rb") as file:
            given = file.read().split(b"\0")
    except OSError:
        return environment
    if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
        environment.pop("LC_CTYPE", None)
    return environment


def _let_go_of_output() -> None:
    """Point the standard streams to nothing, so that the pipes close when the child and its family close them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    os.close(nothing)


def _tell(status: int, line: str) -> None:
    try:
        os.write(status, line.encode("utf-8", "replace")[:500] + b"\n")
    except OSError:
        pass  # The service is gone; the clean-up goes on.


if __name__ == "__main__":
    # Without the interpreter's own end, which could wait for a stuck stream.
    os._exit(main())
