"""Why a model stopped: the words of many endpoints, and which one counts when a stream says several."""

from __future__ import annotations

from app.providers.chunks import Finish

_WORDS: dict[str, Finish] = {
    **dict.fromkeys(("tool_calls", "tool_call", "function_call", "tool_use"), "tool_calls"),
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"), "length"
    ),
    **dict.fromkeys(
        ("content_filter", "refusal", "safety", "sensitive", "recitation", "blocklist", "prohibited_content", "spii"),
        "content_filter",
    ),
}
_FAILURES = frozenset({"error", "network_error", "insufficient_system_resource"})


class FinishMark:
    """The finish marks of one stream, made into one.

    An empty string is none. Whatever is not `stop` stays: a `stop` that trails behind does not undo it. Words that
    nobody knows are a `stop`.
    """

    def __init__(self) -> None:
        self.value: Finish | None = None

    def take(self, word: object) -> None:
        """Take a mark as it came."""
        if isinstance(word, str) and word and self.value in (None, "stop"):
            self.value = _WORDS.get(word.lower(), "stop")

    def settled(self, calls: int) -> Finish:
        """The finish of the step: calls turn a `stop` into `tool_calls`, and `tool_calls` without any is a `stop`."""
        if self.value in ("length", "content_filter"):
            return self.value
        return "tool_calls" if calls else "stop"

    def __repr__(self) -> str:
        return f"<FinishMark {self.value}>"


def is_failure(word: object) -> bool:
    """Whether a finish reason is the endpoint's way to say that it failed."""
    return isinstance(word, str) and word.lower() in _FAILURES
