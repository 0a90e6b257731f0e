"""The judge of one check: whose error is a refusal, and whose is a fault."""

from __future__ import annotations

import pytest
import torch

from lowbit import schemes
from lowbit.implementation import Implementation, Quantized
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.judge import Settings


def refuse(x, scheme, **options):
    raise ValueError("x: got a view, want it contiguous")


def judge_of(quantize) -> BlockJudge:
    settings = Settings(device="cpu", level="quick", seed=0, interpreted=True)
    subject = Implementation(name="mine", version="1", quantize=quantize)
    return BlockJudge(subject, schemes.get("mxfp4_floor"), settings, "strides")


def test_an_error_of_the_implementation_is_a_refusal() -> None:
    judge = judge_of(refuse)
    with judge.may_refuse("transposed"):
        judge.quantize(torch.ones(2, 32))
    assert judge.notes == ["refused transposed: x: got a view, want it contiguous"]
    assert judge.compared == 0  # a check in which everything is refused has compared nothing, and fails


def test_an_error_of_a_reference_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would pass for a refusal by the kernel, and the view would go unjudged."""

    def broken(x, scheme, **options):
        raise ValueError("a fault of the reference")

    monkeypatch.setattr("lowbit.suite.block_judge.tensors.quantize", broken)
    judge = judge_of(lambda x, scheme, **options: Quantized(torch.zeros(2, 16), torch.zeros(2, 1)))
    with pytest.raises(ValueError, match="a fault of the reference"), judge.may_refuse("transposed"):
        judge.quantize(torch.ones(2, 32))
    assert judge.notes == []


def test_an_earlier_refusal_does_not_excuse_a_later_fault() -> None:
    judge = judge_of(refuse)
    with judge.may_refuse("first"):
        judge.quantize(torch.ones(2, 32))
    with pytest.raises(TypeError, match="later"), judge.may_refuse("second"):
        raise TypeError("later")
