"""Brings a database to the schema of this version, and says what is wrong with one that cannot be used.

The revisions are in `migrations/`, beside `app/` in a checkout and in an installed wheel alike.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import anyio.to_thread
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from app.clock import monotonic
from app.errors import ConfigError
from app.store.connect import OPENING_BUSY_MS, check_file, is_sqlite, masked, opening_engine, parse
from app.store.errors import is_foreign, reason

# Any number will do, as long as every version uses the same: one migration at a time (PostgreSQL advisory lock).
_LOCK = 7_312_004_451


async def migrate(url: str) -> str:
    """The revision that the database at `url` has now: the newest one that this version knows.

    A SQLite file is created if it is missing. Safe to call from several processes at once: one works, the others wait
    and then find nothing to do. All or nothing: a migration that fails leaves the schema as it was.

    Raises:
        ConfigError: the database cannot be opened or written, or was made by a newer version.
    """
    parsed = parse(url)
    if is_sqlite(parsed):
        check_file(parsed)
    engine = opening_engine(parsed)
    try:
        if is_sqlite(parsed):
            await anyio.to_thread.run_sync(_use_write_ahead_log, parsed.database)
        async with engine.begin() as conn:
            if not is_sqlite(parsed):
                await conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            return await conn.run_sync(_upgrade, parsed)
    except Exception as error:
        if not is_foreign(error):
            raise
        raise cannot_open(parsed, error) from error
    finally:
        await engine.dispose()


async def check(conn: AsyncConnection, url: URL) -> None:
    """Nothing, if the schema behind `conn` is the one of this version.

    Raises:
        ConfigError: it is missing or older, or newer; says what to do.
    """
    current = await conn.run_sync(_current)
    if current == _scripts().get_current_head():
        return
    _refuse_newer(current, url)
    state = "is older than this version" if current else "is missing"
    raise ConfigError(f"[store] url {masked(url)}: the schema {state}; run `earlybyte migrate`.")


def cannot_open(url: URL, error: BaseException) -> ConfigError:
    """The sentence for a database that does not open: its masked URL, the class of error, and what to check."""
    if is_sqlite(url):
        advice = "check that it is a SQLite database which this user may read and write, and that nothing else locks it"
    else:
        advice = "check that the server runs and that host, port, database, user and password are right"
    return ConfigError(f"[store] url {masked(url)} cannot be opened ({reason(error)}); {advice}.")


def _use_write_ahead_log(path: str | None) -> None:
    """Switch the file to the write-ahead log, for good; other processes may be doing the same."""
    deadline = monotonic() + OPENING_BUSY_MS / 1000
    with closing(sqlite3.connect(path or "", timeout=OPENING_BUSY_MS / 1000)) as conn:
        while True:
            try:
                conn.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                # The switch needs the file alone, and SQLite does not always use its patience to wait for that.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() > deadline:
                    raise
            time.sleep(0.02)


def _upgrade(conn: Connection, url: URL) -> str:
    scripts = _scripts()
    current, head = _current(conn), scripts.get_current_head()
    assert head is not None, "migrations/ has no revision"
    if current != head:
        _refuse_newer(current, url)
        config = _config()
        config.attributes["connection"] = conn
        command.upgrade(config, "head")
    return head


def _refuse_newer(current: str | None, url: URL) -> None:
    if current is not None and current not in {script.revision for script in _scripts().walk_revisions()}:
        raise ConfigError(
            f"[store] url {masked(url)}: the schema has revision {current}, which a newer version of Earlybyte made; "
            "install that version, or use another database."
        )


def _current(conn: Connection) -> str | None:
    return MigrationContext.configure(conn).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).resolve().parents[2] / "migrations").replace("%", "%%"))
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
