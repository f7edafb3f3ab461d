"""The one writer: takes what waits, runs it in one transaction, commits once, answers each (group commit).

Five hundred single commits cost hundreds of times as much as one commit of five hundred rows; so everything that
arrives while a commit is on its way shares the next one. Nothing is delayed for that: an idle writer starts at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.clock import monotonic
from app.errors import StoreUnavailable
from app.store.errors import is_foreign, reason, spares_the_batch, translate

log = logging.getLogger(__name__)

# Seconds after which a batch that is not through counts as blocked.
BLOCKED = 1.0
# Seconds that one operation may take, that a commit may take, and that is spent on leaving a broken connection.
OPERATION_LIMIT = 10.0
COMMIT_LIMIT = 10.0
DISCARD_LIMIT = 2.0
# Seconds that a batch may keep the event loop: on SQLite its operations never wait by themselves.
TURN_OF_THE_LOOP = 0.005
# A batch holds the write lock; other processes wait for it.
BATCH_SIZE = 1000


@dataclass(slots=True, eq=False)
class _Job:
    """One operation and its caller's future. A future that is done already means that the caller has withdrawn."""

    op: Callable[[AsyncConnection], Awaitable[object]]
    future: asyncio.Future[object]
    result: object = None
    error: Exception | None = None


class Writer:
    """Owns the writing connection and the task that uses it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._queue: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._conn: AsyncConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.down_since: float | None = None

    def start(self) -> None:
        """Begin to work; call once."""
        self._task = asyncio.create_task(self._run(), name="store writer")

    def submit(self, op: Callable[[AsyncConnection], Awaitable[Any]]) -> asyncio.Future[Any]:
        """The future of `op`, which is queued. Cancelling it withdraws `op` if it has not begun."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._task is None or self._task.done():
            future.set_exception(StoreUnavailable("The store is closed."))
            return future
        self._queue.append(_Job(op, future))
        self._wake.set()
        return future

    async def stop(self) -> None:
        """Nothing, once all that was queued is answered. When cancelled, what is left is refused."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            try:
                await asyncio.wait([self._task])
            finally:
                self._task.cancel()

    async def dispose(self) -> None:
        """Give the connection back; call after `stop`."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=DISCARD_LIMIT)
        await self._leave(broken=False)
        await self._engine.dispose()

    async def check_can_write(self) -> None:
        """Nothing, if a transaction that may write can begin; else the driver's error."""
        conn = await self._begin()
        await conn.rollback()

    async def _run(self) -> None:
        try:
            while not (self._stopping and not self._queue):
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    await self._batch()
        finally:
            for job in self._queue:
                _refuse(job, StoreUnavailable("The store is closed."))
            self._queue.clear()

    async def _batch(self) -> None:
        """One transaction: begin, run what waits, commit, answer in order."""
        started = monotonic()
        timer = asyncio.get_running_loop().call_later(BLOCKED, self._blocked, started)
        jobs: list[_Job] = []
        try:
            conn = await self._begin()
            # Taken only now: whatever was withdrawn while BEGIN waited for a lock never runs.
            jobs = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_SIZE))]
            if await self._run_all(conn, [job for job in jobs if not job.future.done()]):
                async with asyncio.timeout(COMMIT_LIMIT):
                    await conn.commit()
            else:
                await conn.rollback()
        except Exception as error:
            if not jobs:
                # All that waits now has waited for this; what comes while the connection is left has not.
                jobs = list(self._queue)
                self._queue.clear()
            await self._failed(jobs, error, started)
        except BaseException:
            for job in jobs:
                _refuse(job, StoreUnavailable("The store was closed before the write was committed."))
            raise
        else:
            self.down_since = None
            for job in jobs:
                _answer(job)
        finally:
            timer.cancel()

    async def _run_all(self, conn: AsyncConnection, jobs: list[_Job]) -> bool:
        """Run `jobs` in order; whether there is anything to commit. Raises what fails all of them."""
        # A single operation needs no savepoint: when it fails there is nothing else to keep.
        alone = len(jobs) == 1
        kept = False
        since = monotonic()
        for job in jobs:
            if monotonic() - since > TURN_OF_THE_LOOP:
                await asyncio.sleep(0)
                since = monotonic()
            if job.future.done():
                continue
            if not alone:
                await conn.exec_driver_sql("SAVEPOINT operation")
            limit = asyncio.timeout(OPERATION_LIMIT)
            try:
                async with limit:
                    job.result = await job.op(conn)
                if not alone:
                    await conn.exec_driver_sql("RELEASE SAVEPOINT operation")
                kept = True
            except Exception as error:
                if limit.expired() or not spares_the_batch(error):
                    raise
                job.error = _explained(error)
                if not alone:
                    await conn.exec_driver_sql("ROLLBACK TO SAVEPOINT operation")
                    await conn.exec_driver_sql("RELEASE SAVEPOINT operation")
        return kept

    async def _begin(self) -> AsyncConnection:
        """The connection, in a transaction. One that died while it was idle is replaced, once."""
        if self._conn is not None:
            try:
                return await self._begin_on(self._conn)
            except DBAPIError as error:
                if self._engine.dialect.name == "sqlite" and not error.connection_invalidated:
                    # It lives; it was locked, and has been waited for.
                    raise
                log.warning("store connection lost (%s), connecting again", reason(error))
                await self._leave(broken=True)
        self._conn = await self._engine.connect()
        return await self._begin_on(self._conn)

    async def _begin_on(self, conn: AsyncConnection) -> AsyncConnection:
        await conn.begin()
        if self._engine.dialect.name == "postgresql":
            # This driver sends BEGIN with the first statement; a dead connection shall show before an operation runs.
            await conn.exec_driver_sql("SELECT 1")
        return conn

    async def _failed(self, jobs: list[_Job], error: Exception, started: float) -> None:
        if self.down_since is None:
            self.down_since = started
        log.error("store write failed: %s, %d operations", reason(error), len(jobs))
        await self._leave(broken=True)
        for job in jobs:
            if job.error is None:
                job.error = StoreUnavailable()
                job.error.__cause__ = error if is_foreign(error) else None
            _refuse(job, job.error)

    async def _leave(self, *, broken: bool) -> None:
        """Give the connection up; a broken one is not asked to behave."""
        conn, self._conn = self._conn, None
        if conn is None:
            return
        try:
            async with asyncio.timeout(DISCARD_LIMIT):
                if broken and not conn.invalidated:
                    await conn.invalidate()
                await conn.close()
        except Exception as error:
            log.info("store connection did not close in order: %s", reason(error))

    def _blocked(self, started: float) -> None:
        if self.down_since is None:
            self.down_since = started
        log.warning("store write blocked for over %.0f s, %d operations wait", BLOCKED, len(self._queue))


def _answer(job: _Job) -> None:
    if job.error is not None:
        _refuse(job, job.error)
    elif not job.future.done():
        job.future.set_result(job.result)


def _refuse(job: _Job, error: Exception) -> None:
    if not job.future.done():
        job.future.set_exception(error)


def _explained(error: Exception) -> Exception:
    explained = translate(error)
    if explained is not error:
        log.info("store refused one operation: %s", reason(error))
    return explained
