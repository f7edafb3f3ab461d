"""From a clause of the user's words to a want: a table, its first row that matches counts.

A row is a pattern and a reader, which takes the parameters out of the clause. What the clause does not say may stand in
an earlier message: `before` holds those, newest first, for clauses such as "pay it".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date

from app.demo.months import find_month
from app.demo.terms import find_country, find_term
from app.demo.wants import Want
from app.demo.words import find_amount, find_iban, find_reference, names_after, tidy_name

# Questions for what is missing, and the word that makes their answer a part of the first sentence again.
WHICH_CUSTOMER = "For whom is the invoice?"
WHICH_PAYEE = "To whom shall I pay it?"
WHICH_DEBTOR = "Which customer shall I remind?"
HOW_MUCH = "How much is it, in euros?"
WHICH_COUNTRY = "For which country?"
QUESTIONS = {WHICH_CUSTOMER: "for", WHICH_PAYEE: "to", WHICH_DEBTOR: "to", HOW_MUCH: "over", WHICH_COUNTRY: "in"}

CATEGORIES = {
    "Bank fees": r"bank fees?|account fees?",
    "Income": r"income|revenues?|earnings?|earn(?:ed)?|money in",
    "Insurance": r"insurance",
    "Marketing": r"marketing|advertis\w+|ads",
    "Payments": r"payments",
    "Payroll": r"payroll|salar(?:y|ies)|wages",
    "Rent": r"rent",
    "Software": r"software|subscriptions?",
    "Supplies": r"supplies|paper|ink",
    "Taxes": r"tax(?:es)?",
    "Travel": r"travel(?:l?ing)?|trains?|hotels?|trips?",
    "Utilities": r"utilit(?:y|ies)|electricity|internet|telephone|phone",
}
_WHAT = r"\b(?:what(?:'s|’s| is| are| does)|explain|define|meaning of|tell me about)\b"


@dataclass(frozen=True, slots=True)
class Around:
    """What a reader may look at beside its clause."""

    today: date
    before: Sequence[str] = ()


Reader = Callable[[str, Around], Want | None]


def find_category(text: str) -> str | None:
    """The category of bookings that `text` names."""
    lower = text.lower()
    return next((name for name, words in CATEGORIES.items() if re.search(rf"\b(?:{words})\b", lower)), None)


def find_want(clause: str, around: Around) -> Want | None:
    """What the clause asks for; None where no row of the table matches."""
    for pattern, reader in _INTENTS:
        if re.search(pattern, clause, re.IGNORECASE) and (want := reader(clause, around)) is not None:
            return want
    return None


def _explain(clause: str, _: Around) -> Want | None:
    country = find_country(clause)
    if country and re.search(r"\bvat\b", clause, re.IGNORECASE):
        return _vat(clause, _)
    term = find_term(clause)
    own = re.search(r"\b(?:my|our|we|i|open|overdue|unpaid)\b", clause, re.IGNORECASE)
    return Want("explain_term", {"term": term}) if term and not own else None


def _vat(clause: str, _: Around) -> Want | None:
    country = find_country(clause)
    if country is None:
        return Want("look_up_vat_number", question=WHICH_COUNTRY)
    number = re.search(r"\b(?:[A-Z]{2,3}[ -]?[0-9A-Z][0-9A-Z .-]*\d[0-9A-Z]*)", clause)
    given = {"country": country.country} | ({"number": number[0].strip(" .")} if number else {})
    return Want("look_up_vat_number", given)


def _remind(clause: str, around: Around) -> Want:
    names = names_after(clause, "remind", "to", "for")
    names = [name for name in names if not find_month(name, around.today)]
    if not names:
        return Want("remind_customer", question=WHICH_DEBTOR)
    return Want("remind_customer", {"customer": names[0]})


def _invoice(clause: str, around: Around) -> Want:
    amount = find_amount(clause)
    names = [name for name in names_after(clause, "for", "to") if not find_month(name, around.today)]
    if not names:
        # "invoice Miller Ltd 300", "bill Miller Ltd"
        names = names_after(clause, "invoice", "bill")
    if not names:
        return Want("create_invoice", question=WHICH_CUSTOMER)
    if amount is None:
        return Want("create_invoice", question=HOW_MUCH)
    given: dict[str, object] = {"customer": names[0], "amount": amount}
    return Want("create_invoice", given | ({"description": names[1]} if len(names) > 1 else {}))


def _pay(clause: str, around: Around) -> Want:
    payee, amount = _payee(clause), find_amount(clause)
    if re.search(r"\b(?:pay|do|settle) (?:it|that|this|them)\b|\bthat bill\b", clause, re.IGNORECASE):
        for said in around.before:
            payee = payee or _payee(said) or next(iter(names_after(said, "for")), "")
            amount = find_amount(said) if amount is None else amount
    if not payee:
        return Want("pay_bill", question=WHICH_PAYEE)
    if amount is None:
        return Want("pay_bill", question=HOW_MUCH)
    given: dict[str, object] = {"payee": payee, "amount": amount}
    reference, iban = find_reference(clause), find_iban(clause)
    return Want("pay_bill", given | ({"reference": reference} if reference else {}) | ({"iban": iban} if iban else {}))


def _payee(text: str) -> str:
    names = names_after(text, "to") or names_after(text, "from") or names_after(text, "pay", "settle", "transfer")
    names = names or names_after(re.sub(r"[€\d.,]+(?: ?euros?\b)?", " ", text), "pay")
    bill = re.search(r"\b(?:a|an|the|my|our)\s+(\w+)\s+bill\b", text, re.IGNORECASE)
    return names[0] if names else tidy_name(bill[1]) if bill else ""


def _bookings(clause: str, around: Around) -> Want:
    month, category = find_month(clause, around.today), find_category(clause)
    given = {"month": month, "category": category}
    return Want("list_transactions", {name: value for name, value in given.items() if value})


def _chart(clause: str, around: Around) -> Want:
    month = find_month(clause, around.today)
    return Want("spending_chart", {"month": month} if month else {})


def _invoices(clause: str, _: Around) -> Want:
    if re.search(r"\boverdue|late\b", clause, re.IGNORECASE):
        return Want("list_invoices", {"status": "overdue"})
    if re.search(r"\bunpaid|open|owe\w*|outstanding|receivables\b", clause, re.IGNORECASE):
        return Want("list_invoices", {"status": "open"})
    return Want("list_invoices", {"status": "paid"} if re.search(r"\bpaid\b", clause, re.IGNORECASE) else {})


def _plain(tool: str) -> Reader:
    return lambda _clause, _around: Want(tool)


_BOOKING_WORDS = (
    r"\btransactions?\b|\bbookings?\b|\bexpenses?\b|\bspend(?:ing)?\b|\bspent\b|\bcosts?\b|\bstatement\b|\bpayments\b"
    r"|\b(?:income|revenues?|earn(?:ed|ings)?|salar(?:y|ies)|payroll)\b|\b(?:show|list|see)\b.*\bmonth\b"
)
_INTENTS: tuple[tuple[str, Reader], ...] = (
    (_WHAT, _explain),
    (r"\b(?:vat|tax) (?:rate|number)s?\b.*\b(?:in|of|for)\b|\bvat (?:rate|in)\b", _vat),
    (r"\bremind(?:er)?\b", _remind),
    (r"\b(?:create|write|make|issue|draft|prepare|raise|send|add|need|want)\b.*\binvoice\b(?!s)", _invoice),
    (r"^\W*(?:please |now |and )*(?:a )?new invoice\b|^\W*(?:please |now |and )*(?:invoice|bill) [A-Z]", _invoice),
    (r"\b(?:pay|transfer|wire|settle)\b(?!.*\?$)|\b(?:can|could|will|would) you pay\b", _pay),
    (r"\b(?:chart|graph|diagram|plot|draw|picture)\b", _chart),
    (r"\breports?\b|\bannual\b|\byearly\b", _plain("year_report")),
    (r"\bbank feed\b|\bfeed\b|\b(?:child|sub) ?-?process\b|\breconcile\b|\bduplicates?\b", _plain("check_bank_feed")),
    (r"\binvoices?\b|\bowes?\b|\boutstanding\b|\boverdue\b|\breceivables\b|\bunpaid\b", _invoices),
    (
        r"\bbalance\b|\bhow much (?:money|cash)\b|\baccount\b|\bafford\b|\bcash position\b",
        _plain("account_balance"),
    ),
    (_BOOKING_WORDS, _bookings),
)
