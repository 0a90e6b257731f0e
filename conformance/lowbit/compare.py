"""Comparison of bits.

Codes and scales are integers and compared as integers; -0 is not +0; NaN of a floating result is compared by class.
Shape and dtype come first and are never broadcast or converted. Counts are exact whatever their number. Counting
happens on the device of `actual`, a bounded number of elements at a time; only samples come to the host.

Arrays are NumPy's or torch's; `expected` may be of the other kind and is brought over in pieces.
"""

from __future__ import annotations

import math
from typing import Any

from lowbit import arrays, kinds
from lowbit.blocks import compare_block_codes, compare_block_scales, compare_tensor_scale
from lowbit.comparison import (
    Comparison,
    Sample,
    Sampler,
    coded,
    counted,
    failure,
    merge,
    read_input,
    read_int,
    unravel,
)
from lowbit.errors import ArgumentError
from lowbit.formats import FloatFormat
from lowbit.rules import Rounding, TensorScaleRule
from lowbit.schemes import Encoded, Scheme

__all__ = [
    "Comparison",
    "Sample",
    "compare_bytes",
    "compare_codes",
    "compare_encoded",
    "compare_values",
    "failure",
    "merge",
]


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
    sampler = Sampler(max_samples)
    for places in arrays.differing(actual, expected):
        a, e = arrays.take(actual, places), arrays.take(expected, places)
        y = kinds.double(arrays.take_wide(x, places))
        sampler.add(places, kinds.code_kinds(a, e, y, arrays.ones(y), element))
    samples = [
        Sample(
            tensor=tensor,
            coordinates=(start + i,),
            index=start + i,
            kind=kind,
            rule=rounding.value if rounding and kind == "tie" else "",
            **read_input(x, i),
            **coded(element, read_int(actual, i), read_int(expected, i)),
        )
        for kind, i in sampler.chosen()
    ]
    return counted(tensor, actual.shape[0], sampler, samples)


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
    sampler = Sampler(max_samples)
    for places in arrays.differing(actual, expected, kinds.values_differ(fmt)):
        a = arrays.take(actual, places)
        sampler.add(places, kinds.value_kinds(a, arrays.place(arrays.take(expected, places), a), fmt))
    mask = (1 << fmt.bits) - 1
    samples = [
        Sample(
            tensor=tensor,
            coordinates=unravel(i, shape),
            index=i,
            kind=kind,
            **coded(fmt, read_int(actual, i) & mask, read_int(expected, i) & mask),
            **_decoded_from(unravel(i, shape), codes, scales, scheme),
        )
        for kind, i in sampler.chosen()
    ]
    return counted(tensor, actual.shape[0], sampler, samples)


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
    sampler = Sampler(max_samples)
    for places in arrays.differing(actual, expected):
        if flags is None:
            sampler.add(places, {kind: places >= 0})
        else:
            inside = arrays.place(arrays.take(flags, places), places)
            sampler.add(places, {"padding": inside, kind: ~inside})
    samples = [
        Sample(
            tensor=tensor,
            coordinates=unravel(i // max(width, 1), shape) + ((i % width,) if width > 1 else ()),
            index=i,
            actual=read_int(actual, i),
            expected=read_int(expected, i),
            kind=found,
        )
        for found, i in sampler.chosen()
    ]
    return counted(tensor, actual.shape[0], sampler, samples)


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


def _decoded_from(place: tuple[int, ...], codes: Any, scales: Any, scheme: Scheme | None) -> dict[str, Any]:
    """The code and the scale code that a decoded value came from, as fields of a sample."""
    if codes is None or scheme is None:
        return {}
    block, lane = divmod(place[-1], scheme.block)
    code = int(codes[place].item())
    fields = {"block": block, "lane": lane, "x_bits": code, "input": scheme.element.name}
    fields["x"] = float(scheme.element.value(code & ((1 << scheme.element.bits) - 1)))
    if scales is not None:
        scale = int(scales[(*place[:-1], block)].item())
        fields |= {"scale_actual": scale, "scale_expected": scale}
    return fields
