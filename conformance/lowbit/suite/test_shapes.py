"""Shapes, strides and offsets: the same rows give the same bytes however they lie in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from lowbit import packing
from lowbit.cases import blocks as cases
from lowbit.rules import PartialBlock, ScaleLayout
from lowbit.schemes import Quantized
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check, full_for_representatives, quick_for_representatives, representative
from lowbit.suite.judge import DTYPES, Options


@check("shapes", level=quick_for_representatives)
def test_shapes(judge: BlockJudge) -> None:
    """Leading dimensions from none to three, empty ones, odd numbers of rows and blocks, padded rows."""
    for dtype in dtypes(judge):
        with judge.part(DTYPES[dtype].name):
            judge_shapes(judge, dtype)
    judge.assurance = f"property({len(cases.SHAPES) + 1}, {judge.settings.seed}), shapes"


def dtypes(judge: BlockJudge) -> tuple[torch.dtype, ...]:
    """All three input types for a canonical scheme, on a GPU for each way to launch; else bfloat16."""
    every = judge.scheme.canonical or (representative(judge.scheme) and not judge.settings.interpreted)
    return tuple(DTYPES) if every else (torch.bfloat16,)


def judge_shapes(judge: BlockJudge, dtype: torch.dtype) -> None:
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
    """Views of one (rows, K) tensor that lie differently in memory, each with a name; what lies between is no value.

    Args:
      values: (24 or more, K) float or integer.
      block: half of it is the distance of overlapping rows.
    """
    rows, width = values.shape
    gap = float("nan") if values.is_floating_point() else 0x5A
    wide = torch.full((rows, width + 3 * block + 2), gap, dtype=values.dtype, device=values.device)
    wide[:, :width] = values
    yield "column slice", wide[:, :width]
    wide[:, 5 : 5 + width] = values
    yield "column slice at an odd offset", wide[:, 5 : 5 + width]
    yield "transposed", values.t().contiguous().t()
    spread = torch.full((rows, 2 * width), gap, dtype=values.dtype, device=values.device)
    spread[:, ::2] = values
    yield "every second column", spread[:, ::2]
    tall = torch.full((2 * rows + 1, width), gap, dtype=values.dtype, device=values.device)
    tall[1::2] = values
    yield "every second row, from the second", tall[1::2]
    yield "one row expanded", values[:1].expand(rows, width)
    yield "permuted to three dimensions", values.reshape(rows, 1, width).permute(1, 0, 2)
    flat = torch.empty(values.numel() + 7, dtype=values.dtype, device=values.device)
    flat[7:] = values.reshape(-1)
    yield "storage offset 7", flat[7:].view(rows, width)
    odd = flat[7:]
    flat = torch.empty(values.numel() + 2, dtype=values.dtype, device=values.device)
    flat[2:] = values.reshape(-1)
    yield "storage offset 2", flat[2:].view(rows, width)
    near = torch.full((rows, width + 2), gap, dtype=values.dtype, device=values.device)
    near[:, :width] = values
    yield "rows two elements apart", near[:, :width]
    overlapping = odd.as_strided((rows, width), (max(block // 2, 1), 1))
    yield "overlapping rows", overlapping
    cube = values[:24].reshape(4, 6, width)
    yield "leading dimensions exchanged", cube.transpose(0, 1).contiguous().transpose(0, 1)
    loose = torch.full((4, 12, width), gap, dtype=values.dtype, device=values.device)
    loose[:, ::2] = cube
    yield "every second of the middle dimension", loose[:, ::2]
    yield "columns outermost in memory", cube.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    yield "middle dimension expanded", cube[:, :1].expand(4, 6, width)


VIEWS = 15
"""How many there are."""


@check("strides", level=quick_for_representatives)
def test_strides(judge: BlockJudge) -> None:
    """A view is read by its strides, or refused with an error; never misread. Whether bits are given or drawn, too."""
    seeds: list[Options] = [{}, {"seed": judge.settings.seed}] if judge.scheme.stochastic else [{}]
    for seed, dtype in itertools.product(seeds, dtypes(judge)):
        values = judge.tensor(cases.random_blocks(37, 3 * judge.scheme.block, judge.settings.seed, binades=6)).to(dtype)
        for name, view in views(values, judge.scheme.block):
            what = f"{DTYPES[dtype].name}, {name}{', seed' if seed else ''}"
            with judge.part(what), judge.may_refuse(what):
                judge.quantize(view, **seed)
    judge.assurance = f"property({VIEWS}, {judge.settings.seed}), views"


@check("strides of random bits", level=quick_for_representatives, where=lambda s: s.stochastic)
def test_strides_of_random_bits(judge: BlockJudge) -> None:
    """Random bits are read by their strides, or refused with an error; never misread."""
    block = judge.scheme.block
    x = judge.tensor(cases.random_blocks(37, 3 * block, judge.settings.seed, binades=6))
    for option, bits in judge.random_options(tuple(x.shape)).items():
        for name, view in views(bits, bits.shape[1] // 3):
            leading = view.shape[:-1]
            given = x[: leading.numel()].reshape(*leading, x.shape[1])
            options = judge.random_options(tuple(given.shape)) | {option: view}
            expected = judge.expected(given, **{key: value.contiguous() for key, value in options.items()})
            with judge.part(f"{option}, {name}"), judge.may_refuse(name):
                judge.quantize(given, expected=expected, **options)
    judge.assurance = f"property({VIEWS}, {judge.settings.seed}), views"


@check("decode strides", level=quick_for_representatives)
def test_strides_of_stored_bytes(judge: BlockJudge) -> None:
    """Stored bytes and scales are decoded by their strides, or refused with an error; never misread."""
    x = judge.tensor(cases.random_blocks(37, 3 * judge.scheme.block, judge.settings.seed, binades=6))
    options = judge.random_options(tuple(x.shape))
    stored = packing.pack(judge.expected(x, **options), judge.scheme)
    scales_views = None if stored.scales is None else views(stored.scales, 1)
    for name, packed in views(stored.packed, stored.packed.shape[1] // 3):
        scales = None if scales_views is None else next(scales_views)[1]
        plain = Quantized(packed.contiguous(), None if scales is None else scales.contiguous(), stored.tensor_scale)
        encoded = packing.unpack(plain, judge.scheme)
        choices = [("both", Quantized(packed, scales, stored.tensor_scale))]
        if scales is not None:
            choices += [("packed", plain._replace(packed=packed)), ("scales", plain._replace(scales=scales))]
        for which, given in choices:
            with judge.part(f"{name}, {which}"), judge.may_refuse(name):
                judge.dequantize(given, encoded, torch.float32)
                break  # what is read right together is read right alone
    judge.assurance = f"property({VIEWS}, {judge.settings.seed}), views"


@check("tiles", level=full_for_representatives)
def test_more_than_one_tile(judge: BlockJudge) -> None:
    """More rows, and for canonical schemes more blocks in a row too, than one program takes, and not in one piece.

    The interpreter gives 2**18 elements to a program. What is stored is decoded as well, in one piece.
    """
    block = judge.scheme.block
    shapes = [(301, 1024), (2, (1 << 18) + block)] if judge.scheme.canonical else [(301, 1024)]
    for rows, width in shapes:
        if judge.scheme.partial_block is PartialBlock.PAD:
            width -= 3
        values = cases.random_blocks(rows, width + 2 * block, judge.settings.seed, binades=3)
        x = judge.tensor(values).to(torch.bfloat16)[:, :width]
        options = judge.random_options(tuple(x.shape))
        expected = judge.expected(x, **options)
        with judge.part(f"{rows} × {width}"):
            judge.quantize(x, expected=expected, **options)
            if judge.scheme.stochastic:
                judge.quantize(x, seed=judge.settings.seed)
            if judge.scheme.scale_layout is ScaleLayout.SEPARATE and rows > 128:  # fewer are padding for the most part
                judge.quantize(x, expected=expected, swizzle=True, **options)
            for dtype in dtypes(judge):
                judge.dequantize(packing.pack(expected, judge.scheme), expected, dtype)
    judge.assurance = f"sampled({judge.compared}, {judge.settings.seed}), tiles"


@check("refusals", level=quick_for_representatives, where=lambda s: s.partial_block is PartialBlock.REFUSE)
def test_partial_block_is_refused(judge: BlockJudge) -> None:
    """A last dimension that no block divides is an error, never silently padded or cut."""
    for width in (1, judge.scheme.block - 1, judge.scheme.block + 1):
        x = judge.tensor(np.ones((2, width), dtype=np.float32))
        options = judge.random_options(tuple(x.shape))
        judge.refuses(partial(judge.implementation.call, "quantize", x, judge.scheme, **options), f"K = {width}")
    judge.assurance = "property(3, 0), widths"


@check("large", level="exhaustive", where=lambda s: s.canonical, needs_gpu=True, alone=True)
def test_beyond_int32(judge: BlockJudge) -> None:
    """More than 2**31 elements: in one row, and in many; the last blocks are right, and the tensor's amax is there.

    A scheme that pads gets a row of fewer as well, whose last block ends within one tile of 2**31.
    """
    block = judge.scheme.block
    shapes = [(1, (1 << 31) + 8 * block), ((1 << 20) + 3, 4096)]
    if judge.scheme.partial_block is PartialBlock.PAD:
        shapes.append((1, (1 << 31) - 8 * block - 3))
    ends = cases.random_blocks(1, 4 * block, judge.settings.seed, binades=0)[0]
    ends /= np.abs(ends).max()  # at most as large as the ones between
    for rows, width in shapes:
        x = torch.ones((rows, width), dtype=torch.bfloat16, device=judge.settings.device)
        x[-1, -4 * block :] = judge.tensor(64 * ends).to(x.dtype)
        x[0, : 4 * block] = judge.tensor(ends).to(x.dtype)
        with judge.part(f"{rows} × {width}"):
            judge.quantize(x)
        del x
        torch.cuda.empty_cache()
    judge.assurance = f"sampled({judge.compared}, {judge.settings.seed}), over 2^31 elements"
