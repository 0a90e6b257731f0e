"""Exactly summable operands of a matmul: one right bit pattern of every result, whatever the order of accumulation.

`lowbit.cases.summability` states the property, proves that it makes the result unique, and checks it; this module draws
operands that have it and are rich all the same: both signs, all codes, scales of many significands and exponents.

A scale is σ·2^x, σ odd with at most four bits (E4M3), or a power of two (E8M0); a value is c·σ·2^(x - 1),
c ∈ {0, ±1, ±2, ±3, ±4, ±6, ±8, ±12}. The exponent x is e[row] + f[block] in A and e[row] - f[block] in B: f cancels in
every product, the quantum is q = 2^(e_a + e_b - 2), and scales vary over the range of the format at no cost in bits.
Neighbouring rows have different e and neighbouring blocks different f, so with an odd σ no scale equals its
neighbour; an exchange of rows, blocks or operands shows.

What is left is Σ c·c'·σ·σ' < 2^24. For small K any σ will do. For a larger one A has all of them in one half of the
blocks, chosen at random, and B few, the other way round in the other half; beyond `LARGEST` terms codes are set to 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.cases.summability import Floats, Verdict, is_exactly_summable, values
from lowbit.errors import ArgumentError, ShapeError
from lowbit.schemes import Encoded, Scheme

__all__ = ["Operands", "Verdict", "exactly_summable", "is_exactly_summable"]

LARGEST = 8192
"""K up to which no code is set to 0 on purpose."""


class Operands(NamedTuple):
    """What a matmul takes: A (M, K) and B (N, K), of which A · Bᵀ is asked. NumPy, scales row-major."""

    a: Encoded
    b: Encoded


class _Span(NamedTuple):
    """Where exponents lie: at `centre` + row_step·i ± block_step·j, i and j around 0, so many places each."""

    centre: int
    row_step: int
    row_places: int
    block_step: int
    block_places: int


_SPANS = {
    "nvfp4": _Span(centre=-3, row_step=1, row_places=3, block_step=1, block_places=11),  # σ·2^x: 2^-9 to 120
    "mxfp4": _Span(centre=-5, row_step=5, row_places=3, block_step=5, block_places=5),  # 2^-20 to 2^14
}

_ODD = (1, 3, 5, 7, 9, 11, 13, 15)


def exactly_summable(
    scheme: Scheme,
    rows: int,
    columns: int,
    terms: int,
    seed: int,
    *,
    tensor_scales: tuple[float | None, float | None] = (8.0, 0.5),
) -> Operands:
    """Draws exactly summable operands. All 16 codes occur and, under NVFP4, blocks with the scale byte 0.

    Args:
      scheme: of the family nvfp4 or mxfp4.
      rows, columns, terms: M, N and K, each at least 0; K a multiple of the block.
      seed: the same gives the same operands.
      tensor_scales: g of A and of B, None for none; MXFP4 has none whatever stands here. Others than powers of two
        leave the result unique by the formula only, see `is_exactly_summable`.

    Returns:
      Operands of which `is_exactly_summable` holds.

    Raises:
      ShapeError: K is not a multiple of the block.
      ArgumentError: another family; a tensor scale that is not a finite number above 0.
    """
    if scheme.family not in _SPANS:
        raise ArgumentError(f"scheme: got {scheme.name} of family {scheme.family!r}, want {' or '.join(_SPANS)}")
    if terms % scheme.block:
        raise ShapeError(f"terms: got {terms}, want a multiple of {scheme.block}, the block of {scheme.name}")
    generator = np.random.default_rng([seed, rows, columns, terms])
    blocks = terms // scheme.block
    span = _SPANS[scheme.family]
    rich, poor = (np.array(choices) for choices in _significands(scheme, terms))
    b_is_rich = generator.permutation(blocks) % 2 == 0
    f = span.block_step * _restless(generator, blocks, span.block_places)
    sides = []
    for count, given, is_rich, shift in (
        (rows, tensor_scales[0], ~b_is_rich, f),
        (columns, tensor_scales[1], b_is_rich, -f),
    ):
        e = span.row_step * _restless(generator, count, span.row_places)
        x = span.centre + e[:, None] + shift[None, :]
        sigma = np.where(is_rich[None, :], generator.choice(rich, x.shape), generator.choice(poor, x.shape))
        scales = _scale_bytes(scheme, np.ldexp(sigma.astype(np.float64), x))
        if scheme.family == "nvfp4":
            scales[generator.random(scales.shape) < 1 / 64] = 0
        g = None if given is None or scheme.family == "mxfp4" else _tensor_scale(given)
        sides.append(Encoded(_codes(generator, count, terms), scales, g))
    drawn = Operands(*sides)
    verdict = is_exactly_summable(drawn.a, drawn.b, scheme, any_factor=True)
    assert verdict, f"{scheme.name}, {rows} x {columns} x {terms}, seed {seed}: {verdict.reason}"
    return drawn


def _significands(scheme: Scheme, terms: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """σ of the side that is rich in a block, and of the other.

    The cheap condition sums, over the two kinds of blocks, mean·greatest·12 of codes of mean 4.5: with the choices
    here at most 0.8 of 2^24, and rows differ from one another by some hundredths.
    """
    if scheme.family == "mxfp4":
        return (1, 2, 4, 8, 16), ((1, 2, 4, 8) if terms <= 2048 else (1, 2))
    return _ODD, (_ODD if terms <= 1024 else _ODD[:4] if terms <= 4096 else _ODD[:2])


def _restless(generator: np.random.Generator, count: int, places: int) -> npt.NDArray[np.int64]:
    """(count,) integers around 0 that take so many values, each different from the one before."""
    return np.cumsum(generator.integers(1, places, count)) % places - places // 2


def _scale_bytes(scheme: Scheme, wanted: Floats) -> npt.NDArray[np.uint8]:
    """The bytes of values that the format has."""
    ascending = values(scheme.scale)[: scheme.scale.max_magnitude + 1]
    found = np.searchsorted(ascending, wanted)
    assert (ascending[np.minimum(found, ascending.size - 1)] == wanted).all(), "a scale outside the format"
    return found.astype(np.uint8)


def _codes(generator: np.random.Generator, count: int, terms: int) -> npt.NDArray[np.uint8]:
    """Every code alike; beyond `LARGEST` terms about that many a row, the others ±0."""
    codes = generator.integers(0, 16, (count, terms), dtype=np.uint8)
    if terms > LARGEST:
        codes[generator.random(codes.shape, dtype=np.float32) >= LARGEST / terms] &= 8
    return codes


def _tensor_scale(given: float) -> np.float32:
    if not 0 < np.float32(given) < np.inf:
        raise ArgumentError(f"tensor_scales: got {given}, want finite numbers above 0")
    return np.float32(given)
