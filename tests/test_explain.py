"""`lowbit explain` and `lowbit show`: the words must say what the references compute."""

from __future__ import annotations

import enum
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from lowbit import explain, glossary, schemes, weight_glossary
from lowbit.errors import ArgumentError, ShapeError, WitnessDisagreement
from lowbit.explain import parse_value
from lowbit.formats import E2M1, E4M3, E8M0, FORMATS
from lowbit.references import bits, exact


def rows_of(text: str) -> list[dict[str, str]]:
    """The table at the end, by heading; columns are at least two spaces apart."""
    lines = text.split("\n\n")[-1].splitlines()
    heading = lines[0]
    starts = [i for i in range(2, len(heading)) if heading[i - 2 : i] == "  " and heading[i] != " "]
    bounds = list(itertools.pairwise([*starts, None]))
    cells = [[line[start:end].strip() for start, end in bounds] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]


def column(text: str, heading: str) -> list[str]:
    return [row[heading] for row in rows_of(text)]


def explained(name: str, *values: str, **options: int) -> str:
    return explain.explain(schemes.get(name), [parse_value(v) for v in values], **options)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("1", 0x3F800000),
        ("-1.5", 0xBFC00000),
        ("+2.", 0x40000000),
        (".5", 0x3F000000),
        ("0", 0),
        ("-0", 0x80000000),
        ("-0.0", 0x80000000),
        ("0.1", 0x3DCCCCCD),
        ("1/3", 0x3EAAAAAB),
        ("1e-45", 0x00000001),
        ("7e-46", 0x00000000),  # below half of the least subnormal
        ("1e-99999999999", 0),
        ("-1e-99999999999", 0x80000000),
        ("0x3F80_0000".replace("_", ""), 0x3F800000),
        ("0xff800001", 0xFF800001),  # a pattern keeps a NaN's payload and sign
        ("0x1p-149", 1),
        ("0x1p-150", 0),  # a tie, to even
        ("0x1.8p-150", 1),
        ("-0X1.8P1", 0xC0400000),
        ("nan", 0x7FC00000),
        ("-NaN", 0xFFC00000),
        ("inf", 0x7F800000),
        ("-Infinity", 0xFF800000),
        # Once to nearest: by way of binary64 the first would be a tie and go down to 1.
        ("1.00000005960464477539062500001", 0x3F800001),
        ("0x1.00000100000000000000000001p0", 0x3F800001),
        ("1.000000059604644775390625", 0x3F800000),  # the tie itself, to even
    ],
)
def test_values(text: str, pattern: int) -> None:
    assert parse_value(text) == pattern
    assert parse_value(f" {text}") == pattern  # as the command line shields a minus


@pytest.mark.parametrize(
    "text", ["", "-", "--1", "+-1", "x", "0x", "0x12", "0x3f8000000", "-0x3f800000", "1/0", "0x1p", "1e"]
)
def test_what_is_no_value(text: str) -> None:
    with pytest.raises(ArgumentError, match="want a decimal"):
        parse_value(text)


@pytest.mark.parametrize("text", ["1e39", "-1e999999999999", "0x1p128", "0x1p99999", "3.4028235677973366399e38"])
def test_values_beyond_binary32(text: str) -> None:
    with pytest.raises(ArgumentError, match="beyond binary32"):
        parse_value(text)


def test_shortest_decimal_reads_back() -> None:
    for pattern in (1, 0x3DCCCCCD, 0x3F800001, 0x7F7FFFFF, 0x80000001, 0xBFC00000, 0x80000000, 0x00800000):
        assert parse_value(explain.shortest(pattern)) == pattern
    assert explain.shortest(0x3DCCCCCD) == "0.1"


def test_ties_to_even_block() -> None:
    """The block of triton#8110: the four ties go to the even codes."""
    text = explained("mxfp4_floor", "6", "0.25", "1.25", "2.5", "5", "-0", "0.1")
    assert column(text, "where") == ["exact", "tie", "tie", "tie", "tie", "exact", "nearer 0"]
    assert column(text, "between") == ["6", "0 | 0.5", "1 | 1.5", "2 | 3", "4 | 6", "-0", "0 | 0.5"]
    assert column(text, "code") == ["0x7", "0x0", "0x2", "0x4", "0x6", "0x8", "0x0"]
    assert column(text, "s|e|m") == ["0|11|1", "0|00|0", "0|01|0", "0|10|0", "0|11|0", "1|00|0", "0|00|0"]
    assert column(text, "decodes to") == ["6", "0", "1", "2", "4", "-0", "0"]
    assert column(text, "bits")[1] == "0x3e800000"
    assert column(text, "x / 2^0")[-1] == "13421773/2^27"  # exactly what 0.1 is in binary32
    assert "floor: scale 2^E, E = floor(log2 amax) - 2" in text
    assert "amax   6 = 1.5 * 2^2" in text
    assert "E = 0, clamped to -127..127; byte 0x7f" in text
    assert "the other 25 are +0" in text


def test_where_a_value_lies() -> None:
    text = explained("mxfp4_floor", "6", "0.3", "-0.3", "0.2", "-0.2", "-1.25", "-7")
    assert column(text, "where") == [
        "exact",
        "nearer 0.5",
        "nearer -0.5",
        "nearer 0",
        "nearer -0",
        "tie",
        "beyond: saturates",
    ]
    assert column(text, "between")[1:] == ["0 | 0.5", "-0.5 | -0", "0 | 0.5", "-0.5 | -0", "-1.5 | -1", "-6"]


def test_a_quotient_beyond_six_is_clamped_in_its_own_step() -> None:
    text = explained("nvfp4_two_level_cuda", "7")
    assert column(text, "e = RN32(y/s)") == ["12582913/2^21"]  # a little above 6, for g was rounded twice
    assert column(text, "clamped") == ["6"]


def test_scale_rules_are_told_apart_where_they_differ() -> None:
    """FBGEMM's and OCP's `even` at a significand of 1.75."""
    assert "byte 0x80" in explained("mxfp4_even", "7")
    assert "byte 0x7f" in explained("mx4_even_exclusive_e2m1_g32", "7")
    assert "at least 1.75" in explained("mxfp4_even", "7")
    assert "above 1.75" in explained("mx4_even_exclusive_e2m1_g32", "7")


def test_e3m0_of_mx4_subtracts_three() -> None:
    """MX4's e is the width of the exponent field; E3M0's emax would be 4."""
    text = explained("mx4_floor_e3m0_g32", "16")
    assert "E = floor(log2 amax) - 3" in text
    assert "E = 1, clamped to -127..125; byte 0x80" in text


def test_nvfp4_steps() -> None:
    """Tensor amax 7, block amax 6.25: 0x7C under real arithmetic (SPEC.md 6)."""
    text = explained("nvfp4", "7", "6.25", "-2")
    assert "one_rounding: g = min(RN32(2688 / a), FLT_MAX)" in text
    assert "g = 384" in text
    assert "448; s = 448, byte 0x7e" in text
    assert list(rows_of(text)[0])[3:5] == ["y = RN32(x*g)", "e = RN32(y/s)"]
    text = explained("nvfp4", "6.25", tensor_scale=parse_value("384"))
    assert "g      384, given" in text
    assert "byte 0x7c" in text


def test_a_scale_that_underflows_is_told() -> None:
    text = explained("nvfp4_two_level", "1e-7", tensor_scale=parse_value("448"))
    assert "byte 0x00" in text
    assert "divides as the least positive one, s = 0.001953125" in text
    assert column(text, "decodes to") == ["0"]


def test_unclean_blocks_name_their_rule() -> None:
    text = explained("mxfp4_floor", "nan", "5", "-inf")
    assert "mark_block" in text
    assert "byte 0xff" in text
    assert "nan_positive_max" in text
    assert column(text, "code") == ["0x7", "0x6", "0xf"]
    text = explained("mx4_ceil_e2m1_g32", "-nan", "inf")
    assert "ignore_nan" in text
    assert "nan_signed_max" in text
    assert column(text, "code") == ["0xf", "0x7"]  # the NaN keeps its sign
    text = explained("mx4_ceil_e2m1_g32", "0")
    assert "min_normal_amax" in text
    text = explained("rtn_nvfp4", "0", "-1e-30")
    assert column(text, "x / unit") == ["NaN", "-Inf"]  # 0/0 and -x/0
    assert "nan_positive_max" in text


def test_stochastic_blocks_show_their_random_bits() -> None:
    text = explained("mxfp4_floor+stochastic", "4", "0.2", seed=7)
    (where,) = column(text, "where")[1:]
    random, threshold = (int(word) for word in where.replace(",", "").split() if word.isdigit())
    assert threshold == 256 - math.floor(Fraction(np.float32(0.2).item()) / Fraction(1, 2) * 256)
    assert column(text, "code")[1] == f"{int(random >= threshold):#x}"
    assert text == explained("mxfp4_floor+stochastic", "4", "0.2", seed=7)
    assert "of seed 7" in explained("mx4_stochastic_e2m1_g32", "3", seed=7)


VALUES = ("6", "-2.5", "0.75", "1e-3", "-0", "nan", "-inf", "3.3e38", "-1e-42", "0x3fe00001")


@pytest.mark.parametrize("name", schemes.names())
def test_every_scheme_is_explained_as_the_references_compute_it(name: str) -> None:
    """Codes and decoded values of the table against the NumPy reference, which shares no code with the explanation."""
    scheme = schemes.get(name)
    for values in (VALUES[:5], VALUES[:8], ("0",), ("-0", "-0"), ("3.3e38", "1"), ("1e-45", "-3e-45"), ("5",) * 8):
        patterns = np.zeros((1, scheme.block), np.uint32)
        patterns[0, : len(values)] = [parse_value(v) for v in values]
        encoded = bits.quantize(patterns.view(np.float32), scheme, seed=3 if scheme.stochastic else None)
        text = explained(name, *values, seed=3)
        assert column(text, "code") == [f"{code:#x}" for code in encoded.codes[0, : len(values)]]
        assert f"byte {encoded.scales[0, 0]:#04x}" in text
        decoded = bits.dequantize(encoded, scheme).view(np.float32)[0, : len(values)]
        assert column(text, "decodes to") == [glossary.number(float(v)) for v in decoded]
        for rule in (scheme.rounding,) if scheme.family != "mx4" else (scheme.rounding, scheme.scale_rule):
            assert f"{rule.value}: " in text


def test_one_block_only() -> None:
    with pytest.raises(ShapeError, match=r"values: got 17, want 1\.\.16"):
        explained("nvfp4", *["1"] * 17)
    with pytest.raises(ShapeError, match="values: got 0"):
        explained("nvfp4")


def test_a_tensor_scale_that_is_refused() -> None:
    for name, scale in (
        ("nvfp4", "0"),
        ("nvfp4", "-1"),
        ("nvfp4", "inf"),
        ("nvfp4_one_level", "1"),
        ("mxfp4_floor", "1"),
    ):
        with pytest.raises(ArgumentError, match="tensor_scale"):
            explained(name, "1", tensor_scale=parse_value(scale))


def test_steps_that_lead_elsewhere_are_no_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args, **options):
        encoded = right(*args, **options)
        return encoded._replace(codes=encoded.codes ^ 1)

    right = exact.quantize
    monkeypatch.setattr(exact, "quantize", wrong)
    with pytest.raises(WitnessDisagreement, match="lane 0: the steps give 0x2, exact 0x3"):
        explained("mxfp4_floor", "1", "4")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(0), "0"),
        (Fraction(-3, 2), "-1.5"),
        (Fraction(1, 1024), "0.0009765625"),
        (Fraction(-1, 1024), "-0.0009765625"),
        (Fraction(1, 2048), "2^-11"),
        (Fraction(3, 2048), "3/2^11"),
        (Fraction(57344), "57344"),
        (Fraction(2) ** 127, "2^127"),
        (-3 * Fraction(2) ** 100, "-3*2^100"),
        (Fraction(1, 3), "1/3"),
        (-0.0, "-0"),
        (math.nan, "NaN"),
        (-math.inf, "-Inf"),
        (0.1, "3602879701896397/2^55"),
    ],
)
def test_numbers_are_never_rounded(value: Fraction | float, text: str) -> None:
    assert glossary.number(value) == text


def test_every_member_of_every_rule_has_a_meaning() -> None:
    import lowbit.rules

    enums = [c for c in vars(lowbit.rules).values() if isinstance(c, type) and issubclass(c, enum.Enum)]
    assert set(enums) - {enum.Enum} == {*glossary.RULES.values(), *weight_glossary.RULES.values()}
    for scheme in schemes.select():
        for rule in glossary.RULES.values():
            for member in rule:
                text = glossary.meaning(member, scheme)
                assert text
                assert "{" not in text
    for field, rule in glossary.RULES.items():
        assert all(isinstance(getattr(scheme, field), rule) for scheme in schemes.select())


@pytest.mark.parametrize("name", schemes.names())
def test_show_tells_every_pinned_rule(name: str) -> None:
    scheme = schemes.get(name)
    text = glossary.describe_scheme(scheme)
    for field in glossary.RULES:
        rule = getattr(scheme, field)
        assert f"{field} " in text
        assert f" {rule.value} " in text
        assert glossary.meaning(rule, scheme) in text
    assert scheme.cites in text
    for code in range(1 << scheme.element.bits):
        assert f"{code:#x}   {scheme.element.fields(code)}" in text
    assert ("canonical" in text) == scheme.canonical


def test_show_draws_the_packing() -> None:
    assert "[16 bytes of codes][1 scale byte]" in glossary.describe_scheme(schemes.get("mx4_ceil_e2m1_g32"))
    assert "ceil(K/8) * 5 bytes" in glossary.describe_scheme(schemes.get("mx4_ceil_e2m1_g8"))
    text = glossary.describe_scheme(schemes.get("nvfp4"))
    assert "codes 0x2, 0x4" in text
    assert "byte 0x42" in text
    assert "K/16 bytes a row" in text
    assert "exponent" in glossary.describe_scheme(schemes.get("mxfp4_floor"))
    assert "exponent" not in text.split("codes of")[0].replace("exponents", "")


def test_show_a_format() -> None:
    assert "448, code 0x7e" in glossary.describe_format(E4M3)
    assert "0x7f is the canonical one" in glossary.describe_format(E4M3)
    assert "zero              none" in glossary.describe_format(E8M0)
    assert "2^-127, code 0x00" in glossary.describe_format(E8M0)
    assert glossary.describe_format(E2M1).count("0x") == 16 + 2
    assert all(glossary.describe_format(fmt).startswith(name) for name, fmt in FORMATS.items())
