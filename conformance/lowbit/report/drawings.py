"""The pictures of a failing comparison, as geometry: what a template draws as inline SVG, and says in words beside it.

`Record.pictures` comes from a file that anybody may have written. A picture whose data are not what they should be is
left out; it never costs the report. Counts stay exact in the words; only shades and heights are rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowbit.formats import FORMATS, FloatFormat
from lowbit.report import text

ROWS, COLUMNS, PAIRS, BARS = 64, 128, 4096, 600
"""The most that is drawn of one map, of one confusion matrix, of one histogram."""

SHADES = 5
"""Classes of a heat map's cells, by the share of the fullest one: up to a fifth, two fifths, …."""

LARGEST = 8
"""Pairs of codes that are told in words."""

_WRITTEN_OUT = 24
"""Codes a side up to which a confusion matrix has its counts written in."""


def drawn(pictures: Any) -> dict[str, dict[str, Any]]:
    """What can be drawn of a record's `pictures`, by name."""
    if not isinstance(pictures, Mapping):
        return {}
    found = {}
    for name, draw in _DRAWN.items():
        if isinstance(pictures.get(name), Mapping):
            try:
                picture = draw(pictures[name])
            except (KeyError, TypeError, ValueError, OverflowError, IndexError):
                continue
            if picture is not None:
                found[name] = picture
    return found


def size(picture: Mapping[str, Any]) -> int:
    """Roughly how many characters a picture takes in the page."""
    return sum(len(str(value)) for value in picture.values()) + 60 * len(picture.get("bars", ())) + 1200


def _map(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The heat map: one path a shade, and where the mismatches lie in words."""
    counts = [[_count(n) for n in row] for row in data["counts"]]
    if not 0 < len(counts) <= ROWS or not 0 < len(counts[0]) <= COLUMNS or len({len(row) for row in counts}) > 1:
        raise ValueError("counts: no grid that can be drawn")
    step = max(_count(data.get("row_step", 1)), 1), max(_count(data.get("column_step", 1)), 1)
    whole = _count(data.get("rows", len(counts) * step[0])), _count(data.get("columns", len(counts[0]) * step[1]))
    full = [(n, i, j) for i, row in enumerate(counts) for j, n in enumerate(row) if n]
    if not full:
        return None
    most = max(full)[0]
    shades = [""] * SHADES
    for n, i, j in full:
        shades[(n * SHADES - 1) // most] += f"M{j} {i + 0.5}h1"
    unit = text.line(data.get("unit", "element"), 20)
    places = [[place[axis] for place in full] for axis in (1, 2)]
    spans = [
        (min(found) * step[axis], min((max(found) + 1) * step[axis], whole[axis]) - 1)
        for axis, found in enumerate(places)
    ]
    names = ("row", unit)

    def cell_span(axis: int, place: int) -> str:
        return _span(names[axis], place * step[axis], min((place + 1) * step[axis], whole[axis]) - 1)

    top = sorted(full, key=lambda cell: (-cell[0], cell[1:]))[:3]
    cell = max(6, min(22, 700 // len(counts[0]), 320 // len(counts)))
    return {
        "rows": len(counts),
        "columns": len(counts[0]),
        "width": cell * len(counts[0]),
        "height": cell * len(counts),
        "shades": shades,
        "most": most,
        "unit": unit,
        "whole": whole,
        "step": step,
        "spans": [_span(name, *span) for name, span in zip(names, spans, strict=True)],
        "full": len(full),
        "cells": len(counts) * len(counts[0]),
        "top": [{"count": n, "at": [cell_span(axis, place) for axis, place in enumerate(at)]} for n, *at in top],
    }


def _span(name: str, first: int, last: int) -> str:
    return f"{name} {first:,}" if first == last else f"{name}s {first:,} to {last:,}"


def _confusion(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Expected codes downward, actual ones across, both along the number line."""
    fmt = FORMATS.get(str(data.get("format")))
    width = fmt.bits if fmt else 8
    pairs: dict[tuple[int, int], int] = {}
    for expected, actual, n in list(data["pairs"])[:PAIRS]:
        if not (0 <= _count(expected) < 1 << width and 0 <= _count(actual) < 1 << width):
            raise ValueError("pairs: no codes of the format")
        pairs[expected, actual] = pairs.get((expected, actual), 0) + _count(n)
    pairs = {pair: n for pair, n in pairs.items() if n}
    if not pairs:
        return None
    codes = range(1 << width) if width <= 4 else {code for pair in pairs for code in pair}
    order = sorted(codes, key=lambda code: _ordinal(code, fmt))
    place = {code: i for i, code in enumerate(order)}
    most = max(pairs.values())
    written = len(order) <= _WRITTEN_OUT
    shades = [""] * SHADES
    for (expected, actual), n in pairs.items():
        shades[(n * SHADES - 1) // most] += f"M{place[actual]} {place[expected] + 0.5}h1"
    ranked = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
    digits = -(-width // 4)
    return {
        "format": text.line(data.get("format") or "bytes", 20),
        "codes": [{"hex": f"{code:0{digits}x}", "value": _value(code, fmt)} for code in order] if written else [],
        "ends": [f"0x{code:0{digits}x} ({_value(code, fmt)})" for code in (order[0], order[-1])],
        "side": len(order),
        "shades": shades,
        "counts": [
            {
                "column": place[actual],
                "row": place[expected],
                "text": text.about(n),
                "dark": (n * SHADES - 1) // most >= 3,
            }
            for (expected, actual), n in sorted(pairs.items())
        ]
        if written
        else [],
        "largest": [
            {
                "count": n,
                **{
                    name: f"0x{code:0{digits}x} ({_value(code, fmt)})" if fmt else f"0x{code:0{digits}x}"
                    for name, code in zip(("want", "got"), pair, strict=True)
                },
            }
            for pair, n in ranked[:LARGEST]
        ],
        "others": len(ranked) - len(ranked[:LARGEST]),
        "left": _count(data.get("left", 0)),
    }


def _distance(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Codes apart, signed: a bar for each distance that occurs between the outermost ones."""
    found = {_integer(d): _count(n) for d, n in data["pairs"]}
    beyond = _count(data.get("beyond", 0))
    bars = _filled(found) + ([(">32", beyond)] if beyond else [])
    return _histogram(bars, lambda label: f"{int(label):+d}" if label not in ("0", ">32") else label)


def _binade(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Exponents of the inputs, and those that have none at the sides."""
    found = {_integer(e): _count(n) for e, n in data["pairs"]}
    low = [(name, n) for name in ("zero", "subnormal") if (n := _count(data.get(name, 0)))]
    high = [(name, n) for name in ("inf", "nan") if (n := _count(data.get(name, 0)))]
    named = {"zero": "0", "subnormal": "sub", "inf": "Inf", "nan": "NaN"}
    return _histogram(low + _filled(found) + high, lambda label: named.get(label, label))


def _filled(found: Mapping[int, int]) -> list[tuple[str, int]]:
    """The counts in order, with zeros between."""
    kept = {place: n for place, n in found.items() if n}
    if not kept:
        return []
    first, last = min(kept), max(kept)
    if last - first > BARS:
        raise ValueError("pairs: too far apart to be drawn")
    return [(str(place), kept.get(place, 0)) for place in range(first, last + 1)]


def _histogram(bars: Sequence[tuple[str, int]], name: Callable[[str], str]) -> dict[str, Any] | None:
    """Bars, 100 high at most; numbers of a common width that are labelled where there is room, names wide and apart."""
    if not bars:
        return None
    most = max(n for _, n in bars)
    numbers = [label.lstrip("-").isdigit() for label, _ in bars]
    step = max(3, min(34, 620 // max(sum(numbers), 1)))
    every = max(1, -(-32 // step))
    drawn_bars: list[dict[str, Any]] = []
    x, free = 0, None
    for i, ((label, n), is_number) in enumerate(zip(bars, numbers, strict=True)):
        width = step if is_number else 34
        if i and numbers[i - 1] != is_number:
            x += 10
        labelled = not is_number or free is None or x >= free
        if labelled:
            free = x + step * every if is_number else None
        drawn_bars.append(
            {
                "x": x,
                "width": width,
                "height": max(round(100 * n / most, 1), 1.5) if n else 0,
                "count": n,
                "name": name(label),
                "label": name(label) if labelled else "",
                "text": text.about(n) if n and width >= 26 else "",
            }
        )
        x += width
    ranked = sorted(bars, key=lambda bar: -bar[1])
    return {
        "width": x,
        "bars": drawn_bars,
        "top": [f"{name(label)}: {n:,}" for label, n in ranked[:4] if n],
        "kinds": sum(1 for _, n in bars if n),
    }


def _ordinal(code: int, fmt: FloatFormat | None) -> tuple[int, int]:
    """The place on the number line, -0 before +0; NaN outside."""
    if fmt is None:
        return code, 0
    magnitude = code & fmt.magnitude_mask
    return (-magnitude, 0) if fmt.is_negative(code) else (magnitude, 1)


def _value(code: int, fmt: FloatFormat | None) -> str:
    if fmt is None:
        return ""
    value = float(fmt.value(code))
    significand, exponent = math.frexp(value)
    if significand == 0.5 and not -8 <= exponent <= 8:
        return f"2^{exponent - 1}"
    return "nan" if value != value else f"{value:.4g}"


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError("want a count")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 1 << 16:
        raise ValueError("want a small integer")
    return value


_DRAWN: dict[str, Callable[[Mapping[str, Any]], dict[str, Any] | None]] = {
    "map": _map,
    "confusion": _confusion,
    "scale_confusion": _confusion,
    "distance": _distance,
    "scale_distance": _distance,
    "binade": _binade,
}
