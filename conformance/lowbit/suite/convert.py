"""Between what implementations return and what comparisons take: bits kept, devices crossed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lowbit import packing
from lowbit.schemes import Encoded


def widen(x: torch.Tensor) -> torch.Tensor:
    """The float32 tensor of the same values, and of the same sign where that is NaN: a GPU's own cast drops it."""
    wide = x.float()
    if x.dtype is torch.float32 or not bool(wide.isnan().any()):
        return wide
    # the sign bit of a 16-bit pattern, moved to bit 31
    negative = (x.contiguous().view(torch.int16) < 0).view(x.shape) & wide.isnan()
    quiet = torch.tensor(-0x400000, dtype=torch.int32, device=x.device).view(torch.float32)
    positive = torch.tensor(0x7FC00000, dtype=torch.int32, device=x.device).view(torch.float32)
    return torch.where(negative, quiet, torch.where(wide.isnan(), positive, wide))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape hold the same bits, NaN payloads included."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool((a.contiguous().view(width) == b.contiguous().view(width)).all())


def as_bytes(tensor: Any) -> Any:
    """A tensor of any one-byte dtype as uint8; anything else as it is, for the comparison to judge."""
    if isinstance(tensor, torch.Tensor) and tensor.element_size() == 1 and tensor.dtype is not torch.uint8:
        return tensor.view(torch.uint8)
    return tensor


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return "None" if value is None else type(value).__name__


def host_array(value: Any) -> Any:
    """Tensors as NumPy arrays, anything else as it is."""
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value


def host(encoded: Encoded) -> Encoded:
    """The same codes and scales as NumPy arrays."""
    return Encoded(*(host_array(part) for part in encoded))


def padding_mask(size: int, shape: Any, device: torch.device) -> torch.Tensor:
    """(size,) bool: which bytes of a swizzled buffer belong to no scale."""
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    index = np.arange(rows)[:, None], np.arange(shape[-1])[None, :]
    mask = np.ones(size, dtype=bool)
    mask[packing.swizzle_offset(*index, shape[-1])] = False
    return torch.from_numpy(mask).to(device)
