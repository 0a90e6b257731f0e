"""Decoding: every code under every scale byte, to each output type."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lowbit import packing
from lowbit.cases import blocks as cases
from lowbit.rules import TensorScaleRule
from lowbit.schemes import Encoded
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check, quick_for_representatives
from lowbit.suite.judge import DTYPES

TENSOR_SCALES = (None, 1.0, 448.0, 0.1, 1e-38, 3e38, *cases.BESIDE_TIES)
"""Tensor scales under which all pairs are decoded: none, exact, inexact, near both ends of binary32, beside ties."""


def every_code_under_every_scale(judge: BlockJudge) -> Encoded:
    """Rows of one scale byte each; all codes, in two orders so that both nibbles see each."""
    codes = np.arange(1 << judge.scheme.element.bits, dtype=np.uint8)
    row = np.concatenate([codes, np.roll(codes, 1)])
    width = -(-len(row) // judge.scheme.block) * judge.scheme.block
    scale_codes = np.arange(1 << judge.scheme.scale.bits, dtype=np.uint8)
    return Encoded(
        judge.tensor(np.tile(np.resize(row, width), (len(scale_codes), 1))),
        judge.tensor(np.repeat(scale_codes[:, None], width // judge.scheme.block, axis=1)),
        None,
    )


@check("decode", level=quick_for_representatives)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: DTYPES[dtype].name)
def test_every_code_and_scale(judge: BlockJudge, dtype: torch.dtype) -> None:
    """The product is rounded once to the output type: subnormals, overflow to Inf and NaN bytes included."""
    encoded = every_code_under_every_scale(judge)
    takes_factor = judge.scheme.tensor_scale not in (TensorScaleRule.NONE, TensorScaleRule.GLOBAL_SCALE)
    for factor in TENSOR_SCALES if takes_factor else (None,):
        scale = None if factor is None else judge.tensor(np.array([factor], dtype=np.float32))
        with judge.part(f"tensor scale {factor}"):
            with_factor = Encoded(encoded.codes, encoded.scales, scale)
            judge.dequantize(packing.pack(with_factor, judge.scheme), with_factor, dtype)
    judge.assurance = f"exhaustive({judge.compared})"
