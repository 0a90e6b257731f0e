"""The PyTorch reference of weight schemes: SPEC.md section 5 in plain tensor operations, on any device.

It relies on IEEE arithmetic, one operation at a time: binary32 products and sums are rounded once each, casts from
binary32 to 16 bits round to nearest even, and no two operations are fused. Work goes in chunks, so that memory beyond
the result is bounded, for more than 2**31 elements too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from lowbit.errors import DtypeError
from lowbit.references.weights_arguments import OUTPUTS, output_shape
from lowbit.rules import Arithmetic, OutputRounding, ZeroPoint
from lowbit.weights import SCB_FACTOR, WeightScheme, WordPacking

CHUNK = 1 << 22
"""Weights worked on together."""


def dequantize(
    tensors: Mapping[str, Any], scheme: WeightScheme, dtype: torch.dtype = torch.float16, *, chunk: int = CHUNK
) -> torch.Tensor:
    """The weights that stored tensors stand for.

    Args:
      tensors: under the names of `weight_tensors.entries(scheme)`, on one device, any strides.
      scheme: any of `lowbit.weights`.
      dtype: float16, bfloat16 or float32.
      chunk: weights worked on together.

    Returns:
      (K, N) for awq, gptq and squeezellm, (N, K) for int8, `shape` for nf4 and fp4; on the tensors' device.

    Raises:
      ArgumentError, DtypeError, ShapeError: as `weights_arguments.output_shape`; another dtype.

    Exactness: bit-exact with `references.weights_exact.dequantize`, NaN by class.
    Spec: SPEC.md 5.
    """
    if str(dtype).removeprefix("torch.") not in OUTPUTS:
        raise DtypeError(f"dtype: got {dtype}, want {', '.join(f'torch.{name}' for name in OUTPUTS)}")
    shape = output_shape(tensors, scheme)
    codes = next(tensors[name] for name in ("qweight", "packed", "weight") if name in tensors)
    out = torch.empty(shape, dtype=dtype, device=codes.device)
    if scheme.family in ("nf4", "fp4"):
        _four_bits(out.reshape(-1), tensors, scheme, chunk)
        return out
    make = _integer_parts(tensors, scheme) if "scales" in tensors else None
    for part in _slices(shape[0], max(1, chunk // max(1, shape[1]))):
        if make is not None:
            integers, scales = make(part)
            out[part] = _rounded(integers, scales, scheme).to(dtype)
        elif scheme.family == "int8":
            out[part] = _channel_part(tensors, scheme, part).to(dtype)
        else:
            out[part] = _table_part(tensors, scheme, part).to(dtype)
    return out


def _integer_parts(
    tensors: Mapping[str, Any], scheme: WeightScheme
) -> Callable[[slice], tuple[torch.Tensor, torch.Tensor]]:
    """AWQ and GPTQ: from some rows to their q - zero and their scales."""
    qweight, qzeros, scales = (tensors[name] for name in ("qweight", "qzeros", "scales"))
    packing, zero_packing = scheme.packing, scheme.zero_packing
    assert zero_packing is not None  # both families have zero points
    columns = torch.arange(scales.shape[1], device=scales.device)
    zeros = unpack(qzeros, zero_packing, columns)
    if scheme.zero is ZeroPoint.STORED_MINUS_ONE:
        zeros = (zeros + 1) % 2**scheme.bits
    given = tensors.get("g_idx")
    rows = qweight.shape[0] if packing.axis else qweight.shape[0] * packing.word_bits // packing.bits

    def make(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.arange(part.start, part.stop, device=qweight.device)
        group = (
            torch.div(index, scheme.group_size(rows), rounding_mode="floor") if given is None else given[part].long()
        )
        codes = unpack(qweight[part], packing, columns) if packing.axis else unpack(qweight, packing, index)
        return codes - zeros[group], scales[group]

    return make


def _rounded(integers: torch.Tensor, scales: torch.Tensor, scheme: WeightScheme) -> torch.Tensor:
    """The product in binary32, or in the dtype of the scales where the scheme rounds there.

    An integer of at most 9 bits times a scale of at most 11 has at most 20: binary32 holds the product, down to
    bfloat16's least subnormal 2**-133, or it overflows, which no narrower dtype survives. So the cast is the only
    rounding.
    """
    product = integers.float() * scales.float()
    return product.to(scales.dtype) if scheme.output_rounding is OutputRounding.THROUGH_SCALE_DTYPE else product


def _four_bits(out: torch.Tensor, tensors: Mapping[str, Any], scheme: WeightScheme, chunk: int) -> None:
    """NF4 and FP4: fills the flat output."""
    packed, block = tensors["packed"], scheme.group
    absmax = _nested(tensors) if scheme.nested else tensors["absmax"]
    codebook = _from_patterns(scheme.codebook, out.device)
    for part in _slices(out.numel(), 2 * max(1, chunk // 2)):  # of whole bytes
        byte = packed[part.start // 2 : (part.stop + 1) // 2]
        code = torch.stack([byte >> 4, byte & 15], dim=1).reshape(-1)[: part.stop - part.start]
        first, inside = divmod(part.start, block)
        stop = inside + part.stop - part.start
        small = max(stop, block) < 1 << 31
        place = torch.arange(inside, stop, device=out.device, dtype=torch.int32 if small else torch.int64)
        value = codebook.index_select(0, code.int())
        out[part] = (value * absmax[first:].index_select(0, place // block)).to(out.dtype)


def _nested(tensors: Mapping[str, Any]) -> torch.Tensor:
    """absmax by two roundings: the product is stored before the sum is begun."""
    codes = tensors["absmax"]
    group = torch.arange(codes.numel(), device=codes.device) // tensors["block_size2"]
    product = tensors["code2"][codes.long()] * tensors["absmax2"][group]
    return product + tensors["offset"].reshape(1)


def _channel_part(tensors: Mapping[str, Any], scheme: WeightScheme, part: slice) -> torch.Tensor:
    """int8: some rows before they are cast to the output dtype."""
    codes, scale = tensors["weight"][part], tensors["scale"][part].unsqueeze(1)
    if scheme.arithmetic is Arithmetic.EXACT_PRODUCT:
        return _rounded(codes, scale, scheme)
    product = codes.float() * scale
    if scheme.arithmetic is Arithmetic.SCB_PRODUCT:
        product = product * _from_patterns((SCB_FACTOR,), scale.device)
    return product


def _table_part(tensors: Mapping[str, Any], scheme: WeightScheme, part: slice) -> torch.Tensor:
    """SqueezeLLM: some rows of (K, N) before they are cast to the output dtype."""
    qweight, table = tensors["qweight"], tensors["lookup_table"].float()
    codes = unpack(qweight, scheme.packing, torch.arange(part.start, part.stop, device=qweight.device))
    values = table.gather(1, codes.t()).t().contiguous()
    if scheme.sparse:
        crow, col, entries = tensors["sparse"]
        channel = torch.repeat_interleave(torch.arange(len(crow) - 1, device=crow.device), crow.long().diff())
        here = (col >= part.start) & (col < part.stop)
        place = (col[here].long() - part.start, channel[here])
        values[place] = values[place] + entries[here]
    if scheme.full_rows:
        indices, added = tensors["full_rows"]
        values[:, indices.long()] = values[:, indices.long()] + added[part]
    return values


def unpack(words: torch.Tensor, packing: WordPacking, places: torch.Tensor) -> torch.Tensor:
    """The codes at places along `packing.axis` of a matrix of 32-bit words.

    Args:
      words: (R, C) int32.
      places: (P,) int64.
    Returns:
      (P, C) int64 where the axis is 0, else (R, P).
    """
    run = len(packing.order)
    field = torch.empty(run, dtype=torch.int64)
    field[list(packing.order)] = torch.arange(run)
    first = (places - places % run + field.to(places.device)[places % run]) * packing.bits
    word, shift = first // 32, first % 32
    if packing.axis == 0:
        shift = shift.unsqueeze(1)
    inside = words.index_select(packing.axis, word).long() >> shift  # arithmetic: copies of the sign bit come in
    if 32 % packing.bits:
        following = (word + 1).clamp(max=words.shape[packing.axis] - 1)
        beyond = words.index_select(packing.axis, following).long() << (32 - shift)
        width = 32 - shift  # the bits of `inside` that are the word's own
        inside = torch.where(width < packing.bits, (inside & ((1 << width) - 1)) | beyond, inside)
    return inside & (2**packing.bits - 1)


def _from_patterns(patterns: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Binary32 patterns as float32."""
    signed = struct.unpack(f"<{len(patterns)}i", struct.pack(f"<{len(patterns)}I", *patterns))
    return torch.tensor(signed, dtype=torch.int32, device=device).view(torch.float32)


def _slices(length: int, step: int) -> Iterator[slice]:
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))
