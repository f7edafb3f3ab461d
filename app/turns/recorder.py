"""The only writer of a turn: number, make durable what must be, append, publish.

Promises: seq rises by one without gaps; the bytes of an event are made once; `tool_start` is durable before it is shown
(E4); no delta enters the log after the turn's end was decided (E6). Rendering never waits for storage: only what the
protocol names is waited for, and each wait is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from app.clock import now_ms
from app.errors import EarlybyteError
from app.events.codec import encode, to_fields
from app.events.content import TurnContent
from app.events.envelope import SAFE_CHARS, EventTooLarge, fit, id_prefix, numbered_frame
from app.events.types import Completion, Event, Notice, ReasoningDelta, Terminal, TextDelta, ToolProgress
from app.store import journal, turns
from app.store.engine import Connection, Store
from app.store.journal import Entry, EntryKind
from app.turn_log.log import TurnLog

log = structlog.get_logger(__name__)
_DELTAS = frozenset((TextDelta, ReasoningDelta))


class Recorder:
    """Writes the log and the journal of one turn.

    `next_n` is the journal's next number, higher than 1 for a turn that was taken over.
    """

    def __init__(self, turn_log: TurnLog, store: Store, *, next_n: int = 1) -> None:
        self.log = turn_log
        self._id_prefix = id_prefix(turn_log.turn_id, turn_log.epoch)
        self._store = store
        self._next_n = next_n
        self._unsealed: list[Event] = []
        self._entries: list[Entry] = []
        self.shown = 0
        self.shut = False
        self.longest_gap_ms = 0
        self._last_ts = now_ms()

    def __repr__(self) -> str:
        return f"<Recorder {self.log.turn_id} seq={self.content.last_seq} unsaved={len(self._entries)}>"

    @property
    def content(self) -> TurnContent:
        """What the turn has shown so far."""
        return self.log.content

    # -- showing

    def record(self, event: Event) -> None:
        """Show an event, unless the turn's end is decided."""
        if self.shut:
            return
        if type(event) in _DELTAS and len(event.text) <= SAFE_CHARS:  # type: ignore[attr-defined]  # both have a text
            self._write_delta(event)  # type: ignore[arg-type]  # it is one of the two
        else:
            self._write(event, journaled=True)

    def record_closing(self, event: Event, *, journaled: bool = True) -> None:
        """Show an event that belongs to the end itself, also after it is decided."""
        self._write(event, journaled=journaled)

    def _write_delta(self, event: TextDelta | ReasoningDelta) -> None:
        """`_write` for what comes once for each token: it always fits, is always journaled, and is looked at once."""
        content = self.log.content
        event.seq = content.last_seq + 1
        event.ts = now = now_ms()
        self.longest_gap_ms = max(self.longest_gap_ms, now - self._last_ts)
        self._last_ts = now
        content.apply(event)
        if event.text and type(event) is TextDelta:
            self.shown += 1
        self.log.append(numbered_frame(self._id_prefix, event.seq, encode(event)))
        self._unsealed.append(event)
        self.log.wake()

    def _write(self, event: Event, *, journaled: bool) -> None:
        try:
            events = fit(event)
        except EventTooLarge as error:
            log.warning("event too large", turn_id=self.log.turn_id, error=str(error))
            events = [Notice(level="warning", code="event_too_large", text="Something was too large to be shown.")]
        for part in events:
            self.number(part)
            self.append(part)
            if journaled and not isinstance(part, ToolProgress):
                self._unsealed.append(part)
        self.log.wake()

    def number(self, event: Event) -> None:
        """Give an event its place and moment; it must be appended before the next one is numbered."""
        event.seq = self.content.last_seq + 1
        event.ts = now_ms()
        self.longest_gap_ms = max(self.longest_gap_ms, event.ts - self._last_ts)
        self._last_ts = event.ts

    def append(self, event: Event) -> None:
        """Put a numbered event into the log; readers are woken by `log.wake`."""
        visible = self.content.chars + len(self.content.extras)
        self.content.apply(event)
        self.shown += (self.content.chars + len(self.content.extras)) != visible
        self.log.append(numbered_frame(self._id_prefix, event.seq, encode(event)))

    def append_ending(self, ending: Terminal) -> None:
        """Put the numbered ending into the log; an answer that was replaced takes the log before it away (E2)."""
        [shown] = fit(ending)
        revision: bytes | None = None
        if isinstance(ending, Completion) and ending.replaced:
            self.content.replace_text(ending.text or "")
            # A text that its completion has no room for comes before it, as a snapshot without an ending.
            revision = self.log.snapshot_frame() if isinstance(shown, Completion) and shown.text is None else None
        self.content.apply(ending)
        self.content.terminal = to_fields(shown)
        self.log.append(numbered_frame(self._id_prefix, ending.seq, encode(shown)))
        if isinstance(ending, Completion) and ending.replaced:
            self.log.drop_before_last(revision)
        self.log.wake()

    # -- the journal

    @property
    def dirty(self) -> bool:
        """Whether something waits to be journaled."""
        return bool(self._unsealed or self._entries)

    def note(self, kind: EntryKind, body: object) -> None:
        """Put something into the journal that is no event; durable with the next flush."""
        self._seal()
        self._add(kind, body)

    def note_events(self, events: Sequence[Event]) -> None:
        """Put events into the journal before they are shown."""
        self._unsealed.extend(events)

    def entries(self) -> list[Entry]:
        """What is not durable yet, in order; the same entries come again until `journaled` is told."""
        self._seal()
        return list(self._entries)

    def journaled(self, up_to: int) -> None:
        """The entries up to this number are durable."""
        self._entries = [entry for entry in self._entries if entry.n > up_to]

    async def flush(self, *, timeout: float | None = None) -> None:
        """Make durable what is not.

        Raises:
            StoreUnavailable: not within `timeout` seconds; it stays to be written.
        """
        entries = self.entries()
        if entries:
            turn_id, epoch = self.log.turn_id, self.log.epoch
            await self._store.write(
                lambda conn: journal.append_all(conn, turn_id, epoch=epoch, entries=entries), timeout=timeout
            )
            self.journaled(entries[-1].n)

    async def offer_ending(self, event: Terminal, *, timeout: float) -> None:
        """Offer the ending to the store, with the text since the last checkpoint, for at most `timeout` seconds (E3).

        Not at all while the store is known to be down; failing is no error, since the message is saved later.
        """
        if self._store.down_since is not None:
            return
        entries = self.entries()
        turn_id, epoch = self.log.turn_id, self.log.epoch

        async def op(conn: Connection) -> bool:
            if entries:
                await journal.append_all(conn, turn_id, epoch=epoch, entries=entries)
            return await turns.end(
                conn, turn_id, epoch=epoch, terminal=to_fields(event), last_seq=event.seq, ended_at=event.ts
            )

        try:
            await self._store.write(op, timeout=timeout)
        except EarlybyteError as error:
            log.warning("ending not stored yet", turn_id=turn_id, error=error.message)
            return
        except Exception:
            # Whatever cannot be stored, the ending is shown (E1).
            log.exception("ending not stored", turn_id=turn_id)
            return
        if entries:
            self.journaled(entries[-1].n)

    def _seal(self) -> None:
        if self._unsealed:
            self._add("events", [to_fields(event) for event in merged(self._unsealed)])
            self._unsealed = []

    def _add(self, kind: EntryKind, body: object) -> None:
        self._entries.append(Entry(n=self._next_n, epoch=self.log.epoch, kind=kind, body=body, created_at=now_ms()))
        self._next_n += 1


def merged(events: Sequence[Event]) -> list[Event]:
    """The same events with neighbouring deltas of one block as one."""
    result: list[Event] = []
    pieces: list[str] = []

    def close() -> None:
        if len(pieces) > 1:
            result[-1] = msgspec.structs.replace(result[-1], text="".join(pieces))
        pieces.clear()

    for event in events:
        last = result[-1] if result else None
        if isinstance(event, TextDelta | ReasoningDelta):
            if pieces and type(last) is type(event) and last.block == event.block:
                pieces.append(event.text)
                last.seq = event.seq
                continue
            close()
            result.append(msgspec.structs.replace(event))
            pieces.append(event.text)
        else:
            close()
            result.append(event)
    close()
    return result
