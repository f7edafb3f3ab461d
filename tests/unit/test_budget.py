"""The time ladder and deadlines (PROTOCOL 6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ConfigError
from app.limits.budget import Timeouts, check, check_tools, show
from app.limits.deadline import Deadline

# Section 6, written once more by hand: the inner rung, then the one around it.
RULES = [
    ("tool", "turn"), ("turn", "request"), ("request", "drain"), ("drain", "shutdown"), ("shutdown", "kill"),
    ("keep_alive", "client_watchdog"), ("client_watchdog", "proxy_read"), ("proxy_read", "lb_idle"),
    ("lb_idle", "server_keep_alive"), ("viewer_write", "tcp_user"), ("reserve", "turn"),
    ("model_first_token", "turn"), ("model_between_tokens", "turn"),
]  # fmt: skip


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_defaults_pass() -> None:
    """What ships keeps its own rule."""
    check(Timeouts())
    check_tools([("quick", 1), ("longest", 110), ("unnamed", None)], Timeouts())


@pytest.mark.parametrize(("inner", "outer"), RULES)
@pytest.mark.parametrize("over", [0, 1, 0.5])
def test_a_rung_that_is_not_shorter_is_refused_with_both_names_and_values(inner: str, outer: str, over: float) -> None:
    """B1: equal is refused, too; the sentence gives the two names, the two values and the rule."""
    outside = getattr(Timeouts(), outer)
    broken = Timeouts(**{inner: outside + over})
    with pytest.raises(ConfigError) as caught:
        check(broken)
    assert caught.value.message == (
        f"timeouts.{inner} = {show(outside + over)} must be shorter than timeouts.{outer} = {show(outside)}: "
        "every timeout is shorter than the one around it."
    )


@given(st.dictionaries(st.sampled_from(sorted({name for rule in RULES for name in rule})), st.floats(0.001, 300)))
def test_the_ladder_is_refused_exactly_when_a_rule_is_broken(rungs: dict[str, float]) -> None:
    """B1 for any values: no false alarm, nothing overlooked."""
    timeouts = Timeouts(**rungs)
    broken = [rule for rule in RULES if getattr(timeouts, rule[0]) >= getattr(timeouts, rule[1])]
    if not broken:
        check(timeouts)
        return
    with pytest.raises(ConfigError) as caught:
        check(timeouts)
    assert any(f"timeouts.{i} = " in caught.value.message and f"timeouts.{o} = " in caught.value.message for i, o in broken)


def test_a_tool_whose_own_timeout_does_not_fit_is_named() -> None:
    """B1: a tool's own timeout may be at most the turn without its reserve."""
    timeouts = Timeouts(turn=3, reserve=2.5, tool=0.5)
    check_tools([("fits", 0.5), ("none", None)], timeouts)
    with pytest.raises(ConfigError, match=r"The tool nap has timeout = 1, .* timeouts\.turn - timeouts\.reserve = 0\.5:"):
        check_tools([("fits", 0.5), ("nap", 1)], timeouts)


@pytest.mark.parametrize(("seconds", "words"), [(120.0, "120"), (0.5, "0.5"), (1e9, "1000000000"), (0.1 + 0.2, "0.3")])
def test_a_number_is_shown_as_a_person_writes_it(seconds: float, words: str) -> None:
    """120 is not 120.0."""
    assert show(seconds) == words


def test_a_deadline_ends_by_the_monotonic_clock_and_can_be_moved_back() -> None:
    """B4: the time of an approval is given back to the turn."""
    clock = FakeClock()
    deadline = Deadline(10, clock=clock)
    clock.now += 9
    assert (deadline.remaining(), deadline.expired) == (1, False)
    clock.now += 1
    assert (deadline.remaining(), deadline.expired) == (0, True)
    clock.now += 5
    deadline.extend(20)
    assert (deadline.remaining(), deadline.expired) == (15, False)


def test_a_deadline_survives_a_change_of_process_as_wall_clock_time() -> None:
    """Section 5: the deadline is stored as wall-clock time, and the next owner goes on with what is left."""
    first, second = FakeClock(), FakeClock()
    second.now = 5.0
    stored = Deadline(10, clock=first).wall_ms(wall_ms=lambda: 1_700_000_000_000)
    assert stored == 1_700_000_010_000
    taken_over = Deadline.from_wall_ms(stored, clock=second, wall_ms=lambda: 1_700_000_004_000)
    assert taken_over.remaining() == 6
    assert Deadline.from_wall_ms(stored, clock=second, wall_ms=lambda: stored + 1).expired
