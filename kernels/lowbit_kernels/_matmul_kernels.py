"""The kernels behind `matmul.py`: both operands are decoded in registers and go straight to the tensor cores.

    out = RN(out)(RN32(acc * RN32(ra * rb)))        acc: the binary32 sum over k of operands from `_matmul_decode.py`

    matmul_kernel     one tile of out, or, with SPLIT_K > 1, of one part of k into a workspace
    reduce_kernel     adds the parts up, in order

SWAP computes the transpose, so that rows of b, of which there are many, are on the side of the tensor core that is at
least 64 wide, and a few rows of a on the one that can be 8 or 16.

Rows past the end repeat the last one and are not stored; blocks past the end are zeros with scale 0, whatever the
padding of a scale buffer holds. An accumulated 0 is +0. No atomics: the same bits each time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels._codec import round_bfloat16, tile_count
from lowbit_kernels._launch import INTERPRETED
from lowbit_kernels._matmul_decode import chunk_scales, decode, scale_row

_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def tensor_factor(a_ptr, b_ptr, HAS_A: tl.constexpr, HAS_B: tl.constexpr):
    """The product of the tensor factors that there are, float32; 1 where there is none."""
    if HAS_A and HAS_B:
        return tl.load(a_ptr) * tl.load(b_ptr)
    elif HAS_A:
        return tl.load(a_ptr)
    elif HAS_B:
        return tl.load(b_ptr)
    else:
        return 1.0


@triton.jit
def finish(acc, factor, MX: tl.constexpr, dtype):
    """acc: any shape, float32, as accumulated; factor: of `tensor_factor`. -> dtype, scaled."""
    if not MX:
        acc = acc * 16384.0  # both operands carry 2**-7
    acc = (acc + 0.0) * factor  # -0 becomes +0
    if dtype == tl.bfloat16 and _INTERPRETED:
        return round_bfloat16(acc)
    return acc.to(dtype)


@triton.jit
def _tile(m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """This program's first rows of a and b, int64: columns of GROUP_M tiles, whose operands the L2 cache then holds."""
    across, down = tile_count(n, BLOCK_N), tile_count(m, BLOCK_M)
    program = tl.program_id(0)
    first = program // (GROUP_M * across) * GROUP_M
    height = tl.minimum(down - first, GROUP_M)
    inside = program % (GROUP_M * across)
    return (first + inside % height).to(tl.int64) * BLOCK_M, (inside // height).to(tl.int64) * BLOCK_N


@triton.jit(do_not_specialize=["m", "blocks", "tiles", "steps"])
def matmul_kernel(
    a_ptr,
    a_scales_ptr,
    b_ptr,
    b_scales_ptr,
    a_factor_ptr,
    b_factor_ptr,
    out_ptr,
    m,
    n,
    words,
    blocks,
    tiles,
    a_stride,
    b_stride,
    steps,
    STEPS: tl.constexpr,
    MX: tl.constexpr,
    HAS_A: tl.constexpr,
    HAS_B: tl.constexpr,
    MASKED: tl.constexpr,
    PTX: tl.constexpr,
    SWAP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
):
    """a_ptr, b_ptr, a_scales_ptr, b_scales_ptr: int32 words, of eight codes or four scales.

    words, blocks, tiles: K / 8, K / 16 (MX: K / 32) and ceil(blocks / 4), of a row. a_stride, b_stride: words between
    rows. steps: of BLOCK_K for this part of k; STEPS: the same in the interpreter, whose loops need it, else 0. MASKED:
    SPLIT_K * steps * BLOCK_K passes K. out_ptr: (m, n), with SPLIT_K > 1 (SPLIT_K, m, n) float32.
    """
    WORDS: tl.constexpr = BLOCK_K // 8
    BLOCK: tl.constexpr = 32 if MX else 16
    STEP: tl.constexpr = BLOCK_K // BLOCK // 4 * 128  # words of scales from one step to the next
    SHIFT: tl.constexpr = 2 if MX else 1  # a word of scales has 2 or 4 chunks
    first_m, first_n = _tile(m, n, BLOCK_M, BLOCK_N, GROUP_M)
    row_m = first_m + tl.arange(0, BLOCK_M)
    row_n = first_n + tl.arange(0, BLOCK_N)
    read_m = tl.minimum(row_m, m - 1)
    read_n = tl.minimum(row_n, n - 1)
    word = tl.arange(0, WORDS)
    chunk = tl.arange(0, WORDS // 4)
    a_offsets = read_m[:, None] * a_stride + word[None, :]
    b_offsets = read_n[:, None] * b_stride + word[None, :]
    a_scale_offsets = scale_row(read_m, tiles)[:, None] + ((chunk >> SHIFT) * 128)[None, :]
    b_scale_offsets = scale_row(read_n, tiles)[:, None] + ((chunk >> SHIFT) * 128)[None, :]

    if SPLIT_K > 1:
        first = tl.program_id(1).to(tl.int64) * steps
        a_ptr += first * WORDS
        b_ptr += first * WORDS
        a_scales_ptr += first * STEP
        b_scales_ptr += first * STEP
        words -= (first * WORDS).to(tl.int32)
        blocks -= (first * (BLOCK_K // BLOCK)).to(tl.int32)
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, STEPS if STEPS else steps):
        if MASKED:
            word_left = (word < words - step * WORDS)[None, :]
            chunk_left = (chunk * 4 < words - step * WORDS)[None, :]
            a_words = tl.load(a_ptr + a_offsets, mask=word_left, other=0)  # (BLOCK_M, WORDS)
            b_words = tl.load(b_ptr + b_offsets, mask=word_left, other=0)  # (BLOCK_N, WORDS)
            a_scales = tl.load(a_scales_ptr + a_scale_offsets, mask=chunk_left, other=0)  # (BLOCK_M, WORDS // 4)
            b_scales = tl.load(b_scales_ptr + b_scale_offsets, mask=chunk_left, other=0)  # (BLOCK_N, WORDS // 4)
        else:
            a_words = tl.load(a_ptr + a_offsets)
            b_words = tl.load(b_ptr + b_offsets)
            a_scales = tl.load(a_scales_ptr + a_scale_offsets)
            b_scales = tl.load(b_scales_ptr + b_scale_offsets)
        blocks_left = blocks - step * (BLOCK_K // BLOCK)
        a = decode(a_words, chunk_scales(a_scales, chunk, blocks_left, MX, MASKED), MX, PTX)  # (BLOCK_M, BLOCK_K)
        b = decode(b_words, chunk_scales(b_scales, chunk, blocks_left, MX, MASKED), MX, PTX)  # (BLOCK_N, BLOCK_K)
        acc = tl.dot(b, tl.trans(a), acc) if SWAP else tl.dot(a, tl.trans(b), acc)
        a_ptr += WORDS
        b_ptr += WORDS
        a_scales_ptr += STEP
        b_scales_ptr += STEP
    if SWAP:
        acc = tl.trans(acc)  # (BLOCK_M, BLOCK_N)

    offsets = row_m[:, None] * n + row_n[None, :]
    exists = (row_m < m)[:, None] & (row_n < n)[None, :]
    if SPLIT_K == 1:
        factor = tensor_factor(a_factor_ptr, b_factor_ptr, HAS_A, HAS_B)
        out = finish(acc, factor, MX, out_ptr.dtype.element_ty)
        tl.store(out_ptr + offsets, out, mask=exists)
    else:
        tl.store(out_ptr + tl.program_id(1).to(tl.int64) * m * n + offsets, acc, mask=exists)


@triton.jit
def reduce_kernel(
    parts_ptr,
    a_factor_ptr,
    b_factor_ptr,
    out_ptr,
    size,
    MX: tl.constexpr,
    HAS_A: tl.constexpr,
    HAS_B: tl.constexpr,
    SPLIT_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """parts_ptr: (SPLIT_K, size) float32. out_ptr: (size,) of the output's dtype."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = offsets < size
    acc = tl.load(parts_ptr + offsets, mask=exists, other=0.0)
    for _part in tl.static_range(1, SPLIT_K):
        parts_ptr += size
        acc += tl.load(parts_ptr + offsets, mask=exists, other=0.0)
    factor = tensor_factor(a_factor_ptr, b_factor_ptr, HAS_A, HAS_B)
    out = finish(acc, factor, MX, out_ptr.dtype.element_ty)
    tl.store(out_ptr + offsets, out, mask=exists)
