"""What `@tool` makes of a function: the schema that the model sees, and the arguments that the function gets."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from app.errors import ConfigError
from app.tools import Tool, ToolContext, ToolError, tool

if TYPE_CHECKING:
    import app.tools as later_tools


class Line(BaseModel):
    title: str
    cents: int


class Kind(Enum):
    CASH = "cash"
    CARD = "card"


@tool(title="Creating the invoice", timeout=20, redact=("iban",))
def create_invoice(
    ctx: ToolContext,
    customer: str,
    amount: float,
    lines: list[Line],
    kind: Kind = Kind.CARD,
    iban: str | None = None,
    urgency: Annotated[int, Field(ge=1, le=5, description="5 is at once")] = 1,
) -> dict:
    """Create an invoice.

    Numbers are given without gaps.

    Args:
        customer: who pays,
            by name.
        amount (float): the sum in euros.

    Returns:
        The number of the invoice.
    """
    return {"customer": customer, "amount": amount, "cents": lines[0].cents, "kind": kind.name, "urgency": urgency}


GOOD = {"customer": "ACME", "amount": 12, "lines": [{"title": "work", "cents": 1200}]}


def test_docstring_and_type_hints_become_what_the_model_sees():
    """The text before the sections is the description, `Args:` the fields' descriptions; the context is not shown."""
    assert create_invoice.name == "create_invoice"
    assert create_invoice.title == "Creating the invoice"
    assert create_invoice.description == "Create an invoice.\n\nNumbers are given without gaps."
    schema = create_invoice.schema
    assert schema["type"] == "object"
    assert schema["required"] == ["customer", "amount", "lines"]
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == ["customer", "amount", "lines", "kind", "iban", "urgency"]
    assert schema["properties"]["customer"] == {"type": "string", "description": "who pays, by name."}
    assert schema["properties"]["amount"] == {"type": "number", "description": "the sum in euros."}
    assert schema["properties"]["urgency"]["description"] == "5 is at once"
    # A property that is called `title` is not taken for pydantic's own titles, which are left out.
    assert set(schema["$defs"]["Line"]["properties"]) == {"title", "cents"}
    assert "title" not in schema
    assert "title" not in schema["properties"]["customer"]


def test_validated_arguments_have_the_types_of_the_hints_and_leave_defaults_to_the_function():
    """The function gets its own classes, not dicts, and its own defaults where the model said nothing."""
    values = create_invoice.validate(GOOD)
    assert values == {"customer": "ACME", "amount": 12.0, "lines": [Line(title="work", cents=1200)]}
    assert create_invoice.call(ToolContext(), values) == {
        "customer": "ACME", "amount": 12.0, "cents": 1200, "kind": "CARD", "urgency": 1,
    }  # fmt: skip
    assert create_invoice.validate(GOOD | {"kind": "cash"})["kind"] is Kind.CASH


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"amount": {}}, "Invalid arguments: amount: Input should be a valid number."),
        ({"customer": 7}, "Invalid arguments: customer: Input should be a valid string."),
        ({"lines": [{"title": "x", "cents": "many"}]}, "lines.0.cents: Input should be a valid integer"),
        ({"currency": "USD"}, "Invalid arguments: currency: there is no such argument."),
        ({"ctx": 1}, "Invalid arguments: ctx: there is no such argument."),
        ({"urgency": 9}, "urgency: Input should be less than or equal to 5"),
        ({"\ud800": 1}, "Invalid arguments: "),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_words_for_the_model(change: dict[str, Any], sentence: str):
    """The sentence names the argument and the rule, and can be encoded; it does not repeat the value."""
    with pytest.raises(ToolError) as caught:
        create_invoice.validate(GOOD | change)
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message
    assert "errors.pydantic" not in caught.value.message
    caught.value.message.encode()


def test_missing_argument_is_named():
    """A missing argument is said as such."""
    with pytest.raises(ToolError, match="amount: this argument is required"):
        create_invoice.validate({"customer": "x", "lines": []})


def test_decorated_function_is_still_a_plain_function_for_tests():
    """Calling the tool calls the function, and it looks like it."""

    @tool
    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert isinstance(add, Tool)
    assert add(1) == 3
    assert add(a=1, b=1) == 2
    assert (add.__name__, add.__doc__) == ("add", "Add.")  # type: ignore[attr-defined]
    assert list(inspect.signature(add).parameters) == ["a", "b"]
    assert (add.side_effects, add.timeout, add.approval, add.is_async, add.title) == (
        "unsafe",
        None,
        False,
        False,
        "Add",
    )


def test_context_is_found_by_annotation_or_as_a_first_parameter_called_ctx():
    """Annotated anywhere, also where the name is imported for type checkers only; unannotated only first."""

    @tool
    def last(value: str, context: ToolContext) -> str:
        return f"{value} {context.user_id}"

    @tool
    def bare(ctx, value: str) -> str:
        return f"{value} {ctx.user_id}"

    @tool
    def later(c: later_tools.ToolContext, value: str) -> str:
        return f"{value} {c.user_id}"

    for one in (last, bare, later):
        assert list(one.schema["properties"]) == ["value"]
        assert one.call(ToolContext(user_id="ann"), one.validate({"value": "x"})) == "x ann"


def test_arguments_may_have_names_that_pydantic_or_python_use_for_themselves():
    """`schema`, `copy`, `model_x` and `self` are names like any other."""

    @tool
    def odd(schema: str, copy: str, json: str, model_config: str, self: str, name: str) -> str:
        return schema + copy + json + model_config + self + name

    names = ["schema", "copy", "json", "model_config", "self", "name"]
    assert list(odd.schema["properties"]) == names
    assert odd.call(ToolContext(), odd.validate(dict.fromkeys(names, "x"))) == "xxxxxx"


def test_local_classes_are_found_although_annotations_are_strings():
    """This module has `from __future__ import annotations`: hints are resolved where the function is defined."""

    class Local(BaseModel):
        n: int

    @tool
    def uses_local(value: Local, mode: Literal["a", "b"] = "a") -> int:
        return value.n

    assert uses_local.call(ToolContext(), uses_local.validate({"value": {"n": 3}})) == 3
    assert uses_local.schema["properties"]["mode"]["enum"] == ["a", "b"]


def test_schema_by_hand_lets_a_function_take_any_arguments():
    """Names that are Python's keywords arrive; required, unknown and top-level types are checked."""

    @tool(
        schema={
            "type": "object",
            "properties": {"from": {"type": "string"}, "count": {"type": ["integer", "null"]}},
            "required": ["from"],
            "additionalProperties": False,
        }
    )
    def move(ctx: ToolContext, **arguments: Any) -> dict:
        return arguments

    assert move.call(ToolContext(), move.validate({"from": "a", "count": None})) == {"from": "a", "count": None}
    for wrong, words in [
        ({}, "from: this argument is required"),
        ({"from": 1}, "from: Input should be of type string"),
        ({"from": "a", "count": True}, "count: Input should be of type integer or null"),
        ({"from": "a", "to": "b"}, "to: there is no such argument"),
    ]:
        with pytest.raises(ToolError, match=words):
            move.validate(wrong)


def test_schema_by_hand_cannot_smuggle_in_a_context():
    """An argument that has the name of the context parameter is refused, not passed twice."""

    @tool(schema={"type": "object"})
    def anything(ctx: ToolContext, **arguments: Any) -> dict:
        return arguments

    with pytest.raises(ToolError, match="ctx: there is no such argument"):
        anything.validate({"ctx": 1})


@given(st.dictionaries(st.text(max_size=5), st.recursive(st.none() | st.floats() | st.text(), st.lists, max_leaves=5)))
def test_whatever_a_model_sends_is_accepted_or_refused_in_words(arguments: dict[str, Any]):
    """No arguments make anything but a `ToolError` come out, and its sentence can be encoded."""
    try:
        create_invoice.validate(arguments)
    except ToolError as error:
        error.message.encode()
        assert error.message.startswith("Invalid arguments: ")


def test_wrong_definitions_are_refused_with_the_name_of_the_tool():
    """Each mistake is found where the tool is defined, not when a model calls it."""

    def no_hint(value):
        """Has no hint."""

    def many(*values: str):
        """Takes any number."""

    def named(**values: str):
        """Takes any name."""

    def only(value: str, /):
        """Takes it by position."""

    def unknown(value: Nowhere):  # type: ignore[name-defined]  # noqa: F821
        """Has a hint that does not exist."""

    def foreign(value: inspect.Signature):
        """Has a hint that no schema can describe."""

    def yields(value: str):
        yield value

    async def yields_too(value: str):
        yield value

    def fine(value: str):
        """Is fine."""

    cases: list[tuple[Any, dict[str, Any], str]] = [
        (no_hint, {}, "tool 'no_hint': parameter 'value' has no type hint"),
        (many, {}, "tool 'many': 'values' cannot be passed by its name"),
        (named, {}, "tool 'named': .*schema="),
        (only, {}, "tool 'only': 'value' cannot be passed by its name"),
        (unknown, {}, "tool 'unknown': the type hint of 'value'.*Nowhere"),
        (foreign, {}, "tool 'foreign': the model cannot be told"),
        (yields, {}, "tool 'yields': .*yield"),
        (yields_too, {}, "tool 'yields_too': .*yield"),
        (lambda: None, {}, "tool '<lambda>': a name has"),
        (Line, {}, "only a function"),
        (fine, {"name": "a b"}, "tool 'a b': a name has"),
        (fine, {"name": "x" * 65}, "a name has"),
        (fine, {"name": ""}, "a name has"),
        (fine, {"side_effects": "some"}, "tool 'fine': side_effects"),
        (fine, {"timeout": 0}, "tool 'fine': timeout"),
        (fine, {"timeout": float("nan")}, "tool 'fine': timeout"),
        (fine, {"timeout": True}, "tool 'fine': timeout"),
        (fine, {"approval": 1}, "tool 'fine': approval"),
        (fine, {"redact": ("valu",)}, "tool 'fine': redact names 'valu'"),
        (fine, {"schema": {"type": "string"}}, "tool 'fine': schema="),
    ]
    for function, options, sentence in cases:
        with pytest.raises(ConfigError, match=sentence):
            tool(**options)(function)


def test_redaction_masks_names_and_shows_nothing_when_its_rule_fails():
    """A misbehaving rule leads to no arguments at all, never to all of them, and cannot change the call's own."""
    assert create_invoice.redacted({"customer": "x", "iban": "DE1"}) == {"customer": "x", "iban": "…"}

    def spoil(arguments: dict[str, Any]) -> dict[str, Any]:
        arguments["deep"]["secret"] = "gone"
        raise SystemExit

    def shown(deep: dict[str, str]) -> str:
        return ""

    own = {"deep": {"secret": "s"}}
    assert tool(redact=spoil)(shown).redacted(own) is None
    assert own == {"deep": {"secret": "s"}}
    assert tool(redact=lambda a: "nonsense")(shown).redacted(own) is None  # type: ignore[arg-type, return-value]
    assert tool(redact=lambda a: {"x": object()})(shown).redacted(own) is None
    assert tool(redact=lambda a: {"deep": len(a["deep"])})(shown).redacted(own) == {"deep": 1}


@pytest.mark.parametrize("question", ["Pay {nope}?", "Pay {}?", "Pay {amount.real}?", "Pay {0}?", "Pay {amount?", "Pay }?"])
def test_question_that_cannot_be_filled_in_is_refused(question: str):
    """A template is not to reach the person who has to decide."""
    with pytest.raises(ConfigError, match="tool 'pay': "):

        @tool(approval=question)
        def pay(amount: float) -> str:
            return ""


def test_approval_prompt_is_filled_with_redacted_arguments():
    """A question shows what the tool's rule allows, in the form that it asks for where that fits."""

    @tool(approval="Pay {amount:.2f} to {iban} for {what:.1f}, {note}?", redact="iban")
    def pay(amount: float, iban: str, what: str, note: str = "") -> str:
        return ""

    assert pay.approval is True
    asked = pay.prompt({"amount": 3, "iban": "DE1", "what": "{amount}"})
    assert asked == "Pay 3.00 to … for {amount}, (not given)?"

    @tool(title="Deleting it", approval=True)
    def delete() -> str:
        return ""

    assert delete.prompt({}) == "Deleting it?"
