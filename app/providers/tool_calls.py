"""Whole tool calls from fragments, by the rules that hold over the providers that people really use.

A new non-empty id opens a call, also at an index in use. Without an id the index decides; without both, the open call
goes on. Two items in one delta are two calls. Ids and names are assigned, only arguments are appended. There is no
repair: what is not a JSON object in the end runs nothing (X3).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from app.ids import new_id
from app.providers.chunks import ToolCall
from app.providers.errors import LimitExceeded
from app.providers.json_text import decode_json, encode_json, mend, mend_all

# An id goes into every event of its call; providers use some thirty characters.
_ID_CHARS = 200


def usable_id(given: str, used: Collection[str]) -> str:
    """The id that a provider gave, or one of ours where it gave none, one that is `used`, or one without measure."""
    return given if 0 < len(given) <= _ID_CHARS and given not in used else new_id("call")


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The arguments as an object; `{}` for none at all or `null`, None for anything that is not a JSON object."""
    text = mend(text)
    if not text.strip():
        return {}
    try:
        value = decode_json(text)
    except ValueError:
        return None
    if value is None:
        return {}
    if not isinstance(value, dict):
        return None
    mended: dict[str, Any] = mend_all(value)
    return mended


class OpenCall:
    """One call while its fragments come in."""

    __slots__ = ("_parts", "_whole", "id", "index", "name", "size")

    def __init__(self, index: int | None) -> None:
        self.id = ""
        self.index = index
        self.name = ""
        self.size = 0
        self._parts: list[str] = []
        self._whole = False

    def append(self, arguments: object, limit: int) -> None:
        """Add a fragment: text as it is, an object as its JSON (an empty one adds nothing)."""
        if arguments is None or arguments == "":
            return
        if isinstance(arguments, dict):
            self._whole = True
            if not arguments:
                return
        text = arguments if isinstance(arguments, str) else encode_json(arguments).decode()
        self.size += len(text)
        if self.size > limit:
            raise LimitExceeded("The arguments of a tool call are too large.")
        self._parts.append(text)

    @property
    def text(self) -> str:
        """All the argument text so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def complete(self) -> bool:
        """Whether the arguments so far are a whole object, so that more of them would belong to another call."""
        if self._whole:
            return True
        # Only looked at closely when the last fragment may close an object: else it would cost a parse per fragment.
        if not self._parts or not self._parts[-1].rstrip().endswith("}"):
            return False
        return parse_arguments(self.text) is not None

    def empty(self) -> bool:
        """Whether nothing but a place was ever given."""
        return not (self.id or self.name or self._parts or self._whole)


class CallAssembler:
    """The tool calls of one model answer, in the order in which they were opened."""

    def __init__(self, *, argument_bytes: int = 8 << 20, calls: int = 128) -> None:
        self._argument_bytes = argument_bytes
        self._limit = calls
        self._calls: list[OpenCall] = []
        self._by_id: dict[str, OpenCall] = {}
        self._by_index: dict[int, OpenCall] = {}
        self._open: OpenCall | None = None

    def __len__(self) -> int:
        return sum(not call.empty() for call in self._calls)

    def add(self, items: list[Any]) -> None:
        """Take the `tool_calls` of one delta: dicts with `index`, `id` and `function`; anything else is skipped.

        Raises:
            LimitExceeded: too many calls, or arguments that are too large.
        """
        seen: list[OpenCall] = []
        for item in items:
            if not isinstance(item, dict):
                continue
            function = item.get("function")
            function = function if isinstance(function, dict) else item
            call_id, name, index = _word(item.get("id")), _word(function.get("name")), _number(item.get("index"))
            arguments = function.get("arguments")
            call = self._place(call_id, name, index, arguments, seen)
            if call_id and not call.id:
                call.id = call_id
                self._by_id.setdefault(call_id, call)
            if name:
                call.name = name
            if index is not None:
                call.index = index
                self._by_index[index] = call
            call.append(arguments, self._argument_bytes)
            self._open = call
            seen.append(call)

    def finished(self) -> tuple[ToolCall, ...]:
        """All calls, with ids that are unique; made up where the provider gave none, one twice, or one without measure."""
        used: set[str] = set()
        calls = []
        for call in self._calls:
            if call.empty():
                continue
            call_id = usable_id(call.id, used)
            used.add(call_id)
            # A call without a name cannot be run, whatever its arguments say.
            calls.append(ToolCall(call_id, call.name or "unnamed", parse_arguments(call.text) if call.name else None))
        return tuple(calls)

    def _place(self, call_id: str, name: str, index: int | None, arguments: object, seen: list[OpenCall]) -> OpenCall:
        known = self._by_id.get(call_id) if call_id else None
        at = self._by_index.get(index) if index is not None else None
        if known is not None and at is not None and at.id == call_id:
            # Two calls that were given one id are told apart by their index.
            known = at
        if known in seen and name:
            return self._new(index)
        if known is not None:
            moved = index is not None and known.index is not None and index != known.index
            return self._new(index) if moved and name and index not in self._by_index and known.complete() else known
        current = self._open if index is None else self._by_index.get(index)
        if current is None and index is not None and not call_id and not name and self._open is not None:
            # It was opened without an index and goes on with one.
            current = self._open if self._open.index is None else None
        if current is None:
            return self._new(index)
        if call_id and current.id:
            return self._new(index)
        if current in seen and (name or current.complete()):
            return self._new(index)
        if name and current.name and (name != current.name or _begins(arguments)) and current.complete():
            return self._new(index)
        return current

    def _new(self, index: int | None) -> OpenCall:
        if len(self._calls) >= self._limit:
            raise LimitExceeded("The model asked for too many tool calls at once.")
        call = OpenCall(index)
        self._calls.append(call)
        return call


def _begins(arguments: object) -> bool:
    return isinstance(arguments, dict) or (isinstance(arguments, str) and arguments.lstrip().startswith("{"))


def _word(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return mend(str(value))


def _number(value: object) -> int | None:
    match value:
        case bool():
            return None
        case int():
            return value
        case float() if value.is_integer():
            return int(value)
        case str() if value.isascii() and value.isdigit() and len(value) < 10:
            return int(value)
        case _:
            return None
