from __future__ import annotations

from typing import Any

import pytest

from app.providers.errors import LimitExceeded
from app.providers.tool_calls import CallAssembler, parse_arguments


def item(index: object = None, call_id: object = None, name: object = None, arguments: object = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    found = {key: value for key, value in (("index", index), ("id", call_id)) if value is not None}
    return {**found, "function": function}


def calls(*deltas: list[Any]) -> list[tuple[str | None, str, object]]:
    """(id, name, arguments), made-up ids as None."""
    assembler = CallAssembler()
    for delta in deltas:
        assembler.add(delta)
    done = assembler.finished()
    assert len({call.id for call in done}) == len(done) == len(assembler)
    return [(None if call.id.startswith("call_") else call.id, call.name, call.arguments) for call in done]


A = ("k1", "a", {"x": 1})
B = ("k2", "b", {"y": 2})

CASES: dict[str, tuple[list[list[Any]], list[Any]]] = {
    "fragments by index": (
        [[item(0, "k1", "a", "")], [item(0, arguments='{"x"')], [item(0, arguments=":1}")]],
        [A],
    ),
    "id in every fragment": ([[item(0, "k1", "a", '{"x"')], [item(0, "k1", arguments=":1}")]], [A]),
    "id and name in every fragment": ([[item(0, "k1", "a", '{"x"')], [item(0, "k1", "a", ":1}")]], [A]),
    "name in every fragment, no id": ([[item(0, None, "a", '{"x"')], [item(0, None, "a", ":1}")]], [(None, *A[1:])]),
    "one id twice in a delta": ([[item(0, "k1", "a", '{"x":1}'), item(1, "k1", "b", '{"y":2}')]], [A, (None, *B[1:])]),
    "one id twice in a delta, then fragments by index": (
        [[item(0, "k1", "a", ""), item(1, "k1", "b", "")], [item(0, arguments='{"x":1}')], [item(1, arguments='{"y":2}')]],
        [A, (None, *B[1:])],
    ),
    "one id twice in a delta, then fragments by both": (
        [
            [item(0, "k1", "a", ""), item(1, "k1", "b", "")],
            [item(1, "k1", arguments='{"y":2}'), item(0, "k1", arguments='{"x":1}')],
        ],
        [A, (None, *B[1:])],
    ),
    "one id twice in a delta at one index": (
        [[item(0, "k1", "a", '{"x":1}'), item(0, "k1", "b", '{"y":2}')]],
        [A, (None, *B[1:])],
    ),
    "one id twice in a delta without an index": (
        [[item(None, "k1", "a", '{"x":1}'), item(None, "k1", "b", '{"y":2}')]],
        [A, (None, *B[1:])],
    ),
    "index drifts under one id": ([[item(0, "k1", "a", '{"x"')], [item(1, "k1", arguments=":1}")]], [A]),
    "new id at an index in use": ([[item(0, "k1", "a", '{"x":1}')], [item(0, "k2", "b", '{"y":2}')]], [A, B]),
    "fragments after a reused index": (
        [[item(0, "k1", "a", '{"x":1}')], [item(0, "k2", "b", '{"y"')], [item(0, arguments=":2}")]],
        [A, B],
    ),
    "interleaved by id alone": (
        [
            [item(None, "k1", "a", '{"x"'), item(None, "k2", "b", '{"y"')],
            [item(None, "k1", arguments=":1}")],
            [item(None, "k2", arguments=":2}")],
        ],
        [A, B],
    ),
    "no index, ids one after the other": (
        [[item(None, "k1", "a", "")], [item(arguments='{"x":1}')], [item(None, "k2", "b", "")], [item(arguments='{"y":2}')]],
        [A, B],
    ),
    "index only from the second fragment on": ([[item(None, "k1", "a", "")], [item(0, arguments='{"x":1}')]], [A]),
    "index only in the first fragment": ([[item(0, "k1", "a", "")], [item(arguments='{"x":1}')]], [A]),
    "index as text or float": ([[item("0", "k1", "a", '{"x"')], [item(0.0, arguments=":1}")]], [A]),
    "late id": ([[item(0, "", "", "")], [item(0, None, "a", '{"x":1}')], [item(0, "k1")]], [A]),
    "empty id and name later": ([[item(0, "k1", "a", '{"x"')], [item(0, "", "", ":1}")]], [A]),
    "nothing but a name, two in one delta": (
        [[item(0, None, "a", '{"x":1}'), item(0, None, "b", '{"y":2}')]],
        [(None, *A[1:]), (None, *B[1:])],
    ),
    "two in one delta without arguments": ([[item(name="a"), item(name="a")]], [(None, "a", {}), (None, "a", {})]),
    "two deltas without ids, each whole": (
        [[item(0, None, "a", '{"x":1}')], [item(0, None, "a", '{"x":1}')]],
        [(None, *A[1:]), (None, *A[1:])],
    ),
    "two fragments of one call in one delta": ([[item(0, "k1", "a", '{"x"'), item(0, arguments=":1}")]], [A]),
    "arguments as an object": ([[item(0, "k1", "a", {"x": 1})]], [A]),
    "empty objects without ids": (
        [[item(name="a", arguments={})], [item(name="b", arguments={})]],
        [(None, "a", {}), (None, "b", {})],
    ),
    "sparse and out of order": ([[item(7, "k1", "a", '{"x":1}')], [item(3, "k2", "b", '{"y":2}')]], [A, B]),
    "two objects in one call": (
        [[item(0, "k1", "a", '{"x":1}')], [item(0, arguments='{"y":2}')]],
        [("k1", "a", None)],
    ),
    "a place that is never filled": ([[item(0, "k1", "a", '{"x":1}'), item(1, "", "", "")]], [A]),
    "no name at all": ([[item(0, "k1", None, '{"x":1}')]], [("k1", "unnamed", None)]),
    "things that are no calls": ([[None, 3, "x", item(0, "k1", "a", '{"x":1}')]], [A]),
    "one id for two calls": (
        [[item(0, "k1", "a", '{"x":1}'), item(1, "k1", "b", '{"y":2}')]],
        [A, (None, *B[1:])],
    ),
    "id as a number": ([[item(0, 17, "a", '{"x":1}')]], [("17", *A[1:])]),
    "the older id goes on": (
        [[item(0, "k1", "a", '{"x"')], [item(0, "k2", "b", '{"y":2}')], [item(0, "k1", arguments=":1}")]],
        [A, B],
    ),
    "a character cut in two": (
        [[item(0, "k1", "a", '{"x":"\ud83d')], [item(0, arguments='\ude80"}')]],
        [("k1", "a", {"x": "\U0001f680"})],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fragments_become_calls(name: str) -> None:
    """The rules for ids, indexes and items give the calls that the model meant, or none that could be wrong."""
    deltas, wanted = CASES[name]
    assert calls(*deltas) == wanted


@pytest.mark.parametrize("text", ["", " ", "\n", "null", "{}", " {} "])
def test_no_arguments_are_an_empty_object(text: str) -> None:
    """Empty, null and missing arguments mean `{}`."""
    assert parse_arguments(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        '{"a":',
        '["a"]',
        '"{}"',
        "1",
        "true",
        '{"a":1}{"b":2}',
        '{"a":1} x',
        "{'a':1}",
        '{"a":NaN}',
        "[" * 9999,
        '{"a":' * 9999,
    ],
)
def test_what_is_no_object_is_never_mended(text: str) -> None:
    """X3: arguments that are cut off or are not a JSON object are None, never a guess and never another exception."""
    assert parse_arguments(text) is None


def test_lone_surrogates_in_arguments_become_replacement_characters() -> None:
    """What a tool gets can always be encoded; a whole escape pair stays a character."""
    assert parse_arguments('{"\\ud83d":["\\ude80","\\ud83d\\ude80"]}') == {"\ufffd": ["\ufffd", "\U0001f680"]}


def test_caps_on_calls_and_arguments_are_errors() -> None:
    """Too many calls, and arguments that are too large over all fragments, end the stream."""
    assembler = CallAssembler(argument_bytes=10, calls=2)
    assembler.add([item(0, "k1", "a", "x" * 10), item(1, "k2", "b")])
    with pytest.raises(LimitExceeded):
        assembler.add([item(0, arguments="x")])
    with pytest.raises(LimitExceeded):
        assembler.add([item(2, "k3", "c")])
