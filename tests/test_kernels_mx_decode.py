"""Decoding MXFP4: every scale byte and packed byte, whatever the offsets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_calls import DEVICE, pattern

from lowbit.formats import E2M1
from lowbit_kernels import dequantize_mxfp4

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def every_byte() -> tuple[torch.Tensor, torch.Tensor]:
    """Packed (256, 256) and scales (256, 16): every byte under every scale, in another place from row to row."""
    byte = (np.arange(256)[None, :] + np.arange(256)[:, None]) % 256
    scales = np.broadcast_to(np.arange(256)[:, None], (256, 16))
    return tuple(torch.from_numpy(part.astype(np.uint8)).to(DEVICE) for part in (byte, scales))


def right(packed: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """value * 2**(byte - 127), exact in binary64; to binary32, where it is exact or overflows, then rounded once."""
    codes = np.stack([packed.cpu().numpy() & 15, packed.cpu().numpy() >> 4], axis=-1).reshape(256, 512)
    magnitudes = np.array([float(value) for value in E2M1.magnitudes])
    values = np.copysign(magnitudes[codes & 7], np.where(codes & 8, -1.0, 1.0))
    byte = np.repeat(scales.cpu().numpy().astype(np.int64), 32, axis=1)
    with np.errstate(over="ignore"):
        exact = np.where(byte == 255, np.nan, np.ldexp(values, byte - 127)).astype(np.float32)
    return torch.from_numpy(exact).to(dtype)


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """NaN where there is to be one, whatever its bits; -0 is not +0."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    nan = expected.isnan().numpy()
    np.testing.assert_array_equal(actual.isnan().cpu().numpy(), nan)
    np.testing.assert_array_equal(np.where(nan, 0, pattern(actual)), np.where(nan, 0, pattern(expected)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_scale_and_byte(dtype):
    """As stored, and into buffers of any offset, beside which nothing is written."""
    packed, scales = every_byte()
    expected = right(packed, scales, dtype)
    same_bits(dequantize_mxfp4(packed, scales, dtype=dtype), expected)
    for shift in (1, 2):  # elements: no words, and words that are not 16 bytes as stored
        store = torch.full((shift + expected.numel() + 8,), 3.0, dtype=dtype, device=DEVICE)
        out = store[shift : shift + expected.numel()].view(expected.shape)
        same_bits(dequantize_mxfp4(packed, scales, dtype=dtype, out=out), expected)
        assert (store[:shift] == 3).all()
        assert (store[shift + expected.numel() :] == 3).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_of_any_offset(dtype):
    packed, scales = every_byte()
    expected = right(packed, scales, dtype)
    for shift in (1, 2, 4):
        store = torch.zeros(packed.numel() + 8, dtype=torch.uint8, device=DEVICE)
        view = store[shift : shift + packed.numel()].view(packed.shape)
        view.copy_(packed)
        same_bits(dequantize_mxfp4(view, scales, dtype=dtype), expected)


@pytest.mark.parametrize("blocks", [1, 3, 4, 511, 513])
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_any_number_of_blocks(dtype, blocks):
    packed, scales = every_byte()
    expected = right(packed, scales, dtype).reshape(-1, 32)
    result = dequantize_mxfp4(packed.view(-1, 16)[:blocks], scales.reshape(-1, 1)[:blocks], dtype=dtype)
    same_bits(result, expected[:blocks])
