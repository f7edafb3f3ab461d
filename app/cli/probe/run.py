"""The probe's course: one harmless turn, watched; then a cut, a return, a repetition, and a long silence."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.streams.tls
import httpx

from app.cli.probe import judge
from app.cli.probe.watch import Watch, watch
from app.cli.proxies.finding import Finding, note, ok, wrong
from app.errors import ConfigError
from app.ids import new_id
from app.limits.budget import Timeouts

_EVIL = "https://evil.example"
# A turn that is longer than this is no probe any more.
_TURN_SECONDS = 60.0


class Probe:
    """One look at one installation."""

    def __init__(
        self, http: httpx.AsyncClient, timeouts: Timeouts, *, patience: float, text: str, profile: str | None
    ) -> None:
        self._http = http
        self._timeouts = timeouts
        self._patience = patience
        self._text = text
        self._profile = profile

    async def raw(self, url: str) -> list[Finding]:
        """What can be told of any event stream without knowing what it says."""
        seen = await watch(self._http, "GET", url, headers=_SSE, seconds=self._patience)
        if seen.status != 200:
            what = f"the answer is {seen.status}" if seen.status else "no answer"
            return [wrong("stream", what, _mend(self._http, seen.status))]
        found = [*judge.headers(seen), *judge.compression(seen)]
        if seen.first_byte is None:
            found.append(wrong("early byte", f"no byte in {self._patience} s", "Turn buffering off, or send keep-alives."))
        else:
            found += judge.early_byte(seen)
        return [*found, *judge.silence(seen, self._timeouts, self._patience)]

    async def service(self) -> list[Finding]:
        """Everything, with two turns of the probe's own conversation, which is deleted in the end."""
        conversation = await self._conversation()
        try:
            found = await self._turn(conversation)
            found += await self._silence(conversation)
            found += await self._cors()
        finally:
            with anyio.move_on_after(5, shield=True):
                await self._http.delete(f"/v1/conversations/{conversation}")
        return found

    async def _conversation(self) -> str:
        reply = await self._http.post("/v1/conversations", json={"profile": self._profile} if self._profile else {})
        if reply.status_code != 201:
            words = f"The service did not give a conversation: {reply.status_code}{_detail(reply)}."
            raise ConfigError(f"{words} {_mend(self._http, reply.status_code)}")
        return str(reply.json()["id"])

    async def _turn(self, conversation: str) -> list[Finding]:
        path, body = f"/v1/conversations/{conversation}/turns", {"input": self._text}
        key = {"Idempotency-Key": new_id("probe")}
        first = await watch(self._http, "POST", path, body=body, headers=_SSE | key, seconds=_TURN_SECONDS, stop_after=6)
        if first.status != 200:
            return [wrong("turn", f"the answer to the POST is {first.status}", "See the service's log.")]
        found = [*judge.headers(first), *judge.compression(first), *judge.early_byte(first)]
        turn = (first.of("turn_started") or [{}])[0].get("turn_id")
        if not isinstance(turn, str) or first.last_id is None:
            return [*found, wrong("turn", "no turn_started came", "See the service's log.")]
        events = f"/v1/turns/{turn}/events"
        rest = await watch(self._http, "GET", events, headers=_SSE | {"Last-Event-ID": first.last_id}, seconds=_TURN_SECONDS)
        found += [*judge.buffering(rest), *judge.resume(first, rest)]
        found += await self._after(events, rest)
        found += await self._repeated(path, body, key, turn)
        return [*found, *judge.version(first, await _alpn(self._http.base_url))]

    async def _after(self, events: str, rest: Watch) -> list[Finding]:
        if not rest.of("stream_end"):
            return [
                wrong("end", f"the stream ended without stream_end ({rest.end})", "Something cuts it: look for timeouts.")
            ]
        found = [ok("end", "stream_end, and the body ended in order")]
        again = await self._http.get(events, headers=_SSE | {"Last-Event-ID": rest.last_id or ""})
        if again.status_code == 204:
            found.append(ok("204 after the end", "an EventSource stops"))
        else:
            found.append(wrong("204 after the end", f"{again.status_code}", "Let 204 and Last-Event-ID through."))
        return found

    async def _repeated(self, path: str, body: object, key: dict[str, str], turn: str) -> list[Finding]:
        repeated = await self._http.post(path, json=body, headers={"Accept": "application/json", **key})
        if repeated.status_code == 202 and repeated.json().get("turn_id") == turn:
            return [ok("repeated POST", "found the same turn, and started none")]
        return [wrong("repeated POST", f"{repeated.status_code}", "Let the Idempotency-Key header through.")]

    async def _silence(self, conversation: str) -> list[Finding]:
        text = f"be silent for {self._patience:g} seconds"
        seen = await watch(
            self._http,
            "POST",
            f"/v1/conversations/{conversation}/turns",
            body={"input": text},
            headers=_SSE,
            seconds=self._patience + 5,
        )
        if seen.of("text_delta") and seen.ended_at < self._patience / 2:
            mend = 'Only the demo model keeps silent when it is asked to: --profile, or a profile with provider = "demo".'
            return [note("keep-alive", "not tested: the model answered at once", mend)]
        return list(judge.silence(seen, self._timeouts, self._patience))

    async def _cors(self) -> list[Finding]:
        reply = await self._http.get("/v1/conversations", headers={"Origin": _EVIL})
        allowed = reply.headers.get("access-control-allow-origin")
        if allowed in ("*", _EVIL):
            return [wrong("CORS", f"a foreign page is allowed: {allowed}", "Name exact origins, also in the proxy.")]
        return [ok("CORS", "a foreign page gets no permission")]


_SSE = {"Accept": "text/event-stream", "Accept-Encoding": "gzip, br"}


def _detail(reply: httpx.Response) -> str:
    try:
        return f" ({str(reply.json()['detail']).rstrip('.')})"
    except (ValueError, KeyError, TypeError):
        return ""


def _mend(http: httpx.AsyncClient, status: int | None) -> str:
    """What to do about a refusal."""
    if status != 401:
        return "Is the address right?"
    return "Is the key right?" if "Authorization" in http.headers else "Give --key-file."


async def _alpn(base: httpx.URL) -> str | None:
    """The protocol that TLS agrees on; None without TLS."""
    if base.scheme != "https":
        return None
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with anyio.fail_after(5):
            stream = await anyio.connect_tcp(base.host, base.port or 443, ssl_context=context, tls_hostname=base.host)
            async with stream:
                return stream.extra(anyio.streams.tls.TLSAttribute.alpn_protocol)  # noqa: S610 - anyio's, not Django's
    except (OSError, ssl.SSLError, TimeoutError):
        return None


def probe(url: str, key: str | None, timeouts: Timeouts, options: Any) -> int:
    """Print what was seen of the installation at `url`; returns the exit code, 1 when something is wrong.

    Raises:
        ConfigError: the address cannot be used, or the key is not accepted.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"{url} is not an http(s) address.")
    findings = anyio.run(_run, url, key, timeouts, options)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        _print(findings)
    return 1 if any(finding.verdict == "WRONG" for finding in findings) else 0


def _print(findings: Iterable[Finding]) -> None:
    for finding in findings:
        print(finding)


async def _run(url: str, key: str | None, timeouts: Timeouts, options: Any) -> list[Finding]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # No byte for this long is a finding of its own.
    limits = httpx.Timeout(10.0, read=max(options.patience, timeouts.client_watchdog) + 10)
    base = "" if options.raw else url.rstrip("/")
    try:
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=limits) as http:
            one = Probe(http, timeouts, patience=options.patience, text=options.input, profile=options.profile)
            return await (one.raw(url) if options.raw else one.service())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"{url} does not answer: {type(error).__name__}.") from None
