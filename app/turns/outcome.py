"""How every ending maps to one terminal event (PROTOCOL 5). Pure, and the only place that knows the table.

A turn that produced text, an image or a card ends in `completion`; one that produced none ends in `error`; a user's cancel
is a `completion` (E5). There is no third case: the match below is exhaustive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from app.events.codec import from_fields
from app.events.types import Completion, Error, ErrorCode, FinishReason, Terminal, UsageTotal
from app.turns.state import (
    AgentFailed,
    CallsBroken,
    Cancelled,
    Cause,
    DeadlinePassed,
    Denied,
    Finished,
    Recovered,
    ShutDown,
    StepsSpent,
    Stored,
    UpstreamFailed,
    UpstreamRefused,
)
from app.turns.words import apology

# Trying the same again may help with these, as long as no tool has begun.
_RETRYABLE: frozenset[ErrorCode] = frozenset(
    ("upstream_unavailable", "upstream_invalid", "empty_answer", "turn_timeout", "recovered")
)

# Partial answers that somebody should look into; the other reasons are the model's, the user's or a limit's.
_FAILED: frozenset[FinishReason] = frozenset(("deadline", "upstream_error", "shutdown", "recovered"))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the turn has to show when it ends.

    `produced`: text, an image or a card. `seen`: that, or commentary.
    """

    text: str
    produced: bool
    seen: bool
    tool_begun: bool
    usage: UsageTotal | None = None


def terminal(cause: Cause, facts: Facts, texts: Mapping[str, str]) -> Terminal:
    """The one terminal event of a turn that ends for `cause`; `texts` are overriding words by code."""
    match cause:
        case Finished(how="stop"):
            return _answer("stop", facts) if facts.produced else _apology("empty_answer", facts, texts)
        case Finished(how="length"):
            return _partial_or("length", "limit_exceeded", facts, texts)
        case Finished():
            return _partial_or("content_filter", "content_filter", facts, texts)
        case StepsSpent():
            return _partial_or("tool_limit", "limit_exceeded", facts, texts)
        case UpstreamFailed():
            code: ErrorCode = "upstream_interrupted" if facts.tool_begun else "upstream_unavailable"
            return _partial_or("upstream_error", code, facts, texts)
        case UpstreamRefused():
            code = "upstream_interrupted" if facts.tool_begun else "upstream_rejected"
            return _partial_or("upstream_error", code, facts, texts)
        case CallsBroken():
            return _partial_or("upstream_error", "upstream_invalid", facts, texts)
        case AgentFailed():
            return _partial_or("upstream_error", "internal", facts, texts)
        case DeadlinePassed():
            return _partial_or("deadline", "turn_timeout", facts, texts)
        case ShutDown():
            return _partial_or("shutdown", "recovered", facts, texts)
        case Recovered():
            return _partial_or("recovered", "recovered", facts, texts)
        case Stored(terminal=fields):
            return _stored(fields)
        case Cancelled():
            return _answer("cancelled", facts)
        case Denied(words=words):
            if facts.seen and facts.produced:
                return refused(words, facts)
            return Error(code="denied", message=words, retryable=False)
    assert_never(cause)


def refused(words: str, facts: Facts) -> Completion:
    """The ending of an answer that a hook has taken back: its words stand in the answer's place."""
    return Completion(
        status="complete", finish_reason="refused", chars=len(words), text=words, replaced=True, usage=facts.usage
    )


def _stored(fields: dict[str, Any]) -> Terminal:
    event = from_fields(fields)
    if isinstance(event, Completion | Error):
        return event
    raise ValueError(f"a stored ending is of kind {fields.get('type')}")


def _answer(finish: FinishReason, facts: Facts) -> Completion:
    status = {"stop": "complete", "refused": "complete", "cancelled": "cancelled"}.get(finish, "partial")
    return Completion(
        status=status,  # type: ignore[arg-type]  # one of the three, by the line above
        finish_reason=finish,
        chars=len(facts.text),
        text=facts.text,
        usage=facts.usage,
    )


def _partial_or(finish: FinishReason, code: ErrorCode, facts: Facts, texts: Mapping[str, str]) -> Terminal:
    return _answer(finish, facts) if facts.produced else _apology(code, facts, texts)


def _apology(code: ErrorCode, facts: Facts, texts: Mapping[str, str]) -> Error:
    retryable = code in _RETRYABLE and not facts.tool_begun
    return Error(code=code, message=apology(code, retryable=retryable, texts=texts), retryable=retryable)


def failure(event: Terminal) -> str | None:
    """The code of what went wrong in a turn that ended so; None where nothing did: answered, cut short, cancelled."""
    if not isinstance(event, Completion):
        return event.code
    return event.finish_reason if event.finish_reason in _FAILED else None


def message_status(event: Terminal) -> str:
    """The status that the reply is stored with."""
    return event.status if isinstance(event, Completion) else "apology"
