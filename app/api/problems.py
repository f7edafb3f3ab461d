"""Errors as `application/problem+json` (RFC 9457) with a stable `code` (H1). The only place that knows HTTP statuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

from app.errors import EarlybyteError, StoreUnavailable
from app.events.codec import encode
from app.observability import metrics
from app.store.errors import Conflict
from app.turns.admission import ConversationBusy, Draining, KeyReused, NotFound, UnknownProfile
from app.turns.capacity import OverCapacity

log = structlog.get_logger(__name__)


class Unauthenticated(EarlybyteError):
    """This needs a valid API key: Authorization: Bearer <key>."""

    code = "unauthenticated"


class Forbidden(EarlybyteError):
    """This is not allowed."""

    code = "forbidden"


class InvalidRequest(EarlybyteError):
    """The request cannot be used."""

    code = "invalid_request"


class TooLarge(EarlybyteError):
    """The request is larger than allowed."""

    code = "too_large"


class MessageNotSaved(EarlybyteError):
    """This message is not saved yet."""

    code = "message_not_saved"


class NotReactable(EarlybyteError):
    """This message takes no reactions."""

    code = "not_reactable"


class ApprovalConflict(EarlybyteError):
    """This approval has another answer already."""

    code = "approval_conflict"


class ApprovalClosed(EarlybyteError):
    """This approval can no longer be answered, since its turn is over."""

    code = "approval_closed"


class WrongRole(EarlybyteError):
    """This process has the role "api"; turns are started and followed at the one with the role "stream"."""

    code = "wrong_role"


class BodyTooLarge(HTTPException):
    """The body is over the limit; raised while it is read."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The request body is larger than {limit} bytes.")


class BodyTooSlow(HTTPException):
    """The body did not come to its end in time; raised while it is read."""

    def __init__(self) -> None:
        super().__init__(408, "The request did not come to its end in time.", headers={"Connection": "close"})


class BodyTooLate(HTTPException):
    """The process stops before the body has come to its end; raised while it is read."""

    def __init__(self) -> None:
        super().__init__(503, Draining().message, headers={"Connection": "close", "Retry-After": "5"})


# The status of each error that a caller can be told.
STATUS: tuple[tuple[type[EarlybyteError], int], ...] = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (UnknownProfile, 404),
    (MessageNotSaved, 404),
    (ConversationBusy, 409),
    (KeyReused, 409),
    (NotReactable, 409),
    (ApprovalConflict, 409),
    (ApprovalClosed, 409),
    (Conflict, 409),
    (TooLarge, 413),
    (InvalidRequest, 422),
    (WrongRole, 421),
    (StoreUnavailable, 503),
    (Draining, 503),
)
_CODES = {404: "not_found", 408: "request_timeout", 413: "too_large", 503: "draining"}
_TITLES = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    408: "Request timeout",
    409: "Conflict",
    413: "Content too large",
    421: "Misdirected request",
    422: "Unprocessable content",
    429: "Too many requests",
    500: "Internal error",
    503: "Service unavailable",
}


def problem(status: int, code: str, detail: str, *, headers: dict[str, str] | None = None, **extra: object) -> Response:
    """One problem document."""
    metrics.refusals.labels(code).inc()
    body = {"type": "about:blank", "title": _TITLES.get(status, "Error"), "status": status, "code": code, **extra}
    return Response(
        encode({**body, "detail": detail}), status_code=status, media_type="application/problem+json", headers=headers
    )


def for_error(error: EarlybyteError) -> Response:
    """The problem that an error of ours becomes."""
    match error:
        case OverCapacity():
            status = 503 if error.whose == "service" else 429
            return problem(status, error.code, error.message, headers={"Retry-After": str(error.retry_after)})
        case ConversationBusy():
            return problem(409, error.code, error.message, turn_id=error.turn_id)
        case Unauthenticated():
            return problem(401, error.code, error.message, headers={"WWW-Authenticate": "Bearer"})
        case StoreUnavailable() | Draining():
            return problem(503, error.code, error.message, headers={"Retry-After": "5"})
    for kind, status in STATUS:
        if isinstance(error, kind):
            return problem(status, error.code, error.message)
    log.error("unexpected error", error=f"{type(error).__name__}: {error.message}")
    return problem(500, "internal", "Something went wrong on our side.")


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Make every error of the application a problem document; `routes` are all that it has."""

    @app.exception_handler(EarlybyteError)
    async def ours(_request: Request, error: EarlybyteError) -> Response:
        return for_error(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        refusal = await _refusal(request)
        if refusal is not None:
            return refusal
        errors = [{"field": _field(one), "message": _plain(one)} for one in error.errors()]
        first = errors[0]
        return problem(422, "invalid_request", f"{first['field'] or 'body'}: {first['message']}.", errors=errors)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        refusal = await _refusal(request) if error.status_code == 400 else None
        if refusal is not None:
            return refusal
        if error.status_code == 400:
            # The framework's word for a body that it cannot decode.
            return problem(422, "invalid_request", "body: it is not valid JSON.")
        if error.status_code == 405:
            allowed = _allowed(request, routes)
            words = f"{request.method} is not possible here; use {allowed}."
            return problem(405, "method_not_allowed", words, headers={"Allow": allowed})
        if error.status_code == 404 and error.detail == "Not Found":
            # The framework's words for a path that no route has.
            return problem(404, "not_found", "There is nothing at this address.")
        code = _CODES.get(error.status_code, "invalid_request" if error.status_code < 500 else "internal")
        headers = dict(error.headers or {})
        return problem(error.status_code, code, str(error.detail), headers=headers)

    @app.exception_handler(Exception)
    async def other(_request: Request, error: Exception) -> Response:
        log.error("request failed", error=f"{type(error).__name__}: {error}", exc_info=error)
        return problem(500, "internal", "Something went wrong on our side.")


async def _refusal(request: Request) -> Response | None:
    """The answer to a caller who may not come in, whose body was read before anybody asked who they are (A1)."""
    path = request.url.path
    if not path.startswith("/v1/") or path.startswith(("/v1/session", "/v1/schema/")):
        return None
    try:
        await request.app.state.service.gate.authenticate(request)
    except EarlybyteError as error:
        return for_error(error)
    return None


def _allowed(request: Request, routes: Sequence[BaseRoute]) -> str:
    """All methods of the path: the framework names only those of the first route that it finds."""
    methods: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


def _field(error: Any) -> str:
    """Where the fault is, as the client wrote it: without pydantic's names for the members of a union."""
    if error["type"] == "json_invalid":
        return ""
    parts = list(error["loc"])[1:]
    tags = {index for index, part in enumerate(parts) if index and _is_tag(parts[index - 1], part)}
    return ".".join(str(part) for index, part in enumerate(parts) if index not in tags)


def _is_tag(before: object, part: object) -> bool:
    return (isinstance(before, int) and part in {"text", "image_url"}) or (before == "input" and part in {"text", "parts"})


_WORDS = {
    "missing": "it is required",
    "extra_forbidden": "there is no such field",
    "string_type": "it must be text",
    "string_unicode": "it must be text without broken characters",
    "dict_type": "it must be an object",
    "list_type": "it must be a list",
    "json_invalid": "it is not valid JSON",
}


def _plain(error: Any) -> str:
    """One pydantic error without the parts that are for programmers."""
    kind, message = error["type"], str(error["msg"])
    if kind == "model_attributes_type":
        if isinstance(error.get("input"), bytes):
            return "it must be JSON, sent with Content-Type: application/json"
        return "it must be an object"
    if kind == "union_tag_invalid":
        return f"its type must be one of {error['ctx']['expected_tags']}"
    if kind in _WORDS:
        return _WORDS[kind]
    message = message.removeprefix("Value error, ").partition(", unable to")[0].partition(" after validation")[0]
    for start in ("Input should ", "String should ", "List should ", "Dictionary should "):
        message = message.replace(start, "it must ")
    return message
