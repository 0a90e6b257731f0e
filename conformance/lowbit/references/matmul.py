"""The matmul reference for large shapes: float64, in NumPy or in torch on any device, whole rows at a time.

A factor, value·scale, is exact in float64, and so is a product of two. Every product is a multiple of a quantum, the
least over the blocks of K of the least unit of A's scales there times that of B's, over 4; under NVFP4 at least 2^-20
(E2M1 is a multiple of 2^-1, E4M3 of 2^-9). So the sum is **exact, in any order**, wherever Σ|a|·|b| is at most 2^53
quanta: every partial sum is then an integer of 53 bits, and the computed Σ|a|·|b| decides it, because a float64 sum of
magnitudes that has passed 2^53 quanta never comes back. One NVFP4 product is at most 2688² < 2^22.8: up to K = 1,188
nothing can be inexact, beyond it only a sum of magnitudes above 2^33. Elsewhere the error is at most γ_K(2^-53)·
Σ|a|·|b|, which `lowbit.compare.bounds` adds to its bound.

The operations and their order are those of `matmul_exact`, written apart from it.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.errors import ArgumentError, ShapeError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.schemes import Encoded, Scheme

__all__ = ["Sums", "decode_factor", "factor", "finish", "matmul", "sums"]

CHUNK = 1 << 25
"""Elements of one operand decoded together."""


@dataclass(frozen=True)
class Sums:
    """Sums of products and of their magnitudes.

    Attributes:
      value: (M, N) float64. Σ a·b; NaN where a scale of the row of A or of B is NaN. Zeros are +0.
      magnitude: (M, N) float64. Σ |a|·|b|; NaN where `value` is.
      quantum: every product is an integer multiple of this power of two.
      terms: K.
    """

    value: Any
    magnitude: Any
    quantum: float
    terms: int

    @property
    def exact(self) -> Any:
        """(M, N) bool. Where `value` is the exact sum; a NaN counts as exact."""
        return ~(self.magnitude > 2.0**53 * self.quantum)


def matmul(a: Encoded, b: Encoded, scheme: Scheme, fmt: FloatFormat = BFLOAT16) -> Any:
    """A · Bᵀ, RN(out)(RN32(RN32(sum)·r)).

    Args:
      a, b: codes (M, K) and (N, K) uint8, scales (M, K // block) and (N, K // block) uint8, any bytes, row-major, not
        swizzled; tensor_scale float32 of one element, or None. NumPy arrays, or tensors of one device.
      scheme: of the family nvfp4 or mxfp4.
      fmt: BFLOAT16, BINARY16 or BINARY32.

    Returns:
      (M, N): a tensor of that dtype; in NumPy, which lacks bfloat16, uint16 or uint32 bit patterns, every NaN the
      canonical one.

    Raises:
      ArgumentError: another family or format, or a tensor scale under MXFP4.
      ShapeError: codes and scales that do not describe the same blocks, or two values of K.

    Exactness: bit-exact with `matmul_exact.matmul` where `Sums.exact`; NaN by class.
    Spec: SPEC.md 7.
    """
    return finish(sums(a, b, scheme).value, factor(a, b), fmt)


def sums(a: Encoded, b: Encoded, scheme: Scheme) -> Sums:
    """Σ a·b and Σ |a|·|b| of every row of A with every row of B.

    Args:
      a, b, scheme: as `matmul` takes them.

    Returns:
      On the device of the codes. Memory beyond the result is bounded by `CHUNK`, or by one row.
    """
    rows, columns, terms = _shape(a, b, scheme)
    xp, like = _library(a.codes), a.codes
    table, halves = _table(scheme.element, scheme.scale)
    value, magnitude = (_empty(xp, (rows, columns), like) for _ in range(2))
    step = max(1, CHUNK // max(terms, 1))
    for first in range(0, columns, step):
        right, right_nan = _decoded(b, slice(first, first + step), table, scheme)
        for start in range(0, rows, step):
            left, left_nan = _decoded(a, slice(start, start + step), table, scheme)
            place = slice(start, start + step), slice(first, first + step)
            nan = left_nan[:, None] | right_nan[None, :]
            # + 0.0 turns a sum of -0, of products that are all -0, into the +0 of an accumulation
            value[place] = xp.where(nan, np.nan, left @ right.T + 0.0)
            magnitude[place] = xp.where(nan, np.nan, abs(left) @ abs(right).T)
    return Sums(value, magnitude, _quantum(_least(halves, a.scales) * _least(halves, b.scales)), terms)


def finish(value: Any, r: float | None, fmt: FloatFormat) -> Any:
    """Sums in the format of the output: RN(out)(RN32(RN32(sum)·r)).

    Args:
      value: (...) float64.
      r: a binary32 number; None for no multiplication.
      fmt: BFLOAT16, BINARY16 or BINARY32.

    Returns:
      (...): a tensor of the dtype, or NumPy bit patterns.
    """
    if fmt not in (BFLOAT16, BINARY16, BINARY32):
        raise ArgumentError(f"fmt: got {fmt.name}, want bfloat16, binary16 or binary32")
    xp = _library(value)
    if xp is not np:
        acc = value.to(xp.float32)
        # float64 holds the product of two binary32 numbers: one rounding
        scaled = acc if r is None else (acc.double() * r).to(xp.float32)
        return scaled.to({BFLOAT16: xp.bfloat16, BINARY16: xp.float16, BINARY32: xp.float32}[fmt])
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        acc = value.astype(np.float32)
        scaled = acc if r is None else (acc.astype(np.float64) * r).astype(np.float32)
        half = scaled.astype(np.float16)
    assert fmt.nan_magnitude is not None
    pattern = half.view(np.uint16) if fmt is BINARY16 else scaled.view(np.uint32)
    if fmt is BFLOAT16:
        pattern = _bfloat16(pattern)
    return np.where(np.isnan(scaled), pattern.dtype.type(fmt.nan_magnitude), pattern)


def factor(a: Encoded, b: Encoded) -> float | None:
    """r = RN32(RN32(1/g_a)·RN32(1/g_b)); None where neither side has a tensor scale, a missing one counts as 1."""
    if a.tensor_scale is None and b.tensor_scale is None:
        return None
    with np.errstate(all="ignore"):
        return float(decode_factor(a.tensor_scale) * decode_factor(b.tensor_scale))


def decode_factor(tensor_scale: Any) -> np.float32:
    """RN32(1/g), NumPy's binary32 division; 1 of None."""
    if tensor_scale is None:
        return np.float32(1)
    given = tensor_scale.detach().cpu().numpy() if hasattr(tensor_scale, "detach") else np.asarray(tensor_scale)
    if given.dtype != np.float32 or given.size != 1:
        raise ArgumentError(f"tensor_scale: got {given.dtype} of shape {given.shape}, want one float32")
    with np.errstate(all="ignore"):
        return np.float32(np.float32(1) / given.reshape(())[()])


def _decoded(operand: Encoded, part: slice, table: np.ndarray, scheme: Scheme) -> tuple[Any, Any]:
    """Rows of an operand as float64, rows with a NaN scale as zeros, and which those are."""
    codes, scales = operand.codes[part], operand.scales[part]
    xp = _library(codes)
    entries = table if xp is np else xp.from_numpy(table).to(codes.device)
    index = xp.asarray(scales, dtype=xp.int32)[:, :, None] * (1 << scheme.element.bits)
    index = index + xp.asarray(codes, dtype=xp.int32).reshape(*scales.shape, scheme.block)
    nan = (scales & scheme.scale.magnitude_mask == scheme.scale.nan_magnitude).any(1)
    values = entries[index].reshape(codes.shape)
    values[nan] = 0.0
    return values, nan


@functools.cache
def _table(element: FloatFormat, scale: FloatFormat) -> tuple[np.ndarray, np.ndarray]:
    """By scale byte and code: their product, float64; by scale byte: of what the products are multiples, Inf of 0."""
    values = np.array([float(element.value(code)) for code in range(1 << element.bits)])
    steps = np.array([float(scale.value(byte)) for byte in range(1 << scale.bits)])
    usable = np.isfinite(steps) & (steps != 0)
    digits = scale.mantissa_bits + 1
    significand, exponent = np.frexp(np.where(usable, steps, 1.0))
    integer = (significand * 2.0**digits).astype(np.int64)
    unit = np.ldexp((integer & -integer).astype(np.float64), exponent - digits)
    halves = np.where(usable, unit * float(element.min_positive), np.inf)
    return (steps[:, None] * values[None, :]).reshape(-1), halves


def _least(halves: np.ndarray, scales: Any) -> np.ndarray:
    """(blocks,) float64. By block of K, the power of two of which factors are multiples; Inf if all are 0 or NaN."""
    xp = _library(scales)
    if not scales.shape[0]:
        return np.full(scales.shape[1], np.inf)
    if xp is np:
        return halves[scales].min(0)
    return xp.from_numpy(halves).to(scales.device)[xp.asarray(scales, dtype=xp.int32)].amin(0).cpu().numpy()


def _quantum(of_blocks: np.ndarray) -> float:
    """The least of the blocks' quanta; 1 where there is no product but 0."""
    least = float(np.min(of_blocks, initial=np.inf))
    return least if least < np.inf else 1.0


def _bfloat16(pattern: np.ndarray) -> np.ndarray:
    """Binary32 patterns rounded to bfloat16 ones, ties to even; of what is no NaN."""
    wide = pattern.astype(np.uint64)
    return ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)


def _shape(a: Encoded, b: Encoded, scheme: Scheme) -> tuple[int, int, int]:
    if scheme.family not in ("nvfp4", "mxfp4"):
        raise ArgumentError(f"scheme: got {scheme.name} of family {scheme.family!r}, want nvfp4 or mxfp4")
    for name, operand in (("a", a), ("b", b)):
        codes, scales = tuple(operand.codes.shape), tuple(operand.scales.shape)
        if len(codes) != 2 or len(scales) != 2 or codes != (scales[0], scales[1] * scheme.block):
            raise ShapeError(f"{name}: got codes {codes} with scales {scales}, want {scheme.block} codes a scale")
        if scheme.family == "mxfp4" and operand.tensor_scale is not None:
            raise ArgumentError(f"{name}.tensor_scale: got {operand.tensor_scale}, want None: {scheme.name} has none")
    if a.codes.shape[1] != b.codes.shape[1]:
        raise ShapeError(f"a, b: got K = {a.codes.shape[1]} and {b.codes.shape[1]}, want the same")
    return a.codes.shape[0], b.codes.shape[0], a.codes.shape[1]


def _empty(xp: Any, shape: tuple[int, int], like: Any) -> Any:
    return np.empty(shape) if xp is np else xp.empty(shape, dtype=xp.float64, device=like.device)


def _library(array: Any) -> Any:
    """numpy, or torch where the array is a tensor; torch is looked up, never imported."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else np
