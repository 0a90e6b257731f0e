"""Lemmas about element codes: encoding a number, a scaled number, and two neighbours of a word at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lowbit.formats import E2M1, E3M0, FloatFormat
from lowbit.proofs import reals
from lowbit.proofs.device import FLOAT16, FLOAT32, INT32, INT64, Term, Value, pattern, variable
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.sources import Kernels
from lowbit.rules import NanCode, Rounding

ELEMENTS = (E2M1, E3M0)
FAST_PAIRS = (Rounding.TIES_TO_EVEN, Rounding.TIES_AWAY)
"""The roundings that two neighbours of E2M1 have a shorter way for."""

LARGEST_BYTE = 253
"""Of the scale of a finite block, as the lemmas about scales say."""

WORDS = ("float32", "bfloat16", "float16")


def lemmas() -> Iterator[Lemma]:
    for element in ELEMENTS:
        for rounding in Rounding:
            yield _encode(element, rounding)
            yield _scaled(element, rounding, narrow=False)
            if rounding is not Rounding.STOCHASTIC:  # which never looks at what NARROW leaves out
                yield _scaled(element, rounding, narrow=True)
        yield _nan(element)
    for word in WORDS:
        for rounding in FAST_PAIRS:
            yield _pairs(word, rounding)
        yield _pairs_by_encoder(word)


def encoder(code: Kernels, element: FloatFormat) -> Callable[..., Value]:
    """The kernels' encoder of a format."""
    function: Callable[..., Value] = getattr(code.codec, f"encode_{element.name}")
    return function


def scale_factor(code: Kernels) -> tuple[Value, Term, Term]:
    """2**-E of any byte of a finite block: the kernels' factor, E, and that the byte is one."""
    import z3

    byte = variable("byte", INT32)
    return code.codec.inverse_power_of_two(byte), reals.byte_exponent(byte.bits), z3.ULE(byte.bits, LARGEST_BYTE)


def _numbers(code: Kernels, rounding: Rounding, nan: NanCode) -> tuple[int, int]:
    return code.codec.ROUNDINGS[rounding.value], code.codec.NAN_CODES[nan.value]


def _random(rounding: Rounding) -> tuple[Any, Term, dict[str, Term]]:
    """The encoder's `random`, the rule's r, and both as unknowns."""
    import z3

    if rounding is not Rounding.STOCHASTIC:
        return 0, None, {}
    r = z3.BitVec("r", 8)
    return Value(INT32, z3.ZeroExt(24, r)), r, {"r": r}


def _encode(element: FloatFormat, rounding: Rounding) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        x, (random, r, unknowns) = variable("x", FLOAT32), _random(rounding)
        actual = encoder(code, element)(x, random, *_numbers(code, rounding, NanCode.SIGNED_MAX)).bits
        if rounding is Rounding.STOCHASTIC:
            magnitude = reals.of_magnitude(x.bits & reals.MAGNITUDE)
            expected = reals.element_code(magnitude, x.bits < 0, element, rounding, random=r)
        else:
            expected = reals.ladder(x.bits, element, rounding)
        yield Claim([not_nan(x.bits)], actual == expected, {"x": x.bits, **unknowns})

    return Lemma(
        name=f"encode/{element.name}/{rounding.value}",
        statement=f"The integer encoder of {element.name} gives the code of every binary32 that is not NaN, {rounding}.",
        about=f"_codec.encode_{element.name}",
        claims=claims,
    )


def _scaled(element: FloatFormat, rounding: Rounding, *, narrow: bool) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        x, (random, r, unknowns) = variable("x", FLOAT32), _random(rounding)
        factor, exponent, in_range = scale_factor(code)
        facts = [not_nan(x.bits), in_range]
        if narrow:
            facts.append(x.bits & 0x1FFF == 0)
        numbers = _numbers(code, rounding, NanCode.SIGNED_MAX)
        actual = encoder(code, element)(x * factor, random, *numbers, narrow, x.to(INT32, bitcast=True)).bits
        magnitude = reals.of_magnitude(x.bits & reals.MAGNITUDE)
        expected = reals.element_code(magnitude, x.bits < 0, element, rounding, exponent, r)
        yield Claim(facts, actual == expected, {"x": x.bits, "E": exponent, **unknowns})

    which = "x that bfloat16 or binary16 holds" if narrow else "binary32 x that is not NaN"
    return Lemma(
        name=f"scaled{'_narrow' if narrow else ''}/{element.name}/{rounding.value}",
        statement=f"RN32(x * 2**-E), encoded with x's own sign, has the code of the real number x * 2**-E for every "
        f"{which} and every scale byte 0..253, {rounding}: no lost bit decides.",
        about=f"_codec.inverse_power_of_two, _codec.encode_{element.name}",
        claims=claims,
    )


def _nan(element: FloatFormat) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        x, scaled = variable("x", FLOAT32), variable("scaled", FLOAT32)
        sign, largest = z3.LShR(x.bits, 31) << 3, element.magnitude_mask
        expected = {
            NanCode.POSITIVE_MAX: largest,
            NanCode.SIGNED_MAX: sign | largest,
            NanCode.NEGATIVE_ZERO: element.sign_mask,
            NanCode.ZERO: 0,
        }
        both = [z3.Not(not_nan(x.bits)), z3.Not(not_nan(scaled.bits))]
        for nan, right in expected.items():
            for rounding in set(Rounding) - {Rounding.STOCHASTIC}:
                numbers = _numbers(code, rounding, nan)
                actual = encoder(code, element)(scaled, 0, *numbers, False, x.to(INT32, bitcast=True)).bits
                yield Claim(both, actual == right, {"x": x.bits, "scaled": scaled.bits})

    return Lemma(
        name=f"encode_nan/{element.name}",
        statement="Every NaN, of any sign and payload, gets the code of the NaN rule under every rounding; its sign is "
        "that of the unscaled NaN, whatever sign the product has.",
        about=f"_codec.encode_{element.name}",
        claims=claims,
    )


def halves(code: Kernels, word: str) -> tuple[Value, int, list[Term]]:
    """A word of two elements, its constexpr, and the binary32 bits of the low and the high element."""
    import z3

    number = getattr(code.pairs, word.upper())
    words = variable("words", INT64 if word == "float32" else INT32)
    width = words.dtype.bits // 2
    parts = [z3.Extract(width - 1, 0, words.bits), z3.Extract(2 * width - 1, width, words.bits)]
    match word:
        case "bfloat16":
            parts = [z3.Concat(part, z3.BitVecVal(0, 16)) for part in parts]
        case "float16":
            parts = [Value(FLOAT16, part).to(FLOAT32).bits for part in parts]
    return words, number, parts


def _pairs(word: str, rounding: Rounding) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        words, number, parts = halves(code, word)
        factor, exponent, in_range = scale_factor(code)
        packed = {
            nan: code.pairs.encode_pairs(words, factor, *_numbers(code, rounding, nan), 2, number).bits
            for nan in (NanCode.POSITIVE_MAX, NanCode.SIGNED_MAX)
        }
        for place, part in enumerate(parts):
            unknowns = {"words": words.bits, "E": exponent}
            magnitude = reals.of_magnitude(part & reals.MAGNITUDE)
            expected = reals.element_code(magnitude, part < 0, E2M1, rounding, exponent)
            for nan, both in packed.items():
                nibble = z3.LShR(both, 4 * place) & 15
                yield Claim([not_nan(part), in_range], nibble == expected, unknowns)
                of_nan = z3.If(part < 0, z3.BitVecVal(15, 32), z3.BitVecVal(7, 32))
                right = z3.BitVecVal(7, 32) if nan is NanCode.POSITIVE_MAX else of_nan
                yield Claim([z3.Not(not_nan(part)), in_range], nibble == right, unknowns)

    return Lemma(
        name=f"pairs/e2m1/{rounding.value}/{word}",
        statement=f"Both nibbles of a word of two {word} are the codes of the real numbers x * 2**-E, {rounding}, "
        "whatever the neighbour is, and of NaN by either rule.",
        about="_pairs.encode_pairs, _e4m3.nearest_e2m1",
        claims=claims,
    )


def _pairs_by_encoder(word: str) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        words, number, parts = halves(code, word)
        factor, exponent, in_range = scale_factor(code)
        for element in ELEMENTS:
            for rounding in set(Rounding) - {Rounding.STOCHASTIC}:
                if element is E2M1 and rounding in FAST_PAIRS:
                    continue
                numbers = _numbers(code, rounding, NanCode.SIGNED_MAX)
                packed = code.pairs.encode_pairs(words, factor, *numbers, element.exponent_bits, number).bits
                for place, part in enumerate(parts):
                    x = Value(INT32, part)
                    one = encoder(code, element)(
                        x.to(FLOAT32, bitcast=True) * factor, 0, *numbers, word != "float32", x
                    )
                    yield Claim([in_range], z3.LShR(packed, 4 * place) & 15 == one.bits, {"words": words.bits})

    return Lemma(name=f"pairs_by_encoder/{word}", statement="", about="", claims=claims)


def not_nan(bits: Term) -> Term:
    import z3

    return z3.ULE(bits & reals.MAGNITUDE, z3.BitVecVal(reals.INFINITY, 32))
