"""Spans of turns: what a collector gets of a real service, and that nothing suffers when it does not take it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.collector import CLIENT, ERROR, INTERNAL, UNSET, Collector, SentSpan, named, tree
from tests.service import TOOLS, UPSTREAM_KEY, Service, wait_until
from tests.upstream import Pause, Status, Upstream, say, use

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
COLLECTOR_KEY = "made-up-collector-key"
# Everything that may be in no span: what people, models and tools say, and keys.
WORDS = ("zebra-question", "zebra-system", "zebra-argument", "zebra-answer", "zebra-refusal")
RUNGS = {
    "tool": 3,
    "turn": 6,
    "request": 7,
    "drain": 8,
    "shutdown": 9,
    "reserve": 0.5,
    "model_first_token": 3,
    "model_between_tokens": 3,
}
BUSY = Status(503, (("Retry-After", "0"),), body='{"error":{"message":"zebra-refusal","code":"server_busy"}}')
REFUSED = Status(400, body='{"error":{"message":"zebra-refusal","type":"invalid_request_error","code":null}}')
# A tool that looks at the process that it runs in.
LOOKING_TOOL = """
import sys
from opentelemetry import trace
from app.tools import tool

@tool(side_effects="none")
def look_around() -> dict:
    context = trace.get_current_span().get_span_context()
    loaded = [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
    return {"loaded": len(loaded), "trace": trace.format_trace_id(context.trace_id), "span": f"{context.span_id:016x}"}
"""


class Plan:
    """Fails each first call of a turn that asks for it, calls the tool that the user names, then answers."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def __call__(self, request: Any) -> Any:
        messages = request.body["messages"]
        text = str([m["content"] for m in messages if m["role"] == "user"][-1])
        if "refuse" in text:
            return [REFUSED]
        if messages[-1]["role"] == "tool":
            return say("zebra-answer")
        if "retry" in text and text not in self.failed:
            self.failed.add(text)
            return [BUSY]
        if "approval" in text:
            return use(("call_a", "guarded", {"value": "zebra-argument"}))
        if "tool" in text:
            return use(("call_1", "look_up", {"q": "zebra-argument"}), ("call_2", "fail", {}))
        if "look around" in text:
            return use(("call_l", "look_around", {}))
        if "slowly" in text:
            return [Pause(1.5), *say("zebra-answer")]
        return say("zebra-answer")


def traced_service(upstream: Upstream, endpoint: str, **more: Any) -> Service:
    config = {"telemetry": {"endpoint": endpoint, "headers_env": "TEST_COLLECTOR_HEADERS"}}
    env = {"TEST_COLLECTOR_HEADERS": f"x-collector-key={COLLECTOR_KEY}"}
    profile = {"system": "zebra-system", "tools": [TOOLS, "looking_tool"]}
    service = Service(upstream, config=config, env=env, profile=profile, rungs=RUNGS, start=False, **more)
    (service.folder / "looking_tool.py").write_text(LOOKING_TOOL, encoding="utf-8")
    return service.start()


@dataclass
class Scene:
    service: Service
    upstream: Upstream
    collector: Collector

    def run(self, text: str, **more: Any) -> list[SentSpan]:
        """The trace of a turn."""
        turn = self.service.start_turn(f"zebra-question {text}", **more)
        self.service.settled(turn)
        return self.collector.trace_of(turn)

    def log_of(self, turn: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.service.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("turn_id") == turn]


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Collector() as collector, Upstream(Plan()) as upstream, traced_service(upstream, collector.url) as service:
        yield Scene(service, upstream, collector)


@pytest.fixture(scope="module")
def rich(scene: Scene) -> list[SentSpan]:
    """The trace of a turn of two steps with a failed try, a tool that works and one that does not."""
    return scene.run("retry, then tool", headers={"traceparent": TRACEPARENT})


def test_a_turn_is_a_tree_of_steps_tries_and_tools(rich: list[SentSpan]) -> None:
    """Each try of a model call is a span of its own; tools belong to the step that asked for them."""
    root, *rest = tree(rich)
    assert root == "invoke_agent default"
    first, second, saved = rest
    assert first[:3] == ["step", ["chat scripted"], ["chat scripted"]]
    assert sorted(first[3:]) == [["execute_tool fail"], ["execute_tool look_up"]]
    assert (second, saved) == (["step", ["chat scripted"]], ["save"])
    assert all(span.start <= span.end for span in rich)


def test_the_trace_is_the_callers(rich: list[SentSpan]) -> None:
    """W3C Trace Context: the `traceparent` of the POST names trace and parent."""
    assert {span.trace for span in rich} == {TRACE}
    assert rich[0].parent == CALLER


def test_spans_say_what_the_conventions_want(rich: list[SentSpan], scene: Scene) -> None:
    """OpenTelemetry's conventions for generative AI: names, kinds and attributes."""
    root = rich[0]
    assert root.kind == INTERNAL
    assert root.attributes.items() >= {
        "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "default", "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "scripted", "gen_ai.usage.input_tokens": 14, "gen_ai.usage.output_tokens": 6,
        "earlybyte.status": "complete", "earlybyte.reason": "stop", "earlybyte.recovered": False,
    }.items()  # fmt: skip
    failed, asked, told = named(rich, "chat scripted")
    for chat in (failed, asked, told):
        assert chat.kind == CLIENT
        assert chat.attributes.items() >= {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "scripted",
            "gen_ai.request.stream": True, "gen_ai.request.max_tokens": 4096,
            "server.address": "127.0.0.1", "server.port": scene.upstream.port,
        }.items()  # fmt: skip
    assert [chat["earlybyte.attempt"] for chat in (failed, asked, told)] == [1, 2, 1]
    assert (failed.status, failed["error.type"]) == (ERROR, "server_busy")
    assert "gen_ai.usage.input_tokens" not in failed.attributes
    assert (asked.status, asked["gen_ai.response.finish_reasons"]) == (UNSET, ["tool_calls"])
    assert told.attributes.items() >= {
        "gen_ai.response.finish_reasons": ["stop"], "gen_ai.response.model": "scripted",
        "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3,
    }.items()  # fmt: skip
    assert told["gen_ai.response.time_to_first_chunk"] > 0
    (tool,) = named(rich, "execute_tool look_up")
    assert tool.attributes.items() >= {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look_up", "gen_ai.tool.call.id": "call_1",
        "gen_ai.tool.type": "function", "earlybyte.status": "ok",
    }.items()  # fmt: skip
    (failing,) = named(rich, "execute_tool fail")
    assert (failing.status, failing["error.type"]) == (ERROR, "tool_error")
    assert [step["earlybyte.step"] for step in named(rich, "step")] == [1, 2]


def test_a_span_that_was_made_good_does_not_make_its_turn_fail(rich: list[SentSpan]) -> None:
    """A failed try and a failed tool are errors of their own spans only."""
    bad = {span.name for span in rich if span.status == ERROR}
    assert bad == {"chat scripted", "execute_tool fail"}


def test_every_span_names_turn_and_conversation(rich: list[SentSpan], scene: Scene) -> None:
    """They are how a trace is found from a log line or a complaint."""
    turn = scene.service.turn(rich[0]["earlybyte.turn.id"])
    assert {span["gen_ai.conversation.id"] for span in rich} == {turn["conversation_id"]}
    assert {span.scope for span in rich} == {"earlybyte"}
    assert {span.resource["service.name"] for span in rich} == {"earlybyte"}


def test_log_lines_of_a_turn_have_its_trace_id(rich: list[SentSpan], scene: Scene) -> None:
    """From a line to its trace, and back."""
    lines = scene.log_of(rich[0]["earlybyte.turn.id"])
    assert {"turn started", "turn ended", "model call failed, trying again"} <= {line["event"] for line in lines}
    assert {line["trace_id"] for line in lines if line["logger"].startswith(("app.turns", "app.agents"))} == {TRACE}


def test_without_a_caller_a_turn_begins_a_trace(scene: Scene) -> None:
    """Two turns are two traces; a header that is none does no harm."""
    one, other = scene.run("a"), scene.run("b", headers={"traceparent": "00-zz-not-one"})
    assert one[0].trace != other[0].trace
    assert [spans[0].parent for spans in (one, other)] == ["", ""]


def test_a_caller_that_does_not_sample_is_not_traced(scene: Scene) -> None:
    """The flag of a `traceparent` is the caller's decision."""
    turn = scene.service.start_turn("zebra-question", headers={"traceparent": TRACEPARENT[:-1] + "0"})
    scene.service.settled(turn)
    scene.run("another")
    assert all(span.attributes.get("earlybyte.turn.id") != turn for span in scene.collector.spans())


def test_a_turn_that_ends_in_an_apology_is_an_error(scene: Scene) -> None:
    """Section 5: its `error.type` is the code of its terminal event; that of the call says what the endpoint said."""
    trace = scene.run("refuse")
    root, step, chat = trace[0], *named(trace, "step"), *named(trace, "chat scripted")
    assert (root.status, root["error.type"], root["earlybyte.status"]) == (ERROR, "upstream_rejected", "apology")
    assert (step.status, chat.status) == (ERROR, ERROR)
    assert step["error.type"] == chat["error.type"] == "invalid_request_error"
    assert not any(span.events for span in (step, chat))
    assert {span.status_message for span in trace} == {""}


def test_what_a_tool_traces_by_itself_comes_under_its_span(scene: Scene) -> None:
    """The current span goes with the context into the tool's thread."""
    trace = scene.run("look around")
    (tool,) = named(trace, "execute_tool look_around")
    seen = json.loads(scene.upstream.requests[-1].body["messages"][-1]["content"])
    assert (seen["trace"], seen["span"]) == (tool.trace, tool.id)


def test_waiting_for_a_person_is_on_the_step_and_not_in_the_tools_time(scene: Scene) -> None:
    """The events around the wait; the tool's span begins after it."""
    service = scene.service
    turn = service.start_turn("zebra-question approval")
    stream = service.attach(turn)
    stream.wait_for("approval_required")
    approval = str(stream.of("approval_required")[0]["approval_id"])
    assert service.call("POST", f"/v1/turns/{turn}/approvals/{approval}", {"decision": "approve"}).status == 200
    service.settled(turn)
    trace = scene.collector.trace_of(turn)
    step, (tool,) = named(trace, "step")[0], named(trace, "execute_tool guarded")
    assert step.event("earlybyte.approval_required")["earlybyte.approval_id"] == approval
    assert step.event("earlybyte.approval_resolved")["earlybyte.decision"] == "approve"
    assert tool.parent == step.id


def test_waiting_in_the_queue_is_in_the_turns_span(scene: Scene) -> None:
    """The span begins with the acceptance, and its event tells when the turn started."""
    conversation = scene.service.conversation()
    scene.service.start_turn("zebra-question slowly", conversation)
    trace = scene.run("after it", conversation=conversation, on_busy="enqueue")
    waited = trace[0].event("earlybyte.started")["earlybyte.waited_seconds"]
    assert waited > 0
    assert named(trace, "step")[0].start - trace[0].start >= waited * 1e9


def test_headers_reach_the_collector_and_nothing_else_does(scene: Scene) -> None:
    """A4: no prompt, argument, result, sentence of an error or key is in any span or log line."""
    scene.run("retry, then tool, all again")
    paths = {path for path, _, _ in scene.collector.requests}
    assert paths == {"/v1/traces"}
    assert all(headers["x-collector-key"] == COLLECTOR_KEY for _, headers, _ in scene.collector.requests)
    for secret in (*WORDS, UPSTREAM_KEY, COLLECTOR_KEY):
        assert secret.encode() not in scene.collector.raw
    for secret in (UPSTREAM_KEY, COLLECTOR_KEY):
        assert secret not in scene.service.log()


def test_the_last_spans_leave_with_the_process() -> None:
    """A drain sends what is there, also what was traced a moment ago."""
    with Collector() as collector, Upstream(Plan()) as upstream, traced_service(upstream, collector.url) as service:
        turn = service.start_turn("zebra-question")
        service.settled(turn)
        service.sigterm()
        assert service.wait_exit(RUNGS["shutdown"]) == 0
        assert tree(collector.trace_of(turn)) == ["invoke_agent default", ["step", ["chat scripted"]], ["save"]]


def test_a_turn_that_changes_hands_begins_a_trace_of_its_own() -> None:
    """The next process knows no trace of the one before; both parts name the turn."""
    with Collector() as collector, Upstream(Plan()) as upstream, traced_service(upstream, collector.url) as service:
        stream = service.stream("zebra-question approval", headers={"traceparent": TRACEPARENT})
        stream.wait_for("approval_required")
        turn, approval = stream.events[0]["turn_id"], stream.of("approval_required")[0]["approval_id"]
        service.sigterm()
        service.wait_exit(RUNGS["shutdown"])
        assert collector.trace_of(turn)[0]["earlybyte.status"] == "handed_on"
        service.start()
        assert service.call("POST", f"/v1/turns/{turn}/approvals/{approval}", {"decision": "approve"}).status == 200
        service.settled(turn)
        spans = wait_until(lambda: (found := named(collector.spans(), "invoke_agent default"))[1:] and found)
        assert [span["earlybyte.recovered"] for span in spans] == [False, True]
        assert (spans[0].trace, spans[1].parent) == (TRACE, "")


@pytest.mark.parametrize("how", ["dead", "hanging", "refusing"])
def test_a_collector_that_does_not_take_spans_harms_nobody(how: str) -> None:
    """Turns go on, the process leaves in time, and one line says that spans are lost."""
    with socket.create_server(("127.0.0.1", 0)) as silent, Collector(status=401) as refusing:
        # One that listens and never answers, one that says no, and one that is not there.
        port = refusing.port if how == "refusing" else silent.getsockname()[1]
        if how == "dead":
            silent.close()
        with Upstream(Plan()) as upstream, traced_service(upstream, f"http://127.0.0.1:{port}") as service:
            turns = [service.start_turn(f"zebra-question tool {number}") for number in range(5)]
            assert {service.settled(turn)["terminal"]["status"] for turn in turns} == {"complete"}
            wait_until(lambda: "spans not sent" in service.log(), 30, "the line about lost spans")
            last = service.start_turn("zebra-question")
            service.settled(last)
            asked = service.sigterm()
            assert service.wait_exit(RUNGS["shutdown"]) == 0
            assert time.monotonic() - asked < RUNGS["drain"]
            said = [json.loads(line) for line in service.log().splitlines() if "spans not sent" in line]
            assert said[0]["collector"] == f"127.0.0.1:{port}"
            assert said[0].get("status") == (401 if how == "refusing" else None)
            assert COLLECTOR_KEY not in service.log()


def test_without_an_endpoint_nothing_is_loaded_or_sent() -> None:
    """Off is off: the SDK is not imported, a tool sees no span, and log lines have no trace."""
    with Upstream(Plan()) as upstream, traced_service(upstream, "") as service:
        turn = service.start_turn("look around", headers={"traceparent": TRACEPARENT})
        service.settled(turn)
        seen = json.loads(upstream.requests[-1].body["messages"][-1]["content"])
        assert seen == {"loaded": 0, "trace": "0" * 32, "span": "0" * 16}
        assert "trace_id" not in service.log()


def test_the_standard_variables_are_honoured_for_turns_only() -> None:
    """Platforms set them. The web framework would trace requests by them, with tickets in their URLs: it must not."""
    with Collector() as collector, Upstream(Plan()) as upstream:
        standard = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "not a header",
            "OTEL_SERVICE_NAME": "by-platform",
            "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
        }
        with Service(upstream, env=standard) as service:
            turn = service.start_turn("hello")
            service.settled(turn)
            service.attach(turn, query="?ticket=zebra-ticket").read_to_end(5)
            spans = collector.trace_of(turn)
            service.sigterm()
            service.wait_exit()
            assert {span.resource["service.name"] for span in spans} == {"by-platform"}
            assert {span.scope for span in collector.spans()} == {"earlybyte"}
            assert {path for path, _, _ in collector.requests} == {"/v1/traces"}
            assert "not a header" not in service.log()
