"""MPFR's vote: its answers to tables of formats and scales, blocks, decoded values, stochastic thresholds, weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowbit import schemes
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FORMATS
from lowbit.rules import NanCode, Rounding, ScaleRule
from lowbit.vectors.case import Block, Row, ScaledCodes, Thresholds
from lowbit.vectors.group import Group
from lowbit.vectors.hextext import word, write_digits, write_octets
from lowbit.vectors.votes import Answer, Witness
from lowbit.vectors.witness_mpfr_arithmetic import (
    decode,
    element,
    gmp,
    number,
    pattern_text,
    quantize_block,
    tensor_scale,
)
from lowbit.vectors.witness_mpfr_weights import weights

OUTPUTS = {"binary32": BINARY32, "binary16": BINARY16, "bfloat16": BFLOAT16}


def ask(group: Group) -> Iterator[Answer]:
    """Rows of formats and of scales, blocks, decoded tables, thresholds, weights."""
    if group.kind == "breakpoints":
        yield from _breakpoints(group)
    elif group.kind == "scale":
        yield from _scales(group)
    elif group.form in ("blocks", "stream"):
        yield from _blocks(group)
    elif group.form == "scaled_codes":
        yield from _decoded(group)
    elif group.form == "weights":
        yield from weights(group)
    elif group.form == "thresholds":
        fmt = FORMATS[group.subject]
        for case in group.cases:
            assert isinstance(case, Thresholds)  # by the form, as below
            found = [
                element(number(first - step), fmt, Rounding.STOCHASTIC, None, r)
                for r, first in enumerate(case.firsts.tolist())
                for step in (0, 1)
            ]
            yield Answer(case.name, "codes", write_digits(found), write_digits([case.code, case.code - 1] * 256))


def _breakpoints(group: Group) -> Iterator[Answer]:
    fmt = FORMATS[group.subject]
    rounding = Rounding(group.rounding or Rounding.TIES_TO_EVEN.value)
    nan = NanCode(group.nan) if group.nan else None
    if nan is NanCode.SIGNED_MAX:
        return  # MPFR's NaN has no sign
    for case in group.cases:
        assert isinstance(case, Row)
        for end in dict.fromkeys((case.first, case.last)):
            code = element(number(end), fmt, rounding, nan, None)
            yield Answer(case.name, f"code of {word(end)}", f"{code:0{len(case.fields['code'])}x}", case.fields["code"])


def _scales(group: Group) -> Iterator[Answer]:
    scheme = schemes.get(group.subject)
    zero = gmp().mpfr(0)
    for case in group.cases:
        assert isinstance(case, Row)
        for end in dict.fromkeys((case.first, case.last)):
            scale, _ = quantize_block([number(end), zero], scheme, [0, 0], gmp().mpfr(1))
            yield Answer(case.name, f"scale of {word(end)}", f"{scale:02x}", case.fields["code"])


def _blocks(group: Group) -> Iterator[Answer]:
    scheme = schemes.get(group.subject)
    if scheme.scale_rule is ScaleRule.STOCHASTIC:
        return  # a rule about bits, not about numbers
    for case in group.cases:
        assert isinstance(case, Block)
        if case.seed is not None:
            continue
        rows = [[number(p) for p in row] for row in case.x.view("uint32").tolist()]
        g = None
        if scheme.family == "nvfp4":
            given = case.fields.get("given_tensor_scale")
            g = number(int(given, 16)) if given else tensor_scale([v for row in rows for v in row], scheme)
            text = "7fc00000" if gmp().is_nan(g) else pattern_text(g, BINARY32)
            yield Answer(case.name, "tensor scale", text, case.fields["tensor_scale"])
        for r in [None] if case.randoms is None else dict.fromkeys((case.randoms[0], case.randoms[-1])):
            scales, codes = [], []
            for index, row in enumerate(rows):
                bits = [None] * len(row) if case.random_bits is None else case.random_bits[index].tolist()
                bits = bits if r is None else [r] * len(row)
                padding = -len(row) % scheme.block
                x, bits = [*row, *[gmp().mpfr(0)] * padding], [*bits, *[0] * padding]
                for start in range(0, len(x), scheme.block):
                    part = slice(start, start + scheme.block)
                    scale, found = quantize_block(x[part], scheme, bits[part], g)
                    scales.append(scale)
                    codes += found
            yield Answer(case.name, "scales", write_octets(scales), case.fields["scales"])
            right = case.expected.codes
            if scheme.nan is NanCode.SIGNED_MAX:  # MPFR's NaN has no sign: those elements are not asked
                kept = ~np.pad(np.isnan(case.x), ((0, 0), (0, right.shape[1] - case.x.shape[1])))
                codes, right = np.array(codes, np.uint8).reshape(right.shape)[kept].tolist(), right[kept]
            yield Answer(case.name, "codes", write_digits(codes), write_digits(right.ravel()))


def _decoded(group: Group) -> Iterator[Answer]:
    scheme = schemes.get(group.subject)
    count = 1 << scheme.element.bits
    g = None if group.tensor_scale is None else number(group.tensor_scale)
    for case in group.cases:
        assert isinstance(case, ScaledCodes)
        for name, fmt in OUTPUTS.items():
            texts = [pattern_text(decode(code, case.scale, scheme, g, fmt), fmt) for code in range(count)]
            yield Answer(case.name, f"values in {name}", " ".join(texts), case.fields[name])


WITNESS = Witness("gmpy2", "MPFR", "whole schemes, every rounding by MPFR", ask, "gmpy2", "gmpy2")
