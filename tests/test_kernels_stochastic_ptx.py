"""The PTX of `_stochastic_pairs.py`, emulated: each element at the byte that just, and just not, rounds it up.

The interpreter takes the portable form and no PTX at all; on a GPU the kernels run these texts.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from nvfp4_checks import DEVICE, DTYPES, SCHEMES, check, on, raw
from ptx_emulation import Words, interpret, run

from lowbit.formats import E4M3
from lowbit.references.philox import element_bytes
from lowbit_kernels import _launch, _stochastic_pairs, quantize_nvfp4

RNG = np.random.default_rng(20261130)
BOUNDS = np.concatenate([np.arange(1, 1025) / 512, np.arange(513, 1025) / 256, np.arange(513, 769) / 128])
"""Where floor(256 L) grows by one: steps of 1/2 up to 2, of 1 up to 4, of 2 up to 6."""
EXPONENTS = (-126, -64, -15, -14, -1, 0, 1, 2, 64, 126, 127)
Numbers = npt.NDArray[Any]


def progress(v: Numbers) -> npt.NDArray[np.int64]:
    """floor(256 L) of magnitudes: how many bounds are reached; all by NaN."""
    return np.searchsorted(BOUNDS, np.where(np.isnan(v), np.inf, np.abs(v)), side="right")


def drawn(v: Numbers, up: bool) -> npt.NDArray[np.int64]:
    """The least byte that rounds away from zero, or the largest that does not."""
    fraction = progress(v) & 255
    return np.where(fraction == 0, 255, 256 - fraction) if up else 255 - fraction


def codes(v: Numbers, random: Numbers, negative: Numbers) -> Words:
    return ((progress(v) + random) >> 8 | negative.astype(np.int64) << 3).astype(np.uint32)


def joined(parts: Any, width: int) -> Words:
    return np.bitwise_or.reduce([np.asarray(p).astype(np.uint32) << np.uint32(width * i) for i, p in enumerate(parts)])


def wrong_bytes(text: str, inputs: list[Words], v: list[Numbers], negative: list[Numbers], chunk: bool) -> int:
    """How many results differ for eight elements, given all inputs but the random words, which come last."""
    wrong = 0
    for up in (False, True):
        random = [drawn(element, up) for element in v]
        words = [joined(random[:4], 8), joined(random[4:], 8)]
        if not chunk:
            words = [words[0], words[0], words[1], words[1]]
            words += [np.full_like(words[0], selector) for selector in (0x4140, 0x4342, 0x4140, 0x4342)]
        given = [*inputs, *words]
        found = run(text, {f"${place}": np.ascontiguousarray(word) for place, word in enumerate(given, 1)})["$0"]
        wrong += int((found != joined(map(codes, v, random, negative), 4)).sum())
    return wrong


def wrong_products(text: str, exponents: Any = EXPONENTS, chunk: bool = False) -> int:
    """Every bfloat16 in each of eight places, under powers of two."""
    wrong = 0
    for exponent in exponents:
        x = [RNG.permutation(1 << 16).astype(np.uint32) << 16 for _ in range(8)]
        numbers = [bits.view(np.float32) for bits in x]
        with np.errstate(invalid="ignore"):
            v = [number.astype(np.float64) * 2.0**exponent for number in numbers]
        down = np.full(1 << 16, 2.0 ** (exponent - 14), np.float32)
        if chunk:
            inputs = [*(a >> 16 | b for a, b in zip(x[::2], x[1::2], strict=True)), down.view(np.uint32)]
            negative = [np.signbit(number) for number in numbers]
        else:
            with np.errstate(all="ignore"):
                products = [(number * down).view(np.uint32) for number in numbers]
            inputs = [*products[::2], *products[1::2]]
            negative = [np.signbit(number) & ~np.isnan(number) for number in numbers]
        wrong += wrong_bytes(text, inputs, v, negative, chunk)
    return wrong


def next_to_bounds(scale: float) -> list[Numbers]:
    """Eight parts of: what is next to every bound times the scale, 0, the ends of binary32, Inf, NaN, of both signs."""
    ends = np.array([0, 1, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.uint32).view(np.float32)
    at = (BOUNDS * np.float64(scale)).astype(np.float32).view(np.int32)
    y = np.concatenate([*((at + near).astype(np.int32).view(np.float32) for near in (-1, 0, 1)), ends])
    y = np.resize(np.concatenate([y, -y]), -(-2 * len(y) // 8) * 8)
    return np.split(RNG.permutation(y), 8)


def wrong_quotients(text: str, scales: Any) -> int:
    wrong = 0
    for byte in scales:
        scale = np.float32(E4M3.value(byte))
        parts = next_to_bounds(scale)
        with np.errstate(all="ignore"):
            v = [part / scale for part in parts]
        by = np.full(len(parts[0]), np.float32(1) / scale * np.float32(2.0**-14)).view(np.uint32)
        bits = [part.view(np.uint32) for part in parts]
        negative = [np.signbit(part) & ~np.isnan(part) for part in parts]
        wrong += wrong_bytes(text, [*bits[::2], *bits[1::2], by, by, by, by], v, negative, False)
    return wrong


SCALED, QUOTIENTS, WORDS = (
    text.value for text in (_stochastic_pairs.SCALED, _stochastic_pairs.QUOTIENTS, _stochastic_pairs.WORDS)
)


def test_every_bfloat16() -> None:
    """Saturation, ±Inf, NaN, which SCALED makes +6 and WORDS gives its sign, and products below binary32's normals."""
    assert wrong_products(SCALED) == 0
    assert wrong_products(WORDS, chunk=True) == 0


@pytest.mark.parametrize("exponent", EXPONENTS[1:-1])
def test_every_bound_of_a_product(exponent: int) -> None:
    """binary32 elements, by a factor that is a power of two."""
    parts = next_to_bounds(2.0**-exponent)
    with np.errstate(all="ignore"):
        v = [part * np.float64(2.0**exponent) for part in parts]
        products = [(part * np.float32(2.0 ** (exponent - 14))).view(np.uint32) for part in parts]
    negative = [np.signbit(part) & ~np.isnan(part) for part in parts]
    assert wrong_bytes(SCALED, [*products[::2], *products[1::2]], v, negative, False) == 0


def test_every_bound_of_a_quotient() -> None:
    assert wrong_quotients(QUOTIENTS, range(1, E4M3.max_magnitude + 1, 5)) == 0


def test_reciprocals_reach_bounds_where_quotients_do() -> None:
    """For each significand of a scale: s T * r >= T, and less for the number before s T; not with r a unit less."""
    bounds = [Fraction(bound) for bound in BOUNDS.tolist()]
    for eighths in range(8, 16):
        scale = Fraction(eighths, 8)
        r = np.float32(8) / np.float32(eighths)
        exact, less = Fraction(float(r)), Fraction(float(np.nextafter(r, np.float32(0))))
        for bound in bounds:
            y = np.float32(float(scale * bound))
            before = Fraction(float(np.nextafter(y, np.float32(0))))
            assert Fraction(float(y)) == scale * bound
            assert before * exact < bound <= scale * bound * exact
            unit = Fraction(float(np.spacing(np.nextafter(np.float32(float(bound)), np.float32(0)))))
            assert before / scale < bound - unit / 2  # RN32 of the quotient does not reach it either
        assert any(scale * bound * less < bound for bound in bounds)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("mul.rz.f32 high", "mul.f32 high", id="product to nearest"),
        pytest.param("cvt.rz.f16x2.f32 both1", "cvt.rn.f16x2.f32 both1", id="pattern to nearest"),
        pytest.param("$18", "$17", id="another pair's bytes"),
        pytest.param("0x7351", "0x5371", id="codes of other words"),
        pytest.param("0x0e000e00", "0x0c000c00", id="saturation at 4"),
        pytest.param("0xfbd9", "0x7351", id="no signs"),
    ],
)
def test_a_changed_text_is_seen(old: str, new: str) -> None:
    assert old in QUOTIENTS
    assert wrong_quotients(QUOTIENTS.replace(old, new), (0x3B, 0x3F)) > 0


def drawn_bounds(seed: int, blocks: int) -> Numbers:
    """(rows, 16) float32: blocks of every scale s, each element s T or the number before it, and 6 s at the end.

    T is one that the element's own random byte makes decisive: at s T the code is one more than before it.
    """
    scales = np.repeat([float(E4M3.magnitude_value(m)) for m in range(1, E4M3.max_magnitude + 1)], blocks)
    random = element_bytes(seed, 16 * len(scales)).astype(np.int64).reshape(-1, 16)
    reached = 256 * RNG.integers(0, 7, random.shape) + 256 - random
    y = (BOUNDS[reached - 1] * scales[:, None]).astype(np.float32)
    assert np.array_equal(y, BOUNDS[reached - 1] * scales[:, None]), "s T is a binary32 number"
    y[::2, ::2], y[1::2, 1::2] = (np.nextafter(part, np.float32(0)) for part in (y[::2, ::2], y[1::2, 1::2]))
    y *= RNG.choice(np.array([-1, 1], np.float32), y.shape)
    y[:, 15] = 6 * scales
    return y


@pytest.mark.parametrize("scheme", ["nvfp4", "nvfp4_one_level"])
@pytest.mark.parametrize("ptx", [False, True])
def test_every_scale_divides_where_its_byte_decides(scheme: str, ptx: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reciprocal that is not the correctly rounded one takes other codes, at one bound or another of most scales."""
    if DEVICE.type == "cuda":
        monkeypatch.setattr(_launch, "takes_ptx", lambda tensor: ptx and torch.version.hip is None)
    texts = interpret(monkeypatch) if ptx and DEVICE.type == "cpu" else []
    options = {} if scheme == "nvfp4_one_level" else {"tensor_scale": 1.0}
    _, scales, _ = check(on(drawn_bounds(11, 16)), f"{scheme}+stochastic", seed=11, **options)

    assert set(range(1, E4M3.max_magnitude + 1)) <= set(raw(scales).reshape(-1).tolist())
    assert QUOTIENTS in texts or not ptx or DEVICE.type == "cuda"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nvfp4_with_ptx(scheme: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN of both signs, infinities, zeros, subnormals, blocks of many scales, any g: the reference's bits, and where g
    cannot be used those of the other path. MXFP4 and MX4 are in `test_kernels_mx_ptx.py`."""
    hard = (RNG.standard_normal((24, 64)) * 2.0 ** RNG.integers(-150, 120, (24, 64))).astype(np.float32)
    hard[12:] = RNG.standard_normal((12, 64))
    hard[0, ::5], hard[1, ::7], hard[2, ::9], hard[3, 1::6] = np.nan, -np.inf, -0.0, np.inf
    hard[4].view(np.uint32)[::3] |= 0xFFC00000
    hard[5] = 0
    with np.errstate(over="ignore"):
        x = on(hard).to(dtype)
        unusable = [on(np.array([g]), torch.float32) for g in (0.0, -0.0, -2.0, np.inf, -np.inf, np.nan)]
        options = {"rounding": "stochastic", "seed": 3, "validate": False}
        if scheme == "nvfp4_one_level":
            unusable = []
        portable = [quantize_nvfp4(x, scheme=scheme, tensor_scale=g, **options) for g in unusable]
        texts = interpret(monkeypatch)
        for g, results in zip(unusable, portable, strict=True):
            for actual, expected in zip(
                quantize_nvfp4(x, scheme=scheme, tensor_scale=g, **options), results, strict=True
            ):
                assert np.array_equal(raw(actual), raw(expected)), g
        for g in (None,) if scheme == "nvfp4_one_level" else (None, 1.0, 0.37, 2.0**-126, 1e-42, 3e38):
            options = {} if g is None else {"tensor_scale": g}
            check(x, f"{scheme}+stochastic", seed=3, **options)
        check(x[:, :48], f"{scheme}+stochastic", seed=4, swizzle=True)
    assert DEVICE.type == "cuda" or QUOTIENTS in texts
