"""What an observation means: right or wrong, and how to mend it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from app.cli.probe.watch import Watch
from app.cli.proxies.finding import Finding, note, ok, wrong
from app.limits.budget import Timeouts, show

# A byte that comes later than this after the headers did not leave with them.
_TOGETHER = 0.5
# Events that were made this far apart and arrive in one read were held back.
_LUMP = 0.4


def early_byte(seen: Watch) -> Iterator[Finding]:
    """F2: the first byte comes with the headers."""
    first = seen.first_byte
    if first is None:
        yield wrong("early byte", "no byte of the body came", "Something holds the response back: proxy_buffering off;")
    elif first - seen.headers_at > _TOGETHER:
        late = show(round(first - seen.headers_at, 2))
        yield wrong("early byte", f"it came {late} s after the headers", "Turn response buffering off in the proxy.")
    elif first > 2.0:
        mend = "Something waits for the whole response, or for its first event: turn buffering off."
        yield wrong("early byte", f"it came after {show(round(first, 2))} s", mend)
    else:
        yield ok("early byte", f"after {round(first * 1000)} ms")
    if first is not None and not seen.body.startswith(b": ok\nretry: ") and b": ok\n" not in seen.body[:200]:
        yield note("early byte", f"the body begins with {seen.body[:24]!r}", "Is this Earlybyte, and unchanged?")


def headers(seen: Watch) -> Iterator[Finding]:
    """F1: the headers that a stream needs."""
    kind = seen.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        yield ok("headers", f"content-type {kind}")
    else:
        yield wrong("headers", f"content-type {kind or 'is missing'}", "A proxy answers in our place, or changes it.")
    if "content-length" in seen.headers:
        yield wrong("headers", "there is a content-length: the proxy has read the whole body", "Turn buffering off.")
    control = seen.headers.get("cache-control", "")
    if "no-transform" not in control or "no-cache" not in control:
        yield wrong("headers", f"cache-control is {control or 'missing'}", "Let `no-cache, no-transform` through.")


def compression(seen: Watch) -> Iterator[Finding]:
    """F1: never compressed, though we asked for it."""
    coding = seen.headers.get("content-encoding")
    if coding:
        mend = "Take text/event-stream out of the proxy's compression: gzip off; for this path."
        yield wrong("compression", f"the stream is {coding}: events are held back", mend)
    else:
        yield ok("compression", "none, though it was offered")


def buffering(seen: Watch) -> Iterator[Finding]:
    """Events come as they are made, not in lumps."""
    deltas = [delay for _, delay, event in seen.events if event.get("type") == "text_delta"]
    if len(deltas) < 5:
        yield note("buffering", f"only {len(deltas)} pieces of text came; too few to tell", "Use a longer --input.")
        return
    lumps, reads = seen.lumps(_LUMP), len(seen.reads)
    if lumps:
        mend = "Turn response buffering off: proxy_buffering off; or the like."
        yield wrong("buffering", f"{lumps} of {reads} reads brought events that were made far apart", mend)
    else:
        yield ok("buffering", f"{len(deltas)} pieces of text in {reads} reads, as they were made")


def silence(seen: Watch, timeouts: Timeouts, patience: float) -> Iterator[Finding]:
    """F5: a silent stream is kept alive, and nobody cuts it."""
    longest = max(seen.gaps, default=0.0)
    pings = seen.body.count(b": ping\n")
    if seen.end in ("cut", "whole") and not seen.of("stream_end"):
        mend = f"A timeout before the service is shorter than the keep-alive: at least {show(timeouts.proxy_read)} s."
        yield wrong("idle cut", f"the connection was cut after {show(round(seen.ended_at, 1))} s", mend)
    elif longest > timeouts.keep_alive * 1.5 and longest > patience / 2:
        mend = "Keep-alives are held back: turn buffering off."
        yield wrong("keep-alive", f"no byte for {show(round(longest, 1))} s", mend)
    elif patience <= timeouts.keep_alive:
        mend = f"Use --patience of more than {show(timeouts.keep_alive)}; 130 finds what cuts after two minutes."
        yield note("keep-alive", f"{show(patience)} s of patience are too few to see one", mend)
    else:
        yield ok("keep-alive", f"{pings} in {show(round(seen.ended_at, 1))} s, longest silence {show(round(longest, 1))} s")


def resume(first: Watch, second: Watch) -> Iterator[Finding]:
    """R2: after a cut, exactly the rest."""
    if not first.ids or second.status != 200 or not second.ids:
        yield wrong(
            "resume",
            f"the second connection gave {second.status} and {len(second.ids)} events",
            "Is the query or the header lost?",
        )
        return
    expected = int(first.ids[-1].rsplit("-", 1)[-1]) + 1
    got = second.events[0][2]
    if got.get("type") == "snapshot":
        mend = "Last-Event-ID is lost on the way, or another process answers: one stream process, or a shared turn log."
        yield wrong("resume", "the cursor was not known: a snapshot came", mend)
    elif got.get("seq") != expected:
        mend = "Last-Event-ID is lost on the way: let request headers pass."
        yield wrong("resume", f"event {expected} was expected, {got.get('seq')} came", mend)
    else:
        yield ok("resume", f"went on with event {expected}")


def version(seen: Watch, alpn: str | None) -> Iterator[Finding]:
    """HTTP version, and what it means for browsers."""
    if alpn == "h2":
        yield ok("HTTP version", "HTTP/2 is offered: many streams over one connection")
    else:
        mend = "Offer HTTP/2 (over TLS) to browsers: with HTTP/1.1 they open six connections to a host, streams included."
        yield note("HTTP version", f"{seen.http_version} only", mend)
