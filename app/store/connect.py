"""Engines for the two databases, set up so that both keep one contract.

SQLite: write-ahead log, every commit synced, foreign keys on, one second of patience with another writer; writers take
the write lock at BEGIN, so that nothing fails in mid-transaction for want of it. PostgreSQL: a read sees one moment
(repeatable read), as it does in SQLite, and waits for a row lock at most one second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import URL, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.errors import ConfigError
from app.store.sqlite_nearby import connector

# Patience with another writer, in milliseconds; more would hold up every turn of the process.
BUSY_MS = 1000
# While opening there is nobody to hold up, and another process may be creating the same file.
OPENING_BUSY_MS = 8000
# Seconds for a new PostgreSQL connection, and for one statement.
CONNECT_TIMEOUT = 3.0
STATEMENT_TIMEOUT = 10.0
# A migration may rebuild a large table, or wait for another process that does.
MIGRATION_TIMEOUT = 900.0


def parse(url: str) -> URL:
    """The parsed `url`.

    Raises:
        ConfigError: not one of the two databases and their drivers, or a SQLite URL without a file.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        # The text is not repeated: a URL that does not parse cannot be masked.
        raise ConfigError(f"[store] url is not a database URL; {_EXAMPLES}") from None
    if parsed.drivername not in ("sqlite+aiosqlite", "postgresql+asyncpg"):
        raise ConfigError(f"[store] url {masked(parsed)} has a database or driver that is not supported; {_EXAMPLES}")
    if parsed.drivername == "sqlite+aiosqlite" and (not parsed.database or parsed.database.startswith((":", "file:"))):
        raise ConfigError(f"[store] url {masked(parsed)} names no file; {_EXAMPLES}")
    return parsed


_EXAMPLES = (
    "use sqlite+aiosqlite:///earlybyte.db (four slashes for an absolute path) or postgresql+asyncpg://user@host/database."
)


def masked(url: URL) -> str:
    """`url` as it may be shown: every password is replaced by ***."""
    query = {key: "***" if "pass" in key.lower() else value for key, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def is_sqlite(url: URL) -> bool:
    """Whether `url` is a SQLite file; otherwise it is PostgreSQL."""
    return url.get_backend_name() == "sqlite"


def check_file(url: URL) -> None:
    """Nothing, if the file of a SQLite `url` can be there.

    Raises:
        ConfigError: its folder is missing, or it is a folder itself.
    """
    path = Path(url.database or "")
    if not path.parent.is_dir():
        raise ConfigError(f"[store] url {masked(url)}: the folder {path.parent} does not exist; create it first.")
    if path.is_dir():
        raise ConfigError(f"[store] url {masked(url)}: {path} is a folder; name a file in it.")


def writer_engine(url: URL) -> AsyncEngine:
    """An engine whose transactions may write; the store keeps one connection of it."""
    if is_sqlite(url):
        return _sqlite(url, begin="BEGIN IMMEDIATE", pool=1, pragmas=("synchronous=FULL", "foreign_keys=ON"))
    return _postgresql(url, pool=1, settings={"lock_timeout": str(BUSY_MS)})


def reader_engine(url: URL, *, pool: int) -> AsyncEngine:
    """An engine with at most `pool` connections that cannot write; each transaction sees one moment."""
    if is_sqlite(url):
        return _sqlite(url, begin="BEGIN", pool=pool, pragmas=("query_only=ON",))
    settings = {"default_transaction_isolation": "repeatable read", "default_transaction_read_only": "on"}
    return _postgresql(url, pool=pool, settings=settings)


def lease_engine(url: URL) -> AsyncEngine:
    """An engine for the one connection that keeps a PostgreSQL process's advisory locks."""
    return _postgresql(url, pool=1, settings={}, statement_timeout=CONNECT_TIMEOUT)


def opening_engine(url: URL) -> AsyncEngine:
    """An engine for creating and migrating: foreign keys off (tables are rebuilt), patient with other processes."""
    if is_sqlite(url):
        return _sqlite(url, begin="BEGIN IMMEDIATE", pool=1, pragmas=("synchronous=FULL",), busy_ms=OPENING_BUSY_MS)
    return _postgresql(url, pool=1, settings={}, statement_timeout=MIGRATION_TIMEOUT)


def _sqlite(url: URL, *, begin: str, pool: int, pragmas: tuple[str, ...], busy_ms: int = BUSY_MS) -> AsyncEngine:
    engine = create_async_engine(
        url,
        hide_parameters=True,
        pool_size=pool,
        max_overflow=0,
        connect_args={
            "timeout": busy_ms / 1000,
            "async_creator_fn": connector(writes=begin == "BEGIN IMMEDIATE"),
        },
    )

    def connected(connection: Any, _record: object) -> None:
        # The driver would begin by itself, late and deferred; the `begin` event below does it instead.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def begins(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine.sync_engine, "connect", connected)
    event.listen(engine.sync_engine, "begin", begins)
    return engine


def _postgresql(
    url: URL, *, pool: int, settings: dict[str, str], statement_timeout: float = STATEMENT_TIMEOUT
) -> AsyncEngine:
    # A process that is stopped inside a transaction must not keep its row locks for ever.
    always = {"application_name": "earlybyte", "idle_in_transaction_session_timeout": "30000"}
    return create_async_engine(
        url,
        hide_parameters=True,
        pool_size=pool,
        max_overflow=0,
        connect_args={
            "timeout": CONNECT_TIMEOUT,
            "command_timeout": statement_timeout,
            "server_settings": always | settings,
        },
    )
