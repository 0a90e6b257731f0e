"""Whether what an implementation returned can be read at all: form, device, and memory that it shares with an input."""

from __future__ import annotations

from typing import Any

import torch

from lowbit.implementation import Quantized
from lowbit.suite.convert import describe, same_bits


def formed(operation: str, result: Any, device: torch.device | None) -> Any:
    """The result, that of `quantize` as a Quantized.

    Args:
      device: that of the inputs; None where it is not known.

    Raises:
      TypeError: it is no tensor, or no Quantized of tensors, or on another device; the text says what it is.
    """
    if operation == "dequantize_weight" or (operation == "matmul" and not isinstance(result, torch.Tensor)):
        return result  # their judges say what is wrong, and go on
    if operation != "quantize":
        _checked(operation, result, device)
        return result
    if not isinstance(result, (tuple, list)) or not 1 <= len(result) <= 3:
        length = f" of {len(result)}" if isinstance(result, (tuple, list)) else ""
        raise TypeError(f"quantize returned {describe(result)}{length}, want a Quantized of three")
    found = Quantized(*result)
    for name, part in zip(("packed", "scales"), found[:2], strict=True):
        if part is not None:
            _checked(f"{operation}: {name}", part, device)
    return found


def _checked(what: str, value: Any, device: torch.device | None) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{what}: got {describe(value)}, want a tensor")
    if device is not None and value.device != device:
        raise TypeError(f"{what}: got a tensor on {value.device}, want {device}")


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors of a result that must be its own: a tensor scale that was given may be handed on."""
    parts = result[:2] if isinstance(result, Quantized) else (result,)
    return [part for part in parts if isinstance(part, torch.Tensor) and part.numel()]


def shares_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors lie in one storage, and their bytes from the first to the last overlap."""
    if a.device != b.device or not (a.numel() and b.numel()):
        return False
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr() or not a.untyped_storage().data_ptr():
        return False
    (first, last), (start, end) = _reach(a), _reach(b)
    return first < end and start < last


def _reach(x: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the one after its last."""
    far = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    first = int(x.storage_offset())
    return first * x.element_size(), (first + int(far) + 1) * x.element_size()


def same_result(first: Any, second: Any) -> bool:
    """Whether two results of one operation are the same bits in the same form."""
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)):
        return len(first) == len(second) and all(map(same_result, first, second))
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        alike = (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device)
        return alike and same_bits(first, second)
    return type(first) is type(second)
