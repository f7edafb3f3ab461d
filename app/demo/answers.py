"""Answers made of what the tools returned: the real rows, as markdown. Nothing is said that no result holds."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from app.demo.money import euros
from app.demo.months import title
from app.demo.situation import Call

Style = Literal["table", "list", "csv", "json"]
Value = dict[str, Any]
_ROWS = 40
_MARKUP = re.compile(r"([\\`*_\[\]<>|])")


def find_style(words: str) -> Style:
    """The form that the words ask for; a table where they ask for none."""
    lower = words.lower()
    if re.search(r"\bcsv\b", lower):
        return "csv"
    if re.search(r"\bjson\b|\bas code\b", lower):
        return "json"
    return "list" if re.search(r"\b(?:as|in) a list\b|\bbullet", lower) else "table"


def write_answer(calls: Sequence[Call], style: Style) -> str:
    """One text about all calls, in their order; those of several tools get a heading each."""
    parts = [_about(call, style) for call in calls]
    if len(calls) == 1:
        return parts[0]
    return "\n\n".join(
        f"### {_HEADINGS.get(call.name, call.name)}\n\n{part}" for call, part in zip(calls, parts, strict=True)
    )


def _about(call: Call, style: Style) -> str:
    value, writer = call.value, _WRITERS.get(call.name)
    if value is not None and writer is not None:
        try:
            return writer(value, style)
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # A tool of the same name that is not ours, or a hook that replaced the result: shown as it is.
    if value is not None or writer is None:
        return f"The tool `{call.name}` answered:\n\n{_fence('json' if value is not None else '', call.answer)}"
    return _failed(call)


def _failed(call: Call) -> str:
    what = _HEADINGS.get(call.name, call.name)
    reason = call.answer.strip() or "no answer came"
    if reason.startswith("not run: "):
        return f"**{what}: nothing was done.** The reason: {plain(reason.removeprefix('not run: '))}."
    if "outcome is unknown" in reason or "outcome unknown" in reason:
        return f"**{what}: I do not know whether it took effect.** {plain(reason)} Please look before trying again."
    return f"**{what}: that did not work.** {plain(reason)}"


def _transactions(value: Value, style: Style) -> str:
    rows: list[Value] = value["transactions"]
    when = f" in {title(value['month'])}" if value.get("month") else ""
    if not rows:
        return f"There are **no transactions**{when}."
    money_in, money_out = _split(rows)
    fields = ("date", "description", "category", "amount")
    text = f"**{len(rows)} transactions**{when}: {euros(money_in)} came in, {euros(-money_out)} went out.\n\n"
    text += _rows(rows, fields, style)
    totals = [f"- {plain(row['category'])}: **{row['amount']}**" for row in value["totals"]]
    return f"{text}\n\nBy category:\n\n" + "\n".join(totals) + f"\n\nTogether: **{euros(money_in + money_out)}**"


def _invoices(value: Value, style: Style) -> str:
    rows: list[Value] = value["invoices"]
    kind = f"{value['status']} " if value.get("status") else ""
    if not rows:
        return f"There are **no {kind}invoices**."
    text = f"**{len(rows)} {kind}invoice{'' if len(rows) == 1 else 's'}**:\n\n"
    text += _rows(rows, ("number", "customer", "amount", "due", "status"), style)
    late = [row for row in rows if row["status"] == "overdue"]
    if late:
        names = ", ".join(f"**{plain(row['customer'])}** ({row['amount']})" for row in late[:5])
        text += f'\n\nOverdue: {names}. Say "remind {plain(late[0]["customer"])}" for a reminder.'
    return text + (f"\n\nNot paid yet: **{value['unpaid']}**" if value.get("unpaid_cents") else "")


def _balance(value: Value, _: Style) -> str:
    return (
        f"There are **{value['balance']}** on the account. In {title(value['month'])}, {value['in']} came in and "
        f"{value['out'].removeprefix('-')} went out so far."
    )


def _chart(value: Value, style: Style) -> str:
    when = f"in {title(value['month'])}" if value.get("month") else "in all months"
    if not value["spending"]:
        return f"Nothing was spent {when}."
    first = value["spending"][0]
    lead = f"Above is what was spent {when}: **{value['total']}** in all, most of it for **{plain(first['category'])}**."
    return f"{lead}\n\n{_rows(value['spending'], ('category', 'amount'), style)}"


def _invoice(value: Value, _: Style) -> str:
    what = f" for {plain(value['description'])}" if value.get("description") else ""
    return (
        f"Invoice **{value['number']}** to **{plain(value['customer'])}** over **{value['amount']}**{what} is written. "
        f"It is due on {value['due']}."
    )


def _payment(value: Value, _: Style) -> str:
    reference = f", reference {plain(value['reference'])}" if value.get("reference") else ""
    return (
        f"Paid: **{value['amount']}** to **{plain(value['payee'])}**{reference}. "
        f"That leaves **{value['balance']}** on the account."
    )


def _reminder(value: Value, _: Style) -> str:
    letter = "\n".join(f"> {plain(line)}".rstrip() for line in value["letter"].splitlines())
    return (
        f"**{plain(value['customer'])}** owes you **{value['owed']}**. Here is a reminder; I have not sent it:\n\n{letter}"
    )


def _vat(value: Value, _: Style) -> str:
    text = f"In {plain(value['country'])} the standard VAT rate is **{value['rate']}** (2025)."
    text += f" A VAT number there is {plain(value['shape'])}."
    if "fits" in value:
        text += (
            " The one you gave **has** that shape." if value["fits"] else " The one you gave does **not** have that shape."
        )
        text += " Whether it is registered, only the tax office can tell."
    return text


def _term(value: Value, _: Style) -> str:
    term = value["term"]
    return f"**{plain(term[:1].upper() + term[1:])}**: {plain(value['meaning'])}"


def _report(value: Value, style: Style) -> str:
    rows = [
        {
            "month": title(row["month"]),
            "in": euros(row["in_cents"]),
            "out": euros(row["out_cents"]),
            "result": row["profit"],
        }
        for row in value["months"]
    ]
    best = max(value["months"], key=lambda row: row["in_cents"] + row["out_cents"])
    costs = [f"{n}. {plain(row['category'])}: **{row['total']}**" for n, row in enumerate(value["categories"][:5], 1)]
    return (
        f"## Report\n\nThe result of all months is **{value['profit']}**; the best one was **{title(best['month'])}** "
        f"with {best['profit']}.\n\n{_rows(rows, ('month', 'in', 'out', 'result'), style)}\n\nThe largest costs:\n\n"
        + "\n".join(costs)
    )


def _feed(value: Value, _: Style) -> str:
    verdict = "agrees with the books" if value["agrees"] else "does **not** agree with the books"
    double = f"**{value['duplicates']}** duplicates" if value["duplicates"] else "no duplicates"
    return (
        f"The program read **{value['lines']} bookings** in {value['seconds']} s, up to {value['last_booking']}, and found "
        f"{double}. Its sum, {value['sum']}, {verdict}."
    )


_WRITERS: dict[str, Callable[[Value, Style], str]] = {
    "list_transactions": _transactions,
    "list_invoices": _invoices,
    "account_balance": _balance,
    "spending_chart": _chart,
    "create_invoice": _invoice,
    "pay_bill": _payment,
    "remind_customer": _reminder,
    "look_up_vat_number": _vat,
    "explain_term": _term,
    "year_report": _report,
    "check_bank_feed": _feed,
}
_HEADINGS = {
    "list_transactions": "Transactions",
    "list_invoices": "Invoices",
    "account_balance": "Balance",
    "spending_chart": "Spending",
    "create_invoice": "New invoice",
    "pay_bill": "Payment",
    "remind_customer": "Reminder",
    "look_up_vat_number": "VAT",
    "explain_term": "Term",
    "year_report": "Report",
    "check_bank_feed": "Bank feed",
}


def plain(text: object) -> str:
    """`text` as words of an answer: what a row holds must not act as markup."""
    return _MARKUP.sub(r"\\\1", " ".join(str(text).split()))


def _rows(rows: Sequence[Value], fields: Sequence[str], style: Style) -> str:
    picked = [{name: row[name] for name in fields} for row in rows]
    if style == "json":
        return _fence("json", json.dumps(picked, ensure_ascii=False, indent=2))
    if style == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(picked)
        return _fence("csv", text.getvalue().rstrip())
    # The newest ones are of most interest, and stand at the end.
    hidden, shown = picked[:-_ROWS], picked[-_ROWS:]
    note = f"*({len(hidden)} older ones are left out.)*\n\n" if hidden else ""
    if style == "list":
        return note + "\n".join("- " + ", ".join(plain(row[name]) for name in fields) for row in shown)
    head = "| " + " | ".join(name.capitalize() for name in fields) + " |"
    rule = "|" + "|".join("---:" if name in _NUMBERS else ":---" for name in fields) + "|"
    lines = ["| " + " | ".join(plain(row[name]) for name in fields) + " |" for row in shown]
    return note + "\n".join([head, rule, *lines])


_NUMBERS = {"amount", "number", "in", "out", "result"}


def _fence(language: str, text: str) -> str:
    marks = "`" * max(3, max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    return f"{marks}{language}\n{text}\n{marks}"


def _split(rows: Sequence[Value]) -> tuple[int, int]:
    cents = [int(row["cents"]) for row in rows]
    return sum(c for c in cents if c > 0), sum(c for c in cents if c < 0)
