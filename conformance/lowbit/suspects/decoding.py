"""Which single fault, or which two, would explain a wrong decoding of block codes?

Faults are of three kinds, and two of different kinds can be added: in what is read (nibbles, places of scales), in the
arithmetic (values of codes and of scale bytes, the tensor scale), in the last rounding. A fault that reproduces what
the implementation gave, wrong places and right ones, explains all mismatches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lowbit import packing
from lowbit.compare.kinds import value_table, values_differ
from lowbit.diagnose import CHANCE, EXACT_SHARE, SHARE, Diagnosis, Finding
from lowbit.formats import BFLOAT16, BINARY16, E2M1, E3M0, E4M3, E5M2, E8M0, FloatFormat
from lowbit.rules import ScaleLayout
from lowbit.schemes import Encoded, Scheme
from lowbit.suspects.decode_trial import DecodeTable, DecodeTrial, formed, scale_values
from lowbit.suspects.order import LANES, MOVES
from lowbit.suspects.trial import Suspect
from lowbit.suspects.weight_trial import Ints, bits32, floats, through
from lowbit.suspects.weights import roundings

READING, TABLE, ROUNDING = "reading", "table", "rounding"
"""Kinds of faults, in the order in which they happen."""

SAMPLE = 1 << 11
"""Values on which a pair is tried before it is tried on everything."""


def diagnose_values(encoded: Encoded, scheme: Scheme, fmt: FloatFormat, actual: Any, expected: Any) -> Diagnosis | None:
    """Explains wrong values of a block decoder.

    Args:
      encoded: what was decoded, NumPy: codes (..., P), scales (..., P // block) uint8, tensor_scale or None.
      fmt: of the output.
      actual, expected: (..., P) uint16 or uint32. Bit patterns.

    Returns:
      What would explain it, best first; None where nothing differs or shapes do not fit.
    """
    trial = DecodeTrial.of(encoded, scheme, fmt, actual, expected)
    if trial is None:
        return None
    tried, found = trial.wrong(trial.expected), []
    for suspect in suspects(trial):
        guess = suspect.guess(trial)
        if guess is None:
            continue
        finding = Finding(suspect.name, suspect.text, tried, trial.wrong(guess))
        if finding.share >= (EXACT_SHARE if trial.missed(guess) <= CHANCE else SHARE):
            found.append(finding)
    if not any(finding.remaining == 0 for finding in found):
        found += list(_pairs(trial, tried, DecodeTrial.of(encoded, scheme, fmt, actual, expected, limit=SAMPLE)))
    total = int(values_differ(fmt)(np.asarray(actual), np.asarray(expected)).sum())
    return Diagnosis(tuple(sorted(found, key=lambda finding: finding.remaining)), tried, total)


def suspects(trial: DecodeTrial) -> Iterator[Suspect]:
    """All single faults, the likeliest first; each makes (B, block) patterns of a trial."""
    for kind, faults in _kinds(trial.table).items():
        for suspect in faults:
            yield Suspect(suspect.name, suspect.text, partial(_guess, faults={kind: suspect}))


def _kinds(table: DecodeTable) -> dict[str, tuple[Suspect, ...]]:
    return {
        READING: tuple(readings(table.scheme)),
        TABLE: tuple(tables(table)),
        ROUNDING: tuple(roundings(table)),
    }


def _guess(trial: DecodeTrial, faults: Mapping[str, Suspect]) -> Ints | None:
    """What faults of different kinds together would give; None where one of them cannot occur."""
    table, places = trial.table, None
    if TABLE in faults:
        table = replace(table, exact32=faults[TABLE].guess(table))
    patterns = table.expected
    if ROUNDING in faults:  # a rounding's suspect holds what it is made of, so that of this table is looked up
        patterns = next(other for other in roundings(table) if other.name == faults[ROUNDING].name).guess(table)
    if READING in faults and (places := faults[READING].guess(trial)) is None:
        return None
    return trial.read(patterns, places)


def _pairs(trial: DecodeTrial, tried: int, sample: DecodeTrial | None) -> Iterator[Finding]:
    """The pairs of faults of different kinds that explain everything."""
    kinds = _kinds(trial.table)
    for one, other in itertools.combinations(kinds, 2):
        for first in kinds[one]:
            for second in kinds[other]:
                together = partial(_guess, faults={one: first, other: second})
                if all(_explains(part, together) for part in (sample, trial) if part is not None):
                    text = f"{first.text} together with {second.text}"
                    yield Finding(f"{first.name} + {second.name}", text, tried, 0)


def _explains(trial: DecodeTrial, together: Callable[[DecodeTrial], Ints | None]) -> bool:
    guess = together(trial)
    return guess is not None and trial.wrong(guess) == 0


def readings(scheme: Scheme) -> Iterator[Suspect]:
    """Faults in which codes and scales are read: each makes both of a trial."""
    for name, text, order in LANES:
        yield Suspect(name, text, partial(_lanes, order=order))
    for name, text, move in MOVES:
        yield Suspect(name, text.replace("stored", "read"), partial(_moved, move=move))
    text = f"one scale for {2 * scheme.block} elements in place of {scheme.block}"
    yield Suspect("coarse", text, partial(_moved, move=lambda s: s[:, np.arange(s.shape[1]) // 2]))
    if scheme.scale_layout is ScaleLayout.INTERLEAVED:
        yield Suspect("scale_first", "the scale byte read before the codes of its block", _scale_first)


def _lanes(trial: DecodeTrial, order: Callable[[int], Any]) -> tuple[Any, Any]:
    return trial.codes[:, order(trial.table.scheme.block)], trial.scales


def _moved(trial: DecodeTrial, move: Callable[[Any], Any]) -> tuple[Any, Any] | None:
    if trial.grid is None or trial.scales.size < 2:
        return None
    return trial.codes, np.asarray(move(trial.scales.reshape(trial.grid))).reshape(-1, 1)


def _scale_first(trial: DecodeTrial) -> tuple[Any, Any]:
    stream = np.concatenate([packing.pack_nibbles(trial.codes), trial.scales], axis=1)
    return packing.unpack_nibbles(stream[:, 1:]), stream[:, :1]


def tables(table: DecodeTable) -> Iterator[Suspect]:
    """Faults of the arithmetic: each makes another `exact32` of a table."""
    for name, text, values in _values(table.scheme):
        yield Suspect(name, text, partial(_formed, values=values))
    for name, text, scales in _scales(table.scheme):
        yield Suspect(name, text, partial(_formed, scales=scales))
    if table.scheme.family == "nvfp4" and table.g is not None:
        for name, text, change in _TENSOR_SCALES:
            yield Suspect(name, text, partial(_factored, change=change))
        for fmt in (BFLOAT16, BINARY16):
            text = f"value · scale rounded to {fmt.name} before the tensor scale"
            yield Suspect(f"{fmt.name}_first", text, partial(_narrow_first, fmt=fmt))
    if table.scheme.global_scale not in (None, 1):
        yield Suspect("global_scale_forgotten", "the global scale forgotten", partial(_with_global, power=0))
        yield Suspect("global_scale_inverted", "the global scale inverted", partial(_with_global, power=-1))


def _formed(table: DecodeTable, values: Any = None, scales: Any = None) -> Ints:
    return formed(table.scheme, table.g, values=values, scales=scales)


def _values(scheme: Scheme) -> Iterator[tuple[str, str, Any]]:
    """Other values of codes."""
    element, right = scheme.element, value_table(scheme.element)
    codes = np.arange(right.size)
    for other in (E2M1, E3M0):
        if other is not element and other.bits == element.bits:
            yield other.name, f"codes read as {other.name.upper()}", value_table(other)
    half = right.size // 2
    yield "integers", "codes read as two's complement integers", np.where(codes < half, codes, codes - 2 * half) * 1.0
    if element.mantissa_bits:
        magnitude = codes & element.magnitude_mask
        below = magnitude < 1 << element.mantissa_bits
        fraction = 1 + magnitude / (1 << element.mantissa_bits)
        as_normal = np.copysign(fraction * 2.0 ** (element.emin - 1), right)
        text = f"subnormal codes read as normal: 0 as {as_normal[0]:g}, 1 as {as_normal[1]:g}"
        yield "subnormal_normal", text, np.where(below, as_normal, right)
        yield "code_flushed", "subnormal codes read as zero", np.where(below, np.copysign(0.0, right), right)


def _scales(scheme: Scheme) -> Iterator[tuple[str, str, Any]]:
    """Other values of scale bytes."""
    right, byte = scale_values(scheme), np.arange(256)
    if scheme.scale is E8M0:
        for name, text, value in (
            ("byte_zero_is_zero", "scale byte 0 taken for zero", 0.0),
            ("byte_zero_min_normal", "scale byte 0 taken for 2^-126", 2.0**-126),
        ):
            yield name, text, np.where(byte == 0, value, right)
        for name, text, value in (
            ("byte_255_infinite", "scale byte 255 taken for Inf", np.inf),
            ("byte_255_nan", "scale byte 255 taken for NaN", np.nan),
            ("byte_255_zero", "scale byte 255 taken for zero", 0.0),
            ("byte_255_one", "scale byte 255 taken for 1", 1.0),
        ):
            yield name, text, np.where(byte == 255, value, right)
    else:
        magnitude = byte & scheme.scale.magnitude_mask
        yield "scale_sign_lost", "the sign of scale bytes ignored", np.abs(right)
        nan = np.where(magnitude == scheme.scale.nan_magnitude, np.where(byte < 128, 480.0, -480.0), right)
        yield "scale_nan_number", "scale bytes 0x7F and 0xFF read as ±480, not as NaN", nan
        small = magnitude < 1 << scheme.scale.mantissa_bits
        yield "scale_flushed", "subnormal scales read as zero", np.where(small, np.copysign(0.0, right), right)
    for steps in (1, -1, 2, -2):
        text = f"block scales {2 ** abs(steps)} times too {'large' if steps > 0 else 'small'}"
        yield f"scale_shifted_{steps:+}", text, right * 2.0**steps
    for fmt in (E8M0, E4M3, E5M2):
        if fmt is not scheme.scale:
            yield f"scale_{fmt.name}", f"scale bytes read as {fmt.name.upper()}", value_table(fmt)
    yield "scale_integer", "scale bytes read as integers", byte * 1.0
    yield "unscaled", "no block scale: the code's value alone", np.ones(256)


_TENSOR_SCALES: tuple[tuple[str, str, Callable[[Any, Any, Any], Any]], ...] = (
    ("tensor_scale_forgotten", "the tensor scale forgotten", lambda v, s, g: s * v),
    ("tensor_scale_inverted", "the tensor scale inverted: multiplied, not divided by", lambda v, s, g: s * v * g),
    ("tensor_scale_twice", "the tensor scale applied twice", lambda v, s, g: s * v / g / g),
    ("reciprocal", "a reciprocal instead of a division: (value · s) · (1 / g)", lambda v, s, g: s * v * (1 / g)),
    ("scale_ratio", "value · (s / g) instead of (value · s) / g", lambda v, s, g: v * (s / g)),
    ("scale_reciprocal", "value · (s · (1 / g)) instead of (value · s) / g", lambda v, s, g: v * (s * (1 / g))),
    ("value_ratio", "(value / g) · s instead of (value · s) / g", lambda v, s, g: v / g * s),
)
"""Other ways to the tensor scale, each operation rounded to binary32: name, text, and (values, scales, g) -> values."""


def _factored(table: DecodeTable, change: Callable[[Any, Any, Any], Any]) -> Ints:
    v = value_table(table.scheme.element).astype(np.float32)
    s = scale_values(table.scheme).astype(np.float32)[:, None]
    with np.errstate(all="ignore"):
        return bits32(change(v, s, table.g))


def _narrow_first(table: DecodeTable, fmt: FloatFormat) -> Ints:
    with np.errstate(all="ignore"):
        return bits32(floats(through(formed(table.scheme, None), fmt)) / table.g)


def _with_global(table: DecodeTable, power: int) -> Ints:
    factor = float(table.scheme.global_scale or 1) ** (power - 1)
    return formed(table.scheme, table.g, scales=scale_values(table.scheme) * factor)
