"""NVFP4: blocks of 16 with E4M3 scales under one binary32 factor.

The scheme names roundings to binary32: those are single NumPy float32 multiplications and divisions, which are
correctly rounded and keep subnormals. All that is rounded to fewer bits goes through integer bit patterns.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, FloatFormat
from lowbit.references.bits_elements import CHUNK, decode, encode_scaled
from lowbit.references.bits_rounding import canonical_nan, infinity, narrow, take_sign
from lowbit.rules import NonFinite, Rounding, ScaleRule, TensorScaleRule, ZeroBlock
from lowbit.schemes import Scheme

ONE, SIX = np.float32(1), np.float32(6)

LEAST_TENSOR_AMAX = np.float32(1e-12)
"""TWO_ROUNDINGS counts a smaller tensor amax as this."""


def tensor_scale(x: npt.NDArray[np.float32], scheme: Scheme) -> np.float32:
    """The factor g of a tensor for which none is given.

    Args:
      x: (...) float32, the whole tensor; an empty one has amax 0.
    Raises:
      ArgumentError: the scheme has no rule for a factor.
    """
    rule = scheme.tensor_scale
    if rule is TensorScaleRule.UNIT:
        return ONE
    most = np.float32(scheme.element.max_value * scheme.scale.max_value)  # 6 * 448
    with np.errstate(all="ignore"):
        if rule is TensorScaleRule.ONE_ROUNDING:
            amax = _tensor_amax(x, finite=True)
            return ONE if amax == 0 else np.minimum(most / amax, np.finfo(np.float32).max)
        if rule is TensorScaleRule.TWO_ROUNDINGS:
            return ONE / np.maximum(_tensor_amax(x, finite=False), LEAST_TENSOR_AMAX) * most
    raise ArgumentError(f"tensor_scale: got the rule {rule}, want one of the nvfp4 family")


def _tensor_amax(x: npt.NDArray[np.float32], *, finite: bool) -> np.float32:
    """The largest magnitude: of the finite values, or of all, a NaN being larger than Inf."""
    flat, amax = x.reshape(-1), 0
    for start in range(0, flat.size, CHUNK):
        pattern = take_sign(flat[start : start + CHUNK])[1]
        if finite:
            pattern = np.where(pattern >= infinity(BINARY32), 0, pattern)
        amax = max(amax, int(pattern.max()))
    return np.uint32(amax).view(np.float32)


def scale_codes(amax: npt.NDArray[np.float32], scheme: Scheme) -> npt.NDArray[np.uint8]:
    """E4M3 codes of block amax, taken over y = RN32(x * g): one rounding of a clamped quotient."""
    with np.errstate(all="ignore"):
        match scheme.scale_rule:
            case ScaleRule.AMAX_OVER_SIX:
                quotient = amax / SIX
            case ScaleRule.AMAX_TIMES_SIXTH:
                quotient = amax * (ONE / SIX)
            case _:
                raise ArgumentError(f"scale_rule: got {scheme.scale_rule}, want a rule that gives an E4M3 scale")
    least = np.float32(scheme.scale_floor or Fraction(0))
    clamped = np.minimum(np.maximum(quotient, least), np.float32(scheme.scale.max_value))  # both keep NaN
    codes = encode_scaled(clamped, scheme.scale, Rounding.TIES_TO_EVEN, None)
    if scheme.zero_block is ZeroBlock.BYTE_ZERO:
        codes[amax == 0] = 0
    return codes


def quantize_blocks(
    x: npt.NDArray[np.float32], scheme: Scheme, g: np.float32, random: npt.NDArray[np.uint8] | None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Codes and scale codes of whole blocks under the factor g.

    Args:
      x: (N, 16) float32.
      g: the factor, whatever it is.
      random: (N, 16) uint8, for stochastic rounding.
    Returns:
      (N, 16) uint8 codes, (N,) uint8 scale codes.
    """
    if scheme.nonfinite is NonFinite.IGNORE_NAN:
        raise ArgumentError(f"nonfinite: got {scheme.nonfinite}, want MARK_BLOCK or PROPAGATE for {scheme.family}")
    with np.errstate(all="ignore"):
        y = x * g
    amax = _block_amax(y)
    scales = scale_codes(amax, scheme)
    # The least scale stands in for a stored 0 or NaN, so that the quotient is that of a number.
    divisor = decode(scales, scheme.scale).astype(np.float32)
    divisor[~(divisor > 0)] = np.float32(scheme.scale.min_positive)
    if scheme.nonfinite is NonFinite.MARK_BLOCK:
        marked = ~np.isfinite(x).all(axis=1)
        scales[marked] = canonical_nan(scheme.scale)
        divisor[marked] = ONE
    with np.errstate(all="ignore"):
        quotient = y / divisor[:, None]
    return encode_scaled(quotient, scheme.element, scheme.rounding, scheme.nan, random=random), scales


def _block_amax(y: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The largest magnitude of each row, NaN if there is one: its pattern is the largest of all."""
    return take_sign(y)[1].max(axis=1).astype(np.uint32).view(np.float32)


def decoding_table(scheme: Scheme, fmt: FloatFormat, g: np.float32 | None) -> npt.NDArray[Any]:
    """(256, 2**bits) int64. Patterns of RN(fmt)(RN32(RN32(value * s) / g)) by scale byte and element code."""
    values = decode(np.arange(1 << scheme.element.bits, dtype=np.uint8), scheme.element).astype(np.float32)
    scales = decode(np.arange(256, dtype=np.uint8), scheme.scale).astype(np.float32)
    with np.errstate(all="ignore"):
        decoded = scales[:, None] * values[None, :]
        if g is not None:
            decoded = decoded / g
    return narrow(decoded, fmt)
