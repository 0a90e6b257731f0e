"""Every check of weights fails on a fault of the kind it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lowbit import weights
from lowbit.errors import Unsupported
from lowbit.implementation import Implementation
from lowbit.references import weights_tensors
from lowbit.suite import test_weights, test_weights_exhaustive, test_weights_shapes
from lowbit.suite.judge import Settings
from lowbit.suite.weight_judge import WeightJudge

Dequantize = Callable[..., torch.Tensor]


def judge_of(name: str, dequantize: Any, *, level: str = "full", interpreted: bool = True) -> WeightJudge:
    settings = Settings(device="cpu", level=level, seed=3, interpreted=interpreted)
    subject = Implementation(name="mine", version="1", dequantize_weight=dequantize)
    return WeightJudge(subject, weights.get(name), settings, "a check")


def right(tensors: Any, scheme: Any, dtype: torch.dtype) -> torch.Tensor:
    return weights_tensors.dequantize(tensors, scheme, dtype)


def without(name: str) -> Dequantize:
    """An added term left out."""

    def dequantize(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
        changed = dict(tensors)
        if name == "sparse":
            crow, col, values = tensors["sparse"]
            changed["sparse"] = torch.zeros_like(crow), col[:0], values[:0]
        else:
            indices, values = tensors["full_rows"]
            changed["full_rows"] = indices[:0], values[:, :0]
        return right(changed, scheme, dtype)

    return dequantize


def as_if_contiguous(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
    """The first stored tensor read in the order of its memory, whatever its strides."""
    name = next(name for name in ("qweight", "packed", "weight") if name in tensors)
    memory = tensors[name]
    if memory.numel():
        start = memory.storage_offset()
        flat = torch.as_strided(memory, (memory.numel(),), (1,), min(start, memory.untyped_storage().nbytes() // 4))
        memory = flat.reshape(memory.shape)
    return right({**tensors, name: memory}, scheme, dtype)


def first_columns(count: int) -> Dequantize:
    """One tile of columns, or of elements, and no more."""

    def dequantize(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
        result = right(tensors, scheme, dtype)
        result[..., count:] = 0
        return result

    return dequantize


def half_written(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
    result = right(tensors, scheme, dtype)
    out = torch.empty(result.shape, dtype=dtype)
    out.view(-1)[: result.numel() - 1] = result.view(-1)[:-1]
    return out


class Unsteady:
    """Another bit from the second call on."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
        self.calls += 1
        result = right(tensors, scheme, dtype)
        if self.calls > 1:
            result.view(torch.int16).view(-1)[-1] ^= 1
        return result


def flush_subnormal_scales(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
    name = next(name for name in ("scales", "absmax", "scale", "lookup_table") if name in tensors)
    scale = tensors[name]
    tiny = scale.abs() < torch.finfo(scale.dtype).tiny
    return right({**tensors, name: torch.where(tiny, scale * 0, scale)}, scheme, dtype)


def beyond(limit: int) -> Dequantize:
    """Places that do not fit an index come out wrong."""

    def dequantize(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
        result = right(tensors, scheme, dtype)
        result.view(-1)[limit:] += 1
        return result

    return dequantize


def unchecked_length(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
    """An absmax that is too long is cut."""
    count = scheme.groups(int(torch.Size(tensors["shape"]).numel()))
    return right({**tensors, "absmax": tensors["absmax"][:count]}, scheme, dtype)


@pytest.mark.parametrize(
    ("check", "scheme", "fault", "kind"),
    [
        (test_weights.test_added_terms, "squeezellm3+sparse+full_rows", without("sparse"), "value"),
        (test_weights.test_added_terms, "squeezellm3+sparse+full_rows", without("full_rows"), "value"),
        (test_weights.test_refusals, "nf4_b64", unchecked_length, "shape"),
        (test_weights.test_scales_at_the_edges, "nf4_b64", flush_subnormal_scales, "value"),
        (test_weights_shapes.test_strides, "awq_g32", as_if_contiguous, "value"),
        (test_weights_shapes.test_strides, "int8_channel", as_if_contiguous, "value"),
        (test_weights_shapes.test_more_than_one_tile, "awq_g32", first_columns(512), "value"),
        (test_weights_shapes.test_more_than_one_tile, "nf4_b64", first_columns(1 << 17), "value"),
        (test_weights_shapes.test_every_value_is_written, "awq_g32", half_written, "nan"),
        (test_weights_shapes.test_every_value_is_written, "squeezellm4", half_written, "nan"),
        (test_weights_shapes.test_twice_in_a_row, "awq_g32", Unsteady(), "nondeterministic"),
        (test_weights_exhaustive.test_every_sixteen_bit_absmax, "nf4_b32", flush_subnormal_scales, "value"),
        (test_weights_exhaustive.test_every_sixteen_bit_scale, "int8_channel", flush_subnormal_scales, "value"),
        (test_weights_exhaustive.test_every_value_of_a_table, "squeezellm4", flush_subnormal_scales, "value"),
    ],
)
def test_a_fault_is_caught(check: Callable[[WeightJudge], None], scheme: str, fault: Dequantize, kind: str) -> None:
    judge = judge_of(scheme, fault)
    check(judge)
    kinds = {found for comparison in judge.comparisons for found in comparison.kinds}
    assert kind in kinds, kinds
    honest = judge_of(scheme, right)
    check(honest)
    assert honest.mismatched == 0
    assert honest.compared
    assert honest.assurance


def test_subnormal_scales_of_integers() -> None:
    """At level quick's cost: two zero points of the domain."""
    judge = judge_of("awq_g16", flush_subnormal_scales)
    test_weights_exhaustive.test_every_scale_of_integers(judge)
    subnormal = 2 * ((1 << 10) - 1)  # of both signs
    assert judge.comparisons[0].mismatched == 30 * subnormal  # 15 codes but z, for each of two z


def test_the_distance_of_a_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of a tenth of a step does not hold, and is not passed over."""
    halves = test_weights.half_steps
    for name in (
        "awq_g32",
        "gptq3_v1_g128",
        "gptq4_v1_g32+act_order",
        "nf4_b64",
        "fp4_b64",
        "int8_channel",
        "int8_scb",
    ):
        honest = judge_of(name, right)
        test_weights.test_round_trip(honest)
        assert honest.mismatched == 0
        assert honest.comparisons[-1].tensor == "distance from the weight"
        with monkeypatch.context() as patched:
            patched.setattr(test_weights, "half_steps", lambda *a: halves(*a) / 5)
            judge = judge_of(name, right)
            test_weights.test_round_trip(judge)
        assert judge.comparisons[-1].kinds.keys() == {"value"}


@pytest.mark.parametrize(
    ("where", "tensor"), [(0, "guard"), (1, "values, binary16"), (2, "values"), (3, "values, binary16")]
)
def test_guard_bands(where: int, tensor: str) -> None:
    """A byte beyond the buffer, a wrong byte inside, another buffer in its place; a wrong byte if it is misaligned."""

    def dequantize(tensors: Any, scheme: Any, dtype: Any, *, out: torch.Tensor) -> torch.Tensor:
        out.copy_(right(tensors, scheme, dtype))
        if where == 0:
            torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(7)
        if where == 1 or (where == 3 and out.data_ptr() % 16):
            out.view(-1)[0] = 7
        return out.clone() if where == 2 else out

    judge = judge_of("awq_g32", dequantize)
    test_weights_shapes.test_nothing_is_written_outside(judge)
    wrong = [comparison.tensor for comparison in judge.comparisons if not comparison.ok]
    shifted = [f"fill 0xa5, buffer {shift} bytes on: {tensor}" for shift in (2, 4)]
    assert wrong == [*([] if where == 3 else [f"fill 0xff: {tensor}", f"fill 0xa5: {tensor}"]), *shifted]
    with pytest.raises(Unsupported, match="takes no out="):
        test_weights_shapes.test_nothing_is_written_outside(judge_of("awq_g32", right))


def test_places_beyond_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_weights_shapes, "LARGE", 1 << 12)
    for name in ("nf4_b64", "int8_channel"):
        judge = judge_of(name, beyond(1 << 12), interpreted=False)
        test_weights_shapes.test_beyond_int32(judge)
        assert judge.mismatched > 64


def test_every_absmax_and_every_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_weights_exhaustive, "PATTERNS", 1 << 12)
    monkeypatch.setattr(test_weights_exhaustive, "SWEPT", 1 << 12)
    for name, check in (
        ("nf4_b32", test_weights_exhaustive.test_every_absmax),
        ("fp4_b64", test_weights_exhaustive.test_every_absmax),
        ("int8_channel", test_weights_exhaustive.test_every_scale),
    ):
        judge = judge_of(name, flush_subnormal_scales, interpreted=False)
        check(judge)
        assert judge.mismatched > 64
        assert judge.assurance.startswith("exhaustive(")
