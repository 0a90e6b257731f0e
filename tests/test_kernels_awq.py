"""The AWQ kernel against SPEC.md 5.1: the word's order, every code, zero and kind of scale, every shape and tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lowbit_kernels import _weight_tiles, dequantize_awq
from lowbit_kernels._weight_tiles import Tile

from .weight_kernel_checks import (
    BFLOAT,
    DTYPES,
    HALF,
    SCALES,
    SINGLE,
    assert_bits,
    assert_same,
    awq_words,
    floats,
    on,
    products,
    raw,
    scales_of,
    views,
    wide,
    zeros,
)

RNG = np.random.default_rng(20240701)


def one_word(word: int) -> torch.Tensor:
    return on(np.array([[word]], dtype=np.uint32).view(np.int32))


def sample(rows: int, columns: int, group: int, scale: torch.dtype = HALF) -> tuple[Any, ...]:
    """Random codes, zeros and scales: the stored tensors, and codes, zeros and scales of every weight as (K, N)."""
    groups = rows // group if rows else 0
    codes, points = RNG.integers(0, 16, (rows, columns)), RNG.integers(0, 16, (groups, columns))
    scales = scales_of(RNG, (groups, columns), scale)
    spread = np.repeat(np.arange(groups), group)
    return (on(awq_words(codes)), on(awq_words(points)), scales), (codes, points[spread], wide(scales)[spread])


def check(rows: int, columns: int, group: int, scale: torch.dtype, dtype: torch.dtype) -> None:
    stored, plain = sample(rows, columns, group if group > 0 else rows, scale)
    assert_bits(dequantize_awq(*stored, group_size=group, dtype=dtype), products(*plain, dtype), (rows, columns, group))


@pytest.mark.parametrize(
    ("word", "stored", "expected"),
    [
        (0x75316420, 0, [0, 1, 2, 3, 4, 5, 6, 7]),  # GPTQModel's converter gave 0 2 4 6 1 3 5 7
        (0xFFFFFFFF, 0, [15] * 8),  # AutoAWQ#329: sign-extended to -1
        (0x55555555, 0, [5] * 8),  # GPTQModel#2350: -10, then 4
        (0x00000000, 0xFFFFFFFF, [-15] * 8),
        (0x75316420, 0x75316420, [0] * 8),
    ],
)
def test_words_by_hand(word, stored, expected):
    """Column 8c + [0,2,4,6,1,3,5,7][i] in bits 4i..4i+3, unsigned; the zero point is what is stored, no ±1."""
    ones = zeros(1, 8, dtype=HALF) + 1
    assert dequantize_awq(one_word(word), one_word(stored), ones, group_size=1).tolist() == [expected]


@pytest.mark.parametrize("lane", range(8))
def test_every_code_in_every_lane(lane):
    """16 rows, each with one code in one column: a column takes no bit of another."""
    codes = np.zeros((16, 8), dtype=np.int64)
    codes[:, lane] = np.arange(16)
    points = np.zeros((1, 8), dtype=np.int64)
    for z in (0, 7, 15):
        points[:, lane] = z
        stored = on(awq_words(codes)), on(awq_words(points)), zeros(1, 8, dtype=HALF) + 1
        actual = dequantize_awq(*stored, group_size=-1, dtype=SINGLE).cpu().numpy()
        assert np.array_equal(actual, codes - points)


def test_rows_of_the_second_group_take_its_scale():
    """vllm#39705: K 64, G 32, a tile of 64 rows: rows 32 and up belong to group 1."""
    scales = on(torch.tensor([[1.0], [10.0]]).expand(2, 8), HALF)
    qweight, qzeros = one_word(0x11111111).expand(64, 1), one_word(0).expand(2, 1)
    assert dequantize_awq(qweight, qzeros, scales, group_size=32)[:, 0].tolist() == [1.0] * 32 + [10.0] * 32


def test_overflow_and_zeros():
    """vllm#16579: 15 * 5000 is Inf in float16 and 0x4792 in bfloat16. A zero has the sign of the product."""
    scale = zeros(1, 8, dtype=HALF) + 5000
    stored = one_word(0xFFFFFFFF), one_word(0)
    assert set(raw(dequantize_awq(*stored, scale, group_size=1)).flat) == {0x7C00}
    assert set(raw(dequantize_awq(*stored, scale, group_size=1, dtype=BFLOAT)).flat) == {0x4792}
    assert set(raw(dequantize_awq(*stored, -scale, group_size=1)).flat) == {0xFC00}
    same = one_word(0x99999999), one_word(0x99999999)
    assert set(raw(dequantize_awq(*same, scale, group_size=1)).flat) == {0}
    assert set(raw(dequantize_awq(*same, -scale, group_size=1)).flat) == {0x8000}


def test_the_product_is_rounded_once():
    """A scale in float16 that gives another bfloat16 when the product goes through float16."""
    scale = floats(np.full((1, 8), 0x2C01), HALF)  # 11 * 0x2C01 has 15 bits; binary16 keeps 11 of them
    direct = dequantize_awq(one_word(0xBBBBBBBB), one_word(0), scale, group_size=1, dtype=BFLOAT)
    expected = products(np.full((1, 8), 11), np.zeros((1, 8), dtype=np.int64), wide(scale), BFLOAT)
    assert_bits(direct, expected)


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_difference_times_many_scales(scale, dtype):
    """All 256 pairs of code and zero point with each of 1,024 scale patterns, specials among them."""
    patterns = np.unique(np.concatenate([np.arange(0, 65536, 67), np.arange(16), [0x7C00, 0x7F80, 0x7FFF, 0x8000]]))
    patterns = np.concatenate([patterns, patterns[::-1]])[:1024]
    codes = np.repeat(np.arange(16), 16)[:, None] * np.ones((1, 1024), dtype=np.int64)
    points = np.tile(np.arange(16), 16)[:, None] * np.ones((1, 1024), dtype=np.int64)
    scales = floats(np.tile(patterns, (256, 1)), scale)
    stored = on(awq_words(codes)), on(awq_words(points)), scales
    assert_bits(dequantize_awq(*stored, group_size=1, dtype=dtype), products(codes, points, wide(scales), dtype))


SHAPES = [
    *((rows, 72, 16) for rows in (16, 48, 176)),
    *((128, columns, 32) for columns in (8, 24, 32, 40, 64, 72, 200)),  # vllm#13227: the tail of N
    *((96, 40, group) for group in (1, 3, 8, 16, 24, 32, 48, 96, -1)),
    (160, 1032, 32),
]


@pytest.mark.parametrize(("rows", "columns", "group"), SHAPES)
def test_shapes_and_groups(rows, columns, group):
    for scale, dtype in ((HALF, HALF), (HALF, BFLOAT), (BFLOAT, BFLOAT), (BFLOAT, SINGLE)):
        check(rows, columns, group, scale, dtype)


@pytest.mark.parametrize("tile_rows", [8, 32, 128])
@pytest.mark.parametrize("group", [8, 16, 48, 96])
def test_the_tile_does_not_count(tile_rows, group, monkeypatch):
    """Tiles smaller than the group, as large, larger, and astride: the bits of each weight are the same."""
    stored, plain = sample(96, 40, group)
    monkeypatch.setattr(_weight_tiles, "INTERPRETED", False)
    for columns, least in ((32, 1), (32, 1 << 20), (8 if tile_rows > 8 else 64, 1 << 20)):
        monkeypatch.setattr(_weight_tiles, "_LEAST_UNIFORM", least)
        monkeypatch.setitem(_weight_tiles.TILES, "awq", Tile(tile_rows, columns))
        assert_bits(dequantize_awq(*stored, group_size=group), products(*plain, HALF), (columns, least))


def test_any_strides():
    (qweight, qzeros, scales), plain = sample(64, 96, 16)
    expected = dequantize_awq(qweight, qzeros, scales, group_size=16)
    assert_bits(expected, products(*plain, HALF))

    for a, b, c in zip(views(qweight), views(qzeros), views(scales), strict=True):
        assert_same(dequantize_awq(a, qzeros, scales, group_size=16), expected)
        assert_same(dequantize_awq(qweight, b, scales, group_size=16), expected)
        assert_same(dequantize_awq(qweight, qzeros, c, group_size=16), expected)
        assert_same(dequantize_awq(a, b, c, group_size=16), expected)
    assert_same(dequantize_awq(qweight[16:], qzeros[1:], scales[1:], group_size=16), expected[16:])


@pytest.mark.parametrize(("rows", "words", "group"), [(0, 3, 128), (0, 3, -1), (128, 0, 128), (0, 0, 128)])
def test_empty(rows, words, group):
    groups = 0 if rows == 0 else 1
    stored = zeros(rows, words), zeros(groups, words), zeros(groups, words * 8, dtype=HALF)
    assert dequantize_awq(*stored, group_size=group).shape == (rows, words * 8)
