"""How a turn ends (PROTOCOL 5, E1, E5, E6): states, the one decision, the one terminal event, its words."""

from __future__ import annotations

import itertools
import threading
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events import codec
from app.events.types import Completion, Error, ErrorCode, FinishReason, UsageTotal
from app.turns import outcome, state
from app.turns.outcome import Facts, message_status, refused, terminal
from app.turns.state import Decision, IllegalTransition, State, step
from app.turns.words import APOLOGIES, apology

# -- the table of states

ALLOWED = {
    ("queued", "running"), ("running", "waiting"), ("running", "ended"), ("waiting", "running"), ("waiting", "ended"),
    ("ended", "done"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), list(itertools.product(State, State)))
def test_every_transition_is_allowed_or_refused_by_the_table(old: State, new: State) -> None:
    """Written once more by hand: no state is left twice, `done` never."""
    if (old.value, new.value) in ALLOWED:
        assert step(old, new) is new
    else:
        with pytest.raises(IllegalTransition, match=f"{old} to {new}"):
            step(old, new)


def test_the_first_cause_wins_and_later_ones_change_nothing() -> None:
    """E6: cancel and finish race to one winner."""
    decision = Decision()
    assert not decision.made
    assert decision.decide(state.Cancelled())
    assert not decision.decide(state.Finished())
    assert not decision.decide(state.Cancelled())
    assert decision.cause == state.Cancelled()
    for _ in range(50):
        raced, wins = Decision(), []
        barrier = threading.Barrier(4)

        def run(number: int, raced: Decision = raced, wins: list[int] = wins, barrier: Any = barrier) -> None:
            barrier.wait()
            if raced.decide(state.Denied(str(number))):
                wins.append(number)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(wins) == 1
        assert raced.cause == state.Denied(str(wins[0]))


# -- every cause and what it becomes

# Section 5 once more: the cause, the completion's reason where something was produced, the code where nothing was.
TABLE: list[tuple[state.Cause, FinishReason, ErrorCode | None, ErrorCode | None]] = [
    (state.Finished("stop"), "stop", "empty_answer", "empty_answer"),
    (state.Finished("length"), "length", "limit_exceeded", "limit_exceeded"),
    (state.Finished("content_filter"), "content_filter", "content_filter", "content_filter"),
    (state.StepsSpent(), "tool_limit", "limit_exceeded", "limit_exceeded"),
    (state.UpstreamFailed(), "upstream_error", "upstream_unavailable", "upstream_interrupted"),
    (state.UpstreamRefused(), "upstream_error", "upstream_rejected", "upstream_interrupted"),
    (state.CallsBroken(), "upstream_error", "upstream_invalid", "upstream_invalid"),
    (state.AgentFailed(), "upstream_error", "internal", "internal"),
    (state.DeadlinePassed(), "deadline", "turn_timeout", "turn_timeout"),
    (state.ShutDown(), "shutdown", "recovered", "recovered"),
    (state.Recovered(), "recovered", "recovered", "recovered"),
    (state.Cancelled(), "cancelled", None, None),
    (state.Cancelled(deleted=True), "cancelled", None, None),
    (state.Denied("No."), "refused", "denied", "denied"),
]
RETRYABLE = {"upstream_unavailable", "upstream_invalid", "empty_answer", "turn_timeout", "recovered"}
STATUS = {"stop": "complete", "refused": "complete", "cancelled": "cancelled"}
facts_of = st.builds(
    lambda text, extra, comment, tool_begun, usage: Facts(
        text=text,
        produced=bool(text) or extra,
        seen=bool(text) or extra or comment,
        tool_begun=tool_begun,
        usage=UsageTotal(input_tokens=1, output_tokens=2) if usage else None,
    ),
    st.text(max_size=5), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip


def test_the_table_has_every_cause() -> None:
    """`Stored` apart, which repeats what was decided before."""
    assert {type(cause) for cause, *_ in TABLE} | {state.Stored} == set(get_args(state.Cause))


@pytest.mark.parametrize(("cause", "reason", "before_tools", "after_tools"), TABLE, ids=repr)
@given(facts=facts_of)
def test_every_cause_has_one_ending_by_the_rule(
    cause: state.Cause, reason: str, before_tools: str | None, after_tools: str | None, facts: Facts
) -> None:
    """E1, E5, section 5: produced → `completion`; not → `error`; a user's cancel is a `completion`; there is no third case.
    `retryable` exactly for the named codes while no tool has begun."""
    event = terminal(cause, facts, {})
    code = after_tools if facts.tool_begun else before_tools
    if facts.produced or code is None:
        assert isinstance(event, Completion)
        assert event.finish_reason == reason
        assert event.status == STATUS.get(reason, "partial")
        assert event.usage == facts.usage
        if reason == "refused":
            assert (event.text, event.chars, event.replaced) == ("No.", 3, True)
        else:
            assert (event.text, event.chars, event.replaced) == (facts.text, len(facts.text), False)
    else:
        assert isinstance(event, Error)
        assert event.code == code
        assert event.retryable == (code in RETRYABLE and not facts.tool_begun)
        assert event.message == ("No." if code == "denied" else event.message)
        assert event.message
    assert message_status(event) == (event.status if isinstance(event, Completion) else "apology")
    assert codec.decode(codec.encode(event)) == event


@pytest.mark.parametrize(
    "event",
    [
        Completion(seq=7, ts=5, status="partial", finish_reason="length", chars=2, text="ab"),
        Error(seq=3, ts=5, code="internal", message="Sorry.", retryable=False),
    ],
)
@given(facts=facts_of)
def test_a_stored_ending_is_told_as_it_was_stored(event: Completion | Error, facts: Facts) -> None:
    """E1: once an ending is stored none other can follow, whatever the facts look like after the crash."""
    assert terminal(state.Stored(codec.to_fields(event)), facts, {}) == event


def test_a_stored_ending_of_another_kind_is_a_fault() -> None:
    """Never passed on as an ending."""
    facts = Facts(text="", produced=False, seen=False, tool_begun=False)
    for fields in ({"type": "notice", "level": "info", "code": "c", "text": "t"}, {"type": "later"}):
        with pytest.raises(ValueError, match="stored ending"):
            terminal(state.Stored(fields), facts, {})


def test_an_answer_that_is_taken_back_is_its_words() -> None:
    """PROTOCOL 9, after_generation `Deny`: `completion` `refused`, `replaced`, status `complete`."""
    event = refused("Not that. 🐤", Facts(text="secret", produced=True, seen=True, tool_begun=False))
    assert (event.status, event.finish_reason, event.text, event.chars, event.replaced) == (
        "complete", "refused", "Not that. 🐤", 11, True,
    )  # fmt: skip


# -- words


def test_every_code_has_an_apology_in_plain_words() -> None:
    """PROTOCOL 3, error: a plain sentence of apology; it names no component of the service and is no exception's text."""
    assert set(APOLOGIES) == set(get_args(ErrorCode))
    components = (
        "upstream", "model", "provider", "openai", "anthropic", "token", "http", "api", "store", "database", "server",
        "tool", "hook", "agent", "sse", "timeout", "exception", "error", "null", "none", "stream", "deadline",
    )  # fmt: skip
    for code in APOLOGIES:
        for retryable in (True, False):
            words = apology(code, retryable=retryable, texts={}).lower()
            assert words.startswith("sorry")
            assert words.endswith((".", "?"))
            assert [name for name in components if name in words.replace("please tell the people", "")] == []
            assert "_" not in words


@pytest.mark.parametrize("code", get_args(ErrorCode))
def test_only_what_may_be_tried_again_invites_to_it(code: ErrorCode) -> None:
    """Once a tool has begun, trying again could do the work twice; `upstream_interrupted` says that work was done."""
    assert ("try again" in apology(code, retryable=True, texts={}).lower()) == (code in RETRYABLE)
    after_work = apology(code, retryable=False, texts={}).lower()
    assert "try again" not in after_work
    if code == "upstream_interrupted":
        assert "done" in after_work


def test_configured_texts_are_said_instead() -> None:
    """`[texts]`: any code's words, retryable or not; the others stay."""
    facts = Facts(text="", produced=False, seen=False, tool_begun=True)
    texts = {"turn_timeout": "Zu spät."}
    event = terminal(state.DeadlinePassed(), facts, texts)
    assert isinstance(event, Error)
    assert event.message == "Zu spät."
    other = terminal(state.AgentFailed(), facts, texts)
    assert isinstance(other, Error)
    assert other.message == APOLOGIES["internal"]
    assert outcome.terminal(state.Denied("Hook's own."), facts, {"denied": "x"}).message == "Hook's own."  # type: ignore[union-attr]
