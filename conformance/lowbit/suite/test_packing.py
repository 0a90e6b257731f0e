"""Packing and layout, with data whose value is its place: a permutation shows at once."""

from __future__ import annotations

import numpy as np
import torch

from lowbit import cases, packing
from lowbit.errors import Unsupported
from lowbit.rules import ScaleLayout
from lowbit.schemes import Scheme
from lowbit.suite.checks import check, quick_for_representatives
from lowbit.suite.convert import padding_mask
from lowbit.suite.judge import Judge


def separate(scheme: Scheme) -> bool:
    return scheme.scale_layout is ScaleLayout.SEPARATE


@check("packing")
def test_every_pair_of_codes(judge: Judge) -> None:
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
def test_swizzled_scales(judge: Judge) -> None:
    """`swizzle=True` stores the same scales at SWIZZLE_32_4_4's offsets, and 0 in every padding byte."""
    shapes = cases.SWIZZLE_SHAPES if judge.settings.at_least("full") else cases.SWIZZLE_SHAPES[::3]
    for rows, columns in shapes:
        x = judge.tensor(cases.random_blocks(rows, columns * judge.scheme.block, judge.settings.seed, binades=6))
        with judge.part(f"{rows} × {columns}"):
            judge.quantize(x, swizzle=True)
    judge.assurance = f"property({len(shapes)}, {judge.settings.seed}), shapes"


@check("swizzle layout", where=lambda s: s.canonical and separate(s))
def test_swizzle_of_indices(judge: Judge) -> None:
    """`swizzle` alone on index-coded scales; `unswizzle` restores them and reads no padding."""
    for rows, columns in cases.SWIZZLE_SHAPES:
        for shift in (0, 8):
            index = (np.arange(rows * columns).reshape(rows, columns) >> shift).astype(np.uint8)
            scales = judge.tensor(index)
            expected = packing.swizzle(scales)
            with judge.part(f"{rows} × {columns}"):
                buffer = judge.implementation.call("swizzle", scales)
                judge.same_bytes(
                    buffer,
                    expected,
                    tensor="buffer",
                    padding=padding_mask(expected.numel(), scales.shape, scales.device),
                )
                poisoned = expected.clone()
                poisoned[padding_mask(expected.numel(), scales.shape, scales.device)] = 0x7F
                if judge.implementation.unswizzle is not None:
                    judge.same_bytes(judge.implementation.unswizzle(poisoned, rows, columns), scales, tensor="scales")
    judge.assurance = f"exhaustive({judge.compared}), index-coded, of {len(cases.SWIZZLE_SHAPES)} shapes"


@check("round trip", level=quick_for_representatives)
def test_round_trip(judge: Judge) -> None:
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
