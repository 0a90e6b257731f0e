"""How long comparing many elements with many mismatches takes, and how much memory.

    python -m lowbit.bench.compare --elements 1e9 --mismatches 1e8

Codes and scales of a block scheme are damaged at a known number of places, on the device. The comparison counts,
classes, draws, digests and samples them; what it found is checked against what was damaged. Timed is the whole of
`compare_encoded`, and the record that it becomes. Over idle: after the tensors are there and a small comparison has
run, so that what CUDA and torch load once is not counted.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lowbit import schemes
from lowbit.compare import arrays, compare_encoded
from lowbit.errors import ArgumentError
from lowbit.records import Record
from lowbit.rules import TensorScaleRule
from lowbit.schemes import Encoded, Scheme

COLUMNS = 4096
PIECE = 1 << 22
"""Elements that are made together."""

SCALES = 1000
"""One damaged place of so many is a scale."""

SECONDS, HOST = 60.0, 2 << 30
"""What must not be exceeded: seconds, and bytes of host memory over idle."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; 1 where a count is wrong or a limit is exceeded."""
    import torch

    parser = argparse.ArgumentParser(prog="python -m lowbit.bench.compare", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--elements", type=_number, default=10**9, help="codes compared; default 1e9")
    parser.add_argument("--mismatches", type=_number, default=10**8, help="places that differ; default 1e8")
    parser.add_argument("--scheme", default="mxfp4_floor", help="default %(default)s")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=20260829)
    given = parser.parse_args(arguments)
    device = given.device if given.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = measure(schemes.get(given.scheme), given.elements, given.mismatches, device, given.seed)
    except ArgumentError as error:
        parser.error(str(error))
    for name, value in found.items():
        print(f"{name:<28} {value:,}" if isinstance(value, int) else f"{name:<28} {value}")
    return 0 if found["verdict"] == "ok" else 1


def measure(scheme: Scheme, elements: int, mismatches: int, device: str, seed: int) -> dict[str, Any]:
    """The figures of one comparison, by name, with the verdict.

    Raises:
      ArgumentError: more mismatches than there is place for.
    """
    import torch

    rows = -(-elements // COLUMNS)
    wrong_scales = mismatches // SCALES
    wrong_codes = mismatches - wrong_scales
    if elements < COLUMNS:
        raise ArgumentError(f"elements: got {elements}, want {COLUMNS} or more")
    if wrong_codes > elements or wrong_scales > rows * COLUMNS // scheme.block:
        raise ArgumentError(f"mismatches: got {mismatches}, want at most as many as elements, {elements}")
    x, actual, expected = made(scheme, rows, device, seed)
    _damage(actual.codes, wrong_codes)
    _damage(actual.scales, wrong_scales)
    few, same = (Encoded(side.codes[:1], side.scales[:1], side.tensor_scale) for side in (actual, expected))
    compare_encoded(x[:1], few, same, scheme)
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before_device = torch.cuda.memory_allocated() if on_gpu else 0
    before, exact = _idle()
    started = time.perf_counter()
    comparison = compare_encoded(x, actual, expected, scheme)
    line = json.dumps(Record.of(comparison, scheme=scheme.name, check="bench").as_dict())
    seconds = time.perf_counter() - started
    host = max(_peak(exact) - before, 0)
    drawn = json.loads(line)["pictures"]
    counted = sum(map(sum, drawn["map"]["counts"])) if "map" in drawn else 0
    right = comparison.mismatched == sum(comparison.kinds.values()) == counted == mismatches
    within = seconds <= SECONDS and host <= HOST
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "scheme": scheme.name,
        "elements compared": comparison.compared,
        "mismatches": comparison.mismatched,
        **{f"  {kind}": count for kind, count in comparison.kinds.items()},
        "samples": len(comparison.samples),
        "seconds": f"{seconds:.3f} (limit {SECONDS:.0f})",
        "elements a second": f"{comparison.compared / seconds:.3g}",
        "host peak over idle, MB": f"{host / 1e6:.1f} (limit {HOST / 1e6:.0f}){'' if exact else ', at most'}",
        "device peak over idle, MB": f"{(torch.cuda.max_memory_allocated() - before_device) / 1e6:.1f}"
        if on_gpu
        else "-",
        "elements a piece": arrays.CHUNK,
        "mismatches a piece": arrays.PIECE,
        "bytes of the record": len(line),
        "verdict": "ok" if right and within else "a limit is exceeded" if right else "WRONG COUNTS",
    }


def made(scheme: Scheme, rows: int, device: str, seed: int) -> tuple[Any, Encoded, Encoded]:
    """x (rows, `COLUMNS`) float32 and its codes and scales, twice, all on the device."""
    import torch

    from lowbit.references import tensors

    generator = torch.Generator(device=device).manual_seed(seed)
    x = torch.empty((rows, COLUMNS), device=device)
    codes = torch.empty((rows, COLUMNS), dtype=torch.uint8, device=device)
    scales = torch.empty((rows, COLUMNS // scheme.block), dtype=torch.uint8, device=device)
    scaled = scheme.tensor_scale not in (TensorScaleRule.NONE, TensorScaleRule.GLOBAL_SCALE)
    given: dict[str, Any] = {"tensor_scale": torch.ones(1, device=device)} if scaled else {}
    for part in _slices(rows, PIECE // COLUMNS):
        piece = torch.randn(x[part].shape, generator=generator, device=device)
        piece = torch.where(piece.abs() < 1, (piece * 8).round() / 8, piece)  # ties, and zeros of both signs
        x[part] = piece
        codes[part], scales[part] = tensors.quantize(piece, scheme, **given)[:2]
    scale = given.get("tensor_scale")
    return x, Encoded(codes, scales, scale), Encoded(codes.clone(), scales.clone(), scale)


def _damage(codes: Any, places: int) -> None:
    """Changes so many codes, evenly spread, by 1 … 15 in turn."""
    import torch

    flat = codes.view(-1)
    if places:
        stride = flat.shape[0] // places
        for part in _slices(places, PIECE):
            rank = torch.arange(part.start, part.stop, device=flat.device)
            flat[rank * stride] ^= (rank % 15 + 1).to(torch.uint8)


def _slices(length: int, size: int) -> Iterator[slice]:
    for first in range(0, length, size):
        yield slice(first, min(first + size, length))


def _number(text: str) -> int:
    return int(float(text)) if "e" in text.lower() else int(text)


def _idle() -> tuple[int, bool]:
    """Bytes of host memory in use, and whether the peak counts from here on; else from the start of the process."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # what the C library keeps of freed memory is not in use
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS"), True
    except (OSError, KeyError):
        return _in_use(), False


def _in_use() -> int:
    try:
        return _status("VmRSS")
    except (OSError, KeyError):
        return 0


def _peak(exact: bool) -> int:
    if exact:
        return _status("VmHWM")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields[name].split()[0]) << 10


if __name__ == "__main__":
    sys.exit(main())
