"""The bound of a matmul: kept by every order of accumulation, reached to within a factor, passed by wrong kernels."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.compare import bounds
from lowbit.compare.bounds import Bound, accumulation_bound, compare_within_bound, gamma, worst
from lowbit.errors import ArgumentError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, E4M3, FloatFormat
from lowbit.references import matmul, matmul_exact
from lowbit.references.matmul import Sums
from lowbit.schemes import Encoded

from .matmul_orders import aligned, every_order, in_groups, operand, products, random_operand, rounded, truncated

NVFP4, MXFP4 = schemes.get("nvfp4"), schemes.get("mxfp4_floor")
FORMATS = (BINARY32, BFLOAT16, BINARY16)
EVERY_FORMAT = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
INF = {BINARY32: 0x7F800000, BFLOAT16: 0x7F80, BINARY16: 0x7C00}


def bound_of(a: Encoded, b: Encoded, scheme, fmt: FloatFormat) -> Bound:
    return accumulation_bound(matmul.sums(a, b, scheme), matmul.factor(a, b), fmt)


def single(reference: float, before: float, fmt: FloatFormat, bound: float | None = None, open: bool = False) -> Bound:
    """The bound of one element."""
    one = np.array([[reference]]), np.array([[before]]), np.array([[before if bound is None else bound]])
    return Bound(*one, np.array([[open]]), fmt)


CASES = [
    (NVFP4, (0, 0x7F), (3.3, 0.17)),
    (NVFP4, (0x30, 0x40), (None, None)),
    (NVFP4, (0, 256), (1.0, 1.0)),
    (MXFP4, (120, 134), (None, None)),
    (MXFP4, (40, 70), (None, None)),
]


@pytest.mark.parametrize(("scheme", "scales", "g"), CASES)
@EVERY_FORMAT
def test_no_order_passes_the_bound(scheme, scales, g, fmt) -> None:
    """Any operands; machines that round, truncate and align; sorted so that errors add up."""
    rng = np.random.default_rng(1)
    for terms in (scheme.block, 3 * scheme.block, 6 * scheme.block):
        pair = [
            random_operand(scheme, n, terms, rng, scales, x and np.float32(x)) for n, x in zip((3, 4), g, strict=True)
        ]
        a, b = pair
        bound = bound_of(a, b, scheme, fmt)
        for name, acc in every_order(np.nan_to_num(products(a, b, scheme)), rng).items():
            acc = np.where(np.isnan(bound.reference), np.nan, acc)
            found = compare_within_bound(matmul.finish(acc, matmul.factor(a, b), fmt), bound)
            assert found.ok, (name, found.kinds, [sample.rule for sample in found.samples])


@pytest.mark.parametrize("adder", [rounded, truncated, aligned])
def test_long_sums_keep_the_bound(adder) -> None:
    rng = np.random.default_rng(2)
    a, b = (random_operand(NVFP4, n, 4096, rng, (0x20, 0x7F), np.float32(1.7)) for n in (4, 5))
    bound = bound_of(a, b, NVFP4, BINARY32)
    acc = in_groups(products(a, b, NVFP4), adder, 4)
    assert compare_within_bound(matmul.finish(acc, matmul.factor(a, b), BINARY32), bound).ok


def test_the_bound_is_reached_to_a_factor() -> None:
    """One product of 2688², 1,007 of just less than its last place: truncation loses all of them."""
    codes = np.full((1, 1024), 1, np.uint8)
    codes[0, 0], codes[0, 1:16] = 7, 0
    scales = np.full((1, 64), 0x37, np.uint8)  # 0.9375
    scales[0, 0] = 0x7E
    a, ones = (
        Encoded(codes, scales),
        Encoded(np.where(codes == 1, 2, codes).astype(np.uint8), np.full((1, 64), 0x38, np.uint8)),
    )
    b = ones._replace(scales=np.concatenate([scales[:, :1], ones.scales[:, 1:]], axis=1))
    acc = in_groups(products(a, b, NVFP4), truncated, 1)
    assert acc[0, 0] == 2688**2
    bound = bound_of(a, b, NVFP4, BINARY32)
    found = worst(matmul.finish(acc, None, BINARY32), bound)
    assert 0.25 < found.ratio < 1
    assert found.error == 1008 * 0.46875
    magnitude = matmul.sums(a, b, NVFP4).magnitude[0, 0]
    assert found.error > gamma(1023, 2.0**-24) * magnitude  # what rounded additions of two keep is passed


def test_it_is_the_formula_by_hand() -> None:
    """For one element, in Fractions, within the slack of the float64 arithmetic."""
    rng = np.random.default_rng(3)
    a, b = (random_operand(NVFP4, 1, 64, rng, (0x20, 0x50), np.float32(g)) for g in (3.0, 0.7))
    each = [Fraction(float(p)) for p in products(a, b, NVFP4)[:, 0, 0]]
    s, magnitude = sum(each), sum(map(abs, each))
    r = Fraction(matmul.factor(a, b))
    n = 2 * 63
    u, half, double = Fraction(1, 2**23), Fraction(1, 2**24), Fraction(1, 2**53)
    error = n * u / (1 - n * u) * magnitude
    of_reference = 64 * double / (1 - 64 * double) * magnitude
    before = (error + of_reference + half * (abs(s) + error)) * r + Fraction(1, 2**150) + double * abs(s) * r
    top = abs(s) * r + before
    ulp = Fraction(2) ** (int(np.floor(np.log2(float(top)))) - 7)
    bound = bound_of(a, b, NVFP4, BFLOAT16)
    for got, want in ((bound.before, before), (bound.bound, before + ulp / 2)):
        assert 1 <= Fraction(float(got[0, 0])) / want < 1 + Fraction(1, 2**38)
    plain = bound_of(a._replace(tensor_scale=None), b._replace(tensor_scale=None), NVFP4, BINARY32)
    assert 1 <= Fraction(float(plain.bound[0, 0])) / (error + of_reference) < 1 + Fraction(1, 2**38)


@EVERY_FORMAT
def test_half_an_ulp(fmt) -> None:
    """Half the step to the next number, at random, at powers of two, among subnormals, at 0."""
    patterns = np.arange(1, fmt.max_magnitude, max(1, fmt.max_magnitude // 4096))
    for pattern in [*patterns.tolist(), fmt.max_magnitude - 1]:
        low, high = (float(fmt.magnitude_value(int(p))) for p in (pattern, pattern + 1))
        assert bounds._half_ulp(np.array([low]), fmt)[0] * 2 == high - low
        assert bounds._half_ulp(torch.tensor([low], dtype=torch.float64), fmt)[0].item() * 2 == high - low
    assert bounds._half_ulp(np.array([0.0]), fmt)[0] * 2 == float(fmt.min_positive)


def wrong_results(a: Encoded, b: Encoded) -> dict[str, np.ndarray]:
    """Outputs of kernels with one fault, in binary32."""
    r = matmul.factor(a, b)

    def out(left, right, factor=r):
        return matmul.finish(matmul.sums(left, right, NVFP4).value, factor, BINARY32)

    dropped = a.codes.copy()
    dropped[:, -16:] = 0
    swapped = a.scales.copy()
    swapped[:, [3, 4]] = swapped[:, [4, 3]]
    return {
        "last K tile dropped": out(a._replace(codes=dropped), b),
        "two scales exchanged": out(a._replace(scales=swapped), b),
        "scales of A moved by a row": out(a._replace(scales=np.roll(a.scales, 1, axis=0)), b),
        "a tensor scale forgotten": out(a, b, float(np.float32(1) / a.tensor_scale)),
        "bfloat16 inside": matmul.finish(
            (matmul.finish(matmul.sums(a, b, NVFP4).value, None, BFLOAT16).astype(np.uint32) << 16)
            .view(np.float32)
            .astype(np.float64),
            r,
            BINARY32,
        ),
    }


def test_wrong_kernels_are_beyond_the_bound() -> None:
    """On operands of one binade, at K = 512, and in nearly every element."""
    rng = np.random.default_rng(4)
    a, b = (random_operand(NVFP4, n, 512, rng, (0x38, 0x40), np.float32(g)) for n, g in ((9, 0.7), (8, 11.0)))
    bound = bound_of(a, b, NVFP4, BINARY32)
    for name, out in wrong_results(a, b).items():
        found = compare_within_bound(out, bound)
        # rounding to bfloat16 errs by 2^-9 of the sum, which is small beside Σ|a·b| where terms cancel
        assert found.mismatched > (0.2 if name == "bfloat16 inside" else 0.9) * found.compared, name
        assert set(found.kinds) <= {"sign", "value"}
        assert "error" in found.samples[0].rule
        assert ", bound " in found.samples[0].rule
    assert compare_within_bound(matmul.matmul(a, b, NVFP4, BINARY32), bound).ok


def test_samples_say_what_is_right() -> None:
    a, b = operand(NVFP4, [[2, 4]], [[0x38]]), operand(NVFP4, [[5, 9]], [[0x38]])
    (sample,) = compare_within_bound(np.array([[0x4010]], np.uint16), bound_of(a, b, NVFP4, BFLOAT16)).samples
    assert (sample.actual, sample.expected, sample.format, sample.kind) == (0x4010, 0x4000, "bfloat16", "value")
    assert (sample.value_actual, sample.value_expected, sample.coordinates) == (2.25, 2.0, (0, 0))
    assert sample.rule == "error 0.25, bound 0.00782681"


def kind(actual: int, bound: Bound) -> str:
    """The one kind of mismatch, or "", alike in NumPy and torch."""
    fmt = bound.format
    pattern = np.array([[actual]], np.uint16 if fmt.bits == 16 else np.uint32)
    found = compare_within_bound(pattern, bound)
    tensor = torch.from_numpy(pattern.view("i2" if fmt.bits == 16 else "i4"))
    on_torch = Bound(*(torch.from_numpy(x) for x in (bound.reference, bound.before, bound.bound, bound.open)), fmt)
    assert compare_within_bound(tensor, on_torch) == found
    assert compare_within_bound(tensor, bound) == found
    return next(iter(found.kinds), "")


def test_overflow_to_infinity() -> None:
    """binary16 rounds to Inf from 65520 on: allowed where the interval reaches that, required where it begins there."""
    greatest = 0x7BFF
    inside, across, beyond = (single(x, 8.0, BINARY16, 24.0) for x in (65500.0, 65519.0, 65536.0))
    assert [kind(greatest, b) for b in (inside, across, beyond)] == ["", "", "saturation"]
    assert [kind(0x7C00, b) for b in (inside, across, beyond)] == ["saturation", "", ""]
    assert [kind(0xFC00, b) for b in (inside, across, beyond)] == ["saturation"] * 3
    assert kind(0x7C00, single(65512.0, 8.0, BINARY16)) == ""
    assert kind(0x7C00, single(65511.0, 8.0, BINARY16)) == "saturation"
    negative = single(-65536.0, 8.0, BINARY16, 24.0)
    assert [kind(x, negative) for x in (0xFC00, 0x7C00, 0xFBFF)] == ["", "saturation", "saturation"]


@EVERY_FORMAT
def test_nan_and_sign(fmt) -> None:
    nan, one = fmt.nan_magnitude, fmt.bias << fmt.mantissa_bits
    missing = single(np.nan, np.nan, fmt)
    assert [kind(x, missing) for x in (nan, nan | fmt.sign_mask, one, 0, INF[fmt])] == ["", "", "nan", "nan", "nan"]
    ordinary = single(1.0, 0.0, fmt)
    assert [kind(x, ordinary) for x in (one, nan, one | fmt.sign_mask, one + 1)] == ["", "nan", "sign", "value"]
    zero = single(0.0, 0.0, fmt)
    assert [kind(x, zero) for x in (0, fmt.sign_mask, 1)] == ["", "", "value"]


def test_sums_that_may_overflow_binary32() -> None:
    """There a partial sum may be Inf, and two of them NaN; a finite result has its bound all the same."""
    a = operand(MXFP4, [[7, 7, 7, 7]], [[187]])
    b = operand(MXFP4, [[7, 7, 15, 15]], [[187]])
    bound = bound_of(a, b, MXFP4, BINARY32)
    assert bound.reference[0, 0] == 0
    assert not bound.open.any()
    larger = bound_of(a._replace(scales=a.scales + np.uint8(1)), b, MXFP4, BINARY32)
    assert larger.open.all()
    assert [kind(x, larger) for x in (0, 0x7FC00000, 0x7F800000, 0xFF800000)] == [""] * 4
    assert kind(0x7F7FFFFF, larger) == "value"
    assert [kind(x, bound) for x in (0, 0x7FC00000, 0x7F800000)] == ["", "nan", "saturation"]


def test_products_below_binary32() -> None:
    """MXFP4's smallest products vanish in binary32; the bound has room for that and for no more."""
    a = operand(MXFP4, [[1] * 32], [[50]])
    b = operand(MXFP4, [[1] * 32], [[53]])  # products of 2^-153, their sum 2^-148
    bound = bound_of(a, b, MXFP4, BINARY32)
    assert bound.reference[0, 0] == 2.0**-148
    assert kind(0, bound) == ""
    assert kind(66, bound) == ""
    assert kind(67, bound) == "value"
    zero = accumulation_bound(Sums(np.zeros((1, 1)), np.zeros((1, 1)), 1.0, 32), None, BINARY32)
    assert zero.bound[0, 0] == 0


def test_arrays_and_tensors_agree() -> None:
    rng = np.random.default_rng(5)
    a, b = (random_operand(NVFP4, n, 96, rng, (0, 256), np.float32(0.3)) for n in (30, 20))
    sums = matmul.sums(a, b, NVFP4)
    on_torch = Sums(torch.from_numpy(sums.value), torch.from_numpy(sums.magnitude), sums.quantum, sums.terms)
    for fmt in FORMATS:
        first, second = (accumulation_bound(s, matmul.factor(a, b), fmt) for s in (sums, on_torch))
        for name in ("reference", "before", "bound", "open"):
            assert np.array_equal(getattr(first, name), getattr(second, name).numpy(), equal_nan=name != "open")
        actual = matmul.finish(sums.value * (1 + 1e-3), matmul.factor(a, b), fmt)
        wrong = matmul.finish(on_torch.value * (1 + 1e-3), matmul.factor(a, b), fmt)
        assert compare_within_bound(actual, first) == compare_within_bound(wrong, second)
        assert worst(actual, first) == worst(wrong, second)
        assert worst(actual, first).ratio > 1


def test_pieces_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    a, b = (random_operand(NVFP4, n, 32, rng, (0, 0x7F)) for n in (9, 7))
    bound = bound_of(a, b, NVFP4, BINARY32)
    actual = matmul.matmul(a, b, NVFP4, BINARY32)
    actual[4, 3] ^= 1 << 31
    actual[8, 6] ^= 1 << 30
    whole = compare_within_bound(actual, bound), worst(actual, bound)
    monkeypatch.setattr("lowbit.compare.arrays.CHUNK", 10)
    assert (compare_within_bound(actual, bound), worst(actual, bound)) == whole
    assert [sample.index for sample in whole[0].samples] == [31, 62]


def test_shape_and_dtype_come_first() -> None:
    bound = single(1.0, 0.0, BFLOAT16)
    assert compare_within_bound(torch.ones(1, dtype=torch.bfloat16), bound).kinds == {"shape": 1}
    assert compare_within_bound(torch.ones(1, 1), bound).message == "dtype of out: got float32, want that of bfloat16"
    assert compare_within_bound(torch.ones(1, 1, dtype=torch.bfloat16), bound).ok
    empty = Bound(*(np.zeros((0, 3)) for _ in range(3)), np.zeros((0, 3), bool), BINARY32)
    assert compare_within_bound(np.zeros((0, 3), np.float32), empty).compared == 0
    assert np.isnan(worst(np.zeros((0, 3), np.float32), empty).ratio)


def test_where_the_bound_says_nothing() -> None:
    sums = Sums(np.ones((1, 1)), np.ones((1, 1)), 1.0, 16)
    with pytest.raises(ArgumentError, match="factor: got inf"):
        accumulation_bound(sums, float("inf"), BFLOAT16)
    with pytest.raises(ArgumentError, match="want bfloat16, binary16 or binary32"):
        accumulation_bound(sums, None, E4M3)
    with pytest.raises(ArgumentError, match="want less than 1 in all"):
        accumulation_bound(Sums(sums.value, sums.magnitude, 1.0, (1 << 22) + 1), None, BFLOAT16)
    assert gamma(0, 0.5) == gamma(-2, 0.5) == 0
    assert gamma(1, 0.5) == 1


def test_the_reference_of_a_bound_is_the_exact_product() -> None:
    rng = np.random.default_rng(7)
    a, b = (random_operand(NVFP4, n, 32, rng, (0, 0x7F)) for n in (3, 4))
    exact = matmul_exact.sums(a, b, NVFP4)
    bound = bound_of(a, b, NVFP4, BFLOAT16)
    assert [[Fraction(float(x)) for x in row] for row in bound.reference] == exact
