"""One check of the suite on so many random elements: what `checkpoint --suite` measures, in a process of its own.

    python -m lowbit.bench.suite --elements 1e8 --scheme mxfp4_floor

A tensor is quantised and dequantised by an implementation and judged whole, as a check of the suite does; the last line
that is printed is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from lowbit import implementation, packing, plugin, schemes
from lowbit.errors import ArgumentError, LowbitError
from lowbit.schemes import Scheme

COLUMNS = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Judges once; 1 where something differs."""
    parser = argparse.ArgumentParser(prog="python -m lowbit.bench.suite", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--elements", type=lambda text: int(float(text)), default=10**7, help="default 1e7")
    parser.add_argument("--scheme", default="mxfp4_floor", help="default %(default)s")
    parser.add_argument("--impl", default=implementation.DEFAULT, help="default %(default)s")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=20260829)
    given = parser.parse_args(arguments)
    try:
        device, interpreted = plugin.choose_device(given.device, require_gpu=False)
        subject, scheme = implementation.load(given.impl), schemes.get(given.scheme)
        found = measure(subject, scheme, given.elements, device, given.seed, interpreted=interpreted)
    except (LowbitError, pytest.UsageError) as error:
        parser.error(str(error))
    print(json.dumps(found))
    return 1 if found["mismatched"] else 0


def measure(
    subject: implementation.Implementation,
    scheme: Scheme,
    elements: int,
    device: str,
    seed: int,
    *,
    interpreted: bool,
) -> dict[str, Any]:
    """Seconds, bytes of the device at most over those of the input, and what was compared.

    Raises:
      ArgumentError: fewer elements than a row has.
    """
    import torch

    from lowbit.suite.block_judge import BlockJudge
    from lowbit.suite.judge import Settings

    if elements < COLUMNS:
        raise ArgumentError(f"elements: got {elements}, want {COLUMNS} or more")
    settings = Settings(device=device, level="full", seed=seed, interpreted=interpreted)
    generator = torch.Generator(device=device).manual_seed(seed)

    def judged(rows: int) -> tuple[BlockJudge, float]:
        x = torch.randn((rows, COLUMNS), generator=generator, device=device)
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        judge = BlockJudge(subject, scheme, settings, "bench")
        options = judge.random_options(tuple(x.shape))
        expected = judge.expected(x, **options)
        judge.quantize(x, expected=expected, **options)
        judge.dequantize(packing.pack(expected, scheme), expected, torch.float32)
        if device == "cuda":
            torch.cuda.synchronize()
        return judge, time.perf_counter() - started

    judged(1)  # kernels are compiled, libraries loaded
    judge, seconds = judged(elements // COLUMNS)
    return {
        "elements": elements // COLUMNS * COLUMNS,
        "compared": judge.compared,
        "mismatched": judge.mismatched,
        "seconds": seconds,
        "device": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
    }


if __name__ == "__main__":
    sys.exit(main())
