"""Weights with a table a channel: SqueezeLLM, and the terms that are added to its entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lowbit import weights
from lowbit.cases.weight_parts import as_stored
from lowbit.cases.weights import periods, store
from lowbit.formats import BINARY16, BINARY32
from lowbit.vectors import draws
from lowbit.vectors.payload import Draft
from lowbit.vectors.weight_items import (
    EVERY,
    HALF,
    SIXTEEN,
    Ints,
    StoredWeight,
    edges,
    numbered,
    patterns_of,
    topic,
    values_of,
)
from lowbit.weights import WeightScheme

SUMS = (
    ("order of the sums", 0x3F800000, 0x33800000, 0x33800000, ("order_of_sums",)),  # 1 + 2**-24 + 2**-24
    ("a sum rounded to binary32 first", 0x3F801000, 0x33000000, 0x33000000, ("two_roundings",)),
    ("a sum that cancels", 0x3F99999A, 0xBF99999A, 0x80000000, ()),
    ("-0 and -0", 0x80000000, 0x80000000, 0x80000000, ()),
    ("-0 and +0", 0x80000000, 0x00000000, 0x80000000, ()),
    ("Inf and -Inf", 0x7F800000, 0xFF800000, 0x3F800000, ("scale_not_finite",)),
    ("overflow and back", 0x7F7FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, ("overflow", "order_of_sums")),
    ("subnormals", 0x00000001, 0x00000002, 0x80000001, ("scale_subnormal",)),
    ("NaN", 0x3F800000, 0x7FC00001, 0x3F800000, ("scale_not_finite",)),
)
"""Name, an entry, what is sparse, what a full row adds."""


def build() -> Iterator[Draft]:
    """One group a scheme and topic."""
    for bits in (4, 3):
        name = f"squeezellm{bits}"
        straddle = ("straddle",) if bits == 3 else ()
        yield from topic(name, "lanes", _lanes(name), ("field_order", "complete", *straddle))
        yield from topic(name, "tables", _edges(name), ("scale_edge", *straddle))
        for terms in (("sparse",), ("full_rows",), ("sparse", "full_rows")):
            wanted = "+".join([name, *terms])
            yield from topic(wanted, "terms", _terms(weights.get(wanted)), (*terms, *straddle))


def _lanes(name: str) -> Iterator[StoredWeight]:
    """Every code in every lane, in channels whose entries say code and channel."""
    scheme = weights.get(name)
    codes, (period, _) = 1 << scheme.bits, periods(scheme)
    values = np.add.outer(np.arange(period), np.arange(codes)) % codes
    for fmt in (BINARY32, BINARY16):
        table = numbered(codes * codes, fmt, period=1021).reshape(codes, codes)
        yield StoredWeight(f"{fmt.name} tables", store(scheme, values, table, source=fmt), values.shape, formats=HALF)


def _edges(name: str) -> Iterator[StoredWeight]:
    """Entries at the edges of the table's format and of those of outputs, beside ties of these."""
    scheme = weights.get(name)
    codes, (period, _) = 1 << scheme.bits, periods(scheme)
    for fmt in (BINARY32, BINARY16):
        found = [pattern for pattern, _ in edges(fmt).values()]
        if fmt is BINARY32:
            found += [pattern for output in SIXTEEN for pattern in _turning(output)]
        channels = -(-len(found) // codes)
        table = np.resize(np.array(found), (channels, codes))
        rows = max(period, codes)
        values = np.add.outer(np.arange(rows), np.arange(channels)) % codes
        item = store(scheme, values, table, source=fmt)
        yield StoredWeight(f"{fmt.name} entries", item, (rows, channels), formats=EVERY if rows < 32 else SIXTEEN)


def _turning(fmt: Any) -> Ints:
    """Binary32 patterns at ties of a narrower format and one beside: between codes, and at the end of its range."""
    one, normal = fmt.bias << fmt.mantissa_bits, 1 << fmt.mantissa_bits
    below = np.array([0, normal - 1, one, one + 1])
    ties = (values_of(below, fmt) + values_of(below + 1, fmt)) / 2
    end = values_of(np.array([fmt.max_magnitude]), fmt) + values_of(np.array([fmt.max_magnitude]), fmt) * 2.0**-40
    middle = patterns_of(ties, BINARY32)
    last = patterns_of(end, BINARY32) + (1 << (22 - fmt.mantissa_bits))
    return np.concatenate([middle - 1, middle, middle + 1, last - 1, last])


def _terms(scheme: WeightScheme) -> Iterator[StoredWeight]:
    """Terms in no order, channels without any, sums at edges; what is not stored is not added, not even +0."""
    period, _ = periods(scheme)
    rows, channels, codes = period, 6, 1 << scheme.bits
    table = patterns_of(draws.ordinary(f"{scheme.base} table", channels * codes), BINARY32).reshape(channels, codes)
    values = np.add.outer(np.arange(rows), 3 * np.arange(channels)) % codes
    shape = (rows, channels)

    def item(what: str, entries: Ints, flags: tuple[str, ...] = (), **terms: Any) -> StoredWeight:
        held = {name: terms[name] for name in ("sparse", "full_rows") if getattr(scheme, name)}
        formats = EVERY if rows < 32 else (BINARY16, BINARY32)
        return StoredWeight(what, store(scheme, values, entries, **held), shape, flags, formats)

    scattered = _sparse([[5, 0, 3], [], [7, 6, 5, 4, 3, 2, 1, 0], [2], [], [rows - 1, 0]], f"{scheme.base} sparse")
    full = _full([4, 1], rows, f"{scheme.base} full")
    yield item("any terms", table, sparse=scattered, full_rows=full)
    nothing = (np.zeros(channels + 1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
    nobody = (np.zeros(0, np.int32), np.zeros((rows, 0), np.float32))
    yield item(
        "nothing stored, entries of -0",
        np.full_like(table, 0x80000000),
        ("not_added",),
        sparse=nothing,
        full_rows=nobody,
    )
    if rows == 32 and not (scheme.sparse and scheme.full_rows):  # 4 bits and both terms together show the same
        return
    starts = np.arange(channels + 1, dtype=np.int32)
    places = (np.arange(channels) % rows).astype(np.int32)
    for first in range(0, len(SUMS), channels):
        part = [SUMS[(first + n) % len(SUMS)] for n in range(channels)]
        entries = np.array([[entry] * codes for _, entry, _, _, _ in part])
        single = as_stored(np.array([added for _, _, added, _, _ in part]), BINARY32)
        added = np.zeros((rows, channels), np.int64) + np.array([last for *_, last, _ in part])
        rest = (np.arange(channels, dtype=np.int32), as_stored(added, BINARY32))
        flags = tuple(dict.fromkeys(flag for *_, found in part for flag in found))
        what, single_entries = f"a sum a channel, from: {part[0][0]}", (starts, places, single)
        yield item(what, entries, ("not_added", *flags), sparse=single_entries, full_rows=rest)


def _sparse(columns: list[list[int]], name: str) -> tuple[Any, ...]:
    """A CSR term with these columns a channel, in the order given."""
    starts = np.cumsum([0, *map(len, columns)]).astype(np.int32)
    places = np.array([k for line in columns for k in line], np.int32)
    return starts, places, as_stored(patterns_of(draws.ordinary(name, places.size), BINARY32), BINARY32)


def _full(channels: list[int], rows: int, name: str) -> tuple[Any, ...]:
    """Full rows of these channels, in the order given."""
    values = patterns_of(draws.ordinary(name, rows * len(channels)), BINARY32)
    return np.array(channels, np.int32), as_stored(values.reshape(rows, len(channels)), BINARY32)
