"""The GPTQ kernel against SPEC.md 5.2: streams of 2, 3, 4 and 8 bits, v1 and v2 zeros, act-order, short groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lowbit.errors import ArgumentError
from lowbit_kernels import _launch, _weight_gptq, _weight_tiles, dequantize_gptq
from lowbit_kernels._weight_tiles import Tile

from .ptx_emulation import run
from .weight_kernel_checks import (
    BFLOAT,
    DTYPES,
    HALF,
    SCALES,
    SINGLE,
    assert_bits,
    assert_same,
    floats,
    gptq_words,
    gptq_zeros,
    on,
    products,
    raw,
    scales_of,
    views,
    wide,
    zeros,
)

RNG = np.random.default_rng(20240702)
BITS = (2, 3, 4, 8)
EVERY_WIDTH = pytest.mark.parametrize("bits", BITS)


def int32(patterns: Any) -> torch.Tensor:
    return on(np.asarray(patterns, dtype=np.uint32).view(np.int32))


def ones(*shape: int) -> torch.Tensor:
    return zeros(*shape, dtype=HALF) + 1


def sample(
    bits: int, rows: int, columns: int, group: int, kind: str = "v1", g_idx: Any = None, scale: torch.dtype = HALF
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Random codes, zeros and scales: the stored tensors, and codes, zeros and scales of every weight as (K, N)."""
    groups = -(-rows // group)
    codes, points = RNG.integers(0, 1 << bits, (rows, columns)), RNG.integers(0, 1 << bits, (groups, columns))
    scales = scales_of(RNG, (groups, columns), scale)
    spread = np.arange(rows) // group if g_idx is None else g_idx
    stored = on(gptq_words(codes, bits)), on(gptq_zeros(points, bits, kind)), scales
    order = None if g_idx is None else on(np.asarray(g_idx, dtype=np.int32))
    return (*stored, order), (codes, points[spread], wide(scales)[spread])


def check(bits: int, rows: int, columns: int, group: int, **options: Any) -> None:
    dtype = options.pop("dtype", HALF)
    kind = options.get("kind", "v1")
    stored, plain = sample(bits, rows, columns, group, **options)
    actual = dequantize_gptq(*stored, bits=bits, group_size=group, zeros=kind, dtype=dtype)
    assert_bits(actual, products(*plain, dtype), (bits, rows, columns, group, options))


# By hand


def test_three_bits_are_one_dense_stream():
    """GPTQModel#2251: 0..7 four times is 88fac688 c688fac6 fac688fa; fields run across words."""
    qweight = int32([[0x88FAC688], [0xC688FAC6], [0xFAC688FA]]).expand(3, 32)
    actual = dequantize_gptq(qweight, zeros(1, 3), ones(1, 32), bits=3, zeros="v2", group_size=-1)
    assert actual.t().tolist() == [[0, 1, 2, 3, 4, 5, 6, 7] * 4] * 32


def test_the_field_of_a_v1_zero_wraps_alone():
    """AutoGPTQ#325: the stored word 0x777777F7 is 8 0 8 8 8 8 8 8; adding 1 to the word carries into a neighbour."""
    actual = dequantize_gptq(zeros(1, 8), int32([[0x777777F7]]), -ones(1, 8), group_size=8)
    assert actual[0].tolist() == [8, 0, 8, 8, 8, 8, 8, 8]


def test_v2_zeros_are_not_v1_zeros():
    """vllm#26343: stored 8, code 8: 0 as v2, -1 as v1."""
    stored = int32([[0x88888888]]).expand(1, 8), int32([[0x88888888]]), ones(1, 8)
    assert dequantize_gptq(*stored, group_size=8, zeros="v2")[0].tolist() == [0] * 8
    assert dequantize_gptq(*stored, group_size=8, zeros="v1")[0].tolist() == [-1] * 8


def test_zeros_of_eight_bits_are_not_cut_to_four():
    """AutoGPTQ: stored 127 (v1), code 128: 0; 128 where the zero was masked with 0xF."""
    stored = int32([[0x80808080]]).expand(1, 4), int32([[0x7F7F7F7F]]), ones(1, 4)
    assert dequantize_gptq(*stored, bits=8, group_size=4)[0].tolist() == [0] * 4


def test_g_idx_decides_the_group():
    """AutoGPTQ#62: g_idx 1 0 1 0 … with scales 1 and 10; rows taken in order give 1 1 … 10 10."""
    qweight, scales = int32([[0x11111111]]).expand(1, 8), ones(2, 8) * torch.tensor([[1.0], [10.0]]).to(ones(1))
    order = int32([1, 0] * 4)
    actual = dequantize_gptq(qweight, zeros(2, 1), scales, order, group_size=4, zeros="v2")
    assert actual[:, 0].tolist() == [10, 1] * 4


@pytest.mark.parametrize("wrong", [-1, -2, 2, 5, 2**31 - 1, -(2**31)])
def test_a_group_that_does_not_exist(wrong):
    """GPTQModel#2949: an error; unchecked, NaN in that row and nothing else."""
    stored = int32([[0x33333333]]).expand(1, 8), zeros(2, 1), ones(2, 8)
    order = int32(np.array([0, 1, 0, wrong, 1, 0, 1, 0]).astype(np.int32).view(np.uint32))
    with pytest.raises(ArgumentError, match=rf"g_idx: got {wrong} at row 3, want 0\.\.1"):
        dequantize_gptq(*stored, order, group_size=4)
    unchecked = dequantize_gptq(*stored, order, group_size=4, zeros="v2", validate=False)
    assert torch.isnan(unchecked[3]).all()
    assert (unchecked[[0, 1, 2, 4, 5, 6, 7]] == 3).all()


def test_group_size_minus_one_is_all_rows():
    """vllm#37329: one group for K 128."""
    stored, plain = sample(4, 128, 40, 128)
    assert_bits(dequantize_gptq(*stored, group_size=-1), products(*plain, HALF))


def test_overflow_and_the_sign_of_zero():
    """vllm#16579: 15 * 5000 is Inf in float16, 0x4792 in bfloat16; a zero has the sign of the product."""
    stored = int32([[0xFFFFFFFF]]).expand(1, 8), zeros(1, 1), ones(1, 8) * 5000
    assert set(raw(dequantize_gptq(*stored, group_size=8, zeros="v2")).flat) == {0x7C00}
    assert set(raw(dequantize_gptq(*stored, group_size=8, zeros="v2", dtype=BFLOAT)).flat) == {0x4792}
    level = int32([[0xFFFFFFFF]])
    assert set(raw(dequantize_gptq(stored[0], level, -stored[2], group_size=8, zeros="v2")).flat) == {0x8000}


# Every code, zero and scale


@EVERY_WIDTH
@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_every_code_in_every_place_under_every_zero(bits, kind):
    """Column n holds code (k + n) modulo 2**b in row k, so each code stands in each field; so does each zero."""
    codes = (np.arange(64)[:, None] + np.arange(256)) % (1 << bits)
    points = (np.arange(4)[:, None] * 7 + np.arange(256)[None, ::-1] * 3) % (1 << bits)
    stored = on(gptq_words(codes, bits)), on(gptq_zeros(points, bits, kind)), ones(4, 256)
    actual = dequantize_gptq(*stored, bits=bits, group_size=16, zeros=kind, dtype=SINGLE).cpu().numpy()
    assert np.array_equal(actual, codes - points[np.arange(64) // 16])


@EVERY_WIDTH
@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_differences_times_scales(bits, scale, dtype):
    """Every difference from -max to max with scales of every kind, one rounding."""
    span = 1 << bits
    codes = np.tile(np.arange(span), 256 // span)[:, None] * np.ones((1, 512), dtype=np.int64)
    points = np.tile(np.arange(span), 512 // span)[None, :]
    scales = floats(
        np.concatenate([RNG.integers(0, 65536, 480), np.arange(16), [0x7C00, 0x7F80, 0x7FC0, 0x8000] * 4]), scale
    )
    scales = scales[torch.randperm(512, generator=torch.Generator().manual_seed(1))].view(1, 512)
    stored = on(gptq_words(codes, bits)), on(gptq_zeros(points, bits, "v1")), scales
    expected = products(codes, points, wide(scales), dtype)
    assert_bits(dequantize_gptq(*stored, bits=bits, group_size=-1, dtype=dtype), expected)


# Shapes, groups, tiles


@EVERY_WIDTH
@pytest.mark.parametrize(("rows", "group"), [(96, 32), (96, 96), (160, 64), (96, 40), (64, 1), (96, 7), (32, 128)])
def test_groups_and_short_last_groups(bits, rows, group):
    """K that is and is not a multiple of G, G that is and is not a multiple of a pack."""
    check(bits, rows, 96, group)
    check(bits, rows, 32, group, kind="v2", scale=BFLOAT, dtype=BFLOAT)


@pytest.mark.parametrize("columns", [8, 24, 32, 40, 64, 72, 200, 1032])
def test_columns(columns):
    """vllm#13227: the tail of N. 3 bits need a multiple of 32, 2 bits of 16; 8 bits take a multiple of 4."""
    check(4, 64, columns, 16)
    check(8, 32, columns - 4, 16)
    if columns % 32 == 0:
        check(3, 64, columns, 16)
        check(2, 64, columns - 16, 16)


@EVERY_WIDTH
def test_act_order(bits):
    """Any g_idx: a permutation, one group only, as without one."""
    rows, columns, group = 96, 96, 32
    for order in (RNG.permutation(rows) // group, np.full(rows, 2), np.arange(rows) // group, RNG.integers(0, 3, rows)):
        check(bits, rows, columns, group, g_idx=order, scale=BFLOAT, dtype=HALF)
    check(bits, rows, columns, 48, g_idx=RNG.integers(0, 2, rows), kind="v2")


@pytest.mark.parametrize(
    ("bits", "packs", "columns", "steps"), [(4, 1, 32, 1), (4, 2, 16, 3), (4, 16, 32, 1), (3, 1, 32, 3), (8, 4, 64, 2)]
)
@pytest.mark.parametrize("group", [16, 48])
def test_the_tile_does_not_count(bits, packs, columns, steps, group, monkeypatch):
    """Tiles smaller than the group, as large, larger, and astride; several steps, some of them beyond the last row."""
    rows = 64
    monkeypatch.setattr(_weight_tiles, "INTERPRETED", False)
    for name in (f"gptq{bits}", "gptq_g_idx"):
        monkeypatch.setitem(_weight_tiles.TILES, name, Tile(packs, columns, steps))
    check(bits, rows, 32, group, g_idx=RNG.permutation(rows) // group)
    for least in (1, 1 << 20):
        monkeypatch.setattr(_weight_tiles, "_LEAST_UNIFORM", least)
        check(bits, rows, 32, group)


@pytest.mark.parametrize(("bits", "rounds"), [(2, 1), (2, 16), (3, 2), (3, 8), (3, 32), (4, 2), (8, 4)])
def test_the_round_does_not_count(bits, rounds, monkeypatch):
    """Rows decoded one, a few or all at a time; of 3 bits rounds begin anywhere in the three words."""
    monkeypatch.setitem(_weight_tiles.ROUNDS, bits, rounds)
    check(bits, 64, 32, 32, g_idx=RNG.permutation(64) // 32)
    monkeypatch.setattr(_weight_tiles, "_LEAST_UNIFORM", 1 << 20)
    check(bits, 96, 32, 48, kind="v2")


@EVERY_WIDTH
def test_offsets_in_64_bits_change_nothing(bits, monkeypatch):
    """A group for the tile, one for each row, one looked up; loops that run on in the wider type."""
    monkeypatch.setattr(_launch, "INT32_MAX", 0)
    monkeypatch.setattr(_weight_tiles, "INTERPRETED", False)
    for name in (f"gptq{bits}", "gptq_g_idx"):
        monkeypatch.setitem(_weight_tiles.TILES, name, Tile(1, 32, 3))
    check(bits, 64, 64, 32)
    check(bits, 64, 64, 24)
    check(bits, 64, 64, 32, g_idx=RNG.permutation(64) // 32)


def test_any_strides():
    rows, columns, group = 64, 96, 16
    stored, plain = sample(4, rows, columns, group, g_idx=RNG.permutation(rows) // group)
    expected = dequantize_gptq(*stored, group_size=group)
    assert_bits(expected, products(*plain, HALF))
    for position, tensor in enumerate(stored):
        for view in views(tensor):
            arguments = list(stored)
            arguments[position] = view
            assert_same(dequantize_gptq(*arguments, group_size=group), expected, (position, view.stride()))
    plain_order = dequantize_gptq(*stored[:3], group_size=group)
    for view in views(stored[0]):
        assert_same(dequantize_gptq(view, *stored[1:3], group_size=group), plain_order)
    tail = dequantize_gptq(stored[0][2:], stored[1][1:], stored[2][1:], group_size=group)
    assert_same(tail, plain_order[16:])
    assert_same(
        dequantize_gptq(stored[0][:, 8:], stored[1][:, 1:], stored[2][:, 8:], group_size=16), plain_order[:, 8:]
    )


@EVERY_WIDTH
def test_empty(bits):
    for words, columns in ((0, 32), (3, 0), (0, 0)):
        groups = 0 if words == 0 else 1
        stored = zeros(words, columns), zeros(groups, columns * bits // 32), zeros(groups, columns, dtype=HALF)
        rows = words * 32 // bits
        assert dequantize_gptq(*stored, bits=bits).shape == (rows, columns)
        assert dequantize_gptq(*stored, zeros(rows), bits=bits, group_size=-1).shape == (rows, columns)


@pytest.mark.parametrize("byte", range(4))
def test_the_permutation_makes_a_float_of_each_byte(byte: int) -> None:
    """The kernels' PTX gives 2**23 + byte, whatever the other bytes hold."""
    words = np.concatenate([RNG.integers(0, 2**32, 4096, dtype=np.uint32), np.arange(256, dtype=np.uint32) << 8 * byte])
    numbers = run(_weight_gptq.byte_number(byte), {"$1": words})["$0"].view(np.float32)
    assert np.array_equal(numbers, 2.0**23 + (words >> 8 * byte & 0xFF).astype(np.float32))
