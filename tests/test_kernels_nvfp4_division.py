"""The quotients that the NVFP4 kernels form without a division: equal to the correctly rounded ones.

Exhaustive over significands; powers of two change nothing while nothing leaves the normal range, which the kernels'
bounds ensure. On a CPU this runs in Triton's interpreter, whose fma rounds once.
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
from lowbit_kernels import _e4m3, _nvfp4_dequantize

from .nvfp4_checks import DEVICE, on, raw

MANTISSAS = 2**23
BLOCK = 2**20 if DEVICE.type == "cpu" else 2**10
ODD_PARTS = set(range(1, 16, 2))
"""Odd parts of E4M3's significands; with E2M1's 1 and 3 they make those of every value times a scale."""


@triton.jit
def quotient_kernel(y_ptr, s, q_ptr, exact_ptr, SIX: tl.constexpr, BLOCK: tl.constexpr):
    """y / s by multiplications, and by division."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(y_ptr + index)
    divisor = tl.full((BLOCK,), s, tl.float32)
    if SIX:
        q = _e4m3.divide_by_six(y)
    else:
        high, low = _e4m3.reciprocal_pair(divisor)
        q = _e4m3.divide_by_scale(y, divisor, high, low)
    tl.store(q_ptr + index, q)
    tl.store(exact_ptr + index, tl.div_rn(y, divisor))


@triton.jit
def reciprocal_kernel(s_ptr, high_ptr, low_ptr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    high, low = _e4m3.reciprocal_pair(tl.load(s_ptr + index))
    tl.store(high_ptr + index, high)
    tl.store(low_ptr + index, low)


@triton.jit
def byte_kernel(x_ptr, byte_ptr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(byte_ptr + index, _e4m3.encode_e4m3(tl.load(x_ptr + index)).to(tl.uint8))


@triton.jit
def value_kernel(value_ptr):
    index = tl.arange(0, 256)
    tl.store(value_ptr + index, _e4m3.decode_e4m3(index))


@triton.jit
def nearest_kernel(q_ptr, code_ptr, TO_EVEN: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(code_ptr + index, (_e4m3.nearest_e2m1(tl.load(q_ptr + index), TO_EVEN) & 15).to(tl.uint8))


@triton.jit
def decode_kernel(g_ptr, q_ptr, exact_ptr, t, BLOCK: tl.constexpr):
    """t / g as `_nvfp4_dequantize` forms it, and by division; code 2 is the value 1."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(g_ptr + index)
    scale = tl.full((BLOCK,), t, tl.float32)
    code = tl.full((BLOCK,), 2, tl.int32)
    tl.store(q_ptr + index, _nvfp4_dequantize._magnitude(code, scale, g, _nvfp4_dequantize._MULTIPLY))
    tl.store(exact_ptr + index, tl.div_rn(scale, g))


def mantissas(exponent: int) -> torch.Tensor:
    """Every float32 of a binade."""
    return on(torch.arange(MANTISSAS, dtype=torch.int32) + ((exponent + 127) << 23)).view(torch.float32)


def differences(first: torch.Tensor, second: torch.Tensor) -> int:
    return int((first.view(torch.int32) != second.view(torch.int32)).sum())


@pytest.mark.parametrize("significand", range(8, 16))
def test_every_quotient_of_a_scale_is_correctly_rounded(significand):
    y = mantissas(0)
    q, right = torch.empty_like(y), torch.empty_like(y)
    quotient_kernel[(MANTISSAS // BLOCK,)](y, significand / 8, q, right, SIX=False, BLOCK=BLOCK)
    assert differences(q, right) == 0


def test_every_sixth_is_correctly_rounded():
    y = mantissas(0)
    q, right = torch.empty_like(y), torch.empty_like(y)
    quotient_kernel[(MANTISSAS // BLOCK,)](y, 6.0, q, right, SIX=True, BLOCK=BLOCK)
    assert differences(q, right) == 0


def test_the_reciprocal_of_every_scale():
    """Near enough for the argument in `_e4m3.py`, at every scale, so that none needs a case of its own."""
    values = [E4M3.magnitude_value(m) for m in range(1, E4M3.max_magnitude + 1)]
    s = on(np.array([float(v) for v in values] + [1.0, 1.0], dtype=np.float32))
    high, low = torch.empty_like(s), torch.empty_like(s)
    reciprocal_kernel[(1,)](s, high, low, BLOCK=128)
    for value, a, b in zip(values, high.tolist(), low.tolist(), strict=False):
        assert abs((Fraction(a) + Fraction(b)) * value - 1) < Fraction(1, 2**34)


def test_every_scale_byte():
    """E4M3 of every bfloat16 from 0 to 448, of every tie, and of the float32 next to each tie."""
    coarse = torch.arange(0, 0x43E1, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    values = [Fraction(0), *E4M3.magnitudes[1:]]
    ties = np.array([float((a + b) / 2) for a, b in itertools.pairwise(values)], dtype=np.float32).view(np.int32)
    near = (ties[:, None] + np.arange(-1, 2, dtype=np.int32)).reshape(-1).view(np.float32)
    x = np.concatenate([coarse.numpy(), near])
    x = np.append(x, np.zeros(-len(x) % 1024, dtype=np.float32))
    byte = torch.empty(len(x), dtype=torch.uint8, device=DEVICE)
    byte_kernel[(len(x) // 1024,)](on(x), byte, BLOCK=1024)
    unique, where = np.unique(x, return_inverse=True)
    by_hand = np.array([exact.encode(float(v), E4M3, Rounding.TIES_TO_EVEN) for v in unique])
    assert np.array_equal(raw(byte), by_hand[where])


def test_every_scale_value():
    """Bytes from 0x80 are negative, 0x7F and 0xFF NaN."""
    decoded = torch.empty(256, device=DEVICE)
    value_kernel[(1,)](decoded)
    expected = torch.tensor([float(E4M3.value(code)) for code in range(256)])
    assert torch.equal(decoded.cpu().isnan(), expected.isnan())
    assert torch.equal(decoded.cpu().nan_to_num(0.0).view(torch.int32), expected.nan_to_num(0.0).view(torch.int32))


@pytest.mark.parametrize("rounding", [Rounding.TIES_TO_EVEN, Rounding.TIES_TOWARD_ZERO])
def test_the_nearest_code_by_additions(rounding):
    """Between two breakpoints nothing changes: the first pattern of each code and the one before it are the proof."""
    first = [(bits, code) for bits, code in exact.breakpoints(E2M1, rounding, False)]
    q = [np.uint32(max(bits - 1, 0)) for bits, _ in first] + [np.uint32(bits) for bits, _ in first]
    expected = [max(code - 1, 0) for _, code in first] + [code for _, code in first]
    q += [np.uint32(0x7F7FFFFF), np.uint32(0x7F800000), np.uint32(0x7FC00000), np.uint32(0xFFC00000)]
    expected += [7, 7, 7, 7]  # FLT_MAX, Inf, NaN of either sign
    fill = [np.uint32(0)] * (-len(q) % 32)
    code = torch.empty(len(q) + len(fill), dtype=torch.uint8, device=DEVICE)
    patterns = on(np.array(q + fill, dtype=np.uint32).view(np.float32))
    nearest_kernel[(len(code) // 32,)](patterns, code, TO_EVEN=rounding is Rounding.TIES_TO_EVEN, BLOCK=32)
    assert raw(code)[: len(expected)].tolist() == expected


@pytest.mark.parametrize("odd", sorted(ODD_PARTS | {3 * m for m in ODD_PARTS}))
def test_every_decoded_quotient_is_correctly_rounded(odd):
    """Every g of a binade under every significand of value * s."""
    g = mantissas(3)
    q, right = torch.empty_like(g), torch.empty_like(g)
    decode_kernel[(MANTISSAS // BLOCK,)](g, q, right, float(odd), BLOCK=BLOCK)
    assert differences(q, right) == 0


@pytest.mark.parametrize("bound", [2.0**-100, 2.0**90])
def test_decoded_quotients_at_the_bounds(bound):
    """Where |t'| is largest and smallest nothing overflows or loses bits."""
    for t in (2.0**-10, 45 * 2.0**-10, 2688.0, 2496.0):
        steps = torch.arange(BLOCK // 2, dtype=torch.int32) * (MANTISSAS // BLOCK)
        g = on(torch.cat([steps, -steps]) + int(np.float32(bound).view(np.int32))).view(torch.float32)
        g = g.clamp(2.0**-100, 2.0**90)
        q, right = torch.empty_like(g), torch.empty_like(g)
        decode_kernel[(1,)](g, q, right, t, BLOCK=BLOCK)
        assert differences(q, right) == 0
