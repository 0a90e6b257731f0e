"""Diagnosis of weights: each fault that is planted is named, and nothing is named that does not explain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowbit import packing_weights, weights
from lowbit.cases import weights as weight_cases
from lowbit.diagnose import UNEXPLAINED
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import weights_bits
from lowbit.rules import Arithmetic, Grouping, OutputRounding, ZeroPoint
from lowbit.suspects.weight_trial import LIMIT, WeightTrial
from lowbit.suspects.weights import diagnose_weight, roundings, suspects, tails
from lowbit.weights import AWQ_ORDER, FP4_CODEBOOK, NF4_CODEBOOK, NF4_FOUR_DIGIT_CODEBOOK, WeightScheme

Arrays = dict[str, Any]
SHAPES = {
    "awq": (192, 40),
    "gptq": (160, 96),
    "nf4": (37, 97),
    "fp4": (37, 97),
    "int8": (24, 40),
    "squeezellm": (96, 24),
}
FORMATS = (BINARY16, BFLOAT16, BINARY32)


def inputs(scheme: WeightScheme, **changes: Any) -> Arrays:
    """Any codes, zero points and scales of every kind."""
    found = weight_cases.random(scheme, SHAPES[scheme.family], 4)
    if scheme.zero_packing is not None:
        found["scales"] = found["scales"].copy()
        found["scales"][0, :3] = np.float16(-0.25)
    return found | changes


def right(arrays: Arrays, scheme: WeightScheme, fmt: FloatFormat) -> Any:
    return weights_bits.dequantize(arrays, scheme, fmt)


def named(arrays: Arrays, scheme: WeightScheme, fmt: FloatFormat, actual: Any) -> list[str]:
    """The names of the suspects that explain everything."""
    found = diagnose_weight(arrays, scheme, fmt, actual, right(arrays, scheme, fmt))
    assert found is not None
    assert str(found)
    return [finding.name for finding in found.findings if finding.remaining == 0]


def orders(scheme: WeightScheme, order: tuple[int, ...]) -> WeightScheme:
    assert scheme.zero_packing is not None
    packings = (replace(packing, order=order) for packing in (scheme.packing, scheme.zero_packing))
    return replace(scheme, **dict(zip(("packing", "zero_packing"), packings, strict=True)))


INVERSE = tuple(int(i) for i in np.argsort(AWQ_ORDER))


@pytest.mark.parametrize(
    ("name", "suspect", "change"),
    [
        ("awq_g32", "order_omitted", lambda s: orders(s, (0,))),
        ("awq_g32", "order_inverted", lambda s: orders(s, INVERSE)),
        ("awq_g32", "order_reversed", lambda s: orders(s, (7, 6, 5, 4, 3, 2, 1, 0))),
        ("awq_g32", "order_omitted_codes", lambda s: replace(s, packing=replace(s.packing, order=(0,)))),
        ("awq_g32", "order_omitted_zeros", lambda s: replace(s, zero_packing=replace(s.zero_packing, order=(0,)))),
        ("gptq4_v1_g32", "awq_order", lambda s: orders(s, AWQ_ORDER)),
        ("gptq8_v1_g32", "order_reversed", lambda s: orders(s, (3, 2, 1, 0))),
        ("awq_g32", "v2_as_v1", lambda s: replace(s, zero=ZeroPoint.STORED_MINUS_ONE)),
        ("gptq4_v2_g32", "v2_as_v1", lambda s: replace(s, zero=ZeroPoint.STORED_MINUS_ONE)),
        ("gptq4_v1_g32", "v1_as_v2", lambda s: replace(s, zero=ZeroPoint.STORED)),
        ("gptq3_v1_g32", "v1_as_v2", lambda s: replace(s, zero=ZeroPoint.STORED)),
        ("nf4_b64", "nibbles_swapped", lambda s: replace(s, packing=replace(s.packing, order=(0,)))),
        ("nf4_b64", "nf4_four_digit", lambda s: replace(s, codebook=NF4_FOUR_DIGIT_CODEBOOK)),
        ("fp4_b64", "nf4", lambda s: replace(s, codebook=NF4_CODEBOOK)),
        ("nf4_b64", "fp4", lambda s: replace(s, codebook=FP4_CODEBOOK)),
        ("nf4_b64", "reversed", lambda s: replace(s, codebook=s.codebook[::-1])),
        ("int8_channel", "int8_scb", lambda s: replace(s, arithmetic=Arithmetic.SCB_PRODUCT)),
        ("int8_scb", "int8_channel", lambda s: replace(s, arithmetic=Arithmetic.BINARY32_PRODUCT)),
    ],
)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_a_rule_of_the_scheme_changed_alone(
    name: str, suspect: str, change: Callable[[WeightScheme], WeightScheme], fmt: FloatFormat
) -> None:
    scheme = weights.get(name)
    arrays = inputs(scheme)
    assert suspect in named(arrays, scheme, fmt, right(arrays, change(scheme), fmt))


def rezeroed(arrays: Arrays, scheme: WeightScheme, change: Callable[[Any], Any]) -> Arrays:
    zeros = packing_weights.unpack_zeros(arrays["qzeros"], scheme).astype(int)
    return arrays | {"qzeros": packing_weights.pack_zeros(change(zeros) % (1 << scheme.bits), scheme)}


def recoded(arrays: Arrays, scheme: WeightScheme, change: Callable[[Any], Any]) -> Arrays:
    codes = packing_weights.unpack_codes(arrays["qweight"], scheme)
    return arrays | {"qweight": packing_weights.pack_codes(change(codes), scheme)}


def regrouped(
    arrays: Arrays, change: Callable[[Any, int], Any], names: tuple[str, ...] = ("qzeros", "scales")
) -> Arrays:
    count = len(arrays["scales"])
    groups = np.clip(change(np.arange(count), count), 0, count - 1)
    return arrays | {name: arrays[name][groups] for name in names}


def cut(codes: Any) -> Any:
    codes = codes.copy()
    codes[10::32] &= 3
    codes[21::32] &= 1
    return codes


def words_plus_one(arrays: Arrays) -> Arrays:
    """One added to whole words, then taken from each field again, as a reader that adds one would do it."""
    total = arrays["qzeros"].astype(np.int64) + 0x11111111
    return arrays | {"qzeros": total.astype(np.uint32).view(np.int32)}


@pytest.mark.parametrize(
    ("name", "suspect", "plant"),
    [
        ("awq_g32", "one_less", lambda a, s: rezeroed(a, s, lambda z: z - 1)),
        ("gptq4_v1_g32", "one_twice", lambda a, s: rezeroed(a, s, lambda z: z + 1)),
        ("gptq8_v1_g32", "masked", lambda a, s: rezeroed(a, s, lambda z: z & 0xF)),
        ("awq_g32", "zero_ignored", lambda a, s: rezeroed(a, s, lambda z: 0 * z)),
        ("gptq4_v1_g32", "zero_middle", lambda a, s: rezeroed(a, s, lambda z: 0 * z + 8)),
        ("gptq3_v1_g32", "cut_codes", lambda a, s: recoded(a, s, cut)),
        ("awq_g32", "next_group", lambda a, s: regrouped(a, lambda g, n: g + 1)),
        ("awq_g32", "previous_group", lambda a, s: regrouped(a, lambda g, n: g - 1)),
        ("awq_g32", "next_group_around", lambda a, s: regrouped(a, lambda g, n: (g + 1) % n)),
        ("awq_g32", "next_group_scales", lambda a, s: regrouped(a, lambda g, n: g + 1, ("scales",))),
        ("gptq4_v1_g32", "previous_group_zeros", lambda a, s: regrouped(a, lambda g, n: g - 1, ("qzeros",))),
        ("awq_g32", "tile_64", lambda a, s: regrouped(a, lambda g, n: g // 2 * 2)),
        ("awq_g32", "tile_128", lambda a, s: regrouped(a, lambda g, n: g // 4 * 4)),
        ("awq_g32", "size_64", lambda a, s: regrouped(a, lambda g, n: g // 2)),
        ("awq_g32", "first_group", lambda a, s: regrouped(a, lambda g, n: 0 * g)),
        ("gptq4_v1_g32", "scales_transposed", lambda a, s: a | {"scales": by_columns(a["scales"])}),
        ("nf4_b64", "next_block", lambda a, s: a | {"absmax": np.append(a["absmax"][1:], a["absmax"][-1])}),
        ("nf4_b64", "previous_block", lambda a, s: a | {"absmax": np.append(a["absmax"][0], a["absmax"][:-1])}),
        ("int8_channel", "clamped", lambda a, s: a | {"weight": np.maximum(a["weight"], -127)}),
        ("int8_channel", "next_channel", lambda a, s: a | {"scale": np.append(a["scale"][1:], a["scale"][-1])}),
        ("int8_channel", "first_channel", lambda a, s: a | {"scale": np.full_like(a["scale"], a["scale"][0])}),
        ("squeezellm4", "next_table", lambda a, s: a | {"lookup_table": np.roll(a["lookup_table"], -1, axis=0)}),
        ("squeezellm4", "table_reversed", lambda a, s: a | {"lookup_table": a["lookup_table"][:, ::-1].copy()}),
        ("squeezellm4", "transposed", lambda a, s: a | {"lookup_table": by_columns(a["lookup_table"])}),
        ("squeezellm3", "cut", lambda a, s: recoded(a, s, cut)),
        ("squeezellm4+sparse", "sparse_dropped", lambda a, s: a | {"sparse": nothing(a["sparse"])}),
        ("squeezellm4+sparse", "sparse_next_row", lambda a, s: a | {"sparse": earlier(a["sparse"])}),
    ],
)
def test_a_stored_tensor_changed_alone(
    name: str, suspect: str, plant: Callable[[Arrays, WeightScheme], Arrays]
) -> None:
    scheme = weights.get(name)
    arrays = inputs(scheme)
    for fmt in FORMATS:
        assert suspect in named(arrays, scheme, fmt, right(plant(arrays, scheme), scheme, fmt))


def nothing(sparse: Any) -> Any:
    return np.zeros_like(sparse[0]), sparse[1][:0], sparse[2][:0]


def earlier(sparse: Any) -> Any:
    """Every entry one input earlier, those of the first left out."""
    starts, places, values = sparse
    kept = places > 0
    channel = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[kept]
    counts = np.bincount(channel, minlength=len(starts) - 1)
    return np.append(0, counts.cumsum()).astype(np.int32), places[kept] - 1, values[kept]


def by_columns(array: Any) -> Any:
    """What reading a matrix column by column gives that is stored row by row."""
    return array.reshape(-1).reshape(array.shape[::-1]).T.copy()


def test_a_carry_is_told_from_a_field_that_does_not_wrap() -> None:
    scheme = weights.get("gptq4_v1_g32")
    arrays = inputs(scheme)
    actual = right(words_plus_one(arrays), replace(scheme, zero=ZeroPoint.STORED), BINARY16)
    assert named(arrays, scheme, BINARY16, actual) == ["carry"]


def test_g_idx_ignored() -> None:
    scheme = weights.get("gptq4_v1_g32+act_order")
    arrays = inputs(scheme)
    plain = {name: array for name, array in arrays.items() if name != "g_idx"}
    actual = right(plain, replace(scheme, grouping=Grouping.SHORT_LAST), BINARY16)
    assert named(arrays, scheme, BINARY16, actual) == ["g_idx_ignored"]


@pytest.mark.parametrize("source", [BINARY16, BFLOAT16], ids=lambda fmt: fmt.name)
def test_products_rounded_to_the_scales_dtype_first(source: FloatFormat) -> None:
    """And, under a scheme that wants it, not rounded there."""
    scheme = weights.get("awq_g32")
    other = replace(scheme, output_rounding=OutputRounding.THROUGH_SCALE_DTYPE)
    arrays = weight_cases.random(scheme, (192, 40), 4, source=source)
    for fmt in {*FORMATS} - {source}:
        assert "through_scale_dtype" in named(arrays, scheme, fmt, right(arrays, other, fmt))
        assert "through_scale_dtype" in named(arrays, other, fmt, right(arrays, scheme, fmt))


def test_the_zero_subtracted_after_scaling() -> None:
    scheme = weights.get("awq_g32")
    arrays = inputs(scheme)
    codes = packing_weights.unpack_codes(arrays["qweight"], scheme).astype(np.float16)
    zeros = packing_weights.unpack_zeros(arrays["qzeros"], scheme).astype(np.float16)
    group = np.arange(192) // 32
    with np.errstate(all="ignore"):
        actual = codes * arrays["scales"][group] - (zeros * arrays["scales"])[group]
    assert named(arrays, scheme, BINARY16, actual.view(np.uint16)) == ["after_scaling_binary16"]


@pytest.mark.parametrize(("columns", "suspect"), [(96, "rows_down"), (33, "rows_up")])
def test_blocks_restarted_in_every_row(columns: int, suspect: str) -> None:
    scheme = weights.get("nf4_b32")
    arrays = weight_cases.random(scheme, (8, columns + 7), 1)
    arrays["absmax"] = np.arange(1, len(arrays["absmax"]) + 1, dtype=np.float32)
    width = columns + 7
    of_row = width // 32 if suspect == "rows_down" else -(-width // 32)
    block = np.add.outer(np.arange(8) * of_row, np.arange(width) // 32).clip(max=len(arrays["absmax"]) - 1)
    codes = packing_weights.unpack_codes(arrays["packed"], scheme, shape=(8, width))
    book = np.array(scheme.codebook, np.uint32).view(np.float32)
    actual = (book[codes] * arrays["absmax"][block]).view(np.uint32)
    assert suspect in named(arrays, scheme, BINARY32, actual)


def test_a_fused_multiply_add_in_the_nested_absmax() -> None:
    scheme = weights.get("nf4_b64+nested")
    arrays = weight_cases.random(scheme, (300, 64), 3)
    factors = arrays["code2"][arrays["absmax"]], arrays["absmax2"][np.arange(300) // 16]
    exact = factors[0].astype(np.longdouble) * factors[1] + arrays["offset"].astype(np.longdouble)
    plain = {name: arrays[name] for name in ("packed", "shape")} | {"absmax": exact.astype(np.float32)}
    actual = right(plain, replace(scheme, nested=False), BINARY32)
    assert named(arrays, scheme, BINARY32, actual) == ["fma"]


def test_scales_of_int8_along_the_other_axis() -> None:
    scheme = weights.get("int8_channel")
    arrays = inputs(scheme)
    scale = arrays["scale"][np.arange(40) % 24]
    with np.errstate(all="ignore"):
        actual = (arrays["weight"].astype(np.float32) * scale).view(np.uint32)
    assert named(arrays, scheme, BINARY32, actual) == ["axis"]


def test_the_terms_in_another_order() -> None:
    scheme = weights.get("squeezellm4+sparse+full_rows")
    arrays = inputs(scheme)
    every = weight_cases.random(scheme, (96, 24), 9)["lookup_table"]
    arrays["full_rows"] = np.arange(24, dtype=np.int32), np.resize(every, (96, 24))
    half = replace(scheme, sparse=False, arithmetic=Arithmetic.LOOKUP_SUM)
    first = right({n: a for n, a in arrays.items() if n != "sparse"}, half, BINARY32).view(np.float32)
    starts, places, values = arrays["sparse"]
    with np.errstate(all="ignore"):
        first[places, np.repeat(np.arange(24), np.diff(starts))] += values
    assert "full_first" in named(arrays, scheme, BINARY32, first.view(np.uint32))


@pytest.mark.parametrize(
    ("name", "suspect", "plant"),
    [
        ("saturated", "saturated", lambda e, w: np.where(np.isinf(e) & np.isfinite(w), np.copysign(65504, e), e)),
        ("zero", "zero_sign", lambda e, w: np.where(e == 0, np.float16(0), e)),
        ("flushed", "flushed", lambda e, w: np.where(np.abs(e) < 2.0**-14, np.copysign(0, e), e)),
        ("nan", "nan_zero", lambda e, w: np.where(np.isnan(e), 0, e)),
        ("sign", "sign_lost", lambda e, w: np.abs(e)),
        ("truncated", "truncated", lambda e, w: np.where(np.abs(e) > np.abs(w), np.nextafter(e, np.float16(0)), e)),
        ("bfloat16", "through_bfloat16", None),
    ],
)
def test_the_last_rounding(name: str, suspect: str, plant: Any) -> None:
    scheme = weights.get("nf4_b64")
    arrays = inputs(scheme)
    arrays["absmax"] = (arrays["absmax"] * np.exp2(np.resize([0, -14, 16], len(arrays["absmax"])))).astype(np.float32)
    arrays["absmax"][:3] = np.nan, -1e-9, 1e5
    wide = right(arrays, scheme, BINARY32).view(np.float32)
    with np.errstate(all="ignore"):
        if plant is None:
            bits = wide.view(np.uint32).astype(np.uint64)
            short = (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)
            actual = np.where(np.isnan(wide), wide, short).astype(np.float16)
        else:
            actual = plant(right(arrays, scheme, BINARY16).view(np.float16), wide).astype(np.float16)
    assert suspect in named(arrays, scheme, BINARY16, actual.view(np.uint16))


@pytest.mark.parametrize(("shape", "start", "says"), [((32, 72), 64, "columns_tail_8"), ((96, 40), 64, "rows_tail_32")])
def test_a_tail(shape: tuple[int, int], start: int, says: str) -> None:
    scheme = weights.get("awq_g32")
    arrays = weight_cases.random(scheme, shape, 2)
    actual = right(arrays, scheme, BINARY16)
    actual[:, start:] = 0x1234
    if says.startswith("rows"):
        actual = right(arrays, scheme, BINARY16)
        actual[start:] = 0x1234
    assert says in named(arrays, scheme, BINARY16, actual)


REGISTERED = [
    *("awq_g32", "gptq2_v1_g32", "gptq3_v1_g32", "gptq4_v2_g32", "gptq4_v1_g32+act_order", "gptq8_v1_g32", "nf4_b64"),
    *("fp4_b64", "nf4_b64+nested", "int8_channel", "int8_scb", "int8_torch", "squeezellm3", "squeezellm4+sparse"),
    *("squeezellm4+sparse+full_rows", "awq_g32+through_scale_dtype"),
]


@pytest.mark.parametrize("name", REGISTERED)
def test_every_suspect_is_found_again_and_names_are_unique(name: str) -> None:
    """What a suspect says an implementation would give is explained by that suspect, under no name twice."""
    scheme = weights.get(name)
    arrays = inputs(scheme)
    for fmt in FORMATS:
        expected = right(arrays, scheme, fmt)
        other = expected ^ 1
        trial = WeightTrial.of(arrays, scheme, fmt, other, expected)
        assert trial is not None
        assert trial.places.size == expected.size <= LIMIT
        assert not trial.wrong(other.reshape(-1))
        assert (trial.result() == trial.expected).all()
        names = []
        for number, suspect in enumerate([*suspects(trial), *roundings(trial), *tails(trial)]):
            names.append(suspect.name)
            guess = suspect.guess(trial)
            if guess is None or fmt is not BINARY16 or number % 13:
                continue  # to diagnose one takes as long as to try all
            if (guess != trial.expected).any():
                assert named(arrays, scheme, fmt, guess.reshape(expected.shape).astype(expected.dtype))
        assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
        assert len(names) > 15


def test_noise_is_unexplained() -> None:
    scheme = weights.get("awq_g32")
    arrays = inputs(scheme)
    expected = right(arrays, scheme, BINARY16)
    actual = expected ^ np.random.default_rng(0).integers(1, 1 << 10, expected.shape).astype(np.uint16)
    assert str(diagnose_weight(arrays, scheme, BINARY16, actual, expected)) == UNEXPLAINED


def test_two_faults_are_told_with_their_share() -> None:
    scheme = weights.get("awq_g32")
    arrays = inputs(scheme)
    actual = right(arrays, replace(scheme, zero=ZeroPoint.STORED_MINUS_ONE), BINARY16)
    actual[:19] ^= 1
    found = diagnose_weight(arrays, scheme, BINARY16, actual, right(arrays, scheme, BINARY16))
    assert found is not None
    assert not found.complete
    assert found.findings[0].name == "v2_as_v1"
    assert "% " not in str(found).split("(")[0]
    assert " mismatches vanish (" in str(found)


def test_nothing_to_explain() -> None:
    scheme = weights.get("int8_channel")
    arrays = inputs(scheme)
    expected = right(arrays, scheme, BINARY16)
    assert diagnose_weight(arrays, scheme, BINARY16, expected, expected) is None
    assert diagnose_weight(arrays, scheme, BINARY16, expected[:1], expected) is None


def test_large_weights_are_tried_in_part() -> None:
    scheme = weights.get("awq_g128")
    arrays = weight_cases.random(scheme, (512, 256), 0)
    actual = right(arrays, replace(scheme, zero=ZeroPoint.STORED_MINUS_ONE), BINARY16)
    found = diagnose_weight(arrays, scheme, BINARY16, actual, right(arrays, scheme, BINARY16))
    assert found is not None
    assert found.complete
    assert found.tried <= LIMIT < found.mismatched
    assert str(found).endswith(f"; tried on {found.tried:,} of {found.mismatched:,}")
