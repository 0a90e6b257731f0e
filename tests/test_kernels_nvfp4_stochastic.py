"""Stochastic rounding in the NVFP4 kernel: every random byte, and the bytes that a seed stands for."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from lowbit.formats import E2M1
from lowbit_kernels import _launch, quantize_nvfp4

from .nvfp4_checks import DTYPES, SCHEMES, check, codes, e4m3, on, raw, with_pin

RNG = np.random.default_rng(20240614)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_random_byte(scheme):
    """Of 256 random bytes exactly floor(256 p) round away from zero; representable values never move."""
    values = np.array([0.0, 0.1, -0.3, 0.5, 1.0, 1.1, -1.9, 2.0, 2.7, 3.0, 3.1, 4.0, 4.5, 5.999, -6.0, 6.0])
    x = on(np.tile(values, (256, 1)), torch.float32)
    random = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 16, axis=1)
    options = {} if scheme == "nvfp4_one_level" else {"tensor_scale": 1.0}
    packed, scales, _ = check(x, f"{scheme}+stochastic", random_bits=random, **options)
    assert set(raw(scales).reshape(-1).tolist()) == {0x38}
    magnitudes = codes(packed) & 7
    for lane, value in enumerate(np.abs(values.astype(np.float32))):
        low = max(m for m in range(8) if E2M1.magnitudes[m] <= Fraction(float(value)))
        step = E2M1.magnitudes[min(low + 1, 7)] - E2M1.magnitudes[low]
        p = (Fraction(float(value)) - E2M1.magnitudes[low]) / step if step else Fraction(0)
        assert (magnitudes[:, lane] == low + 1).sum() == int(p * 256), value
        assert ((magnitudes[:, lane] == low) | (magnitudes[:, lane] == low + 1)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_seed_decides_the_random_bits(dtype):
    x = on(RNG.normal(size=(3, 7, 48)), dtype)
    for seed in (0, 1, 2**32 - 1, 2**32, 1234567890123456789, 2**63 - 1):
        first = check(x, "nvfp4+stochastic", seed=seed)
    again = quantize_nvfp4(x.transpose(0, 1).contiguous().transpose(0, 1), rounding="stochastic", seed=2**63 - 1)
    assert np.array_equal(raw(first[0]), raw(again[0]))  # strides do not count
    other = quantize_nvfp4(x, rounding="stochastic", seed=5)
    assert not np.array_equal(raw(first[0]), raw(other[0]))
    negative = quantize_nvfp4(x, rounding="stochastic", seed=-1)
    assert np.array_equal(raw(negative[0]), raw(quantize_nvfp4(x, rounding="stochastic", seed=2**64 - 1)[0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_seeded_bits_in_any_layout(scheme, dtype, monkeypatch):
    """NaN, infinities, zeros, subnormals; rows apart, columns apart, words not aligned, one block, swizzled; by one
    program and by several with offsets in 64 bits."""
    values = RNG.normal(size=(16, 83)) * 2.0 ** RNG.integers(-30, 10, (16, 83))
    values[0, ::7], values[1, ::5], values[2, ::3] = np.nan, -np.inf, -0.0
    big = on(values, dtype)
    views = [big[:, :64], big[:, 1:65], big[:, 2:66], big[::3, :80], big.t()[:, :16], big[:, :80].contiguous()]
    views += [big[:, :32:2], big.reshape(-1)[3 : 3 + 96].view(6, 16), big[0, :16]]
    for several in (False, True):
        if several:
            monkeypatch.setattr(_launch, "_ELEMENTS_PER_PROGRAM", 256)
            monkeypatch.setattr(_launch, "INT32_MAX", 0)
        for x in views:
            check(x, f"{scheme}+stochastic", seed=2**35 + 1)
        check(views[0], f"{scheme}+stochastic", seed=2**35 + 1, swizzle=True)


def test_stochastic_breakpoints():
    """y = (low + step * j / 256) * s and the y next to it: the 256ths are those of RN32(y / s)."""
    steps = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    grid = np.concatenate([a + (b - a) * np.arange(256) / 256 for a, b in itertools.pairwise(steps)])
    for scale in (0x03, 0x3B, 0x45, 0x7E):
        patterns = (grid * e4m3(scale)).astype(np.float32).view(np.int32)
        near = np.abs(patterns[:, None] + np.arange(-1, 2, dtype=np.int32)).reshape(-1).view(np.float32)
        x = with_pin(near, 6 * e4m3(scale))
        random = RNG.integers(0, 256, x.shape).astype(np.uint8)
        check(on(x), "nvfp4+stochastic", tensor_scale=1.0, random_bits=random)
