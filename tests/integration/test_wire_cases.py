"""Recorded faults of real endpoints, played by a real HTTP server through provider and think filter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.agents.think_tags import SurrogateJoiner, ThinkFilter
from app.limits.cancel import Cancel
from app.providers.anthropic_messages import AnthropicMessages
from app.providers.chunks import Reasoning, StepEnd, Text
from app.providers.errors import ProviderError, StreamIncomplete
from app.providers.openai_chat import OpenAIChat
from app.providers.provider import ModelRequest, Provider
from tests.upstream import Raw, Upstream

WIRE = Path(__file__).parent.parent / "data" / "wire"
CASES = {case["file"]: case for case in json.loads((WIRE / "index.json").read_text())}
HUGE = 20_000
CUTS: dict[str, dict[str, int]] = {
    "whole": {},
    "byte by byte": {"size": 1},
    "random": {"seed": 1},
    "random too": {"seed": 2},
}


def provider_for(dialect: str, url: str) -> Provider:
    kind = OpenAIChat if dialect == "openai" else AnthropicMessages
    return kind(base_url=url, api_key="sk-made-up-key")


def outcome(provider: Provider) -> dict[str, Any]:
    """What comes of one call, in the words of the expected files."""
    request = ModelRequest(model="m", messages=[{"role": "user", "content": "go"}], tools=[], max_output_tokens=100)
    text: list[str] = []
    reasoning: list[str] = []
    think, joiner = ThinkFilter(), SurrogateJoiner()
    finish, error, calls = "incomplete", None, []

    def sort(parts: list[tuple[str, str]]) -> None:
        for kind, piece in parts:
            (text if kind == "text" else reasoning).append(piece)

    try:
        for chunk in provider.stream(request, Cancel()):
            match chunk:
                case Text(piece):
                    sort(think.feed(piece))
                case Reasoning(piece):
                    reasoning.append(joiner.feed(piece))
                case StepEnd():
                    finish = chunk.finish
                    if any(call.arguments is None for call in chunk.tool_calls):
                        error = "invalid_tool_arguments"
                    else:
                        calls = list(chunk.tool_calls)
    except StreamIncomplete as failure:
        error = failure.code
    except ProviderError as failure:
        finish, error = "error", failure.code
    sort(think.flush())
    reasoning.append(joiner.flush())
    return {
        "text": "".join(text),
        "reasoning": "".join(reasoning),
        "tool_calls": [(call.id, call.name, call.arguments) for call in calls],
        "finish": finish,
        "error": error,
    }


@pytest.fixture(scope="module")
def upstreams() -> Iterator[tuple[Upstream, dict[str, Raw], dict[str, Provider]]]:
    scripts: dict[str, Raw] = {}
    with Upstream(lambda request: [scripts[request.dialect]]) as upstream:
        providers = {dialect: provider_for(dialect, upstream.url) for dialect in ("openai", "anthropic")}
        yield upstream, scripts, providers
        for provider in providers.values():
            provider.close()


# The long ones are taken byte by byte in the decoder's own test; over a socket that is a write for each byte.
WAYS = [
    (name, cut) for name in CASES for cut in CUTS if cut != "byte by byte" or (WIRE / f"{name}.sse").stat().st_size <= HUGE
]


@pytest.mark.parametrize(("name", "cut"), WAYS)
def test_recorded_stream_becomes_what_is_expected_of_it(name: str, cut: str, upstreams: Any) -> None:
    """However the bytes are cut into writes, a recorded stream gives the expected text, calls and ending."""
    _, scripts, providers = upstreams
    data = (WIRE / f"{name}.sse").read_bytes()
    expected = json.loads((WIRE / f"{name}.expected.json").read_text())
    scripts[CASES[name]["dialect"]] = Raw(data, **CUTS[cut])
    got = outcome(providers[CASES[name]["dialect"]])

    wanted = [(call["id"], call["name"], json.loads(call["arguments"])) for call in expected["tool_calls"]]
    given = [
        (None if want[0] is None else call[0], *call[1:]) for call, want in zip(got["tool_calls"], wanted, strict=False)
    ]
    assert given == wanted
    assert len(got["tool_calls"]) == len({call[0] for call in got["tool_calls"]}) == len(wanted)
    assert {key: got[key] for key in ("text", "reasoning", "finish", "error")} == {
        key: expected[key] for key in ("text", "reasoning", "finish", "error")
    }
