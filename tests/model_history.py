"""What is wrong with the messages that a model was sent, judged as strict endpoints do (X4)."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from tests.upstream import Request


def faults_of(request: Request) -> list[str]:
    """Everything for which an endpoint would refuse this history; empty when it is well-formed."""
    messages = request.body["messages"]
    faults = _openai(messages) if request.dialect == "openai" else _anthropic(messages)
    spoken = [message for message in messages if message["role"] != "system"]
    if not spoken or spoken[0]["role"] != "user":
        faults.append("it does not begin with the user")
    return faults


def tool_results(request: Request) -> dict[str, str]:
    """The results in the history, by call."""
    if request.dialect == "openai":
        return {m["tool_call_id"]: m["content"] for m in request.body["messages"] if m["role"] == "tool"}
    return {
        part["tool_use_id"]: part["content"] if isinstance(part["content"], str) else json.dumps(part["content"])
        for message in request.body["messages"]
        for part in _parts(message)
        if part["type"] == "tool_result"
    }


def _openai(messages: list[dict[str, Any]]) -> list[str]:
    faults: list[str] = []
    open_ids: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                faults.append(f"a result without its call: {message['tool_call_id']}")
            else:
                open_ids.remove(message["tool_call_id"])
            if not isinstance(message["content"], str):
                faults.append("a result that is no text")
            continue
        if open_ids:
            faults.append(f"calls without results: {open_ids}")
        calls = message.get("tool_calls") or []
        open_ids = [call["id"] for call in calls]
        if seen & set(open_ids) or len(set(open_ids)) < len(open_ids):
            faults.append(f"an id used twice: {open_ids}")
        seen |= set(open_ids)
        if any(not isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls):
            faults.append("arguments that are no object")
        if not message.get("content") and not calls:
            faults.append(f"an empty message of the {message['role']}")
    if open_ids:
        faults.append(f"calls without results: {open_ids}")
    return faults


def _anthropic(messages: list[dict[str, Any]]) -> list[str]:
    faults: list[str] = []
    open_ids: list[str] = []
    for message in messages:
        parts = _parts(message)
        results = [part["tool_use_id"] for part in parts if part["type"] == "tool_result"]
        if sorted(results) != sorted(open_ids):
            faults.append(f"results {results} for the calls {open_ids}")
        if any(part["type"] == "text" and not part["text"].strip() for part in parts) or not parts:
            faults.append("a blank text")
        calls = [part for part in parts if part["type"] == "tool_use"]
        open_ids = [part["id"] for part in calls]
        if any(not isinstance(part["input"], dict) for part in calls):
            faults.append("an input that is no object")
    if open_ids:
        faults.append(f"calls without results: {open_ids}")
    roles = [message["role"] for message in messages]
    if any(one == two for one, two in pairwise(roles)):
        faults.append(f"the roles do not alternate: {roles}")
    return faults


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
