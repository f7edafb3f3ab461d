"""Who works on this store: one process that runs turns, and which of the owners of turns are alive.

Both are locks that end with their process, however it dies: nobody has to wait for a heartbeat that does not come. For
SQLite they are locked files beside the database, for PostgreSQL advisory locks of one connection kept for them.
"""

from __future__ import annotations

import os
import socket
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

import anyio
import structlog
from sqlalchemy import URL, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.clock import monotonic
from app.errors import ConfigError
from app.store.connect import is_sqlite, lease_engine, masked, parse

if sys.platform != "win32":  # where one must see to it oneself
    import fcntl

log = structlog.get_logger(__name__)
# The first half of the advisory locks' keys; any number will do, as long as every version uses the same.
_SPACE = 731_200
# How long a process that starts waits for one that is just leaving.
PATIENCE_SECONDS = 8.0
_TRY_AGAIN_SECONDS = 0.1


class Lease(ABC):
    """The right to run turns on a store, and the sign of life of the owner that holds it."""

    @staticmethod
    async def take(url: str, owner: str, *, patience: float = PATIENCE_SECONDS) -> Lease:
        """The lease, held for `owner` until it is closed or its process ends.

        Raises:
            ConfigError: another process has it, and still had it after `patience` seconds.
        """
        parsed = parse(url)
        lease: Lease = _FileLease(parsed, owner) if is_sqlite(parsed) else _AdvisoryLease(parsed, owner)
        give_up_at = monotonic() + patience
        waiting = False
        try:
            while not await lease.try_to_take():
                if not waiting:
                    log.info("another process runs turns on this store; waiting for it to leave", seconds=patience)
                    waiting = True
                if monotonic() >= give_up_at:
                    raise ConfigError(
                        f"Another process{await lease.holder()} runs turns on {masked(parsed)}, and with turn_log.url = "
                        'memory:// only one can: stop that one, or set server.role = "api" for this one.'
                    )
                await anyio.sleep(_TRY_AGAIN_SECONDS)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await lease.close()
            raise
        return lease

    @abstractmethod
    async def try_to_take(self) -> bool:
        """Whether this process has the lease now."""

    @abstractmethod
    async def holder(self) -> str:
        """Words about who has it, to be put behind "process"; empty when nothing is known."""

    @abstractmethod
    async def hand_over(self) -> None:
        """Let the next process begin: this one takes no more turns, but the owner still lives."""

    @abstractmethod
    async def living(self, owners: Iterable[str]) -> set[str]:
        """Which of these owners are alive."""

    @abstractmethod
    async def close(self) -> None:
        """Give up everything."""


class _FileLease(Lease):
    """Locked files beside the database: one for the lease, one for each owner."""

    def __init__(self, url: URL, owner: str) -> None:
        self._database = url.database or ""
        self._owner = owner
        self._main: IO[str] | None = None
        self._alive: IO[str] | None = None

    def _path(self, name: str) -> Path:
        return Path(f"{self._database}-{name}")

    async def try_to_take(self) -> bool:
        self._main = _locked(self._path("lease"))
        if self._main is None:
            return False
        self._main.seek(0)
        self._main.truncate()
        self._main.write(f" (pid {os.getpid()} on {socket.gethostname()})")
        self._main.flush()
        self._forget_the_dead()
        self._alive = _locked(self._path(self._owner))
        return True

    async def holder(self) -> str:
        with suppress(OSError, UnicodeDecodeError):
            return self._path("lease").read_text(encoding="utf-8")[:200]
        return ""

    async def hand_over(self) -> None:
        _let_go(self._main)
        self._main = None

    async def living(self, owners: Iterable[str]) -> set[str]:
        return {owner for owner in owners if owner == self._owner or not _is_free(self._path(owner))}

    async def close(self) -> None:
        _let_go(self._main)
        self._main = None
        if self._alive is not None:
            self._path(self._owner).unlink(missing_ok=True)
            _let_go(self._alive)
            self._alive = None

    def _forget_the_dead(self) -> None:
        """Take away the files of processes that could not do so themselves."""
        database = Path(self._database)
        for path in database.parent.glob(f"{database.name}-proc_*"):
            if _is_free(path):
                path.unlink(missing_ok=True)


def _locked(path: Path) -> IO[str] | None:
    """The file, locked for as long as it is open; None when another has it."""
    file = path.open("a+", encoding="utf-8")
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
    return file


def _is_free(path: Path) -> bool:
    """Whether nobody has the file locked, or it is not there."""
    if not path.exists():
        return True
    file = _locked(path)
    _let_go(file)
    return file is not None


def _let_go(file: IO[str] | None) -> None:
    if file is not None:
        file.close()


class _AdvisoryLease(Lease):
    """Advisory locks of a connection that does nothing else; they end with it."""

    def __init__(self, url: URL, owner: str) -> None:
        self._owner = owner
        self._engine: AsyncEngine = lease_engine(url)
        self._connection: AsyncConnection | None = None
        self._handed_over = False

    async def try_to_take(self) -> bool:
        connection = await self._connected()
        if not await _scalar(connection, "SELECT pg_try_advisory_lock(:space, 0)", {"space": _SPACE}):
            return False
        await _scalar(connection, "SELECT pg_try_advisory_lock(:space, :key)", {"space": _SPACE, "key": _key(self._owner)})
        return True

    async def holder(self) -> str:
        return ""

    async def hand_over(self) -> None:
        self._handed_over = True
        if self._connection is not None:
            with suppress(SQLAlchemyError, OSError):
                await _scalar(self._connection, "SELECT pg_advisory_unlock(:space, 0)", {"space": _SPACE})

    async def living(self, owners: Iterable[str]) -> set[str]:
        keys = {_key(owner): owner for owner in owners}
        held = (
            "SELECT objid::int8 FROM pg_locks WHERE locktype = 'advisory' AND classid = :space AND granted "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        connection = await self._kept()
        found = (await connection.execute(text(held), {"space": _SPACE})).scalars().all()
        return {owner for key, owner in keys.items() if key in found or owner == self._owner}

    async def _kept(self) -> AsyncConnection:
        """The connection with the locks; made anew, with them, when the database was away."""
        kept = self._connection
        if kept is not None:
            with suppress(SQLAlchemyError, OSError):
                await _scalar(kept, "SELECT 1", {})
                return kept
            log.warning("the lease's connection is gone; it is taken again")
            with suppress(SQLAlchemyError, OSError):
                await kept.close()
            self._connection = None
        connection = await self._connected()
        await _scalar(connection, "SELECT pg_try_advisory_lock(:space, :key)", {"space": _SPACE, "key": _key(self._owner)})
        if not self._handed_over and not await _scalar(
            connection, "SELECT pg_try_advisory_lock(:space, 0)", {"space": _SPACE}
        ):
            log.critical("another process runs turns on this store, which was away for a while; its epochs keep them apart")
        return connection

    async def _connected(self) -> AsyncConnection:
        if self._connection is None:
            connection = await self._engine.connect()
            self._connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            with suppress(SQLAlchemyError, OSError):
                await self._connection.close()
            self._connection = None
        await self._engine.dispose()


def _key(owner: str) -> int:
    """The second half of the key of an owner's lock; never 0, which is the lease's own."""
    return (zlib.crc32(owner.encode()) & 0x7FFF_FFFF) or 1


async def _scalar(connection: AsyncConnection, statement: str, values: dict[str, int]) -> object:
    return await connection.scalar(text(statement), values)
