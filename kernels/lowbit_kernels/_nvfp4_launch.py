"""The ops behind `nvfp4.py`: shapes, launches, registration with torch.library. Arguments are checked there."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from lowbit.errors import ShapeError
from lowbit_kernels import _codec, _e2m1_hardware, _launch, _nvfp4_dequantize, _nvfp4_table, _pairs
from lowbit_kernels import _nvfp4_kernels as kernels
from lowbit_kernels._philox import RANDOM_GIVEN, RANDOM_NONE, RANDOM_TILE
from lowbit_kernels.swizzle import swizzled_size

BLOCK = 16
SCHEMES = {"nvfp4": 0, "nvfp4_two_level": 1, "nvfp4_one_level": 2}
CANONICAL, TWO_LEVEL, ONE_LEVEL = SCHEMES.values()
_PARTIALS = 1024
_CHUNK = 1 << 30 if _launch.INTERPRETED else 32
"""Blocks that are decoded at a time where each element is divided; the interpreter's cost is by the operation."""
_WORD = 8
"""Elements of a 32-bit word of packed."""
_TABLE_SHARE, _FLOAT32_SHARE = (1, 1) if _launch.INTERPRETED else (4, 2)
"""A program that decodes, by a table and to float32, has this part of the usual elements; measured on an H200."""
_TABLE_CHUNK = 1 << 30 if _launch.INTERPRETED else 128
"""As _CHUNK, in words, one a thread of four warps."""


def require_blocks(columns: int) -> None:
    """Refuses a last dimension that is no whole number of blocks."""
    if columns % BLOCK:
        raise ShapeError(
            f"x: got a last dimension of {columns}, want a multiple of {BLOCK}; "
            f"pad_last_dimension(x, {BLOCK}) appends zeros"
        )


def shapes(x: torch.Tensor, swizzle: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of packed and scales; ShapeError where blocks would be cut, which callers of the op rely on."""
    leading, columns = x.shape[:-1], x.shape[-1]
    require_blocks(columns)
    packed = (*leading, columns // 2)
    if not swizzle:
        return packed, (*leading, columns // BLOCK)
    return packed, (swizzled_size(leading.numel(), columns // BLOCK),)


class _Source(NamedTuple):
    """What a kernel loads: a tensor, how many elements a load has, and the extent and strides in its own elements."""

    tensor: torch.Tensor
    pairs: int
    rows: int
    groups: int
    row_stride: int
    column_stride: int

    @property
    def extent(self) -> tuple[int, int, int, int]:
        return self[2:]

    def wide(self, block_rows: int, block_groups: int) -> bool:
        """Whether an offset within a tile can pass 2**31 - 1."""
        span = (block_rows - 1) * max(self.row_stride, self.groups * BLOCK)
        return span + block_groups * BLOCK * self.column_stride > _launch.INT32_MAX


def _source(x2d: torch.Tensor, row_stride: int, column_stride: int, *, flat: bool, pairs: bool) -> _Source:
    """Chooses what to load.

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
    return _Source(tensor, number, rows, groups, row_stride, column_stride)


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
    origin = kernels.UNIT if scheme == ONE_LEVEL else kernels.COMPUTED
    if given is not None:
        origin = kernels.GIVEN
    elif scheme != ONE_LEVEL:
        _write_tensor_scale(x, _source(*view, flat=True, pairs=True), scheme, tensor_scale)

    source = _source(*view, flat=not swizzle, pairs=random_bits is None)  # random bytes are loaded by elements
    padded_rows, padded_groups, multiples = source.rows, source.groups, {}
    if swizzle:
        padded_rows, padded_groups = -(-source.rows // 128) * 128, -(-source.groups // 4) * 4
        multiples = {"row_multiple": 128, "group_multiple": 4}
    block_rows, block_groups = _launch.tile(padded_rows, padded_groups, BLOCK, **multiples)
    random = RANDOM_NONE
    if rounding == _codec.STOCHASTIC.value:
        random = RANDOM_TILE if random_bits is None else RANDOM_GIVEN
    _launch.launch(
        kernels.quantize_kernel,
        (-(-padded_rows // block_rows) * -(-padded_groups // block_groups),),
        x,
        source.tensor,
        tensor_scale if given is None else given,
        packed,
        scales,
        tensor_scale,
        packed if random_bits is None else random_bits,
        *source.extent,
        padded_rows,
        padded_groups,
        key_low,
        key_high,
        CANONICAL=scheme == CANONICAL,
        ORIGIN=origin,
        RANDOM=random,
        SWIZZLE=swizzle,
        PAIRS=source.pairs,
        WIDE=source.wide(block_rows, block_groups),
        BLOCK_ROWS=block_rows,
        BLOCK_GROUPS=block_groups,
        **choice,
    )


def _write_tensor_scale(x: torch.Tensor, source: _Source, scheme: int, tensor_scale: torch.Tensor) -> None:
    """Launches the two kernels that compute g."""
    block_rows, block_groups = _launch.tile(source.rows, source.groups, BLOCK)
    tiles = -(-source.rows // block_rows) * -(-source.groups // block_groups)
    programs = min(tiles, _PARTIALS)
    partials = torch.empty(programs, dtype=torch.int32, device=x.device)
    _launch.launch(
        kernels.amax_kernel,
        (programs,),
        x,
        source.tensor,
        partials,
        *source.extent,
        tiles,
        FINITE=scheme == CANONICAL,
        PAIRS=source.pairs,
        WIDE=source.wide(block_rows, block_groups),
        BLOCK_ROWS=block_rows,
        BLOCK_GROUPS=block_groups,
    )
    _reduce(partials, programs, scheme, tensor_scale)


def _write_empty(scheme: int, given: torch.Tensor | None, tensor_scale: torch.Tensor) -> None:
    """g of a tensor without elements: that of zeros."""
    if scheme == ONE_LEVEL:
        tensor_scale.fill_(1)
    elif given is not None:
        tensor_scale.copy_(given)
    else:
        _reduce(tensor_scale.view(torch.int32), 0, scheme, tensor_scale)


def _reduce(partials: torch.Tensor, count: int, scheme: int, tensor_scale: torch.Tensor) -> None:
    options = {"CANONICAL": scheme == CANONICAL, "BLOCK": _PARTIALS}
    _launch.launch(kernels.tensor_scale_kernel, (1,), tensor_scale, partials, count, tensor_scale, **options)


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
    packed, scales = packed.contiguous().view(-1), scales.contiguous()
    factor = scales if g is None else g
    stored, pairs = _pairs.output_pairs(out.view(-1), BLOCK)
    if pairs and _by_table(packed, out):
        words = blocks * 2
        _, block_words = _launch.tile(1, words, _WORD, share=_TABLE_SHARE)
        _launch.launch(
            _nvfp4_table.dequantize_table_kernel,
            (-(-words // block_words),),
            out,
            packed.view(torch.int32),
            scales,
            factor,
            stored,
            words,
            HAS_SCALE=g is not None,
            PAIRS=pairs,
            BLOCK=block_words,
            CHUNK=min(block_words, _TABLE_CHUNK),
            PTX=_launch.takes_ptx(out),
            num_warps=4,
        )
        return
    share = _FLOAT32_SHARE if out.dtype == torch.float32 else 1
    _, block_groups = _launch.tile(1, blocks, BLOCK, share=share)
    _launch.launch(
        _nvfp4_dequantize.dequantize_kernel,
        (-(-blocks // block_groups),),
        out,
        packed,
        scales,
        factor,
        stored,
        blocks,
        HAS_SCALE=g is not None,
        PAIRS=pairs,
        BLOCK_M=block_groups,
        CHUNK=min(block_groups, _CHUNK),
    )


def _by_table(packed: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether the kernel of `_nvfp4_table.py` decodes: 16-bit results where it runs, of words and 16 bytes as stored.

    Args:
      packed: 1-D uint8, contiguous.
      out: contiguous.
    """
    if out.dtype == torch.float32 or not (_launch.INTERPRETED or _launch.takes_ptx(out)):
        return False
    return packed.data_ptr() % 4 == 0 and packed.storage_offset() % 4 == 0 and out.data_ptr() % 16 == 0


def _dequantize(packed: torch.Tensor, scales: torch.Tensor, g: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    out = _dequantize_fake(packed, scales, g, dtype)
    _read(packed, scales, g, out)
    return out


def _dequantize_fake(
    packed: torch.Tensor, scales: torch.Tensor, g: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty((*packed.shape[:-1], packed.shape[-1] * 2), dtype=dtype, device=packed.device)


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
