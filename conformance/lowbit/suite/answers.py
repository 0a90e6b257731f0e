"""Judging against answers that stand in a file or were written by hand, rather than against the references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lowbit import packing
from lowbit.cases import blocks as cases
from lowbit.cases.known_bugs import KnownBug
from lowbit.compare import compare_bytes, compare_codes, compare_values
from lowbit.implementation import Quantized
from lowbit.rules import Rounding
from lowbit.schemes import Encoded
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.convert import as_bytes
from lowbit.suite.judge import DTYPES

CASES_NAMED = 4
"""Cases named in a message."""


def given(judge: BlockJudge, value: Any) -> Any:
    """An array of a file as a tensor on the device; a scalar as a tensor of one element; anything else as it is."""
    if isinstance(value, np.floating):
        value = np.array([value], dtype=np.float32)
    return judge.tensor(value) if isinstance(value, np.ndarray) else value


def quantize_golden(
    judge: BlockJudge, x: torch.Tensor, expected: Encoded, names: tuple[str, ...], **options: Any
) -> None:
    """Judges `quantize` on rows whose answers stand in a file; a mismatch names the cases."""
    result = judge.implementation.call("quantize", x, judge.scheme, **options)
    if not judge.compare_quantized(x, result, expected, **options):
        note_cases(judge, names)


def note_cases(judge: BlockJudge, names: Sequence[str]) -> None:
    """Names the cases of the rows in which the last comparison found mismatches."""
    last = judge.comparisons[-1]
    places = (s.coordinates[0] if s.coordinates else 0 for s in last.samples)  # a tensor scale has no coordinates
    rows = dict.fromkeys(place for place in places if place < len(names))
    if rows:
        cut = " …" if len(rows) > CASES_NAMED else ""
        found = ", ".join(names[row] for row in list(rows)[:CASES_NAMED])
        judge.notes.append(f"cases of {', '.join(judge.parts)}: {found}{cut}")


def decodes_to_patterns(
    judge: BlockJudge, quantized: Quantized, dtype: torch.dtype, patterns: np.ndarray, names: Sequence[str]
) -> None:
    """Judges `dequantize` against bit patterns of that dtype; a mismatch names the cases, one a row."""
    actual = judge.implementation.call("dequantize", quantized, judge.scheme, dtype)
    width = np.dtype(f"u{dtype.itemsize}")
    expected = judge.tensor(patterns.astype(width).view(f"i{dtype.itemsize}")).view(dtype)
    limit = judge.settings.max_mismatches
    if not judge.add(compare_values(actual, expected, tensor=DTYPES[dtype].name, max_samples=limit)):
        note_cases(judge, names)


def scales_of(
    judge: BlockJudge, amax: torch.Tensor, expected: torch.Tensor, names: Sequence[str] = (), **options: Any
) -> None:
    """Judges the scale codes of blocks whose only nonzero element is amax: (N,) int64 patterns, (N,) uint8."""
    x = torch.zeros((len(amax), judge.scheme.block), dtype=torch.int32, device=amax.device)
    x[:, 0] = amax.to(torch.int32)
    if judge.scheme.rounding is Rounding.STOCHASTIC:  # scales do not depend on it
        options["random_bits"] = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    result = judge.implementation.call("quantize", x.view(torch.float32), judge.scheme, **options)
    _, scales = packing.split(as_stored(result), judge.scheme)
    limit = judge.settings.max_mismatches
    if not judge.add(compare_bytes(scales, expected[:, None], tensor="scales", max_samples=limit)):
        note_cases(judge, names)


def elements_are(
    judge: BlockJudge, patterns: np.ndarray, codes: np.ndarray, *, random_bytes: np.ndarray | None = None
) -> None:
    """Judges elements in blocks of scale 1 beside a pin; NaN in blocks of nothing else.

    Args:
      patterns: (N,) uint32, binary32. codes: (N,) uint8.
      random_bytes: (N,) uint8, of each element under stochastic rounding; None for zeros.
    """
    pin = cases.pins(judge.scheme)[0]
    if random_bytes is None:
        random_bytes = np.zeros(len(patterns), dtype=np.uint8)
    magnitudes = patterns & np.uint32(0x7FFFFFFF)
    options: dict[str, Any] = {}
    if pin.tensor_scale is not None:
        options["tensor_scale"] = judge.tensor(np.array([pin.tensor_scale], dtype=np.float32))
    for kept, pinned in ((magnitudes <= pin.amax, True), (magnitudes > cases.INFINITY, False)):
        if not kept.any():
            continue
        lanes = judge.scheme.block - pinned
        shape = -(-int(kept.sum()) // lanes), lanes
        # the last row repeats the first values
        x, right, randoms = (np.resize(part[kept], shape) for part in (patterns, codes, random_bytes))
        wide = np.pad(x, ((0, 0), (0, int(pinned))), constant_values=pin.amax)
        given = {name: torch.zeros_like(bits) for name, bits in judge.random_options(wide.shape).items()}
        if "random_bits" in given:
            given["random_bits"] = judge.tensor(np.pad(randoms, ((0, 0), (0, int(pinned)))))
        result = judge.implementation.call(
            "quantize", judge.tensor(cases.floats(wide)), judge.scheme, **options, **given
        )
        actual = packing.unpack(as_stored(result), judge.scheme).codes[:, :lanes].contiguous()
        judge.add(
            compare_codes(
                judge.tensor(cases.floats(x)).reshape(-1),
                actual.reshape(-1),
                judge.tensor(right).reshape(-1),
                judge.scheme.element,
                max_samples=judge.settings.max_mismatches,
            )
        )


def encodes_to(judge: BlockJudge, patterns: torch.Tensor, expected: torch.Tensor) -> None:
    """Judges `encode` on (N,) int64 patterns against (N,) uint8 codes."""
    x = torch.where(patterns >= 1 << 31, patterns - (1 << 32), patterns).to(torch.int32).view(torch.float32)
    actual = judge.implementation.call("encode", x, judge.scheme.element, judge.scheme.rounding)
    limit = judge.settings.max_mismatches
    judge.add(compare_codes(x, as_bytes(actual), expected, judge.scheme.element, max_samples=limit))


def as_stored(result: Any) -> Quantized:
    """What an implementation returned, one-byte dtypes as uint8."""
    return Quantized(*(as_bytes(part) for part in result))


def states(judge: BlockJudge, result: Any, x: torch.Tensor, case: KnownBug) -> None:
    """Compares the last block of x with codes and scale written by hand."""
    encoded = packing.unpack(as_stored(result), judge.scheme)
    states_codes(
        judge, encoded.scales.cpu().numpy()[0, -1:], np.array([case.scale], dtype=np.uint8), "scale as written"
    )
    if case.codes is not None:
        codes = encoded.codes.cpu().numpy()[0, -judge.scheme.block :]
        right = np.zeros(judge.scheme.block, dtype=np.uint8)
        right[: len(case.codes)] = case.codes
        states_codes(judge, codes, right, f"codes as written (reported wrong: {case.seen})")


def states_codes(judge: BlockJudge, actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Compares with values written by hand."""
    judge.add(compare_bytes(actual, expected, tensor=what, max_samples=judge.settings.max_mismatches))


def decodes_to(judge: BlockJudge, quantized: Quantized, value: float) -> None:
    """Every element of the decoded tensor is that float32 value, by bits; NaN by class."""
    actual = judge.implementation.call("dequantize", quantized, judge.scheme, torch.float32)
    judge.add(compare_values(actual, torch.full_like(actual, value), tensor="values as written"))
