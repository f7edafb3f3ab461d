"""Words on their way to the stage, and what a model is shown of the past (X4, PROTOCOL 9, section 8 `answer_chars`)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agents.context import ToolResult
from app.agents.speech import AnswerTooLong, Speech
from app.agents.transcript import assistant_message, calls_of, completed, history, tool_message, user_message
from app.events.types import ReasoningDelta, TextDelta
from app.providers.chunks import ToolCall
from tests.performers import NotingStage


def said(stage: NotingStage) -> list[tuple[int, str]]:
    """Text by block, neighbouring pieces joined."""
    blocks: list[tuple[int, str]] = []
    for event in stage.of(TextDelta):
        if blocks and blocks[-1][0] == event.block:
            blocks[-1] = (event.block, blocks[-1][1] + event.text)
        else:
            blocks.append((event.block, event.text))
    return blocks


# -- speech


@given(st.lists(st.one_of(st.none(), st.text(st.sampled_from("ab <🐤"), max_size=4)), max_size=30))
def test_blocks_are_the_texts_between_boundaries(moves: list[str | None]) -> None:
    """PROTOCOL 3, 9: text after a boundary opens the next block, from 1; `""` is nothing; a boundary with no text since the
    last one opens nothing; no text is lost or changed."""
    stage = NotingStage()
    speech = Speech(stage, max_chars=10_000)
    expected: list[str] = [""]
    for move in moves:
        if move is None:
            speech.boundary()
            expected.append("")
        else:
            speech.say(move)
            expected[-1] += move
    speech.flush()
    assert said(stage) == [(n + 1, text) for n, text in enumerate(text for text in expected if text)]


@given(st.text(st.sampled_from("ab<thinkhi>/ "), max_size=30), st.lists(st.integers(1, 5), max_size=20))
def test_any_cutting_of_the_text_gives_the_same_words(text: str, cuts: list[int]) -> None:
    """Think tags over every border: answer and thinking do not depend on how the provider cuts."""
    results = []
    for sizes in ([len(text) or 1], cuts or [1], [1]):
        stage = NotingStage()
        speech = Speech(stage, max_chars=10_000)
        rest, turn = text, 0
        while rest:
            size = sizes[turn % len(sizes)]
            speech.say(rest[:size])
            rest, turn = rest[size:], turn + 1
        speech.flush()
        results.append((said(stage), stage.thoughts))
    assert results[0] == results[1] == results[2]


@given(st.lists(st.text(st.sampled_from("abc🐤 "), max_size=8), max_size=10), st.integers(0, 30))
def test_the_answer_is_held_to_its_limit(pieces: list[str], limit: int) -> None:
    """Section 8: what fits is said to the last character, then the stream is stopped; reasoning is not counted."""
    stage = NotingStage()
    speech = Speech(stage, max_chars=limit)
    whole = "".join(pieces)
    speech.think("t" * 100)
    try:
        for piece in pieces:
            speech.say(piece)
    except AnswerTooLong:
        assert len(whole) > limit
    else:
        assert len(whole) <= limit
    assert stage.text == whole[:limit]


def test_what_was_said_before_counts_for_a_turn_that_goes_on() -> None:
    """Recovery: block numbers and the limit go on where the dead process was."""
    stage = NotingStage()
    speech = Speech(stage, max_chars=10, chars=8, block=3)
    with pytest.raises(AnswerTooLong):
        speech.say("four")
    assert said(stage) == [(4, "fo")]


def test_reasoning_carries_the_number_of_the_block_that_it_leads_to() -> None:
    """PROTOCOL 3, reasoning_delta."""
    stage = NotingStage()
    speech = Speech(stage, max_chars=100)
    speech.think("a")
    speech.say("x")
    speech.think("b")
    speech.boundary()
    speech.think("c")
    speech.say("<think>d</think>y")
    speech.flush()
    assert [(e.block, e.text) for e in stage.of(ReasoningDelta)] == [(1, "a"), (1, "b"), (2, "c"), (2, "d")]
    assert said(stage) == [(1, "x"), (2, "y")]


@pytest.mark.parametrize(
    ("pieces", "text", "thoughts"),
    [
        (["a <thi"], "a <thi", ""),
        (["<thi"], "<thi", ""),
        (["<think>secret"], "", "secret"),
        (["<think>se</thi"], "", "se</thi"),
    ],
)
def test_before_an_ending_what_is_held_is_let_go(pieces: list[str], text: str, thoughts: str) -> None:
    """PROTOCOL 9: a held piece that is no tag becomes text, an open tag's content stays reasoning."""
    stage = NotingStage()
    speech = Speech(stage, max_chars=100)
    for piece in pieces:
        speech.say(piece)
    speech.flush()
    speech.flush()
    assert (stage.text, stage.thoughts) == (text, thoughts)


def test_halves_of_a_character_are_joined_over_deltas() -> None:
    """F4: a pair that was cut is one character; a half that stays alone is U+FFFD."""
    stage = NotingStage()
    speech = Speech(stage, max_chars=100)
    for piece in ("a\ud83d", "\udc24b", "\ud83d"):
        speech.say(piece)
        speech.think(piece)
    speech.flush()
    assert stage.text == stage.thoughts == "a🐤b\ufffd"


def test_a_steps_text_is_taken_once() -> None:
    """What one step said goes into the history with its calls, and not again with the next."""
    speech = Speech(NotingStage(), max_chars=100)
    speech.say("one")
    assert speech.take_step_text() == "one"
    speech.boundary()
    speech.say("two")
    assert (speech.take_step_text(), speech.take_step_text()) == ("two", "")


# -- transcript (X4)

ids = st.sampled_from(["c1", "c2", "c3", "c4"])


@st.composite
def messages(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Any mixture of user messages, steps with calls, results that are missing, doubled or strange."""
    found: list[dict[str, Any]] = []
    for kind in draw(st.lists(st.sampled_from("uasr"), max_size=12)):
        match kind:
            case "u":
                found.append(user_message([{"type": "text", "text": "hi"}]))
            case "a":
                found.append(assistant_message(draw(st.sampled_from(["", "text"]))))
            case "s":
                calls = [ToolCall(id=i, name="t", arguments={"a": 1}) for i in draw(st.lists(ids, min_size=1, unique=True))]
                found.append(assistant_message(draw(st.sampled_from(["", "text"])), calls))
            case "r":
                found.append(tool_message(ToolResult(tool_call_id=draw(ids), status="ok", content="r")))
    return found


def check_well_formed(found: list[dict[str, Any]]) -> None:
    """Chat Completions' own rule: after a step exactly one result for each of its calls, and results nowhere else."""
    owed: list[str] = []
    for message in found:
        if message["role"] == "tool":
            assert message["tool_call_id"] in owed, "a result without its call"
            owed.remove(message["tool_call_id"])
            continue
        assert not owed, "a call without its result"
        if message["role"] == "assistant":
            assert message["content"] or message.get("tool_calls"), "an empty assistant message"
            owed = [call["id"] for call in message.get("tool_calls") or []]
            for call in message.get("tool_calls") or []:
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert not owed


@given(messages())
def test_any_mixture_becomes_well_formed(given_messages: list[dict[str, Any]]) -> None:
    """X4: a result for every call, made up where there was none; nothing else is lost, order is kept."""
    done = completed(given_messages)
    check_well_formed(done)
    spoken = [m for m in given_messages if m["role"] != "tool" and (m["role"] != "assistant" or len(m) > 2 or m["content"])]
    assert [m for m in done if m["role"] != "tool"] == spoken
    assert completed(done) == done


@given(st.lists(messages(), max_size=6), st.integers(0, 200))
def test_whole_turns_are_dropped_from_the_old_end(turns: list[list[dict[str, Any]]], max_chars: int) -> None:
    """X4, `history_chars`: what is left are the newest turns, whole and well-formed, as many as fit."""
    kept = history(turns, max_chars=max_chars)
    check_well_formed(kept)
    endings = [[m for turn in turns[start:] for m in completed(turn)] for start in range(len(turns) + 1)]
    assert kept in endings
    sizes = [sum(size(m) for m in ending) for ending in endings]
    assert size_of(kept) <= max_chars
    assert size_of(kept) == max(one for one in sizes if one <= max_chars)


def size(message: dict[str, Any]) -> int:
    calls = message.get("tool_calls") or []
    return len(message.get("content") or "") + sum(
        len(call["function"]["name"]) + len(call["function"]["arguments"]) for call in calls
    )


def size_of(found: list[dict[str, Any]]) -> int:
    return sum(size(message) for message in found)


def test_broken_arguments_are_shown_as_an_empty_object() -> None:
    """X3, X4: a history that holds half a JSON object would be refused by every endpoint for ever."""
    message = assistant_message("", [ToolCall(id="c1", name="t", arguments=None)])
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"
    assert [(c.id, c.name, c.arguments) for c in calls_of(message)] == [("c1", "t", {})]


@pytest.mark.parametrize("arguments", [{"n": 10**30}, {"s": "\x00\u2028🐤"}, {"deep": [[[{"a": None}]]]}, {"f": 1.5e300}])
def test_arguments_come_back_as_they_were(arguments: dict[str, Any]) -> None:
    """From the step in the journal to the call that runs after a crash: the same JSON values."""
    [call] = calls_of(assistant_message("x", [ToolCall(id="c", name="t", arguments=arguments)]))
    assert call.arguments == arguments


def test_user_input_of_text_is_a_string_and_of_pictures_is_parts() -> None:
    """H1: a string or a list of parts; `image_url` in both spellings."""
    assert user_message([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])["content"] == "a\n\nb"
    mixed = user_message(
        [
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": "u"},
            {"type": "image_url", "image_url": {"url": "v"}},
        ]
    )
    assert mixed["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "image_url", "image_url": {"url": "v"}},
    ]
