"""The ops behind `nvfp4.py`: shapes, launches, registration with torch.library. Arguments are checked there."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from lowbit.errors import ShapeError
from lowbit_kernels import _codec, _e2m1_hardware, _launch, _nvfp4_dequantize, _nvfp4_table, _pairs, _plans
from lowbit_kernels import _nvfp4_amax as amax
from lowbit_kernels import _nvfp4_kernels as kernels
from lowbit_kernels._philox import RANDOM_GIVEN, RANDOM_NONE, RANDOM_TILE
from lowbit_kernels.swizzle import swizzled_size

BLOCK = 16
SCHEMES = {"nvfp4": 0, "nvfp4_two_level": 1, "nvfp4_one_level": 2}
CANONICAL, TWO_LEVEL, ONE_LEVEL = SCHEMES.values()
_PARTIALS = 1024
_NEAREST_ROUNDINGS = (_codec.TIES_TO_EVEN.value, _codec.TIES_TOWARD_ZERO.value)
_CHUNK = 1 << 30 if _launch.INTERPRETED else 32
"""Blocks that are decoded at a time where each element is divided; the interpreter's cost is by the operation."""
_WORD = 8
"""Elements of a 32-bit word of packed."""
_TABLE_CHUNK = 1 << 30 if _launch.INTERPRETED else 128
"""As _CHUNK, in words, one a thread of four warps."""


class _Tile(NamedTuple):
    """What a program gets: of the usual elements (`_launch.tile`) the share-th part, and warps."""

    share: int
    warps: int


# What was fastest on an H200; a share of 1 is 8192 elements. To nearest, 16-bit inputs wait for instructions: two
# blocks a thread, in small programs. The others have four; float32 is read at a copy's speed with them, but if bits are
# drawn: it then waits for memory and instructions, and one block a thread leaves registers for more threads. A maximum
# waits for memory: one block a thread, and as many threads as a device holds.
_NEAREST, _OTHERS, _DRAWN_FLOAT32, _AMAX = _Tile(4, 2), _Tile(1, 4), _Tile(4, 4), _Tile(2, 8)
_DECODE_FLOAT32, _DECODE, _DECODE_TABLE = _Tile(2, 8), _Tile(1, 4), _Tile(4, 4)


def require_blocks(columns: int) -> None:
    """Refuses a last dimension that is no whole number of blocks."""
    if columns % BLOCK:
        raise ShapeError(
            f"x: got a last dimension of {columns}, want a multiple of {BLOCK}; "
            f"pad_last_dimension(x, {BLOCK}) appends zeros"
        )


def shapes(x: torch.Tensor, swizzle: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of packed and scales; ShapeError where blocks would be cut, which callers of the op rely on."""
    *leading, columns = x.shape
    require_blocks(columns)
    packed = (*leading, columns // 2)
    if not swizzle:
        return packed, (*leading, columns // BLOCK)
    return packed, (swizzled_size(math.prod(leading), columns // BLOCK),)


class _Source(NamedTuple):
    """What a kernel loads: of how many bytes, as what pairs, and the extent and strides in such loads."""

    size: int
    pairs: int
    rows: int
    groups: int
    row_stride: int
    column_stride: int

    @property
    def row_unit(self) -> int:
        """What the row stride is counted in: words of 16 bytes where it can, so that the compiler knows of them."""
        unit = 16 // self.size
        return unit if self.pairs and self.row_stride % unit == 0 else 1

    @property
    def extent(self) -> tuple[int, int, int, int]:
        return self.rows, self.groups, self.row_stride // self.row_unit, self.column_stride

    def wide(self, block_rows: int, block_groups: int) -> bool:
        """Whether an offset within a tile can pass 2**31 - 1."""
        span = (block_rows - 1) * max(self.row_stride, self.groups * BLOCK)
        return span + block_groups * BLOCK * self.column_stride > _launch.INT32_MAX

    def layout(self, padded_rows: int, padded_groups: int, block_rows: int, block_groups: int) -> dict[str, Any]:
        """The constexprs of a kernel that covers an extent by tiles."""
        covered = padded_rows % block_rows == 0 and padded_groups % block_groups == 0
        return {
            "PAIRS": self.pairs,
            "FLAT": padded_rows == 1,
            "ROW_UNIT": self.row_unit,
            "ADJACENT": self.column_stride == 1,
            "WHOLE": covered and (padded_rows, padded_groups) == (self.rows, self.groups),
            "WIDE": self.wide(block_rows, block_groups),
            "BLOCK_ROWS": block_rows,
            "BLOCK_GROUPS": block_groups,
        }


def _source(
    x2d: torch.Tensor, row_stride: int, column_stride: int, *, flat: bool, pairs: bool
) -> tuple[torch.Tensor, _Source]:
    """Chooses what to load: a tensor, and what there is to say of it.

    Args:
      x2d, row_stride, column_stride: as `_launch.rows_of` returns them; not empty.
      flat: whether rows that follow each other without a gap may be taken for one.
      pairs: whether neighbours that share an aligned word of twice their width may be loaded as one.
    """
    rows, groups = x2d.shape[0], x2d.shape[1] // BLOCK
    gapless = rows == 1 or row_stride == x2d.shape[1] * column_stride
    tensor, number = x2d, _pairs.NONE
    if pairs:
        tensor, number, row_stride = _pairs.view_pairs(x2d, row_stride, column_stride)
    if rows == 1 or (flat and gapless):
        rows, groups, row_stride = 1, rows * groups, 0
    return tensor, _Source(tensor.element_size(), number, rows, groups, row_stride, column_stride)


def _write(
    x: torch.Tensor,
    scheme: int,
    rounding: int,
    swizzle: bool,
    given: torch.Tensor | None,
    random_bits: torch.Tensor | None,
    key_low: int,
    key_high: int,
    packed: torch.Tensor,
    scales: torch.Tensor,
    tensor_scale: torch.Tensor,
) -> None:
    """Launches the quantiser into two uint8 buffers and a float32."""
    require_blocks(x.shape[-1])
    choice = _e2m1_hardware.kernel_options(x, rounding)
    if x.numel() == 0:
        _write_empty(scheme, given, tensor_scale)
        return
    view = _launch.rows_of(x)
    tensor, source = _source(*view, flat=not swizzle, pairs=random_bits is None)  # random bytes are loaded by elements
    origin = kernels.UNIT if scheme == ONE_LEVEL else kernels.COMPUTED
    if given is not None:
        origin = kernels.GIVEN
    elif scheme != ONE_LEVEL:
        whole = _source(*view, flat=True, pairs=True) if swizzle or random_bits is not None else (tensor, source)
        _write_tensor_scale(x, *whole, scheme, tensor_scale)

    random = RANDOM_NONE
    if rounding == _codec.STOCHASTIC.value:
        random = RANDOM_TILE if random_bits is None else RANDOM_GIVEN
    canonical = scheme == CANONICAL
    choices = (choice["ROUNDING"], choice["HARDWARE"], _launch.takes_ptx(x))
    plan = _plan(source, canonical, origin, random, swizzle, *choices)
    g, bits = tensor_scale if given is None else given, packed if random_bits is None else random_bits
    _plans.launch(plan, x, tensor, g, packed, scales, tensor_scale, bits, last=(key_low, key_high))


@_plans.kept
def _plan(
    source: _Source,
    canonical: bool,
    origin: int,
    random: int,
    swizzle: bool,
    rounding: int,
    hardware: bool,
    ptx: bool,
) -> _plans.Plan:
    """The launch of the quantiser."""
    padded_rows, padded_groups = source.rows, source.groups
    if swizzle:
        padded_rows, padded_groups = -(-source.rows // 128) * 128, -(-source.groups // 4) * 4
    share, warps = _OTHERS
    if source.pairs in (_pairs.BFLOAT16, _pairs.FLOAT16) and rounding in _NEAREST_ROUNDINGS:
        share, warps = _NEAREST
    elif source.pairs == _pairs.FLOAT32 and random == RANDOM_TILE:
        share, warps = _DRAWN_FLOAT32
    block_rows, block_groups = _launch.tile(
        padded_rows, padded_groups, BLOCK, group_multiple=4 if swizzle else 1, share=share
    )
    options = {
        "CANONICAL": canonical,
        "ORIGIN": origin,
        "RANDOM": random,
        "SWIZZLE": swizzle,
        "ROUNDING": rounding,
        "HARDWARE": hardware,
        "PTX": ptx,
        "num_warps": warps,
    }
    options |= source.layout(padded_rows, padded_groups, block_rows, block_groups)
    grid = (-(-padded_rows // block_rows) * -(-padded_groups // block_groups),)
    return _plans.Plan(kernels.quantize_kernel, grid, (*source.extent, padded_rows, padded_groups), options)


def _write_tensor_scale(
    x: torch.Tensor, tensor: torch.Tensor, source: _Source, scheme: int, tensor_scale: torch.Tensor
) -> None:
    """Launches the two kernels that compute g."""
    plan = _amax_plan(source, scheme == CANONICAL)
    (programs,) = plan.grid
    partials = torch.empty(programs, dtype=torch.int32, device=x.device)
    _plans.launch(plan, x, tensor, partials)
    _reduce(partials, programs, scheme, tensor_scale)


@_plans.kept
def _amax_plan(source: _Source, finite: bool) -> _plans.Plan:
    """The launch of the first of them."""
    block_rows, block_groups = _launch.tile(source.rows, source.groups, BLOCK, share=_AMAX.share)
    tiles = -(-source.rows // block_rows) * -(-source.groups // block_groups)
    options = {"FINITE": finite, "num_warps": _AMAX.warps}
    options |= source.layout(source.rows, source.groups, block_rows, block_groups)
    return _plans.Plan(amax.amax_kernel, (min(tiles, _PARTIALS),), (*source.extent, tiles), options)


def _write_empty(scheme: int, given: torch.Tensor | None, tensor_scale: torch.Tensor) -> None:
    """g of a tensor without elements: that of zeros."""
    if scheme == ONE_LEVEL:
        tensor_scale.fill_(1)
    elif given is not None:
        tensor_scale.copy_(given)
    else:
        _reduce(tensor_scale.view(torch.int32), 0, scheme, tensor_scale)


def _reduce(partials: torch.Tensor, count: int, scheme: int, tensor_scale: torch.Tensor) -> None:
    _plans.launch(_reduction_plan(scheme == CANONICAL), tensor_scale, partials, count, tensor_scale)


@_plans.kept
def _reduction_plan(canonical: bool) -> _plans.Plan:
    """The launch of the second of them, whose integer is not its last argument."""
    return _plans.Plan(amax.tensor_scale_kernel, (1,), (), {"CANONICAL": canonical, "BLOCK": _PARTIALS})


def _quantize(
    x: torch.Tensor,
    scheme: int,
    rounding: int,
    swizzle: bool,
    given: torch.Tensor | None,
    random_bits: torch.Tensor | None,
    key_low: int,
    key_high: int,
) -> tuple[torch.Tensor, ...]:
    packed_shape, scales_shape = shapes(x, swizzle)
    packed = torch.empty(packed_shape, dtype=torch.uint8, device=x.device)
    scales = torch.empty(scales_shape, dtype=torch.uint8, device=x.device)
    tensor_scale = torch.empty(1, dtype=torch.float32, device=x.device)
    random = (random_bits, key_low, key_high)
    _write(x, scheme, rounding, swizzle, given, *random, packed, scales, tensor_scale)
    return packed.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e4m3fn), tensor_scale


def _quantize_fake(x: torch.Tensor, scheme: int, rounding: int, swizzle: bool, *rest: Any) -> tuple[torch.Tensor, ...]:
    packed_shape, scales_shape = shapes(x, swizzle)
    packed = torch.empty(packed_shape, dtype=torch.float4_e2m1fn_x2, device=x.device)
    scales = torch.empty(scales_shape, dtype=torch.float8_e4m3fn, device=x.device)
    return packed, scales, torch.empty(1, dtype=torch.float32, device=x.device)


def _read(packed: torch.Tensor, scales: torch.Tensor, g: torch.Tensor | None, out: torch.Tensor) -> None:
    """Launches a decoder into a contiguous buffer."""
    blocks = scales.numel()
    if blocks == 0:
        return
    packed, scales = packed.contiguous(), scales.contiguous()
    factor = scales if g is None else g
    pairs, word = _pairs.output_words(out, BLOCK)
    ptx = _launch.takes_ptx(out)
    if pairs and (ptx or _launch.INTERPRETED) and _by_table(packed, out):
        plan = _table_plan(blocks * 2, g is not None, pairs, word, ptx)
    else:
        plan = _decoder_plan(blocks, g is not None, pairs, word, out.dtype == torch.float32)
    _plans.launch(plan, out, packed, scales, factor, out)


@_plans.kept
def _table_plan(words: int, has_scale: bool, pairs: int, word: torch.dtype | None, ptx: bool) -> _plans.Plan:
    """The launch of the decoder by a table."""
    _, block_words = _launch.tile(1, words, _WORD, share=_DECODE_TABLE.share)
    options = {
        "HAS_SCALE": has_scale,
        "PAIRS": pairs,
        "BLOCK": block_words,
        "CHUNK": min(block_words, _TABLE_CHUNK),
        "PTX": ptx,
        "num_warps": _DECODE_TABLE.warps,
    }
    grid = (-(-words // block_words),)
    return _plans.Plan(_nvfp4_table.dequantize_table_kernel, grid, (words,), options, word)


@_plans.kept
def _decoder_plan(blocks: int, has_scale: bool, pairs: int, word: torch.dtype | None, wide: bool) -> _plans.Plan:
    """The launch of the decoder by division, to float32 if `wide`."""
    share, warps = _DECODE_FLOAT32 if wide else _DECODE
    _, block_groups = _launch.tile(1, blocks, BLOCK, share=share)
    options = {
        "HAS_SCALE": has_scale,
        "PAIRS": pairs,
        "BLOCK_M": block_groups,
        "CHUNK": min(block_groups, _CHUNK),
        "num_warps": warps,
    }
    grid = (-(-blocks // block_groups),)
    return _plans.Plan(_nvfp4_dequantize.dequantize_kernel, grid, (blocks,), options, word)


def _by_table(packed: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether the kernel of `_nvfp4_table.py`, where it runs, decodes: to 16 bits, of words and 16 bytes as stored.

    Args:
      packed: uint8, contiguous.
      out: contiguous.
    """
    return out.dtype != torch.float32 and packed.data_ptr() % 4 == 0 and out.data_ptr() % 16 == 0


def _dequantize(packed: torch.Tensor, scales: torch.Tensor, g: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    out = _dequantize_fake(packed, scales, g, dtype)
    _read(packed, scales, g, out)
    return out


def _dequantize_fake(
    packed: torch.Tensor, scales: torch.Tensor, g: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    *leading, stored = packed.shape
    return torch.empty((*leading, stored * 2), dtype=dtype, device=packed.device)


def _nothing(*_: Any) -> None:
    """The fake of an op that only writes into its arguments."""


_OPTIONS = (
    "Tensor x, int scheme, int rounding, bool swizzle, Tensor? tensor_scale, Tensor? random_bits, "
    "int key_low, int key_high"
)
QUANTIZE = _launch.register(f"quantize_nvfp4({_OPTIONS}) -> (Tensor, Tensor, Tensor)", _quantize, _quantize_fake)
QUANTIZE_OUT = _launch.register(
    f"quantize_nvfp4_out({_OPTIONS}, Tensor(a!) packed, Tensor(b!) scales, Tensor(c!) out_scale) -> ()",
    _write,
    _nothing,
)
DEQUANTIZE = _launch.register(
    "dequantize_nvfp4(Tensor packed, Tensor scales, Tensor? tensor_scale, ScalarType dtype) -> Tensor",
    _dequantize,
    _dequantize_fake,
)
DEQUANTIZE_OUT = _launch.register(
    "dequantize_nvfp4_out(Tensor packed, Tensor scales, Tensor? tensor_scale, Tensor(a!) out) -> ()", _read, _nothing
)
