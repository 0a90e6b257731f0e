"""The scalar reference of weight schemes: SPEC.md section 5 in integers and Fractions, slow and obvious.

One weight at a time: its code is gathered bit by bit from the words, its group is looked up, and every rounding is a
named operation on bit patterns (`exact_arithmetic`). Meant for some thousand weights; it judges the vectorised ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from lowbit.formats import BINARY16, BINARY32, FloatFormat
from lowbit.references.exact_arithmetic import convert, is_zero, multiply
from lowbit.references.exact_elements import round_to
from lowbit.references.weights_arguments import OUTPUTS, dtype_name, output_format, output_shape
from lowbit.rules import Arithmetic, OutputRounding, ZeroPoint
from lowbit.weights import SCB_FACTOR, WeightScheme, WordPacking

Weight = Callable[..., int]
"""From the place of a weight to its bit pattern."""


def dequantize(tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat = BINARY16) -> np.ndarray:
    """The weights that stored tensors stand for.

    Args:
      tensors: NumPy arrays under the names of `weight_tensors.entries(scheme)`; bfloat16 is the dtype of ml_dtypes, or
        the bit patterns as uint16.
      scheme: any of `lowbit.weights`.
      fmt: BINARY16, BFLOAT16 or BINARY32.

    Returns:
      Bit patterns of `fmt` as uint16 or uint32, of the shape that `weights_arguments.output_shape` gives. A NaN is the
      canonical one.

    Raises:
      ArgumentError, DtypeError, ShapeError: as `weights_arguments.output_shape`; another format.

    Exactness: this is the definition.
    Spec: SPEC.md 5.
    """
    shape = output_shape(tensors, scheme)
    families = {"awq": _grouped, "gptq": _grouped, "nf4": _blocks, "fp4": _blocks, "int8": _channels}
    weight = families.get(scheme.family, _tables)(tensors, scheme, output_format(fmt), shape)
    patterns = [weight(*place) for place in itertools.product(*map(range, shape))]
    return np.array(patterns, np.uint16 if fmt.bits == 16 else np.uint32).reshape(shape)


def field(words: Sequence[int], packing: WordPacking, place: int) -> int:
    """The code at a place along `packing.axis`, from the words of its row or column, bit by bit."""
    run = place // len(packing.order) * len(packing.order)
    first = (run + packing.order.index(place - run)) * packing.bits
    code = 0
    for bit in range(packing.bits):
        word, shift = divmod(first + bit, packing.word_bits)
        code |= (words[word] >> shift & 1) << bit
    return code


def scaled(integer: int, scale: int, source: FloatFormat, target: FloatFormat) -> int:
    """RN(target) of the exact product integer * scale; zero, Inf and NaN as IEEE 754 multiplies float(integer)."""
    if source.is_nan(scale) or (source.is_inf(scale) and integer == 0):
        return _nan(target)
    negative = source.is_negative(scale) != (integer < 0)
    if source.is_inf(scale):
        assert target.inf_magnitude is not None
        return target.sign_mask * negative | target.inf_magnitude
    magnitude = abs(integer) * source.magnitude_value(scale & source.magnitude_mask)
    return round_to(-magnitude if negative else magnitude, target, negative=negative)


def add(a: int, b: int) -> int:
    """RN32(a + b) of binary32 patterns; Inf - Inf is NaN; a sum of zeros is -0 only if both are."""
    if BINARY32.is_nan(a) or BINARY32.is_nan(b):
        return _nan(BINARY32)
    if BINARY32.is_inf(a) or BINARY32.is_inf(b):
        infinities = {value for value in (a, b) if BINARY32.is_inf(value)}
        return _nan(BINARY32) if len(infinities) == 2 else infinities.pop()
    values = [Fraction(0) if is_zero(value) else Fraction(BINARY32.value(value)) for value in (a, b)]
    both_negative = BINARY32.is_negative(a) and BINARY32.is_negative(b)
    return round_to(values[0] + values[1], BINARY32, negative=both_negative)


def nested_absmax(code: int, code2: Sequence[int], absmax2: Sequence[int], offset: int, block: int, size: int) -> int:
    """RN32(RN32(code2[code] * absmax2) + offset), all binary32 patterns, of the block with that index."""
    return add(multiply(code2[code], absmax2[block // size]), offset)


def _grouped(tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat, shape: tuple[int, ...]) -> Weight:
    """AWQ and GPTQ: scale * (q - zero), the group decided by the row."""
    codes = _lines(tensors["qweight"], scheme.packing)
    assert scheme.zero_packing is not None  # both families have zero points
    zero_packing, zeros = scheme.zero_packing, _words(tensors["qzeros"], scheme.zero_packing)
    scales, source = _patterns(tensors["scales"])
    given = tensors.get("g_idx")
    groups = None if given is None else given.tolist()
    size = scheme.group_size(shape[0])

    def weight(k: int, n: int) -> int:
        line, place = (n, k) if scheme.packing.axis == 0 else (k, n)
        group = k // size if groups is None else groups[k]
        zero = field(zeros[group], zero_packing, n)
        if scheme.zero is ZeroPoint.STORED_MINUS_ONE:
            zero = (zero + 1) % (1 << scheme.bits)
        integer = field(codes[line], scheme.packing, place) - zero
        return _rounded(integer, scales[group][n], source, scheme, fmt)

    return weight


def _blocks(tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat, shape: tuple[int, ...]) -> Weight:
    """NF4 and FP4: RN32(codebook[q] * absmax), blocks of the flattened tensor."""
    (codes,) = _words(tensors["packed"].reshape(1, -1), scheme.packing)
    if scheme.nested:
        code2, absmax2, offset = (_patterns(tensors[name])[0] for name in ("code2", "absmax2", "offset"))
        absmax = [
            nested_absmax(code, code2, absmax2, np.ravel(offset).tolist()[0], block, tensors["block_size2"])
            for block, code in enumerate(tensors["absmax"].tolist())
        ]
    else:
        absmax, _ = _patterns(tensors["absmax"])

    def weight(*place: int) -> int:
        flat = 0
        for index, length in zip(place, shape, strict=True):
            flat = flat * length + index
        value = scheme.codebook[field(codes, scheme.packing, flat)]
        return convert(multiply(value, absmax[flat // scheme.group]), BINARY32, fmt)

    return weight


def _channels(tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat, shape: tuple[int, ...]) -> Weight:
    """int8: one scale a row of (N, K)."""
    codes = tensors["weight"].tolist()
    scales, source = _patterns(tensors["scale"])

    def weight(n: int, k: int) -> int:
        if scheme.arithmetic is Arithmetic.EXACT_PRODUCT:
            return _rounded(codes[n][k], scales[n], source, scheme, fmt)
        product = multiply(round_to(Fraction(codes[n][k]), BINARY32), scales[n])
        if scheme.arithmetic is Arithmetic.SCB_PRODUCT:
            product = multiply(product, SCB_FACTOR)
        return convert(product, BINARY32, fmt)

    return weight


def _tables(tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat, shape: tuple[int, ...]) -> Weight:
    """SqueezeLLM: an entry of the channel's table, and what is stored beside it."""
    codes = _lines(tensors["qweight"], scheme.packing)
    tables, source = _patterns(tensors["lookup_table"])
    single: dict[tuple[int, int], int] = {}
    if scheme.sparse:
        starts, places, values = tensors["sparse"]
        entries = _patterns(values)[0]
        for n in range(shape[1]):
            for entry in range(int(starts[n]), int(starts[n + 1])):
                single[int(places[entry]), n] = entries[entry]
    full: dict[int, int] = {}
    if scheme.full_rows:
        full = {int(n): r for r, n in enumerate(tensors["full_rows"][0])}
        full_values = _patterns(tensors["full_rows"][1])[0]

    def weight(k: int, n: int) -> int:
        entry = tables[n][field(codes[n], scheme.packing, k)]
        if scheme.arithmetic is Arithmetic.LOOKUP:
            return convert(entry, source, fmt)
        total = convert(entry, source, BINARY32)
        if (k, n) in single:
            total = add(total, single[k, n])
        if n in full:
            total = add(total, full_values[k][full[n]])
        return convert(total, BINARY32, fmt)

    return weight


def _rounded(integer: int, scale: int, source: FloatFormat, scheme: WeightScheme, fmt: FloatFormat) -> int:
    if scheme.output_rounding is OutputRounding.THROUGH_SCALE_DTYPE:
        return convert(scaled(integer, scale, source, source), source, fmt)
    return scaled(integer, scale, source, fmt)


def _lines(array: np.ndarray, packing: WordPacking) -> list[list[int]]:
    """The words of every line along `packing.axis`, line by line."""
    return _words(array.T if packing.axis == 0 else array, packing)


def _words(array: np.ndarray, packing: WordPacking) -> list[list[int]]:
    mask = (1 << packing.word_bits) - 1
    return [[word & mask for word in line] for line in array.tolist()]


def _patterns(array: np.ndarray) -> tuple[Any, FloatFormat]:
    """The bit patterns of a floating array as nested lists, and their format."""
    fmt = OUTPUTS[dtype_name(array)]
    patterns = np.ascontiguousarray(array).view(np.uint16 if fmt.bits == 16 else np.uint32)
    return patterns.reshape(array.shape).tolist(), fmt


def _nan(fmt: FloatFormat) -> int:
    assert fmt.nan_magnitude is not None  # every format of outputs and scales has NaN
    return fmt.nan_magnitude
