"""Stochastic E2M1 of neighbours, by PTX that calculates in both halves of a register.

    encode(low, high, factor, random) -> uint8, codes of two float32 times factor; NaN that of +6
    encode_quotients(low, high, reciprocal, random) -> uint8, codes of two RN32(y / s); NaN likewise
    encode_chunk(a, b, c, d, factor, first, second) -> int32, eight codes of bfloat16; NaN ±6 by its sign

`random` are `_philox.pair_words`. Each gives the bits of `_codec.encode_e2m1` of the stochastic rule, which stands in
its place where a device has no PTX (`_launch.takes_ptx`).

Why they are equal. With its fraction of a step, the code of a magnitude v is L(v) = min(2 v, v + 2, v / 2 + 4, 7), and
the rule gives floor((floor(256 L) + r) / 256), r the random byte.

* binary16's least normal number is 2**-14, E2M1's is 1, and both underflow gradually: the pattern of v * 2**-14, cut
  off after 10 bits of mantissa, is E2M1's code and nine bits of fraction, floor(512 L). `cvt.rz.f16x2.f32` gives it for
  two elements. v * 2**-14 is exact before that, or so small that the pattern is 0.
* The least of it and 0x0E00, the pattern of 6, saturates, Inf and NaN too, as `min` returns the number where one
  operand is none. 2 r added gives at most 0x0FFE, so that halves do not touch; the code is what stands above bit 8, and
  floor((floor(512 L) + 2 r) / 512) = floor((floor(256 L) + r) / 256).
* Signs are bits 15 and 31, of the pattern, where NaN is positive (`mul` and `cvt` make no other), or of x.
* Quotients. A bound T of floor(256 L), 1,792 numbers of at most 10 bits, is reached by RN32(y / s) exactly where
  y >= s T (lemma quotient/decides). The product of y and r = RN32(1 / s) reaches T exactly there too, for every s and T
  (lemma nvfp4_drawn): s r is not below 1 and the number before s T is too far from it. With r a unit less or more, or
  with one rounded to nearest, not for every s. Rounding toward zero, twice, keeps what reaches T and what does not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels._codec import power_of_two_constant


def _sum(number: int, low: str, high: str, word: str, selector: str) -> str:
    """The register sum<number> of two float32, v * 2**-14, and the half of a random word that `selector` spreads."""
    return (
        f"cvt.rz.f16x2.f32 both{number}, {high}, {low};\nabs.f16x2 v, both{number};\nmin.f16x2 v, v, six;\n"
        f"prmt.b32 r, {word}, 0, {selector};\nmad.lo.u32 sum{number}, r, 2, v;\n"
    )


def _text(sums: list[str], signs: list[str]) -> str:
    """PTX: $0 the bytes of four sums, with the signs in bits 15 and 31 of four registers."""
    names = "six, low, high, p, q, r, s, v" + "".join(f", both{n}, sum{n}" for n in range(4))
    text = f"{{\n.reg .b32 {names};\nmov.b32 six, 0x0e000e00;\n" + "".join(sums)
    # p, q: bytes with the low codes of two words in bits 1 .. 3, then their high ones, and signs in bits 4 .. 7
    for first, codes, copies in ((0, "p", "r"), (2, "q", "s")):
        text += (
            f"prmt.b32 {codes}, sum{first}, sum{first + 1}, 0x7351;\n"
            f"prmt.b32 {copies}, {signs[first]}, {signs[first + 1]}, 0xfbd9;\n"
            f"lop3.b32 {codes}, {copies}, {codes}, 0xf0f0f0f0, 0xe4;\n"
        )
    return text + (
        "prmt.b32 r, p, q, 0x5410;\nprmt.b32 s, p, q, 0x7632;\nshr.b32 r, r, 1;\nshl.b32 s, s, 3;\n"
        "lop3.b32 $0, s, r, 0xf0f0f0f0, 0xe4;\n}"
    )


_SELECTORS = ("0x4140", "0x4342")
"""Of prmt: the two bytes of an even pair, and of an odd one, each to the low byte of a half."""


def _divided(n: int) -> str:
    product = f"mul.rz.f32 low, ${n + 1}, ${n + 9};\nmul.rz.f32 high, ${n + 5}, ${n + 9};\n"
    return product + _sum(n, "low", "high", f"${n + 13}", f"${n + 17}")


def _multiplied(n: int) -> str:
    halves = f"shl.b32 low, ${n + 1}, 16;\nand.b32 high, ${n + 1}, 0xffff0000;\n"
    return (
        halves
        + "mul.f32 low, low, $5;\nmul.f32 high, high, $5;\n"
        + _sum(n, "low", "high", f"${n // 2 + 6}", _SELECTORS[n % 2])
    )


_PATTERNS = [f"both{n}" for n in range(4)]

SCALED = tl.constexpr(
    _text([_sum(n, f"${n + 1}", f"${n + 5}", f"${n + 9}", f"${n + 13}") for n in range(4)], _PATTERNS)
)
"""$1 .. $4 low elements, $5 .. $8 high ones, $9 .. $12 random words, $13 .. $16 selectors."""

QUOTIENTS = tl.constexpr(_text([_divided(n) for n in range(4)], _PATTERNS))
"""$1 .. $4 low elements, $5 .. $8 high ones, $9 .. $12 reciprocals, $13 .. $16 random words, $17 .. $20 selectors."""

WORDS = tl.constexpr(_text([_multiplied(n) for n in range(4)], [f"${n + 1}" for n in range(4)]))
"""$1 .. $4 words of bfloat16, $5 their factor, $6 and $7 random words."""

_SCALED_CONSTRAINTS = tl.constexpr("=r" + ",f" * 8 + ",r" * 8)
_QUOTIENTS_CONSTRAINTS = tl.constexpr("=r" + ",f" * 12 + ",r" * 8)
_EVEN_PAIR = tl.constexpr(int(_SELECTORS[0], 16))
_ODD_PAIR = tl.constexpr(int(_SELECTORS[1], 16))


@triton.jit
def _selectors(random):
    """(ROWS, n) int32 for random words of that shape: which half of its word is a pair's.

    Which four pairs a text gets is the compiler's choice, neighbours or not, so that no text can know it by itself.
    """
    lane = tl.arange(0, random.shape[1])[None, :]
    return tl.broadcast_to(tl.where(lane % 2 == 0, _EVEN_PAIR, _ODD_PAIR), random.shape)


@triton.jit
def encode(low, high, factor, random):
    """low, high: (ROWS, n) float32; factor: (ROWS, 1) float32, powers of two; random: (ROWS, n). -> (ROWS, n) uint8."""
    down = factor * power_of_two_constant(-14)
    values = [low * down, high * down, random, _selectors(random)]
    return tl.inline_asm_elementwise(SCALED, _SCALED_CONSTRAINTS, values, dtype=tl.uint8, is_pure=True, pack=4)


@triton.jit
def encode_quotients(low, high, reciprocal, random):
    """low, high: (ROWS, n) float32; reciprocal: (ROWS, 1), RN32(1 / s); random: (ROWS, n). -> (ROWS, n) uint8."""
    reciprocals = tl.broadcast_to(reciprocal * power_of_two_constant(-14), low.shape)
    values = [low, high, reciprocals, random, _selectors(random)]
    return tl.inline_asm_elementwise(QUOTIENTS, _QUOTIENTS_CONSTRAINTS, values, dtype=tl.uint8, is_pure=True, pack=4)


@triton.jit
def encode_chunk(a, b, c, d, factor, first, second):
    """a .. d: any shape, int32 of two bfloat16, in order; factor: float32 and random words of that shape.

    -> int32, byte i that of word i. a and b have the bytes of the first random word, c and d those of the second.
    """
    values = [a, b, c, d, factor * power_of_two_constant(-14), first, second]
    return tl.inline_asm_elementwise(WORDS, "=r,r,r,r,r,f,r,r", values, dtype=tl.int32, is_pure=True, pack=1)
