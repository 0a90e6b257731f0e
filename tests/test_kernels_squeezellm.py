"""The SqueezeLLM kernel against SPEC.md 5.5: tables, both packings, sparse and full-row sums, malformed indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lowbit.errors import ArgumentError
from lowbit_kernels import _weight_tiles, dequantize_squeezellm
from lowbit_kernels._weight_tiles import Tile

from .weight_kernel_checks import (
    BFLOAT,
    DTYPES,
    HALF,
    SINGLE,
    assert_bits,
    assert_same,
    floats,
    gptq_words,
    on,
    rounded,
    scales_of,
    views,
    zeros,
)

RNG = np.random.default_rng(20240705)
BOTH = pytest.mark.parametrize("bits", [3, 4])


class Sample:
    """Random codes, tables and sums, and what they decode to."""

    def __init__(self, bits: int, rows: int, columns: int, table: torch.dtype = SINGLE) -> None:
        codes = RNG.integers(0, 1 << bits, (rows, columns))
        self.bits, self.stored = bits, on(gptq_words(codes, bits))
        self.table = scales_of(RNG, (columns, 1 << bits), table)
        self.entries = self.table.float().cpu().numpy()[np.arange(columns)[None, :], codes]
        self.held = RNG.random((columns, rows)) < 0.15
        self.values = RNG.normal(size=(columns, rows)).astype(np.float32)
        self.crow = np.append(0, self.held.sum(1).cumsum()).astype(np.int32)
        self.col = np.nonzero(self.held)[1].astype(np.int32)
        self.indices = RNG.permutation(columns)[: min(3, columns)].astype(np.int32)
        self.full = RNG.normal(size=(rows, len(self.indices))).astype(np.float32)

    @property
    def sparse(self) -> tuple[torch.Tensor, ...]:
        return on(self.crow), on(self.col), on(self.values[self.held])

    @property
    def full_rows(self) -> tuple[torch.Tensor, ...]:
        return on(self.indices), on(self.full)

    def sums(self, sparse: bool, full: bool) -> np.ndarray:
        """Each sum rounded to float32; a term that is not stored is not added, not even as +0."""
        found = self.entries.copy()
        with np.errstate(all="ignore"):
            if sparse:
                found = np.where(self.held.T, found + self.values.T, found)
            if full:
                found[:, self.indices] += self.full
        assert found.dtype == np.float32
        return found

    def check(self, dtype: torch.dtype, **options: Any) -> None:
        expected = self.sums("sparse" in options, "full_rows" in options)
        actual = dequantize_squeezellm(self.stored, self.table, bits=self.bits, dtype=dtype, **options)
        assert_bits(actual, rounded(expected, dtype), options.keys())


@BOTH
def test_every_code_in_every_place_and_column(bits):
    """vllm: a 3-bit table has 8 entries a channel. Entry c of channel n is 100 n + c."""
    codes = (np.arange(64)[:, None] + np.arange(40)) % (1 << bits)
    table = np.arange(40)[:, None] * 100.0 + np.arange(1 << bits)
    actual = dequantize_squeezellm(on(gptq_words(codes, bits)), on(table, SINGLE), bits=bits, dtype=SINGLE)
    assert np.array_equal(actual.cpu().numpy(), np.arange(40) * 100 + codes)


@BOTH
@pytest.mark.parametrize("table", [SINGLE, HALF], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_entries_are_rounded_once(bits, table, dtype):
    """Patterns of every kind in the table, NaN, Inf and subnormals among them."""
    sample = Sample(bits, 64, 72, table)
    sample.check(dtype)
    patterns = RNG.integers(0, 1 << 8 * table.itemsize, (64, 1 << bits))
    codes = np.tile(np.arange(1 << bits), 64 // (1 << bits))[:, None] * np.ones((1, 64), dtype=np.int64)
    entries = floats(patterns, table)
    actual = dequantize_squeezellm(on(gptq_words(codes, bits)), entries, bits=bits, dtype=dtype)
    assert_bits(actual, rounded(entries.float().cpu().numpy()[np.arange(64)[None, :], codes], dtype))


@BOTH
@pytest.mark.parametrize("columns", [1, 7, 8, 24, 31, 40, 72, 200, 515])
def test_columns(bits, columns):
    sample = Sample(bits, 96, columns)
    sample.check(HALF)
    sample.check(BFLOAT, sparse=sample.sparse, full_rows=sample.full_rows)


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_are_rounded_one_by_one(bits, dtype):
    sample = Sample(bits, 64, 41, HALF)
    sample.check(dtype, sparse=sample.sparse)
    sample.check(dtype, full_rows=sample.full_rows)
    sample.check(dtype, sparse=sample.sparse, full_rows=sample.full_rows)


def test_a_term_that_is_not_stored_is_not_added():
    """-0 stays -0 where nothing is stored, and becomes +0 where a 0 is."""
    table = torch.full((2, 16), -0.0)
    sparse = on(np.array([0, 1, 1], np.int32)), on(np.array([2], np.int32)), on(np.zeros(1, np.float32))
    actual = dequantize_squeezellm(zeros(1, 2), on(table), sparse=sparse)
    assert torch.signbit(actual).tolist() == [[True, True]] * 2 + [[False, True]] + [[True, True]] * 5


def test_a_channel_without_a_full_row_gets_none_added():
    """-0 and a stored -0 are -0; adding +0 for a full row that the channel does not have gives +0."""
    table = torch.full((2, 16), -0.0)
    sparse = on(np.array([0, 1, 2], np.int32)), on(np.array([2, 2], np.int32)), on(np.full(2, -0.0, np.float32))
    full = on(np.array([1], np.int32)), zeros(8, 1, dtype=SINGLE)
    actual = dequantize_squeezellm(zeros(1, 2), on(table), sparse=sparse, full_rows=full)
    assert torch.signbit(actual).tolist() == [[True, False]] * 8


def test_the_order_of_entries_does_not_count_nor_do_64_bit_indices():
    sample = Sample(4, 32, 9)
    crow, col, values = sample.sparse
    right = dequantize_squeezellm(sample.stored, sample.table, sparse=sample.sparse, full_rows=sample.full_rows)
    order = np.concatenate(
        [RNG.permutation(np.arange(a, b)) for a, b in zip(sample.crow, sample.crow[1:], strict=False)]
    )
    shuffled = crow.long(), col[on(order)].long(), values[on(order)]
    full = sample.full_rows[0].long(), sample.full_rows[1]
    assert_same(dequantize_squeezellm(sample.stored, sample.table, sparse=shuffled, full_rows=full), right)


def test_no_entries():
    sample = Sample(4, 16, 8)
    empty = on(np.zeros(9, np.int32)), zeros(0), zeros(0, dtype=SINGLE)
    none = zeros(0), zeros(16, 0, dtype=SINGLE)
    right = dequantize_squeezellm(sample.stored, sample.table)
    assert_same(dequantize_squeezellm(sample.stored, sample.table, sparse=empty, full_rows=none), right)


MALFORMED = {
    "crow that falls": ({"crow": [0, 3, 2, 4]}, r"sparse\.crow_indices"),
    "crow beyond the entries": ({"crow": [0, 2, 3, 5]}, r"sparse\.crow_indices"),
    "crow that does not begin at 0": ({"crow": [1, 2, 3, 4]}, r"sparse\.crow_indices"),
    "crow that ends early": ({"crow": [0, 2, 3, 3]}, r"sparse\.crow_indices"),
    "crow below 0": ({"crow": [0, -1, 3, 4]}, r"sparse\.crow_indices"),
    "column too large": ({"col": [0, 32, 1, 2]}, r"sparse\.col_indices: got 32 at position 1, want 0\.\."),
    "column far too large": ({"col": [0, 1, 2**31 - 1, 2]}, r"sparse\.col_indices: got 2147483647 at position 2"),
    "column below 0": ({"col": [0, 1, -1, 2]}, r"sparse\.col_indices: got -1 at position 2"),
    "place twice": ({"col": [5, 5, 1, 2]}, r"sparse\.col_indices: .*twice"),
    "channel too large": ({"indices": [3, 0]}, r"full_rows\.indices: got 3 at position 0, want 0\.\.2"),
    "channel below 0": ({"indices": [0, -1]}, r"full_rows\.indices: got -1 at position 1"),
    "channel twice": ({"indices": [1, 1]}, r"full_rows\.indices: .*twice"),
}


@pytest.mark.parametrize("case", MALFORMED)
@BOTH
def test_malformed_indices(case, bits):
    """An error; unchecked, every value is NaN and nothing outside is read."""
    changes, message = MALFORMED[case]
    given = {"crow": [0, 2, 3, 4], "col": [0, 7, 1, 2], "indices": [2, 0]} | changes
    rows = 8 if bits == 4 else 32
    crow, col, indices = (on(np.array(given[name], dtype=np.int32)) for name in ("crow", "col", "indices"))
    options = {
        "sparse": (crow, col, zeros(4, dtype=SINGLE)),
        "full_rows": (indices, zeros(rows, 2, dtype=SINGLE)),
        "bits": bits,
    }
    stored = zeros(rows * bits // 32, 3), zeros(3, 1 << bits, dtype=SINGLE)
    with pytest.raises(ArgumentError, match=message):
        dequantize_squeezellm(*stored, **options)
    for dtype in DTYPES:
        assert torch.isnan(dequantize_squeezellm(*stored, **options, dtype=dtype, validate=False)).all()


@pytest.mark.parametrize("row", range(8))
def test_every_place_that_is_stored_twice_is_noticed(row):
    """One bit a place, from the first to the last of a word."""
    crow = on(np.where(np.arange(9) > row, 3, 0).astype(np.int32))
    for column in range(8):
        for col in ([column, (column + 1) % 8, column], [(column + 1) % 8, column, column]):
            sparse = crow, on(np.array(col, np.int32)), zeros(3, dtype=SINGLE)
            actual = dequantize_squeezellm(zeros(1, 8), zeros(8, 16, dtype=SINGLE), sparse=sparse, validate=False)
            assert torch.isnan(actual).all(), (row, column)


@pytest.mark.parametrize(("bits", "tile"), [(4, (1, 32, 1)), (4, (2, 8, 3)), (4, (16, 64, 1)), (3, (1, 32, 2))])
def test_the_tile_does_not_count(bits, tile, monkeypatch):
    monkeypatch.setattr(_weight_tiles, "INTERPRETED", False)
    monkeypatch.setitem(_weight_tiles.TILES, f"squeezellm{bits}", Tile(*tile))
    for columns in (24, 25):
        sample = Sample(bits, 96, columns)
        for dtype in (HALF, SINGLE):
            sample.check(dtype)


@BOTH
def test_any_strides(bits):
    sample = Sample(bits, 96, 48)
    options = {"bits": bits, "sparse": sample.sparse, "full_rows": sample.full_rows}
    right = dequantize_squeezellm(sample.stored, sample.table, **options)
    for view in views(sample.stored):
        assert_same(dequantize_squeezellm(view, sample.table, **options), right)
    for view in views(sample.table):
        assert_same(dequantize_squeezellm(sample.stored, view, **options), right)
    for a, b, c in zip(*(views(part) for part in sample.sparse), strict=True):
        assert_same(dequantize_squeezellm(sample.stored, sample.table, **options | {"sparse": (a, b, c)}), right)
    for a, b in zip(views(sample.full_rows[0]), views(sample.full_rows[1]), strict=False):
        assert_same(dequantize_squeezellm(sample.stored, sample.table, **options | {"full_rows": (a, b)}), right)
    part = dequantize_squeezellm(sample.stored[:, 3:20], sample.table[3:20], bits=bits)
    assert_same(part, dequantize_squeezellm(sample.stored, sample.table, bits=bits)[:, 3:20].contiguous())


@BOTH
def test_empty(bits):
    for words, columns in ((0, 8), (3, 0), (0, 0)):
        stored = zeros(words, columns), zeros(columns, 1 << bits, dtype=SINGLE)
        rows = words * 32 // bits
        sparse = zeros(columns + 1), zeros(0), zeros(0, dtype=SINGLE)
        full = zeros(0), zeros(rows, 0, dtype=SINGLE)
        assert dequantize_squeezellm(*stored, bits=bits, sparse=sparse, full_rows=full).shape == (rows, columns)
    with pytest.raises(ArgumentError, match="crow_indices"):
        dequantize_squeezellm(
            zeros(3, 0), zeros(0, 1 << bits, dtype=SINGLE), bits=bits, sparse=(zeros(1) + 1, *sparse[1:])
        )
