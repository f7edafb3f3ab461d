"""The tools of the bookkeeping assistant, on real rows: offered by `tools = ["app.demo.ledger"]`.

Tools that touch the store are async and run on its loop; `year_report` is the sync one that comes back to it. Amounts
in results are given twice: as words (`€1,200.50`) and in cents, so that nobody has to parse.
"""

# ruff: noqa: D417 - the docstrings are read by the model, which is not told of `ctx`

from __future__ import annotations

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import anyio.from_thread
from pydantic import Field

from app.clock import monotonic
from app.demo import months, terms
from app.demo.books import Books, Entry, due_on, status_of
from app.demo.chart import bar_chart
from app.demo.money import euros, to_cents
from app.demo.year_end import SECONDS, write_report
from app.events import ActionCard, CardAction, CardField, Image
from app.store.engine import Store
from app.store.ledger import Invoice
from app.tools import ProcessResult, ToolContext, ToolError, tool

_MAX_NAME = 120
_MAX_TEXT = 500
_books: Books | None = None

# Reads a bank statement as CSV on standard input: what a small program from elsewhere would do.
_FEED_CHECK = """
import csv, sys
rows = list(csv.DictReader(sys.stdin))
seen, twice = set(), 0
for row in rows:
    key = (row["day"], row["description"], row["cents"])
    twice += key in seen
    seen.add(key)
print("lines", len(rows))
print("duplicates", twice)
print("sum", sum(int(row["cents"]) for row in rows))
print("last", max((row["day"] for row in rows), default="-"))
"""


def bind(store: Store | None) -> None:
    """Connect the tools to the store of this process; None takes it away again."""
    global _books
    _books = None if store is None else Books(store)


def _bound() -> Books:
    if _books is None:
        raise ToolError("The books are not open: this service has no store for them.")
    return _books


@tool(title="Looking up transactions", side_effects="none")
async def list_transactions(ctx: ToolContext, month: str | None = None, category: str | None = None) -> dict[str, Any]:
    """List the bookings on the user's account, with totals by category. Money that went out is negative.

    Args:
        month: a month as YYYY-MM, or `this month` or `last month`; all months if left out.
        category: one category, such as Rent, Travel or Income; all categories if left out.
    """
    wanted = _month(month)
    entries = await _bound().entries(ctx.user_id, wanted)
    if category is not None:
        known = sorted({entry.category for entry in await _bound().entries(ctx.user_id)})
        name = next((one for one in known if one.lower() == category.strip().lower()), None)
        if name is None:
            raise ToolError(f"There is no such category. The categories are: {', '.join(known)}.")
        entries = [entry for entry in entries if entry.category == name]
    return {
        "month": wanted,
        "count": len(entries),
        "transactions": [
            {"date": e.day, "description": e.description, "category": e.category, "amount": euros(e.cents)}
            | {"cents": e.cents}
            for e in entries
        ],
        "totals": [{"category": name, "cents": cents, "amount": euros(cents)} for name, cents in _totals(entries)],
    }


@tool(title="Looking up invoices", side_effects="none")
async def list_invoices(ctx: ToolContext, status: Literal["open", "overdue", "paid"] | None = None) -> dict[str, Any]:
    """List the invoices that the user has written, with the sum of those that are not paid.

    Args:
        status: `open` (not paid, overdue ones included), `overdue` or `paid`; all invoices if left out.
    """
    today = months.today()
    rows = [_shown(invoice) for invoice in await _bound().invoices(ctx.user_id)]
    kinds = ("open", "overdue") if status == "open" else (status,)
    rows = [row for row in rows if status is None or row["status"] in kinds]
    unpaid = sum(row["cents"] for row in rows if row["status"] != "paid")
    return {"today": today.isoformat(), "status": status, "invoices": rows, "unpaid": euros(unpaid)} | {
        "unpaid_cents": unpaid
    }


@tool(title="Checking the balance", side_effects="none")
async def account_balance(ctx: ToolContext) -> dict[str, Any]:
    """Tell how much money is on the user's account today, and what came in and went out this month."""
    month = months.month_of(months.today())
    cents = await _bound().balance(ctx.user_id)
    entries = await _bound().entries(ctx.user_id, month)
    money_in = sum(entry.cents for entry in entries if entry.cents > 0)
    money_out = sum(entry.cents for entry in entries if entry.cents < 0)
    return {"balance": euros(cents), "cents": cents, "month": month, "in": euros(money_in), "out": euros(money_out)}


@tool(title="Drawing a chart", side_effects="none")
async def spending_chart(ctx: ToolContext, month: str | None = None) -> dict[str, Any]:
    """Show the user a bar chart of what was spent by category; the numbers come back as well.

    Args:
        month: a month as YYYY-MM, or `this month` or `last month`; all months if left out.
    """
    wanted = _month(month)
    spent = [entry for entry in await _bound().entries(ctx.user_id, wanted) if entry.cents < 0]
    totals = [(name, -cents) for name, cents in _totals(spent)]
    title = f"Spending in {months.title(wanted)}" if wanted else "Spending in all months"
    picture = bar_chart(title, totals)
    ctx.emit(Image(url=picture.url, alt=picture.alt, width=picture.width, height=picture.height))
    rows = [{"category": name, "cents": cents, "amount": euros(cents)} for name, cents in totals]
    whole = sum(cents for _, cents in totals)
    return {"month": wanted, "shown": bool(totals), "spending": rows, "total": euros(whole), "cents": whole}


@tool(title="Creating the invoice", side_effects="unsafe", timeout=20)
async def create_invoice(ctx: ToolContext, customer: str, amount: float, description: str = "") -> dict[str, Any]:
    """Write an invoice to a customer. It gets the next number and is due in 14 days.

    Args:
        customer: who has to pay.
        amount: euros, above 0 and at most 100,000.
        description: what it is for.
    """
    name, words = _name(customer, "customer"), _text(description, "description")
    invoice = await _bound().write_invoice(ctx.user_id, customer=name, cents=to_cents(amount), key=ctx.idempotency_key)
    row = _shown(invoice) | ({"description": words} if words else {})
    fields = [("Number", str(invoice.number)), ("Customer", invoice.customer), ("Amount", row["amount"])]
    fields += [("For", words)] * bool(words) + [("Due", row["due"])]
    ctx.emit(
        ActionCard(
            card_id=f"card_{invoice.id}",
            kind="invoice",
            title=f"Invoice {invoice.number}",
            fields=[CardField(label=label, value=value) for label, value in fields],
            actions=[CardAction(title="Show open invoices", input="show my open invoices")],
        )
    )
    return row


def _masked_payment(arguments: dict[str, Any]) -> dict[str, Any]:
    """The account but for its last four characters, and the amount as the question shows it."""
    shown = dict(arguments)
    amount = shown.get("amount")
    if isinstance(amount, int | float):
        shown["amount"] = f"{amount:,.2f}"
    if iban := "".join(str(shown.get("iban") or "").split()):
        shown["iban"] = "…" + iban[-4:] if len(iban) > 8 else "…"
    return shown


@tool(
    title="Paying the bill",
    side_effects="unsafe",
    timeout=20,
    approval="Pay €{amount} to {payee}?",
    redact=_masked_payment,
)
async def pay_bill(ctx: ToolContext, payee: str, amount: float, reference: str = "", iban: str = "") -> dict[str, Any]:
    """Pay a bill from the user's account. A person is asked first.

    Args:
        payee: who gets the money.
        amount: euros, above 0 and at most 100,000.
        reference: what the payee will see, such as the number of the bill.
        iban: the payee's account.
    """
    payment = await _bound().pay(
        ctx.user_id,
        payee=_name(payee, "payee"),
        cents=to_cents(amount),
        reference=_text(reference, "reference"),
        iban=_iban(iban),
        key=ctx.idempotency_key,
    )
    left = await _bound().balance(ctx.user_id)
    told: dict[str, Any] = {"payee": payment.payee, "amount": euros(payment.cents), "cents": payment.cents}
    if payment.reference:
        told["reference"] = payment.reference
    return told | {"balance": euros(left)}


@tool(title="Writing a reminder", side_effects="idempotent")
async def remind_customer(ctx: ToolContext, customer: str) -> dict[str, Any]:
    """Write a reminder to a customer about all invoices that are not paid, for the user to send. Sends nothing.

    Args:
        customer: who has to pay, or a part of the name.
    """
    name = _name(customer, "customer")
    rows = [_shown(invoice) for invoice in await _bound().invoices(ctx.user_id)]
    unpaid = [row for row in rows if row["status"] != "paid"]
    theirs = [row for row in unpaid if name.lower() in row["customer"].lower()]
    if not theirs:
        others = ", ".join(sorted({row["customer"] for row in unpaid})) or "nobody"
        raise ToolError(f"{name} has no unpaid invoice. Those who have: {others}.")
    owed = [f"invoice {row['number']} over {row['amount']}, due on {row['due']}" for row in theirs]
    letter = f"Dear {theirs[0]['customer']} team,\n\nmay we remind you of {' and of '.join(owed)}?\n\nKind regards"
    whole = euros(sum(row["cents"] for row in theirs))
    ctx.emit(
        ActionCard(
            card_id=f"card_reminder_{ctx.tool_call_id or theirs[0]['number']}",
            kind="reminder",
            title=f"Reminder to {theirs[0]['customer']}",
            fields=[CardField(label="Invoices", value=str(len(theirs))), CardField(label="Owed", value=whole)],
            actions=[CardAction(title="Show open invoices", input="show my open invoices")],
        )
    )
    return {"customer": theirs[0]["customer"], "invoices": theirs, "owed": whole, "letter": letter, "sent": False}


@tool(title="Looking up VAT", side_effects="none")
def look_up_vat_number(country: Annotated[str, Field(max_length=_MAX_NAME)], number: str = "") -> dict[str, Any]:
    """Tell what VAT numbers of a country look like and its standard rate, and whether a number has that shape.

    Args:
        country: a country in Europe, in English.
        number: a VAT number to compare; only its shape is looked at, nobody is asked.
    """
    found = terms.find_country(country)
    if found is None:
        raise ToolError(f"That country is not in the table. It has: {terms.countries()}.")
    told: dict[str, Any] = {"country": found.country, "rate": found.rate, "shape": found.shape}
    if number.strip():
        told["fits"] = bool(re.fullmatch(found.pattern, re.sub(r"[\s.\-]", "", number).upper(), re.ASCII))
    return told


@tool(title="Looking up a term", side_effects="none")
def explain_term(term: str) -> dict[str, Any]:
    """Explain a word of bookkeeping in one or two sentences.

    Args:
        term: the word, such as `VAT number` or `accrual`.
    """
    found = terms.find_term(term)
    if found is None:
        raise ToolError(f"That word is not in the table. It has: {', '.join(terms.TERMS)}.")
    return {"term": found, "meaning": terms.TERMS[found]}


@tool(title="Writing the report", side_effects="none", timeout=25)
def year_report(ctx: ToolContext) -> dict[str, Any]:
    """Write a report on all bookings: results by month and costs by category. Takes about 12 seconds."""
    entries = anyio.from_thread.run(_bound().entries, ctx.user_id)
    return write_report(ctx, entries, SECONDS)


@tool(title="Checking the bank feed", side_effects="none", timeout=15)
async def check_bank_feed(ctx: ToolContext) -> dict[str, Any]:
    """Check the bookings for duplicates and a wrong sum, by a small program that runs beside the service."""
    entries = await _bound().entries(ctx.user_id)
    ctx.progress("Handing over the bookings", 0.2)
    started = monotonic()
    child: ProcessResult = await ctx.run_process([sys.executable, "-I", "-c", _FEED_CHECK], input=_as_csv(entries))
    if child.returncode != 0:
        raise ToolError(f"The checking program failed with exit code {child.returncode}.")
    found = dict(line.split(" ", 1) for line in child.stdout.splitlines())
    same = int(found["sum"]) == sum(entry.cents for entry in entries)
    return {
        "lines": int(found["lines"]),
        "duplicates": int(found["duplicates"]),
        "last_booking": found["last"],
        "sum": euros(int(found["sum"])),
        "agrees": same,
        "seconds": round(monotonic() - started, 2),
    }


def _as_csv(entries: Sequence[Entry]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["day", "description", "cents"])
    writer.writerows([entry.day, entry.description, entry.cents] for entry in entries)
    return text.getvalue()


def _totals(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """The sum of each category, the largest amount first."""
    sums: Counter[str] = Counter()
    for entry in entries:
        sums[entry.category] += entry.cents
    return sorted(sums.items(), key=lambda item: (-abs(item[1]), item[0]))


def _shown(invoice: Invoice) -> dict[str, Any]:
    return {
        "number": invoice.number,
        "customer": invoice.customer,
        "amount": euros(invoice.cents),
        "cents": invoice.cents,
        "due": due_on(invoice).isoformat(),
        "status": status_of(invoice, months.today()),
    }


def _month(text: str | None) -> str | None:
    if text is None or not text.strip():
        return None
    found = months.find_month(text, months.today())
    if found is None:
        raise ToolError("The month must be given as YYYY-MM, such as 2026-05.")
    return found


def _name(text: str, what: str) -> str:
    name = " ".join(text.split())
    if not name:
        raise ToolError(f"The {what} must have a name.")
    if len(name) > _MAX_NAME:
        raise ToolError(f"The name of the {what} must have at most {_MAX_NAME} characters.")
    return name


def _text(text: str, what: str) -> str:
    words = " ".join(text.split())
    if len(words) > _MAX_TEXT:
        raise ToolError(f"The {what} must have at most {_MAX_TEXT} characters.")
    return words


def _iban(text: str) -> str:
    """The account without spaces, its check digits proven (ISO 13616); the account itself is in no error.

    Raises:
        ToolError: it is no IBAN.
    """
    iban = "".join(text.split()).upper()
    if not iban:
        return ""
    digits = "".join(str(int(c, 36)) for c in iban[4:] + iban[:4]) if iban.isascii() and iban.isalnum() else ""
    if not 15 <= len(iban) <= 34 or not digits or int(digits) % 97 != 1:
        raise ToolError("The IBAN is not valid: its check digits do not fit.")
    return iban
