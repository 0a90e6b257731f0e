"""Where a result is wrong and how, as counts: a map, a matrix of codes, a histogram of distances, one of inputs.

Every mismatching place is counted, on the device and a bounded number at a time; what comes to the host is bounded by
the bins. Counts of several comparisons add up exactly, in any order: the steps of a map are powers of two, so that the
cells of a small tensor are parts of those of a large one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lowbit.compare import arrays, kinds
from lowbit.formats import BINARY32, FORMATS, FloatFormat

ROWS, COLUMNS = 32, 64
"""Cells of a map, at most."""

PAIRS = 4096
"""Pairs of codes that are listed, the most frequent first."""

REACH = 32
"""Codes apart that are told; whatever is further is one number."""

UNITS = ("block", "element", "byte")
"""What a cell of a map is made of. Maps of different units do not add up: of several, the first of these is kept."""

SPECIAL = ("zero", "subnormal", "inf", "nan")
"""Inputs that lie in no binade of normal numbers."""

_BYTES = 256


@dataclass(frozen=True)
class Canvas:
    """What there is to draw of a comparison.

    Attributes:
      unit: one of `UNITS`. rows, columns: of the compared tensor, in that unit.
      format: of the bits that differ; None for plain bytes: neither codes nor distances are drawn.
      role: "" for codes and values, "scale" for scale codes, whose pictures are kept apart.
    """

    unit: str
    rows: int
    columns: int
    format: FloatFormat | None = None
    role: str = ""


@dataclass
class Pictures:
    """The counts of a wrong result.

    Attributes:
      unit, rows, columns: of the map; "" without one. cells: (row, column) of a cell → places.
      codes: role → format → (expected, actual) → places.
      distances: role → signed number of codes apart, `REACH` + 1 for all that are further → places.
      binades: exponent of the input, or one of `SPECIAL` → places.
    """

    unit: str = ""
    rows: int = 0
    columns: int = 0
    cells: dict[tuple[int, int], int] = field(default_factory=dict)
    codes: dict[str, dict[str, dict[tuple[int, int], int]]] = field(default_factory=dict)
    distances: dict[str, dict[int, int]] = field(default_factory=dict)
    binades: dict[int | str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The pictures in JSON's own types, see REPORTS.md."""
        found: dict[str, Any] = {}
        if self.unit:
            found["map"] = self._map()
        for role in sorted(self.codes):
            found[_named(role, "confusion")] = _confusion(self.codes[role])
        for role, counts in sorted(self.distances.items()):
            pairs = [[apart, counts[apart]] for apart in sorted(counts) if apart <= REACH]
            found[_named(role, "distance")] = {"pairs": pairs, "beyond": counts.get(REACH + 1, 0)}
        if self.binades:
            exponents = sorted(e for e in self.binades if isinstance(e, int))
            special = {name: self.binades.get(name, 0) for name in SPECIAL}
            found["binade"] = {"pairs": [[e, self.binades[e]] for e in exponents], **special}
        return found

    def _map(self) -> dict[str, Any]:
        down, right = step(self.rows, ROWS), step(self.columns, COLUMNS)
        counts = [[0] * -(-self.columns // right) for _ in range(-(-self.rows // down))]
        for (row, column), count in self.cells.items():
            counts[row][column] = count
        steps = {"row_step": down, "column_step": right}
        return {"rows": self.rows, "columns": self.columns, "unit": self.unit, **steps, "counts": counts}


def step(length: int, cells: int) -> int:
    """The least power of two that cuts a length into at most so many cells."""
    found = 1
    while -(-length // found) > cells:
        found *= 2
    return found


def merged(parts: Iterable[Pictures | None]) -> Pictures | None:
    """The pictures of several comparisons, laid over one another at their first rows and columns; None of none."""
    found: Pictures | None = None
    for part in parts:
        if part is None:
            continue
        found = Pictures() if found is None else found
        _merge_maps(found, part)
        for role, formats in part.codes.items():
            for name, counts in formats.items():
                _add(found.codes.setdefault(role, {}).setdefault(name, {}), counts)
        for role, distances in part.distances.items():
            _add(found.distances.setdefault(role, {}), distances)
        _add(found.binades, part.binades)
    return found


def _add(to: dict[Any, int], counts: dict[Any, int]) -> None:
    for key, count in counts.items():
        to[key] = to.get(key, 0) + count


def _merge_maps(to: Pictures, part: Pictures) -> None:
    """Adds a map to another one; of different units the first in `UNITS` stays."""
    if not part.unit or (to.unit and UNITS.index(to.unit) < UNITS.index(part.unit)):
        return
    if to.unit != part.unit:
        to.unit, to.rows, to.columns, to.cells = part.unit, part.rows, part.columns, dict(part.cells)
        return
    rows, columns = max(to.rows, part.rows), max(to.columns, part.columns)
    cells: dict[tuple[int, int], int] = {}
    for source in (to, part):
        down = step(rows, ROWS) // step(source.rows, ROWS)
        right = step(columns, COLUMNS) // step(source.columns, COLUMNS)
        for (row, column), count in source.cells.items():
            place = row // down, column // right
            cells[place] = cells.get(place, 0) + count
    to.rows, to.columns, to.cells = rows, columns, cells


def _named(role: str, picture: str) -> str:
    return f"{role}_{picture}" if role else picture


def _confusion(formats: dict[str, dict[tuple[int, int], int]]) -> dict[str, Any]:
    """The most frequent pairs of the format with the most places; all else is `left`."""
    name = min(formats, key=lambda name: (-sum(formats[name].values()), name))
    ranked = sorted(formats[name].items(), key=lambda item: (-item[1], item[0]))
    pairs = [[*codes, count] for codes, count in ranked[:PAIRS]]
    total = sum(count for counts in formats.values() for count in counts.values())
    return {"format": name, "pairs": pairs, "left": total - sum(count for *_, count in pairs)}


class Painter:
    """Counts mismatching places into bins on their device; the bins of one comparison are all that is kept.

    Bins: 2,048 of the map, 65,536 of pairs of bytes, 68 of distances, 513 of exponents, int64 each.
    """

    def __init__(self, canvas: Canvas):
        self.canvas = canvas
        self._bins: dict[str, Any] = {}

    def add(self, row: Any, column: Any, actual: Any, expected: Any, *, x: Any = None, inside: Any = None) -> None:
        """Takes mismatching places.

        Args:
          row, column: (N,) int64, in the canvas's unit.
          actual, expected: (N,) integers, the bits there.
          x: (N,) float32, the inputs, or None. inside: (N,) bool, where there is an input; None for everywhere.
        """
        canvas, xp = self.canvas, arrays.namespace(row)
        down, right = step(canvas.rows, ROWS), step(canvas.columns, COLUMNS)
        self._count("map", row // down * COLUMNS + column // right, ROWS * COLUMNS)
        if canvas.format is not None and canvas.format.bits <= 8:
            wide = xp.asarray(expected, dtype=xp.int64) * _BYTES + xp.asarray(actual, dtype=xp.int64)
            self._count("codes", wide, _BYTES * _BYTES)
        if canvas.format is not None and canvas.format.bits <= BINARY32.bits:
            a, e = kinds.ordinals(actual, canvas.format), kinds.ordinals(expected, canvas.format)
            apart = xp.clip(a - e, -REACH - 1, REACH + 1) + REACH + 1
            nowhere = (a == kinds.NOWHERE) | (e == kinds.NOWHERE)
            self._count("distance", xp.where(nowhere, 2 * REACH + 3, apart), 2 * REACH + 4)
        if x is not None:
            bits = xp.asarray(arrays.bits(x), dtype=xp.int64)
            exponent = (bits >> BINARY32.mantissa_bits) & 0xFF
            fraction = (bits & ((1 << BINARY32.mantissa_bits) - 1)) != 0
            key = xp.where(fraction, exponent + 256, exponent)
            self._count("binade", key if inside is None else xp.where(inside, key, 512), 513)

    def _count(self, name: str, keys: Any, bins: int) -> None:
        found = arrays.namespace(keys).bincount(keys, minlength=bins)
        known = self._bins.get(name)
        self._bins[name] = found if known is None else known + found

    def pictures(self) -> Pictures | None:
        """What was counted; None if nothing was."""
        if not self._bins:
            return None
        canvas = self.canvas
        found = Pictures(canvas.unit, canvas.rows, canvas.columns)
        found.cells = {divmod(key, COLUMNS): count for key, count in self._filled("map")}
        if "codes" in self._bins and canvas.format is not None:
            pairs = {divmod(key, _BYTES): count for key, count in self._filled("codes")}
            found.codes = {canvas.role: {canvas.format.name: pairs}}
        distances: dict[int, int] = {}
        for key, count in self._filled("distance"):
            if key < 2 * REACH + 3:
                apart = key - REACH - 1
                _add(distances, {apart if abs(apart) <= REACH else REACH + 1: count})
        found.distances = {canvas.role: distances} if distances else {}
        for key, count in self._filled("binade"):
            if key < 512:
                _add(found.binades, {_binade(key): count})
        return found

    def _filled(self, name: str) -> list[tuple[int, int]]:
        """The bins that are not empty, with their counts."""
        bins = self._bins.get(name)
        if bins is None:
            return []
        keys = arrays.flatnonzero(bins)
        return list(zip(arrays.host(keys).tolist(), arrays.host(bins[keys]).tolist(), strict=True))


def _binade(key: int) -> int | str:
    """The binade, or the special name, of an exponent field, plus 256 where the fraction is not zero."""
    fraction, exponent = divmod(key, 256)
    if exponent == 0:
        return "subnormal" if fraction else "zero"
    if exponent == 255:
        return "nan" if fraction else "inf"
    return exponent - BINARY32.bias


def validated(value: dict[str, Any], mismatched: int) -> dict[str, Any]:
    """The pictures of a record that was read; those of later versions are passed over.

    Args:
      mismatched: what the record says; no picture can count more places.

    Raises:
      ValueError, TypeError: a picture is not as `Pictures.as_dict` makes it.
    """
    found = {}
    for name, picture in value.items():
        check = _CHECKS.get(name)
        if check is None:
            continue
        if not isinstance(picture, dict):
            raise TypeError(f"pictures: {name} is a {type(picture).__name__}, want an object")
        try:
            counted = check(picture)
        except KeyError as missing:
            raise ValueError(f"pictures: {name} has no {missing}") from missing
        if counted > mismatched:
            raise ValueError(f"pictures: {name} counts more than {mismatched} places")
        found[name] = picture
    return found


def _check_map(picture: dict[str, Any]) -> int:
    shape, cells = [], (ROWS, COLUMNS)
    for name, most in zip(("row", "column"), cells, strict=True):
        length, size = _whole(picture[f"{name}s"], 1), _whole(picture[f"{name}_step"], 1)
        shape.append(-(-length // size))
        if shape[-1] > most:
            raise ValueError(f"map: got {shape[-1]} {name}s of cells, want at most {most}")
    counts = picture["counts"]
    if picture["unit"] not in UNITS or not isinstance(counts, list) or len(counts) != shape[0]:
        raise ValueError(f"map: want a known unit and {shape[0]} rows of counts")
    return sum(sum(map(_whole, _items(row, shape[1], exactly=True))) for row in counts)


def _check_confusion(picture: dict[str, Any]) -> int:
    if picture["format"] not in FORMATS:
        raise ValueError(f"confusion: got format {picture['format']!r}, want a known one")
    pairs = [_items(pair, 3, exactly=True) for pair in _items(picture["pairs"], PAIRS)]
    if len({(_whole(e, most=255), _whole(a, most=255)) for e, a, _ in pairs}) < len(pairs):
        raise ValueError("confusion: a pair twice")
    return sum(_whole(count) for *_, count in pairs) + _whole(picture["left"])


def _check_distance(picture: dict[str, Any]) -> int:
    return _check_pairs(picture["pairs"], -REACH, REACH) + _whole(picture["beyond"])


def _check_binade(picture: dict[str, Any]) -> int:
    return _check_pairs(picture["pairs"], -BINARY32.bias, BINARY32.bias) + sum(_whole(picture[n]) for n in SPECIAL)


_CHECKS = {
    "map": _check_map,
    "confusion": _check_confusion,
    "scale_confusion": _check_confusion,
    "distance": _check_distance,
    "scale_distance": _check_distance,
    "binade": _check_binade,
}


def _check_pairs(value: Any, least: int, most: int) -> int:
    pairs = [_items(pair, 2, exactly=True) for pair in _items(value, most - least + 1)]
    places = [_whole(place, least, most) for place, _ in pairs]
    if sorted(set(places)) != places:
        raise ValueError("pairs: want each place once, ascending")
    return sum(_whole(count) for _, count in pairs)


def _items(value: Any, most: int, *, exactly: bool = False) -> list[Any]:
    if not isinstance(value, list) or len(value) > most or (exactly and len(value) != most):
        raise ValueError(f"pictures: want a list of {most} items{'' if exactly else ' at most'}")
    return value


def _whole(value: Any, least: int = 0, most: int = (1 << 63) - 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"pictures: want integers of {least}..{most}")
    return value
