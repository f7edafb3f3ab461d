"""A report that takes its time, to show what a slow tool looks like, and the rows that it reports on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from app.demo.books import Entry
from app.demo.money import euros
from app.demo.opening import INCOME
from app.events import Commentary
from app.tools import ToolContext, ToolError

SECONDS = 12.0
_TICK = 0.1
_STAGES = (
    "Collecting the bookings",
    "Sorting them into categories",
    "Adding up income and costs",
    "Comparing the months",
    "Checking the totals",
    "Writing the report",
)


def write_report(ctx: ToolContext, entries: Sequence[Entry], seconds: float) -> dict[str, Any]:
    """Totals by month and by category; blocks for about `seconds`, and ends within 0.1 s of a cancel.

    Raises:
        ToolError: the call was cancelled.
    """
    for number, stage in enumerate(_STAGES):
        ctx.progress(stage, number / len(_STAGES))
        if number == len(_STAGES) // 2:
            costs = -sum(entry.cents for entry in entries if entry.cents < 0)
            ctx.emit(Commentary(text=f"Halfway: {len(entries)} bookings read, costs so far {euros(costs)}."))
        _rest(ctx, seconds / len(_STAGES))
    ctx.progress("Done", 1.0)
    by_month: dict[str, list[int]] = {}
    by_category: dict[str, int] = {}
    for entry in entries:
        sums = by_month.setdefault(entry.day[:7], [0, 0])
        sums[entry.cents < 0] += entry.cents
        by_category[entry.category] = by_category.get(entry.category, 0) + entry.cents
    return {
        "months": [
            {"month": month, "in_cents": money_in, "out_cents": money_out, "profit": euros(money_in + money_out)}
            for month, (money_in, money_out) in sorted(by_month.items())
        ],
        "categories": [
            {"category": name, "cents": cents, "total": euros(cents)}
            for name, cents in sorted(by_category.items(), key=lambda item: item[1])
            if name != INCOME
        ],
        "profit_cents": sum(by_category.values()),
        "profit": euros(sum(by_category.values())),
    }


def _rest(ctx: ToolContext, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if ctx.cancelled:
            raise ToolError("The report was stopped.")
        time.sleep(min(_TICK, left))
