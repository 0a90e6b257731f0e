"""Parts of stored weights: scales as bit patterns, at a format's edges or of every kind, and terms that are added."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.formats import BINARY16, BINARY32, FloatFormat

Ints = npt.NDArray[np.int64]


def as_stored(patterns: Any, fmt: FloatFormat) -> npt.NDArray[Any]:
    """Bit patterns as the array that stores them."""
    if fmt is BINARY32:
        return np.asarray(patterns).astype(np.uint32).view(np.float32)
    array = np.asarray(patterns).astype(np.uint16)
    return array.view(np.float16) if fmt is BINARY16 else array


def numbered(shape: tuple[int, ...], fmt: FloatFormat) -> Ints:
    """Patterns from 1 upwards that say their place: exact, no two neighbours alike, apart by places of few bits."""
    count = math.prod(shape)
    one = fmt.bias << fmt.mantissa_bits
    step = 1 << max(fmt.mantissa_bits - 12, 0)
    return (one + np.arange(count) % 1021 * step).reshape(shape)


def special_patterns(fmt: FloatFormat, *, binade_step: int = 1) -> Ints:
    """Scales at the edges of a format, and three of every so-many-th binade, both signs; NaN and Inf among them."""
    normal, one, infinity = 1 << fmt.mantissa_bits, fmt.bias << fmt.mantissa_bits, fmt.max_magnitude + 1
    edges = [0, 1, 2, normal - 1, normal, normal + 1, one - 1, one, one + 1, infinity - 1]
    edges += [infinity, infinity + 1, infinity | normal >> 1, fmt.magnitude_mask]
    edges += [normal >> k for k in range(1, 4)]  # subnormal powers of two
    binades = np.arange(1, infinity >> fmt.mantissa_bits, binade_step) << fmt.mantissa_bits
    inside = [binades, binades + normal // 3, binades + normal - 1]
    magnitudes = np.unique(np.concatenate([np.array(edges), *inside]))
    return np.concatenate([magnitudes, magnitudes | fmt.sign_mask])


def random_patterns(shape: tuple[int, ...], fmt: FloatFormat, generator: np.random.Generator) -> Ints:
    """Scales of every kind: three quarters of real size, the others subnormal, zero, or any pattern at all."""
    exponents = generator.integers(fmt.bias - 10, fmt.bias + 3, shape) << fmt.mantissa_bits
    mantissas = generator.integers(0, 1 << fmt.mantissa_bits, shape)
    signs = generator.choice([0, 0, 0, fmt.sign_mask], shape)
    real = exponents | mantissas | signs
    others = [mantissas | signs, signs, generator.integers(0, 1 << fmt.bits, shape)]
    found = np.choose(np.minimum(generator.integers(0, 12, shape), 3), [*others, real]).astype(np.int64)
    found.reshape(-1)[:1] = real.reshape(-1)[:1]  # a weight with one scale is to have one that shows its codes
    return found


def sparse_entries(channels: int, length: int, generator: np.random.Generator, share: float = 0.05) -> tuple[Any, ...]:
    """A CSR term of (channels, length): columns in no order within a channel, channels without any."""
    chosen = generator.random((channels, length)) < share
    chosen[:: max(channels // 3, 2)] = False
    starts = np.concatenate([[0], chosen.sum(1).cumsum()]).astype(np.int32)
    places = [generator.permutation(np.flatnonzero(row)) for row in chosen]
    flat = np.concatenate([*places, np.zeros(0, np.int64)]).astype(np.int32)
    return starts, flat, as_stored(random_patterns(flat.shape, BINARY32, generator), BINARY32)


def full_row_entries(channels: int, length: int, generator: np.random.Generator, count: int = 3) -> tuple[Any, ...]:
    """Some output channels, in no order, and what is added to them."""
    indices = generator.permutation(channels)[:count].astype(np.int32)
    return indices, as_stored(random_patterns((length, len(indices)), BINARY32, generator), BINARY32)
