"""The decoding kernel behind `nvfp4.py` for 16-bit results on NVIDIA's GPUs: a table a thread, looked up by bytes.

A thread has one word of packed, the eight codes of half a block. Its block has one scale, so that all its results are
among eight magnitudes and their negatives. These are computed once, rounded to 16 bits and kept in registers:

    code          0   1   |  2   3   |  4   5   |  6   7          magnitude = RN(dtype)(RN32(RN32(value * s) / g))
    words         w0      |  w1      |  w2      |  w3             two magnitudes each, the even code's in the low half
    low bytes     b0 b1      b2 b3   |  b4 b5      b6 b7          two words, eight bytes
    high bytes    the same of the high bytes

`prmt` picks each of four bytes by three bits of a nibble, those that hold the magnitude of an E2M1 code: an instruction
looks four codes up, in one half of the table. A result's sign is its code's, turned where the scale is negative, and
belongs to the high byte. Four words of two results are stored as 16 bytes. Nothing moves between threads.

Why a table is exact. With q1 = RN32(s / g) and q3 = RN32(1.5 * s / g), formed as in `_nvfp4_dequantize.py`,

    the magnitudes before they are narrowed    0 * q1,  q1 / 2,  q1,  q3,  2 * q1,  2 * q3,  4 * q1,  4 * q3

* Where g is in the range of that module's fast way, or absent, every q of these but 0 is in 2**-101 .. 2**112: all are
  normal numbers, for which rounding and a power of two commute. 0 * q1 is 0, and NaN where s is NaN.
* In bfloat16 these are normal numbers too, so that only q1 and q3 are narrowed and the others are products in bfloat16.
  Binary16 has neither that range nor those small numbers: each entry is narrowed from binary32, once.
* Any other g divides each of the eight values by |g|, and its sign joins the scale's. That is done in small chunks, so
  that it takes no registers from the usual way.

Without PTX, in the interpreter, the table is a row of eight for each word, from which is gathered.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels import _pairs
from lowbit_kernels._codec import power_of_two, remaining
from lowbit_kernels._e4m3 import decode_e4m3
from lowbit_kernels._nvfp4_dequantize import FAST_FROM, FAST_TO, _bits, _half, _magnitude

_BFLOAT16 = tl.constexpr(_pairs.BFLOAT16)
_PLAIN = tl.constexpr(0)
_MULTIPLY = tl.constexpr(1)
_DIVIDE = tl.constexpr(2)

_EVEN_BYTES = tl.constexpr(0x6420)  # selectors of prmt: bytes 0 .. 3 are the first operand's, 4 .. 7 the second's
_ODD_BYTES = tl.constexpr(0x7531)
_LOW_INTERLEAVED = tl.constexpr(0x5140)
_HIGH_INTERLEAVED = tl.constexpr(0x7362)
_LOW_HALF_TWICE = tl.constexpr(0x1010)
_SIGNS = tl.constexpr(-0x7F7F7F80)  # 0x80808080 as int32
_CODE_SIGNS = tl.constexpr(-0x77777778)  # 0x88888888
_HALF_AND_ZERO = tl.constexpr(0x3F000000)  # pairs of bfloat16, the low half last: 0.5 and 0, 2 and 2, 4 and 4
_TWOS = tl.constexpr(0x40004000)
_FOURS = tl.constexpr(0x40804080)

LOOK_UP = tl.constexpr("{ prmt.b32 $0, $1, $2, $3; }")
MULTIPLY = tl.constexpr("{ .reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 $0, $1, $2, z; }")
"""A product is a sum with -0: compute capability 8 has no other."""


@triton.constexpr_function
def permutation(SELECTOR: int) -> str:
    """PTX that picks four bytes of $1 and $2."""
    return f"{{ prmt.b32 $0, $1, $2, {SELECTOR:#x}; }}"


@triton.constexpr_function
def narrowing(PAIRS: int) -> str:
    """PTX that rounds two binary32 to 16 bits, $1 to the low half."""
    return f"{{ cvt.rn.{'bf16x2' if PAIRS == _pairs.BFLOAT16 else 'f16x2'}.f32 $0, $2, $1; }}"


@triton.jit
def _permute(a, b, SELECTOR: tl.constexpr):
    ASSEMBLY: tl.constexpr = permutation(SELECTOR)
    return tl.inline_asm_elementwise(ASSEMBLY, "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _pick(a, b, selectors):
    """Four of the eight bytes of a and b, int32, by the nibbles of the low halves of selectors, int32, none above 7."""
    return tl.inline_asm_elementwise(LOOK_UP, "=r,r,r,r", [a, b, selectors], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _multiply(pair, FACTORS: tl.constexpr):
    """int32 of two bfloat16, times two others; exact here."""
    factors = tl.full((), FACTORS, tl.int32)
    return tl.inline_asm_elementwise(MULTIPLY, "=r,r,r", [pair, factors], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _two(low, high, PAIRS: tl.constexpr):
    """low, high: float32 >= 0 or NaN. -> int32, both rounded to 16 bits."""
    ASSEMBLY: tl.constexpr = narrowing(PAIRS)
    return tl.inline_asm_elementwise(ASSEMBLY, "=r,f,f", [low, high], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _table(byte, g, MODE: tl.constexpr, PAIRS: tl.constexpr):
    """The magnitudes under scale bytes, any shape of int32: w0, w1, w2, w3. g: scalar."""
    scale = decode_e4m3(byte & 0x7F)
    code = tl.zeros_like(byte)
    q1, q3 = _magnitude(code + 2, scale, g, MODE), _magnitude(code + 3, scale, g, MODE)
    w1 = _two(q1, q3, PAIRS)
    if MODE == _DIVIDE:
        w0 = _two(_magnitude(code, scale, g, MODE), _magnitude(code + 1, scale, g, MODE), PAIRS)
        w2 = _two(_magnitude(code + 4, scale, g, MODE), _magnitude(code + 5, scale, g, MODE), PAIRS)
        w3 = _two(_magnitude(code + 6, scale, g, MODE), _magnitude(code + 7, scale, g, MODE), PAIRS)
    elif PAIRS == _BFLOAT16:
        w0 = _multiply(_permute(w1, w1, _LOW_HALF_TWICE), _HALF_AND_ZERO)
        w2, w3 = _multiply(w1, _TWOS), _multiply(w1, _FOURS)
    else:
        w0 = _two(q1 * 0.0, q1 * 0.5, PAIRS)
        w2, w3 = _two(q1 * 2.0, q3 * 2.0, PAIRS), _two(q1 * 4.0, q3 * 4.0, PAIRS)
    return w0, w1, w2, w3


@triton.jit
def _look_up(codes, w0, w1, w2, w3):
    """codes: (BLOCK,) int32 of eight; w0 .. w3: their tables. -> (BLOCK, 2, 2) int32 of two results, in their order."""
    low_first, low_last = _permute(w0, w1, _EVEN_BYTES), _permute(w2, w3, _EVEN_BYTES)
    high_first, high_last = _permute(w0, w1, _ODD_BYTES), _permute(w2, w3, _ODD_BYTES)
    index = codes & 0x77777777
    upper = index >> 16
    shifted = codes << 4  # an even code's sign in bit 7 of its byte, as an odd one's is in codes
    signs_a, signs_b = _permute(shifted, codes, _LOW_INTERLEAVED), _permute(shifted, codes, _HIGH_INTERLEAVED)
    low_a, low_b = _pick(low_first, low_last, index), _pick(low_first, low_last, upper)
    high_a = _pick(high_first, high_last, index) | (signs_a & _SIGNS)
    high_b = _pick(high_first, high_last, upper) | (signs_b & _SIGNS)
    first, second = _permute(low_a, high_a, _LOW_INTERLEAVED), _permute(low_a, high_a, _HIGH_INTERLEAVED)
    third, fourth = _permute(low_b, high_b, _LOW_INTERLEAVED), _permute(low_b, high_b, _HIGH_INTERLEAVED)
    return tl.join(tl.join(first, third), tl.join(second, fourth))


@triton.jit
def _portable_look_up(codes, byte, g, MODE: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr):
    """`_look_up` in a table like `_table`'s, without PTX. codes, byte: (BLOCK,) int32. -> (BLOCK, 4) int32."""
    scale = decode_e4m3(byte & 0x7F)[:, None]
    place = tl.arange(0, 8)[None, :]
    if MODE == _DIVIDE:
        magnitudes = _magnitude(tl.broadcast_to(place, (BLOCK, 8)), scale, g, MODE)
    else:
        q1, q3 = tl.split(_magnitude(2 + tl.arange(0, 2)[None, :], scale, g, MODE))
        power = tl.where(place == 0, 0.0, power_of_two((place >> 1) + 126))  # 0, 1/2, 1, 1, 2, 2, 4, 4
        magnitudes = tl.where((place & 1) * place > 1, q3[:, None], q1[:, None]) * power
    code = codes[:, None] >> (place * 4)
    halves = tl.gather(_half(magnitudes, PAIRS), code & 7, 1) | ((code & 8) << 12)
    low, high = tl.split(tl.reshape(halves, (BLOCK, 4, 2)))
    return low | (high << 16)


@triton.jit
def _load(packed_ptr, scales_ptr, first, words, BLOCK: tl.constexpr):
    """Words first .. first + BLOCK - 1, as far as they exist: their codes and scale bytes, int32; how many do."""
    word = tl.arange(0, BLOCK)
    left = remaining(words, first, BLOCK)
    exists = word < left
    # a word a thread, so that what a thread stores is 16 bytes; more would have to be exchanged between threads
    codes = tl.load(tl.max_contiguous(packed_ptr + first + word, 1), mask=exists, other=0)
    byte = tl.load(scales_ptr + first // 2 + word // 2, mask=exists, other=0).to(tl.int32)
    return codes, byte, left


@triton.jit
def _store(
    out_ptr,
    codes,
    byte,
    first,
    left,
    g,
    MODE: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    PTX: tl.constexpr,
):
    """Decodes and stores what `_load` gave."""
    flip = byte << 24
    if MODE == _DIVIDE:
        flip ^= _bits(g)
    codes ^= (flip >> 31) & _CODE_SIGNS
    if PTX:
        w0, w1, w2, w3 = _table(byte, g, MODE, PAIRS)
        results = _look_up(codes, w0, w1, w2, w3)
    else:
        results = _portable_look_up(codes, byte, g, MODE, PAIRS, BLOCK)
    at = tl.arange(0, BLOCK * 4)
    tl.store(out_ptr + first * 4 + at, tl.reshape(results, (BLOCK * 4,)), mask=at < left * 4)


@triton.jit
def dequantize_table_kernel(
    packed_ptr,
    scales_ptr,
    g_ptr,
    out_ptr,
    words,
    HAS_SCALE: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    PTX: tl.constexpr,
):
    """packed_ptr: bytes, `words` times eight codes; out_ptr: int32 of two results. BLOCK, CHUNK: in words."""
    # the compiler gives tensors of one length one layout: the chunks' stores would have that of the usual way's loads,
    # and go through shared memory
    tl.static_assert(CHUNK * 4 != BLOCK)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    words_ptr = packed_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
    codes, byte, left = _load(words_ptr, scales_ptr, first, words, BLOCK)
    if HAS_SCALE:
        g = tl.load(g_ptr)
        if (g >= FAST_FROM) & (g <= FAST_TO):
            _store(out_ptr, codes, byte, first, left, g, _MULTIPLY, PAIRS, BLOCK, PTX)
        else:
            for start in range(0, BLOCK, CHUNK):
                chunk, its_byte, its_left = _load(words_ptr, scales_ptr, first + start, words, CHUNK)
                _store(out_ptr, chunk, its_byte, first + start, its_left, g, _DIVIDE, PAIRS, CHUNK, PTX)
    else:
        _store(out_ptr, codes, byte, first, left, 1.0, _PLAIN, PAIRS, BLOCK, PTX)
