"""Parts of which the content of weights is made: groups and answers, scales at edges, places where roundings show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import weights
from lowbit.cases.weight_parts import as_stored
from lowbit.errors import ArgumentError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import weights_bits
from lowbit.references.bits_rounding import narrow
from lowbit.vectors import draws
from lowbit.vectors.payload import Draft, Raw, draft
from lowbit.vectors.weight_text import write_answer, write_weight
from lowbit.weights import WeightScheme

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

EVERY = (BINARY16, BFLOAT16, BINARY32)
HALF = (BINARY16,)
SIXTEEN = (BINARY16, BFLOAT16)


@dataclass(frozen=True)
class StoredWeight:
    """A stored weight to be answered.

    Attributes:
      name: unique in its topic.
      arrays: as `weight_tensors.entries` names them.
      shape: of the output.
      formats: of the outputs that the case states.
      refused: why it must be refused, where it must; it has no formats then.
    """

    name: str
    arrays: dict[str, Any]
    shape: tuple[int, ...]
    flags: tuple[str, ...] = ()
    formats: tuple[FloatFormat, ...] = EVERY
    refused: str = ""


def topic(
    scheme: str, name: str, items: Iterable[StoredWeight], flags: Sequence[str], also: Sequence[str] = ()
) -> Iterator[Draft]:
    """One group of a scheme's file.

    Args:
      also: further schemes under which every answer is the same.
    """
    found = weights.get(scheme)
    yield draft(
        f"schemes/{scheme}/weights.json",
        f"{scheme}/{name}",
        "weights",
        "weights",
        [answered(item, found) for item in items],
        scheme=scheme,
        source=found.cites,
        flags=flags,
        also=list(also) or None,
    )


def answered(item: StoredWeight, scheme: WeightScheme) -> Raw:
    """A case: the weight, and what a reference gives in each format."""
    fields: Raw = {"name": item.name, **write_weight(item.arrays, scheme, item.shape)}
    if item.flags:
        fields["flags"] = list(item.flags)
    if item.refused:
        fields["refused"] = item.refused
    for fmt in item.formats:
        fields[fmt.name] = write_answer(weights_bits.dequantize(item.arrays, scheme, fmt), fmt)
    return fields


# -- scales


def edges(fmt: FloatFormat) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Scales at the edges of a format: name → pattern, flags."""
    normal, one, infinity = 1 << fmt.mantissa_bits, fmt.bias << fmt.mantissa_bits, fmt.max_magnitude + 1
    minus = fmt.sign_mask
    return {
        "0": (0, ("scale_zero",)),
        "-0": (minus, ("scale_zero", "scale_negative")),
        "the least subnormal": (1, ("scale_subnormal",)),
        "minus three times the least": (minus | 3, ("scale_subnormal", "scale_negative")),
        "the greatest subnormal": (normal - 1, ("scale_subnormal",)),
        "the least normal": (normal, ()),
        "above the least normal, negative": (minus | normal | 1, ("scale_negative",)),
        "below 1": (one - 1, ()),
        "1": (one, ()),
        "above 1, negative": (minus | one | 1, ("scale_negative",)),
        "the greatest": (infinity - 1, ("overflow",)),
        "the greatest, negative": (minus | infinity - 1, ("overflow", "scale_negative")),
        "Inf": (infinity, ("scale_not_finite",)),
        "-Inf": (minus | infinity, ("scale_not_finite", "scale_negative")),
        "a quiet NaN": (infinity | normal >> 1, ("scale_not_finite",)),
        "a signalling NaN, negative": (minus | infinity | 1, ("scale_not_finite", "scale_negative")),
    }


def numbered(count: int, fmt: FloatFormat, *, period: int = 61) -> Ints:
    """Patterns of the integers from 1 on, that say their place and scale without rounding."""
    return patterns_of(1.0 + np.arange(count) % period, fmt)


def patterns_of(values: Any, fmt: FloatFormat) -> Ints:
    """The patterns of numbers, rounded to the format."""
    return np.asarray(narrow(np.asarray(values, np.float64), fmt), np.int64)


def values_of(patterns: Any, fmt: FloatFormat) -> Floats:
    """The values of patterns."""
    found = np.asarray(patterns).astype(np.int64)
    wide = as_stored(found << 16, BINARY32) if fmt is BFLOAT16 else as_stored(found, fmt)
    return np.asarray(wide, np.float64)


def rounded(values: Floats, fmt: FloatFormat) -> Floats:
    """Doubles as a format holds them."""
    return values_of(narrow(values, fmt), fmt)


def is_tie(values: Floats, fmt: FloatFormat) -> npt.NDArray[np.bool_]:
    """Which doubles lie exactly midway between two neighbours of a format."""
    nudge = np.abs(values) * 2.0**-40
    low, high = rounded(values - nudge, fmt), rounded(values + nudge, fmt)
    return np.isfinite(low) & np.isfinite(high) & (low != high) & (values - low == high - values)


def scale_patterns(name: str, count: int, fmt: FloatFormat) -> Ints:
    """Positive scales of real size, drawn: magnitudes from 2**-10 to 4."""
    drawn = draws.words(name, count).astype(np.int64)
    exponents = fmt.bias - 10 + (drawn >> 24) % 12
    return exponents << fmt.mantissa_bits | drawn & ((1 << fmt.mantissa_bits) - 1)


def chosen(mask: npt.NDArray[np.bool_], count: int) -> Ints:
    """The first places where the mask holds.

    Raises:
      ArgumentError: there are too few; more must be drawn.
    """
    places = np.flatnonzero(mask)
    if places.size < count:
        raise ArgumentError(f"mask: got {places.size} places where it holds, want {count}")
    return places[:count]
