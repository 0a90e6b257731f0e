"""Lemmas about power-of-two scales: the byte of an amax, what it stands for, and the amax of neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowbit.formats import E2M1, E3M0, FloatFormat
from lowbit.proofs import reals
from lowbit.proofs.device import INT32, Term, Value, variable
from lowbit.proofs.elements import LARGEST_BYTE
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.pairs import WORDS, widened, words_of
from lowbit.proofs.sources import Kernels
from lowbit.rules import ScaleRule

MX4_RULES = (
    *(ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.NEAREST),
    *(ScaleRule.EVEN, ScaleRule.EVEN_EXCLUSIVE, ScaleRule.RCEIL, ScaleRule.STOCHASTIC),
)
MXFP4_RULES = (ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.RCEIL)


def lemmas() -> Iterator[Lemma]:
    for element in (E2M1, E3M0):
        for rule in MX4_RULES:
            if (element, rule) != (E3M0, ScaleRule.RCEIL):  # no scheme has it, and e is not its emax
                yield _byte(element, rule)
    for rule in MXFP4_RULES:
        yield _block(rule)
    yield _powers()
    for word in WORDS:
        yield _amax(word)


def byte_is_right(
    byte: Term, amax: Term, rule: ScaleRule, element: FloatFormat, offset: int, limit: int, random: Term = None
) -> Term:
    """byte = clamp(f(amax) - offset, -127, limit - 127) + 127, of a magnitude that is not NaN."""
    import z3

    exponent, magnitude = reals.byte_exponent(byte), reals.of_magnitude(amax)
    here, next_ = (reals.scale_reaches(magnitude, e, rule, element, offset, random) for e in (exponent, exponent + 1))
    within = z3.And(byte >= 0, byte <= limit)
    return z3.And(within, z3.Or(byte == 0, here), z3.Or(byte == limit, z3.Not(next_)))


def _byte(element: FloatFormat, rule: ScaleRule) -> Lemma:
    offset = element.exponent_bits

    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        amax, r = variable("amax", INT32), variable("r", INT32)
        stochastic = rule is ScaleRule.STOCHASTIC
        limit = int(code.mx4.SCALE_LIMIT)
        byte = code.codec.scale_byte(
            amax, r if stochastic else 0, code.codec.SCALE_RULES[rule.value], element.mantissa_bits, offset, limit
        ).bits
        right = byte_is_right(byte, amax.bits, rule, element, offset, limit, r.bits if stochastic else None)
        facts = [amax.bits >= 0, reals.not_nan(amax.bits), r.bits >= 0]
        yield Claim(facts, right, {"amax": amax.bits} | ({"r": r.bits} if stochastic else {}))
        yield Claim([], z3.BoolVal(limit == 252), {})

    return Lemma(
        name=f"scale/{element.name}/{rule.value}",
        statement=f"The byte of every amax from 0 to Inf is clamp(f(amax) - {offset}, -127, 125) + 127 with f by exact "
        f"real numbers, {rule.value}; Inf gives 252.",
        about="_codec.scale_byte",
        claims=claims,
    )


def _block(rule: ScaleRule) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        amax = variable("amax", INT32)
        byte, factor = code.mxfp4._block_scale(amax, code.codec.SCALE_RULES[rule.value])
        unknowns = {"amax": amax.bits}
        finite = [amax.bits >= 0, amax.bits < reals.INFINITY]
        yield Claim(finite, byte_is_right(byte.bits, amax.bits, rule, E2M1, E2M1.emax, 254), unknowns)
        yield Claim(finite, byte.bits <= LARGEST_BYTE, unknowns)
        yield Claim(finite, _is_power(factor.bits, 127 - byte.bits), unknowns)
        yield Claim([amax.bits >= reals.INFINITY], byte.bits == 255, unknowns)
        yield Claim([amax.bits >= reals.INFINITY], _is_power(factor.bits, 0), unknowns)

    return Lemma(
        name=f"scale/mxfp4/{rule.value}",
        statement="The byte of every finite amax is clamp(f(amax), -127, 127) + 127 with f by exact real numbers, "
        f"{rule.value}, is at most 253, and the factor is 2**-E; NaN and Inf give 255 and the factor 1.",
        about="_mxfp4_kernels._block_scale",
        claims=claims,
    )


def _powers() -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        byte = variable("byte", INT32)
        unknowns = {"byte": byte.bits}
        facts = [byte.bits >= 0, byte.bits <= 254]
        yield Claim(facts, _is_power(code.codec.power_of_two(byte).bits, byte.bits - 127), unknowns)
        facts = [byte.bits >= 0, byte.bits <= LARGEST_BYTE]
        yield Claim(facts, _is_power(code.codec.inverse_power_of_two(byte).bits, 127 - byte.bits), unknowns)
        infinite = code.codec.power_of_two(Value(INT32, z3.BitVecVal(255, 32))).bits
        yield Claim([], infinite == reals.INFINITY, {})

    return Lemma(
        name="scale/powers",
        statement="Bytes 0..254 stand for 2**(byte - 127), 2**-127 included, 255 for Inf; bytes 0..253 are divided by "
        "as 2**(127 - byte).",
        about="_codec.power_of_two, _codec.inverse_power_of_two",
        claims=claims,
    )


def _is_power(bits: Term, exponent: Term | int) -> Term:
    """Binary32 bits are those of 2**exponent, by the real number that they stand for."""
    import z3

    power = reals.of_magnitude(bits)
    wanted = z3.BitVecVal(exponent, 32) if isinstance(exponent, int) else exponent
    one = z3.BitVecVal(1 << reals.SIGNIFICAND_BITS - 1, reals.SIGNIFICAND_BITS)
    same = z3.SignExt(32 - reals.EXPONENT_BITS, power.exponent) == wanted
    return z3.And(bits >= 0, power.significand == one, same)


def _amax(word: str) -> Lemma:
    fmt = WORDS[word]

    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        first, number, first_parts = words_of(code, word, "words_0")
        second, _, second_parts = words_of(code, word, "words_1")
        both = Value(first.dtype, first.bits, second.bits)
        magnitudes = [part & fmt.magnitude_mask for part in (*first_parts, *second_parts)]
        are_numbers = [z3.ULE(part, fmt.max_magnitude + 1) for part in magnitudes]
        unknowns = {"words_0": first.bits, "words_1": second.bits}
        actual = code.pairs.amax_bits(both, False, number).bits
        largest = widened(_largest(magnitudes), word)
        yield Claim(are_numbers, actual == largest, unknowns)
        yield Claim([z3.Not(z3.And(*are_numbers))], z3.Not(reals.not_nan(actual)), unknowns)
        left = [z3.If(known, part, part ^ part) for known, part in zip(are_numbers, magnitudes, strict=True)]
        without_nan = code.pairs.amax_bits(both, True, number).bits
        yield Claim([], without_nan == widened(_largest(left), word), unknowns)

    return Lemma(
        name=f"amax/{word}",
        statement=f"The largest magnitude of two words of two {word}, which is NaN if one of them is, or leaves NaN "
        "out; of more words it is the largest of these.",
        about="_pairs.amax_bits",
        claims=claims,
    )


def _largest(magnitudes: Sequence[Term]) -> Term:
    """Of magnitudes as bits, which order as the numbers do."""
    import z3

    largest = magnitudes[0]
    for magnitude in magnitudes[1:]:
        largest = z3.If(z3.UGT(magnitude, largest), magnitude, largest)
    return largest
