"""The rtn_xxfp4 path: round-to-nearest FP4 with a scale a group, in plain PyTorch operations.

Same bits on a CPU and on a GPU, and on every supported PyTorch:

* Tensors are divided by tensors of their own dtype on their own device. CUDA turns a division by a Python number or by
  a 0-dim CPU tensor into a multiplication by its reciprocal, and `number / tensor` is two roundings everywhere.
* Casts are those of `rtn_casts`; from binary64 to 16 or 8 bits they pass through binary32.

Here `global_scale` multiplies on *decoding*: element = x / (scale * global_scale).
"""

from __future__ import annotations

from typing import Any

import torch

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import E2M1
from lowbit.references.rtn_casts import cast

MODES = ("even", "zero", "down", "up")
"""Tie rules of `rtn_e2m1`: to the even code, toward zero, toward -Inf, toward +Inf."""

HIGH_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of data and of arithmetic."""

SCALE_DTYPES = (*HIGH_DTYPES, torch.float8_e4m3fn, torch.float8_e8m0fnu)
"""Dtypes of scales."""

_NAN_CODE = E2M1.magnitude_mask
_GRID = tuple(float(value) for value in E2M1.magnitudes)


def rtn_e2m1(
    x: torch.Tensor, mode: str = "even", return_packed: bool = False, high_dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest E2M1 value of every element.

    Args:
      x: (..., K) float16, bfloat16, float32 or float64. Any value; +Inf and NaN become 6, -Inf becomes -6.
      mode: one of `MODES`, for exact midpoints.
      return_packed: whether to make `packed`; K must then be even.
      high_dtype: dtype to which x is rounded first and in which distances are compared; None: x's own.

    Returns:
      values: (..., K) of x's dtype, on the grid 0, ±0.5, ±1, ±1.5, ±2, ±3, ±4, ±6; the sign of x is kept on zeros.
      packed: (..., K // 2) uint8, two codes a byte, element 0 in the low nibble; (0,) unless asked for.

    Raises:
      DtypeError: x or `high_dtype` is none of `HIGH_DTYPES`.
      ArgumentError: unknown `mode`.
      ShapeError: an odd K (or no dimension) with `return_packed`.

    Exactness: bit-exact with `references.exact.encode` of RN(high_dtype)(x).
    Spec: SPEC.md 3.4.
    """
    _check_dtype("x", x.dtype, HIGH_DTYPES)
    codes = _nearest(cast(x.detach(), _high("high_dtype", high_dtype, x.dtype)), mode)
    packed = _pack(codes) if return_packed else torch.empty(0, dtype=torch.uint8, device=x.device)
    return _values(codes, x.dtype), packed


def unpack_e2m1(x_packed: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The values of packed E2M1 codes.

    Args:
      x_packed: (..., K // 2) uint8 or float4_e2m1fn_x2. Element 0 is in the low nibble.
      dtype: of the result; holds every value exactly.

    Returns:
      (..., K) of `dtype`.

    Raises:
      DtypeError: another dtype.

    Exactness: exact.
    Spec: SPEC.md 3.4.
    """
    _check_dtype("x_packed", x_packed.dtype, (torch.uint8, torch.float4_e2m1fn_x2))
    _check_dtype("dtype", dtype, HIGH_DTYPES)
    packed = x_packed.view(torch.uint8)
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1)
    return _values(codes.reshape(*packed.shape[:-1], 2 * packed.shape[-1]), dtype)


def rtn_xxfp4(
    x: torch.Tensor,
    group_size: int = -1,
    scale_dtype: torch.dtype = torch.float64,
    scale_scale: float | torch.Tensor = 6.0,
    global_scale: float | torch.Tensor = 1.0,
    fp4_rounding_mode: str = "even",
    existing_scale: torch.Tensor | None = None,
    high_dtype: torch.dtype | None = None,
    round_dtype: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Quantises groups of the last dimension to E2M1, each with a scale, and decodes them again.

    Args:
      x: (..., K) float16, bfloat16, float32 or float64; K even. NaN makes its group's scale NaN, Inf makes it the
        largest of `scale_dtype`.
      group_size: consecutive elements that share a scale; -1 means K.
      scale_dtype: one of `SCALE_DTYPES`.
      scale_scale: the group's amax is divided by scale_scale * global_scale. A number is used unrounded; a tensor of
        one element promotes the dtype in which the scale is computed.
      global_scale: number or tensor of one element, rounded to `high_dtype`; multiplies on decoding.
      fp4_rounding_mode: one of `MODES`.
      existing_scale: (..., K // group_size) of any of `SCALE_DTYPES`. Used instead of a computed scale, as it is.
      high_dtype: of the arithmetic; None: x's own.
      round_dtype: to which decoded values are rounded before they are rounded to x's dtype; None: x's own.

    Returns:
      fake_quant: (..., K) of x's dtype, the decoded values.
      e2m1: (..., K // 2) uint8, packed as `rtn_e2m1` packs.
      scale_quant: (..., K // group_size) of `scale_dtype`, or `existing_scale`.
      global_scale: () of `high_dtype`.

    Raises:
      RuntimeError: a bound of `scale_dtype` is beyond the dtype in which the scale is computed, as with the default
        scale_dtype float64 and float32 data.
      DtypeError, ArgumentError, ShapeError: an argument of the wrong dtype, value or shape.

    Exactness: every operation is rounded once, to `high_dtype`; casts as `rtn_casts` makes them.
    Spec: SPEC.md 3.4.
    """
    _check_dtype("x", x.dtype, HIGH_DTYPES)
    _check_dtype("scale_dtype", scale_dtype, SCALE_DTYPES)
    high = _high("high_dtype", high_dtype, x.dtype)
    rounded = _high("round_dtype", round_dtype, x.dtype)
    groups, size = _groups(x, group_size)
    # (..., groups, size)
    grouped = cast(x.detach(), high).reshape(*x.shape[:-1], groups, size)
    factor = _scalar("global_scale", global_scale, high, x.device)
    if existing_scale is None:
        scale = _group_scales(grouped, scale_dtype, scale_scale, factor)
    else:
        _check_dtype("existing_scale", existing_scale.dtype, SCALE_DTYPES)
        if existing_scale.shape != grouped.shape[:-1]:
            raise ShapeError(
                f"existing_scale: got shape {tuple(existing_scale.shape)}, want {tuple(grouped.shape[:-1])}: "
                f"a scale for every {size} elements of x {tuple(x.shape)}"
            )
        scale = existing_scale
    step = (cast(scale.detach(), high) * factor).unsqueeze(-1)
    values, packed = rtn_e2m1((grouped / step).reshape(x.shape), fp4_rounding_mode, return_packed=True)
    decoded = (values.reshape(grouped.shape) * step).reshape(x.shape)
    return {
        "fake_quant": cast(cast(decoded, rounded), x.dtype),
        "e2m1": packed,
        "scale_quant": scale,
        "global_scale": factor,
    }


def dequant_xxfp4(
    e2m1: torch.Tensor,
    scale_quant: torch.Tensor,
    global_scale: float | torch.Tensor = 1.0,
    dtype: torch.dtype = torch.float64,
    high_dtype: torch.dtype | None = None,
    round_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Decodes what `rtn_xxfp4` stores: value * (scale * global_scale).

    Args:
      e2m1: (..., K // 2) uint8 or float4_e2m1fn_x2, packed codes.
      scale_quant: (..., groups) of any of `SCALE_DTYPES`; K is a multiple of groups.
      global_scale: number or tensor of one element, rounded to `high_dtype`.
      dtype: of the result.
      high_dtype: of the arithmetic; None: `dtype`.
      round_dtype: to which the product is rounded before it is rounded to `dtype`; None: `dtype`.

    Returns:
      (..., K) of `dtype`. Bit-identical with fake_quant where dtype is x's and the other two are those of the call.

    Raises:
      DtypeError, ArgumentError, ShapeError: an argument of the wrong dtype, value or shape.

    Exactness: as `rtn_xxfp4`.
    Spec: SPEC.md 3.4.
    """
    _check_dtype("dtype", dtype, HIGH_DTYPES)
    _check_dtype("scale_quant", scale_quant.dtype, SCALE_DTYPES)
    high = _high("high_dtype", high_dtype, dtype)
    rounded = _high("round_dtype", round_dtype, dtype)
    values = unpack_e2m1(e2m1, high)
    groups = scale_quant.shape[-1] if scale_quant.ndim else 0
    columns = values.shape[-1]
    if scale_quant.shape[:-1] != values.shape[:-1] or (columns % groups if groups else columns):
        raise ShapeError(
            f"scale_quant: got shape {tuple(scale_quant.shape)}, want {tuple(values.shape[:-1])} and a last dimension "
            f"that divides {columns}"
        )
    size = columns // groups if groups else 1
    step = cast(scale_quant.detach(), high) * _scalar("global_scale", global_scale, high, values.device)
    decoded = values.reshape(*scale_quant.shape, size) * step.unsqueeze(-1)
    return cast(cast(decoded.reshape(values.shape), rounded), dtype)


def _nearest(x: torch.Tensor, mode: str) -> torch.Tensor:
    """Codes of the nearer of the two neighbours on the grid, by their distances.

    The comparison decides as exact arithmetic would: where neither neighbour is 0 both distances are exact (each
    neighbour is within a factor 2 of |x|), below 0.25 the distance to 0 is exact and less than the other, and above 6
    both differences only have to have the right order.
    """
    if mode not in MODES:
        raise ArgumentError(f"mode: got {mode!r}, want one of {', '.join(MODES)}")
    magnitude, negative = x.abs(), torch.signbit(x)
    lower = torch.zeros_like(x, dtype=torch.int32)
    for bound in _GRID[1:-1]:
        lower += magnitude >= bound
    grid = torch.tensor(_GRID, dtype=x.dtype, device=x.device)
    below = magnitude - _look_up(grid, lower)
    above = _look_up(grid, lower + 1) - magnitude
    if mode == "even":
        tie_up = lower % 2 == 1
    elif mode == "zero":
        tie_up = torch.zeros_like(negative)
    else:
        tie_up = negative if mode == "down" else ~negative
    codes = lower + ((below > above) | ((below == above) & tie_up))
    codes = torch.where(torch.isnan(x), _NAN_CODE, codes + negative.to(torch.int32) * E2M1.sign_mask)
    return codes.to(torch.uint8)


def _group_scales(
    grouped: torch.Tensor, scale_dtype: torch.dtype, scale_scale: float | torch.Tensor, factor: torch.Tensor
) -> torch.Tensor:
    """amax / (scale_scale * global_scale), clamped to the range of `scale_dtype` and cast. (..., groups)"""
    work = grouped.dtype
    if isinstance(scale_scale, torch.Tensor):
        work = torch.promote_types(work, scale_scale.dtype)
        divisor = _scalar("scale_scale", scale_scale, work, factor.device) * cast(factor, work)
    else:
        # The product is formed in binary64, so that a number is not rounded to the dtype of the data first.
        wide = _scalar("scale_scale", scale_scale, torch.float64, factor.device) * factor.to(torch.float64)
        divisor = cast(wide, work)
    bounds = torch.finfo(scale_dtype)
    if bounds.max > torch.finfo(work).max:
        raise RuntimeError(
            f"scale_dtype: the bound {bounds.max:g} of {scale_dtype} cannot be held by {work}, in which the scale is "
            f"computed: choose another scale_dtype, or a wider high_dtype"
        )
    amax = grouped.abs().amax(dim=-1)
    return cast((cast(amax, work) / divisor).clamp(bounds.min, bounds.max), scale_dtype)


def _pack(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, element 0 in the low nibble."""
    if codes.ndim == 0 or codes.shape[-1] % 2:
        raise ShapeError(f"x: got shape {tuple(codes.shape)}, want an even last dimension to pack two codes a byte")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def _values(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    table = [float(E2M1.value(code)) for code in range(1 << E2M1.bits)]
    return _look_up(torch.tensor(table, dtype=dtype, device=codes.device), codes.to(torch.int32))


def _look_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table.index_select(0, index.reshape(-1)).reshape(index.shape)


def _scalar(argument: str, number: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """() of `dtype` on `device`: a number or a tensor of one element."""
    if not isinstance(number, torch.Tensor):
        number = torch.full((), number, dtype=torch.float64, device=device)
    elif number.numel() != 1:
        raise ArgumentError(f"{argument}: got a tensor of shape {tuple(number.shape)}, want a number or one element")
    return cast(number.detach().reshape(()).to(device), dtype)


def _groups(x: torch.Tensor, group_size: int) -> tuple[int, int]:
    """Groups a row, elements a group."""
    if x.ndim == 0:
        raise ShapeError("x: got no dimension, want (..., K)")
    columns = x.shape[-1]
    size = max(columns, 1) if group_size == -1 else group_size
    if size < 1:
        raise ArgumentError(f"group_size: got {group_size}, want -1 or at least 1")
    if columns % size:
        raise ShapeError(f"group_size: got {group_size}, want a divisor of x's last dimension {columns}")
    return columns // size, size


def _high(argument: str, dtype: torch.dtype | None, default: torch.dtype) -> torch.dtype:
    dtype = default if dtype is None else dtype
    _check_dtype(argument, dtype, HIGH_DTYPES)
    return dtype


def _check_dtype(argument: str, dtype: torch.dtype, known: tuple[torch.dtype, ...]) -> None:
    if dtype not in known:
        raise DtypeError(f"{argument}: got {dtype}, want one of {', '.join(map(str, known))}")
