"""Tempting shortcuts that are wrong, each as a lemma that must be refuted: z3 finds the input that shows it.

Each counter-example is also looked at by the exact reference, and there is a golden vector that catches the shortcut.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from lowbit.formats import BINARY32, E2M1, E4M3
from lowbit.proofs import device, language, reals
from lowbit.proofs.device import FLOAT32, INT32, Term, Value, variable
from lowbit.proofs.elements import encoder
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.nvfp4 import MAX_BITS
from lowbit.proofs.quotients import scale_value
from lowbit.proofs.scales import byte_is_right
from lowbit.proofs.sources import Kernels
from lowbit.references import exact
from lowbit.references.exact_arithmetic import divide
from lowbit.references.exact_elements import round_to
from lowbit.rules import NanCode, Rounding, ScaleRule

EVEN = Rounding.TIES_TO_EVEN


def lemmas() -> Iterator[Lemma]:
    yield _wrong(
        "reciprocal",
        "RN32(y * RN32(1 / s)) has the code of RN32(y / s), ties to even.",
        "x / s as x * (1 / s)",
        _reciprocal,
        "nvfp4/known_bugs",
    )
    yield _wrong(
        "sixth",
        "RN32(amax * RN32(1/6)) has the E4M3 byte of RN32(amax / 6).",
        "amax / 6 as amax * (1/6)",
        _sixth,
        "nvfp4/scale",
    )
    yield _wrong(
        "sticky_bits",
        "The encoder for numbers of 21 significant bits gives the code of every binary32, ties to even.",
        "_codec.encode_e2m1 with NARROW on binary32",
        _sticky_bits,
        "e2m1/ties_to_even",
    )
    yield _wrong(
        "add_half",
        "Adding half a step and cutting off gives the nearest code, ties to even.",
        "ties to even as ties away",
        _add_half,
        "e2m1/ties_to_even",
    )
    yield _wrong(
        "bfloat16_first",
        "Rounding to bfloat16 first does not change the code, ties to even.",
        "two roundings for one",
        _bfloat16_first,
        "e2m1/ties_to_even",
    )
    yield _wrong(
        "byte_zero",
        "A block of scale byte 0 may be divided by 2**-126: an amax that is a power of two keeps its code.",
        "byte 0 as 2**-126",
        _byte_zero,
        "mxfp4_floor/known_bugs",
    )
    yield _wrong(
        "even_exclusive",
        "A significand of just 1.75 may stay below: EVEN_EXCLUSIVE gives the byte of EVEN.",
        "_codec.scale_byte, EVEN as EVEN_EXCLUSIVE",
        _even_exclusive,
        "mxfp4_even/scale",
    )
    for rule, scheme in ((ScaleRule.FLOOR, "mx4_floor_e2m1_g32"), (ScaleRule.CEIL, "mx4_ceil_e2m1_g32")):
        yield _wrong(
            f"float_log2_{rule.value}",
            f"{rule.value}(RN32(log2 amax)) is {rule.value}(log2 amax), even with a log2 that is correctly rounded.",
            f"log2 in binary32, {rule.value}",
            functools.partial(_log2, rule),
            f"{scheme}/scale",
        )


def _wrong(name: str, statement: str, about: str, claims: Any, vector: str) -> Lemma:
    return Lemma(name=f"variant/{name}", statement=statement, about=about, claims=claims, expected=False, vector=vector)


def _reciprocal(code: Kernels) -> Iterator[Claim]:
    y = variable("y", FLOAT32)
    for scale in range(0x38, 0x40):
        s = scale_value(scale)
        e = y * device.simplified(language.div_rn(1.0, s))
        right = reals.element_code(reals.of_magnitude(y.bits), y.bits < 0, E2M1, EVEN, reals.scale_of(s.bits))
        unknowns = {"y": y.bits, "s": s.bits}
        yield Claim([y.bits >= 0, reals.not_nan(y.bits)], reals.ladder(e.bits, E2M1, EVEN) == right, unknowns)


@functools.cache
def amax_breakpoints() -> tuple[tuple[int, int], ...]:
    """First binary32 pattern of amax and E4M3 byte of RN32(amax / 6), up to 448, by the exact reference."""
    six, rows = round_to(Fraction(6), BINARY32), []
    for first, byte in exact.breakpoints(E4M3, EVEN, False):
        low, high = 0, reals.INFINITY
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if divide(middle, six) >= first else (middle + 1, high)
        rows.append((low, byte))
    return tuple(rows)


def _sixth(code: Kernels) -> Iterator[Claim]:
    import z3

    amax = variable("amax", FLOAT32)
    product = amax * code.e4m3.SIXTH_HIGH
    right = z3.BitVecVal(0, 32)
    for first, byte in amax_breakpoints():
        right = z3.If(z3.UGE(amax.bits, first), z3.BitVecVal(byte, 32), right)
    facts = [amax.bits >= 0, z3.ULE(product.bits, MAX_BITS)]
    yield Claim(facts, code.e4m3.encode_e4m3(product).bits == right, {"amax": amax.bits})


def _encoded(code: Kernels, x: Value, rounding: Rounding = EVEN, narrow: bool = False) -> Term:
    numbers = code.codec.ROUNDINGS[rounding.value], code.codec.NAN_CODES[NanCode.SIGNED_MAX.value]
    return encoder(code, E2M1)(x, 0, *numbers, narrow).bits


def _sticky_bits(code: Kernels) -> Iterator[Claim]:
    x = variable("x", FLOAT32)
    found = _encoded(code, x, narrow=True)
    yield Claim([reals.not_nan(x.bits)], found == reals.ladder(x.bits, E2M1, EVEN), {"x": x.bits})


def _add_half(code: Kernels) -> Iterator[Claim]:
    x = variable("x", FLOAT32)
    found = _encoded(code, x, Rounding.TIES_AWAY)
    yield Claim([reals.not_nan(x.bits)], found == reals.ladder(x.bits, E2M1, EVEN), {"x": x.bits})


def _bfloat16_first(code: Kernels) -> Iterator[Claim]:
    x = variable("x", FLOAT32)
    found = _encoded(code, code.codec.widen(code.codec.round_bfloat16(x)))
    yield Claim([reals.not_nan(x.bits)], found == reals.ladder(x.bits, E2M1, EVEN), {"x": x.bits})


def _byte_zero(code: Kernels) -> Iterator[Claim]:
    import z3

    x = variable("x", FLOAT32)
    found = _encoded(code, x * 2.0**126)
    byte_zero = reals.Scale(z3.BitVecVal(-127, reals.EXPONENT_BITS))
    right = reals.element_code(reals.of_magnitude(x.bits), x.bits < 0, E2M1, EVEN, byte_zero)
    yield Claim([x.bits & 0x7FFFFF == 0, z3.ULE(x.bits, 0x01000000)], found == right, {"x": x.bits})


def _even_exclusive(code: Kernels) -> Iterator[Claim]:
    import z3

    amax = variable("amax", INT32)
    exclusive = code.codec.SCALE_RULES[ScaleRule.EVEN_EXCLUSIVE.value]
    byte = code.codec.scale_byte(amax, 0, exclusive, E2M1.mantissa_bits, E2M1.emax, 254).bits
    right = byte_is_right(byte, amax.bits, ScaleRule.EVEN, E2M1, E2M1.emax, 254)
    yield Claim([z3.ULT(amax.bits, reals.INFINITY)], right, {"amax": amax.bits})


def _log2(rule: ScaleRule, code: Kernels) -> Iterator[Claim]:
    """amax = 2**k * (1 - d), or 2**k * (1 + d) for CEIL; then |log2 amax - k| < d / (1 - d) / ln 2 < 1.4428 * d."""
    import z3

    k, n = z3.Ints("k n")
    below = rule is ScaleRule.FLOOR
    amax = (k + BINARY32.bias) * (1 << 23) + (-n if below else n)
    distance = z3.ToReal(n) * z3.Q(14428, 10000) / (1 << (24 if below else 23))
    for p in range(1, 7):  # numbers next to k in 2**p < k < 2**(p + 1) are 2**(p - 23) away from it
        facts = [k > 1 << p, k < 2 << p, n >= 1, n < 1 << 9]
        yield Claim(facts, distance >= z3.Q(1 << p, 1 << 24), {"amax": amax}, numbers=True)
