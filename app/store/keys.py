"""What opens the door: API keys, browser sessions and tickets. Only hashes are stored (A1, A4)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from sqlalchemy import delete, exists, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.tables import api_keys, sessions, tickets

KeyRole = Literal["user", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """An API key. Moments are epoch milliseconds; `expires_at` None: never, `revoked_at` None: not revoked."""

    id: str
    key_hash: str
    user_id: str
    tenant: str = ""
    role: KeyRole = "user"
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None

    def __repr__(self) -> str:
        return f"<ApiKey {self.id} of {self.user_id}{' revoked' if self.revoked_at else ''}>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BrowserSession:
    """A browser that was signed in with an API key; it is worth no more than that key."""

    token_hash: str
    api_key_id: str
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ticket:
    """Lets its holder read one turn. `used_at`: when an event with an id was first sent under it, None until then."""

    ticket_hash: str
    turn_id: str
    user_id: str
    tenant: str = ""
    created_at: int
    used_at: int | None = None


async def insert_key(conn: AsyncConnection, row: ApiKey) -> None:
    """Store a new key."""
    await conn.execute(insert(api_keys).values(asdict(row)))


async def key_by_hash(conn: AsyncConnection, key_hash: str) -> ApiKey | None:
    """The key, also one that is revoked or has expired: the caller judges."""
    row = (await conn.execute(select(api_keys).where(api_keys.c.key_hash == key_hash))).mappings().first()
    return None if row is None else ApiKey(**row)


async def key_by_id(conn: AsyncConnection, key_id: str) -> ApiKey | None:
    """The key of a session, also one that is revoked or has expired."""
    row = (await conn.execute(select(api_keys).where(api_keys.c.id == key_id))).mappings().first()
    return None if row is None else ApiKey(**row)


async def any_key(conn: AsyncConnection) -> bool:
    """Whether a key was ever made. Revoked ones count: revoking the last key never opens the service (A1)."""
    return bool(await conn.scalar(select(exists(select(api_keys.c.id)))))


async def list_keys(conn: AsyncConnection) -> list[ApiKey]:
    """All keys in the order they were made."""
    found = select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)
    return [ApiKey(**row) for row in (await conn.execute(found)).mappings()]


async def revoke_key(conn: AsyncConnection, key_id: str, *, at: int) -> bool:
    """Whether the key was good until now. Its browser sessions end with it."""
    good = update(api_keys).where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None)).values(revoked_at=at)
    revoked = (await conn.execute(good)).rowcount == 1
    await conn.execute(delete(sessions).where(sessions.c.api_key_id == key_id))
    return revoked


async def insert_session(conn: AsyncConnection, row: BrowserSession) -> None:
    """Store a new session."""
    await conn.execute(insert(sessions).values(asdict(row)))


async def get_session(conn: AsyncConnection, token_hash: str) -> BrowserSession | None:
    """The session, also one that has expired: the caller judges it, and its key."""
    row = (await conn.execute(select(sessions).where(sessions.c.token_hash == token_hash))).mappings().first()
    return None if row is None else BrowserSession(**row)


async def delete_session(conn: AsyncConnection, token_hash: str) -> bool:
    """Whether it was there."""
    return (await conn.execute(delete(sessions).where(sessions.c.token_hash == token_hash))).rowcount == 1


async def delete_sessions_expired(conn: AsyncConnection, ms: int) -> int:
    """How many sessions had expired before the moment `ms` and are forgotten now."""
    return (await conn.execute(delete(sessions).where(sessions.c.expires_at < ms))).rowcount


async def insert_ticket(conn: AsyncConnection, row: Ticket) -> None:
    """Store a new ticket.

    Raises:
        app.store.errors.Conflict: the turn is gone.
    """
    await conn.execute(insert(tickets).values(asdict(row)))


async def get_ticket(conn: AsyncConnection, ticket_hash: str) -> Ticket | None:
    """The ticket, also one whose time is over: the caller judges."""
    row = (await conn.execute(select(tickets).where(tickets.c.ticket_hash == ticket_hash))).mappings().first()
    return None if row is None else Ticket(**row)


async def mark_used(conn: AsyncConnection, ticket_hash: str, *, at: int) -> bool:
    """Whether this was the first use; a later one changes nothing."""
    fresh = update(tickets).where(tickets.c.ticket_hash == ticket_hash, tickets.c.used_at.is_(None))
    return (await conn.execute(fresh.values(used_at=at))).rowcount == 1


async def delete_tickets_older_than(conn: AsyncConnection, ms: int) -> int:
    """How many tickets were made before the moment `ms` and are forgotten now."""
    return (await conn.execute(delete(tickets).where(tickets.c.created_at < ms))).rowcount
