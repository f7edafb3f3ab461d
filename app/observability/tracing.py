"""Spans of a turn, in the words of OpenTelemetry's conventions for generative AI (A4: no text, argument, result or key).

A turn is `invoke_agent`; in it are its steps, in those each try of a model call (`chat`) and each tool (`execute_tool`);
then the save. Nothing is recorded per token. While tracing is off everything here does nothing, and the SDK is not loaded;
`app.observability.otlp` switches it on. The rest of the service knows no other part of OpenTelemetry.

The span that is current goes with the context: into tasks that are started in it and into their threads, so that spans
which a tool makes by itself come under its own. Only a turn does not look at the context: it is started from anywhere.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.errors import EarlybyteError
from app.observability.logging import mask

Value = str | int | float | bool | tuple[str, ...]

# W3C Trace Context; the propagator looks at it more closely.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
# What an endpoint may name its errors, to be repeated here: a word, never a sentence.
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Codes of errors by which somebody's decision is carried on; they are no failures.
_DECIDED = frozenset(("turn_over", "denied"))

_tracer: trace.Tracer | None = None
# What every span of a turn says.
_of_turn: ContextVar[Mapping[str, Value] | None] = ContextVar("_of_turn", default=None)


def switch_on(tracer: trace.Tracer) -> None:
    """From now on spans are made by `tracer`."""
    global _tracer
    _tracer = tracer


def switch_off() -> None:
    """From now on there are none."""
    global _tracer
    _tracer = None


class Span:
    """A piece of work that is traced. Names of attributes and events are given without their `earlybyte.`."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def __repr__(self) -> str:
        return f"<Span {self.trace_id or 'off'}>"

    @property
    def trace_id(self) -> str:
        """The trace's id in hexadecimal; empty while tracing is off."""
        context = self._span.get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else ""

    def set(self, **attributes: Value) -> None:
        """Add attributes: ids, words of a small set, numbers."""
        self._span.set_attributes({f"earlybyte.{name}": value for name, value in attributes.items()})

    def event(self, name: str, **attributes: Value) -> None:
        """Add something that happened now."""
        self._span.add_event(f"earlybyte.{name}", {f"earlybyte.{key}": value for key, value in attributes.items()})

    def fail(self, kind: str) -> None:
        """Mark it as failed; `kind` is a code, a status or the name of an error's class, never its message."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))

    def answered(self, *, finish: str, model: str) -> None:
        """Add how a model ended its answer, and which model said that it was."""
        self._span.set_attribute("gen_ai.response.finish_reasons", (finish,))
        if model:
            self._span.set_attribute("gen_ai.response.model", model)

    def used(self, input_tokens: int | None, output_tokens: int | None) -> None:
        """Add tokens, where they are known."""
        for name, tokens in (("input", input_tokens), ("output", output_tokens)):
            if tokens is not None:
                self._span.set_attribute(f"gen_ai.usage.{name}_tokens", tokens)

    def first_chunk(self, seconds: float | None) -> None:
        """Add how long the first piece of an answer took to come, where one came."""
        if seconds is not None:
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", round(seconds, 6))


_OFF = Span(trace.INVALID_SPAN)


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """What a turn's span says from the start.

    `parent` is the `traceparent` of the request that started it; `waited` the seconds from its acceptance to its start.
    """

    turn_id: str
    conversation_id: str
    profile: str
    provider: str
    model: str
    parent: str | None
    waited: float
    recovered: bool


def incoming(traceparent: str | None) -> str | None:
    """The header as a turn keeps it; None where it is of no use."""
    if _tracer is None or traceparent is None or _TRACEPARENT.fullmatch(traceparent) is None:
        return None
    return traceparent


def current() -> Span:
    """The innermost span that is open here."""
    return _OFF if _tracer is None else Span(trace.get_current_span())


@contextmanager
def turn(invocation: Invocation) -> Iterator[Span]:
    """The span of a whole turn, from its acceptance; all other spans belong into it."""
    if _tracer is None:
        yield _OFF
        return
    now = time.time_ns()
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": invocation.profile,
        "gen_ai.provider.name": invocation.provider,
    }
    if invocation.model:
        attributes["gen_ai.request.model"] = invocation.model
    parent = otel.Context()
    if invocation.parent is not None:
        parent = TraceContextTextMapPropagator().extract({"traceparent": invocation.parent}, parent)
    common = {"earlybyte.turn.id": invocation.turn_id, "gen_ai.conversation.id": invocation.conversation_id}
    token = _of_turn.set(common)
    try:
        name = f"invoke_agent {invocation.profile}"
        start = now - int(invocation.waited * 1e9)
        with _span(name, attributes, context=parent, start=start) as span:
            span.set(recovered=invocation.recovered)
            span.event("started", waited_seconds=round(invocation.waited, 3))
            yield span
    finally:
        _of_turn.reset(token)


@contextmanager
def step(number: int) -> Iterator[Span]:
    """The span of a step: a model call with its retries, and the tools that it asks for."""
    with _span("step", {"earlybyte.step": number}) as span:
        yield span


@contextmanager
def chat(
    *, model: str, provider: str, server: tuple[str, int] | None, attempt: int, max_output_tokens: int
) -> Iterator[Span]:
    """The span of one try of a model call; `server` is None where the model is in this process."""
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.max_tokens": max_output_tokens,
        "gen_ai.request.stream": True,
        "earlybyte.attempt": attempt,
    }
    if model:
        attributes["gen_ai.request.model"] = model
    if server is not None:
        attributes["server.address"], attributes["server.port"] = server
    kind = SpanKind.INTERNAL if server is None else SpanKind.CLIENT
    with _span(f"chat {model}" if model else "chat", attributes, kind=kind) as span:
        yield span


@contextmanager
def tool(*, name: str, call_id: str, side_effects: str) -> Iterator[Span]:
    """The span of one tool that runs; hooks and approvals before it are not its time."""
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": call_id,
        "gen_ai.tool.type": "function",
        "earlybyte.side_effects": side_effects,
    }
    with _span(f"execute_tool {name}", attributes) as span:
        yield span


@contextmanager
def save() -> Iterator[Span]:
    """The span of saving a turn's message."""
    with _span("save", {}) as span:
        yield span


@contextmanager
def _span(
    name: str,
    attributes: Mapping[str, Value],
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    context: otel.Context | None = None,
    start: int | None = None,
) -> Iterator[Span]:
    """A span under the current one, or in `context`; what is raised in it makes it fail, by its kind only."""
    if _tracer is None:
        yield _OFF
        return
    inner = _tracer.start_span(
        name,
        context,
        kind,
        {**(_of_turn.get() or {}), **attributes},
        start_time=start,
        # An exception's message and stack may hold anything.
        record_exception=False,
        set_status_on_exception=False,
    )
    span = Span(inner)
    token = otel.attach(trace.set_span_in_context(inner))
    try:
        yield span
    except BaseException as error:
        if _is_failure(error):
            span.fail(error_kind(error))
        else:
            span.set(stopped=True)
        raise
    finally:
        otel.detach(token)
        inner.end()


def _is_failure(error: BaseException) -> bool:
    """Whether it went wrong, and was not only stopped: by a cancel, the turn's end or a hook."""
    if isinstance(error, EarlybyteError):
        return error.code not in _DECIDED
    return isinstance(error, Exception)


def error_kind(error: BaseException) -> str:
    """What an error is called in `error.type`: its code, else its class; of one that names its `cause`, that one's."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, EarlybyteError):
        error = cause
    if not isinstance(error, EarlybyteError):
        return type(error).__name__
    # A provider's error carries the endpoint's own code, which may be anything.
    said = error.code
    return said if _WORD.fullmatch(said) and mask(said) == said else type(error).code
