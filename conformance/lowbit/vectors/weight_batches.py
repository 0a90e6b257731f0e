"""Cases of weights that one call can answer: small ones lie side by side in one larger weight.

A call of a kernel costs the same whatever its size, so that some dozen scales of one kind are one call. A case of flat
blocks that is a part of one block is repeated until the block is full: the same code under the same absmax is the same
weight. Where a shape is what a case is about, and where a term would move, a case stays alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.vectors.case import Weight
from lowbit.vectors.group import Group
from lowbit.weights import WeightScheme

CHANNELS = {"awq": 1, "gptq": 1, "squeezellm": 1, "int8": 0, "nf4": 0, "fp4": 0}
"""The axis of the output along which weights of a family can lie side by side."""

JOINED_ALONG = {"qweight": 1, "qzeros": 1, "scales": 1, "lookup_table": 0, "weight": 0, "scale": 0}
JOINED_ALONG |= {"packed": 0, "absmax": 0}
"""The axis of each stored tensor that this is."""


@dataclass(frozen=True)
class WeightBatch:
    """A stored weight, the answers, and which cases it is made of.

    Attributes:
      names: of the cases.
      axis: along which they lie. ends: where each ends there; empty of a single case.
      tensors: as `weight_tensors.entries` names them, NumPy arrays; bfloat16 as uint16 patterns.
      expected: by output format, the bit patterns of the whole weight; empty where it must be refused.
    """

    names: tuple[str, ...]
    axis: int
    ends: tuple[int, ...]
    tensors: dict[str, Any]
    expected: dict[str, npt.NDArray[Any]]

    def case_at(self, coordinates: Sequence[int]) -> str:
        """The case that a place of the weight belongs to."""
        if len(self.names) == 1:
            return self.names[0]
        return self.names[int(np.searchsorted(self.ends, coordinates[self.axis], side="right"))]


def weight_batches(group: Group, scheme: WeightScheme) -> Iterator[WeightBatch]:
    """The cases of a group of weights, in as few weights as hold them.

    Args:
      scheme: one of `group.schemes`.
    """
    together: dict[tuple[Any, ...], list[Weight]] = {}
    for index, case in enumerate(group.cases):
        assert isinstance(case, Weight)  # by the form
        together.setdefault(_key(case, group, scheme, index), []).append(case)
    for cases in together.values():
        yield _joined(cases, scheme)


def _key(case: Weight, group: Group, scheme: WeightScheme, index: int) -> tuple[Any, ...]:
    """Equal for cases that can be joined."""
    others = scheme.sparse or scheme.full_rows or scheme.nested
    flags = {*case.flags, *group.group_flags}
    if others or case.refused or group.kind == "known_bug" or "shape" in flags:
        return (index,)
    if scheme.family in ("nf4", "fp4"):
        (count,) = case.shape if len(case.shape) == 1 else (0,)
        return case.formats if count and count % 2 == 0 and scheme.group % count == 0 else (index,)
    length = case.shape[1 - CHANNELS[scheme.family]]
    return (length, case.fields.get("scale_format"), str(case.fields.get("g_idx")), case.formats)


def _joined(cases: list[Weight], scheme: WeightScheme) -> WeightBatch:
    first, axis = cases[0], CHANNELS[scheme.family]
    names = tuple(case.name for case in cases)
    tensors = first.tensors(scheme)
    expected = {fmt: first.expected(fmt) for fmt in first.formats}
    if len(cases) == 1:
        return WeightBatch(names, axis, (), tensors, expected)
    stored = [case.tensors(scheme) for case in cases]
    times = [1] * len(cases)
    if "packed" in tensors:
        times = [scheme.group // case.shape[0] for case in cases]
        stored = [{**one, "packed": np.tile(one["packed"], n)} for one, n in zip(stored, times, strict=True)]
    ends = np.cumsum([n * case.shape[axis] for case, n in zip(cases, times, strict=True)]).tolist()
    for name in tensors.keys() & JOINED_ALONG.keys():
        tensors[name] = np.concatenate([one[name] for one in stored], JOINED_ALONG[name])
    if "packed" in tensors:
        tensors["shape"] = (ends[-1],)
    for fmt in expected:
        parts = [case.expected(fmt) for case in cases]
        repeated = [np.tile(part, n) if n > 1 else part for part, n in zip(parts, times, strict=True)]
        expected[fmt] = np.concatenate(repeated, axis)
    return WeightBatch(names, axis, tuple(ends), tensors, expected)
