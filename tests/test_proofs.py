"""The proofs: every lemma holds, every shortcut is refuted, and each lemma fails once its kernel is wrong."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import replace

import pytest
import z3

from lowbit import proofs
from lowbit.errors import ArgumentError
from lowbit.proofs import sources
from lowbit.proofs.lemma import Claim
from lowbit.proofs.sources import Edit
from lowbit.rules import Rounding

LEMMAS = proofs.lemmas()

CODEC, E4M3_MODULE, PAIRS, NVFP4 = "_codec", "_e4m3", "_pairs", "_nvfp4_kernels"

ROUNDING_FAULTS = {
    "ties_to_even": Edit(CODEC, "fixed += HALF - 1 + ((fixed >> FRACTION) & 1)", "fixed += HALF - 1"),
    "ties_toward_zero": Edit(
        CODEC, "TIES_TOWARD_ZERO:\n        fixed += HALF - 1", "TIES_TOWARD_ZERO:\n        fixed += HALF"
    ),
    "ties_away": Edit(CODEC, "TIES_AWAY:\n        fixed += HALF", "TIES_AWAY:\n        fixed += HALF - 1"),
    "ties_down": Edit(CODEC, "HALF - 1 - (bits >> 31)", "HALF - 1 + (bits >> 31)"),
    "ties_up": Edit(CODEC, "HALF + (bits >> 31)", "HALF - (bits >> 31)"),
    "toward_zero": Edit(CODEC, "tl.minimum(fixed, 7 << FRACTION)", "tl.minimum(fixed, 6 << FRACTION)"),
    "toward_negative": Edit(
        CODEC, "tl.maximum(fixed, tl.minimum(bits & MAGNITUDE_BITS, 1)) + ((bits >> 31)", "fixed + ((bits >> 31)"
    ),
    "toward_positive": Edit(
        CODEC, "tl.maximum(fixed, tl.minimum(bits & MAGNITUDE_BITS, 1)) + ((~(bits", "fixed + ((~(bits"
    ),
    "stochastic": Edit(CODEC, "random << (FRACTION - 8)", "random << (FRACTION - 7)"),
}

SCALE_FAULTS = {
    "floor": Edit(CODEC, "(amax_bits >> 23) - ELEMENT_EXPONENT", "(amax_bits >> 22) - ELEMENT_EXPONENT"),
    "ceil": Edit(CODEC, "amax_bits += 0x7FFFFF", "amax_bits += 0x7FFFFE"),
    "nearest": Edit(CODEC, "0x3504F4", "0x3504F5"),
    "even": Edit(CODEC, "amax_bits += 1 << (22 - MANTISSA_BITS)", "amax_bits += (1 << (22 - MANTISSA_BITS)) - 1"),
    "even_exclusive": Edit(CODEC, "+= (1 << (22 - MANTISSA_BITS)) - 1", "+= (1 << (22 - MANTISSA_BITS))"),
    "rceil": Edit(CODEC, "+= (1 << (23 - MANTISSA_BITS)) - 1", "+= (1 << (23 - MANTISSA_BITS))"),
    "stochastic": Edit(
        CODEC, "random & ((1 << (23 - MANTISSA_BITS)) - 1)", "random & ((1 << (22 - MANTISSA_BITS)) - 1)"
    ),
}

JAM = Edit(CODEC, "kept = (magnitude | ((magnitude & 7) + 7)) & -8", "kept = magnitude")
CUT = Edit(CODEC, "kept = magnitude & -(1 << (FRACTION - 8))", "kept = magnitude")
NAN_SIGN = Edit(NVFP4, "y = tl.minimum(x * g, limit)", "y = x * g")

FAULTS: dict[str, Edit] = {
    **{f"encode/{e}/{rounding}": edit for rounding, edit in ROUNDING_FAULTS.items() for e in ("e2m1", "e3m0")},
    **{f"scaled/{e}/{r.value}": JAM for r in Rounding for e in ("e2m1", "e3m0") if r is not Rounding.STOCHASTIC},
    "scaled/*/stochastic": CUT,
    "scaled_narrow/*": Edit(CODEC, "return ((254 - byte) << 23)", "return ((253 - byte) << 23)"),
    "encode_nan/*": Edit(CODEC, "        bits = source\n", "        bits = bits\n"),
    "nearest/*": Edit(E4M3_MODULE, "8388610.0", "8388609.0"),
    "pairs_split/float32": Edit(
        PAIRS, "return words.to(tl.int32), (words >> 32)", "return words.to(tl.int32), (words >> 31)"
    ),
    "pairs_split/bfloat16": Edit(PAIRS, "return words << 16, words & -0x10000", "return words << 16, words"),
    "pairs_split/float16": Edit(CODEC, "& MAGNITUDE_BITS | sign)", "& MAGNITUDE_BITS)"),
    "pairs/e2m1/ties_to_even/*": Edit(PAIRS, "(first + second * 16)", "(first + second * 8)"),
    "pairs/e2m1/ties_away/*": Edit(
        PAIRS, "(factor.to(tl.int32, bitcast=True) | 1)", "(factor.to(tl.int32, bitcast=True) | 0)"
    ),
    "pairs_by_encoder/*": Edit(PAIRS, "return first | (second << 4)", "return first | (second << 3)"),
    **{f"scale/*/{rule}": edit for rule, edit in SCALE_FAULTS.items()},
    "scale/powers": Edit(CODEC, "tl.where(byte == 0, 1 << 22, byte << 23)", "(byte << 23)"),
    "amax/float32": Edit(PAIRS, "tl.maximum(low + ADDEND, high + ADDEND)", "low + ADDEND"),
    "amax/*float16": Edit(PAIRS, "tl.maximum(keys, keys << 16)", "keys"),
    "quotient/six": Edit(E4M3_MODULE, 'float.fromhex("-0x1.555556p-28")', 'float.fromhex("0x1.555556p-28")'),
    "quotient/scale": Edit(E4M3_MODULE, "high = tl.fma(tl.fma(-high, s, 1.0), high, high)", "high = high"),
    "e4m3/encode": Edit(E4M3_MODULE, "bits + 0x7FFFF + ((bits >> 20) & 1)", "bits + 0x80000"),
    "e4m3/decode": Edit(E4M3_MODULE, "((byte & 0x80) << 24)", "((byte & 0x80) << 23)"),
    "nvfp4_scale/canonical": Edit(NVFP4, "tl.maximum(quotient, 0.001953125)", "tl.maximum(quotient, 0.015625)"),
    "nvfp4_scale/two_level": Edit(NVFP4, "tl.where(nan | (byte == 0), 0.001953125", "tl.where(nan, 0.001953125"),
    "nvfp4_quotient/*": Edit(E4M3_MODULE, "tl.int32, bitcast=True) - 1)", "tl.int32, bitcast=True) - 0)"),
    "nvfp4_drawn/*": Edit("_stochastic_pairs", "mul.rz.f32 high", "mul.rn.f32 high"),
    "nvfp4_codes/*": NAN_SIGN,
    "nvfp4_pairs/*": Edit(NVFP4, "return tl.minimum(x * g, limit)", "return x * g"),
    "decode/e2m1/*": Edit(CODEC, "power_of_two_constant(126)", "power_of_two_constant(125)"),
    "decode/e3m0/*": Edit(CODEC, "power_of_two_constant(124)", "power_of_two_constant(125)"),
    "decode/nvfp4": Edit("_nvfp4_dequantize", "power_of_two_constant(126)", "power_of_two_constant(125)"),
    "casts": Edit(CODEC, "(bits + 0x7FFF + ((bits >> 16) & 1)) >> 16", "(bits + 0x8000) >> 16"),
}
"""Lemma, or glob of lemmas → a change of the kernels under which it is false."""

WITHOUT_KERNEL = {"quotient/never_a_tie": 5, "quotient/decides": 3}
"""Lemmas of numbers alone → a fact without which they are false."""


FIRST = {name.partition("/")[0]: name for name in reversed(LEMMAS)}.values()
"""The first lemma of each family, which differ in a rule only."""


@pytest.mark.parametrize("name", LEMMAS)
def test_lemma(name: str) -> None:
    proof = proofs.prove(LEMMAS[name], check_facts=name in FIRST)
    assert proof.as_expected, proof.line()
    assert (proof.counterexample is None) == proof.proved


def fault_of(name: str) -> Edit:
    (edit,) = {edit for glob, edit in FAULTS.items() if fnmatch.fnmatchcase(name, glob)}
    return edit


@pytest.mark.parametrize("name", [n for n, lemma in LEMMAS.items() if lemma.expected and n not in WITHOUT_KERNEL])
def test_lemma_fails_on_a_fault(name: str) -> None:
    proof = proofs.prove(LEMMAS[name], sources.load([fault_of(name)]))
    assert proof.verdict is proofs.Verdict.REFUTED, proof.line()
    assert proof.counterexample is not None


def test_every_fault_is_of_a_lemma() -> None:
    assert not [glob for glob in FAULTS if not fnmatch.filter(LEMMAS, glob)]


@pytest.mark.parametrize("name", WITHOUT_KERNEL)
def test_lemma_of_numbers_needs_its_facts(name: str) -> None:
    claim = next(iter(LEMMAS[name].claims(sources.kernels())))
    dropped = WITHOUT_KERNEL[name]
    solver = z3.Solver()
    solver.add(*(fact for place, fact in enumerate(claim.facts) if place != dropped), z3.Not(claim.holds))
    assert solver.check() == z3.sat


@pytest.mark.parametrize("direction", ["rn", "rm", "rz"])
def test_no_other_rounding_of_the_product_does(direction: str) -> None:
    """To nearest, say, 15/8 has no number r at all: its ties want one above the others."""
    code = sources.load([Edit(E4M3_MODULE, "mul.rp.f32", f"mul.{direction}.f32")])
    proof = proofs.prove(LEMMAS["nvfp4_quotient/ties_to_even"], code)
    assert proof.verdict is proofs.Verdict.REFUTED
    assert proof.counterexample


@pytest.mark.parametrize("rounding", ["ties_to_even", "ties_toward_zero"])
def test_one_unit_further_down_is_too_much(rounding: str) -> None:
    code = sources.load([Edit(E4M3_MODULE, "tl.int32, bitcast=True) - 1)", "tl.int32, bitcast=True) - 2)")])
    proof = proofs.prove(LEMMAS[f"nvfp4_quotient/{rounding}"], code)
    assert proof.verdict is proofs.Verdict.REFUTED
    assert proof.counterexample


def test_contradictory_facts_prove_nothing() -> None:
    """From a contradiction everything would follow."""

    def claims(code: sources.Kernels) -> Iterator[Claim]:
        x = z3.BitVec("x", 32)
        yield Claim([x > 0, x < 0], x == 7, {"x": x})

    lemma = replace(LEMMAS["casts"], name="contradiction", claims=claims)
    assert proofs.prove(lemma).verdict is proofs.Verdict.UNDECIDED


def test_an_edit_that_does_not_apply_says_so() -> None:
    with pytest.raises(ArgumentError, match="0 times in _codec, want once"):
        sources.load([Edit("_codec", "no such text", "")])


def test_a_kernel_that_the_model_cannot_run_says_so() -> None:
    code = sources.load([Edit("_codec", "codes = (fixed >> FRACTION)", "codes = tl.sort(fixed >> FRACTION)")])
    with pytest.raises(
        ArgumentError, match=r"encode/e2m1/ties_to_even: the sources of _codec\.encode_e2m1 cannot be run"
    ):
        proofs.prove(LEMMAS["encode/e2m1/ties_to_even"], code)


def test_a_kernel_without_the_function_says_so() -> None:
    code = sources.load(
        [
            Edit("_e4m3", "def divide_by_six(", "def divide_by_seven("),
            Edit("_nvfp4_kernels", "    divide_by_six,\n", ""),
        ]
    )
    with pytest.raises(ArgumentError, match="quotient/six"):
        proofs.prove(LEMMAS["quotient/six"], code)
    with pytest.raises(ArgumentError, match="want names that _nvfp4_kernels has"):
        proofs.prove(LEMMAS["nvfp4_scale/canonical"], code)


def test_an_import_that_leads_nowhere_says_so() -> None:
    with pytest.raises(ArgumentError, match="nearest_e2m1"):
        sources.load([Edit("_e4m3", "def nearest_e2m1(", "def closest_e2m1(")])
