"""Device functions for random bits that depend on a seed and an index alone, never on grid or device.

    philox4x32(c0, c1, c2, c3, k0, k1) -> four uint32 words
    philox_word(index, key_low, key_high, STREAM) -> uint32                      word index % 4 at counter index // 4
    philox_bytes(index, key_low, key_high) -> int32 0..255                       one counter for each element; any index
    pair_words(first, key_low, key_high, COUNTERS) -> uint32 (ROWS, 8 * COUNTERS)   the word of each pair of elements
    pair_bytes(words) -> (low, high) int32 0..255   the bytes of both elements of each pair
    philox_tile(counter, key_low, key_high, ROWS, COUNTERS) -> int32 (ROWS, COUNTERS * 16)      one for sixteen elements
    draw_bytes(first, random_ptr, inside, key_low, key_high, RANDOM, ROWS, COLUMNS) -> int32 (ROWS, COLUMNS)

The bits (SPEC.md section 2): Philox4x32-10, key = (seed low, seed high), counter = (n low, n high, stream, 0).

    stream 0, elements   byte i of the stream is byte i % 4 of word (i // 4) % 4 at n = i // 16, little-endian
    stream 1, groups     word g % 4 at n = g // 4; 31 bits of it: word >> 1

Kernels take the halves of the seed as int32 arguments that are not specialised, so that a new seed compiles nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

RANDOM_NONE = 0
RANDOM_GIVEN = 1
RANDOM_TILE = 2
RANDOM_INDEX = 3
_GIVEN = tl.constexpr(RANDOM_GIVEN)
_TILE = tl.constexpr(RANDOM_TILE)
_INDEX = tl.constexpr(RANDOM_INDEX)


@triton.jit
def _multiply(c, MULTIPLIER: tl.constexpr):
    """The high and the low word of a product, which are one instruction where it is formed in 64 bits."""
    product = c.to(tl.uint64) * MULTIPLIER
    return (product >> 32).to(tl.uint32), product.to(tl.uint32)


@triton.jit
def philox4x32(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 (Salmon et al. 2011). Counters, keys: uint32, shapes that broadcast. -> four uint32 words."""
    for _ in tl.static_range(10):
        high0, low0 = _multiply(c0, 0xD2511F53)
        high2, low2 = _multiply(c2, 0xCD9E8D57)
        c0 = high2 ^ c1 ^ k0
        c1 = low2
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def philox_words(counter, key_low, key_high, STREAM: tl.constexpr):
    """counter: any shape, int64. key_low, key_high: int32 scalars. -> the four uint32 words at (counter, STREAM, 0)."""
    tl.static_assert(counter.dtype == tl.int64)  # else what passes 2**31, which no test can reach, would be lost
    zero = tl.zeros_like(counter).to(tl.uint32)
    low = counter.to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    k0 = zero + key_low.to(tl.uint32, bitcast=True)
    k1 = zero + key_high.to(tl.uint32, bitcast=True)
    return philox4x32(low, high, zero + STREAM, zero, k0, k1)


@triton.jit
def philox_word(index, key_low, key_high, STREAM: tl.constexpr):
    """index: any shape, int64. -> uint32 word index % 4 at counter index // 4 of a stream."""
    w0, w1, w2, w3 = philox_words(index >> 2, key_low, key_high, STREAM)
    which = (index & 3).to(tl.int32)
    return tl.where(which < 2, tl.where(which == 0, w0, w1), tl.where(which == 2, w2, w3))


@triton.jit
def philox_bytes(index, key_low, key_high):
    """index: any shape, int64, row-major index of the element in x. -> int32 0..255, stream 0."""
    word = philox_word(index >> 2, key_low, key_high, 0)
    return ((word >> ((index & 3) * 8).to(tl.uint32)) & 0xFF).to(tl.int32)


@triton.jit
def _pick(lane, w0, w1, w2, w3):
    return tl.where(lane < 4, tl.where(lane < 2, w0, w1), tl.where(lane < 6, w2, w3))


@triton.jit
def pair_words(first, key_low, key_high, COUNTERS: tl.constexpr):
    """For each pair of 16 * COUNTERS elements a row the word of stream 0 with its two bytes.

    first: (ROWS,) int64, a row's first counter. COUNTERS: 1 or 2. -> (ROWS, 8 * COUNTERS) uint32: bytes 0 and 1 are
    those of an even pair, 2 and 3 those of an odd one. A thread that has a row calculates its counters alone.
    """
    tl.static_assert((COUNTERS == 1) | (COUNTERS == 2))
    lane = tl.arange(0, 8 * COUNTERS)[None, :]
    w0, w1, w2, w3 = philox_words(first[:, None], key_low, key_high, 0)
    words = _pick(lane & 7, w0, w1, w2, w3)
    if COUNTERS == 2:
        w0, w1, w2, w3 = philox_words(first[:, None] + 1, key_low, key_high, 0)
        words = tl.where(lane < 8, words, _pick(lane & 7, w0, w1, w2, w3))
    return words


@triton.jit
def pair_bytes(words):
    """words: (ROWS, n) of `pair_words`. -> two (ROWS, n) int32 0..255, the bytes of a pair's low and high element."""
    lane = tl.arange(0, words.shape[1])[None, :]
    half = (words >> ((lane & 1) * 16).to(tl.uint32)).to(tl.int32, bitcast=True)
    return half & 0xFF, (half >> 8) & 0xFF


@triton.jit
def philox_tile(counter, key_low, key_high, ROWS: tl.constexpr, COUNTERS: tl.constexpr):
    """The bytes of elements 16 * counter .. 16 * counter + 15 of stream 0.

    counter: (ROWS, COUNTERS) int64. -> (ROWS, COUNTERS * 16) int32 0..255.
    """
    w0, w1, w2, w3 = philox_words(counter, key_low, key_high, 0)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # (ROWS, COUNTERS, 2, 2): [.., i, j] is word 2i + j
    words = tl.reshape(words, (ROWS, COUNTERS * 4, 1))
    shifts = (tl.arange(0, 4) * 8).to(tl.uint32)[None, None, :]
    return tl.reshape(((words >> shifts) & 0xFF).to(tl.int32), (ROWS, COUNTERS * 16))


@triton.jit
def draw_bytes(
    first,
    random_ptr,
    inside,
    key_low,
    key_high,
    RANDOM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The random byte of each element of a tile of ROWS runs of COLUMNS consecutive elements.

    first: (ROWS,) int64, row-major index of a run's first element in the unpadded x.
    random_ptr: uint8, row-major; read where RANDOM is RANDOM_GIVEN. inside: (ROWS, COLUMNS), elements that exist.
    RANDOM: RANDOM_TILE promises that every `first` of an existing element is a multiple of 16; RANDOM_INDEX nothing.
    -> (ROWS, COLUMNS) int32 0..255; the scalar 0 for RANDOM_NONE.
    """
    if RANDOM == _GIVEN:
        lane = tl.arange(0, COLUMNS)[None, :]
        return tl.load(random_ptr + first[:, None] + lane, mask=inside, other=0).to(tl.int32)
    elif RANDOM == _TILE:
        counter = (first >> 4)[:, None] + tl.arange(0, COLUMNS // 16)[None, :]
        return philox_tile(counter, key_low, key_high, ROWS, COLUMNS // 16)
    elif RANDOM == _INDEX:
        return philox_bytes(first[:, None] + tl.arange(0, COLUMNS)[None, :], key_low, key_high)
    else:
        return 0
