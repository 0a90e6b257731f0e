"""What a comparison returns: exact counts a kind, and a bounded number of samples spread over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

from lowbit.compare import arrays, digest, kinds, pictures
from lowbit.compare.pictures import Pictures
from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, FloatFormat

LISTED: ContextVar[bool] = ContextVar("LISTED", default=False)
"""Whether comparisons keep what they compared, so that every mismatch can be listed (`Comparison.rows`)."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One mismatch, with what a reader needs to work it out by hand.

    Attributes:
      tensor: codes, scales, tensor_scale, or what the caller named.
      coordinates, index: place in that tensor, and the same row-major.
      block, lane: the block along the last dimension, and the place in it; for a scale, the lane of the element of
        largest magnitude. None where there are no blocks.
      x_bits, x: the input: for a code the element, for a scale the element of largest magnitude (or the first NaN),
        for a decoded value the code. None if there is none.
      input: format of the input.
      scale_actual, scale_expected: scale codes of the block.
      actual, expected: the bits that differ.
      format: format of those bits, empty for plain bytes.
      value_actual, value_expected: what the bits decode to, without the scale.
      distance: how many codes apart, None with NaN.
      kind: a key of `kinds.KINDS`.
      rule: the rounding rule that decided, for a tie.
    """

    tensor: str
    coordinates: tuple[int, ...]
    index: int
    actual: int
    expected: int
    kind: str
    block: int | None = None
    lane: int | None = None
    x_bits: int | None = None
    x: float | None = None
    input: str = BINARY32.name
    scale_actual: int | None = None
    scale_expected: int | None = None
    format: str = ""
    value_actual: float | None = None
    value_expected: float | None = None
    distance: int | None = None
    rule: str = ""


@dataclass(frozen=True)
class Comparison:
    """The outcome of comparing one thing, or several merged.

    Attributes:
      tensor: what was compared.
      compared: elements compared; 0 where shape or dtype were wrong.
      mismatched: how many differ, exact. A wrong shape or dtype counts as one.
      kinds: kind → count, gravest first; the counts add up to `mismatched`.
      samples: some of the mismatches, spread over the kinds and through the tensor.
      message: what was wrong with shape or dtype.
      digests: kind → number that stands for exactly these mismatches, see `digest`.
      pictures: counts of where and how it differs, or None. rows: lists every mismatch that has a place, as
        `rows.Rows`, a bounded number together; only while `LISTED`, because it holds the tensors.
    """

    tensor: str
    compared: int
    mismatched: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    message: str = ""
    digests: dict[str, int] = field(default_factory=dict)
    pictures: Pictures | None = field(default=None, repr=False)
    rows: Callable[[], Iterator[Any]] | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Nothing differs. Whether anything was compared is `compared`'s to say."""
        return self.mismatched == 0


def failure(kind: str, *, tensor: str, message: str) -> Comparison:
    """One mismatch that is no difference of bits: a wrong shape or dtype, or a call that raised."""
    if kind not in kinds.KINDS:
        raise ArgumentError(f"kind: got {kind!r}, want one of {', '.join(kinds.KINDS)}")
    digests = {kind: digest.of_text(message)}
    return Comparison(tensor=tensor, compared=0, mismatched=1, kinds={kind: 1}, message=message, digests=digests)


def merge(comparisons: Iterable[Comparison], *, max_samples: int = 20) -> Comparison:
    """One comparison out of several, read one after another: counts add up, samples are spread again."""
    tensors: dict[str, None] = {}
    messages: dict[str, None] = {}
    compared = mismatched = 0
    counts: dict[str, int] = {}
    samples: list[Sample] = []
    parts, drawn, listed = [], [], []
    for comparison in comparisons:
        drawn.append(comparison.pictures)
        listed += [comparison.rows] if comparison.rows else []
        parts.append((comparison.tensor, comparison.kinds, comparison.digests))
        tensors.setdefault(comparison.tensor)
        if comparison.message:
            messages.setdefault(comparison.message)
        compared += comparison.compared
        mismatched += comparison.mismatched
        for kind, count in comparison.kinds.items():
            counts[kind] = counts.get(kind, 0) + count
        samples = thin([*samples, *comparison.samples], max(4 * max_samples, 256))
    return Comparison(
        tensor=" + ".join(tensors),
        compared=compared,
        mismatched=mismatched,
        kinds=kinds.ordered(counts),
        samples=tuple(thin(samples, max_samples)),
        message="; ".join(messages),
        digests=digest.merged(parts),
        pictures=pictures.merged(drawn),
        rows=partial(_all_rows, listed) if listed else None,
    )


def _all_rows(parts: Iterable[Callable[[], Iterator[Any]]]) -> Iterator[Any]:
    return chain.from_iterable(part() for part in parts)


class Sampler:
    """Counts mismatching places a kind and keeps some of each, bounded, the same on every device.

    Args:
      limit: samples wanted in all.
      order: the kinds there are, as `add` numbers them.
    """

    def __init__(self, limit: int, order: tuple[str, ...]):
        self.limit, self.order = max(limit, 0), order
        self.counts: dict[str, int] = {}
        self.digests: dict[str, int] = {}
        self._kept: dict[str, list[int]] = {}

    def add(self, places: Any, kind: Any, actual: Any, expected: Any) -> None:
        """Takes mismatching places. Only the counts, the digests and the places that are kept leave the device.

        Args:
          places: (N,) int64, ascending, after all places given before.
          kind: (N,) int64, places in `order`.
          actual, expected: (N,) integers. The bits there, for the digest.
        """
        xp = arrays.namespace(places)
        counts = arrays.host(xp.bincount(kind, minlength=len(self.order))).tolist()
        hashes = digest.hashes(places, actual, expected)
        sums, kept = [], []
        for rank in filter(counts.__getitem__, range(len(counts))):
            mask = kind == rank
            sums.append(xp.where(mask, hashes, 0).sum())
            ranks = arrays.place(np.array(spread(counts[rank], self.limit), dtype=np.int64), places)
            kept.append(places[xp.searchsorted(xp.cumsum(mask, 0), ranks + 1)])
        totals = arrays.host(xp.stack(sums)).tolist() if sums else []
        chosen = iter(arrays.host(xp.concatenate(kept)).tolist() if kept else [])
        for rank, total in zip(filter(counts.__getitem__, range(len(counts))), totals, strict=True):
            self._keep(self.order[rank], counts[rank], total, chosen)

    def _keep(self, kind: str, count: int, total: int, chosen: Iterator[int]) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.digests[kind] = (self.digests.get(kind, 0) + total) % digest.WIDTH
        kept = self._kept.setdefault(kind, [])
        kept.extend(islice(chosen, min(count, self.limit)))
        if len(kept) > 64 * max(self.limit, 1):
            self._kept[kind] = [kept[rank] for rank in spread(len(kept), 32 * self.limit)]

    def chosen(self) -> list[tuple[str, int]]:
        """(kind, place) of the samples, gravest kind first, each kind's first mismatch and then ascending."""
        return [
            (kind, self._kept[kind][rank])
            for kind, share in shares({kind: len(kept) for kind, kept in self._kept.items()}, self.limit).items()
            for rank in spread(len(self._kept[kind]), share)
        ]


def spread(count: int, limit: int) -> list[int]:
    """At most `limit` of 0 … count - 1, evenly spaced, the first and (from two on) the last among them."""
    if count <= limit:
        return list(range(count))
    return [0] if limit == 1 else [i * (count - 1) // (limit - 1) for i in range(limit)]


def shares(counts: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many samples each kind gets: an equal share, and what a rarer kind leaves goes to the others."""
    order = kinds.ordered(counts)
    given = dict.fromkeys(order, 0)
    left = limit
    while left > 0 and (open_kinds := [kind for kind in order if given[kind] < order[kind]]):
        for kind in open_kinds[:left]:
            step = min(max(left // len(open_kinds), 1), order[kind] - given[kind])
            given[kind] += step
        left = limit - sum(given.values())
    return given


def thin(samples: list[Sample], limit: int) -> list[Sample]:
    """At most `limit` samples, spread over the kinds and through each."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.kind, []).append(sample)
    return [
        groups[kind][rank]
        for kind, share in shares({kind: len(group) for kind, group in groups.items()}, limit).items()
        for rank in spread(len(groups[kind]), share)
    ]


def unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Coordinates of a row-major index; any size, in Python's integers."""
    coordinates = []
    for length in reversed(shape):
        index, place = divmod(index, length)
        coordinates.append(place)
    return tuple(reversed(coordinates))


def coded(fmt: FloatFormat, actual: int, expected: int) -> dict[str, Any]:
    """The fields of a sample that follow from two codes of a format."""
    top = 1 << fmt.bits
    return {
        "actual": actual,
        "expected": expected,
        "format": fmt.name,
        "value_actual": float(fmt.value(actual)) if actual < top else None,
        "value_expected": float(fmt.value(expected)) if expected < top else None,
        "distance": kinds.distance(actual, expected, fmt),
    }
