"""Decoding NVFP4: every scale byte and code under every kind of factor, and the factor's reciprocal."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lowbit import packing
from lowbit.cases.blocks import BESIDE_TIES
from lowbit_kernels import _launch, _nvfp4_launch, dequantize_nvfp4, quantize_nvfp4, recip_scale

from .nvfp4_checks import DEVICE, DTYPES, check_decoded, on, raw

RNG = np.random.default_rng(20240615)
TABLE, OTHER = "dequantize_table_kernel", "dequantize_kernel"
BY_TABLE = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
BOUND = 2.0**90
FACTORS = [None, 1.0, 3.0, 0.1, 448.0, -2.5, 0.0, math.inf, -math.inf, math.nan, 1e-45, 2.0**-126, 2.0**-101]
FACTORS += [2.0**-100, 1e-10, BOUND, BOUND * (1 + 2.0**-23), 1e38, -1e-39, *BESIDE_TIES]


def every_code() -> tuple[torch.Tensor, torch.Tensor]:
    """Packed and scales of 256 blocks, one a scale byte, that hold each code, in another place from block to block."""
    places = np.arange(16)[None, :] + np.arange(256)[:, None]
    return packing.pack_nibbles(on((places % 16).astype(np.uint8))), on(np.arange(256, dtype=np.uint8)[:, None])


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
def test_every_scale_byte_and_code_decodes(factor, dtype, launched):
    """By the kernel that such a buffer gets, and by the one for any other."""
    packed, scales = every_code()
    g = None if factor is None else on(np.array([factor]), torch.float32)
    check_decoded(packed, scales, g, dtype)
    misaligned = torch.empty(256 * 16 + 1, dtype=dtype, device=DEVICE)[1:].view(256, 16)
    check_decoded(packed, scales, g, dtype, out=misaligned)
    words = torch.empty(256 * 16 + 2, dtype=dtype, device=DEVICE)[2:].view(256, 16)
    check_decoded(packed, scales, g, dtype, out=words)
    by_table = dtype != torch.float32 and torch.version.hip is None
    assert launched == [TABLE if by_table else OTHER, OTHER, OTHER]


@pytest.mark.parametrize("factor", FACTORS, ids=str)
@BY_TABLE
def test_every_scale_byte_and_code_decodes_by_the_permutations(factor, dtype, ptx, launched):
    """The interpreter looks its table up by itself: here it has the instructions that a GPU runs."""
    g = None if factor is None else on(np.array([factor]), torch.float32)
    check_decoded(*every_code(), g, dtype)
    assert launched == [TABLE]
    assert DEVICE.type == "cuda" or any("prmt" in text for text in ptx)


@pytest.mark.parametrize("factor", [None, 0.37, -3.0], ids=str)
@BY_TABLE
def test_tiles_and_chunks_that_are_not_full(factor, dtype, ptx, monkeypatch):
    """127 blocks of 16 in programs of 64 words, decoded by 32 where each element is divided, with or without PTX."""
    codes, scales = RNG.integers(0, 256, (127, 8), dtype=np.uint8), RNG.integers(0, 256, (127, 1), dtype=np.uint8)
    g = None if factor is None else on(np.array([factor]), torch.float32)
    share = 1 if _launch.INTERPRETED else _nvfp4_launch._DECODE_TABLE.share
    monkeypatch.setattr(_launch, "_ELEMENTS_PER_PROGRAM", 64 * 8 * share)
    monkeypatch.setattr(_nvfp4_launch, "_TABLE_CHUNK", 32)
    store = torch.full((127 * 16 + 16,), 3.0, dtype=dtype, device=DEVICE)
    for _ in range(2):
        check_decoded(on(codes), on(scales), g, dtype, out=store[: 127 * 16].view(127, 16))
        assert (store[127 * 16 :] == 3).all()
        monkeypatch.setattr(_launch, "takes_ptx", lambda tensor: DEVICE.type == "cuda")


@BY_TABLE
def test_where_the_bytes_begin_decides_the_kernel(dtype, launched):
    """The table's kernel loads words, at multiples of four bytes; from elsewhere the other one reads bytes."""
    packed, scales, g = quantized()
    packed, scales = packed.view(torch.uint8), scales.view(torch.uint8)
    expected = dequantize_nvfp4(packed, scales, g, dtype=dtype)
    for offset in (1, 2, 4, 8, 16):
        moved = torch.empty(packed.numel() + offset, dtype=torch.uint8, device=DEVICE)[offset:].view(packed.shape)
        assert np.array_equal(raw(dequantize_nvfp4(moved.copy_(packed), scales, g, dtype=dtype)), raw(expected))
    odd = torch.empty(scales.numel() + 1, dtype=torch.uint8, device=DEVICE)[1:].view(scales.shape)
    assert np.array_equal(raw(dequantize_nvfp4(packed, odd.copy_(scales), g, dtype=dtype)), raw(expected))
    row = torch.empty(1, 24, dtype=torch.uint8, device=DEVICE).as_strided((1, 24), (25, 1))  # one row, any stride
    decoded = dequantize_nvfp4(row.copy_(packed[:1]), scales[:1], g, dtype=dtype)
    assert np.array_equal(raw(decoded), raw(expected[:1]))
    usual = OTHER if torch.version.hip else TABLE
    assert launched[3:] == [usual, OTHER, OTHER, usual, usual, usual, usual, usual]


@BY_TABLE
def test_other_gpus_have_the_other_kernel(dtype, launched, monkeypatch):
    packed, scales, g = quantized()
    expected = dequantize_nvfp4(packed, scales, g, dtype=dtype)
    monkeypatch.setattr(_launch, "INTERPRETED", False)
    monkeypatch.setattr(_launch, "takes_ptx", lambda tensor: False)
    out = torch.empty_like(expected)
    launched.clear()
    monkeypatch.setattr(_launch, "launch", lambda kernel, *args, **options: launched.append(kernel.__name__))
    _nvfp4_launch._read(packed.view(torch.uint8), scales.view(torch.uint8), g, out)
    assert launched == [OTHER]


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs the memory of a GPU: 2**31 elements are NOT decoded here")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_more_than_31_bits_of_elements(dtype):
    """The last blocks of a huge tensor get the values that they get alone."""
    tail = quantized()
    packed = torch.zeros(2**30 + 120, dtype=torch.uint8, device=DEVICE)
    scales = torch.zeros(packed.numel() // 8, dtype=torch.uint8, device=DEVICE)
    packed[-120:], scales[-15:] = tail[0].view(torch.uint8).flatten(), tail[1].view(torch.uint8).flatten()
    decoded = dequantize_nvfp4(packed, scales, tail[2], dtype=dtype)
    assert torch.equal(decoded[-240:], dequantize_nvfp4(*tail, dtype=dtype).flatten())
    assert not decoded[:-240].any()


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
