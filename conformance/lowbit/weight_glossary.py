"""Weight schemes in words: what `lowbit list` and `lowbit show` print of them. Standard library only."""

from __future__ import annotations

import enum
from typing import Any

from lowbit import weights
from lowbit.formats import BINARY32
from lowbit.glossary import indent, table
from lowbit.rules import Arithmetic, Grouping, OutputRounding, ZeroPoint
from lowbit.weight_tensors import dtypes, entries, optional
from lowbit.weight_words import drawing
from lowbit.weights import WeightScheme

RULES: dict[str, type[enum.Enum]] = {
    "zero": ZeroPoint,
    "grouping": Grouping,
    "arithmetic": Arithmetic,
    "output_rounding": OutputRounding,
}
"""The fields of a weight scheme that hold a rule, in the order in which they are told."""

_MEANINGS: dict[enum.Enum, str] = {
    ZeroPoint.NONE: "no zero point: a code stands for a signed value",
    ZeroPoint.STORED: "the field holds z; q and z are unsigned, q - z is an integer subtraction",
    ZeroPoint.STORED_MINUS_ONE: "the field holds (z - 1) mod {codes}, so that {top:#x} is z = 0; q and z are unsigned",
    Grouping.WHOLE: "row k of K belongs to group k // {group}; K is a multiple of {group}",
    Grouping.SHORT_LAST: "row k of K belongs to group k // {group}, the last may be short; a g_idx decides instead",
    Grouping.ACT_ORDER: "row k of K belongs to group g_idx[k], 0..ceil(K / {group}) - 1",
    Grouping.FLAT: "blocks of {group} elements in row-major order, crossing rows; the last may be short",
    Grouping.CHANNEL: "one an output channel",
    Arithmetic.EXACT_PRODUCT: "v = scale * {integer}, exactly; a zero has the sign of the IEEE product",
    Arithmetic.BINARY32_PRODUCT: "v = RN32({value} * {scale})",
    Arithmetic.SCB_PRODUCT: "v = RN32(RN32(q * SCB) * {factor:#010x}), the factor is RN32(1/127)",
    Arithmetic.LOOKUP: "v = lookup_table[n, q]",
    Arithmetic.LOOKUP_SUM: "v = RN32(RN32(lookup_table[n, q] + sparse) + full row); what is not stored is not added",
    OutputRounding.DIRECT: "w = RN(output dtype)(v)",
    OutputRounding.THROUGH_SCALE_DTYPE: "w = RN(output dtype)(RN(dtype of the scales)(v))",
}


def meaning(rule: enum.Enum, scheme: WeightScheme) -> str:
    """What a rule says, with the numbers of a scheme."""
    return _MEANINGS[rule].format(
        codes=1 << scheme.bits,
        top=(1 << scheme.bits) - 1,
        group="K" if scheme.group == -1 else scheme.group,
        integer="q" if scheme.zero is ZeroPoint.NONE else "(q - z)",
        value="codebook[q]" if scheme.codebook else "q",
        scale="absmax" if scheme.codebook else "scale",
        factor=weights.SCB_FACTOR,
    )


def describe(name: str) -> str:
    """A scheme by its name, or a family by the first of its schemes, as text.

    Raises:
      UnknownScheme: neither.
    """
    if name not in weights.families():
        return describe_scheme(weights.get(name))
    members = [scheme for scheme in weights.select() if scheme.family == name]
    listed = ", ".join(scheme.name for scheme in members)
    return f"{name}: {listed}\n\n{describe_scheme(members[0])}"


def describe_scheme(scheme: WeightScheme) -> str:
    """Everything that a weight scheme pins, as text: rules with their meaning, stored tensors, words, codebook."""
    low, high = scheme.code_range
    formats = " or ".join(fmt.name for fmt in scheme.scale_formats)
    facts = [
        ("family", scheme.family + (", canonical" if scheme.canonical else "")),
        ("cites", scheme.cites),
        ("codes", f"{scheme.bits} bits, {low}..{high}, " + ("two's complement" if scheme.signed else "unsigned")),
        ("tables" if scheme.family == "squeezellm" else "scales", formats),
    ]
    if scheme.nested:
        facts.append(("nested", "absmax = RN32(RN32(code2[q8] * absmax2) + offset), two roundings, never an fma"))
    rules = [(field, getattr(scheme, field)) for field in RULES]
    lines = [
        *(scheme.name, *indent(table(facts))),
        *("", "rules", *indent(table((field, rule.value, meaning(rule, scheme)) for field, rule in rules))),
        *("", "stored tensors", *indent(table(_tensor_rows(scheme)))),
    ]
    for title, packing in (("codes", scheme.packing), ("zero points", scheme.zero_packing)):
        if packing is not None:
            lines += ["", f"words of {title}", *indent(drawing(packing, _axis(scheme, packing.axis)))]
    if scheme.codebook:
        lines += ["", "codebook", *indent(_codebook_table(scheme))]
    return "\n".join(lines)


def scheme_rows() -> list[dict[str, Any]]:
    """One row a registered weight scheme: what `lowbit list schemes` shows beside the block schemes."""
    return [
        {
            "name": s.name,
            "family": s.family,
            "bits": s.bits,
            "group": "K" if s.group == -1 and s.grouping is not Grouping.CHANNEL else s.group if s.group > 0 else "-",
            **{field: getattr(s, field).value for field in RULES},
            "canonical": s.canonical,
        }
        for s in weights.select()
    ]


def rule_rows() -> list[dict[str, Any]]:
    """One row a member of every rule, its meaning told with the numbers of the first scheme that pins it."""
    rows = []
    for field, rule in RULES.items():
        for member in rule:
            example = next(s for s in weights.select() if getattr(s, field) is member)
            rows.append(
                {"rule": field, "name": member.value, "meaning": meaning(member, example), "as_in": example.name}
            )
    return rows


def _tensor_rows(scheme: WeightScheme) -> list[tuple[str, str, str, str]]:
    rows = []
    for stored in entries(scheme):
        dtype = "" if stored.parts else " or ".join(dtypes(stored, scheme)).replace("shape", "ints")
        meant = stored.meaning + (" (may be absent)" if optional(stored, scheme) else "")
        rows.append((stored.name, dtype, stored.shape, meant))
        rows += [(f"  .{part.name}", part.dtype, part.shape, "") for part in stored.parts]
    return rows


def _axis(scheme: WeightScheme, axis: int) -> str:
    return "element" if scheme.grouping is Grouping.FLAT else ("row", "column")[axis]


def _codebook_table(scheme: WeightScheme) -> list[str]:
    """Every code with its binary32 pattern and value."""
    rows = [("code", "binary32", "value")]
    for code, pattern in enumerate(scheme.codebook):
        rows.append((f"{code:#x}", f"{pattern:08x}", f"{float(BINARY32.value(pattern))!r}"))
    return table(rows)
