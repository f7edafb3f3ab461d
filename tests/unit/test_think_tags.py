from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agents.think_tags import SurrogateJoiner, ThinkFilter


def told_apart(*pieces: str) -> tuple[str, str]:
    """(text, reasoning) of the pieces."""
    think = ThinkFilter()
    parts = [part for piece in pieces for part in think.feed(piece)] + think.flush()
    assert all(words for _, words in parts)
    return tuple("".join(words for kind, words in parts if kind == wanted) for wanted in ("text", "reasoning"))  # type: ignore[return-value]


GOLDEN = {
    "no tag": ("Hello <b>you</b>", ("Hello <b>you</b>", "")),
    "one block": ("<think>weigh it</think>Answer", ("Answer", "weigh it")),
    "white space stays": (" \n<think>a</think>\n\nB", (" \n\n\nB", "a")),
    "thinking": ("<thinking>a < b</thinking>B", ("B", "a < b")),
    "either closes the other": ("<think>a</thinking>B", ("B", "a")),
    "any case": ("<THINK>a</Think>B", ("B", "a")),
    "several blocks": ("<think>a</think> <think>b</think>C", (" C", "ab")),
    "empty block": ("<think></think>B", ("B", "")),
    "orphan closers": ("</think>\n</thinking>B", ("\nB", "")),
    "never closed": ("<think>all of it", ("", "all of it")),
    "late tags are text": ("A <think>b</think>", ("A <think>b</think>", "")),
    "late tag after a block": ("<think>a</think>B</think>", ("B</think>", "a")),
    "partial tag at the end": ("<thi", ("<thi", "")),
    "partial tag late": ("use the <thi", ("use the <thi", "")),
    "partial closer at the end": ("<think>a</thi", ("", "a</thi")),
    "no tag after all": ("<thinker>x", ("<thinker>x", "")),
    "openers inside are thinking": ("<think>a<think>b</think>C", ("C", "a<think>b")),
    "closers that are none": ("<think>a</thin</thinkx></think>C", ("C", "a</thin</thinkx>")),
    "two brackets": ("<<think>a", ("<<think>a", "")),
    "letters that only look alike": ("<thin\u212a>a", ("<thin\u212a>a", "")),
    "nothing": ("", ("", "")),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_thinking_is_taken_out_of_the_head(name: str) -> None:
    """Each form of tag gives its text and thinking, whole and letter by letter."""
    words, wanted = GOLDEN[name]
    assert told_apart(words) == wanted
    assert told_apart(*words) == wanted


tokens = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<thinking>",
        "</Thinking>",
        "<",
        "</",
        "think",
        ">",
        "<thi",
        " ",
        "\n",
        "a",
        "B",
        "é",
        "🚀",
        "�",
        "�",
    ]
)


@given(st.lists(tokens, max_size=20).map("".join), st.lists(st.integers(0, 100), max_size=10))
def test_any_cutting_gives_the_same_text_and_thinking(words: str, cuts: list[int]) -> None:
    """Where the deltas end does not change a letter."""
    places = sorted({0, len(words), *(cut for cut in cuts if cut < len(words))})
    pieces = [words[a:b] for a, b in pairwise(places)]
    assert told_apart(*pieces) == told_apart(words)


@given(st.lists(tokens, max_size=20))
def test_what_comes_out_can_be_encoded(pieces: list[str]) -> None:
    """No lone surrogate leaves the filter."""
    for words in told_apart(*pieces):
        words.encode()


def test_only_what_may_become_a_tag_is_held_back() -> None:
    """A piece is given on at once as soon as it cannot be a tag."""
    think = ThinkFilter()
    assert think.feed("<") == []
    assert think.feed("th") == []
    assert think.feed("e") == [("text", "<the")]
    assert think.feed("<think>") == [("text", "<think>")]
    think = ThinkFilter()
    assert think.feed("<think>a <") == [("reasoning", "a ")]
    assert think.feed("b") == [("reasoning", "<b")]


def test_character_cut_in_two_is_joined() -> None:
    """A surrogate pair over two pieces is one character; a half that stays alone is U+FFFD, also at the end."""
    joiner = SurrogateJoiner()
    assert joiner.feed("ok \ud83d") == "ok "
    assert joiner.feed("\ude80!") == "\U0001f680!"
    assert joiner.feed("\ude80 \ud83d") == "\ufffd "
    assert joiner.feed("x\ud83d") == "\ufffdx"
    assert joiner.flush() == "\ufffd"
    assert joiner.flush() == ""
    assert told_apart("a\ud83d") == ("a\ufffd", "")
    assert told_apart("<think>a\ud83d", "\ude80</think>b\ud83d", "\ude80") == ("b\U0001f680", "a\U0001f680")
