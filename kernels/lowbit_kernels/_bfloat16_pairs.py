"""Two bfloat16 of a word at a time, by PTX that calculates in both halves of a register.

    amax(words, IGNORE_NAN) -> (ROWS,) int32 float32 bits       `_pairs.amax_bits`
    encode_even(words, factor) -> uint8, two codes              `_pairs.encode_pairs`: E2M1, ties to even, NaN to +6
    encode_away(words, factor) -> uint8, two codes              the same, ties away from zero, NaN keeps its sign
    encode_away_chunk(a, b, c, d, factor) -> int32, eight codes      the latter of four words to one

Each gives the bits of the function at its right, which stands in its place where a device has no PTX.

Why they are equal. Let v = |x| * factor, the factor a power of two.

* v is exact, or it is of no consequence. A product by a power of two keeps the 8 significant bits of a bfloat16 unless
  it falls below the normal numbers, where the code is 0 whatever is lost, or overflows to Inf, where it is 7.
* To even: the code is the least of 2 v, v + 2, v / 2 + 4 and 7, of which the first three are rounded to integers, ties
  to even: each line is the right one where it is the least, and rounding keeps their order. `fma.rn.bf16x2` with 128,
  130 and 132 for 0, 2 and 4 does that in its one rounding: from 128 to 255 bfloat16 has a unit of 1, and the last bit
  of a pattern is that of the integer. The least pattern has the code in its last three bits.
* Away from zero: the same in binary16, from 1024 on, where its unit is 1, with v * (1 + 2**-10) for v. That takes a tie
  above itself, and no other v past one: with 8 significant bits it is at least 2**-8 of its size below. binary16 holds
  v from 2**-14 to 65504; what is below has code 0, what is above 7.
* NaN: `min` returns the number where one operand is none, so that NaN ends as 7. So does `max`; `max.NaN` does not.
* Signs are bits 15 and 31; to even, an addend takes the patterns above infinity, and no others, to these bits first.

The lemmas of `lowbit prove` are about the functions at the right; a test runs these texts with every bfloat16 and every
factor.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels._codec import INFINITY_BITS

_MAGNITUDES = tl.constexpr(0x7FFF7FFF)

LARGER_NUMBER = tl.constexpr("{max.bf16x2 $0, $1, $2;}")
LARGER_OR_NAN = tl.constexpr("{max.NaN.bf16x2 $0, $1, $2;}")


def _constants(**patterns: int) -> str:
    """Registers with the same 16 bits in both halves."""
    return "".join(f"mov.b32 {name}, {pattern * 0x10001:#010x};\n" for name, pattern in patterns.items())


def _nearest(kind: str, number: int) -> str:
    """The register code<number> from v."""
    return (
        f"fma.rn.{kind} halves, v, two, from0;\n"
        f"fma.rn.{kind} ones, v, one, from2;\n"
        f"fma.rn.{kind} twos, v, half, from4;\n"
        f"min.{kind} halves, halves, ones;\n"
        f"min.{kind} twos, twos, from7;\n"
        f"min.{kind} code{number}, halves, twos;\n"
    )


def _even(number: int, factor: int) -> str:
    """Of the word $<number + 1> by a factor in both halves: the registers code<number> and sign<number>."""
    word, sign = f"${number + 1}", f"sign{number}"
    return (
        f"and.b32 magnitude, {word}, 0x7fff7fff;\n"
        f"fma.rn.bf16x2 v, magnitude, ${factor}, minus;\n"
        f"add.u32 {sign}, magnitude, 0x007f007f;\n"
        f"lop3.b32 {sign}, {word}, {sign}, 0, 0x30;\n"  # and not
    ) + _nearest("bf16x2", number)


def _away(number: int, factor: int) -> str:
    """The same by a factor in binary32."""
    word = f"${number + 1}"
    return (
        f"shl.b32 low, {word}, 16;\n"
        f"and.b32 high, {word}, 0xffff0000;\n"
        "abs.f32 low, low;\n"
        "abs.f32 high, high;\n"
        f"mul.f32 low, low, ${factor};\n"
        f"mul.f32 high, high, ${factor};\n"
        "cvt.rn.f16x2.f32 v, high, low;\n"
        f"mov.b32 sign{number}, {word};\n"
    ) + _nearest("f16x2", number)


_BYTES = """prmt.b32 low, code0, code1, 0x6240;
prmt.b32 high, code2, code3, 0x6240;
and.b32 low, low, 0x07070707;
and.b32 high, high, 0x07070707;
prmt.b32 ones, sign0, sign1, 0xfbd9;
prmt.b32 twos, sign2, sign3, 0xfbd9;
and.b32 ones, ones, 0x08080808;
and.b32 twos, twos, 0x08080808;
or.b32 low, low, ones;
or.b32 high, high, twos;
prmt.b32 ones, low, high, 0x5410;
prmt.b32 twos, low, high, 0x7632;
mad.lo.u32 $0, twos, 16, ones;
}"""
"""$0: a byte of two codes for each word. `low` has the low codes of the first two words, then their high ones."""

_BEGINNING = (
    "{\n.reg .b32 v, magnitude, low, high, two, one, half, from0, from2, from4, from7, minus, halves, ones, twos;\n"
    ".reg .b32 code0, code1, code2, code3, sign0, sign1, sign2, sign3;\n"
)
_OF_BFLOAT16 = _constants(
    two=0x4000, one=0x3F80, half=0x3F00, from0=0x4300, from2=0x4302, from4=0x4304, from7=0x4307, minus=0x8000
)
_OF_BINARY16 = _constants(two=0x4001, one=0x3C01, half=0x3801, from0=0x6400, from2=0x6402, from4=0x6404, from7=0x6407)

# $1 .. $4 are words, $5 .. $8 their factors, or $5 the factor of all
EVEN = tl.constexpr(_BEGINNING + _OF_BFLOAT16 + "".join(_even(n, 5 + n) for n in range(4)) + _BYTES)
AWAY = tl.constexpr(_BEGINNING + _OF_BINARY16 + "".join(_away(n, 5 + n) for n in range(4)) + _BYTES)
AWAY_CHUNK = tl.constexpr(_BEGINNING + _OF_BINARY16 + "".join(_away(n, 5) for n in range(4)) + _BYTES)


@triton.jit
def _larger_number(first, second):
    return tl.inline_asm_elementwise(LARGER_NUMBER, "=r,r,r", [first, second], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _larger_or_nan(first, second):
    return tl.inline_asm_elementwise(LARGER_OR_NAN, "=r,r,r", [first, second], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def amax(words, IGNORE_NAN: tl.constexpr):
    """words: (ROWS, n) int32. -> (ROWS,) int32 float32 bits; a NaN is above infinity, or, with IGNORE_NAN, 0."""
    if IGNORE_NAN:
        both = tl.reduce(words & _MAGNITUDES, 1, _larger_number)
        low, high = both << 16, both & -0x10000
        return tl.maximum(tl.where(low > INFINITY_BITS, 0, low), tl.where(high > INFINITY_BITS, 0, high))
    else:
        both = tl.reduce(words & _MAGNITUDES, 1, _larger_or_nan)
        return tl.maximum(both << 16, both & -0x10000)


@triton.jit
def encode_even(words, factor):
    """words: (ROWS, n) int32; factor: (ROWS, 1) float32, a power of two that is normal. -> (ROWS, n) uint8."""
    bits = factor.to(tl.int32, bitcast=True)
    factors = tl.broadcast_to(bits | (bits >> 16), words.shape)
    return tl.inline_asm_elementwise(EVEN, "=r,r,r,r,r,r,r,r,r", [words, factors], dtype=tl.uint8, is_pure=True, pack=4)


@triton.jit
def encode_away(words, factor):
    """As `encode_even`."""
    factors = tl.broadcast_to(factor, words.shape)
    return tl.inline_asm_elementwise(AWAY, "=r,r,r,r,r,f,f,f,f", [words, factors], dtype=tl.uint8, is_pure=True, pack=4)


@triton.jit
def encode_away_chunk(a, b, c, d, factor):
    """a .. d: any shape, int32, words in order; factor: float32 of that shape. -> int32, byte i that of word i."""
    return tl.inline_asm_elementwise(
        AWAY_CHUNK, "=r,r,r,r,r,f", [a, b, c, d, factor], dtype=tl.int32, is_pure=True, pack=1
    )
