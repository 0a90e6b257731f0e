"""Publicly reported faults as cases: the rows of `lowbit.known_bugs`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowbit import schemes
from lowbit.formats import BINARY32
from lowbit.known_bugs import KNOWN_BUGS, KNOWN_DECODES, KnownBug
from lowbit.references import bits
from lowbit.schemes import Encoded
from lowbit.vectors.content_blocks import Input, answered
from lowbit.vectors.hextext import word
from lowbit.vectors.payload import Draft, Raw, draft

DECODES = "mxfp4_floor"
"""The scheme of `KNOWN_DECODES`."""

SOURCE = "the reports that its cases name"


def build() -> Iterator[Draft]:
    """One group of encodings a scheme, and one of decodings."""
    for scheme in schemes.select():
        cases = [_encoded(bug) for bug in KNOWN_BUGS if bug.scheme == scheme.name]
        if cases:
            yield draft(
                f"schemes/{scheme.name}/known_bugs.json",
                f"{scheme.name}/known_bugs",
                "known_bug",
                "blocks",
                cases,
                scheme=scheme.name,
                source=SOURCE,
                flags=("known_bug",),
            )
    yield draft(
        f"schemes/{DECODES}/known_bugs.json",
        f"{DECODES}/known_bugs_decode",
        "known_bug",
        "decoded",
        _decoded(),
        scheme=DECODES,
        source=SOURCE,
        flags=("decode", "known_bug"),
    )


def _encoded(bug: KnownBug) -> Raw:
    flags = ("given_tensor_scale",) if bug.tensor_scale is not None else ()
    fields = answered(Input(bug.name, bug.rows(), flags, bug.tensor_scale), schemes.get(bug.scheme))
    return fields | {"source": bug.source, "seen": bug.seen}


def _decoded() -> Iterator[Raw]:
    scheme = schemes.get(DECODES)
    for bug in KNOWN_DECODES:
        codes = np.full((1, scheme.block), bug.code, np.uint8)
        encoded = Encoded(codes, np.array([[bug.scale]], np.uint8), None)
        pattern = int(bits.dequantize(encoded, scheme, BINARY32)[0, 0])
        yield {
            "name": bug.name,
            "code": f"{bug.code:x}",
            "scale": f"{bug.scale:02x}",
            "binary32": word(0x7FC00000 if pattern & 0x7FFFFFFF > 0x7F800000 else pattern),
            "source": bug.source,
            "seen": bug.seen,
        }
