"""The rtn_xxfp4 recipes: PyTorch's arithmetic and casts, without PyTorch.

Every operation is rounded once to the scheme's high format, which is a NumPy dtype; what is rounded to fewer bits
goes through integer bit patterns. This is one recipe of several that `references.rtn` offers: block scales along
the last dimension, as registered schemes have them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, BINARY64, E8M0, FloatFormat
from lowbit.references.bits_elements import decode, encode_scaled
from lowbit.references.bits_rounding import canonical_nan, infinity, narrow, take_sign
from lowbit.rules import Rounding
from lowbit.schemes import Scheme


def high_dtype(scheme: Scheme) -> type[np.floating[Any]]:
    """The dtype of the recipe's arithmetic.

    Raises:
      ArgumentError: NumPy has none for the scheme's high format.
    """
    if scheme.high is BINARY32:
        return np.float32
    if scheme.high is BINARY64:
        return np.float64
    raise ArgumentError(f"high: got {scheme.high.name}, want binary32 or binary64")


def tensor_scale(scheme: Scheme) -> np.float32:
    """The recipe's constant, rounded to binary32: for information, since the arithmetic has it in the high format."""
    return np.float32(_constants(scheme)[1])


def _constants(scheme: Scheme) -> tuple[float, float]:
    """scale_scale and global_scale as the Python numbers that a caller of rtn_xxfp4 gives."""
    if scheme.scale_scale is None or scheme.global_scale is None:
        raise ArgumentError(f"scheme: {scheme.name} lacks scale_scale or global_scale, want both for {scheme.family}")
    return float(scheme.scale_scale), float(scheme.global_scale)


def scale_codes(amax: npt.NDArray[np.floating[Any]], scheme: Scheme) -> npt.NDArray[np.uint8]:
    """Scale codes of block amax: quotient, clamp to the scale's finite range, PyTorch's cast through binary32.

    Args:
      amax: (...) float32 or float64; NaN propagates.
    """
    high = high_dtype(scheme)
    scale_scale, global_scale = _constants(scheme)
    with np.errstate(all="ignore"):
        quotient = amax.astype(high) / high(scale_scale * global_scale)
    greatest = high(scheme.scale.max_value)
    least = -greatest if scheme.scale.signed else high(scheme.scale.min_positive)
    narrowed = np.minimum(np.maximum(quotient, least), greatest).astype(np.float32)
    if scheme.scale is E8M0:
        return _cast_to_e8m0(narrowed)
    return encode_scaled(narrowed, scheme.scale, Rounding.TIES_TO_EVEN, None)


def _cast_to_e8m0(scale: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """PyTorch's cast: the exponent field, one more from significand 1.5 on; between 2**-127 and 2**-126 always 1."""
    pattern = take_sign(scale)[1]
    half = 1 << (BINARY32.mantissa_bits - 1)  # of a significand, and as a pattern the value 2**-127
    codes = (pattern + half) >> BINARY32.mantissa_bits
    codes = np.where(pattern < 2 * half, (pattern > half).astype(np.int64), codes)
    return np.where(pattern > infinity(BINARY32), canonical_nan(E8M0), codes).astype(np.uint8)


def quantize_blocks(
    x: npt.NDArray[np.float32], scheme: Scheme, random: npt.NDArray[np.uint8] | None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Codes and scale codes of whole blocks.

    Args:
      x: (N, block) float32.
      random: (N, block) uint8, for stochastic rounding.
    Returns:
      (N, block) uint8 codes, (N,) uint8 scale codes.
    """
    amax = take_sign(x)[1].max(axis=1).astype(np.uint32).view(np.float32)  # a NaN pattern is the largest of all
    scales = scale_codes(amax, scheme)
    with np.errstate(all="ignore"):
        quotient = x.astype(high_dtype(scheme)) / _divisors(scales, scheme)[:, None]
    return encode_scaled(quotient, scheme.element, scheme.rounding, scheme.nan, random=random), scales


def _divisors(scales: npt.NDArray[np.uint8], scheme: Scheme) -> npt.NDArray[np.floating[Any]]:
    """scale * global_scale in the high format."""
    high = high_dtype(scheme)
    with np.errstate(all="ignore"):
        return decode(scales, scheme.scale).astype(high) * high(_constants(scheme)[1])


def decoding_table(scheme: Scheme, fmt: FloatFormat) -> npt.NDArray[Any]:
    """(256, 2**bits) int64. Patterns of value * (scale * global_scale), cast to fmt as PyTorch casts."""
    values = decode(np.arange(1 << scheme.element.bits, dtype=np.uint8), scheme.element).astype(high_dtype(scheme))
    with np.errstate(all="ignore"):
        decoded = values[None, :] * _divisors(np.arange(256, dtype=np.uint8), scheme)[:, None]
        return narrow(decoded.astype(np.float32), fmt)
