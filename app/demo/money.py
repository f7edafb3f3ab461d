"""Amounts of money: whole cents inside, euros outside."""

from __future__ import annotations

import math

from app.tools import ToolError

MAX_EUROS = 100_000


def euros(cents: int) -> str:
    """An amount as people write it: `€1,200.50`, `-€3.00`."""
    whole, rest = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}€{whole:,}.{rest:02d}"


def to_cents(amount: float) -> int:
    """The whole cents of an amount in euros that may be invoiced or paid.

    Raises:
        ToolError: it is not above 0, is above 100,000, or has fractions of a cent.
    """
    if not math.isfinite(amount):
        raise ToolError("The amount must be a number.")
    if amount <= 0:
        raise ToolError("The amount must be above €0.00.")
    if amount > MAX_EUROS:
        raise ToolError(f"The amount must not be above {euros(MAX_EUROS * 100)}.")
    cents = round(amount * 100)
    if abs(amount * 100 - cents) > 1e-4:
        raise ToolError("The amount must not have fractions of a cent.")
    return cents
