"""The open store: one writer that commits for all, and short reads beside it.

Promises kept here: nothing holds a connection while a model or a tool works; a failed operation fails alone; a caller
that goes away (cancelled, or out of patience) breaks neither a connection nor anybody else's write. To keep the last
one, no driver is ever awaited in a caller's task: writes run in the writer's task, each read in one of its own, and
callers wait for a future. (asyncio directly, as SQLAlchemy's drivers are asyncio's own.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import anyio
from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.clock import monotonic
from app.errors import StoreUnavailable
from app.observability import metrics
from app.store import schema
from app.store.connect import is_sqlite, masked, parse, reader_engine, writer_engine
from app.store.errors import is_foreign, reason, translate
from app.store.writer import Writer

T = TypeVar("T")
# What an operation gets, for signatures outside this package.
Connection = AsyncConnection
Op = Callable[[AsyncConnection], Awaitable[T]]

log = logging.getLogger(__name__)

# Seconds that a read waits for a connection, and that it may then take.
READ_WAIT = 2.0
READ_LIMIT = 10.0
# Seconds that `close` waits for what is queued and for reads that run.
CLOSE_LIMIT = 15.0


class Store:
    """The database of one process. Made by `Store.open`; belongs to the event loop it was opened on."""

    def __init__(self, url: URL, writer: Writer, readers: AsyncEngine, pool: int) -> None:
        self._url = url
        self._writer = writer
        self._readers = readers
        self._slots = anyio.Semaphore(pool, fast_acquire=True)
        self._reads: set[asyncio.Task[None]] = set()
        self._closed = False

    @classmethod
    async def open(cls, url: str, *, pool: int = 5) -> Store:
        """The store at `url`, checked: it can be read and written and has this version's schema.

        A SQLite file is created and brought up to date. PostgreSQL is brought up to date by `earlybyte migrate` only.
        `pool` is how many reads may run at once; the writer has a connection of its own.

        Raises:
            ConfigError: it cannot be used; names the URL (passwords masked) and says what to do. Within a few seconds,
                but for a file that another process is still migrating.
        """
        parsed = parse(url)
        if is_sqlite(parsed):
            await schema.migrate(url)
        writer = Writer(writer_engine(parsed))
        readers = reader_engine(parsed, pool=pool)
        try:
            await writer.check_can_write()
            async with readers.connect() as conn:
                await schema.check(conn, parsed)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await writer.dispose()
                await readers.dispose()
            if isinstance(error, Exception) and is_foreign(error):
                raise schema.cannot_open(parsed, error) from error
            raise
        writer.start()
        return cls(parsed, writer, readers, pool)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._url.get_backend_name()

    @property
    def down_since(self) -> float | None:
        """The monotonic moment since which writes fail or have been blocked for over a second; None while they work."""
        return self._writer.down_since

    async def write(self, op: Op[T], *, timeout: float | None = None) -> T:
        """What `op` returns, once it is committed.

        Operations that wait at the same time share one transaction, each in a savepoint, in the order they were
        submitted. `op` gets a connection, must not commit, must not wait for anything else, and is called at most once.

        After `timeout` seconds, or when the caller is cancelled, an operation that has not begun is withdrawn and never
        runs. One that has begun may yet be committed, as may one whose commit failed for want of a connection: give
        rows their ids beforehand, so that a repetition can tell.

        Raises:
            StoreUnavailable: not stored as far as is known: the database failed, is locked, full, read-only, or closed,
                or `timeout` is over.
            app.store.errors.Conflict: a row is there already, or the row it belongs to is not.
            app.store.errors.Refused: a value that the database does not take.
            Exception: whatever `op` itself raised; nothing of it is stored.
        """
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        asked = monotonic()
        future = self._writer.submit(op)
        with anyio.move_on_after(timeout):
            result = cast(T, await future)
            metrics.store_write_seconds.observe(monotonic() - asked)
            return result
        if future.done() and not future.cancelled():
            return cast(T, future.result())
        raise StoreUnavailable("The store did not take the write in time.")

    async def read(self, op: Op[T]) -> T:
        """What `op` returns from one short transaction that cannot write and sees one moment of the database.

        `op` runs again, once, if its connection turns out to have died while idle. A caller that is cancelled leaves at
        once; its read then ends by itself.

        Raises:
            StoreUnavailable: no connection was free for 2 s, the database failed, or the store is closed.
            Exception: whatever `op` itself raised.
        """
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        with anyio.move_on_after(READ_WAIT) as scope:
            await self._slots.acquire()
        if scope.cancelled_caught:
            raise StoreUnavailable("No connection to the store became free in time.")
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        # Nothing is awaited between the slot and the task that gives it back.
        task = asyncio.create_task(self._read(op, future), name="store read")
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)
        return cast(T, await future)

    async def _read(self, op: Op[object], future: asyncio.Future[object]) -> None:
        try:
            async with asyncio.timeout(READ_LIMIT):
                result = await self._read_with_a_live_connection(op)
            if not future.done():
                future.set_result(result)
        except BaseException as error:
            if not future.done():
                future.set_exception(self._explained(error))
            if not isinstance(error, Exception):
                raise
        finally:
            self._slots.release()

    async def _read_with_a_live_connection(self, op: Op[object]) -> object:
        try:
            async with self._readers.connect() as conn:
                return await op(conn)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        async with self._readers.connect() as conn:
            return await op(conn)

    def _explained(self, error: BaseException) -> Exception:
        if not isinstance(error, Exception):
            return StoreUnavailable("The store was closed during the read.")
        explained = translate(error)
        if explained is not error:
            log.warning("store read failed: %s", reason(error))
            explained.__cause__ = None if not isinstance(explained, StoreUnavailable) else error
        return explained

    async def close(self) -> None:
        """Nothing, once what was queued is committed and every connection is given back. Harmless when repeated."""
        self._closed = True
        with anyio.move_on_after(CLOSE_LIMIT, shield=True):
            await self._writer.stop()
            while self._reads:
                await asyncio.wait(self._reads)
        for task in self._reads:
            task.cancel()
        with anyio.move_on_after(CLOSE_LIMIT, shield=True):
            await self._writer.dispose()
            await self._readers.dispose()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self.down_since is None else "down"
        return f"<Store {masked(self._url)} {state}>"
