"""A bar chart as inline SVG, in a size whose text is readable on a phone.

It is drawn here because Spark's image has no plotting library, and only bars are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape

from msgspec import Struct

WIDTH, HEIGHT = 360, 190  # pixels of a phone's screen
LEFT, RIGHT, TOP, BOTTOM = 44, 6, 10, 24
LEAST = 2.5
"""Height of the smallest part of a bar: one record of a million is visible."""


class Bar(Struct, frozen=True):
    """Parts by colour, from bottom to top; ``note`` is the tooltip."""

    begin: datetime
    parts: Mapping[str, int]
    note: str

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def draw(bars: Sequence[Bar], title: str, first: str, last: str) -> str:
    """The plot, an <svg> element; ``first`` and ``last`` label the ends of its axis of time."""
    most = max((bar.total for bar in bars), default=0) or 1
    top = _round_up(most)
    inner, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = inner / max(len(bars), 1)
    drawn = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">',
        f"<title>{escape(title)}</title>",
    ]
    for share in (0, 0.5, 1):
        y = TOP + height * (1 - share)
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        if share * top == int(share * top):
            drawn.append(
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(int(share * top))}</text>'
            )
    for index, bar in enumerate(bars):
        x, y = LEFT + index * step, float(TOP + height)
        drawn.append(f"<g><title>{escape(bar.note)}</title>")
        for colour, number in bar.parts.items():
            if number:
                tall = max(number * height / top, LEAST)
                y -= tall
                drawn.append(
                    f'<rect x="{x + step * 0.08:.2f}" y="{y:.2f}" width="{step * 0.84:.2f}" height="{tall:.2f}"'
                    f' fill="{colour}"/>'
                )
        drawn.append("</g>")
    base = HEIGHT - 6
    drawn.append(f'<text x="{LEFT}" y="{base}">{escape(first)}</text>')
    drawn.append(f'<text x="{WIDTH - RIGHT}" y="{base}" text-anchor="end">{escape(last)}</text></svg>')
    return "".join(drawn)


def short(number: int) -> str:
    """At most five characters: 950, 12k, 1.5M."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            text = f"{number / size:.1f}".removesuffix(".0") if number < 100 * size else f"{number // size}"
            return text + unit
    return str(number)


def _round_up(number: int) -> int:
    """The next of 2, 4, 6, 8, 10, 20, 40, …"""
    size = 1
    while True:
        for factor in (2, 4, 6, 8, 10):
            if number <= factor * size:
                return factor * size
        size *= 10
