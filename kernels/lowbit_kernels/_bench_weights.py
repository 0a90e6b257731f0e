"""Weight dequantisation as the bench measures it: random stored tensors of each scheme, and the bytes that they move.

    dequantize_awq, dequantize_gptq<bits>, dequantize_gptq4_g_idx, dequantize_nf4[_nested], dequantize_fp4,
    dequantize_int8, dequantize_squeezellm<bits>

Rows and columns are those of the decoded weight, as its kernel returns it; groups and blocks have the sizes below.
Every word is a valid word, so that the operands need no quantiser; scales are positive and normal.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from lowbit_kernels import awq, gptq, int8, nf4, squeezellm
from lowbit_kernels._bench_case import Case, Formula, Traffic, allocating

GROUP = 128
BLOCK = 64
NESTED_BLOCK = 256


def _words(x: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Random stored integers, every bit pattern as likely."""
    return torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, device=x.device).view(dtype).squeeze(-1)


def _scales(x: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.rand(shape, device=x.device).add_(0.5).mul_(0.01).to(dtype or x.dtype)


def awq_case(x: torch.Tensor) -> Case:
    (rows, columns), groups = x.shape, x.shape[0] // GROUP
    stored = (_words(x, (rows, columns // 8)), _words(x, (groups, columns // 8)), _scales(x, (groups, columns)))
    return allocating(partial(awq.dequantize_awq, *stored, group_size=GROUP, dtype=x.dtype), *stored)


def gptq_case(x: torch.Tensor, bits: int, act_order: bool = False) -> Case:
    (rows, columns), groups = x.shape, x.shape[0] // GROUP
    stored: tuple[torch.Tensor, ...] = (
        _words(x, (rows * bits // 32, columns)),
        _words(x, (groups, columns * bits // 32)),
        _scales(x, (groups, columns)),
    )
    if act_order:
        order = torch.randperm(rows, device=x.device)
        stored = (*stored, (order // GROUP).to(torch.int32))
    options: dict[str, Any] = {"bits": bits, "group_size": GROUP, "dtype": x.dtype, "validate": False}
    return allocating(partial(gptq.dequantize_gptq, *stored, **options), *stored)


def nf4_case(x: torch.Tensor, table: str = "nf4", nested: bool = False) -> Case:
    """The absmax of a nested case is a code, its table and the second absmax float32."""
    blocks = -(-x.numel() // BLOCK)
    packed = _words(x, (-(-x.numel() // 2),), torch.uint8)
    decode = {"nf4": nf4.dequantize_nf4, "fp4": nf4.dequantize_fp4}[table]
    options: dict[str, Any] = {"shape": tuple(x.shape), "block_size": BLOCK, "dtype": x.dtype}
    if not nested:
        absmax = _scales(x, (blocks,), torch.float32)
        return allocating(partial(decode, packed, absmax, **options), packed, absmax)
    codes, second = _words(x, (blocks,), torch.uint8), _scales(x, (-(-blocks // NESTED_BLOCK),), torch.float32)
    code, offset = torch.linspace(-1, 1, 256, device=x.device), _scales(x, (1,), torch.float32)
    call = partial(decode, packed, codes, nested=(code, second, offset, NESTED_BLOCK), **options)
    return allocating(call, packed, codes, code, second, offset)


def int8_case(x: torch.Tensor) -> Case:
    weight, scale = _words(x, tuple(x.shape), torch.int8), _scales(x, (x.shape[0],), torch.float32)
    return allocating(partial(int8.dequantize_int8, weight, scale, dtype=x.dtype), weight, scale)


def squeezellm_case(x: torch.Tensor, bits: int) -> Case:
    rows, columns = x.shape
    words, table = _words(x, (rows * bits // 32, columns)), _scales(x, (columns, 1 << bits), torch.float16)
    return allocating(partial(squeezellm.dequantize_squeezellm, words, table, bits=bits, dtype=x.dtype), words, table)


def grouped(bits: int, *, act_order: bool = False) -> Formula:
    """Bytes of words, zero points and 16-bit scales of groups along the rows; and of the index of each row's group."""

    def traffic(rows: int, columns: int, size: int) -> Traffic:
        groups = -(-rows // GROUP)
        stored = rows * columns * bits // 8 + groups * columns * bits // 8 + groups * columns * 2
        return Traffic(stored + (4 * rows if act_order else 0), rows * columns * size)

    return traffic


def blocked(*, nested: bool = False) -> Formula:
    """Bytes of nibbles and of the absmax of each flat block."""

    def traffic(rows: int, columns: int, size: int) -> Traffic:
        n = rows * columns
        blocks = -(-n // BLOCK)
        absmax = blocks + 4 * -(-blocks // NESTED_BLOCK) + 4 * 256 + 4 if nested else 4 * blocks
        return Traffic(-(-n // 2) + absmax, n * size)

    return traffic


def by_row(rows: int, columns: int, size: int) -> Traffic:
    """Bytes of int8 with a float32 scale a row."""
    return Traffic(rows * columns + 4 * rows, rows * columns * size)


def by_table(bits: int) -> Formula:
    """Bytes of words and of a float16 table a column."""
    return lambda rows, columns, size: Traffic(
        rows * columns * bits // 8 + columns * 2**bits * 2, rows * columns * size
    )
