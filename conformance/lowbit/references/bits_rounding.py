"""Rounding on integers, vectorised: a significand, an exponent of two, and the bits that do not fit.

No floating-point comparison and no floating-point arithmetic decides a result, so nothing here depends on flush
modes, fused operations or the order of operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, BINARY64, FloatFormat
from lowbit.rules import Rounding

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

RANDOM_WIDTH = 8
"""Bits of the random integer that rounds one element."""

_FAR = 62
"""A shift that drops all of a significand of at most 53 bits, with the dropped part still below half."""


def take_sign(x: npt.NDArray[np.floating[Any]]) -> tuple[Mask, Ints, FloatFormat]:
    """The sign bits and the magnitude patterns of float32 or float64 values, and their format."""
    if x.dtype == np.float32:
        bits = np.ascontiguousarray(x).view(np.int32).astype(np.int64)
        return bits < 0, bits & BINARY32.magnitude_mask, BINARY32
    bits = np.ascontiguousarray(x, dtype=np.float64).view(np.int64)
    return bits < 0, bits & BINARY64.magnitude_mask, BINARY64


def infinity(fmt: FloatFormat) -> int:
    """The magnitude pattern of Inf in a format that has one."""
    assert fmt.inf_magnitude is not None
    return fmt.inf_magnitude


def canonical_nan(fmt: FloatFormat) -> int:
    """The canonical NaN of a format that has one."""
    assert fmt.nan_magnitude is not None
    return fmt.nan_magnitude


def sign_bits(negative: Mask, fmt: FloatFormat) -> Ints:
    """The sign bit of a format where `negative`, else 0."""
    return negative.astype(np.int64) * fmt.sign_mask


def take_apart(magnitude: Ints, source: FloatFormat) -> tuple[Ints, Ints]:
    """Significand and unit of magnitude patterns: value = significand * 2**unit. Inf and NaN give some value."""
    field = magnitude >> source.mantissa_bits
    fraction = magnitude & ((1 << source.mantissa_bits) - 1)
    least = int(source.has_zero)  # exponent field 0 shares the exponent of field 1, without the hidden bit
    hidden = (field >= least).astype(np.int64) << source.mantissa_bits
    return fraction | hidden, np.maximum(field, least) - source.bias - source.mantissa_bits


def round_significand(
    significand: Ints,
    unit: Ints,
    negative: Mask,
    target: FloatFormat,
    rounding: Rounding,
    random: npt.NDArray[np.uint8] | None = None,
) -> Ints:
    """Rounds significand * 2**unit to a magnitude of `target`, as if its exponent had no upper bound.

    Args:
      significand: (...) int64, 0 ≤ significand < 2**53.
      unit: (...) int64.
      negative: (...) bool. The sign, which rounding down or up needs.
      random: (...) uint8, for stochastic rounding.
    Returns:
      (...) int64. Magnitudes; above `target.max_magnitude` where the value overflows.
    Raises:
      ArgumentError: stochastic rounding without random bits.
    """
    # The exponent field of the integer as a double is its length: the conversion is exact.
    length = np.maximum((significand.astype(np.float64).view(np.int64) >> BINARY64.mantissa_bits) - 1022, 0)
    exponent = np.where(significand == 0, target.emin, np.maximum(unit + length - 1, target.emin))
    drop = exponent - target.mantissa_bits - unit
    right = np.clip(drop, 0, _FAR)
    kept = (significand << np.clip(-drop, 0, _FAR)) >> right
    rest = significand & ((np.int64(1) << right) - 1)
    # `kept` holds the hidden bit, so a normal number's exponent field is one more than what is added here, and a
    # carry out of the mantissa steps into the next exponent by itself.
    magnitude = ((exponent - target.emin) << target.mantissa_bits) + kept
    if not target.has_zero:
        magnitude -= 1 << target.mantissa_bits
    magnitude += _rounds_up(magnitude, rest, right, negative, rounding, random)
    # Below zero only in a format without zero, for values below its least: they saturate.
    return np.maximum(magnitude, 0)


def _rounds_up(
    magnitude: Ints, rest: Ints, dropped: Ints, negative: Mask, rounding: Rounding, random: npt.NDArray[np.uint8] | None
) -> Mask:
    """Whether to step away from zero, the value being rest / 2**dropped of a step above `magnitude`."""
    if rounding is Rounding.TOWARD_ZERO:
        return np.zeros(rest.shape, dtype=np.bool_)
    if rounding is Rounding.TOWARD_NEGATIVE:
        return (rest != 0) & negative
    if rounding is Rounding.TOWARD_POSITIVE:
        return (rest != 0) & ~negative
    if rounding is Rounding.STOCHASTIC:
        if random is None:
            raise ArgumentError("random_bits: got None, want random bits or a seed for stochastic rounding")
        return random.astype(np.int64) >= (1 << RANDOM_WIDTH) - ((rest << RANDOM_WIDTH) >> dropped)
    step = np.int64(1) << dropped
    twice = rest << 1
    tie_up: Mask
    match rounding:
        case Rounding.TIES_TO_EVEN:
            tie_up = (magnitude & 1) == 1
        case Rounding.TIES_TOWARD_ZERO:
            return twice > step
        case Rounding.TIES_AWAY:
            return twice >= step
        case Rounding.TIES_DOWN:
            tie_up = negative
        case Rounding.TIES_UP:
            tie_up = ~negative
        case _:
            raise ArgumentError(f"rounding: got {rounding!r}, want a Rounding")
    return (twice > step) | ((twice == step) & tie_up)


def round_to_pattern(significand: Ints, unit: Ints, negative: Mask, target: FloatFormat) -> Ints:
    """The bit patterns of RN(±significand * 2**unit) in an IEEE format: ties to even, overflow to ±Inf."""
    rounded = round_significand(significand, unit, negative, target, Rounding.TIES_TO_EVEN)
    return np.minimum(rounded, infinity(target)) | sign_bits(negative, target)


def narrow(x: npt.NDArray[np.floating[Any]], target: FloatFormat) -> Ints:
    """The bit patterns of a cast of float32 or float64 values to an IEEE format of at most 32 bits, NaN canonical."""
    negative, pattern, source = take_sign(x)
    out = round_to_pattern(*take_apart(pattern, source), negative, target)
    infinite = pattern == infinity(source)
    out[infinite] = infinity(target) | sign_bits(negative[infinite], target)
    out[pattern > infinity(source)] = canonical_nan(target)
    return out
