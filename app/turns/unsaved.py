"""Answers that are out but not stored: kept in memory, known to the next turn, and saved when the store is back."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from app.errors import EarlybyteError, StoreUnavailable
from app.store import conversations, journal, messages, turns
from app.store.engine import Connection, Store
from app.store.errors import Conflict, Fenced
from app.store.messages import Message

log = structlog.get_logger(__name__)


class ConversationGone(EarlybyteError):
    """The conversation was deleted, so there is nowhere to save its message."""

    code = "conversation_deleted"


@dataclass(frozen=True, kw_only=True)
class Save:
    """Everything that one settled turn has to store, in one transaction; it may be tried any number of times."""

    turn_id: str
    conversation_id: str
    tenant: str
    user_id: str
    epoch: int
    user_message: Message | None
    reply: Message
    terminal: dict[str, object]
    last_seq: int

    async def write(self, conn: Connection) -> None:
        """Store the messages and settle the turn."""
        if self.user_message is not None:
            await messages.insert(conn, self.user_message)
        await messages.insert(conn, self.reply)
        settled = await turns.settle(
            conn,
            self.turn_id,
            epoch=self.epoch,
            terminal=self.terminal,
            last_seq=self.last_seq,
            ended_at=self.reply.created_at,
        )
        if not settled:
            raise Fenced(f"The turn {self.turn_id} is no longer in epoch {self.epoch}.")
        await journal.delete(conn, self.turn_id)
        await conversations.touch(conn, self.conversation_id, updated_at=self.reply.created_at)


class Unsaved:
    """The saves that are still owed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._saves: dict[str, Save] = {}

    def __len__(self) -> int:
        return len(self._saves)

    def add(self, save: Save) -> None:
        """Keep a save until it succeeds."""
        self._saves[save.turn_id] = save

    def of_conversation(self, conversation_id: str) -> list[Save]:
        """What is owed to one conversation, oldest first."""
        return [save for save in self._saves.values() if save.conversation_id == conversation_id]

    def belongs_to(self, message_id: str, *, tenant: str, user_id: str) -> bool:
        """Whether this message is owed, and to this user."""
        return any(
            save.reply.id == message_id and (save.tenant, save.user_id) == (tenant, user_id) for save in self._saves.values()
        )

    async def write(self, save: Save, *, timeout: float) -> None:
        """Store one save now.

        Raises:
            StoreUnavailable: not within `timeout` seconds.
            ConversationGone: the conversation does not exist any more.
            Fenced: another process has taken the turn over, and saves it.
        """
        try:
            await self._store.write(save.write, timeout=timeout)
        except Conflict as error:
            raise ConversationGone from error

    async def sweep(self) -> None:
        """Try again to store what is owed."""
        for save in list(self._saves.values()):
            try:
                await self.write(save, timeout=5.0)
            except StoreUnavailable:
                return
            except (ConversationGone, Fenced) as error:
                log.info("message dropped", turn_id=save.turn_id, reason=error.code)
            del self._saves[save.turn_id]
