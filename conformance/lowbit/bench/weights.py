"""How fast an implementation dequantises stored weights, beside the PyTorch reference and a copy, in one run.

    python -m lowbit.bench.weights --impl lowbit_kernels --scheme 'gptq*' --rows 8192 --columns 8192

For each scheme a weight is stored, with codes, zero points and scales of every kind, and decoded by both; their bits
are compared before anything is timed. Times are medians; on a GPU of events around several calls, queued while the
device is busy, so that the host's share does not count unless it is the longer one, or a call waits for the device: as
one does that reads its indices to check them. The fraction is that of a device copy of as many bytes as the operation
reads and writes. Neither side multiplies: nothing is said about fused matmuls.

A GPU is wanted; ``--device cpu`` measures on the CPU, where Triton kernels run in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowbit import implementation, weights
from lowbit.cases import weights as weight_cases
from lowbit.errors import ArgumentError, DeviceError, LowbitError, ShapeError, Unsupported
from lowbit.identify import choose_device
from lowbit.weight_tensors import shapes

SCHEMES = (
    *("awq_g128", "gptq[2348]_v1_g128", "gptq4_v1_g128+act_order", "nf4_b64", "nf4_b64+nested", "fp4_b64"),
    *("int8_channel", "squeezellm3", "squeezellm4"),
)
"""One of each kernel."""

SAMPLES, CALLS = 12, 8

BUSY_CYCLES = 4_000_000
"""About two milliseconds, in which the host queues the calls of a sample."""


OPTIONS = {"K": "--rows", "N": "--columns"}
"""Dimensions as errors of shapes name them → the options that give them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark.

    Returns:
      0 · 1: bits differ, or nothing was measured. A wrong argument or no GPU: it exits with 2, told on stderr.
    """
    import torch

    parser = argparse.ArgumentParser(prog="python -m lowbit.bench.weights", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--impl", default=implementation.DEFAULT, help="default %(default)s")
    parser.add_argument("--scheme", action="append", metavar="GLOB", help="repeatable; default one of each kernel")
    parser.add_argument("--rows", type=int, default=8192, help="default %(default)s")
    parser.add_argument("--columns", type=int, default=8192, help="default %(default)s")
    parser.add_argument("--dtype", choices=("float16", "bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=20260829)
    given = parser.parse_args(arguments)
    shape = given.rows, given.columns
    try:
        device = _device(given.device)  # before anything imports triton
        subject, chosen = implementation.load(given.impl), weights.select(given.scheme or SCHEMES)
        _check_shape(chosen, shape)
    except DeviceError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except LowbitError as error:
        parser.error(str(error))
    if device == "cpu":
        print("measured on the CPU: Triton kernels run in its interpreter, whose times say nothing", file=sys.stderr)
    where = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    print(f"{subject.name} {subject.version}, {where}, torch {torch.__version__}, {given.dtype}")
    print(f"{'scheme':<28}{'rows':>7}{'columns':>9}{'us':>11}{'torch us':>12}{'times':>8}{'of copy':>9}")
    wrong = measured = 0
    for scheme in chosen:
        try:
            row = measure(subject, scheme, shape, getattr(torch, given.dtype), device, given.seed)
        except Unsupported as error:
            print(f"{scheme.name:<28}unsupported: {error}")
            continue
        except LowbitError as error:
            parser.exit(2, f"{parser.prog}: {scheme.name}: {error}\n")
        measured += 1
        wrong += row["differ"]
        print(
            f"{scheme.name:<28}{given.rows:>7}{given.columns:>9}{row['us']:>11.1f}{row['torch us']:>12.1f}"
            f"{row['times']:>8.1f}{row['of copy']:>9.3f}" + (f"  {row['differ']:,} DIFFER" if row["differ"] else ""),
            flush=True,
        )
    return 0 if measured and not wrong else 1


def _device(wanted: str) -> str:
    """The device; on cpu, Triton's interpreter is chosen.

    Raises:
      DeviceError: no GPU, and the CPU was not asked for.
    """
    import torch

    if wanted == "auto" and not torch.cuda.is_available():
        raise DeviceError(
            "device: got no GPU, want one; --device cpu measures on the CPU, Triton kernels in its interpreter "
            "(give it small --rows and --columns)"
        )
    return choose_device(wanted)


def _check_shape(chosen: Sequence[weights.WeightScheme], shape: tuple[int, int]) -> None:
    """Refuses a shape that a scheme cannot store, by the option that gives it.

    Raises:
      ArgumentError: naming the option.
      ShapeError: likewise.
    """
    for option, length in zip(OPTIONS.values(), shape, strict=True):
        if length < 1:
            raise ArgumentError(f"{option}: got {length}, want at least 1")
    for scheme in chosen:
        try:
            shapes(scheme, shape)
        except ShapeError as error:
            name, _, told = str(error).partition(": ")
            raise ShapeError(f"{OPTIONS.get(name, name)}: {told}") from error


def measure(
    subject: implementation.Implementation,
    scheme: weights.WeightScheme,
    shape: tuple[int, int],
    dtype: Any,
    device: str,
    seed: int,
) -> dict[str, Any]:
    """Microseconds of both, how many times as fast the implementation is, its fraction of a copy, and bits that differ.

    Raises:
      Unsupported: the implementation does not decode the scheme.
      ArgumentError: as `weight_cases.random`, for a shape that the scheme cannot store.
    """
    import torch

    from lowbit.references import weights_tensors

    tensors = {name: _on(value, device) for name, value in weight_cases.random(scheme, shape, seed).items()}

    def decode() -> Any:
        return subject.call("dequantize_weight", tensors, scheme, dtype)

    def refer() -> Any:
        return weights_tensors.dequantize(tensors, scheme, dtype)

    actual, expected = decode(), refer()
    width = torch.int16 if expected.element_size() == 2 else torch.int32
    same = (actual.view(width) == expected.view(width)) | (actual.isnan() & expected.isnan())
    size = sum(t.nbytes for t in _tensors(tensors)) + actual.nbytes
    source = torch.zeros(size // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = [_median(call, device) for call in (decode, refer, lambda: target.copy_(source))]
    return {
        "us": times[0],
        "torch us": times[1],
        "times": times[1] / times[0],
        "of copy": times[2] / times[0],
        "differ": int((~same).sum()),
    }


def _on(value: Any, device: str) -> Any:
    """NumPy arrays as tensors; uint16 is bfloat16. Ints stay."""
    import numpy as np
    import torch

    if isinstance(value, tuple):
        return tuple(_on(part, device) for part in value)
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.uint16:
        return torch.from_numpy(value.view(np.int16)).to(device).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(value)).to(device)


def _tensors(tensors: Mapping[str, Any]) -> list[Any]:
    parts = [part for value in tensors.values() for part in (value if isinstance(value, tuple) else (value,))]
    return [part for part in parts if hasattr(part, "nbytes")]


def _median(call: Callable[[], Any], device: str) -> float:
    """Microseconds."""
    import torch

    for _ in range(3):
        call()
    if device != "cuda":
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            call()
            taken.append(time.perf_counter() - started)
        return statistics.median(taken) * 1e6
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(SAMPLES)]
    for first, last in marks:
        torch.cuda._sleep(BUSY_CYCLES)  # the calls queue up meanwhile
        first.record()
        for _ in range(CALLS):
            call()
        last.record()
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(last) for first, last in marks) * 1e3 / CALLS


if __name__ == "__main__":
    sys.exit(main())
