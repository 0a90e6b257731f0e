"""Lemmas about NVFP4: E4M3 scale bytes, and element codes from quotients.

Where a quotient is taken without a division, what `quotients` says of it stands in its place here: any number that lies
as RN32(y / s) does to every bound that a rounding asks about.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from lowbit.formats import E2M1, E4M3
from lowbit.proofs import device, nearest, reals
from lowbit.proofs.device import FLOAT32, INT32, Term, Value, variable
from lowbit.proofs.elements import encoder_as_proved
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.sources import Kernels
from lowbit.rules import Rounding

VANISHING = Fraction(1, 1 << 150)
"""RN32 makes a positive number 0 exactly if it is at most this."""

MAX_BITS, MIN_BITS = 0x43E00000, 0x3B000000
"""448 and 2**-9, greatest and least value of a scale that divides."""


def lemmas() -> Iterator[Lemma]:
    yield _encode_scale()
    yield _decode_scale()
    for canonical in (True, False):
        yield _block_scale(canonical)
    for rounding in Rounding:
        yield _codes(rounding)


def _encode_scale() -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        x = variable("x", FLOAT32)
        byte = code.e4m3.encode_e4m3(x).bits
        right = byte == reals.ladder(x.bits, E4M3, Rounding.TIES_TO_EVEN)
        yield Claim([z3.ULE(x.bits, MAX_BITS)], right, {"x": x.bits})

    return Lemma(
        name="e4m3/encode",
        statement="The integer encoder of E4M3 gives the byte of every binary32 from 0 to 448, ties_to_even.",
        about="_e4m3.encode_e4m3",
        claims=claims,
    )


def _decode_scale() -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        byte = variable("byte", INT32)
        value = code.e4m3.decode_e4m3(byte).bits
        facts = [byte.bits >= 0, byte.bits <= 255]
        is_nan = byte.bits & 0x7F == 0x7F
        yield Claim([*facts, is_nan], z3.Not(reals.not_nan(value)), {"byte": byte.bits})
        expected = e4m3_value(byte.bits & 0x7F) | (byte.bits & 0x80) << 24
        yield Claim([*facts, z3.Not(is_nan)], value == expected, {"byte": byte.bits})

    return Lemma(
        name="e4m3/decode",
        statement="Every byte is decoded to its E4M3 value, the sign of zero included; 0x7F and 0xFF to NaN.",
        about="_e4m3.decode_e4m3",
        claims=claims,
    )


def e4m3_value(magnitude: Term) -> Term:
    """The binary32 bits of an E4M3 magnitude, from the table of the format."""
    import z3

    value = z3.BitVecVal(0, 32)
    for number, exact in enumerate(E4M3.magnitudes):
        bits = device.constant(float(exact), FLOAT32).bits
        value = z3.If(magnitude == number, bits, value)
    return value


def _block_scale(canonical: bool) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        amax, g, sixth = variable("amax", INT32), variable("g", FLOAT32), variable("sixth", FLOAT32)
        asked: list[Value] = []

        def divide_by_six(x: Value) -> Value:
            asked.append(x)
            return sixth

        stubbed = code.replacing("_nvfp4_kernels", divide_by_six=divide_by_six)
        nvfp4, unknowns = stubbed.nvfp4, {"amax": amax.bits, "g": g.bits, "sixth": sixth.bits}
        product = (amax.to(FLOAT32, bitcast=True) * g).bits & reals.MAGNITUDE  # |amax(y)|
        byte, scale = nvfp4._block_scale(amax, g, canonical, nvfp4.UNIT)
        given, _ = nvfp4._block_scale(amax, g, canonical, nvfp4.GIVEN)
        least = MIN_BITS if canonical else 0
        clamped = z3.If(z3.UGT(sixth.bits, MAX_BITS), z3.BitVecVal(MAX_BITS, 32), sixth.bits)
        clamped = z3.If(z3.ULT(sixth.bits, least), z3.BitVecVal(least, 32), clamped)
        rounded = reals.ladder(clamped, E4M3, Rounding.TIES_TO_EVEN)
        if canonical:
            marked, zero = amax.bits >= reals.INFINITY, product == 0
            right = z3.If(marked, z3.BitVecVal(0x7F, 32), z3.If(zero, z3.BitVecVal(0, 32), rounded))
            divides = z3.If(z3.Or(marked, zero), z3.BitVecVal(0x3F800000, 32), e4m3_value(rounded))
        else:
            nan = z3.Not(reals.not_nan(product))
            right = z3.If(nan, z3.BitVecVal(0x7F, 32), rounded)
            divides = z3.If(z3.Or(nan, rounded == 0), z3.BitVecVal(MIN_BITS, 32), e4m3_value(rounded))
        facts = [
            amax.bits >= 0,
            z3.ULT(sixth.bits, reals.INFINITY),
            # of RN32(x / 6): x >= 2688 has at least 448
            z3.Implies(z3.UGE(asked[0].bits, 0x45280000), z3.UGE(sixth.bits, MAX_BITS)),
        ]
        yield Claim(facts, byte.bits == right, unknowns)
        yield Claim(facts, scale.bits == divides, unknowns)
        usable = z3.And(g.bits > 0, g.bits < reals.INFINITY)
        yield Claim(facts, given.bits == z3.If(usable, byte.bits, z3.BitVecVal(0x7F, 32)), unknowns)
        finite = z3.If(z3.UGT(product, 0x7F7FFFFF), z3.BitVecVal(0x7F7FFFFF, 32), product)
        for x in asked:
            yield Claim(facts, x.bits == finite, unknowns)

    rule = (
        "canonical: E4M3 of clamp(RN32(amax(y) / 6), 2**-9, 448); a block whose y are all 0 stores 0, one with NaN or "
        "Inf in x stores 0x7F, and both divide by 1"
        if canonical
        else "two levels: E4M3 of min(RN32(amax(y) / 6), 448); NaN stores 0x7F, and NaN and byte 0 divide by 2**-9"
    )
    return Lemma(
        name=f"nvfp4_scale/{'canonical' if canonical else 'two_level'}",
        statement=f"For every amax and g, {rule}. A given g that is no finite number above 0 stores 0x7F.",
        about="_nvfp4_kernels._block_scale, given quotient/six",
        claims=claims,
    )


def _codes(rounding: Rounding) -> Lemma:
    directed = rounding in (Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE)

    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        x, g, magnitude = variable("x", FLOAT32), variable("g", FLOAT32), variable("scale", INT32)
        product = (x * g).bits
        s = Value(FLOAT32, e4m3_value(magnitude.bits))
        scale = reals.scale_of(s.bits)
        random: Any = 0
        r = None
        unknowns = {"x": x.bits, "g": g.bits, "scale": magnitude.bits}
        if rounding is Rounding.STOCHASTIC:
            r = z3.BitVec("r", 8)
            random, unknowns["r"] = Value(INT32, z3.ZeroExt(24, r)), r
        facts = [magnitude.bits >= 1, magnitude.bits <= E4M3.max_magnitude]

        def quotient(y: Value, *divisor: Value) -> Value:
            q = variable("q", FLOAT32)
            facts.extend(rounded_quotient(q.bits, y.bits, rounding, scale, r))
            return q

        stubs: dict[str, Any] = {"encode_e2m1": encoder_as_proved(rounding, r)}
        if rounding in nearest.ROUNDINGS.values():
            stubs["_nearest_quotient"] = nearest.quotient_as_proved()
        elif directed:
            stubs["tl"] = SimpleNamespace(**(vars(code.nvfp4.tl) | {"div_rn": quotient}))
        else:
            stubs["divide_by_scale"] = quotient
        nvfp4 = code.replacing("_nvfp4_kernels", **stubs).nvfp4
        unity = device.constant(1.0, FLOAT32)
        found = nvfp4._codes(x, g, s, unity, unity, random, code.codec.ROUNDINGS[rounding.value], False).bits & 0xFF
        real = reals.of_magnitude(product & reals.MAGNITUDE)
        vanishing = VANISHING if directed else Fraction(0)
        expected = reals.element_code(real, product < 0, E2M1, rounding, scale, r, vanishing)
        yield Claim([*facts, z3.Not(reals.not_nan(product))], found == 7, unknowns)
        yield Claim([*facts, reals.not_nan(product)], found == expected, unknowns)

    return Lemma(
        name=f"nvfp4_codes/{rounding.value}",
        statement="With RN32(y / s) in place of the quotient, y = RN32(x * g), the low eight bits are, for every x, g "
        f"and s above 0, the code of clamp(RN32(y / s), -6, 6), {rounding.value}, decided as y against multiples of s; "
        "NaN gets 7.",
        about="_nvfp4_kernels._codes, given nvfp4_quotient, or encode/e2m1 and quotient/scale; quotient/decides",
        claims=claims,
    )


def rounded_quotient(q: Term, y: Term, rounding: Rounding, scale: reals.Scale, random: Term) -> Iterator[Term]:
    """What is known of q = RN32(y / s), or of what stands for it: y's bits have no sign and are not NaN."""
    import z3

    value, scale = scale.without_power(reals.of_magnitude(y))
    quotient = reals.of_magnitude(q)
    infinite = y == reals.INFINITY
    yield z3.Implies(infinite, z3.Or(q == reals.INFINITY, z3.UGT(q & reals.MAGNITUDE, reals.INFINITY)))
    yield z3.Implies(z3.Not(infinite), z3.And(q >= 0, reals.not_nan(q)))
    for bound, scaled in _bounds(rounding, scale, random):
        for strict in (False, True):
            same = quotient.at_least(bound, strict=strict) == value.at_least(scaled, strict=strict)
            yield z3.Implies(z3.Not(infinite), same)
    vanishes = z3.Not(value.at_least(scale.times(VANISHING), strict=True))
    if rounding in (Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE):
        yield (q == 0) == vanishes


def _bounds(rounding: Rounding, scale: reals.Scale, random: Term) -> Iterator[tuple[reals.Real, reals.Real]]:
    """What a rounding compares a quotient with, and the same times the scale."""
    for low, high in itertools.pairwise(E2M1.magnitudes):
        if rounding is Rounding.STOCHASTIC:
            bound, scaled = (reals.stochastic_bound(low, high, by, random) for by in (reals.one(), scale))
            yield bound, scaled
        elif rounding in (Rounding.TOWARD_ZERO, Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE):
            yield reals.one().times(high), scale.times(high)
        else:
            yield reals.one().times((low + high) / 2), scale.times((low + high) / 2)
