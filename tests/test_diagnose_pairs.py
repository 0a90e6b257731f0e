"""Two faults at once: told in one sentence where no single fault explains all, within a budget, and never by chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowbit import schemes, weights
from lowbit.cases import weights as weight_cases
from lowbit.diagnose import UNEXPLAINED, diagnose, diagnose_codes
from lowbit.formats import BFLOAT16, BINARY16, E2M1, FloatFormat
from lowbit.identify import probes
from lowbit.references import bits, weights_bits
from lowbit.rules import NanCode, Rounding, ScaleRule, TensorScaleRule, ZeroBlock
from lowbit.schemes import Encoded, Scheme
from lowbit.suspects import pairs as suspect_pairs
from lowbit.suspects.trial import Trial, to_bfloat16
from lowbit.suspects.weight_pairs import pairs as weight_pairs
from lowbit.suspects.weight_trial import WeightTrial
from lowbit.suspects.weights import diagnose_weight, roundings, suspects

MXFP4, MX4, NVFP4 = (schemes.get(name) for name in ("mxfp4_floor", "mx4_ceil_e2m1_g32", "nvfp4"))


def x_of(scheme: Scheme) -> np.ndarray:
    return probes.probes(scheme)[0].x


def told(x: np.ndarray, actual: Encoded, scheme: Scheme) -> list[str]:
    """The names of what explains everything."""
    found = diagnose(x, actual, scheme, bits.quantize(x, scheme))
    assert found is not None
    assert found.complete, str(found)
    return [finding.name for finding in found.findings if finding.remaining == 0]


def swapped(encoded: Encoded) -> Encoded:
    codes = encoded.codes.reshape(-1, 2)[:, ::-1].reshape(encoded.codes.shape)
    return encoded._replace(codes=codes)


def scales_up(encoded: Encoded) -> Encoded:
    return encoded._replace(scales=np.where(encoded.scales < 254, encoded.scales + 1, encoded.scales).astype(np.uint8))


@pytest.mark.parametrize(
    ("scheme", "change", "after", "name"),
    [
        (MXFP4, {"rounding": Rounding.TIES_AWAY, "nan": NanCode.ZERO}, None, "ties_away + nan_zero"),
        (MXFP4, {"rounding": Rounding.TOWARD_ZERO, "scale_rule": ScaleRule.RCEIL}, None, "toward_zero + rceil"),
        (MX4, {"nan": NanCode.NEGATIVE_ZERO, "scale_rule": ScaleRule.FLOOR}, None, "nan_negative_zero + floor"),
        (MX4, {"rounding": Rounding.TIES_UP}, swapped, "ties_up + nibbles_swapped"),
        (MXFP4, {"scale_rule": ScaleRule.EVEN}, scales_up, "even + scale_stored_+1"),
        (NVFP4, {"rounding": Rounding.TIES_AWAY}, swapped, "ties_away + nibbles_swapped"),
        (
            NVFP4,
            {"rounding": Rounding.TOWARD_ZERO, "scale_rule": ScaleRule.AMAX_TIMES_SIXTH},
            None,
            "toward_zero + amax_times_sixth",
        ),
        # under nvfp4 amax of zeros by a least amax is what the formula gives, and comes first
        (NVFP4, {"zero_block": ZeroBlock.FORMULA, "rounding": Rounding.TIES_DOWN}, None, "ties_down + min_normal_amax"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_two_rules_together(scheme: Scheme, change: dict, after, name: str) -> None:
    x = x_of(scheme)
    actual = bits.quantize(x, replace(scheme, **change))
    assert told(x, after(actual) if after else actual, scheme)[0] == name


def test_a_rule_and_a_rounded_input() -> None:
    x = x_of(MXFP4)
    actual = bits.quantize(to_bfloat16(x), replace(MXFP4, rounding=Rounding.TIES_TOWARD_ZERO))
    assert told(x, actual, MXFP4)[0] == "ties_toward_zero + input_bfloat16"


def test_the_factor_is_changed_first() -> None:
    """A rule of the tensor scale and one of the elements, on a tensor whose two factors differ."""
    x = probes.probes(NVFP4)[2].x
    changed = replace(NVFP4, tensor_scale=TensorScaleRule.TWO_ROUNDINGS, rounding=Rounding.TOWARD_POSITIVE)
    assert bits.quantize(x, changed).tensor_scale != bits.quantize(x, NVFP4).tensor_scale
    assert told(x, bits.quantize(x, changed), NVFP4)[0] == "toward_positive + two_roundings"


def test_the_sentence() -> None:
    x = x_of(MXFP4)
    actual = bits.quantize(x, replace(MXFP4, rounding=Rounding.TIES_AWAY, nan=NanCode.ZERO))
    expected = bits.quantize(x, MXFP4)
    wrong = int((actual.codes != expected.codes).sum())
    text = f"all {wrong} mismatches vanish with ties away from zero together with NaN encoded as +0"
    assert str(diagnose(x, actual, MXFP4, expected)) == text


def test_a_single_fault_is_never_told_as_two() -> None:
    x = x_of(MXFP4)
    actual = bits.quantize(x, replace(MXFP4, rounding=Rounding.TIES_AWAY))
    found = diagnose(x, actual, MXFP4, bits.quantize(x, MXFP4))
    assert found is not None
    assert not [finding for finding in found.findings if "+ " in finding.name]


def test_pairs_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is explained by no pair, and costs no more runs of the reference than are allowed."""
    x = x_of(MXFP4)
    expected = bits.quantize(x, MXFP4)
    generator = np.random.default_rng(0)
    noise = np.where(generator.random(x.shape) < 0.02, generator.integers(0, 16, x.shape), expected.codes)
    actual = expected._replace(codes=noise.astype(np.uint8))
    calls = []
    real = suspect_pairs._explaining

    def counting(under: Trial, seconds):
        calls.append(len(seconds))
        return real(under, seconds)

    monkeypatch.setattr(suspect_pairs, "_explaining", counting)
    monkeypatch.setattr(suspect_pairs, "BUDGET", 300)
    assert str(diagnose(x, actual, MXFP4, expected)) == UNEXPLAINED
    over = sum(calls) - 300
    assert 0 <= over <= len(calls)  # the scales that were stored, once a first fault, are beyond it


def test_one_mismatch_needs_no_two_faults() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = 6, 1
    expected = bits.quantize(x, MXFP4)
    codes = expected.codes.copy()
    codes[0, 5] = 13
    assert str(diagnose(x, expected._replace(codes=codes), MXFP4, expected)) == UNEXPLAINED


WEIGHTS = {"awq_g32": (64, 40), "gptq4_v1_g32": (64, 32), "nf4_b64": (37, 97), "int8_channel": (24, 40)}


@pytest.mark.parametrize(
    ("name", "fmt", "first", "second"),
    [
        ("awq_g32", BINARY16, "order_omitted_codes", "v2_as_v1"),
        ("awq_g32", BINARY16, "order_omitted", "flushed"),
        ("gptq4_v1_g32", BINARY16, "v1_as_v2", "next_group_scales"),
        ("gptq4_v1_g32", BFLOAT16, "v1_as_v2", "through_binary16"),
        ("nf4_b64", BINARY16, "nibbles_swapped", "next_block"),
        ("int8_channel", BINARY16, "clamped", "next_channel"),
    ],
)
def test_two_faults_of_a_weight(name: str, fmt: FloatFormat, first: str, second: str) -> None:
    scheme = weights.get(name)
    tensors = weight_cases.random(scheme, WEIGHTS[name], 4)
    right = weights_bits.dequantize(tensors, scheme, fmt)
    trial = WeightTrial.of(tensors, scheme, fmt, right ^ 1, right)
    assert trial is not None
    everywhere = np.arange(right.size)
    whole = replace(trial, places=everywhere, actual=right.reshape(-1), expected=right.reshape(-1).astype(np.int64))
    asked: dict = {}
    one = next(suspect for suspect in suspects(whole) if suspect.name == first)
    under = replace(whole, expected=one.guess(replace(whole, asked=asked)), fixed=asked)
    both = next(s for s in (*suspects(under), *roundings(under)) if s.name == second).guess(under)
    found = diagnose_weight(tensors, scheme, fmt, both.reshape(right.shape).astype(right.dtype), right)
    assert found is not None
    assert f"{first} + {second}" in [finding.name for finding in found.findings if finding.remaining == 0]
    assert "together with" in str(found)


def test_noise_in_a_weight_is_no_pair() -> None:
    scheme = weights.get("nf4_b64")
    tensors = weight_cases.random(scheme, WEIGHTS["nf4_b64"], 4)
    right = weights_bits.dequantize(tensors, scheme, BINARY16)
    noise = np.where(np.random.default_rng(0).random(right.shape) < 0.1, right ^ 1, right).astype(right.dtype)
    trial = WeightTrial.of(tensors, scheme, BINARY16, noise, right)
    assert trial is not None
    singles = [(s, trial.wrong(g)) for s in suspects(trial) if (g := s.guess(trial)) is not None]
    assert not list(weight_pairs(trial, singles, roundings))


def test_two_faults_of_a_scalar_encoder() -> None:
    x = probes.probes(MXFP4)[0].x.reshape(-1)
    expected = bits.encode(x, E2M1, Rounding.TIES_TO_EVEN, NanCode.POSITIVE_MAX)
    for name, actual in {
        "ties_away + nan_zero": bits.encode(x, E2M1, Rounding.TIES_AWAY, NanCode.ZERO),
        "toward_zero + zero_sign_lost": (right := bits.encode(x, E2M1, Rounding.TOWARD_ZERO, NanCode.POSITIVE_MAX))
        * (right != 8),
        "ties_down + input_bfloat16": bits.encode(to_bfloat16(x), E2M1, Rounding.TIES_DOWN, NanCode.POSITIVE_MAX),
    }.items():
        found = diagnose_codes(x, actual.astype(np.uint8), expected, E2M1, Rounding.TIES_TO_EVEN, NanCode.POSITIVE_MAX)
        assert found is not None
        assert name in [finding.name for finding in found.findings if finding.remaining == 0]
    noise = np.where(np.random.default_rng(0).random(x.shape) < 0.1, expected ^ 1, expected)
    found = diagnose_codes(x, noise, expected, E2M1, Rounding.TIES_TO_EVEN, NanCode.POSITIVE_MAX)
    assert str(found) == UNEXPLAINED


def test_a_pair_must_explain_what_the_sample_left_out() -> None:
    """One code more is wrong, in one of many blocks: the pair explains the few blocks that are tried, and not all."""
    x = np.tile(x_of(MXFP4), (4, 1))
    actual = bits.quantize(x, replace(MXFP4, rounding=Rounding.TIES_AWAY, nan=NanCode.ZERO))
    codes = actual.codes.copy()
    codes[len(x) // 2 + 3, 5] ^= 4
    found = diagnose(x, actual._replace(codes=codes), MXFP4, bits.quantize(x, MXFP4))
    assert found is not None
    assert not found.complete
