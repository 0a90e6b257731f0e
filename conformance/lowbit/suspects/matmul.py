"""Which single fault would explain a wrong matmul of exactly summable operands?

The reference is run again under every fault of a table, on some rows of A and of B, half of them with mismatches. On
such operands every fault has one right wrong answer, so one that reproduces what the implementation gave, wrong
places and right ones, explains all mismatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import packing
from lowbit.compare.kinds import values_differ
from lowbit.diagnose import SHARE, Diagnosis, Finding
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import matmul
from lowbit.schemes import Quantized, Scheme
from lowbit.suspects.decode_trial import DecodeTable
from lowbit.suspects.fields import NEIGHBOURS
from lowbit.suspects.matmul_trial import Product, Side
from lowbit.suspects.order import split_half
from lowbit.suspects.trial import Suspect
from lowbit.suspects.weights import roundings

TILES = (16, 32, 64, 128, 256)
"""Sizes of the tiles whose last one may be missing."""

SIDES = (("", (0, 1)), (" of A", (0,)), (" of B", (1,)))
"""Words for the operands that a fault is in."""


@dataclass
class Evidence:
    """Wrong products of one implementation, and how many mismatches of all of them each fault leaves.

    One small product is often explained by several faults; a fault that explains every one is the likelier.

    Attributes:
      products: how many were looked at. tried, mismatched: mismatches tried, and all there are.
    """

    products: int = 0
    tried: int = 0
    mismatched: int = 0
    _left: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add(self, a: Quantized, b: Quantized, scheme: Scheme, fmt: FloatFormat, actual: Any, expected: Any) -> None:
        """Looks at one more product; nothing happens where nothing differs or shapes do not fit.

        Args:
          a, b: packed (M, K // 2), (N, K // 2), scales swizzled (plain ones are taken, but then no layout is
            suspected), tensor_scale g or None; as the implementation got them, NumPy.
          scheme: of the family nvfp4 or mxfp4.
          fmt: of the output.
          actual, expected: (M, N) uint16 or uint32. Bit patterns.
        """
        product = Product.of(a, b, scheme, fmt, np.asarray(actual), np.asarray(expected))
        if product is None:
            return
        wrong = product.wrong(product.expected)
        found = {}
        for suspect in suspects(product):
            guess = suspect.guess(product)
            found[suspect.name] = suspect.text, wrong if guess is None else product.wrong(guess)
        for name in (*self._left, *(name for name in found if name not in self._left)):
            text, before = self._left.get(name, (found.get(name, ("", 0))[0], self.tried))
            self._left[name] = text, before + found.get(name, ("", wrong))[1]
        self.products += 1
        self.tried += wrong
        self.mismatched += int(values_differ(fmt)(np.asarray(actual), np.asarray(expected)).sum())

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What would explain all products, best first; None before there is one."""
        if not self.tried:
            return None
        found = [Finding(name, text, self.tried, left) for name, (text, left) in self._left.items()]
        likely = sorted((f for f in found if f.share >= SHARE), key=lambda finding: finding.remaining)
        return Diagnosis(tuple(likely), self.tried, self.mismatched)


def suspects(product: Product) -> Iterator[Suspect]:
    """All faults that can apply, the likeliest first."""
    for words, which in SIDES:
        yield from _layouts(words, which)
        yield from _readings(product, words, which)
    yield Suspect("scales_exchanged", "the scales of A and B exchanged", _exchanged)
    if product.factor is not None:
        for words, which in SIDES:
            yield from _tensor_scales(words, which)
    for fmt, name in ((BFLOAT16, "bfloat16"), (BINARY16, "binary16")):
        text = f"the accumulator rounded to {name} before the tensor scale"
        yield Suspect(f"{name}_first", text, partial(_rounded_first, fmt=fmt))
    yield from _missing(product)
    yield from _last_step(product)


def _last_step(product: Product) -> Iterator[Suspect]:
    """Faults of the output's rounding and of its sign, one for every kind of output that can have them."""
    exact32 = matmul.finish(product.sums, product.factor, BINARY32).astype(np.int64)
    table = DecodeTable(scheme=product.scheme, fmt=product.fmt, g=None, exact32=exact32)
    for suspect in roundings(table):
        narrow_first = suspect.name.startswith("through_")
        if (narrow_first and product.factor is None) or (product.fmt is BINARY32 and suspect.name in _RARE):
            continue  # without a factor it is the accumulator that was rounded
        yield Suspect(suspect.name, suspect.text, partial(_rounded, suspect=suspect, table=table))


def _rounded(product: Product, suspect: Suspect, table: DecodeTable) -> Any:
    return suspect.guess(table).astype(product.expected.dtype)


_RARE = ("saturated", "zero_sign", "flushed", "nan_zero")
"""Faults that no binary32 sum of summable operands shows."""


def _layouts(words: str, which: tuple[int, ...]) -> Iterator[Suspect]:
    for name, text, place in _PLACES:

        def changed(side: Side, place: Any = place) -> Side | None:
            scales = side.read(place)
            return None if scales is None else replace(side, scales=scales)

        yield Suspect(name + words.replace(" ", "_"), text.format(words), _with(changed, which))


def _readings(product: Product, words: str, which: tuple[int, ...]) -> Iterator[Suspect]:
    """Faults in how codes and scales of an operand are read."""
    block, suffix = product.scheme.block, words.replace(" ", "_")

    def coarse(side: Side) -> Side:
        return replace(side, scales=side.scales[:, np.arange(side.scales.shape[1]) // 2])

    def swapped(side: Side) -> Side:
        return replace(side, codes=side.codes.reshape(len(side.codes), -1, 2)[:, :, ::-1].reshape(side.codes.shape))

    def halved(side: Side) -> Side:
        blocks = side.codes.reshape(len(side.codes), -1, block)[:, :, split_half(block)]
        return replace(side, codes=blocks.reshape(side.codes.shape))

    def powers(side: Side) -> Side:
        return replace(side, scales=side.scales & ~np.uint8((1 << product.scheme.scale.mantissa_bits) - 1))

    def padded(side: Side) -> Side | None:
        nan = _nan_padding(side, product.scheme)
        if nan is None:
            return None
        assert product.scheme.scale.nan_magnitude is not None
        scales = side.scales.copy()
        scales[nan] = product.scheme.scale.nan_magnitude
        return replace(side, scales=scales)

    for name, step in NEIGHBOURS:
        text = f"scales{words} of the {name} block of {block}"

        def moved(side: Side, step: int = step) -> Side:
            return replace(side, scales=np.roll(side.scales, -step, axis=1))

        yield Suspect(f"{name}_scale{suffix}", text, _with(moved, which))
    yield Suspect(
        f"coarse{suffix}", f"one scale{words} a {2 * block} elements: K/{2 * block} for K/{block}", _with(coarse, which)
    )
    if words:  # in both operands it changes nothing
        yield Suspect(f"nibbles{suffix}", f"neighbouring nibbles{words} swapped", _with(swapped, which))
        text = f"nibbles{words} in split halves: element j low, j + block/2 high"
        yield Suspect(f"split_half{suffix}", text, _with(halved, which))
    if product.scheme.scale.mantissa_bits:
        yield Suspect(f"powers{suffix}", f"the significands of the scales{words} ignored", _with(powers, which))
    yield Suspect(
        f"padding{suffix}", f"padding of the scales{words} used: NaN there reaches the sums", _with(padded, which)
    )


def _with(change: Callable[[Side], Side | None], which: tuple[int, ...]) -> Callable[[Product], Any]:
    return lambda product: product.with_sides(change, which)


def _exchanged(product: Product) -> Any:
    """Each side reads the other's buffer at its own offsets."""
    a, b = product.sides
    scales = a.read(_swizzled, b.buffer), b.read(_swizzled, a.buffer)
    if a.buffer is None or b.buffer is None or scales[0] is None or scales[1] is None:
        return None
    return product.finish(product.sums_of((replace(a, scales=scales[0]), replace(b, scales=scales[1]))))


def _tensor_scales(words: str, which: tuple[int, ...]) -> Iterator[Suspect]:
    """The factor of the sides in `which` left out, its reciprocal used, applied once more."""

    def factor(product: Product, forgotten: bool) -> float:
        r = np.float32(1)
        for i, side in enumerate(product.sides):
            if i not in which:
                r = r * product.factors[i]
            elif not forgotten and side.g is not None:
                r = r * side.g
        return float(r)

    def once_more(product: Product) -> float:
        r = np.float32(1)
        for i in which:
            r = r * product.factors[i]
        return float(r)

    what = f"the tensor scale{words}" if words else "both tensor scales"
    suffix = words.replace(" ", "_")
    yield Suspect(f"forgotten{suffix}", f"{what} forgotten", lambda p: p.finish(p.sums, factor(p, True)))
    yield Suspect(f"inverted{suffix}", f"{what} inverted", lambda p: p.finish(p.sums, factor(p, False)))
    yield Suspect(f"twice{suffix}", f"{what} applied twice", lambda p: p.finish(p.sums, p.factor, once_more(p)))


def _missing(product: Product) -> Iterator[Suspect]:
    """The last tile of a loop or of the grid, whole or not."""
    for tile in TILES:
        change = partial(_cut, kept=(product.terms - 1) // tile * tile)
        yield Suspect(f"k_tile_{tile}", f"the last K tile dropped, of {tile}", _with(change, (0, 1)))
    for axis, (letter, what) in enumerate((("M", "rows"), ("N", "columns"))):
        side = product.sides[axis]
        for tile in TILES:
            tail = side.rows >= (side.count - 1) // tile * tile
            text = f"the {letter} tail dropped: {what} of the last tile of {tile} not written"
            yield Suspect(f"{letter.lower()}_tail_{tile}", text, _unwritten(axis, tail))


def _cut(side: Side, kept: int) -> Side:
    """Zeros from an element on."""
    codes = side.codes.copy()
    codes[:, kept:] = 0
    return replace(side, codes=codes)


def _unwritten(axis: int, tail: npt.NDArray[np.bool_]) -> Callable[[Product], Any]:
    def guess(product: Product) -> Any:
        """One value everywhere in the tail, as memory that was filled and not written has it."""
        place = (tail, slice(None)) if axis == 0 else (slice(None), tail)
        left = product.actual[place]
        if not left.size or not (left == left.flat[0]).all():
            return None
        out = product.expected.copy()
        out[place] = left
        return out

    return guess


def _rounded_first(product: Product, fmt: FloatFormat) -> Any:
    """The output of sums rounded to a format of 16 bits."""
    pattern = matmul.finish(product.sums, None, fmt)
    if fmt is BINARY16:
        return product.finish(pattern.view(np.float16).astype(np.float64))
    return product.finish(np.left_shift(pattern, 16, dtype=np.uint32).view(np.float32).astype(np.float64))


def _nan_padding(side: Side, scheme: Scheme) -> npt.NDArray[np.bool_] | None:
    """Rows with a NaN in the padding to the right of their scales; None where there is no padding."""
    columns = side.scales.shape[1]
    padding = np.arange(columns, -(-columns // packing.TILE_COLUMNS) * packing.TILE_COLUMNS)
    if side.buffer is None or not padding.size:
        return None
    found = side.buffer[packing.swizzle_offset(side.rows[:, None], padding[None, :], columns)]
    nan = found & scheme.scale.magnitude_mask == scheme.scale.nan_magnitude
    return nan.any(1)


def _swizzled(r: Any, c: Any, rows: int, columns: int) -> Any:
    return packing.swizzle_offset(r, c, columns)


def _inside(r: Any, c: Any) -> Any:
    """The offset inside a tile of 128 rows and 4 columns."""
    return r % 32 * 16 + r % 128 // 32 * 4 + c % 4


_PLACES: tuple[tuple[str, str, Callable[[Any, Any, int, int], Any]], ...] = (
    ("swizzle_omitted", "the swizzle{} omitted: scales read in plain order", lambda r, c, m, n: r * n + c),
    ("row_major", "scales{} read row-major, rows padded to whole tiles", lambda r, c, m, n: r * -(-n // 4) * 4 + c),
    (
        "swizzle_transposed",
        "the swizzle{} transposed: tiles in column-major order",
        lambda r, c, m, n: (c // 4 * -(-m // 128) + r // 128) * 512 + _inside(r, c),
    ),
    ("column_major", "scales{} read column-major", lambda r, c, m, n: c * m + r),
    (
        "tile_row_major",
        "each tile of scales{} read row-major",
        lambda r, c, m, n: (r // 128 * -(-n // 4) + c // 4) * 512 + r % 128 * 4 + c % 4,
    ),
    (
        "unpadded_index",
        "tiles of scales{} placed by the unpadded number of columns",
        lambda r, c, m, n: (r // 128 * (n // 4) + c // 4) * 512 + _inside(r, c),
    ),
)
"""Wrong places of a scale: name, words with a gap for the operand, offset of (r, c) in rows x columns."""
