"""Exact products of many numbers at once: sign, significand and unit as integers, Inf and NaN as flags.

A product is exact, and rounded only where it becomes a bit pattern; nothing here is a floating-point operation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.formats import FloatFormat
from lowbit.references.bits_rounding import (
    Ints,
    Mask,
    canonical_nan,
    infinity,
    round_to_pattern,
    sign_bits,
    take_apart,
)


class Numbers(NamedTuple):
    """Numbers ±significand * 2**unit, arrays of one shape or of shapes that broadcast.

    Attributes:
      negative: bool; true of -0 too.
      significand, unit: int64; of no meaning where the number is not finite.
      infinite, nan: bool.
    """

    negative: Mask
    significand: Ints
    unit: Ints
    infinite: Mask
    nan: Mask

    def take(self, index: Any) -> Numbers:
        """Those at an index of NumPy's."""
        return Numbers(*(part[index] for part in self))


def of_patterns(patterns: npt.NDArray[Any], fmt: FloatFormat) -> Numbers:
    """What bit patterns of an IEEE format stand for."""
    whole = patterns.astype(np.int64)
    magnitude = whole & fmt.magnitude_mask
    significand, unit = take_apart(magnitude, fmt)
    inf = infinity(fmt)
    return Numbers((whole & fmt.sign_mask) != 0, significand, unit, magnitude == inf, magnitude > inf)


def of_integers(integers: npt.NDArray[Any]) -> Numbers:
    """Integers, 0 being +0."""
    whole = integers.astype(np.int64)
    never = np.zeros(whole.shape, dtype=np.bool_)
    return Numbers(whole < 0, np.abs(whole), np.zeros_like(whole), never, never)


def product(a: Numbers, b: Numbers) -> Numbers:
    """a * b exactly; 0 * Inf is NaN. The significands together have at most 53 bits."""
    zero = ((a.significand == 0) & ~a.infinite & b.infinite) | ((b.significand == 0) & ~b.infinite & a.infinite)
    return Numbers(
        a.negative ^ b.negative,
        a.significand * b.significand,
        a.unit + b.unit,
        a.infinite | b.infinite,
        a.nan | b.nan | zero,
    )


def to_patterns(numbers: Numbers, target: FloatFormat) -> Ints:
    """RN(target), ties to even, overflow to ±Inf; NaN is the canonical one."""
    out = round_to_pattern(numbers.significand, numbers.unit, numbers.negative, target)
    out = np.where(numbers.infinite, infinity(target) | sign_bits(numbers.negative, target), out)
    return np.where(numbers.nan, canonical_nan(target), out)
