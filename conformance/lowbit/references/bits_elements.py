"""Element encode and decode on integer bit patterns, vectorised.

A value is taken apart into an integer significand and an exponent of two; rounding is a shift, and the decision is
made on the bits shifted out (`bits_rounding`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import FloatFormat
from lowbit.references.bits_rounding import Ints, Mask, infinity, round_significand, sign_bits, take_apart, take_sign
from lowbit.rules import NanCode, Rounding

CHUNK = 1 << 16
"""Elements handled at once: int64 temporaries of so many stay in a cache, and are all the memory beyond the result."""


def encode(
    x: npt.NDArray[np.float32],
    element: FloatFormat,
    rounding: Rounding,
    nan: NanCode | None = None,
    *,
    random_bits: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """The codes of values, each on its own, at scale 1.

    Overflow and Inf saturate, zero and what rounds to zero keep the sign of x. A format without sign and zero (E8M0)
    takes ±0 and what is below its least value to code 0, and negative values to NaN.

    Args:
      x: (...) float32. Any values.
      element: format of the codes, at most 8 bits.
      rounding: element rule.
      nan: what NaN becomes in a format without NaN; the others take their canonical NaN.
      random_bits: (...) uint8, shape of x. Needed by stochastic rounding, else unused.
    Returns:
      (...) uint8. One code a byte, in the low bits.
    Raises:
      DtypeError: x is not float32, or random_bits not uint8.
      ShapeError: random_bits has another shape than x.
      ArgumentError: stochastic rounding without random_bits; a NaN in x, none in the format and no rule given.
    Exactness: bit-exact with `references.exact.encode`.
    Spec: SPEC.md 2.
    """
    x = np.asarray(x)
    if x.dtype != np.float32:
        raise DtypeError(f"x: got {x.dtype}, want float32 (widen binary16 and bfloat16 first: that is exact)")
    if element.bits > 8:
        raise ArgumentError(f"element: got {element.name} of {element.bits} bits, want at most 8")
    if random_bits is not None:
        if random_bits.dtype != np.uint8:
            raise DtypeError(f"random_bits: got {random_bits.dtype}, want uint8")
        if random_bits.shape != x.shape:
            raise ShapeError(f"random_bits: got shape {random_bits.shape}, want {x.shape}, that of x")
    flat, out = x.reshape(-1), np.empty(x.size, dtype=np.uint8)
    random = None if random_bits is None else random_bits.reshape(-1)
    for start in range(0, x.size, CHUNK):
        part = slice(start, start + CHUNK)
        out[part] = encode_scaled(flat[part], element, rounding, nan, random=None if random is None else random[part])
    return out.reshape(x.shape)


def encode_scaled(
    x: npt.NDArray[np.floating[Any]],
    element: FloatFormat,
    rounding: Rounding,
    nan: NanCode | None,
    *,
    exponent: Ints | int = 0,
    random: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """The codes of x * 2**-exponent, the product being exact and of any size.

    Args:
      x: (...) float32 or float64.
      exponent: broadcasts with x.
      random: (...) uint8, for stochastic rounding.
    Returns:
      (...) uint8.
    """
    negative, pattern, source = take_sign(x)
    significand, unit = take_apart(pattern, source)
    rounded = round_significand(significand, unit - exponent, negative, element, rounding, random)
    magnitude = np.minimum(rounded, element.max_magnitude)
    # 2**128 * 2**-exponent may lie inside the element's range; Inf does not.
    magnitude[pattern == infinity(source)] = element.max_magnitude
    codes = magnitude | sign_bits(negative, element)
    not_a_number = pattern > infinity(source)
    if not element.signed:
        not_a_number |= negative & (pattern != 0)
    if not_a_number.any():
        codes[not_a_number] = nan_codes(element, nan, negative[not_a_number])
    return codes.astype(np.uint8)


def nan_codes(element: FloatFormat, nan: NanCode | None, negative: Mask) -> Ints:
    """The codes of NaNs whose sign bits are `negative`.

    Raises:
      ArgumentError: the format has no NaN and no rule is given.
    """
    if element.nan_magnitude is not None:
        code = element.nan_magnitude
    elif nan is NanCode.SIGNED_MAX:
        return sign_bits(negative, element) | element.magnitude_mask
    elif nan is NanCode.POSITIVE_MAX:
        code = element.magnitude_mask
    elif nan is NanCode.NEGATIVE_ZERO:
        code = element.sign_mask
    elif nan is NanCode.ZERO:
        code = 0
    else:
        raise ArgumentError(f"nan: got {nan}, want a NanCode, for x holds NaN and {element.name} has none")
    return np.full(negative.shape, code, dtype=np.int64)


def decode(codes: npt.NDArray[Any], fmt: FloatFormat) -> npt.NDArray[np.float64]:
    """The values of codes; a double holds each exactly.

    Args:
      codes: (...) of any unsigned integer type.
      fmt: their format, at most 32 bits.
    Returns:
      (...) float64; NaN, ±Inf and -0 as such.
    Raises:
      DtypeError: codes are not unsigned integers.
      ArgumentError: a code that the format does not have, or a format of more than 32 bits.
    Exactness: bit-exact with `FloatFormat.value`.
    Spec: SPEC.md 1.
    """
    codes = np.asarray(codes)
    if codes.dtype.kind != "u":
        raise DtypeError(f"codes: got {codes.dtype}, want an unsigned integer type")
    if fmt.bits > 32:
        raise ArgumentError(f"fmt: got {fmt.name} of {fmt.bits} bits, want at most 32")
    wide = codes.reshape(-1).astype(np.int64)
    if (wide >> fmt.bits).any():
        raise ArgumentError(f"codes: got up to {int(codes.max()):#x}, want {fmt.bits} bits for {fmt.name}")
    magnitude, negative = wide & fmt.magnitude_mask, (wide & fmt.sign_mask) != 0
    significand, unit = take_apart(magnitude, fmt)
    value = np.ldexp(significand.astype(np.float64), unit.astype(np.int32))
    special = magnitude > fmt.max_magnitude
    if fmt.inf_magnitude is None:
        value[special] = np.nan
    else:
        value[special] = np.where(magnitude[special] == fmt.inf_magnitude, np.inf, np.nan)
    return np.where(negative, -value, value).reshape(codes.shape)
