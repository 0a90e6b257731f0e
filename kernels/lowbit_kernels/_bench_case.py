"""One call as the bench makes it, and the bytes that it moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Case(NamedTuple):
    """One call with its own buffers. Called, it writes into `out`; `function()` allocates its results instead."""

    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    out: Any

    def __call__(self) -> None:
        self.function(out=self.out)

    @property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        return (self.out,) if isinstance(self.out, torch.Tensor) else tuple(self.out)


def allocating(function: Callable[..., Any], *inputs: torch.Tensor) -> Case:
    """The case of a function that returns new tensors, and takes them back as ``out``."""
    return Case(function, inputs, function())


class Traffic(NamedTuple):
    """Bytes that one call moves."""

    read: int
    written: int


Formula = Callable[[int, int, int], Traffic]
"""(rows, columns, bytes of an element of the row's dtype) -> Traffic."""
