"""The kernels that compute the tensor scale of NVFP4, in front of those of `_nvfp4_kernels.py`.

    amax_kernel            x → one partial maximum a program
    tensor_scale_kernel    partial maxima → g

|RN32(x * g)| does not fall where |x| grows, so integer maxima of the patterns of x are enough; Inf and then NaN are the
largest. Tiles are those of `_nvfp4_tiles.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels import _pairs
from lowbit_kernels._codec import widen
from lowbit_kernels._nvfp4_tiles import load_blocks, tile_of

_BFLOAT16 = tl.constexpr(_pairs.BFLOAT16)
_FLOAT16 = tl.constexpr(_pairs.FLOAT16)
_FLOAT32 = tl.constexpr(_pairs.FLOAT32)

SPAN = tl.constexpr(2688.0)  # 6 * 448, the largest value that codes and scale can hold
LEAST_AMAX = tl.constexpr(0x2B8CBCCC)  # RN32(1e-12)
LARGEST_BITS = tl.constexpr(0x7F7FFFFF)  # FLT_MAX


@triton.jit
def _bits(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def _float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _keys(x, LIMIT: tl.constexpr, PAIRS: tl.constexpr):
    """Left-aligned magnitude patterns as uint32, of a pair the larger; with a LIMIT, those from it on count as 0.

    A high half keeps its neighbour's bits below its own; they decide nothing between different magnitudes.
    """
    if PAIRS == _FLOAT32:
        low = x.to(tl.uint32) << 1
        high = (x >> 32).to(tl.uint32) << 1
    elif PAIRS:
        low = x.to(tl.uint32, bitcast=True) << 17
        high = x.to(tl.uint32, bitcast=True) << 1
    else:
        low = _bits(widen(x)).to(tl.uint32, bitcast=True) << 1
        high = low
    if LIMIT:
        low = tl.where(low >= LIMIT, 0, low)
        high = tl.where(high >= LIMIT, 0, high)
    return tl.maximum(low, high)


@triton.jit
def _largest_key(
    x_ptr,
    rows,
    groups,
    row_step,
    column_stride,
    tiles,
    LIMIT: tl.constexpr,
    PAIRS: tl.constexpr,
    FLAT: tl.constexpr,
    ROW_UNIT: tl.constexpr,
    ADJACENT: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):
    """The largest key of this program's tiles, as a uint32 scalar."""
    PER_BLOCK: tl.constexpr = 8 if PAIRS else 16
    largest = tl.zeros((BLOCK_ROWS * BLOCK_GROUPS, PER_BLOCK), tl.uint32)
    tile = tl.program_id(0)
    while tile < tiles:  # older interpreters cannot take tensors as the bounds of a range
        first_row, first_group, row, group, exists = tile_of(tile, rows, groups, FLAT, WIDE, BLOCK_ROWS, BLOCK_GROUPS)
        x = load_blocks(
            x_ptr, first_row, first_group, row, group, exists, row_step, column_stride,
            PER_BLOCK, FLAT, ROW_UNIT, ADJACENT, WHOLE,
        )  # fmt: skip
        largest = tl.maximum(largest, _keys(x, LIMIT, PAIRS))
        tile += tl.num_programs(0)
    return tl.max(tl.max(largest, axis=1), axis=0)


@triton.jit(do_not_specialize=["rows", "groups", "row_step", "column_stride", "tiles"])
def amax_kernel(
    x_ptr,
    partial_ptr,
    rows,
    groups,
    row_step,
    column_stride,
    tiles,
    FINITE: tl.constexpr,
    PAIRS: tl.constexpr,
    FLAT: tl.constexpr,
    ROW_UNIT: tl.constexpr,
    ADJACENT: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):
    """One int32 a program: the largest float32 magnitude pattern of its tiles; with FINITE of the finite elements only.

    Only a program that meets Inf or NaN reads its tiles again and leaves them out.
    """
    INFINITE: tl.constexpr = 0xF8000000 if PAIRS == _FLOAT16 else 0xFF000000
    top = _largest_key(
        x_ptr, rows, groups, row_step, column_stride, tiles, 0,
        PAIRS, FLAT, ROW_UNIT, ADJACENT, WHOLE, WIDE, BLOCK_ROWS, BLOCK_GROUPS,
    )  # fmt: skip
    if FINITE:
        again = top >= INFINITE
        if again:
            top = _largest_key(
                x_ptr, rows, groups, row_step, column_stride, tiles, INFINITE,
                PAIRS, FLAT, ROW_UNIT, ADJACENT, WHOLE, WIDE, BLOCK_ROWS, BLOCK_GROUPS,
            )  # fmt: skip
    if PAIRS == _FLOAT16:
        bits = _bits((top >> 17).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32))
    elif PAIRS == _BFLOAT16:
        bits = (top >> 1).to(tl.int32, bitcast=True) & 0x7FFF0000
    else:
        bits = (top >> 1).to(tl.int32, bitcast=True)
    tl.store(partial_ptr + tl.program_id(0), bits)


@triton.jit(do_not_specialize=["count"])
def tensor_scale_kernel(partial_ptr, count, g_ptr, CANONICAL: tl.constexpr, BLOCK: tl.constexpr):
    """g of the largest of `count` <= BLOCK patterns, 0 of none. Divisions are correctly rounded.

    canonical    a = 0: 1, else min(RN32(2688 / a), FLT_MAX)
    else         RN32(RN32(1 / max(a, RN32(1e-12))) * 2688), which gives 0 for Inf and NaN for NaN
    """
    index = tl.arange(0, BLOCK)
    bits = tl.max(tl.load(partial_ptr + index, mask=index < count, other=0), axis=0)
    if CANONICAL:
        g = tl.div_rn(SPAN, _float(tl.where(bits == 0, 0x3F800000, bits)))
        g = tl.where(bits == 0, 1.0, _float(tl.minimum(_bits(g), LARGEST_BITS)))
    else:
        g = tl.div_rn(1.0, _float(tl.maximum(bits, LEAST_AMAX))) * SPAN
    tl.store(g_ptr, g)
