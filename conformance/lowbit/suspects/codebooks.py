"""Faults that NF4's, FP4's and int8's weights can have: codebooks, blocks, the nested absmax, scales of channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from lowbit.formats import BFLOAT16, BINARY16, BINARY32, E2M1, FloatFormat
from lowbit.references.bits_numbers import of_integers, of_patterns, product, to_patterns
from lowbit.rules import Arithmetic
from lowbit.suspects.fields import NEIGHBOURS, TILES, Reader, misreadings
from lowbit.suspects.trial import Suspect
from lowbit.suspects.weight_trial import BlockTrial, ChannelTrial, Ints, bits32, floats, multiplied, narrowed, through
from lowbit.weights import FP4_CODEBOOK, NF4_CODEBOOK, NF4_FOUR_DIGIT_CODEBOOK, SCB_FACTOR

BLOCKS = (32, 64, 128, 256, 4096)
"""Block sizes that may be taken for the scheme's; of nested scales too."""

FP4_DECIMAL = 0x3BAAAAA4
"""0.00520833, the decimal that stands in sources for 1/192."""


def of_blocks(trial: BlockTrial) -> Iterator[Suspect]:
    """NF4 and FP4, the likeliest first."""
    for name, text, read in misreadings(trial.scheme.packing):
        yield Suspect(name, text, partial(_misread, read=read))
    if trial.scheme.nested:
        for name, text, absmax in _nested(trial):
            yield Suspect(name, text, partial(_with_absmax, change=absmax))
    for name, text, codebook in _codebooks(trial):
        if codebook != trial.scheme.codebook:
            yield Suspect(name, text, partial(_with_codebook, codebook=codebook))
    for name, text, block in _other_blocks(trial):
        yield Suspect(name, text, partial(_of_block, change=block))
    for fmt in (BINARY16, BFLOAT16):
        yield Suspect(f"absmax_{fmt.name}", f"absmax rounded to {fmt.name}", partial(_absmax_through, fmt=fmt))
        yield Suspect(f"codebook_{fmt.name}", f"the codebook in {fmt.name}", partial(_codebook_through, fmt=fmt))
        text = f"codebook and absmax both in {fmt.name}"
        yield Suspect(f"factors_{fmt.name}", text, partial(_factors_through, fmt=fmt))
    text = "the product rounded to the output's format once, not to binary32 first"
    yield Suspect("not_through_binary32", text, _product_once)


def _misread(trial: BlockTrial, read: Reader) -> Ints:
    packed = trial.tensors["packed"].reshape(-1, 1)
    codes = read(packed, trial.scheme.packing, trial.places, np.zeros_like(trial.places))
    return trial.result(code=codes % 16)


def _codebooks(trial: BlockTrial) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield "nf4_four_digit", "the NF4 codebook of four digits", NF4_FOUR_DIGIT_CODEBOOK
    yield "nf4", "the codebook of NF4", NF4_CODEBOOK
    yield "fp4", "the codebook of FP4", FP4_CODEBOOK
    e2m1 = tuple(_pattern32(float(E2M1.value(code)) / 6) for code in range(16))
    yield "e2m1", "E2M1's values, divided by 6", e2m1
    own = trial.scheme.codebook
    decimal = tuple({1: FP4_DECIMAL, 9: FP4_DECIMAL | BINARY32.sign_mask}.get(c, v) for c, v in enumerate(own))
    if own == FP4_CODEBOOK:
        yield "fp4_decimal", "0.00520833 (0x3baaaaa4) in place of 1/192", decimal
        yield "plus_zero", "code 8 read as +0", (*own[:8], 0, *own[9:])
    yield "reversed", "the codebook from its end", own[::-1]


def _pattern32(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def _with_codebook(trial: BlockTrial, codebook: tuple[int, ...]) -> Ints:
    return trial.result(codebook=codebook)


def _other_blocks(trial: BlockTrial) -> Iterator[tuple[str, str, Callable[[BlockTrial], Ints]]]:
    """Blocks other than the place's own, to be cut to those that there are."""
    size, columns = trial.scheme.group, trial.shape[-1] if trial.shape else 1
    if len(trial.shape) > 1 and columns:
        for name, of_row, how in (
            ("down", columns // size, "rounded down"),
            ("up", -(-columns // size), "rounded up"),
        ):
            text = f"blocks restarted in every row, {columns} / {size} {how} a row: they cross rows"
            yield f"rows_{name}", text, partial(_in_row, blocks=of_row)
        yield "row", "one absmax a row", lambda t: t.row
    for name, step in NEIGHBOURS:
        text = f"absmax of the {name} block: the block index off by one"
        yield f"{name}_block", text, partial(_shifted, step=step)
    for other in BLOCKS:
        if other != size:
            yield f"size_{other}", f"blocks of {other} in place of {size}", partial(_by_size, size=other)
    yield "byte_index", "blocks counted in bytes, not in elements", lambda t: t.places // 2 // size
    for tile in TILES:
        if tile % size or tile > size:
            text = f"absmax of the tile's first element, in tiles of {tile}"
            yield f"tile_{tile}", text, partial(_of_tile, tile=tile)


def _in_row(trial: BlockTrial, blocks: int) -> Ints:
    return trial.row * blocks + trial.column // trial.scheme.group


def _shifted(trial: BlockTrial, step: int) -> Ints:
    return trial.block + step


def _by_size(trial: BlockTrial, size: int) -> Ints:
    return trial.places // size


def _of_tile(trial: BlockTrial, tile: int) -> Ints:
    return trial.places // tile * tile // trial.scheme.group


def _of_block(trial: BlockTrial, change: Callable[[BlockTrial], Ints]) -> Ints:
    return trial.result(absmax=trial.absmax(np.clip(change(trial), 0, trial.blocks - 1)))


def _nested(trial: BlockTrial) -> Iterator[tuple[str, str, Callable[[BlockTrial], Any]]]:
    """Other ways to the absmax, as float32."""
    yield "fma", "a fused multiply-add in the nested absmax: one rounding, not two", _fused
    yield "no_offset", "the offset of the nested absmax left out", lambda t: np.multiply(*t.nested_factors(t.block))
    yield "offset_first", "the offset of the nested absmax added before it is scaled", _offset_first
    for name, step in NEIGHBOURS:
        yield f"{name}_absmax2", f"absmax2 of the {name} block of blocks", partial(_of_absmax2, step=step)
    for size in (*BLOCKS, 1):
        if size != trial.tensors["block_size2"]:
            text = f"{size} blocks share an absmax2, in place of {trial.tensors['block_size2']}"
            yield f"block_size2_{size}", text, partial(_of_absmax2, block_size2=size)


def _fused(trial: BlockTrial) -> Any:
    """The product of two binary32 numbers is exact in binary64."""
    value, scale = (factor.astype(np.float64) for factor in trial.nested_factors(trial.block))
    return _sum_once(value * scale, trial.tensors["offset"].astype(np.float64).reshape(()))


def _of_absmax2(trial: BlockTrial, block_size2: int | None = None, step: int = 0) -> Any:
    value, scale = trial.nested_factors(trial.block, block_size2=block_size2, step=step)
    return value * scale + trial.tensors["offset"].reshape(())


def _sum_once(a: Any, b: Any) -> Any:
    """RN32 of an exact sum of binary64 numbers: rounded to odd before it is narrowed."""
    with np.errstate(all="ignore"):
        total = a + b
        part = total - a
        lost = (a - (total - part)) + (b - part)
        pattern = total.view(np.int64)
        inexact = (lost != 0) & np.isfinite(total) & (pattern & 1 == 0)
        toward = np.where((lost > 0) == (total > 0), 1, -1)
        return np.where(inexact, pattern + toward, pattern).view(np.float64).astype(np.float32)


def _offset_first(trial: BlockTrial) -> Any:
    value, scale = trial.nested_factors(trial.block)
    return (value + trial.tensors["offset"].reshape(())) * scale


def _with_absmax(trial: BlockTrial, change: Callable[[BlockTrial], Any]) -> Ints:
    with np.errstate(all="ignore"):
        return trial.result(absmax=bits32(change(trial)))


def _absmax_through(trial: BlockTrial, fmt: FloatFormat) -> Ints:
    return trial.result(absmax=through(trial.absmax(), fmt))


def _codebook_through(trial: BlockTrial, fmt: FloatFormat) -> Ints:
    return trial.result(codebook=_book(trial, fmt))


def _factors_through(trial: BlockTrial, fmt: FloatFormat) -> Ints:
    return trial.result(codebook=_book(trial, fmt), absmax=through(trial.absmax(), fmt))


def _book(trial: BlockTrial, fmt: FloatFormat) -> tuple[int, ...]:
    return tuple(through(np.array(trial.scheme.codebook), fmt).tolist())


def _product_once(trial: BlockTrial) -> Ints | None:
    if trial.fmt is BINARY32:
        return None
    book = np.array(trial.scheme.codebook)[trial.code()]
    return to_patterns(product(of_patterns(book, BINARY32), of_patterns(trial.absmax(), BINARY32)), trial.fmt)


def of_channels(trial: ChannelTrial) -> Iterator[Suspect]:
    """int8, the likeliest first."""

    for name, text, change in _other_channels():
        yield Suspect(name, text, partial(_of_channel, change=change))
    for rule in (Arithmetic.SCB_PRODUCT, Arithmetic.BINARY32_PRODUCT):
        if rule is not trial.scheme.arithmetic and trial.source is BINARY32:
            name = {Arithmetic.SCB_PRODUCT: "int8_scb"}.get(rule, "int8_channel")
            text = f"the rules of the scheme {name}: {rule.value}"
            yield Suspect(name, text, partial(_with_arithmetic, rule=rule))
    if trial.scheme.arithmetic is Arithmetic.SCB_PRODUCT:
        yield Suspect("divided", "a division by 127 in place of the factor RN32(1/127)", _divided)
        yield Suspect("factor_first", "SCB scaled by RN32(1/127) before it multiplies", _factor_first)
    yield Suspect("clamped", "-128 clamped to -127", lambda t: t.result(code=np.maximum(t.code(), -127)))
    yield Suspect("unsigned", "codes read as unsigned", lambda t: t.result(code=t.code() & 0xFF))
    yield Suspect("offset_binary", "codes read as offset by 128", lambda t: t.result(code=t.code() ^ -128))
    for fmt in (BINARY16, BFLOAT16):
        if fmt is not trial.source:
            yield Suspect(f"scale_{fmt.name}", f"scales rounded to {fmt.name}", partial(_scale_through, fmt=fmt))
    yield Suspect("unscaled", "no scale: the code itself", lambda t: to_patterns(of_integers(t.code()), t.fmt))


def _other_channels() -> Iterator[tuple[str, str, Callable[[ChannelTrial], Ints]]]:
    yield "axis", "scales along the other axis: column k scaled by scale[k]", lambda t: t.column % t.shape[0]
    yield "flat_index", "scales in turn over the flattened weight", lambda t: t.places % t.shape[0]
    yield "next_channel", "the scale of the next channel", lambda t: np.minimum(t.row + 1, t.shape[0] - 1)
    yield "previous_channel", "the scale of the previous channel", lambda t: np.maximum(t.row - 1, 0)
    yield "first_channel", "the first scale for every channel", lambda t: np.zeros_like(t.row)


def _of_channel(trial: ChannelTrial, change: Callable[[ChannelTrial], Ints]) -> Ints:
    return trial.result(scale=trial.scale(change(trial)))


def _with_arithmetic(trial: ChannelTrial, rule: Arithmetic) -> Ints:
    return trial.result(arithmetic=rule)


def _divided(trial: ChannelTrial) -> Ints:
    with np.errstate(all="ignore"):
        value = floats(_times_code(trial, trial.scale())) / np.float32(127)
    return narrowed(bits32(value), trial.fmt)


def _factor_first(trial: ChannelTrial) -> Ints:
    return narrowed(_times_code(trial, multiplied(trial.scale(), np.array(SCB_FACTOR))), trial.fmt)


def _times_code(trial: ChannelTrial, scale: Ints) -> Ints:
    return to_patterns(product(of_integers(trial.code()), of_patterns(scale, BINARY32)), BINARY32)


def _scale_through(trial: ChannelTrial, fmt: FloatFormat) -> Ints:
    return trial.result(scale=through(trial.scale(), fmt, trial.source))
