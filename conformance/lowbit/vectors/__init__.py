"""Golden vectors: inputs and their right answers, as files that need no code of lowbit to be used.

    locate(root=None) -> Path                 the folder: shipped beside the package, else the checkout's `vectors/`
    groups(root=None) -> tuple[Group, ...]    everything; a Group says what decides it, which kind and which form it has
    read(path) -> tuple[Group, ...]           one file
    verify(root=None) -> tuple[str, ...]      what is wrong with the files, by name: ask before judging by them
    check_against_references(groups)          what is wrong in those groups that no implementation is asked about
    weight_batches(group, scheme)             the cases of a group of weights, in as few weights as hold them

    for group in vectors.groups():
        group.kind        "decode", "breakpoints", "scale", "blocks", "layout", "stochastic", "weights" or "known_bug"
        group.form        how its cases are written: `group` lists the class of case of each form
        group.scheme, group.format    the name of what decides it, None where that is something else
        group.schemes     every scheme under which the answers hold
        group.rounding    of a table of breakpoints; group.nan, where the table is of NaN inputs only
        group.cases       Row(first, last, code), Block(x, options, expected), ...
        group.batches()   the cases of a group of blocks as few tensors: Batch(names, x, options, expected)
        group.file, case.name         what a report names

`VECTORS.md` beside the files describes them for readers in other languages. Neither torch nor triton is needed.
"""

from lowbit.vectors.case import (
    Block,
    Case,
    Code,
    Decoded,
    Draws,
    Exponent,
    Nibbles,
    Philox,
    Row,
    ScaledCodes,
    Swizzle,
    Thresholds,
    Weight,
)
from lowbit.vectors.group import KINDS, Batch, Group
from lowbit.vectors.read import groups, locate, read
from lowbit.vectors.soundness import check_against_references, verify
from lowbit.vectors.weight_batches import WeightBatch, weight_batches

__all__ = [
    "KINDS",
    "Batch",
    "Block",
    "Case",
    "Code",
    "Decoded",
    "Draws",
    "Exponent",
    "Group",
    "Nibbles",
    "Philox",
    "Row",
    "ScaledCodes",
    "Swizzle",
    "Thresholds",
    "Weight",
    "WeightBatch",
    "check_against_references",
    "groups",
    "locate",
    "read",
    "verify",
    "weight_batches",
]
