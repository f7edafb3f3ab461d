"""One turn's events as ready bytes, in memory, with a place for each by its seq.

A log has one writer (the recorder) and any number of readers, which own nothing but a cursor. What is trimmed is gone for
good; a reader that needs it gets a snapshot of the content instead. Keeps: order, and the same bytes for everybody (E7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from app.clock import monotonic
from app.events.content import TurnContent
from app.events.envelope import event_id, frame

Status = Literal["queued", "running", "waiting", "done"]
KEEP_SECONDS = 900.0
_FRAME_OVERHEAD = 64
# What a log takes besides its frames: its content, which snapshots are made of.
_LOG_OVERHEAD = 4096


class TurnLog:
    """The events of one turn.

    `floor` is the smallest seq that still works as a cursor: the frame after it is here. `ended` says that no frame will
    follow. `position` is the place in the queue while the turn waits.
    """

    # Thousands of them are kept for a quarter of an hour.
    __slots__ = (
        "_frames",
        "_readers",
        "_replaced",
        "content",
        "ended",
        "ended_at",
        "floor",
        "max_bytes",
        "phase",
        "phase_since",
        "position",
        "revised",
        "saved",
        "size",
        "status",
    )

    def __init__(self, content: TurnContent, *, max_bytes: int = 16 << 20) -> None:
        self.content = content
        self.status: Status = "queued"
        self.floor = content.last_seq
        self._replaced = 0
        # What a viewer of a replaced answer gets before its completion, where that has no room for the text.
        self.revised: bytes | None = None
        self.ended = False
        self.ended_at: float | None = None
        # Whether the store has its message: then the log may go when room is needed.
        self.saved = False
        self.position: int | None = None
        self.phase: Literal["model", "tool", "queued", "approval"] = "queued"
        self.phase_since = monotonic()
        self.size = 0
        self.max_bytes = max_bytes
        self._frames: list[bytes] = []
        self._readers: set[Callable[[], None]] = set()

    def __repr__(self) -> str:
        return f"<TurnLog {self.turn_id} {self.status} {self.floor}..{self.last_seq} readers={len(self._readers)}>"

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self.content.turn_id

    @property
    def epoch(self) -> int:
        """The epoch of every frame here."""
        return self.content.epoch

    @property
    def last_seq(self) -> int:
        """The seq of the newest frame."""
        return self.floor + len(self._frames)

    @property
    def last_id(self) -> str:
        """The id of the newest frame."""
        return event_id(self.turn_id, self.epoch, self.last_seq)

    @property
    def attachable_from(self) -> int:
        """The smallest seq that a new viewer may come with: after a replaced answer, its completion (E2)."""
        return max(self.floor, self._replaced)

    @property
    def readers(self) -> int:
        """How many viewers follow it."""
        return len(self._readers)

    # -- writing (the recorder only)

    def append(self, framed: bytes) -> None:
        """Add the next frame; readers are woken by `wake`, once per batch."""
        self._frames.append(framed)
        self.size += len(framed) + _FRAME_OVERHEAD
        if self.size > self.max_bytes:
            self._trim(self.max_bytes * 3 // 4)

    def wake(self) -> None:
        """Tell every reader that there is something new."""
        for reader in tuple(self._readers):
            reader()

    def set_phase(self, phase: Literal["model", "tool", "queued", "approval"]) -> None:
        """Say what the turn is doing, for heartbeats."""
        if phase != self.phase:
            self.phase = phase
            self.phase_since = monotonic()

    def set_position(self, position: int | None) -> None:
        """Say the place in the queue; readers are told."""
        if position != self.position:
            self.position = position
            self.wake()

    def end(self) -> None:
        """No frame will follow; the log is kept for 15 minutes from now."""
        self.ended = True
        self.status = "done"
        self.ended_at = monotonic()
        self.wake()

    def snapshot_frame(self) -> bytes:
        """A snapshot of now, as a frame."""
        return frame(self.snapshot(), self.last_id)

    def drop_before_last(self, revised: bytes | None = None) -> None:
        """Forget all but the newest frame, a completion that replaced the answer (E2); later viewers get a snapshot.

        Those who watch get `revised` before it, if there is one.
        """
        if self._frames:
            self._replaced = self.last_seq
            self.revised = revised
            newest = self._frames[-1]
            self.floor = self.last_seq - 1
            self._frames = [newest]
            self.size = len(newest) + _FRAME_OVERHEAD + len(revised or b"")

    def forget_frames(self) -> None:
        """Drop every frame: later readers get a snapshot."""
        self.floor = self.last_seq
        self.revised = None
        self._frames = []
        self.size = 0

    def _trim(self, target: int) -> None:
        gone, kept = 0, self.size
        while gone < len(self._frames) - 1 and kept > target:
            kept -= len(self._frames[gone]) + _FRAME_OVERHEAD
            gone += 1
        del self._frames[:gone]
        self.revised = None
        self.floor += gone
        self.size = kept

    # -- reading

    def after(self, seq: int, max_bytes: int) -> tuple[list[bytes], int]:
        """The frames after `seq`, about `max_bytes` of them and at least one if there is one; and the new seq.

        `seq` must not be below `floor`.
        """
        frames = self._frames
        start = seq - self.floor
        if start == len(frames) - 1:
            # The usual case of a viewer that keeps up.
            return frames[-1:], seq + 1
        end, size = start, 0
        while end < len(frames) and size < max_bytes:
            size += len(frames[end])
            end += 1
        return frames[start:end], self.floor + end

    def bytes_after(self, seq: int) -> int:
        """How many bytes a reader at `seq` is behind."""
        return sum(map(len, self._frames[max(0, seq - self.floor) :]))

    def snapshot(self) -> bytes:
        """The data of a `snapshot` of now."""
        return self.content.snapshot(self.status)

    def add_reader(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, on the loop, whenever there is something new; it must be cheap and never raise."""
        self._readers.add(wake)

    def remove_reader(self, wake: Callable[[], None]) -> None:
        """Undo `add_reader`; harmless when it is not there."""
        self._readers.discard(wake)


class TurnLogs:
    """The logs of this process (`memory://`): running turns, and ended ones for 15 minutes within the byte limits."""

    def __init__(self, *, log_bytes: int, logs_bytes: int) -> None:
        self._log_bytes = log_bytes
        self._logs_bytes = logs_bytes
        self._logs: dict[str, TurnLog] = {}

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def size(self) -> int:
        """Bytes of all logs, about."""
        return sum(log.size for log in self._logs.values()) + _LOG_OVERHEAD * len(self._logs)

    def open(self, content: TurnContent) -> TurnLog:
        """A new log for a turn that is about to run here; it replaces one of an older epoch."""
        log = TurnLog(content, max_bytes=self._log_bytes)
        self._logs[content.turn_id] = log
        return log

    def get(self, turn_id: str) -> TurnLog | None:
        """The log of a turn, while it is here."""
        return self._logs.get(turn_id)

    def discard(self, turn_id: str) -> None:
        """Forget a log now."""
        self._logs.pop(turn_id, None)

    def sweep(self) -> None:
        """Drop what is older than 15 minutes after its end, and hold the byte limit, oldest first.

        A turn whose message is stored goes whole, with its content; later readers get a snapshot from the message.
        """
        now = monotonic()
        for turn_id, log in list(self._logs.items()):
            if log.ended_at is not None and now - log.ended_at > KEEP_SECONDS and log.readers == 0:
                del self._logs[turn_id]
        total = self.size
        if total <= self._logs_bytes:
            return
        for log in sorted(self._logs.values(), key=lambda log: (log.ended_at is None, log.ended_at or 0.0)):
            if total <= self._logs_bytes:
                return
            total -= log.size
            if log.saved and log.ended and log.readers == 0:
                total -= _LOG_OVERHEAD
                del self._logs[log.turn_id]
            else:
                log.forget_frames()
