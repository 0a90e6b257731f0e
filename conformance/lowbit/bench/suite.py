"""One check of the suite on so many random elements: what `checkpoint --suite` measures, in a process of its own.

    python -m lowbit.bench.suite --elements 1e8 --scheme 'mxfp4_*'

A tensor is quantised and dequantised by an implementation and judged whole, as a check of the suite does, under one
scheme after another; the last line that is printed is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from lowbit import implementation, packing, plugin, schemes
from lowbit.errors import ArgumentError, LowbitError, Unsupported
from lowbit.schemes import Scheme

COLUMNS = 4096

SCHEME = "mxfp4_floor"

MOST = 1e15
"""What no number of a command line exceeds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Judges once under every scheme; 1 where something differs, or the implementation declines them all."""
    parser = argparse.ArgumentParser(prog="python -m lowbit.bench.suite", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--elements", type=positive, default=1e7, help="default 1e7")
    parser.add_argument("--scheme", action="append", metavar="GLOB", help=f"repeatable; default {SCHEME}")
    parser.add_argument("--impl", default=implementation.DEFAULT, help="default %(default)s")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=whole_seed, default=20260829)
    given = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    try:
        device, interpreted = plugin.choose_device(given.device, require_gpu=False)
        subject = implementation.load(given.impl)
        for scheme in schemes.select(given.scheme or (SCHEME,)):
            try:
                found.append(measure(subject, scheme, int(given.elements), device, given.seed, interpreted=interpreted))
            except Unsupported as declined:
                print(f"{scheme.name}: unsupported: {declined}", file=sys.stderr)
    except (LowbitError, pytest.UsageError) as error:
        parser.error(str(error))
    if not found:
        return 1
    said = {"elements": found[0]["elements"], "schemes": len(found)}
    said |= {name: sum(one[name] for one in found) for name in ("compared", "mismatched", "seconds")}
    print(json.dumps({**said, "device": max(one["device"] for one in found)}))
    return 1 if said["mismatched"] else 0


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
      Unsupported: the implementation declines the scheme.
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


def positive(text: str) -> float:
    """A number of the command line that must be finite and above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST:
        raise argparse.ArgumentTypeError(f"got {text!r}, want a number above 0, at most {MOST:g}")
    return value


def whole_seed(text: str) -> int:
    """A seed of the command line, as NumPy and torch both take it."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 63:
        raise argparse.ArgumentTypeError(f"got {text!r}, want an integer of 0 or more, below 2^63")
    return value


if __name__ == "__main__":
    sys.exit(main())
