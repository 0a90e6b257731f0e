"""A kernel for Hopper's tensor cores, in Gluon: it decodes the next tile while the tensor cores multiply this one.

    matmul_kernel     one tile of out: RN(out)(RN32(acc * RN32(ra * rb)))

All warps load packed words two steps ahead into registers, decode those of the next step and write the operands to the
next buffer in shared memory, while the asynchronous product of this step reads its own.

Elements reach shared memory in an order that both operands share; a sum over k does not care. A word of eight codes
becomes one 16-byte piece with the elements 0 2 4 6 1 3 5 7 (NVFP4) or 0 4 1 5 2 6 3 7 (MXFP4), and with 16 words a row
the pieces are dealt so that eight neighbouring lanes write to different banks under the 128-byte swizzle.

    binary16, NVFP4     a byte s00eem00 is, in E4M3, the value times 2**-6; times its scale it has at most six
                        significant bits, is at most 42 and a multiple of 2**-16: exact. Both operands have the factor.
    bfloat16, MXFP4     s000000eem000000 is the value times 2**-126; times 2**126, times 2**(b - 127)

Rows past the end repeat the last one and are not stored; blocks past the end are zeros with scale 0, whatever the
padding of a scale buffer holds. An accumulated 0 is +0. No atomics: the same bits each time.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper


def _e4m3_assembly() -> str:
    """PTX that decodes the word $4 and scales it by the pair of halves $5 into the pairs $0 ... $3."""
    lines = ["{", ".reg .b32 w, s, l, h, t;", ".reg .b16 x, y;", "mov.b32 w, $4;", "mov.b32 s, $5;"]
    lines += [
        "shl.b32 l, w, 4;",
        "shl.b32 t, w, 2;",
        "and.b32 t, t, 0x1c1c1c1c;",
        "lop3.b32 l, l, 0x80808080, t, 0xea;",
    ]
    lines += ["shr.u32 t, w, 2;", "and.b32 t, t, 0x1c1c1c1c;", "lop3.b32 h, w, 0x80808080, t, 0xea;"]
    for first, half in ((0, "l"), (2, "h")):
        lines += [f"mov.b32 {{x, y}}, {half};"]
        for pair, part in ((first, "x"), (first + 1, "y")):
            lines += [f"cvt.rn.f16x2.e4m3x2 t, {part};", f"mul.rn.f16x2 ${pair}, t, s;"]
    return "\n".join([*lines, "}"])


def _shift_assembly(shifts: tuple[int, ...], mask: int, multiply: tuple[str, ...]) -> str:
    """The same by shifts, which take the magnitudes of elements 0 and 4, 1 and 5, ... to their place, to the left."""
    lines = [
        "{",
        ".reg .b32 w, s, t, u, z, p;",
        "mov.b32 w, $4;",
        "mov.b32 s, $5;",
        "mov.b32 z, 0x80008000;",
        "mov.b32 p, 0x7e807e80;",
    ]
    for pair, shift in enumerate(shifts):
        lines += [
            f"shl.b32 t, w, {shift};" if shift > 0 else f"shr.u32 t, w, {-shift};",
            f"and.b32 t, t, {mask:#x};",
            f"shl.b32 u, w, {12 - 4 * pair};",
            "lop3.b32 t, u, z, t, 0xea;",
            *multiply,
            f"mov.b32 ${pair}, t;",
        ]
    return "\n".join([*lines, "}"])


_TO_BINARY16 = tl.constexpr(_e4m3_assembly())
_TO_BFLOAT16 = tl.constexpr(
    _shift_assembly((6, 2, -2, -6), 0x01C001C0, ("fma.rn.bf16x2 t, t, p, z;", "fma.rn.bf16x2 t, t, s, z;"))
)
_FACTORS = tl.constexpr(
    "{ .reg .b16 x, y; .reg .b32 t; mov.b32 {x, y}, $2; cvt.rn.f16x2.e4m3x2 t, x; "
    "prmt.b32 $0, t, t, 0x1010; prmt.b32 $1, t, t, 0x3232; }"
)

if hasattr(gl.shared_memory_descriptor, "reinterpret"):

    @gluon.jit
    def _as_words(buffer, ROWS: gl.constexpr, WORDS: gl.constexpr):
        return buffer.reinterpret(gl.int32, [ROWS, WORDS], gl.NVMMASharedLayout(128, 32, rank=2))

else:

    @gluon.jit
    def _as_words(buffer, ROWS: gl.constexpr, WORDS: gl.constexpr):
        return buffer._reinterpret(gl.int32, [ROWS, WORDS], gl.NVMMASharedLayout(128, 32, rank=2))


@gluon.jit
def _offsets(
    left, stride, tiles, ROWS: gl.constexpr, WORDS: gl.constexpr, MX: gl.constexpr, W: gl.constexpr, S: gl.constexpr
):
    """Where the words of a tile and its scales are, from the tile's first row.

    left: rows from there to the end. -> (ROWS, WORDS) and (ROWS, WORDS // 4) int32.
    """
    row = gl.minimum(gl.arange(0, ROWS, layout=gl.SliceLayout(1, W)), left - 1)
    word = gl.arange(0, WORDS, layout=gl.SliceLayout(0, W))
    words = (row * stride)[:, None] + word[None, :]
    row = gl.minimum(gl.arange(0, ROWS, layout=gl.SliceLayout(1, S)), left - 1)
    chunk = gl.arange(0, WORDS // 4, layout=gl.SliceLayout(0, S))
    first = (row >> 7) * (tiles * 128) + (row & 31) * 4 + ((row >> 5) & 3)
    scales = first[:, None] + ((chunk >> (2 if MX else 1)) * 128)[None, :]
    return words, scales


@gluon.jit
def _load(words_ptr, words, scales_ptr, scales, step, all_words, MX: gl.constexpr, MASKED: gl.constexpr):
    """The packed words and the words of scales of one step. all_words: of a row."""
    WORDS: gl.constexpr = words.shape[1]
    BLOCKS: gl.constexpr = WORDS // 4 if MX else WORDS // 2
    words_ptr += step * WORDS
    scales_ptr += step * BLOCKS // 4 * 128
    if MASKED:
        W: gl.constexpr = words.type.layout
        S: gl.constexpr = scales.type.layout
        left = all_words - step * WORDS
        word = gl.arange(0, WORDS, layout=gl.SliceLayout(0, W))
        chunk = gl.arange(0, WORDS // 4, layout=gl.SliceLayout(0, S))
        exists = gl.broadcast((word < left)[None, :], words)[0]
        covered = gl.broadcast((chunk * 4 < left)[None, :], scales)[0]
        return gl.load(words_ptr + words, mask=exists, other=0), gl.load(scales_ptr + scales, mask=covered, other=0)
    else:
        return gl.load(words_ptr + words), gl.load(scales_ptr + scales)


@gluon.jit
def _factors(scales, step, blocks, MX: gl.constexpr, MASKED: gl.constexpr):
    """scales: (ROWS, CHUNKS) int32 words. blocks: of a row. -> (ROWS, CHUNKS * 4) int32, pairs of halves."""
    ROWS: gl.constexpr = scales.shape[0]
    CHUNKS: gl.constexpr = scales.shape[1]
    S: gl.constexpr = scales.type.layout
    chunk = step * CHUNKS + gl.arange(0, CHUNKS, layout=gl.SliceLayout(0, S))
    if MX:
        scales = (scales >> ((chunk & 3) * 8)[None, :]) & 0xFF
        if MASKED:
            scales = gl.where((chunk < blocks)[None, :], scales, 0)
        half = gl.where(scales == 0, 0x40, gl.where(scales == 255, 0x7FC0, scales << 7))
        both = half * 0x10001
        pairs = gl.join(both, both)
    else:
        scales = scales >> ((chunk & 1) * 16)[None, :]
        if MASKED:
            scales = scales & gl.where(2 * chunk + 1 < blocks, 0xFFFF, gl.where(2 * chunk < blocks, 0xFF, 0))[None, :]
        first, second = gl.inline_asm_elementwise(
            _FACTORS, "=r,=r,r", [scales], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
        )
        pairs = gl.join(first, second)
    return gl.reshape(gl.join(pairs, pairs), [ROWS, CHUNKS * 4])


@gluon.jit
def _write(buffer, words, scales, step, blocks, MX: gl.constexpr, MASKED: gl.constexpr):
    """Decodes a tile into shared memory.

    buffer: (ROWS, WORDS * 8) binary16 or (MX) bfloat16. words: (ROWS, WORDS) int32. scales: (ROWS, WORDS // 4) int32.
    """
    ROWS: gl.constexpr = words.shape[0]
    WORDS: gl.constexpr = words.shape[1]
    W: gl.constexpr = words.type.layout
    factors = gl.convert_layout(_factors(scales, step, blocks, MX, MASKED), W, assert_trivial=True)
    a, b, c, d = gl.inline_asm_elementwise(
        _TO_BFLOAT16 if MX else _TO_BINARY16,
        "=r,=r,=r,=r,r,r",
        [words, factors],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )
    pairs = gl.join(gl.join(a, c), gl.join(b, d))
    if WORDS == 16:
        pairs = gl.permute(gl.reshape(pairs, [ROWS, 4, 2, 2, 4]), (0, 2, 1, 3, 4))
    _as_words(buffer, ROWS, WORDS * 4).store(gl.reshape(pairs, [ROWS, WORDS * 4]))


@gluon.jit(
    do_not_specialize=["m", "words", "blocks", "tiles", "a_stride", "b_stride", "steps", "group"],
)
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
    group,
    MX: gl.constexpr,
    HAS_A: gl.constexpr,
    HAS_B: gl.constexpr,
    MASKED: gl.constexpr,
    ALIGNED: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):
    """a_ptr, b_ptr, a_scales_ptr, b_scales_ptr: int32 words, of eight codes or four scales.

    words, blocks, tiles: K / 8, K / 16 (MX: K / 32) and ceil(blocks / 4), of a row. a_stride, b_stride: words between
    rows; with ALIGNED, words and strides are in fours. steps: of BLOCK_K, at least 1. group: tiles of rows of a that
    are worked on together, whose operands the L2 cache then holds. MASKED: steps * BLOCK_K passes K. STAGES: tiles in
    shared memory. WARPS: of a program.
    """
    WORDS: gl.constexpr = BLOCK_K // 8
    LANES: gl.constexpr = WORDS // 4
    W: gl.constexpr = gl.BlockedLayout([1, 4], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    S: gl.constexpr = gl.BlockedLayout([1, 1], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_N, 16])
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    OPERAND: gl.constexpr = gl.bfloat16 if MX else gl.float16
    if ALIGNED:
        words = words * 4
        a_stride = a_stride * 4
        b_stride = b_stride * 4

    across = (n - 1) // BLOCK_N + 1  # as `_codec.tile_count`
    down = (m - 1) // BLOCK_M + 1
    program = gl.program_id(0)
    first = program // (group * across) * group
    height = gl.minimum(down - first, group)
    inside = program % (group * across)
    first_m = (first + inside % height) * BLOCK_M
    first_n = (inside // height) * BLOCK_N
    a_ptr += first_m.to(gl.int64) * a_stride
    b_ptr += first_n.to(gl.int64) * b_stride
    a_scales_ptr += (first_m // 128).to(gl.int64) * (tiles * 128)
    b_scales_ptr += (first_n // 128).to(gl.int64) * (tiles * 128)
    a_at, a_scales_at = _offsets(m - first_m, a_stride, tiles, BLOCK_M, WORDS, MX, W, S)
    b_at, b_scales_at = _offsets(n - first_n, b_stride, tiles, BLOCK_N, WORDS, MX, W, S)

    a_tiles = gl.allocate_shared_memory(OPERAND, [STAGES, BLOCK_M, BLOCK_K], SHARED)
    b_tiles = gl.allocate_shared_memory(OPERAND, [STAGES, BLOCK_N, BLOCK_K], SHARED)
    a, a_scales = _load(a_ptr, a_at, a_scales_ptr, a_scales_at, 0, words, MX, MASKED)
    b, b_scales = _load(b_ptr, b_at, b_scales_ptr, b_scales_at, 0, words, MX, MASKED)
    _write(a_tiles.index(0), a, a_scales, 0, blocks, MX, MASKED)
    _write(b_tiles.index(0), b, b_scales, 0, blocks, MX, MASKED)
    following = gl.minimum(1, steps - 1)
    a, a_scales = _load(a_ptr, a_at, a_scales_ptr, a_scales_at, following, words, MX, MASKED)
    b, b_scales = _load(b_ptr, b_at, b_scales_ptr, b_scales_at, following, words, MX, MASKED)
    hopper.fence_async_shared()

    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout=ACC)
    now = 0
    for step in range(0, steps - 1):
        acc = hopper.warpgroup_mma(a_tiles.index(now), b_tiles.index(now).permute((1, 0)), acc, is_async=True)
        following = gl.minimum(step + 2, steps - 1)
        next_a, next_a_scales = _load(a_ptr, a_at, a_scales_ptr, a_scales_at, following, words, MX, MASKED)
        next_b, next_b_scales = _load(b_ptr, b_at, b_scales_ptr, b_scales_at, following, words, MX, MASKED)
        acc = hopper.warpgroup_mma_wait(STAGES - 1, deps=(acc,))
        now = gl.where(now == STAGES - 1, 0, now + 1)
        _write(a_tiles.index(now), a, a_scales, step + 1, blocks, MX, MASKED)
        _write(b_tiles.index(now), b, b_scales, step + 1, blocks, MX, MASKED)
        hopper.fence_async_shared()
        a, a_scales, b, b_scales = next_a, next_a_scales, next_b, next_b_scales
    acc = hopper.warpgroup_mma(a_tiles.index(now), b_tiles.index(now).permute((1, 0)), acc, is_async=True)
    acc = hopper.warpgroup_mma_wait(0, deps=(acc,))

    if not MX:
        acc = acc * 4096.0
    acc = acc + 0.0  # -0 becomes +0
    if HAS_A and HAS_B:
        acc = acc * (gl.load(a_factor_ptr) * gl.load(b_factor_ptr))
    elif HAS_A:
        acc = acc * gl.load(a_factor_ptr)
    elif HAS_B:
        acc = acc * gl.load(b_factor_ptr)
    PIECE: gl.constexpr = 128 // out_ptr.dtype.element_ty.primitive_bitwidth
    OUT: gl.constexpr = gl.BlockedLayout([1, PIECE], [2, 16], [WARPS, 1], [1, 0])
    out = gl.convert_layout(acc.to(out_ptr.dtype.element_ty), OUT)
    row = first_m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, OUT))
    column = first_n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, OUT))
    at = (row.to(gl.int64) * n)[:, None] + column[None, :]
    gl.store(out_ptr + at, out, mask=(row < m)[:, None] & (column < n)[None, :])
