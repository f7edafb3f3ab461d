"""Log lines: one form for all, and no secret in any of them (A4)."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from app.ids import new_secret
from app.observability.logging import configure, mask


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    structlog.reset_defaults()
    access = logging.getLogger("uvicorn.access")
    for known in access.filters[:]:
        access.removeFilter(known)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_our_lines_and_foreign_ones_are_json_of_one_form() -> None:
    """A machine that reads along needs one parser."""
    stream = io.StringIO()
    configure("info", stream=stream)
    structlog.get_logger("app.turns").warning("tool timeout", rung="timeouts.tool", seconds=30)
    logging.getLogger("a.library").info("running %s", "0001")
    ours, foreign = lines(stream)
    assert {"level": "warning", "logger": "app.turns", "event": "tool timeout", "rung": "timeouts.tool"}.items() <= (
        ours.items()
    )
    assert ours["seconds"] == 30
    assert {"level": "info", "logger": "a.library", "event": "running 0001"}.items() <= foreign.items()
    assert str(ours["timestamp"]).endswith("Z")


@pytest.mark.parametrize("sign", ["?", "%3F", "%3f", "&", "%26"])
@pytest.mark.parametrize("equals", ["=", "%3D", "%3d"])
def test_a_ticket_is_masked_however_the_client_wrote_its_query(sign: str, equals: str) -> None:
    """A4: also where it became a part of the path."""
    ticket = new_secret("ebt")
    said = mask(f"GET /v1/turns/turn_1/events{sign}ticket{equals}{ticket} 404")
    assert ticket[4:] not in said
    assert "/v1/turns/turn_1/events" in said


def test_what_is_bound_is_on_every_line_while_it_is_bound() -> None:
    """Lines of a turn are found by its id, also those of libraries."""
    stream = io.StringIO()
    configure("info", stream=stream)
    with structlog.contextvars.bound_contextvars(turn_id="turn_1"):
        logging.getLogger("library").info("inside")
    logging.getLogger("library").info("outside")
    inside, outside = lines(stream)
    assert inside["turn_id"] == "turn_1"
    assert "turn_id" not in outside


def test_lines_below_the_level_are_left_out() -> None:
    """`server.log_level` counts for ours and for foreign lines."""
    stream = io.StringIO()
    configure("warning", stream=stream)
    structlog.get_logger("app").info("no")
    logging.getLogger("library").info("no")
    structlog.get_logger("app").error("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_the_last_configuration_counts_and_nothing_is_written_twice() -> None:
    """Configured again, a line goes to the new stream, once."""
    first, second = io.StringIO(), io.StringIO()
    configure("info", stream=first)
    configure("info", stream=second)
    logging.getLogger("uvicorn.error").info("started")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_a_request_is_logged_without_its_query() -> None:
    """A ticket travels in the query of an EventSource, and no log may hold it."""
    stream = io.StringIO()
    configure("info", stream=stream)
    logging.getLogger("uvicorn.access").info(
        '%s - "%s %s HTTP/%s" %d', "127.0.0.1:5", "GET", "/v1/turns/t/events?ticket=abc&x=1", "1.1", 200
    )
    [line] = lines(stream)
    assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/turns/t/events", 200)
    assert "abc" not in stream.getvalue()


SECRETS = [
    "Authorization: Bearer {}",
    "authorization: bearer {}",
    "GET /v1/turns/t/events?ticket={}&from=snapshot",
    "https://models.example/v1?api_key={}",
    "postgresql+asyncpg://user:{}@host:5432/name",
    "the key sk-{} was refused",
    "the key eb_{} was refused",
]


@pytest.mark.parametrize("form", SECRETS)
@given(secret=st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=20, max_size=64))
def test_whatever_looks_like_a_secret_is_masked(form: str, secret: str) -> None:
    """Each known form loses its secret and keeps the rest, which tells what the line is about."""
    before, _, after = form.partition("{}")
    masked = mask(form.format(secret))
    assert secret not in masked
    assert masked.startswith(before[:8])
    assert masked.endswith(after)


def test_ordinary_lines_are_left_as_they_are() -> None:
    """Masking must not eat what an operator needs."""
    for text in (
        "turn_01abc used 3 tokens",
        "timeouts.tool = 30",
        "http://127.0.0.1:8000/v1/turns/turn_1-1-5",
        "a: b@c",
    ):
        assert mask(text) == text


@pytest.mark.parametrize("stream_class", [io.StringIO, Terminal])
def test_a_secret_is_masked_in_values_under_telling_names_and_in_traces(stream_class: type[io.StringIO]) -> None:
    """At a terminal as in a file; local variables are never printed."""
    key = new_secret("eb")
    stream = stream_class()
    configure("info", stream=stream)
    log = structlog.get_logger("app")
    log.info("in", password="hunter2", nested={"header": f"Bearer {key}"}, text=f"?ticket={key}")
    try:
        local = "hunter2"
        raise ValueError(f"bad {key}" if local else "")
    except ValueError:
        log.exception("failed")
    assert key not in stream.getvalue()
    assert "hunter2" not in stream.getvalue()
    assert "ValueError" in stream.getvalue()


def test_a_line_that_cannot_be_encoded_is_still_written() -> None:
    """A lone surrogate of a model must not cost the line."""
    stream = io.StringIO()
    configure("info", stream=stream)
    structlog.get_logger("app").info("odd", text="\ud800", what=object)
    [line] = lines(stream)
    assert line["text"] == "?"
    assert line["what"] == "<class 'object'>"


def test_a_brief_line_is_for_people_and_has_no_trace() -> None:
    """For a terminal that belongs to a conversation; also where a pipe takes the place of one."""
    stream = io.StringIO()
    configure("critical", stream=stream, brief=True)
    log = structlog.get_logger("app")
    try:
        raise ValueError("bad")
    except ValueError as error:
        log.error("left out", exc_info=error)
        log.critical("turn broke", turn_id="turn_1", exc_info=error)
        logging.getLogger("library").critical("gone", exc_info=error)
    said = stream.getvalue()
    assert [word in line for line, word in zip(said.splitlines(), ("turn broke", "gone"), strict=True)] == [True, True]
    assert "turn_id=turn_1" in said
    assert "Traceback" not in said
    assert "\x1b" not in said


def test_at_a_terminal_a_line_is_for_people() -> None:
    """Not JSON, but the same words."""
    stream = Terminal()
    configure("info", stream=stream)
    structlog.get_logger("app").info("started", port=8000)
    assert "started" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
