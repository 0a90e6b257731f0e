"""The scalar reference: SPEC.md sections 1 to 3 in integers and Fractions, slow and obvious.

One number at a time, every rounding by name. Meant for breakpoints, ties ± 1 ulp and every binade; whole domains are
judged by the vectorised references, which are judged by this one. By meaning:

    exact_elements    one real number to one code        exact_random   the bits that a seed stands for
    exact_arithmetic  IEEE operations on bit patterns    exact_mx, exact_nvfp4, exact_rtn   one block of each family
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import BINARY32, FloatFormat
from lowbit.references import exact_mx, exact_nvfp4, exact_rtn
from lowbit.references.exact_elements import breakpoints, encode, nan_code, pattern_float, round_to
from lowbit.references.exact_mx import scale_exponent
from lowbit.references.exact_random import element_byte, scale_word
from lowbit.rules import PartialBlock, Rounding, ScaleRule, TensorScaleRule
from lowbit.schemes import Encoded, Scheme

__all__ = [
    "breakpoints",
    "dequantize",
    "encode",
    "nan_code",
    "pattern_float",
    "quantize",
    "round_to",
    "scale_exponent",
]

_PATTERNS = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def quantize(
    x: np.ndarray,
    scheme: Scheme,
    *,
    tensor_scale: Any = None,
    random_bits: np.ndarray | None = None,
    scale_random_bits: np.ndarray | None = None,
    seed: int | None = None,
) -> Encoded:
    """Codes and scales of a tensor under a scheme.

    Args:
      x: (..., K) float32. Any value, NaN and ±Inf included; K may be 0.
      scheme: any of `lowbit.schemes`.
      tensor_scale: float32 of one element, finite and above 0, in place of the scheme's own g; NVFP4 only.
      random_bits: (..., K) uint8. r of each element, for stochastic rounding.
      scale_random_bits: (..., groups) int32. r of each group, for the stochastic exponent.
      seed: 64-bit, stands for the random bits that are not given.

    Returns:
      codes (..., P) uint8, scales (..., P // block) uint8, P being K padded to whole blocks where the scheme pads;
      tensor_scale np.float32, or None where the scheme has none.

    Raises:
      ArgumentError: a tensor scale that the scheme refuses; a stochastic scheme with neither bits nor seed.
      DtypeError: x is not float32, or random bits of another type.
      ShapeError: K is not a multiple of the block and the scheme does not pad; random bits of another shape.

    Exactness: this is the definition.
    Spec: SPEC.md 2, 3.
    """
    if not isinstance(x, np.ndarray) or x.dtype != np.float32:
        raise DtypeError(f"x: got {getattr(x, 'dtype', type(x).__name__)}, want a NumPy array of float32")
    if x.ndim == 0:
        raise ShapeError("x: got no dimension, want at least one")
    columns, block = x.shape[-1], scheme.block
    if columns % block and scheme.partial_block is PartialBlock.REFUSE:
        raise ShapeError(
            f"x: got a last dimension of {columns}, want a multiple of {block} for {scheme.name}; "
            "pad it with zeros first (numpy.pad, torch.nn.functional.pad)"
        )
    groups = -(-columns // block)
    element_random = _element_random(x, scheme, random_bits, seed)
    scale_random = _scale_random((*x.shape[:-1], groups), scheme, scale_random_bits, seed)
    patterns = np.ascontiguousarray(x).view(np.uint32).ravel().tolist()
    g = _tensor_scale_pattern(patterns, scheme, tensor_scale)
    codes, scales = [], []
    for group in range(x.size // columns * groups if columns else 0):
        row, first = group // groups, group % groups * block
        indices = [row * columns + k if k < columns else None for k in range(first, first + block)]
        values = [0 if i is None else patterns[i] for i in indices]
        randoms = [0 if i is None else element_random(i) for i in indices]  # padding is zero, which never moves
        match scheme.family:
            case "mx4" | "mxfp4":
                scale, block_codes = exact_mx.encode_block(values, scheme, randoms, scale_random(group))
            case "nvfp4":
                assert g is not None  # every NVFP4 scheme has one
                scale, block_codes = exact_nvfp4.encode_block(values, scheme, randoms, g)
            case "rtn_xxfp4":
                scale, block_codes = exact_rtn.encode_block(values, scheme, randoms)
            case _:
                raise ArgumentError(
                    f"scheme: got {scheme.name} of family {scheme.family!r}, which has no reference here"
                )
        scales.append(scale)
        codes.extend(block_codes)
    return Encoded(
        np.array(codes, np.uint8).reshape((*x.shape[:-1], groups * block)),
        np.array(scales, np.uint8).reshape((*x.shape[:-1], groups)),
        None if g is None else np.uint32(g).view(np.float32),
    )


def dequantize(encoded: Encoded, scheme: Scheme, fmt: FloatFormat = BINARY32) -> np.ndarray:
    """The values that codes and scales stand for.

    Args:
      encoded: codes (..., P) uint8, scales (..., P // block) uint8, any bytes; tensor_scale float32 of one element, any
        value, or None.
      scheme: any of `lowbit.schemes`.
      fmt: BINARY16, BFLOAT16, BINARY32 or BINARY64.

    Returns:
      (..., P) bit patterns of `fmt`, as uint16, uint32 or uint64. A NaN is the canonical one.

    Raises:
      ShapeError: codes and scales do not describe the same blocks.
      ArgumentError: another format.

    Exactness: this is the definition.
    Spec: SPEC.md 3 "Decoding", 3.4.
    """
    if fmt.bits not in _PATTERNS:
        raise ArgumentError(f"fmt: got {fmt.name}, want binary16, bfloat16, binary32 or binary64")
    codes, scales = np.asarray(encoded.codes), np.asarray(encoded.scales)
    if codes.shape != (*scales.shape[:-1], scales.shape[-1] * scheme.block):
        raise ShapeError(
            f"codes: got shape {codes.shape} with scales {scales.shape}, want {scheme.block} codes a scale"
        )
    g = None if encoded.tensor_scale is None else _one_pattern(encoded.tensor_scale)

    @functools.cache
    def decode(code: int, scale: int) -> int:
        match scheme.family:
            case "mx4" | "mxfp4":
                return exact_mx.decode(code, scale, scheme, fmt)
            case "nvfp4":
                return exact_nvfp4.decode(code, scale, scheme, fmt, g)
            case "rtn_xxfp4":
                return exact_rtn.decode(code, scale, scheme, fmt)
        raise ArgumentError(f"scheme: got {scheme.name} of family {scheme.family!r}, which has no reference here")

    pairs = zip(codes.ravel().tolist(), np.repeat(scales.ravel(), scheme.block).tolist(), strict=True)
    return np.array([decode(code, scale) for code, scale in pairs], _PATTERNS[fmt.bits]).reshape(codes.shape)


def _tensor_scale_pattern(patterns: list[int], scheme: Scheme, given: Any) -> int | None:
    """The pattern of g, the given one or the scheme's; None where it has none."""
    if given is not None:
        if scheme.tensor_scale not in (TensorScaleRule.ONE_ROUNDING, TensorScaleRule.TWO_ROUNDINGS):
            raise ArgumentError(f"tensor_scale: got {given}, want None: {scheme.name} takes none")
        pattern = _one_pattern(given)
        if not 0 < pattern <= BINARY32.max_magnitude:
            raise ArgumentError(f"tensor_scale: got {given}, want a finite number above 0")
        return pattern
    match scheme.tensor_scale:
        case TensorScaleRule.NONE:
            return None
        case TensorScaleRule.GLOBAL_SCALE:
            assert scheme.global_scale is not None
            return round_to(scheme.global_scale, BINARY32)
    return exact_nvfp4.tensor_scale(patterns, scheme)


def _one_pattern(value: Any) -> int:
    """The binary32 pattern of a float32 scalar or one-element array; another type read as binary32 would be garbage."""
    array = np.asarray(value)
    if array.dtype != np.float32 or array.size != 1:
        raise ArgumentError(f"tensor_scale: got {array.dtype} of shape {array.shape}, want one float32")
    return int(array.reshape(()).view(np.uint32))


def _element_random(
    x: np.ndarray, scheme: Scheme, bits: np.ndarray | None, seed: int | None
) -> Callable[[int], int | None]:
    """r of an element by its row-major index in the unpadded x."""
    if scheme.rounding is not Rounding.STOCHASTIC:
        return lambda index: None
    if bits is not None:
        return _given("random_bits", bits, x.shape, (np.uint8,))
    if seed is None:
        raise ArgumentError(f"random_bits: got neither random_bits nor seed, want one of them for {scheme.name}")
    return functools.partial(element_byte, seed)


def _scale_random(
    shape: tuple[int, ...], scheme: Scheme, bits: np.ndarray | None, seed: int | None
) -> Callable[[int], int | None]:
    """r of a group by its row-major index."""
    if scheme.scale_rule is not ScaleRule.STOCHASTIC:
        return lambda group: None
    if bits is not None:
        return _given("scale_random_bits", bits, shape, (np.int32,))
    if seed is None:
        raise ArgumentError(f"scale_random_bits: got neither scale_random_bits nor seed, want one for {scheme.name}")
    return functools.partial(scale_word, seed)


def _given(name: str, bits: np.ndarray, shape: tuple[int, ...], dtypes: tuple[type, ...]) -> Callable[[int], int]:
    if bits.dtype not in dtypes:
        raise DtypeError(f"{name}: got {bits.dtype}, want {', '.join(t.__name__ for t in dtypes)}")
    if bits.shape != shape:
        raise ShapeError(f"{name}: got shape {bits.shape}, want {shape}")
    return bits.ravel().tolist().__getitem__
