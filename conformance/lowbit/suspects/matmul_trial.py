"""A wrong product cut down to some rows of A and of B, on which suspected faults are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import packing
from lowbit.compare.comparison import spread
from lowbit.compare.kinds import values_differ
from lowbit.formats import FloatFormat
from lowbit.references import matmul
from lowbit.schemes import Encoded, Quantized, Scheme

ROWS = 64
"""Rows of A and of B that are tried."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Side:
    """Some rows of one operand.

    Attributes:
      codes: (R, K). buffer: (S,) the swizzled scales as they were given, padding included; None of plain ones.
      scales: (R, K // block), as they must be read. rows: (R,) which these are, of `count`.
      g: the tensor scale, or None.
    """

    codes: Bytes
    scales: Bytes
    buffer: Bytes | None
    rows: npt.NDArray[np.int64]
    count: int
    g: np.float32 | None

    @classmethod
    def of(cls, given: Quantized, scheme: Scheme, rows: npt.NDArray[np.int64]) -> Side:
        encoded = packing.unpack(given, scheme)
        scales = np.asarray(given.scales)
        buffer = scales if scales.ndim == 1 else None
        g = None if given.tensor_scale is None else np.float32(np.asarray(given.tensor_scale).reshape(()))
        count = len(encoded.codes)
        return cls(codes=encoded.codes[rows], scales=encoded.scales[rows], buffer=buffer, rows=rows, count=count, g=g)

    def read(self, place: Callable[[Any, Any, int, int], Any], buffer: Bytes | None = None) -> Bytes | None:
        """The scales that stand at place(r, c, rows, columns) of the buffer, or of another one; wraps around."""
        source = self.buffer if buffer is None else buffer
        if source is None or not source.size:
            return None
        columns = self.scales.shape[1]
        return source[place(self.rows[:, None], np.arange(columns)[None, :], self.count, columns) % source.size]


@dataclass(frozen=True, kw_only=True)
class Product:
    """A wrong product, cut down to some of its rows and columns; actual and expected as bit patterns."""

    scheme: Scheme
    fmt: FloatFormat
    sides: tuple[Side, Side]
    actual: npt.NDArray[Any]
    expected: npt.NDArray[Any]

    @classmethod
    def of(
        cls, a: Quantized, b: Quantized, scheme: Scheme, fmt: FloatFormat, actual: Any, expected: Any
    ) -> Product | None:
        """Rows and columns with mismatches and without; None where nothing differs or shapes do not fit."""
        if actual.shape != expected.shape or actual.ndim != 2:
            return None
        wrong = values_differ(fmt)(actual, expected)
        if not wrong.any():
            return None
        rows = _chosen(wrong.any(1))
        columns = _chosen(wrong[rows].any(0))
        return cls(
            scheme=scheme,
            fmt=fmt,
            sides=(Side.of(a, scheme, rows), Side.of(b, scheme, columns)),
            actual=actual[np.ix_(rows, columns)],
            expected=expected[np.ix_(rows, columns)],
        )

    @property
    def terms(self) -> int:
        return self.sides[0].codes.shape[1]

    @cached_property
    def sums(self) -> npt.NDArray[np.float64]:
        """The right sums."""
        return self.sums_of(self.sides)

    @cached_property
    def factors(self) -> tuple[np.float32, np.float32]:
        """RN32(1/g) of both sides."""
        first, second = (matmul.decode_factor(side.g) for side in self.sides)
        return first, second

    def sums_of(self, sides: tuple[Side, ...]) -> npt.NDArray[np.float64]:
        a, b = (Encoded(side.codes, side.scales) for side in sides)
        return matmul.sums(a, b, self.scheme).value

    def with_sides(self, change: Callable[[Side], Side | None], which: tuple[int, ...]) -> npt.NDArray[Any] | None:
        """The result with operands changed; None where a change is impossible."""
        sides = []
        for i, side in enumerate(self.sides):
            changed = change(side) if i in which else side
            if changed is None:
                return None
            sides.append(changed)
        return self.finish(self.sums_of(tuple(sides)))

    def finish(self, sums: npt.NDArray[np.float64], *factors: float | None) -> npt.NDArray[Any]:
        """The output of sums; with the right factor, or with other ones one after another."""
        for factor in factors[:-1]:
            with np.errstate(over="ignore"):
                sums = (sums.astype(np.float32) * np.float32(factor)).astype(np.float64)
        return matmul.finish(sums, factors[-1] if factors else self.factor, self.fmt)

    @property
    def factor(self) -> float | None:
        if self.sides[0].g is None and self.sides[1].g is None:
            return None
        return float(self.factors[0] * self.factors[1])

    def wrong(self, guess: npt.NDArray[Any]) -> int:
        """In how many places a guess differs from what the implementation gave; NaN by class."""
        return int(values_differ(self.fmt)(self.actual, guess).sum())


def _chosen(wrong: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """At most `ROWS` places, half of them wrong if there are so many; the last one of each kind among them."""
    bad, good = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    share = max(ROWS // 2, ROWS - good.size)
    few = bad[spread(bad.size, share)]
    return np.sort(np.concatenate([few, good[spread(good.size, ROWS - few.size)]])).astype(np.int64)
