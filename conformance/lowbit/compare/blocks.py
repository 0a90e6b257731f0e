"""Comparison of block-quantised tensors: scale codes, and codes under their block's scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from lowbit.compare import arrays, digest, kinds
from lowbit.compare.comparison import LISTED, Comparison, failure
from lowbit.compare.pictures import Canvas
from lowbit.compare.rows import Found, Rows, Search, inputs, integers
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
    rows = Rows(
        tensor=tensor,
        shape=(),
        index=np.zeros(1, dtype=np.int64),
        actual=np.array([a]),
        expected=np.array([e]),
        kind=["tensor_scale"],
        rule=[""],
        format=BINARY32,
    )
    return Comparison(
        tensor,
        1,
        1,
        {"tensor_scale": 1},
        tuple(rows.samples()),
        digests={"tensor_scale": digest.of_text(a, e)},
        rows=partial(iter, [rows]) if LISTED.get() else None,
    )


def compare_block_scales(x: Any, actual: Encoded, expected: Encoded, scheme: Scheme, max_samples: int) -> Comparison:
    """Compares scale codes of one shape and a byte each; a sample shows its block's largest element."""
    columns, _ = _widths(x, expected, scheme)
    shape = tuple(expected.scales.shape)
    groups = max(shape[-1], 1)
    a_flat, e_flat, x_flat = arrays.as_bytes(actual.scales), arrays.as_bytes(expected.scales), x.reshape(-1)

    def find() -> Iterator[Found]:
        for places in arrays.differing(a_flat, e_flat):
            a, e = arrays.take(a_flat, places), arrays.take(e_flat, places)
            yield Found(places, places * 0, a, e, places // groups, places % groups)

    def fetch(places: np.ndarray, kind: list[str]) -> Rows:
        row, block = places // groups, places % groups
        first = row * columns + block * scheme.block
        lane = _largest(x_flat, first, np.minimum(scheme.block, columns - block * scheme.block), scheme.block)
        a, e = integers(a_flat, places), integers(e_flat, places)
        return Rows(
            tensor="scales",
            shape=shape,
            index=places,
            actual=a,
            expected=e,
            kind=kind,
            rule=[""] * len(kind),
            format=scheme.scale,
            block=block,
            lane=lane,
            scale_actual=a,
            scale_expected=e,
            **inputs(x_flat, first + lane),
        )

    return Search(
        tensor="scales",
        compared=a_flat.shape[0],
        order=("scale",),
        canvas=Canvas("block", math.prod(shape[:-1]), groups, scheme.scale, "scale"),
        find=find,
        fetch=fetch,
    ).collect(max_samples)


def _largest(x: Any, first: np.ndarray, lengths: np.ndarray, block: int) -> np.ndarray:
    """(N,) int64. The lane of each block's first NaN, else of its first element of largest magnitude."""
    lanes = np.arange(block)
    inside = lanes < lengths[:, None]
    values = arrays.take_wide(x, np.where(inside, first[:, None] + lanes, first[:, None]))
    return np.argmax(np.where(inside, np.abs(values), -1), axis=1)


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
    per_row = max(width // scheme.block, 1)

    def find() -> Iterator[Found]:
        for places in arrays.differing(a_flat, e_flat):
            row, column = places // width, places % width
            block, inside = column // scheme.block, column < columns
            at = row * columns + arrays.namespace(column).clip(column, None, max(columns - 1, 0))
            scale = arrays.take(expected_scales, row * per_row + block)
            scaled = inside
            if not every_scale_differs and actual_scales is not None:
                scaled = scale != arrays.take(actual_scales, row * per_row + block)
            wide = arrays.take_wide(x_flat, at)
            y, s = kinds.operands(wide, scale, scheme, factor)
            a, e = arrays.take(a_flat, places), arrays.take(e_flat, places)
            found = kinds.code_kinds(a, e, y, s, scheme.element, scaled=scaled, padding=~inside)
            yield Found(places, found, a, e, row, block, wide, inside)

    def fetch(places: np.ndarray, kind: list[str]) -> Rows:
        row, column = places // width, places % width
        block, inside = column // scheme.block, column < columns
        at = row * per_row + block
        return Rows(
            tensor="codes",
            shape=shape,
            index=places,
            actual=integers(a_flat, places),
            expected=integers(e_flat, places),
            kind=kind,
            rule=[scheme.rounding.value if name == "tie" else "" for name in kind],
            format=scheme.element,
            block=block,
            lane=column % scheme.block,
            scale_actual=None if actual_scales is None else integers(actual_scales, at),
            scale_expected=integers(expected_scales, at),
            inside=inside,
            **inputs(x_flat, row * columns + np.minimum(column, max(columns - 1, 0))),
        )

    return Search(
        tensor="codes",
        compared=a_flat.shape[0],
        order=kinds.CODE_KINDS,
        canvas=Canvas("block", math.prod(shape[:-1]), per_row, scheme.element),
        find=find,
        fetch=fetch,
    ).collect(max_samples)


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
