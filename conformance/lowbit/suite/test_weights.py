"""Weight dequantisation: every code, zero point and kind of scale; groups, nested scales, added terms; known bugs."""

from __future__ import annotations

import numpy as np
import torch

from lowbit.cases import weights as weight_cases
from lowbit.cases.known_weight_bugs import of_scheme
from lowbit.cases.weight_parts import full_row_entries
from lowbit.compare import Comparison, compare_values
from lowbit.references.weights_quantize import quantize
from lowbit.rules import Arithmetic
from lowbit.suite.checks import check
from lowbit.suite.judge import DTYPES
from lowbit.suite.weight_judge import TORCH, WeightJudge
from lowbit.suite.weight_levels import (
    full_for_launches,
    pairs,
    quick_for_launches,
    quick_for_memory,
    quick_for_representatives,
    thorough,
)
from lowbit.suite.weight_refusals import refused
from lowbit.weights import WeightScheme


@check("weights codes", level=quick_for_representatives, judge=WeightJudge)
def test_every_code_in_every_lane(judge: WeightJudge) -> None:
    """Every code and every zero point in every lane, under scales that say their place; to binary32, then narrower."""
    tensors = judge.stored(weight_cases.lanes(judge.scheme, judge.settings.seed))
    for dtype in DTYPES if thorough(judge.scheme, judge.settings) else (torch.float32,):
        judge.dequantize(tensors, dtype)
    judge.assurance = f"exhaustive({judge.compared}), codes and zero points × lanes"


@check("weights scales", level=quick_for_representatives, judge=WeightJudge)
def test_scales_at_the_edges(judge: WeightJudge) -> None:
    """Negative, zero, subnormal, greatest, Inf and NaN scales, all binades; each with every code, z = 0 and z = max."""
    wide = judge.scheme.group > 128 or judge.scheme.nested or judge.scheme.bits == 8
    step = 1 if judge.settings.level == "exhaustive" else 8 if judge.settings.interpreted else 4
    step *= 4 if wide else 1
    for source, fmt in pairs(judge.scheme, judge.settings):
        arrays = weight_cases.special(judge.scheme, source, judge.settings.seed, binade_step=step)
        with judge.part(f"{source.name} scales"):
            judge.dequantize(judge.stored(arrays), TORCH[fmt])
    judge.assurance = f"breakpoints({judge.compared}), edges and binades of scales"


@check(
    "weights groups",
    level=quick_for_memory,
    where=lambda s: s.family == "gptq",
    judge=WeightJudge,
)
def test_g_idx_decides(judge: WeightJudge) -> None:
    """A g_idx decides the group of each row, whatever its order and whether or not a scheme demands it."""
    rows, columns = weight_cases.output_shapes(judge.scheme)[1]
    arrays = weight_cases.random(judge.scheme, (rows, columns), judge.settings.seed)
    groups = judge.scheme.groups(rows)
    generator = np.random.default_rng(judge.settings.seed)
    indices = {
        "descending": groups - 1 - np.arange(rows) * groups // rows,
        "in turn": np.arange(rows) % groups,
        "any": generator.integers(0, groups, rows),
        "the last for all": np.full(rows, groups - 1),
    }
    for name, index in indices.items():
        with judge.part(f"g_idx {name}"):
            judge.dequantize(judge.stored(arrays | {"g_idx": index.astype(np.int32)}))
    judge.assurance = f"property({len(indices)}, {judge.settings.seed}), orders of g_idx"


@check("weights nested", level=quick_for_launches, where=lambda s: s.nested, judge=WeightJudge)
def test_nested_absmax(judge: WeightJudge) -> None:
    """Every code of absmax, blocks of blocks of several sizes, products that an fma would round otherwise."""
    for blocks, size in ((769, 256), (257, 16), (257, 1), (300, 100)):
        with judge.part(f"{size} blocks share a scale"):
            shape = (blocks * judge.scheme.group - 3,)
            arrays = weight_cases.random(judge.scheme, shape, judge.settings.seed, block_size2=size)
            judge.dequantize(judge.stored(arrays), torch.float32)
    judge.assurance = f"sampled({judge.compared}, {judge.settings.seed}), nested scales"


@check("weights terms", level=quick_for_launches, where=lambda s: s.sparse or s.full_rows, judge=WeightJudge)
def test_added_terms(judge: WeightJudge) -> None:
    """Terms that are empty, dense, or single; -0 where nothing is added; sums that cancel, overflow, or are NaN."""
    scheme, seed = judge.scheme, judge.settings.seed
    rows, columns = 64, 40
    shape = (rows, columns)
    generator = np.random.default_rng(seed)
    arrays = weight_cases.random(scheme, shape, seed)
    whole = np.full(rows * columns, -0.0, np.float32)
    choices: dict[str, dict[str, object]] = {"random": {}}
    if scheme.sparse:
        none = (np.zeros(columns + 1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
        every = (
            (np.arange(columns + 1) * rows).astype(np.int32),
            np.tile(np.arange(rows - 1, -1, -1), columns).astype(np.int32),
            whole,
        )
        corners = np.zeros(columns + 1, np.int32)
        corners[1:], corners[-1] = 1, 2
        single = (corners, np.array([0, rows - 1], np.int32), np.array([np.inf, 1e-45], np.float32))
        choices |= {
            "nothing stored": {"sparse": none},
            "-0 everywhere": {"sparse": every},
            "corners": {"sparse": single},
        }
    if scheme.full_rows:
        nobody = (np.zeros(0, np.int32), np.zeros((rows, 0), np.float32))
        all_rows = full_row_entries(columns, rows, generator, count=columns)
        choices |= {"no full row": {"full_rows": nobody}, "every full row": {"full_rows": all_rows}}
    for name, changes in choices.items():
        with judge.part(name):
            judge.dequantize(judge.stored(arrays | changes))
    zeros = arrays | {"lookup_table": np.full_like(arrays["lookup_table"], -0.0)}
    with judge.part("tables of -0"):
        judge.dequantize(judge.stored(zeros), torch.float32)
    judge.assurance = f"property({len(choices) + 1}, {seed}), terms"


@check("weights round trip", level=full_for_launches, judge=WeightJudge)
def test_round_trip(judge: WeightJudge) -> None:
    """Quantise, pack, dequantise: the references' bits, and no weight off by more than half a step."""
    scheme, seed = judge.scheme, judge.settings.seed
    shape = weight_cases.output_shapes(scheme)[-1]
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    arrays = quantize(values, scheme)
    tensors = judge.stored(arrays)
    for dtype in (torch.float32,) if judge.settings.interpreted else DTYPES:
        actual = judge.dequantize(tensors, dtype)
        bound = half_steps(arrays, scheme, shape) if dtype is torch.float32 and actual is not None else None
        if bound is not None and actual is not None:
            error = np.abs(actual.cpu().numpy().astype(np.float64) - values)
            wrong = int((error > bound + np.abs(values) * 2.0**-22).sum())
            judge.add(Comparison("distance from the weight", error.size, wrong, {"value": wrong} if wrong else {}))
    judge.assurance = f"sampled({judge.compared}, {seed}), half a step"


def half_steps(arrays: weight_cases.Arrays, scheme: WeightScheme, shape: tuple[int, ...]) -> np.ndarray | None:
    """Half a scale, or half the widest gap of a codebook times absmax; None where nothing so simple holds.

    Products in binary32 add at most three roundings of 2**-24 each.
    """
    if scheme.family in ("awq", "gptq"):
        groups = arrays.get("g_idx", np.arange(shape[0]) // scheme.group_size(shape[0]))
        return arrays["scales"].astype(np.float64)[groups] / 2
    if scheme.family == "int8":
        steps = arrays["scale"].astype(np.float64)
        return steps[:, None] / (254 if scheme.arithmetic is Arithmetic.SCB_PRODUCT else 2)
    if scheme.family in weight_cases.FLAT and not scheme.nested:
        values = np.sort(np.array(scheme.codebook, np.uint32).view(np.float32).astype(np.float64))
        blocks = np.arange(int(np.prod(shape))) // scheme.group
        return (arrays["absmax"].astype(np.float64)[blocks] * np.diff(values).max() / 2).reshape(shape)
    return None


@check("weights refusals", level=quick_for_launches, judge=WeightJudge)
def test_refusals(judge: WeightJudge) -> None:
    """Wrong dtypes, shapes and indices raise; nothing is read, cast or wrapped."""
    shape = weight_cases.output_shapes(judge.scheme)[1]
    tensors = judge.stored(weight_cases.random(judge.scheme, shape, judge.settings.seed))
    count = 0
    for what, changed in refused(judge.scheme, tensors):
        judge.refuses_weight(changed, what)
        count += 1
    judge.assurance = f"property({count}, {judge.settings.seed}), inputs to refuse"


@check("known bugs, weights", where=lambda s: bool(of_scheme(s)), exact=True, judge=WeightJudge)
def test_known_bugs(judge: WeightJudge) -> None:
    """Publicly reported faults: each case against the references, then against the values written by hand."""
    for case in of_scheme(judge.scheme):
        with judge.part(case.name):
            tensors = judge.stored(case.tensors())
            if case.patterns is None:
                judge.refuses_weight(tensors, case.name)
                continue
            actual = judge.dequantize(tensors, TORCH[case.fmt])
            if actual is not None:
                right = np.broadcast_to(case.patterns(), tuple(actual.shape))
                limit = judge.settings.max_mismatches
                tensor = f"values as written (reported wrong: {case.seen})"
                judge.add(compare_values(actual, right, tensor=tensor, format=case.fmt, max_samples=limit))
    judge.assurance = f"golden({len(of_scheme(judge.scheme))})"
