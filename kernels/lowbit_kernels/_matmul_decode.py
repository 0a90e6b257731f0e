"""Device functions that make operands of a tensor core out of packed words and swizzled scales.

    packed row    | word 0: elements 0 … 7, element i in bits 4i … 4i + 3 | word 1: elements 8 … 15 | …
    scales        SWIZZLE_32_4_4 (see `swizzle.py`): the four scales of a row in one tile are one aligned 32-bit word

    scale_row(row, tiles) -> where a row's first word of scales is
    chunk_scales(words, chunk, blocks, MX, MASKED) -> int32, the scale bytes of a chunk in its low bits
    decode(words, scales, MX, PTX, ROWS, WORDS) -> (ROWS, WORDS * 8) the operand

A chunk is four words, 32 elements: two NVFP4 blocks or one MXFP4 block. One thread holds its words, its scales and its
32 decoded elements, so that nothing moves between threads before shared memory.

Elements i and i + 4 of a word lie 16 bits apart, so two shifts and two masks give both at once:

    binary16, NVFP4     s 00eem000000000        the value times 2**-14: E2M1's gradual underflow is binary16's
    bfloat16, MXFP4     s 000000eem000000       the value times 2**-126

* NVFP4. An E4M3 byte in bits 7 … 13 of a binary16 is its value times 2**-8 for the same reason; times 2**15 that is
  s * 2**7, at most 448 * 128 = 57344. Then (value * 2**-14) * (s * 2**7) = value * s * 2**-7 has at most six
  significant bits, is at most 21 and a multiple of 2**-17: exact. Both operands have the factor 2**-7.
* MXFP4. Times 2**126, then times 2**(b - 127): exact in bfloat16 unless it overflows, as only b = 253 and 254 can do.
  The least, half of b = 0, is 2**-128: a subnormal, which tensor cores take as it is.

The elements of a word come out in the order 0 4 1 5 2 6 3 7, in both operands; a sum over k does not care.

With PTX each pair of halves stays in one register from the mask to shared memory, about three instructions an element;
without, the same is said in Triton, for other targets and the interpreter (which has no bfloat16 arithmetic, so that
MXFP4 operands are binary32 there, with the same values).
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels._codec import cast_exact, power_of_two, power_of_two_constant
from lowbit_kernels._launch import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)
_BINARY16 = tl.constexpr(0x0E000E00)
_BFLOAT16 = tl.constexpr(0x01C001C0)
_SIGNS = tl.constexpr(-0x7FFF8000)  # 0x80008000 as int32


def assembly(shifts: tuple[int, ...], mask: int, multiply: tuple[str, ...]) -> str:
    """PTX that decodes the word $8 and scales it by the half $9 into the halves $0 … $7.

    Args:
      shifts: what takes the magnitudes of elements 0 and 4, 1 and 5, … to their place, to the left.
      mask: of the two magnitudes.
      multiply: what multiplies t by s; z is -0, p is 2**126, twice each, the latter in bfloat16.
    """
    lines = ["{", ".reg .b32 s, t, u, z, p;", "mov.b32 s, {$9, $9};"]
    lines += ["mov.b32 z, 0x80008000;", "mov.b32 p, 0x7e807e80;"]
    for pair, shift in enumerate(shifts):
        lines += [
            f"shl.b32 t, $8, {shift};" if shift > 0 else f"shr.b32 t, $8, {-shift};",
            f"and.b32 t, t, {mask:#x};",
            f"shl.b32 u, $8, {12 - 4 * pair};",
            "lop3.b32 t, u, z, t, 0xea;",  # (u & z) | t
            *multiply,
            f"mov.b32 {{${2 * pair}, ${2 * pair + 1}}}, t;",
        ]
    return "\n".join([*lines, "}"])


TO_BINARY16 = tl.constexpr(assembly((9, 5, 1, -3), _BINARY16.value, ("mul.rn.f16x2 t, t, s;",)))
TO_BFLOAT16 = tl.constexpr(
    assembly(  # a product is a sum with -0: compute capability 8 has no other
        (6, 2, -2, -6), _BFLOAT16.value, ("fma.rn.bf16x2 t, t, p, z;", "fma.rn.bf16x2 t, t, s, z;")
    )
)


@triton.jit
def scale_row(row, tiles):
    """row: int64, any shape; tiles: ceil(C / 4) of a row. -> the row's first word, in words of four scales."""
    return (row >> 7) * (tiles * 128) + (row & 31) * 4 + ((row >> 5) & 3)


@triton.jit
def chunk_scales(words, chunk, blocks, MX: tl.constexpr, MASKED: tl.constexpr):
    """The scale bytes of chunks.

    words: (ROWS, CHUNKS) int32, the word that has them. chunk: (CHUNKS,) int32, its number in the row.
    blocks: of a row. -> (ROWS, CHUNKS) int32, one byte (MX) or two, those of blocks that do not exist 0 with MASKED.
    """
    if MX:
        scales = (words >> ((chunk & 3) * 8)[None, :]) & 0xFF
        if MASKED:
            scales = tl.where((chunk < blocks)[None, :], scales, 0)
    else:
        scales = (words >> ((chunk & 1) * 16)[None, :]) & 0xFFFF
        if MASKED:
            scales = scales & tl.where(2 * chunk + 1 < blocks, 0xFFFF, tl.where(2 * chunk < blocks, 0xFF, 0))[None, :]
    return scales


@triton.jit
def _low(lanes):
    return lanes.to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _high(lanes):
    return (lanes >> 16).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def e4m3_pair(scales):
    """scales: any shape, int32, two E4M3 bytes. -> the two factors, float16, s * 2**7; NaN for 0x7F and 0xFF.

    Both bytes at once, in 16-bit lanes. A magnitude of 0x7F, and no other, carries into bit 7 when 1 is added; that
    times 0x7D takes the pattern 0x3F80 to 0x7E00, a NaN.
    """
    lanes = (scales | (scales << 8)) & 0x00FF00FF
    magnitudes = lanes & 0x007F007F
    nan = (magnitudes + 0x00010001) & 0x00800080
    halves = (magnitudes << 7) + nan * 0x7D + ((lanes & 0x00800080) << 8)
    unit = tl.full((), 32768.0, tl.float16)
    return _low(halves) * unit, _high(halves) * unit


@triton.jit
def _e4m3_factors(scales):
    """scales: (ROWS, CHUNKS) int32, two E4M3 bytes. -> (ROWS, CHUNKS * 2) float16, as `e4m3_pair` gives them."""
    ROWS: tl.constexpr = scales.shape[0]
    CHUNKS: tl.constexpr = scales.shape[1]
    low, high = e4m3_pair(scales)
    return tl.reshape(tl.join(low, high), (ROWS, CHUNKS * 2))


@triton.jit
def _e8m0_bits(scales):
    """scales: any shape, int32 E8M0 bytes. -> int32, the bfloat16 pattern of 2**(b - 127); NaN for 255."""
    return tl.where(scales == 0, 0x40, tl.where(scales == 255, 0x7FC0, scales << 7))


@triton.jit
def _spread(factors, TIMES: tl.constexpr):
    """factors: (ROWS, COLUMNS). -> (ROWS, COLUMNS * TIMES), each column TIMES times."""
    ROWS: tl.constexpr = factors.shape[0]
    COLUMNS: tl.constexpr = factors.shape[1]
    wide = tl.broadcast_to(factors[:, :, None], (ROWS, COLUMNS, TIMES))
    return tl.reshape(wide, (ROWS, COLUMNS * TIMES))


@triton.jit
def _interleave(l0, h0, l1, h1, l2, h2, l3, h3):
    """Eight (ROWS, WORDS). -> (ROWS, WORDS * 8), the eight of a word beside each other in this order."""
    ROWS: tl.constexpr = l0.shape[0]
    WORDS: tl.constexpr = l0.shape[1]
    low = tl.join(tl.join(l0, l2), tl.join(l1, l3))
    high = tl.join(tl.join(h0, h2), tl.join(h1, h3))
    return tl.reshape(tl.join(low, high), (ROWS, WORDS * 8))


@triton.jit
def _scaled(lanes, factors, MX: tl.constexpr):
    """lanes: int32, two unscaled halves. factors: float16, or (MX) float32. -> the two elements."""
    if MX:
        low = (lanes << 16).to(tl.float32, bitcast=True) * power_of_two_constant(126) * factors
        high = (lanes & -0x10000).to(tl.float32, bitcast=True) * power_of_two_constant(126) * factors
        if not _INTERPRETED:
            low = cast_exact(low, tl.bfloat16)
            high = cast_exact(high, tl.bfloat16)
        return low, high
    else:
        return _low(lanes) * factors, _high(lanes) * factors


@triton.jit
def _assembled(words, factors, ASSEMBLY: tl.constexpr):
    """words: int32; factors: 16-bit floats of that shape. -> the eight elements of each word, in order."""
    t = factors.dtype
    return tl.inline_asm_elementwise(
        ASSEMBLY,
        "=h,=h,=h,=h,=h,=h,=h,=h,r,h",
        [words, factors],
        dtype=(t, t, t, t, t, t, t, t),
        is_pure=True,
        pack=1,
    )


@triton.jit
def e8m0_factors(scales, PTX: tl.constexpr):
    """scales: any shape, int32 E8M0 bytes. -> 2**(b - 127), NaN for 255: bfloat16 with PTX, else float32."""
    if PTX:
        return _e8m0_bits(scales).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return tl.where(scales == 255, float("nan"), power_of_two(tl.where(scales == 255, 0, scales)))


@triton.jit
def elements(words, factors, MX: tl.constexpr, PTX: tl.constexpr):
    """words: any shape, int32; factors: of that shape, from `e4m3_pair` or `e8m0_factors`. -> eight, in order."""
    if PTX:
        if MX:
            return _assembled(words, factors, TO_BFLOAT16)
        else:
            return _assembled(words, factors, TO_BINARY16)
    elif MX:
        l0, h0 = _scaled(((words << 6) & _BFLOAT16) | ((words << 12) & _SIGNS), factors, MX)
        l1, h1 = _scaled(((words << 2) & _BFLOAT16) | ((words << 8) & _SIGNS), factors, MX)
        l2, h2 = _scaled(((words >> 2) & _BFLOAT16) | ((words << 4) & _SIGNS), factors, MX)
        l3, h3 = _scaled(((words >> 6) & _BFLOAT16) | (words & _SIGNS), factors, MX)
        return l0, h0, l1, h1, l2, h2, l3, h3
    else:
        l0, h0 = _scaled(((words << 9) & _BINARY16) | ((words << 12) & _SIGNS), factors, MX)
        l1, h1 = _scaled(((words << 5) & _BINARY16) | ((words << 8) & _SIGNS), factors, MX)
        l2, h2 = _scaled(((words << 1) & _BINARY16) | ((words << 4) & _SIGNS), factors, MX)
        l3, h3 = _scaled(((words >> 3) & _BINARY16) | (words & _SIGNS), factors, MX)
        return l0, h0, l1, h1, l2, h2, l3, h3


@triton.jit
def decode(words, scales, MX: tl.constexpr, PTX: tl.constexpr):
    """An operand's tile.

    words: (ROWS, WORDS) int32, eight E2M1 codes each. scales: (ROWS, WORDS // 4) int32, as `chunk_scales` gives them.
    -> (ROWS, WORDS * 8): bfloat16 value * 2**(b - 127) with MX (float32 in the interpreter), else float16
    value * s * 2**-7; all of them exact.
    """
    factors = _spread(e8m0_factors(scales, PTX), 4) if MX else _spread(_e4m3_factors(scales), 2)
    l0, h0, l1, h1, l2, h2, l3, h3 = elements(words, factors, MX, PTX)
    return _interleave(l0, h0, l1, h1, l2, h2, l3, h3)
