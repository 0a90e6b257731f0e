"""Inputs worth trying: special, boundary, worst and exhaustive values, derived from the format tables.

Scalars come as binary32 bit patterns (uint32), blocks as float32 rows. Nothing here knows a right answer; the
references do.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import exact
from lowbit.rules import NonFinite, Rounding, ScaleRule, TensorScaleRule
from lowbit.schemes import Scheme

SPECIAL_PATTERNS: tuple[int, ...] = (
    0x00000000,  # +0
    0x00000001,  # least subnormal
    0x007FFFFF,  # greatest subnormal
    0x00800000,  # least normal
    0x00800001,
    0x3F7FFFFF,  # 1 - ulp
    0x3F800000,  # 1
    0x3F800001,  # 1 + ulp
    0x7F7FFFFF,  # greatest finite
    0x7F800000,  # Inf
    0x7F800001,  # NaN, least payload
    0x7FC00000,  # NaN, quiet
    0x7FFFFFFF,  # NaN, all ones
)
"""Binary32 magnitudes at the edges of the format; each is tried with both signs."""

GIVEN = (TensorScaleRule.ONE_ROUNDING, TensorScaleRule.TWO_ROUNDINGS)
"""The tensor scale rules under which a g may be given."""

BESIDE_TIES = (float.fromhex("0x1.7e817cp+0"), float.fromhex("0x1.7f7038p+0"))
"""Tensor scales g of NVFP4 by which some value · s / g lies beside a tie of bfloat16, and of binary16.

Of all codes and E4M3 scales 122 magnitudes there, and hardly any under other factors, round otherwise after
multiplication by RN(1 / g), and 54 where s / g is rounded before the product.
"""

SIGN = 0x80000000
INFINITY = 0x7F800000


def floats(patterns: Sequence[int] | np.ndarray) -> np.ndarray:
    """Binary32 patterns as float32 of the same bits."""
    return np.asarray(patterns, dtype=np.uint32).view(np.float32)


def patterns(values: np.ndarray) -> np.ndarray:
    """The bits of a float32 array, uint32 of the same shape."""
    return np.asarray(values, dtype=np.float32, order="C").view(np.uint32)


def special_patterns() -> np.ndarray:
    """(N,) uint32. Every special magnitude under both signs."""
    magnitudes = np.array(SPECIAL_PATTERNS, dtype=np.uint32)
    return np.concatenate([magnitudes, magnitudes | np.uint32(SIGN)])


@functools.cache
def _turning_points(element: FloatFormat, fmt: FloatFormat = BINARY32) -> tuple[int, ...]:
    """The magnitudes of `fmt` at which some rounding rule changes its code: grid values and midpoints."""
    grid = element.magnitudes
    points = {*grid, *((low + high) / 2 for low, high in itertools.pairwise(grid))}
    points.add(grid[-1] + (grid[-1] - grid[-2]) / 2)  # where an unbounded grid would have gone on
    smallest, largest = fmt.min_positive, fmt.max_value
    return tuple(sorted(exact.round_to(p, fmt) for p in points if smallest <= p <= largest))


def boundary_patterns(element: FloatFormat) -> np.ndarray:
    """(N,) uint32. Every value at which a rounding rule changes its mind, ± 1 ulp, and specials, both signs."""
    points = np.array(_turning_points(element), dtype=np.int64)
    near = np.unique(np.concatenate([points - 1, points, points + 1]))
    near = near[(near >= 0) & (near <= 0x7FFFFFFF)].astype(np.uint32)
    return np.unique(np.concatenate([near, near | np.uint32(SIGN), special_patterns()]))


def binade_patterns() -> np.ndarray:
    """(N,) uint32. Every binade of binary32 × significands at which a scale rule changes its mind, ± 1 ulp.

    Significands: 1, √2 (rounded to binary32), 1.5, 1.75, the next below 2; for subnormals each power of two.
    """
    mantissas = np.array([0, 0x3504F3, 0x400000, 0x600000, 0x7FFFFF], dtype=np.int64)
    near = np.unique(np.concatenate([mantissas - 1, mantissas, mantissas + 1]))
    near = near[(near >= 0) & (near < 1 << 23)]
    normal = (np.arange(1, 255, dtype=np.int64)[:, None] << 23) + near[None, :]
    powers = 1 << np.arange(23, dtype=np.int64)
    subnormal = np.concatenate([powers, powers + 1, powers - 1, powers + (powers >> 1), powers + (powers * 3 >> 2)])
    return np.unique(np.concatenate([normal.ravel(), subnormal[subnormal < 1 << 23]])).astype(np.uint32)


def all_patterns_16(fmt: FloatFormat) -> np.ndarray:
    """(65536,) uint16. Every pattern of binary16 or bfloat16."""
    assert fmt in (BINARY16, BFLOAT16)
    return np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def widened(pattern16: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    """Binary16 or bfloat16 patterns as the float32 of the same value."""
    if fmt is BFLOAT16:
        return (pattern16.astype(np.uint32) << 16).view(np.float32)
    return pattern16.view(np.float16).astype(np.float32)


@dataclass(frozen=True)
class Pin:
    """A magnitude that, alone in lane 0, decides the block's scale.

    Attributes:
      amax: binary32 pattern of the pin; every other lane may hold any finite magnitude up to it.
      tensor_scale: the g to be given, None where the scheme takes none.
    """

    amax: int
    tensor_scale: float | None


def pins(scheme: Scheme) -> tuple[Pin, ...]:
    """Pins for a scheme: the greatest amax of scale 1, of the least and of the greatest scale.

    With the greatest amax of a scale, every code and the region that saturates are reached.
    """
    given = 1.0 if scheme.tensor_scale in GIVEN else None
    unit = _greatest_amax(scheme, Fraction(1))
    return tuple(Pin(amax, given) for amax in (unit, _least_scale_amax(scheme), BINARY32.max_magnitude))


def _scale_of(scheme: Scheme, amax: float) -> Fraction:
    """The scale of a block of that amax; the stochastic rule with all-zero bits."""
    if scheme.exponent_range is not None:
        return Fraction(2) ** exact.scale_exponent(amax, scheme, random=0)
    block = np.zeros((1, scheme.block), dtype=np.float32)
    block[0, 0] = amax
    given = np.float32(1) if scheme.tensor_scale in GIVEN else None
    bits = np.zeros(block.shape, dtype=np.uint8) if scheme.rounding is Rounding.STOCHASTIC else None
    code = int(exact.quantize(block, scheme, tensor_scale=given, random_bits=bits).scales[0, 0])
    return scheme.scale.magnitude_value(min(code, scheme.scale.max_magnitude))


@functools.cache
def _greatest_amax(scheme: Scheme, scale: Fraction) -> int:
    """The greatest binary32 pattern whose block has at most that scale: scales grow with amax, so bisect."""
    low, high = 1, BINARY32.max_magnitude
    while low < high:
        middle = (low + high + 1) // 2
        if _scale_of(scheme, float(floats([middle])[0])) <= scale:
            low = middle
        else:
            high = middle - 1
    return low


def _least_scale_amax(scheme: Scheme) -> int:
    if scheme.exponent_range is not None:
        return _greatest_amax(scheme, Fraction(2) ** scheme.exponent_range[0])
    return _greatest_amax(scheme, scheme.scale.min_positive)


def pinned_blocks(values: np.ndarray, scheme: Scheme, pin: Pin, *, rotate: bool = False) -> np.ndarray:
    """Rows of one block each that hold the values beside a pin.

    Args:
      values: (N,) float32. Those above the pin in magnitude are left out, and those that are not finite.
      rotate: the pin goes to lane `row % block` instead of lane 0, so that every lane is both pin and subject.

    Returns:
      (rows, block) float32; the last row is filled up with +0.
    """
    bits = patterns(values)
    kept = values[(bits & np.uint32(0x7FFFFFFF)) <= pin.amax]
    lanes = scheme.block - 1
    rows = -(-len(kept) // lanes)
    flat = np.zeros(rows * lanes, dtype=np.float32)
    flat[: len(kept)] = kept
    out = np.empty((rows, scheme.block), dtype=np.float32)
    out[:, 0] = floats([pin.amax])[0]
    out[:, 1:] = flat.reshape(rows, lanes)
    if rotate:
        shift = np.arange(rows)[:, None] % scheme.block
        out = np.take_along_axis(out, (np.arange(scheme.block)[None, :] - shift) % scheme.block, axis=1)
    return out


def amax_blocks(magnitudes: np.ndarray, scheme: Scheme) -> np.ndarray:
    """(N, block) float32: each pattern once as the block's only nonzero element, lane and sign moving along."""
    count = len(magnitudes)
    out = np.zeros((count, scheme.block), dtype=np.float32)
    rows = np.arange(count)
    signs = np.where(rows % 3 == 2, np.uint32(SIGN), np.uint32(0))
    out[rows, rows % scheme.block] = floats(np.asarray(magnitudes, dtype=np.uint32) | signs)
    return out


def special_blocks(scheme: Scheme) -> np.ndarray:
    """(N, block) float32. Each special value in each lane of a block, alone in a zero block, filling one."""
    ordinary = np.linspace(-5.5, 6.0, scheme.block, dtype=np.float32)
    specials = floats(special_patterns())
    rows = []
    for value in specials:
        inside = np.tile(ordinary, (scheme.block, 1))
        np.fill_diagonal(inside, value)
        alone = np.zeros((1, scheme.block), dtype=np.float32)
        alone[0, scheme.block // 2] = value
        rows += [inside, alone, np.full((1, scheme.block), value, dtype=np.float32)]
    mixed = np.tile(ordinary, (2, 1))
    mixed[0, :2] = np.inf, -np.inf
    mixed[1, :2] = np.nan, np.inf
    negative_zero = np.full((1, scheme.block), -0.0, dtype=np.float32)
    return np.concatenate([*rows, mixed, negative_zero])


def _special_magnitudes(fmt: FloatFormat) -> np.ndarray:
    """(13,) int64. The magnitudes of `SPECIAL_PATTERNS`, in the same order, in a format of 16 or 32 bits."""
    normal, one, infinity = 1 << fmt.mantissa_bits, fmt.bias << fmt.mantissa_bits, fmt.max_magnitude + 1
    edges = [0, 1, normal - 1, normal, normal + 1, one - 1, one, one + 1, infinity - 1]
    return np.array([*edges, infinity, infinity + 1, infinity | normal >> 1, fmt.magnitude_mask], dtype=np.int64)


def _greatest_magnitude(fmt: FloatFormat, amax: int) -> int:
    """The greatest magnitude of `fmt` that is at most the binary32 pattern."""
    if fmt is BINARY32:
        return amax
    ascending = widened(np.arange(fmt.max_magnitude + 1, dtype=np.uint16), fmt)
    return int(np.searchsorted(ascending, floats([amax])[0], side="right")) - 1


def edge_blocks(scheme: Scheme, fmt: FloatFormat) -> np.ndarray:
    """Rows of one block in which every lane sees what a load, a cast or a layout could spoil, as bits of the input.

    Every turning point of the element ± 1 ulp in every lane beside a pin of scale 1 that moves along; Inf, NaN and the
    greatest value of both signs in every lane; every ordered pair of special values filling a block; each alone.

    Args:
      fmt: BINARY32, BFLOAT16 or BINARY16.

    Returns:
      (N, block) uint32 or uint16 patterns, which no cast can change.
    """
    block, sign, kind = scheme.block, fmt.sign_mask, f"u{fmt.bits // 8}"
    specials = _special_magnitudes(fmt)
    pin = _greatest_magnitude(fmt, pins(scheme)[0].amax)
    points = np.array(_turning_points(scheme.element, fmt), dtype=np.int64)
    edges = np.unique(np.concatenate([points - 1, points, points + 1, specials]))
    edges = edges[(edges >= 0) & (edges <= pin)]
    edges = np.concatenate([edges, edges | sign])
    row, lane = np.arange(len(edges))[:, None], np.arange(block)[None, :]
    moving = edges[(row + lane) % len(edges)]
    beside_pins = [np.where(lane == (row + shift) % block, pin, moving) for shift in (0, 1)]  # each hides other edges
    one = fmt.bias << fmt.mantissa_bits
    ordinary = one + (np.arange(block) % 4 << fmt.mantissa_bits - 1) + np.arange(block) % 2 * sign
    loud = np.concatenate([specials[8:11], specials[8:11] | sign])
    inside = [np.where(np.eye(block, dtype=bool), value, ordinary[None, :]) for value in loud]
    paired = specials[[0, 1, 2, 6, 8, 9, 11]]
    pairs = np.array(list(itertools.product(np.concatenate([paired, paired | sign]), repeat=2)))
    every = np.concatenate([specials, specials | sign])
    alone = np.where(lane == np.arange(len(every))[:, None] % block, every[:, None], 0)
    return np.concatenate([*beside_pins, *inside, np.tile(pairs, block // 2), alone]).astype(kind)


def finite_special_blocks(scheme: Scheme) -> np.ndarray:
    """`special_blocks` without the rows that hold NaN or Inf: for schemes in which one such value spoils the tensor."""
    blocks = special_blocks(scheme)
    return blocks[np.isfinite(blocks).all(axis=1)]


def spoils_tensor(scheme: Scheme) -> bool:
    """Whether one NaN or Inf decides the codes of the whole tensor."""
    return scheme.nonfinite is NonFinite.PROPAGATE and scheme.tensor_scale is TensorScaleRule.TWO_ROUNDINGS


def random_blocks(rows: int, columns: int, seed: int, *, binades: int = 40) -> np.ndarray:
    """(rows, columns) float32. Normal values, each row times a power of two of its own, with a few zeros."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((rows, columns), dtype=np.float32)
    values = np.ldexp(values, generator.integers(-binades, binades + 1, (rows, 1)).astype(np.int32))
    values[generator.random((rows, columns)) < 0.02] = 0.0
    return values.astype(np.float32)


def random_bits(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """uint8 of that shape."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def scale_random_bits(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """int32 of that shape, 31 random bits each."""
    return np.random.default_rng(seed).integers(0, 1 << 31, shape, dtype=np.int64).astype(np.int32)


def needs_scale_bits(scheme: Scheme) -> bool:
    return scheme.scale_rule is ScaleRule.STOCHASTIC


SHAPES: tuple[tuple[int, ...], ...] = (
    (1, 1),
    (0, 1),
    (1, 0),
    (0, 0),
    (3, 1),
    (1, 2),
    (5, 3),
    (2, 3, 1),
    (1, 1, 1, 2),
    (7, 5),
    (129, 3),
    (2, 0, 1),
)
"""Leading dimensions and, last, the number of blocks in a row."""

SWIZZLE_SHAPES: tuple[tuple[int, int], ...] = (
    *((1, 1), (1, 4), (2, 5), (31, 3), (32, 4), (33, 4), (127, 7), (128, 4), (128, 8)),
    *((129, 9), (255, 13), (257, 16), (384, 2), (0, 4), (3, 0)),
)
"""Shape classes of scale matrices: rows and columns below, at and above the 128 × 4 tile."""

WIDE_SWIZZLE_SHAPES: tuple[tuple[int, int], ...] = ((3, 1100), (130, 1030))
"""Scale matrices of more columns than one program of a kernel takes; too wide to quantise for."""
