"""The usual quantiser of `mx4.py`, which stores the stream by 32-bit words: E2M1, groups of 32, none partial or apart.

    group 0   | d d d d | d d d d | d d d d | d d d d | s          d: a byte of codes, s: the scale
    group 1     d d d | d d d d | d d d d | d d d d | d s          | where a word of the stream begins
    group 2       d d | d d d d | d d d d | d d d d | d d s
    group 3         d | d d d d | d d d d | d d d d | d d d s |

The 8 elements of a chunk, of which a group has four, give one word of codes. Group i begins i % 4 bytes into a word:
so many upper bytes of the chunk before, or of the last three bytes of codes and the scale of the group before, and the
lower bytes of the chunk are the word to store. One word goes from each chunk to the next, and each stores one; the last
of four groups stores the seventeenth too.

    quantize_words              to nearest, ties away from zero; scales by any rule
    quantize_words_stochastic   elements rounded by a seed: bfloat16, scales by a rule that draws nothing
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels import _pairs, _stochastic_pairs
from lowbit_kernels._codec import (
    NAN_SIGNED_MAX,
    STOCHASTIC,
    encode_e2m1,
    inverse_power_of_two,
    remaining,
    scale_byte,
)
from lowbit_kernels._mx4_kernels import SCALE_LIMIT
from lowbit_kernels._philox import philox_words

_BFLOAT16 = tl.constexpr(_pairs.BFLOAT16)
_FLOAT32 = tl.constexpr(_pairs.FLOAT32)


@triton.jit
def _split(pairs, CHUNKS: tl.constexpr):
    """pairs: (CHUNKS, 4). -> its columns, each (CHUNKS,)."""
    even, odd = tl.split(tl.reshape(pairs, (CHUNKS, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _join(before, codes, shift):
    """The word that begins `shift` bits before the end of `before`: int32, one instruction on a GPU."""
    both = (codes.to(tl.int64) << 32) | (before.to(tl.int64) & 0xFFFFFFFF)
    return ((both << shift.to(tl.int64)) >> 32).to(tl.int32)


@triton.jit(do_not_specialize=["groups", "key_low", "key_high"])
def quantize_words(
    x_ptr,
    stream_ptr,
    groups,
    key_low,
    key_high,
    RULE: tl.constexpr,
    DRAWN: tl.constexpr,
    PAIRS: tl.constexpr,
    PTX: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """stream_ptr: uint8, aligned to words. groups: a multiple of 4. DRAWN: the scale's bits are drawn from the key."""
    CHUNKS: tl.constexpr = BLOCK_M * 4
    first = tl.program_id(0).to(tl.int64) * BLOCK_M  # group
    chunk = tl.arange(0, CHUNKS)
    exists = chunk < remaining(groups, first, BLOCK_M) * 4
    start = x_ptr + first * 16
    if PAIRS == _FLOAT32:  # 16 bytes a load
        pointers = start + (chunk * 4)[:, None] + tl.arange(0, 2)[None, :]
        inside = tl.broadcast_to(exists[:, None], (CHUNKS, 2))
        low, high = tl.load(pointers, mask=inside, other=0), tl.load(pointers + 2, mask=inside, other=0)
        amax = tl.maximum(_pairs.amax_bits(low, True, PAIRS), _pairs.amax_bits(high, True, PAIRS))
        a, b = tl.split(low)
        c, d = tl.split(high)
    else:
        pointers = start + (chunk * 4)[:, None] + tl.arange(0, 4)[None, :]
        loaded = tl.load(pointers, mask=tl.broadcast_to(exists[:, None], (CHUNKS, 4)), other=0)
        amax = _pairs.amax_bits(loaded, True, PAIRS, PTX)  # (CHUNKS,) bits, without NaN
        a, b, c, d = _split(loaded, CHUNKS)
    amax = tl.max(tl.reshape(amax, (BLOCK_M, 4)), axis=1)

    random = 0
    if DRAWN:  # a counter has the words of four groups
        w0, w1, w2, w3 = philox_words(first // 4 + tl.arange(0, BLOCK_M // 4), key_low, key_high, 1)
        words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (BLOCK_M,))
        random = (words >> 1).to(tl.int32)
    byte = scale_byte(amax, random, RULE, 1, 2, SCALE_LIMIT)
    byte = tl.reshape(tl.broadcast_to(byte[:, None], (BLOCK_M, 4)), (CHUNKS,))
    codes = _pairs.encode_chunk(a, b, c, d, inverse_power_of_two(byte), PAIRS, PTX)

    last = ((codes >> 8) & 0xFFFFFF) | (byte << 24)
    handed = tl.where(chunk % 4 == 3, last, codes)
    before = tl.gather(handed, tl.maximum(chunk - 1, 0), 0)
    word = _join(before, codes, (chunk // 4) % 4 * 8)
    pointers = stream_ptr.to(tl.pointer_type(tl.int32)) + first // 4 * 17 + chunk + chunk // 16
    tl.store(pointers, word, mask=exists)
    tl.store(pointers + 1, handed, mask=exists & (chunk % 16 == 15))


@triton.jit
def _stochastic_byte(word, factor, random):
    low, high = _pairs.signed(word, _BFLOAT16)
    first, second = low.to(tl.float32, bitcast=True) * factor, high.to(tl.float32, bitcast=True) * factor
    bits = random.to(tl.int32, bitcast=True)
    first = encode_e2m1(first, bits & 0xFF, STOCHASTIC, NAN_SIGNED_MAX, True, low)
    return first | (encode_e2m1(second, (bits >> 8) & 0xFF, STOCHASTIC, NAN_SIGNED_MAX, True, high) << 4)


@triton.jit
def _stochastic_chunk(a, b, c, d, factor, first, second, PTX: tl.constexpr):
    """`_stochastic_pairs.encode_chunk`, without PTX too."""
    if PTX:
        return _stochastic_pairs.encode_chunk(a, b, c, d, factor, first, second)
    else:
        low = _stochastic_byte(a, factor, first) | (_stochastic_byte(b, factor, first >> 16) << 8)
        return low | (_stochastic_byte(c, factor, second) << 16) | (_stochastic_byte(d, factor, second >> 16) << 24)


@triton.jit(do_not_specialize=["groups", "key_low", "key_high"])
def quantize_words_stochastic(
    x_ptr,
    stream_ptr,
    groups,
    key_low,
    key_high,
    RULE: tl.constexpr,
    PAIRS: tl.constexpr,
    PTX: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """`quantize_words` of bfloat16 with elements rounded by the key's bits, a rule for scales that draws none.

    A thread has the 16 elements of a counter, two chunks; the second hands a word on.
    """
    tl.static_assert(PAIRS == _BFLOAT16)
    UNITS: tl.constexpr = BLOCK_M * 2
    first = tl.program_id(0).to(tl.int64) * BLOCK_M  # group
    unit = tl.arange(0, UNITS)
    exists = unit < remaining(groups, first, BLOCK_M) * 2
    pointers = x_ptr + first * 16 + (unit * 8)[:, None] + tl.arange(0, 4)[None, :]
    inside = tl.broadcast_to(exists[:, None], (UNITS, 4))
    low, high = tl.load(pointers, mask=inside, other=0), tl.load(pointers + 4, mask=inside, other=0)
    amax = tl.maximum(_pairs.amax_bits(low, True, _BFLOAT16, PTX), _pairs.amax_bits(high, True, _BFLOAT16, PTX))
    byte = scale_byte(tl.max(tl.reshape(amax, (BLOCK_M, 2)), axis=1), 0, RULE, 1, 2, SCALE_LIMIT)
    byte = tl.reshape(tl.broadcast_to(byte[:, None], (BLOCK_M, 2)), (UNITS,))
    factor = inverse_power_of_two(byte)
    w0, w1, w2, w3 = philox_words(first * 2 + unit, key_low, key_high, 0)
    a, b, c, d = _split(low, UNITS)
    codes = _stochastic_chunk(a, b, c, d, factor, w0, w1, PTX)
    a, b, c, d = _split(high, UNITS)
    next_codes = _stochastic_chunk(a, b, c, d, factor, w2, w3, PTX)

    last = ((next_codes >> 8) & 0xFFFFFF) | (byte << 24)
    handed = tl.where(unit % 2 == 1, last, next_codes)
    before = tl.gather(handed, tl.maximum(unit - 1, 0), 0)
    shift = (unit // 2) % 4 * 8
    pointers = stream_ptr.to(tl.pointer_type(tl.int32)) + first // 4 * 17 + unit * 2 + unit // 8
    tl.store(pointers, _join(before, codes, shift), mask=exists)
    tl.store(pointers + 1, _join(codes, next_codes, shift), mask=exists)
    tl.store(pointers + 2, handed, mask=exists & (unit % 8 == 7))
