"""Faults that AWQ's and GPTQ's weights can have: words, zero points, groups, the order of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references.bits_numbers import of_integers, of_patterns, product, to_patterns
from lowbit.rules import OutputRounding, ZeroPoint
from lowbit.suspects.fields import NEIGHBOURS, TILES, Reader, misreadings
from lowbit.suspects.trial import Suspect
from lowbit.suspects.weight_trial import IntegerTrial, Ints, bits32, floats, narrowed, patterns

Change = Callable[[IntegerTrial], Ints]

PARTS = (
    ("", "in codes and zero points", True, True),
    ("_codes", "in codes", True, False),
    ("_zeros", "in zero points", False, True),
)
"""What of a weight a misreading is in: for the name, in words, whether of codes, whether of zero points."""

OF_GROUP = (
    ("", "scales and zero points", True, True),
    ("_scales", "scales", False, True),
    ("_zeros", "zero points", True, False),
)
"""What is taken of a wrong group: for the name, in words, whether zero points, whether scales."""

SIZES = (8, 16, 32, 48, 64, 128, 256)
"""Group sizes that may be taken for the scheme's."""


def suspects(trial: IntegerTrial) -> Iterator[Suspect]:
    """All of them, the likeliest first."""
    zero_packing = trial.scheme.zero_packing
    assert zero_packing is not None  # both families have zero points
    for name, text, read in misreadings(zero_packing):
        for suffix, where, codes, zeros in PARTS:
            yield Suspect(name + suffix, f"{text}, {where}", partial(_misread, read=read, codes=codes, zeros=zeros))
    for name, text, change in _zeros(trial):
        yield Suspect(name, text, partial(_with_zero, change=change))
    yield from _differences(trial)
    for name, text, change in _groups(trial):
        for suffix, what, zeros, scales in OF_GROUP:
            guess = partial(_with_group, change=change, zeros=zeros, scales=scales)
            yield Suspect(name + suffix, f"{what} of {text}", guess)
    if trial.scheme.group == -1:
        for tile in TILES:
            if tile < trial.rows:
                text = f"group size -1 taken for a number: from row {tile} on scales from outside the tensor"
                yield Suspect(f"minus_one_{tile}", text, partial(_outside, tile=tile))
    yield Suspect("scales_transposed", "scales read column by column", _transposed)
    yield Suspect("scales_flushed", "subnormal scales taken for zero", _flushed)
    yield from _arithmetic(trial)


def _misread(trial: IntegerTrial, read: Reader, codes: bool, zeros: bool) -> Ints:
    packing, zero_packing = trial.scheme.packing, trial.scheme.zero_packing
    assert zero_packing is not None
    code = read(trial.tensors["qweight"], packing, trial.row, trial.column) if codes else None
    zero = read(trial.tensors["qzeros"], zero_packing, trial.group, trial.column) if zeros else None
    if zero is not None and trial.scheme.zero is ZeroPoint.STORED_MINUS_ONE:
        zero = np.where(zero == trial.scheme.code_range[1], 0, zero + 1)
    return trial.result(code=code, zero=zero)


def _with_zero(trial: IntegerTrial, change: Change) -> Ints:
    return trial.result(zero=change(trial))


def _zeros(trial: IntegerTrial) -> Iterator[tuple[str, str, Change]]:
    """Zero points that are off, cut, or carried into each other."""
    bits = trial.scheme.bits
    count = 1 << bits
    minus_one = trial.scheme.zero is ZeroPoint.STORED_MINUS_ONE
    if minus_one:
        yield "v1_as_v2", "zero points one too low: v1 read as v2", lambda t: t.zero_field()
        yield "one_twice", "zero points one too high: one added twice", lambda t: (t.zero() + 1) % count
        text = f"zero points that do not wrap: stored {count - 1:#x} read as {count}"
        yield "unwrapped", text, lambda t: t.zero_field() + 1
        if 32 % bits == 0:
            yield "carry", "one added to whole words of zero points: it carries into the neighbour", _carried
    else:
        yield "v2_as_v1", "zero points one too high: v2 read as v1", lambda t: (t.zero() + 1) % count
        yield "v2_as_v1_unwrapped", "zero points one too high, not wrapped", lambda t: t.zero() + 1
        yield "one_less", "zero points one too low", lambda t: (t.zero() - 1) % count
        yield "one_less_unwrapped", "zero points one too low, not wrapped", lambda t: t.zero() - 1
    if bits == 8:
        yield "masked", "zero points masked with 0xF", lambda t: t.zero() & 0xF
        text = "stored zero points masked with 0xF"
        yield "masked_field", text, lambda t: (t.zero_field() & 0xF) + minus_one
    yield "zero_ignored", "zero points ignored", lambda t: np.zeros_like(t.row)
    middle = count // 2
    yield "zero_middle", f"{middle} in place of every zero point", lambda t: np.full_like(t.row, middle)


def _carried(trial: IntegerTrial) -> Ints:
    """Zero points of words to which one was added in every field at once."""
    ones = sum(1 << shift for shift in range(0, 32, trial.scheme.bits))
    return trial.zero_field(words=trial.tensors["qzeros"].astype(np.int64) + ones)


def _differences(trial: IntegerTrial) -> Iterator[Suspect]:
    """q - z in too few bits, or the wrong way round."""
    yield Suspect("reversed", "z - q in place of q - z", lambda t: t.result(integer=t.zero() - t.code()))
    for bits in dict.fromkeys((trial.scheme.bits, 8)):
        text = f"q - z in {bits} unsigned bits: it wraps around below 0"
        yield Suspect(f"unsigned_{bits}", text, partial(_wrapped, count=1 << bits, low=0))
        text = f"q - z in {bits} signed bits: it wraps around beyond {(1 << bits - 1) - 1}"
        yield Suspect(f"signed_{bits}", text, partial(_wrapped, count=1 << bits, low=-1 << bits - 1))


def _wrapped(trial: IntegerTrial, count: int, low: int) -> Ints:
    return trial.result(integer=(trial.code() - trial.zero() - low) % count + low)


def _with_group(trial: IntegerTrial, change: Change, zeros: bool, scales: bool) -> Ints:
    group = change(trial)
    return trial.result(zero=trial.zero(group) if zeros else None, scale=trial.scale(group) if scales else None)


def _groups(trial: IntegerTrial) -> Iterator[tuple[str, str, Change]]:
    """Other groups than the row's own."""
    rows, size = trial.rows, trial.scheme.group_size(trial.rows)
    for name, step in NEIGHBOURS:
        text = f"the {name} group: the group index off by one"
        yield f"{name}_group", text, partial(_shifted, step=step)
        yield f"{name}_group_around", f"{text}, from the end around", partial(_shifted, step=step, around=True)
        text = f"the group of the {name} row: groups begin a row {'early' if step > 0 else 'late'}"
        yield f"{name}_row", text, partial(_of_row, step=step)
    if trial.tensors.get("g_idx") is not None:
        yield "g_idx_ignored", f"group k // {size}: g_idx ignored", partial(_by_rows, size=size)
    for tile in TILES:
        text = f"the group of the tile's first row, in tiles of {tile} rows"
        yield f"tile_{tile}", text, partial(_first_of_tile, tile=tile)
    for other in dict.fromkeys((*SIZES, size // 2, 2 * size, rows)):
        if other not in (0, size):
            text = f"groups of {other} rows in place of {size}"
            yield f"size_{other}", text, partial(_by_rows, size=other)
    yield "row_index", "the group k, not k // G", lambda t: t.row % t.groups
    yield "first_group", "the first group in every row", lambda t: np.zeros_like(t.row)


def _shifted(trial: IntegerTrial, step: int, around: bool = False) -> Ints:
    moved = trial.group + step
    return moved % trial.groups if around else np.clip(moved, 0, trial.groups - 1)


def _by_rows(trial: IntegerTrial, size: int) -> Ints:
    return np.clip(trial.row // size, 0, trial.groups - 1)


def _of_row(trial: IntegerTrial, step: int) -> Ints:
    return trial.group_of(np.clip(trial.row + step, 0, trial.rows - 1))


def _first_of_tile(trial: IntegerTrial, tile: int) -> Ints:
    return trial.group_of(trial.row // tile * tile)


def _outside(trial: IntegerTrial, tile: int) -> Ints:
    """Nothing but zeros is read from some row on."""
    beyond = trial.row >= tile
    zero = np.where(beyond, int(trial.scheme.zero is ZeroPoint.STORED_MINUS_ONE), trial.zero())
    return trial.result(zero=zero, scale=np.where(beyond, 0, trial.scale()))


def _transposed(trial: IntegerTrial) -> Ints | None:
    flat = patterns(trial.tensors["scales"]).reshape(-1)
    return trial.result(scale=flat[trial.column * trial.groups + trial.group]) if trial.groups > 1 else None


def _flushed(trial: IntegerTrial) -> Ints:
    scale = trial.scale()
    subnormal = (scale & trial.source.magnitude_mask) < 1 << trial.source.mantissa_bits
    return trial.result(scale=np.where(subnormal, scale & trial.source.sign_mask, scale))


def _arithmetic(trial: IntegerTrial) -> Iterator[Suspect]:
    """Products and roundings in another order."""
    for fmt in (BINARY16, BFLOAT16, BINARY32):
        if fmt in (trial.source, trial.fmt, BINARY32):
            text = f"the zero subtracted after scaling: q·s - z·s, each rounded to {fmt.name}"
            yield Suspect(f"after_scaling_{fmt.name}", text, partial(_after_scaling, inner=fmt))
    if trial.fmt is not trial.source:
        name = trial.source.name
        if trial.scheme.output_rounding is OutputRounding.DIRECT:
            text = f"the product rounded to {name}, the dtype of the scales, before the output's"
            through = OutputRounding.THROUGH_SCALE_DTYPE
        else:
            text, through = f"the product not rounded to {name}, the dtype of the scales", OutputRounding.DIRECT
        yield Suspect("through_scale_dtype", text, partial(_through, rounding=through))
        text = f"scales cast to {trial.fmt.name} before they multiply"
        yield Suspect("scales_cast", text, _scales_cast)
    yield Suspect("unscaled", "no scale: q - z itself", _unscaled)


def _through(trial: IntegerTrial, rounding: OutputRounding) -> Ints:
    return replace(trial, scheme=replace(trial.scheme, output_rounding=rounding)).result()


def _scales_cast(trial: IntegerTrial) -> Ints:
    scale = of_patterns(narrowed(trial.scale(), trial.fmt, trial.source), trial.fmt)
    return to_patterns(product(of_integers(trial.code() - trial.zero()), scale), trial.fmt)


def _unscaled(trial: IntegerTrial) -> Ints:
    return to_patterns(of_integers(trial.code() - trial.zero()), trial.fmt)


def _after_scaling(trial: IntegerTrial, inner: FloatFormat) -> Ints:
    """RN(RN(q * s) - RN(z * s)) in one format, then the output's.

    The difference goes through binary64 and binary32, which changes no rounding of two numbers of so few bits.
    """
    scale = of_patterns(trial.scale(), trial.source)
    scaled = [
        floats(narrowed(to_patterns(product(of_integers(integer), scale), inner), BINARY32, inner)).astype(np.float64)
        for integer in (trial.code(), trial.zero())
    ]
    with np.errstate(all="ignore"):
        difference = (scaled[0] - scaled[1]).astype(np.float32)
    return narrowed(narrowed(bits32(difference), inner), trial.fmt, inner)
