"""What a model call yields, whatever its dialect.

Order: any number of `Text`, `Reasoning` and `Alive`; then exactly one `StepEnd`, which is last. A call that fails
raises a `ProviderError` instead of yielding a `StepEnd`; what was yielded before it stands.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Finish = Literal["stop", "tool_calls", "length", "content_filter"]


class Text(msgspec.Struct, frozen=True, gc=False):
    """A piece of the answer, verbatim (think tags not yet taken out, surrogates possibly split)."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """A piece of thinking that came in a field or block of its own."""

    text: str


class Alive(msgspec.Struct, frozen=True, gc=False):
    """The model produced something that is not shown (a fragment of tool arguments); it resets the token timeouts."""


class ToolCall(msgspec.Struct, frozen=True):
    """One whole tool call. `arguments` is None when they are cut off or are not a JSON object (X3)."""

    id: str
    name: str
    arguments: dict[str, Any] | None


class StepEnd(msgspec.Struct, frozen=True):
    """The end of a model call that ended in order.

    `tool_calls` is empty unless `finish` is `tool_calls`. `blocks` is what must go back verbatim with the next request
    of the same dialect (Anthropic's signed thinking, in order with text and tool use), else None.
    """

    finish: Finish
    tool_calls: tuple[ToolCall, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    model: str | None = None
    blocks: list[dict[str, Any]] | None = None


Chunk = Text | Reasoning | Alive | StepEnd
