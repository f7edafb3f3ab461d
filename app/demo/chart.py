"""A bar chart as a small SVG picture that can be read on a light and on a dark page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from app.demo.money import euros

_WIDTH, _ROW, _TOP, _LABELS, _VALUES = 640, 30, 56, 130, 110
# A ground of its own: a picture cannot know which theme the page around it has.
_STYLE = (
    ".g{fill:#fbfbfd}.t{fill:#1d2433}.v{fill:#5a6478}.b{fill:#3b6fd4}text{font:14px system-ui,sans-serif}"
    ".h{font-weight:600;font-size:16px}"
    "@media(prefers-color-scheme:dark){.g{fill:#1b202b}.t{fill:#e8ebf2}.v{fill:#a3adc0}.b{fill:#7ea6f5}}"
)


@dataclass(frozen=True, slots=True)
class Picture:
    """An image with what it needs to be shown: a data URL, its size in pixels, and the same in words."""

    url: str
    width: int
    height: int
    alt: str


def bar_chart(title: str, bars: Sequence[tuple[str, int]]) -> Picture:
    """Horizontal bars, one for each label with its cents, longest bar for the highest amount."""
    height = _TOP + _ROW * len(bars) + 16
    longest = max((cents for _, cents in bars), default=1) or 1
    room = _WIDTH - _LABELS - _VALUES - 36
    rows = []
    for at, (label, cents) in enumerate(bars):
        y, length = _TOP + at * _ROW, max(2, round(room * cents / longest))
        rows.append(
            f'<text class="t" x="{_LABELS + 8}" y="{y + 16}" text-anchor="end">{escape(label)}</text>'
            f'<rect class="b" x="{_LABELS + 20}" y="{y}" width="{length}" height="22" rx="4"/>'
            f'<text class="v" x="{_LABELS + 28 + length}" y="{y + 16}">{euros(cents)}</text>'
        )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        f'<style>{_STYLE}</style><rect class="g" width="{_WIDTH}" height="{height}" rx="12"/>'
        f'<text class="t h" x="20" y="34">{escape(title)}</text>{"".join(rows)}</svg>'
    )
    words = ", ".join(f"{label} {euros(cents)}" for label, cents in bars)
    url = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return Picture(url=url, width=_WIDTH, height=height, alt=f"{title}: {words}" if bars else f"{title}: nothing")
