"""Uninitialised memory filled on purpose, so that a byte nobody wrote shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch


@contextmanager
def poisoned(fill: int) -> Iterator[None]:
    """Fills what torch allocates uninitialised, inside the block, with the byte `fill`.

    0xFF comes from torch's own deterministic fill, which reaches allocations inside registered operators too (every
    integer dtype gets its greatest value, 0xFF for uint8); for other bytes the Python allocators are wrapped.
    """
    mode = torch.get_deterministic_debug_mode()
    filling = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms imports torch's compiler: seconds
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        if fill == 0xFF:
            yield
            return
        with (
            mock.patch.object(torch, "empty", _filling(torch.empty, fill)),
            mock.patch.object(torch, "empty_like", _filling(torch.empty_like, fill)),
            mock.patch.object(torch.Tensor, "new_empty", _filling(torch.Tensor.new_empty, fill)),
        ):
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]


def _filling(allocate: Callable[..., torch.Tensor], fill: int) -> Callable[..., torch.Tensor]:
    def allocate_and_fill(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = allocate(*args, **kwargs)
        if tensor.is_contiguous() and tensor.numel():
            tensor.view(-1).view(torch.uint8).fill_(fill)
        return tensor

    return allocate_and_fill
