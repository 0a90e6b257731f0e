"""`lowbit bench`, or ``python -m lowbit_kernels.bench``: how fast the kernels are, as a fraction of a copy.

    --operation GLOB       name or name:dtype, again for more; default all
    --rows N --columns N   default 16384 x 8192
    --small                small and odd shapes: device times, and host times against an empty kernel (_bench_timing)
    --out RUN.csv          writes the rows as they come, RUN.json beside it (environment, spreads), and at the
                           end RUN.svg, a roofline and the fractions
    --draw RUN.csv         only draws RUN.svg again; needs no GPU
    --compare RUN.csv      sets the run beside an earlier one and marks what became slower beyond the spread
    --commit SHA           of the source, where it is a copy without its repository
    --jobs N               processes that compile first; 1 compiles while measuring

Rows go to stdout, progress to stderr.
Exit code: 0 · 1: something could not be measured · 2: a wrong argument, or no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from lowbit.errors import LowbitError
from lowbit_kernels import _bench_compile as compilation
from lowbit_kernels import _bench_operations as operations
from lowbit_kernels import _bench_picture as picture
from lowbit_kernels import _bench_results as results
from lowbit_kernels import _bench_timing as timing
from lowbit_kernels._bench_operations import COPY, Operation
from lowbit_kernels._bench_results import Results, Row

ROWS, COLUMNS = 16384, 8192
SMALL_SHAPES = ((1, 4096), (17, 8192), (4096, 4096 + 16))
HOST_LIMIT = 1.3
"""Host time of a call over that of an empty kernel that Triton launches."""

HOST, HOST_EMPTY = "host:", "empty:"
"""Before the operation's name in rows of host times."""

MOST_JOBS = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the bench.

    Returns:
      0 · 1: an operation failed · 2: a wrong argument, or no GPU; with a message on stderr.
    """
    arguments = _parser().parse_args(argv)
    try:
        if arguments.draw is not None:
            _draw(arguments.draw, results.read(arguments.draw))
            return 0
        chosen = _chosen(arguments)
        earlier = None if arguments.compare is None else results.read(arguments.compare)
        device = timing.require_gpu()
        return _run(arguments, chosen, earlier, device)
    except (LowbitError, OSError) as error:
        print(f"lowbit bench: {error}", file=sys.stderr)
        return 2


def _run(
    arguments: argparse.Namespace, chosen: Sequence[Operation], earlier: list[Row] | None, device: torch.device
) -> int:
    started = time.monotonic()
    shapes = SMALL_SHAPES if arguments.small else ((arguments.rows, arguments.columns),)
    plan = [(o, o.rows(rows), o.columns(columns)) for rows, columns in shapes for o in chosen]
    options = {"operation": arguments.operation, "shapes": shapes, "small": arguments.small}
    environment = results.environment(device, arguments.commit, options)
    with Results(arguments.out, environment) as found:
        if device.type == "cuda":
            jobs = [(o.name, o.dtype_name, rows, columns) for o, rows, columns in plan if o.name != COPY]
            compilation.compile_all(jobs, arguments.jobs)
        meter = Meter(device)
        print(results.header(), flush=True)
        for number, (operation, rows, columns) in enumerate(plan, 1):
            what = f"{operation.name}:{operation.dtype_name} {rows} x {columns}"
            print(
                f"bench: {number}/{len(plan)} {what}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True
            )
            try:
                for row in meter.measure(operation, rows, columns, host=arguments.small):
                    found.add(row)
                    print(results.line(row), flush=True)
            except Exception as error:  # a kernel can fail in any way; the others are still worth measuring
                found.fail(what, error)
                print(f"bench: {what} FAILED: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    _close(found, earlier, time.monotonic() - started)
    if arguments.out is not None:
        _draw(arguments.out, found.rows)
    return 1 if found.errors or not found.rows else 0


def _draw(run: Path, rows: Sequence[Row]) -> None:
    """Writes the picture beside a CSV file."""
    gpu = results.facts(run).get("environment", {}).get("gpu", {}).get("name", "")
    title = "lowbit bench" + (f" on one {gpu}" if gpu else "")
    run.with_suffix(".svg").write_text(picture.draw(rows, title), encoding="utf-8")


def _close(found: Results, earlier: list[Row] | None, seconds: float) -> None:
    """The last lines: comparison, failures, how many targets are met."""
    if earlier is not None:
        print("\n" + "\n".join(results.compare(found.rows, earlier)))
    for what, error in found.errors.items():
        print(f"FAILED {what}: {error}")
    verdicts = [results.verdict(row) for row in found.rows if row.target is not None]
    print(f"{verdicts.count('met')} of {len(verdicts)} targets met, {len(found.errors)} failed, {seconds:.0f} s")


class Meter:
    """Measures operations; keeps the copies that they are measured beside."""

    def __init__(self, device: torch.device) -> None:
        self.sources = timing.Sources(device)
        self._shape: tuple[int, int] | None = None
        self._copies: dict[torch.dtype, timing.Sample] = {}

    def measure(self, operation: Operation, rows: int, columns: int, *, host: bool) -> Iterator[Row]:
        """The row of device times and, if asked for, those of host times."""
        size = operation.bytes(rows, columns)
        reference, copy_size = self._copy(operation.dtype, rows, columns)
        cases = timing.build_cases(operation, rows, columns, self.sources)
        subject = timing.record(cases, timing.launch_count(size, len(cases)))
        spread, copy = timing.interleave(subject, reference)
        fraction = (size / spread.median) / (copy_size / copy.median)
        details = {
            "copy_microseconds": round(copy.median, 3),
            "launches": subject.launches,
            "cases": subject.cases,
            "method": subject.method,
        }
        key = (operation.dtype_name, rows, columns, size)
        # Small shapes have no target: what bounds them is the launch.
        target = None if host else operation.target
        yield Row(operation.name, *key, spread, fraction, target, details)
        if not host or operation.name == COPY:
            return
        empties = [timing.empty_call(cases[0], operation.kernels, ours=ours) for ours in (False, True)]
        call, empty, ours = timing.host(cases[0].function, *empties)
        ratios = {
            "host_ratio": round(call.median / empty.median, 3),
            "host_limit": HOST_LIMIT,
            "host_ratio_of_our_launch": round(call.median / ours.median, 3),
        }
        yield Row(HOST + operation.name, *key, call, details=ratios)
        launch = {"kernels": operation.kernels, "our_launch_microseconds": round(ours.median, 3)}
        yield Row(HOST_EMPTY + operation.name, *key, empty, details=launch)

    def _copy(self, dtype: torch.dtype, rows: int, columns: int) -> tuple[timing.Sample, int]:
        """The copy of a tensor of that shape, and its bytes."""
        operation = operations.find(COPY, str(dtype).removeprefix("torch."))
        size = operation.bytes(rows, columns)
        if self._shape != (rows, columns):
            self._copies.clear()  # with their buffers
            self._shape = (rows, columns)
        if dtype not in self._copies:
            cases = timing.build_cases(operation, rows, columns, self.sources)
            self._copies[dtype] = timing.record(cases, timing.launch_count(size, len(cases)))
        return self._copies[dtype], size


def _chosen(arguments: argparse.Namespace) -> tuple[Operation, ...]:
    """The operations asked for; among small shapes those that stand for their families, in bfloat16."""
    if arguments.operation or not arguments.small:
        return operations.select(arguments.operation)
    typical = [o for o in operations.select(()) if o.small and o.dtype in (torch.bfloat16, torch.uint8)]
    return operations.select(f"{operation.name}:{operation.dtype_name}" for operation in typical)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {text}, want at least 1")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("lowbit bench", description="How fast the kernels are, as a fraction of a copy.")
    parser.add_argument(
        "--operation", metavar="GLOB", action="append", default=[], help="name or name:dtype, again for more (all)"
    )
    parser.add_argument("--rows", metavar="N", type=_positive, default=ROWS, help=f"(default {ROWS})")
    parser.add_argument("--columns", metavar="N", type=_positive, default=COLUMNS, help=f"(default {COLUMNS})")
    parser.add_argument("--small", action="store_true", help="small and odd shapes, device and host times")
    parser.add_argument(
        "--out", metavar="RUN.csv", type=Path, help="the rows; RUN.json beside it: environment, spreads"
    )
    parser.add_argument("--draw", metavar="RUN.csv", type=Path, help="only draw RUN.svg from a run's files")
    parser.add_argument("--compare", metavar="RUN.csv", type=Path, help="an earlier run to set beside this one")
    parser.add_argument("--commit", metavar="SHA", help="of the source, where git cannot tell")
    jobs = min(MOST_JOBS, os.cpu_count() or 1)
    parser.add_argument(
        "--jobs", metavar="N", type=_positive, default=jobs, help=f"processes that compile first (default {jobs})"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
