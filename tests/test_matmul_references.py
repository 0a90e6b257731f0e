"""The matmul's references: right by hand, and one another's judges."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, E4M3, FloatFormat
from lowbit.references import matmul, matmul_exact
from lowbit.schemes import Encoded

from .matmul_orders import operand, random_operand

NVFP4, MXFP4 = schemes.get("nvfp4"), schemes.get("mxfp4_floor")
FORMATS = (BINARY32, BFLOAT16, BINARY16)
ONE, ONE_EIGHTH_MORE, SIXTY_FOUR = 0x38, 0x39, 0x68
"""E4M3 bytes of 1, 1.125 and 64."""


def on_torch(side: Encoded) -> Encoded:
    g = None if side.tensor_scale is None else torch.tensor([side.tensor_scale])
    return Encoded(torch.from_numpy(side.codes), torch.from_numpy(side.scales), g)


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    width = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    found = tensor.view(width).numpy()
    return found.view(f"u{found.dtype.itemsize}")


def everywhere(a: Encoded, b: Encoded, scheme, fmt: FloatFormat) -> np.ndarray:
    """The product on which the three agree bit for bit; torch's NaN by class."""
    right = matmul_exact.matmul(a, b, scheme, fmt)
    assert np.array_equal(matmul.matmul(a, b, scheme, fmt), right)
    on_device = matmul.matmul(on_torch(a), on_torch(b), scheme, fmt)
    assert np.array_equal(np.where(on_device.isnan(), fmt.nan_magnitude, bits_of(on_device)), right)
    return right


def one_row(codes_a, scales_a, codes_b, scales_b, fmt=BINARY32, *, scheme=NVFP4, g=(None, None)) -> int:
    a, b = operand(scheme, [codes_a], [scales_a], g[0]), operand(scheme, [codes_b], [scales_b], g[1])
    return int(everywhere(a, b, scheme, fmt)[0, 0])


# Codes: 1 is 0.5, 2 is 1, 4 is 2, 5 is 3, 6 is 4, 7 is 6; 8 more negates.


def test_two_products_by_hand() -> None:
    """1·3 + 2·(-0.5) = 2."""
    for fmt, pattern in ((BINARY32, 0x40000000), (BFLOAT16, 0x4000), (BINARY16, 0x4000)):
        assert one_row([2, 4], [ONE], [5, 9], [ONE], fmt) == pattern


def test_scales_by_hand() -> None:
    assert one_row([2, 4], [ONE_EIGHTH_MORE], [5, 9], [ONE], BFLOAT16) == 0x4010  # 2.25
    assert one_row([2], [0x01], [2], [0x01]) == (127 - 18) << 23  # 2^-9 · 2^-9
    assert one_row([7], [0x7E], [7], [0x7E]) == np.float32(2688**2).view(np.uint32)
    assert one_row([2, 4], [ONE | 0x80], [5, 9], [ONE]) == 0xC0000000  # a scale has a sign
    assert one_row([7, 7], [0x00], [7, 15], [ONE]) == 0  # the scale 0 decodes to 0
    assert one_row([2], [127 + 3], [4], [127 - 1], scheme=MXFP4) == 0x41000000  # 8 · 1
    assert one_row([2], [0], [2], [254], scheme=MXFP4) == 0x3F800000  # 2^-127 · 2^127
    assert (
        one_row([0] * 16 + [2], [ONE, 0x40], [0] * 16 + [2], [0x01, ONE]) == 0x40000000
    )  # the second block's are 2 and 1


def test_a_tie_of_the_output_goes_to_even() -> None:
    """256 + 1 is midway between 256 and 258 in bfloat16, 256 + 3 between 258 and 260."""
    for small, pattern in ((2, 0x4380), (5, 0x4382)):
        assert one_row([6, *[0] * 15, small], [SIXTY_FOUR, ONE], [2, *[0] * 15, 2], [ONE, ONE], BFLOAT16) == pattern


def test_tensor_scales_by_hand() -> None:
    """r = RN32(RN32(1/g_a)·RN32(1/g_b)); a missing one counts as 1."""
    sides = [2, 4], [ONE], [5, 9], [ONE]
    assert one_row(*sides, g=(4.0, 0.5)) == 0x3F800000  # 2 · 1/4 · 2
    assert one_row(*sides, g=(None, 0.5)) == 0x40800000
    third = np.float32(1) / np.float32(3)
    assert one_row(*sides, g=(3.0, None)) == (np.float32(2) * third).view(np.uint32)
    assert one_row(*sides, g=(3.0, 3.0)) == (np.float32(2) * np.float32(third * third)).view(np.uint32)
    assert one_row(*sides, g=(3e38, 3e38)) == 0  # r underflows
    assert one_row(*sides, g=(1e-39, 1.0)) == 0x7F800000  # 1/g overflows
    assert one_row([2, 2], [ONE], [2, 10], [ONE], g=(1e-39, 1.0)) == 0x7FC00000 | 0x3FFFFF  # 0 · Inf


def test_the_output_is_rounded_after_the_tensor_scale() -> None:
    """257 / 257: rounded to bfloat16 first, 257 would be 256."""
    a = [6, *[0] * 15, 2], [SIXTY_FOUR, ONE]
    assert one_row(*a, [2, *[0] * 15, 2], [ONE, ONE], BFLOAT16, g=(257.0, None)) == 0x3F80


def test_zeros() -> None:
    """A sum of 0 is +0, also of products that are all -0; one that underflows keeps its sign."""
    assert one_row([2, 2], [ONE], [2, 10], [ONE]) == 0
    assert one_row([8, 8], [ONE], [2, 2], [ONE]) == 0
    assert one_row([1], [0], [9], [0], scheme=MXFP4) == 0x80000000
    assert one_row([], [], [], []) == 0
    assert everywhere(
        operand(NVFP4, [], [[ONE]])._replace(codes=np.zeros((0, 16), np.uint8), scales=np.zeros((0, 1), np.uint8)),
        operand(NVFP4, [[2]], [[ONE]]),
        NVFP4,
        BINARY32,
    ).shape == (0, 1)


def test_overflow() -> None:
    """binary16 ends below 65520; a sum beyond binary32 is Inf."""
    large = [7, *[0] * 15], [0x7E]
    assert one_row(*large, [5, *[0] * 15], [0x7E], BINARY16) == 0x7C00
    assert one_row([15], [0x7E], [5], [0x7E], BINARY16) == 0xFC00
    assert one_row([7], [254], [7], [254], scheme=MXFP4) == 0x7F800000
    sixteen_k = [6, 6, 6, 6], [0x70]  # four times 4 · 128
    assert one_row(
        *sixteen_k,
        [6, 6, 6, 5],
        [
            ONE,
        ],
        BINARY16,
    ) == np.float16(2048 * 3 + 1536).view(np.uint16)


@pytest.mark.parametrize(("scheme", "byte"), [(NVFP4, 0x7F), (NVFP4, 0xFF), (MXFP4, 0xFF)])
def test_a_nan_scale_is_nan_in_its_whole_row(scheme, byte) -> None:
    """Whatever the codes of its block, zeros too; and nowhere else."""
    one = ONE if scheme is NVFP4 else 127
    a = operand(scheme, [[2], [2], [2]], [[one, one], [one, byte], [one, one]])
    b = operand(scheme, [[2], [4]], [[one, one], [byte, one]])
    got = everywhere(a, b, scheme, BFLOAT16)
    assert got.tolist() == [[0x3F80, 0x7FFF], [0x7FFF, 0x7FFF], [0x3F80, 0x7FFF]]


CASES = [(NVFP4, (0, 256), (3.7, 0.013)), (NVFP4, (0, 0x7F), (None, None)), (MXFP4, (118, 136), (None, None))]


@pytest.mark.parametrize(("scheme", "scales", "g"), CASES)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize(("rows", "columns", "blocks"), [(3, 5, 1), (17, 9, 6)])
def test_references_agree(scheme, scales, g, fmt, rows, columns, blocks) -> None:
    """Bit for bit, where float64 is exact, which it is on all of these."""
    rng = np.random.default_rng(rows)
    pairs = zip((rows, columns), g, strict=True)
    a, b = (random_operand(scheme, n, blocks * scheme.block, rng, scales, x and np.float32(x)) for n, x in pairs)
    assert matmul.sums(a, b, scheme).exact.all()
    everywhere(a, b, scheme, fmt)


def test_float64_says_where_it_is_exact() -> None:
    """NVFP4 at its largest is exact up to K = 1,188, and a sum beyond 2^53 quanta is not claimed to be."""
    greatest = Encoded(np.full((1, 1184), 7, np.uint8), np.full((1, 74), 0x7E, np.uint8))
    least = greatest.scales.copy()
    least[0, 0] = 0x01
    mixed = greatest._replace(scales=least)
    assert matmul.sums(mixed, mixed, NVFP4).quantum == 2.0**-20
    assert matmul.sums(mixed, mixed, NVFP4).exact.all()
    wide = Encoded(np.tile(mixed.codes, (1, 8)), np.concatenate([least, *[greatest.scales] * 7], axis=1))
    assert not matmul.sums(wide, wide, NVFP4).exact.any()
    assert matmul.sums(wide._replace(scales=np.tile(greatest.scales, (1, 8))), wide, NVFP4).exact.all()
    apart = operand(MXFP4, [[2] * 64], [[127 + 30, 127 - 30]])
    sums = matmul.sums(apart, apart, MXFP4)
    assert not sums.exact.any()
    assert Fraction(float(sums.value[0, 0])) != matmul_exact.sums(apart, apart, MXFP4)[0][0]


def test_the_quantum_is_one_of_blocks() -> None:
    """A's small scales do not count where B's are large."""
    a, b = operand(MXFP4, [[2] * 64], [[127 + 40, 127 - 40]]), operand(MXFP4, [[2] * 64], [[127 - 40, 127 + 40]])
    sums = matmul.sums(a, b, MXFP4)
    assert (sums.quantum, sums.exact.all(), sums.value[0, 0], sums.magnitude[0, 0]) == (0.25, True, 64.0, 64.0)
    zero = operand(NVFP4, [[7]], [[0x00]])
    assert (matmul.sums(zero, zero, NVFP4).quantum, matmul.sums(zero, zero, NVFP4).value[0, 0]) == (1.0, 0.0)


def test_what_does_not_fit_binary32_is_said() -> None:
    """2^24 + 1, in bits of two blocks: RN32 of it is returned, and `fits` says no."""
    a = operand(MXFP4, [[2, *[0] * 31, 2]], [[127 + 12, 127]])
    (total,) = matmul_exact.sums(a, a, MXFP4)[0]
    assert total == 2**24 + 1
    assert not matmul_exact.fits(total)
    assert matmul_exact.fits(total - 1)
    assert matmul_exact.fits(None)
    assert not matmul_exact.fits(Fraction(2) ** 128)
    assert not matmul_exact.fits(Fraction(1, 2**150))
    assert matmul_exact.matmul(a, a, MXFP4, BINARY32)[0, 0] == np.float32(2**24).view(np.uint32)


def test_decode_factors_agree() -> None:
    """RN32(1/g) at the edges and at random."""
    patterns = [1, 0x007FFFFF, 0x00800000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x7E800001, 0x7F7FFFFF]
    patterns += np.random.default_rng(3).integers(1, 0x7F800000, 300).tolist()
    for pattern in patterns:
        g = np.uint32(pattern).view(np.float32)
        assert matmul.decode_factor(g).view(np.uint32) == matmul_exact.decode_factor(g)
    assert matmul.decode_factor(None) == 1
    assert matmul_exact.decode_factor(None) == 0x3F800000


def test_pieces_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    a, b = (random_operand(NVFP4, n, 48, rng, (0, 256)) for n in (13, 11))
    whole = matmul.sums(a, b, NVFP4)
    monkeypatch.setattr(matmul, "CHUNK", 48 * 3)
    parts = matmul.sums(a, b, NVFP4)
    assert np.array_equal(parts.value, whole.value, equal_nan=True)
    assert np.array_equal(parts.magnitude, whole.magnitude, equal_nan=True)


def test_bfloat16_bits_of_numpy_are_those_of_torch() -> None:
    """Every class of binary32 number, ties and carries included; NaN by class."""
    patterns = np.random.default_rng(5).integers(0, 1 << 32, 20000, dtype=np.uint64).astype(np.uint32)
    patterns[:4096] = patterns[:4096] & 0xFFFF0000 | 0x8000
    value = patterns.view(np.float32)
    with np.errstate(invalid="ignore"):
        value = value[~np.isnan(value)].astype(np.float64)
    for fmt in FORMATS:
        assert np.array_equal(
            matmul.finish(value, None, fmt), bits_of(matmul.finish(torch.from_numpy(value), None, fmt))
        )
    assert matmul.finish(np.array([np.nan]), None, BFLOAT16)[0] == 0x7FFF


@pytest.mark.parametrize("module", [matmul, matmul_exact])
def test_wrong_arguments(module) -> None:
    good = operand(NVFP4, [[2]], [[ONE]])
    for bad, error, words in (
        (good._replace(scales=good.scales[:, :0]), ShapeError, "want 16 codes a scale"),
        (operand(NVFP4, [[2]], [[ONE, ONE]]), ShapeError, r"K = 16 and 32"),
        (good._replace(tensor_scale=np.float64(1)), ArgumentError, "want one float32"),
    ):
        with pytest.raises(error, match=words):
            module.matmul(good, bad, NVFP4, BINARY32)
    with pytest.raises(ArgumentError, match="want bfloat16, binary16 or binary32"):
        module.matmul(good, good, NVFP4, E4M3)
    with pytest.raises(ArgumentError, match="want nvfp4 or mxfp4"):
        module.matmul(good, good, schemes.get("mx4_ceil_e2m1_g16"), BINARY32)
    mx = operand(MXFP4, [[2]], [[127]], 2.0)
    with pytest.raises(ArgumentError, match="want None: mxfp4_floor has none"):
        module.matmul(mx, mx, MXFP4, BINARY32)


def test_the_scalar_reference_checks_bytes() -> None:
    good = operand(NVFP4, [[2]], [[ONE]])
    with pytest.raises(ArgumentError, match=r"want 0\.\.0xf"):
        matmul_exact.matmul(good._replace(codes=good.codes + np.uint8(14)), good, NVFP4)
    with pytest.raises(DtypeError, match=r"b\.scales: got int64"):
        matmul_exact.matmul(good, good._replace(scales=good.scales.astype(np.int64)), NVFP4)
