"""AWQ and GPTQ layers of a checkpoint: int32 words, packed zero points, 16-bit scales.

    AWQ gemm   X.qweight [K, N / 8]         X.qzeros [groups, N / 8]         X.scales [groups, N]
    GPTQ       X.qweight [K * bits / 32, N] X.qzeros [groups, N * bits / 32] X.scales [groups, N] [X.g_idx [K]]

The shapes tell which it is, and the bits; whether GPTQ's zeros are v1 or v2 stands in the config only, and shows in the
zero points where `sym` is said.
"""

from __future__ import annotations

import numpy as np

from lowbit import weights
from lowbit.checkpoints.config import UNDERSTOOD
from lowbit.checkpoints.layer import Layer, NoScheme, Part, Place, Source, whole

SIXTEEN_BITS = ("F16", "BF16")


def of_words(name: str, qweight: Place, source: Source) -> Layer:
    """AWQ or GPTQ: int32 words along N (AWQ) or down K (GPTQ)."""
    config = source.config
    if config.method not in ("", *UNDERSTOOD):
        raise NoScheme(f"quant_method {config.method!r}: of its layers none has a scheme")
    version = config.text("version", "format", "checkpoint_format") if config.method == "awq" else ""
    if version not in ("", "gemm"):
        raise NoScheme(f"AWQ of version {version!r}: only the layout 'gemm' has schemes")
    if config.method == "gptq" and config.flag("is_marlin_format"):
        raise NoScheme("GPTQ repacked for Marlin: only 'gptq' and 'gptq_v2' have schemes")
    if not config.fields and f"{name}.scales" not in source.places:
        raise NoScheme(f"{qweight} without {name}.scales, and no config")
    scales = source.part(f"{name}.scales", qweight, (*SIXTEEN_BITS, "F32"), (None, None))
    if scales.entry.dtype == "F32":
        raise NoScheme(f"{scales}: a product with a binary32 scale would need two roundings, want F16 or BF16")
    columns = scales.shape[1]
    found = "gptq" if qweight.shape[1:] == (columns,) else "awq" if qweight.shape[1:] == (columns // 8,) else ""
    if not found or qweight.entry.dtype != "I32" or not qweight.entry.elements:
        raise qweight.unlike(f"I32 [K * bits / 32, {columns}] (GPTQ) or [K, {columns // 8}] (AWQ), beside {scales}")
    config.agree_method(found, f"{qweight} beside {scales} is {found.upper()}'s layout")
    return (_awq if found == "awq" else _gptq)(name, qweight, scales, source)


def _awq(name: str, qweight: Place, scales: Place, source: Source) -> Layer:
    config, rows, (groups, columns) = source.config, qweight.shape[0], scales.shape
    if columns % 8 or not groups or rows % groups:
        raise scales.unlike(f"whole groups of the {rows} rows, and columns that are a multiple of 8, as {qweight}")
    qzeros = source.part(f"{name}.qzeros", qweight, ("I32",), (groups, columns // 8))
    config.agree("bits", 4, f"{qweight} beside {scales} holds 4 bits")
    config.agree("zero_point", True, f"there is {qzeros}")
    group = _group(config.integer("group_size"), rows, groups, scales, source, whole_groups=True)
    return Layer(
        name=name,
        scheme=weights.awq(group),
        shape=(rows, columns),
        dtype=source.to,
        found=f"AWQ gemm, 4 bits, group {_said(group)}",
        parts={"qweight": whole(qweight), "qzeros": whole(qzeros), "scales": whole(scales)},
    )


def _gptq(name: str, qweight: Place, scales: Place, source: Source) -> Layer:
    config, (groups, columns) = source.config, scales.shape
    if not config.fields:
        raise NoScheme("GPTQ without a config: nothing says whether zeros are stored as z - 1 (gptq) or z (gptq_v2)")
    said = config.text("checkpoint_format", "format")
    if said not in ("", "gptq", "gptq_v2"):
        raise NoScheme(f"GPTQ of checkpoint_format {said!r}: only 'gptq' and 'gptq_v2' have schemes")
    zeros = "v2" if said == "gptq_v2" else "v1"
    qzeros = source.part(f"{name}.qzeros", qweight, ("I32",), (groups, None))
    bits, rest = divmod(qzeros.shape[1] * 32, columns)
    if rest or bits not in (2, 3, 4, 8):
        raise qzeros.unlike(f"{columns} zero points of 2, 3, 4 or 8 bits a row, as {scales}")
    config.agree("bits", bits, f"{qzeros} beside {scales} holds {bits} bits")
    rows, rest = divmod(qweight.shape[0] * 32, bits)
    if rest:
        raise qweight.unlike(f"a whole number of codes of {bits} bits in each column")
    group = _group(config.integer("group_size"), rows, groups, scales, source, whole_groups=False)
    scheme = weights.gptq(bits, zeros, group)
    parts = {"qweight": whole(qweight), "qzeros": whole(qzeros), "scales": whole(scales)}
    if act_order := _order(name, qweight, rows, groups, group, parts, source):
        scheme = weights.get(f"{scheme.name}+act_order")
    _check_symmetric(qzeros, bits, columns, zeros, source)
    return Layer(
        name=name,
        scheme=scheme,
        shape=(rows, columns),
        dtype=source.to,
        found=f"GPTQ, {bits} bits, group {_said(group)}, zeros {zeros}{'' if said else ' (none said)'}"
        f"{', act-order' if act_order else ''}",
        parts=parts,
    )


def _group(said: int | None, rows: int, groups: int, scales: Place, source: Source, *, whole_groups: bool) -> int:
    """The group size: what the config says if it gives that many groups, else what the shapes say; -1 for all of K."""
    if said is not None:
        want = 1 if said == -1 else -(-rows // said) if said > 0 else 0
        if want != groups or (whole_groups and said > 0 and rows % said):
            source.config.agree("group_size", None, f"{scales} has {groups} groups of {rows} rows")
        return said
    if not groups:
        raise scales.unlike(f"at least one group of {rows} rows")
    if rows % groups:
        raise NoScheme(f"{scales} with a short last group of {rows} rows, and no group_size in {source.config.source}")
    return -1 if groups == 1 else rows // groups


def _order(
    name: str, qweight: Place, rows: int, groups: int, group: int, parts: dict[str, Part], source: Source
) -> bool:
    """Whether rows are out of order; enters `g_idx` among the parts, where there is one."""
    described = source.config.flag("desc_act")
    if f"{name}.g_idx" not in source.places:
        if described:
            source.config.agree("desc_act", False, f"{qweight} has no {name}.g_idx")
        return False
    place = source.part(f"{name}.g_idx", qweight, ("I32",), (rows,))
    index = place.read()
    wrong = np.flatnonzero((index < 0) | (index >= groups))
    if wrong.size:
        raise place.unlike(f"groups of 0..{groups - 1}; position {wrong[0]} holds {index[wrong[0]]}")
    parts["g_idx"] = whole(place)
    out_of_order = bool((index != np.arange(rows) // (rows if group == -1 else group)).any())
    if out_of_order and described is False:
        source.config.agree("desc_act", True, f"{place} has rows out of order")
    return out_of_order


def _check_symmetric(qzeros: Place, bits: int, columns: int, zeros: str, source: Source) -> None:
    """Under `sym` every zero point is the middle, which also tells v1 from v2."""
    if not source.config.flag("sym"):
        return
    middle = 1 << (bits - 1)
    want = middle - 1 if zeros == "v1" else middle
    fields = np.unpackbits(qzeros.read().astype("<i4").view(np.uint8), axis=-1, bitorder="little")
    stored = np.packbits(fields.reshape(-1, columns, bits), axis=-1, bitorder="little")
    if bool((other := stored[stored != want]).size):
        source.config.agree(
            "sym", False, f"{qzeros} stores {other[0]} where zeros {zeros} of {bits} bits stores {want} for the middle"
        )


def _said(group: int) -> str:
    return "all of K" if group == -1 else str(group)
