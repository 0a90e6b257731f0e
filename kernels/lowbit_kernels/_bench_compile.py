"""Fills Triton's cache on disk from several processes, because compiling one after another takes longer than measuring.

It only saves time: what fails here is compiled, or fails with its message, when it is measured.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

from lowbit_kernels import _bench_operations, _bench_timing

Job = tuple[str, str, int, int]
"""(operation, dtype, rows, columns)."""

FEW = 3
"""So many operations are compiled sooner than processes have started."""

SECONDS = 60.0


def compile_all(jobs: Sequence[Job], processes: int) -> None:
    """Calls each operation once, in processes of their own; returns when all are done, or after a minute."""
    if processes < 2 or len(jobs) <= FEW:
        return
    started, failed, done = time.monotonic(), 0, False
    pool = ProcessPoolExecutor(min(processes, len(jobs)), multiprocessing.get_context("spawn"))
    try:
        for future in as_completed([pool.submit(compile_one, *job) for job in jobs], timeout=SECONDS):
            failed += future.exception() is not None
        done = True
    except TimeoutError:
        print(f"bench: compiling in {processes} processes took over {SECONDS:.0f} s; going on", file=sys.stderr)
    finally:
        pool.shutdown(wait=done, cancel_futures=True)  # the GPU is ours alone before anything is measured
    spent = time.monotonic() - started
    print(f"bench: {len(jobs)} compiled in {spent:.1f} s, {failed} of them failed", file=sys.stderr, flush=True)


def compile_one(name: str, dtype_name: str, rows: int, columns: int) -> None:
    """Compiles what one operation launches at one shape."""
    operation = _bench_operations.find(name, dtype_name)
    sources = _bench_timing.Sources(torch.device("cuda"))
    operation.build(sources.get(operation.dtype, rows, columns, 0))()
    torch.cuda.synchronize()
    del sources
    torch.cuda.empty_cache()
