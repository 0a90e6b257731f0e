"""Starting again what was started before, without Triton's own search for it.

    start(kernel, grid, device, args, options)     as kernel[grid](*args, **options), on the current device
    run(started, grid, device, args)               starts what `start` has returned, with arguments of the same traits
    is_plain(kernel) -> bool                       whether nothing is set that only Triton heeds
    key_of(kernel, device, args, options)          what decides which compiled kernel is started
    traits_of(args) -> list                        the part of it that arguments by position have

A launch by Triton binds the arguments, writes the options out and compares every global constant that the kernel uses
with its value when it was compiled: longer than the rest of a call. What it starts it also returns, and that can be
started by itself, as Triton does then. A key finds it again, which tells apart all that Triton does and more:

    kernel, device      the objects themselves
    tensor              dtype; whether it begins at a multiple of 16 bytes
    integer             1; another multiple of 16 or not; within 32 bits, within 64 or, beyond, its value
    True, False, None   each by itself
    named arguments     names, in order; values and their types

What it does not tell apart cannot differ: the constants of our modules are never assigned again. Triton starts the
kernel itself, every time, where something is set that changes compilation or looks at launches, where an argument is of
another type or a constexpr is given without its name, and in versions of Triton that this was not written for. On
another maker's GPU the size of a tensor counts too: `_launch.launch` comes here on NVIDIA's alone. Device and stream
are the current ones, as in a launch by Triton; so a CUDA graph and other threads see the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton

KNOWN = (3, 6) <= tuple(int(number) for number in triton.__version__.split(".")[:2]) <= (3, 9)
"""Whether this version of Triton starts what it has compiled as `start` does."""

MOST = 4096
"""Kernels kept; there are some dozens of a process' own. When as many have been met, all are forgotten."""

_LEAST_32, _MOST_32 = -(2**31), 2**31 - 1
_LEAST_64, _MOST_64 = -(2**63), 2**63 - 1
_ARGUMENTS = frozenset({int, bool, type(None)})
"""Types of arguments beside tensors, for whose values `key_of` stands."""

_OPTIONS = frozenset({int, bool, str, type(None)})

Started = tuple[Any, Any, tuple[Any, ...]]
"""The compiled kernel, the kernel, whose id a key has, and the values of the parameters given by name."""

_STARTED: dict[tuple[Any, ...], Started] = {}


def start(
    kernel: Any, grid: tuple[int, ...], device: int, args: Sequence[Any], options: Mapping[str, Any]
) -> Started | None:
    """Starts a kernel on the current device and its current stream.

    Args:
      kernel: of `triton.jit`; no constant that it uses may be assigned again.
      grid: one to three lengths, none of them 0.
      device: the current one's index, where the tensors are.
      args: by position.
      options: by name: the other parameters, and what the compiler takes.

    Returns:
      What was started, if it is kept.
    """
    if not is_plain(kernel):
        kernel[grid](*args, **options)
        return None
    key = key_of(kernel, device, args, options)
    found = _STARTED.get(key)
    if found is not None:
        run(found, grid, device, args)
        return found
    compiled = kernel[grid](*args, **options)
    if not _is_known(kernel, compiled, args, options):
        return None
    if len(_STARTED) >= MOST:
        _STARTED.clear()
    rest = kernel.params[len(args) :]
    found = compiled, kernel, tuple(options.get(p.name, p.default) for p in rest)
    _STARTED[key] = found
    return found


def run(started: Started, grid: tuple[int, ...], device: int, args: Sequence[Any]) -> None:
    """Starts a compiled kernel on the current device; all but the traits of its arguments may have changed."""
    compiled, _, named = started
    stream = triton.runtime.driver.active.get_current_stream(device)
    x, y, z = (*grid, 1, 1)[:3]
    compiled.run(x, y, z, stream, compiled.function, compiled.packed_metadata, None, None, None, *args, *named)


def key_of(kernel: Any, device: int, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides which compiled kernel a launch starts, if it is one that is kept; see the module."""
    values = options.values()
    return id(kernel), device, len(args), *traits_of(args), *options, *values, *map(type, values)


def traits_of(args: Sequence[Any]) -> list[Any]:
    """Of each argument what a kernel is compiled for, and more; see the module."""
    traits: list[Any] = []
    for a in args:
        kind = type(a)
        if kind is int:
            if _LEAST_32 <= a <= _MOST_32:
                traits.append("1" if a == 1 else "32" if a & 15 else "32 of 16")
            elif _LEAST_64 <= a <= _MOST_64:
                traits.append("64" if a & 15 else "64 of 16")
            else:
                traits.append(a)
        elif kind is torch.Tensor or isinstance(a, torch.Tensor):
            traits.append(a.dtype)
            if a.data_ptr() & 15:
                traits.append("misaligned")
        else:
            traits.append(a if kind is bool else kind)
    return traits


def is_plain(kernel: Any) -> bool:
    """Whether nothing is set that a launch by Triton would look at, beside what the key has.

    Where no instrumentation is chosen, the other settings of it do nothing.
    """
    runtime = triton.knobs.runtime
    return KNOWN and not (
        kernel.pre_run_hooks
        or kernel.debug
        or runtime.debug
        or triton.knobs.compilation.instrumentation_mode
        or getattr(runtime.launch_enter_hook, "calls", True)
        or getattr(runtime.launch_exit_hook, "calls", True)
        or getattr(runtime, "add_stages_inspection_hook", None)
    )


def _is_known(kernel: Any, compiled: Any, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether the key decides what Triton has started: that is compiled, and all arguments are of the types above."""
    return (
        isinstance(compiled, triton.compiler.CompiledKernel)
        and not any(number < len(args) for number in kernel.constexprs)
        and all(type(a) in _ARGUMENTS or isinstance(a, torch.Tensor) for a in args)
        and all(type(value) in _OPTIONS for value in options.values())
    )
