"""Tickets: a secret that lets an EventSource, which cannot set headers, read one turn (PROTOCOL 1, `…/tickets`).

The first connect must come within 60 s. Until an event with an id was sent under it, it may connect again without a cursor;
after that only with an id of its turn, until 15 minutes after the turn's end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from app.api.auth import Principal, hash_secret
from app.api.problems import Unauthenticated
from app.clock import monotonic, now_ms
from app.ids import new_secret
from app.store import keys
from app.store.engine import Store
from app.turn_log.cursor import names_turn
from app.turn_log.log import KEEP_SECONDS, TurnLog

FIRST_CONNECT_SECONDS = 60


class Tickets:
    """Gives out tickets and lets their holders in."""

    def __init__(self, store: Store, background: Callable[[Awaitable[None]], None]) -> None:
        self._store = store
        self._background = background
        # Tickets that have connected in time, and those under which an id was sent; the second is stored, too.
        self._connected: set[str] = set()
        self._used: set[str] = set()

    async def issue(self, turn_id: str, principal: Principal) -> str:
        """A fresh ticket for a turn that the caller may read."""
        secret = new_secret("ebt")
        row = keys.Ticket(
            ticket_hash=hash_secret(secret),
            turn_id=turn_id,
            user_id=principal.user_id,
            tenant=principal.tenant,
            created_at=now_ms(),
        )
        await self._store.write(lambda conn: keys.insert_ticket(conn, row), timeout=2.0)
        return secret

    async def redeem(self, secret: str, *, turn_id: str, cursor: str | None) -> Principal:
        """The caller behind a ticket, when it is good for this connect.

        Raises:
            Unauthenticated: it is unknown, for another turn, too old, or was used and comes without an id of its turn.
        """
        hashed = hash_secret(secret)
        row = await self._store.read(lambda conn: keys.get_ticket(conn, hashed))
        if row is None or row.turn_id != turn_id:
            raise Unauthenticated("This ticket is not valid.")
        if row.used_at is not None or hashed in self._used:
            if cursor is None or not names_turn(cursor, turn_id):
                raise Unauthenticated("This ticket was used; come back with the id of the last event.")
        elif hashed not in self._connected:
            if now_ms() - row.created_at > FIRST_CONNECT_SECONDS * 1000:
                raise Unauthenticated("This ticket has expired.")
            self._connected.add(hashed)
        return Principal(tenant=row.tenant, user_id=row.user_id, via="ticket")

    def check_age(self, log: TurnLog, ended_at: int | None) -> None:
        """Nothing, when the turn ended less than 15 minutes ago or goes on.

        Raises:
            Unauthenticated: it ended before that.
        """
        over = log.ended_at is not None and monotonic() - log.ended_at > KEEP_SECONDS
        if over or (ended_at is not None and now_ms() - ended_at > KEEP_SECONDS * 1000):
            raise Unauthenticated("This ticket has expired.")

    def used(self, secret: str) -> None:
        """An event with an id was sent under it."""
        hashed = hash_secret(secret)
        if hashed not in self._used:
            self._used.add(hashed)
            self._connected.discard(hashed)
            self._background(self._mark(hashed))

    async def _mark(self, hashed: str) -> None:
        await self._store.write(lambda conn: keys.mark_used(conn, hashed, at=now_ms()))
