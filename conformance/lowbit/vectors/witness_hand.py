"""Answers written by hand: of reports, of papers, of published tables, and of SPEC.md's list of numbers on which
libraries part ways.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowbit import schemes
from lowbit.cases.known_bugs import KNOWN_BUGS, KNOWN_DECODES
from lowbit.cases.known_weight_bugs import KNOWN_WEIGHTS
from lowbit.vectors.case import Block, Decoded, Philox, Weight
from lowbit.vectors.group import Group
from lowbit.vectors.hextext import patterns, word, write_digits, write_octets, write_words
from lowbit.vectors.published import FP4_TWELFTHS, NF4
from lowbit.vectors.votes import Answer, Witness
from lowbit.vectors.weight_text import OUTPUTS, write_answer

RANDOM123: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = {
    ((0, 0), (0, 0, 0, 0)): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4): (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)): (
        *(0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}
"""Key, counter → words of Philox4x32-10: the known answers of the authors' library Random123."""

DIALECT_SCALES: dict[tuple[str, str], int] = {
    ("nvfp4", "tensor amax 6, block amax 4.5"): 0x7A,
    ("nvfp4", "tensor amax 7, block amax 5.75"): 0x7C,
    ("nvfp4", "tensor amax 7, block amax 6.25"): 0x7C,
    ("nvfp4_two_level", "tensor amax 7, block amax 6.25"): 0x7D,
}
"""Scheme, case → the second block's scale (SPEC.md 6)."""

DIALECT_CODES: dict[tuple[str, str], int] = {
    ("nvfp4", "g 448, scale 128, x 1"): 6,
    ("nvfp4", "g 512, scale 240, x 2.34375"): 6,
    ("nvfp4", "g 1, scale 0.9375, x 4.6875"): 6,
    ("nvfp4", "g 1, scale 1.875, x 4.6875"): 4,
}
"""Scheme, case → the code of element 1 (SPEC.md 6)."""

PUBLISHED: dict[str, tuple[float, ...]] = {
    "nf4": tuple(map(float, NF4)),
    "fp4": tuple(sign * float(n) / 12 for sign in (1, -1) for n in FP4_TWELFTHS),
}
"""The values of codes 0 to 15."""


def _reports(group: Group) -> Iterator[Answer]:
    """The right values of `lowbit.cases.known_bugs`, which no reference computes."""
    if group.kind != "known_bug":
        return
    bugs = {bug.name: bug for bug in KNOWN_BUGS if bug.scheme == group.subject}
    decodes = {bug.name: bug for bug in KNOWN_DECODES}
    weights = {bug.name: bug for bug in KNOWN_WEIGHTS if bug.scheme == group.subject}
    for case in group.cases:
        if isinstance(case, Decoded):
            right = patterns(np.array([decodes[case.name].value], np.float32))[0]
            yield Answer(case.name, "value", word(right), case.fields["binary32"])
        elif isinstance(case, Weight):
            weight = weights[case.name]
            if weight.patterns is None:
                yield Answer(case.name, "a weight to refuse", "refused", "refused" if case.refused else "accepted")
                continue
            found = np.broadcast_to(weight.patterns(), case.shape)
            name = weight.fmt.name
            yield Answer(case.name, name, write_answer(found, OUTPUTS[name]), case.fields.get(name, ""))
        elif isinstance(case, Block):
            bug = bugs[case.name]
            yield Answer(case.name, "scale", f"{bug.scale:02x}", case.fields["scales"][-2:])
            if bug.codes is not None:
                block = schemes.get(group.subject).block
                right_codes = [*bug.codes, *[0] * (block - len(bug.codes))]
                yield Answer(case.name, "codes", write_digits(right_codes), case.fields["codes"][-block:])


def _random123(group: Group) -> Iterator[Answer]:
    for case in group.cases if group.form == "philox" else ():
        assert isinstance(case, Philox)  # by the form
        known = RANDOM123.get((case.key, case.counter))
        if known is not None:
            yield Answer(case.name, "words", write_words(known), case.fields["words"])


def _dialects(group: Group) -> Iterator[Answer]:
    for case in group.cases if group.name.endswith("/dialects") else ():
        assert isinstance(case, Block)  # by the form
        key = (group.subject, case.name)
        if key in DIALECT_SCALES:
            yield Answer(case.name, "second scale", write_octets([DIALECT_SCALES[key]]), case.fields["scales"][2:4])
        if key in DIALECT_CODES:
            yield Answer(case.name, "code of element 1", f"{DIALECT_CODES[key]:x}", case.fields["codes"][1])


def _published(group: Group) -> Iterator[Answer]:
    """Every code under an absmax of 1 is the value that its authors printed."""
    table = PUBLISHED.get(group.subject.partition("_")[0])
    for case in group.cases if group.name.endswith("/codebook") and table else ():
        assert isinstance(case, Weight)  # by the name, as the test below
        codes = [digit for byte in bytes.fromhex(case.fields["packed"]) for digit in divmod(byte, 16)]
        if case.fields["absmax"] == "3f800000" and table is not None:
            found = np.array([table[code] for code in codes], np.float32).view(np.uint32)
            text = write_answer(found, OUTPUTS["binary32"])
            yield Answer(case.name, "published values", text, case.fields["binary32"])


WITNESSES = (
    Witness("reports", "the reports' right values, by hand", "known bugs", _reports),
    Witness("random123", "Random123's known answers, by hand", "Philox4x32-10", _random123),
    Witness("spec_numbers", "SPEC.md 6, by hand", "NVFP4 dialects", _dialects),
    Witness("published", "their authors' tables of NF4 and FP4, by hand", "codebooks of 4 bits", _published),
)
