from __future__ import annotations

from datetime import UTC, datetime

import pytest

from app.providers.classify import body_code, parse_retry_after, redact, status_error, stream_error, transient_status
from app.providers.errors import ProviderError, UpstreamRejected, UpstreamUnavailable

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        ("0", 0.0),
        ("1.5", 1.5),
        (" 3 ", 3.0),
        ("86400", 86400.0),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 12:00:30 -0000", 30.0),
        ("Thu, 01 Jan 2026 13:00:30 +0100", 30.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        (None, None),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("9" * 200, 3.2e9),
        ("9" * 5000, 3.2e9),
        ("Thu, 99 Foo 2026 99:99:99 GMT", None),
        ("Thu, 01 Jan 99999999 12:00:30 GMT", None),
        ("\x00", None),
    ],
)
def test_retry_after_never_raises(value: str | None, seconds: float | None) -> None:
    """Seconds and HTTP dates are understood; what makes no sense is no wish at all (RFC 9110, 10.2.3)."""
    assert parse_retry_after(value, now=NOW) == seconds


def test_statuses_that_may_pass_are_those_of_the_retry_rule() -> None:
    """X1: 408, 425, 429 and 5xx are transient, everything else that is not 200 is refused."""
    passing = {status for status in range(300, 600) if transient_status(status)}
    assert passing == {408, 425, 429, *range(500, 600)}
    busy = status_error(429, retry_after=2.0, code=None, detail="")
    assert isinstance(busy, UpstreamUnavailable)
    assert (busy.transient, busy.retry_after, busy.code) == (True, 2.0, "429")
    refused = status_error(401, retry_after=None, code="invalid_api_key", detail="")
    assert isinstance(refused, UpstreamRejected)
    assert (refused.transient, refused.code) == (False, "invalid_api_key")
    assert not status_error(302, retry_after=None, code=None, detail="").transient


@pytest.mark.parametrize(
    ("error", "code", "transient"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded_error", True),
        ({"type": "api_error"}, "api_error", True),
        ({"type": "rate_limit_error"}, "rate_limit_error", True),
        ({"code": 502, "message": "gone", "metadata": {"error_type": "x"}}, "502", True),
        ({"code": "429", "type": "invalid_request_error"}, "429", True),
        ({"code": "rate_limit_exceeded", "type": "invalid_request_error"}, "rate_limit_exceeded", True),
        ({"code": None, "type": "server_error"}, "server_error", True),
        ({"code": "", "type": ""}, "provider_error", True),
        ({"message": "no type at all"}, "provider_error", True),
        ({"code": "something_new"}, "something_new", True),
        ("model runner stopped", "provider_error", True),
        (["what"], "provider_error", True),
        ({"code": 1301, "message": "own numbers"}, "1301", True),
        ({"code": 400}, "400", False),
        ({"code": 404.0}, "404", False),
        ({"code": "413"}, "413", False),
        ({"code": 409}, "409", False),
        ({"code": "context_length_exceeded", "type": "invalid_request_error"}, "context_length_exceeded", False),
        ({"code": "strange", "type": "invalid_request_error"}, "strange", False),
        ({"type": "authentication_error"}, "authentication_error", False),
        ({"type": "permission_error"}, "permission_error", False),
        ({"type": "not_found_error"}, "not_found_error", False),
        ({"type": "request_too_large"}, "request_too_large", False),
        ({"type": "billing_error"}, "billing_error", False),
        ({"code": "invalid_api_key"}, "invalid_api_key", False),
        ({"type": "BadRequestError", "object": "error"}, "BadRequestError", False),
        ({"message": "m", "status": "INVALID_ARGUMENT"}, "provider_error", False),
    ],
)
def test_error_in_a_stream_is_judged_by_its_code_and_type(error: object, code: str, transient: bool) -> None:
    """X1: everything may pass except what names a 4xx that does not; the code is the provider's, else the type."""
    found = stream_error(error)
    assert found.transient is transient
    assert isinstance(found, UpstreamRejected) is not transient
    assert found.code == code


def test_code_of_an_error_response_is_found_in_its_body() -> None:
    """The code, else the type, of the usual bodies; None for anything else."""
    assert body_code({"error": {"code": "x", "type": "y"}}) == "x"
    assert body_code({"error": {"code": None, "type": "y"}}) == "y"
    assert body_code({"type": "error", "error": {"type": "z"}}) == "z"
    assert body_code({"error": "words"}) is None
    assert body_code([1]) is None
    assert body_code(None) is None


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: my+secret/key==",
        "url?key=my%2Bsecret%2Fkey%3D%3D",
        'header "Authorization: Bearer sk-other-1234567890" was wrong',
        '{"x-api-key": "other-1234567890"}',
        '{\\"api_key\\": \\"other-1234567890\\"}',
        "Incorrect: sk-other-1234567890",
        "https://me:other-1234567890@host/v1",
        "Bearer other-1234567890",
    ],
)
def test_details_hold_no_key(text: str) -> None:
    """A4: neither our key in any form nor anything that looks like one is left in what goes to the log."""
    clean = redact(text, "my+secret/key==")
    assert "secret" not in clean
    assert "1234567890" not in clean


def test_details_are_short() -> None:
    """A log line is not filled by a page of HTML."""
    assert len(redact("x" * 100_000)) == 2000
    assert isinstance(stream_error({"message": "x" * 9999}), ProviderError)
    assert len(stream_error({"message": "x" * 9999}).detail) == 2000
