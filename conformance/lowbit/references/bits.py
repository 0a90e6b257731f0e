"""The integer bit-level reference: vectorised, NumPy only.

`encode` and `decode` are those of `bits_elements`; the schemes' families stand in `bits_mx`, `bits_nvfp4` and
`bits_rtn`. This module has what they share: it checks arguments, walks over the tensor with bounded temporaries and
draws random bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import BINARY32, FloatFormat, Specials
from lowbit.references import bits_mx, bits_nvfp4, bits_rtn, philox
from lowbit.references.bits_elements import CHUNK, decode, encode
from lowbit.references.bits_rows import RandomBits, checked, float32_array, float32_scalar, spans, whole_blocks
from lowbit.rules import PartialBlock, Rounding, ScaleRule, TensorScaleRule
from lowbit.schemes import Encoded, Scheme

__all__ = ["decode", "dequantize", "encode", "quantize", "scale_codes"]


def scale_codes(
    amax: npt.NDArray[np.float32], scheme: Scheme, *, random_bits: npt.NDArray[np.int32] | None = None
) -> npt.NDArray[np.uint8]:
    """The scale codes of block amax.

    Args:
      amax: (...) float32. Largest magnitudes: of x, or of y = RN32(x * g) in the nvfp4 family. NaN gives the NaN
        scale, in mxfp4 Inf does too; in MX4 NaN counts as 0.
      random_bits: (...) int32. One 31-bit integer a block, for stochastic exponents.
    Returns:
      (...) uint8.
    Raises:
      DtypeError: amax is not float32, or random_bits not int32.
      ShapeError: random_bits has another shape.
      ArgumentError: stochastic exponents without random_bits.
    Exactness: bit-exact with `references.exact.scale_exponent`.
    Spec: SPEC.md 3.
    """
    amax = float32_array("amax", amax)
    random = None if random_bits is None else checked("random_bits", random_bits, np.int32, amax.shape).reshape(-1)
    flat = amax.reshape(-1)
    match scheme.family:
        case "mx4" | "mxfp4":
            codes = bits_mx.scale_codes(flat, scheme, random)
        case "nvfp4":
            codes = bits_nvfp4.scale_codes(flat, scheme)
        case "rtn_xxfp4":
            codes = bits_rtn.scale_codes(flat, scheme)
        case _:
            raise _unknown_family(scheme)
    return codes.reshape(amax.shape)


def quantize(
    x: npt.NDArray[np.float32],
    scheme: Scheme,
    *,
    tensor_scale: Any = None,
    random_bits: npt.NDArray[np.uint8] | None = None,
    scale_random_bits: npt.NDArray[np.int32] | None = None,
    seed: int | None = None,
) -> Encoded:
    """Codes and scales of a tensor under a scheme, not packed.

    Args:
      x: (..., K) float32. Any values; narrower formats widen to it exactly.
      scheme: any scheme of the registry, or a variant of one.
      tensor_scale: one float32, the factor g of the nvfp4 family that takes one; computed where it is not given.
      random_bits: (..., K) uint8, for stochastic rounding.
      scale_random_bits: (..., blocks) int32, 31 bits each, for stochastic exponents.
      seed: 64-bit integer, for the random bits that are not given.
    Returns:
      codes (..., P) uint8, P being K padded to whole blocks; scales (..., P // block) uint8; tensor_scale a
      np.float32, None in mx4 and mxfp4.
    Raises:
      DtypeError: x, random_bits, scale_random_bits or tensor_scale of another dtype.
      ShapeError: K is not a multiple of the block in a scheme that does not pad; random bits of another shape.
      ArgumentError: a tensor scale that is not finite and positive, or not for this scheme; no random bits and no
        seed where the scheme needs them.
    Exactness: bit-exact with `references.exact.quantize`.
    Spec: SPEC.md 3.
    """
    x = float32_array("x", x)
    blocks = _blocks(x.shape, scheme)
    factor = _factor(x, scheme, tensor_scale)
    grid = (*x.shape[:-1], blocks)
    random = scale_random = None
    if scheme.rounding is Rounding.STOCHASTIC:
        random = RandomBits("random_bits", random_bits, seed, x.shape, philox.element_bytes)
    if scheme.scale_rule is ScaleRule.STOCHASTIC:
        scale_random = RandomBits("scale_random_bits", scale_random_bits, seed, grid, philox.scale_words)

    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    flat = x.reshape(rows, columns)
    codes = np.empty((rows, blocks, scheme.block), dtype=np.uint8)
    scales = np.empty((rows, blocks), dtype=np.uint8)
    for row, column, block in spans(rows, columns, scheme.block):
        part_codes, part_scales = _quantize_blocks(
            whole_blocks(flat[row, column], scheme.block),
            scheme,
            factor,
            None if random is None else whole_blocks(random.part(row, column), scheme.block),
            None if scale_random is None else scale_random.part(row, block).reshape(-1),
        )
        codes[row, block] = part_codes.reshape(codes[row, block].shape)
        scales[row, block] = part_scales.reshape(scales[row, block].shape)
    return Encoded(codes.reshape(*x.shape[:-1], blocks * scheme.block), scales.reshape(grid), factor)


def _quantize_blocks(
    x: npt.NDArray[np.float32],
    scheme: Scheme,
    factor: np.float32 | None,
    random: npt.NDArray[np.uint8] | None,
    scale_random: npt.NDArray[np.int32] | None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    if scheme.family in ("mx4", "mxfp4"):
        return bits_mx.quantize_blocks(x, scheme, random, scale_random)
    if scheme.family == "rtn_xxfp4":
        return bits_rtn.quantize_blocks(x, scheme, random)
    assert factor is not None  # `_factor` gives the nvfp4 family one
    return bits_nvfp4.quantize_blocks(x, scheme, factor, random)


def dequantize(encoded: Encoded, scheme: Scheme, fmt: FloatFormat = BINARY32) -> npt.NDArray[Any]:
    """The values that codes and scales stand for, as bit patterns of a format.

    Args:
      encoded: codes (..., P) uint8, scales (..., P // block) uint8; tensor_scale the factor g of the nvfp4 family,
        None for no division by it. rtn_xxfp4 takes its constant from the scheme.
      fmt: binary32, binary16 or bfloat16.
    Returns:
      (..., P) uint32 or uint16. NaN is the format's canonical one.
    Raises:
      DtypeError: codes or scales are not uint8.
      ShapeError: codes and scales do not fit.
      ArgumentError: a code that the element does not have; a format that is not an IEEE one of at most 32 bits.
    Exactness: bit-exact with `references.exact.dequantize`; NaN by class.
    Spec: SPEC.md 3.
    """
    if fmt.specials is not Specials.IEEE or fmt.bits not in (16, 32):
        raise ArgumentError(f"fmt: got {fmt.name}, want binary32, binary16 or bfloat16")
    codes, scales = np.asarray(encoded.codes), np.asarray(encoded.scales)
    for name, array in (("codes", codes), ("scales", scales)):
        if array.dtype != np.uint8:
            raise DtypeError(f"{name}: got {array.dtype}, want uint8")
    if codes.ndim == 0 or codes.shape != (*scales.shape[:-1], scales.shape[-1] * scheme.block if scales.ndim else 0):
        raise ShapeError(f"codes, scales: got shapes {codes.shape} and {scales.shape}, want blocks of {scheme.block}")
    if codes.size and int(codes.max()) >> scheme.element.bits:
        raise ArgumentError(f"codes: got up to {int(codes.max()):#x}, want {scheme.element.bits} bits")
    match scheme.family:
        case "mx4" | "mxfp4":
            table = bits_mx.decoding_table(scheme, fmt)
        case "nvfp4":
            given = encoded.tensor_scale
            table = bits_nvfp4.decoding_table(scheme, fmt, None if given is None else float32_scalar(given))
        case "rtn_xxfp4":
            table = bits_rtn.decoding_table(scheme, fmt)
        case _:
            raise _unknown_family(scheme)
    entries = table.astype(np.uint16 if fmt.bits == 16 else np.uint32)
    flat, rows = codes.reshape(-1, scheme.block), scales.reshape(-1)
    out = np.empty(flat.shape, dtype=entries.dtype)
    step = max(1, CHUNK // scheme.block)
    for start in range(0, rows.size, step):
        part = slice(start, start + step)
        out[part] = entries[rows[part, None], flat[part]]
    return out.reshape(codes.shape)


def _blocks(shape: tuple[int, ...], scheme: Scheme) -> int:
    """The number of blocks in a row."""
    if not shape:
        raise ShapeError("x: got a scalar, want at least one dimension")
    blocks, rest = divmod(shape[-1], scheme.block)
    if rest and scheme.partial_block is PartialBlock.REFUSE:
        raise ShapeError(
            f"x: got {shape[-1]} columns, want a multiple of {scheme.block}, the block of {scheme.name}; pad the rows "
            "with zeros first (numpy.pad, torch.nn.functional.pad)"
        )
    return blocks + bool(rest)


def _factor(x: npt.NDArray[np.float32], scheme: Scheme, given: Any) -> np.float32 | None:
    """The tensor scale: the given one, checked, or the one that the scheme computes."""
    if given is not None and scheme.tensor_scale not in (TensorScaleRule.ONE_ROUNDING, TensorScaleRule.TWO_ROUNDINGS):
        raise ArgumentError(f"tensor_scale: got {given}, want None, since {scheme.name} takes none")
    if scheme.family == "rtn_xxfp4":
        return bits_rtn.tensor_scale(scheme)
    if scheme.family != "nvfp4":
        return None
    if given is None:
        return bits_nvfp4.tensor_scale(x, scheme)
    factor = float32_scalar(given)
    if not (np.isfinite(factor) and factor > 0):
        raise ArgumentError(f"tensor_scale: got {factor}, want finite and above 0")
    return factor


def _unknown_family(scheme: Scheme) -> ArgumentError:
    return ArgumentError(f"scheme: got the family {scheme.family!r}, want mx4, mxfp4, nvfp4 or rtn_xxfp4")
