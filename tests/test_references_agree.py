"""The bit-level reference and the exact one: written apart from the same pages, they give the same bits.

`exact` decides one number at a time, so the inputs are those where rules differ: breakpoints, ties ± 1 ulp, every
binade, specials in every position, factors at both ends of binary32.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lowbit import schemes
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, LOW_BIT, FloatFormat
from lowbit.references import bits, exact
from lowbit.rules import NanCode, PartialBlock, Rounding, ScaleRule, TensorScaleRule
from lowbit.schemes import Encoded, Scheme

PLAIN = [r for r in Rounding if r is not Rounding.STOCHASTIC]
MANTISSAS = np.array(
    [m for e in (0, 0x3504F4, 0x400000, 0x600000, 1 << 23) for m in (e - 1, e, e + 1) if 0 <= m < 1 << 23]
)
"""0, sqrt 2, 1.5, 1.75 and 2, as mantissas, ± 1 ulp."""

SPECIALS = np.array(
    [
        *(0x7FC00000, 0xFFC00000, 0x7F800001),  # NaN of both signs, and a signalling one
        *(0x7F800000, 0xFF800000, 0x80000000),  # ±Inf, -0
        *(0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF),  # ends of subnormals and of normals
    ],
    dtype=np.uint32,
).view(np.float32)


FACTORS = np.array([1, 2.0**-149, 1e-30, 0.0123, 448, 3.4e38], dtype=np.float32)
"""Tensor scales that are given: usual ones, and such that y underflows or overflows."""


def floats(patterns) -> np.ndarray:
    return np.asarray(patterns).astype(np.uint32).view(np.float32)


def ids(value) -> str:
    return value.value if isinstance(value, Rounding) else value.name


def element_probes(element: FloatFormat, rng: np.random.Generator) -> np.ndarray:
    """Patterns: at most 40 codes with their upper midpoint, ± 1 ulp; every binade; both ends; both signs."""
    values = element.magnitudes
    top = 2 * values[-1] - values[-2]  # the next value of a format without an end
    pairs = list(itertools.pairwise((*values, top)))
    chosen = pairs if len(pairs) <= 40 else [*pairs[:8], *(pairs[i] for i in rng.choice(len(pairs), 24)), *pairs[-8:]]
    points = np.array([float(v) for low, high in chosen for v in (low, (low + high) / 2, high)])
    with np.errstate(over="ignore"):
        centre = points.astype(np.float32).view(np.uint32).astype(np.int64)
    binades = (np.arange(255, dtype=np.int64) << 23) + rng.choice(MANTISSAS, 255)
    near = np.concatenate([centre - 1, centre, centre + 1, binades, SPECIALS.view(np.uint32)]) & 0x7FFFFFFF
    near = np.unique(near)
    return np.concatenate([near, near | 0x80000000])


@pytest.mark.parametrize("rounding", Rounding, ids=ids)
@pytest.mark.parametrize("element", LOW_BIT, ids=ids)
def test_elements(element, rounding):
    rng = np.random.default_rng(9)
    x = floats(element_probes(element, rng))
    random = rng.integers(0, 256, x.size, dtype=np.uint8) if rounding is Rounding.STOCHASTIC else None
    for nan in NanCode:
        kept = slice(None) if nan is NanCode.POSITIVE_MAX else np.isnan(x)
        given = [None] * x[kept].size if random is None else random[kept].tolist()
        actual = bits.encode(x[kept], element, rounding, nan, random_bits=None if random is None else random[kept])
        expected = [
            exact.encode(float(v), element, rounding, nan, random=r) for v, r in zip(x[kept], given, strict=True)
        ]
        np.testing.assert_array_equal(actual, np.array(expected, dtype=np.uint8), err_msg=nan.value)


@pytest.mark.parametrize("rounding", PLAIN, ids=ids)
@pytest.mark.parametrize("element", LOW_BIT, ids=ids)
def test_breakpoints(element, rounding):
    """The first and the last pattern of every code: magnitudes are monotone, so this is all 2**32 inputs."""
    for negative in (False, True):
        rows = exact.breakpoints(element, rounding, negative)
        first = np.array([pattern for pattern, _ in rows], dtype=np.int64)
        last = np.append(first[1:] - 1, 0xFF800000 if negative else 0x7F800000)
        expected = np.array([code for _, code in rows], dtype=np.uint8)
        assert first[0] == (0x80000000 if negative else 0)
        np.testing.assert_array_equal(bits.encode(floats(first), element, rounding), expected)
        np.testing.assert_array_equal(bits.encode(floats(last), element, rounding), expected)


POWER_OF_TWO = {
    (s.family, s.scale_rule, s.element): s for s in schemes.select() if s.family in ("mx4", "mxfp4")
}.values()


@pytest.mark.parametrize("scheme", POWER_OF_TWO, ids=ids)
def test_shared_exponents_in_every_binade(scheme):
    amax = floats(((np.arange(255, dtype=np.int64)[:, None] << 23) + MANTISSAS).ravel())
    random = np.random.default_rng(10).integers(0, 1 << 31, amax.size).astype(np.int32)
    if scheme.scale_rule is not ScaleRule.STOCHASTIC:
        actual = bits.scale_codes(amax, scheme)
        expected = [exact.scale_exponent(float(a), scheme) for a in amax]
    else:
        actual = bits.scale_codes(amax, scheme, random_bits=random)
        expected = [exact.scale_exponent(float(a), scheme, random=int(r)) for a, r in zip(amax, random, strict=True)]
    np.testing.assert_array_equal(actual.astype(np.int64) - 127, expected)


def near_ties(amax: np.ndarray, block: int, rng: np.random.Generator) -> np.ndarray:
    """A block for each amax, which stands in any lane; the others lie at and beside thresholds of some scale."""
    shape = amax.size, block
    share = rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 12.0, 0.125], shape)
    wide = amax[:, None] * share / rng.choice([6.0, 8.0, 4.0, 7.0, 16.0, 12.0], shape)
    x = np.minimum(wide, amax[:, None]).astype(np.float32)
    x = floats(np.maximum(x.view(np.uint32).astype(np.int64) + rng.integers(-1, 2, shape), 0))
    x = np.minimum(x, amax[:, None]) * rng.choice(np.array([1, -1], dtype=np.float32), shape)
    x[np.arange(amax.size), rng.integers(0, block, amax.size)] = amax
    return x


def tensors(scheme: Scheme, rng: np.random.Generator) -> dict[str, np.ndarray]:
    block, few = scheme.block, max(3, 512 // scheme.block)
    binades = (np.arange(0, 255, max(1, block // 8), dtype=np.int64) + int(rng.integers(0, 2))) % 255 << 23
    specials = rng.standard_normal((block, block), dtype=np.float32)[-16:]
    specials[np.arange(len(specials)), np.arange(len(specials))] = rng.choice(SPECIALS, len(specials))
    found = {
        "binades": near_ties(floats(binades + rng.choice(MANTISSAS, binades.size)), block, rng),
        "specials": specials,
        "mixed": rng.choice(SPECIALS, (4, block)),
        "patterns": rng.integers(0, 1 << 32, (few // 2, block), dtype=np.uint64).astype(np.uint32).view(np.float32),
        "normal": rng.standard_normal((few, block), dtype=np.float32),
        "subnormal": rng.integers(0, 1 << 24, (3, block)).astype(np.uint32).view(np.float32),
        "zero": np.array([[0.0], [-0.0]], dtype=np.float32).repeat(block, axis=1),
    }
    if scheme.partial_block is PartialBlock.PAD:
        found["padded"] = rng.standard_normal((2, 2, block + 3), dtype=np.float32)
    return found


def same_factor(actual, expected) -> bool:
    if actual is None or expected is None:
        return actual is expected
    if math.isnan(expected):
        return math.isnan(actual)
    return np.float32(actual).tobytes() == np.float32(expected).tobytes()


@pytest.mark.parametrize("name", schemes.names())
def test_quantize(name):
    scheme = schemes.get(name)
    rng = np.random.default_rng(list(name.encode()))
    takes_factor = scheme.tensor_scale in (TensorScaleRule.ONE_ROUNDING, TensorScaleRule.TWO_ROUNDINGS)
    for case, x in tensors(scheme, rng).items():
        factors = [None, rng.choice(FACTORS)] if takes_factor else [None]
        for factor in factors:
            options: dict = {"tensor_scale": factor}
            if scheme.stochastic and rng.integers(2):
                options["seed"] = int(rng.integers(-(1 << 63), 1 << 63))
            elif scheme.stochastic:
                groups = *x.shape[:-1], -(-x.shape[-1] // scheme.block)
                options["random_bits"] = rng.integers(0, 256, x.shape, dtype=np.uint8)
                options["scale_random_bits"] = rng.integers(0, 1 << 31, groups).astype(np.int32)
            actual, expected = bits.quantize(x, scheme, **options), exact.quantize(x, scheme, **options)
            np.testing.assert_array_equal(actual.scales, expected.scales, err_msg=f"{case}, factor {factor}")
            np.testing.assert_array_equal(actual.codes, expected.codes, err_msg=f"{case}, factor {factor}")
            assert same_factor(actual.tensor_scale, expected.tensor_scale), (case, actual.tensor_scale)


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_two_level", "nvfp4_two_level_cuda"])
def test_factors_of_whole_tensors(name):
    """One block, every second binade of amax: the factor is that of the tensor."""
    scheme = schemes.get(name)
    rng = np.random.default_rng(11)
    for field in range(0, 255, 2):
        x = near_ties(floats([(field << 23) + int(rng.choice(MANTISSAS))]), scheme.block, rng)
        actual, expected = bits.quantize(x, scheme), exact.quantize(x, scheme)
        assert same_factor(actual.tensor_scale, expected.tensor_scale), field
        np.testing.assert_array_equal(actual.scales, expected.scales)
        np.testing.assert_array_equal(actual.codes, expected.codes)


DECODERS = {(s.family, s.element, s.scale, s.high, s.global_scale): s for s in schemes.select()[::-1]}.values()


@pytest.mark.parametrize("fmt", [BINARY32, BINARY16, BFLOAT16], ids=ids)
@pytest.mark.parametrize("scheme", DECODERS, ids=ids)
def test_dequantize_every_code_under_every_scale(scheme, fmt):
    """NaN by class, as values are compared; everything else by its bits."""
    count = 1 << scheme.element.bits
    codes = np.tile(np.arange(count, dtype=np.uint8), (256, max(1, scheme.block // count)))
    scales = np.arange(256, dtype=np.uint8)[:, None].repeat(codes.shape[1] // scheme.block, axis=1)
    factors: list[tuple[np.float32 | None, int]] = [(None, 1)]  # and of how many scale bytes one is tried
    if scheme.family == "nvfp4":
        factors += [(np.float32(0.0123), 3), *((np.float32(g), 9) for g in (2.0**-149, 3.4e38, 0, math.inf, math.nan))]
    for factor, step in factors:
        encoded = Encoded(codes[::step], scales[::step], factor)
        actual, expected = bits.dequantize(encoded, scheme, fmt), exact.dequantize(encoded, scheme, fmt)
        assert actual.dtype == expected.dtype
        nan = [(a & fmt.magnitude_mask) > fmt.inf_magnitude for a in (actual, expected)]
        np.testing.assert_array_equal(*nan, err_msg=f"NaN, factor {factor}")
        np.testing.assert_array_equal(actual[~nan[0]], expected[~nan[0]], err_msg=f"factor {factor}")
