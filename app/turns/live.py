"""A turn that this process owns: its row, its log, its decision how to end, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from app.agents.context import OpenCall, ToolResult
from app.agents.transcript import Message
from app.clock import monotonic
from app.events.types import Decision as ApprovalDecision
from app.limits.cancel import Cancel
from app.store.turns import TurnRow
from app.turn_log.log import TurnLog
from app.turns.assistant import Assistant
from app.turns.state import OPEN, Cause, Decision, State, step

if TYPE_CHECKING:
    from app.turns.recorder import Recorder


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What the journal of a dead process said: where to go on from.

    `steps` are the assistant's part of each step with the results that are known, and `block` is the last block of text
    that belongs to them; `open_calls` are those of the last step that have no result; `step` counts the model calls.
    """

    steps: list[tuple[Message, dict[str, ToolResult]]]
    block: int
    open_calls: list[OpenCall]
    step: int
    next_n: int


class LiveTurn:
    """One turn in this process, from its admission to its settlement."""

    def __init__(
        self, row: TurnRow, assistant: Assistant, turn_log: TurnLog, *, address: str = "", traceparent: str | None = None
    ) -> None:
        self.row = row
        self.assistant = assistant
        self.log = turn_log
        self.address = address
        # Of the request that started it; not stored, since a turn that changes hands begins a trace of its own.
        self.traceparent = traceparent
        self.state = State.QUEUED
        self.decision = Decision()
        self.cancel = Cancel()
        # The last time at which it was looked at, and how its last viewer left, for `on_disconnect: cancel` (H6).
        self.watched = False
        self.unwatched_since: float | None = None
        self.patience = 10.0
        # Left to the next process: its runner goes away without an ending.
        self.handed_on = False
        self.recovery: Recovery | None = None
        self.recorder: Recorder | None = None
        self.accepted_at = monotonic()
        self.started_at: float | None = None
        self.settled = anyio.Event()
        self.on_stop: Callable[[], None] | None = None
        # Ids of turns of its conversation that run in another process and come first (H4).
        self.waits_for: set[str] = set()
        # Set in a transaction whose end is not known yet; not run before.
        self.committed = False
        self._answers: dict[str, tuple[ApprovalDecision, str, str | None]] = {}
        self._asked: dict[str, anyio.Event] = {}

    def __repr__(self) -> str:
        return f"<LiveTurn {self.id} {self.state} {self.decision}>"

    @property
    def id(self) -> str:
        """The turn's id."""
        return self.row.id

    @property
    def open(self) -> bool:
        """Whether it has not ended; waiting for an approval is open (H4)."""
        return self.state in OPEN

    def is_over(self) -> bool:
        """Whether its end is decided, or it is left to another process: its agent may begin nothing more."""
        return self.decision.made or self.handed_on

    def move(self, new: State) -> None:
        """Go to another state; viewers see it in snapshots."""
        self.state = step(self.state, new)
        if new in OPEN:
            self.log.status = new.value  # type: ignore[assignment]  # the open states are the log's own words
        elif new is State.ENDED:
            self.log.status = "running"

    def stop(self, cause: Cause) -> bool:
        """End it for `cause`, unless its end is decided already (E6); whether this was the deciding one."""
        if not self.decision.decide(cause):
            return False
        self.interrupt()
        return True

    def hand_on(self) -> None:
        """Leave it as it is to the next process that starts on the store."""
        self.handed_on = True
        self.interrupt()

    def interrupt(self) -> None:
        """Free what its agent and its tools block on."""
        self.cancel.cancel()
        for event in self._asked.values():
            event.set()
        if self.on_stop is not None:
            self.on_stop()

    # -- approvals

    def answer(self, approval_id: str, decision: ApprovalDecision, by: str, comment: str | None) -> None:
        """A person's answer has arrived."""
        self._answers[approval_id] = (decision, by, comment)
        if approval_id in self._asked:
            self._asked[approval_id].set()

    async def wait_for_answer(self, approval_id: str, seconds: float) -> tuple[ApprovalDecision, str, str | None]:
        """The answer, `expired` after `seconds`, or `cancelled` when the turn stops."""
        event = self._asked.setdefault(approval_id, anyio.Event())
        if approval_id in self._answers:
            event.set()
        with anyio.move_on_after(seconds):
            await event.wait()
        del self._asked[approval_id]
        if self.cancel.cancelled:
            return ("cancelled", "system", None)
        return self._answers.get(approval_id, ("expired", "system", None))

    # -- viewers (H6)

    def viewer_came(self) -> None:
        """Somebody watches."""
        self.watched = True
        self.unwatched_since = None

    def viewer_left(self, *, patience: float) -> None:
        """A viewer is gone; the last one starts the patience of `on_disconnect: cancel`, in seconds."""
        if self.log.readers == 0:
            self.unwatched_since = monotonic()
            self.patience = patience

    @property
    def abandoned(self) -> bool:
        """Whether it asked to be cancelled without viewers and has been without for too long."""
        return (
            self.row.on_disconnect == "cancel"
            and self.watched
            and self.unwatched_since is not None
            and monotonic() - self.unwatched_since > self.patience
        )
