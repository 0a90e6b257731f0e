"""The int8 kernel against SPEC.md 5.4: all 256 codes, scales of every kind, shapes, strides, tiles."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lowbit_kernels import _weight_tiles, dequantize_int8
from lowbit_kernels._weight_tiles import Tile

from .weight_kernel_checks import DTYPES, HALF, SINGLE, assert_bits, assert_same, floats, on, rounded, scales_of, views

RNG = np.random.default_rng(20240704)


def expected(codes: np.ndarray, scale: torch.Tensor, dtype: torch.dtype) -> np.ndarray:
    """RN(dtype)(RN32(q * scale))."""
    with np.errstate(all="ignore"):
        products = codes.astype(np.float32) * scale.cpu().numpy()[:, None]
    assert products.dtype == np.float32
    return rounded(products, dtype)


def sample(*shape: int) -> tuple[np.ndarray, torch.Tensor]:
    return RNG.integers(-128, 128, shape).astype(np.int8), scales_of(RNG, shape[:1], SINGLE)


def test_the_scale_belongs_to_the_row():
    """bitsandbytes#1142: N 2, K 3, scales 1 and 2: it was broadcast along the other axis."""
    weight = on(np.ones((2, 3), dtype=np.int8))
    assert dequantize_int8(weight, on(np.array([1, 2], dtype=np.float32))).tolist() == [[1] * 3, [2] * 3]


def test_minus_128_is_not_clamped():
    weight = on(np.array([[-128, 127, -127, 0]], dtype=np.int8))
    assert dequantize_int8(weight, on(np.ones(1, dtype=np.float32))).tolist() == [[-128, 127, -127, 0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_code_times_many_scales(dtype):
    """All 256 codes with 4,096 patterns of scale of every exponent, NaN, Inf and subnormals among them."""
    patterns = (np.arange(1 << 12, dtype=np.uint64) * 1048583 % (1 << 32)).astype(np.uint32)
    codes = np.tile(np.arange(-128, 128), (1 << 12, 1)).astype(np.int8)
    scale = floats(patterns, SINGLE)
    assert_bits(dequantize_int8(on(codes), scale, dtype=dtype), expected(codes, scale, dtype))


@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 7), (5, 8), (33, 200), (7, 1032), (3, 4), (130, 36), (2, 72), (9, 24), (600, 3)], ids=str
)
def test_shapes(shape):
    codes, scale = sample(*shape)
    for dtype in DTYPES:
        assert_bits(dequantize_int8(on(codes), scale, dtype=dtype), expected(codes, scale, dtype))


@pytest.mark.parametrize("tile", [(1, 64), (4, 8), (16, 32), (64, 16)])
def test_the_tile_does_not_count(tile, monkeypatch):
    monkeypatch.setattr(_weight_tiles, "INTERPRETED", False)
    monkeypatch.setitem(_weight_tiles.TILES, "int8", Tile(*tile))
    for columns in (24, 25):
        codes, scale = sample(19, columns)
        assert_bits(dequantize_int8(on(codes), scale), expected(codes, scale, HALF))


def test_any_strides():
    codes, scale = sample(33, 48)
    weight = on(codes)
    right = dequantize_int8(weight, scale)
    for view in views(weight):
        assert_same(dequantize_int8(view, scale), right)
    for view in views(scale):
        assert_same(dequantize_int8(weight, view), right)
    assert_same(dequantize_int8(weight[:, 3:40], scale), right[:, 3:40].contiguous())


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0, 0)])
def test_empty(shape):
    weight = torch.zeros(shape, dtype=torch.int8)
    assert dequantize_int8(on(weight), on(torch.ones(shape[0]))).shape == shape
