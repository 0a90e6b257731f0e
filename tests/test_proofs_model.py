"""What proofs rest on: the model runs sources as Triton does, the definitions are the exact reference's, and more."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
import z3

from lowbit import schemes
from lowbit.formats import BINARY32, E2M1, E3M0, E4M3, FloatFormat
from lowbit.proofs import device, nvfp4, reals, sources
from lowbit.references import exact
from lowbit.references.exact_arithmetic import divide, multiply
from lowbit.rules import NanCode, Rounding, ScaleRule
from lowbit_kernels import _codec, _e4m3

from .nvfp4_checks import DEVICE, on, raw

PATTERNS = np.array(
    [
        *(0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x3B000000, 0x3E800000, 0x3E800001, 0x3F3FFFFF, 0x3F400000),
        *(0x3FA00000, 0x3FE00000, 0x40200000, 0x40200001, 0x40600000, 0x40A00000, 0x40C00000, 0x41000000, 0x43E00000),
        *(0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x00400000, 0x3F800000, 0x3FC00000),
    ],
    np.uint32,
)
NUMBERS = PATTERNS[PATTERNS <= reals.INFINITY]
SIGNED = np.concatenate([NUMBERS, NUMBERS | np.uint32(0x80000000)])
COUNT = 64


@triton.jit
def encode_kernel(x_ptr, out_ptr, ROUNDING: tl.constexpr, NAN: tl.constexpr, COUNT: tl.constexpr):
    index = tl.arange(0, COUNT)
    x = tl.load(x_ptr + index)
    tl.store(out_ptr + index, _codec.encode_e2m1(x, 77, ROUNDING, NAN))


@triton.jit
def quotient_kernel(y_ptr, s_ptr, out_ptr, COUNT: tl.constexpr):
    index = tl.arange(0, COUNT)
    y, s = tl.load(y_ptr + index), tl.load(s_ptr + index)
    high, low = _e4m3.reciprocal_pair(s)
    tl.store(out_ptr + index, _e4m3.divide_by_scale(y, s, high, low))


@triton.jit
def byte_kernel(amax_ptr, out_ptr, RULE: tl.constexpr, COUNT: tl.constexpr):
    index = tl.arange(0, COUNT)
    tl.store(out_ptr + index, _codec.scale_byte(tl.load(amax_ptr + index), 0x12345, RULE, 1, 2, 252))


def padded(patterns: np.ndarray) -> torch.Tensor:
    """COUNT float32 on the device."""
    return on(np.resize(patterns, COUNT).view(np.float32))


def of_pattern(bits: int) -> device.Value:
    return device.of_pattern(int(bits), device.FLOAT32)


@pytest.mark.parametrize("rounding", Rounding)
def test_the_model_encodes_as_triton_does(rounding: Rounding) -> None:
    numbers = _codec.ROUNDINGS[rounding.value], _codec.NAN_CODES[NanCode.SIGNED_MAX.value]
    out = torch.empty(COUNT, dtype=torch.int32, device=DEVICE)
    encode_kernel[(1,)](padded(SIGNED), out, *numbers, COUNT=COUNT)
    encode = sources.kernels().codec.encode_e2m1
    random = device.constant(77, device.INT32)
    model = [device.pattern(encode(of_pattern(bits), random, *numbers)) for bits in SIGNED]
    assert model == raw(out)[: SIGNED.size].tolist()


def test_the_model_divides_as_triton_does() -> None:
    y = NUMBERS[NUMBERS < reals.INFINITY]
    s = np.array([1 / 512, 0.3125, 1.125, 1.75, 1.875, 448.0], np.float32).view(np.uint32)
    pairs = np.array(list(itertools.product(y, s)), np.uint32)
    out = [torch.empty(COUNT, dtype=torch.float32, device=DEVICE) for _ in s]
    code = sources.kernels().e4m3
    for result, divisor in zip(out, s, strict=True):
        quotient_kernel[(1,)](padded(y), padded(np.full(COUNT, divisor)), result, COUNT=COUNT)
    triton_bits = np.array([raw(result)[: y.size] for result in out]).T.ravel().tolist()
    high_low = {bits: code.reciprocal_pair(of_pattern(bits)) for bits in s.tolist()}
    model = [code.divide_by_scale(of_pattern(a), of_pattern(b), *high_low[b]) for a, b in pairs.tolist()]
    assert [device.pattern(value) for value in model] == triton_bits


@pytest.mark.parametrize("rule", _codec.SCALE_RULES)
def test_the_model_scales_as_triton_does(rule: str) -> None:
    number = _codec.SCALE_RULES[rule]
    out = torch.empty(COUNT, dtype=torch.int32, device=DEVICE)
    amax = np.resize(NUMBERS, COUNT)
    byte_kernel[(1,)](on(amax.view(np.int32)), out, RULE=number, COUNT=COUNT)
    scale_byte, random = sources.kernels().codec.scale_byte, device.constant(0x12345, device.INT32)
    bytes_ = [scale_byte(device.constant(int(a), device.INT32), random, number, 1, 2, 252) for a in amax]
    assert [device.pattern(byte) for byte in bytes_] == raw(out).tolist()


@pytest.mark.parametrize(
    ("operation", "operands", "possible"),
    [
        ("minimum", (0x00000000, 0x80000000), {0x00000000, 0x80000000}),
        ("minimum", (0x7FC00000, 0x3F800000), {0x3F800000}),
        ("maximum", (0xFF800001, 0xBF800000), {0xBF800000}),
        ("minimum", (0x40000000, 0xC0000000), {0xC0000000}),
    ],
)
def test_what_devices_may_choose_is_open(operation: str, operands: tuple[int, int], possible: set[int]) -> None:
    from lowbit.proofs import language

    result = getattr(language, operation)(*map(of_pattern, operands)).bits
    assert solutions(result) == possible


def solutions(term: Any) -> set[int]:
    """Every value that a term may have."""
    solver, found = z3.Solver(), set()
    value = z3.BitVec("value", term.size())
    solver.add(value == term)
    while solver.check() == z3.sat:
        found.add(solver.model()[value].as_long())
        solver.add(*(value != bits for bits in found))
    return found


@pytest.mark.parametrize(
    ("operands", "signs"),
    [
        ((0x7F800000, 0x00000000), {0, 1}),  # an invalid operation
        ((0x7FC00000, 0xBF800000), {0}),  # handed on, or made positive; never made negative
        ((0xFFC00000, 0x3F800000), {0, 1}),
    ],
)
def test_the_sign_of_nan_is_open(operands: tuple[int, int], signs: set[int]) -> None:
    first, second = map(of_pattern, operands)
    product = (first * second).bits
    assert solutions(z3.Extract(31, 31, product)) == signs
    assert solutions(z3.Extract(30, 22, product)) == {0x1FF}  # quiet


def value_of(x: int) -> Fraction:
    return abs(Fraction(exact.pattern_float(x)))


@pytest.mark.parametrize("element", [E2M1, E3M0], ids=lambda e: e.name)
@pytest.mark.parametrize("rounding", [r for r in Rounding if r is not Rounding.STOCHASTIC])
def test_real_numbers_and_breakpoints_agree(element: FloatFormat, rounding: Rounding) -> None:
    """The two definitions of a code that lemmas use, for every binary32."""
    x = z3.BitVec("x", 32)
    by_reals = reals.element_code(reals.of_magnitude(x & reals.MAGNITUDE), x < 0, element, rounding, reals.one())
    solver = z3.Solver()
    solver.add(reals.not_nan(x), by_reals != reals.ladder(x, element, rounding))
    assert solver.check() == z3.unsat


def test_stochastic_codes_by_real_numbers() -> None:
    r = z3.BitVec("r", 8)
    for bits in SIGNED.tolist():
        x = z3.BitVecVal(bits, 32)
        magnitude = reals.of_magnitude(x & reals.MAGNITUDE)
        code = reals.element_code(magnitude, x < 0, E2M1, Rounding.STOCHASTIC, reals.one(), r)
        for random in (0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 254, 255):
            actual = z3.simplify(z3.substitute(code, (r, z3.BitVecVal(random, 8)))).as_long()
            assert actual == exact.encode(exact.pattern_float(bits), E2M1, Rounding.STOCHASTIC, random=random)


@pytest.mark.parametrize("name", ["mx4_{}_e2m1_g32", "mx4_{}_e3m0_g32", "mxfp4_{}"])
@pytest.mark.parametrize("rule", ScaleRule)
def test_scales_by_real_numbers(name: str, rule: ScaleRule) -> None:
    """Near every point where a rule may change, in a few binades, the byte is the exact reference's."""
    if name.format(rule.value) not in schemes.names():
        return
    scheme = schemes.get(name.format(rule.value))
    offset = scheme.element.exponent_bits if scheme.family == "mx4" else scheme.element.emax
    assert scheme.exponent_range is not None
    lowest, highest = scheme.exponent_range
    random = 0x2ABCDEF if rule is ScaleRule.STOCHASTIC else None
    mantissas = [m + d for m in (0x000000, 0x3504F4, 0x400000, 0x600000, 0x7FFFFF) for d in (-1, 0, 1)]
    for exponent, mantissa in itertools.product((1, 3, 127, 254), mantissas):
        pattern = (exponent << 23) + mantissa
        if not 0 <= pattern < reals.INFINITY:
            continue
        magnitude = reals.of_magnitude(z3.BitVecVal(pattern, 32))
        right = exact.scale_exponent(exact.pattern_float(pattern), scheme, random=random)
        r = None if random is None else z3.BitVecVal(random, 32)
        reached = [
            z3.is_true(
                z3.simplify(
                    reals.scale_reaches(
                        magnitude, z3.BitVecVal(e, reals.EXPONENT_BITS), rule, scheme.element, offset, r
                    )
                )
            )
            for e in (right, right + 1)
        ]
        assert reached[0] or right == lowest, hex(pattern)
        assert not reached[1] or right == highest, hex(pattern)


@pytest.mark.parametrize(
    "rounding", [Rounding.TIES_TO_EVEN, Rounding.TOWARD_ZERO, Rounding.TOWARD_NEGATIVE, Rounding.STOCHASTIC]
)
def test_what_stands_for_a_quotient_is_true_of_quotients(rounding: Rounding) -> None:
    """RN32(y / s) has every property that the lemmas about codes assume of it."""
    r = None
    if rounding is Rounding.STOCHASTIC:
        r = z3.BitVecVal(0x5A, 8)
    s = exact.round_to(E4M3.magnitude_value(0x3B), BINARY32)
    scale = reals.scale_of(z3.BitVecVal(s, 32))
    ties = [multiply(exact.round_to((a + b) / 2, BINARY32), s) for a, b in itertools.pairwise(E2M1.magnitudes)]
    for y in {*NUMBERS[::4].tolist(), *(t + d for t in ties for d in (-1, 0, 1))}:
        q = z3.BitVecVal(divide(y, s), 32)
        facts = nvfp4.rounded_quotient(q, z3.BitVecVal(y, 32), rounding, scale, r)
        assert all(z3.is_true(z3.simplify(fact)) for fact in facts), hex(y)
