"""The lemmas about E2M1 codes by multiply-adds, and what stands for codes to nearest in lemmas that rest on others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from lowbit.formats import E2M1
from lowbit.proofs import reals
from lowbit.proofs.device import FLOAT32, UINT32, Term, Value, variable
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.sources import Kernels
from lowbit.rules import Rounding

ROUNDINGS = {True: Rounding.TIES_TO_EVEN, False: Rounding.TIES_TOWARD_ZERO}
"""The function's constexpr TO_EVEN → what it does."""


def lemmas() -> Iterator[Lemma]:
    for to_even in ROUNDINGS:
        yield _nearest(to_even)


def _nearest(to_even: bool) -> Lemma:
    rounding = ROUNDINGS[to_even]

    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        q = variable("q", FLOAT32)
        found = code.e4m3.nearest_e2m1(q, to_even).bits & 0xFF
        expected = reals.ladder(q.bits, E2M1, rounding)
        yield Claim([z3.ULE(q.bits, reals.INFINITY)], found == expected, {"q": q.bits})
        yield Claim([z3.Not(reals.not_nan(q.bits))], found == 7, {"q": q.bits})

    return Lemma(
        name=f"nearest/e2m1/{rounding.value}",
        statement="Three multiply-adds give, in the low eight bits, the E2M1 code of every binary32 from 0 to Inf, "
        f"{rounding.value}, and 7 of every NaN.",
        about="_e4m3.nearest_e2m1",
        claims=claims,
    )


def as_proved() -> Callable[[Value, bool], Value]:
    """Any function of which the lemmas hold: what they leave open is open."""
    import z3

    calls = itertools.count()

    def nearest_e2m1(q: Value, to_even: bool) -> Value:
        call = next(calls)
        code = reals.ladder(q.bits, E2M1, ROUNDINGS[bool(to_even)])
        code = z3.If(reals.not_nan(q.bits), code, z3.BitVecVal(7, 32))
        open_ = z3.BitVec(f"nearest_{call}", 32)
        negative = z3.And(q.bits < 0, reals.not_nan(q.bits))
        return Value(UINT32, z3.If(negative, open_, open_ & 0xFFFFFF00 | code))

    return nearest_e2m1


def quotient_code(magnitude: Term, scale: Value, rounding: Rounding) -> Term:
    """The code of |y| / s, and 7 of NaN, as an element's rule has it.

    Args:
      magnitude: |y|'s bits.
      scale: s, above 0, of at most 4 significant bits.
    """
    import z3

    divisor = reals.scale_of(scale.bits)
    code = reals.element_code(reals.of_magnitude(magnitude), z3.BoolVal(False), E2M1, rounding, divisor)
    return z3.If(reals.not_nan(magnitude), code, z3.BitVecVal(7, 32))


def quotient_as_proved() -> Callable[..., Value]:
    """Any `_nearest_quotient` of which the lemmas ``nvfp4_quotient`` hold: what they leave open is open."""
    import z3

    calls = itertools.count()

    def nearest_quotient(y: Value, scale: Value, high: Value, low: Value, to_even: Any, ptx: Any) -> Value:
        code = quotient_code(y.bits & reals.MAGNITUDE, scale, ROUNDINGS[bool(to_even)])
        return Value(UINT32, z3.BitVec(f"quotient_{next(calls)}", 32) & 0xFFFFFF00 | code)

    return nearest_quotient
