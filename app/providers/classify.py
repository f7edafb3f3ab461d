"""What a failure of a model endpoint means: may it pass (X1), when to come back, and what may be said about it.

Pure. Transient are 408, 425, 429, every 5xx, and every error in the stream that does not name a 4xx of another kind.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from app.providers.errors import ProviderError, UpstreamRejected, UpstreamUnavailable

_PASSING_4XX = frozenset({408, 425, 429})
_DETAIL_CHARS = 2000
# Seconds; a hundred years.
_FOREVER = 3.2e9
_HIDDEN = "[hidden]"

# Words of codes and types, lower case, letters and digits only, without a final "error" or "exception".
# fmt: off
_PASSING_WORDS = frozenset(
    (
        "ratelimit", "ratelimitexceeded", "ratelimited", "toomanyrequests", "requesttimeout", "timeout",
        "timedout", "overloaded", "serveroverloaded", "engineoverloaded", "api", "server", "servererror",
        "internal", "internalserver", "serviceunavailable", "unavailable", "badgateway", "gateway",
        "gatewaytimeout", "insufficientquota", "tokensexceededperminute", "resourceexhausted",
        "capacityexceeded", "connection", "aborted", "deadlineexceeded", "tokens", "requests",
    )
)
_REFUSING_WORDS = frozenset(
    (
        "invalidrequest", "badrequest", "authentication", "unauthorized", "unauthenticated", "authorization",
        "permission", "permissiondenied", "insufficientpermissions", "forbidden", "accessdenied", "notfound",
        "modelnotfound", "deploymentnotfound", "methodnotallowed", "notacceptable", "conflict", "gone",
        "requesttoolarge", "payloadtoolarge", "requestentitytoolarge", "contenttoolarge",
        "unsupportedmediatype", "unprocessable", "unprocessableentity", "billing", "paymentrequired",
        "billinghardlimitreached", "insufficientbalance", "contextlengthexceeded", "contextwindowexceeded",
        "maxtokensexceeded", "stringabovemaxlength", "prompttoolong", "invalidapikey", "incorrectapikey",
        "missingapikey", "accountdeactivated", "invalidargument", "invalidprompt", "invalidvalue",
        "invalidtype", "invalidmodel", "invalidparameter", "invalidtool", "invalidschema",
        "invalidfunctionparameters", "unsupportedvalue", "unsupportedparameter", "unsupportedmodel",
        "unsupportedcountryregionterritory", "unknownparameter", "unknownmodel", "missingrequiredparameter",
        "modelnotsupported", "failedprecondition", "validation", "contentfilter", "contentpolicyviolation",
    )
)
# fmt: on
_SECRETS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+"), rf"\1 {_HIDDEN}"),
    (
        re.compile(
            r"(?i)((?:x-)?api[-_]?key|authorization|access[-_]?token)(\\?[\"']?\s*[:=]\s*\\?[\"']?)(?!bearer|basic)[^\s\"',;&]+"
        ),
        rf"\1\2{_HIDDEN}",
    ),
    (re.compile(r"\b(?:sk|pk|rk|gsk|xai|key)[-_][^\s\"',;]{6,}"), _HIDDEN),
    (re.compile(r"(://)[^/@\s]+@"), rf"\1{_HIDDEN}@"),
)


def transient_status(status: int) -> bool:
    """Whether an HTTP status is one that may pass."""
    return status in _PASSING_4XX or 500 <= status <= 599


def status_error(status: int, *, retry_after: float | None, code: str | None, detail: str) -> ProviderError:
    """The error for a response that is not 200; a redirect counts as refused, since it is never followed."""
    code = code or str(status)
    if transient_status(status):
        message = f"The model endpoint answered {status}."
        return UpstreamUnavailable(message, code=code, retry_after=retry_after, detail=detail)
    return UpstreamRejected(f"The model endpoint refused the request with {status}.", code=code, detail=detail)


def stream_error(error: object) -> ProviderError:
    """The error that an endpoint put into its stream: an object with `code`, `type` and `message`, or plain words.

    Its code is the provider's code, else its type, else `provider_error`.
    """
    if not isinstance(error, dict):
        return ProviderError("The model endpoint reported an error.", detail=str(error)[:_DETAIL_CHARS])
    code, kind = error_code(error.get("code")), error_code(error.get("type"))
    detail = str(error.get("message") or error)[:_DETAIL_CHARS]
    signals = [code, kind, error_code(error.get("status")), error_code(error.get("status_code"))]
    if _refuses(signals):
        said = code or kind or ProviderError.code
        return UpstreamRejected("The model endpoint refused the request.", code=said, detail=detail)
    return ProviderError("The model endpoint reported an error.", code=code or kind, detail=detail)


def error_code(value: object) -> str | None:
    """A code or type as a short string; None for what says nothing."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not value:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()[:100] or None


def body_code(body: Any) -> str | None:
    """The provider's code, else its type, out of the decoded body of an error response."""
    error = body.get("error", body) if isinstance(body, dict) else None
    return (error_code(error.get("code")) or error_code(error.get("type"))) if isinstance(error, dict) else None


def parse_retry_after(value: str | None, *, now: datetime | None = None) -> float | None:
    """Seconds to wait, from a `Retry-After` header (RFC 9110, 10.2.3): seconds, also fractional, or an HTTP date.

    A past date is 0. None where the header is absent, negative, not finite or not understood; never raises.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        # However far away that is: more than anybody will wait.
        return _FOREVER if len(text) > 9 else float(text)
    if not text or len(text) > 100:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = _until(text, now or datetime.now(UTC))
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def redact(text: str, *secrets: str | None) -> str:
    """`text` without the given secrets and without whatever looks like a key; at most 2,000 characters."""
    for secret in secrets:
        if secret:
            for form in (secret, quote(secret, safe="")):
                text = text.replace(form, _HIDDEN)
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text[:_DETAIL_CHARS]


def _refuses(signals: list[str | None]) -> bool:
    # The first signal that is understood decides: a code says more than a type.
    for signal in signals:
        if signal is None:
            continue
        if re.fullmatch(r"[1-5][0-9]{2}", signal):
            return 400 <= int(signal) <= 499 and not transient_status(int(signal))
        word = re.sub(r"[^a-z0-9]", "", signal.lower())
        word = re.sub(r"(error|exception)$", "", word)
        if word in _REFUSING_WORDS:
            return True
        if word in _PASSING_WORDS:
            return False
    return False


def _until(text: str, now: datetime) -> float:
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, (moment - now).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):
        return -1.0
