"""The scripted model: what it asks for, says and breaks, by the user's words (PROTOCOL 5 and 8, `demo`)."""

from __future__ import annotations

import json
import threading
import time
from datetime import date
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.demo.model import DemoModel
from app.demo.months import find_month
from app.demo.words import find_amount
from app.limits.cancel import Cancel
from app.providers.chunks import Alive, Chunk, Reasoning, StepEnd, Text, ToolCall
from app.providers.errors import ProviderError, StreamIncomplete, UpstreamRejected, UpstreamUnavailable
from app.providers.provider import ModelRequest, ToolSpec
from app.tools.registry import load_tools

TODAY = date(2026, 6, 15)
TOOLS = load_tools(["app.demo.ledger"])
SPECS = [ToolSpec(tool.name, tool.description, tool.schema) for tool in TOOLS.values()]
Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def called(name: str, arguments: dict[str, Any], answer: str, call_id: str = "call_1") -> list[Message]:
    """An assistant's call and its answer."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "type": "function"}]}
    call["tool_calls"][0]["function"] = function
    return [call, {"role": "tool", "tool_call_id": call_id, "content": answer}]


def ask(*messages: Message | str, tools: list[ToolSpec] = SPECS, model: DemoModel | None = None) -> list[Chunk]:
    asked = [user(message) if isinstance(message, str) else message for message in messages]
    request = ModelRequest("demo", asked, tools, 100, "conv_1")
    return list((model or DemoModel(0, today=lambda: TODAY)).stream(request, Cancel()))


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, Text))


def end_of(chunks: list[Chunk]) -> StepEnd:
    end = chunks[-1]
    assert isinstance(end, StepEnd)
    return end


def calls_of(chunks: list[Chunk]) -> list[tuple[str, dict[str, Any] | None]]:
    return [(call.name, call.arguments) for call in end_of(chunks).tool_calls]


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        ("Show me the transactions of last month", [("list_transactions", {"month": "2026-05"})]),
        ("what did I spend on travel in May?", [("list_transactions", {"month": "2026-05", "category": "Travel"})]),
        ("What did I earn in 2026-04?", [("list_transactions", {"month": "2026-04", "category": "Income"})]),
        ("show my open invoices", [("list_invoices", {"status": "open"})]),
        ("who owes me money?", [("list_invoices", {"status": "open"})]),
        ("anything overdue?", [("list_invoices", {"status": "overdue"})]),
        ("What is my balance?", [("account_balance", {})]),
        ("May I see my balance?", [("account_balance", {})]),
        ("a chart of June, please", [("spending_chart", {"month": "2026-06"})]),
        ("run a slow report", [("year_report", {})]),
        ("check the bank feed", [("check_bank_feed", {})]),
        ("remind Miller Ltd", [("remind_customer", {"customer": "Miller Ltd"})]),
        ("What is a VAT number?", [("explain_term", {"term": "VAT number"})]),
        ("What is the VAT rate in Spain?", [("look_up_vat_number", {"country": "Spain"})]),
        (
            "Create an invoice for Northwind Traders over 1200 euros",
            [("create_invoice", {"customer": "Northwind Traders", "amount": 1200.0})],
        ),
        (
            "create an invoice for Smith and Sons over €1,200.50 for website work",
            [("create_invoice", {"customer": "Smith and Sons", "amount": 1200.5, "description": "Website work"})],
        ),
        ("Pay the electricity bill of 84.50 euros", [("pay_bill", {"payee": "Electricity", "amount": 84.5})]),
        ("Pay Northwind €120.00.", [("pay_bill", {"payee": "Northwind", "amount": 120.0})]),
        ("pay -5 euros to Bob", [("pay_bill", {"payee": "Bob", "amount": -5.0})]),
        (
            "pay the bill from Northwind over €120 with reference 4711 to IBAN DE89 3704 0044 0532 0130 00",
            [
                (
                    "pay_bill",
                    {
                        "payee": "Northwind",
                        "amount": 120.0,
                        "reference": "4711",
                        "iban": "DE89 3704 0044 0532 0130 00",
                    },
                )
            ],
        ),
        (
            "transactions and open invoices",
            [("list_transactions", {}), ("list_invoices", {"status": "open"})],
        ),
        ('use pay_bill {"payee": "X", "amount": 3}', [("pay_bill", {"payee": "X", "amount": 3})]),
    ],
)
def test_words_become_tool_calls_that_the_tools_accept(words: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    """Each wish is one call with its parameters; all wishes of a message are one batch; the tools take the arguments."""
    chunks = ask(words)
    assert end_of(chunks).finish == "tool_calls"
    assert calls_of(chunks) == calls
    for name, arguments in calls:
        TOOLS[name].validate(arguments)


def test_a_wish_after_then_comes_in_a_step_of_its_own() -> None:
    """A wish "pay … then show …" makes two steps, with text between them; the answer tells of both."""
    words = user("pay 120 to Northwind then show my balance")
    first = ask(words)
    assert calls_of(first) == [("pay_bill", {"payee": "Northwind", "amount": 120.0})]
    assert text_of(first)
    paid = called("pay_bill", {}, '{"payee": "Northwind", "amount": "€120.00", "balance": "€1.00"}')
    second = ask(words, *paid)
    assert calls_of(second) == [("account_balance", {})]
    balance = {"balance": "€1.00", "cents": 100, "month": "2026-06", "in": "€3.00", "out": "-€2.00"}
    last = ask(words, *paid, *called("account_balance", {}, json.dumps(balance), "call_2"))
    assert end_of(last).finish == "stop"
    assert "**€120.00** to **Northwind**" in text_of(last)
    assert "€2.00 went out" in text_of(last)


def test_follow_up_moves_the_last_question_to_another_month_or_category() -> None:
    """The words "and the month before?" are the last call again, one month earlier than that call's."""
    before = [user("transactions of May"), *called("list_transactions", {"month": "2026-05"}, "{}"), said("None.")]
    assert calls_of(ask(*before, "and the month before?")) == [("list_transactions", {"month": "2026-04"})]
    assert calls_of(ask(*before, "what about March?")) == [("list_transactions", {"month": "2026-03"})]
    assert calls_of(ask(*before, "and travel?")) == [
        ("list_transactions", {"month": "2026-05", "category": "Travel"}),
    ]


def test_missing_parameters_are_asked_for_until_the_call_is_whole() -> None:
    """A question for the customer, one for the amount, then the call; a new wish instead of an answer is a new wish."""
    start = user("create an invoice")
    who = text_of(ask(start))
    assert who == "For whom is the invoice?"
    much = text_of(ask(start, said(who), "Miller Ltd"))
    assert much == "How much is it, in euros?"
    whole = ask(start, said(who), user("Miller Ltd"), said(much), "it's 300")
    assert calls_of(whole) == [("create_invoice", {"customer": "Miller Ltd", "amount": 300.0})]
    assert calls_of(ask(start, said(who), "my balance")) == [("account_balance", {})]


def test_pay_it_takes_payee_and_amount_from_what_was_said_before() -> None:
    """The offer to pay a bill is made without a tool, and "yes, pay it" makes the call."""
    bill = user("I got a bill of 120 from Northwind")
    offer = text_of(ask(bill))
    assert "€120.00" in offer
    for words in ("pay it", "yes, do it"):
        assert calls_of(ask(bill, said(offer), words)) == [("pay_bill", {"payee": "Northwind", "amount": 120.0})]


def test_answer_is_written_from_the_rows_that_the_tool_returned() -> None:
    """The table has each row's own values, markup in them escaped; sums are those of the rows."""
    rows = [
        {"date": "2026-05-02", "description": "A | *b*", "category": "Rent", "amount": "-€7.31", "cents": -731},
        {"date": "2026-05-03", "description": "C", "category": "Income", "amount": "€10.00", "cents": 1000},
    ]
    totals = [{"category": "Income", "amount": "€10.00"}, {"category": "Rent", "amount": "-€7.31"}]
    answer = json.dumps({"month": "2026-05", "transactions": rows, "totals": totals})
    result = called("list_transactions", {"month": "2026-05"}, answer)
    text = text_of(ask("transactions of May", *result))
    assert r"| 2026-05-02 | A \| \*b\* | Rent | -€7.31 |" in text
    assert "**2 transactions** in May 2026: €10.00 came in, €7.31 went out." in text
    assert "- Rent: **-€7.31**" in text
    assert "Together: **€2.69**" in text
    assert "```csv\ndate,description,category,amount\n" in text_of(ask("transactions of May as csv", *result))
    assert "- 2026-05-03, C, Income, €10.00" in text_of(ask("transactions of May as a list", *result))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("not run: the user did not approve it", "nothing was done"),
        ("The amount must be above €0.00.", "did not work"),
        ("Timeout: … The outcome is unknown: it may or may not have taken effect.", "I do not know"),
    ],
)
def test_failed_call_is_told_as_a_failure(answer: str, words: str) -> None:
    """A denial, an error and an unknown outcome are three different things to say, none of them a success."""
    text = text_of(ask("pay 120 to Bob", *called("pay_bill", {"payee": "Bob", "amount": 120.0}, answer)))
    assert words in text
    assert "Paid" not in text


def test_only_offered_tools_are_called() -> None:
    """A tool that is not offered is named as missing; one of somebody else's is called by its name, with its schema."""
    assert "`pay_bill`" in text_of(ask("pay 5 to Bob", tools=[]))
    assert "registered" in text_of(ask("What is a VAT number?", tools=[]))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "who": {"type": "string"}}}
    foreign = [ToolSpec("slow_lookup", "", {**schema, "required": ["n", "who"], "additionalProperties": False})]
    chunks = ask("call slow_lookup with 7 apples", tools=foreign)
    assert calls_of(chunks) == [("slow_lookup", {"n": 7, "who": "7 apples"})]
    assert '```json\n{"x":1}\n```' in text_of(
        ask("call slow_lookup with 7", *called("slow_lookup", {}, '{"x":1}'), tools=foreign)
    )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("hello", "bookkeeping assistant"),
        ("thanks!", "welcome"),
        ("what can you do?", "be silent for 20 seconds"),
        ("who are you?", "not a real language model"),
        ("19% of 1200", "€228.00"),
        ("19% of 1200, with code", "```python"),
        ("flurbl the gnarf", "only a demo"),
        ("", "only a demo"),
    ],
)
def test_talk_needs_no_tool(words: str, part: str) -> None:
    """Small talk and sums are answered at once; what is not understood is said to be not understood."""
    chunks = ask(words)
    assert end_of(chunks).finish == "stop"
    assert part in text_of(chunks)


def test_picture_is_admitted_to_be_unseen() -> None:
    """A message of only a picture is answered, without pretending."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert "cannot look at it" in text_of(ask({"role": "user", "content": [picture]}))


def test_fail_in_the_middle_shows_text_and_then_breaks() -> None:
    """Text comes before a transient failure, so that the turn ends as partial (clause 5, salvage)."""
    stream = DemoModel(0).stream(ModelRequest("demo", [user("fail in the middle")], SPECS, 100), Cancel())
    shown = []
    with pytest.raises(UpstreamUnavailable) as failed:
        shown.extend(stream)
    assert failed.value.transient
    assert len(text_of(shown).split()) > 10


def test_fail_at_once_fails_every_time_and_reject_is_final() -> None:
    """`fail at once` is transient at each try with nothing shown; `reject` is not transient."""
    model = DemoModel(0)
    for _ in range(4):
        with pytest.raises(UpstreamUnavailable) as failed:
            ask("fail at once", model=model)
        assert failed.value.transient
    with pytest.raises(UpstreamRejected) as refused:
        ask("please reject", model=model)
    assert not refused.value.transient


def test_fail_twice_then_answer_answers_the_third_try_of_each_conversation() -> None:
    """Tries are counted by conversation and length of the history, and anew after an answer."""
    model = DemoModel(0)
    for _ in range(2):
        for _ in range(2):
            with pytest.raises(UpstreamUnavailable):
                ask("fail twice, then answer", model=model)
        assert "2 tries" in text_of(ask("fail twice, then answer", model=model))
    with pytest.raises(UpstreamUnavailable):
        ask("hello", said("Hello!"), "fail twice, then answer", model=model)


def test_failure_may_wait_for_the_tools() -> None:
    """A wish that ends in "then fail" calls the tool first; the model call after it fails, whatever the tool said."""
    words = user("show my balance, then fail")
    assert calls_of(ask(words)) == [("account_balance", {})]
    with pytest.raises(UpstreamUnavailable):
        ask(words, *called("account_balance", {}, "{}"))


def test_endings_can_be_asked_for() -> None:
    """Nothing, only thinking, cut by length, filtered: each with the finish of a real model."""
    assert ask("say nothing") == [ask("say nothing")[-1]]
    thinking = ask("only think")
    assert not text_of(thinking)
    assert any(isinstance(chunk, Reasoning) for chunk in thinking)
    for words, finish in (("cut it short", "length"), ("content filter", "content_filter")):
        assert end_of(ask(words)).finish == finish
        assert text_of(ask(words))
        assert not text_of(ask(f"{words} at once"))
        assert end_of(ask(f"{words} at once")).finish == finish


def test_broken_call_is_mended_when_the_model_is_told() -> None:
    """X3: the first call has no arguments; told so, the model calls again, whole. In the plural it never learns."""
    told = called("account_balance", {}, "not run: invalid arguments")
    assert calls_of(ask("use a broken tool call")) == [("account_balance", None)]
    assert calls_of(ask("use a broken tool call", *told)) == [("account_balance", {})]
    assert calls_of(ask("use broken tool calls", *told)) == [("account_balance", None)]


def test_loop_asks_for_the_same_tool_for_ever_under_new_ids() -> None:
    """However many results there are, another call follows, and no id comes twice."""
    messages: list[Message] = [user("loop")]
    ids: list[str] = []
    for _ in range(15):
        end = end_of(ask(*messages))
        assert [call.name for call in end.tool_calls] == ["account_balance"]
        ids.append(end.tool_calls[0].id)
        messages += called("account_balance", {}, "{}", ids[-1])
    assert len(set(ids)) == len(ids)


def test_think_tags_are_cut_by_the_pieces() -> None:
    """The text begins with a tag that no single piece holds whole, and the closing one neither."""
    pieces = [chunk.text for chunk in ask("think tags") if isinstance(chunk, Text)]
    assert "".join(pieces).startswith("<think>")
    assert "</think>" in "".join(pieces)
    assert not any("<think>" in piece or "</think>" in piece for piece in pieces)


def test_long_answer_has_every_kind_of_markdown() -> None:
    """Some hundred words with headings, a list, a table, a quote and code."""
    text = text_of(ask("give me a long answer"))
    assert len(text.split()) > 300
    for mark in ("## ", "\n- ", "\n1. ", "|---:|", "```python", "\n> "):
        assert mark in text


def test_silence_and_pace_are_kept_and_a_cancel_ends_them_at_once() -> None:
    """120 s of silence begin with no chunk at all, and end within a second of the cancel, by an exception."""
    cancel, reached = Cancel(), threading.Event()
    ended: list[BaseException] = []
    chunks: list[Chunk] = []

    def run() -> None:
        request = ModelRequest("demo", [user("be silent for 900 seconds")], SPECS, 100)
        try:
            reached.set()
            chunks.extend(DemoModel().stream(request, cancel))
        except StreamIncomplete as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert reached.wait(5)
    thread.join(0.6)
    assert thread.is_alive()
    cancel.cancel()
    thread.join(1)
    assert not thread.is_alive()
    assert len(ended) == 1
    assert not chunks


def test_text_comes_at_a_human_pace() -> None:
    """Between 30 and 60 pieces a second at most, each of one to three words."""
    moments: list[float] = []
    stream = DemoModel().stream(ModelRequest("demo", [user("fail in the middle")], SPECS, 100), Cancel())
    with pytest.raises(UpstreamUnavailable):
        for chunk in stream:
            moments.append(time.monotonic())
            assert isinstance(chunk, Text)
            assert 1 <= len(chunk.text.split()) <= 3
    gaps = [after - before for before, after in pairwise(moments)]
    # Only the lower bound is the model's own doing; the machine may be slower.
    assert min(gaps) >= 0.017
    assert sum(gaps) / len(gaps) >= 1 / 60


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("120", 120.0),
        ("€1,200.50", 1200.5),
        ("1.200,50 €", 1200.5),
        ("84,50 euros", 84.5),
        ("3 invoices over 75 EUR", 75.0),
        ("reference 4711, 12 euros", 12.0),
        ("in 2026-05", None),
        ("nothing", None),
    ],
)
def test_amounts_are_read_as_people_write_them(text: str, amount: float | None) -> None:
    """English and continental marks, currency before or after; no date and no reference is an amount."""
    assert find_amount(text) == amount


@pytest.mark.parametrize(
    ("text", "month"),
    [
        ("last month", "2025-12"),
        ("this month", "2026-01"),
        ("in May", "2025-05"),
        ("January", "2026-01"),
        ("March 2024", "2024-03"),
        ("2 months ago", "2025-11"),
        ("may I see it", None),
        ("march on", None),
        ("2026-13", None),
    ],
)
def test_months_are_read_relative_to_today(text: str, month: str | None) -> None:
    """A month without a year is the latest one that has begun."""
    assert find_month(text, date(2026, 1, 10)) == month


_VOCABULARY = (
    "show pay it create an invoice for Miller Ltd over €120 1,200.50 and then , . ? transactions of last month May "
    "2026-05 my balance chart open remind slow loop fail twice in the middle silent say nothing VAT number Germany "
    "use list_transactions { } think tags broken call report to from bill -5 DE89370400440532013000 \n | * ` <think>"
)
_WORDS = st.lists(st.sampled_from(_VOCABULARY.split(" ")), max_size=12).map(" ".join)


@settings(max_examples=300)
@given(words=_WORDS | st.text(max_size=60), earlier=st.lists(_WORDS, max_size=2))
def test_any_words_give_a_well_formed_step_or_a_named_failure(words: str, earlier: list[str]) -> None:
    """Whatever is asked: chunks, then one `StepEnd`; calls fit their tools unless broken on purpose; twice the same."""
    messages: list[Message | str] = [message for text in earlier for message in (user(text), said("Which one?"))]
    try:
        chunks = ask(*messages, words)
    except ProviderError:
        return
    assert [isinstance(chunk, StepEnd) for chunk in chunks].count(True) == 1
    end = end_of(chunks)
    assert bool(end.tool_calls) == (end.finish == "tool_calls")
    for call in end.tool_calls:
        assert isinstance(call, ToolCall)
        if call.arguments is not None:
            TOOLS[call.name].validate(call.arguments)
    assert all(chunk.text for chunk in chunks if isinstance(chunk, Text | Reasoning))
    assert any(isinstance(chunk, Alive) for chunk in chunks) == bool(end.tool_calls)
    assert ask(*messages, words) == chunks


def test_long_input_is_read_in_no_time() -> None:
    """100,000 characters of repeated words keep the thread for less than two seconds."""
    for text in ("create an invoice " * 6000, " " * 100_000, "and " * 25_000, "\n" * 100_000, "1," * 50_000):
        started = time.monotonic()
        try:
            ask(text)
        finally:
            assert time.monotonic() - started < 2
