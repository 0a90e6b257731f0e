"""The kernel behind `matmul.py` for a few rows of a: what it costs is to read and decode b once.

    small_kernel      BLOCK_N rows of b by all of a, or, with SPLIT_K > 1, for one part of k into a workspace

Each warp has a part of k to itself and shares nothing before the sums meet: what a thread loads is what the tensor
core's instruction (m16n8k16 and its like) wants of it, so that operands go from memory through the decoder to the
product in registers. Axes of the tensors:

    row      BLOCK / 8   registers: further rows
    warp     WARPS       parts of k
    eight    8           rows that lanes of one instruction hold
    quad     4           lanes that share a row
    word     4           of a thread: 32 elements of a row in a step

Compilers deal a tensor out to lanes from its last axis but one or from its first, by their version: LAST says which,
and the axes are in this order or, but for the last, in the opposite one. It changes no result.

Places within a program's rows are 32-bit: `FEW_STRIDE` of the launcher keeps 128 rows within 2**31 words.

What the next step needs is loaded in a branch of its own: within one block of code the compiler would put those loads
behind the arithmetic of this step. A turn of the loop is two steps, whose operands keep their registers: handed on from
step to step they would be moved, a tenth of all instructions.

A step is 128 elements of each warp. The elements are dealt to the places of the instruction in another order than they
lie in memory, the same for both operands; a sum over k does not care.

Rows of b are taken 32 apart, four at a time, since their scales lie beside each other in the swizzled layout.

    float16, NVFP4, CVT     a byte s00eem00 is, in E4M3, the value times 2**-6; times its scale it has at most six
                            significant bits, is at most 42 and a multiple of 2**-16: exact
    else                    as `_matmul_decode.py` says

Rows past the end repeat the last one and are not stored; blocks past the end are zeros with scale 0, whatever the
padding of a scale buffer holds. An accumulated 0 is +0. No atomics: the same bits each time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels._matmul_decode import e4m3_pair, e8m0_factors, elements
from lowbit_kernels._matmul_kernels import finish, tensor_factor


def converting() -> str:
    """PTX that decodes the word $8 and scales it by the pair of halves $9 into the halves $0 … $7.

    Even elements become the bytes of l, odd ones those of h.
    """
    lines = ["{", ".reg .b32 l, h, t, s;", ".reg .b16 x, y;", "mov.b32 s, $9;"]
    lines += [
        "shl.b32 l, $8, 4;",
        "shl.b32 t, $8, 2;",
        "and.b32 t, t, 0x1c1c1c1c;",
        "lop3.b32 l, l, 0x80808080, t, 0xea;",
    ]
    lines += ["shr.b32 t, $8, 2;", "and.b32 t, t, 0x1c1c1c1c;", "lop3.b32 h, $8, 0x80808080, t, 0xea;"]
    for first, half in ((0, "l"), (4, "h")):
        lines += [f"mov.b32 {{x, y}}, {half};"]
        for low, part in ((first, "x"), (first + 2, "y")):
            lines += [f"cvt.rn.f16x2.e4m3x2 t, {part};", "mul.rn.f16x2 t, t, s;", f"mov.b32 {{${low}, ${low + 1}}}, t;"]
    return "\n".join([*lines, "}"])


CONVERTING = tl.constexpr(converting())

TWO_SCALES = tl.constexpr(  # of the word $2, each twice
    "{ .reg .b16 x, y; .reg .b32 t; mov.b32 {x, y}, $2; "
    "cvt.rn.f16x2.e4m3x2 t, x; prmt.b32 $0, t, t, 0x1010; prmt.b32 $1, t, t, 0x3232; }"
)


@triton.constexpr_function
def halvings(length: int) -> int:
    """How often a power of two can be halved."""
    return length.bit_length() - 1


@triton.jit
def _axis(x, AXIS: tl.constexpr, LAST: tl.constexpr):
    """x: (size,). -> as one of the axes row (0), warp (1), eight (2) and quad (3) of four."""
    if (0 if LAST else 3) == AXIS:
        return x[:, None, None, None]
    elif (1 if LAST else 2) == AXIS:
        return x[None, :, None, None]
    elif (2 if LAST else 1) == AXIS:
        return x[None, None, :, None]
    else:
        return x[None, None, None, :]


@triton.jit
def _factors(scales, quad, MX: tl.constexpr, PTX: tl.constexpr, CVT: tl.constexpr):
    """The factors of a thread's words, of each two.

    scales: int32, any shape, the word that has their scales. -> two of that shape: pairs of halves as int32
    with CVT, else float16, or with MX, the same twice, bfloat16 or float32.
    """
    if MX:
        factor = e8m0_factors((scales >> (quad * 8)) & 0xFF, PTX)
        return factor, factor
    elif CVT:
        i = tl.int32
        pair = scales >> ((quad & 1) * 16)
        return tl.inline_asm_elementwise(TWO_SCALES, "=r,=r,r", [pair], dtype=(i, i), is_pure=True, pack=1)
    else:
        return e4m3_pair((scales >> ((quad & 1) * 16)) & 0xFFFF)


@triton.jit
def _decode(
    words,
    first,
    second,
    MX: tl.constexpr,
    PTX: tl.constexpr,
    CVT: tl.constexpr,
    SPAN: tl.constexpr,
    LAST: tl.constexpr,
):
    """words: five axes; first, second: four, the factors of two words each. -> (WARPS, ROWS * 8, 128)."""
    ROWS: tl.constexpr = words.shape[0 if LAST else 3]
    WARPS: tl.constexpr = words.shape[1 if LAST else 2]
    factors = tl.join(first, second)[:, :, :, :, :, None]
    if LAST:
        factors = tl.reshape(tl.broadcast_to(factors, (ROWS, WARPS, 8, 4, 2, 2)), (ROWS, WARPS, 8, 4, 4))
    else:
        factors = tl.reshape(tl.broadcast_to(factors, (4, 8, WARPS, ROWS, 2, 2)), (4, 8, WARPS, ROWS, 4))
    if CVT and not MX:
        t = tl.int16
        x0, x1, x2, x3, x4, x5, x6, x7 = tl.inline_asm_elementwise(
            CONVERTING,
            "=h,=h,=h,=h,=h,=h,=h,=h,r,r",
            [words, factors],
            dtype=(t, t, t, t, t, t, t, t),
            is_pure=True,
            pack=1,
        )
    else:
        x0, x1, x2, x3, x4, x5, x6, x7 = elements(words, factors, MX, PTX)
    x = tl.join(tl.join(tl.join(x0, x4), tl.join(x2, x6)), tl.join(tl.join(x1, x5), tl.join(x3, x7)))
    if LAST:
        x = tl.permute(tl.reshape(x, (ROWS, WARPS, 8, 4, 32 // SPAN, SPAN)), (1, 0, 2, 4, 3, 5))
    else:
        x = tl.permute(tl.reshape(x, (4, 8, WARPS, ROWS, 32 // SPAN, SPAN)), (2, 3, 1, 4, 0, 5))
    x = tl.reshape(x, (WARPS, ROWS * 8, 128))
    if CVT and not MX:
        x = x.to(tl.float16, bitcast=True)
    return x


@triton.jit
def _read(at, word, words, MASKED: tl.constexpr):
    """at: pointers, five axes."""
    if MASKED:
        return tl.load(at, mask=word < words, other=0)
    else:
        return tl.load(at)


@triton.jit
def _read_scales(at, tile, tiles, blocks, MASKED: tl.constexpr, LAST: tl.constexpr):
    """at: pointers, four axes and a fifth that is split off the rows; tile: four axes. -> four axes, int32.

    With MASKED bytes of blocks that do not exist are 0.
    """
    WARPS: tl.constexpr = at.shape[1 if LAST else 2]
    ROWS: tl.constexpr = at.shape[0 if LAST else 3] * at.shape[4]
    if MASKED:
        scales = tl.load(at, mask=(tile < tiles)[:, :, :, :, None], other=0)
        left = tl.minimum(tl.maximum(blocks - tile * 4, 0), 4)
        scales = scales & tl.where(left == 4, -1, (1 << (left * 8)) - 1)[:, :, :, :, None]
    else:
        scales = tl.load(at)
    if LAST:
        return tl.reshape(tl.permute(scales, (0, 4, 1, 2, 3)), (ROWS, WARPS, 8, 4))
    else:
        return tl.reshape(scales, (4, 8, WARPS, ROWS))


@triton.jit
def _load(
    b_ptr,
    b_scales_ptr,
    a_ptr,
    a_scales_ptr,
    places,
    word,
    words,
    tile,
    tiles,
    blocks,
    MASKED: tl.constexpr,
    LAST: tl.constexpr,
):
    """The operands of a step: words of b and a, words of their scales. places: of the same four, from the pointers."""
    b_scales = _read_scales(b_scales_ptr + places[1], tile, tiles, blocks, MASKED, LAST)
    a_scales = _read_scales(a_scales_ptr + places[3], tile, tiles, blocks, MASKED, LAST)
    b = _read(b_ptr + places[0], word, words, MASKED)
    return b, b_scales, _read(a_ptr + places[2], word, words, MASKED), a_scales


@triton.jit
def _multiply(
    acc,
    operands,
    quad,
    MX: tl.constexpr,
    PTX: tl.constexpr,
    CVT: tl.constexpr,
    SPAN: tl.constexpr,
    LAST: tl.constexpr,
):
    """A step. acc: (WARPS, BLOCK_N, BLOCK_M); operands: of `_load`."""
    b, b_scales, a, a_scales = operands
    b_first, b_second = _factors(b_scales, quad, MX, PTX, CVT)
    a_first, a_second = _factors(a_scales, quad, MX, PTX, CVT)
    a = _decode(a, a_first, a_second, MX, PTX, CVT, SPAN, LAST)
    b = _decode(b, b_first, b_second, MX, PTX, CVT, SPAN, LAST)
    return tl.dot(b, tl.permute(a, (0, 2, 1)), acc)


@triton.jit
def _over_warps(acc):
    """acc: (WARPS, BLOCK_N, BLOCK_M). -> (BLOCK_N, BLOCK_M), the sum over warps.

    By halves, since the compiler would have the threads of `tl.sum` meet in one bank of shared memory.
    """
    BLOCK_N: tl.constexpr = acc.shape[1]
    BLOCK_M: tl.constexpr = acc.shape[2]
    COUNT: tl.constexpr = halvings(acc.shape[0])
    total = tl.permute(acc, (1, 2, 0))
    for i in tl.static_range(COUNT):
        low, high = tl.split(tl.reshape(total, (BLOCK_N, BLOCK_M, 1 << (COUNT - 1 - i), 2)))
        total = low + high
    return tl.reshape(total, (BLOCK_N, BLOCK_M))


@triton.jit
def _row_of(low, high, eight):
    """The row of b, int64: those of a program are 8 by 4 for each low, of a tile of scales, which has four of them."""
    return (low >> 2).to(tl.int64) * 128 + (high * 32 + (low & 3) * 8 + eight)


@triton.jit(do_not_specialize=["m", "blocks", "tiles", "steps"])
def small_kernel(
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
    CVT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WARPS: tl.constexpr,
    SPLIT_K: tl.constexpr,
    SPAN: tl.constexpr,
    LAST: tl.constexpr,
):
    """a_ptr, b_ptr, a_scales_ptr, b_scales_ptr: int32 words, of eight codes or four scales.

    words, blocks, tiles: K / 8, K / 16 (MX: K / 32) and ceil(blocks / 4), of a row. a_stride, b_stride: words between
    rows. steps: of 128 elements for each warp; STEPS: the same in the interpreter, whose loops need it, else 0. MASKED:
    SPLIT_K * WARPS * steps * 128 passes K. SPAN: elements of a thread that the instruction's operands have beside each
    other. The grid is (ceil(n / 128) * 128 / BLOCK_N, SPLIT_K). out_ptr: (m, n), with SPLIT_K > 1 (SPLIT_K, m, n)
    float32.
    """
    A_ROWS: tl.constexpr = BLOCK_M // 8
    B_ROWS: tl.constexpr = BLOCK_N // 8
    LOW: tl.constexpr = B_ROWS // 4
    TILES: tl.constexpr = 1 if MX else 2  # of scales in a step
    part = _axis(tl.program_id(1) * WARPS + tl.arange(0, WARPS), 1, LAST)
    eight = _axis(tl.arange(0, 8), 2, LAST)
    quad = _axis(tl.arange(0, 4), 3, LAST)
    low = _axis(tl.program_id(0) * LOW + tl.arange(0, LOW), 0, LAST)
    row = _axis(tl.arange(0, B_ROWS), 0, LAST)
    first_n = (tl.program_id(0) * LOW >> 2).to(tl.int64) * 128
    row_n = (row & 3) * 32 + ((tl.program_id(0) * LOW + (row >> 2)) & 3) * 8 + eight
    row_m = _axis(tl.arange(0, A_ROWS), 0, LAST) * 8 + eight
    four = tl.arange(0, 4)[None, None, None, None, :]

    word = (part * (steps * 16) + quad * 4)[:, :, :, :, None] + four
    b_word = (tl.minimum(row_n, n - 1 - first_n).to(tl.int32) * b_stride)[:, :, :, :, None] + word
    a_word = (tl.minimum(row_m, m - 1) * a_stride)[:, :, :, :, None] + word
    tile = part * (steps * TILES) + (quad * 0 if MX else quad >> 1)
    b_scale = ((low & 3) * 32 + eight * 4 + tile * 128)[:, :, :, :, None] + four
    a_scale = ((row_m & 31) * 4 + (row_m >> 5) + tile * 128)[:, :, :, :, None]
    b_ptr += first_n * b_stride
    b_scales_ptr += (first_n >> 7) * (tiles * 128)
    # read here, since nothing would hide the time that it takes after the loop
    factor = tensor_factor(a_factor_ptr, b_factor_ptr, HAS_A, HAS_B)

    acc = tl.zeros((WARPS, BLOCK_N, BLOCK_M), tl.float32)
    places = b_word, b_scale, a_word, a_scale
    even = _load(b_ptr, b_scales_ptr, a_ptr, a_scales_ptr, places, word, words, tile, tiles, blocks, MASKED, LAST)
    odd = even
    for step in range(0, STEPS if STEPS else steps, 2):
        b_scales_ptr += TILES * 128
        a_scales_ptr += TILES * 128
        b_ptr += 16
        a_ptr += 16
        word += 16
        tile += TILES
        if step + 1 < steps:
            odd = _load(
                b_ptr, b_scales_ptr, a_ptr, a_scales_ptr, places, word, words, tile, tiles, blocks, MASKED, LAST
            )
        acc = _multiply(acc, even, quad, MX, PTX, CVT, SPAN, LAST)
        b_scales_ptr += TILES * 128
        a_scales_ptr += TILES * 128
        b_ptr += 16
        a_ptr += 16
        word += 16
        tile += TILES
        if step + 1 < steps:
            if step + 2 < steps:
                even = _load(
                    b_ptr, b_scales_ptr, a_ptr, a_scales_ptr, places, word, words, tile, tiles, blocks, MASKED, LAST
                )
            acc = _multiply(acc, odd, quad, MX, PTX, CVT, SPAN, LAST)
    total = _over_warps(acc)
    if CVT and not MX:
        total = total * 0.25  # 2**-12 becomes what `finish` expects

    index = tl.arange(0, BLOCK_N)
    out_n = _row_of(tl.program_id(0) * LOW + (index >> 5), (index >> 3) & 3, index & 7)[:, None]
    out_m = tl.arange(0, BLOCK_M)[None, :].to(tl.int64)
    offsets = out_m * n + out_n
    exists = (out_m < m) & (out_n < n)
    if SPLIT_K == 1:
        out = finish(total, factor, MX, out_ptr.dtype.element_ty)
        tl.store(out_ptr + offsets, out, mask=exists)
    else:
        tl.store(out_ptr + tl.program_id(1).to(tl.int64) * m * n + offsets, total, mask=exists)
