"""The judge of weights: what it sees, what it says of it, and the checks that only a GPU has room for, made small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lowbit import packing_weights, weights
from lowbit.cases import weights as weight_cases
from lowbit.errors import LowbitError, Unsupported, WitnessDisagreement
from lowbit.formats import BFLOAT16, BINARY16, BINARY32
from lowbit.implementation import Implementation
from lowbit.references import weights_bits, weights_tensors
from lowbit.suite import test_weights_exhaustive, test_weights_shapes
from lowbit.suite.judge import Settings
from lowbit.suite.weight_judge import WeightJudge, on_host
from lowbit.suite.weight_levels import LAUNCHES, REPRESENTATIVES, WIDTHS
from lowbit.suite.weight_refusals import refused

AWQ = "awq_g32"


def judge_of(name: str, dequantize: Callable[..., Any], *, interpreted: bool = True) -> WeightJudge:
    settings = Settings(device="cpu", level="full", seed=3, interpreted=interpreted)
    subject = Implementation(name="mine", version="1", dequantize_weight=dequantize)
    return WeightJudge(subject, weights.get(name), settings, "weights codes")


def right(tensors: Any, scheme: weights.WeightScheme, dtype: torch.dtype) -> torch.Tensor:
    return weights_tensors.dequantize(tensors, scheme, dtype)


def awq(judge: WeightJudge, **changes: Any) -> dict[str, Any]:
    """K 64, N 8: code 5, zero point 7, scales 1.5 in group 0 and -2 in group 1."""
    scales = np.repeat([[1.5], [-2.0]], 8, axis=1).astype(np.float16)
    codes, zeros = np.full((64, 8), 5), np.full((2, 8), 7)
    arrays = weight_cases.store(judge.scheme, codes, scales.view(np.uint16), source=BINARY16, zeros=zeros)
    return judge.stored({**arrays, **changes})


def test_stored_tensors_keep_their_bits() -> None:
    judge = judge_of("squeezellm4+sparse", right)
    pair = np.array([1, 2], np.int32), np.array([np.nan, -0.0], np.float32)
    stored = judge.stored({"a": np.array([0x3F80, 0xFFC1], np.uint16), "sparse": pair, "shape": (2, 3), "n": 4})
    assert stored["a"].dtype is torch.bfloat16
    assert stored["a"].view(torch.int16).tolist() == [0x3F80, 0xFFC1 - (1 << 16)]
    assert [part.dtype for part in stored["sparse"]] == [torch.int32, torch.float32]
    assert (stored["shape"], stored["n"]) == ((2, 3), 4)
    back = on_host(stored)
    assert back["a"].tolist() == [0x3F80, 0xFFC1]
    assert back["a"].dtype == np.uint16
    assert np.signbit(back["sparse"][1][1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_right_weight_passes(dtype: torch.dtype) -> None:
    judge = judge_of(AWQ, right)
    judge.exact_votes = 512
    assert judge.dequantize(awq(judge), dtype) is not None
    assert (judge.compared, judge.mismatched, judge.diagnosis, judge.notes) == (512, 0, None, [])
    assert judge.exact_votes == 0


def test_a_sample_says_what_the_weight_was_made_of() -> None:
    def wrong(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
        result = right(tensors, scheme, dtype)
        result[40, 3] = 1
        return result

    judge = judge_of(AWQ, wrong)
    judge.dequantize(awq(judge))
    assert judge.mismatched == 1
    (sample,) = judge.comparisons[0].samples
    assert (sample.coordinates, sample.index) == ((40, 3), 40 * 8 + 3)
    assert (sample.input, sample.x_bits, sample.x, sample.rule) == ("uint4", 5, -2.0, "zero 7")
    assert (sample.block, sample.scale_expected) == (1, 0xC000)
    assert (sample.value_actual, sample.value_expected) == (1.0, 4.0)
    assert judge.diagnosis is not None


@pytest.mark.parametrize(
    ("name", "place", "says"),
    [
        ("nf4_b64", (130,), ("uint4", 130 // 64, 130 % 64, "")),
        ("nf4_b64+nested", (130,), ("uint4", 130 // 64, 130 % 64, "absmax code ")),
        ("int8_channel", (1, 2), ("int8", 1, 2, "")),
        ("gptq3_v1_g128", (31, 9), ("uint3", 0, None, "zero ")),
        ("gptq4_v1_g32+act_order", (8, 9), ("uint4", None, None, "zero ")),
        ("squeezellm3", (40, 1), ("uint3", 1, None, "")),
    ],
)
def test_samples_of_every_family(name: str, place: tuple[int, ...], says: tuple[Any, ...]) -> None:
    """The code, scale and value of a sample multiply to the value that was wanted, or name its parts."""
    judge = judge_of(name, lambda t, s, d: altered(right(t, s, d), place))
    shape = {"nf4": (200,), "int8": (3, 7), "gptq3": (160, 32), "gptq4": (40, 24), "squee": (64, 3)}
    tensors = judge.stored(weight_cases.random(judge.scheme, shape[name[:5].split("_")[0]], 2))
    judge.dequantize(tensors, torch.float32)
    (sample,) = judge.comparisons[0].samples
    kind, block, lane, rule = says
    assert (sample.input, sample.lane) == (kind, lane)
    assert sample.rule.startswith(rule)
    if block is None:
        block = int(tensors["g_idx"][place[0]])
    assert sample.block == block
    wide = name.startswith(("nf4", "int8", "squee"))
    scale = float((BINARY32 if wide else BINARY16).value(sample.scale_expected or 0))
    product = sample.x if name.startswith("squee") else np.float32(sample.x or 0) * np.float32(scale)
    assert product == sample.value_expected


def altered(result: torch.Tensor, place: tuple[int, ...]) -> torch.Tensor:
    result[place] += 1
    return result


def test_a_sample_names_added_terms() -> None:
    judge = judge_of("squeezellm4+sparse+full_rows", lambda t, s, d: altered(right(t, s, d), (5, 1)))
    arrays = weight_cases.random(judge.scheme, (8, 3), 0)
    arrays |= {
        "lookup_table": np.ones((3, 16), np.float32),
        "sparse": (np.array([0, 0, 1, 1], np.int32), np.array([5], np.int32), np.array([0.25], np.float32)),
        "full_rows": (np.array([1], np.int32), np.full((8, 1), 2.0, np.float32)),
    }
    judge.dequantize(judge.stored(arrays))
    assert judge.comparisons[0].samples[0].rule == "sparse 0.25, full row 2.0"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda r: r.t(), "shape"),
        (lambda r: r.float(), "dtype"),
        (lambda r: r.numpy(), "dtype"),
        (lambda r: None, "dtype"),
        (lambda r: r[:1], "shape"),
        (lambda r: r.to("meta"), "dtype"),
    ],
)
def test_wrong_forms_are_faults(change: Callable[[torch.Tensor], Any], kind: str) -> None:
    judge = judge_of(AWQ, lambda t, s, d: change(right(t, s, d)))
    assert judge.dequantize(awq(judge)) is None
    assert judge.comparisons[0].kinds == {kind: 1}
    assert judge.compared == 0


def test_bits_decide() -> None:
    """-0 for +0 is a mismatch; NaN of another payload is none."""

    def changed(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
        result = right(tensors, scheme, dtype)
        return torch.where(result == 0, -result, result).where(
            ~result.isnan(), torch.tensor(-float("nan"), dtype=dtype)
        )

    judge = judge_of(AWQ, changed)
    scales = np.full((2, 8), np.nan, np.float16)
    scales[0] = 0
    judge.dequantize(awq(judge, scales=scales))
    assert judge.comparisons[0].kinds == {"zero_sign": 32 * 8}
    assert judge.notes == ["right results in binary16: 256 are NaN"]


def test_changed_inputs_are_named_those_in_a_tuple_too() -> None:
    def spoil(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
        result = right(tensors, scheme, dtype)
        tensors["qweight"][0, 0] += 1
        tensors["sparse"][2].zero_()
        return result

    judge = judge_of("squeezellm4+sparse", spoil)
    arrays = weight_cases.random(judge.scheme, (40, 24), 0)
    actual = judge.implementation.call("dequantize_weight", judge.stored(arrays), judge.scheme, torch.float16)
    assert actual.shape == (40, 24)
    messages = [comparison.message for comparison in judge.comparisons]
    assert messages == ["dequantize_weight changed its qweight", "dequantize_weight changed its sparse"]


@pytest.mark.parametrize("witness", ["weights_bits", "weights_exact"])
def test_references_that_differ_say_nothing_of_the_kernel(monkeypatch: pytest.MonkeyPatch, witness: str) -> None:
    monkeypatch.setattr(f"lowbit.suite.weight_judge.{witness}.dequantize", lambda t, s, f: np.zeros((64, 8), np.uint16))
    judge = judge_of(AWQ, right)
    judge.exact_votes = 512
    with pytest.raises(WitnessDisagreement, match=f"{witness.removeprefix('weights_')} and tensors differ in 512"):
        judge.dequantize(awq(judge))
    assert judge.comparisons == []


def test_refusals() -> None:
    """An error is a refusal; a result is a fault with a diagnosis; a scheme that is not supported is neither."""
    judge = judge_of(AWQ, right)
    judge.refuses_weight({**awq(judge), "scales": torch.ones(3, 8)}, "scales of three rows")
    assert (judge.compared, judge.mismatched, judge.diagnosis) == (1, 0, None)
    judge = judge_of(AWQ, lambda t, s, d: torch.zeros(1))
    judge.refuses_weight(awq(judge), "nothing")
    assert judge.comparisons[0].kinds == {"shape": 1}
    assert judge.diagnosis == "not validated: nothing"

    def decline(tensors: Any, scheme: Any, dtype: Any) -> None:
        raise Unsupported("not today")

    judge = judge_of(AWQ, decline)
    with pytest.raises(Unsupported):
        judge.refuses_weight(awq(judge), "nothing")


def test_an_accepted_int64_tensor_is_no_refusal() -> None:
    """The judge's own look at the arguments must not raise."""
    judge = judge_of(AWQ, lambda t, s, d: torch.zeros(1))
    judge.refuses_weight({"qweight": torch.zeros(2, dtype=torch.int64)}, "int64")
    assert judge.mismatched == 1


def test_overflow_is_counted_apart_from_infinite_scales() -> None:
    judge = judge_of(AWQ, right)
    scales = np.full((2, 8), 40000.0, np.float16)
    scales[1] = np.inf
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        judge.dequantize(awq(judge, scales=scales), dtype)
    assert judge.mismatched == 0
    assert judge.notes == [
        "right results in binary16: 256 finite in binary32 overflow to ±Inf in binary16, "
        "256 are ±Inf in binary32 already",
        "right results in bfloat16: 256 are ±Inf in binary32 already",
        "right results in binary32: 256 are ±Inf in binary32 already",
    ]
    judge.dequantize(awq(judge, scales=scales))
    assert judge.notes[-1].startswith("right results in binary16: 512 finite")
    assert len(judge.notes) == 3


def test_a_later_explanation_takes_the_place_of_none() -> None:
    """Two weights say too little, a whole tensor enough; what is explained stays."""
    faults = [
        lambda r: r + torch.randn(r.shape, generator=torch.Generator().manual_seed(1)).to(r.dtype),
        lambda r: -r,
        lambda r: r.abs(),
    ]

    def wrong(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
        return faults[0](right(tensors, scheme, dtype))

    judge = judge_of(AWQ, wrong)
    judge.dequantize(awq(judge))
    assert judge.diagnosis is not None
    assert judge.diagnosis.startswith("unexplained")
    faults.pop(0)
    with judge.part("second"):
        judge.dequantize(awq(judge))
    assert judge.diagnosis == "all 512 mismatches vanish with z - q in place of q - z (second)"
    faults.pop(0)
    judge.dequantize(awq(judge))
    assert "second" in judge.diagnosis


@pytest.mark.parametrize("name", sorted({*LAUNCHES, *WIDTHS, *REPRESENTATIVES}))
def test_what_must_be_refused_is_refused_by_the_references(name: str) -> None:
    scheme = weights.get(name)
    judge = judge_of(name, right)
    tensors = judge.stored(weight_cases.random(scheme, weight_cases.output_shapes(scheme)[1], 5))
    seen = []
    for what, changed in refused(scheme, tensors):
        seen.append(what)
        with pytest.raises(LowbitError):
            weights_tensors.dequantize(changed, scheme)
        with pytest.raises(LowbitError):
            weights_bits.dequantize(on_host(changed), scheme)
    assert len(seen) == len(set(seen)) >= 8
    if scheme.family == "gptq":
        assert any(what.startswith("g_idx of -1 ") for what in seen)


@pytest.mark.parametrize("name", [*LAUNCHES, *WIDTHS])
def test_more_than_two_to_the_31_made_small(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What the check draws on a GPU is a weight of the wanted size, and the references agree on it."""
    monkeypatch.setattr(test_weights_shapes, "LARGE", 1 << 12)
    judge = judge_of(name, right, interpreted=False)
    if judge.scheme.family in ("awq", "gptq", "squeezellm"):
        tensors = test_weights_shapes.drawn(judge, (288 if name != "awq_g128" else 384, 64))
        judge.dequantize(tensors)
    else:
        test_weights_shapes.test_beyond_int32(judge)
    assert judge.compared >= 1 << 12
    assert judge.mismatched == 0
    assert not any("NaN" in note for note in judge.notes)


def test_every_pattern_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """All binary32 patterns come as scales; of FP4's absmax one of every sixteen, another remainder each time."""
    monkeypatch.setattr(test_weights_exhaustive, "PATTERNS", 1 << 14)
    monkeypatch.setattr(test_weights_exhaustive, "SWEPT", 1 << 14)
    monkeypatch.setattr(WeightJudge, "expected", lambda self, tensors, dtype: torch.zeros(0))
    for name, check, entry in (
        ("nf4_b32", test_weights_exhaustive.test_every_absmax, "absmax"),
        ("fp4_b64", test_weights_exhaustive.test_every_absmax, "absmax"),
        ("int8_channel", test_weights_exhaustive.test_every_scale, "scale"),
    ):
        seen: list[int] = []

        def listen(tensors: Any, scheme: Any, dtype: Any, seen: list[int] = seen, entry: str = entry) -> torch.Tensor:
            seen.extend(tensors[entry].view(torch.int32).tolist())
            return torch.zeros(0)

        check(judge_of(name, listen, interpreted=False))
        if name == "fp4_b64":
            assert [pattern // 16 for pattern in seen] == list(range(1 << 10))
            assert {pattern % 16 for pattern in seen} == {0, 1, 2, 3}
        else:
            assert seen == list(range(1 << 14))


def test_patterns_count_up_through_the_sign() -> None:
    places = torch.tensor([0, 0x7FFF, 0x8000, 0xFFFF])
    for fmt, dtype in ((BINARY16, torch.float16), (BFLOAT16, torch.bfloat16)):
        made = test_weights_exhaustive.patterns_as(places, fmt)
        assert made.dtype is dtype
        assert made.view(torch.int16).tolist() == [0, 0x7FFF, -0x8000, -1]
    wide = test_weights_exhaustive.patterns_as(torch.tensor([0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]), BINARY32)
    assert wide.view(torch.int32).tolist() == [0x7FFFFFFF, -(1 << 31), -1]


@pytest.mark.parametrize(
    ("name", "interpreted", "zeros"),
    [
        ("awq_g16", True, (0, 15)),
        ("gptq4_v1_g16", True, (0, 15)),
        ("gptq2_v1_g128", False, (0, 1, 2, 3)),
        ("gptq4_v1_gk", False, (3,)),
    ],
)
def test_the_domain_is_whole(name: str, interpreted: bool, zeros: tuple[int, ...]) -> None:
    """Every code occurs with every scale, under each of the zero points."""
    judge = judge_of(name, right, interpreted=interpreted)
    count = judge.scheme.code_range[1] + 1
    seen = np.zeros((count, count, 1 << 16), np.bool_)
    for tensors in test_weights_exhaustive.with_every_scale(judge, np.array(zeros), BINARY16):
        host = on_host(tensors)
        codes = packing_weights.unpack_codes(host["qweight"], judge.scheme)
        points = packing_weights.unpack_zeros(host["qzeros"], judge.scheme)
        scales = host["scales"].view(np.uint16)
        size = judge.scheme.group_size(len(codes))
        for group, (point, scale) in enumerate(zip(points, scales, strict=True)):
            rows = codes[group * size : (group + 1) * size]
            assert (rows == rows[:, :1]).all()
            assert (point == point[0]).all()
            seen[np.unique(rows[:, 0])[:, None], point[0], scale] = True
    assert seen[:, list(zeros)].all()
    assert seen.any(axis=(0, 2)).nonzero()[0].tolist() == list(zeros)
