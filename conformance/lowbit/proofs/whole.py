"""Lemmas about what stands inline in a kernel: it is run whole, on given words, with addresses that do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from lowbit.formats import E2M1, E4M3
from lowbit.proofs import device, nearest, reals
from lowbit.proofs.device import FLOAT32, INT32, Term, Value, variable
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.nvfp4 import e4m3_value, rounded_quotient
from lowbit.proofs.pairs import WORDS, halves
from lowbit.proofs.sources import Kernels
from lowbit.rules import Rounding


def lemmas() -> Iterator[Lemma]:
    for word in WORDS:
        yield _even_pairs(word)


class Address:
    """An index, a mask or a pointer: what is done with it gives another one."""

    def _same(self, *operands: Any) -> Address:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = _same
    __and__ = __or__ = __lt__ = __getitem__ = to = _same
    __eq__ = _same  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def _even_pairs(word: str) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        words, number, parts = halves(code, word)
        magnitude = variable("scale", INT32)
        s = Value(FLOAT32, e4m3_value(magnitude.bits))
        scale, unity = reals.scale_of(s.bits), device.constant(1.0, FLOAT32)
        g = variable("g", FLOAT32)
        facts = [g.bits > 0, g.bits < reals.INFINITY, magnitude.bits >= 1, magnitude.bits <= E4M3.max_magnitude]
        stored: list[Value] = []

        def quotient(y: Value, *divisor: Value) -> Value:
            q = variable(f"q_{len(facts)}", FLOAT32)
            is_nan = z3.Not(reals.not_nan(y.bits))
            facts.append(z3.Implies(is_nan, z3.Not(reals.not_nan(q.bits))))
            known = rounded_quotient(q.bits, y.bits, Rounding.TIES_TO_EVEN, scale, None)
            facts.extend(z3.Or(is_nan, fact) for fact in known)
            return q

        def store(pointer: Any, value: Value, mask: Any = None) -> None:
            if pointer is packed:
                stored.append(value)

        packed, elsewhere = Address(), Address()
        memory = {
            "program_id": lambda axis: elsewhere,
            "arange": lambda *ends: elsewhere,
            "load": lambda pointer: g,
            "store": store,
        }
        nvfp4 = code.replacing(
            "_nvfp4_kernels",
            tl=SimpleNamespace(**(vars(code.nvfp4.tl) | memory)),
            _tile=lambda *arguments: (elsewhere,) * 5,
            _load=lambda *arguments: words,
            _block_scale=lambda *arguments: (magnitude, s),
            reciprocal_pair=lambda scale: (unity, unity),
            divide_by_scale=quotient,
            nearest_e2m1=nearest.as_proved(),
        ).nvfp4
        rounding = code.codec.ROUNDINGS[Rounding.TIES_TO_EVEN.value]
        pointers = [elsewhere, elsewhere, packed, *[elsewhere] * 11]
        nvfp4.quantize_kernel(*pointers, 1, nvfp4.COMPUTED, rounding, 0, 0, number, 0, 1, 1)
        (both,) = stored
        magnitudes = code.pairs.magnitudes(words, number)
        for place, (part, absolute) in enumerate(zip(parts, magnitudes, strict=True)):
            real = reals.of_magnitude((absolute.to(FLOAT32, bitcast=True) * g).bits)
            number_code = reals.element_code(real, part < 0, E2M1, Rounding.TIES_TO_EVEN, scale)
            expected = z3.If(reals.not_nan(part), number_code, z3.BitVecVal(7, 32))
            found: Term = z3.ZeroExt(24, both.bits)
            unknowns = {"words": words.bits, "g": g.bits, "scale": magnitude.bits}
            yield Claim(facts, z3.LShR(found, 4 * place) & 15 == expected, unknowns)

    return Lemma(
        name=f"nvfp4_pairs/{word}",
        statement=f"The byte that the canonical kernel stores of a word of two {word} holds the codes of "
        "clamp(RN32(RN32(x * g) / s), -6, 6), ties_to_even, for every finite g and every s above 0, first element "
        "low; NaN gets 7.",
        about="_nvfp4_kernels.quantize_kernel, given pairs_split, nearest/e2m1, quotient/scale and quotient/decides",
        claims=claims,
    )
