"""What a comparison returns: exact counts a kind, and a bounded number of samples spread over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowbit import arrays, kinds
from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, FloatFormat


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
    """

    tensor: str
    compared: int
    mismatched: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    message: str = ""

    @property
    def ok(self) -> bool:
        """Nothing differs. Whether anything was compared is `compared`'s to say."""
        return self.mismatched == 0


def failure(kind: str, *, tensor: str, message: str) -> Comparison:
    """One mismatch that is no difference of bits: a wrong shape or dtype, or a call that raised."""
    if kind not in kinds.KINDS:
        raise ArgumentError(f"kind: got {kind!r}, want one of {', '.join(kinds.KINDS)}")
    return Comparison(tensor=tensor, compared=0, mismatched=1, kinds={kind: 1}, message=message)


def merge(comparisons: Iterable[Comparison], *, max_samples: int = 20) -> Comparison:
    """One comparison out of several, read one after another: counts add up, samples are spread again."""
    tensors: dict[str, None] = {}
    messages: dict[str, None] = {}
    compared = mismatched = 0
    counts: dict[str, int] = {}
    samples: list[Sample] = []
    for comparison in comparisons:
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
    )


class Sampler:
    """Counts mismatching places a kind and keeps some of each, bounded, the same on every device.

    Args:
      limit: samples wanted in all.
    """

    def __init__(self, limit: int):
        self.limit = max(limit, 0)
        self.counts: dict[str, int] = {}
        self._kept: dict[str, list[int]] = {}

    def add(self, places: Any, found: Mapping[str, Any]) -> None:
        """Takes mismatching places.

        Args:
          places: (N,) int64, ascending, after all places given before.
          found: kind → (N,) bool; every place is true in exactly one.
        """
        for kind, mask in found.items():
            count = int(mask.sum())
            if count == 0:
                continue
            self.counts[kind] = self.counts.get(kind, 0) + count
            if self.limit:
                ranks = spread(count, self.limit)
                of_kind = places[mask]
                kept = self._kept.setdefault(kind, [])
                kept.extend(arrays.host(arrays.take(of_kind, arrays.place(np.array(ranks), of_kind))).tolist())
                if len(kept) > 64 * self.limit:
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


def read_int(flat: Any, index: int) -> int:
    """One element of a flat integer array."""
    return int(flat[index].item())


def read_input(flat: Any, index: int) -> dict[str, Any]:
    """The fields `x` and `x_bits` of one element of a flat floating array, widened to binary32."""
    value = arrays.host(arrays.widen(flat[index : index + 1]))
    return {"x": float(value[0]), "x_bits": int(value.view("uint32")[0])}


def counted(tensor: str, compared: int, sampler: Sampler, samples: Iterable[Sample]) -> Comparison:
    """The comparison that a sampler has counted."""
    counts = kinds.ordered(sampler.counts)
    return Comparison(tensor, compared, sum(counts.values()), counts, tuple(samples))
