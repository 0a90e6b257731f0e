"""The scalar reference of the matmul: SPEC.md section 7 in integers and Fractions, slow and obvious, for small shapes.

    sum      Σ_k a[m, k]·b[n, k], each factor the real number value·scale that code and scale byte stand for
    acc      RN32(sum): what any accumulation gives where the sum and all partial sums fit binary32
    r        RN32(RN32(1/g_a)·RN32(1/g_b)); a side without a tensor scale has the factor 1
    out      RN(out)(RN32(acc·r)); where neither side has a tensor scale, RN(out)(acc)

A sum is NaN if a scale of its row of A or of B is NaN, whatever the codes there (0·NaN is NaN). A sum of 0 is +0: an
accumulation that starts at +0, or adds two products of opposite sign, ends there. Factors are real numbers, so no
operand overflows here; a kernel that decodes MXFP4's scale bytes 253 and 254 to bfloat16 may (see
`lowbit.cases.summable`).
"""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import Any

import numpy as np

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references.exact_arithmetic import convert, divide, multiply
from lowbit.references.exact_elements import round_to
from lowbit.schemes import Encoded, Scheme

__all__ = ["decode_factor", "finish", "fits", "matmul", "sums"]

_PATTERNS = {BINARY16: np.uint16, BFLOAT16: np.uint16, BINARY32: np.uint32}
_ONE = round_to(Fraction(1), BINARY32)


def matmul(a: Encoded, b: Encoded, scheme: Scheme, fmt: FloatFormat = BFLOAT16) -> np.ndarray:
    """A · Bᵀ.

    Args:
      a, b: codes (M, K) and (N, K) uint8, scales (M, K // block) and (N, K // block) uint8, any bytes, row-major, not
        swizzled; tensor_scale g, float32 of one element, or None. NumPy.
      scheme: of the family nvfp4 or mxfp4.
      fmt: BFLOAT16, BINARY16 or BINARY32.

    Returns:
      (M, N) bit patterns of `fmt`, uint16 or uint32. A NaN is the canonical one. Where a sum does not fit binary32,
      acc is RN32 of it, and a right kernel may differ: see `fits`.

    Raises:
      ArgumentError: another family or format; a code above 15; a tensor scale under MXFP4.
      DtypeError: codes or scales that are not uint8.
      ShapeError: codes and scales that do not describe the same blocks, or two values of K.

    Exactness: this is the definition.
    Spec: SPEC.md 7.
    """
    if fmt not in _PATTERNS:
        raise ArgumentError(f"fmt: got {fmt.name}, want bfloat16, binary16 or binary32")
    r = _factor(a, b)
    rows = [[finish(total, r, fmt) for total in row] for row in sums(a, b, scheme)]
    return np.array(rows, _PATTERNS[fmt]).reshape(len(a.codes), len(b.codes))


def sums(a: Encoded, b: Encoded, scheme: Scheme) -> list[list[Fraction | None]]:
    """The exact sums; None stands for NaN.

    Args:
      a, b, scheme: as `matmul` takes them.

    Returns:
      M lists of N.
    """
    _check(a, b, scheme)
    (rows, a_unit), (columns, b_unit) = _integers(a, scheme), _integers(b, scheme)
    unit = a_unit * b_unit
    return [[None if x is None or y is None else sum(map(operator.mul, x, y)) * unit for y in columns] for x in rows]


def fits(total: Fraction | None) -> bool:
    """Whether binary32 holds a sum exactly; NaN, which every accumulation gives, counts as held."""
    if total is None:
        return True
    pattern = round_to(total, BINARY32)
    return not BINARY32.is_inf(pattern) and Fraction(BINARY32.value(pattern)) == total


def finish(total: Fraction | None, r: int | None, fmt: FloatFormat) -> int:
    """The pattern in `fmt` of one sum.

    Args:
      total: None stands for NaN.
      r: binary32 pattern of the factor; None for no multiplication.
    """
    if total is None:
        assert fmt.nan_magnitude is not None  # outputs are IEEE formats
        return fmt.nan_magnitude
    acc = round_to(total, BINARY32)
    return convert(acc if r is None else multiply(acc, r), BINARY32, fmt)


def decode_factor(tensor_scale: Any) -> int:
    """The binary32 pattern of RN32(1/g): 1 of None.

    Raises:
      ArgumentError: not one float32.
    """
    if tensor_scale is None:
        return _ONE
    array = np.asarray(tensor_scale)
    if array.dtype != np.float32 or array.size != 1:
        raise ArgumentError(f"tensor_scale: got {array.dtype} of shape {array.shape}, want one float32")
    return divide(_ONE, int(array.reshape(()).view(np.uint32)))


def _factor(a: Encoded, b: Encoded) -> int | None:
    if a.tensor_scale is None and b.tensor_scale is None:
        return None
    return multiply(decode_factor(a.tensor_scale), decode_factor(b.tensor_scale))


def _integers(operand: Encoded, scheme: Scheme) -> tuple[list[list[int] | None], Fraction]:
    """The rows as integers, and the unit that they count; None for a row with a NaN scale."""
    nan = {byte for byte in range(1 << scheme.scale.bits) if scheme.scale.is_nan(byte)}
    present = {
        byte: Fraction(scheme.scale.value(byte)) for byte in np.unique(operand.scales).tolist() if byte not in nan
    }
    step = min((_last_place(s) for s in present.values() if s), default=Fraction(1))
    half = scheme.element.min_positive
    values = [int(Fraction(scheme.element.value(code)) / half) for code in range(1 << scheme.element.bits)]
    factors = {byte: int(scale / step) for byte, scale in present.items()}
    rows: list[list[int] | None] = []
    for codes, scales in zip(operand.codes.tolist(), operand.scales.tolist(), strict=True):
        if not nan.isdisjoint(scales):
            rows.append(None)
            continue
        rows.append([values[code] * factors[scales[k // scheme.block]] for k, code in enumerate(codes)])
    return rows, half * step


def _last_place(value: Fraction) -> Fraction:
    """The largest power of two of which a number that is a sum of powers of two is a multiple."""
    odd = value.numerator & -value.numerator
    return Fraction(odd, value.denominator)


def _check(a: Encoded, b: Encoded, scheme: Scheme) -> None:
    if scheme.family not in ("nvfp4", "mxfp4"):
        raise ArgumentError(f"scheme: got {scheme.name} of family {scheme.family!r}, want nvfp4 or mxfp4")
    for name, operand in (("a", a), ("b", b)):
        for part, array in (("codes", operand.codes), ("scales", operand.scales)):
            if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
                got = getattr(array, "dtype", type(array).__name__)
                raise DtypeError(f"{name}.{part}: got {got}, want a NumPy array of uint8")
        codes, scales = operand.codes.shape, operand.scales.shape
        if len(codes) != 2 or len(scales) != 2 or codes != (scales[0], scales[1] * scheme.block):
            raise ShapeError(f"{name}: got codes {codes} with scales {scales}, want {scheme.block} codes a scale")
        if operand.codes.size and int(operand.codes.max()) >> scheme.element.bits:
            raise ArgumentError(f"{name}.codes: got up to {int(operand.codes.max()):#x}, want 0..0xf")
        if scheme.family == "mxfp4" and operand.tensor_scale is not None:
            raise ArgumentError(f"{name}.tensor_scale: got {operand.tensor_scale}, want None: {scheme.name} has none")
    if a.codes.shape[1] != b.codes.shape[1]:
        raise ShapeError(f"a, b: got K = {a.codes.shape[1]} and {b.codes.shape[1]}, want the same")
