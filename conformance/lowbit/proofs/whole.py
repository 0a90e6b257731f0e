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
    for rounding in nearest.ROUNDINGS.values():
        for word in WORDS:
            yield _nearest_pairs(rounding, word)


def pairs_lemma(rounding: Rounding, word: str) -> str:
    """The name of the lemma about the stored byte of two neighbours."""
    return f"nvfp4_pairs/{word}" if rounding is Rounding.TIES_TO_EVEN else f"nvfp4_pairs/{rounding.value}/{word}"


class Address:
    """An index, a mask or a pointer: what is done with it gives another one."""

    def _same(self, *operands: Any) -> Address:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = _same
    __and__ = __or__ = __lt__ = __getitem__ = to = _same
    __eq__ = _same  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def _nearest_pairs(rounding: Rounding, word: str) -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        words, number, parts = halves(code, word)
        for part, element in zip(parts, code.nvfp4._halves(words, number), strict=True):
            both_nan = z3.And(z3.Not(reals.not_nan(part)), z3.Not(reals.not_nan(element.bits)))
            yield Claim([], z3.Or(both_nan, part == element.bits), {"words": words.bits})
        for ptx in (False, True):
            yield from _stored(code, rounding, words, number, ptx)

    return Lemma(
        name=pairs_lemma(rounding, word),
        statement=f"The byte that the NVFP4 kernels store of a word of two {word} holds the codes of "
        f"clamp(RN32(RN32(x * g) / s), -6, 6), {rounding.value}, for every g and every s above 0, first element low; "
        "NaN gets 7. With PTX, if a product that is NaN is positive and `_join_signs` does what it does without.",
        about="_nvfp4_kernels.quantize_kernel, given nvfp4_quotient and quotient/decides",
        claims=claims,
    )


def _stored(code: Kernels, rounding: Rounding, words: Value, number: int, ptx: bool) -> Iterator[Claim]:
    """Both nibbles of the byte that the whole kernel stores."""
    import z3

    magnitude, g = variable("scale", INT32), variable("g", FLOAT32)
    s = Value(FLOAT32, e4m3_value(magnitude.bits))
    scale, unity = reals.scale_of(s.bits), device.constant(1.0, FLOAT32)
    facts = [magnitude.bits >= 1, magnitude.bits <= E4M3.max_magnitude]
    products = [(element * g).bits for element in code.nvfp4._halves(words, number)]
    if ptx:
        facts += [z3.Or(reals.not_nan(product), product >= 0) for product in products]
    stored: list[Value] = []

    def quotient(y: Value, *divisor: Value) -> Value:
        q = variable(f"q_{len(facts)}", FLOAT32)
        is_nan = z3.Not(reals.not_nan(y.bits))
        facts.append(z3.Implies(is_nan, z3.Not(reals.not_nan(q.bits))))
        known = rounded_quotient(q.bits, y.bits, rounding, scale, None)
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
    join_signs = code.nvfp4._join_signs
    nvfp4 = code.replacing(
        "_nvfp4_kernels",
        tl=SimpleNamespace(**(vars(code.nvfp4.tl) | memory)),
        tile_of=lambda *arguments: (elsewhere,) * 5,
        load_blocks=lambda *arguments: words,
        _pairs=SimpleNamespace(**(vars(code.pairs) | {"amax_bits": lambda *arguments: elsewhere})),
        _block_scale=lambda *arguments: (magnitude, s),
        reciprocal_pair=lambda scale: (unity, unity),
        divide_by_scale=quotient,
        nearest_e2m1=nearest.as_proved(),
        _nearest_quotient=nearest.quotient_as_proved(),
        _join_signs=lambda low, high, both, ptx: join_signs(low, high, both, False),
    ).nvfp4
    constexprs = {
        **{"CANONICAL": rounding is Rounding.TIES_TO_EVEN, "ORIGIN": nvfp4.COMPUTED, "RANDOM": 0, "SWIZZLE": 0},
        **{"ROUNDING": code.codec.ROUNDINGS[rounding.value], "PAIRS": number, "PTX": ptx},
        **{"FLAT": 1, "ROW_UNIT": 1, "ADJACENT": 1, "WHOLE": 1, "WIDE": 0, "BLOCK_ROWS": 1, "BLOCK_GROUPS": 1},
    }
    nvfp4.quantize_kernel(*[elsewhere] * 2, packed, *[elsewhere] * 11, **constexprs)
    (both,) = stored
    for place, product in enumerate(products):
        real = reals.of_magnitude(product & reals.MAGNITUDE)
        number_code = reals.element_code(real, product < 0, E2M1, rounding, scale)
        expected = z3.If(reals.not_nan(product), number_code, z3.BitVecVal(7, 32))
        found: Term = z3.ZeroExt(24, both.bits)
        unknowns = {"words": words.bits, "g": g.bits, "scale": magnitude.bits}
        yield Claim(facts, z3.LShR(found, 4 * place) & 15 == expected, unknowns)
