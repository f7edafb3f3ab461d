"""What a turn reads from the store before it begins, and what it leaves there: history, messages, its last words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import structlog

from app.agents.transcript import STOPPED, Message, history, user_message
from app.clock import monotonic, now_ms
from app.errors import EarlybyteError, StoreUnavailable
from app.events.codec import to_fields
from app.events.types import Completion, Terminal
from app.store import conversations, turns
from app.store import messages as stored
from app.store.engine import Connection
from app.turns import state
from app.turns.live import LiveTurn
from app.turns.parts import Parts
from app.turns.recorder import Recorder
from app.turns.stage import TurnStage
from app.turns.unsaved import ConversationGone, Save

log = structlog.get_logger(__name__)

# How long the start of a turn waits for its user's message to be stored; after that it is stored with the reply.
START_SECONDS = 0.25
# How long the message is tried to be saved before the conversation goes on without it (PROTOCOL 5).
SAVE_SECONDS = 5.0
_TITLE_CHARS = 60


class Bookkeeping:
    """The store's side of one turn."""

    def __init__(self, turn: LiveTurn, parts: Parts, *, recorder: Recorder, stage: TurnStage) -> None:
        self.turn = turn
        self.parts = parts
        self.recorder = recorder
        self.stage = stage
        self.input: str | list[dict[str, Any]] = turn.row.input
        # Whether `on_receive` has let the input into the history, and whether it is there.
        self.received = turn.row.received or not turn.assistant.hooks.has("on_receive")
        self._user_message_saved = turn.row.received

    @property
    def given(self) -> list[dict[str, Any]]:
        """What the user sent, as parts."""
        return [{"type": "text", "text": self.input}] if isinstance(self.input, str) else self.input

    @property
    def given_text(self) -> str:
        """The text of what the user sent."""
        return "\n\n".join(str(part["text"]) for part in self.given if part.get("type") == "text")

    async def load_history(self) -> list[Message]:
        """The conversation before this turn, as a model is shown it; the unsaved answers of this process included."""
        row = self.turn.row
        before = 2 * row.place
        remembered: list[stored.Remembered] = []
        if row.place > 1:
            remembered = await self.parts.store.read(
                lambda conn: stored.history(conn, row.conversation_id, before_place=before)
            )
        by_turn: dict[str, dict[int, list[Message]]] = {}
        for one in remembered:
            by_turn.setdefault(one.turn_id, {})[one.place] = one.model_messages
        for save in self.parts.unsaved.of_conversation(row.conversation_id):
            for message in (save.user_message, save.reply):
                if message is not None and message.model_messages and message.place < before:
                    by_turn.setdefault(save.turn_id, {})[message.place] = message.model_messages
        ordered = sorted(by_turn.values(), key=min)
        whole = [[m for place in sorted(turn) for m in turn[place]] for turn in ordered]
        return history(whole, max_chars=self.parts.settings.limits.history_chars)

    async def store_start(self, deadline_at: int) -> None:
        """Put the user's message into the history and the turn on record as running; waited for only shortly."""
        row = self.turn.row
        if self._user_message_saved:
            return
        message = self._user_message()

        async def op(conn: Connection) -> None:
            await stored.insert(conn, message)
            await conversations.name(conn, row.conversation_id, title=_title(message.text))
            await turns.begin(conn, row.id, epoch=row.epoch, given=self.input, started_at=now_ms(), deadline_at=deadline_at)

        try:
            await self.parts.store.write(op, timeout=START_SECONDS)
            self._user_message_saved = True
        except StoreUnavailable as error:
            # Nobody waits any longer, but it is stored as soon as the store takes it, with the reply at the latest.
            log.warning("user message not stored yet", error=error.message)
            self.parts.background(self._store_later(op))

    async def _store_later(self, op: Callable[[Connection], Awaitable[None]]) -> None:
        try:
            await self.parts.store.write(op)
        except EarlybyteError as error:
            log.warning("user message not stored", turn_id=self.turn.id, error=error.message)
        else:
            self._user_message_saved = True

    async def try_to_save(self, save: Save) -> None:
        """Store the message, trying for 5 s.

        Raises:
            StoreUnavailable: it could not be stored.
            ConversationGone: the conversation was deleted meanwhile.
        """
        if isinstance(self.turn.decision.cause, state.Cancelled) and self.turn.decision.cause.deleted:
            # Whoever deletes it waits for this.
            row = self.turn.row
            with suppress(StoreUnavailable):
                await self.parts.store.write(lambda conn: turns.finish(conn, row.id, epoch=row.epoch), timeout=SAVE_SECONDS)
            raise ConversationGone
        give_up_at = monotonic() + SAVE_SECONDS
        pause = 0.1
        while True:
            try:
                await self.parts.unsaved.write(save, timeout=max(0.1, give_up_at - monotonic()))
            except StoreUnavailable:
                if monotonic() + pause >= give_up_at:
                    raise
                await anyio.sleep(pause)
                pause = min(1.0, pause * 2)
            else:
                return

    def save_of(self, ending: Terminal, status: str) -> Save:
        """All that the settled turn has to store."""
        row, content = self.turn.row, self.recorder.content
        transcript = self.stage.transcript()
        text = content.text
        if isinstance(ending, Completion) and ending.replaced:
            transcript = _with_replaced_text(transcript, text)
        if isinstance(self.turn.decision.cause, state.Cancelled):
            transcript.append({"role": "user", "content": STOPPED})
        if not isinstance(ending, Completion):
            text = ending.message
        reply = stored.Message(
            id=row.message_id,
            conversation_id=row.conversation_id,
            turn_id=row.id,
            place=2 * row.place + 1,
            role="assistant",
            status=status,  # type: ignore[arg-type]  # one of the four
            text=text,
            content=content.to_document(),
            model_messages=transcript or None,
            created_at=ending.ts,
        )
        return Save(
            turn_id=row.id,
            conversation_id=row.conversation_id,
            tenant=row.tenant,
            user_id=row.user_id,
            epoch=row.epoch,
            user_message=None if self._user_message_saved or not self.received else self._user_message(),
            reply=reply,
            terminal=to_fields(ending),
            # message_saved, which is told after the save, has the next number.
            last_seq=content.last_seq + 1,
        )

    def _user_message(self) -> stored.Message:
        row = self.turn.row
        return stored.Message(
            id=row.user_message_id,
            conversation_id=row.conversation_id,
            turn_id=row.id,
            place=2 * row.place,
            role="user",
            status="complete",
            text=self.given_text,
            content={"parts": self.given},
            model_messages=[user_message(self.given)],
            created_at=row.created_at,
        )

    async def leave(self) -> None:
        """Hand the turn on: what is known goes into the journal, and nobody owns it any more."""
        row = self.turn.row
        try:
            await self.recorder.flush(timeout=2.0)
            await self.parts.store.write(lambda conn: turns.disown(conn, row.id, epoch=row.epoch), timeout=2.0)
        except EarlybyteError as error:
            log.warning("turn handed on without its last words", error=error.message)


def _with_replaced_text(transcript: list[Message], text: str) -> list[Message]:
    """The same steps, with the answer that a hook put in the place of all that was said."""
    steps = [
        {**{k: v for k, v in message.items() if k != "_blocks"}, "content": None}
        if message.get("role") == "assistant"
        else message
        for message in transcript
        if message.get("role") != "assistant" or message.get("tool_calls")
    ]
    return [*steps, {"role": "assistant", "content": text}] if text else steps


def _title(text: str) -> str:
    """A conversation's title from its first input: the first line, shortened at a word."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if len(line) <= _TITLE_CHARS:
        return line
    return line[:_TITLE_CHARS].rsplit(" ", 1)[0].rstrip(" ,.;:") + "…"
