"""The PyTorch reference: exact ladders on any device, fast enough for all 2**32 inputs.

Elements are encoded by `tensor_elements`, scales and the scaling of blocks are in `tensor_blocks`, and the rtn_xxfp4
family is `rtn`. Work goes in chunks, so that memory beyond the result is bounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, BINARY64, E4M3, E8M0, FloatFormat
from lowbit.packing import pack_nibbles, unpack_nibbles
from lowbit.references import philox, rtn
from lowbit.references.tensor_blocks import nvfp4, power_of_two, scale_codes, scale_values
from lowbit.references.tensor_blocks import tensor_scale as scale_of_tensor
from lowbit.references.tensor_elements import (
    CHUNK,
    INPUTS,
    bits,
    check_input,
    codes_of_patterns,
    element_table,
    encode,
    encode_chunk,
    look_up,
    slices,
    values,
    widen,
)
from lowbit.rules import PartialBlock, Rounding, ScaleRule
from lowbit.schemes import Encoded, Scheme

__all__ = ["codes_of_patterns", "dequantize", "element_table", "encode", "quantize", "scale_codes"]

DTYPES: dict[FloatFormat, torch.dtype] = {
    BINARY16: torch.float16,
    BFLOAT16: torch.bfloat16,
    BINARY32: torch.float32,
    BINARY64: torch.float64,
    E4M3: torch.float8_e4m3fn,
    E8M0: torch.float8_e8m0fnu,
}

_RTN_MODES = {
    Rounding.TIES_TO_EVEN: "even",
    Rounding.TIES_TOWARD_ZERO: "zero",
    Rounding.TIES_DOWN: "down",
    Rounding.TIES_UP: "up",
}


def quantize(
    x: torch.Tensor,
    scheme: Scheme,
    *,
    tensor_scale: Any = None,
    random_bits: Any = None,
    scale_random_bits: Any = None,
    seed: int | None = None,
) -> Encoded:
    """Codes and scales of a tensor.

    Args:
      x: (..., K) float32, bfloat16 or float16, any strides. Any value, NaN and ±Inf included.
      scheme: any scheme of the registry or derived from one.
      tensor_scale: float32 of one element, finite and above 0: the factor g that x is multiplied by, where the scheme
        lets it be given.
      random_bits: (..., K) uint8, for the element rule STOCHASTIC.
      scale_random_bits: (..., P // block) int32 of 31 bits, for the scale rule STOCHASTIC.
      seed: 64 bits, from which Philox makes what is not given.

    Returns:
      codes: (..., P) uint8, P = K, for MX4 K padded to a multiple of the block.
      scales: (..., P // block) uint8.
      tensor_scale: (1,) float32, None for MX4 and MXFP4.

    Raises:
      DtypeError: x of another dtype.
      ShapeError: no dimension; K is not a multiple of the block and the scheme does not pad.
      ArgumentError: a `tensor_scale` that the scheme does not take; a stochastic scheme without random bits or a seed.

    Exactness: bit-exact with `references.exact.quantize`.
    Spec: SPEC.md 2, 3.
    """
    check_input(x)
    x = x.detach()
    if x.ndim == 0:
        raise ShapeError("x: got no dimension, want (..., K)")
    block, columns = scheme.block, x.shape[-1]
    padding = -columns % block
    if padding and scheme.partial_block is PartialBlock.REFUSE:
        raise ShapeError(
            f"x: got a last dimension of {columns}, want a multiple of {block} for {scheme.name}; "
            "torch.nn.functional.pad can add zeros"
        )
    g = scale_of_tensor(x, scheme, tensor_scale)
    if scheme.family == "rtn_xxfp4":
        return _quantize_rtn(x, scheme, g)
    groups = (columns + padding) // block
    random = _element_random(x, scheme, random_bits, seed)
    scale_random = _scale_random((*x.shape[:-1], groups), scheme, scale_random_bits, seed, x.device)
    if padding:
        x = torch.nn.functional.pad(x, (0, padding))
        random = None if random is None else torch.nn.functional.pad(random, (0, padding))
    blocks = x.reshape(-1, block)
    codes = torch.empty(blocks.shape, dtype=torch.uint8, device=x.device)
    scales = torch.empty(len(blocks), dtype=torch.uint8, device=x.device)
    random = None if random is None else random.reshape(-1, block)
    scale_random = None if scale_random is None else scale_random.reshape(-1)
    for part in slices(len(blocks), CHUNK // block):
        wide = widen(blocks[part])
        if scheme.family == "nvfp4":
            assert g is not None  # every nvfp4 scheme has one
            value, scales[part] = nvfp4(wide, scheme, g)
        else:
            value, scales[part] = power_of_two(wide, scheme, None if scale_random is None else scale_random[part])
        # The sign of a NaN is x's: arithmetic on it may lose it.
        value = torch.where(torch.isnan(wide), wide, value)
        codes[part] = encode_chunk(
            value, scheme.element, scheme.rounding, scheme.nan, None if random is None else random[part]
        )
    shape = x.shape[:-1]
    return Encoded(codes.reshape(*shape, groups * block), scales.reshape(*shape, groups), g)


def dequantize(encoded: Encoded, scheme: Scheme, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values that codes and scales stand for.

    Args:
      encoded: codes (..., P) uint8, scales (..., P // block) uint8, tensor_scale float32 of one element or None.
      scheme: any scheme.
      dtype: float32, bfloat16 or float16.

    Returns:
      (..., P) of `dtype`.

    Raises:
      DtypeError: another dtype.
      ShapeError: shapes of codes and scales that do not fit.

    Exactness: bit-exact with `references.exact.dequantize`, NaN by class.
    Spec: SPEC.md 3, decoding; 3.4.
    """
    codes, scales, block = encoded.codes, encoded.scales, scheme.block
    if dtype not in INPUTS:
        raise DtypeError(f"dtype: got {dtype}, want one of {', '.join(map(str, INPUTS))}")
    if codes.shape[:-1] != scales.shape[:-1] or codes.shape[-1] != scales.shape[-1] * block:
        raise ShapeError(
            f"scales: got shape {tuple(scales.shape)} with codes {tuple(codes.shape)}, want one a block of {block}"
        )
    if scheme.family == "rtn_xxfp4":
        return rtn.dequant_xxfp4(
            pack_nibbles(codes),
            scales.view(DTYPES[scheme.scale]),
            float(scheme.global_scale or 1),
            dtype=dtype,
            high_dtype=DTYPES[scheme.high],
        )
    device = codes.device
    table, steps = values(scheme.element, device), scale_values(scheme, device)
    g = None
    if scheme.family == "nvfp4" and encoded.tensor_scale is not None:
        g = torch.as_tensor(encoded.tensor_scale, dtype=torch.float32, device=device).reshape(1)
    flat, each = codes.reshape(-1, block), scales.reshape(-1)
    out = torch.empty(flat.shape, dtype=dtype, device=device)
    for part in slices(len(flat), CHUNK // block):
        # Exact in binary32: at most 8 significant bits, and 2**-127 times any value is no less than 2**-149; or an
        # overflow, which every dtype shares.
        value = look_up(table, flat[part]) * look_up(steps, each[part]).unsqueeze(-1)
        out[part] = (value if g is None else value / g).to(dtype)
    return out.reshape(codes.shape)


def _quantize_rtn(x: torch.Tensor, scheme: Scheme, g: torch.Tensor | None) -> Encoded:
    assert scheme.scale_scale is not None  # every scheme of the family has both
    assert scheme.global_scale is not None
    if scheme.rounding not in _RTN_MODES:
        raise ArgumentError(f"scheme: got {scheme.name}, want one of the roundings {', '.join(_RTN_MODES.values())}")
    parts = rtn.rtn_xxfp4(
        widen(x),
        group_size=scheme.block,
        scale_dtype=DTYPES[scheme.scale],
        scale_scale=float(scheme.scale_scale),
        global_scale=float(scheme.global_scale),
        fp4_rounding_mode=_RTN_MODES[scheme.rounding],
        high_dtype=DTYPES[scheme.high],
    )
    return Encoded(unpack_nibbles(parts["e2m1"]), parts["scale_quant"].view(torch.uint8), g)


def _element_random(x: torch.Tensor, scheme: Scheme, given: Any, seed: int | None) -> torch.Tensor | None:
    if scheme.rounding is not Rounding.STOCHASTIC:
        return None
    if given is None:
        if seed is None:
            raise ArgumentError(f"random_bits, seed: got neither, want one of them for {scheme.name}")
        given = philox.element_bytes(seed, x.numel()).reshape(x.shape)
    return bits("random_bits", given, torch.uint8, x.shape, x.device)


def _scale_random(
    shape: tuple[int, ...], scheme: Scheme, given: Any, seed: int | None, device: torch.device
) -> torch.Tensor | None:
    if scheme.scale_rule is not ScaleRule.STOCHASTIC:
        return None
    if given is None:
        if seed is None:
            raise ArgumentError(f"scale_random_bits, seed: got neither, want one of them for {scheme.name}")
        given = philox.scale_words(seed, int(np.prod(shape, dtype=np.int64))).reshape(shape)
    return bits("scale_random_bits", given, torch.int32, shape, device)
