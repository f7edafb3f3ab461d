"""What a new user's books begin with: four months of a small design studio, the same for the same user and day."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from datetime import date, timedelta

from app.demo.months import month_of, shifted
from app.store.ledger import Transaction

INCOME = "Income"
OPENING_CENTS = 1_845_000
_MONTHS = 4
_CUSTOMERS = (
    "Miller Ltd",
    "Harbour Café",
    "Northwind Traders",
    "Oak & Elm",
    "City Museum",
    "Lindqvist AB",
    "Blue Door",
)


@dataclass(frozen=True, slots=True)
class _Habit:
    """A booking that comes back each month, on about the same day for about the same amount of euros."""

    day: int
    description: str
    category: str
    low: float
    high: float


_HABITS = (
    _Habit(1, "Office rent, 12 Harbour Street", "Rent", -1450, -1450),
    _Habit(2, "Accounting software", "Software", -39, -39),
    _Habit(4, "Retainer, {customer}", INCOME, 2400, 3200),
    _Habit(5, "Electricity, City Power", "Utilities", -95, -160),
    _Habit(7, "Train tickets", "Travel", -40, -190),
    _Habit(9, "Invoice paid, {customer}", INCOME, 1500, 2900),
    _Habit(11, "Printer paper and ink", "Supplies", -25, -85),
    _Habit(13, "Liability insurance", "Insurance", -72.4, -72.4),
    _Habit(15, "Internet and telephone", "Utilities", -64.9, -64.9),
    _Habit(17, "Invoice paid, {customer}", INCOME, 2100, 4300),
    _Habit(19, "Advertising in the trade journal", "Marketing", -120, -310),
    _Habit(21, "Design software, 3 seats", "Software", -178.5, -178.5),
    _Habit(23, "Hotel, client visit", "Travel", -110, -260),
    _Habit(25, "Salaries", "Payroll", -3900, -4100),
    _Habit(26, "Payroll tax", "Taxes", -820, -900),
    _Habit(28, "Account fees", "Bank fees", -12.9, -12.9),
)


@dataclass(frozen=True, slots=True)
class OpeningInvoice:
    """An invoice that a user's books begin with."""

    customer: str
    cents: int
    written_on: date
    status: str


def opening_transactions(user_id: str, today: date) -> list[Transaction]:
    """About sixty bookings of the last four months, none after `today`, oldest first."""
    chance = _chance(user_id)
    start = shifted(month_of(today), -_MONTHS)
    rows = []
    for offset in range(_MONTHS + 1):
        month = shifted(start, offset)
        for habit in _HABITS:
            cents = round(chance.uniform(habit.low, habit.high) * 100)
            words = habit.description.format(customer=chance.choice(_CUSTOMERS))
            day = date(int(month[:4]), int(month[5:]), habit.day)
            rows.append((day, words, habit.category, cents))
    first = _same_day(start, today)
    name = hashlib.sha256(user_id.encode("utf-8", "replace")).hexdigest()[:16]
    return [
        Transaction(
            id=f"ltx_{name}_{number:03d}",
            user_id=user_id,
            booked_on=day.isoformat(),
            description=words,
            category=category,
            cents=cents,
        )
        for number, (day, words, category, cents) in enumerate(rows)
        if first < day <= today
    ]


def opening_invoices(user_id: str, today: date) -> list[OpeningInvoice]:
    """A few invoices, oldest first: paid, overdue and open ones."""
    chance = _chance(user_id + " invoices")
    customers = chance.sample(_CUSTOMERS, 5)
    ages = ((62, "paid"), (40, "paid"), (33, "open"), (12, "open"), (3, "open"))
    return [
        OpeningInvoice(customer, round(chance.uniform(300, 2800)) * 100, today - timedelta(days=age), status)
        for customer, (age, status) in zip(customers, ages, strict=True)
    ]


def _same_day(month: str, today: date) -> date:
    return date(int(month[:4]), int(month[5:]), min(today.day, 28))


def _chance(name: str) -> random.Random:
    # Seeded with text, which `random` hashes the same way in every process.
    return random.Random(name)  # noqa: S311 - made-up books, not a secret
