"""Implementations that misbehave in every way that the suite must survive; right where they do not misbehave.

Each does it in the check `unwritten bytes`, whose input has 5 blocks in a row, or where it is said otherwise.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lowbit.adapters import reference
from lowbit.implementation import Implementation, Quantized
from lowbit.suite import escapes

COLUMNS = 5 * 32
"""Of the input of `unwritten bytes` under a scheme with blocks of 32."""


def subject(
    name: str, act: Callable[..., Any], *, operation: str = "quantize", everywhere: bool = False
) -> Implementation:
    """The reference with one operation that acts before it returns; what `act` returns, if anything, is the result.

    Args:
      act: called with the right result and the operation's arguments.
    """
    right = getattr(reference, operation, None) or getattr(reference.packing, operation)

    def operate(*args: Any, **options: Any) -> Any:
        result = right(*args, **options)
        if not everywhere and operation == "quantize" and args[0].shape != (33, COLUMNS):
            return result
        acted = act(result, *args)
        return result if acted is None else acted

    operations = {"quantize": reference.quantize, "dequantize": reference.dequantize, operation: operate}
    if operation in ("swizzle", "unswizzle"):
        operations |= {"swizzle": reference.packing.swizzle, operation: operate}
    return Implementation(name=name, version="1", **operations)


def raising(error: BaseException) -> Callable[..., Any]:
    def act(*args: Any) -> None:
        raise error

    return act


class Strange(BaseException):
    """No `Exception`."""


class Mute(RuntimeError):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


RAISES = subject("raises", raising(RuntimeError("boom")))
MUTE = subject("mute", raising(Mute()))
INTERRUPTS = subject("interrupts", raising(KeyboardInterrupt()))
EXITS = subject("exits", raising(SystemExit(0)))
ENDS_PYTEST = subject("ends_pytest", raising(pytest.exit.Exception("enough")))
STRANGE = subject("strange", raising(Strange("odd")))
LAUNCH = subject("launch", raising(RuntimeError("CUDA error: invalid configuration argument")))

# Standing still.


def hang(*args: Any) -> None:
    time.sleep(60)


def hang_on(*args: Any) -> None:
    while True:
        try:
            time.sleep(60)
        except Exception:  # a loop that tries again
            continue


def hang_stubbornly(*args: Any) -> None:
    try:
        time.sleep(60)
    except BaseException:  # even this
        time.sleep(60)


HANGS = subject("hangs", hang)
HANGS_ON = subject("hangs_on", hang_on)
HANGS_STUBBORNLY = subject("hangs_stubbornly", hang_stubbornly)

# Arguments and results of another form.


def quantize_only(x: torch.Tensor, scheme: Any) -> Quantized:
    return reference.quantize(x, scheme)


NARROW = Implementation(name="narrow", version="1", quantize=quantize_only)

SHORT = subject("short", lambda result, *args: (result.packed,))
NOTHING = subject("nothing", lambda result, *args: ())
SINGLE = subject("single", lambda result, *args: result.packed)
ARRAY = subject("array", lambda result, *args: result._replace(scales=result.scales.numpy()))
WIDE = subject("wide", lambda result, *args: result._replace(packed=result.packed.to(torch.int32)))
CUT = subject("cut", lambda result, *args: result._replace(packed=result.packed[:-1]))
ELSEWHERE = subject("elsewhere", lambda result, *args: result._replace(packed=result.packed.to("meta")))
DECODES_ELSEWHERE = subject("decodes_elsewhere", lambda values, *args: values.to("meta"), operation="dequantize")
DECODES_PAIR = subject("decodes_pair", lambda values, *args: (values, None), operation="dequantize")

# Memory.


def view(result: Quantized, x: torch.Tensor, *args: Any) -> Quantized:
    count = result.packed.numel()
    return result._replace(packed=x.view(torch.uint8).view(-1)[:count].view(result.packed.shape))


def mutate(result: Quantized, x: torch.Tensor, *args: Any) -> None:
    x[0, 0] += 1


def beside(result: Quantized, x: torch.Tensor, *args: Any) -> None:
    """Writes to what lies before its input, where that is part of something larger."""
    if x.storage_offset():
        torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())[x.storage_offset() - 1] = 1.0


def over(place: int) -> Callable[..., Any]:
    """Writes one byte outside an output that it allocated itself: as a kernel, by pointer."""

    def act(result: Any, *args: Any) -> Any:
        values = result.packed if isinstance(result, Quantized) else result
        own = torch.empty(values.shape, dtype=values.dtype)
        own.copy_(values)
        size = own.numel() * own.element_size()
        if own.storage_offset():  # between guard bands: elsewhere the byte may belong to the allocator
            ctypes.memset(own.data_ptr() + (size if place > 0 else -1), 0x11, 1)
        return result._replace(packed=own) if isinstance(result, Quantized) else own

    return act


def leave(result: Any, *args: Any) -> Any:
    """Leaves the last element of its output unwritten."""
    values = result.packed if isinstance(result, Quantized) else result
    own = torch.empty(values.shape, dtype=values.dtype)
    own.view(-1)[:-1] = values.view(-1)[:-1]
    return result._replace(packed=own) if isinstance(result, Quantized) else own


VIEW = subject("view", view)
MUTATES = subject("mutates", mutate)
BESIDE = subject("beside", beside, everywhere=True)
AFTER = subject("after", over(1))
BEFORE = subject("before", over(-1))
DECODES_OVER = subject("decodes_over", over(1), operation="dequantize")
SWIZZLES_OVER = subject("swizzles_over", over(1), operation="swizzle")
LEAVES = subject("leaves", leave)
DECODES_LEAVING = subject("decodes_leaving", leave, operation="dequantize")

# Chance, noise, and the process around.

CALLS = itertools.count()


def by_chance(result: Quantized, *args: Any) -> Quantized | None:
    """Wrong one time in fifty."""
    return result._replace(packed=result.packed ^ 1) if next(CALLS) % 50 == 2 else None


def print_much(*args: Any) -> None:
    print("x" * 10_000_000)


def print_and_raise(*args: Any) -> None:
    print_much()
    raise RuntimeError("after much talk")


def set_dtype(*args: Any) -> None:
    torch.set_default_dtype(torch.float64)


def set_deterministic(*args: Any) -> None:
    torch.set_deterministic_debug_mode("error" if torch.get_deterministic_debug_mode() != 2 else "default")


def draw(*args: Any) -> None:
    torch.rand(1)


def set_environment(*args: Any) -> None:
    os.environ["LOWBIT_TEST"] = f"{time.perf_counter()}"


def run_thread(*args: Any) -> None:
    def fail() -> None:
        raise ValueError("in a thread")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


CHANCE = subject("chance", by_chance)
PRINTS = subject("prints", print_much)
PRINTS_AND_RAISES = subject("prints_and_raises", print_and_raise)
DTYPE = subject("dtype", set_dtype)
DETERMINISTIC = subject("deterministic", set_deterministic)
DRAWS = subject("draws", draw)
ENVIRONMENT = subject("environment", set_environment)
THREAD = subject("thread", run_thread)

# The end of a process, and of a device.


def crash(*args: Any) -> None:
    ctypes.string_at(0)


def hang_natively(*args: Any) -> None:
    sum(itertools.repeat(0))  # holds the interpreter's lock and looks at no signal


def break_device(*args: Any) -> None:
    escapes.answers = lambda device: False
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


DIES = subject("dies", lambda *args: os._exit(0))
CRASHES = subject("crashes", crash)
HANGS_NATIVELY = subject("hangs_natively", hang_natively)
BREAKS = subject("breaks", break_device)
FINE = subject("fine", lambda *args: None)

if os.environ.get("LOWBIT_SLOW_IMPORT"):
    time.sleep(1.2)
