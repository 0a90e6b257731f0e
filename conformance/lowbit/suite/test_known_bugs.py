"""Publicly reported faults, each with the right answer written by hand."""

from __future__ import annotations

import numpy as np
import torch

from lowbit import packing
from lowbit.cases.known_bugs import KNOWN_DECODES, of_scheme
from lowbit.rules import Rounding, ScaleRule
from lowbit.schemes import Encoded
from lowbit.suite.answers import as_stored, decodes_to, states, states_codes
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check
from lowbit.suite.judge import Options


@check("known bugs", exact=True, where=lambda s: bool(of_scheme(s)))
def test_known_bugs(judge: BlockJudge) -> None:
    """Codes and scale of each case, first against the references, then against the values written by hand."""
    for case in of_scheme(judge.scheme):
        x = judge.tensor(case.rows())
        options: Options = {}
        if case.tensor_scale is not None:
            options["tensor_scale"] = judge.tensor(np.array([case.tensor_scale], dtype=np.float32))
        with judge.part(case.name):
            result = judge.quantize(x, **options)
            states(judge, result, x, case)
    judge.assurance = f"golden({len(of_scheme(judge.scheme))})"


@check("known bugs, decode", where=lambda s: s.name == "mxfp4_floor")
def test_known_decodes(judge: BlockJudge) -> None:
    """Pairs of code and scale byte whose values were decoded wrongly elsewhere."""
    for case in KNOWN_DECODES:
        codes = judge.tensor(np.full((1, judge.scheme.block), case.code, dtype=np.uint8))
        scales = judge.tensor(np.full((1, 1), case.scale, dtype=np.uint8))
        encoded = Encoded(codes, scales, None)
        with judge.part(case.name):
            decodes_to(judge, packing.pack(encoded, judge.scheme), case.value)
            judge.dequantize(packing.pack(encoded, judge.scheme), encoded, torch.float32)
    judge.assurance = f"golden({len(KNOWN_DECODES)})"


@check(
    "known bugs, stochastic",
    where=lambda s: (
        s.rounding is Rounding.STOCHASTIC and s.element.name == "e2m1" and s.scale_rule is not ScaleRule.STOCHASTIC
    ),
)
def test_stochastic_means(judge: BlockJudge) -> None:
    """1, 2 and 4 never move; 0.1 goes up for 51 of 256 random bytes: floor(0.2 · 256)."""
    values = np.zeros((256, judge.scheme.block), dtype=np.float32)
    amax = 6.0 if judge.scheme.scale_rule is not ScaleRule.CEIL else 4.0
    values[:, :5] = amax, 1.0, 2.0, 4.0, 0.1
    options: Options = {
        "random_bits": judge.tensor(np.repeat(np.arange(256, dtype=np.uint8)[:, None], judge.scheme.block, axis=1))
    }
    if judge.scheme.tensor_scale.value != "none":
        options["tensor_scale"] = judge.tensor(np.array([1.0], dtype=np.float32))
    result = judge.quantize(judge.tensor(values), **options)
    codes = packing.unpack(as_stored(result), judge.scheme).codes.cpu().numpy()
    for lane, code in ((1, 2), (2, 4), (3, 6)):
        states_codes(judge, codes[:, lane], np.full(256, code, dtype=np.uint8), f"{values[0, lane]:g} moves")
    ups = np.array([int((codes[:, 4] == 1).sum())], dtype=np.uint8)
    states_codes(judge, ups, np.array([51], dtype=np.uint8), "how often 0.1 goes up")
    judge.assurance = "golden(4), all 256 random bytes"
