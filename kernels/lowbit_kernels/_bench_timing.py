"""How the bench takes time: on the device by replaying a CUDA graph, on the host by counting calls.

Device: one graph goes through several cases, each with buffers of its own, so that nothing is found in the L2 cache;
events stand around each replay; all replays are queued before any is read, so that the host is never in the way. A
replay of the operation follows one of the copy, again and again, so that both see the same clocks and temperature.

Host: calls that allocate their results, against an empty kernel: an op of the same library, which allocates results of
the same shapes and launches, as often as the operation does, a kernel that does nothing, by Triton as anybody would:
``kernel[grid](...)``. The kernel takes the input, the results and a count, the least that one can, and no option; the
op checks nothing. A second empty call differs in the launch alone, which is `_plans.launch`, as ours is: what that
saves counts for us against the first, and for both against the second.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

from lowbit.errors import DeviceError
from lowbit_kernels import _launch, _plans
from lowbit_kernels._bench_case import Case
from lowbit_kernels._bench_operations import Operation

SAMPLES = 40
WARM_UP = 3
L2_BYTES = 60 << 20
L2_TIMES = 4
"""Inputs are rotated through so many times the L2 cache."""

MOST_CASES = 256
MOST_LAUNCHES = 512
BYTES_PER_SAMPLE = 4_000_000_000  # about a millisecond on the fastest memories
CALLS_PER_SAMPLE = 50  # well below what a stream queues before the host must wait

Run = Callable[[], Any]


@dataclass(frozen=True)
class Spread:
    """Microseconds of one call over many samples; `low` and `high` are the first and last decile."""

    median: float
    low: float
    high: float
    minimum: float
    maximum: float
    samples: int

    @classmethod
    def of(cls, microseconds: Sequence[float]) -> Spread:
        deciles = statistics.quantiles(microseconds, n=10, method="inclusive")
        median = statistics.median(microseconds)
        return cls(median, deciles[0], deciles[-1], min(microseconds), max(microseconds), len(microseconds))


def require_gpu() -> torch.device:
    """The device to measure on.

    Raises:
      DeviceError: no GPU, or kernels run in Triton's interpreter, whose times say nothing.
    """
    if _launch.INTERPRETED:
        raise DeviceError(
            "device: got Triton's interpreter, whose times say nothing, want a GPU; unset TRITON_INTERPRET"
        )
    if not torch.cuda.is_available():
        raise DeviceError("device: got no GPU, want one; nothing is measured in the interpreter")
    return torch.device("cuda", torch.cuda.current_device())


def l2_bytes(device: torch.device) -> int:
    """The device's L2 cache, never taken for less than that of an H200."""
    if device.type != "cuda":
        return L2_BYTES
    return max(L2_BYTES, getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))


def case_count(case: Case, cache: int) -> int:
    """How many cases, each with its own buffers, together read several times the cache; at least two."""
    size = sum(tensor.nbytes for tensor in case.inputs)
    return min(max(2, math.ceil(L2_TIMES * cache / max(size, 1))), MOST_CASES)


def launch_count(size: int, cases: int) -> int:
    """How many calls make a sample: whole rounds through the cases, until enough bytes have moved."""
    rounds = max(1, min(math.ceil(BYTES_PER_SAMPLE / (max(size, 1) * cases)), MOST_LAUNCHES // cases))
    return rounds * cases


class Sources:
    """Tensors to measure on, one after another of a shape; only the last shape's are kept."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._shape: tuple[int, int] | None = None
        self._kept: dict[tuple[torch.dtype, int], torch.Tensor] = {}

    def get(self, dtype: torch.dtype, rows: int, columns: int, index: int) -> torch.Tensor:
        """(rows, columns) of dtype: normally distributed, or bytes of every value. Another index, another tensor."""
        if self._shape != (rows, columns):
            self._kept.clear()
            self._shape = (rows, columns)
        key = (dtype, index)
        if key not in self._kept:
            generator = torch.Generator(self.device).manual_seed(index)
            options: dict[str, Any] = {"device": self.device, "generator": generator}
            if dtype == torch.uint8:
                self._kept[key] = torch.randint(0, 256, (rows, columns), dtype=dtype, **options)
            else:
                self._kept[key] = torch.randn(rows, columns, **options).to(dtype)
        return self._kept[key]


def build_cases(operation: Operation, rows: int, columns: int, sources: Sources) -> list[Case]:
    """Enough cases that none finds its input in the cache."""
    first = operation.build(sources.get(operation.dtype, rows, columns, 0))
    count = case_count(first, l2_bytes(sources.device))
    return [first, *(operation.build(sources.get(operation.dtype, rows, columns, i)) for i in range(1, count))]


@dataclass(frozen=True)
class Sample:
    """What is run between two events: so many calls. It keeps the buffers that a graph has only the addresses of."""

    run: Run
    launches: int
    kept: Sequence[Case]
    method: str

    @property
    def cases(self) -> int:
        return len(self.kept)


def record(cases: Sequence[Case], launches: int) -> Sample:
    """A graph of calls that go through the cases in turn; where it cannot be captured, the calls themselves."""
    sequence = [cases[i % len(cases)] for i in range(launches)]

    def call_all() -> None:
        for case in sequence:
            case()

    for case in cases:
        case()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call_all()
    except RuntimeError as error:
        print(f"bench: no graph ({error}); timing launches, host included", file=sys.stderr)
        torch.cuda.synchronize()
        return Sample(call_all, launches, tuple(cases), "launches")

    return Sample(graph.replay, launches, tuple(cases), "graph")


def interleave(subject: Sample, reference: Sample, samples: int = SAMPLES) -> tuple[Spread, Spread]:
    """Device times of a call of both, each sample of one beside one of the other."""
    both = (reference, subject)
    for _ in range(WARM_UP):
        for each in both:
            each.run()
    marks: tuple[list[Any], list[Any]] = ([], [])
    for _ in range(samples):
        for each, pairs in zip(both, marks, strict=True):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            each.run()
            end.record()
            pairs.append((start, end))
    torch.cuda.synchronize()
    times = [
        Spread.of([start.elapsed_time(end) * 1000 / each.launches for start, end in pairs])
        for each, pairs in zip(both, marks, strict=True)
    ]
    return times[1], times[0]


def host(*functions: Run, samples: int = SAMPLES, calls: int = CALLS_PER_SAMPLE) -> list[Spread]:
    """Host times of a call of each, interleaved; the device is waited for between the samples, outside them."""
    times: list[list[float]] = [[] for _ in functions]
    collecting = gc.isenabled()
    gc.disable()
    try:
        for sample in range(WARM_UP + samples):
            for function, kept in zip(functions, times, strict=True):
                _wait()
                start = time.perf_counter_ns()
                for _ in range(calls):
                    function()
                spent = time.perf_counter_ns() - start
                if sample >= WARM_UP:
                    kept.append(spent / calls / 1000)
        _wait()
    finally:
        if collecting:
            gc.enable()
    return [Spread.of(kept) for kept in times]


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@triton.jit
def _empty_kernel(x_ptr, first_ptr, second_ptr, third_ptr, count):
    """Does nothing with an input and up to three results."""


def _allocate(like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in like]


@_plans.kept
def _empty_plan(count: int) -> _plans.Plan:
    return _plans.Plan(_empty_kernel, (1,), (count,), {})


def _empty(x: torch.Tensor, like: list[torch.Tensor], kernels: int, ours: bool) -> list[torch.Tensor]:
    results = _allocate(like)
    for _ in range(kernels):
        tensors = (x, results[0], results[len(results) // 2], results[-1])
        if ours:
            _plans.launch(_empty_plan(x.numel()), x, *tensors)
        else:
            _empty_kernel[(1,)](*tensors, x.numel())
    return results


def _empty_fake(x: torch.Tensor, like: list[torch.Tensor], *_: Any) -> list[torch.Tensor]:
    return _allocate(like)


_SCHEMA = "bench_empty(Tensor x, Tensor[] like, int kernels, bool ours) -> Tensor[]"
_EMPTY = _launch.register(_SCHEMA, _empty, _empty_fake)


def empty_call(case: Case, kernels: int, *, ours: bool = False) -> Run:
    """A call that starts as many kernels as the case does and allocates the same results, bytes as uint8.

    Args:
      ours: starts them by `_plans.launch`; else by Triton.
    """
    like = [t.view(torch.uint8) if t.element_size() == 1 else t for t in case.outputs]
    x = case.inputs[0]
    x = x.view(torch.uint8) if x.element_size() == 1 else x
    return lambda: _EMPTY(x, like, kernels, ours)
