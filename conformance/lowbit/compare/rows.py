"""Mismatching places, found where the tensors are and brought to the host as columns, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lowbit.compare import arrays, kinds
from lowbit.compare.comparison import LISTED, Comparison, Sample, Sampler, coded, unravel
from lowbit.compare.pictures import Canvas, Painter
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat

ROWS = 1 << 15
"""Places of which all that is known comes to the host together."""


class Found(NamedTuple):
    """Some mismatching places, on the device of what is compared.

    Attributes:
      places: (N,) int64, ascending. kind: (N,) int64, places in `Search.order`.
      actual, expected: (N,) integers, the bits there.
      row, column: (N,) int64, on the map.
      x: (N,) float32, the inputs, or None. inside: (N,) bool, where there is one; None for everywhere.
    """

    places: Any
    kind: Any
    actual: Any
    expected: Any
    row: Any
    column: Any
    x: Any = None
    inside: Any = None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Mismatching places on the host, with what `Sample` has of each, column by column.

    Attributes:
      tensor: as in `Sample`. shape: of which `index` is row-major.
      index, actual, expected: (N,) int64. kind: N kinds by name. rule: N texts.
      format: of `actual` and `expected`; None for plain bytes. input: of `x_bits`.
      block, lane, scale_actual, scale_expected, x_bits: (N,) int64, or None. x: (N,) float64, or None.
      inside: (N,) bool, where there is an input; None for everywhere.
    """

    tensor: str
    shape: tuple[int, ...]
    index: np.ndarray
    actual: np.ndarray
    expected: np.ndarray
    kind: list[str]
    rule: list[str]
    format: FloatFormat | None = None
    input: FloatFormat = BINARY32
    block: np.ndarray | None = None
    lane: np.ndarray | None = None
    scale_actual: np.ndarray | None = None
    scale_expected: np.ndarray | None = None
    x_bits: np.ndarray | None = None
    x: np.ndarray | None = None
    inside: np.ndarray | None = None

    def samples(self) -> list[Sample]:
        """The same one by one."""
        return [self._sample(i) for i in range(len(self.index))]

    def _sample(self, i: int) -> Sample:
        names = ("block", "lane", "scale_actual", "scale_expected")
        given: dict[str, Any] = {name: int(column[i]) for name in names if (column := getattr(self, name)) is not None}
        if self.x is not None and self.x_bits is not None and (self.inside is None or self.inside[i]):
            given |= {"x": float(self.x[i]), "x_bits": int(self.x_bits[i])}
        index, actual, expected = int(self.index[i]), int(self.actual[i]), int(self.expected[i])
        bits: dict[str, Any] = {"actual": actual, "expected": expected}
        return Sample(
            tensor=self.tensor,
            coordinates=unravel(index, self.shape),
            index=index,
            kind=self.kind[i],
            rule=self.rule[i],
            input=self.input.name,
            **{**given, **(coded(self.format, actual, expected) if self.format else bits)},
        )

    def columns(self) -> dict[str, Any]:
        """The fields of `Sample` by name, column by column.

        Returns:
          Numbers as (N,) int64 or float64, masked where there is none, or None; `coordinates` as a list of such
          columns; `kind` and `rule` as N texts; `tensor`, `format` and `input` as the one text that all have.
        """
        found: dict[str, Any] = {name: getattr(self, name) for name in ("index", "actual", "expected", "kind", "rule")}
        found |= {name: getattr(self, name) for name in ("block", "lane", "scale_actual", "scale_expected")}
        for name in ("x", "x_bits"):
            column = getattr(self, name)
            if column is not None and self.inside is not None:
                column = np.ma.masked_array(column, mask=~self.inside)
            found[name] = column
        found |= {f"value_{name}": self.decoded(found[name]) for name in ("actual", "expected")}
        found |= {"distance": self.distance(), "coordinates": self.coordinates()}
        return found | {
            "tensor": self.tensor,
            "input": self.input.name,
            "format": self.format.name if self.format else "",
        }

    def coordinates(self) -> list[np.ndarray]:
        """(N,) int64 a dimension."""
        left, found = self.index, []
        for length in reversed(self.shape):
            found.append(left % length)
            left = left // length
        return found[::-1]

    def decoded(self, side: np.ndarray) -> np.ma.MaskedArray:
        """(N,) float64. What `actual` or `expected` stand for; masked where they are no code, or plain bytes."""
        fmt = self.format
        if fmt is None:
            return np.ma.masked_all(len(side), dtype=np.float64)
        if fmt.bits <= 8:
            fits = side < 1 << fmt.bits
            return np.ma.masked_array(kinds.value_table(fmt)[np.where(fits, side, 0)], mask=~fits)
        values = side.astype(f"u{fmt.bits // 8}")
        if fmt is BFLOAT16:
            values = np.left_shift(values, 16, dtype=np.uint32)
        floating = values.view(np.float16 if fmt is BINARY16 else f"f{values.dtype.itemsize}")
        return np.ma.masked_array(kinds.double(floating), mask=np.zeros(len(side), dtype=bool))

    def distance(self) -> np.ma.MaskedArray:
        """(N,) int64. How many codes apart; masked where there is no saying."""
        if self.format is None or self.format.bits > BINARY32.bits:
            return np.ma.masked_all(len(self.index), dtype=np.int64)
        a, e = (kinds.ordinals(side, self.format) for side in (self.actual, self.expected))
        return np.ma.masked_array(np.abs(a - e), mask=(a == kinds.NOWHERE) | (e == kinds.NOWHERE))


@dataclass(frozen=True, kw_only=True)
class Search:
    """How the mismatches of one comparison are found.

    Attributes:
      compared: elements compared. order: kinds that `find` numbers.
      find: yields the mismatching places, ascending, at most `arrays.PIECE` together.
      fetch: (places, kinds by name) -> their rows; places are on the host.
    """

    tensor: str
    compared: int
    order: tuple[str, ...]
    canvas: Canvas
    find: Callable[[], Iterator[Found]]
    fetch: Callable[[np.ndarray, list[str]], Rows]

    def collect(self, max_samples: int) -> Comparison:
        """Counts, digests and draws every mismatch, and fetches some."""
        sampler, painter = Sampler(max_samples, self.order), Painter(self.canvas)
        for found in self.find():
            sampler.add(found.places, found.kind, found.actual, found.expected)
            painter.add(found.row, found.column, found.actual, found.expected, x=found.x, inside=found.inside)
        chosen = sampler.chosen()
        places = np.array([place for _, place in chosen], dtype=np.int64)
        counts = kinds.ordered(sampler.counts)
        return Comparison(
            self.tensor,
            self.compared,
            sum(counts.values()),
            counts,
            tuple(self.fetch(places, [kind for kind, _ in chosen]).samples() if chosen else ()),
            digests=sampler.digests,
            pictures=painter.pictures(),
            rows=partial(listed, self) if counts and LISTED.get() else None,
        )


def listed(search: Search) -> Iterator[Rows]:
    """All mismatches of a comparison, at most `ROWS` together; the tensors are read again."""
    for found in search.find():
        for first in range(0, found.places.shape[0], ROWS):
            part = slice(first, first + ROWS)
            ranks = arrays.host(found.kind[part]).tolist()
            yield search.fetch(arrays.host(found.places[part]), [search.order[rank] for rank in ranks])


def integers(flat: Any, places: np.ndarray, bits: int = 8) -> np.ndarray:
    """(N,) int64, uint64 for 64 bits. Elements of a flat integer array at places, as unsigned integers."""
    found = np.asarray(arrays.take(flat, places), dtype=np.int64)
    return found.view(np.uint64) if bits == 64 else found & ((1 << bits) - 1)


def inputs(x: Any, places: np.ndarray) -> dict[str, Any]:
    """The columns `x` and `x_bits` of a flat floating array at places, widened to binary32."""
    values = np.ascontiguousarray(arrays.take_wide(x, places))
    return {"x": kinds.double(values), "x_bits": values.view(np.uint32).astype(np.int64)}
