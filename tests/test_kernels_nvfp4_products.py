"""Codes to nearest from one product instead of a quotient, and the PTX that stands for device functions, on a CPU.

The multiplication that is rounded upward, the signs and the maximum are PTX that no interpreter has: the texts are run
in NumPy (`ptx_emulation.py`) and compared with the functions they stand for, which the reference judges.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from lowbit.formats import E2M1, E4M3
from lowbit.references import exact
from lowbit.rules import Rounding
from lowbit_kernels import _e4m3, _nvfp4_kernels

from . import ptx_emulation
from .nvfp4_checks import DEVICE, DTYPES, check, float32, on, raw

TIES = [(a + b) / 2 for a, b in itertools.pairwise(E2M1.magnitudes)]
SIGNIFICANDS = [Fraction(m, 8) for m in range(8, 16)]
BLOCK = 1 << 14 if DEVICE.type == "cpu" else 1 << 10
SPECIAL = float32([0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001])


@triton.jit
def code_kernel(y_ptr, s_ptr, code_ptr, TO_EVEN: tl.constexpr, PTX: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(s_ptr + index)
    high, low = _e4m3.reciprocal_pair(s)
    code = _nvfp4_kernels._nearest_quotient(tl.load(y_ptr + index), s, high, low, TO_EVEN, PTX)
    tl.store(code_ptr + index, code.to(tl.uint8))


@triton.jit
def below_kernel(s_ptr, below_ptr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    high, low = _e4m3.reciprocal_pair(tl.load(s_ptr + index))
    tl.store(below_ptr + index, _e4m3.below_reciprocal(high, low))


@triton.jit
def nearest_kernel(q_ptr, code_ptr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(code_ptr + index, _e4m3.nearest_e2m1(tl.load(q_ptr + index), True).to(tl.uint8))


@triton.jit
def signs_kernel(low_ptr, high_ptr, both_ptr, out_ptr, PTX: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    low, high = tl.load(low_ptr + index), tl.load(high_ptr + index)
    tl.store(out_ptr + index, _nvfp4_kernels._join_signs(low, high, tl.load(both_ptr + index), PTX))


def scales() -> np.ndarray:
    """Every scale that divides."""
    return np.array([float(E4M3.magnitude_value(m)) for m in range(1, E4M3.max_magnitude + 1)], np.float32)


def below(s: np.ndarray) -> np.ndarray:
    """r of the kernels for an array of scales."""
    padded = np.append(s, np.ones(-len(s) % 128, np.float32))
    out = torch.empty(len(padded), device=DEVICE)
    below_kernel[(1,)](on(padded), out, BLOCK=len(padded))
    return out.cpu().numpy()[: len(s)]


def cases() -> tuple[np.ndarray, np.ndarray]:
    """y and s: for every scale the seven ties, eight numbers to either side, and what has no quotient of note."""
    s = scales()
    ties = (s[:, None] * np.array([float(tie) for tie in TIES], np.float32)).view(np.int32)
    near = (ties[:, :, None] + np.arange(-8, 9, dtype=np.int32)).view(np.float32).reshape(len(s), -1)
    y = np.concatenate([near, np.broadcast_to(SPECIAL, (len(s), len(SPECIAL)))], axis=1)
    return y, np.broadcast_to(s[:, None], y.shape).copy()


def by_hand(y: np.ndarray, s: np.ndarray, rounding: Rounding) -> np.ndarray:
    """The codes of |y| / s, by fractions against the ties."""
    codes = []
    for a, b in zip(np.abs(y).ravel().tolist(), s.ravel().tolist(), strict=True):
        if not np.isfinite(a):
            codes.append(7)
            continue
        reached = [
            Fraction(a) > tie * Fraction(b) or (rounding is Rounding.TIES_TO_EVEN and k % 2 == 0 and a == tie * b)
            for k, tie in enumerate(TIES, 1)
        ]
        codes.append(sum(reached))
    return np.array(codes, np.uint8).reshape(y.shape)


def padded(values: np.ndarray) -> torch.Tensor:
    flat = values.ravel()
    return on(np.append(flat, np.ones(-len(flat) % BLOCK, flat.dtype)))


@pytest.mark.parametrize("rounding", [Rounding.TIES_TO_EVEN, Rounding.TIES_TOWARD_ZERO])
def test_every_tie_of_every_scale(rounding: Rounding) -> None:
    """The codes of both roundings at each tie, next to it, and of zeros, subnormals, the largest, Inf and NaN."""
    y, s = cases()
    y[::2] *= -1
    right = by_hand(y, s, rounding)
    code = torch.empty(padded(y).numel(), dtype=torch.uint8, device=DEVICE)
    for ptx in {False, DEVICE.type == "cuda" and torch.version.hip is None}:
        with np.errstate(all="ignore"):
            code_kernel[(len(code) // BLOCK,)](
                padded(y), padded(s), code, TO_EVEN=rounding is Rounding.TIES_TO_EVEN, PTX=ptx, BLOCK=BLOCK
            )
        assert np.array_equal(raw(code)[: y.size].reshape(y.shape), right)


def test_the_number_below_the_reciprocal() -> None:
    """One unit in the last place below the correctly rounded reciprocal of every scale."""
    s = scales()
    nearest = np.array([float(exact.pattern_float(exact.round_to(1 / Fraction(float(v)), exact.BINARY32))) for v in s])
    assert np.array_equal(below(s).view(np.int32) + 1, nearest.astype(np.float32).view(np.int32))


def upward(y: np.ndarray, r: np.ndarray, text: str = _e4m3.UPWARD.value) -> np.ndarray:
    """What the kernel's PTX makes of arrays of binary32."""
    registers = {"$1": np.ascontiguousarray(y).view(np.uint32), "$2": np.ascontiguousarray(r).view(np.uint32)}
    return ptx_emulation.run(text, registers)["$0"].view(np.float32)


def code_of(q: np.ndarray) -> np.ndarray:
    code = torch.empty(padded(q).numel(), dtype=torch.uint8, device=DEVICE)
    nearest_kernel[(len(code) // BLOCK,)](padded(q), code, BLOCK=BLOCK)
    return raw(code)[: q.size].reshape(q.shape)


def test_the_product_of_the_ptx_gives_the_codes_of_the_quotient() -> None:
    """At every tie of every scale and beside it, and where there is no number: as the correctly rounded quotient."""
    y, s = cases()
    r = np.broadcast_to(below(s[:, 0])[:, None], y.shape)
    right = by_hand(y, s, Rounding.TIES_TO_EVEN)
    assert np.array_equal(code_of(upward(y, r)), right)
    assert np.array_equal(code_of(upward(-y, r)), right)


@pytest.mark.parametrize(("old", "new"), [("mul.rp.f32", "mul.rn.f32"), ("mul.rp.f32", "mul.rz.f32")])
def test_another_rounding_gives_other_codes(old: str, new: str) -> None:
    y, s = cases()
    r = np.broadcast_to(below(s[:, 0])[:, None], y.shape)
    assert not np.array_equal(code_of(upward(y, r, _e4m3.UPWARD.value.replace(old, new))), code_of(upward(y, r)))


def test_the_reciprocal_itself_gives_other_codes() -> None:
    y, s = cases()
    r = np.broadcast_to(below(s[:, 0])[:, None], y.shape)
    over = (r.copy().view(np.int32) + 1).view(np.float32)
    assert not np.array_equal(code_of(upward(y, over)), by_hand(y, s, Rounding.TIES_TO_EVEN))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rounding", ["ties_to_even", "ties_toward_zero"])
def test_a_nan_without_a_tensor_scale(rounding: str, dtype: torch.dtype, ptx: list[str]) -> None:
    """Its code is that of +6, whatever its sign: a product with the constant 1 may be none, and then keeps the sign."""
    values = np.random.default_rng(7).normal(size=(8, 64)).astype(np.float32)
    values[::2].view(np.uint32)[:, ::5] = 0xFFC00000
    values[1::2].view(np.uint32)[:, ::7] = 0x7FC00000
    values[0, 1::3] = -0.0
    for swizzle in (False, True):
        check(on(values).to(dtype), f"nvfp4_one_level+{rounding}", swizzle=swizzle)
    assert DEVICE.type == "cuda" or _nvfp4_kernels.SIGNS.value in ptx


def sign_inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Low and high products, and both codes with anything above the low eight bits: every pair of codes and signs."""
    rng = np.random.default_rng(20261130)
    numbers = np.concatenate([SPECIAL[:8], rng.normal(size=504).astype(np.float32)])
    low, high = rng.permutation(np.repeat(numbers, 8)), rng.permutation(np.repeat(numbers, 8))
    codes = np.tile(np.array([a | b << 4 for a in range(8) for b in range(8)], np.uint32), 64)
    return low, high, codes | (rng.integers(0, 1 << 24, 4096).astype(np.uint32) << 8)


def test_the_signs_of_the_ptx() -> None:
    """Four words at a time, as the kernel's function without PTX has them one by one."""
    low, high, both = sign_inputs()
    out = torch.empty(4096, dtype=torch.uint8, device=DEVICE)
    signs_kernel[(1,)](on(low), on(high), on(both.view(np.int32)), out, PTX=False, BLOCK=4096)
    right = (both & 0x77) | np.signbit(low) << 3 | np.signbit(high) << 7
    assert np.array_equal(raw(out), right)
    groups = (low.view(np.uint32), high.view(np.uint32), both)
    registers = {f"${1 + 4 * i + j}": words[j::4].copy() for i, words in enumerate(groups) for j in range(4)}
    word = ptx_emulation.run(_nvfp4_kernels.SIGNS.value, registers)["$0"]
    assert np.array_equal(np.stack([word >> 8 * j & 0xFF for j in range(4)], axis=1).ravel(), right)
    exchanged = _nvfp4_kernels.SIGNS.value.replace("lows, $1, $2,", "lows, $2, $1,")
    assert not np.array_equal(ptx_emulation.run(exchanged, registers)["$0"], word)
