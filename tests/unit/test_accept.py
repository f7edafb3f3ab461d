"""Which form of answer an `Accept` header asks for (H2)."""

from __future__ import annotations

import pytest

from app.api.streams import form_of


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", None),
        ("*/*", None),
        ("application/json", None),
        ("application/problem+json, application/json", None),
        ("text/event-stream", "sse"),
        ("TEXT/Event-Stream", "sse"),
        ("text/event-stream; charset=utf-8", "sse"),
        ("text/event-stream, */*;q=0.1", "sse"),
        ("application/json, text/event-stream", "sse"),
        ("application/json;q=0.9, text/event-stream; q=0.5", None),
        ("text/event-stream;q=0, application/json", None),
        ("text/event-stream;q=0", None),
        ("application/x-ndjson", "ndjson"),
        ("APPLICATION/X-NDJSON", "ndjson"),
        ("application/x-ndjson, text/event-stream;q=0.1", "ndjson"),
        ("text/event-stream;q=0.2,application/x-ndjson;q=0.8,*/*;q=1", "ndjson"),
        ("x-text/event-stream-y", None),
        ("text/html,application/xhtml+xml,*/*;q=0.8", None),
        ("text/event-stream;q=much", "sse"),
        (",;,", None),
    ],
)
def test_the_form_is_the_one_of_the_highest_quality(accept: str, form: str | None) -> None:
    """Names are compared without case, and as a whole; what is refused by q=0 is not sent."""
    assert form_of(accept) == form
