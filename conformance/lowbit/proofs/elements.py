"""Lemmas about the element codes of a number, and of a number times a power of two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lowbit.formats import E2M1, E3M0, FloatFormat
from lowbit.proofs import reals
from lowbit.proofs.device import FLOAT32, INT32, Term, Value, variable
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.sources import Kernels
from lowbit.rules import NanCode, Rounding

ELEMENTS = (E2M1, E3M0)

LARGEST_BYTE = 253
"""Of the scale of a finite block, as the lemmas about scales say."""


def lemmas() -> Iterator[Lemma]:
    for element in ELEMENTS:
        for rounding in Rounding:
            yield _encode(element, rounding)
            yield _scaled(element, rounding, narrow=False)
            if rounding is not Rounding.STOCHASTIC:  # which never looks at what NARROW leaves out
                yield _scaled(element, rounding, narrow=True)
        yield _nan(element)


def encoder(code: Kernels, element: FloatFormat) -> Callable[..., Value]:
    """The kernels' encoder of a format."""
    function: Callable[..., Value] = getattr(code.codec, f"encode_{element.name}")
    return function


def encoder_as_proved(rounding: Rounding, random: Term) -> Callable[..., Value]:
    """An encoder of E2M1 that is what ``encode/e2m1`` and ``encode_nan/e2m1`` say, NaN `POSITIVE_MAX`."""
    import z3

    def encode_e2m1(x: Value, *options: Any) -> Value:
        magnitude = reals.of_magnitude(x.bits & reals.MAGNITUDE)
        code = reals.element_code(magnitude, x.bits < 0, E2M1, rounding, reals.one(), random)
        return Value(INT32, z3.If(reals.not_nan(x.bits), code, z3.BitVecVal(7, 32)))

    return encode_e2m1


def scale_factor(code: Kernels) -> tuple[Value, Term, Term]:
    """2**-E of any byte of a finite block: the kernels' factor, E, and that the byte is one."""
    import z3

    byte = variable("byte", INT32)
    return code.codec.inverse_power_of_two(byte), reals.byte_exponent(byte.bits), z3.ULE(byte.bits, LARGEST_BYTE)


def constexprs(code: Kernels, rounding: Rounding, nan: NanCode) -> tuple[int, int]:
    """ROUNDING and NAN as the kernels number them."""
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

        x, (random, r, unknowns) = variable("x", FLOAT32), _random(rounding)
        actual = encoder(code, element)(x, random, *constexprs(code, rounding, NanCode.SIGNED_MAX)).bits
        if rounding is Rounding.STOCHASTIC:
            magnitude = reals.of_magnitude(x.bits & reals.MAGNITUDE)
            expected = reals.element_code(magnitude, x.bits < 0, element, rounding, reals.one(), r)
        else:
            expected = reals.ladder(x.bits, element, rounding)
        yield Claim([reals.not_nan(x.bits)], actual == expected, {"x": x.bits, **unknowns})

    return Lemma(
        name=f"encode/{element.name}/{rounding.value}",
        statement=f"The integer encoder of {element.name} gives the code of every binary32 but NaN, {rounding.value}.",
        about=f"_codec.encode_{element.name}",
        claims=claims,
    )


def _scaled(element: FloatFormat, rounding: Rounding, *, narrow: bool) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        x, (random, r, unknowns) = variable("x", FLOAT32), _random(rounding)
        factor, exponent, in_range = scale_factor(code)
        facts = [reals.not_nan(x.bits), in_range]
        if narrow:
            facts.append(x.bits & 0x1FFF == 0)
        numbers = constexprs(code, rounding, NanCode.SIGNED_MAX)
        actual = encoder(code, element)(x * factor, random, *numbers, narrow, x.to(INT32, bitcast=True)).bits
        magnitude = reals.of_magnitude(x.bits & reals.MAGNITUDE)
        expected = reals.element_code(magnitude, x.bits < 0, element, rounding, reals.Scale(exponent), r)
        yield Claim(facts, actual == expected, {"x": x.bits, "E": exponent, **unknowns})

    which = "x that bfloat16 or binary16 holds" if narrow else "binary32 x that is not NaN"
    return Lemma(
        name=f"scaled{'_narrow' if narrow else ''}/{element.name}/{rounding.value}",
        statement=f"RN32(x * 2**-E), encoded with x's own sign, has the code of the real number x * 2**-E for every "
        f"{which} and every scale byte 0..253, {rounding.value}: no lost bit decides.",
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
        both = [z3.Not(reals.not_nan(x.bits)), z3.Not(reals.not_nan(scaled.bits))]
        for nan, right in expected.items():
            for rounding in Rounding:
                for narrow in (False, True):
                    random, _, unknowns = _random(rounding)
                    options = random, *constexprs(code, rounding, nan), narrow, x.to(INT32, bitcast=True)
                    actual = encoder(code, element)(scaled, *options).bits
                    yield Claim(both, actual == right, {"x": x.bits, "scaled": scaled.bits, **unknowns})

    return Lemma(
        name=f"encode_nan/{element.name}",
        statement="Every NaN, of any sign and payload, gets the code of the NaN rule under every rounding; its sign is "
        "that of the unscaled NaN, whatever sign the product has.",
        about=f"_codec.encode_{element.name}",
        claims=claims,
    )


def deterministic() -> list[Rounding]:
    """The roundings without random bits."""
    return [rounding for rounding in Rounding if rounding is not Rounding.STOCHASTIC]
