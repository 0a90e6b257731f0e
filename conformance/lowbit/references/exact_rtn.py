"""The blocks of rtn_xxfp4, PyTorch's order of operations, one block at a time (SPEC.md 3.4).

Values are patterns of `scheme.high`; every operation is one IEEE operation of `exact_arithmetic`, division included.
The global scale multiplies on decoding: element = x / (scale * global_scale).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, BINARY64, E8M0, FloatFormat
from lowbit.references.exact_arithmetic import clamp, convert, divide, largest_magnitude, multiply
from lowbit.references.exact_elements import encode, floor_log2, pattern_float, round_to
from lowbit.schemes import Scheme


def encode_block(x: Sequence[int], scheme: Scheme, randoms: Sequence[int | None]) -> tuple[int, list[int]]:
    """One block: its scale byte and its codes.

    Args:
      x: binary32 patterns.
      randoms: r of each element, None where the rounding needs none.
    """
    high = scheme.high
    if scheme.scale_scale is None:
        raise ArgumentError(f"scheme: got {scheme.name} without scale_scale, want the parameters of rtn_xxfp4")
    wide = [convert(v, BINARY32, high) for v in x]
    divisor = multiply(round_to(scheme.scale_scale, high), _global_scale(scheme), high)
    quotient = divide(largest_magnitude(wide, high), divisor, high)
    largest = scheme.scale.max_value
    smallest = -largest if scheme.scale.signed else scheme.scale.min_positive  # torch.finfo's min
    scale = _cast(clamp(quotient, round_to(smallest, high), round_to(largest, high), high), high, scheme.scale)
    unit = _unit(scale, scheme)
    elements = [pattern_float(divide(v, unit, high), high) for v in wide]
    return scale, [
        encode(e, scheme.element, scheme.rounding, scheme.nan, random=r) for e, r in zip(elements, randoms, strict=True)
    ]


def decode(code: int, scale: int, scheme: Scheme, fmt: FloatFormat) -> int:
    """The pattern of one element in `fmt`: value * (scale * global_scale) in `scheme.high`, then cast."""
    value = convert(code, scheme.element, scheme.high)
    return _cast(multiply(value, _unit(scale, scheme), scheme.high), scheme.high, fmt)


def _unit(scale: int, scheme: Scheme) -> int:
    """What one stands for in a block: scale * global_scale."""
    return multiply(convert(scale, scheme.scale, scheme.high), _global_scale(scheme), scheme.high)


def _global_scale(scheme: Scheme) -> int:
    if scheme.global_scale is None:
        raise ArgumentError(f"scheme: got {scheme.name} without global_scale, want the parameters of rtn_xxfp4")
    return round_to(scheme.global_scale, scheme.high)


def _cast(value: int, source: FloatFormat, target: FloatFormat) -> int:
    """PyTorch's cast: from binary64 to anything shorter than binary32 it passes through binary32."""
    if source is BINARY64 and target.bits < BINARY32.bits:
        value, source = convert(value, BINARY64, BINARY32), BINARY32
    return _cast_to_e8m0(value, source) if target is E8M0 else convert(value, source, target)


def _cast_to_e8m0(value: int, source: FloatFormat) -> int:
    """Half-way goes up, except below the least normal binary32 number, where everything above 2**-127 does."""
    exact = source.value(value)
    if math.isnan(exact):
        return 0xFF
    assert isinstance(exact, Fraction)  # clamped to what E8M0 holds
    if exact <= E8M0.min_positive:
        return 0
    exponent = floor_log2(exact)
    up = exact / Fraction(2) ** exponent >= Fraction(3, 2) or exponent < BINARY32.emin
    return exponent + up + E8M0.bias
