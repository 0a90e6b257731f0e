"""Comparison of codes, bytes and values by their bits.

Codes and scales are integers and compared as integers; -0 is not +0; NaN of a floating result is compared by class.
Shape and dtype come first and are never broadcast or converted. Counts are exact whatever their number. Counting
happens on the device of `actual`, a bounded number of elements at a time; only samples come to the host.

Arrays are NumPy's or torch's; `expected` may be of the other kind and is brought over in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lowbit.compare import arrays, kinds
from lowbit.compare.blocks import compare_block_codes, compare_block_scales, compare_tensor_scale
from lowbit.compare.comparison import Comparison, failure, merge
from lowbit.compare.pictures import Canvas
from lowbit.compare.rows import Found, Rows, Search, inputs, integers
from lowbit.errors import ArgumentError
from lowbit.formats import FloatFormat
from lowbit.rules import Rounding, TensorScaleRule
from lowbit.schemes import Encoded, Scheme


def compare_codes(
    x: Any,
    actual: Any,
    expected: Any,
    element: FloatFormat,
    *,
    tensor: str = "codes",
    start: int = 0,
    max_samples: int = 20,
    rounding: Rounding | None = None,
) -> Comparison:
    """Compares the codes of a scalar encoder.

    Args:
      x: (N,) float32, bfloat16 or float16. Inputs.
      actual, expected: (N,) uint8. One code a byte.
      element: format of the codes.
      start: index of the first element, where x is a piece of something larger.
      rounding: named in samples of ties.

    Returns:
      Kinds: nan, sign, zero_sign, saturation, tie, rounding, value; shape, dtype.

    Raises:
      ArgumentError: x and expected differ in shape.
    """
    if wrong := wrong_codes(actual, expected, tensor):
        return wrong
    if tuple(x.shape) != tuple(expected.shape):
        raise ArgumentError(f"x: got {arrays.describe(x)}, want the shape of expected, {tuple(expected.shape)}")
    x, actual, expected = x.reshape(-1), arrays.as_bytes(actual), arrays.as_bytes(expected)
    length = actual.shape[0]

    def find() -> Iterator[Found]:
        for places in arrays.differing(actual, expected):
            a, e, wide = arrays.take(actual, places), arrays.take(expected, places), arrays.take_wide(x, places)
            y = kinds.double(wide)
            found = kinds.code_kinds(a, e, y, arrays.ones(y), element)
            yield Found(places, found, a, e, places * 0, places + start, wide)

    def fetch(places: np.ndarray, kind: list[str]) -> Rows:
        return Rows(
            tensor=tensor,
            shape=(start + length,),
            index=places + start,
            actual=integers(actual, places),
            expected=integers(expected, places),
            kind=kind,
            rule=[rounding.value if rounding and name == "tie" else "" for name in kind],
            format=element,
            **inputs(x, places),
        )

    canvas = Canvas("element", 1, start + length, element)
    search = Search(tensor=tensor, compared=length, order=kinds.CODE_KINDS, canvas=canvas, find=find, fetch=fetch)
    return search.collect(max_samples)


def compare_encoded(x: Any, actual: Encoded, expected: Encoded, scheme: Scheme, *, max_samples: int = 20) -> Comparison:
    """Compares a block quantiser's result before packing: tensor scale, scale codes, then codes.

    Args:
      x: (..., K) float32, bfloat16 or float16. The input.
      actual, expected: codes (..., P) uint8, scales (..., P // block) uint8, tensor_scale; P is K padded.

    Returns:
      Kinds: tensor_scale, scale, and those of `compare_codes`; a code in a block whose scale differs is `scaled`,
      one beyond K `padding`.

    Raises:
      ArgumentError: x and expected do not belong together.

    Spec: SPEC.md section 3.
    """
    parts = []
    if scheme.tensor_scale not in (TensorScaleRule.NONE, TensorScaleRule.GLOBAL_SCALE):
        parts.append(compare_tensor_scale(actual.tensor_scale, expected.tensor_scale))
    tensor_scale_differs = any(not part.ok for part in parts)
    scales_wrong = wrong_codes(actual.scales, expected.scales, "scales")
    parts.append(scales_wrong or compare_block_scales(x, actual, expected, scheme, max_samples))
    parts.append(
        wrong_codes(actual.codes, expected.codes, "codes")
        or compare_block_codes(
            x,
            actual if scales_wrong is None else actual._replace(scales=None),
            expected,
            scheme,
            max_samples,
            every_scale_differs=tensor_scale_differs or scales_wrong is not None,
        )
    )
    return merge(parts, max_samples=max_samples)


def compare_values(
    actual: Any,
    expected: Any,
    *,
    tensor: str = "values",
    max_samples: int = 20,
    format: FloatFormat | None = None,
    codes: Any = None,
    scales: Any = None,
    scheme: Scheme | None = None,
) -> Comparison:
    """Compares floating results by their bits; NaN by class.

    Args:
      actual: (...) floating. expected: the same dtype, or unsigned integers of its width: bit patterns.
      format: what bit patterns mean where neither side is floating.
      codes, scales, scheme: (..., P) and (..., P // block) uint8, what was decoded; shown in samples.

    Returns:
      Kinds: nan, sign, zero_sign, saturation, rounding (one unit in the last place), value; shape, dtype.

    Raises:
      ArgumentError: both sides are bit patterns and `format` is missing.
    """
    names = arrays.dtype_name(actual), arrays.dtype_name(expected)
    fmt = format or arrays.FLOATS.get(names[1]) or arrays.FLOATS.get(names[0])
    if fmt is None:
        raise ArgumentError(f"format: got none, want the format of {names[1]} bit patterns")
    if tuple(actual.shape) != tuple(expected.shape):
        return _wrong("shape", tensor, tuple(actual.shape), tuple(expected.shape))
    known = {f"uint{fmt.bits}", f"int{fmt.bits}"} | {name for name, f in arrays.FLOATS.items() if f is fmt}
    if not known.issuperset(names):
        return _wrong("dtype", tensor, *names)
    shape = tuple(actual.shape)
    actual, expected = arrays.bits(actual.reshape(-1)), arrays.bits(expected.reshape(-1))
    columns = shape[-1] if shape else 1

    def find() -> Iterator[Found]:
        for places in arrays.differing(actual, expected, kinds.values_differ(fmt)):
            a, e = arrays.take(actual, places), arrays.take(expected, places)
            yield Found(places, kinds.value_kinds(a, e, fmt), a, e, places // columns, places % columns)

    def fetch(places: np.ndarray, kind: list[str]) -> Rows:
        bits = integers(actual, places, fmt.bits), integers(expected, places, fmt.bits)
        rows = Rows(
            tensor=tensor,
            shape=shape,
            index=places,
            actual=bits[0],
            expected=bits[1],
            kind=kind,
            rule=[""] * len(kind),
            format=fmt,
        )
        return rows if codes is None or scheme is None else replace(rows, **_decoded_from(rows, codes, scales, scheme))

    return Search(
        tensor=tensor,
        compared=actual.shape[0],
        order=kinds.VALUE_KINDS,
        canvas=Canvas("element", math.prod(shape[:-1]), columns, fmt),
        find=find,
        fetch=fetch,
    ).collect(max_samples)


def compare_bytes(
    actual: Any,
    expected: Any,
    *,
    tensor: str,
    padding: Any = None,
    kind: str = "byte",
    max_samples: int = 20,
) -> Comparison:
    """Compares memory: packed codes, layouts, guard bands, an input before and after, two calls.

    Args:
      actual, expected: of one shape and dtype, any dtype; wider elements count byte by byte.
      padding: bool, one flag a byte; a wrong byte there is of kind `padding`.
      kind: kind of the other wrong bytes: byte, guard, unwritten, changed_input or nondeterministic.

    Returns:
      Kinds: `kind`, padding; shape, dtype.

    Raises:
      ArgumentError: an unknown kind, or `padding` of another length.
    """
    if kind not in kinds.KINDS:
        raise ArgumentError(f"kind: got {kind!r}, want one of {', '.join(kinds.KINDS)}")
    shape = tuple(actual.shape)
    if shape != tuple(expected.shape):
        return _wrong("shape", tensor, shape, tuple(expected.shape))
    names = arrays.dtype_name(actual), arrays.dtype_name(expected)
    if names[0] != names[1]:
        return _wrong("dtype", tensor, *names)
    actual, expected = arrays.as_bytes(actual), arrays.as_bytes(expected)
    width = actual.shape[0] // max(math.prod(shape), 1)
    flags = None if padding is None else padding.reshape(-1)
    if flags is not None and flags.shape[0] != actual.shape[0]:
        raise ArgumentError(f"padding: got {tuple(padding.shape)}, want one flag a byte of {arrays.describe(actual)}")
    order = (kind,) if flags is None else tuple(dict.fromkeys(("padding", kind)))
    columns = (shape[-1] if shape else 1) * width

    def find() -> Iterator[Found]:
        for places in arrays.differing(actual, expected):
            a, e = arrays.take(actual, places), arrays.take(expected, places)
            found = places * 0
            if len(order) > 1:
                found = arrays.namespace(places).where(arrays.take(flags, places), 0, found + 1)
            yield Found(places, found, a, e, places // columns, places % columns)

    def fetch(places: np.ndarray, found: list[str]) -> Rows:
        return Rows(
            tensor=tensor,
            shape=shape + ((width,) if width > 1 else ()),
            index=places,
            actual=integers(actual, places),
            expected=integers(expected, places),
            kind=found,
            rule=[""] * len(found),
        )

    canvas = Canvas("byte", math.prod(shape[:-1]), columns)
    search = Search(tensor=tensor, compared=actual.shape[0], order=order, canvas=canvas, find=find, fetch=fetch)
    return search.collect(max_samples)


def wrong_codes(actual: Any, expected: Any, tensor: str) -> Comparison | None:
    """A wrong shape, or a dtype that does not hold one code a byte; None if both are right."""
    if not hasattr(actual, "shape"):
        return _wrong("dtype", tensor, type(actual).__name__, arrays.describe(expected))
    if tuple(actual.shape) != tuple(expected.shape):
        return _wrong("shape", tensor, tuple(actual.shape), tuple(expected.shape))
    if not arrays.dtype_name(actual).startswith(("uint8", "float8_", "float4_")):
        return _wrong("dtype", tensor, arrays.dtype_name(actual), arrays.dtype_name(expected))
    return None


def _wrong(kind: str, tensor: str, actual: Any, expected: Any) -> Comparison:
    return failure(kind, tensor=tensor, message=f"{kind} of {tensor}: got {actual}, want {expected}")


def _decoded_from(rows: Rows, codes: Any, scales: Any, scheme: Scheme) -> dict[str, Any]:
    """The codes and the scale codes that decoded values came from, as columns of rows."""
    *before, column = rows.coordinates()
    block, lane = column // scheme.block, column % scheme.block
    code = _at(codes, (*before, column))
    value = kinds.value_table(scheme.element)[code & ((1 << scheme.element.bits) - 1)]
    found = {"block": block, "lane": lane, "x_bits": code, "x": value, "input": scheme.element}
    if scales is not None:
        scale = _at(scales, (*before, block))
        found |= {"scale_actual": scale, "scale_expected": scale}
    return found


def _at(array: Any, coordinates: tuple[np.ndarray, ...]) -> np.ndarray:
    """(N,) int64. Elements of an array of any strides."""
    found = array[tuple(arrays.place(axis, array) for axis in coordinates)]
    return np.asarray(arrays.host(found), dtype=np.int64)
