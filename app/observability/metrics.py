"""What the service counts, for Prometheus (A4: no user, key or text ever becomes a label)."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST
registry = CollectorRegistry()

turns_ended = Counter(
    "earlybyte_turns_ended", "Turns that were settled, by status and reason.", ("status", "reason"), registry=registry
)
turn_seconds = Histogram(
    "earlybyte_turn_seconds",
    "From the start of a turn to its terminal event.",
    buckets=(0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120),
    registry=registry,
)
tool_seconds = Histogram(
    "earlybyte_tool_seconds",
    "How long tool calls took, by status.",
    ("status",),
    buckets=(0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60),
    registry=registry,
)
_open_viewers = Gauge("earlybyte_open_viewers", "Open streams.", registry=registry)
_turns = Gauge("earlybyte_turns", "Turns of this process by state.", ("state",), registry=registry)
_threads = Gauge("earlybyte_abandoned_threads", "Threads that ignored their cancel.", registry=registry)
_unsaved = Gauge("earlybyte_unsaved_messages", "Answers that are out but not stored.", registry=registry)


def watch(
    *,
    viewers: Callable[[], float],
    running: Callable[[], float],
    waiting: Callable[[], float],
    abandoned: Callable[[], float],
    unsaved: Callable[[], float],
) -> None:
    """Read these whenever somebody asks for the metrics."""
    _open_viewers.set_function(viewers)
    _turns.labels("running").set_function(running)
    _turns.labels("queued").set_function(waiting)
    _threads.set_function(abandoned)
    _unsaved.set_function(unsaved)


def render() -> bytes:
    """All metrics in Prometheus's text form."""
    return generate_latest(registry)
