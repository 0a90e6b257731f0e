"""Inputs that tell schemes and dialects apart: ties, breakpoints of the scale, zeros, NaN, subnormals, order, division.

A probe is one tensor, each of its blocks made to show one choice. Where a factor is computed from the tensor, an anchor
makes it 1 in the first probe, others have other factors, and what spoils a factor stands in a tensor of its own.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from lowbit.cases import blocks as cases
from lowbit.formats import BINARY32
from lowbit.rules import TensorScaleRule
from lowbit.schemes import Encoded, Scheme

ANCHOR = 2688.0
"""The amax of a tensor whose factor is 1: 6 · 448."""

ROW = 8
"""Blocks a row."""

EXPONENTS = (-127, -126, -125, -124, -60, -10, -9, -2, -1, 0, 1, 2, 3, 5, 7, 8, 40, 124, 125, 126, 127)
"""Binades of amax: at both clamps, around those of E4M3, and between."""

AMAX = (6.0, 7.0, 5.3125, 11.25, 0.0111)
"""Amax of tensors whose factor is not 1."""

TIES, SCALE, ZEROS, NONFINITE, SIGNED, RANGE, ORDER, DIVISION, FACTOR = (
    *("ties", "scale", "zero block", "NaN and Inf", "-0", "range", "order", "division", "tensor scale"),
)
"""What a block is there for."""


@dataclass(frozen=True)
class Probe:
    """Attributes: x (rows, columns) float32, whole blocks; purposes, one a block."""

    x: np.ndarray
    purposes: tuple[str, ...]


def probes(scheme: Scheme, seed: int = 0) -> tuple[Probe, ...]:
    """The probes of a scheme; the first holds most blocks."""
    generator = np.random.default_rng([seed, scheme.block])
    computed = scheme.tensor_scale in cases.GIVEN
    parts = {
        TIES: _ties(scheme),
        SCALE: _scales(scheme),
        ZEROS: _zeros(scheme),
        SIGNED: _signed(scheme),
        RANGE: _range(scheme),
        ORDER: _order(scheme, generator),
    }
    if scheme.scale.mantissa_bits:
        parts[DIVISION] = _division(scheme, generator)
    if not computed:
        return (_probe({**parts, NONFINITE: _nonfinite(scheme)}, scheme),)
    anchor = np.zeros((1, scheme.block), np.float32)
    anchor[0, 0] = ANCHOR
    kept = {name: part[(np.abs(part) <= ANCHOR).all(axis=1)] for name, part in parts.items()}
    found = [_probe({FACTOR: anchor, **kept}, scheme)]
    found += [_probe({FACTOR: _tensor(scheme, amax, generator)}, scheme) for amax in AMAX]
    ordinary = _order(scheme, generator)[:3]
    found += [_probe({ORDER: ordinary, NONFINITE: row[None]}, scheme) for row in _nonfinite(scheme)]
    return (*found, _probe({ZEROS: _zeros(scheme)}, scheme))


def decoded(scheme: Scheme, seed: int = 0) -> Encoded:
    """Every code under every scale byte, scale bytes in no order: codes (32, P), scales (32, P // block)."""
    generator = np.random.default_rng([seed, scheme.block])
    codes = np.arange(1 << scheme.element.bits, dtype=np.uint8)
    each = -(-codes.size // scheme.block)
    scales = generator.permutation(np.repeat(np.arange(256, dtype=np.uint8), each))
    turns = np.zeros(256, np.int64)
    blocks = np.empty((scales.size, scheme.block), np.uint8)
    for block, scale in zip(blocks, scales, strict=True):
        start = turns[scale] * scheme.block
        block[:] = np.take(codes, np.arange(start, start + scheme.block), mode="wrap")
        turns[scale] += 1
    return Encoded(blocks.reshape(32, -1), scales.reshape(32, -1))


def _probe(parts: dict[str, np.ndarray], scheme: Scheme) -> Probe:
    """A tensor of the parts' blocks, its last row filled up with the last block."""
    blocks = np.concatenate(list(parts.values()))
    purposes = [name for name, part in parts.items() for _ in part]
    width = ROW if len(blocks) >= ROW else 1
    missing = -len(blocks) % width
    blocks = np.concatenate([blocks, np.repeat(blocks[-1:], missing, axis=0)])
    return Probe(blocks.reshape(-1, width * scheme.block), (*purposes, *[purposes[-1]] * missing))


def _ties(scheme: Scheme) -> np.ndarray:
    """Every point at which an element rule changes its mind, ± 1 ulp, beside a pin of scale 1."""
    values = cases.floats(cases.boundary_patterns(scheme.element))
    return cases.pinned_blocks(values[np.isfinite(values)], scheme, cases.pins(scheme)[0], rotate=True)


def _scales(scheme: Scheme) -> np.ndarray:
    """Turning points of the scale rules as amax, with a smaller element beside."""
    mantissas = np.array([0, 1, 0x3504F3, 0x3504F4, 0x3FFFFF, 0x400000, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF])
    exponents = np.array([e for e in EXPONENTS if e > -127]) + BINARY32.bias
    points = [((exponents[:, None] << 23) + mantissas).reshape(-1), 1 << np.array([0, 5, 21, 22]), [0x600000, 0x7FFFFF]]
    if scheme.scale.mantissa_bits:
        grid = [float(v) for v in scheme.scale.magnitudes]
        middles = np.array([(a + b) / 2 for a, b in itertools.pairwise(grid)])[::3]
        centre = cases.patterns((middles * 6).astype(np.float32)).astype(np.int64)
        points.append((centre[:, None] + np.arange(-1, 2)).reshape(-1))
    patterns = np.concatenate(points).astype(np.uint32)
    blocks = cases.amax_blocks(patterns, scheme)
    rows = np.arange(len(blocks))
    blocks[rows, (rows + 1) % scheme.block] = cases.floats(patterns) * np.float32(0.3)
    return blocks


def _zeros(scheme: Scheme) -> np.ndarray:
    """Blocks of +0, of -0, of both."""
    plus, minus = np.zeros(scheme.block, np.float32), np.full(scheme.block, -0.0, np.float32)
    return np.stack([plus, minus, np.where(np.arange(scheme.block) % 3 == 0, minus, plus)])


def _signed(scheme: Scheme) -> np.ndarray:
    """±0 and what rounds to ±0, beside a pin."""
    block = np.zeros((1, scheme.block), np.float32)
    block[0, :7] = 6, -0.0, 0.0, -(2.0**-60), 2.0**-60, -1e-40, 1e-40
    return block


def _range(scheme: Scheme) -> np.ndarray:
    """Ramps at both ends of binary32, where scales are clamped, subnormal, or as great as can be."""
    ramp = np.linspace(-0.97, 1, scheme.block)
    tops = [2.0**e * m for e in (-149, -140, -130, -127, -126, -125, -124) for m in (1, 1.75)]
    tops += [3.4e38, 1.75 * 2.0**127, 1.5 * 2.0**126, 0.0117, 0.0059, 2.0**-9, 2600.0]
    return np.stack([(ramp * top).astype(np.float32) for top in tops])


def _order(scheme: Scheme, generator: np.random.Generator) -> np.ndarray:
    """Values of the element's grid and random ones, no two neighbours alike, each block of another size."""
    grid = np.array([float(v) for v in scheme.element.magnitudes])
    rows = 24
    chosen = generator.permuted(np.resize(np.concatenate([grid, -grid]), (rows, scheme.block)), axis=1)
    exact = generator.standard_normal((rows, scheme.block))
    sizes = 2.0 ** generator.permutation(np.arange(rows) % 9 - 4)[:, None]
    return (np.where(np.arange(rows)[:, None] % 2, chosen, exact) * sizes).astype(np.float32)


def _nonfinite(scheme: Scheme) -> np.ndarray:
    """NaN and Inf of both signs among ordinary values, alone, together."""
    ordinary = np.linspace(-5.5, 6.0, scheme.block, dtype=np.float32)
    rows = []
    for value in cases.floats([0x7FC00000, 0xFFC00000, 0x7F800000, 0xFF800000]):
        row = ordinary.copy()
        row[1] = value
        rows.append(row)
    both, alone = ordinary.copy(), np.zeros(scheme.block, np.float32)
    both[:2], alone[1] = (np.nan, np.inf), np.nan
    return np.stack([*rows, both, alone])


def _division(scheme: Scheme, generator: np.random.Generator) -> np.ndarray:
    """For every second scale: thresholds of the element times the scale, ± 1 ulp, and random bfloat16 values."""
    grid = np.array([float(v) for v in scheme.element.magnitudes])
    middles = (grid[1:] + grid[:-1]) / 2
    rows = []
    for scale in [float(v) for v in scheme.scale.magnitudes][8::2]:
        centre = cases.patterns((middles * scale).astype(np.float32)).astype(np.int64)
        near = generator.choice((centre[:, None] + np.arange(-1, 2)).reshape(-1), scheme.block - 1, replace=False)
        rows.append(np.concatenate([[6 * scale], cases.floats(near)]).astype(np.float32))
    return np.stack(rows)


def _tensor(scheme: Scheme, amax: float, generator: np.random.Generator) -> np.ndarray:
    """bfloat16 values up to an amax, each block with one of its own; blocks of zeros among them."""
    rows = 48
    values = generator.uniform(-1, 1, (rows, scheme.block)) * generator.uniform(0, amax, (rows, 1))
    values[0, 0] = amax
    patterns = cases.patterns(values.astype(np.float32)) & np.uint32(0xFFFF0000)
    blocks = cases.floats(patterns).copy()
    blocks[0, 0], blocks[-1], blocks[-2] = amax, 0.0, -0.0
    return blocks


def factored(scheme: Scheme) -> tuple[float | None, ...]:
    """Tensor scales under which to decode: none, one, an inexact one, those that put quotients beside ties."""
    takes = scheme.tensor_scale not in (TensorScaleRule.NONE, TensorScaleRule.GLOBAL_SCALE)
    return (None, 1.0, 0.7, *cases.BESIDE_TIES) if takes else (None,)
