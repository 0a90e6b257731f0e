"""Exactly summable operands: one result in every order, rich all the same; and the check finds what is not."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from lowbit import schemes
from lowbit.cases import summability
from lowbit.cases.summable import Operands, exactly_summable, is_exactly_summable
from lowbit.errors import ArgumentError, ShapeError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32
from lowbit.references import matmul, matmul_exact
from lowbit.schemes import Encoded

from .matmul_orders import every_order, exact_sums, in_groups, operand, products, random_operand, rounded

NVFP4, MXFP4 = schemes.get("nvfp4"), schemes.get("mxfp4_floor")
BOTH = pytest.mark.parametrize("scheme", [NVFP4, MXFP4], ids=lambda s: s.name)
ONE = 0x38


def quanta(a: Encoded, b: Encoded, scheme, m: int, n: int) -> int:
    """Σ |a·b| in units of the largest power of two that divides every product, by Fractions."""
    each = [Fraction(float(p)) for p in products(a, b, scheme)[:, m, n] if p]
    if not each:
        return 0
    unit = min(Fraction(p.numerator & -p.numerator, p.denominator) for p in each)
    total = sum(abs(p) for p in each) / unit
    assert total.denominator == 1
    return int(total)


@BOTH
@pytest.mark.parametrize("shape", [(3, 4, 1), (4, 3, 3), (2, 3, 13)])
def test_any_order_on_any_machine_gives_the_exact_sum(scheme, shape) -> None:
    """Rounded, truncated, aligned as a tensor core does it; one by one, in groups, trees, split-K, sorted."""
    rng = np.random.default_rng(1)
    for seed in range(3):
        a, b = exactly_summable(scheme, *shape[:2], shape[2] * scheme.block, seed)
        right = exact_sums(a, b, scheme)
        for name, total in every_order(products(a, b, scheme), rng).items():
            assert np.array_equal(total, right), name


def test_other_operands_are_not_so() -> None:
    """The orders above do differ where the property is missing: the test sees what it is to see."""
    rng = np.random.default_rng(2)
    a, b = (random_operand(NVFP4, 3, 208, rng, (0, 0x7F)) for _ in range(2))
    assert not is_exactly_summable(a, b, NVFP4)
    found = every_order(products(a, b, NVFP4), rng)
    right = exact_sums(a, b, NVFP4)
    wrong = [name for name, total in found.items() if not np.array_equal(total, right)]
    assert len(wrong) > len(found) // 2


@BOTH
@pytest.mark.parametrize("terms", [1024, 2048, 4096, 8192])
def test_long_sums_in_some_orders(scheme, terms) -> None:
    """In binary32: in order, backwards and shuffled, every partial sum rounded."""
    a, b = exactly_summable(scheme, 3, 4, terms, 5)
    terms32 = products(a, b, scheme).astype(np.float32)
    right = matmul.sums(a, b, scheme)
    assert right.exact.all()
    for order in (terms32, terms32[::-1], np.random.default_rng(3).permutation(terms32)):
        assert np.array_equal(np.add.reduce(order, axis=0), right.value)
        assert np.array_equal(np.add.accumulate(order, axis=0)[-1], right.value)


@BOTH
@pytest.mark.parametrize("fmt", [BINARY32, BFLOAT16, BINARY16], ids=lambda f: f.name)
def test_scaling_is_exact_in_either_order(scheme, fmt) -> None:
    """With powers of two (acc·ra)·rb is acc·RN32(ra·rb), and the output one rounding of it."""
    a, b = exactly_summable(scheme, 9, 8, 96, 6, tensor_scales=(2.0**-7, 2.0**12))
    acc = exact_sums(a, b, scheme)
    factor = 2.0**-5 if scheme is NVFP4 else 1.0
    want = matmul_exact.matmul(a, b, scheme, fmt)
    assert np.array_equal(matmul.finish(acc * factor, None, fmt), want)
    assert all(matmul_exact.fits(total) for row in matmul_exact.sums(a, b, scheme) for total in row)


@BOTH
@pytest.mark.parametrize("shape", [(7, 5, 1), (40, 70, 8), (33, 40, 64), (5, 300, 256)])
def test_operands_are_rich(scheme, shape) -> None:
    """All codes; no scale like its neighbour in row or column; many bytes; what E4M3 has beside powers of two."""
    rows, columns, blocks = shape
    a, b = exactly_summable(scheme, rows, columns, blocks * scheme.block, 7)
    assert a.codes.shape == (rows, blocks * scheme.block)
    assert b.scales.shape == (columns, blocks)
    for side in (a, b):
        scales = side.scales.astype(int)
        if scales.size > 100:
            assert np.unique(side.codes).tolist() == list(range(16))
            assert len(np.unique(scales)) >= (20 if scheme is MXFP4 else 50)
        kept = np.where(scales == 0, -np.arange(scales.size).reshape(scales.shape) - 1, scales)  # zeros may meet
        assert (kept[1:] != kept[:-1]).all()
        assert (kept[:, 1:] != kept[:, :-1]).all()
        if scheme is NVFP4 and scales.size > 1000:
            assert 0 < (scales == 0).mean() < 0.05
            assert (scales % 8 != 0).mean() > 0.5
            assert ((scales > 0) & (scales < 8)).any()  # subnormal ones
    if scheme is MXFP4:
        assert a.tensor_scale is None
    else:
        assert (a.tensor_scale, b.tensor_scale) == (np.float32(8), np.float32(0.5))


def test_the_outputs_are_rich() -> None:
    """Nearly all different, of both signs, and in the range of binary16."""
    for scheme in (NVFP4, MXFP4):
        out = matmul.matmul(*exactly_summable(scheme, 64, 64, 8192, 8), scheme, BINARY32).view(np.float32)
        assert len(np.unique(out)) > 0.9 * out.size
        assert 0.4 < (out < 0).mean() < 0.6
        assert (np.abs(out) < 65504).mean() > 0.99


@BOTH
def test_the_same_seed_gives_the_same(scheme) -> None:
    first, again, other = (exactly_summable(scheme, 4, 5, 64, seed) for seed in (1, 1, 2))
    for one, two, three in zip(first, again, other, strict=True):
        assert np.array_equal(one.codes, two.codes)
        assert np.array_equal(one.scales, two.scales)
        assert not np.array_equal(one.codes, three.codes)


@BOTH
def test_the_verdict_is_no_less_than_the_sums(scheme) -> None:
    a, b = exactly_summable(scheme, 6, 7, 192, 9)
    verdict = is_exactly_summable(a, b, scheme)
    assert verdict
    assert max(quanta(a, b, scheme, m, n) for m in range(6) for n in range(7)) <= verdict.most < summability.LIMIT


@BOTH
def test_parts_are_summable_too(scheme) -> None:
    a, b = exactly_summable(scheme, 12, 16, 96, 10)
    part = Operands(*(side._replace(codes=side.codes[3:9], scales=side.scales[3:9]) for side in (a, b)))
    assert is_exactly_summable(*part, scheme)


@pytest.mark.parametrize("shape", [(0, 8, 32), (8, 0, 32), (3, 4, 0), (1, 1, 65536)])
@BOTH
def test_edges(scheme, shape) -> None:
    a, b = exactly_summable(scheme, *shape, 11)
    assert (len(a.codes), len(b.codes), a.codes.shape[1]) == shape
    assert is_exactly_summable(a, b, scheme)


def powers(exponents: list[int]) -> tuple[Encoded, Encoded]:
    """One row each, whose products are those powers of two in units of the least; exponents of 7 a block."""
    codes, scales = ([], []), ([], [])
    for block in range(4):
        inside = [e - 7 * block for e in exponents if 7 * block <= e < 7 * block + 7]
        halves = [(e // 2, e - e // 2) for e in inside]
        for side, take in enumerate((0, 1)):
            # codes of 0.5, 1, 2, 4
            codes[side].extend([[1, 2, 4, 6][pair[take]] for pair in halves] + [0] * (16 - len(halves)))
            power = (7 * block) // 2 if side == 0 else 7 * block - (7 * block) // 2
            scales[side].append([0x01, 0x02, 0x04, 0x08][power] if power < 4 else (power - 2) << 3)
    a, b = (operand(NVFP4, [c], [s]) for c, s in zip(codes, scales, strict=True))
    return a, b


def test_the_limit_is_met_to_the_unit() -> None:
    """1 + 2 + … + 2^23 quanta pass, one more does not."""
    for exponents, most, passes in (
        (list(range(24)), 2**24 - 1, True),
        ([0, *range(24)], 2**24, False),
        ([0, 0, 0, *range(24)], 2**24 + 2, False),
    ):
        a, b = powers(exponents)
        assert quanta(a, b, NVFP4, 0, 0) == most
        verdict = is_exactly_summable(a, b, NVFP4)
        assert (bool(verdict), verdict.most) == (passes, most)
    assert "rows 0 and 0: Σ|a·b| is 16777218 quanta, want below 16777216" in verdict.reason
    terms = products(a, b, NVFP4)
    assert in_groups(terms, rounded, 1) == np.float32(2**24 + 2) * 2.0**-20
    assert in_groups(terms[::-1], rounded, 1) == np.float32(2**24) * 2.0**-20


def test_planted_violations_are_found() -> None:
    """One scale of a whole operand too large, or too fine, is enough; and the sums then do depend on the order."""
    a, b = exactly_summable(NVFP4, 5, 6, 4096, 12)
    for byte in (0x7E, 0x79):
        scales = a.scales.copy()
        scales[3, 17] = byte
        codes = a.codes.copy()
        codes[3, 17 * 16 : 18 * 16] = 7
        verdict = is_exactly_summable(a._replace(codes=codes, scales=scales), b, NVFP4)
        assert not verdict
        assert verdict.reason.startswith("rows 3 and ")
    fine = a.scales.copy()
    fine[2, 5] = 0x01
    fine_b = b.scales.copy()
    fine_b[:, 5] = 0x01
    worse = a._replace(scales=fine), b._replace(scales=fine_b)
    assert not is_exactly_summable(*worse, NVFP4)
    terms = products(*worse, NVFP4)[:, 2:3]
    right = matmul.sums(worse[0]._replace(codes=a.codes[2:3], scales=fine[2:3]), worse[1], NVFP4).value
    assert not np.array_equal(in_groups(terms, rounded, 1), right)


def test_what_cannot_be_summed_is_named() -> None:
    def reason(a, b, scheme=NVFP4, **options):
        return is_exactly_summable(a, b, scheme, **options).reason

    good = operand(NVFP4, [[2]], [[ONE]])
    assert reason(good, good) == ""
    assert reason(good, operand(NVFP4, [[2]], [[0xFF]])) == "b: a scale is NaN"
    assert reason(operand(NVFP4, [[2]], [[ONE]], 3.0), good) == "a: the tensor scale 3.0 is no power of two"
    assert reason(operand(NVFP4, [[2]], [[ONE]], 3.0), good, any_factor=True) == ""
    mx = operand(MXFP4, [[2]], [[253]])
    assert "the scale byte 253 times 6 is beyond bfloat16" in reason(mx, mx, MXFP4)
    for byte in (252, 40):
        mx = operand(MXFP4, [[1]], [[byte]])
        assert "which leaves binary32" in reason(mx, mx, MXFP4)


def test_negative_scales_and_blocks_of_zero() -> None:
    a, b = exactly_summable(NVFP4, 4, 4, 64, 13)
    assert is_exactly_summable(a._replace(scales=a.scales | 0x80), b, NVFP4)
    empty = a.scales.copy()
    empty[:, 2] = 0
    huge = b.scales.copy()
    huge[:, 2] = 0x7E  # meets nothing but zeros
    verdict = is_exactly_summable(a._replace(scales=empty), b._replace(scales=huge), NVFP4)
    kept = [0, 1, 3]
    rest = (Encoded(x.codes.reshape(4, 4, 16)[:, kept].reshape(4, 48), x.scales[:, kept]) for x in (a, b))
    assert verdict == is_exactly_summable(*rest, NVFP4)


def test_pairs_are_looked_at_where_the_cheap_condition_fails() -> None:
    """Row i is twice as large in block i: the maxima of columns are large everywhere, which no row is."""
    rows = 8
    codes = np.where(np.repeat(np.eye(rows, dtype=bool), 16, axis=1), 7, 5).astype(np.uint8)  # 6 or 3
    unit = np.ones((rows, 16), np.uint8)  # with the scale 2^-9, one quantum
    scales = np.concatenate([np.full((rows, rows), 0x1C), np.full((rows, 1), 0x01)], axis=1).astype(np.uint8)
    side = Encoded(np.concatenate([codes, unit], axis=1), scales)
    units = summability._units(side, NVFP4)
    assert summability._upper_bound(side, side, units, units, units.min(0), NVFP4) > summability.LIMIT
    verdict = is_exactly_summable(side, side, NVFP4)
    assert verdict
    assert verdict.most == max(quanta(side, side, NVFP4, m, n) for m in (0, 1) for n in (0, 1))


def test_what_is_too_much_to_decide_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = powers([0, *range(24)])
    monkeypatch.setattr(summability, "PAIRS_LIMIT", 1)
    assert is_exactly_summable(a, b, NVFP4).reason.startswith("not decided")


def test_pieces_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = exactly_summable(NVFP4, 13, 11, 64, 14)
    whole = is_exactly_summable(a, b, NVFP4)
    monkeypatch.setattr(summability, "CHUNK", 64 * 3)
    assert is_exactly_summable(a, b, NVFP4) == whole


def test_wrong_arguments() -> None:
    with pytest.raises(ShapeError, match="terms: got 24, want a multiple of 16"):
        exactly_summable(NVFP4, 1, 1, 24, 0)
    with pytest.raises(ArgumentError, match="want nvfp4 or mxfp4"):
        exactly_summable(schemes.get("mx4_ceil_e2m1_g32"), 1, 1, 32, 0)
    with pytest.raises(ArgumentError, match="want nvfp4 or mxfp4"):
        is_exactly_summable(*exactly_summable(NVFP4, 1, 1, 16, 0), schemes.get("rtn_nvfp4"))
    with pytest.raises(ArgumentError, match="tensor_scales: got 0"):
        exactly_summable(NVFP4, 1, 1, 16, 0, tensor_scales=(0, None))
