"""The tempting shortcuts: what z3 finds is looked at by the exact reference, and a golden vector catches it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from lowbit import proofs, schemes, vectors
from lowbit.formats import BINARY32, E2M1, E4M3
from lowbit.references import exact
from lowbit.references.exact_arithmetic import divide, multiply
from lowbit.rules import Rounding


def refuted(name: str) -> dict[str, int]:
    proof = proofs.prove(proofs.lemmas()[f"variant/{name}"])
    assert proof.counterexample is not None
    return dict(proof.counterexample)


def code_of(bits: int) -> int:
    return exact.encode(exact.pattern_float(bits), E2M1, Rounding.TIES_TO_EVEN)


def as_float(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def test_the_reciprocal_is_wrong() -> None:
    found = refuted("reciprocal")
    y, s = found["y"], found["s"]
    product = as_float(y) * (np.float32(1) / as_float(s))
    assert code_of(int(product.view(np.uint32))) != code_of(divide(y, s))
    x = {word for case in cases("nvfp4/known_bugs") for word in case.x.ravel().view(np.uint32).tolist()}
    powers = {(y + (shift << 23)) for shift in range(-8, 9)}
    assert powers & x, "no golden vector has this quotient"


def test_a_sixth_as_a_factor_is_wrong() -> None:
    amax = refuted("sixth")["amax"]
    sixth = exact.round_to(Fraction(1, 6), BINARY32)
    bytes_ = [
        exact.encode(exact.pattern_float(quotient), E4M3, Rounding.TIES_TO_EVEN)
        for quotient in (multiply(amax, sixth), divide(amax, exact.round_to(Fraction(6), BINARY32)))
    ]
    assert bytes_[0] != bytes_[1]
    assert bytes_[1] == row("nvfp4/scale", amax)


def test_dropping_low_bits_is_wrong() -> None:
    """0.25 + 2**-25 among others, which a product with 2**-126 makes a tie."""
    x = refuted("sticky_bits")["x"]
    for bits in (x, 0x3E800001):
        tiny = np.float32(2) ** np.float32(-126)
        assert as_float(bits) * tiny == as_float(bits + 1) * tiny or as_float(bits) * tiny == as_float(bits - 1) * tiny
        assert code_of(bits) == row("e2m1/ties_to_even", bits)


def test_adding_half_is_wrong() -> None:
    x = refuted("add_half")["x"]
    assert exact.encode(exact.pattern_float(x), E2M1, Rounding.TIES_AWAY) != code_of(x) == row("e2m1/ties_to_even", x)


def test_rounding_twice_is_wrong() -> None:
    x = refuted("bfloat16_first")["x"]
    once = torch.tensor(exact.pattern_float(x), dtype=torch.float32).to(torch.bfloat16).float()
    assert code_of(int(once.view(torch.int32)) & 0xFFFFFFFF) != code_of(x) == row("e2m1/ties_to_even", x)


def test_byte_zero_is_not_2_to_the_minus_126() -> None:
    x = refuted("byte_zero")["x"]
    value = Fraction(exact.pattern_float(x))
    wrong, right = (exact.encode(float(value * 2**power), E2M1, Rounding.TIES_TO_EVEN) for power in (126, 127))
    assert wrong != right
    inputs = [
        case.x.ravel()[0] for case in cases("mxfp4_floor/known_bugs") if int(case.expected.scales.ravel()[0]) == 0
    ]
    assert float(value) in inputs


def test_even_is_not_exclusive() -> None:
    amax = refuted("even_exclusive")["amax"]
    right, wrong = (
        exact.scale_exponent(exact.pattern_float(amax), schemes.get(name)) + 127
        for name in ("mxfp4_even", "mx4_even_exclusive_e2m1_g32")
    )
    assert right != wrong
    assert right == row("mxfp4_even/scale", amax)


@pytest.mark.parametrize(("rule", "function"), [("floor", math.floor), ("ceil", math.ceil)])
def test_log2_in_floating_point_is_wrong(rule: str, function: Any) -> None:
    amax = refuted(f"float_log2_{rule}")["amax"]
    scheme = schemes.get(f"mx4_{rule}_e2m1_g32")
    right = exact.scale_exponent(exact.pattern_float(amax), scheme)
    assert function(np.float32(math.log2(exact.pattern_float(amax)))) - 2 != right
    assert right + 127 == row(f"{scheme.name}/scale", amax)


def group(name: str) -> Any:
    (found,) = (group for group in vectors.groups() if group.name == name)
    return found


def cases(name: str) -> Any:
    return group(name).cases


def row(name: str, bits: int) -> int:
    """The code that a complete table of golden vectors has for a pattern."""
    assert "complete" in group(name).flags
    (code,) = (case.code for case in cases(name) if case.first <= bits <= case.last)
    return int(code)


@pytest.mark.parametrize("lemma", [lemma for lemma in proofs.lemmas().values() if not lemma.expected])
def test_every_shortcut_has_a_vector(lemma: proofs.Lemma) -> None:
    assert group(lemma.vector).cases
