"""MX4 and MXFP4 on integer bit patterns: blocks that share a power of two.

A shared exponent is read off the bits of amax after an integer was added to them: the integer decides which
significands carry into the next exponent. The scale is folded into the exponents of the elements, so that no
product can leave binary32's range.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, FloatFormat
from lowbit.references.bits_elements import encode_scaled
from lowbit.references.bits_rounding import (
    Ints,
    canonical_nan,
    infinity,
    round_to_pattern,
    sign_bits,
    take_apart,
    take_sign,
)
from lowbit.rules import NonFinite, ScaleRule, ZeroBlock
from lowbit.schemes import Scheme

_ONE = 1 << BINARY32.mantissa_bits
"""The hidden bit: significands lie in [_ONE, 2 * _ONE)."""

_MX4_INFINITE_BYTE = 255
"""In MX4 a scale byte beyond those that can be produced: +Inf, where E8M0 has NaN."""


def element_exponent(scheme: Scheme) -> int:
    """What is taken from amax's exponent: that of the element's largest value.

    MX4 takes the *width* of the exponent field: 2 for E2M1, where both are equal, and 3 for E3M0, whose largest
    value is 2**4. RCEIL is defined by the largest value itself.
    """
    if scheme.family == "mx4" and scheme.scale_rule is not ScaleRule.RCEIL:
        return scheme.element.exponent_bits
    return scheme.element.emax


def carry(scheme: Scheme) -> int:
    """What is added to amax's bits so that exactly the significands to be rounded up carry into the exponent.

    Raises:
      ArgumentError: the scale rule gives no power of two, or needs random bits.
    """
    tie = 1 << (BINARY32.mantissa_bits - scheme.element.mantissa_bits - 1)  # half a last place of the element
    match scheme.scale_rule:
        case ScaleRule.FLOOR:
            return 0
        case ScaleRule.CEIL:
            return _ONE - 1
        case ScaleRule.NEAREST:
            return 2 * _ONE - (math.isqrt(2 * _ONE * _ONE - 1) + 1)  # the least significand of at least sqrt 2
        case ScaleRule.EVEN:
            return tie
        case ScaleRule.EVEN_EXCLUSIVE:
            return tie - 1
        case ScaleRule.RCEIL:
            largest = scheme.element.max_value / 2**scheme.element.emax * _ONE  # significand that still fits
            return 2 * _ONE - 1 - int(largest)
    raise ArgumentError(f"scale_rule: got {scheme.scale_rule}, want a rule that gives a power of two")


def scale_exponents(amax: Ints, scheme: Scheme, random: npt.NDArray[np.int32] | None) -> Ints:
    """The clamped shared exponents of binary32 magnitude patterns, NaN excluded.

    Subnormal patterns read as exponent -127 and Inf as 128, whatever is added: both beyond what the clamp lets through.

    Args:
      amax: (...) int64. Patterns of the largest magnitudes.
      random: (...) int32, for stochastic exponents.
    """
    assert scheme.exponent_range is not None
    added: Ints | int
    if scheme.scale_rule is ScaleRule.STOCHASTIC:
        if random is None:
            raise ArgumentError("scale_random_bits: got None, want random bits or a seed for stochastic exponents")
        added = random.astype(np.int64) & ((1 << (BINARY32.mantissa_bits - scheme.element.mantissa_bits)) - 1)
    else:
        added = carry(scheme)
    if scheme.zero_block is ZeroBlock.MIN_NORMAL_AMAX:
        amax = np.where(amax == 0, _ONE, amax)
    exponent = ((amax + added) >> BINARY32.mantissa_bits) - BINARY32.bias - element_exponent(scheme)
    exponent = np.clip(exponent, *scheme.exponent_range)
    if scheme.zero_block is ZeroBlock.BYTE_ZERO:
        exponent = np.where(amax == 0, -scheme.scale.bias, exponent)
    return exponent


def scale_codes(
    amax: npt.NDArray[np.float32], scheme: Scheme, random: npt.NDArray[np.int32] | None = None
) -> npt.NDArray[np.uint8]:
    """Scale bytes of amax, whose NaN and Inf mean a block that holds them."""
    pattern = take_sign(amax)[1]
    marks = _marks(scheme)
    if not marks:
        pattern = np.where(pattern > infinity(BINARY32), 0, pattern)
    codes = scale_exponents(pattern, scheme, random) + scheme.scale.bias
    if marks:
        codes = np.where(pattern >= infinity(BINARY32), canonical_nan(scheme.scale), codes)
    return codes.astype(np.uint8)


def quantize_blocks(
    x: npt.NDArray[np.float32],
    scheme: Scheme,
    random: npt.NDArray[np.uint8] | None,
    scale_random: npt.NDArray[np.int32] | None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Codes and scale bytes of whole blocks.

    Args:
      x: (N, block) float32.
      random: (N, block) uint8, for stochastic rounding.
      scale_random: (N,) int32, for stochastic exponents.
    Returns:
      (N, block) uint8 codes, (N,) uint8 scale codes.
    """
    pattern = take_sign(x)[1]
    if not _marks(scheme):
        pattern = np.where(pattern > infinity(BINARY32), 0, pattern)
    amax = pattern.max(axis=1)  # NaN patterns are the largest of all
    scales = scale_codes(amax.astype(np.uint32).view(np.float32), scheme, scale_random)
    exponent = scales.astype(np.int64) - scheme.scale.bias
    exponent[scales == canonical_nan(scheme.scale)] = 0  # codes of a marked block: as if the scale were 1
    codes = encode_scaled(x, scheme.element, scheme.rounding, scheme.nan, exponent=exponent[:, None], random=random)
    return codes, scales


def decoding_table(scheme: Scheme, fmt: FloatFormat) -> npt.NDArray[Any]:
    """(256, 2**bits) int64. Patterns of RN(value * 2**(byte - 127)) by scale byte and element code, one rounding."""
    codes = np.arange(1 << scheme.element.bits, dtype=np.int64)[None, :]
    scale_bytes = np.arange(256, dtype=np.int64)[:, None]
    negative = np.broadcast_to((codes & scheme.element.sign_mask) != 0, (256, codes.size))
    significand, unit = take_apart(codes & scheme.element.magnitude_mask, scheme.element)
    significand = np.broadcast_to(significand, negative.shape)
    table = round_to_pattern(significand, unit + scale_bytes - scheme.scale.bias, negative, fmt)
    if scheme.family == "mx4":
        infinite = sign_bits(negative, fmt) | infinity(fmt)
        row = np.where(significand == 0, canonical_nan(fmt), infinite)
        table[_MX4_INFINITE_BYTE] = row[_MX4_INFINITE_BYTE]
    else:
        table[canonical_nan(scheme.scale)] = canonical_nan(fmt)
    return table


def _marks(scheme: Scheme) -> bool:
    """Whether a block with NaN or Inf gets a NaN scale.

    Raises:
      ArgumentError: the scheme leaves the block to arithmetic, which integers do not have.
    """
    if scheme.nonfinite is NonFinite.PROPAGATE:
        raise ArgumentError(f"nonfinite: got {scheme.nonfinite}, want IGNORE_NAN or MARK_BLOCK for {scheme.family}")
    return scheme.nonfinite is NonFinite.MARK_BLOCK
