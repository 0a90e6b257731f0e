"""Weights with a table of 4-bit codes in flat blocks (NF4, FP4), and int8 with a scale a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lowbit import weights
from lowbit.cases.weight_parts import as_stored
from lowbit.cases.weights import store
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.vectors import draws
from lowbit.vectors.payload import Draft
from lowbit.vectors.weight_items import (
    EVERY,
    HALF,
    SIXTEEN,
    Floats,
    Ints,
    StoredWeight,
    chosen,
    edges,
    is_tie,
    numbered,
    patterns_of,
    rounded,
    topic,
    values_of,
)
from lowbit.weights import WeightScheme

BLOCKS = {"nf4": (32, 128, 256, 4096), "fp4": (128,)}
"""Block sizes beside 64, under which a weight shorter than any block is the same."""

TELLING = np.array([-128, -127, -1, 0, 1, 3, 85, 127])
"""Codes of int8: the ends, those around 0, and two with several bits."""

DRAWN = 1 << 13


def build() -> Iterator[Draft]:
    """One group a scheme and topic."""
    for table, sizes in BLOCKS.items():
        yield from _tables(table, sizes)
    yield from topic("nf4_four_digit", "table", _codebook("nf4_four_digit"), ("codebook", "complete"))
    for name in ("int8_channel", "int8_scb", "int8_torch"):
        yield from _int8(name)


def _tables(table: str, sizes: tuple[int, ...]) -> Iterator[Draft]:
    name = f"{table}_b64"
    others = tuple(f"{table}_b{size}" for size in sizes)
    yield from topic(name, "codebook", _codebook(name), ("codebook", "complete"), others)
    yield from topic(name, "nibbles", [_nibbles(name)], ("high_nibble_first", "complete"))
    yield from topic(name, "scales", _absmax(name), ("scale_edge",), others)
    yield from topic(name, "rounding", _two_roundings(name), ("two_roundings",), others)
    shapes = ((1,), (5, 3), (2, 96), (63,), (65,), (3, 11, 2), (130,))
    yield from topic(name, "shapes", [_any(name, shape) for shape in shapes], ("shape", "partial_block"))
    for size in sizes:
        item = _any(f"{table}_b{size}", (size + 3,))
        yield from topic(f"{table}_b{size}", "blocks", [item], ("shape", "partial_block", "odd_length"))
    nested = f"{name}+nested"
    yield from topic(nested, "absmax", _nested(nested), ("nested",))


def _codebook(name: str) -> Iterator[StoredWeight]:
    """All codes under two absmax."""
    scheme = weights.get(name)
    for label, pattern in (("1", 0x3F800000), ("-3", 0xC0400000)):
        flags = ("scale_negative",) if label[0] == "-" else ()
        yield StoredWeight(f"absmax {label}", store(scheme, np.arange(16), np.array([pattern])), (16,), flags)


def _nibbles(name: str) -> StoredWeight:
    """All 256 bytes, in eight blocks of an absmax each."""
    codes = np.stack([np.arange(256) >> 4, np.arange(256) & 15], axis=1).reshape(-1)
    arrays = store(weights.get(name), codes, numbered(8, BINARY32))
    return StoredWeight("every byte", arrays, (512,), formats=HALF)


def _absmax(name: str) -> Iterator[StoredWeight]:
    """All codes under each absmax at an edge of binary32, and of the formats of outputs."""
    scheme, codes = weights.get(name), np.arange(16)
    for edge, (pattern, flags) in edges(BINARY32).items():
        yield StoredWeight(f"absmax {edge}", store(scheme, codes, np.array([pattern])), (16,), flags)
    for fmt in SIXTEEN:
        for value in ("least subnormal", "least normal", "greatest"):
            pattern = {"least subnormal": 1, "least normal": 1 << fmt.mantissa_bits}.get(value, fmt.max_magnitude)
            wide = patterns_of(values_of(np.array([pattern]), fmt), BINARY32)
            flags = ("overflow",) if value == "greatest" else ("scale_subnormal",)
            yield StoredWeight(f"absmax {value} of {fmt.name}", store(scheme, codes, wide), (16,), flags)


def _two_roundings(name: str) -> Iterator[StoredWeight]:
    """An absmax a case whose product with a code rounds to a tie of the output, though it is none."""
    scheme = weights.get(name)
    table = values_of(np.array(scheme.codebook), BINARY32)
    for fmt in SIXTEEN:
        for code in (2, 5, 9, 13) if scheme.family == "nf4" else (1, 2, 6, 12):
            pattern = telling_scales(f"{name} {fmt.name} {code}", float(table[code]), fmt, 1)
            item = store(scheme, np.roll(np.arange(16), -code), pattern)
            yield StoredWeight(f"code {code} in {fmt.name}", item, (16,), formats=(fmt, BINARY32))


def telling_scales(name: str, factor: float, fmt: FloatFormat, count: int) -> Ints:
    """Binary32 scales whose product with a number is rounded wrongly if rounded once, straight to a 16-bit format."""
    drawn = draws.words(name, DRAWN).astype(np.int64)
    magnitudes = (fmt.bias - 3 + drawn % 6 << fmt.mantissa_bits) + (drawn >> 8) % (1 << fmt.mantissa_bits)
    ties = (values_of(magnitudes, fmt) + values_of(magnitudes + 1, fmt)) / 2
    patterns = patterns_of(ties / abs(factor), BINARY32)
    exact = values_of(patterns, BINARY32) * factor  # 48 bits: exact in double precision
    product = rounded(exact, BINARY32)
    shows = is_tie(product, fmt) & (rounded(product, fmt) != rounded(exact, fmt))
    return patterns[chosen(shows, count)]


def _any(name: str, shape: tuple[int, ...]) -> StoredWeight:
    """Any codes; absmax that say their block."""
    scheme = weights.get(name)
    count = int(np.prod(shape))
    codes = (draws.words(f"{name} {shape}", count).astype(np.int64) >> 9) % 16
    flags = tuple(
        flag
        for flag, holds in (
            ("odd_length", count % 2),
            ("blocks_cross_rows", len(shape) > 1 and count > scheme.group),
        )
        if holds
    )
    arrays = store(scheme, codes.reshape(shape), numbered(scheme.groups(count), BINARY32))
    return StoredWeight(" x ".join(map(str, shape)), arrays, shape, flags, HALF if count > 200 else SIXTEEN)


# -- nested absmax


def _nested(name: str) -> Iterator[StoredWeight]:
    """Scales of scales: each rounded product and sum, blocks of blocks, short ends, edges."""
    scheme = weights.get(name)
    offset = np.array([0x3CE920C3])
    code2, absmax2 = _fused_differ(name, offset)
    yield _of_blocks(scheme, "a fused multiply-add differs", np.arange(4), code2, absmax2, offset, 1, ("no_fma",), 16)
    table = patterns_of(np.sin(np.arange(256) * 0.25).round(6), BINARY32)
    real = patterns_of([0.0486, 0.25, 1.5, -0.125], BINARY32)
    codes = np.arange(16) * 17
    yield _of_blocks(scheme, "every sixteenth entry, 5 blocks a scale", codes, table, real, offset, 5, (), 3)
    if scheme.family == "fp4":  # what follows does not depend on the codebook
        return
    edge = np.array([pattern for pattern, _ in edges(BINARY32).values()])
    some = np.array([1, 3, 6, 8, 10, 11, 12, 14])
    unit = patterns_of([1.0], BINARY32)
    zero, minus = np.array([0]), np.array([0x80000000])
    for which, added in (("0", zero), ("-0", minus)):
        what = f"entries at every edge, offset {which}"
        yield _of_blocks(scheme, what, some, edge, unit, added, 256, ("scale_edge",), 8)
    what = "scales at every edge"
    yield _of_blocks(scheme, what, np.zeros(16, np.int64), unit, edge, offset, 1, ("scale_edge",), 8)
    what, beside, opposite = "a sum that cancels", patterns_of([1.0, 1.0 + 2.0**-23], BINARY32), np.array([0xBF800000])
    yield _of_blocks(scheme, what, np.array([0, 0]), unit, beside, opposite, 1, (), 16)


def _of_blocks(
    scheme: WeightScheme,
    what: str,
    absmax: Ints,
    code2: Ints,
    absmax2: Ints,
    offset: Ints,
    size: int,
    flags: tuple[str, ...],
    last: int,
) -> StoredWeight:
    """Whole blocks but for the last one, of `last` elements."""
    count = (absmax.size - 1) * scheme.group + last
    codes = (np.arange(count) + np.arange(count) // scheme.group) % 16
    table = np.zeros(256, np.int64)
    table[: code2.size] = code2
    entries: dict[str, Any] = {
        "absmax": absmax.astype(np.uint8),
        "code2": as_stored(table, BINARY32),
        "absmax2": as_stored(absmax2[: -(-absmax.size // size)], BINARY32),
        "offset": as_stored(offset, BINARY32),
        "block_size2": size,
    }
    formats = (BINARY16, BINARY32) if "no_fma" in flags else HALF
    more = ("odd_length",) if count % 2 else ()
    return StoredWeight(what, store(scheme, codes, **entries), (count,), (*flags, *more), formats)


def _fused_differ(name: str, offset: Ints) -> tuple[Ints, Ints]:
    """Four entries and their scales under which a fused multiply-add gives another absmax."""
    drawn = draws.words(f"{name} fused", DRAWN).astype(np.int64)
    entries = 0x3E800000 + (drawn >> 4) % 0x00F00000 | (drawn & 1) << 31
    scales = 0x3D000000 + (draws.words(f"{name} scales", DRAWN).astype(np.int64) >> 5) % 0x00F00000
    exact = values_of(entries, BINARY32) * values_of(scales, BINARY32)
    plus = values_of(offset, BINARY32)
    apart = rounded(rounded(exact, BINARY32) + plus, BINARY32)
    fused = rounded(exact + plus, BINARY32)
    places = chosen(apart != fused, 4)
    return entries[places], scales[places]


# -- int8


def _int8(name: str) -> Iterator[Draft]:
    scheme = weights.get(name)
    yield from topic(name, "codes", [_every_code(scheme)], ("least_code", "complete"))
    yield from topic(name, "scales", _row_scales(scheme), ("scale_edge", "row_scale"))
    flag = "through_scale_dtype" if name == "int8_torch" else "two_roundings"
    yield from topic(name, "rounding", _int8_rounding(scheme), (flag,))
    shapes = ((1, 1), (2, 3), (5, 3), (3, 33))
    items = [_int8_any(scheme, shape) for shape in shapes]
    yield from topic(name, "shapes", items, ("shape", "row_scale"))


def _every_code(scheme: WeightScheme) -> StoredWeight:
    values = np.stack([np.arange(-128, 128), np.arange(127, -129, -1)])
    scales = patterns_of([1.0, -0.1], BINARY32)
    return StoredWeight("every code", store(scheme, values, scales), (2, 256), formats=(BINARY16, BINARY32))


def _row_scales(scheme: WeightScheme) -> Iterator[StoredWeight]:
    for fmt in scheme.scale_formats:
        for edge, (pattern, flags) in edges(fmt).items():
            arrays = store(scheme, TELLING[None, :], np.array([pattern]), source=fmt)
            formats = SIXTEEN if scheme.name == "int8_torch" else EVERY
            yield StoredWeight(f"{fmt.name} scale: {edge}", arrays, (1, 8), flags, formats)


def _int8_rounding(scheme: WeightScheme) -> Iterator[StoredWeight]:
    """Rows whose scale shows how often the product is rounded, and to what."""
    if scheme.name == "int8_torch":
        for source, output in ((BINARY16, BFLOAT16), (BFLOAT16, BINARY16)):
            drawn = draws.words(f"{scheme.name} {source.name}", DRAWN).astype(np.int64)
            patterns = (source.bias - 4 << source.mantissa_bits) + drawn % (4 << source.mantissa_bits)
            product = 85 * values_of(patterns, source)
            shows = rounded(rounded(product, source), output) != rounded(product, output)
            for place in chosen(shows, 2):
                arrays = store(scheme, TELLING[None, ::-1], patterns[place : place + 1], source=source)
                what = f"{source.name} scale {patterns[place]:04x} to {output.name}"
                yield StoredWeight(what, arrays, (1, 8), formats=(output,))
        return
    if scheme.name == "int8_scb":
        drawn = draws.ordinary(f"{scheme.name} absmax", 1 << 10).astype(np.float64)
        exact: Floats = 85 * np.abs(drawn)
        thrice = rounded(rounded(exact, BINARY32) * values_of(np.array([0x3C010204]), BINARY32), BINARY32)
        for place in chosen(thrice != rounded(exact / 127, BINARY32), 4):
            pattern = patterns_of(np.abs(drawn[place : place + 1]), BINARY32)
            arrays = store(scheme, TELLING[None, :], pattern)
            yield StoredWeight(f"SCB {int(pattern[0]):08x}, not q * SCB / 127", arrays, (1, 8))
        return
    for fmt in SIXTEEN:
        for code in (3, 85, 127, -127):
            pattern = telling_scales(f"{scheme.name} {fmt.name} {code}", code, fmt, 1)
            arrays = store(scheme, np.roll(TELLING, code % 8)[None, :], pattern)
            yield StoredWeight(f"code {code} in {fmt.name}", arrays, (1, 8), formats=(fmt, BINARY32))


def _int8_any(scheme: WeightScheme, shape: tuple[int, int]) -> StoredWeight:
    codes = (draws.words(f"{scheme.name} {shape}", shape[0] * shape[1]).astype(np.int64) >> 9) % 256 - 128
    arrays = store(scheme, codes.reshape(shape), numbered(shape[0], BINARY32))
    return StoredWeight(f"{shape[0]} x {shape[1]}", arrays, shape)
