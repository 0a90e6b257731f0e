"""The bit-level reference, elements: what SPEC.md sections 1 and 2 state, and known faults of this kind."""

from __future__ import annotations

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import BINARY16, E2M1, E2M3, E3M0, E3M2, E4M3, E5M2, E8M0, LOW_BIT, FloatFormat
from lowbit.references import bits
from lowbit.references.bits_elements import CHUNK
from lowbit.rules import NanCode, Rounding

SIGNED = [f for f in LOW_BIT if f.signed]
BF16 = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
FP16 = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
INF, NAN = float("inf"), float("nan")


def codes(x, element=E2M1, rounding=Rounding.TIES_TO_EVEN, nan=NanCode.POSITIVE_MAX, **options) -> list[int]:
    return bits.encode(np.array(x, dtype=np.float32), element, rounding, nan, **options).tolist()


def nudge(value: float, ulps: int) -> float:
    """A positive binary32 value some patterns further."""
    return float(np.uint32(int(np.float32(value).view(np.uint32)) + ulps).view(np.float32))


KNOWN_BUGS = [  # cases/known_bugs.md, element rounding and decoding
    pytest.param([0.25, 1.25, 2.5, 5.0], [0, 2, 4, 6], id="triton#8110 ties to even, not away"),
    pytest.param([2.500004], [5], id="compressed-tensors#822 not through bf16"),
    pytest.param([5.015625], [7], id="compressed-tensors#824 not through bf16"),
    pytest.param([-0.0, -1e-40], [8, 8], id="TransformerEngine keeps the sign of zero"),
    pytest.param([0.75, 0.0], [2, 0], id="Model-Optimizer 0.75 and +0"),
    pytest.param([0.25 + 2.0**-25], [1], id="sticky bit of a tie"),
]


@pytest.mark.parametrize(("x", "expected"), KNOWN_BUGS)
def test_known_bugs(x, expected):
    assert codes(x) == expected


@pytest.mark.parametrize("element", LOW_BIT, ids=lambda f: f.name)
def test_decode_is_the_format(element):
    every = np.arange(1 << element.bits, dtype=np.uint8)
    for code, value in zip(every.tolist(), bits.decode(every, element).tolist(), strict=True):
        expected = float(element.value(code))
        assert np.float64(value).tobytes() == np.float64(expected).tobytes() or (
            value != value and expected != expected
        )


def test_decode_known_codes():
    """tilelang#2704 (0, 0.5), sglang#25519 and pytorch#125557 (E8M0 134, 255, 0), and both ends of E4M3 and E5M2."""
    assert bits.decode(np.array([0, 1, 15], dtype=np.uint8), E2M1).tolist() == [0.0, 0.5, -6.0]
    assert bits.decode(np.array([134, 0], dtype=np.uint8), E8M0).tolist() == [128.0, 2.0**-127]
    assert np.isnan(bits.decode(np.array([255], dtype=np.uint8), E8M0)).all()
    assert bits.decode(np.array([0x7E, 0x01], dtype=np.uint8), E4M3).tolist() == [448.0, 2.0**-9]
    assert bits.decode(np.array([0x7C, 0xFC], dtype=np.uint8), E5M2).tolist() == [INF, -INF]
    assert np.signbit(bits.decode(np.array([8], dtype=np.uint8), E2M1)).all()


@pytest.mark.parametrize("rounding", [r for r in Rounding if r is not Rounding.STOCHASTIC], ids=lambda r: r.value)
@pytest.mark.parametrize("element", LOW_BIT, ids=lambda f: f.name)
def test_codes_encode_to_themselves(element, rounding):
    """A representable value never moves; -0 stays -0."""
    every = np.array([c for c in range(1 << element.bits) if not element.is_nan(c) and not element.is_inf(c)], np.uint8)
    x = bits.decode(every, element).astype(np.float32)
    np.testing.assert_array_equal(bits.encode(x, element, rounding), every)


def neighbours(element: FloatFormat) -> list[tuple[int, Fraction, Fraction]]:
    return [(m, low, high) for m, (low, high) in enumerate(itertools.pairwise(element.magnitudes))]


TIE_RULES = {  # from the lower magnitude m and the sign to the magnitude taken
    Rounding.TIES_TO_EVEN: lambda m, negative: m + (m & 1),
    Rounding.TIES_TOWARD_ZERO: lambda m, negative: m,
    Rounding.TIES_AWAY: lambda m, negative: m + 1,
    Rounding.TIES_DOWN: lambda m, negative: m + negative,
    Rounding.TIES_UP: lambda m, negative: m + (not negative),
}
DIRECTED_RULES = {
    Rounding.TOWARD_ZERO: lambda m, negative: m,
    Rounding.TOWARD_NEGATIVE: lambda m, negative: m + negative,
    Rounding.TOWARD_POSITIVE: lambda m, negative: m + (not negative),
}


@pytest.mark.parametrize("rounding", TIE_RULES, ids=lambda r: r.value)
@pytest.mark.parametrize("element", LOW_BIT, ids=lambda f: f.name)
def test_nearest(element, rounding):
    """Midpoints by the tie rule; one ulp to either side the nearer code, whatever the rule."""
    for m, low, high in neighbours(element):
        middle = float((low + high) / 2)
        for negative in (False, True) if element.signed else (False,):
            sign, bit = (-1, element.sign_mask) if negative else (1, 0)
            x = [sign * nudge(middle, -1), sign * middle, sign * nudge(middle, 1)]
            expected = [m | bit, TIE_RULES[rounding](m, negative) | bit, m + 1 | bit]
            assert codes(x, element, rounding) == expected, (m, negative)


@pytest.mark.parametrize("rounding", DIRECTED_RULES, ids=lambda r: r.value)
@pytest.mark.parametrize("element", LOW_BIT, ids=lambda f: f.name)
def test_directed(element, rounding):
    """One rule for all between two codes, one ulp from either included."""
    for m, low, high in neighbours(element):
        for negative in (False, True) if element.signed else (False,):
            sign, bit = (-1, element.sign_mask) if negative else (1, 0)
            inside = [nudge(float(low), 1), float((low + high) / 2), nudge(float(high), -1)]
            expected = DIRECTED_RULES[rounding](m, negative) | bit
            assert codes([sign * v for v in inside], element, rounding) == [expected] * 3, (m, negative)


@pytest.mark.parametrize("rounding", [r for r in Rounding if r is not Rounding.STOCHASTIC], ids=lambda r: r.value)
@pytest.mark.parametrize("element", SIGNED, ids=lambda f: f.name)
def test_overflow_saturates(element, rounding):
    """±max from just above it to Inf, also in formats that have an Inf, also where a direction points outward."""
    top = float(element.max_value)
    beyond = [nudge(top, 1), 1.5 * top, 2 * top, float(np.finfo(np.float32).max), INF]
    assert codes(beyond, element, rounding) == [element.max_magnitude] * 5
    assert codes([-v for v in beyond], element, rounding) == [element.max_magnitude | element.sign_mask] * 5


@pytest.mark.parametrize("element", SIGNED, ids=lambda f: f.name)
def test_what_rounds_to_zero_keeps_its_sign(element):
    tiny = [0.0, 2.0**-149, 2.0**-127, nudge(float(element.min_positive / 2), -1)]
    assert codes(tiny, element, Rounding.TOWARD_ZERO) == [0] * 4
    assert codes([-v for v in tiny], element, Rounding.TOWARD_ZERO) == [element.sign_mask] * 4
    assert codes(tiny, element, Rounding.TOWARD_POSITIVE) == [0, 1, 1, 1], "the least subnormal counts"


@pytest.mark.parametrize("rounding", [r for r in Rounding if r is not Rounding.STOCHASTIC], ids=lambda r: r.value)
def test_e8m0_has_no_zero_and_no_sign(rounding):
    least = 2.0**-127
    assert codes([0.0, -0.0, 2.0**-149, nudge(least, -1), least], E8M0, rounding) == [0] * 5
    assert codes([-least, -(2.0**-149), -1.0, -INF, NAN], E8M0, rounding) == [0xFF] * 5
    assert codes([2.0**127, float(np.finfo(np.float32).max), INF], E8M0, rounding) == [0xFE] * 3


def test_e8m0_ties():
    """3 lies between codes 128 and 129: even is 128. 1.5 * 2**-127 lies between codes 0 and 1, in the subnormals."""
    assert codes([3.0, 1.5, 1.5 * 2.0**-127], E8M0) == [128, 128, 0]
    assert codes([3.0, 1.5 * 2.0**-127], E8M0, Rounding.TIES_AWAY) == [129, 1]


@pytest.mark.parametrize(
    ("nan", "expected"),
    [
        (NanCode.POSITIVE_MAX, [7, 7]),
        (NanCode.SIGNED_MAX, [7, 15]),
        (NanCode.NEGATIVE_ZERO, [8, 8]),
        (NanCode.ZERO, [0, 0]),
    ],
)
def test_nan_rules(nan, expected):
    """Quiet and signalling, of both signs."""
    quiet, signalling = np.array([[0x7FC00000, 0xFFC00000], [0x7F800001, 0xFF800001]], np.uint32).view(np.float32)
    for x in (quiet, signalling):
        assert bits.encode(x, E2M1, Rounding.TIES_TO_EVEN, nan).tolist() == expected


def test_formats_with_nan_take_their_own():
    x = np.array([NAN, -NAN], dtype=np.float32)
    for element, code in ((E4M3, 0x7F), (E5M2, 0x7F), (E8M0, 0xFF)):
        assert bits.encode(x, element, Rounding.TIES_TO_EVEN, NanCode.ZERO).tolist() == [code, code]
    for element, code in ((E3M0, 0x7), (E2M3, 0x1F), (E3M2, 0x1F)):
        assert codes(x, element) == [code, code]


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        (E2M1, ml_dtypes.float4_e2m1fn),
        (E2M3, ml_dtypes.float6_e2m3fn),
        (E3M2, ml_dtypes.float6_e3m2fn),
        (E4M3, ml_dtypes.float8_e4m3fn),
        (E5M2, ml_dtypes.float8_e5m2),
    ],
    ids=lambda v: v.name if isinstance(v, FloatFormat) else "",
)
@pytest.mark.parametrize("values", [BF16, FP16], ids=["bf16", "fp16"])
def test_every_bf16_and_fp16_value_against_ml_dtypes(element, dtype, values):
    """Clamped first, since ml_dtypes does not saturate formats that have NaN or Inf. All 65,536 patterns."""
    number = ~np.isnan(values)
    top = np.float32(element.max_value)
    expected = np.clip(values[number], -top, top).astype(dtype).view(np.uint8)
    np.testing.assert_array_equal(bits.encode(values[number], element, Rounding.TIES_TO_EVEN), expected)
    expected_nan = element.nan_magnitude or element.magnitude_mask
    actual_nan = bits.encode(values[~number], element, Rounding.TIES_TO_EVEN, NanCode.POSITIVE_MAX)
    np.testing.assert_array_equal(actual_nan, expected_nan)


@pytest.mark.parametrize("element", LOW_BIT, ids=lambda f: f.name)
def test_stochastic_counts(element):
    """Of all 256 random bytes, exactly floor(p * 256) round up; r = 255 rounds up first."""
    rng = np.random.default_rng(1)
    every = np.arange(256, dtype=np.uint8)
    rows = neighbours(element)
    for m, low, high in [rows[i] for i in rng.choice(len(rows), min(len(rows), 24), replace=False)] + [rows[0]]:
        for share in (0, Fraction(1, 1000), Fraction(1, 256), Fraction(1, 5), Fraction(1, 2), Fraction(999, 1000)):
            x = np.float32(low + (high - low) * share)
            p = (Fraction(float(x)) - low) / (high - low)
            up = int(p * 256)
            actual = bits.encode(np.full(256, x), element, Rounding.STOCHASTIC, random_bits=every)
            assert actual.tolist() == [m] * (256 - up) + [m + 1] * up, (m, share)


def test_stochastic_needs_few_bits_only_far_below():
    """MSLK's kind of fault: values far below the least step still count as fractions of it, until 2**-8 of it."""
    every = np.arange(256, dtype=np.uint8)
    for x, up in ((0.1, 51), (0.5 / 256, 1), (nudge(0.5 / 256, -1), 0), (2.0**-149, 0), (1e-40, 0)):
        actual = bits.encode(np.full(256, -x, np.float32), E2M1, Rounding.STOCHASTIC, random_bits=every)
        assert (actual == 9).sum() == up
        assert (actual == 8).sum() == 256 - up, "what rounds to zero keeps its sign"


def test_stochastic_saturates():
    every = np.arange(256, dtype=np.uint8)
    for x in (6.0, 7.0, INF):
        assert (bits.encode(np.full(256, x, np.float32), E2M1, Rounding.STOCHASTIC, random_bits=every) == 7).all()


def test_large_arrays_are_cut_without_a_seam():
    values = np.random.default_rng(2).standard_normal(2 * CHUNK + 7, dtype=np.float32)
    random = np.random.default_rng(3).integers(0, 256, values.size, dtype=np.uint8)
    whole = bits.encode(values.reshape(1, -1), E2M1, Rounding.STOCHASTIC, random_bits=random.reshape(1, -1))
    assert whole.shape == (1, values.size)
    for i in (0, CHUNK - 1, CHUNK, 2 * CHUNK, values.size - 1):
        part = slice(i, i + 1)
        assert whole[0, i] == bits.encode(values[part], E2M1, Rounding.STOCHASTIC, random_bits=random[part])[0]


def test_shapes():
    for shape in ((), (0,), (2, 0, 3), (2, 3)):
        assert bits.encode(np.ones(shape, dtype=np.float32), E2M1, Rounding.TIES_TO_EVEN).shape == shape
        assert bits.decode(np.ones(shape, dtype=np.uint8), E2M1).shape == shape
    strided = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    np.testing.assert_array_equal(
        bits.encode(strided, E2M1, Rounding.TIES_AWAY), bits.encode(strided.copy(), E2M1, Rounding.TIES_AWAY)
    )


def test_bad_arguments():
    one = np.ones(2, dtype=np.float32)
    with pytest.raises(DtypeError, match="x: got float64, want float32"):
        bits.encode(one.astype(np.float64), E2M1, Rounding.TIES_TO_EVEN)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="nan: got None"):
        bits.encode(one * np.float32(NAN), E2M1, Rounding.TIES_TO_EVEN)
    with pytest.raises(ArgumentError, match="random_bits: got None"):
        bits.encode(one, E2M1, Rounding.STOCHASTIC)
    with pytest.raises(ShapeError, match="random_bits"):
        bits.encode(one, E2M1, Rounding.STOCHASTIC, random_bits=np.zeros(3, dtype=np.uint8))
    with pytest.raises(DtypeError, match="random_bits"):
        bits.encode(one, E2M1, Rounding.STOCHASTIC, random_bits=np.zeros(2, dtype=np.int64))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="element"):
        bits.encode(one, BINARY16, Rounding.TIES_TO_EVEN)
    with pytest.raises(ArgumentError, match="codes: got up to 0x10"):
        bits.decode(np.array([16], dtype=np.uint8), E2M1)
    with pytest.raises(DtypeError, match="codes"):
        bits.decode(np.array([1]), E2M1)
