"""Codes to bytes and back: nibbles, the MX4 stream, the swizzled scale layout.

    nibbles      byte j = code[2j] | code[2j + 1] << 4                         element 0 in the low nibble
    MX4 stream   per block [block/2 bytes of nibbles][1 scale byte], block after block along the row
    SWIZZLE_32_4_4, scale (r, c) of an [M, C] matrix, integer divisions:
                 ((r/128) * ceil(C/4) + c/4) * 512 + (r%32) * 16 + ((r%128)/32) * 4 + c%4
                 tiles of 128 rows x 4 columns; every byte that holds no scale is 0

Every function takes NumPy arrays or torch tensors and returns the same kind on the same device. torch is looked up,
never imported, so that this module works where torch is not installed.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.rules import ScaleLayout
from lowbit.schemes import Encoded, Quantized, Scheme

TILE_ROWS, TILE_COLUMNS = 128, 4
"""A tile of the swizzled layout; it fills 512 consecutive bytes."""


def pack_nibbles(codes: Any) -> Any:
    """Two 4-bit codes a byte, element 0 in the low nibble.

    Args:
      codes: (..., K) uint8. One code a byte, 0..15; K even.

    Returns:
      (..., K // 2) uint8.

    Raises:
      ArgumentError: a code above 15.
      ShapeError: K is odd.

    Spec: SPEC.md 3.
    """
    codes = _bytes("codes", codes)
    if codes.shape[-1] % 2:
        raise ShapeError(f"codes: got a last dimension of {codes.shape[-1]}, want an even one: two codes a byte")
    if bool((codes > 15).any()):
        raise ArgumentError(f"codes: got {int(codes.max()):#x}, want 0..0xf: four bits an element")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Any) -> Any:
    """The inverse of `pack_nibbles`.

    Args:
      packed: (..., K // 2) uint8, or a one-byte floating dtype such as torch's float4_e2m1fn_x2.

    Returns:
      (..., K) uint8. One code a byte, in the low bits.
    """
    packed = _bytes("packed", packed)
    pairs = _library("packed", packed).stack([packed & 15, packed >> 4], -1)
    return pairs.reshape((*packed.shape[:-1], 2 * packed.shape[-1]))


def interleave(packed: Any, scales: Any, block: int) -> Any:
    """The one stream of MX4, ``[block/2 bytes of codes][1 scale byte]`` a block.

    Args:
      packed: (..., P // 2) uint8. Nibbles; P a multiple of `block`.
      scales: (..., P // block) uint8.
      block: elements that share a scale, even.

    Returns:
      (..., P // block * (block // 2 + 1)) uint8.

    Raises:
      ShapeError: `packed` and `scales` do not describe the same blocks.

    Spec: SPEC.md 3.1.
    """
    packed, scales = _bytes("packed", packed), _bytes("scales", scales)
    half, groups = _half(block), scales.shape[-1]
    if tuple(packed.shape) != (*scales.shape[:-1], groups * half):
        raise ShapeError(
            f"packed: got shape {tuple(packed.shape)}, want {(*scales.shape[:-1], groups * half)}: "
            f"{half} bytes for each of scales {tuple(scales.shape)}"
        )
    library = _library("packed", packed)
    blocks = packed.reshape((*scales.shape, half))
    return library.concatenate([blocks, scales[..., None]], -1).reshape((*scales.shape[:-1], groups * (half + 1)))


def deinterleave(stream: Any, block: int) -> tuple[Any, Any]:
    """The inverse of `interleave`.

    Args:
      stream: (..., groups * (block // 2 + 1)) uint8.
      block: elements that share a scale, even.

    Returns:
      packed (..., groups * block // 2) uint8 and scales (..., groups) uint8.

    Raises:
      ShapeError: the last dimension is not a whole number of blocks.
    """
    stream = _bytes("stream", stream)
    half = _half(block)
    groups, rest = divmod(stream.shape[-1], half + 1)
    if rest:
        raise ShapeError(
            f"stream: got a last dimension of {stream.shape[-1]}, want a multiple of {half + 1}: "
            f"{half} bytes of codes and one scale a block of {block}"
        )
    blocks = stream.reshape((*stream.shape[:-1], groups, half + 1))
    return blocks[..., :half].reshape((*stream.shape[:-1], groups * half)), blocks[..., half]


def swizzled_size(rows: int, columns: int) -> int:
    """The bytes of the SWIZZLE_32_4_4 buffer of a rows x columns matrix of scales, padding included."""
    return _tiles(rows, TILE_ROWS) * _tiles(columns, TILE_COLUMNS) * TILE_ROWS * TILE_COLUMNS


def swizzle_offset(row: Any, column: Any, columns: int) -> Any:
    """Where the scale (row, column) of a matrix with that many columns lies in the SWIZZLE_32_4_4 buffer.

    Args:
      row, column: int, or integer arrays that broadcast.
      columns: of the matrix, without padding.

    Spec: SPEC.md 4.
    """
    tile = (row // 128) * _tiles(columns, TILE_COLUMNS) + column // 4
    return tile * 512 + (row % 32) * 16 + ((row % 128) // 32) * 4 + column % 4


def swizzle_padding(rows: int, columns: int) -> np.ndarray:
    """Which bytes of the SWIZZLE_32_4_4 buffer hold no scale and must be 0.

    Returns:
      (swizzled_size(rows, columns),) bool.
    """
    padding = np.ones(swizzled_size(rows, columns), bool)
    padding[swizzle_offset(np.arange(rows)[:, None], np.arange(columns)[None, :], columns)] = False
    return padding


def swizzle(scales: Any) -> Any:
    """Scales in the SWIZZLE_32_4_4 layout of the tensor cores.

    Args:
      scales: (..., C) uint8, or a one-byte floating dtype. Leading dimensions are flattened into the rows.

    Returns:
      (swizzled_size(M, C),) of the dtype of `scales`; every padding byte is 0.

    Spec: SPEC.md 4.
    """
    library, raw = _library("scales", scales), _bytes("scales", scales)
    columns = raw.shape[-1]
    rows = 1
    for length in raw.shape[:-1]:
        rows *= length
    row_tiles, column_tiles = _tiles(rows, TILE_ROWS), _tiles(columns, TILE_COLUMNS)
    where = {"device": raw.device} if library is not np else {}
    full = library.zeros((row_tiles * TILE_ROWS, column_tiles * TILE_COLUMNS), dtype=library.uint8, **where)
    full[:rows, :columns] = raw.reshape((rows, columns))
    tiled = full.reshape((row_tiles, 4, 32, column_tiles, 4))  # (r/128, r%128/32, r%32, c/4, c%4)
    return _permute(tiled, (0, 3, 2, 1, 4)).reshape((swizzled_size(rows, columns),)).view(scales.dtype)


def unswizzle(buffer: Any, rows: int, columns: int) -> Any:
    """The inverse of `swizzle`; the padding is dropped unread.

    Args:
      buffer: (swizzled_size(rows, columns),) uint8, or a one-byte floating dtype.
      rows, columns: of the matrix of scales, leading dimensions flattened into the rows.

    Returns:
      (rows, columns) of the dtype of `buffer`.

    Raises:
      ShapeError: the buffer has another size.
    """
    raw = _bytes("buffer", buffer)
    size = swizzled_size(rows, columns)
    if tuple(raw.shape) != (size,):
        raise ShapeError(f"buffer: got shape {tuple(raw.shape)}, want ({size},) for {rows} rows x {columns} columns")
    row_tiles, column_tiles = _tiles(rows, TILE_ROWS), _tiles(columns, TILE_COLUMNS)
    tiled = raw.reshape((row_tiles, column_tiles, 32, 4, 4))  # (r/128, c/4, r%32, r%128/32, c%4)
    full = _permute(tiled, (0, 3, 2, 1, 4)).reshape((row_tiles * TILE_ROWS, column_tiles * TILE_COLUMNS))
    return full[:rows, :columns].view(buffer.dtype)


def pack(encoded: Encoded, scheme: Scheme, *, swizzle: bool = False) -> Quantized:
    """Codes and scales as the scheme stores them.

    Args:
      encoded: of `scheme`, as references make it.
      swizzle: the scales in the SWIZZLE_32_4_4 layout. A scheme of one stream has no such form.

    Returns:
      Elements of four bits two a byte, wider ones one a byte; an interleaved scheme's stream in `packed`.

    Raises:
      ArgumentError: `swizzle` with an interleaved scheme.
      ShapeError: codes and scales do not describe the same blocks.
    """
    codes, scales = _bytes("codes", encoded.codes), _bytes("scales", encoded.scales)
    if tuple(codes.shape) != (*scales.shape[:-1], scales.shape[-1] * scheme.block):
        raise ShapeError(
            f"codes: got shape {tuple(codes.shape)} with scales {tuple(scales.shape)}, "
            f"want {scheme.block} codes a scale for {scheme.name}"
        )
    packed = pack_nibbles(codes) if scheme.element.bits == 4 else codes
    if scheme.scale_layout is ScaleLayout.INTERLEAVED:
        if swizzle:
            raise ArgumentError(f"swizzle: got True, but {scheme.name} stores its scales inside the one stream")
        return Quantized(interleave(packed, scales, scheme.block), None, encoded.tensor_scale)
    return Quantized(packed, _swizzle(scales) if swizzle else scales, encoded.tensor_scale)


def unpack(quantized: Quantized, scheme: Scheme, *, shape: tuple[int, ...] | None = None) -> Encoded:
    """The inverse of `pack`, for both layouts of the scales.

    A swizzled buffer is told from a plain tensor of scales by its shape, which is never that of the other: a buffer
    is a whole number of tiles, 128 times longer than one row of scales.

    Args:
      quantized: as stored.
      shape: the shape of x; None takes what `packed` says.

    Raises:
      ShapeError: `packed` does not fit `shape`, or the scales fit neither layout; shows what both would be.
    """
    packed, scales = split(quantized, scheme)
    codes = unpack_nibbles(packed) if scheme.element.bits == 4 else packed
    if shape is not None:
        padded = (*shape[:-1], _tiles(shape[-1], scheme.block) * scheme.block)
        if tuple(codes.shape) != padded:
            raise ShapeError(f"packed: holds codes of shape {tuple(codes.shape)}, want {padded} for x {tuple(shape)}")
    return Encoded(codes, scales, quantized.tensor_scale)


def split(quantized: Quantized, scheme: Scheme) -> tuple[Any, Any]:
    """Codes as they are stored, and scales one a block, whatever the layout.

    Returns:
      The bytes of codes (..., P // 2) uint8, or (..., P) of wider elements, and scales (..., P // block) uint8.

    Raises:
      ShapeError: `packed` is not a whole number of blocks, or the scales fit neither layout.
    """
    packed = _bytes("packed", quantized.packed)
    if scheme.scale_layout is ScaleLayout.INTERLEAVED:
        return deinterleave(packed, scheme.block)
    columns = packed.shape[-1] * (2 if scheme.element.bits == 4 else 1)
    if columns % scheme.block:
        raise ShapeError(f"packed: got {columns} codes a row, want a multiple of {scheme.block}")
    shape = (*packed.shape[:-1], columns // scheme.block)
    return packed, _plain_scales(_bytes("scales", quantized.scales), shape)


_swizzle = swizzle  # `pack` has an option of that name


def _plain_scales(scales: Any, shape: tuple[int, ...]) -> Any:
    if tuple(scales.shape) == shape:
        return scales
    rows = 1
    for length in shape[:-1]:
        rows *= length
    size = swizzled_size(rows, shape[-1])
    if tuple(scales.shape) != (size,):
        raise ShapeError(f"scales: got shape {tuple(scales.shape)}, want {shape}, or ({size},) swizzled")
    return unswizzle(scales, rows, shape[-1]).reshape(shape)


def _tiles(length: int, tile: int) -> int:
    return -(-length // tile)


def _half(block: int) -> int:
    if block < 2 or block % 2:
        raise ArgumentError(f"block: got {block}, want an even number of elements: two codes a byte")
    return block // 2


def _permute(array: Any, axes: tuple[int, ...]) -> Any:
    return array.transpose(axes) if isinstance(array, np.ndarray) else array.permute(axes)


def _library(name: str, array: Any) -> Any:
    """numpy or torch, whichever the array belongs to."""
    if isinstance(array, np.ndarray):
        return np
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch
    raise DtypeError(f"{name}: got {type(array).__name__}, want a NumPy array or a torch tensor")


def _bytes(name: str, array: Any) -> Any:
    """The array as uint8: itself, or the bits of a one-byte floating dtype."""
    library = _library(name, array)
    if array.ndim == 0:
        raise ShapeError(f"{name}: got no dimension, want at least one")
    if array.dtype == library.uint8:
        return array
    floating = array.dtype.is_floating_point if library is not np else array.dtype.kind in "fV"
    if array.dtype.itemsize != 1 or not floating:
        raise DtypeError(f"{name}: got {array.dtype}, want uint8 or a floating dtype of one byte")
    return array.view(library.uint8)
