"""Results and errors of tools in words that can be shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools import ToolError
from app.tools.wording import clean, cut, encode_result, error_words

ANY_TEXT = st.text(st.characters(exclude_categories=()))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda below: st.lists(below) | st.dictionaries(ANY_TEXT, below),
    max_leaves=8,
)


@given(ANY_TEXT.filter(bool))
def test_cleaned_text_can_always_be_encoded(text: str):
    """Lone surrogates become U+FFFD, halves of a pair one character; sound text stays the same."""
    assert clean(text).encode()
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert clean(text) == text


def test_two_halves_of_a_character_are_joined():
    """A pair of surrogates in a row is the character that they stand for."""
    assert clean("a\ud83d\ude00b") == "a\U0001f600b"
    assert clean("a\ud83db") == "a\ufffdb"


@given(ANY_TEXT.map(clean), st.integers(0, 40))
def test_cut_text_is_a_beginning_of_whole_characters_within_the_limit(text: str, max_bytes: int):
    """Never over the limit, never half a character, and told exactly when something is missing."""
    short, missing = cut(text, max_bytes)
    assert text.startswith(short)
    assert len(short.encode()) <= max_bytes
    assert missing == (short != text)
    if missing:
        assert len(short.encode()) > max_bytes - 4


@given(JSON_VALUES)
def test_json_results_survive_encoding(value: object):
    """What the model is told is the value again; a string is told as it is."""
    encoded = encode_result(value)
    encoded.encode()
    if not isinstance(value, str):
        assert json.loads(encoded) == json.loads(clean(json.dumps(value, ensure_ascii=False)))


def test_results_that_are_no_json_are_refused():
    """NaN, sets, objects, bytes, circles and bottomless nesting are a tool's error, not the service's."""
    circle: list[object] = []
    circle.append(circle)
    deep: list[object] = []
    for _ in range(200_000):
        deep = [deep]
    for value in (float("nan"), float("inf"), {1, 2}, object(), b"x", circle, deep, {"a": object()}, {(1, 2): 3}):
        with pytest.raises(ToolError, match="The tool returned something"):
            encode_result(value)
    # Taken apart by hand: freeing it at once would need as deep a stack.
    while deep:
        deep = deep.pop()  # type: ignore[assignment]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ToolError("Say this, /also/this.py"), "Say this, /also/this.py"),
        (ValueError("first line\nsecond line"), "ValueError: first line"),
        (ValueError(""), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (
            FileNotFoundError(2, "No such file", "/home/ann/secret/x.txt"),
            "FileNotFoundError: [Errno 2] No such file: '…'",
        ),
        (RuntimeError("at C:\\Users\\ann\\x.txt now"), "RuntimeError: at … now"),
        (SyntaxError("bad (invoice.py, line 3)"), "SyntaxError: bad (…, line 3)"),
        (
            OSError("GET https://host.example/a/b failed, 1/2 done"),
            "OSError: GET https://host.example/a/b failed, 1/2 done",
        ),
        (OSError("redis://u:pw@host/0 refused"), "OSError: redis://…host/0 refused"),
        (OSError("header Authorization: Bearer abc.def-1"), "OSError: header Authorization: …"),
        (OSError("key sk-abcdefghijkl wrong"), "OSError: key … wrong"),
        (OSError("https://x.example/?api_key=abcdef"), "OSError: https://x.example/?…"),
        (Mute(), "Mute"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_errors_are_one_line_without_paths_and_keys(error: BaseException, words: str):
    """The exception's name and first line, masked; a `ToolError` speaks for itself."""
    assert error_words(error) == words


def test_long_errors_are_cut():
    """At most 300 characters of text, without the name."""
    assert len(error_words(ValueError("x" * 10_000))) == len("ValueError: ") + 300
