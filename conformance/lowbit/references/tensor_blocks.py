"""Scales and scaling of blocks in PyTorch, on any device.

A power-of-two scale comes from comparing the bit pattern of amax with the first pattern of every exponent (`ladders`);
no logarithm is taken. NVFP4's named roundings are single PyTorch operations of tensor with tensor, which are IEEE 754
on a CPU and on CUDA, and which eager mode never fuses.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from lowbit.errors import ArgumentError
from lowbit.formats import E4M3, E8M0
from lowbit.references import ladders
from lowbit.references.tensor_elements import CHUNK, bits, encode_chunk, look_up, slices, values, widen
from lowbit.rules import NonFinite, Rounding, ScaleRule, TensorScaleRule, ZeroBlock
from lowbit.schemes import Scheme


def scale_codes(amax: torch.Tensor, scheme: Scheme, *, random_bits: Any = None) -> torch.Tensor:
    """The scale byte of blocks, from the largest magnitude alone.

    Args:
      amax: (...) float32, not negative. For the nvfp4 family that of y = RN32(x * g).
      scheme: of the mx4, mxfp4 or nvfp4 family.
      random_bits: (...) int32 of 31 bits; for the scale rule STOCHASTIC.

    Returns:
      (...) uint8. In the nvfp4 family NaN gives 0x7F and Inf, which is what y may overflow to, 0x7E: that a block with
      Inf in x is marked is not decided by amax. MXFP4's NaN and Inf give 0xFF, MX4's Inf 252, and its NaN counts as 0.

    Raises:
      ArgumentError: another family; the scale rule STOCHASTIC without `random_bits`.

    Exactness: bit-exact with `references.exact.quantize`.
    Spec: SPEC.md 3.1 to 3.3.
    """
    if scheme.family == "nvfp4":
        codes = _e4m3_scales(amax, scheme)
        return torch.where(amax == 0, 0, codes) if scheme.zero_block is ZeroBlock.BYTE_ZERO else codes
    magnitude = amax.view(torch.int32) & 0x7FFFFFFF
    return _exponent_bytes(_without_nan(magnitude, scheme), scheme, random_bits)


def tensor_scale(x: torch.Tensor, scheme: Scheme, given: Any = None) -> torch.Tensor | None:
    """The factor g of a tensor.

    Args:
      x: (...) float32, bfloat16 or float16.
      scheme: any scheme.
      given: float32 of one element, finite and above 0; None: from x by the scheme's rule.

    Returns:
      (1,) float32 on x's device; None where the scheme has none. For rtn_xxfp4 its constant, which decoding
      multiplies by, rounded to binary32.

    Raises:
      ArgumentError: `given` where the scheme takes none, or not a finite float32 above 0 of one element.

    Exactness: the roundings that SPEC.md names.
    Spec: SPEC.md 3.3.
    """
    rule = scheme.tensor_scale
    if given is not None:
        if rule not in (TensorScaleRule.ONE_ROUNDING, TensorScaleRule.TWO_ROUNDINGS):
            raise ArgumentError(f"tensor_scale: got {given}, want None: {scheme.name} takes no tensor scale")
        return _given_scale(given, x.device)
    if rule is TensorScaleRule.NONE:
        return None
    if rule is TensorScaleRule.UNIT:
        return _constant(1.0, x.device)
    if rule is TensorScaleRule.GLOBAL_SCALE:
        assert scheme.global_scale is not None  # every scheme of that rule has one
        return _constant(float(scheme.global_scale), x.device)
    whole_range = _constant(float(scheme.element.max_value * E4M3.max_value), x.device)  # 2688
    one = _constant(1.0, x.device)
    if rule is TensorScaleRule.TWO_ROUNDINGS:
        amax = torch.maximum(_amax(x, finite=False), _constant(1e-12, x.device))
        return (one / amax) * whole_range
    amax = _amax(x, finite=True)
    quotient = torch.minimum(whole_range / amax, _constant(torch.finfo(torch.float32).max, x.device))
    return torch.where(amax == 0, one, quotient)


def _given_scale(given: Any, device: torch.device) -> torch.Tensor:
    scale = torch.as_tensor(given).detach().to(device) if not isinstance(given, float) else _constant(given, device)
    if scale.dtype != torch.float32 or scale.numel() != 1:
        raise ArgumentError(f"tensor_scale: got {tuple(scale.shape)} {scale.dtype}, want float32 of one element")
    scale = scale.reshape(1)
    value = scale.item()
    if not 0 < value < math.inf or (isinstance(given, float) and value != given):
        raise ArgumentError(f"tensor_scale: got {given}, want a finite binary32 above 0")
    return scale


def _amax(x: torch.Tensor, *, finite: bool) -> torch.Tensor:
    """(1,) float32. The largest magnitude, 0 of nothing; NaN goes through unless only finite elements count."""
    flat = x.reshape(-1)
    largest = _constant(0.0, x.device)
    for part in slices(len(flat), CHUNK):
        magnitude = widen(flat[part]).abs()
        if finite:
            magnitude = torch.where(torch.isfinite(magnitude), magnitude, 0.0)
        largest = torch.maximum(largest, magnitude.amax())
    return largest


def _constant(value: float, device: torch.device) -> torch.Tensor:
    return torch.full((1,), value, dtype=torch.float32, device=device)


def power_of_two(
    x: torch.Tensor, scheme: Scheme, scale_random: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """MX4 and MXFP4 blocks up to the element rounding.

    Args:
      x: (blocks, block) float32.
      scheme: of one of those families.
      scale_random: (blocks,) int32 of 31 bits, for the scale rule STOCHASTIC.

    Returns:
      value: (blocks, block) float32, x * 2**-E, or a tiny stand-in below 2**-126.
      scales: (blocks,) uint8, E + 127.
    """
    magnitude = _without_nan(x.view(torch.int32) & 0x7FFFFFFF, scheme)
    scales = _exponent_bytes(magnitude.amax(dim=-1), scheme, scale_random)
    # The product is exact unless it falls below 2**-126, where no element format has a step between there and 0: any
    # tiny number of x's sign will do, but not 0, which a directed rule treats otherwise.
    value = x * look_up(_reciprocal_scales(x.device), scales).unsqueeze(-1)
    tiny = torch.full_like(x, torch.finfo(torch.float32).tiny)
    return torch.where((value == 0) & (x != 0), torch.copysign(tiny, x), value), scales


def nvfp4(x: torch.Tensor, scheme: Scheme, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """NVFP4 blocks up to the element rounding.

    Args:
      x: (blocks, block) float32.
      scheme: of the nvfp4 family.
      g: (1,) float32.

    Returns:
      value: (blocks, block) float32, RN32(RN32(x * g) / s). What lies beyond ±6 is left to the encoder's saturation.
      scales: (blocks,) uint8, the bytes of s.
    """
    y = x * g
    amax = y.abs().amax(dim=-1)
    scales = _e4m3_scales(amax, scheme)
    divisor = look_up(values(E4M3, x.device), scales)
    # A scale that underflowed is stored as 0 but divides as the least one; so does NaN.
    divisor = torch.where(divisor > 0, divisor, float(E4M3.min_positive))
    if scheme.nonfinite is NonFinite.MARK_BLOCK:
        marked = ~torch.isfinite(x).all(dim=-1)
        scales = torch.where(marked, E4M3.magnitude_mask, scales)
        divisor = torch.where(marked, 1.0, divisor)
    if scheme.zero_block is ZeroBlock.BYTE_ZERO:
        scales = torch.where(amax == 0, 0, scales)
    return y / divisor.unsqueeze(-1), scales


def _without_nan(magnitude: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """int32 patterns with 0 for NaN, where NaN does not enter amax."""
    if scheme.nonfinite is not NonFinite.IGNORE_NAN:
        return magnitude
    return torch.where(magnitude > ladders.INF, 0, magnitude)


def _exponent_bytes(amax: torch.Tensor, scheme: Scheme, random: Any) -> torch.Tensor:
    """amax: int32 patterns of magnitudes."""
    marked = amax >= ladders.INF
    if scheme.zero_block is ZeroBlock.MIN_NORMAL_AMAX:
        amax = torch.where(amax == 0, ladders.power_pattern(-126), amax)
    if scheme.scale_rule is ScaleRule.STOCHASTIC:
        if random is None:
            raise ArgumentError(f"random_bits: got None, want int32 of 31 bits a block for {scheme.name}")
        random = bits("random_bits", random, torch.int32, amax.shape, amax.device)
        amax = amax + (random & ladders.random_mask(scheme.element))
    starts = _exponent_table(scheme, amax.device)
    assert scheme.exponent_range is not None  # exponent_starts has refused it
    lowest = scheme.exponent_range[0] + E8M0.bias
    scales = torch.bucketize(amax, starts, right=True, out_int32=True) + lowest
    if scheme.nonfinite is NonFinite.MARK_BLOCK:
        scales = torch.where(marked, E8M0.magnitude_mask, scales)
    return scales.to(torch.uint8)


def _e4m3_scales(amax: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """E4M3_RNE(clamp(RN32(amax / 6))); NaN goes through."""
    assert scheme.scale_floor is not None  # every nvfp4 scheme has one
    six = _constant(float(scheme.element.max_value), amax.device)
    if scheme.scale_rule is ScaleRule.AMAX_TIMES_SIXTH:
        bound = amax * (_constant(1.0, amax.device) / six)
    else:
        bound = amax / six
    bound = bound.clamp(float(scheme.scale_floor), float(E4M3.max_value))
    return encode_chunk(bound, E4M3, Rounding.TIES_TO_EVEN, None, None)


@functools.cache
def _exponent_table(scheme: Scheme, device: torch.device) -> torch.Tensor:
    return torch.tensor(ladders.exponent_starts(scheme), dtype=torch.int32, device=device)


@functools.cache
def scale_values(scheme: Scheme, device: torch.device) -> torch.Tensor:
    """By scale byte: the value, float32; MX4 has no NaN and takes byte 255 as Inf."""
    table = values(scheme.scale, device)
    if scheme.nonfinite is NonFinite.IGNORE_NAN:
        table = torch.where(torch.isnan(table), torch.inf, table)
    return table


@functools.cache
def _reciprocal_scales(device: torch.device) -> torch.Tensor:
    """By E8M0 byte: 2**-E from its bits, float32; 1 for byte 255."""
    patterns = [ladders.power_pattern(E8M0.bias - byte) for byte in range(E8M0.magnitude_mask)]
    return torch.tensor([*patterns, ladders.power_pattern(0)], dtype=torch.int32, device=device).view(torch.float32)
