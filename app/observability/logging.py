"""One way for every log line: ours and those of uvicorn, alembic, SQLAlchemy and httpx, in one form, without secrets.

JSON lines where a machine reads along, aligned text at a terminal. What is bound with `structlog.contextvars`
(`turn_id`) is on every line written while it is bound.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

MASK = "***"
# Keys whose value is a secret, whatever it looks like.
_SECRET_NAME = re.compile(r"(authorization|cookie|password|passwd|secret|ticket|api_?key|(^|_)token)$", re.IGNORECASE)
# What a secret looks like inside other text: each pattern keeps its first group and loses the rest. Before it stand the
# words of which one must be there (in lower case): to look for those first is ten times as cheap, and lines are many.
_SECRETS = (
    (("bearer", "basic"), re.compile(r"(\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]+", re.IGNORECASE)),
    (("eb_", "ebs_", "ebt_"), re.compile(r"(eb[st]?_)[0-9A-Za-z]{16,}")),
    (("sk-",), re.compile(r"(\bsk-)[0-9A-Za-z_-]{8,}")),
    (
        ("ticket=", "key=", "token="),
        re.compile(r"((?:^|%3f|%26|[?&;\s\"'])(?:ticket|key|api_key|token|access_token)=)[^&\s\"'#]+", re.IGNORECASE),
    ),
    (("://",), re.compile(r"(\b[a-z][a-z0-9+.-]*://[^/\s:@\"']*:)[^/\s@\"']+(?=@)", re.IGNORECASE)),
    (("eyj",), re.compile(r"(\beyJ)[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]*")),
)
# Loggers that speak at `info` about what our own lines already say, or about every request that we make.
_QUIET = ("httpx", "httpcore", "asyncio", "aiosqlite", "alembic", "watchfiles", "sse_starlette")


def mask(text: str) -> str:
    """The text with `***` in place of what looks like a key, a token, a ticket or a password in a URL (A4).

    Knows secrets by their look; a secret without one must be logged under a telling name, or not at all.
    """
    small = text.lower()
    for words, pattern in _SECRETS:
        if any(word in small for word in words):
            text = pattern.sub(rf"\1{MASK}", text)
    return text


def configure(level: str = "info", *, stream: TextIO | None = None, brief: bool = False) -> None:
    """Send every log line of this process to `stream` (None: standard output), from `level` on.

    Human-readable if the stream is a terminal, else one JSON object a line with `timestamp` (UTC), `level`, `logger`
    and `event`. May be called again; the last call counts. Commands that print a result log to standard error. `brief` is
    for people wherever they read: human-readable, and without traces.
    """
    stream = stream or sys.stdout
    terminal = stream.isatty() or brief
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if terminal else "iso", utc=not terminal),
        structlog.processors.StackInfoRenderer(),
        _mask_names,
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(allow=("status", "method", "path", "client"))],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *([_without_trace] if brief else [] if terminal else [structlog.processors.format_exc_info]),
                _masked(_console(colors=stream.isatty()) if terminal else _render_json),
            ],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        # uvicorn gives them handlers of its own unless told otherwise: one line, one way.
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    for name, wanted in (("uvicorn.access", _without_query), ("uvicorn.error", _not_said_already)):
        logger = logging.getLogger(name)
        for known in logger.filters[:]:
            logger.removeFilter(known)
        logger.addFilter(wanted)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _without_query(record: logging.LogRecord) -> bool:
    """Take the query, which may hold a ticket, out of uvicorn's line for a request."""
    if isinstance(record.args, tuple) and len(record.args) == 5:
        client, method, path, _version, status = record.args
        record.msg, record.args = "request", ()
        record.client, record.method, record.status = client, method, status
        record.path = str(path).partition("?")[0]
    return True


def _not_said_already(record: logging.LogRecord) -> bool:
    """Pass over uvicorn's lines for what we tell ourselves.

    A response that was cut off: we cut off stuck viewers only. A start that failed: our own sentence is the last word.
    """
    return record.msg not in ("ASGI callable returned without completing response.", "Application startup failed. Exiting.")


def _mask_names(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key in event:
        if isinstance(event[key], str) and _SECRET_NAME.search(key):
            event[key] = MASK
    return event


def _masked(render: Callable[[WrappedLogger, str, EventDict], str]) -> Processor:
    """Mask the finished line, so that a secret in a traceback or deep in a value is caught, too."""

    def rendered(logger: WrappedLogger, method: str, event: EventDict) -> str:
        # A lone surrogate, which no stream can encode, becomes a question mark instead of a lost line.
        return mask(render(logger, method, event)).encode("utf-8", "replace").decode()

    return rendered


def _console(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    # Plain tracebacks: the rich ones print local variables, and those hold what must not be logged.
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)


def _without_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key in ("exc_info", "exception", "stack", "stack_info"):
        event.pop(key, None)
    return event


def _render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    ordered: dict[str, Any] = {key: event.pop(key) for key in ("timestamp", "level", "logger", "event") if key in event}
    return json.dumps({**ordered, **event}, default=repr, ensure_ascii=False, separators=(",", ":"))
