"""From what was said to what a model is shown, always well-formed (X4). Pure.

The form is Chat Completions, which providers translate. Every tool call has a result right after it, made up where there
was none; arguments are always a JSON object; whole turns are dropped from the old end above `history_chars`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from app.agents.context import OpenCall, ToolResult
from app.providers.chunks import ToolCall

STOPPED = "(The user stopped your last answer before it was finished.)"
INVALID_ARGUMENTS = "not run: invalid arguments"

Message = dict[str, Any]
Turn = list[Message]


def user_message(parts: Sequence[dict[str, Any]]) -> Message:
    """The user's message: a plain string where it is only text, else its parts."""
    if all(part.get("type") == "text" for part in parts):
        return {"role": "user", "content": "\n\n".join(str(part["text"]) for part in parts)}
    return {"role": "user", "content": [_model_part(part) for part in parts]}


def _model_part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "image_url":
        image = part["image_url"]
        return {"type": "image_url", "image_url": image if isinstance(image, dict) else {"url": image}}
    return {"type": "text", "text": part["text"]}


def assistant_message(
    text: str,
    calls: Sequence[ToolCall] = (),
    *,
    dialect: str = "",
    blocks: list[dict[str, Any]] | None = None,
) -> Message:
    """The assistant's part of a step; broken arguments are shown to the model as an empty object."""
    message: Message = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in calls
        ]
    if blocks:
        message["_blocks"] = {"dialect": dialect, "blocks": blocks}
    return message


def _arguments(arguments: dict[str, Any] | None) -> str:
    return msgspec.json.encode(arguments or {}).decode()


def tool_message(result: ToolResult) -> Message:
    """What the model is told of one call."""
    return {"role": "tool", "tool_call_id": result.tool_call_id, "content": result.content}


def calls_of(message: Message) -> list[OpenCall]:
    """The tool calls of an assistant message, arguments parsed."""
    return [
        OpenCall(id=call["id"], name=call["function"]["name"], arguments=msgspec.json.decode(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]


def completed(messages: Iterable[Message], *, missing: str = "cancelled: the call was not finished") -> list[Message]:
    """The same messages with a result for every tool call and none without its call."""
    done: list[Message] = []
    open_ids: list[str] = []

    def close() -> None:
        done.extend({"role": "tool", "tool_call_id": call_id, "content": missing} for call_id in open_ids)
        open_ids.clear()

    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") in open_ids:
                open_ids.remove(message["tool_call_id"])
                done.append(message)
            continue
        close()
        if message.get("role") == "assistant" and not message.get("content") and not message.get("tool_calls"):
            continue
        done.append(message)
        open_ids.extend(call["id"] for call in message.get("tool_calls") or [])
    close()
    return done


def history(turns: Sequence[Turn], *, max_chars: int) -> list[Message]:
    """The messages of whole turns, oldest first, without the oldest ones that do not fit into `max_chars`."""
    kept: list[Turn] = []
    total = 0
    for turn in reversed(turns):
        whole = completed(turn)
        total += sum(_size(message) for message in whole)
        if total > max_chars:
            break
        kept.append(whole)
    return [message for turn in reversed(kept) for message in turn]


def _size(message: Message) -> int:
    content = message.get("content")
    size = len(content) if isinstance(content, str) else len(msgspec.json.encode(content)) if content else 0
    for call in message.get("tool_calls") or []:
        size += len(call["function"]["name"]) + len(call["function"]["arguments"])
    return size
