"""MX4, FBGEMM's format: groups of 4-bit elements and their exponent in one stream.

    a row of K elements, group size G, is ceil(K / G) times

        | byte 0: element 0 in bits 0..3, element 1 in bits 4..7 | … | byte G/2 - 1 | scale byte |

    E = clamp(f(amax) - e, -127, 125), scale byte E + 127      e = 2 for E2M1, 3 for E3M0; f: a rule for log2, on bits
    code = round(x * 2**-E), ties away from zero or stochastic, saturating; a row's missing elements are +0
    NaN does not enter amax and becomes ±max; Inf does, E = 125
    decoded = value * 2**(byte - 127), rounded once; byte 255 (never written) counts as +Inf

When not to use this: wherever tensor cores or another library read the data: they want scales in a tensor of their own
(`mxfp4.py`). The stream is made for sending gradients and embeddings, one message instead of two; its odd stride of
G/2 + 1 bytes costs a seventh of the bandwidth.
"""

from __future__ import annotations

import torch

from lowbit.errors import ArgumentError, ShapeError
from lowbit.formats import E2M1, E3M0, FloatFormat
from lowbit.rules import Rounding, ScaleRule
from lowbit_kernels import _arguments, _codec, _launch, _mx4_launch

GROUP_SIZES = (8, 16, 32, 64)
ELEMENTS: dict[str, FloatFormat] = {element.name: element for element in (E2M1, E3M0)}
SCALE_RULES = {
    rule.value: _codec.SCALE_RULES[rule.value]
    for rule in (ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.NEAREST, ScaleRule.EVEN_EXCLUSIVE, ScaleRule.STOCHASTIC)
}
_EVEN, _STOCHASTIC = ScaleRule.EVEN.value, ScaleRule.STOCHASTIC.value
_TO_NEAREST, _BY_CHANCE = (_codec.ROUNDINGS[rule.value] for rule in (Rounding.TIES_AWAY, Rounding.STOCHASTIC))


def quantize_mx4(
    x: torch.Tensor,
    *,
    group_size: int = 32,
    element: str = "e2m1",
    scale_rounding: str = "ceil",
    stochastic_casting: bool = False,
    seed: int | None = None,
    random_bits: torch.Tensor | None = None,
    scale_random_bits: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Quantises the last dimension in groups to 4-bit codes and shared exponents, in one stream.

    Args:
      x: (..., K) float32, bfloat16 or float16. Any values, strides and K; a short last group is padded with +0.
      group_size: 8, 16, 32 or 64.
      element: ``e2m1`` or ``e3m0``.
      scale_rounding: ``ceil``, ``floor``, ``nearest``, ``even_exclusive`` or ``stochastic``.
      stochastic_casting: True rounds elements stochastically instead of to nearest, ties away from zero.
      seed: 64-bit integer for what is stochastic; the same bits on any device and grid. Without effect otherwise.
      random_bits: x's shape, uint8. Replaces the seed for elements.
      scale_random_bits: (..., ceil(K / group_size)) int32, 31-bit. Replaces the seed for exponents.
      out: the result, to write into: contiguous, without grad, apart from what is read.
    Returns:
      (..., ceil(K / group_size) * (group_size / 2 + 1)) uint8.
    Raises:
      ArgumentError: an unknown option; something stochastic with neither seed nor bits; `out` where it cannot
        be written.
      ShapeError, DtypeError, DeviceError: an argument of the wrong shape or type, or where no kernel can run.
    Exactness: bit-exact with `lowbit.references.exact.quantize` of scheme ``mx4_<scale_rounding>_<element>_g<size>``.
    Spec: SPEC.md 3.1.
    """
    group_size, exponent_bits = _format(group_size, element)
    _arguments.require_bool("stochastic_casting", stochastic_casting)
    hint = "even_exclusive is the rule that FBGEMM calls even" if scale_rounding == _EVEN else None
    rule = _launch.choose("scale_rounding", scale_rounding, SCALE_RULES, hint)
    _launch.require_input("x", x)
    bits = scale_bits = None
    if random_bits is not None:
        wanted_by = "stochastic_casting" if stochastic_casting else ""
        bits = _launch.require_random("random_bits", random_bits, x.shape, torch.uint8, x.device, wanted_by)
    stochastic_scale = scale_rounding == _STOCHASTIC
    if scale_random_bits is not None:
        wanted, wanted_by = (*x.shape[:-1], -(-x.shape[-1] // group_size)), "scale_rounding" if stochastic_scale else ""
        scale_bits = _launch.require_random(
            "scale_random_bits", scale_random_bits, wanted, torch.int32, x.device, wanted_by
        )
    missing = ["random_bits"] if stochastic_casting and bits is None else []
    if stochastic_scale and scale_bits is None:
        missing.append("scale_random_bits")
    low, high = _launch.require_key(seed, " and ".join(missing))
    rounding = _BY_CHANCE if stochastic_casting else _TO_NEAREST
    options = (group_size, exponent_bits, rule, rounding, bits, scale_bits, low, high)
    if out is None:
        return _mx4_launch.QUANTIZE(x, *options)
    shape = _mx4_launch.stream_shape(x, group_size)
    _arguments.require_output("out", out, shape, (torch.uint8,), x.device)
    _arguments.require_disjoint([("out", out)], x=x, random_bits=bits, scale_random_bits=scale_bits)
    _mx4_launch.QUANTIZE_OUT(x, *options, out)
    return out


def dequantize_mx4(
    packed: torch.Tensor,
    *,
    group_size: int = 32,
    element: str = "e2m1",
    columns: int | None = None,
    dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decodes an MX4 stream.

    Args:
      packed: (..., groups * (group_size / 2 + 1)) uint8.
      group_size, element: as it was quantised.
      columns: K of the tensor that was quantised, to drop the padding; None keeps it.
      dtype: float32, bfloat16 or float16.
      out: the result, to write into: contiguous, without grad, apart from what is read.
    Returns:
      (..., groups * group_size) of dtype, or (..., columns): value * 2**(byte - 127), rounded once, gradual underflow,
      ±Inf beyond the dtype. Scale byte 255 counts as +Inf, so that code 0 gives NaN.
    Raises:
      ArgumentError: an unknown option; `out` where it cannot be written.
      ShapeError: a last dimension that is no whole number of groups; columns that would need another number of them.
      DtypeError, DeviceError: a tensor of the wrong dtype, or where no kernel can run.
    Exactness: bit-exact with `lowbit.references.exact.dequantize`.
    Spec: SPEC.md 3 and 3.1.
    """
    group_size, exponent_bits = _format(group_size, element)
    packed = _launch.require_bytes("packed", packed)
    _launch.require_float("dtype", dtype)
    stride = group_size // 2 + 1
    if packed.dim() == 0 or packed.shape[-1] % stride:
        raise ShapeError(
            f"packed: got shape {tuple(packed.shape)}, want (..., groups * {stride}) for group_size {group_size}"
        )
    groups = packed.shape[-1] // stride
    width = groups * group_size if columns is None else _arguments.require_integer("columns", columns)
    if not (groups - 1) * group_size < width <= groups * group_size and (width, groups) != (0, 0):
        raise ShapeError(
            f"columns: got {columns}, want {max((groups - 1) * group_size + 1, 0)}..{groups * group_size}, "
            f"what {groups} groups of {group_size} hold"
        )
    if out is None:
        return _mx4_launch.DEQUANTIZE(packed, group_size, exponent_bits, width, dtype)
    _arguments.require_output("out", out, (*packed.shape[:-1], width), (dtype,), packed.device)
    _arguments.require_disjoint([("out", out)], packed=packed)
    _mx4_launch.DEQUANTIZE_OUT(packed, group_size, exponent_bits, out)
    return out


def _format(group_size: int, element: str) -> tuple[int, int]:
    """The group size, and the exponent bits of an element."""
    group_size = _arguments.require_integer("group_size", group_size)
    if group_size not in GROUP_SIZES:
        raise ArgumentError(f"group_size: got {group_size!r}, want {_launch.listed(GROUP_SIZES)}")
    if not isinstance(element, str) or element not in ELEMENTS:
        raise ArgumentError(f"element: got {element!r}, want {_launch.listed(ELEMENTS)}")
    return group_size, ELEMENTS[element].exponent_bits
