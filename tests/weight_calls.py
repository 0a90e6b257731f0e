"""Calls that launch every weight kernel as the usual sizes do, by name; what ahead-of-time tests compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import lowbit_kernels as kernels

HALF, BFLOAT, SINGLE = torch.float16, torch.bfloat16, torch.float32
ROWS, COLUMNS = 1024, 2048


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def awq(dtype: torch.dtype, group: int = 128, columns: int = COLUMNS) -> Callable[[], Any]:
    groups = ROWS // group
    stored = integers(ROWS, columns // 8), integers(groups, columns // 8)
    scales = torch.zeros(groups, columns, dtype=HALF if dtype == SINGLE else dtype)
    return lambda: kernels.dequantize_awq(*stored, scales, group_size=group, dtype=dtype)


def gptq(
    bits: int, dtype: torch.dtype, order: bool = False, group: int = 128, columns: int = COLUMNS
) -> Callable[[], Any]:
    groups = -(-ROWS // group)
    stored = integers(ROWS * bits // 32, columns), integers(groups, columns * bits // 32)
    scales = torch.zeros(groups, columns, dtype=HALF if dtype == SINGLE else dtype)
    g_idx = integers(ROWS) if order else None
    options: dict[str, Any] = {"bits": bits, "group_size": group, "dtype": dtype}
    return lambda: kernels.dequantize_gptq(*stored, scales, g_idx, validate=False, **options)


def nf4(dtype: torch.dtype, n: int = ROWS * COLUMNS, nested: bool = False, block: int = 64) -> Callable[[], Any]:
    packed, blocks = torch.zeros(-(-n // 2), dtype=torch.uint8), -(-n // block)
    absmax = torch.zeros(blocks, dtype=torch.uint8 if nested else SINGLE)
    quantised = (torch.zeros(256), torch.zeros(-(-blocks // 256)), torch.zeros(1), 256) if nested else None
    options: dict[str, Any] = {"shape": (n,), "block_size": block, "nested": quantised, "dtype": dtype}
    return lambda: kernels.dequantize_nf4(packed, absmax, **options)


def fp4(dtype: torch.dtype) -> Callable[[], Any]:
    packed, absmax = torch.zeros(ROWS * COLUMNS // 2, dtype=torch.uint8), torch.zeros(ROWS * COLUMNS // 64)
    return lambda: kernels.dequantize_fp4(packed, absmax, shape=(ROWS, COLUMNS), dtype=dtype)


def int8(dtype: torch.dtype, columns: int = COLUMNS) -> Callable[[], Any]:
    weight, scale = torch.zeros(ROWS, columns, dtype=torch.int8), torch.zeros(ROWS)
    return lambda: kernels.dequantize_int8(weight, scale, dtype=dtype)


def squeezellm(
    bits: int, dtype: torch.dtype, sums: bool = False, columns: int = COLUMNS, table: torch.dtype = HALF
) -> Callable[[], Any]:
    stored = integers(ROWS * bits // 32, columns), torch.zeros(columns, 1 << bits, dtype=table)
    options: dict[str, Any] = {"bits": bits, "dtype": dtype}
    if sums:
        options["sparse"] = integers(columns + 1), integers(64), torch.zeros(64)
        options["full_rows"] = integers(10), torch.zeros(ROWS, 10)
    return lambda: kernels.dequantize_squeezellm(*stored, validate=False, **options)


def usual() -> dict[str, Callable[[], Any]]:
    """What speed is asked of."""
    return {
        "awq": awq(BFLOAT),
        "gptq4": gptq(4, BFLOAT),
        "gptq8": gptq(8, BFLOAT),
        "gptq3": gptq(3, BFLOAT),
        "gptq4, g_idx": gptq(4, BFLOAT, order=True),
        "nf4": nf4(BFLOAT),
        "nf4, nested": nf4(BFLOAT, nested=True),
        "fp4": fp4(HALF),
        "int8": int8(BFLOAT),
        "squeezellm4": squeezellm(4, BFLOAT),
    }


def others() -> dict[str, Callable[[], Any]]:
    """Other widths, dtypes, groups, tails and sizes, and the kernels of sums."""
    return {
        "awq, float32": awq(SINGLE),
        "awq, group 4": awq(HALF, group=4, columns=72),
        "gptq2": gptq(2, HALF),
        "gptq4, float32": gptq(4, SINGLE),
        "gptq4, group 100": gptq(4, HALF, group=100, columns=72),
        "gptq8, N 60": gptq(8, HALF, columns=60),
        "gptq3, g_idx": gptq(3, HALF, order=True),
        "gptq8, g_idx": gptq(8, HALF, order=True),
        "nf4, tail": nf4(HALF, n=ROWS * COLUMNS + 3),
        "nf4, float32, nested": nf4(SINGLE, nested=True),
        "nf4, block 12": nf4(HALF, n=12_000, block=12),
        "int8, K 1020": int8(HALF, columns=1020),
        "int8, float32": int8(SINGLE),
        "squeezellm3, sums": squeezellm(3, HALF, sums=True),
        "squeezellm4, float32, sums": squeezellm(4, SINGLE, sums=True, table=SINGLE),
        "squeezellm4, odd N": squeezellm(4, HALF, columns=1001, sums=True),
    }


def one_of_each() -> list[Callable[[], Any]]:
    """As few as launch every kernel."""
    return [awq(BFLOAT), gptq(4, BFLOAT), nf4(BFLOAT), int8(BFLOAT), squeezellm(4, BFLOAT, sums=True)]
