"""A wrong decoding of block codes cut down to some of its blocks, on which suspected faults are tried.

A decoded value is an entry of a table of scale bytes and codes. A fault reads other codes or scales, makes another
table, or rounds its entries otherwise, and each of the three can be tried alone or with one of another kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lowbit.compare.kinds import value_table, values_differ
from lowbit.formats import BINARY64, FloatFormat
from lowbit.schemes import Encoded, Scheme
from lowbit.suspects.trial import LIMIT, Bytes, chosen_blocks, scalar
from lowbit.suspects.weight_trial import Ints, bits32, narrowed

MX4_INFINITE = 255
"""The scale byte that MX4 decodes as Inf."""


@dataclass(frozen=True, kw_only=True)
class DecodeTable:
    """Every code under every scale byte.

    Attributes:
      fmt: of the output. g: the factor of the nvfp4 family, None for none.
      exact32: (256, codes) binary32 patterns, from which the output's are rounded.
    """

    scheme: Scheme
    fmt: FloatFormat
    g: np.float32 | None
    exact32: Ints

    @classmethod
    def of(cls, scheme: Scheme, fmt: FloatFormat, g: np.float32 | None) -> DecodeTable:
        return cls(scheme=scheme, fmt=fmt, g=g, exact32=formed(scheme, g))

    @cached_property
    def expected(self) -> Ints:
        """The right patterns of the output's format."""
        return narrowed(self.exact32, self.fmt)


def formed(scheme: Scheme, g: Any, *, values: Any = None, scales: Any = None) -> Ints:
    """(256, codes) binary32 patterns of what codes and scale bytes stand for.

    Args:
      values: (codes,) float64, others than the element's. scales: (256,) float64, others than the scale format's.
    """
    v = value_table(scheme.element) if values is None else values
    s = scale_values(scheme) if scales is None else scales
    with np.errstate(all="ignore"):
        if scheme.family == "nvfp4":
            product = s.astype(np.float32)[:, None] * v.astype(np.float32)
            return bits32(product if g is None else product / np.float32(g))
        if scheme.family == "rtn_xxfp4":
            high = np.float64 if scheme.high is BINARY64 else np.float32
            factor = s.astype(high) * high(float(scheme.global_scale or 1))
            return bits32((factor[:, None] * v.astype(high)).astype(np.float32))
        return bits32((s[:, None] * v).astype(np.float32))


def scale_values(scheme: Scheme) -> Any:
    """(256,) float64. What each scale byte stands for on decoding."""
    found = value_table(scheme.scale).copy()
    if scheme.family == "mx4":
        found[MX4_INFINITE] = np.inf
    return found


@dataclass(frozen=True, kw_only=True)
class DecodeTrial:
    """Some blocks of a wrong decoding.

    Attributes:
      codes: (B, block) uint8. scales: (B, 1) uint8. actual, expected: (B, block) patterns of the output's format.
      grid: the shape (rows, blocks a row) if no block was left out, else None.
    """

    table: DecodeTable
    codes: Bytes
    scales: Bytes
    actual: Ints
    expected: Ints
    grid: tuple[int, int] | None

    @classmethod
    def of(
        cls, encoded: Encoded, scheme: Scheme, fmt: FloatFormat, actual: Any, expected: Any, *, limit: int = LIMIT
    ) -> DecodeTrial | None:
        """The trial of a comparison; None where nothing differs or shapes do not fit.

        Args:
          encoded: NumPy. actual, expected: (..., P) patterns, signed or not.
        """
        actual, expected = (np.asarray(side).view(f"u{fmt.bits // 8}") for side in (actual, expected))
        scales = np.asarray(encoded.scales)
        if actual.shape != expected.shape or actual.size != scales.size * scheme.block or not actual.size:
            return None
        shape = (scales.size, scheme.block)
        wrong = values_differ(fmt)(actual, expected).reshape(shape).any(axis=1)
        places = chosen_blocks(wrong, max(2, limit // scheme.block))
        if places is None:
            return None
        whole = places.size == scales.size
        codes, got, right = (np.asarray(side).reshape(shape)[places] for side in (encoded.codes, actual, expected))
        return cls(
            table=DecodeTable.of(scheme, fmt, scalar(encoded.tensor_scale)),
            codes=codes,
            scales=scales.reshape(-1, 1)[places],
            actual=got.astype(np.int64),
            expected=right.astype(np.int64),
            grid=(scales.size // scales.shape[-1], scales.shape[-1]) if whole else None,
        )

    def read(self, table: Ints, places: tuple[Bytes, Bytes] | None = None) -> Ints:
        """(B, block) entries of a table, at other codes and scales if `places` has some."""
        codes, scales = places or (self.codes, self.scales)
        return table[scales.astype(np.int64), codes.astype(np.int64)]

    def wrong(self, guess: Ints) -> int:
        """In how many places a guess differs from what the implementation gave; NaN by class."""
        return int(values_differ(self.table.fmt)(self.actual, guess).sum())

    def missed(self, guess: Ints) -> float:
        """The part of what a guess changes that is not what the implementation gave."""
        differ = values_differ(self.table.fmt)
        changed = differ(guess, self.expected)
        return float((changed & differ(guess, self.actual)).sum() / max(changed.sum(), 1))
