"""Checks that the weight dequantisers share: dtypes and shapes of what a checkpoint stores.

    require_tensor(name, tensor, dtypes, device=None)               one of these dtypes, on that device
    require_matrix(name, tensor, dtypes, device, shape) -> shape    and of two dimensions; `shape` says which, in words
    require_shape(name, tensor, shape, because, **numbers)          exactly this shape
    require_lengths(name, *lengths)                                 each below 2**31
    require_group(group_size, rows) -> int                          rows that share a scale, -1 being all
    require_choice(name, value, known) -> int                       one of few numbers
    may_read(tensor, validate) -> bool                              whether a check may wait for the device
    rows_stride(tensor, unit) -> (tensor, stride)                   rows without gaps between columns, copied if need be

No check but those behind `may_read` reads a tensor's elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit_kernels._arguments import is_real, listed, require_integer
from lowbit_kernels._launch import require_device

MOST = 2**31 - 1
"""Rows or columns of a weight: kernels count them in int32, elements in int64."""

WORDS = (torch.int32,)
SCALES = (torch.float16, torch.bfloat16)

_HINTS = {
    "float": "a model cast of packed words destroys them: load them again",
    "scale": "the product with a float32 scale would be rounded twice",
}


def require_tensor(
    name: str, tensor: torch.Tensor, dtypes: Sequence[torch.dtype], device: torch.device | None = None
) -> None:
    """Checks a stored tensor.

    Raises:
      DtypeError: no tensor, or of another dtype; says what becomes of packed words that a model cast has changed.
      DeviceError: as `require_device`.
      ArgumentError: a tensor without strides.
    """
    require_device(name, tensor, device)
    if tensor.dtype not in dtypes:
        hint = ""
        if dtypes == SCALES and tensor.dtype == torch.float32:
            hint = f"; {_HINTS['scale']}"
        elif not dtypes[0].is_floating_point and tensor.is_floating_point():
            hint = f"; {_HINTS['float']}"
        raise DtypeError(f"{name}: got {tensor.dtype}, want {listed(dtypes)}{hint}")


def require_matrix(
    name: str,
    tensor: torch.Tensor,
    dtypes: Sequence[torch.dtype],
    device: torch.device | None = None,
    shape: str = "two dimensions",
) -> tuple[int, int]:
    """Checks a stored matrix; returns its shape.

    Raises:
      DtypeError, DeviceError, ArgumentError: as `require_tensor`.
      ShapeError: not two dimensions.
    """
    require_tensor(name, tensor, dtypes, device)
    if tensor.dim() != 2:
        raise ShapeError(f"{name}: got shape {tuple(tensor.shape)}, want {shape}")
    rows, columns = tensor.shape
    return rows, columns


def require_shape(name: str, tensor: torch.Tensor, shape: Sequence[int], because: str, **numbers: int) -> None:
    """Checks a shape that other arguments decide.

    Args:
      because: what decides it, a format string for `numbers`: it is filled in only where the shape is wrong, for
        torch.compile of torch 2.11 cannot trace a string of symbolic sizes.

    Raises:
      ShapeError: another one.
    """
    if tuple(tensor.shape) != tuple(shape):
        raise ShapeError(f"{name}: got shape {tuple(tensor.shape)}, want {tuple(shape)}, {because.format(**numbers)}")


def require_lengths(name: str, *lengths: int) -> None:
    """Checks that kernels can count the rows and columns of a weight.

    Args:
      name: of the argument that they come from.

    Raises:
      ShapeError: one of 2**31 or more.
    """
    for length in lengths:
        if length > MOST:
            raise ShapeError(f"{name}: got {length} rows or columns of the weight, want at most {MOST}")


def require_group(group_size: int, rows: int) -> int:
    """The rows that share a scale.

    Args:
      group_size: at least 1, or -1 for all rows.

    Raises:
      DtypeError: no integer.
      ArgumentError: 0, or below -1.
    """
    group_size = require_integer("group_size", group_size)
    if group_size == -1:
        return max(rows, 1)
    if group_size < 1:
        raise ArgumentError(f"group_size: got {group_size}, want at least 1, or -1 for all rows")
    return group_size


def require_choice(name: str, value: int, known: Mapping[int, object] | Sequence[int]) -> int:
    """Checks a number that has few values.

    Raises:
      DtypeError: no integer.
      ArgumentError: another one; lists them.
    """
    value = require_integer(name, value)
    if value not in known:
        raise ArgumentError(f"{name}: got {value}, want {listed(known)}")
    return value


def may_read(tensor: torch.Tensor, validate: bool) -> bool:
    """Whether the elements of a tensor are to be checked, which waits for its device.

    Not while a CUDA graph is captured or a function compiled: there is nothing to read yet.
    """
    if not validate or torch.compiler.is_compiling() or not is_real(tensor):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def rows_stride(tensor: torch.Tensor, unit: int) -> tuple[torch.Tensor, int]:
    """A matrix whose rows have no gaps between columns, and its row stride in units.

    Args:
      tensor: two dimensions, not empty.
      unit: that the row stride must be a multiple of; else, or with gaps, the matrix is copied.
    """
    if tensor.stride(1) != 1 or tensor.stride(0) % unit:
        tensor = tensor.contiguous()
    return tensor, tensor.stride(0) // unit
