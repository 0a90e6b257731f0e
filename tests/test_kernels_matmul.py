"""The values of the matmul kernels, bit for bit, on operands whose sums have one right value in any order."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lowbit.cases.summable import Operands
from lowbit.schemes import Encoded, Scheme
from lowbit_kernels import _matmul_launch
from lowbit_kernels._matmul_launch import Configuration, Few

from .matmul_checks import (
    CODE_OF_ONE,
    DEVICE,
    DTYPES,
    EVERY_DTYPE,
    FAMILIES,
    MXFP4,
    NVFP4,
    ONE,
    Factors,
    assert_same,
    bits,
    check,
    decoded,
    every_code_and_byte,
    expected,
    identity,
    launched,
    multiply,
    patterns,
    product,
    stored,
    summable,
)

RNG = np.random.default_rng(20240701)
NAN_BYTES = {"nvfp4": (0x7F, 0xFF), "mxfp4": (0xFF,)}


@pytest.mark.parametrize("rows", [1, 3, 16, 127, 129])
@pytest.mark.parametrize("blocks", [1, 3, 33])
@FAMILIES
def test_every_shape(scheme: Scheme, rows: int, blocks: int) -> None:
    """M, N and an odd number of blocks below, at and above a tile; padding of the scales 0x7F and NaN."""
    for columns, padding in ((8, 0x7F), (136 if rows % 2 else 1, 0xFF)):
        check(summable(scheme, rows, columns, blocks), scheme, padding=padding)


@EVERY_DTYPE
@pytest.mark.parametrize("shape", [(5, 24, 7), (130, 129, 5)], ids=str)
@FAMILIES
def test_every_output_dtype(scheme: Scheme, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Rounded once from the binary32 sum, times a power of two; what binary16 cannot hold is infinite or subnormal."""
    operands = summable(scheme, *shape, seed=2)
    check(operands, scheme, dtype)
    for exponent in (12, -20):
        factors: Factors = (2.0**exponent, None)
        scaled = operands
        if scheme is MXFP4:
            a_scales = (operands.a.scales.astype(np.int64) + exponent).astype(np.uint8)
            scaled, factors = operands._replace(a=operands.a._replace(scales=a_scales)), (None, None)
        result = check(scaled, scheme, dtype, factors).abs().float()
        if dtype == torch.float16:
            assert (result.isinf() if exponent > 0 else (result > 0) & (result < 2.0**-14)).any()


@FAMILIES
def test_padding_of_the_scales_is_never_used(scheme: Scheme) -> None:
    """Rows and blocks that fill no tile of 128 by 4, any byte where there is no scale."""
    for rows, columns, blocks in ((1, 8, 1), (3, 130, 5), (129, 9, 6), (31, 33, 7)):
        operands = summable(scheme, rows, columns, blocks, seed=3)
        for padding in (0x7F, 0x80, 0xFF):
            check(operands, scheme, padding=padding)


@FAMILIES
def test_every_code_with_every_scale_byte(scheme: Scheme) -> None:
    (every, whole), right = every_code_and_byte(scheme)
    assert_same(bits(multiply(scheme, stored(Operands(every, whole), scheme))), right)
    assert_same(bits(multiply(scheme, stored(Operands(whole, every), scheme))), right.T)


@FAMILIES
def test_every_scale_is_found(scheme: Scheme) -> None:
    """One operand is the identity, so the other one comes out: scales that differ from all their neighbours."""
    rows, blocks = 300, 9
    size = blocks * scheme.block
    codes = RNG.integers(0, 16, (rows, size), dtype=np.uint8)
    row, block = np.indices((rows, blocks))
    scales = ((row * 11 + block * 5) % (0x7F if scheme is NVFP4 else 0xFD)).astype(np.uint8)
    operand, whole = Encoded(codes, scales), identity(scheme, size)
    right = decoded(operand, scheme) + 0.0
    assert_same(bits(multiply(scheme, stored(Operands(operand, whole), scheme))), patterns(right))
    assert_same(bits(multiply(scheme, stored(Operands(whole, operand), scheme))), patterns(right.T))


@FAMILIES
def test_nan_scales(scheme: Scheme) -> None:
    """A NaN scale makes its row of A, or column of B, NaN, and no other; also where all codes of its block are 0."""
    operands = summable(scheme, 20, 24, 5, seed=4)
    right = expected(operands, scheme).view(np.float32)
    for byte, block, side in itertools.product(NAN_BYTES[scheme.family], (0, 3, 4), ("a", "b")):
        changed = getattr(operands, side)
        codes, scales = changed.codes.copy(), changed.scales.copy()
        scales[[2, 19], block] = byte
        codes[19, block * scheme.block : (block + 1) * scheme.block] = 0
        codes[2, : scheme.block] |= 8
        given = operands._replace(**{side: Encoded(codes, scales)})
        actual = multiply(scheme, stored(given, scheme)).cpu().numpy()
        if side == "b":
            actual = actual.T
        assert np.isnan(actual[[2, 19]]).all()
        others = np.delete(np.arange(len(actual)), [2, 19])
        kept = right if side == "a" else right.T
        assert np.array_equal(actual[others].view(np.uint32), kept[others].view(np.uint32))


def test_negative_scales() -> None:
    """Bytes from 0x80 are negative E4M3; 0x80 is -0, and a sum of its products is +0 all the same."""
    a, b = summable(NVFP4, 17, 40, 7, seed=5)
    signs = [RNG.integers(0, 2, side.scales.shape, dtype=np.uint8) << 7 for side in (a, b)]
    both = Operands(*(side._replace(scales=side.scales | sign) for side, sign in zip((a, b), signs, strict=True)))
    for operands in (both, Operands(both.a, b), Operands(a, both.b)):
        check(operands, NVFP4, padding=0xFF)
        assert np.any(expected(operands, NVFP4) != expected(Operands(a, b), NVFP4))
    minus = Encoded(np.full((3, 16), 7, np.uint8), np.full((3, 1), 0x80, np.uint8))
    assert not bits(multiply(NVFP4, stored(Operands(minus, minus), NVFP4))).any()


FACTORS = [
    *((None, None), (0.5, None), (None, 4.0), (0.25, 8.0)),
    *((1 / 3, None), (None, 0.1), (0.7, 1.3), (1e-3, 3.3e5), (-0.7, 1.1), (-3.0, -0.2)),
    *((3e-20, 2e-25), (1e-30, 1e-30), (1e30, 1e30), (1e30, -1e-30), (3e38, 1e-38)),
    *((0.0, 2.0), (0.0, -2.0), (math.inf, 1.0), (math.inf, 0.0), (-math.inf, None), (math.nan, 1.0), (None, math.nan)),
]


@pytest.mark.parametrize("factors", FACTORS, ids=str)
def test_tensor_factors(factors: Factors) -> None:
    """RN32(sum * RN32(ra * rb)), powers of two or not, also where ra * rb under- or overflows."""
    operands = summable(NVFP4, 9, 24, 5, seed=6)
    check(operands, NVFP4, torch.float32, factors)
    if factors in FACTORS[:10]:
        check(operands, NVFP4, torch.bfloat16, factors)


def test_the_order_of_the_tensor_factors_shows() -> None:
    """Those above would not pass one after another, or after the cast: else they would prove little."""
    operands, (ra, rb) = summable(NVFP4, 9, 24, 5, seed=6), (0.7, 1.3)
    assert (ra, rb) in FACTORS
    right = expected(operands, NVFP4, factors=(ra, rb)).view(np.float32)
    total = expected(operands, NVFP4).view(np.float32)
    for first, second in ((ra, rb), (rb, ra)):
        assert np.any(total * np.float32(first) * np.float32(second) != right)
    cast = torch.from_numpy(total).bfloat16() * torch.tensor(product((ra, rb)))
    assert np.any(bits(cast.bfloat16()) != expected(operands, NVFP4, torch.bfloat16, (ra, rb)))


CASTS = {
    torch.float32: [2.0**-149, 2.0**-127 * (1 + 2.0**-22), 1 + 2.0**-23, float(np.finfo(np.float32).max)],
    torch.bfloat16: [
        *(1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-23, 1 + 2.0**-8 - 2.0**-23),
        *(2.0**-134, 2.0**-134 * (1 + 2.0**-15), 3 * 2.0**-134, 3.3895314e38, 3.3961775e38, 3.3961773e38),
    ],
    torch.float16: [
        *(65504.0, 65519.996, 65520.0, 65536.0, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-11 + 2.0**-23),
        *(2.0**-24, 2.0**-25, 2.0**-25 * (1 + 2.0**-23), 3 * 2.0**-25, 2.0**-14 * (1 - 2.0**-12), 1e-30),
    ],
}


@EVERY_DTYPE
def test_the_cast_of_the_result(dtype: torch.dtype) -> None:
    """A sum of ±1 times a factor is any binary32 number: ties, overflow to Inf, gradual underflow, the sign of 0."""
    a = identity(NVFP4, 16)._replace(codes=np.eye(16, dtype=np.uint8) * CODE_OF_ONE | np.eye(16, 16, 1, np.uint8) * 10)
    operands = Operands(a, identity(NVFP4, 16))
    for value in CASTS[dtype]:
        result = check(operands, NVFP4, dtype, (value, None))
        wanted = torch.tensor([value, -value]).to(dtype)
        assert np.array_equal(bits(result[0, :2]), bits(wanted)), value
    assert bits(torch.tensor(65519.996).half()) == 0x7BFF, "the greatest that is finite"
    assert bits(torch.tensor(65520.0).half()) == 0x7C00, "Inf, not the greatest number"


@EVERY_DTYPE
@FAMILIES
def test_a_sum_of_zero(scheme: Scheme, dtype: torch.dtype) -> None:
    """+0, whether all products are -0, none is there but +0, or two cancel; a negative factor makes it -0."""
    codes = np.zeros((4, scheme.block), np.uint8)
    codes[1] = 8
    codes[2, :2] = 2, 10
    codes[3, ::2] = 8
    ones = Encoded(np.full((1, scheme.block), CODE_OF_ONE, np.uint8), np.full((1, 1), ONE[scheme.family], np.uint8))
    operands = Operands(Encoded(codes, np.full((4, 1), ONE[scheme.family], np.uint8)), ones)
    assert not bits(check(operands, scheme, dtype)).any()
    if scheme is NVFP4:
        for factors, negative in (
            ((-0.5, None), True),
            ((None, -0.5), True),
            ((-1.0, -2.0), False),
            ((2.0, 3.0), False),
        ):
            result = check(operands, scheme, dtype, factors)
            assert not result.any()
            assert result.signbit().all() == result.signbit().any() == negative


@EVERY_DTYPE
@pytest.mark.parametrize("shape", [(0, 8, 2), (3, 0, 2), (0, 0, 0), (3, 8, 0), (0, 8, 0)], ids=str)
@FAMILIES
def test_empty_operands(scheme: Scheme, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """No rows, no columns; with K = 0 sums of nothing, +0, which is then scaled like any other."""
    rows, columns, blocks = shape
    a, b = (
        Encoded(np.zeros((count, blocks * scheme.block), np.uint8), np.zeros((count, blocks), np.uint8))
        for count in (rows, columns)
    )
    cases: list[Factors] = [(None, None)]
    if scheme is NVFP4:
        cases += [(-2.0, None), (math.inf, 2.0), (1e-30, 1e-30), (-1e-30, 1e-30), (1e30, 1e30), (None, math.nan)]
    for factors in cases:
        result = check(Operands(a, b), scheme, dtype, factors)
        assert tuple(result.shape) == (rows, columns)


@FAMILIES
def test_leading_dimensions_are_rows(scheme: Scheme) -> None:
    operands = summable(scheme, 30, 24, 3, seed=7)
    given, right = stored(operands, scheme), expected(operands, scheme)
    for leading in ((30,), (2, 15), (5, 1, 6), (1, 1, 30), (2, 3, 5)):
        actual = multiply(scheme, given._replace(a=given.a.view(*leading, -1)))
        assert tuple(actual.shape) == (*leading, 24)
        assert_same(bits(actual).reshape(30, 24), right)
    one = summable(scheme, 1, 24, 3, seed=7)
    given = stored(one, scheme)
    actual = multiply(scheme, given._replace(a=given.a[0]))
    assert tuple(actual.shape) == (24,)
    assert_same(bits(actual)[None], expected(one, scheme))
    nothing = torch.empty(2, 0, 3 * scheme.block // 2, dtype=torch.uint8, device=DEVICE)
    assert multiply(scheme, given._replace(a=nothing, a_scales=given.a_scales[:0])).shape == (2, 0, 24)


CONFIGURATIONS = [
    Configuration(16, 32, 128),
    Configuration(16, 64, 256, swap=True),
    Configuration(32, 16, 128, split_k=3, group_m=1),
    Configuration(16, 32, 256, split_k=4, swap=True, group_m=3),
    Configuration(64, 32, 128, split_k=5, warps=2, stages=2),
    Configuration(128, 64, 512, split_k=2, warps=8, stages=1),
    Few(8, 64, 1),
    Few(8, 64, 4, split_k=2),
    Few(16, 128, 2),
    Few(32, 64, 1, split_k=3),
    Few(8, 32, 2),
]


@pytest.mark.parametrize("chosen", CONFIGURATIONS, ids=lambda c: "-".join(map(str, (type(c).__name__, *c))))
@FAMILIES
def test_the_configuration_does_not_count(scheme: Scheme, chosen: Configuration | Few) -> None:
    """Tiles, parts of k, more parts than steps, the side of the tensor core, the order of programs: the same bits."""
    factors = (0.7, 1.3) if scheme is NVFP4 else (None, None)
    dtype = torch.float32 if chosen.split_k == 1 else torch.bfloat16
    rows, columns = (20, 24) if isinstance(chosen, Configuration) else (chosen.block_m - 3, 300)
    terms = 352 if isinstance(chosen, Configuration) else 672
    operands = summable(scheme, rows, columns, terms // scheme.block | 1, seed=8)
    out = torch.full((rows, columns), -7.0, dtype=dtype, device=DEVICE)
    _matmul_launch.multiply(launched(scheme, stored(operands, scheme, 0xFF), factors), out, chosen)
    assert_same(bits(out), expected(operands, scheme, dtype, factors), DTYPES[dtype])


def test_nothing_outside_the_operands_is_read() -> None:
    """Of few rows, where the loads of a step are made before it is known to exist; unreadable pages around each."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("guard_pages.py"))], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "nothing outside was touched\n"), done.stderr[-2000:]


def test_long_rows_are_not_for_the_kernel_of_few() -> None:
    """Its places within a program's 128 rows are 32-bit."""
    limit = _matmul_launch.FEW_STRIDE
    assert 127 * limit + limit <= 2**31 - 1
    assert isinstance(_matmul_launch.configuration(1, 128, limit * 8, False), Few)
    assert isinstance(_matmul_launch.configuration(1, 128, (limit + 1) * 8, False), Configuration)
    words, stride = _matmul_launch.words(torch.zeros(2, 64, dtype=torch.uint8)[:, :16], 8)
    assert (stride, tuple(words.shape)) == (4, (2, 4)), "rows that are further apart than asked for are copied"


@FAMILIES
def test_twice_the_same_bits(scheme: Scheme) -> None:
    """Also where sums are rounded: any codes, scales of many binades."""
    generator = np.random.default_rng(9)
    sides = []
    for count in (33, 40):
        codes = generator.integers(0, 16, (count, 40 * scheme.block), dtype=np.uint8)
        sides.append(Encoded(codes, generator.integers(100, 120, (count, 40)).astype(np.uint8)))
    given = stored(Operands(*sides), scheme)
    first, second = multiply(scheme, given), multiply(scheme, given)
    assert np.array_equal(bits(first), bits(second))
    assert first.isfinite().all()


def test_fewer_stages_where_shared_memory_is_small() -> None:
    """163 KiB and more hold what was measured; 99 KiB two stages of the largest tiles; one stage is always left."""
    for m, wanted in ((16, 4), (64, 3), (4096, 3)):
        chosen = Configuration(min(m, 128), 64 if m <= 64 else 128, 256 if m <= 64 else 128, stages=wanted)
        assert _matmul_launch.fitting(chosen, 227 << 10) == _matmul_launch.fitting(chosen, 163 << 10) == chosen
        small = _matmul_launch.fitting(chosen, 99 << 10)
        assert small == chosen._replace(stages=wanted if m == 16 else 2)
        assert _matmul_launch.fitting(chosen, 16 << 10).stages == 1
    few = Few(16, 64, 8)
    assert _matmul_launch.fitting(few, 163 << 10) == few
    assert _matmul_launch.fitting(few, 64 << 10) == _matmul_launch.fitting(few, 16 << 10) == Few(16, 32, 8)
