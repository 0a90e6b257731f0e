"""Which single fault, or which two, would explain a wrong dequantised weight?

The reference's steps are run again, at some places of the weight, under every fault of a table. A fault that
reproduces what the implementation gave, wrong places and right ones, explains all mismatches; others are told with
their share. What only one kind of scheme can have is in `integers`, `codebooks` and `tables`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from lowbit.compare.kinds import values_differ
from lowbit.diagnose import CHANCE, EXACT_SHARE, SHARE, Diagnosis, Finding
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.suspects import codebooks, integers, tables
from lowbit.suspects.decode_trial import DecodeTable
from lowbit.suspects.fields import TILES
from lowbit.suspects.trial import Suspect
from lowbit.suspects.weight_pairs import pairs
from lowbit.suspects.weight_trial import (
    BlockTrial,
    ChannelTrial,
    IntegerTrial,
    Ints,
    Mask,
    TableTrial,
    WeightTrial,
    narrowed,
)
from lowbit.weights import WeightScheme


def diagnose_weight(
    tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat, actual: Any, expected: Any
) -> Diagnosis | None:
    """Explains a wrong dequantised weight.

    Args:
      tensors: the stored ones, NumPy arrays; bfloat16 as uint16.
      fmt: of the output.
      actual, expected: uint16 or uint32 of the weight's shape. Bit patterns.

    Returns:
      What would explain it, best first; None where nothing differs or shapes do not fit.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    trial = WeightTrial.of(tensors, scheme, fmt, actual, expected) if actual.shape == expected.shape else None
    if trial is None:
        return None
    tried = trial.wrong(trial.expected)
    found: list[Finding] = []
    singles: list[tuple[Suspect, int]] = []
    own = list(suspects(trial))
    for group in (own, roundings(trial), tails(trial)):
        for suspect in group:
            guess = suspect.guess(trial)
            if guess is None:
                continue
            finding = Finding(suspect.name, suspect.text, tried, trial.wrong(guess))
            if group is own:
                singles.append((suspect, finding.remaining))
            if finding.share >= (EXACT_SHARE if trial.missed(guess) <= CHANCE else SHARE):
                found.append(finding)
        if any(finding.remaining == 0 for finding in found):
            break
    else:
        for first, second in pairs(trial, singles, roundings):
            text = f"{first.text} together with {second.text}"
            found.append(Finding(f"{first.name} + {second.name}", text, tried, 0))
    total = int(values_differ(fmt)(actual, expected).sum())
    return Diagnosis(tuple(sorted(found, key=lambda finding: finding.remaining)), tried, total)


def suspects(trial: WeightTrial) -> Iterator[Suspect]:
    """The faults of the scheme's own kind, the likeliest first."""
    match trial:
        case IntegerTrial():
            return integers.suspects(trial)
        case BlockTrial():
            return codebooks.of_blocks(trial)
        case ChannelTrial():
            return codebooks.of_channels(trial)
        case TableTrial():
            return tables.suspects(trial)
    raise AssertionError(f"no suspects of {type(trial).__name__}")


def roundings(trial: WeightTrial | DecodeTable) -> Iterator[Suspect]:
    """Faults of the last step, which any scheme can have, of weights and of blocks."""
    fmt, wide, right = trial.fmt, trial.exact32, trial.expected
    magnitude, sign = right & fmt.magnitude_mask, right & fmt.sign_mask
    infinity = fmt.max_magnitude + 1
    finite = (wide & BINARY32.magnitude_mask) <= BINARY32.max_magnitude
    for first in (BINARY16, BFLOAT16):
        if first is not fmt:
            text = f"results rounded to {first.name} before {fmt.name}"
            yield Suspect(f"through_{first.name}", text, partial(_through, first=first))
    places: tuple[tuple[str, str, Mask, Ints], ...] = (
        (
            "saturated",
            f"overflow to the greatest finite value of {fmt.name}, not to ±Inf",
            (magnitude == infinity) & finite,
            sign | fmt.max_magnitude,
        ),
        ("zero_sign", "the sign of zeros lost", magnitude == 0, np.zeros_like(right)),
        ("flushed", f"subnormals of {fmt.name} flushed to zero", magnitude < 1 << fmt.mantissa_bits, sign),
        ("nan_zero", "0 in place of NaN", magnitude > infinity, np.zeros_like(right)),
        ("sign_lost", "all signs lost", magnitude <= infinity, magnitude),
        ("negated", "all signs inverted", magnitude <= infinity, right ^ fmt.sign_mask),
    )
    for name, text, where, changed in places:
        yield Suspect(name, text, partial(_changed, where=where, changed=changed))
    if fmt is not BINARY32:
        up = (narrowed(right, BINARY32, fmt) & BINARY32.magnitude_mask) > (wide & BINARY32.magnitude_mask)
        guess = partial(_changed, where=up & finite, changed=right - 1)
        yield Suspect("truncated", "results truncated toward zero", guess)
        half = 1 << (BINARY32.mantissa_bits - fmt.mantissa_bits - 1)
        normal = (magnitude >= 1 << fmt.mantissa_bits) & (magnitude < infinity)
        tie = normal & ~up & ((wide & (2 * half - 1)) == half)
        yield Suspect("ties_away", "results with ties away from zero", partial(_changed, where=tie, changed=right + 1))


def _through(trial: WeightTrial | DecodeTable, first: FloatFormat) -> Ints:
    return narrowed(narrowed(trial.exact32, first), trial.fmt, first)


def _changed(trial: WeightTrial | DecodeTable, where: Mask, changed: Ints) -> Ints:
    return np.where(where, changed, trial.expected)


def tails(trial: WeightTrial) -> Iterator[Suspect]:
    """The last tile of a loop or of the grid wrong, and all else right: the place of the mismatches alone says so."""
    shape = trial.shape
    counts = [("elements", trial.places, math.prod(shape))]
    if len(shape) == 2:
        counts += [("rows", trial.row, shape[0]), ("columns", trial.column, shape[1])]
    for name, place, count in reversed(counts):
        seen = set()
        for tile in (2, 8, *TILES, 512, 1024):
            start = (count - 1) // tile * tile
            if start > 0 and start not in seen and 2 * (count - start) <= count:
                seen.add(start)
                text = f"the tail of the {name} wrong, from {start} of {count} on, and all before it right"
                yield Suspect(f"{name}_tail_{tile}", text, partial(_tail, tail=place >= start))


def _tail(trial: WeightTrial, tail: Mask) -> Ints | None:
    """What was given in the tail, if most of that is wrong and nothing else."""
    wrong = values_differ(trial.fmt)(trial.actual, trial.expected)
    if not tail.any() or wrong[tail].mean() < SHARE or wrong[~tail].any():
        return None
    return np.where(tail, trial.actual, trial.expected)
