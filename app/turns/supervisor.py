"""Who owns the running turns: the queue, the run slots, the task group, cancel and drain (H4, H5, H6).

A turn runs in this task group, never in a request's. Order within a conversation is the order of acceptance; a turn whose
conversation is busy holds up nobody else's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Collection, Iterable
from contextlib import asynccontextmanager

import anyio
import structlog
from anyio.abc import TaskGroup

from app.clock import monotonic, now_ms
from app.errors import EarlybyteError
from app.store import approvals, conversations, idempotency, journal, keys, turns
from app.store.approvals import Approval
from app.store.engine import Connection
from app.turns import capacity, state
from app.turns.live import LiveTurn
from app.turns.parts import Parts
from app.turns.recorder import Recorder
from app.turns.runner import run_turn
from app.turns.state import Cause, State

log = structlog.get_logger(__name__)

# How often a process with open turns looks what others were asked to do with them.
HEARING_SECONDS = 0.4
DAY_MS = 24 * 3600 * 1000


class Supervisor:
    """Runs the turns of this process. `run()` is its life; everything else needs it to be running."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._turns: dict[str, LiveTurn] = {}
        self._waiting: list[LiveTurn] = []
        self._running: set[str] = set()
        self._recent = capacity.Durations()
        self._group: TaskGroup | None = None
        self.draining = False
        self.idle = anyio.Event()

    def __repr__(self) -> str:
        return f"<Supervisor running={len(self._running)} waiting={len(self._waiting)} draining={self.draining}>"

    @asynccontextmanager
    async def run(self, group: TaskGroup) -> AsyncIterator[None]:
        """The supervisor at work in `group`; at the end every turn that still runs is handed on."""
        self._group = group
        group.start_soon(self._checkpoints)
        group.start_soon(self._sweeps)
        group.start_soon(self._hearing)
        try:
            yield
        finally:
            for turn in list(self._turns.values()):
                if turn.state is not State.DONE:
                    turn.hand_on()
            with anyio.move_on_after(5, shield=True):
                for turn in list(self._turns.values()):
                    if turn.id in self._running:
                        await turn.settled.wait()

    def background(self, work: Awaitable[None]) -> None:
        """Run `work` in the supervisor's task group; its failure is logged and goes no further."""

        async def guarded() -> None:
            try:
                await work
            except Exception:
                log.exception("background work failed")

        if self._group is not None:
            self._group.start_soon(guarded)

    # -- looking

    @property
    def running(self) -> int:
        """Turns that run now."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Turns that wait for their conversation or for a run slot."""
        return len(self._waiting)

    @property
    def asking(self) -> int:
        """Turns that wait for a person's approval; they are among those that run."""
        return sum(turn.state is State.WAITING for turn in self._turns.values())

    def turns(self) -> Iterable[LiveTurn]:
        """The turns of this process that are not settled."""
        return self._turns.values()

    def get(self, turn_id: str) -> LiveTurn | None:
        """A turn that is not settled yet."""
        return self._turns.get(turn_id)

    def is_running(self, turn: LiveTurn) -> bool:
        """Whether it has a run slot."""
        return turn.id in self._running

    def open_in(self, conversation_id: str) -> list[LiveTurn]:
        """The open turns of a conversation, in order; the first is the one that runs or is next (H4)."""
        mine = [t for t in self._turns.values() if t.row.conversation_id == conversation_id and t.open]
        return sorted(mine, key=lambda turn: turn.row.place)

    def check_capacity(self, *, user: tuple[str, str] | None, address: str, leaving: Collection[LiveTurn] = ()) -> None:
        """Nothing, when a further turn fits (H5); `user` is None for the keyless local user.

        `leaving` are turns that are cancelled for the sake of the new one; their places are free.

        Raises:
            app.turns.capacity.OverCapacity: it does not; says for whom, and when to come again.
        """
        turns = [turn for turn in self._turns.values() if turn.open and turn not in leaving]
        of_user = sum((t.row.tenant, t.row.user_id) == user for t in turns) if user is not None else 0
        of_address = sum(t.address == address for t in turns) if user is not None else 0
        limits = self._parts.settings.limits
        room = limits.turns - self._occupied() + sum(turn.id in self._running for turn in leaving)
        capacity.check(
            limits,
            waiting=sum(turn not in leaving for turn in self._waiting),
            room=room,
            of_user=of_user,
            of_address=of_address,
            recent=self._recent,
        )

    def _occupied(self) -> int:
        """Run slots in use: running turns, and threads that ignored their cancel (PROTOCOL 9)."""
        return len(self._running) + self._parts.threads.abandoned + self._parts.tool_threads.abandoned

    # -- turns come and go

    def accept(self, turn: LiveTurn) -> None:
        """Take in a turn whose admission is being stored; it does not run before `start`."""
        self._turns[turn.id] = turn
        self._waiting.append(turn)

    def withdraw(self, turn: LiveTurn) -> None:
        """Take back an `accept` whose admission was not stored."""
        self._turns.pop(turn.id, None)
        if turn in self._waiting:
            self._waiting.remove(turn)
        self._parts.logs.discard(turn.id)

    def start(self, turn: LiveTurn) -> None:
        """The admission is stored: run the turn as soon as its conversation and a slot are free."""
        turn.committed = True
        self.schedule()

    def cancel(self, turn: LiveTurn, cause: Cause | None = None) -> bool:
        """Stop a turn; whether this decided its end. A waiting one is run only to say so."""
        decided = turn.stop(cause or state.Cancelled())
        self.schedule()
        return decided

    def schedule(self) -> None:
        """Start what can start, and tell the others their position."""
        if self._group is None:
            return
        room = self._parts.settings.limits.turns - self._occupied()
        ahead: dict[str, int] = {}
        for turn in self._turns.values():
            if turn not in self._waiting:
                ahead[turn.row.conversation_id] = ahead.get(turn.row.conversation_id, 0) + 1
        position = 0
        for turn in sorted(self._waiting, key=lambda t: (t.accepted_at, t.row.place)):
            before = ahead.get(turn.row.conversation_id, 0) + len(turn.waits_for)
            ahead[turn.row.conversation_id] = before + 1
            stopped = turn.decision.made
            # A stopped one runs only to say so: it waits neither for its conversation nor for a slot.
            may_start = turn.committed and (stopped or (before == 0 and room > 0 and not self.draining))
            if may_start and not turn.handed_on:
                room -= not stopped
                self._waiting.remove(turn)
                self._running.add(turn.id)
                self._group.start_soon(self._run, turn)
            elif before or room <= 0 or self.draining or turn.handed_on:
                # One whose admission is still being stored, with room for it, waits for nothing.
                position += 1
                turn.log.set_position(max(position if room <= 0 else 1, before, 1))

    async def _run(self, turn: LiveTurn) -> None:
        try:
            await run_turn(turn, self._parts)
        except Exception as error:
            # A turn's own failures are causes; what comes here is a fault of ours. Its row stays for recovery.
            log.critical("turn broke", turn_id=turn.id, error=f"{type(error).__name__}: {error}", exc_info=error)
            turn.log.end()
        finally:
            turn.cancel.cancel()
            self._running.discard(turn.id)
            self._turns.pop(turn.id, None)
            turn.settled.set()
            if turn.started_at is not None:
                self._recent.add(monotonic() - turn.started_at)
            if not self._running:
                self.idle.set()
                self.idle = anyio.Event()
            self.schedule()

    # -- clockwork

    async def _checkpoints(self) -> None:
        """Once a second, make the text of all turns durable in one transaction."""
        while True:
            await anyio.sleep(self._parts.settings.timeouts.checkpoint)
            for turn in [t for t in self._turns.values() if t.abandoned]:
                log.info("turn cancelled: its last viewer is gone", turn_id=turn.id)
                self.cancel(turn)
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        dirty = [
            (turn, turn.recorder, turn.recorder.entries())
            for turn in self._turns.values()
            if turn.recorder is not None and turn.recorder.dirty and turn.open and not turn.decision.made
        ]
        if dirty:
            await self._store_checkpoint(dirty)

    async def _store_checkpoint(self, dirty: list[tuple[LiveTurn, Recorder, list[journal.Entry]]]) -> None:
        batches = [journal.Batch(turn_id=t.id, epoch=t.row.epoch, entries=entries) for t, _, entries in dirty]
        try:
            fenced = await self._parts.store.write(lambda conn: journal.append_batches(conn, batches))
        except EarlybyteError as error:
            log.warning("checkpoint not stored", turns=len(dirty), error=error.message)
            return
        except Exception:
            # Something of one turn cannot be stored at all. It goes on without a journal; the others are not to suffer.
            log.exception("checkpoint broke", turns=len(dirty))
            if len(dirty) > 1:
                for one in dirty:
                    await self._store_checkpoint([one])
            return
        for turn, recorder, entries in dirty:
            recorder.journaled(entries[-1].n)
            if turn.id in fenced:
                log.warning("turn taken over by another process", turn_id=turn.id)
                turn.hand_on()

    async def _hearing(self) -> None:
        """Do what people asked of these turns through other processes, within half a second."""
        while True:
            await anyio.sleep(HEARING_SECONDS)
            if any(turn.open and not turn.is_over() for turn in self._turns.values()):
                try:
                    await self._hear()
                except EarlybyteError as error:
                    log.warning("not heard what other processes were asked", error=error.message)
                except Exception:
                    log.exception("hearing broke")

    async def _hear(self) -> None:
        asking = [turn.id for turn in self._turns.values() if turn.state is State.WAITING]
        foreign = {other for turn in self._waiting for other in turn.waits_for}

        async def look(conn: Connection) -> tuple[dict[str, bool], list[Approval], set[str]]:
            return (
                await turns.stops_asked(conn, self._parts.owner),
                await approvals.answered(conn, asking) if asking else [],
                await turns.unsettled_of(conn, foreign) if foreign else set(),
            )

        stops, answers, unsettled = await self._parts.store.read(look)
        for answer in answers:
            turn = self._turns.get(answer.turn_id)
            if turn is not None and answer.decision is not None:
                turn.answer(answer.id, answer.decision, answer.decided_by or "", answer.comment)
        for turn_id, deleted in stops.items():
            turn = self._turns.get(turn_id)
            if turn is not None:
                self.cancel(turn, state.Cancelled(deleted=deleted))
        if foreign:
            for turn in self._waiting:
                turn.waits_for &= unsettled - self._turns.keys()
            self.schedule()

    async def _sweeps(self) -> None:
        """Save what is owed, forget what is old."""
        tick = 0
        while True:
            await anyio.sleep(1)
            tick += 1
            self._parts.logs.sweep()
            try:
                await self._parts.unsaved.sweep()
            except Exception:
                # One save that cannot succeed is not to end the service; it is tried again.
                log.exception("sweep broke")
            if self._waiting:
                self.schedule()
            if tick % 600 == 0:
                await self._forget_old()

    async def _forget_old(self) -> None:
        now = now_ms()

        async def op(conn: Connection) -> None:
            await idempotency.delete_older_than(conn, now - DAY_MS)
            await keys.delete_sessions_expired(conn, now)
            await keys.delete_tickets_older_than(conn, now - DAY_MS)
            await conversations.delete_marked(conn)

        try:
            await self._parts.store.write(op)
        except EarlybyteError as error:
            log.warning("old keys not deleted", error=error.message)

    # -- the end of the process

    async def drain(self, seconds: float) -> None:
        """Let running turns finish within `seconds`; hand on what waits, and in the end what has shown nothing."""
        self.draining = True
        give_up_at = anyio.current_time() + seconds
        for turn in list(self._turns.values()):
            if turn.state in (State.QUEUED, State.WAITING):
                self._hand_on(turn)
        while self._running and anyio.current_time() < give_up_at:
            with anyio.move_on_after(min(0.2, max(0.0, give_up_at - anyio.current_time()))):
                await self.idle.wait()
            for turn in list(self._turns.values()):
                if turn.state is State.WAITING:
                    self._hand_on(turn)
        for turn in list(self._turns.values()):
            if turn.log.content.produced or turn.decision.made:
                turn.stop(state.ShutDown())
            else:
                self._hand_on(turn)
        with anyio.move_on_after(8):
            while self._running:
                with anyio.move_on_after(0.1):
                    await self.idle.wait()

    def _hand_on(self, turn: LiveTurn) -> None:
        if turn.decision.made or turn.handed_on:
            return
        turn.hand_on()
        turn.log.wake()
        if turn.id not in self._running:
            self._waiting = [t for t in self._waiting if t is not turn]
            self._turns.pop(turn.id, None)
            self.background(self._disown(turn))

    async def _disown(self, turn: LiveTurn) -> None:
        await self._parts.store.write(lambda conn: turns.disown(conn, turn.id, epoch=turn.row.epoch), timeout=2.0)
