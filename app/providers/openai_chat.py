"""The Chat Completions dialect: OpenAI, and the many endpoints that speak like it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from app.limits.cancel import Cancel
from app.providers.address import endpoint, server
from app.providers.call import OutgoingCall, run_call
from app.providers.chunks import Chunk
from app.providers.http import Upstream, UpstreamLimits
from app.providers.json_text import encode_json
from app.providers.openai_stream import OpenAIStep
from app.providers.provider import ModelRequest


class OpenAIChat:
    """A `Provider` for `POST …/chat/completions` with `stream: true`. No key, no `Authorization` header."""

    dialect = "openai"

    def __init__(self, *, base_url: str, api_key: str | None, limits: UpstreamLimits | None = None) -> None:
        self._limits = limits or UpstreamLimits()
        self._url = endpoint(base_url, "chat/completions")
        self.server: tuple[str, int] | None = server(self._url)
        key = (api_key or "").strip()
        self._headers = {
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": "earlybyte",
            **({"authorization": f"Bearer {key}"} if key else {}),
        }
        # OpenAI's own newer models refuse the old name, which all others know.
        own = (urlsplit(self._url).hostname or "").endswith("api.openai.com")
        self._cap = "max_completion_tokens" if own else "max_tokens"
        self._upstream = Upstream(limits=self._limits, secrets=(key,) if key else ())

    def stream(self, request: ModelRequest, cancel: Cancel) -> Iterator[Chunk]:
        """See `Provider.stream`."""
        step = OpenAIStep(argument_bytes=self._limits.argument_bytes, tool_calls=self._limits.tool_calls)
        call = OutgoingCall(self._url, self._headers, encode_json(self._body(request)))
        return run_call(self._upstream, call, step, limits=self._limits, cancel=cancel)

    def close(self) -> None:
        """See `Provider.close`."""
        self._upstream.close()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model,
            "messages": [_public(message) for message in request.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            self._cap: request.max_output_tokens,
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
                }
                for tool in request.tools
            ]
        return body

    def __repr__(self) -> str:
        return f"<OpenAIChat {urlsplit(self._url).hostname}>"


def _public(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if not key.startswith("_")}
