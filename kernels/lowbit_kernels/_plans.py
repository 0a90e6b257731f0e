"""Launches that are made once for shapes and options, so that a call has only its tensors to look at.

    Plan(kernel, grid, integers, options)      a launch but for its tensors
    kept(make) -> make                         keeps the plans that a function makes, by its arguments
    launch(plan, tensor, *first, last=())      launches one

A plan remembers what Triton started for it, by device and the traits of the tensors; see `_compiled.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lowbit_kernels import _compiled, _launch

MOST = 1024
"""Plans kept of one operation: those of the shapes used last."""


class Plan:
    """A launch but for its tensors.

    Args:
      kernel: of `triton.jit`; its tensors come first.
      grid: one to three lengths.
      integers: the arguments behind the tensors.
      options: by name: constexprs, and what the compiler takes.
      word: dtype that the kernel sees the last tensor as, a contiguous one; None for its own. What is compiled knows
        addresses alone: such a view is made where Triton looks, not for every call.
    """

    __slots__ = ("grid", "integers", "kernel", "options", "started", "word")

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        integers: Sequence[int],
        options: Mapping[str, Any],
        word: torch.dtype | None = None,
    ) -> None:
        self.kernel, self.grid, self.integers, self.options = kernel, grid, tuple(integers), options
        self.word = word
        self.started: dict[tuple[Any, ...], _compiled.Started] = {}
        """By device and the traits of what a plan has not: the rest of `_compiled.key_of` is the plan's own."""


def kept(make: Callable[..., Plan]) -> Callable[..., Plan]:
    """Keeps the plans that a function makes; its arguments must decide all that is in one.

    Not in the interpreter, whose cost is by the element, and where tests replace what plans are made of.
    """
    return make if _launch.INTERPRETED else functools.lru_cache(MOST)(make)


def launch(plan: Plan, tensor: torch.Tensor, *first: torch.Tensor | int, last: Sequence[int] = ()) -> None:
    """Starts a plan's kernel as `_launch.launch` does.

    Args:
      tensor: on whose device.
      first: the arguments before the plan's integers: tensors.
      last: arguments behind them: what changes from call to call.
    """
    key: tuple[Any, ...] = ()
    if not _launch.INTERPRETED and tensor.is_cuda:
        device = tensor.device.index
        if device == torch.cuda.current_device() and _compiled.is_plain(plan.kernel):
            key = device, *_compiled.traits_of((*first, *last) if last else first)
            started = plan.started.get(key)
            if started is not None:
                _compiled.run(started, plan.grid, device, (*first, *plan.integers, *last))
                return
    if plan.word is not None:
        result: Any = first[-1]
        first = (*first[:-1], result.view(-1).view(plan.word))
    started = _launch.launch(plan.kernel, plan.grid, tensor, *first, *plan.integers, *last, **plan.options)
    if key and started is not None:
        plan.started[key] = started
