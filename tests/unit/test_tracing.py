"""Spans by themselves: what is under what, what counts as a failure, and that sending never holds anything up."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from app.agents.context import AgentContext, Denied, TurnOver
from app.agents.tool_loop import ModelFailed
from app.config import Collector as Where
from app.errors import StoreUnavailable
from app.events.types import Completion, Error
from app.limits.cancel import Cancel
from app.observability import tracing
from app.observability.otlp import Sender
from app.providers.chunks import Text
from app.providers.errors import ProviderError, UpstreamRejected
from app.store.engine import Store
from app.tools import tool
from app.turns import outcome
from tests.collector import Collector
from tests.performers import STOP, ScriptedProvider, wants
from tests.workshop import Workshop, store_in

pytestmark = pytest.mark.anyio

INVOCATION = tracing.Invocation(
    turn_id="turn_1",
    conversation_id="conv_1",
    profile="default",
    provider="openai",
    model="scripted",
    parent=None,
    waited=0.0,
    recovered=False,
)
Spans = InMemorySpanExporter


@pytest.fixture
def spans() -> Iterator[Spans]:
    """Tracing into memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.switch_on(provider.get_tracer("test"))
    yield exporter
    tracing.switch_off()
    provider.shutdown()


@pytest.fixture
async def store(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Store]:
    async with store_in(tmp_path) as opened:
        yield opened


def lineage(spans: Spans) -> set[tuple[str, str]]:
    """(name, name of its parent) of all spans."""
    finished = spans.get_finished_spans()
    names = {span.context.span_id: span.name for span in finished if span.context}
    return {(span.name, names[span.parent.span_id] if span.parent else "") for span in finished}


def named(spans: Spans, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def one(spans: Spans, name: str) -> ReadableSpan:
    (found,) = named(spans, name)
    return found


# -- off


def test_while_tracing_is_off_everything_does_nothing() -> None:
    """The callers need not ask whether it is on."""
    with tracing.turn(INVOCATION) as turn, tracing.step(1), tracing.save() as span:
        span.set(status="ok")
        span.event("started")
        span.fail("internal")
        assert (turn.trace_id, repr(turn)) == ("", "<Span off>")
        assert tracing.current() is turn
    assert tracing.incoming("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01") is None


# -- what is under what


async def test_tools_that_run_together_are_all_under_their_step(spans: Spans, store: Store) -> None:
    """The context goes into tasks and threads; neighbours do not become each other's parents."""

    @tool(side_effects="none")
    def look(q: int = 0) -> int:
        return q

    @tool(side_effects="unsafe")
    async def pay(q: int = 0) -> int:
        return q

    provider = ScriptedProvider(
        [wants(("c1", "look", {}), ("c2", "look", {}), ("c3", "pay", {}))],
        [Text("Done."), STOP],
    )
    async with Workshop(store, provider, tools=[look, pay]).work() as workshop:
        await workshop.answer()
    assert lineage(spans) == {
        ("invoke_agent default", ""),
        ("step", "invoke_agent default"),
        ("chat scripted", "step"),
        ("execute_tool look", "step"),
        ("execute_tool pay", "step"),
        ("save", "invoke_agent default"),
    }
    assert len(named(spans, "execute_tool look")) == 2


async def test_an_own_agents_tools_are_under_its_turn(spans: Spans, store: Store) -> None:
    """It has no steps and no model calls that we know of."""

    @tool(side_effects="none")
    def look() -> int:
        return 1

    def agent(ctx: AgentContext) -> Iterator[str]:
        yield f"There is {ctx.call_tool('look', {})}."

    async with Workshop(store, agent=agent, tools=[look]).work() as workshop:
        await workshop.answer()
    assert lineage(spans) == {
        ("invoke_agent default", ""),
        ("execute_tool look", "invoke_agent default"),
        ("save", "invoke_agent default"),
    }


async def test_turns_that_wait_for_each_other_are_not_in_each_other(spans: Spans, store: Store) -> None:
    """A turn is started from the end of another one, and by requests; what is current there is not its parent."""
    provider = ScriptedProvider([Text("One."), STOP], [Text("Two."), STOP])
    async with Workshop(store, provider).work() as workshop:
        with tracing.turn(INVOCATION):
            first = await workshop.ask()
            second = await workshop.ask(on_busy="enqueue")
        await workshop.settled(first.turn_id)
        await workshop.settled(second.turn_id)
    roots = named(spans, "invoke_agent default")
    assert len({span.context.trace_id for span in roots if span.context}) == 3
    assert all(span.parent is None for span in roots)
    ids = [span.attributes["earlybyte.turn.id"] for span in roots if span.attributes]
    assert sorted(map(str, ids)) == sorted(["turn_1", first.turn_id, second.turn_id])


async def test_a_cancelled_turn_has_stopped_and_not_failed(spans: Spans, store: Store) -> None:
    """A person's decision is no error; what was under way says that it was stopped."""
    asked = anyio.Event()

    def hang(cancel: Cancel) -> None:
        anyio.from_thread.run_sync(asked.set)
        cancel.wait(10)

    async with Workshop(store, ScriptedProvider([hang])).work() as workshop:
        turn = (await workshop.ask()).turn_id
        await asked.wait()
        workshop.supervisor.cancel(workshop.live(turn))
        await workshop.settled(turn)
    assert {span.status.status_code for span in spans.get_finished_spans()} == {StatusCode.UNSET}
    root, chat = one(spans, "invoke_agent default"), one(spans, "chat scripted")
    assert root.attributes and root.attributes["earlybyte.status"] == "cancelled"
    assert chat.attributes and chat.attributes["earlybyte.stopped"] is True


async def test_a_tool_that_is_not_run_is_an_event_of_its_step(spans: Spans, store: Store) -> None:
    """There is no time to show; but it is seen that it was asked for."""

    @tool(side_effects="unsafe", approval=True)
    def pay(q: int) -> int:
        return q

    provider = ScriptedProvider([wants(("c1", "pay", {"q": "no number"}))], [Text("Oh."), STOP])
    async with Workshop(store, provider, tools=[pay]).work() as workshop:
        await workshop.answer()
    step = named(spans, "step")[0]
    (event,) = step.events
    assert (event.name, dict(event.attributes or {})) == (
        "earlybyte.tool_not_run",
        {"earlybyte.tool": "pay", "earlybyte.tool_call_id": "c1", "earlybyte.status": "error"},
    )
    assert not named(spans, "execute_tool pay")


# -- what is a failure, and what it is called


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreUnavailable("words"), "store_unavailable"),
        (ValueError("words"), "ValueError"),
        (ModelFailed(UpstreamRejected("words", code="model_not_found"), shown=False), "model_not_found"),
        (ProviderError(code="429"), "429"),
        (ProviderError(code="a sentence with words"), "provider_error"),
        (ProviderError(code="sk-abcdefghijklmnop"), "provider_error"),
        (ProviderError(code="x" * 65), "provider_error"),
    ],
)
def test_an_error_is_called_by_its_kind_and_never_by_its_words(spans: Spans, error: Exception, kind: str) -> None:
    """`error.type` is of a small set; an endpoint's code is believed only where it looks like one."""
    with pytest.raises(type(error)), tracing.step(1):
        raise error
    span = one(spans, "step")
    assert span.attributes == {"earlybyte.step": 1, "error.type": kind}
    assert (span.status.status_code, span.status.description, span.events) == (StatusCode.ERROR, None, ())


@pytest.mark.parametrize("error", [TurnOver(), Denied("words"), KeyboardInterrupt()])
def test_what_was_stopped_has_not_failed(spans: Spans, error: BaseException) -> None:
    """The end of a turn, a hook's word and a cancel are decisions."""
    with pytest.raises(type(error)), tracing.step(1):
        raise error
    span = one(spans, "step")
    assert span.attributes == {"earlybyte.step": 1, "earlybyte.stopped": True}
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("reason", "failed"),
    [("stop", None), ("cancelled", None), ("length", None), ("tool_limit", None), ("refused", None)]
    + [(reason, reason) for reason in ("deadline", "upstream_error", "shutdown", "recovered")],
)
def test_a_turn_failed_where_somebody_should_look_into_it(reason: Any, failed: str | None) -> None:
    """An apology always; a partial answer where not the model, the user or a limit cut it short."""
    assert outcome.failure(Completion(status="partial", finish_reason=reason, chars=1)) == failed
    assert outcome.failure(Error(code="turn_timeout", message="Sorry.", retryable=True)) == "turn_timeout"


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-" + "x" * 9999, False),
        ("", False),
        (None, False),
    ],
)
def test_only_a_traceparent_of_the_right_form_is_kept(spans: Spans, header: str | None, kept: bool) -> None:
    """W3C Trace Context: 55 characters in lower case; a header of a waiting turn is kept in memory."""
    assert tracing.incoming(header) == (header if kept else None)


# -- sending


async def test_spans_that_nobody_takes_hold_up_nobody() -> None:
    """More spans than fit into the queue are made at once, and the end waits no longer than two seconds for them."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = Where(url=f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", headers={}, service_name="s")
        sender = Sender(where, sample_ratio=1.0, instance="proc_1")
        began = time.monotonic()
        for number in range(6000):
            with tracing.step(number):
                pass
        made = time.monotonic()
        await sender.close()
        closed = time.monotonic()
    assert made - began < 5  # it takes 0.3 s; the collector would be given up after 5 s
    assert closed - made < 4
    with tracing.step(1) as span:
        assert span.trace_id == ""


async def test_what_an_endpoint_says_at_length_is_cut() -> None:
    """A model's name is the endpoint's to choose."""
    with Collector() as collector:
        where = Where(url=f"{collector.url}/v1/traces", headers={"x-key": "k"}, service_name="mine")
        sender = Sender(where, sample_ratio=1.0, instance="proc_1")
        with tracing.turn(INVOCATION), tracing.step(1) as span:
            span.answered(finish="stop", model="m" * 10_000)
        await sender.close()
        step = collector.spans()[1]
        assert step["gen_ai.response.model"] == "m" * 256
        assert step.resource.items() >= {"service.name": "mine", "service.instance.id": "proc_1"}.items()
        assert collector.requests[0][1]["x-key"] == "k"


async def test_a_ratio_of_nothing_traces_nothing() -> None:
    """`sample_ratio` is the share of turns that are sent; lines still get an id, which a caller's trace may share."""
    with Collector() as collector:
        where = Where(url=f"{collector.url}/v1/traces", headers={}, service_name="mine")
        sender = Sender(where, sample_ratio=0.0, instance="proc_1")
        with tracing.turn(INVOCATION) as turn, tracing.step(1):
            assert len(turn.trace_id) == 32
        await sender.close()
        assert collector.requests == []
