"""The rounding core of the bit-level reference: casts to IEEE formats, and the arithmetic NumPy is trusted with."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from lowbit.formats import BFLOAT16, BINARY16, BINARY32
from lowbit.references.bits_rounding import narrow

INF = float("inf")


@pytest.mark.parametrize(("target", "dtype"), [(BFLOAT16, ml_dtypes.bfloat16), (BINARY16, np.float16)])
def test_narrowing_to_16_bits_against_other_casts(target, dtype):
    """Every binary16 midpoint ± 1 ulp and a million patterns, ties to even, gradual underflow, overflow to Inf."""
    grid = np.arange(1 << 15, dtype=np.uint16)
    middles = (grid.astype(np.uint32) << 16 | 0x8000) if target is BFLOAT16 else None
    if middles is None:
        values = grid[:0x7C00].view(np.float16).astype(np.float64)
        middles = ((values[1:] + values[:-1]) / 2).astype(np.float32).view(np.uint32)
    spread = np.arange(0, 1 << 32, 4099, dtype=np.uint64).astype(np.uint32)
    pattern = np.concatenate([middles - 1, middles, middles + 1, middles | 0x80000000, spread])
    x = pattern.view(np.float32)
    with np.errstate(all="ignore"):
        expected = x.astype(dtype).view(np.uint16)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(narrow(x, target)[number], expected[number])
    assert (narrow(x, target)[~number] == target.nan_magnitude).all()


def test_narrowing_doubles_to_binary32_against_numpy():
    rng = np.random.default_rng(4)
    x = rng.integers(0, 1 << 64, 200_000, dtype=np.uint64).view(np.float64)
    near = rng.standard_normal(200_000) * 2.0 ** rng.integers(-160, 130, 200_000)
    x = np.concatenate([x, near, [0.0, -0.0, INF, -INF, 2.0**-150, (1 + 2.0**-23) * 2.0**-150]])
    x = x[~np.isnan(x)]
    with np.errstate(all="ignore"):
        expected = x.astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(narrow(x, BINARY32), expected)


def test_numpy_keeps_subnormals():
    """RN32 steps of the block schemes are float32 operations of NumPy: gradual underflow, correctly rounded."""
    tiny = np.full(64, 3, dtype=np.uint32).view(np.float32)
    assert ((tiny * np.float32(0.5)).view(np.uint32) == 2).all(), "1.5 is a tie, and 2 is even"
    assert ((tiny / np.float32(6)).view(np.uint32) == 0).all(), "0.5 is a tie, and 0 is even"
    x, y = np.random.default_rng(5).standard_normal((2, 1000), dtype=np.float32)
    exact = [Fraction(float(a)) / Fraction(float(b)) for a, b in zip(x, y, strict=True)]
    for quotient, value in zip((x / y).tolist(), exact, strict=True):
        ulp = Fraction(float(np.spacing(np.float32(abs(quotient)))))
        assert abs(Fraction(quotient) - value) <= ulp / 2
