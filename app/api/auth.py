"""Who asks, and whether they may (PROTOCOL 7). Default deny.

Three ways in: an API key as a bearer token, the session cookie of a browser that was signed in with one, and a ticket for
one turn's events. Without any key the service is open on loopback only, and everyone is `local`; whether that is so is
decided at the start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Literal
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from app.api.problems import Forbidden, Unauthenticated
from app.clock import now_ms
from app.errors import ConfigError
from app.ids import new_secret
from app.store import keys
from app.store.engine import Connection, Store
from app.turns.queries import Caller

COOKIE = "earlybyte_session"
SESSION_MS = 30 * 24 * 3600 * 1000
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, kw_only=True)
class Principal(Caller):
    """An authenticated caller and how they came in."""

    role: str = "user"
    via: Literal["local", "key", "session", "ticket"] = "key"

    @property
    def anonymous(self) -> bool:
        """The keyless local user, whom no cap per user or address concerns (H5)."""
        return self.via == "local"


def hash_secret(secret: str) -> str:
    """What is stored of a key, a ticket or a session: SHA-256, since they have 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine and no other."""
    if host in _LOOPBACK:
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Gate:
    """The door of the service.

    `keyless` is decided once, at the start (A1): a key that exists, even a revoked one, closes it.
    """

    def __init__(self, store: Store, *, keyless: bool, cors_origins: Iterable[str], trusted_proxies: Iterable[str]) -> None:
        self._store = store
        self.keyless = keyless
        self._origins = frozenset(cors_origins)
        self._proxies = [ip_network(proxy, strict=False) for proxy in trusted_proxies]

    def __repr__(self) -> str:
        return f"<Gate {'keyless, loopback only' if self.keyless else 'keys'}>"

    @staticmethod
    async def decide(store: Store, *, host: str) -> bool:
        """Whether the service runs keyless.

        Raises:
            ConfigError: it would, on an address that others can reach.
        """
        if await store.read(keys.any_key):
            return False
        if not is_loopback(host):
            raise ConfigError(
                f"server.host = {host} can be reached by others, and there is no API key yet; "
                "make one with `earlybyte key create --user NAME`, or listen on 127.0.0.1."
            )
        return True

    def check_origin_of_open_service(self, connection: HTTPConnection) -> None:
        """Nothing, when a keyless service may answer: a loopback name asked, no proxy, no foreign page (A1).

        Raises:
            Forbidden: it may not.
        """
        if not self.keyless:
            return
        if connection.client is not None and not is_loopback(connection.client.host):
            # Another server than `earlybyte serve` may listen where the settings do not say.
            raise Forbidden("Without API keys this service answers only to this machine.")
        headers = connection.headers
        host = headers.get("host", "")
        if not is_loopback(_name(host)) or len(headers.getlist("host")) > 1:
            raise Forbidden("Without API keys this service answers only to a loopback host name.")
        if any(name == "forwarded" or name.startswith("x-forwarded-") for name in headers):
            raise Forbidden("Without API keys this service does not answer through a proxy.")
        origin = headers.get("origin")
        if origin is not None and not self._right_origin(origin, host):
            raise Forbidden("Without API keys this service does not answer to pages of another origin.")

    async def authenticate(self, connection: HTTPConnection) -> Principal:
        """The caller.

        Raises:
            Unauthenticated: no valid key or session.
            Forbidden: a cookie from a page of another origin (A3).
            StoreUnavailable: keys cannot be looked up.
        """
        if self.keyless:
            return Principal(tenant="", user_id="local", role="admin", via="local")
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if token:
            if scheme.lower() != "bearer":
                raise Unauthenticated("Only bearer tokens are accepted: Authorization: Bearer <key>.")
            return await self.with_key(token.strip())
        cookie = connection.cookies.get(COOKIE)
        if cookie:
            return await self._with_session(cookie, connection)
        raise Unauthenticated

    async def with_key(self, key: str) -> Principal:
        """The owner of an API key.

        Raises:
            Unauthenticated: it is unknown, revoked or expired.
        """
        hashed = hash_secret(key)
        row = await self._store.read(lambda conn: keys.key_by_hash(conn, hashed))
        if row is None or not _valid(row):
            raise Unauthenticated("This API key is not valid.")
        return Principal(tenant=row.tenant, user_id=row.user_id, role=row.role, via="key")

    async def open_session(self, key: str) -> tuple[Principal, str]:
        """Who the key belongs to, and the secret of a new browser session."""
        principal = await self.with_key(key)
        row = await self._store.read(lambda conn: keys.key_by_hash(conn, hash_secret(key)))
        assert row is not None
        token, now = new_secret("ebs"), now_ms()
        session = keys.BrowserSession(
            token_hash=hash_secret(token), api_key_id=row.id, created_at=now, expires_at=now + SESSION_MS
        )
        await self._store.write(lambda conn: keys.insert_session(conn, session), timeout=2.0)
        return principal, token

    async def close_session(self, token: str) -> None:
        """Sign a browser out."""
        await self._store.write(lambda conn: keys.delete_session(conn, hash_secret(token)), timeout=2.0)

    async def _with_session(self, token: str, connection: HTTPConnection) -> Principal:
        async def look(conn: Connection) -> keys.ApiKey | None:
            session = await keys.get_session(conn, hash_secret(token))
            if session is None or session.expires_at <= now_ms():
                return None
            return await keys.key_by_id(conn, session.api_key_id)

        row = await self._store.read(look)
        if row is None or not _valid(row):
            raise Unauthenticated("You are not signed in any more.")
        if connection.scope.get("method", "GET") not in _SAFE:
            self.check_origin(connection)
        return Principal(tenant=row.tenant, user_id=row.user_id, role=row.role, via="session")

    def check_origin(self, connection: HTTPConnection) -> None:
        """Nothing, when the request comes from a page of this service or of an allowed origin (A3).

        Raises:
            Forbidden: another origin, or none.
        """
        origin = connection.headers.get("origin")
        if origin is None or not self._right_origin(origin, connection.headers.get("host", "")):
            raise Forbidden("A request with a cookie needs the Origin of this service's own page.")

    def _right_origin(self, origin: str, host: str) -> bool:
        if origin in self._origins:
            return True
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and bool(host) and parts.netloc == host

    def address(self, connection: HTTPConnection) -> str:
        """The caller's address: the peer's, or what a trusted proxy says of it."""
        peer = connection.client.host if connection.client else ""
        forwarded = connection.headers.get("x-forwarded-for")
        if forwarded is None:
            return peer
        # From the right: every hop that we trust vouches for the one before it.
        for hop in reversed([peer_.strip() for peer_ in forwarded.split(",")]):
            if not self._trusts(peer):
                return peer
            peer = hop
        return peer

    def _trusts(self, address: str) -> bool:
        try:
            known = ip_address(address)
        except ValueError:
            return False
        return any(known in network for network in self._proxies)


def _valid(row: keys.ApiKey) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now_ms())


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
