"""What in an nginx configuration breaks streams, repeats work, or leaks tickets (`earlybyte check --nginx FILE`)."""

from __future__ import annotations

from collections.abc import Iterator

from app.cli.proxies.finding import Finding, note, ok, seconds, wrong
from app.cli.proxies.nginx_tree import Level, NginxFile, Place
from app.config import Limits
from app.limits.budget import Timeouts, show

EVENTS = "/v1/turns/turn_01h00000000000000000000000/events"
TURNS = "/v1/conversations/conv_01h00000000000000000000000/turns"
_WITH_QUERY = ("$request ", "$request_uri", "$args", "$query_string", "$arg_ticket", "$is_args")
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def check_nginx(path: str, timeouts: Timeouts, limits: Limits) -> list[Finding]:
    """What was found in the file, in the order of the paths.

    Raises:
        ConfigError: there is no such file.
    """
    config = NginxFile(path)
    findings = [note(path, f"not read: {error}", "Check this line; the rest was read.") for error in config.errors]
    streams = config.places(EVENTS)
    if not any(place.last("proxy_pass") for place in streams):
        return [*findings, wrong(path, f"nothing passes {EVENTS} on", "Add a location with proxy_pass for it.")]
    for place in streams:
        if place.last("proxy_pass") is not None:
            findings += _stream(config, place, timeouts, "the events of a turn")
            findings += _away(place, f"{place.where} (the events of a turn)")
            findings += _log(config, place)
    for place in config.places(TURNS):
        if place.last("proxy_pass") is not None:
            findings += _stream(config, place, timeouts, "a turn that is streamed by POST")
            findings += _body(place, limits)
    for place in config.places("/metrics"):
        findings.append(_metrics(place))
    return list(dict.fromkeys(findings))


def _stream(config: NginxFile, place: Place, timeouts: Timeouts, what: str) -> Iterator[Finding]:
    where = f"{place.where} ({what})"
    yield from _buffering(place, where)
    yield _read_timeout(place, where, timeouts)
    yield from _compression(place, where)
    if "non_idempotent" in (place.last("proxy_next_upstream") or []):
        yield wrong(
            where,
            "proxy_next_upstream has non_idempotent: a POST that has started a turn is repeated",
            "Take non_idempotent out.",
        )
    yield from _upstream(config, place, where, timeouts)
    yield from _headers(place, where)
    for name, mend in (
        ("proxy_cache", "proxy_cache off;"),
        ("proxy_store", "proxy_store off;"),
        ("proxy_ignore_client_abort", "proxy_ignore_client_abort off; else nobody hears that a viewer has gone."),
    ):
        if place.value(name, "off") != "off":
            yield wrong(where, f"{name} is {place.value(name, 'off')}", mend)
    for name in ("limit_rate", "proxy_limit_rate"):
        if place.value(name, "0") != "0":
            yield wrong(where, f"{name} is {place.value(name, '0')}: events come late", f"{name} 0;")
    yield from _meddling(place, where)
    send = seconds(place.value("send_timeout", "60s"))
    if send is not None and send <= timeouts.viewer_write:
        yield wrong(
            where,
            f"send_timeout is {show(send)} s, not longer than timeouts.viewer_write = {show(timeouts.viewer_write)}",
            "Leave it at its 60s.",
        )


def _meddling(place: Place, where: str) -> Iterator[Finding]:
    """What looks into a stream, repeats it or cuts it into pieces of its own."""
    if place.value("mirror", "off") != "off":
        yield wrong(where, "mirror sends every request twice: a POST that starts a turn, too", "mirror off;")
    types = {kind for args in place.every("sub_filter_types") for kind in args}
    if place.every("sub_filter") and types & {"text/event-stream", "application/x-ndjson", "*"}:
        yield wrong(where, "sub_filter reads event streams: events are held back", "Take their types out.")
    if place.value("chunked_transfer_encoding", "on") == "off":
        yield wrong(
            where,
            "chunked_transfer_encoding is off: a stream that breaks looks like one that ended",
            "chunked_transfer_encoding on;",
        )
    if place.value("tcp_nodelay", "on") == "off":
        yield wrong(where, "tcp_nodelay is off: small events wait for an acknowledgement", "tcp_nodelay on;")
    if place.value("proxy_intercept_errors", "off") == "on":
        yield note(
            where,
            "proxy_intercept_errors is on: nginx's pages may take the place of the service's answers",
            "proxy_intercept_errors off;",
        )


def _away(place: Place, where: str) -> Iterator[Finding]:
    """What an EventSource gets when no server answers: from an error status it never comes back (R6)."""
    turned = {code for args in place.every("error_page") for code in args[:-1]}
    missing = [code for code in ("502", "503", "504") if code not in turned]
    if missing:
        yield note(
            where,
            f"nginx's own {', '.join(missing)} reach an EventSource, which never comes back from them",
            "error_page 502 503 504 = @away; as in deploy/nginx/earlybyte.conf.",
        )
    if place.value("proxy_next_upstream", "error") == "off":
        yield note(
            where,
            "proxy_next_upstream is off: a refused or reset GET does not go on to the next server, which would be safe",
            "proxy_next_upstream error timeout;",
        )


def _buffering(place: Place, where: str) -> Iterator[Finding]:
    ignored = [name.lower() for args in place.every("proxy_ignore_headers") for name in args]
    if place.value("proxy_buffering", "on") == "off":
        yield ok(where, "proxy_buffering off")
        return
    stated = "is on" if place.last("proxy_buffering") else "is not set, and on by default"
    harm = "events come in lumps" if "x-accel-buffering" in ignored else "only the service's X-Accel-Buffering saves it"
    yield wrong(where, f"proxy_buffering {stated}: {harm}", "proxy_buffering off;")


def _read_timeout(place: Place, where: str, timeouts: Timeouts) -> Finding:
    stated = place.value("proxy_read_timeout", "60s")
    value = seconds(stated)
    mend = f"proxy_read_timeout {show(timeouts.proxy_read)}s;"
    if value is None:
        return wrong(where, f"proxy_read_timeout {stated} is no duration", mend)
    name = "proxy_read_timeout" if place.last("proxy_read_timeout") else "proxy_read_timeout (its default)"
    if value <= timeouts.client_watchdog:
        low = "client_watchdog" if value > timeouts.keep_alive else "keep_alive"
        rung = getattr(timeouts, low)
        return wrong(
            where, f"{name} = {show(value)} s is not longer than timeouts.{low} = {show(rung)}: streams are cut", mend
        )
    if value >= timeouts.lb_idle:
        return wrong(
            where, f"{name} = {show(value)} s is not shorter than timeouts.lb_idle = {show(timeouts.lb_idle)}", mend
        )
    if value < timeouts.proxy_read:
        return note(where, f"{name} = {show(value)} s; the ladder says {show(timeouts.proxy_read)}", mend)
    return ok(where, f"{name} = {show(value)} s")


def _compression(place: Place, where: str) -> Iterator[Finding]:
    for name in ("gzip", "brotli", "zstd"):
        if place.value(name, "off") == "off":
            continue
        types = {kind for args in place.every(f"{name}_types") for kind in args}
        if types & {"text/event-stream", "application/x-ndjson", "*"}:
            yield wrong(where, f"{name} compresses event streams: events are held back", f"{name} off; here.")
        else:
            yield note(where, f"{name} is on, for other types", f"{name} off; here keeps it so.")


def _upstream(config: NginxFile, place: Place, where: str, timeouts: Timeouts) -> Iterator[Finding]:
    target = (place.last("proxy_pass") or [""])[0]
    name = target.split("://", 1)[-1].split("/", 1)[0]
    upstream = config.upstreams.get(name)
    version = place.value("proxy_http_version", "1.0")
    closes = not any(
        len(args) > 1 and args[0].lower() == "connection" and args[1] == "" for args in place.every("proxy_set_header")
    )
    if version == "1.0":
        yield wrong(where, "proxy_http_version is 1.0: every request takes a new connection", "proxy_http_version 1.1;")
    if upstream is None:
        return
    if upstream.all("keepalive"):
        if version != "1.0" and closes:
            yield wrong(
                where,
                f"upstream {name} has keepalive, but the request closes its connection",
                'proxy_set_header Connection "";',
            )
        yield from _idle(upstream, name, timeouts)


def _idle(upstream: Level, name: str, timeouts: Timeouts) -> Iterator[Finding]:
    stated = (upstream.all("keepalive_timeout") or [["60s"]])[-1][0]
    idle = seconds(stated)
    if idle is not None and idle >= timeouts.server_keep_alive:
        yield wrong(
            f"upstream {name}",
            f"keepalive_timeout = {show(idle)} s is not shorter than timeouts.server_keep_alive = "
            f"{show(timeouts.server_keep_alive)}: requests go into connections that the service closes, which gives 502",
            "keepalive_timeout 60s;",
        )


def _headers(place: Place, where: str) -> Iterator[Finding]:
    if place.value("proxy_pass_request_headers", "on") == "off":
        yield wrong(where, "proxy_pass_request_headers is off: no key and no cursor arrives", "Take it out.")
    for args in place.every("proxy_set_header"):
        if args and args[0].lower() in ("last-event-id", "authorization", "accept") and args[1:] == [""]:
            yield wrong(where, f"{args[0]} is taken away", f"Take out proxy_set_header {args[0]}.")
        if args and args[0].lower() == "accept-encoding" and args[1:] and args[1] not in ("", "identity"):
            yield note(where, f"Accept-Encoding is set to {args[1]}", "Leave it to the client.")


def _log(config: NginxFile, place: Place) -> Iterator[Finding]:
    formats = {args[0]: " ".join(args[1:]) for args in config.http.all("log_format")}
    where = f"{place.where} (its log)"
    for args in place.every("access_log") or [["logs/access.log"]]:
        if args[0] == "off":
            continue
        used = args[1] if len(args) > 1 and "=" not in args[1] else "combined"
        text = formats.get(used, "$request $http_referer" if used == "combined" else "")
        if any(part in f"{text} ".replace('"', " ") for part in _WITH_QUERY):
            yield wrong(
                where,
                f"the log format {used} holds the query, and with it tickets",
                "Use a format with $uri instead of $request for this location, or access_log off;",
            )
        else:
            yield ok(where, f"the log format {used} holds no query")


def _body(place: Place, limits: Limits) -> Iterator[Finding]:
    stated = place.value("client_max_body_size", "1m").lower()
    unit = _SIZES.get(stated[-1:], 1)
    digits = stated.rstrip("kmg")
    if digits.isdigit() and 0 < int(digits) * unit < limits.body_bytes:
        yield wrong(
            f"{place.where} (requests)",
            f"client_max_body_size {stated} is less than limits.body_bytes = {limits.body_bytes}",
            "client_max_body_size 2m; lets the service answer itself, with words.",
        )


def _metrics(place: Place) -> Finding:
    inner = place.levels[-1]
    closed = inner.all("return") or inner.all("deny") or inner.all("internal") or inner.all("auth_basic")
    if place.last("proxy_pass") is None or closed:
        return ok(f"{place.where} (/metrics)", "the figures stay inside")
    return wrong(
        f"{place.where} (/metrics)", "anybody can read /metrics", "location = /metrics { return 404; } in this server."
    )
