"""Child processes of tools: each dies with all its descendants when its call is over, or the service is.

The promise is kept by an intermediate process (`reaper.py`) that holds the read end of a pipe, the *lifeline*. Closing
the write end is the only way to end a child, and it also happens by itself when the service dies. Killing the process
group from here would be simpler, and would miss what moved to a session of its own, and everything after a `kill -9`.
"""

from __future__ import annotations

import codecs
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.clock import monotonic
from app.limits.cancel import Cancel
from app.tools.errors import ProcessCancelled, ProcessTimeout, ToolError

OUTPUT_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_INPUT_CHUNK_BYTES = 1 << 12
# How long the reaper may take to clean up before the call goes on without it.
_REAP_SECONDS = 0.8
# The longest sleep of the reading loop; bounds what a wake-up that never comes would cost.
_TICK_SECONDS = 0.25
_REAPER = str(Path(__file__).with_name("reaper.py"))


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """A child that ended by itself.

    `returncode` is its exit code, 128 + n where signal n ended it. `stdout` and `stderr` hold the first 1 MiB each, as
    UTF-8 (wrong bytes are U+FFFD); `truncated` says whether one of them had more.
    """

    returncode: int
    stdout: str
    stderr: str
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRequest:
    """What to run: `argv` without a shell; `timeout` in seconds; `cwd` and `env` are inherited where they are None."""

    argv: tuple[str, ...]
    input: bytes = b""
    timeout: float = math.inf
    cwd: str | None = None
    env: Mapping[str, str] | None = None

    @classmethod
    def checked(
        cls,
        argv: Sequence[str],
        *,
        input: str | bytes | None = None,  # noqa: A002 - as subprocess.run calls it
        timeout: float = math.inf,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ProcessRequest:
        """A request made of what a tool passed.

        Raises:
            ToolError: `argv` is one string, is empty, or holds something that is not a string.
        """
        if isinstance(argv, str | bytes):
            raise ToolError("run_process takes a list of words such as ['ls', '-l'], not one string (no shell).")
        words = tuple(argv)
        if not words or not all(isinstance(word, str) for word in words):
            raise ToolError("run_process takes a list of at least one string.")
        if any("\0" in word for word in words):
            raise ToolError("run_process cannot pass a word with a NUL character.")
        data = input.encode("utf-8", "replace") if isinstance(input, str) else bytes(input or b"")
        return cls(argv=words, input=data, timeout=timeout, cwd=None if cwd is None else os.fspath(cwd), env=env)


class _Lifeline:
    """The write end of the pipe that keeps a child alive; closing it, from any thread, any number of times, kills."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._lock = threading.Lock()
        self.killed = False

    def kill(self) -> None:
        """Cut it because the service stops; remembered, since the child's end then says nothing about the child."""
        self.killed = True
        self.cut()

    def cut(self) -> None:
        """Let the child die, if it lives."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)


_live: set[_Lifeline] = set()
_live_lock = threading.Lock()


def kill_all() -> int:
    """Kill every running child with its descendants; how many children there were. They are gone within 1 s."""
    with _live_lock:
        lifelines = list(_live)
    for lifeline in lifelines:
        lifeline.kill()
    return len(lifelines)


def live_processes() -> int:
    """How many children are running, or still being cleaned up."""
    with _live_lock:
        return len(_live)


def run_blocking(request: ProcessRequest, cancel: Cancel) -> ProcessResult:
    """What the child wrote and how it ended; blocks the calling thread until then.

    When this returns or raises, the child and all its descendants are dead, or have been sent SIGKILL and are stuck in
    the kernel.

    Raises:
        ProcessTimeout: `request.timeout` was over.
        ProcessCancelled: `cancel` was set, before or meanwhile, or `kill_all` was called.
        ToolError: the child could not be started.
    """
    if cancel.cancelled:
        raise ProcessCancelled(f"{request.argv[0]!r} was not started: the call is over.")
    deadline = monotonic() + request.timeout
    life_read, life_write = os.pipe()
    status_read, status_write = os.pipe()
    lifeline = _Lifeline(life_write)
    with _live_lock:
        _live.add(lifeline)
    try:
        try:
            reaper = _start(request, life_read, status_write)
        finally:
            os.close(life_read)
            os.close(status_write)
        unlink = cancel.on_cancel(lifeline.cut)
        try:
            return _Exchange(request, reaper, status_read, lifeline).run(deadline, cancel)
        finally:
            unlink()
    finally:
        os.close(status_read)
        lifeline.cut()
        with _live_lock:
            _live.discard(lifeline)


def _start(request: ProcessRequest, life_read: int, status_write: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", _REAPER, str(life_read), str(status_write), *request.argv]
    try:
        return subprocess.Popen(  # noqa: S603 - running programs is what this is for; there is no shell
            command,
            stdin=subprocess.PIPE if request.input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=request.cwd,
            env=request.env,
            pass_fds=(life_read, status_write),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ToolError(f"{request.argv[0]!r} cannot be started: {reason}.") from error


@dataclass(slots=True)
class _Output:
    """The first `OUTPUT_BYTES` of a stream; the rest is read and dropped, so that the child never blocks on us."""

    data: bytearray = field(default_factory=bytearray)
    truncated: bool = False

    def add(self, chunk: bytes) -> None:
        room = OUTPUT_BYTES - len(self.data)
        self.data += chunk[:room]
        self.truncated = self.truncated or len(chunk) > room

    def text(self) -> str:
        # Not final where it was cut: half a character at the end is dropped, not replaced.
        return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self.data), final=not self.truncated)


class _Exchange:
    """The conversation with one reaper: feeds the input, collects both outputs and the status, all in one thread."""

    def __init__(
        self, request: ProcessRequest, reaper: subprocess.Popen[bytes], status_fd: int, lifeline: _Lifeline
    ) -> None:
        self._request = request
        self._reaper = reaper
        self._status_fd = status_fd
        self._lifeline = lifeline
        self._outputs: dict[int, _Output] = {}
        self._status = bytearray()
        self._unsent = memoryview(request.input)
        self._selector = selectors.DefaultSelector()

    def run(self, deadline: float, cancel: Cancel) -> ProcessResult:
        reaper = self._reaper
        assert reaper.stdout is not None
        assert reaper.stderr is not None
        stdout, stderr = _Output(), _Output()
        self._outputs = {reaper.stdout.fileno(): stdout, reaper.stderr.fileno(): stderr}
        try:
            for fd in (*self._outputs, self._status_fd):
                os.set_blocking(fd, False)
                self._selector.register(fd, selectors.EVENT_READ)
            if reaper.stdin is not None:
                os.set_blocking(reaper.stdin.fileno(), False)
                self._selector.register(reaper.stdin.fileno(), selectors.EVENT_WRITE)
            timed_out = self._until_status_ends(deadline, cancel)
            self._read_what_is_there()
        finally:
            self._selector.close()
            self._lifeline.cut()
            self._collect()
        return self._verdict(stdout, stderr, timed_out=timed_out, cancelled=cancel.cancelled or self._lifeline.killed)

    def _until_status_ends(self, deadline: float, cancel: Cancel) -> bool:
        """Move bytes until the reaper has closed its status, which it does last; whether the time was over before."""
        timed_out = False
        give_up_at = math.inf
        while True:
            now = monotonic()
            if give_up_at == math.inf and (now >= deadline or cancel.cancelled):
                timed_out = not cancel.cancelled
                give_up_at = now + _REAP_SECONDS
                self._lifeline.cut()
            if now >= give_up_at:
                return timed_out
            wait = min(_TICK_SECONDS, (deadline if give_up_at == math.inf else give_up_at) - now)
            for key, _ in self._selector.select(max(0.0, wait)):
                if not self._move(key.fd):
                    return timed_out

    def _move(self, fd: int) -> bool:
        """Read from or write to one descriptor that is ready; False at the end of the status."""
        if fd == self._status_fd:
            chunk = os.read(fd, _CHUNK_BYTES)
            self._status += chunk
            return bool(chunk)
        if fd in self._outputs:
            chunk = os.read(fd, _CHUNK_BYTES)
            self._outputs[fd].add(chunk)
            if not chunk:
                self._selector.unregister(fd)
            return True
        try:
            self._unsent = self._unsent[os.write(fd, self._unsent[:_INPUT_CHUNK_BYTES]) :]
        except BlockingIOError:
            return True
        except OSError:
            self._unsent = memoryview(b"")  # The child does not want it; that is its business.
        if not self._unsent:
            self._selector.unregister(fd)
            assert self._reaper.stdin is not None
            self._reaper.stdin.close()
        return True

    def _read_what_is_there(self) -> None:
        """Empty the output pipes; never waits, since a stranger who was handed a descriptor may keep one open."""
        for fd, output in self._outputs.items():
            # Bounded: what is written faster than it is read is beyond the limit anyway.
            for _ in range(2 * OUTPUT_BYTES // _CHUNK_BYTES):
                try:
                    chunk = os.read(fd, _CHUNK_BYTES)
                except BlockingIOError:
                    break
                if not chunk:
                    break
                output.add(chunk)

    def _collect(self) -> None:
        """Close what is open; if the reaper itself was killed, kill what can still be named: the child's group."""
        for stream in (self._reaper.stdin, self._reaper.stdout, self._reaper.stderr):
            if stream is not None:
                stream.close()
        try:
            self._reaper.wait(timeout=_TICK_SECONDS)
        except subprocess.TimeoutExpired:
            # Stuck in the kernel behind its last child. It goes on by itself; a thread waits for its zombie.
            threading.Thread(target=self._reaper.wait, daemon=True, name="reaper of a stuck child").start()
        words = self._status_words()
        if "exit" not in words and "started" in words:
            try:
                os.killpg(int(words["started"]), signal.SIGKILL)
            except (OSError, ValueError):
                pass

    def _status_words(self) -> dict[str, str]:
        lines = self._status.decode("utf-8", "replace").splitlines()
        return {word: rest for word, _, rest in (line.partition(" ") for line in lines)}

    def _verdict(self, stdout: _Output, stderr: _Output, *, timed_out: bool, cancelled: bool) -> ProcessResult:
        name, words = self._request.argv[0], self._status_words()
        if "failed" in words:
            raise ToolError(f"{name!r} cannot be started: {words['failed']}.")
        if cancelled:
            raise ProcessCancelled(f"{name!r} was killed: the call is over.")
        if timed_out:
            raise ProcessTimeout(f"{name!r} was killed: it did not end within {self._request.timeout:g} s.")
        if "exit" not in words:
            raise ToolError(f"{name!r} was killed together with the process that watched it.")
        return ProcessResult(
            returncode=int(words["exit"]),
            stdout=stdout.text(),
            stderr=stderr.text(),
            truncated=stdout.truncated or stderr.truncated,
        )
