"""Packing and layout, with data whose value is its place: a permutation shows at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from lowbit import packing
from lowbit.cases import blocks as cases
from lowbit.errors import Unsupported
from lowbit.rules import ScaleLayout
from lowbit.schemes import Scheme
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check, quick_for_representatives
from lowbit.suite.convert import padding_mask


def separate(scheme: Scheme) -> bool:
    return scheme.scale_layout is ScaleLayout.SEPARATE


@check("packing")
def test_every_pair_of_codes(judge: BlockJudge) -> None:
    """All 256 pairs of codes side by side at even lanes, with scales that differ from block to block."""
    element, block = judge.scheme.element, judge.scheme.block
    values = np.array([float(element.value(code)) for code in range(1 << element.bits)], dtype=np.float32)
    pairs = np.stack(np.meshgrid(values, values, indexing="ij"), axis=-1).reshape(-1, 2)
    room = block // 2 - 1  # the first pair of a block is the greatest value twice: it decides the scale
    blocks = -(-len(pairs) // (2 * room)) * 2
    filled = np.full((blocks, room + 1, 2), values.max(), dtype=np.float32)
    for i, pair in enumerate(pairs):
        filled[i // room, 1 + i % room] = pair
    x = filled.reshape(blocks // 2, 2 * block)
    x = np.concatenate([x, x * np.float32(4), x[:, ::-1] / np.float32(8)])
    judge.quantize(judge.tensor(x))
    judge.assurance = "exhaustive(256), pairs of codes"


@check("swizzle", where=separate, level=quick_for_representatives)
def test_swizzled_scales(judge: BlockJudge) -> None:
    """`swizzle=True` stores the same scales at SWIZZLE_32_4_4's offsets, and 0 in every padding byte."""
    shapes = cases.SWIZZLE_SHAPES if judge.settings.at_least("full") else cases.SWIZZLE_SHAPES[::3]
    for rows, columns in shapes:
        x = judge.tensor(cases.random_blocks(rows, columns * judge.scheme.block, judge.settings.seed, binades=6))
        with judge.part(f"{rows} × {columns}"):
            judge.quantize(x, swizzle=True)
    judge.assurance = f"property({len(shapes)}, {judge.settings.seed}), shapes"


@check("swizzle layout", where=lambda s: s.canonical and separate(s))
def test_swizzle_of_indices(judge: BlockJudge) -> None:
    """`swizzle` alone on index-coded scales; `unswizzle` restores them and reads no padding."""
    shapes = (*cases.SWIZZLE_SHAPES, *cases.WIDE_SWIZZLE_SHAPES)
    for rows, columns in shapes:
        for shift in (0, 8):
            scales = judge.tensor(indices(rows, columns, shift))
            expected = packing.swizzle(scales)
            padding = padding_mask(expected.numel(), scales.shape, scales.device)
            with judge.part(f"{rows} × {columns}"):
                buffer = judge.implementation.call("swizzle", scales)
                judge.same_bytes(buffer, expected, tensor="buffer", padding=padding, scales=scales)
                poisoned = expected.clone()
                poisoned[padding] = 0x7F
                if judge.implementation.unswizzle is not None:
                    judge.same_bytes(
                        judge.implementation.call("unswizzle", poisoned, rows, columns), scales, tensor="scales"
                    )
    judge.assurance = f"exhaustive({judge.compared}), index-coded, of {len(shapes)} shapes"


def indices(rows: int, columns: int, shift: int) -> np.ndarray:
    """(rows, columns) uint8: each scale is its own index, the 8 bits from `shift` on."""
    return (np.arange(rows * columns).reshape(rows, columns) >> shift).astype(np.uint8)


def scale_views(scales: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Views of the rows of a (rows, columns) matrix that lie differently in memory; the rest is 0xA5."""
    rows, columns = scales.shape
    room = torch.full((2 * rows, 2 * columns + 3), 0xA5, dtype=scales.dtype, device=scales.device)
    for name, view in (
        ("column slice", room[:rows, 3 : 3 + columns]),
        ("offset 2, rows two bytes apart", room.view(-1)[2:][: rows * (columns + 2)].view(rows, -1)[:, :columns]),
        ("every second row", room[::2, :columns]),
        ("every second column", room[:rows, : 2 * columns : 2]),
    ):
        room.fill_(0xA5)
        view.copy_(scales)
        yield name, view
    yield "transposed", scales.t().contiguous().t()
    yield "three dimensions", scales.view(rows // 2, 2, columns)
    exchanged = scales.view(rows // 2, 2, columns).transpose(0, 1).contiguous().transpose(0, 1)
    yield "leading dimensions exchanged", exchanged


@check("swizzle strides", where=lambda s: s.canonical and separate(s))
def test_swizzle_of_views(judge: BlockJudge) -> None:
    """`swizzle` and `unswizzle` read by strides and flatten leading dimensions, or refuse with an error."""
    rows, columns = 130, 9
    for shift in (0, 8):
        scales = judge.tensor(indices(rows, columns, shift))
        expected = packing.swizzle(scales)
        padding = padding_mask(expected.numel(), scales.shape, scales.device)
        spread = torch.full((2 * len(expected),), 0xA5, dtype=torch.uint8, device=scales.device)[1::2]
        spread.copy_(expected)
        for name, view in scale_views(scales):
            with judge.part(name), judge.may_refuse(name):
                buffer = judge.implementation.call("swizzle", view)
                judge.same_bytes(buffer, expected, tensor="buffer", padding=padding, scales=scales)
        if judge.implementation.unswizzle is None:
            continue
        with judge.part("every second byte of a buffer"), judge.may_refuse("every second byte"):
            restored = judge.implementation.call("unswizzle", spread, rows, columns)
            judge.same_bytes(restored, scales, tensor="scales")
    judge.assurance = f"exhaustive({judge.compared}), index-coded, of 8 views"


@check("round trip", level=quick_for_representatives)
def test_round_trip(judge: BlockJudge) -> None:
    """What `quantize` stored decodes to the right values, and these quantise to the right bytes again."""
    x = judge.tensor(cases.random_blocks(24, 4 * judge.scheme.block, judge.settings.seed, binades=8))
    options = judge.random_options(tuple(x.shape))
    result = judge.quantize(x, **options)
    encoded = judge.expected(x, **options)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        judge.dequantize(packing.pack(encoded, judge.scheme), encoded, dtype)
    try:
        again = judge.implementation.call("dequantize", result, judge.scheme, torch.float32)
    except Unsupported:
        return
    with judge.part("again"):
        judge.quantize(again, **options)
    judge.assurance = f"sampled({x.numel()}, {judge.settings.seed})"
