"""Which code sits in which bits of a packed word, and the drawing of it. Standard library only."""

from __future__ import annotations

from typing import NamedTuple

from lowbit.weights import WordPacking

CELLS = 12
"""Fields drawn side by side, at most."""


class Piece(NamedTuple):
    """Consecutive bits of a word that belong to one code.

    Attributes:
      word: 0 and up, within the period.
      low, width: bits low..low + width - 1 of the word.
      place: of the code along the packing's axis, within the period.
      code_low: the lowest bit of the code that is here; the others follow upwards.
    """

    word: int
    low: int
    width: int
    place: int
    code_low: int


def pieces(packing: WordPacking) -> tuple[Piece, ...]:
    """The bits of one period, word by word, from the least significant bit up; a code across words is two pieces."""
    found = []
    for field in range(packing.period_codes):
        start = field * packing.bits
        for bit in range(start, start + packing.bits):
            word, low = divmod(bit, packing.word_bits)
            if bit == start or low == 0:
                found.append(Piece(word, low, 1, packing.place(field), bit - start))
            else:
                found[-1] = found[-1]._replace(width=found[-1].width + 1)
    return tuple(found)


def drawing(packing: WordPacking, axis: str) -> list[str]:
    """The words of one period as text, the most significant bit at the left.

    Args:
      axis: what the places count, such as "column".
    """
    all_pieces, period, words = pieces(packing), packing.period_codes, packing.period_words
    base = f"{period}j + " if period > 1 else "j"
    lines = [f"bits {packing.word_bits - 1}..0 of {_word_name(packing)} hold {axis} {base}{'…' if period > 1 else ''}"]
    for word in range(words):
        own = [piece for piece in reversed(all_pieces) if piece.word == word]
        rows = -(-len(own) // CELLS)
        each = -(-len(own) // rows)
        for first in range(0, len(own), each):
            part = own[first : first + each]
            cells = [(_bits(piece.low, piece.width), _label(piece, packing)) for piece in part]
            widths = [max(map(len, cell)) for cell in cells]
            title = f"word {word}" if words > 1 and first == 0 else ""
            for i, name in enumerate((title or "bits", axis)):
                row = " | ".join(cell[i].rjust(width) for cell, width in zip(cells, widths, strict=True))
                lines.append(f"{name:<8} | {row} |")
    return lines


def _word_name(packing: WordPacking) -> str:
    name, count = "byte" if packing.word_bits == 8 else "word", packing.period_words
    return f"{name} j" if count == 1 else f"{name}s {count}j + 0..{count - 1}"


def _bits(low: int, width: int) -> str:
    return str(low) if width == 1 else f"{low + width - 1}..{low}"


def _label(piece: Piece, packing: WordPacking) -> str:
    """The place of the code, with its bits where the piece is not all of it."""
    if piece.width == packing.bits:
        return str(piece.place)
    return f"{piece.place}[{_bits(piece.code_low, piece.width)}]"
