"""The lemma about stochastic codes of y / s that come from a product with RN32(1 / s), cut off, not from a quotient.

The stochastic rule asks which of 1,792 bounds T the quotient reaches, 256 for each step between two codes. As in
`products`, real numbers decide it for each scale s and the factor r * 2**-14 that the kernels hand to their PTX:

* y is a binary32 number, and so is s * T, so that y is at least s * T or at most s * T * (1 - 2**-24). Nothing else is
  asked of y, nor of T: neither which bound it is nor that there are few;
* a product that is cut off to binary32 reaches a bound, which is a binary32 number, exactly if it did before: far below
  it, where products are subnormal, and above all numbers too. Rounded to nearest it also does from half a unit below,
  which an even bound takes; rounded upward from anywhere above the number before.

What follows in the PTX, the cut to binary16 and the sum with random bits, is run by a test at every bound.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, E2M1, E4M3
from lowbit.proofs import device
from lowbit.proofs.device import FLOAT32, Value, pattern, variable
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.quotients import SCALES, rational, scale_value
from lowbit.proofs.sources import Kernels
from lowbit.references.exact_elements import pattern_float, round_to

BOUNDS = tuple(
    low + (high - low) * step / 256 for low, high in itertools.pairwise(E2M1.magnitudes) for step in range(1, 257)
)
"""What a quotient reaches, or not, by the byte that rounds it up: all that the rule asks."""

UNIT = Fraction(1, 1 << 14)
"""What the kernels count quotients in."""

ONE_BINADE = range(0x38, 0x40)
"""Codes of the eight significands."""

APART = 1 - Fraction(1, 1 << 24)
"""The number before a normal binary32 number is at most this part of it."""


def lemmas() -> Iterator[Lemma]:
    yield Lemma(
        name="nvfp4_drawn/stochastic",
        statement="|y| times RN32(1 / s) * 2**-14, cut off to binary32, reaches T * 2**-14 exactly if |y| / s reaches "
        "T, for every finite binary32 y, every s that an E4M3 code above 0 stands for and each of the 1,792 bounds T "
        "of the stochastic rule.",
        about="_nvfp4_kernels._drawn_pairs, _stochastic_pairs.encode_quotients, given quotient/decides",
        claims=_claims,
    )


def _claims(code: Kernels) -> Iterator[Claim]:
    import z3

    first, second, g, high, low = (variable(name, FLOAT32) for name in ("first", "second", "g", "high", "low"))
    handed: list[Any] = []
    stubs = {
        "_stochastic_pairs": SimpleNamespace(encode_quotients=lambda *arguments: handed.extend(arguments)),
        "_halves": lambda words, number: (first, second),
    }
    code.replacing("_nvfp4_kernels", **stubs).nvfp4._drawn_pairs(None, g, g, high, low, None, code.pairs.BFLOAT16, True)
    right = (first * g, second * g, high + low)
    same = z3.And(*(actual.bits == wanted.bits for actual, wanted in zip(handed[:3], right, strict=True)))
    yield Claim([], same, {"first": first.bits, "second": second.bits, "g": g.bits})

    for scale in SCALES:
        text, r = _product(code, scale)
        s = E4M3.magnitude_value(scale)
        y, bound, before = z3.Reals("y T before")
        there = bound * rational(s)
        unit = bound * rational(UNIT)
        facts = [
            *(y >= 0, bound > 0, z3.Or(y >= there, y <= there * rational(APART))),
            *(before <= unit * rational(APART), before >= unit * rational(2 * APART - 1)),
        ]
        for direction in _directions(text):
            product = y * rational(r)
            reached = _reached(direction, product, unit, before)
            numbers = z3.BoolVal(all((s * each).numerator < 1 << 24 for each in BOUNDS))
            confirm = functools.partial(_search, code, (scale, *ONE_BINADE), direction)
            yield Claim(facts, z3.And(numbers, reached == (y >= there)), {}, numbers=True, confirm=confirm)


def _product(code: Kernels, scale: int) -> tuple[str, Fraction]:
    """The text that `encode_quotients` runs, and the factor that it gets where an E4M3 code divides."""
    ran: list[tuple[str, list[Value]]] = []

    def inline_asm_elementwise(text: str, constraints: str, values: list[Value], **_: Any) -> None:
        ran.append((text, values))

    tl = SimpleNamespace(**(vars(code.stochastic_pairs.tl) | {"inline_asm_elementwise": inline_asm_elementwise}))
    high, low = code.e4m3.reciprocal_pair(scale_value(scale))
    stubs = {"tl": tl, "_selectors": lambda random: None}  # whose bytes are drawn is not asked here
    code.replacing("_stochastic_pairs", **stubs).stochastic_pairs.encode_quotients(high, high, high + low, None)
    ((text, values),) = ran
    return text, Fraction(pattern_float(pattern(device.simplified(values[2]))))


def _reached(direction: str, product: Any, bound: Any, before: Any) -> Any:
    """Whether a product, rounded, is at least a bound, before which there is that number."""
    return {"rz": product >= bound, "rn": product * 2 >= bound + before, "rp": product > before}[direction]


def _directions(text: str) -> set[str]:
    """In which directions the kernels' PTX rounds its eight products, each of an element and its block's factor.

    Raises:
      ArgumentError: it has other products than these.
    """
    found = re.findall(r"mul\.(r[npz])\.f32 \w+, \$(\d+), \$(\d+);", text)
    operands = sorted((int(element), int(factor)) for _, element, factor in found)
    wanted = sorted((place, (place - 1) % 4 + 9) for place in range(1, 9))
    if operands != wanted:
        raise ArgumentError(f"QUOTIENTS: got products of {operands}, want {wanted}, subnormals kept")
    return {direction for direction, _, _ in found}


def _search(code: Kernels, scales: Iterable[int], direction: str) -> Mapping[str, int] | None:
    """A y at a bound, or next to one, whose product does not reach what y / s does."""
    for scale in scales:
        s, (_, r) = E4M3.magnitude_value(scale), _product(code, scale)
        for bound in BOUNDS:
            at, unit = round_to(s * bound, BINARY32), bound * UNIT
            before = Fraction(pattern_float(round_to(unit, BINARY32) - 1))
            for y in (at - 1, at, at + 1):
                if _reached(direction, Fraction(pattern_float(y)) * r, unit, before) != (y >= at):
                    return {"y": y, "s": round_to(s, BINARY32)}
    return None
