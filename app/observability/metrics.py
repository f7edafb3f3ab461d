"""What the service counts, for Prometheus (A4: no user, key or text ever becomes a label).

Nothing is counted per token: what happens for every token costs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST
registry = CollectorRegistry()

_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_TURN = (0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)

# -- turns
turns_ended = Counter(
    "earlybyte_turns_ended", "Turns that were settled, by status and reason.", ("status", "reason"), registry=registry
)
turn_seconds = Histogram(
    "earlybyte_turn_seconds", "From the start of a turn to its terminal event.", buckets=_TURN, registry=registry
)
first_text_seconds = Histogram(
    "earlybyte_first_text_seconds", "From the start of a turn to its first text.", buckets=_TURN, registry=registry
)
longest_gap_seconds = Histogram(
    "earlybyte_longest_gap_seconds", "The longest silence between two events of a turn.", buckets=_TURN, registry=registry
)
queued_seconds = Histogram(
    "earlybyte_queued_seconds",
    "From a turn's acceptance to its start.",
    buckets=(*_QUICK, 5, 15, 60),
    registry=registry,
)
tool_seconds = Histogram(
    "earlybyte_tool_seconds",
    "How long tool calls took, by status.",
    ("status",),
    buckets=(0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60),
    registry=registry,
)
salvaged = Counter(
    "earlybyte_salvaged", "Turns that ended early with what they had, by reason.", ("reason",), registry=registry
)
attempts_restarted = Counter(
    "earlybyte_attempts_restarted", "Model calls that were made again, by reason.", ("reason",), registry=registry
)
turns_recovered = Counter("earlybyte_turns_recovered", "Turns taken over from another process.", registry=registry)
saves_failed = Counter("earlybyte_saves_failed", "Messages that could not be saved at once.", registry=registry)

# -- streams
first_byte_seconds = Histogram(
    "earlybyte_first_byte_seconds", "From a request to the early bytes of its stream.", buckets=_QUICK, registry=registry
)
first_event_seconds = Histogram(
    "earlybyte_first_event_seconds", "From the opening of a stream to its first event.", buckets=_QUICK, registry=registry
)
attaches = Counter(
    "earlybyte_attaches",
    "Viewers by how they came: start, resume, snapshot, after the end.",
    ("kind",),
    registry=registry,
)
stream_ends = Counter("earlybyte_stream_ends", "Streams that ended, by reason.", ("reason",), registry=registry)
viewers_dropped = Counter("earlybyte_viewers_dropped", "Viewers that took nothing, by rung.", ("rung",), registry=registry)
keep_alives = Counter("earlybyte_keep_alives", "Keep-alive comments sent.", registry=registry)
refusals = Counter("earlybyte_refusals", "Requests that were refused, by code.", ("code",), registry=registry)

# -- the process
loop_lag_seconds = Histogram(
    "earlybyte_loop_lag_seconds",
    "How much later than asked the event loop came round.",
    buckets=_QUICK,
    registry=registry,
)
store_write_seconds = Histogram(
    "earlybyte_store_write_seconds", "From asking for a write to its commit.", buckets=_QUICK, registry=registry
)
_open_viewers = Gauge("earlybyte_open_viewers", "Open streams.", registry=registry)
_behind = Gauge("earlybyte_most_behind_events", "How many events the slowest viewer is behind.", registry=registry)
_turns = Gauge("earlybyte_turns", "Turns of this process by state.", ("state",), registry=registry)
_busy = Gauge("earlybyte_busy_threads", "Threads at work for models, agents and tools.", registry=registry)
_abandoned = Gauge("earlybyte_abandoned_threads", "Threads that ignored their cancel.", registry=registry)
_unsaved = Gauge("earlybyte_unsaved_messages", "Answers that are out but not stored.", registry=registry)
_log_bytes = Gauge("earlybyte_log_bytes", "Bytes of event logs in memory.", registry=registry)


def watch(
    *,
    viewers: Callable[[], float],
    behind: Callable[[], float],
    turns: dict[str, Callable[[], float]],
    busy: Callable[[], float],
    abandoned: Callable[[], float],
    unsaved: Callable[[], float],
    log_bytes: Callable[[], float],
) -> None:
    """Read these whenever somebody asks for the metrics; `turns` are counts by state."""
    _open_viewers.set_function(viewers)
    _behind.set_function(behind)
    for state, count in turns.items():
        _turns.labels(state).set_function(count)
    _busy.set_function(busy)
    _abandoned.set_function(abandoned)
    _unsaved.set_function(unsaved)
    _log_bytes.set_function(log_bytes)


def render() -> bytes:
    """All metrics in Prometheus's text form."""
    return generate_latest(registry)
