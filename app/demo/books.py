"""One user's books, as rows of the store: opened with some history, read, and written under an idempotency key.

Ids of what is written come from the key, so that a second run of the same call finds the first one's row (X2), also
when both ran at the same moment.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from app.clock import now_ms
from app.demo import months
from app.demo.opening import OPENING_CENTS, opening_invoices, opening_transactions
from app.ids import new_id
from app.store import ledger
from app.store.engine import Connection, Store
from app.store.errors import Conflict
from app.store.ledger import Invoice, Payment

PAYMENTS = "Payments"
DAYS_TO_PAY = 14
_DAY_MS = 86_400_000
# How many users are remembered as having their opening rows; the store is asked again for the others.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """Money that moved on a day; negative `cents` went out."""

    day: str
    description: str
    category: str
    cents: int


class Books:
    """The books of all users of one store. Used on the event loop of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._opened: set[str] = set()

    async def entries(self, user_id: str, month: str | None = None, category: str | None = None) -> list[Entry]:
        """What was booked in `month` (`2026-05`; None: ever) under `category`, payments included, oldest first."""
        await self._open(user_id)
        rows = await self._store.read(lambda conn: ledger.list_transactions(conn, user_id))
        paid = await self._store.read(lambda conn: ledger.payments(conn, user_id))
        entries = [Entry(row.booked_on, row.description, row.category, row.cents) for row in rows]
        entries += [Entry(_day(row.created_at).isoformat(), _payment_words(row), PAYMENTS, -row.cents) for row in paid]
        wanted = [
            entry
            for entry in entries
            if (month is None or entry.day.startswith(month)) and (category is None or entry.category == category)
        ]
        return sorted(wanted, key=lambda entry: entry.day)

    async def balance(self, user_id: str) -> int:
        """The cents on the account: the opening balance and all that was booked since."""
        return OPENING_CENTS + sum(entry.cents for entry in await self.entries(user_id))

    async def invoices(self, user_id: str) -> list[Invoice]:
        """All invoices by number."""
        await self._open(user_id)
        return await self._store.read(lambda conn: ledger.invoices(conn, user_id))

    async def write_invoice(self, user_id: str, *, customer: str, cents: int, key: str) -> Invoice:
        """The stored invoice of the call with this key: a new one, or the one that an earlier run has written."""
        await self._open(user_id)

        async def op(conn: Connection) -> Invoice:
            done = await ledger.by_idempotency_key(conn, user_id, key) if key else None
            if isinstance(done, Invoice):
                return done
            return await ledger.insert_invoice(
                conn,
                invoice_id=_id_of("inv", user_id, key),
                user_id=user_id,
                customer=customer,
                cents=cents,
                currency="EUR",
                idempotency_key=key,
                created_at=now_ms(),
            )

        try:
            return await self._store.write(op)
        except Conflict:
            # Another process wrote it between our look and our insert; now it can be seen.
            return await self._store.write(op)

    async def pay(self, user_id: str, *, payee: str, cents: int, reference: str, iban: str, key: str) -> Payment:
        """The stored payment of the call with this key: a new one, or the one that an earlier run has ordered."""
        await self._open(user_id)
        row = Payment(
            id=_id_of("pay", user_id, key),
            user_id=user_id,
            payee=payee,
            iban=iban or None,
            cents=cents,
            currency="EUR",
            reference=reference or None,
            idempotency_key=key,
            created_at=now_ms(),
        )

        async def op(conn: Connection) -> Payment:
            done = await ledger.by_idempotency_key(conn, user_id, key) if key else None
            if isinstance(done, Payment):
                return done
            await ledger.insert_payment(conn, row)
            return row

        try:
            return await self._store.write(op)
        except Conflict:
            return await self._store.write(op)

    async def _open(self, user_id: str) -> None:
        """Give a new user an opening; whoever has rows keeps them."""
        if user_id in self._opened:
            return
        today = months.today()

        async def op(conn: Connection) -> None:
            if not await ledger.seed(conn, user_id, opening_transactions(user_id, today)):
                return
            for number, opening in enumerate(opening_invoices(user_id, today)):
                key = f"opening:{number}"
                # Another process may have opened the same books while we waited for its rows.
                if await ledger.by_idempotency_key(conn, user_id, key) is None:
                    await ledger.insert_invoice(
                        conn,
                        invoice_id=_id_of("inv", user_id, key),
                        user_id=user_id,
                        customer=opening.customer,
                        cents=opening.cents,
                        currency="EUR",
                        idempotency_key=key,
                        created_at=_moment(opening.written_on),
                        status=opening.status,
                    )

        await self._store.write(op)
        if len(self._opened) >= _REMEMBERED:
            self._opened.clear()
        self._opened.add(user_id)

    def __repr__(self) -> str:
        return f"<Books in {self._store!r}>"


def due_on(invoice: Invoice) -> date:
    """The day on which an invoice must be paid."""
    return _day(invoice.created_at) + timedelta(days=DAYS_TO_PAY)


def status_of(invoice: Invoice, today: date) -> str:
    """`paid`, `open`, or `overdue` for an open one whose day is over."""
    return "overdue" if invoice.status == "open" and due_on(invoice) < today else invoice.status


def _payment_words(row: Payment) -> str:
    return f"Payment to {row.payee}" + (f", {row.reference}" if row.reference else "")


def _day(at_ms: int) -> date:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def _moment(day: date) -> int:
    return (day - date(1970, 1, 1)).days * _DAY_MS + _DAY_MS // 2


def _id_of(prefix: str, user_id: str, key: str) -> str:
    if not key:
        return new_id(prefix)
    name = f"{user_id}\n{key}".encode("utf-8", "replace")
    return f"{prefix}_{hashlib.sha256(name).hexdigest()[:26]}"
