"""Comparison of block-quantised tensors: scale codes, and codes under their block's scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowbit import arrays, kinds
from lowbit.comparison import Comparison, Sample, Sampler, coded, counted, failure, read_input, read_int, unravel
from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32
from lowbit.schemes import Encoded, Scheme


def compare_tensor_scale(actual: Any, expected: Any) -> Comparison:
    """Compares two tensor scales by their binary32 bits; NaN by class.

    Args:
      actual, expected: float32 of one element: a scalar, an array or a tensor; None where there is none.

    Returns:
      Kinds: tensor_scale; dtype where one is missing, is not float32 or has several elements.
    """
    tensor = "tensor_scale"
    a, e = _binary32(actual), _binary32(expected)
    if a is None or e is None:
        if actual is None and expected is None:
            return Comparison(tensor, 0)
        got, want = (arrays.describe(side) if side is not None else "None" for side in (actual, expected))
        return failure("dtype", tensor=tensor, message=f"dtype of {tensor}: got {got}, want {want}")
    if a == e or (BINARY32.is_nan(a) and BINARY32.is_nan(e)):
        return Comparison(tensor, 1)
    sample = Sample(tensor=tensor, coordinates=(), index=0, kind="tensor_scale", **coded(BINARY32, a, e))
    return Comparison(tensor, 1, 1, {"tensor_scale": 1}, (sample,))


def compare_block_scales(x: Any, actual: Encoded, expected: Encoded, scheme: Scheme, max_samples: int) -> Comparison:
    """Compares scale codes of one shape and a byte each; a sample shows its block's largest element."""
    columns, _ = _widths(x, expected, scheme)
    shape = tuple(expected.scales.shape)
    a_flat, e_flat = arrays.as_bytes(actual.scales), arrays.as_bytes(expected.scales)
    sampler = Sampler(max_samples)
    for places in arrays.differing(a_flat, e_flat):
        sampler.add(places, {"scale": places >= 0})
    samples = []
    x_flat = x.reshape(-1)
    for kind, i in sampler.chosen():
        row, block = divmod(i, shape[-1])
        first = row * columns + block * scheme.block
        end = min(first + scheme.block, (row + 1) * columns)
        lane = int(np.argmax(np.abs(arrays.host(arrays.widen(x_flat[first:end])))))  # the first NaN, if there is one
        a, e = read_int(a_flat, i), read_int(e_flat, i)
        samples.append(
            Sample(
                tensor="scales",
                coordinates=unravel(i, shape),
                index=i,
                block=block,
                lane=lane,
                scale_actual=a,
                scale_expected=e,
                kind=kind,
                **read_input(x_flat, first + lane),
                **coded(scheme.scale, a, e),
            )
        )
    return counted("scales", a_flat.shape[0], sampler, samples)


def compare_block_codes(
    x: Any, actual: Encoded, expected: Encoded, scheme: Scheme, max_samples: int, *, every_scale_differs: bool = False
) -> Comparison:
    """Compares codes of one shape and a byte each.

    Args:
      actual: `scales` may be None where they cannot be matched to blocks.
      every_scale_differs: counts every mismatch inside x as `scaled`.
    """
    columns, width = _widths(x, expected, scheme)
    shape = tuple(expected.codes.shape)
    a_flat, e_flat = arrays.as_bytes(actual.codes), arrays.as_bytes(expected.codes)
    x_flat, expected_scales = x.reshape(-1), arrays.as_bytes(expected.scales)
    actual_scales = None if actual.scales is None else arrays.as_bytes(actual.scales)
    factor = None if expected.tensor_scale is None else float(np.asarray(_scalar(expected.tensor_scale)))
    sampler = Sampler(max_samples)
    for places in arrays.differing(a_flat, e_flat):
        row, column = places // width, places % width
        padding = column >= columns
        at = row * columns + arrays.namespace(column).clip(column, None, max(columns - 1, 0))
        block = row * (width // scheme.block) + column // scheme.block
        scale = arrays.take(expected_scales, block)
        scaled = ~padding
        if not every_scale_differs and actual_scales is not None:
            scaled = scale != arrays.take(actual_scales, block)
        y, s = kinds.operands(arrays.take_wide(x_flat, at), scale, scheme, factor)
        a, e = arrays.take(a_flat, places), arrays.take(e_flat, places)
        sampler.add(places, kinds.code_kinds(a, e, y, s, scheme.element, scaled=scaled, padding=padding))
    samples = []
    for kind, i in sampler.chosen():
        place = unravel(i, shape)
        row, column = divmod(i, width)
        block, lane = divmod(column, scheme.block)
        at = row * (width // scheme.block) + block
        samples.append(
            Sample(
                tensor="codes",
                coordinates=place,
                index=i,
                block=block,
                lane=lane,
                scale_actual=None if actual_scales is None else read_int(actual_scales, at),
                scale_expected=read_int(expected_scales, at),
                kind=kind,
                rule=scheme.rounding.value if kind == "tie" else "",
                **(read_input(x_flat, row * columns + column) if column < columns else {}),
                **coded(scheme.element, read_int(a_flat, i), read_int(e_flat, i)),
            )
        )
    return counted("codes", a_flat.shape[0], sampler, samples)


def _widths(x: Any, expected: Encoded, scheme: Scheme) -> tuple[int, int]:
    """K and P. Raises ArgumentError unless x, codes and scales belong together."""
    *rows, columns = x.shape
    width = -(-columns // scheme.block) * scheme.block
    wanted = (*rows, width), (*rows, width // scheme.block)
    got = tuple(expected.codes.shape), tuple(expected.scales.shape)
    if got != wanted:
        raise ArgumentError(f"expected: got codes and scales of {got}, want {wanted} for x of {tuple(x.shape)}")
    return columns, width


def _scalar(value: Any) -> Any:
    return arrays.host(value).reshape(-1)[0] if hasattr(value, "shape") else value


def _binary32(value: Any) -> int | None:
    """The bits of a float32 of one element, else None."""
    if value is None or not hasattr(value, "shape") or math.prod(value.shape) != 1:
        return None
    if arrays.dtype_name(value) != "float32":
        return None
    return int(arrays.host(value).reshape(1).view(np.uint32)[0])
