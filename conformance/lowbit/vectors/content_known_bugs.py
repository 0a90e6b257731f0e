"""Publicly reported faults as cases: the rows of `lowbit.cases.known_bugs` and of `lowbit.cases.known_weight_bugs`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowbit import schemes, weights
from lowbit.cases.known_bugs import KNOWN_BUGS, KNOWN_DECODES, KnownBug
from lowbit.cases.known_weight_bugs import KnownWeight, of_scheme
from lowbit.formats import BINARY32
from lowbit.references import bits
from lowbit.references.weights_arguments import output_shape
from lowbit.schemes import Encoded
from lowbit.vectors.content_blocks import Input, answered
from lowbit.vectors.hextext import word
from lowbit.vectors.payload import Draft, Raw, draft
from lowbit.vectors.weight_items import StoredWeight
from lowbit.vectors.weight_items import answered as answered_weight
from lowbit.weights import WeightScheme

DECODES = "mxfp4_floor"
"""The scheme of `KNOWN_DECODES`."""

SOURCE = "the reports that its cases name"


def build() -> Iterator[Draft]:
    """One group of encodings a scheme, one of decodings, and one of weights a weight scheme."""
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
    for stored in weights.select():
        faults = [_weight(bug, stored) for bug in of_scheme(stored)]
        if faults:
            yield draft(
                f"schemes/{stored.name}/known_bugs.json",
                f"{stored.name}/known_bugs",
                "known_bug",
                "weights",
                faults,
                scheme=stored.name,
                source=SOURCE,
                flags=("known_bug",),
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


def _weight(bug: KnownWeight, scheme: WeightScheme) -> Raw:
    """A right weight with the values of the report's format; a wrong one with the reason to refuse it."""
    arrays = bug.tensors()
    formats = () if bug.patterns is None else (bug.fmt,)
    sound = arrays if bug.patterns is not None else arrays | {"g_idx": None}  # nothing but an index is wrong with any
    shape = output_shape(sound, scheme)
    refused = bug.name if bug.patterns is None else ""
    fields = answered_weight(StoredWeight(bug.name, arrays, shape, formats=formats, refused=refused), scheme)
    return fields | {"source": bug.source, "seen": bug.seen}
