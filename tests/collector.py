"""A real OpenTelemetry collector's front door: OTLP over HTTP on loopback, which keeps what it was sent."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.service import wait_until

INTERNAL, CLIENT = 1, 3
UNSET, ERROR = 0, 2


@dataclass(frozen=True)
class SentSpan:
    """One span as it arrived; ids are hexadecimal, `parent` is empty for a root."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    status: int
    status_message: str
    scope: str
    resource: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.attributes[key]

    def event(self, name: str) -> dict[str, Any]:
        """The attributes of its one event of this name."""
        (found,) = [attributes for event, attributes in self.events if event == name]
        return found


class Collector:
    """Serves until closed. `status` is the answer to every request."""

    def __init__(self, *, status: int = 200) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                names = {name.lower(): value for name, value in self.headers.items()}
                collector.requests.append((self.path, names, body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def raw(self) -> bytes:
        """All bodies."""
        return b"".join(body for _, _, body in list(self.requests))

    def spans(self) -> list[SentSpan]:
        """All spans so far, in order of their start."""
        found = [span for path, _, body in list(self.requests) if path.endswith("/v1/traces") for span in _spans(body)]
        return sorted(found, key=lambda span: span.start)

    def trace_of(self, turn_id: str) -> list[SentSpan]:
        """All spans of a turn, once its root, which ends last, is there."""

        def look() -> list[SentSpan]:
            mine = [span for span in self.spans() if span.attributes.get("earlybyte.turn.id") == turn_id]
            return mine if any(span.name.startswith("invoke_agent") for span in mine) else []

        return wait_until(look, what=f"the trace of {turn_id}")


def tree(spans: list[SentSpan]) -> list[Any]:
    """The spans as nested lists: `[name, child, child, …]`, children in order of their start."""
    ids = {span.id for span in spans}

    def branch(span: SentSpan) -> list[Any]:
        return [span.name, *(branch(child) for child in spans if child.parent == span.id)]

    (root,) = [span for span in spans if span.parent not in ids]
    return branch(root)


def named(spans: list[SentSpan], name: str) -> list[SentSpan]:
    """Those of this name."""
    return [span for span in spans if span.name == name]


def _spans(body: bytes) -> list[SentSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        SentSpan(
            name=span.name,
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            kind=span.kind,
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            attributes=_attributes(span.attributes),
            events=[(event.name, _attributes(event.attributes)) for event in span.events],
            status=span.status.code,
            status_message=span.status.message,
            scope=scope.scope.name,
            resource=_attributes(resource.resource.attributes),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
