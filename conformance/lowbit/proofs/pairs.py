"""Lemmas about two neighbours in one word: what they are split into, and the two codes of their byte."""

from __future__ import annotations

from collections.abc import Iterator

from lowbit.formats import BFLOAT16, BINARY16, BINARY32, E2M1
from lowbit.proofs import nearest, reals
from lowbit.proofs.device import FLOAT32, INT32, INT64, Term, Value, variable
from lowbit.proofs.elements import ELEMENTS, constexprs, deterministic, encoder, scale_factor
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.sources import Kernels
from lowbit.rules import NanCode, Rounding

WORDS = {"float32": BINARY32, "bfloat16": BFLOAT16, "float16": BINARY16}
"""The types of elements, by their names on the device."""

FAST = (Rounding.TIES_TO_EVEN, Rounding.TIES_AWAY)
"""The roundings for which two neighbours of E2M1 have a shorter way."""


def lemmas() -> Iterator[Lemma]:
    for word in WORDS:
        yield _split(word)
        for rounding in FAST:
            yield _pairs(word, rounding)
        yield _pairs_by_encoder(word)


def words_of(code: Kernels, word: str, name: str = "words") -> tuple[Value, int, list[Term]]:
    """A word of two elements, its constexpr, and the low and the high element's bits as they stand there."""
    import z3

    number = getattr(code.pairs, word.upper())
    words = variable(name, INT64 if word == "float32" else INT32)
    width = words.dtype.bits // 2
    return words, number, [z3.Extract(width - 1, 0, words.bits), z3.Extract(2 * width - 1, width, words.bits)]


def widened(bits: Term, word: str) -> Term:
    """The binary32 bits of an element: exact, the sign of NaN kept."""
    import z3

    match word:
        case "bfloat16":
            return z3.Concat(bits, z3.BitVecVal(0, 16))
        case "float16":
            return reals.of_binary16(bits)
    return bits


def halves(code: Kernels, word: str) -> tuple[Value, int, list[Term]]:
    """A word of two elements, its constexpr, and the binary32 bits of the low and the high element."""
    words, number, parts = words_of(code, word)
    return words, number, [widened(part, word) for part in parts]


def _split(word: str) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        words, number, parts = halves(code, word)
        signed, magnitudes = code.pairs.signed(words, number), code.pairs.magnitudes(words, number)
        unknowns = {"words": words.bits}
        for part, with_sign, without in zip(parts, signed, magnitudes, strict=True):
            both_nan = z3.And(
                z3.Not(reals.not_nan(with_sign.bits)), z3.Not(reals.not_nan(without.bits)), without.bits >= 0
            )
            same_sign = (with_sign.bits < 0) == (part < 0)
            yield Claim([z3.Not(reals.not_nan(part))], z3.And(both_nan, same_sign), unknowns)
            exact = z3.And(with_sign.bits == part, without.bits == part & reals.MAGNITUDE)
            yield Claim([reals.not_nan(part)], exact, unknowns)
        for clear_nan in (False, True):
            wanted = z3.BitVecVal(0, 32)
            for place, part in enumerate(parts):
                shown = z3.And(part < 0, reals.not_nan(part)) if clear_nan else part < 0
                wanted = wanted | z3.If(shown, z3.BitVecVal(8 << 4 * place, 32), z3.BitVecVal(0, 32))
            yield Claim([], code.pairs.sign_bits(words, clear_nan, number).bits & 0xFF == wanted, unknowns)

    return Lemma(
        name=f"pairs_split/{word}",
        statement=f"A word of two {word} splits exactly into its elements, their magnitudes and their signs; a NaN "
        "into a NaN of the same sign.",
        about="_pairs.signed, _pairs.magnitudes, _pairs.sign_bits",
        claims=claims,
    )


def _pairs(word: str, rounding: Rounding) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        words, number, parts = halves(code, word)
        factor, exponent, in_range = scale_factor(code)
        pairs = code.replacing("_pairs", nearest_e2m1=nearest.as_proved()).pairs
        signed, positive = (
            pairs.encode_pairs(words, factor, *constexprs(code, rounding, nan), 2, number).bits
            for nan in (NanCode.SIGNED_MAX, NanCode.POSITIVE_MAX)
        )
        unknowns = {"words": words.bits, "E": exponent}
        signs_of_nan = z3.BitVecVal(0, 32)
        for place, part in enumerate(parts):
            magnitude = reals.of_magnitude(part & reals.MAGNITUDE)
            number_code = reals.element_code(magnitude, part < 0, E2M1, rounding, reals.Scale(exponent))
            nan_code = z3.If(part < 0, z3.BitVecVal(15, 32), z3.BitVecVal(7, 32))
            expected = z3.If(reals.not_nan(part), number_code, nan_code)
            yield Claim([in_range], z3.LShR(signed, 4 * place) & 15 == expected, unknowns)
            negative_nan = z3.And(part < 0, z3.Not(reals.not_nan(part)))
            signs_of_nan |= z3.If(negative_nan, z3.BitVecVal(8 << 4 * place, 32), z3.BitVecVal(0, 32))
        yield Claim([in_range], (signed ^ positive) & 0xFF == signs_of_nan, unknowns)

    return Lemma(
        name=f"pairs/e2m1/{rounding.value}/{word}",
        statement=f"Both nibbles of a word of two {word} are the codes of the real numbers x * 2**-E, "
        f"{rounding.value}, for every byte 0..253 and whatever the neighbour is; NaN gets the code of either rule.",
        about="_pairs.encode_pairs, given nearest/e2m1",
        claims=claims,
    )


def _pairs_by_encoder(word: str) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:

        words, number, _ = halves(code, word)
        factor, _, in_range = scale_factor(code)
        elements = code.pairs.signed(words, number)
        for element in ELEMENTS:
            for rounding in deterministic():
                if element is E2M1 and rounding in FAST:
                    continue
                numbers = constexprs(code, rounding, NanCode.SIGNED_MAX)
                packed = code.pairs.encode_pairs(words, factor, *numbers, element.exponent_bits, number).bits
                first, second = (
                    encoder(code, element)(x.to(FLOAT32, bitcast=True) * factor, 0, *numbers, word != "float32", x).bits
                    for x in elements
                )
                yield Claim([in_range], packed == first | second << 4, {"words": words.bits})

    return Lemma(
        name=f"pairs_by_encoder/{word}",
        statement=f"Of the other roundings, and of E3M0, the two nibbles of a word of two {word} are what the encoder "
        "gives for x * 2**-E and x's sign, first element low.",
        about="_pairs.encode_pairs",
        claims=claims,
    )
