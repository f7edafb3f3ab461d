"""The Messages dialect: Anthropic, and endpoints that speak like it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from app.limits.cancel import Cancel
from app.providers.address import endpoint, server
from app.providers.anthropic_request import DIALECT, anthropic_body
from app.providers.anthropic_stream import AnthropicStep
from app.providers.call import OutgoingCall, run_call
from app.providers.chunks import Chunk
from app.providers.http import Upstream, UpstreamLimits
from app.providers.json_text import encode_json
from app.providers.provider import ModelRequest

_VERSION = "2023-06-01"


class AnthropicMessages:
    """A `Provider` for `POST …/v1/messages` with `stream: true`. No key, no `x-api-key` header."""

    dialect = DIALECT

    def __init__(self, *, base_url: str, api_key: str | None, limits: UpstreamLimits | None = None) -> None:
        self._limits = limits or UpstreamLimits()
        self._url = endpoint(base_url, "messages")
        self.server: tuple[str, int] | None = server(self._url)
        key = (api_key or "").strip()
        self._headers = {
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "anthropic-version": _VERSION,
            "content-type": "application/json",
            "user-agent": "earlybyte",
            **({"x-api-key": key} if key else {}),
        }
        self._upstream = Upstream(limits=self._limits, secrets=(key,) if key else ())

    def stream(self, request: ModelRequest, cancel: Cancel) -> Iterator[Chunk]:
        """See `Provider.stream`."""
        step = AnthropicStep(argument_bytes=self._limits.argument_bytes, tool_calls=self._limits.tool_calls)
        call = OutgoingCall(self._url, self._headers, encode_json(anthropic_body(request)))
        return run_call(self._upstream, call, step, limits=self._limits, cancel=cancel)

    def close(self) -> None:
        """See `Provider.close`."""
        self._upstream.close()

    def __repr__(self) -> str:
        return f"<AnthropicMessages {urlsplit(self._url).hostname}>"
