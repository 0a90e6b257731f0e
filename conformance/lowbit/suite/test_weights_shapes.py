"""Shapes, strides, tiles and memory of weight dequantisation: the same words give the same bits wherever they lie."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from lowbit.cases import weights as weight_cases
from lowbit.cases.weight_parts import full_row_entries
from lowbit.errors import Unsupported
from lowbit.rules import Grouping
from lowbit.suite.checks import check
from lowbit.suite.judge import DTYPES
from lowbit.suite.poison import GUARD, left_over, poisoned
from lowbit.suite.weight_judge import Tensors, WeightJudge
from lowbit.suite.weight_levels import LAUNCHES, full_for_launches, quick_for_launches, quick_for_memory
from lowbit.weight_tensors import shapes
from lowbit.weights import WeightScheme

LARGE = 1 << 31
"""Places from here on do not fit a signed 32-bit index."""


@check("weights shapes", level=quick_for_launches, exact=True, judge=WeightJudge)
def test_shapes(judge: WeightJudge) -> None:
    """K of a group, of a group and 32, of no multiple of it; N from 8 to 200; odd and short tensors; empty ones."""
    every = judge.settings.at_least("full") and not judge.settings.interpreted
    found = weight_cases.output_shapes(judge.scheme, every=every)
    few = weight_cases.output_shapes(judge.scheme)
    if not judge.settings.at_least("full"):
        found = few = few[:5]
    for dtype in DTYPES if every else (torch.float16,):
        for shape in (*(found if dtype is torch.float16 else few), *weight_cases.empty_shapes(judge.scheme)):
            arrays = weight_cases.random(judge.scheme, shape, judge.settings.seed)
            with judge.part(" × ".join(map(str, shape))):
                judge.dequantize(judge.stored(arrays), dtype)
    judge.assurance = f"property({len(found) + 3}, {judge.settings.seed}), shapes"


def views(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Views of one tensor that lie differently in memory, by name; what lies between is none of its values."""
    gap = float("nan") if tensor.is_floating_point() else 0x5A
    sizes = tensor.shape

    def room(lengths: Iterator[int]) -> torch.Tensor:
        return torch.full(tuple(lengths), gap, dtype=tensor.dtype, device=tensor.device)

    inside = room(n + 5 for n in sizes)[tuple(slice(3, 3 + n) for n in sizes)]
    spread = room(2 * n + 1 for n in sizes)[tuple(slice(1, 2 * n + 1, 2) for n in sizes)]
    found = {"inside a larger one": inside, "every second of each dimension": spread}
    for shift in (2, 7):
        found[f"storage offset {shift}"] = room(iter((tensor.numel() + shift,)))[shift:].view(sizes)
    if tensor.dim() == 2:
        found["columns outermost in memory"] = torch.empty_like(tensor.t().contiguous()).t()
    for view in found.values():
        view.copy_(tensor)
    found["expanded"] = tensor[:1].expand(sizes)
    return found


VIEWS = (
    *("inside a larger one", "every second of each dimension", "storage offset 2", "storage offset 7"),
    "columns outermost in memory",
)


@check("weights strides", level=quick_for_memory, judge=WeightJudge)
def test_strides(judge: WeightJudge) -> None:
    """Views of stored tensors are read by their strides, or refused with an error; never misread."""
    shape = weight_cases.output_shapes(judge.scheme)[1 if judge.scheme.family in weight_cases.FLAT else 2]
    tensors = judge.stored(weight_cases.random(judge.scheme, shape, judge.settings.seed))
    count = 0
    for name in (*VIEWS, "expanded"):
        changed = {key: _viewed(value, name) for key, value in tensors.items()}
        if name == "expanded" and judge.scheme.sparse:
            changed["sparse"] = tensors["sparse"]  # indices that are all one are an error
        if name == "expanded" and judge.scheme.full_rows:
            changed["full_rows"] = tensors["full_rows"]
        singles = [(f"{name}, {key} alone", {**tensors, key: value}) for key, value in changed.items()]
        for which, given in [(name, changed), *singles]:
            refused = len(judge.notes)
            with judge.part(which), judge.may_refuse(which):
                judge.dequantize(given)
                count += 1
            if not any(note.startswith("refused") for note in judge.notes[refused:]):
                break  # what is read right together is read right alone
    judge.assurance = f"property({count}, {judge.settings.seed}), views"


def _viewed(value: Any, name: str) -> Any:
    """A tensor, or those of a tuple, in another place of memory; what is no tensor, or has no such view, stays."""
    if isinstance(value, tuple):
        return tuple(_viewed(part, name) for part in value)
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    return views(value).get(name, value)


@check("weights tiles", level=lambda s: "full" if s.name in LAUNCHES else "exhaustive", judge=WeightJudge)
def test_more_than_one_tile(judge: WeightJudge) -> None:
    """More rows and more columns than one program takes, in tiles larger than a group and smaller, with a tail.

    The interpreter gives 512 columns and 2**17 weights to a program.
    """
    dtypes = (torch.float16,) if judge.settings.interpreted else (torch.float16, torch.bfloat16)
    for dtype, shape in zip(dtypes, tile_shapes(judge.scheme), strict=False):
        arrays = weight_cases.random(judge.scheme, shape, judge.settings.seed)
        with judge.part(" × ".join(map(str, shape))):
            judge.dequantize(judge.stored(arrays), dtype)
    judge.assurance = f"sampled({judge.compared}, {judge.settings.seed}), tiles"


def tile_shapes(scheme: WeightScheme) -> list[tuple[int, ...]]:
    """A wide one and a tall one."""
    if scheme.family in weight_cases.FLAT:
        return [((1 << 18) + 3 * scheme.group + 1,), (1031, 129)]
    if scheme.family == "int8":
        return [(261, 1037), (1301, 40)]
    period, zero_period = weight_cases.periods(scheme)
    unit = math.lcm(period, scheme.group if scheme.group > 0 and scheme.grouping is Grouping.WHOLE else 1)
    wide, narrow = (-(-n // zero_period) * zero_period for n in (1032, 40))
    return [(-(-264 // unit) * unit, wide), (-(-2100 // unit) * unit, narrow)]


@check("weights unwritten", level=quick_for_memory, judge=WeightJudge)
def test_every_value_is_written(judge: WeightJudge) -> None:
    """Under fills of uninitialised memory the same values, none of them left over; tails and short groups too."""
    shape = weight_cases.output_shapes(judge.scheme)[1]
    tensors = judge.stored(weight_cases.random(judge.scheme, shape, judge.settings.seed))
    for dtype in (torch.float16,) if judge.settings.interpreted else DTYPES:
        found: dict[int, torch.Tensor | None] = {}
        for fill in (0xFF, 0xA5, 0x00):
            with judge.part(f"fill {fill:#04x}"), poisoned(fill, judge):
                found[fill] = judge.dequantize(tensors, dtype)
        left_over(found, f"values, {DTYPES[dtype].name}", judge)
    judge.assurance = f"property(3, {judge.settings.seed}), fills of memory"


@check("weights guard bands", level=quick_for_memory, judge=WeightJudge)
def test_nothing_is_written_outside(judge: WeightJudge) -> None:
    """With `out=`, the bytes before and after the buffer keep their fill, under two fills; the result is the buffer.

    Wherever it begins: at a multiple of 16 bytes, and one and two elements on.
    """
    function = judge.implementation.dequantize_weight
    if function is None or "out" not in inspect.signature(function).parameters:
        raise Unsupported(f"dequantize_weight of {judge.implementation.name} takes no out=")
    shape = weight_cases.output_shapes(judge.scheme)[1]
    tensors = judge.stored(weight_cases.random(judge.scheme, shape, judge.settings.seed))
    expected = judge.expected(tensors, torch.float16)
    size = expected.numel() * expected.element_size()
    for fill, shift in ((0xFF, 0), (0xA5, 0), (0xA5, 2), (0xA5, 4)):
        arena = torch.full((2 * GUARD + size,), fill, dtype=torch.uint8, device=judge.settings.device)
        begin = GUARD + shift
        buffer = arena[begin : begin + size].view(expected.dtype).view(shape)
        what = f"fill {fill:#04x}{f', buffer {shift} bytes on' if shift else ''}"
        with judge.part(what), judge.may_refuse(what) if shift else nullcontext():
            actual = judge.dequantize(tensors, expected=expected, out=buffer)
            outside = torch.cat([arena[:begin], arena[begin + size :]])
            judge.same_bytes(outside, torch.full_like(outside, fill), tensor="guard", kind="guard")
            if actual is not None and actual.data_ptr() != buffer.data_ptr():
                judge.fault("guard", "values", "the weight was not written to the buffer given as out")
    judge.assurance = f"property(4, {judge.settings.seed}), {GUARD} bytes on either side"


@check("weights determinism", level=quick_for_memory, judge=WeightJudge)
def test_twice_in_a_row(judge: WeightJudge) -> None:
    """The same bits from the same tensors, call after call."""
    shape = weight_cases.output_shapes(judge.scheme)[-1]
    tensors = judge.stored(weight_cases.random(judge.scheme, shape, judge.settings.seed))
    first = judge.dequantize(tensors)
    calls = 1 if judge.settings.interpreted else 64
    for _ in range(calls if first is not None else 0):
        again = judge.implementation.call("dequantize_weight", tensors, judge.scheme, torch.float16)
        judge.same_bytes(again, first, tensor="values", kind="nondeterministic")
    judge.assurance = f"property({calls}, {judge.settings.seed}), repeated calls"


@check(
    "weights large",
    level="exhaustive",
    where=lambda s: full_for_launches(s) == "full",
    needs_gpu=True,
    alone=True,
    judge=WeightJudge,
)
def test_beyond_int32(judge: WeightJudge) -> None:
    """More than 2**31 weights: what lies beyond is right, and so is what lies before."""
    if judge.scheme.family in weight_cases.FLAT:
        shape: tuple[int, ...] = (LARGE + 3 * judge.scheme.group + 1,)
    elif judge.scheme.family == "int8":
        shape = (LARGE // 32771 + 9, 32771)
    else:
        period, zero_period = weight_cases.periods(judge.scheme)
        unit = math.lcm(period, judge.scheme.group if judge.scheme.group > 0 else 1)
        columns = 32768 + zero_period
        shape = (-(-LARGE // columns // unit + 1) * unit, columns)
    judge.dequantize(drawn(judge, shape))
    torch.cuda.empty_cache()
    judge.assurance = f"sampled({judge.compared}, {judge.settings.seed}), over 2^31 weights"


def drawn(judge: WeightJudge, shape: tuple[int, ...]) -> Tensors:
    """Any words and finite scales for a large output, drawn on the device."""
    scheme, device = judge.scheme, judge.settings.device
    generator = torch.Generator(device=device).manual_seed(judge.settings.seed)
    found: Tensors = {"shape": shape} if scheme.family in weight_cases.FLAT else {}
    for name, lengths in shapes(scheme, shape).items():
        found[name] = _drawn(name, lengths, scheme, generator, device)
    if scheme.nested:
        found |= {"offset": torch.full((1,), 0.0283, device=device), "block_size2": 256}
    if scheme.grouping is Grouping.ACT_ORDER:
        found["g_idx"] = found["g_idx"] % scheme.groups(shape[0])
    else:
        found.pop("g_idx", None)
    rows, columns = (*shape, 0)[:2]
    small = np.random.default_rng(judge.settings.seed)
    added: Mapping[str, Any] = {}
    if scheme.sparse:
        starts = np.arange(columns + 1).astype(np.int32)
        added = {
            "sparse": (starts, small.integers(0, rows, columns).astype(np.int32), small.random(columns, np.float32))
        }
    if scheme.full_rows:
        added = {**added, "full_rows": full_row_entries(columns, rows, small)}
    return found | judge.stored(added)


def _drawn(
    name: str, shape: tuple[int, ...], scheme: WeightScheme, generator: torch.Generator, device: str
) -> torch.Tensor:
    if name in ("scales", "scale", "lookup_table", "absmax2", "code2") or (name == "absmax" and not scheme.nested):
        dtype = torch.float16 if name == "scales" else torch.float32
        return torch.randn(shape, generator=generator, device=device).to(dtype)
    if name in ("weight", "packed", "absmax"):
        low, dtype = (-128, torch.int8) if name == "weight" else (0, torch.uint8)
        return torch.randint(low, low + 256, shape, dtype=dtype, generator=generator, device=device)
    low = 0 if name == "g_idx" else -(1 << 31)
    return torch.randint(low, 1 << 31, shape, dtype=torch.int64, generator=generator, device=device).to(torch.int32)
