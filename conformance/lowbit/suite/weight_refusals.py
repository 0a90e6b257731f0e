"""Stored weights that must be refused: each right but for one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lowbit.cases.weights import FLAT
from lowbit.rules import Grouping
from lowbit.weights import WeightScheme

Tensors = dict[str, Any]


def refused(scheme: WeightScheme, tensors: Mapping[str, Any]) -> Iterator[tuple[str, Tensors]]:
    """Weights that no reading makes sense of, with what is wrong with each.

    Args:
      tensors: a right one with at least two groups, blocks or channels.
    """
    for name, changes in _changes(scheme, tensors):
        for what, value in changes:
            changed = {**tensors, name: value}
            if value is None:
                del changed[name]
            yield f"{name} {what}", changed


def _changes(scheme: WeightScheme, tensors: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    if scheme.family in FLAT:
        yield from _flat(scheme, tensors)
        return
    if scheme.family == "int8":
        yield from _channels(tensors, wrong_scale=torch.float64)
        return
    qweight = tensors["qweight"]
    yield (
        "qweight",
        [
            *_casts(qweight, torch.float16, torch.bfloat16, torch.int64, torch.uint8),
            ("of one dimension", qweight.reshape(-1)),
            ("missing", None),
        ],
    )
    if scheme.family == "squeezellm":
        yield from _tables(scheme, tensors)
        return
    qzeros, scales = tensors["qzeros"], tensors["scales"]
    if scheme.grouping is Grouping.WHOLE and scheme.group != -1:
        yield "qweight", [("with K no multiple of the group", qweight[:-8])]
    yield "qzeros", [*_casts(qzeros, torch.float16, torch.int64), *_shapes(qzeros), ("missing", None)]
    yield "scales", [*_casts(scales, torch.float32, torch.int16), *_shapes(scales), ("transposed", scales.t())]
    if scheme.family == "gptq":
        yield "g_idx", list(_indices(scheme, tensors))


def _casts(tensor: torch.Tensor, *dtypes: torch.dtype) -> list[tuple[str, torch.Tensor]]:
    return [(f"as {str(dtype).removeprefix('torch.')}", tensor.to(dtype)) for dtype in dtypes]


def _shapes(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """A matrix with a row or a column less, and with a row more."""
    return [
        ("with a row less", tensor[:-1]),
        ("with a row more", torch.cat([tensor, tensor[:1]])),
        ("with a column less", tensor[:, :-1].contiguous()),
    ]


def _indices(scheme: WeightScheme, tensors: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor | None]]:
    groups, device = tensors["scales"].shape[0], tensors["scales"].device
    rows = tensors["qweight"].shape[0] * 32 // scheme.bits
    right = (torch.arange(rows, device=device) // scheme.group_size(rows)).to(torch.int32)
    for value in (groups, -1, -groups, 2**31 - 1):
        changed = right.clone()
        changed[rows // 2] = value
        yield f"of {value} with {groups} groups", changed
    yield "as float32", right.float()
    yield "one shorter", right[:-1]
    if scheme.grouping is Grouping.ACT_ORDER:
        yield "missing", None


def _flat(scheme: WeightScheme, tensors: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    packed, absmax, shape = tensors["packed"], tensors["absmax"], tensors["shape"]
    yield "packed", [*_casts(packed, torch.int32, torch.float16), *_lengths(packed), ("missing", None)]
    yield "shape", [("of twice as many", (2, *shape)), ("with a length below 0", (-1, *shape)), ("missing", None)]
    wrong = (torch.float32, torch.int32) if scheme.nested else (torch.float16, torch.bfloat16, torch.uint8)
    yield "absmax", [*_casts(absmax, *wrong), *_lengths(absmax), ("missing", None)]
    if scheme.nested:
        code2, absmax2, offset = tensors["code2"], tensors["absmax2"], tensors["offset"]
        yield "code2", [*_casts(code2, torch.float16), *_lengths(code2), ("missing", None)]
        yield "absmax2", [*_casts(absmax2, torch.float16), *_lengths(absmax2), ("missing", None)]
        yield "offset", [("of two elements", torch.cat([offset, offset])), *_casts(offset, torch.float16)]
        yield "block_size2", [("0", 0)]


def _lengths(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    return [("one shorter", tensor[:-1]), ("one longer", torch.cat([tensor, tensor[:1]]))]


def _channels(tensors: Mapping[str, Any], wrong_scale: torch.dtype) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    weight, scale = tensors["weight"], tensors["scale"]
    casts = _casts(weight, torch.uint8, torch.float16, torch.int32)
    yield "weight", [*casts, ("of one dimension", weight.reshape(-1)), ("missing", None)]
    along_k = scale[:1].expand(weight.shape[1]).contiguous()
    yield (
        "scale",
        [
            *_casts(scale, wrong_scale, torch.int32),
            *_lengths(scale),
            ("along the other axis", along_k),
            ("of two dimensions", scale.unsqueeze(1)),
            ("missing", None),
        ],
    )


def _tables(scheme: WeightScheme, tensors: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    table = tensors["lookup_table"]
    count = 1 << scheme.bits
    wider = torch.cat([table, table[:, :1]], dim=1)
    yield (
        "lookup_table",
        [
            *_casts(table, torch.bfloat16, torch.int32),
            *_shapes(table),
            (f"of {count + 1} entries", wider),
            ("missing", None),
        ],
    )
    if scheme.sparse:
        yield "sparse", list(_sparse(tensors))
    if scheme.full_rows:
        yield "full_rows", list(_full_rows(tensors))


def _sparse(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    crow, col, values = tensors["sparse"]
    yield "missing", None
    yield "with float32 columns", (crow, col.float(), values)
    yield "with float16 values", (crow, col, values.half())
    yield "with a channel less", (crow[:-1], col, values)
    yield "with a value less", (crow, col, values[:-1])
    channel = int(crow.diff().argmax())
    first = int(crow[channel])
    for what, value in (("beyond K", 2**30), ("below 0", -1)):
        changed = col.clone()
        changed[first] = value
        yield f"with a column {what}", (crow, changed, values)
    if int(crow[channel + 1]) - first > 1:
        changed = col.clone()
        changed[first + 1] = changed[first]
        yield "with an entry twice", (crow, changed, values)
    falling = crow.clone()
    falling[channel] = falling[-1] + 1
    yield "with offsets that fall", (falling, col, values)


def _full_rows(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    indices, values = tensors["full_rows"]
    yield "missing", None
    yield "with float32 channels", (indices.float(), values)
    yield "with a column less", (indices, values[:, :-1])
    for what, value in (("beyond N", tensors["lookup_table"].shape[0]), ("below 0", -1)):
        changed = indices.clone()
        changed[0] = value
        yield f"with a channel {what}", (changed, values)
    if indices.numel() > 1:
        changed = indices.clone()
        changed[1] = changed[0]
        yield "with a channel twice", (changed, values)
