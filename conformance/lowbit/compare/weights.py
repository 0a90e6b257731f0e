"""Comparison of dequantised weights: by the bits, with what each wrong weight was made of.

The code, its zero point and its scale are read from the stored tensors one sample at a time, by the scalar reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lowbit.compare import Comparison, arrays, compare_values
from lowbit.formats import BINARY32
from lowbit.references import weights_exact
from lowbit.rules import ZeroPoint
from lowbit.weights import WeightScheme, WordPacking

Fields = dict[str, Any]


def compare_weights(
    actual: Any,
    expected: Any,
    tensors: Mapping[str, Any],
    scheme: WeightScheme,
    *,
    tensor: str = "values",
    max_samples: int = 20,
) -> Comparison:
    """Compares a dequantised weight by its bits; NaN by class.

    Args:
      actual, expected: as `compare_values` takes them, expected of the shape of the weight.
      tensors: the stored ones, NumPy arrays or torch tensors.

    Returns:
      As `compare_values`. A sample's `x_bits` is the code, `x` what it stands for (q - zero, or the table's entry),
      `block` the group, block or channel, `scale_expected` the bits of the scale, `rule` the zero point.
    """
    found = compare_values(actual, expected, tensor=tensor, max_samples=max_samples)
    samples = tuple(replace(sample, **origin(tensors, scheme, sample.coordinates)) for sample in found.samples)
    return replace(found, samples=samples)


def origin(tensors: Mapping[str, Any], scheme: WeightScheme, place: tuple[int, ...]) -> Fields:
    """What the weight at a place was made of, as fields of a sample."""
    match scheme.family:
        case "awq" | "gptq":
            found = _grouped(tensors, scheme, *place)
        case "nf4" | "fp4":
            found = _block(tensors, scheme, place)
        case "int8":
            found = _channel(tensors, *place)
        case _:
            found = _table(tensors, scheme, *place)
    scale = found.pop("scale")
    kind = f"{'int' if scheme.signed else 'uint'}{scheme.bits}"
    return {**found, "input": kind, "scale_actual": scale, "scale_expected": scale}


def _grouped(tensors: Mapping[str, Any], scheme: WeightScheme, k: int, n: int) -> Fields:
    packing, zero_packing = scheme.packing, scheme.zero_packing
    assert zero_packing is not None  # both families have zero points
    rows = tensors["qweight"].shape[0]
    if packing.axis == 0:
        rows = rows * packing.word_bits // packing.bits
    given = tensors.get("g_idx")
    group = k // scheme.group_size(rows) if given is None else int(given[k])
    code = _code(tensors["qweight"], packing, k, n)
    zero = _code(tensors["qzeros"], zero_packing, group, n)
    if scheme.zero is ZeroPoint.STORED_MINUS_ONE:
        zero = (zero + 1) % (1 << scheme.bits)
    scale = _pattern(tensors["scales"][group, n])
    return {"x_bits": code, "x": float(code - zero), "block": group, "scale": scale, "rule": f"zero {zero}"}


def _block(tensors: Mapping[str, Any], scheme: WeightScheme, place: tuple[int, ...]) -> Fields:
    flat = 0
    for index, length in zip(place, tensors["shape"], strict=True):
        flat = flat * length + index
    block, lane = divmod(flat, scheme.group)
    byte = int(tensors["packed"][flat // 2])
    code = byte & 15 if flat % 2 else byte >> 4
    found = {"x_bits": code, "x": float(BINARY32.value(scheme.codebook[code])), "block": block, "lane": lane}
    if not scheme.nested:
        return {**found, "scale": _pattern(tensors["absmax"][block])}
    stored = int(tensors["absmax"][block])
    parts = tensors["code2"][stored], tensors["absmax2"][block // tensors["block_size2"]], tensors["offset"].reshape(())
    value, scale, offset = map(_pattern, parts)
    absmax = weights_exact.nested_absmax(0, [value], [scale], offset, 0, 1)
    return {**found, "scale": absmax, "rule": f"absmax code {stored}"}


def _channel(tensors: Mapping[str, Any], n: int, k: int) -> Fields:
    code = int(tensors["weight"][n, k])
    scale = _pattern(tensors["scale"][n])
    return {"x_bits": code & 0xFF, "x": float(code), "block": n, "lane": k, "scale": scale}


def _table(tensors: Mapping[str, Any], scheme: WeightScheme, k: int, n: int) -> Fields:
    code = _code(tensors["qweight"], scheme.packing, k, n)
    entry = tensors["lookup_table"][n, code]
    added = []
    if scheme.sparse:
        starts, places, values = tensors["sparse"]
        for i in range(int(starts[n]), int(starts[n + 1])):
            if int(places[i]) == k:
                added.append(f"sparse {float(values[i])!r}")
    if scheme.full_rows:
        indices, values = tensors["full_rows"]
        added += [f"full row {float(values[k, r])!r}" for r in range(indices.shape[0]) if int(indices[r]) == n]
    return {"x_bits": code, "x": float(entry), "block": n, "scale": _pattern(entry), "rule": ", ".join(added)}


def _code(words: Any, packing: WordPacking, row: int, column: int) -> int:
    """The code at a place of the matrix of codes."""
    down = packing.axis == 0
    line = arrays.host(words[:, column] if down else words[row])
    mask = (1 << packing.word_bits) - 1
    return weights_exact.field([int(word) & mask for word in line], packing, row if down else column)


def _pattern(scalar: Any) -> int:
    """The bits of one floating number, or of a bfloat16 that is stored as uint16."""
    bits = arrays.bits(scalar.reshape(1))
    width = 16 if arrays.dtype_name(bits).endswith("16") else 32
    return int(bits[0]) & ((1 << width) - 1)
