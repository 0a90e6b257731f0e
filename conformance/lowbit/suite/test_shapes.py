"""Shapes, strides and offsets: the same rows give the same bytes however they lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from lowbit import cases
from lowbit.rules import PartialBlock
from lowbit.suite.checks import check, quick_for_representatives
from lowbit.suite.judge import DTYPES, Judge


@check("shapes", level=quick_for_representatives)
def test_shapes(judge: Judge) -> None:
    """Leading dimensions from none to three, empty ones, odd numbers of rows and blocks, padded rows."""
    for dtype in dtypes(judge):
        with judge.part(DTYPES[dtype].name):
            judge_shapes(judge, dtype)
    judge.assurance = f"property({len(cases.SHAPES) + 1}, {judge.settings.seed}), shapes"


def dtypes(judge: Judge) -> tuple[torch.dtype, ...]:
    """All three input types for a canonical scheme, on a GPU for every scheme; else bfloat16, which widens first."""
    return tuple(DTYPES) if judge.scheme.canonical or not judge.settings.interpreted else (torch.bfloat16,)


def judge_shapes(judge: Judge, dtype: torch.dtype) -> None:
    block = judge.scheme.block
    for i, (*leading, blocks) in enumerate(cases.SHAPES):
        widths = [blocks * block]
        if judge.scheme.partial_block is PartialBlock.PAD and blocks:
            widths += [blocks * block - 1, (blocks - 1) * block + 1]
        for width in widths:
            rows = int(np.prod(leading, dtype=int))
            values = cases.random_blocks(rows, width, judge.settings.seed + i, binades=6).reshape(*leading, width)
            with judge.part(f"{(*leading, width)}"):
                judge.quantize(judge.tensor(values).to(dtype))
    vector = cases.random_blocks(1, 3 * block, judge.settings.seed, binades=6)[0]
    with judge.part("one dimension"):
        judge.quantize(judge.tensor(vector).to(dtype))


def views(values: torch.Tensor, block: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Views of one (rows, K) tensor that lie differently in memory, each with a name."""
    rows, width = values.shape
    wide = torch.full((rows, width + 3 * block), float("nan"), dtype=values.dtype, device=values.device)
    wide[:, :width] = values
    yield "column slice", wide[:, :width]
    wide[:, 5 : 5 + width] = values
    yield "column slice at an odd offset", wide[:, 5 : 5 + width]
    yield "transposed", values.t().contiguous().t()
    spread = torch.full((rows, 2 * width), float("nan"), dtype=values.dtype, device=values.device)
    spread[:, ::2] = values
    yield "every second column", spread[:, ::2]
    tall = torch.full((2 * rows + 1, width), float("nan"), dtype=values.dtype, device=values.device)
    tall[1::2] = values
    yield "every second row, from the second", tall[1::2]
    yield "one row expanded", values[:1].expand(rows, width)
    yield "permuted to three dimensions", values.reshape(rows, 1, width).permute(1, 0, 2)
    flat = torch.empty(values.numel() + 7, dtype=values.dtype, device=values.device)
    flat[7:] = values.reshape(-1)
    yield "storage offset 7", flat[7:].view(rows, width)
    overlapping = flat[7:].as_strided((rows, width), (block // 2, 1))
    yield "overlapping rows", overlapping


@check("strides", level=quick_for_representatives)
def test_strides(judge: Judge) -> None:
    """A view is read by its strides, or refused with an error; never misread."""
    for dtype in dtypes(judge):
        values = judge.tensor(cases.random_blocks(37, 3 * judge.scheme.block, judge.settings.seed, binades=6)).to(dtype)
        for name, view in views(values, judge.scheme.block):
            with judge.part(f"{DTYPES[dtype].name}, {name}"):
                try:
                    judge.quantize(view)
                except (ValueError, TypeError) as error:
                    judge.notes.append(f"refused {name}: {error}")
    judge.assurance = f"property(9, {judge.settings.seed}), views"


@check("refusals", level=quick_for_representatives, where=lambda s: s.partial_block is PartialBlock.REFUSE)
def test_partial_block_is_refused(judge: Judge) -> None:
    """A last dimension that no block divides is an error, never silently padded or cut."""
    for width in (1, judge.scheme.block - 1, judge.scheme.block + 1):
        x = judge.tensor(np.ones((2, width), dtype=np.float32))
        options = judge.random_options(tuple(x.shape))
        judge.refuses(partial(judge.implementation.call, "quantize", x, judge.scheme, **options), f"K = {width}")
    judge.assurance = "property(3, 0), widths"


@check("large", level="exhaustive", where=lambda s: s.canonical, needs_gpu=True)
def test_beyond_int32(judge: Judge) -> None:
    """More than 2**31 elements: in one row, and in many; the last blocks are right."""
    block = judge.scheme.block
    for rows, width in ((1, (1 << 31) + 8 * block), ((1 << 20) + 3, 4096)):
        x = torch.ones((rows, width), dtype=torch.bfloat16, device=judge.settings.device)
        tail = judge.tensor(cases.random_blocks(1, 4 * block, judge.settings.seed, binades=3)).to(x.dtype)
        x[-1, -4 * block :] = tail[0]
        x[0, : 4 * block] = tail[0]
        with judge.part(f"{rows} × {width}"):
            judge.quantize(x)
        del x
        torch.cuda.empty_cache()
    judge.assurance = f"sampled({judge.compared}, {judge.settings.seed}), over 2^31 elements"
