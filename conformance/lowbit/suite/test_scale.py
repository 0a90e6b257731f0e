"""Block scales: every binade of amax × the significands at which a rule changes its mind; every amax."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from lowbit.cases import blocks as cases
from lowbit.cases.blocks import GIVEN
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check, quick_for_representatives
from lowbit.suite.judge import Options

CHUNK = 1 << 29
"""Elements a step: 2 GiB of float32."""


def given_scales(judge: BlockJudge) -> list[Options]:
    """Tensor scales to give: ordinary, with many mantissa bits, tiny and huge; one empty choice without them."""
    if judge.scheme.tensor_scale not in GIVEN:
        return [{}]
    values = np.array([1.0, 448.0, 0.1, 1e-38, 3e38], dtype=np.float32)
    return [{"tensor_scale": judge.tensor(values[i : i + 1])} for i in range(len(values))]


@check("scale", exact=True)
def test_every_binade(judge: BlockJudge) -> None:
    """Each binade and turning point once as the only nonzero element of a block, lane and sign moving along."""
    magnitudes = cases.binade_patterns()
    x = judge.tensor(cases.amax_blocks(magnitudes, judge.scheme))
    for options in given_scales(judge)[: None if judge.settings.at_least("full") else 2]:
        judge.quantize(x, **options)
    judge.assurance = f"breakpoints({len(magnitudes)}), amax"


@check("scale E4M3 ties", exact=True, level=quick_for_representatives, where=lambda s: s.family == "nvfp4")
def test_every_tie_of_the_scale(judge: BlockJudge) -> None:
    """amax at six times each E4M3 value and midpoint, ± 2 ulp: where b = amax/6 changes its code."""
    grid = [float(v) for v in judge.scheme.scale.magnitudes]
    points = np.array([*grid, *((a + b) / 2 for a, b in itertools.pairwise(grid))], dtype=np.float64)
    centre = cases.patterns((points * 6).astype(np.float32)).astype(np.int64)
    near = np.unique((centre[:, None] + np.arange(-2, 3)[None, :]).clip(0))
    x = judge.tensor(cases.amax_blocks(near.astype(np.uint32), judge.scheme))
    for options in given_scales(judge):
        judge.quantize(x, **options)
    judge.assurance = f"breakpoints({len(near)}), amax"


@check("tensor scale", exact=True, level=quick_for_representatives, where=lambda s: s.tensor_scale in GIVEN)
def test_tensor_scale(judge: BlockJudge) -> None:
    """g computed from the tensor: every binade as its amax; tensors with NaN, Inf, only zeros, nothing finite."""
    magnitudes = cases.binade_patterns()
    calls = {"quick": 8, "full": 40, "exhaustive": 400}[judge.settings.level]  # a tensor each: calls are what it costs
    magnitudes = magnitudes[:: max(1, len(magnitudes) // calls)]
    ordinary = np.linspace(-1, 1, 2 * judge.scheme.block, dtype=np.float32).reshape(2, -1)
    for pattern in magnitudes:
        amax = cases.floats([pattern])[0]
        x = (ordinary * amax).astype(np.float32)
        x[0, 0] = amax
        judge.quantize(judge.tensor(x))
    for fill in (np.nan, np.inf, -np.inf, 0.0, -0.0):
        x = ordinary.copy()
        x[1, 3] = fill
        judge.quantize(judge.tensor(x))
        judge.quantize(judge.tensor(np.full_like(x, fill)))
    judge.assurance = f"breakpoints({len(magnitudes)}), amax of a tensor"


@check("scale 2^31", level="exhaustive", needs_gpu=True)
def test_every_amax(judge: BlockJudge) -> None:
    """Every one of the 2**31 magnitudes as the only nonzero element of a block: its scale and every code."""
    rows = CHUNK // judge.scheme.block
    first = given_scales(judge)[0]
    stop = cases.INFINITY if cases.spoils_tensor(judge.scheme) and not first else 1 << 31
    for start in range(0, stop, rows):
        count = min(rows, stop - start)
        x = torch.zeros((count, judge.scheme.block), dtype=torch.int32, device=judge.settings.device)
        x[:, 0] = torch.arange(start, start + count, dtype=torch.int32, device=judge.settings.device)
        judge.quantize_sparse(x.view(torch.float32), **first)
    judge.assurance = f"exhaustive({stop}), amax"
