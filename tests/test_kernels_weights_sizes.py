"""Weights of nearly 2**31 rows or columns, by arithmetic and on fake tensors: counted, refused, in 64 bits."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode

import lowbit_kernels
from lowbit.errors import ShapeError
from lowbit_kernels import (
    _plans,
    _weight_tiles,
    awq,
    dequantize_awq,
    dequantize_gptq,
    dequantize_int8,
    dequantize_squeezellm,
    gptq,
    int8,
    squeezellm,
)
from lowbit_kernels._codec import tile_count

from .weight_kernel_checks import DEVICE, HALF, SINGLE, zeros


@triton.jit
def _count(count_ptr, extent, BLOCK: tl.constexpr):
    tl.store(count_ptr, tile_count(extent, BLOCK))


@pytest.mark.parametrize("block", [1, 8, 1024])
@pytest.mark.parametrize("extent", [1, 2, 8, 9, 1024, 1025, 2**31 - 1024, 2**31 - 1022, 2**31 - 8, 2**31 - 1])
def test_tiles_of_an_extent_near_31_bits(extent: int, block: int) -> None:
    """extent + block - 1 would be negative, and so would the row that the last program writes."""
    count = zeros(1)
    with np.errstate(over="ignore"):
        _count[(1,)](count, extent, BLOCK=block)
    assert count.item() == -(-extent // block)


def test_no_kernel_adds_a_block_to_an_extent() -> None:
    for path in Path(lowbit_kernels.__file__).parent.glob("*.py"):
        source = "".join(line for line in path.read_text().splitlines(True) if "`tl.cdiv`" not in line)
        assert "cdiv" not in source, path.name


TOO_MANY: list[tuple[Any, str]] = [
    (lambda new: dequantize_awq(new(2**31, 1), new(1, 1), new(1, 8, dtype=HALF), group_size=-1), "qweight"),
    (lambda new: dequantize_awq(new(8, 2**28), new(1, 2**28), new(1, 2**31, dtype=HALF), group_size=-1), "qweight"),
    (lambda new: dequantize_gptq(new(2**28, 8), new(1, 1), new(1, 8, dtype=HALF), group_size=-1), "qweight"),
    (lambda new: dequantize_gptq(new(1, 2**31), new(1, 2**28), new(1, 2**31, dtype=HALF)), "qweight"),
    (lambda new: dequantize_int8(new(2**31, 1, dtype=torch.int8), new(2**31, dtype=SINGLE)), "weight"),
    (lambda new: dequantize_int8(new(1, 2**31, dtype=torch.int8), new(1, dtype=SINGLE)), "weight"),
    (lambda new: dequantize_squeezellm(new(2**28, 1), new(1, 16, dtype=HALF)), "qweight"),
    (lambda new: dequantize_squeezellm(new(1, 2**31), new(2**31, 16, dtype=HALF)), "qweight"),
    (
        lambda new: dequantize_squeezellm(
            new(1, 1), new(1, 16, dtype=HALF), full_rows=(new(2**31), new(8, 2**31, dtype=SINGLE))
        ),
        "full_rows.indices",
    ),
]


@pytest.mark.parametrize(("call", "name"), TOO_MANY)
def test_rows_and_columns_that_no_kernel_counts_are_refused(call: Any, name: str) -> None:
    """What they would decode from is fake: nothing is allocated, whether refused or not."""

    def new(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=DEVICE)

    with FakeTensorMode(), pytest.raises(ShapeError, match=f"{name}: got 2147483648 .*, want at most 2147483647"):
        call(new)


def test_one_row_fewer_is_not_refused() -> None:
    with FakeTensorMode():
        words = torch.empty(2**28 - 1, 1, dtype=torch.int32, device=DEVICE)
        tables = torch.empty(1, 16, dtype=HALF, device=DEVICE)
        assert dequantize_squeezellm(words, tables).shape == (2**31 - 8, 1)


def gptq_plan(bits: int, rows: int, columns: int) -> _plans.Plan:
    sizes = (rows, columns, columns, 1, rows)
    return gptq._plan(f"gptq{bits}", _weight_tiles.TILES[f"gptq{bits}"], bits, 1, *sizes, False)


def awq_plan(rows: int, columns: int) -> _plans.Plan:
    return awq._plan(_weight_tiles.TILES["awq"], rows, columns // 8, columns // 8, 1, rows)


def int8_plan(rows: int, columns: int) -> _plans.Plan:
    return int8._plan(_weight_tiles.TILES["int8"], rows, columns, columns)


def table_plan(bits: int, rows: int, columns: int) -> _plans.Plan:
    name = f"squeezellm{bits}"
    return squeezellm._plan(name, _weight_tiles.TILES[name], bits, 1, False, rows, columns, columns)


PLANS = {
    "gptq2": (functools.partial(gptq_plan, 2), "BLOCK_P", 16),
    "gptq3": (functools.partial(gptq_plan, 3), "BLOCK_P", 32),
    "gptq4": (functools.partial(gptq_plan, 4), "BLOCK_P", 8),
    "gptq8": (functools.partial(gptq_plan, 8), "BLOCK_P", 4),
    "squeezellm3": (functools.partial(table_plan, 3), "BLOCK_P", 32),
    "squeezellm4": (functools.partial(table_plan, 4), "BLOCK_P", 8),
    "awq": (awq_plan, "BLOCK_K", 1),
    "int8": (int8_plan, "BLOCK_N", 1),
}
"""How a launch is planned for (rows, columns), the option that counts its tile's rows, and rows of each of them."""


@pytest.mark.parametrize("name", PLANS)
def test_a_tile_that_spans_31_bits_gets_64(name: str) -> None:
    """The last element of a tile lies (its rows - 1) * columns behind the first."""
    plan, key, pack = PLANS[name]
    assert not plan(4096, 4096).options["WIDE"]
    rows = 32
    spans = []
    for columns in (2**24, 2**26 + 32, 2**27, 2**28 + 64, 2**29, 2**30, 2**31 - 32):
        options = plan(rows, columns).options
        spans.append(min(options[key] * pack, rows) * columns - 1)
        assert options["WIDE"] or spans[-1] < 2**31, columns
    assert max(spans) >= 2**31 > min(spans)
