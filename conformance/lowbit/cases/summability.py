"""Whether the operands of a matmul are exactly summable: then its result has one right bit pattern, in whatever order.

**The property.** For a row of A and a row of B there is a power of two q, the quantum, such that every product
a[k]·b[k] is an integer multiple of q and Σ_k |a[k]·b[k]| < 2^24·q. (q ≥ 2^-149 and 2^24·q ≤ 2^128, so that binary32
has those numbers.)

**Why it makes the result unique.** Any accumulation, in any order, split over K, in any tree, with several products
added at once, forms sums over subsets of the products. Each such sum is j·q with an integer |j| ≤ Σ|a·b|/q < 2^24: it
fits binary32's 24 bits, so that a rounding or a truncation to binary32 changes nothing, and by induction every
intermediate result is the exact sum. The bound is on the sum of magnitudes because a subset may leave out all the
negative products. A tensor core that aligns the products and the accumulator of one instruction to the largest
exponent among them and cuts what lies below its 24 bits cuts nothing either: everything is below 2^24·q, so the
largest exponent is at most that of 2^23·q and the last place kept is at most q. Fewer bits than 24 show as wrong bits.
acc is then one number, and the rest, RN(out)(RN32(acc·r)), a function of it. With tensor scales that are powers of two
acc·r is exact too, and it does not matter in which order the two factors are applied.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError
from lowbit.formats import BFLOAT16, BINARY32, FloatFormat
from lowbit.schemes import Encoded, Scheme

LIMIT = 1 << (BINARY32.mantissa_bits + 1)
"""Σ |a·b| is below this many quanta."""

PAIRS_LIMIT = 1 << 31
"""Products up to which every pair of rows is looked at, where the cheap condition does not decide."""

CHUNK = 1 << 19
"""Elements of an operand looked at together."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """Whether operands are exactly summable; as a truth value.

    Attributes:
      reason: why not, or "".
      most: the largest Σ |a·b| in quanta, or an upper bound of it.
    """

    reason: str
    most: float = 0.0

    def __bool__(self) -> bool:
        return not self.reason


def is_exactly_summable(a: Encoded, b: Encoded, scheme: Scheme, *, any_factor: bool = False) -> Verdict:
    """Whether operands are exactly summable, by integers.

    First a condition that is cheap and enough. A's block is multiplied by 2^-f and B's by 2^f, which changes no
    product, f being the least exponent of A's block in any row. In the units q_m and q_n of the rows all factors are
    then integers, and Σ_k |a[m,k]/q_m|·max_n |b[n,k]/q_n| < 2^24 for every m is enough; so is the same with the sides
    exchanged. Where neither holds, every pair of rows is looked at, with a quantum of its own.

    Args:
      a, b: codes (M, K) and (N, K) uint8, scales (M, K // block) and (N, K // block) uint8, tensor_scale or None.
        NumPy, scales row-major.
      scheme: of the family nvfp4 or mxfp4.
      any_factor: True lets tensor scales be no powers of two. acc is still unique; what follows is for a kernel that
        computes the formula, RN32(acc·RN32(ra·rb)).

    Returns:
      True if every pair of rows has the property; False if one has not, and if there are more than `PAIRS_LIMIT`
      products and the cheap condition fails: the reason says that it was not decided. False as well for NaN scales,
      for a product outside binary32 (units below 2^-149 or above 2^104) and for a factor outside bfloat16 (MXFP4's
      scale bytes from 253), in which a kernel may hold it.

    Exactness: float64 holds the integers. A sum of magnitudes that reaches 2^24 units never comes back below, so
      rounding cannot hide one.
    """
    _check_family(scheme)
    if reason := _unusable(a, b, scheme, any_factor):
        return Verdict(reason)
    (rows, terms), columns = a.codes.shape, b.codes.shape[0]
    if not rows or not columns or not terms:
        return Verdict("")
    left, right = _units(a, scheme), _units(b, scheme)
    left[:, np.isinf(right).all(0)] = np.inf  # a block that is 0 in all of one side makes no products
    right[:, np.isinf(left).all(0)] = np.inf
    lowest, highest = (np.min(left, 0) + np.min(right, 0)).min(), (_greatest(left) + _greatest(right)).max()
    if lowest < BINARY32.emin - BINARY32.mantissa_bits or highest > BINARY32.emax - BINARY32.mantissa_bits:
        return Verdict(f"products are multiples of 2^{lowest:g} to 2^{highest:g}, which leaves binary32")
    f = np.min(left, 0)
    f[np.isinf(f)] = 0
    most = _upper_bound(a, b, left, right, f, scheme)
    if most >= LIMIT:
        most = min(most, _upper_bound(b, a, right, left, -f, scheme))
    if most < LIMIT:
        return Verdict("", most)
    if rows * columns * terms > PAIRS_LIMIT:
        return Verdict(f"not decided: at most {most:.10g} quanta by the cheap condition, want below {LIMIT}", most)
    most, m, n = _worst_pair(a, b, left, right, scheme)
    return Verdict("" if most < LIMIT else f"rows {m} and {n}: Σ|a·b| is {most:.10g} quanta, want below {LIMIT}", most)


def _unusable(a: Encoded, b: Encoded, scheme: Scheme, any_factor: bool) -> str:
    """What keeps the operands from being summed at all, or ""."""
    largest = float(scheme.element.max_value)
    for name, operand in (("a", a), ("b", b)):
        scales = np.unique(operand.scales)
        if bool(np.isnan(values(scheme.scale)[scales]).any()):
            return f"{name}: a scale is NaN"
        if scheme.family == "mxfp4" and scales.size and values(scheme.scale)[scales[-1]] * largest > BFLOAT16.max_value:
            return f"{name}: the scale byte {scales[-1]} times {largest:g} is beyond bfloat16"
        g = None if operand.tensor_scale is None else float(np.asarray(operand.tensor_scale).reshape(()))
        if g is not None and not (any_factor or (0 < g < np.inf and np.frexp(g)[0] == 0.5)):
            return f"{name}: the tensor scale {g} is no power of two"
    return ""


@functools.cache
def values(fmt: FloatFormat) -> Floats:
    """(2**bits,) float64. By code: the value."""
    return np.array([float(fmt.value(code)) for code in range(1 << fmt.bits)])


def _valuation(value: float) -> float:
    """The greatest v for which the number is an integer multiple of 2^v; Inf of 0 and of NaN."""
    if not value or value != value:
        return np.inf
    numerator, denominator = value.as_integer_ratio()
    return float((numerator & -numerator).bit_length() - denominator.bit_length())


def _units(operand: Encoded, scheme: Scheme) -> Floats:
    """(rows, blocks) float64. The exponent of the unit of a block's values; Inf where all are 0."""
    of_scales = np.array([_valuation(value) for value in values(scheme.scale).tolist()])
    of_codes = np.array([_valuation(value) for value in values(scheme.element).tolist()])
    none = np.int8(127)
    table = np.where(np.isinf(of_codes), none, of_codes).astype(np.int8)
    least = table[operand.codes].reshape(*operand.scales.shape, scheme.block).min(-1)
    return np.where(least == none, np.inf, least) + of_scales[operand.scales]


def _greatest(units: Floats) -> Floats:
    """(blocks,) the greatest finite unit of each; -Inf where there is none."""
    return np.max(np.where(np.isinf(units), -np.inf, units), 0)


def _parts(operand: Encoded, scheme: Scheme, exponents: Floats | None = None) -> Iterator[tuple[slice, Floats]]:
    """Yields some rows at a time and their magnitudes (rows, K), each block times 2^-exponent."""
    codes, scales = abs(values(scheme.element)), abs(values(scheme.scale))
    step = max(1, CHUNK // operand.codes.shape[1])
    for start in range(0, len(operand.codes), step):
        part = slice(start, start + step)
        factors = scales[operand.scales[part]]
        if exponents is not None:
            factors = np.ldexp(factors, -exponents[part].astype(np.int64))
        blocks = codes[operand.codes[part]].reshape(*factors.shape, scheme.block) * factors[:, :, None]
        yield part, blocks.reshape(len(factors), -1)


def _upper_bound(a: Encoded, b: Encoded, left: Floats, right: Floats, f: Floats, scheme: Scheme) -> float:
    """max_m Σ_k |a[m,k]/q_m|·max_n |b[n,k]/q_n|, A's blocks times 2^-f and B's times 2^f."""
    largest = np.zeros(a.codes.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        for _, rows in _parts(b, scheme, _row_units(right + f)[:, None] - f[None, :]):
            np.maximum(largest, rows.max(0), out=largest)
        largest.reshape(-1, scheme.block)[np.isinf(left).all(0)] = 0
        exponents = _row_units(left - f)[:, None] + f[None, :]
        most = max(float((rows @ largest).max()) for _, rows in _parts(a, scheme, exponents))
    return np.inf if np.isnan(most) else most


def _row_units(units: Floats) -> Floats:
    """(rows,) the least unit of each row; 0 of a row of zeros."""
    least = np.min(units, 1)
    return np.where(np.isinf(least), 0.0, least)


def _worst_pair(a: Encoded, b: Encoded, left: Floats, right: Floats, scheme: Scheme) -> tuple[float, int, int]:
    """The largest Σ |a·b| in quanta of the pair, and the rows."""
    worst = 0.0, 0, 0
    for part, rows in _parts(a, scheme):
        for other, against in _parts(b, scheme):
            sums = rows @ against.T
            for i, row in enumerate(sums):
                quanta = np.min(left[part.start + i] + right[other], 1)
                # a pair without products has the quantum 2^Inf and the sum 0
                ratios = np.ldexp(row, -np.where(np.isinf(quanta), 0, quanta).astype(np.int64))
                n = int(np.argmax(ratios))
                worst = max(worst, (float(ratios[n]), part.start + i, other.start + n))
    return worst


def _check_family(scheme: Scheme) -> None:
    if scheme.family not in ("nvfp4", "mxfp4"):
        raise ArgumentError(f"scheme: got {scheme.name} of family {scheme.family!r}, want nvfp4 or mxfp4")
