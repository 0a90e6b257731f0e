"""The NF4 and FP4 kernels against SPEC.md 5.3: nibbles, flat blocks, exact codebooks, nested absmax, odd tails."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lowbit.weights import FP4_CODEBOOK, NF4_CODEBOOK
from lowbit_kernels import _weight_tiles, dequantize_fp4, dequantize_nf4
from lowbit_kernels._weight_tiles import Tile

from .weight_kernel_checks import (
    DTYPES,
    HALF,
    SINGLE,
    assert_bits,
    assert_same,
    floats,
    on,
    raw,
    rounded,
    scales_of,
    views,
    zeros,
)

RNG = np.random.default_rng(20240703)
BOTH = pytest.mark.parametrize(
    ("decode", "codebook"), [(dequantize_nf4, NF4_CODEBOOK), (dequantize_fp4, FP4_CODEBOOK)], ids=["nf4", "fp4"]
)


def packed(codes: Any) -> torch.Tensor:
    """The even element in the high nibble; a free low nibble is 9."""
    even = np.append(codes, np.full(len(codes) % 2, 9)).astype(np.uint8)
    return on(even[0::2] << 4 | even[1::2])


def expected(codes: Any, absmax: np.ndarray, codebook: Any, block: int, dtype: torch.dtype) -> np.ndarray:
    """RN(dtype)(RN32(codebook * absmax)), absmax float32 of each block."""
    table = np.array(codebook, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        products = table[codes] * absmax[np.arange(len(codes)) // block]
    assert products.dtype == np.float32
    return rounded(products, dtype)


def ones(count: int) -> torch.Tensor:
    return zeros(count, dtype=SINGLE) + 1


@BOTH
def test_the_codebook_is_exact(decode, codebook):
    """bitsandbytes#2025: FP4 code 1 is 0x3baaaaab; NF4 is not the four-digit table; code 8 of FP4 is -0."""
    actual = decode(packed(np.arange(16)), ones(1), shape=(16,), dtype=SINGLE)
    assert raw(actual).tolist() == list(codebook)


@BOTH
@pytest.mark.parametrize("place", range(8))
def test_every_code_in_every_place_of_a_word(decode, codebook, place):
    """The even element in the high nibble, and no bit of a neighbour."""
    codes = np.full((16, 8), 7, dtype=np.int64)
    codes[:, place] = np.arange(16)
    actual = raw(decode(packed(codes.reshape(-1)), ones(2), shape=(16, 8), dtype=SINGLE))
    assert np.array_equal(actual, np.array(codebook, dtype=np.uint32)[codes])


def test_the_high_nibble_is_the_even_element():
    assert dequantize_nf4(on(np.array([0xF7], dtype=np.uint8)), ones(1), shape=(2,)).tolist() == [1.0, 0.0]


def test_blocks_cross_rows():
    """bitsandbytes 0.50.2 takes blocks a row at a time where a row is no multiple of the block: (2, 96), block 64."""
    absmax = on(np.array([1.0, 2.0, 4.0], dtype=np.float32))
    actual = dequantize_nf4(on(np.full(96, 0xFF, dtype=np.uint8)), absmax, shape=(2, 96))
    assert actual.reshape(-1).tolist() == [1.0] * 64 + [2.0] * 64 + [4.0] * 64


@BOTH
@pytest.mark.parametrize("shape", [(65,), (5, 3), (1,), (7,), (8,), (9,), (64,), (127,), (2, 96), (129, 33), (3, 5, 7)])
def test_tails(decode, codebook, shape):
    """bitsandbytes#1884: odd n, a short last block, fewer elements than a word holds."""
    n = math.prod(shape)
    codes, absmax = RNG.integers(0, 16, n), scales_of(RNG, (-(-n // 64),), SINGLE)
    for dtype in DTYPES:
        right = expected(codes, absmax.cpu().numpy(), codebook, 64, dtype).reshape(shape)
        assert_bits(decode(packed(codes), absmax, shape=shape, dtype=dtype), right, shape)


@pytest.mark.parametrize("block", [1, 3, 8, 12, 32, 64, 100, 128, 4096])
def test_block_sizes(block):
    """Any block size; bitsandbytes has powers of two from 32 to 4096."""
    codes, absmax = RNG.integers(0, 16, 1003), scales_of(RNG, (-(-1003 // block),), SINGLE)
    actual = dequantize_nf4(packed(codes), absmax, shape=(1003,), block_size=block)
    assert_bits(actual, expected(codes, absmax.cpu().numpy(), NF4_CODEBOOK, block, HALF), block)


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_codes_times_many_absmax(decode, codebook, dtype):
    """Every code with 65,536 patterns of absmax of every exponent, NaN, Inf and subnormals among them."""
    patterns = (np.arange(1 << 16, dtype=np.uint64) * 65537 % (1 << 32)).astype(np.uint32)
    codes = np.tile(np.arange(16), 1 << 16)
    actual = decode(packed(codes), floats(patterns, SINGLE), shape=(1 << 20,), block_size=16, dtype=dtype)
    assert_bits(actual, expected(codes, patterns.view(np.float32), codebook, 16, dtype))


def nested(blocks: int, block2: int) -> tuple[torch.Tensor, tuple[Any, ...], np.ndarray]:
    """Codes of absmax, what belongs to them, and absmax by two separate roundings."""
    codes = RNG.integers(0, 256, blocks).astype(np.uint8)
    code2 = RNG.normal(size=256).astype(np.float32)
    absmax2 = RNG.lognormal(-3, 1, -(-blocks // block2)).astype(np.float32)
    offset = np.float32(0.028465)
    absmax = code2[codes] * absmax2[np.arange(blocks) // block2] + offset
    assert absmax.dtype == np.float32
    return on(codes), (on(code2), on(absmax2), on(np.array([offset])), block2), absmax


def test_nested_absmax_is_rounded_twice():
    """bitsandbytes: code2 -0.57109374, absmax2 0x3d470736, offset 0x3ce920c3, code 5: 0x8849; fused, it is 0x884a."""
    code2 = torch.zeros(256)
    code2[3] = -0.57109374
    quantised = (on(code2), floats([0x3D470736], SINGLE), floats([0x3CE920C3], SINGLE), 256)
    actual = dequantize_nf4(packed([5]), on(np.array([3], dtype=np.uint8)), shape=(1,), nested=quantised)
    assert raw(actual).tolist() == [0x8849]


@BOTH
@pytest.mark.parametrize("block2", [1, 3, 256])
def test_nested_absmax(decode, codebook, block2):
    n = 40_003
    codes = RNG.integers(0, 16, n)
    absmax_codes, quantised, absmax = nested(-(-n // 64), block2)
    for dtype in DTYPES:
        actual = decode(packed(codes), absmax_codes, shape=(n,), nested=quantised, dtype=dtype)
        assert_bits(actual, expected(codes, absmax, codebook, 64, dtype))
    number = (*quantised[:2], float(quantised[2]), block2)
    assert_same(decode(packed(codes), absmax_codes, shape=(n,), nested=number, dtype=SINGLE), actual)


@pytest.mark.parametrize("units", [1, 4, 16, 64])
def test_the_tile_does_not_count(units, monkeypatch):
    monkeypatch.setattr(_weight_tiles, "INTERPRETED", False)
    for name in ("nf4", "nf4_nested"):
        monkeypatch.setitem(_weight_tiles.TILES, name, Tile(units))
    codes, absmax = RNG.integers(0, 16, 181), scales_of(RNG, (6,), SINGLE)
    actual = dequantize_nf4(packed(codes), absmax, shape=(181,), block_size=32)
    assert_bits(actual, expected(codes, absmax.cpu().numpy(), NF4_CODEBOOK, 32, HALF))
    absmax_codes, quantised, plain = nested(6, 4)
    actual = dequantize_nf4(packed(codes), absmax_codes, shape=(181,), block_size=32, nested=quantised)
    assert_bits(actual, expected(codes, plain, NF4_CODEBOOK, 32, HALF))


HUGE = [1001, 1025, 2**31, 2**31 + 8, 2**34, 2**35, 2**40, 3 * 2**40, 2**62, 2**70]


@pytest.mark.parametrize("size", HUGE)
def test_a_block_greater_than_the_tensor(size):
    """One absmax for all elements, one absmax2 for all blocks, however great the number that says so."""
    codes, absmax = RNG.integers(0, 16, 1001), scales_of(RNG, (1,), SINGLE)
    actual = dequantize_nf4(packed(codes), absmax, shape=(1001,), block_size=size)
    assert_bits(actual, expected(codes, absmax.cpu().numpy(), NF4_CODEBOOK, 1001, HALF))
    absmax_codes, quantised, plain = nested(-(-1001 // 8), 126)
    nest = (*quantised[:3], size)
    actual = dequantize_nf4(packed(codes), absmax_codes, shape=(1001,), block_size=8, nested=nest)
    assert_bits(actual, expected(codes, plain, NF4_CODEBOOK, 8, HALF))


@pytest.mark.parametrize("least", [8, 1])
def test_blocks_by_arithmetic(least):
    """Blocks of elements, counted in units of 8, and blocks of blocks: what no test decodes, up to 2**36 elements.

    Units and blocks are int32 up to 2**34 elements. An int32 is shifted by less than 32 and divided by an int32.
    """
    sizes = [s + d for s in (2**k for k in range(3, 38)) for d in (-8, 0, 8) if s + d > 0]
    for total in (5, 1000, 2**31 - 1, 2**31, 2**31 + 1, 2**33 + 24, 2**34 - 1, 2**34, 2**35 + 3, 2**36):
        for size in sizes:
            shift, constant = _weight_tiles.shift_or_size(size, least, total)
            assert shift == 0 if constant else shift >= least.bit_length() - 1
            block = constant or 1 << shift
            assert block == size or min(block, size) >= total
            if total // least < 2**31:
                assert shift - (least.bit_length() - 1) < 32
                assert constant // least < 2**31


def test_any_strides_and_offsets():
    codes = RNG.integers(0, 16, 333)
    absmax_codes, quantised, plain = nested(6, 4)
    stored = packed(codes)
    right = dequantize_nf4(stored, absmax_codes, shape=(333,), nested=quantised)
    assert_bits(right, expected(codes, plain, NF4_CODEBOOK, 64, HALF))
    for view in [*views(stored), stored[:, None]]:
        assert_same(dequantize_nf4(view, absmax_codes, shape=(333,), nested=quantised), right)
    for view in views(absmax_codes):
        assert_same(dequantize_nf4(stored, view, shape=(333,), nested=quantised), right)
    for a, b in zip(views(quantised[0]), views(quantised[1]), strict=True):
        assert_same(dequantize_nf4(stored, absmax_codes, shape=(333,), nested=(a, b, *quantised[2:])), right)
    for start in range(1, 9):  # bytes that are no words
        block = torch.cat([stored[:start], stored])
        assert_same(dequantize_nf4(block[start:], absmax_codes, shape=(333,), nested=quantised), right)


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_empty_and_scalar(shape):
    n = math.prod(shape)
    actual = dequantize_nf4(zeros((n + 1) // 2, dtype=torch.uint8) + 0xF0, ones(n), shape=shape)
    assert actual.shape == shape
    assert actual.flatten().tolist() == [1.0] * n
