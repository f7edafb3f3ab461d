"""Sending spans to a collector: the SDK, set up so that it can never slow or break a turn.

A turn only puts finished spans into a bounded queue; a thread of the SDK sends them, and what does not fit or is not taken
in time is lost. Imported only when tracing is on. The SDK's provider stays private: libraries that would trace by
themselves, with URLs in their attributes, find none.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from urllib.parse import urlsplit

import anyio
import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from app.clock import monotonic
from app.config import Collector
from app.observability import tracing

log = structlog.get_logger(__name__)

# Some seconds of a full process: 200 turns, a dozen spans each.
_QUEUE = 4096
_BATCH = 512
_EVERY_MS = 1000
# One batch, its retries included.
_SEND_SECONDS = 5.0
# How long the end of the process waits for the last spans.
_FLUSH_SECONDS = 2.0
_SAY_AGAIN_SECONDS = 60.0
# Ids and names are short; what an endpoint or a caller makes longer is cut.
_VALUE_CHARS = 256
# It repeats headers that it cannot read.
_HEADER_LOGGER = "opentelemetry.util.re"
_EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


class Sender:
    """Tracing, from its start to its end; one for a process. `instance` tells processes apart."""

    def __init__(self, collector: Collector, *, sample_ratio: float, instance: str) -> None:
        logging.getLogger(_HEADER_LOGGER).setLevel(logging.CRITICAL + 1)
        where = urlsplit(collector.url)
        self._where = f"{where.hostname}:{where.port}" if where.port else str(where.hostname)
        self._exporter = _Watched(
            OTLPSpanExporter(endpoint=collector.url, headers=collector.headers, timeout=_SEND_SECONDS), self._where
        )
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=Resource.create({"service.name": collector.service_name, "service.instance.id": instance}),
            span_limits=SpanLimits(max_attribute_length=_VALUE_CHARS),
            # At the exit of the interpreter it would wait for a collector that hangs.
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=_QUEUE,
                schedule_delay_millis=_EVERY_MS,
                max_export_batch_size=_BATCH,
            )
        )
        tracing.switch_on(self._provider.get_tracer("earlybyte"))
        log.info("tracing", collector=self._where, sample_ratio=sample_ratio)

    def __repr__(self) -> str:
        return f"<Sender to {self._where}>"

    async def close(self) -> None:
        """No more spans; the last ones are sent, if that takes no longer than two seconds."""
        tracing.switch_off()
        # A daemon: if the collector hangs, neither this nor the interpreter's exit waits for it.
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        with anyio.move_on_after(_FLUSH_SECONDS):
            while last.is_alive():  # noqa: ASYNC110 - a thread's end has no event
                await anyio.sleep(0.02)
        if last.is_alive():
            self._exporter.say_no_more()
            log.warning("last spans not sent: timeout", collector=self._where, timeout=_FLUSH_SECONDS)


class _Watched(SpanExporter):
    """An exporter whose failures are a line of our own, at most one a minute; its own are many, and hold whole URLs."""

    def __init__(self, exporter: SpanExporter, where: str) -> None:
        self._exporter = exporter
        self._where = where
        self._lost = 0
        self._quiet_until = 0.0
        self._status: int | None = None
        logging.getLogger(_EXPORTER_LOGGER).addFilter(self._hush)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._status = None
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
            self._say()
        return result

    def _say(self) -> None:
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + _SAY_AGAIN_SECONDS
            log.warning("spans not sent", collector=self._where, lost=self._lost, status=self._status)
            self._lost = 0

    def say_no_more(self) -> None:
        """The process ends, and has said so: what its thread still finds out is of no use."""
        self._quiet_until = math.inf

    def _hush(self, record: logging.LogRecord) -> bool:
        """Let no line of the exporter pass; only the collector's status is kept, where it says one."""
        said = record.args if isinstance(record.args, tuple) else ()
        self._status = next((part for part in said if isinstance(part, int) and 100 <= part < 600), self._status)
        return False

    def shutdown(self) -> None:
        self._exporter.shutdown()
        logging.getLogger(_EXPORTER_LOGGER).removeFilter(self._hush)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
