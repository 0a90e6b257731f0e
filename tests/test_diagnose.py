"""Diagnosis: each fault that is planted is named, and nothing is named that does not explain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowbit import packing, schemes
from lowbit.diagnose import UNEXPLAINED, Finding, diagnose, diagnose_bytes, diagnose_codes
from lowbit.errors import ArgumentError
from lowbit.formats import BFLOAT16, BINARY16, E2M1, E4M3, FloatFormat
from lowbit.references import bits
from lowbit.rules import NanCode, NonFinite, Rounding, ScaleRule, ZeroBlock
from lowbit.schemes import Encoded, Scheme
from lowbit.suspects.blocks import flushed, suspects, through
from lowbit.suspects.trial import LIMIT, Trial


def inputs(rows: int = 48, columns: int = 128) -> np.ndarray:
    """Grid values and midpoints, wide exponents, zeros, subnormals, NaN and Inf."""
    generator = np.random.default_rng(11)
    x = generator.standard_normal((rows, columns)) * 2.0 ** generator.integers(-8, 8, (rows, columns))
    x[: rows // 2] = generator.integers(-48, 49, (rows // 2, columns)) / 8
    x[-1], x[-2], x[-3] = 0.0, 1e-39, -0.0
    x[-4] = generator.standard_normal(columns) * 2.0**-125
    x[-5] = generator.standard_normal(columns) * 1e-40
    x[-6, 3], x[-6, 40], x[-6, 70], x[-7, 9] = np.nan, np.inf, -np.inf, -np.nan
    return x.astype(np.float32)


X = inputs()
MXFP4, MX4, NVFP4 = (schemes.get(name) for name in ("mxfp4_floor", "mx4_ceil_e2m1_g32", "nvfp4"))


def explained(x: np.ndarray, actual: Encoded, scheme: Scheme, **options: object) -> list[str]:
    """The names of the suspects that explain everything."""
    found = diagnose(x, actual, scheme, bits.quantize(x, scheme, **options), options)
    assert found is not None
    assert str(found)
    return [finding.name for finding in found.findings if finding.remaining == 0]


@pytest.mark.parametrize("scheme", [MXFP4, MX4], ids=lambda s: s.name)
@pytest.mark.parametrize(
    "change",
    [
        {"rounding": Rounding.TIES_TO_EVEN},
        {"rounding": Rounding.TIES_AWAY},
        {"rounding": Rounding.TIES_TOWARD_ZERO},
        {"rounding": Rounding.TIES_UP},
        {"rounding": Rounding.TOWARD_ZERO},
        {"rounding": Rounding.TOWARD_NEGATIVE},
        {"nan": NanCode.SIGNED_MAX},
        {"nan": NanCode.POSITIVE_MAX},
        {"nan": NanCode.NEGATIVE_ZERO},
        {"scale_rule": ScaleRule.CEIL},
        {"scale_rule": ScaleRule.FLOOR},
        {"scale_rule": ScaleRule.RCEIL},
        {"scale_rule": ScaleRule.NEAREST},
        {"zero_block": ZeroBlock.BYTE_ZERO},
        {"zero_block": ZeroBlock.MIN_NORMAL_AMAX},
        {"nonfinite": NonFinite.IGNORE_NAN},
        {"nonfinite": NonFinite.MARK_BLOCK},
    ],
    ids=lambda change: next(iter(change.values())).value,
)
def test_each_rule_changed_alone_is_named(scheme: Scheme, change: dict) -> None:
    actual = bits.quantize(X, replace(scheme, **change))
    expected = bits.quantize(X, scheme)
    if (actual.codes == expected.codes).all() and (actual.scales == expected.scales).all():
        assert diagnose(X, actual, scheme, expected) is None  # the rule that the scheme has
        return
    assert explained(X, actual, scheme) == [next(iter(change.values())).value]


def test_planted_ties_away_in_words() -> None:
    actual = bits.quantize(X, replace(MXFP4, rounding=Rounding.TIES_AWAY))
    expected = bits.quantize(X, MXFP4)
    wrong = int((actual.codes != expected.codes).sum())
    assert str(diagnose(X, actual, MXFP4, expected)) == f"all {wrong:,} mismatches vanish with ties away from zero"


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("nibbles_swapped", lambda e: e._replace(codes=e.codes.reshape(-1, 2)[:, ::-1].reshape(e.codes.shape))),
        ("lanes_reversed", lambda e: e._replace(codes=e.codes.reshape(-1, 32)[:, ::-1].reshape(e.codes.shape))),
        ("zero_sign_lost", lambda e: e._replace(codes=np.where(e.codes == 8, 0, e.codes).astype(np.uint8))),
        ("sign_lost", lambda e: e._replace(codes=e.codes & 7)),
        ("code_flushed", lambda e: e._replace(codes=np.where(e.codes & 7 == 1, e.codes & 8, e.codes).astype(np.uint8))),
        ("scale_of_next", lambda e: e._replace(scales=np.roll(e.scales.reshape(-1), -1).reshape(e.scales.shape))),
        ("scales_transposed", lambda e: e._replace(scales=e.scales.T.reshape(e.scales.shape))),
        ("scale_stored_+2", lambda e: e._replace(scales=np.where(e.scales == 255, 255, e.scales + 2).astype(np.uint8))),
    ],
)
def test_order_and_signs(name: str, plant) -> None:
    assert explained(X, plant(bits.quantize(X, MXFP4)), MXFP4) == [name]


def test_swizzle_omitted() -> None:
    """Scales in plain order, read back as the swizzled layout."""
    x = np.abs(np.random.default_rng(3).standard_normal((128, 128))).astype(np.float32) * (
        2.0 ** np.arange(128)[:, None] / 2**64
    ).astype(np.float32)
    expected = bits.quantize(x, MXFP4)
    plain = expected.scales.reshape(-1)
    actual = expected._replace(scales=packing.unswizzle(plain, 128, 4))
    assert explained(x, actual, MXFP4) == ["swizzle_omitted"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("input_bfloat16", lambda x: through(BFLOAT16, x)),
        ("input_binary16", lambda x: through(BINARY16, x)),
        ("input_flushed", flushed),
    ],
)
@pytest.mark.parametrize("scheme", [MXFP4, MX4, NVFP4], ids=lambda s: s.name)
def test_changed_inputs(name: str, change, scheme: Scheme) -> None:
    assert explained(X, bits.quantize(change(X), scheme), scheme)[0] == name


def test_bfloat16_by_hand() -> None:
    """2.500004 becomes 2.5 and 5.015625 becomes 5.0; ties go to even; NaN and the largest values hold."""
    x = np.array([2.500004, 5.015625, 1.00390625, 1.01171875, -0.0, np.nan, 3.4028235e38], np.float32)
    assert through(BFLOAT16, x)[:5].tolist() == [2.5, 5.0, 1.0, 1.015625, -0.0]
    assert np.isnan(through(BFLOAT16, x)[5])
    assert np.isinf(through(BFLOAT16, x)[6])
    assert flushed(np.array([1e-39, -1e-39, 2.0**-126], np.float32)).tolist() == [0.0, -0.0, 2.0**-126]


def test_scale_not_clamped_wraps() -> None:
    """amax 1.5 · 2^-126: E = -128, byte -1, stored as 255."""
    x = np.zeros((4, 32), np.float32)
    x[0, 0], x[1, 0], x[2, 0] = 1.5 * 2.0**-126, 2.0**-130, 3.0
    expected = bits.quantize(x, MXFP4)
    scales = expected.scales.copy()
    scales[0], scales[1] = 255, 251
    assert explained(x, expected._replace(scales=scales), MXFP4)[0] == "unclamped"
    text = str(diagnose(x, expected._replace(scales=scales), MXFP4, expected))
    assert "not clamped" in text
    codes = expected.codes.copy()
    codes[0, 0], codes[1, 0] = 6 + 1, 6  # x · 2^-E with the true E: 6 and 4
    assert explained(x, Encoded(codes, scales), MXFP4) == ["unclamped_codes_follow"]
    assert explained(x, Encoded(codes, expected.scales), MXFP4) == ["codes_unclamped"]


def test_scale_off_by_emax() -> None:
    """vllm#53110: emax is not subtracted, so that scales are four times too large and codes follow."""
    x = X[: 48 - 7]
    expected = bits.quantize(x, MXFP4)
    wide = bits.quantize(x.astype(np.float64).astype(np.float32) * 4, MXFP4).scales
    actual = Encoded(
        bits.encode((x / np.exp2(wide.astype(np.float32) - 127).repeat(32, 1)), E2M1, Rounding.TIES_TO_EVEN), wide
    )
    assert explained(x, actual, MXFP4) == ["scale_shifted_+2"]
    found = diagnose(x, actual, MXFP4, expected)
    assert "4 times too large" in str(found)


@pytest.mark.parametrize(
    ("name", "other", "found_as"),
    [
        ("nvfp4", "rtn_nvfp4", "rtn_nvfp4"),
        ("nvfp4", "nvfp4_one_level", "nvfp4_one_level"),
        ("rtn_mxfp4", "mxfp4_even", "mxfp4_even"),
        ("mxfp4_rceil", "rtn_mxfp4", "rtn_mxfp4"),
        ("mx4_ceil_e3m0_g32", "mx4_floor_e3m0_g32", "floor"),
    ],
)
def test_dialect_is_named(name: str, other: str, found_as: str) -> None:
    """A kernel that follows another scheme exactly is told which one, or which rule if only one differs."""
    assert explained(X, bits.quantize(X, schemes.get(other)), schemes.get(name)) == [found_as]


def test_multiplying_by_a_sixth() -> None:
    """6 times the midpoints of E4M3, ± 1 ulp, with g = 256: there RN32(amax · RN32(1/6)) goes the other way."""
    values = bits.decode(np.arange(8, 126, dtype=np.uint8), E4M3)
    amax = (3 * (values[:-1] + values[1:])).astype(np.float32)
    amax = np.concatenate([amax, np.nextafter(amax, np.float32(0)), np.nextafter(amax, np.float32(np.inf))]) / 256
    x = np.zeros((amax.size + 1, 16), np.float32)
    x[0, 0], x[1:, 0], x[1:, 1] = 10.5, amax, 0.3 * amax
    cuda = bits.quantize(x, schemes.get("nvfp4_two_level_cuda"))
    assert cuda.tensor_scale == 256
    assert explained(x, cuda, schemes.get("nvfp4_two_level")) == ["amax_times_sixth"]


def test_reciprocal_instead_of_division() -> None:
    """x 4.6875, s 1.875: the quotient 2.5 is a tie, x · (1/s) is above it."""
    x = np.zeros((2, 16), np.float32)
    x[:, 0], x[0, 1] = 1.875 * 6, 4.6875
    g = np.float32(1)
    expected = bits.quantize(x, NVFP4, tensor_scale=g)
    assert expected.codes[0, 1] == 4
    codes = expected.codes.copy()
    codes[0, 1] = 5
    assert "reciprocal" in explained(x, expected._replace(codes=codes), NVFP4, tensor_scale=g)


def test_wrong_tensor_scale_alone() -> None:
    x = X[:40]
    right = bits.quantize(x, NVFP4)
    actual = bits.quantize(x, NVFP4, tensor_scale=np.float32(right.tensor_scale * np.float32(1.5)))
    assert explained(x, actual, NVFP4) == ["tensor_scale"]


@pytest.mark.parametrize("rounding", [Rounding.TOWARD_ZERO, Rounding.TOWARD_POSITIVE])
def test_scale_cast_of_another_kind(rounding: Rounding) -> None:
    x = X[:40]
    g = np.float32(1)
    right = bits.quantize(x, NVFP4, tensor_scale=g)
    amax = np.abs(x.reshape(-1, 16)).max(1)
    b = np.clip(amax / np.float32(6), np.float32(2.0**-9), np.float32(448))
    scales = bits.encode(b, E4M3, rounding).reshape(right.scales.shape)
    scales = np.where(right.scales == 0, 0, scales).astype(np.uint8)
    s = bits.decode(scales, E4M3).astype(np.float32).repeat(16, 1)
    codes = bits.encode((x / np.where(s == 0, 1, s)).astype(np.float32), E2M1, Rounding.TIES_TO_EVEN)
    name = "scale_truncated" if rounding is Rounding.TOWARD_ZERO else "scale_rounded_up"
    assert explained(x, Encoded(codes, scales, g), NVFP4, tensor_scale=g) == [name]


@pytest.mark.parametrize("name", ["mx4_ceil_e2m1_g32+stochastic", "mx4_stochastic_e2m1_g32", "nvfp4+stochastic"])
def test_stochastic_schemes_with_a_seed(name: str) -> None:
    scheme = schemes.get(name)
    expected = bits.quantize(X, scheme, seed=5)
    swapped = expected.codes.reshape(-1, 2)[:, ::-1].reshape(expected.codes.shape)
    assert explained(X, expected._replace(codes=swapped), scheme, seed=5) == ["nibbles_swapped"]


def test_noise_is_unexplained() -> None:
    expected = bits.quantize(X, MXFP4)
    generator = np.random.default_rng(0)
    noise = np.where(generator.random(X.shape) < 0.02, generator.integers(0, 16, X.shape), expected.codes)
    found = diagnose(X, expected._replace(codes=noise.astype(np.uint8)), MXFP4, expected)
    assert found is not None
    assert not found.complete
    assert str(found) == UNEXPLAINED


def test_two_faults_are_told_with_their_share() -> None:
    actual = bits.quantize(X, replace(MXFP4, rounding=Rounding.TIES_AWAY))
    codes = actual.codes.copy()
    codes[0, :5] ^= 5
    expected = bits.quantize(X, MXFP4)
    found = diagnose(X, actual._replace(codes=codes), MXFP4, expected)
    assert found is not None
    assert found.findings[0].name == "ties_away"
    assert 0.9 < found.findings[0].share < 1
    assert "mismatches vanish (9" in str(found)


def test_scale_that_no_rule_gives() -> None:
    """Where no rule explains a scale, it is still told that the codes follow from it."""
    expected = bits.quantize(X, MXFP4)
    scales = expected.scales.copy()
    scales[::3, 0] += 1
    scales[::5, 1] -= 3
    trial = Trial.of(X, expected._replace(scales=scales), MXFP4, expected, {})
    assert trial is not None
    actual = Encoded(trial.codes_for(scales.reshape(-1, 1)).reshape(X.shape), scales)
    assert explained(X, actual, MXFP4) == ["scale_alone"]


def test_ambiguity_is_said() -> None:
    """One positive tie: up, away and +Inf are the same."""
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = 6, 0.25
    expected = bits.quantize(x, MXFP4)
    codes = expected.codes.copy()
    codes[0, 1] = 1
    found = diagnose(x, expected._replace(codes=codes), MXFP4, expected)
    assert found is not None
    assert {f.name for f in found.findings if f.remaining == 0} >= {"ties_away", "ties_up"}
    assert "do not tell them apart" in str(found)
    assert str(found).startswith("the one mismatch vanishes with ties away from zero")


def test_large_inputs_are_cut_and_it_is_said() -> None:
    x = np.tile(X, (20, 1))
    assert x.size > LIMIT
    expected = bits.quantize(x, NVFP4)
    actual = bits.quantize(x, replace(NVFP4, rounding=Rounding.TOWARD_ZERO))
    found = diagnose(x, actual, NVFP4, expected)
    assert found is not None
    assert [f.name for f in found.findings if f.remaining == 0] == ["toward_zero"]
    assert found.mismatched == int((actual.codes != expected.codes).sum()) > found.tried
    assert f"tried on {found.tried:,} of {found.mismatched:,}" in str(found)


@pytest.mark.parametrize("times", [1, 20])
def test_right_blocks_must_stay_right(times: int) -> None:
    """A fault in a few blocks only: a change that would break the others does not explain it, nor in a large input."""
    x = np.tile(X, (times, 1))
    assert (x.size > LIMIT) == (times > 1)
    expected = bits.quantize(x, MXFP4)
    codes = expected.codes.copy()
    away = bits.quantize(X[:1, :32], replace(MXFP4, rounding=Rounding.TIES_AWAY)).codes
    codes[:1, :32] = away
    assert (codes != expected.codes).any()
    found = diagnose(x, expected._replace(codes=codes), MXFP4, expected)
    assert found is not None
    assert not found.findings


def test_chance_is_no_explanation() -> None:
    """Codes off by one bit agree with rounding toward +Inf in a third of the places: told is what is so everywhere."""
    expected = bits.quantize(X, MX4)
    found = diagnose(X, expected._replace(codes=expected.codes ^ 1), MX4, expected)
    assert found is not None
    assert [finding.name for finding in found.findings] == ["code_flushed"]  # 1 became 0, wherever it was


def test_nothing_to_say() -> None:
    expected = bits.quantize(X, MXFP4)
    assert diagnose(X, expected, MXFP4, expected) is None
    assert diagnose(X, expected._replace(codes=expected.codes[:, :32]), MXFP4, expected) is None
    assert diagnose(X, expected._replace(codes=expected.codes.astype(np.int64) + 1), MXFP4, expected) is None
    rtn = schemes.get("rtn_mxfp4")
    right = bits.quantize(X, rtn)
    assert diagnose(X, right._replace(tensor_scale=None), rtn, right) is None  # informative there


@pytest.mark.parametrize(
    "name", ["mxfp4_floor", "mx4_ceil_e3m0_g16", "nvfp4", "nvfp4_two_level", "nvfp4_one_level", "rtn_nvfp4"]
)
def test_every_suspect_runs_and_is_found(name: str) -> None:
    """Whatever a suspect makes of these inputs, if it differs from the truth, is explained."""
    scheme = schemes.get(name)
    x = X[:40] if name == "nvfp4_two_level" else X
    expected = bits.quantize(x, scheme)
    seed = Trial.of(x, expected._replace(codes=expected.codes ^ 1), scheme, expected, {})
    assert seed is not None
    assert seed.separable
    tried = 0
    for suspect in next(iter(suspects(seed))):
        try:
            guess = suspect.guess(seed)
        except ArgumentError:
            continue  # a rule of another family, which the references refuse
        if guess is None:
            continue
        actual = Encoded(
            guess.codes.reshape(expected.codes.shape), guess.scales.reshape(expected.scales.shape), guess.tensor_scale
        )
        found = diagnose(x, actual, scheme, expected)
        assert found is None or found.complete, suspect.name
        tried += found is not None
    assert tried > 12


@pytest.mark.parametrize("element", [E2M1, E4M3], ids=lambda f: f.name)
def test_scalar_encoder(element: FloatFormat) -> None:
    x = np.ascontiguousarray(X.reshape(-1))
    expected = bits.encode(x, element, Rounding.TIES_TO_EVEN, NanCode.POSITIVE_MAX)
    for name, actual in {
        "ties_away": bits.encode(x, element, Rounding.TIES_AWAY, NanCode.POSITIVE_MAX),
        "input_bfloat16": bits.encode(through(BFLOAT16, x), element, Rounding.TIES_TO_EVEN, NanCode.POSITIVE_MAX),
        "zero_sign_lost": np.where(expected == element.sign_mask, 0, expected),
    }.items():
        found = diagnose_codes(
            x, actual.astype(np.uint8), expected, element, Rounding.TIES_TO_EVEN, NanCode.POSITIVE_MAX
        )
        assert found is not None
        assert [f.name for f in found.findings if f.remaining == 0] == [name]
    assert diagnose_codes(x, expected, expected, element, Rounding.TIES_TO_EVEN) is None
    random = np.random.default_rng(1).integers(0, 256, x.shape).astype(np.uint8)
    stochastic = bits.encode(x, element, Rounding.STOCHASTIC, NanCode.POSITIVE_MAX, random_bits=random)
    found = diagnose_codes(
        x,
        stochastic & element.magnitude_mask,
        stochastic,
        element,
        Rounding.STOCHASTIC,
        NanCode.POSITIVE_MAX,
        random_bits=random,
    )
    assert found is not None
    assert found.findings[0].name == "sign_lost"


def test_packed_bytes() -> None:
    right = np.random.default_rng(2).integers(0, 256, (16, 16)).astype(np.uint8)
    found = diagnose_bytes((right << 4) | (right >> 4), right)
    assert found is not None
    assert found.complete
    assert "nibbles swapped" in str(found)
    assert diagnose_bytes(right, right) is None
    assert str(diagnose_bytes(right + np.uint8(1), right)) == UNEXPLAINED


def test_scale_layouts() -> None:
    """Index-coded scales: each wrong permutation is told from the others."""
    rows, columns = 200, 10
    scales = (np.arange(rows * columns) % 251 + 1).astype(np.uint8).reshape(rows, columns)
    right = packing.swizzle(scales)
    plain = np.zeros_like(right)
    plain[: scales.size] = scales.reshape(-1)
    transposed = np.zeros_like(right)
    transposed[: scales.size] = scales.T.reshape(-1)
    garbage = right.copy()
    garbage[packing.swizzle_padding(rows, columns)] = 0xAA
    for name, actual in {"swizzle_omitted": plain, "transposed": transposed, "padding": garbage}.items():
        found = diagnose_bytes(actual, right, scales=scales)
        assert found is not None
        assert [f.name for f in found.findings if f.remaining == 0] == [name]
    row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
    unpadded = np.zeros_like(right)  # MSLK#339
    unpadded[(row // 128 * (columns // 4) + column // 4) * 512 + (row % 32) * 16 + row % 128 // 32 * 4 + column % 4] = (
        scales
    )
    found = diagnose_bytes(unpadded, right, scales=scales)
    assert found is not None
    assert found.findings[0].name == "unpadded_index"


def test_shares_in_words() -> None:
    assert str(Finding("a", "b", 4096, 0)) == "all 4,096 mismatches vanish with b"
    assert str(Finding("a", "b", 4096, 10)) == "4,086 of 4,096 mismatches vanish (99 %) with b"
    assert Finding("a", "b", 10, 5).share == 0.5


@pytest.mark.parametrize(
    ("name", "steps", "words"),
    [
        ("nvfp4", 1, "scale bytes one step too large, the codes those of the right scale"),
        ("nvfp4", -1, "scale bytes one step too small, the codes those of the right scale"),
        ("mxfp4_floor", 1, "block scales 2 times too large, the codes those of the right scale"),
        ("mxfp4_floor", -1, "block scales 2 times too small, the codes those of the right scale"),
    ],
)
def test_scale_bytes_off_by_one_with_right_codes(name: str, steps: int, words: str) -> None:
    scheme = schemes.get(name)
    x = np.linspace(1, 5, 8 * 64, dtype=np.float32).reshape(8, 64)[:, ::-1].copy()
    options = {"tensor_scale": np.float32(64)} if name == "nvfp4" else {}
    expected = bits.quantize(x, scheme, **options)
    scales = (expected.scales.astype(np.int64) + steps).astype(np.uint8)
    found = diagnose(x, expected._replace(scales=scales), scheme, expected, options)
    assert str(found) == f"all {scales.size} mismatches vanish with {words}"


def test_scale_bytes_off_by_one_at_the_marks_too() -> None:
    """Byte 255 marks NaN: with one more it is 0, which no other scale that is twice too large becomes."""
    x = np.array([[1], [np.nan], [1], [1]], np.float32).repeat(32, axis=1)
    expected = bits.quantize(x, MXFP4)
    assert 255 in expected.scales
    found = diagnose(x, expected._replace(scales=expected.scales + np.uint8(1)), MXFP4, expected)
    assert "all 4 mismatches vanish with scale bytes one step too large" in str(found)
