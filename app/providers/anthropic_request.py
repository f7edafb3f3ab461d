"""Chat Completions messages in the form of Anthropic's Messages API. Pure.

What that API refuses never goes out: empty text, two messages of one role in a row, results that do not follow their
call at once, ids with other characters, thinking without its signature, an answer that ends in thinking.
"""

from __future__ import annotations

import re
from typing import Any

from app.providers.provider import ModelRequest
from app.providers.tool_calls import parse_arguments

Block = dict[str, Any]
DIALECT = "anthropic"
_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^,]*)?;base64,(.*)", re.DOTALL)


def anthropic_body(request: ModelRequest) -> dict[str, Any]:
    """The request's JSON body, streaming."""
    messages = anthropic_messages(request.messages)
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_output_tokens,
        "messages": messages,
        "stream": True,
    }
    system = "\n\n".join(filter(None, (_plain(m.get("content")) for m in request.messages if _is_system(m))))
    if system.strip():
        body["system"] = system
    tools = [{"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in request.tools]
    if not tools and (names := _used_tools(messages)):
        # A history with calls is refused where no tools are named.
        tools = [{"name": name, "description": "", "input_schema": {"type": "object"}} for name in names]
        body["tool_choice"] = {"type": "none"}
    if tools:
        body["tools"] = tools
    return body


def anthropic_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without the system's, roles alternating, the first a user's."""
    out: list[dict[str, Any]] = []
    for message in messages:
        if _is_system(message):
            continue
        match message.get("role"):
            case "assistant":
                role, blocks = "assistant", _assistant(message)
            case "tool":
                role, blocks = "user", [_result(message)]
            case _:
                role, blocks = "user", _content(message.get("content"))
        if not blocks:
            continue
        if out and out[-1]["role"] == role:
            out[-1]["content"].extend(blocks)
        else:
            out.append({"role": role, "content": blocks})
    if out and out[0]["role"] == "assistant":
        out.insert(0, {"role": "user", "content": [{"type": "text", "text": "(earlier messages are left out)"}]})
    return out


def wire_id(call_id: object) -> str:
    """A tool call's id in the characters that the API takes; the same for the call and its result."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", str(call_id)) or "call"


def _is_system(message: dict[str, Any]) -> bool:
    return message.get("role") in ("system", "developer")


def _assistant(message: dict[str, Any]) -> list[Block]:
    calls = [call for call in message.get("tool_calls") or [] if isinstance(call, dict)]
    wanted = {wire_id(call.get("id")): call for call in calls}
    own = message.get("_blocks")
    if isinstance(own, dict) and own.get("dialect") == DIALECT:
        blocks = [sent for block in own.get("blocks") or [] if (sent := _own_block(block, wanted)) is not None]
        there = {block["id"] for block in blocks if block["type"] == "tool_use"}
        blocks += [_use(call_id, call) for call_id, call in wanted.items() if call_id not in there]
    else:
        blocks = _content(message.get("content")) + [_use(call_id, call) for call_id, call in wanted.items()]
    if not any(block["type"] in ("text", "tool_use") for block in blocks):
        return []
    while blocks[-1]["type"] in ("thinking", "redacted_thinking"):
        blocks.pop()
    return blocks


def _own_block(block: Any, wanted: dict[str, dict[str, Any]]) -> Block | None:
    """A block that this dialect made, as it goes back; None for one that would be refused."""
    if not isinstance(block, dict):
        return None
    match block.get("type"):
        case "thinking":
            return block if block.get("signature") else None
        case "redacted_thinking":
            return block
        case "text":
            return block if str(block.get("text") or "").strip() else None
        case "tool_use":
            call_id = wire_id(block.get("id"))
            value = block.get("input")
            sent = {**block, "id": call_id, "input": value if isinstance(value, dict) else {}}
            return sent if call_id in wanted else None
        case _:
            return None


def _use(call_id: str, call: dict[str, Any]) -> Block:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    value = arguments if isinstance(arguments, dict) else parse_arguments(str(arguments or ""))
    return {"type": "tool_use", "id": call_id, "name": function.get("name") or "unnamed", "input": value or {}}


def _result(message: dict[str, Any]) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": wire_id(message.get("tool_call_id"))}
    if content := _content(message.get("content")):
        block["content"] = content[0]["text"] if len(content) == 1 and content[0]["type"] == "text" else content
    return block


def _content(content: object) -> list[Block]:
    parts = content if isinstance(content, list) else [content]
    return [block for part in parts if (block := _part(part)) is not None]


def _part(part: object) -> Block | None:
    if isinstance(part, str):
        return {"type": "text", "text": part} if part.strip() else None
    if not isinstance(part, dict):
        return None
    if part.get("type") == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        return _image(url) if isinstance(url, str) else None
    return _part(part.get("text")) if isinstance(part.get("text"), str) else None


def _image(url: str) -> Block:
    if found := _DATA_URL.fullmatch(url):
        media = found.group(1) or "image/png"
        return {"type": "image", "source": {"type": "base64", "media_type": media, "data": found.group(2)}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def _plain(content: object) -> str:
    return "\n\n".join(block["text"] for block in _content(content) if block["type"] == "text")


def _used_tools(messages: list[dict[str, Any]]) -> list[str]:
    blocks = [block for message in messages for block in message["content"]]
    return list(dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use"))
