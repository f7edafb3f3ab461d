"""Errors as `application/problem+json` (RFC 9457) with a stable `code` (H1). The only place that knows HTTP statuses."""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app.errors import EarlybyteError, StoreUnavailable
from app.events.codec import encode
from app.store.errors import Conflict
from app.turns.admission import ConversationBusy, Draining, KeyReused, NotFound, UnknownProfile
from app.turns.capacity import OverCapacity

log = structlog.get_logger(__name__)


class Unauthenticated(EarlybyteError):
    """This needs a valid API key."""

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


class BodyTooLarge(HTTPException):
    """The body is over the limit; raised while it is read."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The request body is larger than {limit} bytes.")


_STATUS: tuple[tuple[type[EarlybyteError], int], ...] = (
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
    (StoreUnavailable, 503),
    (Draining, 503),
)
_CODES = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 406: "not_acceptable"}
_TITLES = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Content too large",
    422: "Unprocessable content",
    429: "Too many requests",
    500: "Internal error",
    503: "Service unavailable",
}


def problem(status: int, code: str, detail: str, *, headers: dict[str, str] | None = None, **extra: object) -> Response:
    """One problem document."""
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
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return problem(status, error.code, error.message)
    log.error("unexpected error", error=f"{type(error).__name__}: {error.message}")
    return problem(500, "internal", "Something went wrong on our side.")


def install(app: FastAPI) -> None:
    """Make every error of the application a problem document."""

    @app.exception_handler(EarlybyteError)
    async def ours(_request: Request, error: EarlybyteError) -> Response:
        return for_error(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        errors = [
            {"field": ".".join(str(part) for part in one["loc"] if part != "body"), "message": _plain(one)}
            for one in error.errors()
        ]
        first = errors[0] if errors else {"field": "", "message": "it cannot be used"}
        where = f"{first['field']}: " if first["field"] else ""
        return problem(422, "invalid_request", f"{where}{first['message']}", errors=errors)

    @app.exception_handler(HTTPException)
    async def http(_request: Request, error: HTTPException) -> Response:
        code = _CODES.get(error.status_code, "invalid_request" if error.status_code < 500 else "internal")
        headers = dict(error.headers or {})
        return problem(error.status_code, code, str(error.detail), headers=headers)

    @app.exception_handler(Exception)
    async def other(_request: Request, error: Exception) -> Response:
        log.error("request failed", error=f"{type(error).__name__}: {error}", exc_info=error)
        return problem(500, "internal", "Something went wrong on our side.")


def _plain(error: Any) -> str:
    """One pydantic error without the parts that are for programmers."""
    message = str(error["msg"])
    if error["type"] == "json_invalid":
        return "the body is not valid JSON"
    return message.removeprefix("Value error, ")
