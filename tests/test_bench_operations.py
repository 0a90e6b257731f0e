"""What the bench measures, against real tensors, and how, by a clock of ours. No time is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import lowbit_kernels
from lowbit.errors import ArgumentError
from lowbit_kernels import _bench_operations as operations
from lowbit_kernels import _bench_timing as timing
from lowbit_kernels import _launch, bench
from lowbit_kernels._bench_case import Case
from lowbit_kernels._bench_operations import COPY, OPERATIONS, Operation
from lowbit_kernels._bench_timing import Spread
from lowbit_kernels.bench_matmul import PAIRS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EVERY = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: f"{o.name}:{o.dtype_name}")
BF16 = torch.bfloat16


def test_rows_are_distinct() -> None:
    keys = [(o.name, o.dtype) for o in OPERATIONS]
    assert len(keys) == len(set(keys))


def test_every_operation_of_the_package_is_measured() -> None:
    public = [name for name in lowbit_kernels.__all__ if name not in ("recip_scale", "pad_last_dimension", *PAIRS)]
    assert not [name for name in public if not any(o.name.startswith(name) for o in OPERATIONS)]


def test_every_rule_is_measured() -> None:
    names = {o.name for o in OPERATIONS}
    assert {f"quantize_mxfp4_{rule}" for rule in lowbit_kernels.mxfp4.SCALE_RULES} <= names
    assert {f"quantize_mx4_{rule}" for rule in lowbit_kernels.mx4.SCALE_RULES} <= names


@EVERY
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (130, 80)])
def test_bytes_are_those_of_the_tensors(operation: Operation, rows: int, columns: int) -> None:
    """An operation that finds its own tensor scale reads x once more; everything else moves each tensor once."""
    rows, columns = operation.rows(rows), operation.columns(columns)
    source = timing.Sources(DEVICE).get(operation.dtype, rows, columns, 0)
    case = operation.build(source)
    traffic = operation.traffic(rows, columns, operation.dtype.itemsize)
    again = source.nbytes if operation.kernels == 3 else 0
    assert traffic.read == sum(tensor.nbytes for tensor in case.inputs) + again
    assert traffic.written == sum(tensor.nbytes for tensor in case.outputs)
    assert operation.bytes(rows, columns) == sum(traffic)


@EVERY
def test_a_case_writes_into_its_own_buffers(operation: Operation) -> None:
    shape = operation.rows(3), operation.columns(64)
    case = operation.build(timing.Sources(DEVICE).get(operation.dtype, *shape, 0))
    expected = [tensor.view(torch.uint8).clone() for tensor in case.outputs]
    for tensor in case.outputs:
        tensor.view(torch.uint8).fill_(0xA5)
    case()
    assert all(torch.equal(t.view(torch.uint8), e) for t, e in zip(case.outputs, expected, strict=True))


@EVERY
def test_the_default_shape_fills_the_chip(operation: Operation) -> None:
    traffic = operation.traffic(bench.ROWS, bench.COLUMNS, operation.dtype.itemsize)
    assert traffic.written >= 64e6


TARGETS = {
    "quantize_mxfp4_rceil": (0.90, 0.92),
    "quantize_mxfp4_floor_swizzled": (0.88, 0.90),
    "quantize_mxfp4_floor_stochastic": (0.52, None),
    "quantize_mx4_nearest": (0.82, 0.88),
    "quantize_mx4_ceil_stochastic": (0.52, None),
    "quantize_nvfp4_given": (0.82, 0.88),
    "quantize_nvfp4_two_level": (0.82, 0.88),
    "quantize_nvfp4_given_swizzled": (0.80, 0.86),
    "dequantize_mxfp4": (0.92, 0.92),
    "dequantize_mx4": (0.86, 0.86),
    "dequantize_nvfp4": (0.92, 0.92),
    COPY: (None, None),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets(name: str) -> None:
    assert tuple(operations.find(name, dtype).target for dtype in ("bfloat16", "float32")) == TARGETS[name]


def test_select() -> None:
    assert operations.select(()) == OPERATIONS
    names = [(o.name, o.dtype) for o in operations.select(["quantize_mxfp4_floor:bfloat16"])]
    assert names == [(COPY, BF16), ("quantize_mxfp4_floor", BF16)]
    assert {o.name for o in operations.select(["swizzle*", "dequantize_mx4"])} == {
        *(COPY, "swizzle_scales", "dequantize_mx4")
    }
    with pytest.raises(ArgumentError, match=r"got 'nvfp5\*', want a pattern that matches one of copy, "):
        operations.select(["copy", "nvfp5*"])


def test_small_shapes_need_no_padding_by_us() -> None:
    """What refuses 4096 + 16 columns, or one row, is measured at the next number that it takes, as its row says."""
    chosen = bench._chosen(bench._parser().parse_args(["--small"]))
    assert {o.dtype for o in chosen} == {BF16, torch.uint8}
    assert {o.columns(4112) for o in chosen if o.name.startswith("quantize_mxfp4")} == {4128}
    grouped = {"dequantize_awq", "dequantize_gptq4", "dequantize_squeezellm4"}
    assert {(o.rows(1), o.columns(4112)) for o in chosen if o.name in grouped} == {(128, 4224)}
    others = [o for o in chosen if "mxfp4" not in o.name and o.name not in grouped]
    assert {(o.rows(1), o.columns(4112)) for o in others} == {(1, 4112)}
    assert grouped | {"dequantize_nf4", "dequantize_int8", "swizzle_scales"} < {o.name for o in chosen}


def meta(*shape: int, dtype: torch.dtype = BF16) -> Case:
    x = torch.empty(shape, dtype=dtype, device="meta")
    return Case(lambda **_: x, (x,), x)


@pytest.mark.parametrize(
    ("shape", "cases"),
    [((16384, 8192), 2), ((16384, 2048), 4), ((1024, 1024), 120), ((1, 32), timing.MOST_CASES)],
)
def test_inputs_exceed_the_cache(shape: tuple[int, int], cases: int) -> None:
    assert timing.case_count(meta(*shape), timing.L2_BYTES) == cases
    if cases < timing.MOST_CASES:
        assert cases * meta(*shape).inputs[0].nbytes >= 4 * 60_000_000


@pytest.mark.parametrize(("size", "cases"), [(340_000_000, 2), (340_000_000, 4), (8_000, 256), (10**11, 3)])
def test_a_sample_is_whole_rounds_through_the_cases(size: int, cases: int) -> None:
    launches = timing.launch_count(size, cases)
    assert launches % cases == 0
    assert cases <= launches <= timing.MOST_LAUNCHES
    assert launches * size >= timing.BYTES_PER_SAMPLE or launches == timing.MOST_LAUNCHES


def test_spread() -> None:
    spread = Spread.of([float(value) for value in (10, 0, 5, 1, 2, 3, 4, 6, 7, 8, 9)])
    assert spread == Spread(median=5, low=1, high=9, minimum=0, maximum=10, samples=11)


class Clock:
    """A device whose time passes only by what is run on it; stands in for torch.cuda.Event too."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def sample(self, name: str, milliseconds: float, launches: int) -> timing.Sample:
        def run() -> None:
            self.now += milliseconds
            self.order.append(name)

        return timing.Sample(run, launches, (), "graph")

    def event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        clock = self

        class Event:
            at = -1.0

            def record(self) -> None:
                self.at = clock.now

            def elapsed_time(self, end: Event) -> float:
                return end.at - self.at

        return Event()


def test_samples_are_interleaved_with_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(torch.cuda, "Event", clock.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    spread, copy = timing.interleave(clock.sample("it", 2.0, 8), clock.sample("copy", 3.0, 4))
    assert (spread.median, copy.median) == (pytest.approx(250), pytest.approx(750))
    assert spread.samples == copy.samples == timing.SAMPLES >= 30
    assert clock.order == ["copy", "it"] * (timing.WARM_UP + timing.SAMPLES)


def test_host_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for the device is outside the time that counts, and so is the warm-up."""
    now, calls = 0, 0

    def spend(nanoseconds: int) -> Callable[[], None]:
        def function() -> None:
            nonlocal now, calls
            calls += 1
            now += nanoseconds * (100 if calls <= 2 * timing.WARM_UP * 5 else 1)

        return function

    def wait() -> None:
        nonlocal now
        now += 10**9

    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: now)
    monkeypatch.setattr(timing, "_wait", wait)
    call, empty = timing.host(spend(26_000), spend(20_000), samples=30, calls=5)
    assert (call.minimum, call.maximum, empty.median) == (26, 26, 20)
    assert calls == 2 * 5 * (30 + timing.WARM_UP)


def test_what_no_graph_takes_is_launched(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @contextmanager
    def graph(_: object) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    called: list[int] = []
    cases = [Case(lambda out: called.append(out), (), index) for index in (0, 1)]
    sample = timing.record(cases, 4)
    called.clear()
    sample.run()
    assert called == [0, 1, 0, 1]
    assert (sample.launches, sample.cases, sample.method) == (4, 2, "launches")
    assert "no graph (operation not permitted" in capsys.readouterr().err


class Launches:
    """Stands for a kernel and counts who starts it."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments: self.grids.append(grid)


@pytest.mark.usefixtures("unplanned")
@pytest.mark.parametrize("name", ["quantize_mx4_ceil", "quantize_mxfp4_floor", "quantize_nvfp4_two_level"])
def test_the_empty_kernel_has_the_same_results(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    operation = operations.find(name, "bfloat16")
    case = operation.build(timing.Sources(DEVICE).get(BF16, 3, 64, 0))
    launched, launch = [], _launch.launch
    monkeypatch.setattr(_launch, "launch", lambda kernel, *rest: launched.append(kernel) or launch(kernel, *rest))
    for ours in (True, False):
        got = timing.empty_call(case, operation.kernels, ours=ours)()
        assert [(t.shape, t.nbytes) for t in got] == [(t.shape, t.nbytes) for t in case.outputs]
        assert launched == [timing._empty_kernel] * (operation.kernels if ours else 0)
        launched.clear()
    by_triton = Launches()
    with monkeypatch.context() as patch:
        patch.setattr(timing, "_empty_kernel", by_triton)
        timing.empty_call(case, operation.kernels)()
    assert by_triton.grids == [(1,)] * operation.kernels
    monkeypatch.setattr(_launch, "launch", lambda kernel, *rest, **options: launched.append(kernel))
    case.function()
    assert len(launched) == operation.kernels
