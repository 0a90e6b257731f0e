"""Scale codes by the block's amax: complete tables, every E4M3 tie, and the numbers on which libraries part ways."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from lowbit import schemes
from lowbit.formats import E4M3
from lowbit.rules import NanCode, Rounding, ScaleRule, TensorScaleRule
from lowbit.schemes import Scheme
from lowbit.vectors.content_formats import first_pattern
from lowbit.vectors.hextext import patterns, word
from lowbit.vectors.payload import Draft, Raw, draft
from lowbit.vectors.steps import GIVEN, INFINITY, LARGEST, LAST_NAN, ONE, rows_of, scale_codes

ONE_PATTERN = word(patterns(np.array([ONE]))[0])


def build() -> Iterator[Draft]:
    """The tables of every deterministic rule, under the first scheme that has it; the other schemes stand in `also`."""
    for scheme, also in deciding():
        given = ONE_PATTERN if scheme.tensor_scale in GIVEN else None
        yield draft(
            f"schemes/{scheme.name}/scale.json",
            f"{scheme.name}/scale",
            "scale",
            "rows",
            [_row(*row) for row in table(scheme)],
            scheme=scheme.name,
            also=[other.name for other in also] or None,
            tensor_scale=given,
            source=scheme.cites,
            flags=("complete", "scale_table", *(("given_tensor_scale",) if given else ())),
        )
        if scheme.family == "nvfp4":
            yield draft(
                f"schemes/{scheme.name}/scale.json",
                f"{scheme.name}/scale_ties",
                "scale",
                "rows",
                [_row(p, p, code) for p, code in ties(scheme)],
                scheme=scheme.name,
                also=[other.name for other in also] or None,
                tensor_scale=given,
                source=scheme.cites,
                flags=("e4m3_tie", "scale_table", *(("given_tensor_scale",) if given else ())),
            )


def deciding() -> list[tuple[Scheme, list[Scheme]]]:
    """The first scheme of each deterministic scale rule, with the others that have the same scales.

    Two schemes have the same scales if they differ in the rounding of elements, the code of NaN, the number of
    elements and names only.
    """
    found: dict[Scheme, list[Scheme]] = {}
    for scheme in schemes.select():
        if scheme.scale_rule is ScaleRule.STOCHASTIC:
            continue
        key = replace(
            scheme, name="", cites="", canonical=False, block=2, rounding=Rounding.TIES_TO_EVEN, nan=NanCode.ZERO
        )
        found.setdefault(key, []).append(scheme)
    return [(same[0], same[1:]) for same in found.values()]


def table(scheme: Scheme) -> list[tuple[int, int, int]]:
    """Every magnitude of a block's amax, NaN included: first pattern, last pattern, scale code."""
    codes = scale_codes(scheme)
    parts = ((0, LARGEST), (INFINITY, INFINITY), (INFINITY + 1, LAST_NAN))
    return [row for first, last in parts for row in rows_of(codes, first, last)]


def ties(scheme: Scheme) -> list[tuple[int, int]]:
    """Every amax of which a sixth is midway between two E4M3 values, and its two neighbours: pattern, scale code."""
    middles = [(low + high) / 2 for low, high in itertools.pairwise(E4M3.magnitudes)]
    at = [first_pattern(6 * middle, above=False) for middle in middles]
    points = sorted({p for tie in at for p in (tie - 1, tie, tie + 1)})
    return list(zip(points, scale_codes(scheme)(np.array(points, np.uint32)).tolist(), strict=True))


WITNESSES: tuple[tuple[str, Fraction, Fraction, tuple[str, ...]], ...] = (
    ("tensor amax 6, block amax 4.5", Fraction(6), Fraction(9, 2), ("not_transformer_engine",)),
    ("tensor amax 7, block amax 5.75", Fraction(7), Fraction(23, 4), ("not_torchao",)),
    ("tensor amax 7, block amax 6.25", Fraction(7), Fraction(25, 4), ("not_mslk_imprecise",)),
)
"""Name, tensor amax, block amax, the libraries that give another scale byte (SPEC.md 6)."""

QUOTIENTS: tuple[tuple[str, float, float, float, tuple[str, ...]], ...] = (
    ("g 448, scale 128, x 1", 448.0, 12 / 7, 1.0, ("not_torchao", "not_transformer_engine", "not_fbgemm")),
    ("g 512, scale 240, x 2.34375", 512.0, 2.8125, 2.34375, ("reciprocal",)),
    ("g 1, scale 0.9375, x 4.6875", 1.0, 5.625, 4.6875, ("reciprocal",)),
    ("g 1, scale 1.875, x 4.6875", 1.0, 11.25, 4.6875, ("reciprocal",)),
)
"""Name, given g, block amax, the element in question, the flags of the case (SPEC.md 6)."""


def dialect_inputs(scheme: Scheme) -> Iterator[tuple[str, np.ndarray, float | None, tuple[str, ...]]]:
    """Tensors on which other orders of operations give other bytes: name, x, given g, flags."""
    if scheme.tensor_scale in GIVEN:
        for name, tensor, block, flags in WITNESSES:
            x = np.zeros((1, 2 * scheme.block), np.float32)
            x[0, 0], x[0, scheme.block] = float(tensor), float(block)
            yield name, x, None, ("dialect", *flags)
    for name, g, amax, value, flags in QUOTIENTS:
        if scheme.tensor_scale not in GIVEN and g != 1:
            continue
        x = np.zeros((1, scheme.block), np.float32)
        x[0, :3] = amax, value, -value
        yield name, x, g if scheme.tensor_scale in GIVEN else None, ("dialect", *flags)


def has_dialects(scheme: Scheme) -> bool:
    """Whether `dialect_inputs` are about the scheme."""
    return scheme.family == "nvfp4" and scheme.tensor_scale is not TensorScaleRule.NONE


def _row(first: int, last: int, code: int) -> Raw:
    return {"first": word(first), "last": word(last), "code": f"{code:02x}"}
