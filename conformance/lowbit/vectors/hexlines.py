"""Vectors as lines of hex, in the manner of Berkeley TestFloat: for programs in any language.

    a scheme   [g] x … x [random]            one block a line, all words binary32; g where the scheme takes a tensor
                                             scale, random where it is stochastic
    answer     the same words, then one word of codes (a digit each, element 0 first), then the scale code
    a format   x                             one input a line
    answer     x, then its code

Answers come in the order of the lines that were exported; the words beside them are compared, so that an answer
cannot be taken for another one's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lowbit import schemes
from lowbit.errors import ArgumentError, NothingCompared
from lowbit.formats import FORMATS, FloatFormat
from lowbit.rules import NanCode, Rounding
from lowbit.schemes import Encoded, Scheme
from lowbit.vectors.case import Block, Row
from lowbit.vectors.content_formats import code_text
from lowbit.vectors.group import Group
from lowbit.vectors.hextext import digits, write_digits, write_octets, write_words
from lowbit.vectors.read import groups
from lowbit.vectors.steps import GIVEN


@dataclass(frozen=True)
class Line:
    """One block, or one element.

    Attributes:
      words: what is exported.
      answer: what a right program adds.
      place: file, group and case, as messages name them.
      g: pattern of the tensor scale, None where there is none in the line.
    """

    words: str
    answer: str
    place: str
    g: int | None = None


def scheme_lines(scheme: Scheme, root: Path | str | None = None) -> list[Line]:
    """Every block of the vectors under a scheme.

    A tensor of several blocks becomes as many lines. Cases about a seed are left out, and those whose computed tensor
    scale may not be given: NaN, Inf or 0.

    Raises:
      NothingCompared: there are none: of a scheme that is not registered.
    """
    found = [
        line
        for group in groups(root)
        if group.scheme == scheme.name and group.form in ("blocks", "stream")
        for case in group.cases
        if isinstance(case, Block)
        for line in _blocks(case, group, scheme)
    ]
    if not found:
        raise NothingCompared(f"vectors: there is no block under {scheme.name}")
    return found


def _blocks(case: Block, group: Group, scheme: Scheme) -> Iterator[Line]:
    if case.seed is not None:
        return
    takes_g = scheme.tensor_scale in GIVEN
    g = int(case.fields["tensor_scale"], 16) if takes_g else None
    if g is not None and not 0 < g < 0x7F800000:
        return
    rows, columns = case.shape
    width = -(-columns // scheme.block) * scheme.block
    bits = np.zeros((rows, width), np.uint32)
    bits[:, :columns] = case.x.view(np.uint32)
    place = f"{group.file}, {group.name}, case {case.name!r}"
    expected = case.expected
    for r in [None] if case.randoms is None else case.randoms:
        for row in range(rows):
            for block in range(width // scheme.block):
                part = slice(block * scheme.block, (block + 1) * scheme.block)
                words = [] if g is None else [f"{g:08x}"]
                words.append(write_words(bits[row, part]))
                if r is not None:
                    words.append(write_octets([r] * scheme.block))
                elif case.random_bits is not None:
                    random = np.zeros(width, np.uint8)
                    random[:columns] = case.random_bits[row]
                    words.append(write_octets(random[part]))
                if case.scale_random_bits is not None:
                    words.append(write_words([int(case.scale_random_bits[row, block])]))
                answer = f"{write_digits(expected.codes[row, part])} {expected.scales[row, block]:02x}"
                yield Line(" ".join(words), answer, place, g)


def format_lines(
    element: FloatFormat, rounding: Rounding, nan: NanCode | None = None, root: Path | str | None = None
) -> list[Line]:
    """Both ends of every row of a format's table under a rule.

    Args:
      nan: adds NaN inputs to a format that has no NaN of its own.

    Raises:
      NothingCompared: there is no such table, as for STOCHASTIC.
    """
    wanted = {rounding.value, None if nan is None else nan.value} - {None}
    found = [
        Line(f"{end:08x}", code_text(element, case.code), f"{group.file}, {group.name}, case {case.name!r}")
        for group in groups(root)
        if group.format == element.name and group.kind == "breakpoints" and {group.rounding, group.nan} & wanted
        for case in group.cases
        if isinstance(case, Row)
        for end in dict.fromkeys((case.first, case.last))
    ]
    if not found:
        raise NothingCompared(f"vectors: there is no table of {element.name} under {rounding.value}")
    return found


def target(name: str) -> Scheme | FloatFormat:
    """The scheme or the low-bit format of that name.

    Raises:
      UnknownScheme: neither; names the nearest schemes.
    """
    return FORMATS[name] if name in FORMATS else schemes.get(name)


def answers(lines: list[Line], given: Iterable[str]) -> list[list[str]]:
    """The words that a program added to each line.

    Raises:
      ArgumentError: a line too few or too many, one without the exported words, or with a wrong number of words
        after them; names the line.
    """
    found: list[list[str]] = []
    wanted = len(lines[0].answer.split())
    for number, text in enumerate(given, 1):
        if number > len(lines):
            raise ArgumentError(f"line {number}: got more answers than the {len(lines)} exported lines")
        words, exported = re.findall(r"[^ \t]+", text.rstrip("\r\n").lower()), lines[number - 1].words.split()
        if words[: len(exported)] != exported:
            raise ArgumentError(
                f"line {number}: got {_start(words)}, want the exported words first: {_start(exported)}"
            )
        added = words[len(exported) :]
        if len(added) != wanted:
            raise ArgumentError(f"line {number}: got {len(added)} words after the exported ones, want {wanted}")
        found.append(added)
    if len(found) < len(lines):
        raise ArgumentError(f"answers: got {len(found)}, want {len(lines)}: line {len(found) + 1} and on are missing")
    return found


@dataclass(frozen=True)
class Blocks:
    """Answered blocks under one tensor scale.

    Attributes:
      numbers: (N,) the lines' numbers, from 1.
      x: (N, block) float32. actual, expected: of N blocks.
      random_bits, scale_random_bits: of a stochastic scheme, else None.
    """

    numbers: list[int]
    x: npt.NDArray[np.float32]
    actual: Encoded
    expected: Encoded
    random_bits: npt.NDArray[np.uint8] | None
    scale_random_bits: npt.NDArray[np.int32] | None


def blocks_of(lines: list[Line], added: list[list[str]], scheme: Scheme) -> list[Blocks]:
    """Lines and answers as arrays, one set a tensor scale.

    Raises:
      ArgumentError: an answer that is no hex of the right length; names the line.
    """
    by_g: dict[int | None, list[int]] = {}
    for index, line in enumerate(lines):
        by_g.setdefault(line.g, []).append(index)
    return [_blocks_under(g, indices, lines, added, scheme) for g, indices in by_g.items()]


def _blocks_under(
    g: int | None, indices: list[int], lines: list[Line], added: list[list[str]], scheme: Scheme
) -> Blocks:
    x, codes, scales, random, scale_random = [], [], [], [], []
    right: list[list[str]] = []
    for index in indices:
        words = lines[index].words.split()[0 if g is None else 1 :]
        x.append([int(word, 16) for word in words[: scheme.block]])
        rest = words[scheme.block :]
        if scheme.rounding is Rounding.STOCHASTIC:
            random.append(list(bytes.fromhex(rest.pop(0))))
        if rest:
            scale_random.append([int(rest.pop(0), 16)])
        codes.append(_hex(added[index][0], scheme.block, index, "codes"))
        scales.append(_hex(added[index][1], 2, index, "scale"))
        right.append(lines[index].answer.split())
    # A scheme of constant tensor scale, or of none, is not asked for one.
    factor = None if g is None else np.uint32(g).view(np.float32)
    if g is None and scheme.family == "nvfp4":
        factor = np.float32(1)
    return Blocks(
        [index + 1 for index in indices],
        np.array(x, np.uint32).view(np.float32),
        Encoded(np.stack(list(map(digits, codes))), _bytes(scales), factor),
        Encoded(np.stack([digits(words[0]) for words in right]), _bytes([words[1] for words in right]), factor),
        np.array(random, np.uint8) if random else None,
        np.array(scale_random, np.int32) if scale_random else None,
    )


def codes_of(lines: list[Line], added: list[list[str]], element: FloatFormat) -> tuple[np.ndarray, ...]:
    """x (N,) float32, and the actual and expected codes (N,) uint8 of a format's lines.

    Raises:
      ArgumentError: an answer that is no hex of the right length, or no code of the format; names the line.
    """
    length = -(-element.bits // 4)
    actual = [int(_hex(words[0], length, index, "code"), 16) for index, words in enumerate(added)]
    last = (1 << element.bits) - 1
    for index, code in enumerate(actual):
        if code > last:
            raise ArgumentError(
                f"line {index + 1}: code: got {code:02x}, want 00 to {last:02x}: {element.name} has no more"
            )
    x = np.array([int(line.words, 16) for line in lines], np.uint32).view(np.float32)
    return x, np.array(actual, np.uint8), np.array([int(line.answer, 16) for line in lines], np.uint8)


def renumbered(numbers: list[int], coordinates: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates of a sample, its row as the line's number."""
    return (numbers[coordinates[0]], *coordinates[1:]) if coordinates else coordinates


def _hex(text: str, length: int, index: int, what: str) -> str:
    if len(text) != length or set(text) - set("0123456789abcdef"):
        raise ArgumentError(f"line {index + 1}: {what}: got {text!r}, want {length} hex digits")
    return text


def _bytes(texts: list[str]) -> npt.NDArray[np.uint8]:
    return np.array([[int(text, 16)] for text in texts], np.uint8)


def _start(words: list[str]) -> str:
    return " ".join(words[:3]) + (" …" if len(words) > 3 else "") if words else "an empty line"
