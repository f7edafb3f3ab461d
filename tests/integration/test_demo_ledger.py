"""The demo's tools on real rows, run as the service runs them, and the model that speaks through them (X2, clause 9)."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from datetime import date
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

import anyio
import pytest

from app.clock import monotonic
from app.demo import ledger as demo
from app.demo import months
from app.demo.model import DemoModel
from app.demo.opening import opening_transactions
from app.events import ActionCard, Commentary, Event, Image, ToolProgress
from app.limits.cancel import Cancel
from app.limits.threads import WorkerThreads
from app.providers.chunks import Chunk, StepEnd, Text
from app.providers.provider import ModelRequest, ToolSpec
from app.store import ledger
from app.store.engine import Store
from app.tools import ToolContext
from app.tools.execution import ToolOutcome, run_call
from app.tools.process import live_processes
from app.tools.registry import load_tools
from tests.stores import anyio_backend, postgres, store, store_url

__all__ = ["anyio_backend", "postgres", "store", "store_url"]

pytestmark = pytest.mark.anyio
TOOLS = load_tools(["app.demo.ledger"])
IBAN = "DE89 3704 0044 0532 0130 00"


class Desk:
    """Calls tools for one user and keeps what they show."""

    def __init__(self, user_id: str = "ann") -> None:
        self.user_id = user_id
        self.shown: list[Event] = []
        self.cancel = Cancel()
        self._threads = WorkerThreads(4)

    async def run(self, name: str, arguments: dict[str, Any], *, key: str = "", timeout: float = 25) -> ToolOutcome:
        """The outcome of one call."""
        context = ToolContext(user_id=self.user_id, idempotency_key=key, tool_call_id="call_1", emit_sink=self.shown.append)
        return await run_call(TOOLS[name], context, arguments, timeout=timeout, threads=self._threads, cancel=self.cancel)

    async def value(self, name: str, key: str = "", **arguments: Any) -> dict[str, Any]:
        """What a call returned that went well."""
        outcome = await self.run(name, arguments, key=key)
        assert outcome.status == "ok", outcome.result
        found: dict[str, Any] = json.loads(outcome.result)
        return found


@pytest.fixture
async def books(store: Store) -> AsyncIterator[Store]:
    """The tools bound to an empty store."""
    demo.bind(store)
    yield store
    demo.bind(None)


@pytest.fixture
def desk(books: Store) -> Desk:
    return Desk()


def stored(books: Store, read: Callable[..., Any], user_id: str = "ann") -> Any:
    return books.read(lambda conn: read(conn, user_id))


async def test_unbound_tools_say_that_the_books_are_not_open() -> None:
    """Without a store each tool that needs one ends as an error with a sentence, also the one in a thread."""
    demo.bind(None)
    for name in ("list_transactions", "account_balance", "year_report"):
        outcome = await Desk().run(name, {})
        assert outcome.status == "error"
        assert outcome.result == "The books are not open: this service has no store for them."


async def test_new_user_finds_four_months_of_bookings_and_keeps_them(desk: Desk, books: Store) -> None:
    """About sixty rows, none in the future, stored once, also when the first calls come at the same moment."""
    async with anyio.create_task_group() as group:
        for name in ("list_transactions", "list_invoices", "account_balance"):
            group.start_soon(partial(desk.run, name, {}))
    value = await desk.value("list_transactions")
    assert 50 <= value["count"] == len(value["transactions"]) <= 75
    assert value["transactions"][-1]["date"] <= months.today().isoformat()
    demo.bind(books)  # as after a restart: nothing is remembered
    assert await desk.value("list_transactions") == value
    assert len(await stored(books, ledger.invoices)) == 5
    assert sum(row["cents"] for row in value["transactions"]) == sum(row["cents"] for row in value["totals"])


@pytest.mark.parametrize("day", [date(2026, 3, 31), date(2024, 2, 29), date(2026, 1, 1)])
def test_opening_is_the_same_for_a_user_and_differs_between_users(day: date) -> None:
    """Rows depend on the user and the day alone, lie within four months, and are as many on any day of a month."""
    rows = opening_transactions("ann", day)
    assert rows == opening_transactions("ann", day)
    assert {row.id for row in rows}.isdisjoint(row.id for row in opening_transactions("bob", day))
    assert 55 <= len(rows) <= 75
    assert all((day - date.fromisoformat(row.booked_on)).days <= 124 for row in rows)


async def test_same_idempotency_key_writes_one_invoice_and_two_keys_write_two(desk: Desk, books: Store) -> None:
    """X2: the second run of a call finds the first one's row and returns it; another call writes its own."""
    first = await desk.value("create_invoice", key="turn_1:a", customer="Miller Ltd", amount=1200.5)
    again = await desk.value("create_invoice", key="turn_1:a", customer="Miller Ltd", amount=1200.5)
    other = await desk.value("create_invoice", key="turn_1:b", customer="Miller Ltd", amount=1200.5)
    assert again == first
    assert other["number"] == first["number"] + 1
    assert first["amount"] == "€1,200.50"
    rows = [row for row in await stored(books, ledger.invoices) if row.customer == "Miller Ltd" and row.cents == 120050]
    assert [row.idempotency_key for row in rows] == ["turn_1:a", "turn_1:b"]


async def test_same_key_at_the_same_moment_pays_once(desk: Desk, books: Store) -> None:
    """X2: ten runs of one call at once leave one payment, and it is on the account."""
    before = await desk.value("account_balance")
    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(partial(desk.value, "pay_bill", key="turn_1:p", payee="Northwind", amount=120, iban=IBAN))
    paid = await stored(books, ledger.payments)
    assert [(row.payee, row.cents, row.iban) for row in paid] == [("Northwind", 12000, IBAN.replace(" ", ""))]
    assert (await desk.value("account_balance"))["cents"] == before["cents"] - 12000
    listed = await desk.value("list_transactions", category="payments")
    assert [row["description"] for row in listed["transactions"]] == ["Payment to Northwind"]


async def test_users_do_not_see_each_others_books(desk: Desk) -> None:
    """The same key of another user is another call, and no row crosses over."""
    mine = await desk.value("create_invoice", key="turn_1:a", customer="Mine", amount=5)
    other = Desk("bob")
    theirs = await other.value("create_invoice", key="turn_1:a", customer="Theirs", amount=6)
    assert (mine["customer"], theirs["customer"]) == ("Mine", "Theirs")
    assert "Mine" not in json.dumps(await other.value("list_invoices"))


async def test_invoice_shows_a_card_with_an_action(desk: Desk) -> None:
    """One card, with number, customer, amount and due date; its button asks for the open invoices, which hold it."""
    row = await desk.value("create_invoice", key="k", customer=" Miller \n Ltd ", amount=80, description="Logo")
    (card,) = desk.shown
    assert isinstance(card, ActionCard)
    assert card.kind == "invoice"
    labels = {field.label: field.value for field in card.fields}
    assert labels == {
        "Number": str(row["number"]),
        "Customer": "Miller Ltd",
        "Amount": "€80.00",
        "For": "Logo",
        "Due": row["due"],
    }
    assert [action.input for action in card.actions] == ["show my open invoices"]
    assert row["number"] in [found["number"] for found in (await desk.value("list_invoices", status="open"))["invoices"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"payee": "Bob", "amount": 0}, "The amount must be above €0.00."),
        ({"payee": "Bob", "amount": -5}, "The amount must be above €0.00."),
        ({"payee": "Bob", "amount": 100_000.01}, "The amount must not be above €100,000.00."),
        ({"payee": "Bob", "amount": 1.005}, "The amount must not have fractions of a cent."),
        ({"payee": "  ", "amount": 5}, "The payee must have a name."),
        (
            {"payee": "Bob", "amount": 5, "iban": "DE89370400440532013001"},
            "The IBAN is not valid: its check digits do not fit.",
        ),
    ],
)
async def test_wrong_payment_is_refused_and_stores_nothing(
    desk: Desk, books: Store, arguments: dict[str, Any], words: str
) -> None:
    """Each wrong argument has a sentence of its own, which does not repeat the account."""
    outcome = await desk.run("pay_bill", arguments, key="k")
    assert (outcome.status, outcome.result) == ("error", words)
    assert await stored(books, ledger.payments) == []


def test_approval_asks_with_the_amount_and_hides_the_account() -> None:
    """The question has two decimals; of the account only the last four characters are shown, of a short one none."""
    pay = TOOLS["pay_bill"]
    assert pay.approval
    assert pay.prompt({"payee": "Northwind", "amount": 1200}) == "Pay €1,200.00 to Northwind?"
    shown = pay.redacted({"payee": "N", "amount": 1, "iban": IBAN}) or {}
    assert shown["iban"] == "…3000"
    assert (pay.redacted({"payee": "N", "amount": 1, "iban": "1234"}) or {})["iban"] == "…"


async def test_chart_is_a_small_picture_with_the_numbers_in_words(desk: Desk) -> None:
    """The image is well-formed SVG under 30 KB with a bar for each category; its alt text has the numbers returned."""
    value = await desk.value("spending_chart", month=months.shifted(months.month_of(months.today()), -1))
    (image,) = desk.shown
    assert isinstance(image, Image)
    assert len(image.url) < 30_000
    head, _, data = image.url.partition(",")
    assert head == "data:image/svg+xml;base64"
    svg = ET.fromstring(base64.b64decode(data))
    assert (svg.get("width"), svg.get("height")) == (str(image.width), str(image.height))
    bars = [node for node in svg.iter("{http://www.w3.org/2000/svg}rect") if node.get("class") == "b"]
    assert len(bars) == len(value["spending"]) > 5
    assert all(f"{row['category']} {row['amount']}" in image.alt for row in value["spending"])


async def test_month_and_category_narrow_the_list(desk: Desk) -> None:
    """Only rows of the month and the category come back; unknown ones are errors that name what there is."""
    month = months.shifted(months.month_of(months.today()), -2)
    value = await desk.value("list_transactions", month=month, category="travel")
    assert value["count"] == 2
    assert all(row["date"].startswith(month) and row["category"] == "Travel" for row in value["transactions"])
    assert "Travel" in (await desk.run("list_transactions", {"category": "Yachts"})).result
    assert (await desk.run("list_transactions", {"month": "soon"})).status == "error"


async def test_reminder_names_what_the_customer_owes(desk: Desk) -> None:
    """The letter holds each unpaid invoice; a customer without one is an error that names those who have."""
    await desk.value("create_invoice", key="k1", customer="Zed & Co", amount=10)
    await desk.value("create_invoice", key="k2", customer="Zed & Co", amount=20)
    value = await desk.value("remind_customer", customer="zed")
    assert value["owed"] == "€30.00"
    assert value["sent"] is False
    assert all(f"invoice {row['number']} over {row['amount']}" in value["letter"] for row in value["invoices"])
    assert "Zed & Co" in (await desk.run("remind_customer", {"customer": "Nobody"})).result


async def test_lookups_answer_from_their_tables(desk: Desk) -> None:
    """A known country and term are answered, the shape of a number is compared; unknown ones are errors."""
    value = await desk.value("look_up_vat_number", country="Germany", number="de 123 456 789")
    assert (value["rate"], value["fits"]) == ("19 %", True)
    assert (await desk.value("look_up_vat_number", country="UK", number="GB12"))["fits"] is False
    assert "registered" in (await desk.value("explain_term", term="vat numbers"))["meaning"]
    assert (await desk.run("explain_term", {"term": "gnarf"})).status == "error"
    assert (await desk.run("look_up_vat_number", {"country": "Atlantis"})).status == "error"


async def test_bank_feed_is_checked_by_a_child_process(desk: Desk) -> None:
    """A real child reads the real rows: its count and its sum are those of the books, and it is gone afterwards."""
    listed = await desk.value("list_transactions")
    value = await desk.value("check_bank_feed")
    assert (value["lines"], value["agrees"]) == (listed["count"], True)
    assert live_processes() == 0


@pytest.mark.slow
async def test_report_takes_its_time_and_tells_how_far_it_is(desk: Desk) -> None:
    """About 12 s with progress and one remark; the result is the sum of all bookings."""
    listed = await desk.value("list_transactions")
    started = monotonic()
    value = await desk.value("year_report")
    assert 11 <= monotonic() - started <= 20
    fractions = [event.fraction for event in desk.shown if isinstance(event, ToolProgress)]
    assert fractions == sorted(fractions)
    assert len(fractions) > 4
    assert fractions[-1] == 1.0
    assert sum(isinstance(event, Commentary) for event in desk.shown) == 1
    assert value["profit_cents"] == sum(row["cents"] for row in listed["transactions"])


async def test_cancelled_report_stops_at_once(desk: Desk) -> None:
    """The thread comes back within the grace of a cancel, so the end is `cancelled`, not `unknown`."""
    ended: list[ToolOutcome] = []
    begun = anyio.Event()
    desk.shown = _Watched(begun, anyio.from_thread.run_sync)

    async def report() -> None:
        ended.append(await desk.run("year_report", {}))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(report)
            await begun.wait()
            desk.cancel.cancel()
    assert ended[0].status == "cancelled"
    assert ended[0].duration_ms < 3000


class _Watched(list[Event]):
    """A list of events that says from a worker thread when it has its first."""

    def __init__(self, begun: anyio.Event, run_sync: Callable[..., Any]) -> None:
        super().__init__()
        self._begun, self._run_sync = begun, run_sync

    def append(self, event: Event) -> None:
        super().append(event)
        self._run_sync(self._begun.set)


async def converse(desk: Desk, *inputs: str) -> list[str]:
    """What the model answered to each input, its tools really run: the smallest loop that there can be."""
    model, messages, answers = DemoModel(0), [], []
    specs = [ToolSpec(tool.name, tool.description, tool.schema) for tool in TOOLS.values()]
    for words in inputs:
        messages.append({"role": "user", "content": words})
        end = StepEnd(finish="tool_calls")
        while end.finish == "tool_calls":
            chunks: list[Chunk] = list(model.stream(ModelRequest("demo", messages, specs, 100, "c"), Cancel()))
            text = "".join(chunk.text for chunk in chunks if isinstance(chunk, Text))
            assert isinstance(chunks[-1], StepEnd)
            end = chunks[-1]
            calls = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
                for c in end.tool_calls
            ]
            messages.append({"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {}))
            for call in end.tool_calls:
                outcome = await desk.run(call.name, call.arguments or {}, key=f"turn_{len(messages)}:{call.id}")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": outcome.result})
        answers.append(text)
    return answers


async def test_model_speaks_of_the_rows_that_the_tools_found(desk: Desk) -> None:
    """A conversation over several turns: each answer holds what is in the store at that moment."""
    month = months.shifted(months.month_of(months.today()), -1)
    listed = await desk.value("list_transactions", month=month)
    answers = await converse(
        desk,
        "transactions of last month and open invoices",
        "create an invoice for Miller Ltd over €1,200.50",
        "my open invoices",
        "I got a bill of 120 from Northwind",
        "pay it",
        "pay -5 euros to Bob",
        "chart of last month",
        "check the bank feed",
    )
    both, written, opened, offer, paid, refused, chart, feed = answers
    for row in listed["transactions"]:
        assert f"| {row['date']} |" in both
        assert row["amount"] in both
    assert "### Invoices" in both
    assert "Invoice **6** to **Miller Ltd** over **€1,200.50**" in written
    assert "| 6 | Miller Ltd | €1,200.50 |" in opened
    assert "€120.00" in offer
    balance = await desk.value("account_balance")
    assert f"Paid: **€120.00** to **Northwind**. That leaves **{balance['balance']}**" in paid
    assert "did not work" in refused
    assert "most of it for **Payroll**" in chart
    assert "agrees with the books" in feed
