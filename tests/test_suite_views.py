"""A kernel that errs for some places in memory only is found by the checks of strides and of guard bands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lowbit import packing, schemes
from lowbit.implementation import Implementation
from lowbit.references import tensors
from lowbit.schemes import Quantized, Scheme
from lowbit.suite import test_memory, test_shapes
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.judge import Settings

Fault = Callable[[torch.Tensor, Any, bool], bool]
"""Of x, the packed buffer or None, and whether bits are drawn from a seed: whether a byte is wrong."""


def judge_of(scheme: str, fault: Fault) -> BlockJudge:
    def quantize(
        x: torch.Tensor, scheme: Scheme, *, out: Any = None, swizzle: bool = False, **options: Any
    ) -> Quantized:
        made = packing.pack(tensors.quantize(x.float(), scheme, **options), scheme, swizzle=swizzle)
        if fault(x, out and out.packed, "seed" in options):
            made.packed.view(-1)[7] ^= 1
        if out is None:
            return made
        for target, source in zip(out, made, strict=True):
            if target is not None:
                target.copy_(source)
        return out

    settings = Settings(device="cpu", level="quick", seed=0, interpreted=True)
    subject = Implementation(name="mine", version="1", quantize=quantize, out=True)
    return BlockJudge(subject, schemes.get(scheme), settings, "memory")


def faults(judge: BlockJudge) -> int:
    return sum(not comparison.ok for comparison in judge.comparisons)


def beside(x: torch.Tensor, bytes_: int) -> bool:
    return x.data_ptr() % 16 == bytes_


FAULTS: dict[str, Fault] = {
    "buffer at an odd byte": lambda x, out, seed: out is not None and beside(out, 1),
    "buffer at an odd pair": lambda x, out, seed: out is not None and beside(out, 2),
    "buffer at an odd word": lambda x, out, seed: out is not None and beside(out, 4),
}
SEEDED: dict[str, Fault] = {
    "buffer at an odd byte, seed": lambda x, out, seed: seed and out is not None and beside(out, 1),
    "both at odd words, seed": lambda x, out, seed: seed and out is not None and beside(out, 1) and beside(x, 4),
    "rows a pair apart, seed": lambda x, out, seed: seed and out is not None and x.stride(0) == x.shape[1] + 2,
}
STRIDES: dict[str, Fault] = {
    "offset of a pair": lambda x, out, seed: x.storage_offset() == 2,
    "rows a pair apart": lambda x, out, seed: x.dim() == 2 and x.stride(0) == x.shape[1] + 2 and x.stride(1) == 1,
}


@pytest.mark.parametrize(
    ("scheme", "fault"),
    [(scheme, FAULTS[name]) for scheme in ("mxfp4_floor", "nvfp4") for name in FAULTS]
    + [(scheme, SEEDED[name]) for scheme in ("mxfp4_floor+stochastic", "nvfp4+stochastic") for name in SEEDED],
    ids=[f"{scheme}, {name}" for scheme in ("mxfp4_floor", "nvfp4") for name in FAULTS]
    + [f"{scheme}, {name}" for scheme in ("mxfp4_floor", "nvfp4") for name in SEEDED],
)
def test_buffers_begin_anywhere(scheme: str, fault: Fault) -> None:
    judge = judge_of(scheme, fault)
    test_memory.test_nothing_is_written_outside(judge)
    assert faults(judge)


@pytest.mark.parametrize("seeded", [False, True], ids=["given", "seed"])
@pytest.mark.parametrize("name", STRIDES)
def test_inputs_begin_anywhere(name: str, seeded: bool) -> None:
    """Found where bits are given, and where they are drawn; alone."""
    judge = judge_of("nvfp4+stochastic", lambda x, out, seed: seed is seeded and STRIDES[name](x, out, seed))
    test_shapes.test_strides(judge)
    assert faults(judge)


@pytest.mark.parametrize("scheme", ["mxfp4_floor", "nvfp4+stochastic"])
def test_what_is_right_passes(scheme: str) -> None:
    judge = judge_of(scheme, lambda x, out, seed: False)
    test_memory.test_nothing_is_written_outside(judge)
    test_shapes.test_strides(judge)
    assert judge.compared > 0
    assert not faults(judge)


def test_views_lie_as_they_say() -> None:
    values = torch.arange(37 * 48, dtype=torch.float32).reshape(37, 48).bfloat16()
    found = dict(test_shapes.views(values, 16))
    assert len(found) == test_shapes.VIEWS
    pair, rows = found["storage offset 2"], found["rows two elements apart"]
    assert (pair.storage_offset(), pair.stride()) == (2, (48, 1))
    assert (rows.storage_offset(), rows.stride()) == (0, (50, 1))
    assert torch.equal(pair, values)
    assert torch.equal(rows, values)
