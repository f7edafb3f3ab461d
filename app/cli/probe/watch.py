"""One stream as it arrives: every read with its moment, and what can be told from that."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import anyio
import httpx

from app.cli.event_stream import EventStream
from app.clock import monotonic, now_ms


@dataclass
class Watch:
    """What came over one connection.

    Moments are seconds since the request was sent. `reads` are `(moment, bytes)` of each read of the body, `events` are
    `(moment, delay, event)` with the seconds between the event's own `ts` and its arrival. `end` is how the body ended:
    `whole`, `cut`, `left` (by us) or `silent` (no byte for as long as we waited).
    """

    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    http_version: str = ""
    headers_at: float = 0.0
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    events: list[tuple[float, float, dict[str, Any]]] = field(default_factory=list)
    last_id: str | None = None
    ids: list[str] = field(default_factory=list)
    end: str = "whole"
    ended_at: float = 0.0

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(piece for _, piece in self.reads)

    @property
    def first_byte(self) -> float | None:
        """The moment of the first byte of the body."""
        return self.reads[0][0] if self.reads else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between reads, the one before the first and the one after the last included."""
        moments = [0.0, *(moment for moment, _ in self.reads), self.ended_at]
        return [after - before for before, after in pairwise(moments)]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for _, _, event in self.events if event.get("type") == kind]

    def lumps(self, apart: float) -> int:
        """How many reads brought events that were made more than `apart` seconds from each other."""
        by_read: dict[float, list[int]] = {}
        for moment, _, event in self.events:
            if isinstance(event.get("ts"), int):
                by_read.setdefault(moment, []).append(event["ts"])
        return sum(max(made) - min(made) > apart * 1000 for made in by_read.values())


async def watch(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    body: object = None,
    headers: dict[str, str] | None = None,
    seconds: float,
    stop_after: int | None = None,
) -> Watch:
    """What came in at most `seconds`, or until the end, or until `stop_after` events had come."""
    seen = Watch()
    stream = EventStream()
    begun = monotonic()
    try:
        with anyio.fail_after(seconds):
            async with http.stream(method, url, json=body, headers=headers) as response:
                seen.status, seen.headers, seen.http_version = response.status_code, response.headers, response.http_version
                seen.headers_at = monotonic() - begun
                async for piece in response.aiter_raw():
                    moment = monotonic() - begun
                    seen.reads.append((moment, piece))
                    _take(seen, stream, moment, piece)
                    if stop_after is not None and len(seen.events) >= stop_after:
                        seen.end = "left"
                        break
    except TimeoutError:
        seen.end = "left"
    except httpx.ReadTimeout:
        seen.end = "silent"
    except httpx.HTTPError:
        seen.end = "cut"
    seen.ended_at = monotonic() - begun
    return seen


def _take(seen: Watch, stream: EventStream, moment: float, piece: bytes) -> None:
    for event in stream.feed(piece):
        made = event.get("ts")
        seen.events.append((moment, (now_ms() - made) / 1000 if isinstance(made, int) else 0.0, event))
        if stream.last_id is not None and stream.last_id != seen.last_id:
            seen.last_id = stream.last_id
            seen.ids.append(stream.last_id)
