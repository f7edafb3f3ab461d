"""What `earlybyte chat` prints for the events of a turn: words for people, each once (PROTOCOL 3, 8)."""

from __future__ import annotations

import io
from typing import Any, get_args

import pytest

from app.cli.chat_screen import Screen
from app.events.types import FinishReason


def shown(*events: dict[str, Any]) -> list[str]:
    """The lines on standard error."""
    err = io.StringIO()
    screen = Screen(io.StringIO(), err)
    for event in events:
        screen.show(event)
    return err.getvalue().splitlines()


def start(call: str) -> dict[str, Any]:
    return {"type": "tool_start", "tool_call_id": call, "name": "pay", "title": f"Paying {call}"}


def end(call: str, status: str) -> dict[str, Any]:
    return {"type": "tool_end", "tool_call_id": call, "status": status, "duration_ms": 100}


def snapshot(**ended: str) -> dict[str, Any]:
    tools = [{"tool_call_id": call, "name": "pay", "title": f"Paying {call}", "status": s} for call, s in ended.items()]
    return {"type": "snapshot", "blocks": [], "tools": tools}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("ok", "  Paying a: ok, 0.1 s"),
        ("error", "  Paying a: failed, 0.1 s"),
        ("timeout", "  Paying a: timed out, 0.1 s"),
        ("denied", "  Paying a: denied, 0.1 s"),
        ("cancelled", "  Paying a: cancelled, 0.1 s"),
        ("unknown", "  Paying a: outcome unknown, it may or may not have taken effect"),
    ],
)
def test_every_end_of_a_tool_is_a_line(status: str, words: str) -> None:
    """E4: one end for each start, and a person is told of it."""
    assert shown(start("a"), end("a", status)) == ["▸ Paying a …", words]


def test_what_ended_while_nobody_looked_is_told_from_the_snapshot_once() -> None:
    """R3, X2: after a restart the outcome that is unknown stands in the snapshot only."""
    unknown = "  Paying a: outcome unknown, it may or may not have taken effect"
    seen = snapshot(a="unknown")
    assert shown(start("a"), seen, seen, end("a", "unknown")) == ["▸ Paying a …", unknown]
    assert shown(seen) == [unknown]
    assert shown(start("a"), end("a", "unknown"), seen) == ["▸ Paying a …", unknown]


def test_a_tool_that_began_and_ended_well_meanwhile_is_no_news() -> None:
    """Only what went wrong, and the ends of those that were seen to begin."""
    assert shown(start("a"), snapshot(a="ok", b="ok", c="error")) == [
        "▸ Paying a …",
        "  Paying a: ok, 0.0 s",
        "  Paying c: failed, 0.0 s",
    ]


@pytest.mark.parametrize("reason", get_args(FinishReason))
def test_the_last_line_is_for_people(reason: str) -> None:
    """Each `finish_reason` has words; none is shown as the code that it is, but the one that is a word."""
    status = {"stop": "complete", "refused": "complete", "cancelled": "cancelled"}.get(reason, "partial")
    [line] = shown({"type": "completion", "status": status, "finish_reason": reason, "chars": 0})
    assert line.startswith("— ")
    assert "partial" not in line
    assert "_" not in line


def test_a_reason_of_a_later_version_is_told_by_its_status() -> None:
    """Clients pass over what they do not know."""
    event = {"type": "completion", "status": "partial", "finish_reason": "full_moon", "chars": 0}
    assert shown(event) == ["— partial"]
    assert shown(event | {"status": "cancelled", "finish_reason": "cancelled"}) == ["— cancelled"]
