"""What is right, as statements about real numbers: the side of a lemma that no kernel has a part in.

A binary32 magnitude is split into an exponent and a significand, 2**exponent * significand / 2**23, normalised, so that
it compares with any constant times any power of two exactly: exponents first, then significands. Inf counts as
2**BEYOND, which is above everything that it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from lowbit.formats import FloatFormat
from lowbit.proofs.device import Term
from lowbit.references import exact
from lowbit.references.exact_elements import floor_log2
from lowbit.rules import Rounding, ScaleRule

SIGNIFICAND_BITS = 24
EXPONENT_BITS = 12  # signed; holds every sum of two exponents of binary32
BEYOND = 1000
INFINITY = 0x7F800000
MAGNITUDE = 0x7FFFFFFF


@dataclass(frozen=True)
class Real:
    """A real number >= 0.

    Attributes:
      exponent: signed bit-vector, floor(log2); anything for 0.
      significand: 24-bit vector with its top bit set; 0 for 0.
    """

    exponent: Term
    significand: Term

    def at_least(self, bound: Real, *, strict: Term = False) -> Term:
        """self >= bound, or self > bound where `strict`; bound above 0."""
        import z3

        beyond = z3.UGE(self.significand, bound.significand)
        if strict is not False:
            beyond = z3.And(beyond, z3.Not(z3.And(strict, self.significand == bound.significand)))
        above = z3.Or(self.exponent > bound.exponent, z3.And(self.exponent == bound.exponent, beyond))
        return z3.And(self.significand != 0, above)

    def square_at_least(self, exponent: Term) -> Term:
        """self**2 >= 2**exponent."""
        import z3

        wide = z3.ZeroExt(SIGNIFICAND_BITS, self.significand)
        doubled = 2 * self.exponent  # self**2 lies in [2**doubled, 2**(doubled + 2))
        two = z3.UGE(wide * wide, z3.BitVecVal(1 << 2 * SIGNIFICAND_BITS - 1, 2 * SIGNIFICAND_BITS))
        above = z3.Or(doubled >= exponent, z3.And(doubled + 1 == exponent, two))
        return z3.And(self.significand != 0, above)


def not_nan(bits: Term) -> Term:
    """Of binary32 bits, whatever their sign."""
    import z3

    return z3.ULE(bits & MAGNITUDE, z3.BitVecVal(INFINITY, 32))


def of_magnitude(bits: Term) -> Real:
    """The value of binary32 bits without their sign, not NaN."""
    import z3

    exponent = z3.ZeroExt(EXPONENT_BITS - 8, z3.Extract(30, 23, bits))
    mantissa = z3.Extract(22, 0, bits)
    tiny = _normalised(z3.ZeroExt(1, mantissa), z3.BitVecVal(-126, EXPONENT_BITS))
    normal = z3.Concat(z3.BitVecVal(1, 1), mantissa)
    own = z3.If(exponent == 255, z3.BitVecVal(BEYOND, EXPONENT_BITS), exponent - 127)
    return Real(z3.If(exponent == 0, tiny.exponent, own), z3.If(exponent == 0, tiny.significand, normal))


def of_binary16(bits: Term) -> Term:
    """The binary32 bits of binary16 ones: exact, the sign of NaN kept."""
    import z3

    value = z3.fpFPToFP(z3.RNE(), z3.fpBVToFP(bits, z3.FPSort(5, 11)), z3.FPSort(8, 24))
    quiet = z3.Concat(z3.Extract(15, 15, bits), z3.BitVecVal(0x7FC00000, 31))
    return z3.If(z3.fpIsNaN(value), quiet, z3.fpToIEEEBV(value))


def constant(value: Fraction, exponent: Term) -> Real:
    """A constant above 0 of at most 24 significant bits, times 2**exponent."""
    import z3

    own = floor_log2(value)
    significand = value / Fraction(2) ** (own - SIGNIFICAND_BITS + 1)
    if significand.denominator != 1:
        raise AssertionError(f"{value} has more than {SIGNIFICAND_BITS} significant bits")
    shifted = exponent + z3.BitVecVal(own, EXPONENT_BITS)
    return Real(shifted, z3.BitVecVal(int(significand), SIGNIFICAND_BITS))


def _normalised(significand: Term, exponent: Term) -> Real:
    """The same number with the top bit of its significand set."""
    import z3

    for shift in (16, 8, 4, 2, 1):
        empty = z3.Extract(SIGNIFICAND_BITS - 1, SIGNIFICAND_BITS - shift, significand) == 0
        significand = z3.If(empty, significand << shift, significand)
        exponent = z3.If(empty, exponent - shift, exponent)
    return Real(exponent, significand)


def byte_exponent(byte: Term) -> Term:
    """byte - 127 of a 32-bit byte."""
    import z3

    return z3.Extract(EXPONENT_BITS - 1, 0, byte) - 127


@dataclass(frozen=True)
class Scale:
    """What an element is divided by: significand * 2**exponent, an integer of at most 4 bits times a power of two."""

    exponent: Term
    significand: Term = None  # 24-bit vector; None for 1

    def times(self, value: Fraction) -> Real:
        """The scale times a constant above 0 of few bits."""
        import z3

        if self.significand is None:
            return constant(value, self.exponent)
        exponent = floor_log2(Fraction(1, value.denominator))
        return self.integer(z3.BitVecVal(value.numerator, SIGNIFICAND_BITS), exponent)

    def without_power(self, magnitude: Real) -> tuple[Real, Scale]:
        """A number divided by the scale's power of two, and the scale without it: sooner decided."""
        import z3

        shifted = Real(magnitude.exponent - self.exponent, magnitude.significand)
        return shifted, Scale(z3.BitVecVal(0, EXPONENT_BITS), self.significand)

    def integer(self, number: Term, exponent: int) -> Real:
        """The scale times an integer, a 24-bit vector of few bits, times 2**exponent."""
        product = number if self.significand is None else number * self.significand
        return _normalised(product, self.exponent + exponent + SIGNIFICAND_BITS - 1)


def element_code(
    magnitude: Real,
    negative: Term,
    element: FloatFormat,
    rounding: Rounding,
    scale: Scale,
    random: Term = None,
    vanishing: Fraction = Fraction(0),
) -> Term:
    """The code of x / scale in a format without Inf and NaN, saturating, sign in the top bit (SPEC.md 2).

    Args:
      magnitude: |x|.
      negative: x's sign, that of zero included.
      random: 8-bit vector, STOCHASTIC's r.
      vanishing: quotients up to it count as 0.

    Returns:
      32-bit vector.
    """
    import z3

    magnitude, scale = scale.without_power(magnitude)
    code = z3.If(negative, z3.BitVecVal(element.sign_mask, 32), z3.BitVecVal(0, 32))
    for above in range(1, len(element.magnitudes)):
        low, high = element.magnitudes[above - 1 : above + 1]
        middle = scale.times((low + high) / 2)
        match rounding:
            case Rounding.TIES_TO_EVEN:
                reached = magnitude.at_least(middle, strict=z3.BoolVal(above % 2 == 1))
            case Rounding.TIES_TOWARD_ZERO:
                reached = magnitude.at_least(middle, strict=z3.BoolVal(True))
            case Rounding.TIES_AWAY:
                reached = magnitude.at_least(middle)
            case Rounding.TIES_DOWN:
                reached = magnitude.at_least(middle, strict=z3.Not(negative))
            case Rounding.TIES_UP:
                reached = magnitude.at_least(middle, strict=negative)
            case Rounding.TOWARD_ZERO:
                reached = magnitude.at_least(scale.times(high))
            case Rounding.TOWARD_NEGATIVE | Rounding.TOWARD_POSITIVE:
                away = negative if rounding is Rounding.TOWARD_NEGATIVE else z3.Not(negative)
                lower = low or vanishing
                beyond = magnitude.at_least(scale.times(lower), strict=True) if lower else magnitude.significand != 0
                reached = z3.If(away, beyond, magnitude.at_least(scale.times(high)))
            case Rounding.STOCHASTIC:
                reached = magnitude.at_least(stochastic_bound(low, high, scale, random))
        code = code + z3.If(reached, z3.BitVecVal(1, 32), z3.BitVecVal(0, 32))
    return code


def stochastic_bound(low: Fraction, high: Fraction, scale: Scale, random: Term) -> Real:
    """The least |x| that rounds up: floor(p * 256) >= 256 - r, i.e. p >= (256 - r) / 256, p from low to high."""
    import z3

    step = high - low
    number = z3.BitVecVal(int(low / step) * 256 + 256, SIGNIFICAND_BITS) - z3.ZeroExt(16, random)
    return scale.integer(number, floor_log2(step) - 8)


def scale_of(bits: Term) -> Scale:
    """A positive binary32 of at most 4 significant bits as a scale."""
    import z3

    value = of_magnitude(bits)
    return Scale(value.exponent - 3, z3.LShR(value.significand, SIGNIFICAND_BITS - 4))


def one() -> Scale:
    import z3

    return Scale(z3.BitVecVal(0, EXPONENT_BITS))


def ladder(bits: Term, element: FloatFormat, rounding: Rounding) -> Term:
    """The code of any binary32 that is not NaN, by the breakpoints of the exact reference.

    Returns:
      32-bit vector.
    """
    import z3

    sides = []
    for negative in (True, False):
        rows = exact.breakpoints(element, rounding, negative)
        code = z3.BitVecVal(rows[0][1], 32)
        for first, row_code in rows[1:]:
            code = z3.If(z3.UGE(bits, z3.BitVecVal(first, 32)), z3.BitVecVal(row_code, 32), code)
        sides.append(code)
    return z3.If(bits < 0, *sides)


def scale_reaches(
    amax: Real, exponent: Term, rule: ScaleRule, element: FloatFormat, offset: int, random: Term = None
) -> Term:
    """f(amax) - offset >= exponent, before the clamp (SPEC.md 3.1, 3.2).

    Args:
      exponent: signed vector.
      offset: e, what the rule subtracts.
      random: 31-bit number as a 32-bit vector, STOCHASTIC's r.
    """
    import z3

    reached = exponent + offset  # f(amax) >= this
    bound = 2 - Fraction(1, 2 << element.mantissa_bits)
    match rule:
        case ScaleRule.FLOOR:
            return amax.at_least(constant(Fraction(1), reached))
        case ScaleRule.CEIL:
            return amax.at_least(constant(Fraction(1), reached - 1), strict=z3.BoolVal(True))
        case ScaleRule.NEAREST:  # log2 amax + 1/2 >= reached
            return amax.square_at_least(2 * reached - 1)
        case ScaleRule.EVEN:
            return amax.at_least(constant(bound, reached - 1))
        case ScaleRule.EVEN_EXCLUSIVE:
            return amax.at_least(constant(bound, reached - 1), strict=z3.BoolVal(True))
        case ScaleRule.RCEIL:  # max_value * 2**(exponent - 1) is not enough
            return amax.at_least(constant(element.max_value, exponent - 1), strict=z3.BoolVal(True))
        case ScaleRule.STOCHASTIC:  # the significand of amax and noise make 2, or amax is there by itself
            noise = z3.Extract(SIGNIFICAND_BITS - 1, 0, random) & (1 << 23 - element.mantissa_bits) - 1
            return z3.Or(
                amax.at_least(constant(Fraction(1), reached)),
                z3.And(
                    amax.exponent == reached - 1,
                    amax.significand != 0,
                    z3.UGE(z3.ZeroExt(1, amax.significand) + z3.ZeroExt(1, noise), z3.BitVecVal(1 << 24, 25)),
                ),
            )
    raise AssertionError(f"{rule} gives no power of two")
