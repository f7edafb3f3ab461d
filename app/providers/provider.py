"""The port behind which every model stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from app.limits.cancel import Cancel as Cancel  # noqa: PLC0414  # part of the port: given on from here
from app.providers.chunks import Chunk


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model sees it; `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


class ModelRequest(msgspec.Struct, frozen=True):
    """One model call.

    `messages` are in Chat Completions form and well-formed (X4): `system`, `user`, `assistant` (with `tool_calls`) and
    `tool`. An assistant message may carry the private key `_blocks`, `{"dialect": str, "blocks": [...]}`, for the
    dialect that made it; other dialects must drop it. `user` content is a string or a list of `text` and `image_url`
    parts.
    """

    model: str
    messages: list[dict[str, Any]]
    tools: list[ToolSpec]
    max_output_tokens: int
    conversation_id: str = ""


class Provider(Protocol):
    """A model endpoint. One instance serves many threads at once.

    `server` is the host and port that it speaks to; None where the model is in this process.
    """

    dialect: str
    server: tuple[str, int] | None

    def stream(self, request: ModelRequest, cancel: Cancel) -> Iterator[Chunk]:
        """The chunks of one model call, in order, the last a `StepEnd`; blocks between them.

        Never retries. After `cancel` it ends at once, by any exception.

        Raises:
            app.providers.errors.ProviderError: the call failed; says whether that is transient (X1).
        """
        ...

    def close(self) -> None:
        """Give back connections. Streams still open end with an error."""
        ...
