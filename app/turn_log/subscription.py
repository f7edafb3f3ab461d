"""Reading a log: replay, then live, by one and the same step (R1–R4).

A reader takes whatever is after its cursor. There is no seam between the past and the present to lose an event in: both are
the same list, and a wake-up only says "look again". A cursor that the log cannot serve becomes one `snapshot`.
"""

from __future__ import annotations

from collections.abc import Callable

from app.events.codec import encode
from app.events.envelope import frame
from app.events.types import Queued
from app.turn_log.cursor import seq_of
from app.turn_log.log import TurnLog

# Bytes of one write, about: small, so that a slow peer that takes something is seen to take it (`viewer_write`).
MAX_TAKE_BYTES = 64 << 10


class Subscription:
    """One viewer's place in a turn.

    `take()` gives the next frames, `finished` says that all of an ended turn was taken. Register `wake` by `open`, and
    `close` when the viewer leaves; both are idempotent.
    """

    def __init__(self, log: TurnLog, *, cursor: str | None = None, from_snapshot: bool = False) -> None:
        self._log = log
        self._wake: Callable[[], None] | None = None
        self._position: int | None = None
        self.snapshots = 0
        self._revised = False
        seq = 0 if cursor is None else seq_of(cursor, turn_id=log.turn_id, epoch=log.epoch)
        self._seq = -1 if from_snapshot or seq is None or not log.attachable_from <= seq <= log.last_seq else seq

    def __repr__(self) -> str:
        return f"<Subscription {self._log.turn_id} at {self._seq}>"

    @property
    def log(self) -> TurnLog:
        """The log it reads."""
        return self._log

    @property
    def seq(self) -> int:
        """The seq it has reached; -1 before its first snapshot."""
        return self._seq

    @property
    def finished(self) -> bool:
        """Whether the turn is over and everything was taken."""
        return self._log.ended and self._seq == self._log.last_seq

    @property
    def behind(self) -> int:
        """How many events have not been taken yet."""
        return self._log.last_seq - max(self._seq, self._log.floor)

    @property
    def bytes_behind(self) -> int:
        """How many bytes have not been taken yet."""
        return self._log.bytes_after(max(self._seq, self._log.floor))

    def open(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there may be something to take."""
        self._wake = wake
        self._log.add_reader(wake)

    def close(self) -> None:
        """Leave the log."""
        if self._wake is not None:
            self._log.remove_reader(self._wake)
            self._wake = None

    def take(self, max_bytes: int = MAX_TAKE_BYTES) -> list[bytes]:
        """The next frames, empty when there is nothing new.

        A list that begins with a snapshot holds only that: it may be large and is written in pieces (F4).
        """
        log = self._log
        if log.revised is not None and 0 <= self._seq < log.attachable_from and not self._revised:
            self._revised = True
            self._seq = log.attachable_from - 1
            return [log.revised]
        if self._seq < log.floor:
            self._seq = log.last_seq
            return [self._snapshot()]
        frames, self._seq = log.after(self._seq, max_bytes)
        if frames:
            return frames
        if log.position is not None and log.position != self._position and log.last_seq == 0:
            self._position = log.position
            return [frame(encode(Queued(position=log.position)))]
        return []

    def _snapshot(self) -> bytes:
        self.snapshots += 1
        return self._log.snapshot_frame()
