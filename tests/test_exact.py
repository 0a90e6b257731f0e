"""The exact reference's elements: codes, ties, NaN, breakpoints, stochastic rounding.

Each is checked against its definition written another way (the nearest of all codes, by distance) and against gfloat
and MPFR, which share no code with it.
"""

import itertools
import math
from fractions import Fraction

import gfloat
import gmpy2
import numpy as np
import pytest
from gfloat.formats import format_info_ocp_e2m1, format_info_ocp_e4m3
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.errors import ArgumentError
from lowbit.formats import E2M1, E2M3, E3M0, E3M2, E4M3, E5M2, E8M0, LOW_BIT, FloatFormat
from lowbit.references.exact import breakpoints, encode, pattern_float
from lowbit.rules import NanCode, Rounding

R = Rounding
DETERMINISTIC = [rule for rule in Rounding if rule is not R.STOCHASTIC]
SIGNED = [fmt for fmt in LOW_BIT if fmt.signed]


def names(value):
    return value.value if isinstance(value, Rounding) else getattr(value, "name", None)


def ladder(fmt: FloatFormat) -> list[float]:
    """Every code's value and every midpoint, each with its neighbours one binary32 ulp away, both signs."""
    marks = list(fmt.magnitudes)
    marks += [(a + b) / 2 for a, b in itertools.pairwise(marks)]
    marks.append(fmt.max_value + (fmt.max_value - fmt.magnitudes[-2]) / 2)  # where a wider format would round away
    points = np.array([np.float32(float(mark)) for mark in marks])
    points = np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(0))])
    return [float(x) for x in np.concatenate([points, -points])]


def by_distance(x: Fraction, fmt: FloatFormat, rule: Rounding) -> int:
    """The magnitude, from the definition: look at every code's value."""
    size, values = abs(x), fmt.magnitudes
    below = max(i for i, v in enumerate(values) if v <= size)
    above = min((i for i, v in enumerate(values) if v >= size), default=below)
    toward_zero = {R.TOWARD_ZERO: True, R.TOWARD_NEGATIVE: x > 0, R.TOWARD_POSITIVE: x < 0}
    if rule in toward_zero:
        return below if toward_zero[rule] else above
    gap_below, gap_above = size - values[below], values[above] - size
    if gap_below != gap_above:
        return below if gap_below < gap_above else above
    even = below if below % 2 == 0 else above
    ties = {
        R.TIES_TO_EVEN: even,
        R.TIES_TOWARD_ZERO: below,
        R.TIES_AWAY: above,
        R.TIES_DOWN: below if x > 0 else above,
        R.TIES_UP: above if x > 0 else below,
    }
    return ties[rule]


@pytest.mark.parametrize("rule", DETERMINISTIC, ids=names)
@pytest.mark.parametrize("fmt", SIGNED, ids=names)
def test_encode_is_the_definition_at_every_code_midpoint_and_ulp(fmt, rule):
    for x in ladder(fmt):
        expected = by_distance(Fraction(x), fmt, rule) | fmt.sign_mask * (math.copysign(1, x) < 0)
        assert encode(x, fmt, rule) == expected, (x, fmt.name)


@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False))
@settings(max_examples=60, deadline=None)
def test_encode_is_the_definition_anywhere(x):
    for fmt in (E2M1, E3M0, E2M3, E4M3):
        for rule in DETERMINISTIC:
            sign = fmt.sign_mask * (math.copysign(1, x) < 0)
            assert encode(x, fmt, rule) == by_distance(Fraction(x), fmt, rule) | sign


E2M1_CASES = [
    # x, and the codes under: even, toward zero, away, down, up
    ("0x3e800000", 0.25, [0, 0, 1, 0, 1]),
    ("0x3f400000", 0.75, [2, 1, 2, 1, 2]),
    ("0x3fa00000", 1.25, [2, 2, 3, 2, 3]),
    ("0x3fe00000", 1.75, [4, 3, 4, 3, 4]),
    ("0x40200000", 2.5, [4, 4, 5, 4, 5]),
    ("0x40600000", 3.5, [6, 5, 6, 5, 6]),
    ("0x40a00000", 5.0, [6, 6, 7, 6, 7]),
    ("0xc0a00000", -5.0, [14, 14, 15, 15, 14]),
    ("0xbe800000", -0.25, [8, 8, 9, 9, 8]),
    ("0x3e800001", 0.25000003, [1, 1, 1, 1, 1]),
    ("0x40200001", 2.5000002, [5, 5, 5, 5, 5]),  # a detour through bfloat16 makes it a tie, and 4
    ("0x40200011", 2.500004, [5, 5, 5, 5, 5]),  # compressed-tensors#822: 4
    ("0x40a08000", 5.015625, [7, 7, 7, 7, 7]),  # compressed-tensors#824: 6, by way of 5.0
    ("0x00000000", 0.0, [0, 0, 0, 0, 0]),
    ("0x80000000", -0.0, [8, 8, 8, 8, 8]),
    ("0x800116c2", -1e-40, [8, 8, 8, 8, 8]),
    ("0x40c00001", 6.0000005, [7, 7, 7, 7, 7]),
    ("0xff7fffff", -3.4028235e38, [15, 15, 15, 15, 15]),
    ("0x7f800000", math.inf, [7, 7, 7, 7, 7]),
    ("0xff800000", -math.inf, [15, 15, 15, 15, 15]),
]


@pytest.mark.parametrize(("pattern", "value", "codes"), E2M1_CASES, ids=[case[0] for case in E2M1_CASES])
def test_the_five_tie_rules_of_e2m1(pattern, value, codes):
    x = pattern_float(int(pattern, 16))
    assert np.float32(value).view(np.uint32) == int(pattern, 16)
    five = [R.TIES_TO_EVEN, R.TIES_TOWARD_ZERO, R.TIES_AWAY, R.TIES_DOWN, R.TIES_UP]
    assert [encode(x, E2M1, rule) for rule in five] == codes


def test_directed_rules_of_e2m1_move_every_inexact_value():
    def three(x):
        return [encode(x, E2M1, rule) for rule in (R.TOWARD_ZERO, R.TOWARD_NEGATIVE, R.TOWARD_POSITIVE)]

    assert three(1e-40) == [0, 0, 1]
    assert three(-1e-40) == [8, 9, 8]
    assert three(5.9) == [6, 6, 7]
    assert three(-5.9) == [14, 15, 14]
    assert three(7.0) == [7, 7, 7]  # saturates, whatever the direction


def test_nan_codes():
    nan, negative_nan = math.nan, math.copysign(math.nan, -1.0)
    rules = [NanCode.POSITIVE_MAX, NanCode.SIGNED_MAX, NanCode.NEGATIVE_ZERO, NanCode.ZERO]
    assert [encode(nan, E2M1, R.TIES_TO_EVEN, rule) for rule in rules] == [0x7, 0x7, 0x8, 0x0]
    assert [encode(negative_nan, E2M1, R.TIES_TO_EVEN, rule) for rule in rules] == [0x7, 0xF, 0x8, 0x0]
    # A format with NaN has its own, whatever the rule and the sign.
    assert [encode(negative_nan, fmt, R.TIES_AWAY, NanCode.ZERO) for fmt in (E4M3, E5M2, E8M0)] == [0x7F, 0x7F, 0xFF]
    with pytest.raises(ArgumentError, match="nan: got None"):
        encode(nan, E2M1, R.TIES_TO_EVEN)


def test_e4m3_and_e5m2_saturate_also_inf():
    assert [encode(x, E4M3, R.TIES_TO_EVEN) for x in (448.0, 463.9, 464.0, 1e9, math.inf, -math.inf)] == [
        *[0x7E] * 5,
        0xFE,
    ]
    assert [encode(x, E5M2, R.TIES_AWAY) for x in (57344.0, 61440.0, math.inf, -math.inf)] == [0x7B, 0x7B, 0x7B, 0xFB]
    assert encode(2.0**-10, E4M3, R.TIES_TO_EVEN) == 0  # half the least subnormal
    assert encode(math.nextafter(2.0**-10, 1), E4M3, R.TIES_TO_EVEN) == 1


def test_e8m0_has_neither_zero_nor_sign():
    assert [encode(x, E8M0, R.TIES_TO_EVEN) for x in (0.0, -0.0, 1e-45, 2.0**-127, 2.0**-126, 1.0)] == [
        0,
        0,
        0,
        0,
        1,
        127,
    ]
    assert encode(1e-45, E8M0, R.TOWARD_POSITIVE) == 0  # below the least value it saturates under every rule
    assert [encode(x, E8M0, R.TIES_TO_EVEN) for x in (3.0, 6.0)] == [128, 130]  # ties to the even byte
    assert [encode(x, E8M0, R.TIES_AWAY) for x in (3.0, 6.0)] == [129, 130]
    assert encode(1.25 * 2.0**-127, E8M0, R.TIES_AWAY) == 0
    assert [encode(x, E8M0, R.TIES_AWAY) for x in (3.4e38, math.inf)] == [0xFE, 0xFE]
    assert [encode(x, E8M0, R.TIES_AWAY) for x in (-1e-45, -1.0, -math.inf)] == [0xFF, 0xFF, 0xFF]


@pytest.mark.parametrize("negative", [False, True], ids=["positive", "negative"])
@pytest.mark.parametrize("rule", DETERMINISTIC, ids=names)
@pytest.mark.parametrize("fmt", LOW_BIT, ids=names)
def test_breakpoints_are_where_the_code_changes(fmt, rule, negative):
    rows = breakpoints(fmt, rule, negative)
    first = 0x80000000 if negative else 0
    patterns, codes = [row[0] for row in rows], [row[1] for row in rows]
    assert patterns[0] == first
    assert patterns == sorted(set(patterns))
    for (pattern, code), before in zip(rows, [None, *codes], strict=False):
        assert encode(pattern_float(pattern), fmt, rule) == code
        if before is not None:
            assert encode(pattern_float(pattern - 1), fmt, rule) == before
    assert encode(pattern_float(first | 0x7F800000), fmt, rule) == codes[-1]
    if fmt.signed:  # every finite code of the sign is reached, in order
        assert codes == [fmt.sign_mask * negative | magnitude for magnitude in range(fmt.max_magnitude + 1)]
    else:
        assert codes == ([0, 0xFF] if negative else list(range(0xFF)))


def test_breakpoints_of_e2m1_to_even_are_the_seven_midpoints():
    # Every other one is a tie that the lower code keeps, so its row starts one ulp later.
    expected = [0, 0x3E800001, 0x3F400000, 0x3FA00001, 0x3FE00000, 0x40200001, 0x40600000, 0x40A00001]
    assert breakpoints(E2M1, R.TIES_TO_EVEN, False) == tuple(zip(expected, range(8), strict=True))
    with pytest.raises(ArgumentError, match="random"):
        breakpoints(E2M1, R.STOCHASTIC, False)


@pytest.mark.parametrize("fmt", [E2M1, E3M0, E4M3, E2M3], ids=names)
def test_stochastic_rounds_up_for_floor_p_times_256_of_all_r(fmt):
    step = fmt.max_magnitude // 7
    for lo in range(0, fmt.max_magnitude, step):
        low, high = fmt.magnitude_value(lo), fmt.magnitude_value(lo + 1)
        for position in (Fraction(0), Fraction(1, 512), Fraction(1, 256), Fraction(51, 255), Fraction(511, 512)):
            x = float(np.float32(float(low + (high - low) * position)))
            p = (Fraction(x) - low) / (high - low)
            codes = [encode(x, fmt, R.STOCHASTIC, random=r) for r in range(256)]
            assert codes == sorted(codes)  # r rounds up from a threshold on
            assert codes.count(lo + 1) == math.floor(p * 256)
            assert set(codes) <= {lo, lo + 1}
            negative = [encode(-x, fmt, R.STOCHASTIC, random=r) for r in range(256)]
            assert negative == [code | fmt.sign_mask for code in codes]


def test_stochastic_edges():
    assert {encode(x, E2M1, R.STOCHASTIC, random=255) for x in (6.0, 6.5, 1e30, math.inf)} == {7}
    assert [encode(1e-40, E2M1, R.STOCHASTIC, random=r) for r in (0, 255)] == [0, 0]  # p * 256 < 1
    assert [encode(0.25, E2M1, R.STOCHASTIC, random=r, random_width=1) for r in (0, 1)] == [0, 1]
    for bad in (None, -1, 256):
        with pytest.raises(ArgumentError, match=f"random: got {bad}"):
            encode(1.0, E2M1, R.STOCHASTIC, random=bad)


GFLOAT_MODES = {
    R.TIES_TO_EVEN: gfloat.RoundMode.TiesToEven,
    R.TIES_AWAY: gfloat.RoundMode.TiesToAway,
    R.TOWARD_ZERO: gfloat.RoundMode.TowardZero,
    R.TOWARD_NEGATIVE: gfloat.RoundMode.TowardNegative,
    R.TOWARD_POSITIVE: gfloat.RoundMode.TowardPositive,
}


@pytest.mark.parametrize("rule", GFLOAT_MODES, ids=names)
@pytest.mark.parametrize(("fmt", "info"), [(E2M1, format_info_ocp_e2m1), (E4M3, format_info_ocp_e4m3)], ids=names)
def test_encode_agrees_with_gfloat(fmt, info, rule):
    xs = np.array(ladder(fmt) + [math.ldexp(s * m, e) for s in (1, -1) for m in (1, 1.37) for e in range(-149, 127)])
    rounded = gfloat.round_ndarray(info, xs, GFLOAT_MODES[rule], sat=True)
    expected = gfloat.encode_ndarray(info, rounded)
    assert [encode(x, fmt, rule) for x in xs.tolist()] == expected.tolist()


MPFR_MODES = {
    R.TIES_TO_EVEN: gmpy2.RoundToNearest,
    R.TOWARD_ZERO: gmpy2.RoundToZero,
    R.TOWARD_NEGATIVE: gmpy2.RoundDown,
    R.TOWARD_POSITIVE: gmpy2.RoundUp,
}


@pytest.mark.parametrize("rule", MPFR_MODES, ids=names)
@pytest.mark.parametrize(("fmt", "parameters"), [(E2M1, (2, 0, 3)), (E4M3, (4, -8, 9))], ids=names)
def test_encode_agrees_with_mpfr(fmt, parameters, rule):
    precision, emin, emax = parameters
    context = gmpy2.context(precision=precision, emin=emin, emax=emax, subnormalize=True, round=MPFR_MODES[rule])
    largest = float(fmt.max_value)
    for x in ladder(fmt):
        with context:
            rounded = float(gmpy2.mpfr(x))
        value = math.copysign(min(abs(rounded), largest), x)
        code = encode(x, fmt, rule)
        assert float(fmt.value(code)) == value, x
        assert fmt.is_negative(code) == (math.copysign(1, value) < 0)


@pytest.mark.parametrize("fmt", SIGNED, ids=names)
def test_codes_of_exact_values_come_back(fmt):
    for code in range(1 << fmt.bits):
        if not fmt.is_nan(code) and not fmt.is_inf(code):
            for rule in DETERMINISTIC:
                assert encode(float(fmt.value(code)), fmt, rule) == code


def test_mantissa_width_and_bias_of_every_small_format_show():
    assert [encode(7.0, fmt, R.TIES_TO_EVEN) for fmt in (E2M1, E3M0, E2M3, E3M2)] == [0x7, 0x6, 0x1E, 0x17]
    assert [encode(-28.0, fmt, R.TIES_TO_EVEN) for fmt in (E2M1, E3M0, E2M3, E3M2)] == [0xF, 0xF, 0x3F, 0x3F]
