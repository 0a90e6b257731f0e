"""The ops behind `mx4.py`: shapes, launches, registration with torch.library. Arguments are checked there."""

from __future__ import annotations

from typing import Any

import torch

from lowbit_kernels import _codec, _launch, _mx4_words, _pairs, _plans
from lowbit_kernels import _mx4_kernels as kernels
from lowbit_kernels._philox import RANDOM_GIVEN, RANDOM_INDEX, RANDOM_NONE, RANDOM_TILE

_SINGLE, _PAIRED, _DRAWN = _launch.Tile(4, warps=2), _launch.Tile(1, warps=4), _launch.Tile(1, warps=4)
_STOCHASTIC = _launch.Tile(share=2, warps=4)
_WORDS = {
    _pairs.BFLOAT16: _launch.Tile(share=4, warps=2),
    _pairs.FLOAT16: _launch.Tile(share=4, warps=2),
    _pairs.FLOAT32: _launch.Tile(share=8, warps=2),
}
"""Of elements or pairs that become bytes, and of pairs that become words with scales' or elements' bits drawn or, by
what is loaded, without; measured on an H200, but float16."""


def stream_shape(x: torch.Tensor, group_size: int) -> tuple[int, ...]:
    """The shape of the stream of x."""
    *leading, columns = x.shape
    return *leading, -(-columns // group_size) * (group_size // 2 + 1)


def _write(
    x: torch.Tensor,
    group_size: int,
    exponent_bits: int,
    rule: int,
    rounding: int,
    random_bits: torch.Tensor | None,
    scale_random_bits: torch.Tensor | None,
    key_low: int,
    key_high: int,
    stream: torch.Tensor,
) -> None:
    """Launches the quantiser into a uint8 buffer."""
    if x.numel() == 0:
        return
    x2d, row_stride, column_stride = _launch.rows_of(x)
    rows, columns = x2d.shape
    source, pairs = x2d, _pairs.NONE
    if random_bits is None and columns % 2 == 0:
        source, pairs, _ = _pairs.view_pairs(x2d, row_stride, column_stride)
    given = (random_bits is not None, scale_random_bits is not None)
    words = stream.data_ptr() % 4 == 0
    layout = (rows, columns, row_stride, column_stride, pairs, x.dtype, words)
    plan = _plan(*layout, group_size, exponent_bits, rule, rounding, *given, _launch.takes_ptx(x))
    last = (key_low, key_high)
    if plan.kernel is not kernels.quantize:
        _plans.launch(plan, x, source, stream, last=last)
        return
    source = source if plan.options["PAIRS"] else x2d
    bits = stream if random_bits is None else random_bits
    _plans.launch(plan, x, source, stream, bits, stream if scale_random_bits is None else scale_random_bits, last=last)


@_plans.kept
def _plan(
    rows: int,
    columns: int,
    row_stride: int,
    column_stride: int,
    pairs: int,
    dtype: torch.dtype,
    words: bool,
    group_size: int,
    exponent_bits: int,
    rule: int,
    rounding: int,
    given: bool,
    scale_given: bool,
    ptx: bool,
) -> _plans.Plan:
    """The launch of a quantiser.

    Args:
      row_stride, dtype: of the elements.
      pairs: as what they may be loaded.
      words: whether the stream is aligned to words.
      given, scale_given: whether random bits are, of elements and of scales.
    """
    random, scale_random = RANDOM_NONE, RANDOM_NONE
    if rounding == _codec.STOCHASTIC.value:
        aligned = group_size % 16 == 0 and columns % 16 == 0
        random = RANDOM_GIVEN if given else RANDOM_TILE if aligned else RANDOM_INDEX
    if rule == _codec.SCALE_STOCHASTIC.value:
        scale_random = RANDOM_GIVEN if scale_given else RANDOM_INDEX
    gapless = columns % group_size == 0 and row_stride == columns * column_stride
    usual = (group_size, exponent_bits) == (32, 2) and gapless and rows * columns % 128 == 0 and words
    if rounding == _codec.STOCHASTIC.value:
        usual = usual and (random, scale_random, dtype) == (RANDOM_TILE, RANDOM_NONE, torch.bfloat16)
    else:
        usual = usual and rounding == _codec.TIES_AWAY.value and scale_random != RANDOM_GIVEN
    if not (usual or random == RANDOM_NONE):
        pairs = _pairs.NONE
    if gapless:
        rows, columns = 1, rows * columns
    groups = -(-columns // group_size)
    if usual and pairs:
        return _words_plan(groups, pairs, rule, rounding, ptx)
    width = 2 if pairs else 1
    lanes, row_stride = columns // width, 0 if gapless else row_stride // width
    unit = _launch.unit(dtype.itemsize * width, lanes, row_stride)
    tile = _PAIRED if pairs else _SINGLE
    block_rows, block_groups = _launch.tile(rows, groups, group_size, share=tile.share)
    span = (block_rows - 1) * max(row_stride, groups * group_size) + block_groups * group_size * max(column_stride, 1)
    options = {
        "RULE": rule,
        "EXPONENT_BITS": exponent_bits,
        "ROUNDING": rounding,
        "RANDOM": random,
        "SCALE_RANDOM": scale_random,
        "PAIRS": pairs,
        "STRIDED": column_stride != 1,
        "UNIT": unit,
        "WIDE": span > _launch.INT32_MAX,
        "PTX": ptx,
        "GROUP": group_size,
        "BLOCK_ROWS": block_rows,
        "BLOCK_GROUPS": block_groups,
        "num_warps": tile.warps,
    }
    integers = (rows, lanes // unit, groups, row_stride // unit, column_stride)
    grid = (-(-rows // block_rows) * -(-groups // block_groups),)
    return _plans.Plan(kernels.quantize, grid, integers, options)


def _words_plan(groups: int, pairs: int, rule: int, rounding: int, ptx: bool) -> _plans.Plan:
    """The launch of a usual quantiser: a multiple of four groups, no gaps, a stream that is aligned to words."""
    drawn = rule == _codec.SCALE_STOCHASTIC.value
    kernel, tile, options = _mx4_words.quantize_words, _DRAWN if drawn else _WORDS[pairs], {"DRAWN": drawn}
    if rounding == _codec.STOCHASTIC.value:
        kernel, tile, options = _mx4_words.quantize_words_stochastic, _STOCHASTIC, {}
    _, block = _launch.tile(1, groups, 32, share=tile.share, group_multiple=4)
    options |= {"RULE": rule, "PAIRS": pairs, "PTX": ptx, "BLOCK_M": block, "num_warps": tile.warps}
    return _plans.Plan(kernel, (-(-groups // block),), (groups,), options)


def _quantize(
    x: torch.Tensor,
    group_size: int,
    exponent_bits: int,
    rule: int,
    rounding: int,
    random_bits: torch.Tensor | None,
    scale_random_bits: torch.Tensor | None,
    key_low: int,
    key_high: int,
) -> torch.Tensor:
    stream = _quantize_fake(x, group_size)
    _write(x, group_size, exponent_bits, rule, rounding, random_bits, scale_random_bits, key_low, key_high, stream)
    return stream


def _quantize_fake(x: torch.Tensor, group_size: int, *_: Any) -> torch.Tensor:
    return torch.empty(stream_shape(x, group_size), dtype=torch.uint8, device=x.device)


def _read(packed: torch.Tensor, group_size: int, exponent_bits: int, out: torch.Tensor) -> None:
    """Launches the decoder into a contiguous buffer."""
    if out.numel() == 0:
        return
    columns = out.shape[-1]
    target, pairs = _pairs.output_pairs(out, columns)
    plan = _decoder_plan(out.numel() // columns, columns, group_size, exponent_bits, pairs, target.element_size())
    _plans.launch(plan, out, packed.contiguous(), target)


@_plans.kept
def _decoder_plan(rows: int, columns: int, group_size: int, exponent_bits: int, pairs: int, size: int) -> _plans.Plan:
    """The launch of the decoder, to elements or pairs of `size` bytes."""
    groups = -(-columns // group_size)
    if columns == groups * group_size:
        rows, columns, groups = 1, rows * columns, rows * groups
    lanes = columns // 2 if pairs else columns
    unit = _launch.unit(size, lanes)
    tile = _PAIRED if pairs else _SINGLE
    block_rows, block_groups = _launch.tile(rows, groups, group_size, share=tile.share)
    options = {
        "EXPONENT_BITS": exponent_bits,
        "PAIRS": pairs,
        "UNIT": unit,
        "WIDE": ((block_rows - 1) * groups + block_groups) * group_size > _launch.INT32_MAX,
        "GROUP": group_size,
        "BLOCK_ROWS": block_rows,
        "BLOCK_GROUPS": block_groups,
        "num_warps": tile.warps,
    }
    grid = (-(-rows // block_rows) * -(-groups // block_groups),)
    return _plans.Plan(kernels.dequantize, grid, (rows, lanes // unit, groups), options)


def _dequantize(
    packed: torch.Tensor, group_size: int, exponent_bits: int, columns: int, dtype: torch.dtype
) -> torch.Tensor:
    out = _dequantize_fake(packed, group_size, exponent_bits, columns, dtype)
    _read(packed, group_size, exponent_bits, out)
    return out


def _dequantize_fake(
    packed: torch.Tensor, group_size: int, exponent_bits: int, columns: int, dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty((*packed.shape[:-1], columns), dtype=dtype, device=packed.device)


def _nothing(*_: Any) -> None:
    """The fake of an op that only writes into its arguments."""


_OPTIONS = (
    "Tensor x, int group_size, int exponent_bits, int rule, int rounding, "
    "Tensor? random_bits, Tensor? scale_random_bits, int key_low, int key_high"
)
QUANTIZE = _launch.register(f"quantize_mx4({_OPTIONS}) -> Tensor", _quantize, _quantize_fake)
QUANTIZE_OUT = _launch.register(f"quantize_mx4_out({_OPTIONS}, Tensor(a!) stream) -> ()", _write, _nothing)
DEQUANTIZE = _launch.register(
    "dequantize_mx4(Tensor packed, int group_size, int exponent_bits, SymInt columns, ScalarType dtype) -> Tensor",
    _dequantize,
    _dequantize_fake,
)
DEQUANTIZE_OUT = _launch.register(
    "dequantize_mx4_out(Tensor packed, int group_size, int exponent_bits, Tensor(a!) out) -> ()", _read, _nothing
)
