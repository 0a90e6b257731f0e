"""What the bench measures, as data: each operation, the bytes it moves, and the fraction of a copy it should reach.

    quantize_<format>_<rule>[_swizzled | _stochastic]     x of the row's dtype in; codes and scales out
    dequantize_<format>                                   the reverse, to the row's dtype
    swizzle_scales, unswizzle_scales                      bytes
    dequantize_<weight scheme>                            see `_bench_weights`
    copy                                                  device to device, what the others are a fraction of

Bytes are those that the operation must move, each operand once: inputs read plus outputs written. A tensor scale that
is computed needs x twice, and x is then counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch

from lowbit.errors import ArgumentError
from lowbit_kernels import _bench_weights as weights
from lowbit_kernels import mx4, mxfp4, nvfp4
from lowbit_kernels._bench_case import Case, Formula, Traffic, allocating
from lowbit_kernels.swizzle import swizzle_scales, swizzled_size, unswizzle_scales

MX4_GROUP = 32
SEED = 1
COPY = "copy"

COPY_PIECE = 1 << 28
"""Bytes of one call of a copy: an H200 moves 4.2 TB/s in calls of so many, and 2.7 in one of twice as many."""


@dataclass(frozen=True)
class Operation:
    """One row of the table.

    Args:
      name, dtype: of the float tensor that goes in or comes out; uint8 where there is none.
      traffic: the formula of its bytes.
      build: from a source (rows, columns) of dtype, which serves as input or is quantised to make it, to a `Case`.
      target: the fraction of a copy's bandwidth to reach; None where none is set.
      multiple, row_multiple: what columns, and rows, must be a multiple of.
      kernels: how many kernels a call starts.
      small: whether it stands for its family among small shapes.
    """

    name: str
    dtype: torch.dtype
    traffic: Formula
    build: Callable[[torch.Tensor], Case]
    target: float | None = None
    multiple: int = 1
    row_multiple: int = 1
    kernels: int = 1
    small: bool = False

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def bytes(self, rows: int, columns: int) -> int:
        return sum(self.traffic(rows, columns, self.dtype.itemsize))

    def columns(self, wanted: int) -> int:
        """The next number of columns that the operation takes."""
        return -(-wanted // self.multiple) * self.multiple

    def rows(self, wanted: int) -> int:
        """The next number of rows that the operation takes."""
        return -(-wanted // self.row_multiple) * self.row_multiple


def select(globs: Iterable[str]) -> tuple[Operation, ...]:
    """The operations whose ``name`` or ``name:dtype`` one of the patterns matches; the copies are always among them.

    Raises:
      ArgumentError: a pattern that matches nothing; lists the names.
    """
    globs = tuple(globs)
    for glob in globs:
        if not any(_matches(operation, glob) for operation in OPERATIONS):
            names = dict.fromkeys(operation.name for operation in OPERATIONS)
            raise ArgumentError(f"operation: got {glob!r}, want a pattern that matches one of {', '.join(names)}")
    chosen = [o for o in OPERATIONS if not globs or any(_matches(o, glob) for glob in globs)]
    dtypes = {operation.dtype for operation in chosen}
    return tuple(o for o in OPERATIONS if o in chosen or (o.name == COPY and o.dtype in dtypes))


def find(name: str, dtype_name: str) -> Operation:
    """The operation of a name and dtype."""
    return next(o for o in OPERATIONS if (o.name, o.dtype_name) == (name, dtype_name))


def _matches(operation: Operation, glob: str) -> bool:
    return fnmatchcase(operation.name, glob) or fnmatchcase(f"{operation.name}:{operation.dtype_name}", glob)


def _copy(x: torch.Tensor) -> Case:
    def copy(out: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.empty_like(x) if out is None else out
        size = COPY_PIECE // x.element_size()
        for source, target in zip(x.view(-1).split(size), out.view(-1).split(size), strict=True):
            target.copy_(source)
        return out

    return allocating(copy, x)


def _mxfp4(x: torch.Tensor, **options: Any) -> Case:
    return allocating(partial(mxfp4.quantize_mxfp4, x, **options), x)


def _mx4(x: torch.Tensor, **options: Any) -> Case:
    return allocating(partial(mx4.quantize_mx4, x, group_size=MX4_GROUP, **options), x)


def _nvfp4(x: torch.Tensor, **options: Any) -> Case:
    return allocating(partial(nvfp4.quantize_nvfp4, x, **options), x)


def _nvfp4_given(x: torch.Tensor, **options: Any) -> Case:
    """The tensor scale is checked once, here: reading its value would wait for the device at every call."""
    g = nvfp4.quantize_nvfp4(x, scheme=options.get("scheme", "nvfp4"))[2]
    return allocating(partial(nvfp4.quantize_nvfp4, x, tensor_scale=g, validate=False, **options), x, g)


def _from_mxfp4(x: torch.Tensor) -> Case:
    packed, scales = mxfp4.quantize_mxfp4(x)
    return allocating(partial(mxfp4.dequantize_mxfp4, packed, scales, dtype=x.dtype), packed, scales)


def _from_mx4(x: torch.Tensor) -> Case:
    stream = mx4.quantize_mx4(x, group_size=MX4_GROUP)
    decode = partial(mx4.dequantize_mx4, stream, group_size=MX4_GROUP, columns=x.shape[-1], dtype=x.dtype)
    return allocating(decode, stream)


def _from_nvfp4(x: torch.Tensor) -> Case:
    packed, scales, g = nvfp4.quantize_nvfp4(x)
    return allocating(partial(nvfp4.dequantize_nvfp4, packed, scales, g, dtype=x.dtype), packed, scales, g)


def _swizzle(x: torch.Tensor) -> Case:
    return allocating(partial(swizzle_scales, x), x)


def _unswizzle(x: torch.Tensor) -> Case:
    buffer = swizzle_scales(x)
    return allocating(partial(unswizzle_scales, buffer, *x.shape), buffer)


def _mx4_bytes(rows: int, columns: int) -> int:
    return rows * -(-columns // MX4_GROUP) * (MX4_GROUP // 2 + 1)


def _block_bytes(rows: int, columns: int, block: int, swizzled: bool = False) -> int:
    groups = columns // block
    return rows * columns // 2 + (swizzled_size(rows, groups) if swizzled else rows * groups)


def _mxfp4_bytes(rows: int, columns: int, swizzled: bool = False) -> int:
    return _block_bytes(rows, columns, mxfp4.BLOCK, swizzled)


def _nvfp4_bytes(rows: int, columns: int, swizzled: bool = False) -> int:
    """The float32 tensor scale included."""
    return _block_bytes(rows, columns, nvfp4.BLOCK, swizzled) + 4


def _quantizes(stored: Callable[..., int], *, passes: int = 1, given: int = 0, **layout: bool) -> Formula:
    """Reads x `passes` times and `given` bytes beside it."""
    return lambda rows, columns, size: Traffic(passes * rows * columns * size + given, stored(rows, columns, **layout))


def _dequantizes(stored: Callable[..., int]) -> Formula:
    return lambda rows, columns, size: Traffic(stored(rows, columns), rows * columns * size)


def _copies(rows: int, columns: int, size: int) -> Traffic:
    return Traffic(rows * columns * size, rows * columns * size)


def _swizzles(rows: int, columns: int, _: int) -> Traffic:
    return Traffic(rows * columns, swizzled_size(rows, columns))


def _unswizzles(rows: int, columns: int, _: int) -> Traffic:
    return Traffic(swizzled_size(rows, columns), rows * columns)


Targets = dict[torch.dtype, float | None]

BF16, FP32, FP16 = torch.bfloat16, torch.float32, torch.float16
TO_MXFP4: Targets = {BF16: 0.90, FP32: 0.92}
TO_MX4_OR_NVFP4: Targets = {BF16: 0.82, FP32: 0.88}
PHILOX: Targets = {BF16: 0.52, FP32: None}
DECODED: Targets = {BF16: 0.92, FP32: 0.92, FP16: None}
DECODED_MX4: Targets = {BF16: 0.86, FP32: 0.86, FP16: None}
UNTARGETED: Targets = {BF16: None, FP32: None}
BYTES: Targets = {torch.uint8: None}
HALF: Targets = {FP16: None}
WEIGHTS: Targets = {BF16: 0.90, FP16: 0.90}
GATHERED: Targets = {BF16: 0.85, FP16: 0.85}
SWIZZLE_COST = 0.02


def _swizzled(targets: Targets) -> Targets:
    return {dtype: None if target is None else round(target - SWIZZLE_COST, 2) for dtype, target in targets.items()}


def _rows(
    name: str, build: Callable[..., Case], traffic: Formula, targets: Targets, extra: dict[str, Any], **options: Any
) -> tuple[Operation, ...]:
    """A row for each dtype that has a target, or that is to be measured without one."""
    made = partial(build, **options)
    return tuple(Operation(name, dtype, traffic, made, target, **extra) for dtype, target in targets.items())


_BY_32: dict[str, Any] = {"multiple": mxfp4.BLOCK}
_BY_16: dict[str, Any] = {"multiple": nvfp4.BLOCK}
_BY_GROUP: dict[str, Any] = {"multiple": weights.GROUP, "row_multiple": weights.GROUP}
_SMALL: dict[str, Any] = {"small": True}
_AMAX: dict[str, Any] = {"kernels": 3}  # the partial maxima, their reduction, the quantiser
_MXFP4 = _quantizes(_mxfp4_bytes)
_MX4 = _quantizes(_mx4_bytes)
_NVFP4 = _quantizes(_nvfp4_bytes)
_NVFP4_GIVEN = _quantizes(_nvfp4_bytes, given=4)
_NVFP4_TWICE = _quantizes(_nvfp4_bytes, passes=2)

OPERATIONS: tuple[Operation, ...] = (
    *_rows(COPY, _copy, _copies, UNTARGETED | HALF | BYTES, {}),
    *_rows("quantize_mxfp4_floor", _mxfp4, _MXFP4, TO_MXFP4 | HALF, _BY_32 | _SMALL),
    *(
        row
        for rule in ("ceil", "even", "rceil")
        for row in _rows(f"quantize_mxfp4_{rule}", _mxfp4, _MXFP4, TO_MXFP4, _BY_32, scale_rule=rule)
    ),
    *_rows(
        "quantize_mxfp4_floor_swizzled",
        _mxfp4,
        _quantizes(_mxfp4_bytes, swizzled=True),
        _swizzled(TO_MXFP4),
        _BY_32 | _SMALL,
        swizzle=True,
    ),
    *_rows("quantize_mxfp4_floor_stochastic", _mxfp4, _MXFP4, PHILOX, _BY_32, rounding="stochastic", seed=SEED),
    *_rows("quantize_mx4_ceil", _mx4, _MX4, TO_MX4_OR_NVFP4 | HALF, _SMALL),
    *(
        row
        for rule in ("floor", "nearest", "even_exclusive", "stochastic")
        for row in _rows(f"quantize_mx4_{rule}", _mx4, _MX4, TO_MX4_OR_NVFP4, {}, scale_rounding=rule, seed=SEED)
    ),
    *_rows("quantize_mx4_ceil_stochastic", _mx4, _MX4, PHILOX, {}, stochastic_casting=True, seed=SEED),
    *_rows("quantize_nvfp4_given", _nvfp4_given, _NVFP4_GIVEN, TO_MX4_OR_NVFP4 | HALF, _BY_16 | _SMALL),
    *_rows(
        "quantize_nvfp4_two_level_given",
        _nvfp4_given,
        _NVFP4_GIVEN,
        TO_MX4_OR_NVFP4,
        _BY_16,
        scheme="nvfp4_two_level",
    ),
    *_rows(
        "quantize_nvfp4_given_swizzled",
        _nvfp4_given,
        _quantizes(_nvfp4_bytes, given=4, swizzled=True),
        _swizzled(TO_MX4_OR_NVFP4),
        _BY_16,
        swizzle=True,
    ),
    *_rows(
        "quantize_nvfp4_given_stochastic",
        _nvfp4_given,
        _NVFP4_GIVEN,
        PHILOX,
        _BY_16,
        rounding="stochastic",
        seed=SEED,
    ),
    *_rows("quantize_nvfp4", _nvfp4, _NVFP4_TWICE, TO_MX4_OR_NVFP4, _BY_16 | _AMAX),
    *_rows(
        "quantize_nvfp4_two_level",
        _nvfp4,
        _NVFP4_TWICE,
        TO_MX4_OR_NVFP4,
        _BY_16 | _AMAX | _SMALL,
        scheme="nvfp4_two_level",
    ),
    *_rows("quantize_nvfp4_one_level", _nvfp4, _NVFP4, UNTARGETED, _BY_16, scheme="nvfp4_one_level"),
    *_rows("dequantize_mxfp4", _from_mxfp4, _dequantizes(_mxfp4_bytes), DECODED, _BY_32 | _SMALL),
    *_rows("dequantize_mx4", _from_mx4, _dequantizes(_mx4_bytes), DECODED_MX4, _SMALL),
    *_rows("dequantize_nvfp4", _from_nvfp4, _dequantizes(_nvfp4_bytes), DECODED, _BY_16 | _SMALL),
    *_rows("swizzle_scales", _swizzle, _swizzles, BYTES, _SMALL),
    *_rows("unswizzle_scales", _unswizzle, _unswizzles, BYTES, _SMALL),
    *_rows("dequantize_awq", weights.awq_case, weights.grouped(4), WEIGHTS, _BY_GROUP | _SMALL),
    *_rows("dequantize_gptq4", weights.gptq_case, weights.grouped(4), WEIGHTS, _BY_GROUP | _SMALL, bits=4),
    *_rows("dequantize_gptq8", weights.gptq_case, weights.grouped(8), WEIGHTS, _BY_GROUP, bits=8),
    *_rows("dequantize_gptq3", weights.gptq_case, weights.grouped(3), GATHERED, _BY_GROUP, bits=3),
    *_rows("dequantize_gptq2", weights.gptq_case, weights.grouped(2), {BF16: None, FP16: None}, _BY_GROUP, bits=2),
    *_rows(
        "dequantize_gptq4_g_idx",
        weights.gptq_case,
        weights.grouped(4, act_order=True),
        GATHERED,
        _BY_GROUP,
        bits=4,
        act_order=True,
    ),
    *_rows("dequantize_nf4", weights.nf4_case, weights.blocked(), WEIGHTS, _SMALL),
    *_rows("dequantize_nf4_nested", weights.nf4_case, weights.blocked(nested=True), GATHERED, {}, nested=True),
    *_rows("dequantize_fp4", weights.nf4_case, weights.blocked(), WEIGHTS, {}, table="fp4"),
    *_rows("dequantize_int8", weights.int8_case, weights.by_row, WEIGHTS, _SMALL),
    *_rows("dequantize_squeezellm4", weights.squeezellm_case, weights.by_table(4), WEIGHTS, _BY_GROUP | _SMALL, bits=4),
    *_rows("dequantize_squeezellm3", weights.squeezellm_case, weights.by_table(3), GATHERED, _BY_GROUP, bits=3),
)
