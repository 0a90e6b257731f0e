"""Lemmas about decoded values: value * 2**(byte - 127) in one rounding, and the casts between formats.

What is right is computed in binary64, which holds every product exactly, and rounded once to the output's format.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from lowbit.formats import BFLOAT16, BINARY64, E2M1, E3M0, E4M3, FloatFormat
from lowbit.proofs import device, reals
from lowbit.proofs.device import FLOAT32, INT32, Term, Value, variable
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.nvfp4 import e4m3_value
from lowbit.proofs.pairs import WORDS
from lowbit.proofs.sources import Kernels
from lowbit.references.exact_elements import floor_log2


def lemmas() -> Iterator[Lemma]:
    for element in (E2M1, E3M0):
        for word in WORDS:
            yield _decode(element, word)
    yield _products()
    yield _casts()


def _exact(magnitude: Term, element: FloatFormat, exponent: Term) -> Term:
    """value * 2**exponent as a binary64 number, which holds it."""
    import z3

    bits = z3.BitVecVal(0, 64)
    for number, value in list(enumerate(element.magnitudes))[1:]:
        own = floor_log2(value)
        mantissa = (value / Fraction(2) ** own - 1) * (1 << 52)
        biased = z3.Extract(10, 0, exponent + own + BINARY64.bias)
        product = z3.Concat(z3.BitVecVal(0, 1), biased, z3.BitVecVal(int(mantissa), 52))
        bits = z3.If(magnitude == number, product, bits)
    return z3.fpBVToFP(bits, z3.FPSort(11, 53))


def _rounded(exact: Term, fmt: FloatFormat, negative: Term) -> Term:
    """The bits of a number >= 0 in a format, with a sign."""
    import z3

    sort = z3.FPSort(fmt.exponent_bits, fmt.mantissa_bits + 1)
    bits = z3.fpToIEEEBV(z3.fpFPToFP(z3.RNE(), exact, sort))
    return z3.If(negative, bits | fmt.sign_mask, bits)


def _decode(element: FloatFormat, word: str) -> Lemma:
    fmt, dtype = WORDS[word], device.DTYPES[word]

    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        packed, byte = variable("packed", INT32), variable("byte", INT32)
        decode = getattr(code.codec, f"decode_{element.name}")
        scale = code.codec.power_of_two(byte)
        low, high = decode(packed & 7) * scale, decode((packed >> 4) & 7) * scale
        words = code.pairs.to_words(low, high, packed, getattr(code.pairs, word.upper())).bits
        one = code.codec.cast_exact(decode(packed & 15) * scale, dtype).bits
        unknowns = {"packed": packed.bits, "byte": byte.bits}
        in_range = [byte.bits >= 0, byte.bits <= 255]
        halves = z3.Extract(fmt.bits - 1, 0, words), z3.Extract(2 * fmt.bits - 1, fmt.bits, words)
        for nibble, actual in ((0, halves[0]), (4, halves[1]), (0, one)):
            magnitude = z3.LShR(packed.bits, nibble) & 7
            negative = z3.LShR(packed.bits, nibble) & 8 != 0
            right = _rounded(_exact(magnitude, element, byte.bits - 127), fmt, negative)
            yield Claim([*in_range, byte.bits != 255], actual == right, unknowns)
            infinity = z3.BitVecVal(fmt.max_magnitude + 1, fmt.bits)
            is_nan = z3.UGT(actual & fmt.magnitude_mask, infinity)
            signed = z3.If(negative, infinity | fmt.sign_mask, infinity)
            yield Claim([byte.bits == 255], z3.If(magnitude == 0, is_nan, actual == signed), unknowns)

    return Lemma(
        name=f"decode/{element.name}/{word}",
        statement=f"Every code of {element.name} times every scale byte 0..254 is value * 2**(byte - 127) rounded once "
        f"to {word}, signs of zeros kept, alone and as half of a word; byte 255 counts as +Inf.",
        about=f"_codec.decode_{element.name}, _codec.power_of_two, _codec.cast_exact, _pairs.to_words",
        claims=claims,
    )


def _products() -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        magnitude, byte = variable("code", INT32), variable("byte", INT32)
        scale = Value(FLOAT32, e4m3_value(byte.bits))
        dequantize = code.nvfp4_dequantize
        found = dequantize._magnitude(magnitude, scale, 1.0, dequantize._PLAIN).bits
        facts = [magnitude.bits >= 0, magnitude.bits <= 7, byte.bits >= 0, byte.bits <= E4M3.max_magnitude]
        double = z3.FPSort(11, 53)
        s = z3.fpFPToFP(z3.RNE(), z3.fpBVToFP(scale.bits, z3.FPSort(8, 24)), double)
        zero = z3.BitVecVal(0, 32)
        exact = z3.fpMul(z3.RNE(), _exact(magnitude.bits, E2M1, zero), s)
        back = z3.fpFPToFP(z3.RNE(), z3.fpBVToFP(found, z3.FPSort(8, 24)), double)
        yield Claim(facts, back == exact, {"code": magnitude.bits, "byte": byte.bits})

    return Lemma(
        name="decode/nvfp4",
        statement="The product of every E2M1 magnitude and every E4M3 magnitude is formed without rounding.",
        about="_nvfp4_dequantize._magnitude",
        claims=claims,
    )


def _casts() -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        x, half, bfloat = variable("x", FLOAT32), variable("half", device.FLOAT16), variable("bfloat", device.BFLOAT16)
        rounded = code.codec.round_bfloat16(x).bits
        right = z3.fpToIEEEBV(z3.fpFPToFP(z3.RNE(), z3.fpBVToFP(x.bits, z3.FPSort(8, 24)), z3.FPSort(8, 8)))
        yield Claim([reals.not_nan(x.bits)], rounded == right, {"x": x.bits})
        is_nan = z3.UGT(rounded & BFLOAT16.magnitude_mask, BFLOAT16.max_magnitude + 1)
        yield Claim([z3.Not(reals.not_nan(x.bits))], is_nan, {"x": x.bits})
        same = code.codec.widen(bfloat).bits == z3.Concat(bfloat.bits, z3.BitVecVal(0, 16))
        yield Claim([], same, {"bfloat": bfloat.bits})
        wide, exact = code.codec.widen(half).bits, reals.of_binary16(half.bits)
        yield Claim([reals.not_nan(exact)], wide == exact, {"half": half.bits})
        kept = z3.And(z3.Not(reals.not_nan(wide)), (wide < 0) == (half.bits < 0))
        yield Claim([z3.Not(reals.not_nan(exact))], kept, {"half": half.bits})

    return Lemma(
        name="casts",
        statement="bfloat16 and binary16 widen exactly, NaN with its sign; binary32 rounds to bfloat16 to nearest, "
        "ties to even, subnormals kept.",
        about="_codec.widen, _codec.round_bfloat16",
        claims=claims,
    )
