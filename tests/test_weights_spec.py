"""The registry of weight schemes: names, rules, codebooks, stored tensors, and their words."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from lowbit import packing_weights, weight_glossary, weight_tensors, weight_words, weights
from lowbit.errors import ArgumentError, ShapeError, UnknownScheme
from lowbit.formats import BINARY32
from lowbit.references.exact_elements import round_to
from lowbit.rules import Arithmetic, Grouping, OutputRounding, ZeroPoint

from .weight_checks import a_shape

SCHEMES = weights.select()


def pattern(value: Fraction) -> int:
    return round_to(value, BINARY32)


def test_the_stable_names_are_there() -> None:
    wanted = [f"awq_g{group}" for group in (16, 32, 48, 64, 128, "k")]
    wanted += [f"gptq{bits}_{zeros}_g128" for bits in (2, 3, 4, 8) for zeros in ("v1", "v2")]
    wanted += [f"gptq{bits}_v1_g128+act_order" for bits in (2, 3, 4, 8)]
    wanted += [f"gptq4_v1_g{group}" for group in (16, 32, 48, 64, "k")]
    wanted += [f"nf4_b{block}" for block in (32, 64, 128, 256, 4096)] + ["fp4_b64", "nf4_b64+nested", "fp4_b64+nested"]
    wanted += ["int8_channel", "int8_scb", "int8_torch", "nf4_four_digit"]
    wanted += ["awq_g128+through_scale_dtype", "gptq4_v1_g128+through_scale_dtype"]
    for bits in (3, 4):
        wanted += [f"squeezellm{bits}{terms}" for terms in ("", "+sparse", "+full_rows", "+sparse+full_rows")]
    assert set(wanted) <= set(weights.names())


def test_every_family_has_a_canonical_scheme() -> None:
    canonical = {scheme.family for scheme in SCHEMES if scheme.canonical}
    assert canonical == set(weights.families()) == {"awq", "gptq", "nf4", "fp4", "int8", "squeezellm"}
    assert canonical == set(weight_tensors.TENSORS)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
def test_a_scheme_says_what_its_name_says(scheme: weights.WeightScheme) -> None:
    assert weights.get(scheme.name) is scheme
    assert scheme.packing.bits == scheme.bits
    assert (scheme.zero is ZeroPoint.NONE) == (scheme.zero_packing is None)
    assert len(scheme.codebook) in (0, 1 << scheme.bits)
    assert ("act_order" in scheme.flags) == (scheme.grouping is Grouping.ACT_ORDER)
    assert ("nested" in scheme.flags) == scheme.nested
    assert ("sparse" in scheme.flags, "full_rows" in scheme.flags) == (scheme.sparse, scheme.full_rows)
    assert (scheme.arithmetic is Arithmetic.LOOKUP_SUM) == (scheme.sparse or scheme.full_rows)
    if scheme.family == "gptq":
        assert scheme.name.startswith(f"gptq{scheme.bits}_")
        assert ("_v1_" in scheme.name) == (scheme.zero is ZeroPoint.STORED_MINUS_ONE)
        assert (scheme.packing.axis, scheme.zero_packing.axis) == (0, 1)
    if scheme.family in ("awq", "gptq"):
        through = "through_scale_dtype" in scheme.flags
        assert scheme.output_rounding is (OutputRounding.THROUGH_SCALE_DTYPE if through else OutputRounding.DIRECT)
        assert scheme.base.endswith(f"_g{'k' if scheme.group == -1 else scheme.group}")
    assert weights.variant(scheme, *scheme.flags) is scheme


def test_other_sizes_and_flags_are_derived() -> None:
    scheme = weights.get("gptq3_v2_g96+through_scale_dtype+act_order")
    assert scheme.name == "gptq3_v2_g96+act_order+through_scale_dtype"
    assert (scheme.bits, scheme.group, scheme.zero) == (3, 96, ZeroPoint.STORED)
    assert not scheme.canonical
    assert weights.get("nf4_b512+nested").nested
    assert weights.get("squeezellm4+full_rows+sparse") is weights.get("squeezellm4+sparse+full_rows")
    assert weights.get("nf4_four_digit+nested").codebook == weights.NF4_FOUR_DIGIT_CODEBOOK


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("awq_g129x", "want one of awq_g128"),
        ("awq_g0", "want one of awq_g"),
        ("gptq5_v1_g128", "want one of gptq"),
        ("gptq4_v3_g128", "want one of gptq4_v"),
        ("awq_g128+nested", "got the flag 'nested' for awq_g128, want one of: through_scale_dtype"),
        ("int8_channel+sparse", "want one of: none"),
        ("nf4_b64+through_scale_dtype", "want one of: nested"),
        ("awq_g128+", "got the flag ''"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(UnknownScheme, match=message.replace("+", r"\+")):
        weights.get(name)


def test_names_are_unique_among_all_schemes() -> None:
    scheme = weights.get("awq_g128")
    with pytest.raises(ArgumentError, match="registered already"):
        weights.register(scheme)
    with pytest.raises(ArgumentError, match="registered already"):
        weights.register(dataclasses.replace(scheme, name="nvfp4"))


def test_select() -> None:
    assert [s.name for s in weights.select(["fp4*", "awq_gk", "awq_g96"])] == [
        *("awq_gk", "fp4_b64", "fp4_b128", "fp4_b64+nested", "awq_g96")
    ]
    with pytest.raises(UnknownScheme):
        weights.select(["awq*", "mxfp4*"])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: weights.awq(0), "group: got 0"),
        (lambda: weights.gptq(5, "v1", 128), "bits: got 5"),
        (lambda: weights.gptq(4, "v0", 128), "zeros: got 'v0'"),
        (lambda: weights.bitsandbytes("nf3", 64), "codebook: got 'nf3'"),
        (lambda: weights.bitsandbytes("nf4", 0), "block: got 0"),
        (lambda: weights.squeezellm(2), "bits: got 2"),
    ],
)
def test_builders_refuse(build, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build()


def test_codebooks() -> None:
    """FP4 is a list of fractions, each rounded once; NF4 is a list of binary32 numbers, ascending, with 0 at code 7."""
    fractions = [Fraction(0), Fraction(1, 192), Fraction(2, 3), Fraction(1), Fraction(1, 3), Fraction(1, 2)]
    fractions += [Fraction(1, 6), Fraction(1, 4)]
    assert list(weights.FP4_CODEBOOK[:8]) == [pattern(f) for f in fractions]
    assert [code ^ 0x80000000 for code in weights.FP4_CODEBOOK[8:]] == list(weights.FP4_CODEBOOK[:8])
    assert weights.FP4_CODEBOOK[1] == 0x3BAAAAAB
    nf4 = np.array(weights.NF4_CODEBOOK, np.uint32).view(np.float32)
    assert (np.diff(nf4) > 0).all()
    assert (nf4[0], nf4[7], nf4[15]) == (-1, 0, 1)
    assert weights.NF4_CODEBOOK[7] == 0
    assert pattern(Fraction(1, 127)) == weights.SCB_FACTOR


def test_the_four_digit_codebook_is_another_one() -> None:
    """Equal at -1, 0 and 1, else the four digits nearest to NF4; 14.6 % of fp16 outputs differ under real scales."""
    nf4, four = (
        np.array(book, np.uint32).view(np.float32) for book in (weights.NF4_CODEBOOK, weights.NF4_FOUR_DIGIT_CODEBOOK)
    )
    assert np.flatnonzero(nf4 == four).tolist() == [0, 7, 15]
    assert np.abs(nf4 - four).max() < 0.5001e-4
    assert pattern(Fraction("-0.6962")) == weights.NF4_FOUR_DIGIT_CODEBOOK[1]
    absmax = np.abs(np.random.default_rng(0).standard_normal((100_000, 1))).astype(np.float32)
    differing = np.mean((nf4 * absmax).astype(np.float16) != (four * absmax).astype(np.float16))
    assert 0.145 < differing < 0.147


def test_the_words_of_awq() -> None:
    """Bits 4i..4i+3 hold column [0, 2, 4, 6, 1, 3, 5, 7][i]."""
    found = weight_words.pieces(weights.get("awq_g128").packing)
    assert [(p.low, p.width, p.place) for p in found] == [
        *((0, 4, 0), (4, 4, 2), (8, 4, 4), (12, 4, 6), (16, 4, 1), (20, 4, 3), (24, 4, 5), (28, 4, 7))
    ]
    assert weight_words.drawing(weights.get("awq_g128").packing, "column") == [
        "bits 31..0 of word j hold column 8j + …",
        "bits     | 31..28 | 27..24 | 23..20 | 19..16 | 15..12 | 11..8 | 7..4 | 3..0 |",
        "column   |      7 |      5 |      3 |      1 |      6 |     4 |    2 |    0 |",
    ]


def test_codes_of_three_bits_cross_words() -> None:
    """Value i is at bits 3i..3i+2 of 96: value 10 at bits 30..32, value 21 at 63..65."""
    found = [p for p in weight_words.pieces(weights.get("gptq3_v1_g128").packing) if p.width < 3]
    assert found == [(0, 30, 2, 10, 0), (1, 0, 1, 10, 2), (1, 31, 1, 21, 0), (2, 0, 2, 21, 1)]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
def test_words_hold_every_bit_once_where_the_packer_puts_it(scheme: weights.WeightScheme) -> None:
    packing = scheme.packing
    found = weight_words.pieces(packing)
    assert sorted(p.word * packing.word_bits + p.low + i for p in found for i in range(p.width)) == list(
        range(packing.period_words * packing.word_bits)
    )
    for piece in found:
        for i in range(piece.width):
            codes = np.zeros(packing.period_codes, np.int64)
            codes[piece.place] = 1 << (piece.code_low + i)
            flat = dataclasses.replace(packing, axis=0)
            words = packing_weights.pack_words(codes, flat).astype(np.int64) & ((1 << packing.word_bits) - 1)
            expected = [0] * packing.period_words
            expected[piece.word] = 1 << (piece.low + i)
            assert words.tolist() == expected


def test_shapes() -> None:
    shapes = weight_tensors.shapes
    assert shapes(weights.get("awq_g128"), (256, 24)) == {"qweight": (256, 3), "qzeros": (2, 3), "scales": (2, 24)}
    assert shapes(weights.get("awq_gk"), (40, 8)) == {"qweight": (40, 1), "qzeros": (1, 1), "scales": (1, 8)}
    assert shapes(weights.get("gptq3_v1_g128"), (160, 64)) == {
        **{"qweight": (15, 64), "qzeros": (2, 6), "scales": (2, 64), "g_idx": (160,)}
    }
    assert shapes(weights.get("nf4_b64"), (65, 3)) == {"packed": (98,), "absmax": (4,)}
    nested = shapes(weights.get("nf4_b64+nested"), (65, 3), block_size2=3)
    assert nested == {"packed": (98,), "absmax": (4,), "code2": (256,), "absmax2": (2,)}
    assert shapes(weights.get("int8_channel"), (2, 3)) == {"weight": (2, 3), "scale": (2,)}
    assert shapes(weights.get("squeezellm3"), (32, 5)) == {"qweight": (3, 5), "lookup_table": (5, 8)}
    for name in ("awq_g128", "awq_gk", "gptq4_v1_g128", "gptq4_v1_gk"):
        assert shapes(weights.get(name), (0, 32))["scales"] == (0, 32)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("awq_g128", (160, 8), "K: got 160, want a multiple of 128"),
        ("awq_g128", (128, 12), "N: got 12, want a multiple of 8"),
        ("gptq3_v1_g128", (40, 32), "K: got 40, want a multiple of 32"),
        ("gptq3_v1_g128", (64, 40), "N: got 40, want a multiple of 32"),
        ("gptq8_v1_g128", (6, 4), "K: got 6, want a multiple of 4"),
        ("squeezellm4", (4, 5), "K: got 4, want a multiple of 8"),
        ("int8_channel", (4,), "want two dimensions"),
    ],
)
def test_what_cannot_be_stored(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        weight_tensors.shapes(weights.get(name), shape)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
def test_entries_have_shapes_and_dtypes(scheme: weights.WeightScheme) -> None:
    entries = weight_tensors.entries(scheme)
    assert len({stored.name for stored in entries}) == len(entries)
    for name, shape in weight_tensors.shapes(scheme, a_shape(scheme)).items():
        (stored,) = (stored for stored in entries if stored.name == name)
        assert weight_tensors.rank(stored) == len(shape)
        assert weight_tensors.dtypes(stored, scheme)
    nested = {"code2", "absmax2", "offset", "block_size2"} & {stored.name for stored in entries}
    assert bool(nested) == scheme.nested


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
def test_show_tells_everything(scheme: weights.WeightScheme) -> None:
    text = weight_glossary.describe(scheme.name)
    for field, rule in weight_glossary.RULES.items():
        member = getattr(scheme, field)
        assert isinstance(member, rule)
        assert f" {member.value} " in text
        assert weight_glossary.meaning(member, scheme) in text
    for stored in weight_tensors.entries(scheme):
        assert f"  {stored.name} " in text
    assert scheme.cites in text
    assert ("canonical" in text) == scheme.canonical
    assert ("never an fma" in text) == scheme.nested
    assert all(f"{entry:08x}" in text for entry in scheme.codebook)


def test_every_rule_has_a_meaning_and_a_row() -> None:
    rows = weight_glossary.rule_rows()
    assert len(rows) == sum(map(len, weight_glossary.RULES.values()))
    for scheme in SCHEMES:
        for rule in weight_glossary.RULES.values():
            for member in rule:
                assert "{" not in weight_glossary.meaning(member, scheme)


def test_a_family_is_shown_by_its_first_scheme() -> None:
    text = weight_glossary.describe("gptq")
    assert text.startswith("gptq: gptq4_v1_g128, gptq4_v2_g128, ")
    assert weight_glossary.describe_scheme(weights.get("gptq4_v1_g128")) in text
    assert "bits     | 31..28 |" in text
