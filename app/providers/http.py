"""One HTTP exchange with a model endpoint, from a worker thread: who holds the socket, and how it is let go at once.

A client serves one call at a time and has one connection, because httpcore walks all connections of a client at each
open and close. All clients share one SSL context. A cancel shuts the socket through a duplicate of its descriptor: that
wakes the blocked thread in every phase after the connect (also in the TLS handshake and before the headers), and can
never hit a number that the system has given to someone else. Nothing here is ever sent twice (X1).
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec

from app.clock import monotonic
from app.limits.cancel import Cancel
from app.providers.alarm import Alarm
from app.providers.classify import body_code, parse_retry_after, redact, status_error
from app.providers.errors import ProviderError, StreamIncomplete, UpstreamRejected, UpstreamUnavailable
from app.providers.json_text import decode_json

_ERROR_BODY_BYTES = 64 * 1024
_IDLE_SECONDS = 15.0
_IDLE_CLIENTS = 64


class UpstreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Caps and times of one model call.

    `read_timeout` is only a net: the limits for the first token and between tokens are kept on the loop's side.
    """

    connect_timeout: float = 5.0
    read_timeout: float = 120.0
    upstream_bytes: int = 67_108_864
    argument_bytes: int = 8 << 20
    tool_calls: int = 128
    # How long the body of a refusal may take, and how long a stream may be silent after its finish mark.
    error_body_timeout: float = 5.0
    after_finish_timeout: float = 6.0


class Line:
    """One client and the socket beneath it."""

    def __init__(self, verify: ssl.SSLContext, limits: UpstreamLimits) -> None:
        timeout = httpx.Timeout(limits.read_timeout, connect=limits.connect_timeout)
        one = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=None)
        self.client = httpx.Client(verify=verify, timeout=timeout, limits=one, follow_redirects=False)
        self.idle_since = 0.0
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._call = 0
        self._cut = False
        self._closed = False

    def begin(self) -> int:
        """Open the next call; its number is what `cut` wants, so that a late cut cannot hit the call after it."""
        with self._lock:
            self._call += 1
            return self._call

    def end(self) -> bool:
        """Close the call; True when nobody cut it."""
        with self._lock:
            self._call += 1
            return not self._cut

    def cut(self, call: int | None = None) -> None:
        """Shut the socket, now or as soon as there is one, if `call` is still open (None: whichever is)."""
        with self._lock:
            if call is None or call == self._call:
                self._cut = True
                self._shut()

    def trace(self, name: str, info: dict[str, Any]) -> None:
        """Follow httpcore's steps to learn of a new socket (the `trace` request extension)."""
        if not name.endswith("connect_tcp.complete"):
            return
        fresh = info["return_value"].get_extra_info("socket").dup()
        with self._lock:
            old, self._socket = self._socket, fresh
            if self._cut or self._closed:
                self._shut()
        if old is not None:
            old.close()

    def close(self) -> None:
        """Close the connection; only the thread that has the line may."""
        self.client.close()
        with self._lock:
            self._closed = True
            if self._socket is not None:
                self._shut()
                self._socket.close()
                self._socket = None

    def _shut(self) -> None:
        try:
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The other side was first.

    def __repr__(self) -> str:
        return f"<Line call {self._call}{' cut' if self._cut else ''}>"


class Reply:
    """The 200 response of one call. `pieces` may be taken once."""

    def __init__(self, response: httpx.Response, cancel: Cancel, ring: Callable[[float], None]) -> None:
        self._response = response
        self._cancel = cancel
        self._ring = ring
        self.content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.whole = False

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes in.

        Raises:
            StreamIncomplete: the connection broke, or was cut by a cancel or by `end_within`.
            UpstreamUnavailable: nothing came for `read_timeout` seconds.
        """
        try:
            for piece in self._response.iter_bytes():
                if self._cancel.cancelled:
                    raise _cancelled()
                yield piece
        except httpx.HTTPError as error:
            raise _mid_body(error, self._cancel) from error
        self.whole = True

    def end_within(self, seconds: float) -> None:
        """Cut the connection if the body has not ended in `seconds` from now; an earlier limit counts no more."""
        self._ring(seconds)


class Upstream:
    """The connections to one endpoint. One instance serves many threads."""

    def __init__(self, *, limits: UpstreamLimits, secrets: tuple[str, ...] = ()) -> None:
        self._limits = limits
        self._secrets = secrets
        self._verify = httpx.create_ssl_context()
        self._alarm = Alarm()
        self._lock = threading.Lock()
        self._idle: list[Line] = []
        self._busy: set[Line] = set()
        self._closed = False

    @contextmanager
    def post(self, url: str, *, headers: dict[str, str], body: bytes, cancel: Cancel) -> Iterator[Reply]:
        """Send the request and give the reply once its headers are here, if they say 200.

        The connection is kept for a later call only if the body was read to its end and nobody cut it.

        Raises:
            UpstreamUnavailable: no connection, no answer, or a status that may pass (X1).
            UpstreamRejected: any other status, or a request that cannot be sent at all.
        """
        line = self._take()
        call = line.begin()
        forget = cancel.on_cancel(lambda: line.cut(call))
        silence: Callable[[], None] = _nothing
        reply: Reply | None = None

        def ring(seconds: float) -> None:
            nonlocal silence
            silence()
            silence = self._alarm.after(seconds, lambda: line.cut(call))

        try:
            if cancel.cancelled:
                raise _cancelled()
            with self._open(line, url, headers, body, cancel) as response:
                if not 200 <= response.status_code <= 299:
                    ring(self._limits.error_body_timeout)
                    raise self._refusal(response)
                reply = Reply(response, cancel, ring)
                yield reply
        finally:
            forget()
            silence()
            self._give_back(line, clean=reply is not None and reply.whole)

    def redact(self, text: str) -> str:
        """`text` as it may be logged."""
        return redact(text, *self._secrets)

    def close(self) -> None:
        """Close idle connections and cut the busy ones; calls from now on are refused."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for line in idle:
            line.close()
        for line in busy:
            line.cut()
        self._alarm.close()

    @contextmanager
    def _open(self, line: Line, url: str, headers: dict[str, str], body: bytes, cancel: Cancel) -> Iterator[httpx.Response]:
        try:
            request = line.client.build_request("POST", url, headers=headers, content=body, extensions={"trace": line.trace})
            response = line.client.send(request, stream=True)
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError) as error:
            # The text of these may quote a header, so neither it nor the exception itself goes any further.
            detail = f"{type(error).__name__}: the address or a header cannot be sent"
            raise UpstreamRejected("The request to the model endpoint cannot be sent.", detail=detail) from None
        except httpx.HTTPError as error:
            raise self._before_headers(error, cancel) from error
        try:
            yield response
        finally:
            response.close()

    def _refusal(self, response: httpx.Response) -> ProviderError:
        """The error for a status; what the body says goes to the log only."""
        raw = bytearray()
        try:
            for piece in response.iter_bytes():
                raw += piece
                if len(raw) >= _ERROR_BODY_BYTES:
                    break
        except httpx.HTTPError:
            pass  # The status says enough.
        text = bytes(raw[:_ERROR_BODY_BYTES]).decode("utf-8", "replace")
        try:
            code = body_code(decode_json(text))
        except ValueError:
            code = None
        headers = response.headers
        return status_error(
            response.status_code,
            retry_after=parse_retry_after(headers.get("retry-after")),
            code=self.redact(code) if code else None,
            detail=self.redact(text.strip()),
        )

    def _before_headers(self, error: httpx.HTTPError, cancel: Cancel) -> ProviderError:
        if cancel.cancelled:
            return _cancelled()
        detail = self.redact(f"{type(error).__name__}: {error}")
        match error:
            case httpx.ConnectTimeout():
                message = f"No connection to the model endpoint within {self._limits.connect_timeout:g} s."
                return UpstreamUnavailable(message, code="timeout", detail=detail)
            case httpx.TimeoutException():
                message = f"No answer from the model endpoint within {self._limits.read_timeout:g} s."
                return UpstreamUnavailable(message, code="timeout", detail=detail)
            case httpx.ConnectError() | httpx.ProxyError():
                return UpstreamUnavailable("No connection to the model endpoint.", code="unreachable", detail=detail)
            case _:
                return UpstreamUnavailable("The model endpoint cut the connection.", code="cut", detail=detail)

    def _take(self) -> Line:
        with self._lock:
            if self._closed:
                raise UpstreamUnavailable("The provider is closed.", code="closed")
            stale = self._stale()
            line = self._idle.pop() if self._idle else None
            if line is not None:
                self._busy.add(line)
        for old in stale:
            old.close()
        if line is None:
            line = Line(self._verify, self._limits)
            with self._lock:
                self._busy.add(line)
        return line

    def _give_back(self, line: Line, *, clean: bool) -> None:
        keep = line.end() and clean
        with self._lock:
            self._busy.discard(line)
            stale = self._stale()
            if keep and not self._closed and len(self._idle) < _IDLE_CLIENTS:
                line.idle_since = monotonic()
                self._idle.append(line)
            else:
                stale.append(line)
        for old in stale:
            old.close()

    def _stale(self) -> list[Line]:
        # The oldest are first: lines come and go at the end of the list.
        oldest = monotonic() - _IDLE_SECONDS
        count = sum(line.idle_since < oldest for line in self._idle)
        stale, self._idle = self._idle[:count], self._idle[count:]
        return stale

    def __repr__(self) -> str:
        return f"<Upstream {len(self._busy)} busy, {len(self._idle)} idle>"


def _nothing() -> None:
    """No alarm is set."""


def _cancelled() -> StreamIncomplete:
    return StreamIncomplete("The model call was cancelled.", code="cancelled")


def _mid_body(error: httpx.HTTPError, cancel: Cancel) -> ProviderError:
    if cancel.cancelled:
        return _cancelled()
    detail = type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        return UpstreamUnavailable("The model's stream went silent.", code="timeout", detail=detail)
    return StreamIncomplete("The model's stream was cut.", detail=detail)
