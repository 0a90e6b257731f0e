"""The JSON Schema of the payload files and of the manifest: every field named, an unknown one an error."""

from __future__ import annotations

from typing import Any

from lowbit.rules import NanCode, Rounding
from lowbit.vectors.group import KINDS
from lowbit.vectors.payload import SCHEMA_VERSION

Schema = dict[str, Any]


def hexes(digits: int, count: str = "", separator: str = " ") -> Schema:
    """A string of hex words.

    Args:
      count: a regular expression's quantifier, ``+`` or ``*``; "" for a single word.
    """
    one = f"[0-9a-f]{{{digits}}}"
    if not count:
        pattern = one
    elif separator:
        pattern = f"{one}({separator}{one})*" if count == "+" else f"({one}({separator}{one})*)?"
    else:
        pattern = f"({one}){count}"
    return {"type": "string", "pattern": f"^{pattern}$"}


WORD, WORDS, SOME_WORDS = hexes(8), hexes(8, "+"), hexes(8, "*")
OCTET, OCTETS = hexes(2), hexes(2, "*", "")
CODE = {"type": "string", "pattern": "^[0-9a-f]{1,2}$"}
CODES = hexes(1, "*", "")
NAME = {"type": "string", "minLength": 1, "maxLength": 120}
TEXT = {"type": "string", "minLength": 1}
FLAGS = {"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9_]+$"}, "uniqueItems": True}
SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}
SEED = hexes(16)


def closed(required: Schema, optional: Schema | None = None) -> Schema:
    """An object with these fields and no other."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": sorted(required),
        "additionalProperties": False,
    }


BLOCK_OPTIONAL: Schema = {
    "flags": FLAGS,
    "given_tensor_scale": WORD,
    "random_bits": OCTETS,
    "random_first": OCTET,
    "random_last": OCTET,
    "scale_random_bits": SOME_WORDS,
    "seed": SEED,
    "seen": TEXT,
    "source": TEXT,
    "tensor_scale": WORD,
}
BLOCK: Schema = {"name": NAME, "shape": SHAPE, "x": SOME_WORDS, "codes": CODES, "scales": OCTETS}

NUMBERS = {"type": "array", "items": {"type": "integer"}}
HALVES = hexes(4, "*")
SCALES = {"anyOf": [HALVES, SOME_WORDS]}

WEIGHT: Schema = {"name": NAME, "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}}
WEIGHT_OPTIONAL: Schema = {
    **dict.fromkeys(("qweight", "qzeros", "code2", "absmax2", "sparse_values", "full_rows_values"), SOME_WORDS),
    **dict.fromkeys(("scales", "scale", "lookup_table"), SCALES),
    **dict.fromkeys(("packed", "weight"), OCTETS),
    **dict.fromkeys(("g_idx", "sparse_crow_indices", "sparse_col_indices", "full_rows_indices"), NUMBERS),
    "absmax": {"anyOf": [SOME_WORDS, OCTETS]},
    "block_size2": {"type": "integer", "minimum": 1},
    "offset": WORD,
    "scale_format": {"enum": ["binary16", "bfloat16", "binary32"]},
    "binary16": HALVES,
    "bfloat16": HALVES,
    "binary32": SOME_WORDS,
    **dict.fromkeys(("refused", "seen", "source"), TEXT),
    "flags": FLAGS,
}

CASES: dict[str, Schema] = {
    "codes": closed({"code": CODE, "binary32": WORD, "value": {"type": "string", "pattern": "^(nan|-?inf|-?0x.*)$"}}),
    "scaled_codes": closed({"scale": OCTET, "binary32": WORDS, "binary16": hexes(4, "+"), "bfloat16": hexes(4, "+")}),
    "decoded": closed(
        {"name": NAME, "code": CODE, "scale": OCTET, "binary32": WORD, "source": TEXT, "seen": TEXT},
    ),
    "rows": closed({"first": WORD, "last": WORD, "code": CODE}),
    "blocks": closed(BLOCK, BLOCK_OPTIONAL),
    "stream": closed({**BLOCK, "packed": OCTETS}, BLOCK_OPTIONAL),
    "nibbles": closed({"name": NAME, "codes": CODES, "packed": OCTETS}),
    "swizzle": closed({"name": NAME, "shape": SHAPE, "scales": OCTETS, "buffer": OCTETS}),
    "thresholds": closed({"code": CODE, "firsts": hexes(8, "+")}),
    "exponents": closed({"x": WORD, "first": WORD, "last": WORD, "code": OCTET}),
    "philox": closed({"key": WORDS, "counter": WORDS, "words": WORDS}),
    "draws": closed(
        {"seed": SEED, "stream": {"enum": [0, 1]}, "start": SEED, "values": {"anyOf": [OCTETS, WORDS]}},
    ),
    "weights": closed(WEIGHT, WEIGHT_OPTIONAL),
}
"""The fields of a case, by the form of its group."""

GROUP = closed(
    {
        "name": NAME,
        "kind": {"enum": sorted(KINDS)},
        "form": {"enum": sorted(CASES)},
        "source": TEXT,
        "flags": FLAGS,
        "cases": {"type": "array", "minItems": 1},
    },
    {
        "scheme": NAME,
        "format": NAME,
        "layout": NAME,
        "generator": NAME,
        "also": {"type": "array", "items": NAME, "uniqueItems": True, "minItems": 1},
        "rounding": {"enum": [rule.value for rule in Rounding]},
        "nan": {"enum": [rule.value for rule in NanCode]},
        "tensor_scale": WORD,
    },
)

COUNT = {"type": "integer", "minimum": 0}
HASH = hexes(64)
VOTES = {"type": "object", "additionalProperties": COUNT}

MANIFEST = closed(
    {
        "schema_version": {"const": SCHEMA_VERSION},
        "sha256": HASH,
        "files": {
            "type": "object",
            "additionalProperties": closed(
                {"bytes": COUNT, "sha256": HASH}, {"groups": COUNT, "cases": COUNT, "decides": COUNT}
            ),
        },
        "groups": {
            "type": "object",
            "additionalProperties": closed({"file": TEXT, "cases": COUNT, "decides": COUNT, "votes": VOTES}),
        },
        "counts": closed({"files": COUNT, "groups": COUNT, "cases": COUNT, "bytes": COUNT}),
        "coverage": {
            "type": "object",
            "additionalProperties": closed({"groups": COUNT, "cases": COUNT, "decides": COUNT, "inputs": TEXT}),
        },
        "provenance": closed(
            {
                "lowbit": TEXT,
                "python": TEXT,
                "numpy": TEXT,
                "seed": COUNT,
                "sources": {"type": "array", "items": TEXT},
                "sources_sha256": HASH,
                "witnesses": {
                    "type": "object",
                    "additionalProperties": closed(
                        {"about": TEXT, "provenance": TEXT, "version": {"type": "string"}, "cases": COUNT}
                    ),
                },
            }
        ),
    }
)


def schema() -> Schema:
    """The whole schema: a payload file as such, the manifest under `$defs`."""
    forms = [
        {
            "if": {"properties": {"form": {"const": form}}},
            "then": {"properties": {"cases": {"items": {"$ref": f"#/$defs/case_{form}"}}}},
        }
        for form in sorted(CASES)
    ]
    subject = {"oneOf": [{"required": [kind]} for kind in ("scheme", "format", "layout", "generator")]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "lowbit-vectors-1",
        "title": "A file of golden vectors",
        **closed(
            {
                "schema_version": {"const": SCHEMA_VERSION},
                "flags": {"type": "object", "additionalProperties": TEXT},
                "groups": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/group"}},
            }
        ),
        "$defs": {
            "group": {**GROUP, "allOf": [subject, *forms]},
            "manifest": MANIFEST,
            **{f"case_{form}": case for form, case in CASES.items()},
        },
    }
