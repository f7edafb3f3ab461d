"""The port behind which every model stands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from app.providers.chunks import Chunk


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model sees it; `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


class ModelRequest(msgspec.Struct, frozen=True):
    """One model call.

    `messages` are in Chat Completions form and well-formed (X4): `system`, `user`, `assistant` (with `tool_calls`) and
    `tool`. An assistant message may carry the private key `_blocks`, `{"dialect": str, "blocks": [...]}`, for the dialect
    that made it; other dialects must drop it. `user` content is a string or a list of `text` and `image_url` parts.
    """

    model: str
    messages: list[dict[str, Any]]
    tools: list[ToolSpec]
    max_output_tokens: int
    conversation_id: str = ""


class Cancel:
    """A one-way switch that one thread sets and another feels at once.

    `on_cancel(fn)` registers what frees a blocked thread (shut a socket, wake a sleeper); it runs in the thread that
    cancels, at once when the switch is already set, and must not raise or block.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether the switch is set."""
        return self._event.is_set()

    def wait(self, timeout: float) -> bool:
        """Sleep for `timeout` seconds or until cancelled; True when cancelled."""
        return self._event.wait(timeout)

    def on_cancel(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Register `fn`; returns a function that takes it back."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(fn)
                return lambda: self._remove(fn)
        fn()
        return lambda: None

    def _remove(self, fn: Callable[[], None]) -> None:
        with self._lock:
            if fn in self._callbacks:
                self._callbacks.remove(fn)

    def cancel(self) -> None:
        """Set the switch and run the callbacks, each once."""
        with self._lock:
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for fn in callbacks:
            fn()

    def __repr__(self) -> str:
        return f"<Cancel {'set' if self.cancelled else 'not set'}>"


class Provider(Protocol):
    """A model endpoint. One instance serves many threads at once."""

    dialect: str

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
