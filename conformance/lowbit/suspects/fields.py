"""How the fields of packed words are read, place by place, and the wrong ways that every packed scheme can have.

A reader takes words, their packing, and places (P,) of the matrix of codes, and gives (P,) codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.weights import AWQ_ORDER, WordPacking

Ints = npt.NDArray[np.int64]

TILES = (16, 32, 64, 128, 256)
"""Rows, columns or elements of tiles whose first one may decide for all, or whose last one may be missing."""

NEIGHBOURS = (("next", 1), ("previous", -1))

Reader = Callable[[Any, WordPacking, Any, Any], Ints]


class Misreading(NamedTuple):
    """Attributes: a stable name, what completes "all mismatches vanish with …", and the reader."""

    name: str
    text: str
    read: Reader


def gather(words: Any, packing: WordPacking, row: Any, column: Any) -> Ints:
    """Codes at places of the matrix of codes: (P,) rows and columns of it."""
    line, place = (column, row) if packing.axis == 0 else (row, column)
    run = len(packing.order)
    position = np.argsort(packing.order)
    field = place // run * run + position[place % run]
    word, shift = np.divmod(field * packing.bits, packing.word_bits)
    return extract(words, packing, line, word, shift)


def extract(words: Any, packing: WordPacking, line: Any, word: Ints, shift: Ints, *, cross: bool = True) -> Ints:
    """The codes that begin at a bit of a word of a line; `cross` takes the rest from the word after it."""
    unsigned = words.astype(np.int64) & ((1 << packing.word_bits) - 1)
    count = words.shape[packing.axis]

    def at(index: Ints) -> Ints:
        inside = np.clip(index, 0, count - 1)
        return unsigned[inside, line] if packing.axis == 0 else unsigned[line, inside]

    found = at(word) >> shift
    if cross and packing.word_bits % packing.bits:
        taken = packing.word_bits - shift  # at most 31 bits of the word after it are of use
        rest = (at(word + 1) & ((1 << packing.bits) - 1)) << np.minimum(taken, packing.word_bits)
        found = np.where(taken < packing.bits, found | rest, found)
    return found & ((1 << packing.bits) - 1)


def misreadings(packing: WordPacking) -> Iterator[Misreading]:
    """Every wrong reading that can occur with a packing, the likeliest first."""
    fields, order = packing.word_bits // packing.bits, packing.order
    if packing.word_bits == 8 and packing.bits == 4:
        changed = tuple(reversed(order))
        yield Misreading("nibbles_swapped", "the low nibble first: neighbouring nibbles swapped", _ordered(changed))
    elif order != (0,):
        inverse = tuple(int(i) for i in np.argsort(order))
        yield Misreading(
            "order_omitted", "the word order omitted: fields in a row from the least bits up", _ordered((0,))
        )
        yield Misreading("order_inverted", "the inverse of the word order", _ordered(inverse))
    elif packing.bits == 4:
        yield Misreading("awq_order", "AWQ's word order in place of the plain one", _ordered(AWQ_ORDER))
    if packing.word_bits == 32 and packing.word_bits % packing.bits == 0:
        reverse = tuple(reversed(range(fields)))
        yield Misreading("order_reversed", "fields in a row from the greatest bits down", _ordered(reverse))
    if packing.word_bits % packing.bits:
        yield Misreading("cut", "fields that cross words cut off at the end of the first", _cut)
        yield Misreading("whole_fields", f"{fields} fields a word, none across words", _whole)
    yield Misreading("sign_extended", f"fields sign-extended: {(1 << packing.bits) - 1:#x} read as -1", _extended)


def _ordered(order: tuple[int, ...]) -> Reader:
    return partial(_in_order, order=order)


def _in_order(words: Any, packing: WordPacking, row: Any, column: Any, order: tuple[int, ...]) -> Ints:
    return gather(words, replace(packing, order=order), row, column)


def _cut(words: Any, packing: WordPacking, row: Any, column: Any) -> Ints:
    line, place = (column, row) if packing.axis == 0 else (row, column)
    word, shift = np.divmod(place * packing.bits, packing.word_bits)
    return extract(words, packing, line, word, shift, cross=False)


def _whole(words: Any, packing: WordPacking, row: Any, column: Any) -> Ints:
    line, place = (column, row) if packing.axis == 0 else (row, column)
    word, field = np.divmod(place, packing.word_bits // packing.bits)
    return extract(words, packing, line, word, field * packing.bits, cross=False)


def _extended(words: Any, packing: WordPacking, row: Any, column: Any) -> Ints:
    codes, half = gather(words, packing, row, column), 1 << (packing.bits - 1)
    return np.where(codes >= half, codes - 2 * half, codes)
