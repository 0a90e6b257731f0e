"""The registry of weight schemes: how each stores a weight matrix, and what its numbers mean.

A scheme is data: how codes fill words, which weights share a scale, what a zero point's field holds, which codebook,
which roundings. The names and shapes of the stored tensors are in `weight_tensors`.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from lowbit import schemes
from lowbit.errors import ArgumentError, UnknownScheme
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.rules import Arithmetic, Grouping, OutputRounding, ZeroPoint


@dataclass(frozen=True, kw_only=True)
class WordPacking:
    """How codes fill words: a stream of fields, least significant bit first, and which code each field holds.

    The words of a *period* are read as one little-endian integer; its field p, bits ``p * bits`` and up, holds the code
    at place ``order[p % len(order)]`` of its run of ``len(order)`` codes.

    Args:
      word_bits: of one stored integer: 8 or 32.
      bits: of one code; need not divide `word_bits`.
      axis: along which dimension of the matrix of codes consecutive fields run; 0 is K in a (K, N) matrix, 1 is N.
      order: a permutation; ``(0,)`` is the plain order.
    """

    word_bits: int
    bits: int
    axis: int
    order: tuple[int, ...] = (0,)

    @property
    def period_codes(self) -> int:
        """The least number of codes that fills whole words."""
        return math.lcm(self.bits, self.word_bits) // self.bits

    @property
    def period_words(self) -> int:
        return math.lcm(self.bits, self.word_bits) // self.word_bits

    def place(self, position: int) -> int:
        """Which code, counted along `axis`, the field at `position` of the stream holds."""
        run = len(self.order)
        return position // run * run + self.order[position % run]

    def words(self, codes: int) -> int:
        """The words that hold so many codes, the last one filled up."""
        return -(-codes * self.bits // self.word_bits)


@dataclass(frozen=True, kw_only=True)
class WeightScheme:
    """A weight scheme with every rule pinned.

    Args:
      name: stable, lower case, ``base`` or ``base+flag…``: names folders and test ids.
      family: awq, gptq, nf4, fp4, int8 or squeezellm; decides the kernel and the stored tensors.
      bits: of a code.
      signed: codes are two's complement.
      packing: of the codes.
      zero_packing: of the zero points, None where there are none.
      zero, grouping, output_rounding, arithmetic: see `lowbit.rules`.
      group: weights that share a scale, along K or along the flattened tensor; -1 is all of K.
      codebook: binary32 bit patterns, one a code; empty where a code is a number.
      scale_formats: what scales, absmax or lookup tables may be stored in.
      nested: absmax is itself quantised: absmax = RN32(RN32(code2[q8] * absmax2) + offset), never an fma.
      sparse, full_rows: terms that SqueezeLLM adds to the table's value.
      canonical: the scheme whose exhaustible domains are tried at the default level.
      cites: where the rules come from.
    """

    name: str
    family: str
    bits: int
    packing: WordPacking
    grouping: Grouping
    arithmetic: Arithmetic
    scale_formats: tuple[FloatFormat, ...]
    cites: str
    group: int = -1
    signed: bool = False
    zero: ZeroPoint = ZeroPoint.NONE
    zero_packing: WordPacking | None = None
    output_rounding: OutputRounding = OutputRounding.DIRECT
    codebook: tuple[int, ...] = field(default=(), repr=False)
    nested: bool = False
    sparse: bool = False
    full_rows: bool = False
    canonical: bool = False

    @property
    def base(self) -> str:
        """The name without flags."""
        return self.name.partition("+")[0]

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(self.name.split("+")[1:])

    @property
    def code_range(self) -> tuple[int, int]:
        """The least and the greatest code."""
        half = 1 << (self.bits - 1)
        return (-half, half - 1) if self.signed else (0, (1 << self.bits) - 1)

    def group_size(self, rows: int) -> int:
        """Weights that share a scale where there are `rows` of them; at least 1."""
        return max(rows, 1) if self.group == -1 else self.group

    def groups(self, rows: int) -> int:
        """Scales that `rows` weights need, the last group being short or not; 0 of nothing."""
        return -(-rows // self.group_size(rows))


FLAGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "act_order": (("gptq",), {"grouping": Grouping.ACT_ORDER}),
    "nested": (("nf4", "fp4"), {"nested": True}),
    "sparse": (("squeezellm",), {"sparse": True, "arithmetic": Arithmetic.LOOKUP_SUM}),
    "full_rows": (("squeezellm",), {"full_rows": True, "arithmetic": Arithmetic.LOOKUP_SUM}),
    "through_scale_dtype": (("awq", "gptq"), {"output_rounding": OutputRounding.THROUGH_SCALE_DTYPE}),
}
"""Flag → the families that have it, and the rules it sets; names append flags in this order."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Bits 4i..4i+3 of an AWQ word hold column 8c + AWQ_ORDER[i]."""

HIGH_NIBBLE_FIRST = (1, 0)
"""The low nibble of a byte holds the odd element."""

NF4_CODEBOOK = (
    *(0xBF800000, 0xBF3239B1, 0xBF066B30, 0xBECA32A0, 0xBE91A24D, 0xBE3D353F, 0xBDBA7871, 0x00000000),
    *(0x3DA2FAFF, 0x3E24CAE3, 0x3E7C04DD, 0x3EAD033A, 0x3EE1A4B8, 0x3F1007AB, 0x3F3913B3, 0x3F800000),
)

_FP4_MAGNITUDES = (0x00000000, 0x3BAAAAAB, 0x3F2AAAAB, 0x3F800000, 0x3EAAAAAB, 0x3F000000, 0x3E2AAAAB, 0x3E800000)
FP4_CODEBOOK = (*_FP4_MAGNITUDES, *(pattern | BINARY32.sign_mask for pattern in _FP4_MAGNITUDES))
"""0, 1/192, 2/3, 1, 1/3, 1/2, 1/6, 1/4, then the same negated; code 8 is -0."""

_NF4_FOUR_DIGITS = (
    *(-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0),
    *(0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0),
)
NF4_FOUR_DIGIT_CODEBOOK: tuple[int, ...] = struct.unpack("<16I", struct.pack("<16f", *_NF4_FOUR_DIGITS))
"""The table rounded to four digits that documents print: another codebook, in 14.6 % of fp16 outputs."""

SCB_FACTOR = 0x3C010204
"""RN32(1/127) as a binary32 pattern: what bitsandbytes multiplies by."""

_SIXTEEN_BITS = (BINARY16, BFLOAT16)


def awq(group: int) -> WeightScheme:
    """The AWQ scheme of a group size, -1 for all of K."""
    words = WordPacking(word_bits=32, bits=4, axis=1, order=AWQ_ORDER)
    return WeightScheme(
        name=f"awq_g{_group(group)}",
        family="awq",
        bits=4,
        packing=words,
        zero=ZeroPoint.STORED,
        zero_packing=words,
        grouping=Grouping.WHOLE,
        group=group,
        arithmetic=Arithmetic.EXACT_PRODUCT,
        scale_formats=_SIXTEEN_BITS,
        canonical=group == 128,
        cites="SPEC.md 5.1; AutoAWQ's GEMM layout",
    )


def gptq(bits: int, zeros: str, group: int) -> WeightScheme:
    """The GPTQ scheme of 2, 3, 4 or 8 bits, zeros "v1" or "v2", and a group size, -1 for all of K."""
    if bits not in (2, 3, 4, 8):
        raise ArgumentError(f"bits: got {bits}, want 2, 3, 4 or 8")
    if zeros not in ("v1", "v2"):
        raise ArgumentError(f"zeros: got {zeros!r}, want 'v1' (z - 1 is stored) or 'v2' (z is)")
    return WeightScheme(
        name=f"gptq{bits}_{zeros}_g{_group(group)}",
        family="gptq",
        bits=bits,
        packing=WordPacking(word_bits=32, bits=bits, axis=0),
        zero=ZeroPoint.STORED_MINUS_ONE if zeros == "v1" else ZeroPoint.STORED,
        zero_packing=WordPacking(word_bits=32, bits=bits, axis=1),
        grouping=Grouping.SHORT_LAST,
        group=group,
        arithmetic=Arithmetic.EXACT_PRODUCT,
        scale_formats=_SIXTEEN_BITS,
        canonical=group == 128 and zeros == "v1",
        cites="SPEC.md 5.2; AutoGPTQ's and GPTQModel's checkpoint formats",
    )


def bitsandbytes(codebook: str, block: int) -> WeightScheme:
    """The 4-bit scheme of codebook "nf4" or "fp4" and a block size."""
    tables = {"nf4": NF4_CODEBOOK, "fp4": FP4_CODEBOOK}
    if codebook not in tables:
        raise ArgumentError(f"codebook: got {codebook!r}, want 'nf4' or 'fp4'")
    if block < 1:
        raise ArgumentError(f"block: got {block}, want at least 1")
    return WeightScheme(
        name=f"{codebook}_b{block}",
        family=codebook,
        bits=4,
        packing=WordPacking(word_bits=8, bits=4, axis=0, order=HIGH_NIBBLE_FIRST),
        grouping=Grouping.FLAT,
        group=block,
        codebook=tables[codebook],
        arithmetic=Arithmetic.BINARY32_PRODUCT,
        scale_formats=(BINARY32,),
        canonical=block == 64,
        cites="SPEC.md 5.3; bitsandbytes' 4-bit storage; arXiv 2305.14314",
    )


def squeezellm(bits: int) -> WeightScheme:
    """The SqueezeLLM scheme of 3 or 4 bits."""
    if bits not in (3, 4):
        raise ArgumentError(f"bits: got {bits}, want 3 or 4")
    return WeightScheme(
        name=f"squeezellm{bits}",
        family="squeezellm",
        bits=bits,
        packing=WordPacking(word_bits=32, bits=bits, axis=0),
        grouping=Grouping.CHANNEL,
        arithmetic=Arithmetic.LOOKUP,
        scale_formats=(BINARY32, BINARY16),
        canonical=True,
        cites="SPEC.md 5.5; arXiv 2306.07629",
    )


_INT8 = WeightScheme(
    name="int8_channel",
    family="int8",
    bits=8,
    signed=True,
    packing=WordPacking(word_bits=8, bits=8, axis=1),
    grouping=Grouping.CHANNEL,
    arithmetic=Arithmetic.BINARY32_PRODUCT,
    scale_formats=(BINARY32,),
    canonical=True,
    cites="SPEC.md 5.4",
)

_REGISTRY: dict[str, WeightScheme] = {}


def register(scheme: WeightScheme) -> WeightScheme:
    """Adds a scheme.

    Raises:
      ArgumentError: the name is taken, here or among the block schemes.
    """
    if scheme.name in _REGISTRY or scheme.name in schemes.names():
        raise ArgumentError(f"scheme: the name {scheme.name!r} is registered already")
    _REGISTRY[scheme.name] = scheme
    return scheme


def variant(scheme: WeightScheme, *flags: str) -> WeightScheme:
    """The scheme with flags of `FLAGS` added to those it has, named ``base+flag…``; not registered.

    Raises:
      UnknownScheme: no such flag, or none that the scheme's family has.
    """
    for flag in flags:
        if flag not in FLAGS or scheme.family not in FLAGS[flag][0]:
            known = ", ".join(name for name, (families, _) in FLAGS.items() if scheme.family in families) or "none"
            raise UnknownScheme(f"scheme: got the flag {flag!r} for {scheme.name}, want one of: {known}")
    wanted = [flag for flag in FLAGS if flag in (*scheme.flags, *flags)]
    changes: dict[str, Any] = {"name": "+".join([scheme.base, *wanted])}
    if changes["name"] == scheme.name:
        return scheme
    for flag in flags:
        changes |= FLAGS[flag][1]
    return replace(scheme, canonical=False, **changes)


def get(name: str) -> WeightScheme:
    """The scheme of that name, also one that is not registered: another group or block size, other flags.

    Raises:
      UnknownScheme: no such scheme or flag; names the nearest.
    """
    if name in _REGISTRY:
        return _REGISTRY[name]
    base, *flags = name.split("+")
    scheme = _REGISTRY.get(base) or _built(base)
    if scheme is None:
        near = difflib.get_close_matches(base, _REGISTRY, n=4, cutoff=0.3) or list(_REGISTRY)[:4]
        raise UnknownScheme(f"scheme: got {name!r}, want one of {', '.join(near)} … (see `lowbit list`)")
    derived = variant(scheme, *flags)
    return _REGISTRY.get(derived.name, derived)


def names() -> tuple[str, ...]:
    """The names of all registered schemes, in order of registration."""
    return tuple(_REGISTRY)


def families() -> tuple[str, ...]:
    """The families, in order of registration."""
    return tuple(dict.fromkeys(scheme.family for scheme in _REGISTRY.values()))


def select(globs: Iterable[str] = ("*",)) -> tuple[WeightScheme, ...]:
    """The registered schemes that match any glob, in order of registration; an exact name may be a derived one.

    Raises:
      UnknownScheme: a glob matches nothing.
    """
    found: dict[str, WeightScheme] = {}
    for glob in globs:
        for name in fnmatch.filter(_REGISTRY, glob) or [get(glob).name]:
            found.setdefault(name, get(name))
    order = {name: i for i, name in enumerate(_REGISTRY)}
    return tuple(sorted(found.values(), key=lambda s: order.get(s.name, len(order))))


def _group(group: int) -> str:
    if group != -1 and group < 1:
        raise ArgumentError(f"group: got {group}, want at least 1, or -1 for all of K")
    return "k" if group == -1 else str(group)


_SIZED = re.compile(
    r"(?:awq|gptq(?P<bits>[2348])_(?P<zeros>v[12]))_g(?P<group>[1-9]\d*|k)|(?P<table>nf4|fp4)_b(?P<block>[1-9]\d*)"
)


def _built(base: str) -> WeightScheme | None:
    """The scheme of a name that says a size, None for other names."""
    match = _SIZED.fullmatch(base)
    if match is None:
        return None
    if match["table"]:
        return bitsandbytes(match["table"], int(match["block"]))
    group = -1 if match["group"] == "k" else int(match["group"])
    return gptq(int(match["bits"]), match["zeros"], group) if match["bits"] else awq(group)


for _size in (128, 16, 32, 48, 64, -1):
    register(awq(_size))
register(variant(awq(128), "through_scale_dtype"))

for _bits in (4, 2, 3, 8):
    for _zeros in ("v1", "v2"):
        register(gptq(_bits, _zeros, 128))
    register(variant(gptq(_bits, "v1", 128), "act_order"))
for _size in (16, 32, 48, 64, -1):
    register(gptq(4, "v1", _size))
register(gptq(3, "v1", -1))
register(variant(gptq(4, "v2", 128), "act_order"))
register(variant(gptq(4, "v1", 32), "act_order"))
register(variant(gptq(4, "v1", 128), "through_scale_dtype"))

for _table in ("nf4", "fp4"):
    for _size in (64, 32, 128, 256, 4096) if _table == "nf4" else (64, 128):
        register(bitsandbytes(_table, _size))
    register(variant(bitsandbytes(_table, 64), "nested"))
register(replace(bitsandbytes("nf4", 64), name="nf4_four_digit", codebook=NF4_FOUR_DIGIT_CODEBOOK, canonical=False))

register(_INT8)
register(
    replace(
        _INT8,
        name="int8_scb",
        arithmetic=Arithmetic.SCB_PRODUCT,
        canonical=False,
        cites="SPEC.md 5.4; bitsandbytes' LLM.int8, arXiv 2208.07339",
    )
)
register(
    replace(
        _INT8,
        name="int8_torch",
        arithmetic=Arithmetic.EXACT_PRODUCT,
        output_rounding=OutputRounding.THROUGH_SCALE_DTYPE,
        scale_formats=(BINARY32, *_SIXTEEN_BITS),
        canonical=False,
        cites="SPEC.md 5.4; PyTorch, int8.to(scale.dtype) * scale",
    )
)

for _bits in (4, 3):
    register(squeezellm(_bits))
    for _terms in (("sparse",), ("full_rows",), ("sparse", "full_rows")):
        register(variant(squeezellm(_bits), *_terms))
