"""The books of the demo's assistant: real rows, so that its tools have real effects. Amounts are cents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TypeVar

from sqlalchemy import Table, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.columns import to_text
from app.store.statements import insert_into
from app.store.tables import ledger_invoices, ledger_payments, ledger_transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Money that moved; negative `cents` are money going out. `booked_on` is a date as YYYY-MM-DD."""

    id: str
    user_id: str
    booked_on: str
    description: str
    category: str
    cents: int
    currency: str = "EUR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """An invoice that was written; `number` counts from 1 for each user."""

    id: str
    user_id: str
    number: int
    customer: str
    cents: int
    currency: str
    status: str
    idempotency_key: str
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """A payment that was ordered."""

    id: str
    user_id: str
    payee: str
    iban: str | None = None
    cents: int
    currency: str
    reference: str | None = None
    idempotency_key: str
    created_at: int


async def seed(conn: AsyncConnection, user_id: str, rows: Sequence[Transaction]) -> bool:
    """Whether the user's books were empty and hold `rows` now. Books that hold anything stay as they are."""
    if await conn.scalar(select(func.count()).where(ledger_transactions.c.user_id == user_id)):
        return False
    if rows:
        # Another process may be doing the same at this moment.
        new = insert_into(conn, ledger_transactions).on_conflict_do_nothing(index_elements=["id"])
        await conn.execute(new, [_stored(row) for row in rows])
    return True


async def list_transactions(
    conn: AsyncConnection, user_id: str, since: str | None = None, until: str | None = None
) -> list[Transaction]:
    """The user's transactions booked from `since` to `until` (dates, both included; None: no bound), oldest first."""
    table = ledger_transactions
    found = select(table).where(table.c.user_id == user_id).order_by(table.c.booked_on, table.c.id)
    if since is not None:
        found = found.where(table.c.booked_on >= to_text(since))
    if until is not None:
        found = found.where(table.c.booked_on <= to_text(until))
    return [Transaction(**row) for row in (await conn.execute(found)).mappings()]


async def insert_invoice(
    conn: AsyncConnection,
    *,
    invoice_id: str,
    user_id: str,
    customer: str,
    cents: int,
    currency: str,
    idempotency_key: str,
    created_at: int,
    status: str = "open",
) -> Invoice:
    """The stored invoice with its number, the user's highest plus one."""
    table = ledger_invoices
    if conn.dialect.name == "postgresql":
        # SQLite has one writer at a time; here the numbers of one user are given out one after another.
        await conn.execute(select(func.pg_advisory_xact_lock(func.hashtext("ledger " + user_id))))
    last = await conn.scalar(select(func.max(table.c.number)).where(table.c.user_id == user_id))
    invoice = Invoice(
        id=invoice_id,
        user_id=user_id,
        number=int(last or 0) + 1,
        customer=to_text(customer),
        cents=cents,
        currency=to_text(currency),
        status=status,
        idempotency_key=idempotency_key,
        created_at=created_at,
    )
    await conn.execute(insert(table).values(_stored(invoice)))
    return invoice


async def insert_payment(conn: AsyncConnection, row: Payment) -> None:
    """Store a payment."""
    await conn.execute(insert(ledger_payments).values(_stored(row)))


async def invoices(conn: AsyncConnection, user_id: str) -> list[Invoice]:
    """The user's invoices by number."""
    found = select(ledger_invoices).where(ledger_invoices.c.user_id == user_id).order_by(ledger_invoices.c.number)
    return [Invoice(**row) for row in (await conn.execute(found)).mappings()]


async def payments(conn: AsyncConnection, user_id: str) -> list[Payment]:
    """The user's payments, oldest first."""
    table = ledger_payments
    found = select(table).where(table.c.user_id == user_id).order_by(table.c.created_at, table.c.id)
    return [Payment(**row) for row in (await conn.execute(found)).mappings()]


async def by_idempotency_key(conn: AsyncConnection, user_id: str, key: str) -> Invoice | Payment | None:
    """What the tool call with this key has done, if it has."""
    return await _by_key(conn, ledger_invoices, Invoice, user_id, key) or await _by_key(
        conn, ledger_payments, Payment, user_id, key
    )


_Row = TypeVar("_Row", Invoice, Payment)


async def _by_key(conn: AsyncConnection, table: Table, kind: type[_Row], user_id: str, key: str) -> _Row | None:
    found = select(table).where(table.c.user_id == user_id, table.c.idempotency_key == key)
    row = (await conn.execute(found)).mappings().first()
    return None if row is None else kind(**{field.name: row[field.name] for field in fields(kind)})


def _stored(row: Transaction | Invoice | Payment) -> dict[str, object]:
    """The columns of `row`; texts that a model wrote may hold what PostgreSQL does not take."""
    return {name: to_text(value) if isinstance(value, str) else value for name, value in asdict(row).items()}
