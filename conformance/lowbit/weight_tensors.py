"""The stored tensors of each weight scheme: their names, dtypes and shapes, as data.

Whoever hands a stored weight on, hands on a mapping from these names to tensors: suite, adapters, the reader of
checkpoints, references. Output: (K, N) for awq, gptq and squeezellm; `shape` for nf4 and fp4; (N, K) for int8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowbit.errors import ArgumentError, ShapeError
from lowbit.rules import Grouping
from lowbit.weights import WeightScheme

SHAPE = "shape"
"""The dtype of an entry that is a tuple of ints."""

INT = "int"
"""The dtype of an entry that is an int."""

SCALE = "scale"
"""Stands for the dtypes of the scheme's `scale_formats`."""

DTYPES = {"binary16": "float16", "bfloat16": "bfloat16", "binary32": "float32"}
"""Format → the name that PyTorch gives it."""


@dataclass(frozen=True)
class Part:
    """A tensor inside an entry.

    Args:
      name: as messages give it.
      dtype: a name of PyTorch's, or `SCALE`.
      shape: in words.
    """

    name: str
    dtype: str
    shape: str


@dataclass(frozen=True)
class Stored:
    """One entry of the mapping.

    Args:
      name: its key.
      dtype: a name of PyTorch's, `SCALE`, `SHAPE` or `INT`; empty where the entry is a tuple of `parts`.
      shape: in words, b being the bits of a code.
      meaning: one sentence.
      optional: may be absent, or None.
      flag: the entry belongs to schemes with this flag only; ``!flag`` to those without.
      parts: of an entry that is a tuple.
    """

    name: str
    dtype: str
    shape: str
    meaning: str
    optional: bool = False
    flag: str = ""
    parts: tuple[Part, ...] = ()


TENSORS: dict[str, tuple[Stored, ...]] = {
    "awq": (
        Stored("qweight", "int32", "(K, N / 8)", "codes, 8 columns a word"),
        Stored("qzeros", "int32", "(K / G, N / 8)", "zero points, in the same order"),
        Stored("scales", SCALE, "(K / G, N)", "one a group and column"),
    ),
    "gptq": (
        Stored("qweight", "int32", "(K * b / 32, N)", "codes, a dense stream down each column"),
        Stored("qzeros", "int32", "(ceil(K / G), N * b / 32)", "zero points, a dense stream along each row"),
        Stored("scales", SCALE, "(ceil(K / G), N)", "one a group and column"),
        Stored("g_idx", "int32", "(K,)", "the group of each row, 0 and up", optional=True),
    ),
    "squeezellm": (
        Stored("qweight", "int32", "(K * b / 32, N)", "codes, a dense stream down each column"),
        Stored("lookup_table", SCALE, "(N, 2**b)", "the values of each output channel"),
        Stored(
            "sparse",
            "",
            "CSR of (N, K)",
            "what is added at single places; nothing is added elsewhere, not even +0",
            flag="sparse",
            parts=(
                Part("crow_indices", "int32", "(N + 1,)"),
                Part("col_indices", "int32", "(entries,)"),
                Part("values", "float32", "(entries,)"),
            ),
        ),
        Stored(
            "full_rows",
            "",
            "R output channels",
            "column r of values is added to output channel indices[r]",
            flag="full_rows",
            parts=(Part("indices", "int32", "(R,)"), Part("values", "float32", "(K, R)")),
        ),
    ),
    "int8": (
        Stored("weight", "int8", "(N, K)", "codes"),
        Stored("scale", SCALE, "(N,)", "one an output channel; under int8_scb the channel's absmax, called SCB"),
    ),
}
TENSORS["nf4"] = TENSORS["fp4"] = (
    Stored("packed", "uint8", "(ceil(n / 2),)", "codes, the even element in the high nibble"),
    Stored("absmax", SCALE, "(ceil(n / block),)", "one a block of the flattened tensor", flag="!nested"),
    Stored("shape", SHAPE, "", "of the output, n elements in row-major order"),
    Stored("absmax", "uint8", "(ceil(n / block),)", "codes of absmax", flag="nested"),
    Stored("code2", "float32", "(256,)", "the value of each such code", flag="nested"),
    Stored("absmax2", "float32", "(ceil(blocks / block_size2),)", "their scales", flag="nested"),
    Stored("offset", "float32", "one element", "added last", flag="nested"),
    Stored("block_size2", INT, "", "blocks that share an absmax2", flag="nested"),
)


def entries(scheme: WeightScheme) -> tuple[Stored, ...]:
    """The entries of a scheme's mapping, in order; what is not among them does not belong to it."""
    held = {"nested": scheme.nested, "sparse": scheme.sparse, "full_rows": scheme.full_rows}
    return tuple(
        stored
        for stored in TENSORS[scheme.family]
        if not stored.flag or held[stored.flag.removeprefix("!")] is not stored.flag.startswith("!")
    )


def optional(stored: Stored, scheme: WeightScheme) -> bool:
    """Whether the entry may be absent: act-order needs its `g_idx`."""
    return stored.optional and scheme.grouping is not Grouping.ACT_ORDER


def dtypes(stored: Stored | Part, scheme: WeightScheme) -> tuple[str, ...]:
    """The names, as PyTorch has them, of the dtypes that a tensor may have."""
    return tuple(DTYPES[f.name] for f in scheme.scale_formats) if stored.dtype == SCALE else (stored.dtype,)


def rank(stored: Stored | Part) -> int:
    """How many dimensions a tensor has whose shape is told as ``(K,)`` or ``(K, N)``."""
    return len([length for length in stored.shape.strip("()").split(",") if length])


def shapes(scheme: WeightScheme, shape: tuple[int, ...], *, block_size2: int = 256) -> dict[str, tuple[int, ...]]:
    """The shape of every stored tensor for an output of some shape; not of the parts of tuples.

    Args:
      shape: of the output: (K, N), for int8 (N, K), for nf4 and fp4 any.
      block_size2: blocks that share an absmax2, for nested schemes.

    Raises:
      ShapeError: no such output can be stored; says which dimension must be a multiple of what.
    """
    if scheme.family in ("nf4", "fp4"):
        n = math.prod(shape)
        blocks = scheme.groups(n)
        found: dict[str, tuple[int, ...]] = {"packed": (scheme.packing.words(n),), "absmax": (blocks,)}
        if scheme.nested:
            if block_size2 < 1:
                raise ArgumentError(f"block_size2: got {block_size2}, want at least 1")
            found |= {"code2": (256,), "absmax2": (-(-blocks // block_size2),)}
        return found
    if len(shape) != 2:
        raise ShapeError(f"shape: got {shape}, want two dimensions for {scheme.name}")
    if scheme.family == "int8":
        return {"weight": shape, "scale": (shape[0],)}
    rows, columns = shape
    packing, zero_packing = scheme.packing, scheme.zero_packing
    for name, axis in {("K", "N")[p.axis]: p.axis for p in (packing, zero_packing) if p is not None}.items():
        if shape[axis] % packing.period_codes:
            raise ShapeError(
                f"{name}: got {shape[axis]}, want a multiple of {packing.period_codes} for {scheme.name}: "
                f"{packing.period_codes} codes of {packing.bits} bits fill whole words"
            )
    if scheme.grouping is Grouping.WHOLE and rows % scheme.group_size(rows):
        raise ShapeError(f"K: got {rows}, want a multiple of {scheme.group_size(rows)}, the group of {scheme.name}")
    words = (packing.words(rows), columns) if packing.axis == 0 else (rows, packing.words(columns))
    found = {"qweight": words}
    if scheme.family == "squeezellm":
        return {**found, "lookup_table": (columns, 1 << scheme.bits)}
    assert zero_packing is not None
    groups = scheme.groups(rows)
    found |= {"qzeros": (groups, zero_packing.words(columns)), "scales": (groups, columns)}
    return {**found, "g_idx": (rows,)} if scheme.family == "gptq" else found
