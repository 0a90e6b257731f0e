"""What the tests of the matmul share: ways to add up products in binary32, and operands by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lowbit.references.matmul_exact import sums
from lowbit.schemes import Encoded, Scheme

Adder = Callable[[np.ndarray], np.ndarray]
"""(w, ...) float64 holding binary32 numbers, to their sum as one operation of a machine gives it."""


def operand(scheme: Scheme, codes: Sequence[Sequence[int]], scales: Sequence[Sequence[int]], g=None) -> Encoded:
    """Codes filled up with 0 to whole blocks, one list a row; scale bytes; g."""
    width = len(scales[0]) * scheme.block
    filled = [[*row, *[0] * (width - len(row))] for row in codes]
    return Encoded(np.array(filled, np.uint8), np.array(scales, np.uint8), None if g is None else np.float32(g))


def random_operand(scheme: Scheme, rows: int, terms: int, rng, scales: tuple[int, int], g=None) -> Encoded:
    """Any codes, and scale bytes of a range, its end excluded."""
    codes = rng.integers(0, 16, (rows, terms)).astype(np.uint8)
    return Encoded(codes, rng.integers(*scales, (rows, terms // scheme.block)).astype(np.uint8), g)


def products(a: Encoded, b: Encoded, scheme: Scheme) -> np.ndarray:
    """(K, M, N) float64. Every product, exact: from tables of the formats, element by element."""
    values = np.array([float(scheme.element.value(c)) for c in range(16)])
    steps = np.array([float(scheme.scale.value(s)) for s in range(256)])
    left, right = (values[x.codes] * np.repeat(steps[x.scales], scheme.block, axis=1) for x in (a, b))
    return left.T[:, :, None] * right.T[:, None, :]


def rounded(terms: np.ndarray) -> np.ndarray:
    """IEEE: the terms one after another, each sum rounded to nearest."""
    total = terms[0].astype(np.float32)
    for term in terms[1:]:
        total = total + term.astype(np.float32)
    return total.astype(np.float64)


def truncated(terms: np.ndarray) -> np.ndarray:
    """The exact sum of all terms at once, cut to 24 bits. Exact in float64 for terms of like size, else nearly."""
    return cut(terms.sum(0), 0)


def aligned(terms: np.ndarray) -> np.ndarray:
    """As a tensor core: every term cut below 24 bits of the largest, added, the sum cut to 24 bits."""
    largest = np.frexp(np.abs(terms).max(0))[1]
    return cut(np.sum([cut_at(term, largest - 24) for term in terms], axis=0), 0)


def cut_at(values: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Toward zero to a multiple of 2^exponent."""
    return np.ldexp(np.trunc(np.ldexp(values, -exponent)), exponent)


def cut(values: np.ndarray, extra: int) -> np.ndarray:
    """Toward zero to 24 significant bits and some."""
    return cut_at(values, np.frexp(values)[1] - 24 - extra)


def in_groups(terms: np.ndarray, adder: Adder, width: int) -> np.ndarray:
    """An accumulator that takes `width` more terms at a time, from +0."""
    total = np.zeros_like(terms[0])
    for start in range(0, len(terms), width):
        total = adder(np.concatenate([total[None], terms[start : start + width]]))
    return total


def in_a_tree(terms: np.ndarray, adder: Adder, rng) -> np.ndarray:
    """Random partial sums added to one another until one is left."""
    left = list(terms)
    while len(left) > 1:
        width = min(int(rng.integers(2, 6)), len(left))
        chosen = [left.pop(int(rng.integers(len(left)))) for _ in range(width)]
        left.append(adder(np.stack(chosen)))
    return left[0] + 0.0


def split(terms: np.ndarray, adder: Adder, parts: int) -> np.ndarray:
    """Split-K: each part of its own, the parts added at the end."""
    return in_groups(np.stack([in_groups(part, adder, 4) for part in np.array_split(terms, parts)]), adder, 1)


def every_order(terms: np.ndarray, rng) -> dict[str, np.ndarray]:
    """Sums of the same terms in many orders on many machines."""
    found = {}
    for name, adder in (("rounded", rounded), ("truncated", truncated), ("aligned", aligned)):
        for width in (1, 4, 16):
            found[f"{name}, {width} at once"] = in_groups(terms, adder, width)
            found[f"{name}, {width} at once, backwards"] = in_groups(terms[::-1], adder, width)
            found[f"{name}, {width} at once, shuffled"] = in_groups(rng.permutation(terms), adder, width)
        found[f"{name}, tree"] = in_a_tree(terms, adder, rng)
        found[f"{name}, split"] = split(terms, adder, 5)
        magnitude = np.argsort(np.abs(terms), axis=0)
        found[f"{name}, ascending"] = in_groups(np.take_along_axis(terms, magnitude, 0), adder, 1)
        found[f"{name}, descending"] = in_groups(np.take_along_axis(terms, magnitude[::-1], 0), adder, 8)
        signed = np.argsort(terms, axis=0)
        found[f"{name}, negative first"] = in_groups(np.take_along_axis(terms, signed, 0), adder, 2)
    return found


def exact_sums(a: Encoded, b: Encoded, scheme: Scheme) -> np.ndarray:
    """(M, N) float64 of the scalar reference's sums; they must fit."""
    return np.array([[float(total) for total in row if total is not None] for row in sums(a, b, scheme)])
