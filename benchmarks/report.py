"""What came out: a table for the terminal, JSON for machines, and one HTML page that needs nothing from outside."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cases import DISTURBED, Measured, Outcome, Verdict
from benchmarks.client import Run

_COLOURS = ("#0b7285", "#868e96", "#e8590c", "#5f3dc4")
_UNITS = {
    "cpu": ("s/M", 1, "CPU s/M"),
    "cpu, steady": ("s/M", 1, "steady s/M"),
    "delay p50": ("ms", 1, "delay p50 ms"),
    "delay p99": ("ms", 1, "delay p99 ms"),
    "on time": ("%", 100, "on time %"),
    "first byte p99": ("ms", 1, "first byte p99 ms"),
    "memory": ("MiB", 1, "peak MiB"),
    "KiB each": ("KiB", 1, "KiB each"),
    "client": ("%", 100, "client's core %"),
    "failed": ("", 1, "failed"),
}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 520, 260, 56, 36


def table(outcomes: dict[str, Outcome]) -> str:
    """The figures in columns, then each goal with what was reached."""
    heads = ["case", "who", *(label for _, _, label in _UNITS.values())]
    rows = [heads]
    for name, outcome in outcomes.items():
        for measured in outcome.measured:
            figures = measured.figures()
            rows.append([name, measured.who, *(_cell(figures.get(key), key) for key in _UNITS)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    lines = [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    lines += ["", "goals"]
    lines += [f"  {'met ' if verdict.met else 'MISSED'.ljust(4)}  {_sentence(verdict)}" for verdict in _verdicts(outcomes)]
    lines += [f"  {remark}" for outcome in outcomes.values() for remark in [*outcome.remarks, *_warnings(outcome)]]
    return "\n".join(lines)


def _verdicts(outcomes: dict[str, Outcome]) -> list[Verdict]:
    return [verdict for outcome in outcomes.values() for verdict in outcome.verdicts]


def _sentence(verdict: Verdict) -> str:
    than = "≥" if verdict.at_least else "≤"
    return f"{verdict.what}: {_number(verdict.value)}{verdict.unit} (goal {than} {_number(verdict.goal)}{verdict.unit})"


def _warnings(outcome: Outcome) -> list[str]:
    """What makes a figure doubtful."""
    found = []
    for measured in outcome.measured:
        figures = measured.figures()
        if figures.get("client", 0) > 0.85:
            found.append(
                f"{measured.case}, {measured.who}: the client was busy ({figures['client']:.0%}); its delays are its own"
            )
        if figures.get("disturbed", 0) > DISTURBED:
            share = f"{figures['disturbed']:.0%}"
            found.append(
                f"{measured.case}, {measured.who}: others used the machine (the client waited for a core {share}): "
                "delays and first bytes are not the server's own"
            )
        if figures["failed"]:
            found.append(f"{measured.case}, {measured.who}: {figures['failed']:.0f} streams failed: {measured.complaints}")
    return found


def _cell(value: float | None, key: str) -> str:
    if value is None or (key == "failed" and not value):
        return "" if key != "failed" or value is None else "0"
    return _number(value * _UNITS[key][1])


def _number(value: float) -> str:
    if value == int(value):
        return str(int(value))
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"


def document(outcomes: dict[str, Outcome], about: dict[str, str]) -> dict[str, object]:
    """Everything as JSON, without the single delays."""
    return {
        "machine": about,
        "cases": {
            name: {
                "measured": [
                    {
                        "who": one.who,
                        "load": one.load,
                        "figures": one.figures(),
                        "runs": [
                            {
                                "tokens": run.tokens,
                                "cpu_seconds": run.cpu,
                                "wall_seconds": run.wall,
                                "failed": run.failed,
                                "samples": [[s.at, s.cpu, s.memory, s.tokens] for s in run.samples],
                            }
                            for run in one.runs
                        ],
                    }
                    for one in outcome.measured
                ],
                "goals": [
                    {"what": v.what, "value": v.value, "goal": v.goal, "unit": v.unit, "met": v.met}
                    for v in outcome.verdicts
                ],
                "remarks": outcome.remarks,
            }
            for name, outcome in outcomes.items()
        },
    }


def write(outcomes: dict[str, Outcome], about: dict[str, str], folder: Path) -> tuple[Path, Path]:
    """The two files."""
    folder.mkdir(parents=True, exist_ok=True)
    as_json, as_html = folder / "results.json", folder / "report.html"
    as_json.write_text(json.dumps(document(outcomes, about), indent=1))
    as_html.write_text(page(outcomes, about))
    return as_json, as_html


# -- the page


def page(outcomes: dict[str, Outcome], about: dict[str, str]) -> str:
    """One HTML page with everything in it."""
    goals = "".join(
        f"<tr class={'met' if v.met else 'missed'}><td>{html.escape(v.what)}<td>{_number(v.value)}{v.unit}"
        f"<td>{'≥' if v.at_least else '≤'} {_number(v.goal)}{v.unit}<td>{'met' if v.met else 'missed'}"
        for v in _verdicts(outcomes)
    )
    machine = "".join(f"<dt>{html.escape(k)}<dd>{html.escape(v)}" for k, v in about.items())
    sections = "".join(_section(name, outcome) for name, outcome in outcomes.items())
    return f"""<!doctype html><html lang=en><meta charset=utf-8><title>Earlybyte: benchmarks</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2em auto; padding: 0 1em; color: #212529 }}
table {{ border-collapse: collapse; margin: 1em 0 }}
td, th {{ padding: .25em .8em; border-bottom: 1px solid #dee2e6; text-align: right }}
td:first-child, th:first-child, td:nth-child(2) {{ text-align: left }}
.met td:last-child {{ color: #2b8a3e }} .missed td:last-child {{ color: #c92a2a; font-weight: 600 }}
figure {{ display: inline-block; margin: .5em 1em .5em 0 }} figcaption {{ font-size: 13px; color: #495057 }}
dt {{ float: left; clear: left; width: 9em; color: #868e96 }} dd {{ margin-left: 9em }}
svg text {{ font: 11px system-ui, sans-serif; fill: #495057 }}
</style>
<h1>Earlybyte: benchmarks</h1><dl>{machine}</dl>
<p>CPU is processor seconds of the server per million tokens delivered, on one core. Delay is from the production of a
token to its receipt by the client.</p>
<h2>Goals</h2><table><tr><th>what<th>reached<th>goal<th>{goals}</table>{sections}</html>"""


def _section(name: str, outcome: Outcome) -> str:
    heads = "".join(f"<th>{label}" for _, _, label in _UNITS.values())
    rows = "".join(
        f"<tr><td>{html.escape(one.who)}<td>{html.escape(one.load)}"
        + "".join(f"<td>{_cell(figures.get(k), k)}" for k in _UNITS)
        for one in outcome.measured
        if (figures := one.figures())
    )
    remarks = "".join(f"<p>{html.escape(remark)}" for remark in [*outcome.remarks, *_warnings(outcome)])
    return f"<h2>{name}</h2><table><tr><th>who<th>load{heads}{rows}</table>{remarks}{''.join(_plots(outcome.measured))}"


def _plots(measured: Sequence[Measured]) -> list[str]:
    shown = [(one.who, one.runs[-1]) for one in measured if one.runs]
    plots = []
    for title, pick in (("time to first byte, ms", "first_bytes"), ("token delay, ms", "delays")):
        lines = [(who, _cdf(getattr(run, pick))) for who, run in shown]
        if any(len(line) > 2 for _, line in lines):
            plots.append(_plot(f"{title} (share of all, logarithmic)", lines, log=True))
    plots += [
        _plot("memory, MiB over seconds", [(who, [(s.at, s.memory / 2**20) for s in run.samples]) for who, run in shown]),
        _plot("processor, cores over seconds", [(who, _usage(run)) for who, run in shown]),
    ]
    return plots


def _cdf(values: Sequence[float]) -> list[tuple[float, float]]:
    ordered = sorted(values)
    if not ordered:
        return []
    shares = [i / 200 for i in range(200)] + [0.9975, 0.999, 0.9995, 1.0]
    return [(max(0.05, ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000), share) for share in shares]


def _usage(run: Run) -> list[tuple[float, float]]:
    pairs = zip(run.samples, run.samples[1:], strict=False)
    return [(b.at, (b.cpu - a.cpu) / (b.at - a.at)) for a, b in pairs if b.at > a.at]


def _plot(title: str, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], *, log: bool = False) -> str:
    points = [point for _, line in lines for point in line]
    if not points:
        return ""
    right, top = max(x for x, _ in points), max(1e-9, *(y for _, y in points))
    left = min(x for x, _ in points) if log else 0.0
    top = 1.0 if log else top * 1.08

    def place(x: float, y: float) -> tuple[float, float]:
        if log:
            span = math.log(max(right / left, 1.0001))
            part = math.log(x / left) / span
        else:
            part = x / right if right else 0.0
        return _LEFT + part * (_WIDTH - _LEFT - 12), _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _BOTTOM - 12)

    marks = []
    ticks = [10.0**e for e in range(-2, 7) if left <= 10.0**e <= right] if log else [right * i / 5 for i in range(6)]
    for tick in ticks:
        x, _ = place(tick, 0)
        marks.append(f'<path d="M{x:.1f} 12V{_HEIGHT - _BOTTOM}" stroke="#e9ecef"/>')
        marks.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - 16}" text-anchor="middle">{tick:g}</text>'
            if log or tick == int(tick)
            else f'<text x="{x:.1f}" y="{_HEIGHT - 16}" text-anchor="middle">{tick:.1f}</text>'
        )
    for i in range(5):
        value = top * i / 4
        _, y = place(right, value)
        label = f"{value:.0%}" if log else f"{value:.3g}"
        marks.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - 12}" stroke="#e9ecef"/>')
        marks.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for number, (who, line) in enumerate(lines):
        if line:
            colour = _COLOURS[number % len(_COLOURS)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
            marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
            marks.append(
                f'<text x="{_LEFT + 10 + 150 * number}" y="{_HEIGHT - 2}" style="fill:{colour}">● {html.escape(who)}</text>'
            )
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 4}" width="{_WIDTH}" role="img">{"".join(marks)}</svg>'
    return f"<figure>{svg}<figcaption>{html.escape(title)}</figcaption></figure>"
