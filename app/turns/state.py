"""The states of a turn and the only table of transitions; and the one decision how a turn ends (E6). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from app.errors import EarlybyteError


class State(StrEnum):
    """Where a turn is.

    `ended`: its terminal event is out, its message is not saved yet. `done`: settled.
    """

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"
    DONE = "done"


OPEN = (State.QUEUED, State.RUNNING, State.WAITING)

_NEXT: dict[State, tuple[State, ...]] = {
    State.QUEUED: (State.RUNNING,),
    State.RUNNING: (State.WAITING, State.ENDED),
    State.WAITING: (State.RUNNING, State.ENDED),
    State.ENDED: (State.DONE,),
    State.DONE: (),
}


class IllegalTransition(EarlybyteError):
    """A turn was asked to go where it cannot go from where it is."""

    code = "internal"


def step(old: State, new: State) -> State:
    """`new`, where the table allows it.

    Raises:
        IllegalTransition: it does not.
    """
    if new not in _NEXT[old]:
        raise IllegalTransition(f"a turn cannot go from {old} to {new}")
    return new


# -- why a turn ends


@dataclass(frozen=True)
class Finished:
    """The agent ended its answer, in one of three ways."""

    how: Literal["stop", "length", "content_filter"] = "stop"


@dataclass(frozen=True)
class StepsSpent:
    """The model still wants tools after `max_steps`."""


@dataclass(frozen=True)
class UpstreamFailed:
    """A model call, or a `Transient` agent, failed and may not or could not be tried again."""


@dataclass(frozen=True)
class UpstreamRefused:
    """The model endpoint rejected the request."""


@dataclass(frozen=True)
class CallsBroken:
    """Two batches with broken arguments in a row (X3)."""


@dataclass(frozen=True)
class AgentFailed:
    """The agent's own code, or ours, raised."""


@dataclass(frozen=True)
class Denied:
    """A hook denied; its words are for the user."""

    words: str


@dataclass(frozen=True)
class DeadlinePassed:
    """The turn's time is over."""


@dataclass(frozen=True)
class Cancelled:
    """The user stopped it; `deleted` when the whole conversation was deleted."""

    deleted: bool = False


@dataclass(frozen=True)
class ShutDown:
    """The process stops and the drain time is over."""


@dataclass(frozen=True)
class Recovered:
    """The process that ran it died, and it could not go forward."""


@dataclass(frozen=True)
class Stored:
    """The ending was stored before the process died; none other can follow (E1)."""

    terminal: dict[str, Any]


Cause = (
    Finished
    | StepsSpent
    | UpstreamFailed
    | UpstreamRefused
    | CallsBroken
    | AgentFailed
    | Denied
    | DeadlinePassed
    | Cancelled
    | ShutDown
    | Recovered
    | Stored
)


class Decision:
    """The one decision how a turn ends: the first cause wins, and every later one changes nothing."""

    def __init__(self) -> None:
        self.cause: Cause | None = None

    def decide(self, cause: Cause) -> bool:
        """Whether `cause` is the one; compare-and-set, atomic because it never waits."""
        if self.cause is not None:
            return False
        self.cause = cause
        return True

    @property
    def made(self) -> bool:
        """Whether the turn's end is decided."""
        return self.cause is not None

    def __repr__(self) -> str:
        return f"<Decision {self.cause}>"
