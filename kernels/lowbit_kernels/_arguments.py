"""Checks of what a call writes into, and of arguments that are no tensors.

    require_strided(name, tensor)                      a tensor with strides: not sparse, not nested
    require_bool(name, value), require_integer(name, value) -> value    of Python; NumPy's integers are converted
    require_results(out, count) -> tensors             a tuple of so many, for functions with several results
    require_output(name, tensor, shape, dtypes, device)    a contiguous buffer to write into
    require_disjoint(outputs, **inputs)                no result lies where something is read, or in another result
    address(tensor)                                    of its first byte, 0 where none is known
    is_real(tensor)                                    whether it has memory: not while a graph is traced

No check reads a tensor's elements.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from lowbit.errors import ArgumentError, DeviceError, DtypeError, ShapeError


def listed(values: Any) -> str:
    """``a, b or c``."""
    *head, last = [str(value) for value in values]
    return f"{', '.join(head)} or {last}" if head else last


def require_bool(name: str, value: bool) -> None:
    """Checks a switch.

    Raises:
      DtypeError: anything but True and False; an op would take 2 for True, and the rest of a function may not.
    """
    if not isinstance(value, bool):
        kind = type(value)
        origin = "" if kind.__module__ == "builtins" else f"{kind.__module__}."  # NumPy has a bool too
        raise DtypeError(f"{name}: got {origin}{kind.__name__}, want True or False")


def require_integer(name: str, value: Any) -> int:
    """An integer as Python's, or as the compiler's symbol.

    Raises:
      DtypeError: a bool, a float, a tensor or anything else.
    """
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return value  # type: ignore[return-value]
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return operator.index(value)
    raise DtypeError(f"{name}: got {type(value).__name__}, want an integer")


def require_strided(name: str, tensor: torch.Tensor) -> None:
    """Checks that something is a tensor whose elements are found by strides.

    Raises:
      DtypeError: no tensor.
      ArgumentError: a sparse, nested or other layout.
    """
    if not isinstance(tensor, torch.Tensor):
        raise DtypeError(f"{name}: got {type(tensor).__name__}, want a torch.Tensor")
    if tensor.layout != torch.strided:
        raise ArgumentError(f"{name}: got layout {tensor.layout}, want torch.strided")
    if tensor.is_nested:
        raise ArgumentError(f"{name}: got a nested tensor, want one of layout torch.strided that is not nested")


def require_results(out: Any, count: int) -> Sequence[torch.Tensor]:
    """The buffers of a function with several results.

    Raises:
      DtypeError: no tuple or list.
      ArgumentError: more or fewer.
    """
    if not isinstance(out, (tuple, list)):
        raise DtypeError(f"out: got {type(out).__name__}, want a tuple of {count} tensors")
    if len(out) != count:
        raise ArgumentError(f"out: got {len(out)} tensors, want a tuple of {count} tensors")
    return out


def require_output(
    name: str, tensor: torch.Tensor, shape: Sequence[int], dtypes: Sequence[torch.dtype], device: torch.device
) -> None:
    """Checks a buffer, on a device where kernels run, that a kernel is to write.

    Raises:
      DeviceError, DtypeError, ShapeError: another device, dtype or shape.
      ArgumentError: not contiguous; requires grad; a view that negates or conjugates what is stored.
    """
    require_strided(name, tensor)
    require_same_device(name, tensor, device)
    if tensor.dtype not in dtypes:
        raise DtypeError(f"{name}: got {tensor.dtype}, want {listed(dtypes)}")
    if tuple(tensor.shape) != tuple(shape):
        raise ShapeError(f"{name}: got shape {tuple(tensor.shape)}, want {tuple(shape)}")
    if not tensor.is_contiguous():
        raise ArgumentError(f"{name}: got strides {tuple(tensor.stride())}, want a contiguous tensor")
    if tensor.requires_grad:
        raise ArgumentError(f"{name}: got a tensor that requires grad, want one that does not, as no result has one")
    if not torch.compiler.is_compiling() and (tensor.is_neg() or tensor.is_conj()):
        raise ArgumentError(f"{name}: got a negative or conjugate view, want a tensor that is what its bytes say")


def require_same_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Checks that a tensor is where the others are.

    Raises:
      DeviceError: another device.
    """
    if tensor.device != device:
        raise DeviceError(f"{name}: got a tensor on {tensor.device}, want {device}, where the other arguments are")


def require_disjoint(outputs: Sequence[tuple[str, torch.Tensor]], **inputs: torch.Tensor | None) -> None:
    """Checks that a kernel's programs, which run in any order, cannot write what another one has still to read.

    Args:
      outputs: names and contiguous buffers.
      inputs: what is read; the bytes between the first and the last count, also those that strides leave out.

    Raises:
      ArgumentError: an output that shares a byte with an input or an output before it.
    """
    if torch.compiler.is_compiling():
        return
    taken = []
    for name, tensor in inputs.items():
        if tensor is not None:
            first, end = _extent(tensor)
            if first < end:
                taken.append((name, first, end))
    for name, tensor in outputs:
        first, end = _extent(tensor)
        if first == end:
            continue
        for other, other_first, other_end in taken:
            if first < other_end and other_first < end:
                raise ArgumentError(f"{name}: got memory that overlaps {other}, want memory of its own")
        taken.append((name, first, end))


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte and of the one behind the last; equal for a tensor without memory."""
    first = address(tensor)
    if first == 0 or tensor.numel() == 0:
        return first, first
    if tensor.is_contiguous():
        return first, first + tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.element_size()


def address(tensor: torch.Tensor) -> int:
    """Where a tensor's first element is; 0 where none is known: under a tracer, and under torch.func's transforms."""
    if torch.compiler.is_compiling() or not is_real(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return 0
    return tensor.data_ptr()


def is_real(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory and values, which those that a tracer runs a function on do not."""
    return not isinstance(tensor, (FakeTensor, FunctionalTensor)) and not tensor.is_meta
