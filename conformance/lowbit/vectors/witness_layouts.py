"""lowbit's own witnesses of memory: the module that stores bytes, reading them back, and the formulas written out."""

from __future__ import annotations

from collections.abc import Iterator

from lowbit import packing, schemes
from lowbit.vectors.case import Block, Nibbles, Swizzle
from lowbit.vectors.group import Group
from lowbit.vectors.hextext import write_digits, write_octets
from lowbit.vectors.votes import Answer, Witness
from lowbit.vectors.witness_own import compared


def _by_packing(group: Group) -> Iterator[Answer]:
    """The module that stores bytes, asked to read them back."""
    for case in group.cases:
        if isinstance(case, Nibbles):
            found = packing.unpack_nibbles(case.packed)
            yield Answer(case.name, "codes", write_digits(found), case.fields["codes"])
        elif isinstance(case, Swizzle):
            scales = packing.unswizzle(case.buffer, *case.shape)
            yield Answer(case.name, "scales", write_octets(scales.ravel()), case.fields["scales"])
            if case.scales.size:
                padding = case.buffer[packing.swizzle_padding(*case.shape)]
                yield Answer(case.name, "padding", write_octets(padding), "00" * padding.size)
        elif isinstance(case, Block) and group.form == "stream":
            scheme = schemes.get(group.subject)
            assert case.packed is not None  # streams have it
            stored = schemes.Quantized(case.packed, case.expected.scales, None)
            yield from compared(case, packing.unpack(stored, scheme)._replace(tensor_scale=case.expected.tensor_scale))


def _by_formula(group: Group) -> Iterator[Answer]:
    """The formulas of SPEC.md 3 and 4, one byte at a time."""
    for case in group.cases:
        if isinstance(case, Nibbles):
            codes = case.codes.tolist()
            stored = [codes[2 * j] + 16 * codes[2 * j + 1] for j in range(len(codes) // 2)]
            yield Answer(case.name, "bytes", write_octets(stored), case.fields["packed"])
        elif isinstance(case, Swizzle):
            yield Answer(case.name, "buffer", write_octets(swizzled(case)), case.fields["buffer"])
        elif isinstance(case, Block) and group.form == "stream":
            scheme = schemes.get(group.subject)
            stored = []
            for row, (codes, scales) in enumerate(zip(case.expected.codes, case.expected.scales, strict=True)):
                for block in range(len(scales)):
                    part = codes[block * scheme.block : (block + 1) * scheme.block].tolist()
                    stored += [low + 16 * high for low, high in zip(part[::2], part[1::2], strict=True)]
                    if scheme.family == "mx4":
                        stored.append(int(case.expected.scales[row, block]))
            yield Answer(case.name, "bytes", write_octets(stored), case.fields["packed"])


def swizzled(case: Swizzle) -> list[int]:
    """The buffer of a matrix, by the formula."""
    rows, columns = case.shape
    tiles, scales = -(-columns // 4), case.scales.tolist()
    buffer = [0] * (-(-rows // 128) * 128 * tiles * 4)
    for r in range(rows):
        for c in range(columns):
            buffer[(r // 128 * tiles + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scales[r][c]
    return buffer


WITNESSES = (
    Witness("packing", "lowbit, packing", "reads stored bytes back", _by_packing),
    Witness("formula", "lowbit, layout formulas", "the layouts' formulas, one byte at a time", _by_formula),
)
