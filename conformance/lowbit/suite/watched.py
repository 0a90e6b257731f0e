"""An implementation whose calls are checked for arguments that they change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from lowbit.implementation import Implementation
from lowbit.suite.convert import same_bits

KEPT_LIMIT = 1 << 22
"""Elements up to which an argument is copied before a call and compared after it."""


@dataclass
class Watched:
    """Behaves as the implementation does; `changed` is told of each argument that a call wrote to.

    Args:
      changed: called with the operation and the argument's name. ``out`` is there to be written to and is not watched.

    Attributes:
      raised: the last error that came out of the implementation itself; None before there is one.
    """

    implementation: Implementation
    changed: Callable[[str, str], None]
    raised: Exception | None = field(default=None, init=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.implementation, name)

    def call(self, operation: str, *args: Any, **options: Any) -> Any:
        """As `Implementation.call`."""
        kept = [(name, value, value.clone()) for name, value in tensors_in(args, options)]
        try:
            result = self.implementation.call(operation, *args, **options)
        except Exception as error:
            self.raised = error
            raise
        for name, value, copy in kept:
            if not same_bits(value, copy):
                self.changed(operation, name)
        return result


def tensors_in(args: tuple[Any, ...], options: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among the arguments, those inside tuples and mappings too, that are small enough to be copied."""
    named = [(f"argument {i}", value) for i, value in enumerate(args)]
    named += [(name, value) for name, value in options.items() if name != "out"]
    for name, value in named:
        yield from _tensors_of(name, value)


def _tensors_of(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a value of that name; what a mapping holds goes by its key."""
    if isinstance(value, torch.Tensor):
        if value.numel() <= KEPT_LIMIT:
            yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _tensors_of(str(key), inner)
    elif isinstance(value, tuple):
        for inner in value:
            yield from _tensors_of(name, inner)
