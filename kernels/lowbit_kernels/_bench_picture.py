"""The bench's rows as a picture: a roofline whose roof is the copy, and how much of it each operation reaches.

    draw(rows, title) -> str        SVG, in light and dark, no script, no font but the reader's

The work of an operation is its elements, so that intensity is elements a byte and the roof of every dtype one line:
elements a second = elements a byte times the copy's bandwidth. The bars below say the same as fractions, with the
target of each as a tick; a bar that misses its target is hatched, not only coloured.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from lowbit_kernels._bench_results import Row, verdict

WIDTH, MARGIN, LINE = 990, 24, 18
PLOT_HEIGHT, NAME, BARS = 300, 360, 420
MOST = 1.1
"""The fraction at the right end of the bars."""

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1b1f24 } .small { font-size: 11px; fill: #57606a }
.title { font-size: 15px; font-weight: 600 } .paper { fill: #fff } .axis { stroke: #8c959f; fill: none }
.roof { stroke: #1b1f24; stroke-width: 2 } .met { fill: #0b6bcb } .below { fill: url(#hatch) } .none { fill: #8c959f }
.tick { stroke: #1b1f24; stroke-width: 2 } .hatched { stroke: #b35900; stroke-width: 4 }
@media (prefers-color-scheme: dark) {
text, .title { fill: #e6edf3 } .small { fill: #9da7b1 } .paper { fill: #0d1117 } .roof, .tick { stroke: #e6edf3 }
.met { fill: #58a6ff } .hatched { stroke: #f0883e } }
"""


def draw(rows: Sequence[Row], title: str) -> str:
    """The picture of a run.

    Args:
      rows: of a run; host times, which are no fraction of a copy, are left out.
      title: what was measured, on what.

    Returns:
      SVG; the same for the same rows.
    """
    shown = [row for row in rows if row.fraction_of_copy is not None and row.operation != "copy"]
    first = MARGIN + LINE + PLOT_HEIGHT + 3 * LINE
    height = first + (len(shown) + 2) * LINE + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="'
        f"{html.escape(title)}: how much of a copy's bandwidth each operation reaches\">",
        f"<style>{_STYLE}</style>",
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path class="hatched" d="M0 0V6"/></pattern></defs>',
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        _text(MARGIN, MARGIN, title, "title"),
        *_roofline(shown),
        *_bars(shown, first),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{html.escape(words)}</text>'


def _kind(row: Row) -> str:
    return verdict(row) or "none"


def _roofline(rows: Sequence[Row]) -> list[str]:
    """Both axes logarithmic; the roof goes through the points' own copies."""
    left, top, right = MARGIN + 60, MARGIN + LINE, WIDTH - MARGIN
    bottom = top + PLOT_HEIGHT - 2 * LINE
    points = [(row, row.rows * row.columns / row.bytes, row.rows * row.columns / row.spread.median) for row in rows]
    if not points:
        return [_text(left, top + LINE, "nothing was measured as a fraction of a copy")]
    # a row's copy: what its own bandwidth would be at a fraction of 1
    copy = sorted(row.bytes / row.spread.median / (row.fraction_of_copy or 1) for row in rows)[len(rows) // 2]
    low, high = min(x for _, x, _ in points) * 0.8, max(x for _, x, _ in points) * 1.25
    floor, ceiling = min(y for *_, y in points) * 0.7, high * copy * 1.1

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / low) / math.log(high / low)
        up = math.log(y / floor) / math.log(ceiling / floor)
        return left + across * (right - left), bottom - up * (bottom - top)

    parts = [f'<path class="axis" d="M{left} {top}V{bottom}H{right}"/>']
    (x1, y1), (x2, y2) = place(max(low, floor / copy), max(low * copy, floor)), place(high, high * copy)
    parts.append(f'<path class="roof" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>')
    parts.append(_text(x2 - 8, y2 + 4, f"copy, {copy / 1e6:.2f} TB/s", "small", "end"))
    for row, x, y in points:
        across, down = place(x, y)
        label = html.escape(f"{row.operation} {row.dtype}: {row.cells()[6]} TB/s, {row.fraction_of_copy:.3f} of copy")
        parts.append(
            f'<circle class="{_kind(row)}" cx="{across:.1f}" cy="{down:.1f}" r="4"><title>{label}</title></circle>'
        )
    parts.append(_text(left, bottom + LINE, f"{low:.2f} elements a byte", "small"))
    parts.append(_text(right, bottom + LINE, f"{high:.2f}", "small", "end"))
    parts.append(_text(left + 6, top + 10, f"{ceiling / 1e6:.2f} · 10¹² elements a second", "small"))
    return parts


def _bars(rows: Sequence[Row], top: float) -> list[str]:
    """A line an operation: name, dtype, bar, fraction and target."""
    left = MARGIN + NAME
    unit = BARS / MOST
    parts = [_text(MARGIN, top, "operation, dtype, shape", "small"), _text(left, top, "fraction of a copy", "small")]
    parts.append(f'<path class="axis" d="M{left + unit:.1f} {top + 6}V{top + 6 + len(rows) * LINE}"/>')
    for number, row in enumerate(rows, 1):
        y, fraction = top + number * LINE, row.fraction_of_copy or 0.0
        parts.append(_text(MARGIN, y, f"{row.operation} {row.dtype} {row.rows}×{row.columns}"))
        length = min(fraction, MOST) * unit
        parts.append(f'<rect class="{_kind(row)}" x="{left}" y="{y - 10}" width="{length:.1f}" height="12"/>')
        if row.target is not None:
            at = left + row.target * unit
            parts.append(f'<path class="tick" d="M{at:.1f} {y - 12}V{y + 4}"/>')
        words = f"{fraction:.3f}" + ("" if row.target is None else f" of {row.target:.2f}, {verdict(row)}")
        parts.append(_text(left + BARS + 8, y, words))
    return parts
