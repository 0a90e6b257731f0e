"""The decoding kernel behind `nvfp4.py`, which draws the format; `_nvfp4_table.py` has another for 16-bit results.

Tiles are blocks of 16 elements, (BLOCK_M, 8) bytes. With PAIRS (see `_pairs.py`, the usual case) they
are stored as (BLOCK_M, 8) words of two elements: no thread needs another's codes. Every load and store is masked by the
blocks that exist.

    decoded = RN(dtype)(RN32(RN32(value * s) / g))          value * s has six significant bits and is exact

Dividing by g. With t = |value * s|, g = m * 2**k, 1 <= m < 2, t' = t * 2**-k and r = RN32(1 / m),

    z = RN32(t' * r)        q = fma(fma(-z, m, t'), r, z)

is RN32(t / g) for all 2**23 m and all 13 significands of t (each was tried; powers of two change nothing), as long as
no intermediate leaves the normal range: 2**-100 <= g <= 2**90 ensures that, t' being 0 or at least 2**-101 and the
remainder then a multiple of 2**-148. Any other g, among them 0, Inf and NaN, divides each element; that is done in
small chunks, so that it takes no registers from the usual way.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels import _pairs
from lowbit_kernels._codec import (
    INFINITY_BITS,
    MAGNITUDE_BITS,
    join_codes,
    power_of_two_constant,
    round_bfloat16,
)
from lowbit_kernels._e4m3 import FUSED, decode_e4m3
from lowbit_kernels._launch import INTERPRETED

_FLOAT16 = tl.constexpr(_pairs.FLOAT16)
_FLOAT32 = tl.constexpr(_pairs.FLOAT32)
_INTERPRETED = tl.constexpr(INTERPRETED)
_PLAIN = tl.constexpr(0)
_MULTIPLY = tl.constexpr(1)
_DIVIDE = tl.constexpr(2)
FAST_FROM = tl.constexpr(2.0**-100)
FAST_TO = tl.constexpr(2.0**90 if FUSED.value else 0.0)


@triton.jit
def _bits(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def _float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _magnitude(codes, scale, g, MODE: tl.constexpr):
    """float32 |RN32(value * s / g)| of E2M1 magnitude codes, int32 0..7. scale: |s|, broadcastable. g: scalar."""
    value = _float(codes << 22) * power_of_two_constant(126)
    if MODE == _PLAIN:
        return value * scale
    elif MODE == _MULTIPLY:
        significand = _float((_bits(g) & 0x7FFFFF) | 0x3F800000)
        reciprocal = tl.div_rn(1.0, significand)
        t = value * (scale * _float((254 << 23) - (_bits(g) & INFINITY_BITS)))
        z = t * reciprocal
        return tl.fma(tl.fma(-z, significand, t), reciprocal, z)
    else:
        divisor = _float(_bits(g) & MAGNITUDE_BITS)
        return tl.div_rn(value * scale, tl.broadcast_to(divisor, value.shape))


@triton.jit
def _narrow(x, dtype: tl.constexpr):
    """float32 -> dtype, to nearest, ties to even, subnormals kept."""
    if dtype == tl.bfloat16 and _INTERPRETED:
        return round_bfloat16(x)
    return x.to(dtype)


@triton.jit
def _half(x, PAIRS: tl.constexpr):
    """float32 >= 0 or NaN. -> int32 whose low 16 bits are the bfloat16 or binary16 pattern, the others 0."""
    narrow = _narrow(x, tl.float16 if PAIRS == _FLOAT16 else tl.bfloat16)
    return narrow.to(tl.uint16, bitcast=True).to(tl.int32)


@triton.jit
def _decode(
    packed_ptr,
    scales_ptr,
    out_ptr,
    first,
    blocks,
    g,
    MODE: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Blocks first .. first + BLOCK_M - 1, as far as they exist."""
    block = tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    exists = block < blocks - first
    byte = tl.load(scales_ptr + first + block, mask=exists, other=0).to(tl.int32)[:, None]
    offsets = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    packed = tl.load(packed_ptr + first * 8 + offsets, mask=exists[:, None], other=0).to(tl.int32)
    scale = decode_e4m3(byte & 0x7F)  # (BLOCK_M, 1)
    flip = byte << 24
    if MODE == _DIVIDE:
        flip ^= _bits(g)
    flip &= ~MAGNITUDE_BITS

    if PAIRS:
        low = _magnitude(packed & 7, scale, g, MODE)  # (BLOCK_M, 8)
        high = _magnitude((packed >> 4) & 7, scale, g, MODE)
        if PAIRS == _FLOAT32:
            low_bits = _bits(low) ^ (((packed << 28) ^ flip) & ~MAGNITUDE_BITS)
            high_bits = _bits(high) ^ (((packed << 24) ^ flip) & ~MAGNITUDE_BITS)
            words = (high_bits.to(tl.int64) << 32) | (low_bits.to(tl.int64) & 0xFFFFFFFF)
        else:
            signs = ((packed & 8) << 12) | ((packed & 0x80) << 24)
            words = (_half(low, PAIRS) | (_half(high, PAIRS) << 16)) ^ signs ^ (flip | ((flip >> 16) & 0x8000))
        tl.store(out_ptr + first * 8 + offsets, words, mask=exists[:, None])
    else:
        codes = join_codes(packed, BLOCK_M, 8)  # (BLOCK_M, 16)
        bits = _bits(_magnitude(codes & 7, scale, g, MODE)) ^ (((codes << 28) ^ flip) & ~MAGNITUDE_BITS)
        result = _narrow(_float(bits), out_ptr.dtype.element_ty)
        offsets = block[:, None] * 16 + tl.arange(0, 16)[None, :]
        tl.store(out_ptr + first * 16 + offsets, result, mask=tl.broadcast_to(exists[:, None], (BLOCK_M, 16)))


@triton.jit
def dequantize_kernel(
    packed_ptr,
    scales_ptr,
    g_ptr,
    out_ptr,
    blocks,
    HAS_SCALE: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """out_ptr: of the output's dtype, with PAIRS of its words."""
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    if HAS_SCALE:
        g = tl.load(g_ptr)
        if (g >= FAST_FROM) & (g <= FAST_TO):
            _decode(packed_ptr, scales_ptr, out_ptr, first, blocks, g, _MULTIPLY, PAIRS, BLOCK_M)
        else:
            for start in range(0, BLOCK_M, CHUNK):
                _decode(packed_ptr, scales_ptr, out_ptr, first + start, blocks, g, _DIVIDE, PAIRS, CHUNK)
    else:
        _decode(packed_ptr, scales_ptr, out_ptr, first, blocks, 1.0, _PLAIN, PAIRS, BLOCK_M)
