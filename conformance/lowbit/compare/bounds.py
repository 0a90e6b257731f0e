"""How far the result of a matmul may lie from the exact one, element by element: a formula of the operands.

Names: t_k = a[m,k]·b[n,k] the K products, s = Σ t_k, S = Σ |t_k|, u the unit roundoff of the accumulator,
γ_n = n·u / (1 - n·u) (N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1: (1 + u)^n - 1
≤ γ_n while n·u < 1). Products are exact: two factors of at most 6 bits.

**The accumulator.** u = 2^-23, because a tensor core may truncate to 24 bits rather than round (M. Fasi, N. Higham,
M. Mikaitis, S. Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ Computer Science 7:e330, 2021). The sum may be
formed by any tree of additions of two or more operands at once. One addition of w operands x_i aligns them to the
largest exponent e and cuts w - 1 of them at or below 2^(e-23), each by at most u·max|x_i|, then brings the sum to 24
bits, by at most u of it: in all at most ((1 + u)^w - 1)·Σ|x_i|. An IEEE addition errs less. Claim: a subtree over the
products of a set L errs by at most ((1 + u)^n - 1)·S_L with n = 2·(|L| - 1). For one product, 0. For a node of w ≥ 2
subtrees L_i, |x_i| ≤ (1 + u)^n_i·S_i, so its error is at most Σ S_i·((1 + u)^(n_i + w) - 1), and n_i + w ≤
2·(|L_i| - 1) + 2·(w - 1) ≤ 2·(|L| - 1), the other w - 1 subtrees having a product each. Hence, with a start at +0,
which costs nothing (compare Higham's section 4.2, where n = K - 1 for additions of two, each rounded once):

    |acc - s| ≤ E = γ_{2(K-1)}·S + 2·K·η        η = 2^-149 where products may underflow (MXFP4 only), else 0

**The rest.** r = RN32(ra·rb) is one number, which the reference computes as the kernel must. |RN32(acc·r) - acc·r| ≤
2^-24·|acc·r| + 2^-150, and rounding v to the output is at most half a unit in the last place of v, or of the least
normal number below that. The float64 reference ŝ errs by γ'_K·S with u' = 2^-53, and ŝ·r by one rounding. So

    before = (E + γ'_K·S)·|r| + 2^-24·(|ŝ| + E)·|r| + 2^-150 + 2^-53·|ŝ·r|
    bound  = before + ½ ulp_out(|ŝ·r| + before)       no ½ ulp for binary32, no factor terms without a factor

both times 1 + 2^-40 for the roundings of this computation itself.

**Where it says nothing of a number.** NaN is expected exactly where a scale is NaN. ±Inf is right where the interval
ŝ·r ± before reaches the least value that the output rounds to it, and required where all of the interval lies beyond.
Where S itself may leave binary32 a partial sum may be Inf and two of them NaN: anything not finite is let pass there,
and `Bound.open` counts such elements. Not covered: operands that a kernel cannot hold (MXFP4's scale bytes 253 and 254
in bfloat16), and factors r that are not finite, which are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from lowbit.compare import arrays
from lowbit.compare.comparison import Comparison, failure
from lowbit.compare.pictures import Canvas
from lowbit.compare.rows import Found, Rows, Search, integers
from lowbit.errors import ArgumentError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references.exact_elements import round_to
from lowbit.references.matmul import Sums

__all__ = ["Bound", "Worst", "accumulation_bound", "compare_within_bound", "gamma", "worst"]

ACCUMULATOR = 2.0**-BINARY32.mantissa_bits
"""Unit roundoff of an accumulator of 24 bits that may truncate."""

ROUNDED = 2.0 ** -(BINARY32.mantissa_bits + 1)
"""Unit roundoff of a binary32 operation that rounds to nearest."""

DOUBLE = 2.0**-53
"""Unit roundoff of float64."""

LEAST = float(BINARY32.min_positive)
"""2^-149."""

_KINDS = ("nan", "saturation", "sign", "value")
"""What an output can be wrong in, in the order of `compare_within_bound`."""

SLACK = 1 + 2.0**-40
"""More than what some dozen operations of float64 can take off a bound."""


@dataclass(frozen=True)
class Bound:
    """What an output may be.

    Attributes:
      reference: (M, N) float64. The exact s·r as far as float64 has it; NaN where the output must be NaN.
      before: (M, N) float64. How far the binary32 result may lie from it, before it is rounded to the output.
      bound: (M, N) float64. How far the output may.
      open: (M, N) bool. Where the accumulation may overflow binary32.
      format: of the output.
    """

    reference: Any
    before: Any
    bound: Any
    open: Any
    format: FloatFormat


@dataclass(frozen=True)
class Worst:
    """The element that comes nearest to its bound. `ratio` is error / bound; NaN if no element is finite."""

    ratio: float
    error: float
    bound: float

    def __str__(self) -> str:
        return f"largest error {self.error:.3g}, {self.ratio:.3g} of its bound {self.bound:.3g}"


def gamma(n: int, unit: float) -> float:
    """γ_n = n·u / (1 - n·u).

    Raises:
      ArgumentError: n·u is not below 1.
    """
    if n * unit >= 1:
        raise ArgumentError(f"n: got {n} roundings of {unit}, want less than 1 in all: the bound says nothing there")
    return max(n, 0) * unit / (1 - max(n, 0) * unit)


def accumulation_bound(sums: Sums, factor: float | None, fmt: FloatFormat = BFLOAT16) -> Bound:
    """The bound of every element of a matmul, see the module.

    Args:
      sums: of `references.matmul.sums`. NumPy, or torch on any device.
      factor: r, of `references.matmul.factor`; None for no multiplication.
      fmt: BFLOAT16, BINARY16 or BINARY32, the format of the output.

    Returns:
      Arrays of the library and on the device of `sums`.

    Raises:
      ArgumentError: a factor that is not finite; K above 2^22; another format.

    Spec: SPEC.md 7.
    """
    if fmt not in (BFLOAT16, BINARY16, BINARY32):
        raise ArgumentError(f"fmt: got {fmt.name}, want bfloat16, binary16 or binary32")
    if factor is not None and not math.isfinite(factor):
        raise ArgumentError(f"factor: got {factor}, want a finite number")
    terms = sums.terms
    of_reference = gamma(terms, DOUBLE)
    magnitude = sums.magnitude * (1 + 2 * of_reference)  # of the exact S, which float64 may have rounded down
    underflow = 2 * terms * LEAST if sums.quantum < LEAST else 0.0
    error = gamma(2 * (terms - 1), ACCUMULATOR) * magnitude + underflow
    before = error + of_reference * magnitude
    reference = sums.value
    if factor is not None:
        reference = sums.value * factor
        before = (before + ROUNDED * (abs(sums.value) + error)) * abs(factor) + LEAST / 2 + DOUBLE * abs(reference)
    before = before * SLACK
    bound = before
    if fmt is not BINARY32:
        bound = (before + _half_ulp(abs(reference) + before, fmt)) * SLACK
    return Bound(reference, before, bound, magnitude + error >= _overflow(BINARY32), fmt)


def compare_within_bound(actual: Any, bound: Bound, *, tensor: str = "out", max_samples: int = 20) -> Comparison:
    """Compares a matmul's output with what it may be.

    -0 and +0 are both within any bound that holds one of them. Samples show RN(out)(s·r) as what is expected, and
    error and bound in `rule`.

    Args:
      actual: (M, N) of the output's dtype, or unsigned integers of its width: bit patterns.
      bound: of `accumulation_bound`.

    Returns:
      Kinds: nan (on one side only), saturation (Inf where no Inf may be, or none where one must be), sign (beyond the
      bound and of the other sign), value (beyond the bound); shape, dtype.
    """
    fmt, shape = bound.format, tuple(bound.reference.shape)
    if tuple(actual.shape) != shape:
        text = f"shape of {tensor}: got {tuple(actual.shape)}, want {shape}"
        return failure("shape", tensor=tensor, message=text)
    name = arrays.dtype_name(actual)
    if arrays.FLOATS.get(name) is not fmt and name not in (f"uint{fmt.bits}", f"int{fmt.bits}"):
        return failure("dtype", tensor=tensor, message=f"dtype of {tensor}: got {name}, want that of {fmt.name}")
    actual, flat = actual.reshape(-1), _flat(bound)
    patterns, columns = arrays.bits(actual), shape[-1] if shape else 1

    def find() -> Iterator[Found]:
        for start in range(0, actual.shape[0], arrays.CHUNK):
            part = slice(start, start + arrays.CHUNK)
            got = _doubles(actual[part], fmt)
            kind = _kinds(got, _part(flat, part, got))
            if not bool((kind >= 0).any()):
                continue
            every = arrays.flatnonzero(kind >= 0)
            for first in range(0, every.shape[0], arrays.PIECE):
                places = every[first : first + arrays.PIECE]
                at = places + start
                a = arrays.take(patterns, at)
                # What is right is no number but a range, computed in float64: only what was found goes into the digest.
                yield Found(at, kind[places], a, a, at // columns, at % columns)

    def fetch(places: np.ndarray, kind: list[str]) -> Rows:
        got = arrays.host(_doubles(actual[arrays.place(places, actual)], fmt))
        right, most = (arrays.take(side, places) for side in (flat.reference, flat.bound))
        with np.errstate(invalid="ignore"):
            errors = zip(kind, np.abs(got - right).tolist(), most.tolist(), strict=True)
        return Rows(
            tensor=tensor,
            shape=shape,
            index=places,
            actual=integers(patterns, places, fmt.bits),
            expected=np.array([_pattern(value, fmt) for value in right.tolist()], dtype=np.int64),
            kind=kind,
            rule=[f"error {e:.6g}, bound {b:.6g}" if name in ("sign", "value") else "" for name, e, b in errors],
            format=fmt,
        )

    # No format on the canvas: distances to what rounds from the exact result would say nothing.
    canvas = Canvas("element", math.prod(shape[:-1]), columns)
    search = Search(tensor=tensor, compared=actual.shape[0], order=_KINDS, canvas=canvas, find=find, fetch=fetch)
    return search.collect(max_samples)


def worst(actual: Any, bound: Bound) -> Worst:
    """The element of largest error / bound, among those that are finite on both sides; 0 / 0 counts as 0.

    Args:
      actual, bound: as `compare_within_bound` takes them, of one shape.
    """
    actual, flat = actual.reshape(-1), _flat(bound)
    found = Worst(math.nan, math.nan, math.nan)
    for start in range(0, actual.shape[0], arrays.CHUNK):
        part = slice(start, start + arrays.CHUNK)
        got = _doubles(actual[part], bound.format)
        right = _part(flat, part, got)
        xp = arrays.namespace(got)
        with np.errstate(invalid="ignore", divide="ignore"):
            error = abs(got - right.reference)
            ratio = xp.where(error == 0, 0.0, error / right.bound)
        ratio = xp.where(xp.isfinite(error), ratio, -1.0)
        i = int(ratio.argmax())
        if float(ratio[i]) >= 0 and not float(ratio[i]) <= found.ratio:
            found = Worst(float(ratio[i]), float(error[i]), float(right.bound[i]))
    return found


def _kinds(got: Any, right: Bound) -> Any:
    """Place in `_KINDS` of every element, -1 where it is right."""
    xp = arrays.namespace(got)
    limit = _overflow(right.format)
    low, high = right.reference - right.before, right.reference + right.before
    excused = right.open & ~xp.isfinite(got)
    nan = (xp.isnan(got) != xp.isnan(right.reference)) & ~excused
    number = ~xp.isnan(got) & ~xp.isnan(right.reference) & ~excused
    infinite = xp.isinf(got)
    allowed = xp.where(got > 0, high >= limit, low <= -limit)
    required = (low >= limit) | (high <= -limit)
    saturation = number & xp.where(infinite, ~allowed, required & ~right.open)
    with np.errstate(invalid="ignore"):
        beyond = number & ~infinite & ~saturation & ~(abs(got - right.reference) <= right.bound)
        sign = beyond & (got * xp.sign(right.reference) < 0)
    found = xp.where(beyond, 3, -1)
    for rank, mask in ((2, sign), (1, saturation), (0, nan)):
        found = xp.where(mask, rank, found)
    return found


def _overflow(fmt: FloatFormat) -> float:
    """The least value that rounds to Inf."""
    return float(fmt.max_value + Fraction(2) ** (fmt.emax - fmt.mantissa_bits - 1))


def _half_ulp(magnitude: Any, fmt: FloatFormat) -> Any:
    """Half the distance of neighbouring numbers of a format at magnitudes in float64, subnormal ones included."""
    xp = arrays.namespace(magnitude)
    normal = xp.where(magnitude < 2.0**fmt.emin, 2.0**fmt.emin, magnitude)
    significand = xp.frexp(normal)[0]  # 0.5 … 1: the quotient is a power of two, twice the binade's first number
    return normal / significand * 2.0 ** -(fmt.mantissa_bits + 2)


def _doubles(values: Any, fmt: FloatFormat) -> Any:
    """Numbers of a format, or their bit patterns, as float64."""
    xp = arrays.namespace(values)
    if arrays.dtype_name(values) in arrays.FLOATS:
        return values.astype(np.float64) if xp is np else values.double()
    if xp is not np:
        return values.view({BFLOAT16: xp.bfloat16, BINARY16: xp.float16, BINARY32: xp.float32}[fmt]).double()
    if fmt is BFLOAT16:
        values = np.left_shift(values.view(np.uint16), 16, dtype=np.uint32)
    return values.view(np.float16 if fmt is BINARY16 else np.float32).astype(np.float64)


def _pattern(value: float, fmt: FloatFormat) -> int:
    """RN(out) of a float64."""
    assert fmt.nan_magnitude is not None  # outputs are IEEE formats
    assert fmt.inf_magnitude is not None
    if math.isnan(value):
        return fmt.nan_magnitude
    if math.isinf(value):
        return fmt.sign_mask * (value < 0) | fmt.inf_magnitude
    return round_to(Fraction(value), fmt, negative=math.copysign(1, value) < 0)


def _flat(bound: Bound) -> Bound:
    return _each(bound, lambda part: part.reshape(-1))


def _part(flat: Bound, part: slice, like: Any) -> Bound:
    """Some elements, on the device of `like`."""
    return _each(flat, lambda values: arrays.place(values[part], like))


def _each(bound: Bound, change: Callable[[Any], Any]) -> Bound:
    return Bound(change(bound.reference), change(bound.before), change(bound.bound), change(bound.open), bound.format)
