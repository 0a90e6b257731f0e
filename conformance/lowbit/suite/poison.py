"""Uninitialised memory filled on purpose, between guard bands: a byte nobody wrote shows, and so does one too many.

The bands stand around what is allocated through torch's Python functions: outputs of Triton kernels, of libraries that
are given pointers, of adapters. What C++ code allocates for itself (the outputs of torch's own and of registered
operators, `cudaMalloc`) is filled, as far as torch's deterministic mode does that, but has no bands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from lowbit.suite.convert import describe
from lowbit.suite.judge import Judge

GUARD = 4096
"""Bytes on either side of what is allocated."""

ALLOCATORS = (
    *((torch, name) for name in ("empty", "empty_like", "zeros", "zeros_like")),
    *((torch.Tensor, name) for name in ("new_empty", "new_zeros")),
)
"""Where torch's Python functions that allocate stand, and what they are called."""


@dataclass(frozen=True)
class Arena:
    """A tensor, and the filled memory that it lies in the middle of."""

    memory: torch.Tensor
    inside: torch.Tensor

    def fault(self, fill: int) -> str:
        """What was written beside the tensor, in words; "" if nothing was."""
        found = []
        bands = {"before its beginning": self.memory[:GUARD].flip(0), "after its end": self.memory[-GUARD:]}
        for place, band in bands.items():
            written = (band != fill).nonzero()
            if len(written):
                found.append(f"{len(written):,} bytes {place}, the nearest {int(written[0]) + 1} away")
        return f"wrote outside a tensor of {describe(self.inside)}: {'; '.join(found)}" if found else ""


@contextmanager
def poisoned(fill: int, judge: Judge) -> Iterator[None]:
    """Fills what torch allocates uninitialised, inside the block, with a byte; one that is written beside is a fault.

    0xFF comes from torch's own deterministic fill, which reaches allocations inside registered operators too (every
    integer dtype gets its greatest value, 0xFF for uint8); for other bytes the Python allocators are wrapped, and
    these alone have guard bands.
    """
    mode = torch.get_deterministic_debug_mode()
    filling = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    arenas: list[Arena] = []
    try:
        torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms imports torch's compiler: seconds
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        with ExitStack() as stack:
            for owner, name in ALLOCATORS if fill != 0xFF else ():
                original = getattr(owner, name)
                kept = "zeros" in name
                stack.enter_context(mock.patch.object(owner, name, _guarding(original, fill, arenas, zeros=kept)))
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]
    for text in dict.fromkeys(filter(None, (arena.fault(fill) for arena in arenas))):
        judge.fault("guard", "guard", text)


def _guarding(
    allocate: Callable[..., torch.Tensor], fill: int, arenas: list[Arena], *, zeros: bool
) -> Callable[..., torch.Tensor]:
    def allocate_and_fill(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = allocate(*args, **kwargs)
        usual = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type != "meta"
        if not usual or not tensor.is_contiguous() or not tensor.numel():
            return tensor
        if kwargs.get("out") is not None or tensor.requires_grad or tensor.is_pinned():
            return tensor
        size = tensor.numel() * tensor.element_size()
        memory = torch.full((2 * GUARD + size,), fill, dtype=torch.uint8, device=tensor.device)
        inside = memory[GUARD : GUARD + size].view(tensor.dtype).view(tensor.shape)
        arenas.append(Arena(memory, inside.zero_() if zeros else inside))
        return inside

    return allocate_and_fill


def left_over(results: dict[int, Any], what: str, judge: Judge) -> None:
    """Judges results under several fills: a byte that is the fill each time was not written.

    Args:
      results: by the byte that memory was filled with, bytewise.
    """
    fills = [fill for fill in results if isinstance(results[fill], torch.Tensor) and fill != 0xFF]
    if len(fills) < 2 or len({(results[fill].shape, results[fill].dtype) for fill in fills}) > 1:
        return
    flat = {fill: results[fill].contiguous().view(-1).view(torch.uint8) for fill in fills}
    unwritten = torch.stack([flat[fill] == fill for fill in fills]).all(dim=0).nonzero()
    if len(unwritten):
        of_them = f"{len(unwritten):,} of {flat[fills[0]].numel():,} bytes of {what}"
        judge.fault("unwritten", what, f"{of_them} were not written, the first at {int(unwritten[0])}")
