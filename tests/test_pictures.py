"""Pictures and counts of a wrong result equal those taken one place at a time, however the places are cut."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.compare import (
    arrays,
    compare_bytes,
    compare_codes,
    compare_encoded,
    compare_values,
    failure,
    kinds,
    merge,
    pictures,
)
from lowbit.compare.bounds import accumulation_bound, compare_within_bound
from lowbit.compare.comparison import Comparison
from lowbit.compare.pictures import COLUMNS, PAIRS, REACH, ROWS, Pictures, merged, validated
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, E2M1, E4M3, E5M2, E8M0, FloatFormat
from lowbit.records import Record, append, read
from lowbit.references import bits, matmul
from lowbit.schemes import Encoded

SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-45, 0.25, 0.75, 2.5, 5.0, 7.0, -500.0)


def drawn(*shape: int, seed: int = 1) -> np.ndarray:
    """Numbers over some forty binades, with special ones among them."""
    generator = np.random.default_rng(seed)
    x = np.ldexp(generator.standard_normal(shape), generator.integers(-20, 20, shape)).astype(np.float32)
    return np.where(generator.integers(0, 3, shape) == 0, generator.choice(np.float32(SPECIAL), shape), x)


def damaged(codes: np.ndarray, fmt: FloatFormat, seed: int = 2) -> np.ndarray:
    """Codes of which a third is wrong, some by one, some by their sign, some by anything, some no codes at all."""
    generator = np.random.default_rng(seed)
    by = generator.choice([1, 3, fmt.sign_mask or 1, int(generator.integers(1, 1 << fmt.bits)), 128], codes.shape)
    return np.where(generator.integers(0, 3, codes.shape) == 0, codes ^ by.astype(np.uint8), codes)


# -- the same counts, one place at a time


def cell(length: int, cells: int, place: int) -> int:
    size = 1
    while math.ceil(length / size) > cells:
        size *= 2
    return place // size


def map_of(unit: str, rows: int, columns: int, places: list[tuple[int, int]]) -> dict[str, Any]:
    down = next(1 << i for i in range(64) if math.ceil(rows / (1 << i)) <= 32)
    right = next(1 << i for i in range(64) if math.ceil(columns / (1 << i)) <= 64)
    counts = [[0] * math.ceil(columns / right) for _ in range(math.ceil(rows / down))]
    for row, column in places:
        counts[row // down][column // right] += 1
    steps = {"row_step": down, "column_step": right}
    return {"rows": rows, "columns": columns, "unit": unit, **steps, "counts": counts}


def confusion_of(fmt: FloatFormat, pairs: list[tuple[int, int]]) -> dict[str, Any]:
    ranked = sorted(Counter(pairs).items(), key=lambda item: (-item[1], item[0]))
    left = sum(count for _, count in ranked[PAIRS:])
    return {"format": fmt.name, "pairs": [[e, a, n] for (e, a), n in ranked[:PAIRS]], "left": left}


def distance_of(fmt: FloatFormat, pairs: list[tuple[int, int]]) -> dict[str, Any] | None:
    apart = []
    for e, a in pairs:
        places = kinds.ordinal(a, fmt), kinds.ordinal(e, fmt)
        if None not in places:
            apart.append(places[0] - places[1])  # type: ignore[operator]
    near = Counter(d for d in apart if abs(d) <= REACH)
    beyond = len(apart) - sum(near.values())
    return {"pairs": [[d, near[d]] for d in sorted(near)], "beyond": beyond} if apart else None


def binade_of(values: list[float]) -> dict[str, Any]:
    found: Counter[Any] = Counter()
    for x in values:
        if math.isnan(x) or math.isinf(x):
            found["nan" if math.isnan(x) else "inf"] += 1
        elif abs(x) < 2.0**-126:
            found["subnormal" if x else "zero"] += 1
        else:
            found[math.frexp(x)[1] - 1] += 1
    special = {name: found.pop(name, 0) for name in ("zero", "subnormal", "inf", "nan")}
    return {"pairs": [[e, found[e]] for e in sorted(found)], **special}


def kind_of(x: float, s: Fraction, a: int, e: int, fmt: FloatFormat) -> str:
    """The kind of a wrong code of x / s, in exact numbers."""
    if math.isnan(x):
        return "nan"
    if a >= 1 << fmt.bits:
        return "value"
    if fmt.is_nan(a) or fmt.is_nan(e):
        return "nan"
    ma, me = a & fmt.magnitude_mask, e & fmt.magnitude_mask
    if (a ^ e) & fmt.sign_mask:
        if ma and me:
            return "sign"
        if ma == me:
            return "zero_sign"
    if math.isinf(x) or abs(Fraction(x)) > fmt.max_value * s:
        return "saturation"
    if kinds.distance(a, e, fmt) == 1:
        ends = [
            Fraction(fmt.value(code)) if code & fmt.magnitude_mask or not fmt.has_zero else Fraction(0)
            for code in (a, e)
        ]
        return "tie" if Fraction(x) * 2 == sum(ends) * s else "rounding"
    return "value"


def drawings(found: Comparison) -> dict[str, Any]:
    assert found.pictures is not None
    return found.pictures.as_dict()


@pytest.fixture(params=[None, 48], ids=["whole", "cut"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything at once, or a few elements at a time."""
    if request.param:
        monkeypatch.setattr(arrays, "CHUNK", 5 * request.param)
        monkeypatch.setattr(arrays, "PIECE", request.param)


def both(*sides: Any) -> list[tuple[Any, ...]]:
    """The arrays as NumPy's and as torch's."""
    return [sides, tuple(torch.from_numpy(np.ascontiguousarray(side)) for side in sides)]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("fmt", [E2M1, E4M3, E5M2, E8M0], ids=lambda fmt: fmt.name)
def test_scalar_codes(fmt: FloatFormat) -> None:
    x = drawn(3000)
    expected = np.random.default_rng(3).integers(0, 1 << fmt.bits, x.shape).astype(np.uint8)
    actual = damaged(expected, fmt)
    wrong = [(float(x[i]), int(actual[i]), int(expected[i]), i) for i in np.flatnonzero(actual != expected)]
    pairs = [(e, a) for _, a, e, _ in wrong]
    for xs, a, e in both(x, actual, expected):
        found = compare_codes(xs, a, e, fmt, start=1000)
        assert found.kinds == kinds.ordered(Counter(kind_of(v, Fraction(1), a, e, fmt) for v, a, e, _ in wrong))
        assert drawings(found) == {
            "map": map_of("element", 1, 4000, [(0, 1000 + i) for *_, i in wrong]),
            "confusion": confusion_of(fmt, pairs),
            "distance": distance_of(fmt, pairs),
            "binade": binade_of([v for v, *_ in wrong]),
        }
    assert len(found.kinds) >= 4


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", ["mxfp4_floor", "mx4_ceil_e2m1_g32", "nvfp4"])
def test_blocks(name: str) -> None:
    """Codes and scales on one map of rows and blocks; padding has no input; scales have pictures of their own."""
    scheme = schemes.get(name)
    x = drawn(3, 23, 96 if name == "nvfp4" else 70)
    if name == "mxfp4_floor":
        x = x[..., :64]
    expected = bits.quantize(x, scheme)
    scales = damaged(expected.scales, scheme.scale, seed=4)
    actual = Encoded(damaged(expected.codes, E2M1), scales, expected.tensor_scale)
    width, block = expected.codes.shape[-1], scheme.block
    wrong, values, places = [], [], []
    found_kinds: Counter[str] = Counter()
    for index in zip(*np.nonzero(actual.codes != expected.codes), strict=True):
        a, e = int(actual.codes[index]), int(expected.codes[index])
        row, at = int(index[0]) * 23 + int(index[1]), (*index[:-1], int(index[-1]) // block)
        wrong.append((e, a))
        places.append((row, int(at[-1])))
        inside = index[-1] < x.shape[-1]
        values += [float(x[index])] if inside else []
        if not inside:
            found_kinds["padding"] += 1
        elif scales[at] != expected.scales[at]:
            found_kinds["scaled"] += 1
        else:
            s = int(expected.scales[at])
            unit = scheme.scale.is_nan(s)  # the scale of a block that holds NaN or Inf: its codes are those under 1
            found_kinds[kind_of(float(x[index]), Fraction(1 if unit else scheme.scale.value(s)), a, e, E2M1)] += 1
    rows_of_scales = [tuple(map(int, index)) for index in zip(*np.nonzero(scales != expected.scales), strict=True)]
    places += [(i * 23 + j, block) for i, j, block in rows_of_scales]
    pairs = [(int(expected.scales[index]), int(scales[index])) for index in rows_of_scales]
    found_kinds["scale"] = len(pairs)
    for torched in (False, True):
        sides = [
            Encoded(*(None if p is None else torch.from_numpy(np.array(p)) for p in side)) if torched else side
            for side in (actual, expected)
        ]
        found = compare_encoded(torch.from_numpy(x.copy()) if torched else x, *sides, scheme)
        assert drawings(found) == {
            "map": map_of("block", 69, width // block, places),
            "confusion": confusion_of(E2M1, wrong),
            "distance": distance_of(E2M1, wrong),
            "scale_confusion": confusion_of(scheme.scale, pairs),
            "scale_distance": distance_of(scheme.scale, pairs),
            "binade": binade_of(values),
        }
        if name != "nvfp4":  # its codes are decided after a product in binary32
            assert found.kinds == kinds.ordered(found_kinds)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("fmt", [BFLOAT16, BINARY16, BINARY32], ids=lambda fmt: fmt.name)
def test_values(fmt: FloatFormat) -> None:
    generator = np.random.default_rng(5)
    shape, kind = (7, 5, 90), f"u{fmt.bits // 8}"
    assert fmt.inf_magnitude is not None
    special = [0, fmt.sign_mask, fmt.inf_magnitude, fmt.inf_magnitude + 1, fmt.inf_magnitude - 1, 1]
    expected = generator.integers(0, 1 << fmt.bits, shape)
    expected = np.where(generator.integers(0, 4, shape) == 0, generator.choice(special, shape), expected)
    actual = expected ^ (generator.integers(0, 2, shape) * generator.choice([1, 5, 40, fmt.sign_mask], shape))
    wrong = [
        tuple(map(int, index))
        for index in np.ndindex(shape)
        if actual[index] != expected[index]
        and not (fmt.is_nan(int(actual[index])) and fmt.is_nan(int(expected[index])))
    ]
    pairs = [(int(expected[index]), int(actual[index])) for index in wrong]
    found_kinds: Counter[str] = Counter()
    for e, a in pairs:
        ma, me = a & fmt.magnitude_mask, e & fmt.magnitude_mask
        if fmt.is_nan(a) or fmt.is_nan(e):
            found_kinds["nan"] += 1
        elif (a ^ e) & fmt.sign_mask and (ma or me) and ma and me:
            found_kinds["sign"] += 1
        elif (a ^ e) & fmt.sign_mask and not ma and not me:
            found_kinds["zero_sign"] += 1
        elif fmt.inf_magnitude in (ma, me):
            found_kinds["saturation"] += 1
        else:
            found_kinds["rounding" if kinds.distance(a, e, fmt) == 1 else "value"] += 1
    for a, e in both(actual.astype(kind).view(f"i{fmt.bits // 8}"), expected.astype(kind).view(f"i{fmt.bits // 8}")):
        found = compare_values(a, e, format=fmt)
        assert found.kinds == kinds.ordered(found_kinds)
        assert drawings(found) == {
            "map": map_of("element", 35, 90, [(i * 5 + j, k) for i, j, k in wrong]),
            "distance": distance_of(fmt, pairs),
        }


@pytest.mark.usefixtures("pieces")
def test_bytes_count_on_a_map_only() -> None:
    generator = np.random.default_rng(6)
    right = generator.integers(0, 1 << 16, (40, 50)).astype(np.int16)
    wrong = right ^ np.where(generator.integers(0, 3, right.shape) == 0, 0x0101, 0).astype(np.int16)
    padding = generator.integers(0, 2, (40, 100)).astype(bool)
    differ = np.argwhere(wrong.view(np.uint8) != right.view(np.uint8)).tolist()
    inside = sum(bool(padding[i, j]) for i, j in differ)
    for a, e, flags in both(wrong, right, padding):
        found = compare_bytes(a, e, tensor="packed", padding=flags)
        assert found.kinds == {"padding": inside, "byte": len(differ) - inside}
        assert drawings(found) == {"map": map_of("byte", 40, 100, [(i, j) for i, j in differ])}


@pytest.mark.usefixtures("pieces")
def test_products_count_on_a_map_only() -> None:
    """The element that is right is a range, so there is no distance."""
    a, b = np.ones((40, 32), np.float32), np.ones((70, 32), np.float32)
    scheme = schemes.get("mxfp4_floor")
    sums = matmul.sums(bits.quantize(a, scheme), bits.quantize(b, scheme), scheme)
    actual = np.full((40, 70), 32, np.float32)
    actual[3, 5], actual[39, 69], actual[39, 68], actual[0, 0] = -32, np.nan, np.inf, 32.5
    found = compare_within_bound(actual, accumulation_bound(sums, None, BINARY32))
    assert found.kinds == {"nan": 1, "sign": 1, "saturation": 1, "value": 1}
    assert drawings(found) == {"map": map_of("element", 40, 70, [(3, 5), (39, 69), (39, 68), (0, 0)])}


def test_cutting_changes_samples_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts, digests and pictures, of arrays and of tensors."""
    x = drawn(4000)
    expected = np.random.default_rng(3).integers(0, 16, x.shape).astype(np.uint8)
    found = []
    for size in (1 << 22, 100, 7):
        monkeypatch.setattr(arrays, "CHUNK", 3 * size)
        monkeypatch.setattr(arrays, "PIECE", size)
        for xs, a, e in both(x, damaged(expected, E2M1), expected):
            found.append(replace(compare_codes(xs, a, e, E2M1), samples=()))
    assert found[0].pictures is not None
    assert all(0 <= digest < 1 << 64 for digest in found[0].digests.values())
    assert found == found[:1] * 6


# -- merging


def test_a_whole_equals_its_parts() -> None:
    """Parts of any length, in any order and grouping."""
    x = drawn(5000)
    expected = np.random.default_rng(3).integers(0, 256, x.shape).astype(np.uint8)
    actual = damaged(expected, E4M3)
    whole = compare_codes(x, actual, expected, E4M3)
    ends = [0, 3, 700, 701, 4096, 5000]
    parts = [compare_codes(x[i:j], actual[i:j], expected[i:j], E4M3, start=i) for i, j in itertools.pairwise(ends)]
    for order in (parts, parts[::-1], [merge(parts[:2]), merge([]), merge(parts[2:])]):
        found = merge(order)
        assert (found.mismatched, found.kinds) == (whole.mismatched, whole.kinds)
        assert found.pictures == whole.pictures
        assert drawings(found) == drawings(whole)


def test_maps_of_different_shapes_lie_over_one_another() -> None:
    def one(rows: int, columns: int, places: list[tuple[int, int]]) -> Comparison:
        right = np.zeros((rows, columns), np.float32)
        wrong = right.copy()
        for place in places:
            wrong[place] = 1
        return compare_values(wrong, right)

    small, long, wide = one(3, 3, [(2, 2), (0, 1)]), one(200, 2, [(199, 1), (2, 0)]), one(1, 1000, [(0, 999), (0, 2)])
    places = [(2, 2), (0, 1), (199, 1), (2, 0), (0, 999), (0, 2)]
    for order in ([small, long, wide], [wide, merge([long, small])]):
        assert drawings(merge(order))["map"] == map_of("element", 200, 1000, places)


def test_maps_of_different_units_do_not_mix() -> None:
    """Of blocks, elements and bytes the first is kept; what has no place has no part in it."""
    scheme = schemes.get("mxfp4_floor")
    x = np.ones((2, 64), np.float32)
    right = bits.quantize(x, scheme)
    blocks = compare_encoded(x, right._replace(codes=right.codes ^ 1), right, scheme)
    bytes_ = compare_bytes(np.ones(5, np.uint8), np.zeros(5, np.uint8), tensor="packed")
    elements = compare_values(np.ones(5, np.float32), np.zeros(5, np.float32))
    lost = failure("shape", tensor="codes", message="m")
    for order in ([blocks, bytes_, elements, lost], [lost, bytes_, merge([elements, blocks])]):
        found = merge(order)
        assert found.mismatched == 139
        assert drawings(found)["map"] == map_of("block", 2, 2, [(0, 0), (0, 1), (1, 0), (1, 1)] * 32)
    assert drawings(merge([bytes_, elements]))["map"]["unit"] == "element"
    assert merge([lost]).pictures is None
    assert merged([None, None]) is None


def test_what_does_not_fit_is_counted() -> None:
    """More pairs than are listed: the most frequent ones are, the rest is `left`, and merging loses none of it."""
    e, a = np.divmod(np.arange(1 << 16), 256)
    e, a = np.append(e[e != a], [200] * 3).astype(np.uint8), np.append(a[e != a], [100] * 3).astype(np.uint8)
    found = compare_codes(np.ones(len(e), np.float32), a, e, E8M0)
    picture = drawings(found)["confusion"]
    assert (len(picture["pairs"]), picture["pairs"][0], picture["left"]) == (PAIRS, [200, 100, 4], 65283 - PAIRS - 3)
    twice = drawings(merge([found, found]))["confusion"]
    assert (twice["pairs"][0], twice["left"]) == ([200, 100, 8], 2 * picture["left"])
    other = compare_codes(np.ones(1, np.float32), np.uint8([1]), np.uint8([0]), E2M1)
    assert drawings(merge([other, found]))["confusion"] == {**picture, "left": picture["left"] + 1}


def test_nothing_wrong_has_no_pictures() -> None:
    x = np.zeros(5, np.float32)
    assert compare_values(x, x).pictures is None
    assert Record.of(compare_values(x, x), scheme="s", check="c").pictures == {}


# -- records


def record_of(**changed: Any) -> dict[str, Any]:
    x = drawn(300)
    expected = np.random.default_rng(3).integers(0, 16, x.shape).astype(np.uint8)
    made = Record.of(compare_codes(x, damaged(expected, E2M1), expected, E2M1), scheme="s", check="c").as_dict()
    made["pictures"] = {**made["pictures"], **changed}
    return made


def test_records_carry_pictures(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    made = record_of()
    append(path, Record(**made))
    (found,) = read(path)
    assert found.pictures == made["pictures"]
    assert set(found.pictures) == {"map", "confusion", "distance", "binade"}
    assert len(json.dumps(found.pictures)) < ROWS * COLUMNS * 20 + PAIRS * 40


FINE = {"rows": 1, "columns": 1, "unit": "byte", "row_step": 1, "column_step": 1, "counts": [[1]]}


@pytest.mark.parametrize(
    "changed",
    [
        {"map": 3},
        {"map": {}},
        {"map": {**FINE, "unit": "mile"}},
        {"map": {**FINE, "counts": [[1, 2]]}},
        {"map": {**FINE, "counts": [1]}},
        {"map": {**FINE, "counts": [[-1]]}},
        {"map": {**FINE, "counts": [[True]]}},
        {"map": {**FINE, "counts": [[1.0]]}},
        {"map": {**FINE, "counts": [[10**9]]}},
        {"map": {**FINE, "row_step": 0}},
        {"map": {**FINE, "rows": 33, "counts": [[0]] * 33}},
        {"map": {**FINE, "rows": "1"}},
        {"confusion": {"format": ["e2m1"], "pairs": [], "left": 0}},
        {"confusion": {"format": "e2m9", "pairs": [], "left": 0}},
        {"confusion": {"format": "e2m1", "pairs": [[1, 2]], "left": 0}},
        {"confusion": {"format": "e2m1", "pairs": [[1, 256, 1]], "left": 0}},
        {"confusion": {"format": "e2m1", "pairs": [[1, 2, 1], [1, 2, 1]], "left": 0}},
        {"confusion": {"format": "e2m1", "pairs": [[i >> 8, i & 255, 0] for i in range(PAIRS + 1)], "left": 0}},
        {"confusion": {"format": "e2m1", "pairs": [], "left": -1}},
        {"distance": {"pairs": [[33, 1]], "beyond": 0}},
        {"distance": {"pairs": [[1, 1], [0, 1]], "beyond": 0}},
        {"distance": {"pairs": {"1": 1}, "beyond": 0}},
        {"distance": {"pairs": []}},
        {"scale_distance": {"pairs": [], "beyond": 1 << 63}},
        {"binade": {"pairs": [[128, 1]], "zero": 0, "subnormal": 0, "inf": 0, "nan": 0}},
        {"binade": {"pairs": [], "zero": 0, "subnormal": 0, "inf": 0}},
        {"binade": None},
    ],
    ids=str,
)
def test_malformed_pictures_are_a_problem_and_no_crash(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(record_of(**c)) + "\n" for c in ({}, changed)))
    problems: list[str] = []
    assert len(read(path, problems)) == 1
    assert [problem.partition(":")[0] for problem in problems] == ["records.jsonl, line 2"]


def test_pictures_of_later_versions_are_passed_over() -> None:
    assert validated({"hologram": 3, "map": FINE}, 1) == {"map": FINE}
    assert Pictures().as_dict() == {}
    assert pictures.step(0, 32) == 1
