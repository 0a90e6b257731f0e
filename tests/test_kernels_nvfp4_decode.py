"""Decoding NVFP4: every scale byte and code under every kind of factor, and the factor's reciprocal."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lowbit import packing
from lowbit_kernels import dequantize_nvfp4, quantize_nvfp4, recip_scale

from .nvfp4_checks import DEVICE, DTYPES, check_decoded, on, raw

RNG = np.random.default_rng(20240615)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
BOUND = 2.0**90
FACTORS = [None, 1.0, 3.0, 0.1, 448.0, -2.5, 0.0, math.inf, -math.inf, math.nan, 1e-45, 2.0**-126, 2.0**-101]
FACTORS += [2.0**-100, 1e-10, BOUND, BOUND * (1 + 2.0**-23), 1e38, -1e-39]


def quantized() -> tuple[torch.Tensor, ...]:
    return quantize_nvfp4(on(RNG.normal(size=(5, 48)), torch.bfloat16))


@pytest.mark.parametrize("shift", [0, 1])
@EVERY_DTYPE
def test_a_given_buffer_for_values(dtype, shift):
    packed, scales, g = quantized()
    expected = dequantize_nvfp4(packed, scales, g, dtype=dtype)
    store = torch.full((16 + expected.numel() + 16,), 3.0, dtype=dtype, device=DEVICE)
    out = store[16 + shift : 16 + shift + expected.numel()].view(5, 48)
    assert dequantize_nvfp4(packed, scales, g, dtype=dtype, out=out) is out
    assert np.array_equal(raw(out), raw(expected))
    assert (store[: 16 + shift] == 3).all()
    assert (store[16 + shift + expected.numel() :] == 3).all()


@pytest.mark.parametrize("factor", FACTORS, ids=str)
@EVERY_DTYPE
def test_every_scale_byte_and_code_decodes(factor, dtype):
    codes = on(np.tile(np.arange(16, dtype=np.uint8), (256, 1)))
    scales = on(np.arange(256, dtype=np.uint8)[:, None])
    g = None if factor is None else on(np.array([factor]), torch.float32)
    check_decoded(packing.pack_nibbles(codes), scales, g, dtype)
    misaligned = torch.empty(256 * 16 + 1, dtype=dtype, device=DEVICE)[1:].view(256, 16)
    check_decoded(packing.pack_nibbles(codes), scales, g, dtype, out=misaligned)


def test_decoding_accepts_numbers_and_typed_bytes():
    packed, scales, g = quantized()
    expected = dequantize_nvfp4(packed, scales, g)
    assert torch.equal(dequantize_nvfp4(packed.view(torch.uint8), scales.view(torch.uint8), g.item()), expected)
    assert torch.equal(dequantize_nvfp4(packed.view(torch.uint8)[::2], scales[::2], g), expected[::2])


def test_the_decode_factor():
    for g in (1.0, 3.0, 448.0, 1e-40, 1e38):
        with np.errstate(over="ignore"):
            expected = np.float32(1) / np.float32(g)
        for given in (g, on(np.array([g]), torch.float32), on(np.array([[g]]), torch.float32)):
            factor = recip_scale(given, DEVICE)
            assert (factor.dtype, tuple(factor.shape), factor.device.type) == (torch.float32, (1,), DEVICE.type)
            assert raw(factor)[0] == expected.view(np.uint32)
