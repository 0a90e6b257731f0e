"""Weights of integers with zero points: AWQ and GPTQ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import weights
from lowbit.cases.weights import periods, store
from lowbit.formats import BFLOAT16, BINARY16, FloatFormat
from lowbit.rules import Grouping
from lowbit.vectors import draws
from lowbit.vectors.payload import Draft
from lowbit.vectors.weight_items import (
    EVERY,
    HALF,
    SIXTEEN,
    Ints,
    StoredWeight,
    chosen,
    edges,
    is_tie,
    numbered,
    rounded,
    scale_patterns,
    topic,
    values_of,
)
from lowbit.weights import WeightScheme

GPTQ4 = tuple(f"gptq4_v1_g{size}" for size in (16, 32, 48, 64, "k"))
"""Schemes that differ from the canonical one by the group alone: a weight of one short group is the same in all."""

ZEROS = (0, 1, 7, 8, 9, 14, 15, 5)
"""Zero points of 4 bits, one a column."""

CODES = {2: (0, 1, 2, 3), 3: (0, 1, 3, 4, 5, 6, 7, 2), 4: (0, 1, 5, 7, 8, 9, 14, 15)}
CODES[8] = (0, 1, 15, 16, 127, 128, 254, 255)
"""By the bits of a code: least, middle and greatest among them."""


def build() -> Iterator[Draft]:
    """One group a scheme and topic."""
    yield from topic("awq_gk", "lanes", _lanes("awq_gk", range(16)), ("field_order", "complete"), ("awq_g16",))
    yield from topic("awq_gk", "scales", _scales("awq_gk", 4), ("scale_edge",))
    yield from topic("awq_gk", "rounding", _rounding("awq_gk", 4), ("one_rounding",))
    shapes = ((1, 8), (1, 24), (5, 40), (3, 72))
    yield from topic("awq_gk", "shapes", [_grouped("awq_gk", shape) for shape in shapes], ("shape",))
    for size in (16, 32, 48, 64, 128):
        name = f"awq_g{size}"
        rows = 3 * size if size == 16 else 2 * size
        yield from topic(name, "groups", [_grouped(name, (rows, 8))], ("groups",))
    yield from topic("awq_g128", "rounding", [_once("awq_g128", 128)], ("one_rounding", "overflow"))
    through = "awq_g128+through_scale_dtype"
    yield from topic(through, "rounding", _through(through, 128), ("through_scale_dtype",))
    for bits in (4, 2, 3, 8):
        yield from _gptq(bits)


def _gptq(bits: int) -> Iterator[Draft]:
    one, two = f"gptq{bits}_v1_g128", f"gptq{bits}_v2_g128"
    same = {4: GPTQ4, 3: ("gptq3_v1_gk",)}.get(bits, ())
    straddle = ("straddle",) if bits == 3 else ()
    zeros = range(1 << bits) if bits < 8 else range(1)
    done = ("complete",) if bits < 8 else ()
    yield from topic(one, "lanes", _lanes(one, zeros), ("field_order", "zeros_v1", *straddle, *done), same)
    if bits < 8:
        yield from topic(two, "lanes", _lanes(two, range(3, 4)), ("field_order", "zeros_v2", *straddle))
    else:
        for name, version in ((one, "zeros_v1"), (two, "zeros_v2")):
            yield from topic(name, "zeros", [_every_zero(name)], ("field_order", version))
    if bits == 4:
        yield from topic(one, "scales", _scales(one, 8), ("scale_edge", "zeros_v1"), GPTQ4)
        yield from topic(one, "rounding", _rounding(one, 8), ("one_rounding", "zeros_v1"), GPTQ4)
        shapes = ((8, 8), (8, 24), (40, 8), (16, 72))
        yield from topic(one, "shapes", [_grouped(one, shape) for shape in shapes], ("shape",), ("gptq4_v1_gk",))
        through = f"{one}+through_scale_dtype"
        yield from topic(through, "rounding", _through(through, 8), ("through_scale_dtype", "zeros_v1"))
        for size in (16, 32, 48, 64):
            name = f"gptq4_v1_g{size}"
            yield from topic(name, "groups", [_grouped(name, (size + 8, 8))], ("groups", "short_group"))
        mixed = "gptq4_v1_g32+act_order"
        yield from topic(mixed, "order", _orders(mixed, 40, ORDERS), ("act_order", "short_group"), ("gptq4_v1_g32",))
        yield from topic(mixed, "refused", _refused(mixed), ("act_order", "index_out_of_range"), ("gptq4_v1_g32",))
    else:
        yield from topic(one, "scales", _scales_side_by_side(one), ("scale_edge", "zeros_v1", *straddle), same)
    period, _ = periods(weights.get(one))
    rows = 128 + period
    for name in (one, two) if bits == 4 else (one,):
        if bits in (4, 8):  # the others are large, and have the same group index
            columns = periods(weights.get(name))[1]
            yield from topic(name, "groups", [_grouped(name, (rows, columns))], ("groups", "short_group"))
        mixed = f"{name}+act_order"
        yield from topic(mixed, "order", _orders(mixed, rows, ("any order",)), ("act_order", "short_group"), (name,))


def _lanes(name: str, turns: range) -> Iterator[StoredWeight]:
    """Codes and zero points that move on by one from lane to lane, and from case to case."""
    scheme = weights.get(name)
    codes, (period, columns) = 1 << scheme.bits, periods(scheme)
    rows = {"awq": 16}.get(scheme.family, 256 if scheme.bits == 8 else period)
    groups = scheme.groups(rows)
    step = 1 if scheme.family == "awq" else 5
    for turn in turns:
        values = np.add.outer(np.arange(rows), np.arange(columns) + (turn if step == 5 else 0)) % codes
        zeros = (step * turn + np.add.outer(7 * np.arange(groups), np.arange(columns))) % codes
        scales = np.tile(numbered(columns, BINARY16, period=8), (groups, 1))
        arrays = store(scheme, values, scales, source=BINARY16, zeros=zeros)
        yield StoredWeight(f"turn {turn}", arrays, (rows, columns), formats=HALF)


def _every_zero(name: str) -> StoredWeight:
    """All 256 zero points of 8 bits, each beside codes around it."""
    scheme = weights.get(name)
    zeros = np.arange(256)
    values = np.stack([zeros, 255 - zeros, (zeros + 1) % 256, np.zeros(256, np.int64)])
    scales = numbered(256, BINARY16, period=8)[None, :]
    arrays = store(scheme, values, scales, source=BINARY16, zeros=zeros[None, :])
    return StoredWeight("every zero point", arrays, (4, 256), formats=HALF)


def _scales(name: str, rows: int) -> Iterator[StoredWeight]:
    """Each scale at an edge with eight zero points and some codes."""
    scheme = weights.get(name)
    codes = np.array(CODES[4] if rows == 8 else (0, 7, 8, 15))
    values = np.repeat(codes[:, None], 8, axis=1)
    for fmt in SIXTEEN:
        for edge, (pattern, flags) in edges(fmt).items():
            arrays = store(scheme, values, np.full((1, 8), pattern), source=fmt, zeros=np.array([ZEROS]))
            yield StoredWeight(f"{fmt.name} scale: {edge}", arrays, (rows, 8), flags, EVERY if rows == 4 else SIXTEEN)


def _scales_side_by_side(name: str) -> Iterator[StoredWeight]:
    """The same with one weight a format of scales: column by column another edge and zero point."""
    scheme = weights.get(name)
    period, _ = periods(scheme)
    codes, top = np.array(CODES[scheme.bits]), (1 << scheme.bits) - 1
    zeros = np.array([0, top])
    rows = -(-codes.size // period) * period
    for fmt in SIXTEEN:
        patterns = np.array([pattern for pattern, _ in edges(fmt).values()])
        pair = np.arange(2 * patterns.size)
        columns = pair.size
        values = np.resize(codes, rows)[:, None].repeat(columns, axis=1)
        scales, points = patterns[pair // 2][None, :], zeros[pair % 2][None, :]
        arrays = store(scheme, values, scales, source=fmt, zeros=points)
        output = (BFLOAT16,) if fmt is BINARY16 else HALF
        yield StoredWeight(f"{fmt.name} scales of every edge", arrays, (rows, columns), formats=output)


def _rounding(name: str, rows: int) -> Iterator[StoredWeight]:
    """Products on which wrong orders and double roundings show: eight columns, the telling weight in row 0."""
    scheme = weights.get(name)
    drawn = 1 << 14
    difference = 1 + draws.words(f"{name} differences", drawn).astype(np.int64) % 15
    zero = draws.words(f"{name} zeros", drawn).astype(np.int64) % (16 - difference)
    for source in SIXTEEN:
        patterns = scale_patterns(f"{name} {source.name}", drawn, source)
        scale = values_of(patterns, source)
        product = difference * scale
        if source is BINARY16:
            twice = rounded(rounded(product, BINARY16), BFLOAT16) != rounded(product, BFLOAT16)
            yield _columns("bfloat16 differs through binary16", scheme, patterns, difference, zero, twice, source, rows)
            late = rounded(rounded((zero + difference) * scale, source) - rounded(zero * scale, source), source)
            wrong = late != rounded(product, source)
            yield _columns("q * s - z * s differs", scheme, patterns, difference, zero, wrong, source, rows)
        for output in SIXTEEN:
            ties = is_tie(product, output)
            if ties.any():
                what = f"{source.name} scales, ties of {output.name}"
                yield _columns(what, scheme, patterns, difference, zero, ties, source, rows, ("tie",))
    patterns = np.arange(0x6C40, 0x6C48)  # 15 * 4368 = 65520, midway from the greatest number to what would be 2**16
    fifteen, none = np.full(8, 15), np.zeros(8, np.int64)
    every = np.ones(8, np.bool_)
    yield _columns("around 65520", scheme, patterns, fifteen, none, every, BINARY16, rows, ("overflow", "tie"))


def _once(name: str, rows: int) -> StoredWeight:
    """Six columns that bfloat16 shows a rounding through binary16 in, and two that overflow in binary16."""
    drawn = 1 << 12
    patterns = scale_patterns(f"{name} once", drawn, BINARY16)
    difference = 1 + draws.words(f"{name} differences", drawn).astype(np.int64) % 15
    product = difference * values_of(patterns, BINARY16)
    twice = rounded(rounded(product, BINARY16), BFLOAT16) != rounded(product, BFLOAT16)
    patterns[np.flatnonzero(twice)[6:8]] = 0x7BFF, 0xFBFF
    return _columns("one rounding", weights.get(name), patterns, difference, 0 * difference, twice, BINARY16, rows)


def _columns(
    what: str,
    scheme: WeightScheme,
    patterns: Ints,
    difference: Ints,
    zero: Ints,
    mask: npt.NDArray[np.bool_],
    source: FloatFormat,
    rows: int,
    flags: tuple[str, ...] = (),
) -> StoredWeight:
    """The first eight draws for which the mask holds, one a column; further rows go on from the telling code."""
    places = chosen(mask, 8)
    codes = (np.arange(rows)[:, None] * 3 + (zero + difference)[places]) % 16
    arrays = store(scheme, codes, patterns[places][None, :], source=source, zeros=zero[places][None, :])
    return StoredWeight(what, arrays, (rows, 8), flags, EVERY if rows < 128 else SIXTEEN)


def _through(name: str, rows: int) -> Iterator[StoredWeight]:
    """Scales of both formats, each to the other one, where a rounding through the scale's format shows."""
    scheme = weights.get(name)
    for source, output in ((BINARY16, BFLOAT16), (BFLOAT16, BINARY16)):
        patterns = scale_patterns(f"{name} {source.name}", 1 << 12, source)
        difference = 1 + draws.words(f"{name} differences", 1 << 12).astype(np.int64) % 15
        product = difference * values_of(patterns, source)
        shows = rounded(rounded(product, source), output) != rounded(product, output)
        none = np.zeros(patterns.size, np.int64)
        what = f"{source.name} scales to {output.name}"
        item = _columns(what, scheme, patterns, difference, none, shows, source, rows)
        yield StoredWeight(item.name, item.arrays, item.shape, formats=(output,))


def _grouped(name: str, shape: tuple[int, int], **index: Any) -> StoredWeight:
    """Any codes and zero points; scales that say their group and column, of both signs."""
    scheme = weights.get(name)
    drawn = draws.words(f"{scheme.base} {shape}", shape[0] * shape[1]).astype(np.int64).reshape(shape)
    groups = scheme.groups(shape[0])
    points = draws.words(f"{scheme.base} zeros {shape}", groups * shape[1]).astype(np.int64).reshape(groups, shape[1])
    scales = numbered(groups * shape[1], BINARY16).reshape(groups, shape[1])
    scales[:, ::3] |= BINARY16.sign_mask
    codes = 1 << scheme.bits
    arrays = store(scheme, (drawn >> 7) % codes, scales, source=BINARY16, zeros=(points >> 7) % codes, **index)
    formats = SIXTEEN if shape[0] * shape[1] < 400 else HALF
    return StoredWeight(f"{shape[0]} x {shape[1]}", arrays, shape, formats=formats)


ORDERS = ("descending", "in turn", "any order", "the last group for all rows")


def _orders(name: str, rows: int, orders: tuple[str, ...]) -> Iterator[StoredWeight]:
    """A g_idx in no order of rows; it alone decides the group."""
    scheme = weights.get(name)
    assert scheme.grouping is Grouping.ACT_ORDER
    groups, columns = scheme.groups(rows), periods(scheme)[1]
    drawn = draws.words(f"{name} order", rows).astype(np.int64)
    found = {
        "descending": groups - 1 - np.arange(rows) * groups // rows,
        "in turn": np.arange(rows) % groups,
        "any order": (drawn >> 9) % groups,
        "the last group for all rows": np.full(rows, groups - 1),
    }
    for order in orders:
        item = _grouped(name, (rows, columns), g_idx=found[order].astype(np.int32))
        yield StoredWeight(order, item.arrays, item.shape, formats=HALF)


def _refused(name: str) -> Iterator[StoredWeight]:
    """A g_idx with one index that no group has; those below 0 do not count from the end."""
    scheme = weights.get(name)
    groups = scheme.groups(40)
    for index in (-1, -groups, groups, 0x7FFFFFFF):
        item = _grouped(name, (40, 8), g_idx=(np.arange(40) % groups).astype(np.int32))
        item.arrays["g_idx"][17] = index
        what = f"g_idx {index}"
        yield StoredWeight(
            what, item.arrays, item.shape, formats=(), refused=f"{what} at row 17, there are {groups} groups"
        )
