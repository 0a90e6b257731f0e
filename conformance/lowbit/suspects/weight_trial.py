"""A wrong weight cut down to some of its places, on which suspected faults are tried.

Every fault is a function of a place's code, zero point, group and scale, so any places may be left out. The pieces are
read here once more, place by place, with every step open to a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.compare.comparison import spread
from lowbit.compare.kinds import values_differ
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references.bits_numbers import Numbers, of_integers, of_patterns, product, to_patterns
from lowbit.rules import Arithmetic, OutputRounding, ZeroPoint
from lowbit.suspects.fields import Ints, gather
from lowbit.weights import SCB_FACTOR, WeightScheme, WordPacking

LIMIT = 1 << 14
"""Places tried: half of them wrong, half right, if there are so many."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class WeightTrial:
    """Some places of a wrong weight.

    Attributes:
      tensors: NumPy arrays, bfloat16 as uint16. fmt: of the output. shape: of all of it.
      places: (P,) flat, ascending. actual, expected: (P,) patterns there.
      fixed: parts of `result` that a first fault has changed. asked: what parts are given to `result`, if it is told.
    """

    tensors: Mapping[str, Any]
    scheme: WeightScheme
    fmt: FloatFormat
    shape: tuple[int, ...]
    places: Ints
    actual: Ints
    expected: Ints
    fixed: Mapping[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] | None = None

    @classmethod
    def of(
        cls, tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat, actual: Any, expected: Any
    ) -> WeightTrial | None:
        """The trial of a comparison; None where nothing differs."""
        got, right = (np.asarray(side).reshape(-1) for side in (actual, expected))
        wrong = values_differ(fmt)(got, right)
        if not wrong.any():
            return None
        places = chosen(wrong)
        kind = {
            "awq": IntegerTrial,
            "gptq": IntegerTrial,
            "nf4": BlockTrial,
            "fp4": BlockTrial,
            "int8": ChannelTrial,
        }.get(scheme.family, TableTrial)
        sides = (side[places].astype(np.int64) for side in (got, right))
        shape = tuple(np.shape(expected))
        first, second = sides
        return kind(tensors=tensors, scheme=scheme, fmt=fmt, shape=shape, places=places, actual=first, expected=second)

    def wrong(self, guess: Any) -> int:
        """In how many places a guess differs from what the implementation gave; NaN by class."""
        return int(values_differ(self.fmt)(self.actual, guess).sum())

    def missed(self, guess: Any) -> float:
        """The part of what a guess changes that is not what the implementation gave."""
        differ = values_differ(self.fmt)
        changed = differ(guess, self.expected)
        return float((changed & differ(guess, self.actual)).sum() / max(changed.sum(), 1))

    def result(self) -> Ints:
        """What the scheme says, at the places: the same as `expected`, or no guess is worth anything."""
        raise NotImplementedError

    def parts(self, **given: Any) -> dict[str, Any]:
        """The parts of a result: those that are given, and of the others those that are fixed."""
        changed = {name: part for name, part in given.items() if part is not None}
        if self.asked is not None:
            self.asked.update(changed)
        return {**dict.fromkeys(given), **self.fixed, **changed}

    @cached_property
    def exact32(self) -> Ints:
        """The same for a binary32 output: what a narrower one is rounded from."""
        return replace(self, fmt=BINARY32).result()

    @cached_property
    def row(self) -> Ints:
        return self.places // max(self.shape[-1], 1)

    @cached_property
    def column(self) -> Ints:
        return self.places % max(self.shape[-1], 1)


class IntegerTrial(WeightTrial):
    """AWQ and GPTQ: scale * (q - zero)."""

    @cached_property
    def source(self) -> FloatFormat:
        return format_of(self.tensors["scales"])

    @cached_property
    def rows(self) -> int:
        return self.shape[0]

    @cached_property
    def groups(self) -> int:
        return int(self.tensors["scales"].shape[0])

    @cached_property
    def group(self) -> Ints:
        return self.group_of(self.row)

    def group_of(self, row: Ints) -> Ints:
        given = self.tensors.get("g_idx")
        return row // self.scheme.group_size(self.rows) if given is None else np.asarray(given, np.int64)[row]

    def code(self, packing: WordPacking | None = None) -> Ints:
        if packing is None and "code" in self.fixed:
            return np.asarray(self.fixed["code"])
        return gather(self.tensors["qweight"], packing or self.scheme.packing, self.row, self.column)

    def zero_field(self, group: Ints | None = None, packing: WordPacking | None = None, words: Any = None) -> Ints:
        """What is stored of the zero point."""
        found = packing or self.scheme.zero_packing
        assert found is not None  # both families have zero points
        source = self.tensors["qzeros"] if words is None else words
        return gather(source, found, self.group if group is None else group, self.column)

    def zero(self, group: Ints | None = None, packing: WordPacking | None = None) -> Ints:
        if group is None and packing is None and "zero" in self.fixed:
            return np.asarray(self.fixed["zero"])
        stored = self.zero_field(group, packing)
        stored_less_one = self.scheme.zero is ZeroPoint.STORED_MINUS_ONE
        return (stored + 1) % (1 << self.scheme.bits) if stored_less_one else stored

    def scale(self, group: Ints | None = None) -> Ints:
        """Bit patterns."""
        if group is None and "scale" in self.fixed:
            return np.asarray(self.fixed["scale"])
        return patterns(self.tensors["scales"])[self.group if group is None else group, self.column]

    def result(
        self,
        *,
        code: Ints | None = None,
        zero: Ints | None = None,
        integer: Ints | None = None,
        scale: Ints | None = None,
    ) -> Ints:
        """The weights with parts exchanged."""
        code, zero, scale, integer = self.parts(code=code, zero=zero, scale=scale, integer=integer).values()
        if integer is None:
            integer = (self.code() if code is None else code) - (self.zero() if zero is None else zero)
        exact = product(of_integers(integer), of_patterns(self.scale() if scale is None else scale, self.source))
        return self.rounded(exact)

    def rounded(self, exact: Numbers) -> Ints:
        if self.scheme.output_rounding is OutputRounding.THROUGH_SCALE_DTYPE:
            exact = of_patterns(to_patterns(exact, self.source), self.source)
        return to_patterns(exact, self.fmt)


class BlockTrial(WeightTrial):
    """NF4 and FP4: RN32(codebook[q] * absmax)."""

    @cached_property
    def block(self) -> Ints:
        return self.places // self.scheme.group

    @cached_property
    def blocks(self) -> int:
        return int(self.tensors["absmax"].shape[0])

    def code(self, packing: WordPacking | None = None) -> Ints:
        return gather(self.tensors["packed"].reshape(-1, 1), packing or self.scheme.packing, self.places, 0)

    def absmax(self, block: Ints | None = None) -> Ints:
        """Binary32 patterns."""
        index = self.block if block is None else block
        if not self.scheme.nested:
            return patterns(self.tensors["absmax"])[index]
        return bits32(self.nested(index))

    def nested(self, block: Ints) -> Any:
        """(P,) float32. RN32(RN32(code2[q8] * absmax2) + offset)."""
        value, scale = self.nested_factors(block)
        with np.errstate(all="ignore"):
            return value * scale + self.tensors["offset"].reshape(())

    def nested_factors(self, block: Ints, *, block_size2: int | None = None, step: int = 0) -> tuple[Any, Any]:
        """(P,) float32 each: code2[q8], and absmax2 of blocks of another size or so many further on."""
        size = self.tensors["block_size2"] if block_size2 is None else block_size2
        at = np.clip(block // size + step, 0, len(self.tensors["absmax2"]) - 1)
        return self.tensors["code2"][self.tensors["absmax"][block]], self.tensors["absmax2"][at]

    def result(
        self, *, code: Ints | None = None, absmax: Ints | None = None, codebook: tuple[int, ...] | None = None
    ) -> Ints:
        code, absmax, codebook = self.parts(code=code, absmax=absmax, codebook=codebook).values()
        book = np.array(self.scheme.codebook if codebook is None else codebook, np.int64)
        factors = book[self.code() if code is None else code], self.absmax() if absmax is None else absmax
        return narrowed(multiplied(*factors), self.fmt)


class ChannelTrial(WeightTrial):
    """int8: one scale a row of (N, K)."""

    @cached_property
    def source(self) -> FloatFormat:
        return format_of(self.tensors["scale"])

    def code(self) -> Ints:
        return self.tensors["weight"].astype(np.int64)[self.row, self.column]

    def scale(self, channel: Ints | None = None) -> Ints:
        return patterns(self.tensors["scale"])[self.row if channel is None else channel]

    def result(
        self, *, code: Ints | None = None, scale: Ints | None = None, arithmetic: Arithmetic | None = None
    ) -> Ints:
        code, scale, arithmetic = self.parts(code=code, scale=scale, arithmetic=arithmetic).values()
        factor = of_patterns(self.scale() if scale is None else scale, self.source)
        exact = product(of_integers(self.code() if code is None else code), factor)
        rule = arithmetic or self.scheme.arithmetic
        if rule is Arithmetic.EXACT_PRODUCT:
            through = self.scheme.output_rounding is OutputRounding.THROUGH_SCALE_DTYPE
            return (
                narrowed(to_patterns(exact, self.source), self.fmt, self.source)
                if through
                else to_patterns(exact, self.fmt)
            )
        value = to_patterns(exact, BINARY32)
        if rule is Arithmetic.SCB_PRODUCT:
            value = multiplied(value, np.array(SCB_FACTOR))
        return narrowed(value, self.fmt)


class TableTrial(WeightTrial):
    """SqueezeLLM: an entry of the channel's table, and what is added to it."""

    @cached_property
    def source(self) -> FloatFormat:
        return format_of(self.tensors["lookup_table"])

    def code(self, packing: WordPacking | None = None) -> Ints:
        return gather(self.tensors["qweight"], packing or self.scheme.packing, self.row, self.column)

    def entry(self, code: Ints | None = None, channel: Ints | None = None) -> Ints:
        """Patterns of the tables' format."""
        found = self.code() if code is None else code
        return patterns(self.tensors["lookup_table"])[self.column if channel is None else channel, found]

    @cached_property
    def sparse(self) -> tuple[Any, Mask]:
        """(P,) float32 of the sparse term, and where there is one."""
        return self.sparse_at(self.row, self.column)

    def sparse_at(self, row: Ints, channel: Ints) -> tuple[Any, Mask]:
        found, there = np.zeros(len(row), np.float32), np.zeros(len(row), np.bool_)
        if not self.scheme.sparse:
            return found, there
        starts, places, values = self.tensors["sparse"]
        n = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        keys = n.astype(np.int64) * self.shape[0] + places
        order = np.argsort(keys)
        wanted = channel * self.shape[0] + row
        at = np.minimum(np.searchsorted(keys[order], wanted), max(len(keys) - 1, 0))
        if len(keys):
            inside = (row >= 0) & (row < self.shape[0]) & (channel >= 0) & (channel < self.shape[1])
            there = (keys[order][at] == wanted) & inside
            found = np.where(there, values[order][at], np.float32(0))
        return found, there

    @cached_property
    def full(self) -> tuple[Any, Mask]:
        """(P,) float32 of the full rows, and where there is one."""
        found, there = np.zeros(len(self.row), np.float32), np.zeros(len(self.row), np.bool_)
        if self.scheme.full_rows:
            indices, values = self.tensors["full_rows"]
            column = np.full(self.shape[1], -1)
            column[indices] = np.arange(len(indices))
            r = column[self.column]
            there = r >= 0
            if len(indices):
                found = np.where(there, values[self.row, np.maximum(r, 0)], np.float32(0))
        return found, there

    def result(self, *, entry: Ints | None = None, terms: tuple[tuple[Any, Mask], ...] | None = None) -> Ints:
        """The weights with the entry exchanged, or with other terms in their order of addition."""
        entry, terms = self.parts(entry=entry, terms=terms).values()
        table = self.entry() if entry is None else entry
        if self.scheme.arithmetic is Arithmetic.LOOKUP:
            return narrowed(table, self.fmt, self.source)
        total = floats(narrowed(table, BINARY32, self.source))
        for term, there in (self.sparse, self.full) if terms is None else terms:
            with np.errstate(all="ignore"):
                total = np.where(there, total + term, total)
        return narrowed(bits32(total), self.fmt)


def chosen(wrong: Mask) -> Ints:
    """At most `LIMIT` places, half of them wrong if there are so many; the first and the last of each kind."""
    bad, good = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    share = max(LIMIT // 2, LIMIT - good.size)
    few = bad[spread(bad.size, share)]
    return np.sort(np.concatenate([few, good[spread(good.size, LIMIT - few.size)]])).astype(np.int64)


def format_of(array: Any) -> FloatFormat:
    return {"float16": BINARY16, "uint16": BFLOAT16, "float32": BINARY32}[array.dtype.name]


def patterns(array: Any) -> Ints:
    """The bits of a floating array, or of bfloat16 stored as uint16."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape).astype(np.int64)


def bits32(values: Any) -> Ints:
    return np.asarray(values, np.float32).view(np.uint32).astype(np.int64)


def floats(pattern32: Ints) -> Any:
    """Binary32 patterns as float32."""
    return pattern32.astype(np.uint32).view(np.float32)


def narrowed(pattern: Ints, fmt: FloatFormat, source: FloatFormat = BINARY32) -> Ints:
    """RN(fmt) of patterns of a format."""
    return to_patterns(of_patterns(pattern, source), fmt)


def through(pattern: Ints, fmt: FloatFormat, source: FloatFormat = BINARY32) -> Ints:
    """Patterns of a format rounded to another one and widened again."""
    return narrowed(narrowed(pattern, fmt, source), source, fmt)


def multiplied(a: Ints, b: Ints) -> Ints:
    """RN32 of the product of binary32 patterns."""
    return to_patterns(product(of_patterns(a, BINARY32), of_patterns(b, BINARY32)), BINARY32)
