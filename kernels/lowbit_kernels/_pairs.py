"""Two neighbours a load: elements that share an aligned word of twice their width.

    word    low half: element 2j        high half: element 2j + 1        →    byte j: low nibble, high nibble

so that the two codes of a byte meet in one thread, and one integer operation serves two 16-bit elements.

    view_pairs(x2d, row_stride, column_stride) -> (tensor, PAIRS, row_stride)      host: words where they are aligned
    output_pairs(out, columns) -> (tensor, PAIRS)                                  host: the same for a result
    output_words(out, columns) -> (PAIRS, dtype)                                   host: the same without a view

    magnitudes(words, PAIRS) -> (low, high) int32 bits of float32 |x|
    signed(words, PAIRS) -> (low, high) int32 bits of float32 x
    amax_bits(words, IGNORE_NAN, PAIRS, PTX) -> (ROWS,) int32 bits of the largest magnitude of each row of words
    encode_pairs(words, factor, ROUNDING, NAN, EXPONENT_BITS, PAIRS, HARDWARE, PTX) -> two codes of x * factor in the
        low byte; with HARDWARE by the device's instruction (`_e2m1_hardware.py`)
    encode_chunk(a, b, c, d, factor, PAIRS, PTX) -> int32, the codes of four words
    sign_bits(words, CLEAR_NAN, PAIRS) -> int32 with x's signs in bits 3 and 7, anything above bit 7
    to_words(low, high, signs, PAIRS) -> words of two magnitudes, float32 held exactly by bfloat16, and two signs

NaN costs nothing to find: the addend takes exactly the patterns above infinity to the sign bit of their half. With PTX
(`_launch.takes_ptx`) bfloat16 has the same bits by fewer instructions (`_bfloat16_pairs.py`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lowbit_kernels import _bfloat16_pairs
from lowbit_kernels._codec import (
    MAGNITUDE_BITS,
    NAN_POSITIVE_MAX,
    NAN_SIGNED_MAX,
    TIES_AWAY,
    TIES_TO_EVEN,
    encode_e2m1,
    encode_e3m0,
    widen,
)
from lowbit_kernels._e2m1_hardware import convert_pair
from lowbit_kernels._e4m3 import nearest_e2m1

NONE, BFLOAT16, FLOAT16, FLOAT32 = 0, 1, 2, 3

_WORDS = {
    torch.bfloat16: (BFLOAT16, torch.int32),
    torch.float16: (FLOAT16, torch.int32),
    torch.float32: (FLOAT32, torch.int64),
}
_BFLOAT16 = tl.constexpr(BFLOAT16)
_FLOAT16 = tl.constexpr(FLOAT16)
_FLOAT32 = tl.constexpr(FLOAT32)

_BOTH_MAGNITUDES = tl.constexpr(0x7FFF7FFF)
_BOTH_SIGNS = tl.constexpr(-0x7FFF8000)  # 0x80008000 as int32
_FIRST_NAN = {FLOAT32: 0x7F800001, BFLOAT16: 0x7F81, FLOAT16: 0x7C01}


@triton.constexpr_function
def above_infinity(PAIRS: int) -> int:
    """What takes the least NaN's magnitude, and nothing below it, to the sign bit."""
    return (0x80000000 if PAIRS == FLOAT32 else 0x8000) - _FIRST_NAN[PAIRS]


def view_pairs(x2d: torch.Tensor, row_stride: int, column_stride: int) -> tuple[torch.Tensor, int, int]:
    """What to load of a (rows, K) tensor with K even: words of two elements if every pair is one, else the elements.

    Returns:
      The tensor, the constexpr PAIRS (NONE for elements) and the row stride in what is loaded.
    """
    number, word = _WORDS[x2d.dtype]
    aligned = x2d.data_ptr() % word.itemsize == 0 and x2d.storage_offset() % 2 == 0
    if column_stride == 1 and x2d.stride(0) % 2 == 0 and row_stride % 2 == 0 and aligned:
        return x2d.view(word), number, row_stride // 2
    return x2d, NONE, row_stride


def output_pairs(out: torch.Tensor, columns: int) -> tuple[torch.Tensor, int]:
    """What to store a contiguous result with rows of `columns` as: words of two elements if all are aligned."""
    number, word = output_words(out, columns)
    if word is None:
        return out, number
    if any(stride % 2 for stride in out.stride()[:-1]):  # of a dimension of one element, which is no stride
        out = out.view(-1)
    return out.view(word), number


def output_words(out: torch.Tensor, columns: int) -> tuple[int, torch.dtype | None]:
    """The PAIRS of `output_pairs`, and the dtype of its words, None for elements, without a view of them."""
    number, word = _WORDS[out.dtype]
    if columns % 2 == 0 and out.data_ptr() % word.itemsize == 0 and out.storage_offset() % 2 == 0:
        return number, word
    return NONE, None


@triton.jit
def magnitudes(words, PAIRS: tl.constexpr):
    """words: any shape, int32, or int64 of two float32. -> the low and the high element's |x| as int32 float32 bits."""
    if PAIRS == _FLOAT32:
        return words.to(tl.int32) & MAGNITUDE_BITS, (words >> 32).to(tl.int32) & MAGNITUDE_BITS
    return signed(words & _BOTH_MAGNITUDES, PAIRS)


@triton.jit
def signed(words, PAIRS: tl.constexpr):
    """words: any shape, int32, or int64 of two float32. -> the low and the high element as int32 bits of float32."""
    if PAIRS == _FLOAT32:
        return words.to(tl.int32), (words >> 32).to(tl.int32)
    elif PAIRS == _BFLOAT16:
        return words << 16, words & -0x10000
    else:
        low = widen(words.to(tl.int16).to(tl.float16, bitcast=True))
        high = widen((words >> 16).to(tl.int16).to(tl.float16, bitcast=True))
        return low.to(tl.int32, bitcast=True), high.to(tl.int32, bitcast=True)


@triton.jit
def amax_bits(words, IGNORE_NAN: tl.constexpr, PAIRS: tl.constexpr, PTX: tl.constexpr = False):
    """The largest magnitude of each row.

    words: (ROWS, n) int32, or int64 of two float32. -> (ROWS,) int32 bits of float32. NaN is larger than Inf, or, with
    IGNORE_NAN, counts as 0. A high half is compared with its neighbour's bits below its own; they decide nothing.
    """
    ADDEND: tl.constexpr = above_infinity(PAIRS) if IGNORE_NAN else 0
    PACKED: tl.constexpr = PTX and PAIRS == _BFLOAT16
    if PACKED:
        return _bfloat16_pairs.amax(words, IGNORE_NAN)
    elif PAIRS == _FLOAT32:
        low, high = magnitudes(words, PAIRS)
        key = tl.max(tl.maximum(low + ADDEND, high + ADDEND), axis=1)
        return tl.maximum(key, ADDEND) - ADDEND
    else:
        keys = (words & _BOTH_MAGNITUDES) + ADDEND * 0x10001
        key = tl.maximum(tl.max(tl.maximum(keys, keys << 16), axis=1) >> 16, ADDEND) - ADDEND
        if PAIRS == _BFLOAT16:
            return key << 16
        return key.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def sign_bits(words, CLEAR_NAN: tl.constexpr, PAIRS: tl.constexpr):
    """words: any shape. -> int32: the low element's sign in bit 3, the high one's in bit 7, no others below bit 8.

    CLEAR_NAN: NaN counts as positive.
    """
    if PAIRS == _FLOAT32:
        low, high = signed(words, PAIRS)
        if CLEAR_NAN:
            low = low & ~((low & MAGNITUDE_BITS) + above_infinity(PAIRS))
            high = high & ~((high & MAGNITUDE_BITS) + above_infinity(PAIRS))
        return ((low >> 28) & 8) | ((high >> 24) & 0x80)
    else:
        if CLEAR_NAN:
            words = words & ~((words & _BOTH_MAGNITUDES) + above_infinity(PAIRS) * 0x10001)
        signs = words & _BOTH_SIGNS
        return (signs >> 12) | (signs >> 24)


@triton.jit
def encode_pairs(
    words,
    factor,
    ROUNDING: tl.constexpr,
    NAN: tl.constexpr,
    EXPONENT_BITS: tl.constexpr,
    PAIRS: tl.constexpr,
    HARDWARE: tl.constexpr = False,
    PTX: tl.constexpr = False,
):
    """words: (ROWS, n); factor: (ROWS, 1) float32, powers of two. -> (ROWS, n) integers, two codes in the low byte.

    E2M1 to nearest, ties to even or away, takes a few multiply-adds (`nearest_e2m1`). Ties go away from zero because x
    is then multiplied by factor * (1 + 2**-23), up to two units in the last place more: the product lies above a tie
    that x * factor is equal to. It stays below a tie that x * factor is below, because that is at least 8 units below:
    16-bit elements have zeros there, float32 ones get them, which takes no value past a tie.
    """
    FAST: tl.constexpr = EXPONENT_BITS == 2 and ((ROUNDING == TIES_TO_EVEN) | (ROUNDING == TIES_AWAY))
    PACKED: tl.constexpr = PTX and PAIRS == _BFLOAT16 and EXPONENT_BITS == 2
    EVEN: tl.constexpr = ROUNDING == TIES_TO_EVEN and NAN == NAN_POSITIVE_MAX
    AWAY: tl.constexpr = ROUNDING == TIES_AWAY and NAN == NAN_SIGNED_MAX
    if HARDWARE:
        tl.static_assert(EXPONENT_BITS == 2 and ROUNDING == TIES_TO_EVEN)
        tl.static_assert((NAN == NAN_POSITIVE_MAX) | (NAN == NAN_SIGNED_MAX))
        low, high = magnitudes(words, PAIRS)
        both = convert_pair(low.to(tl.float32, bitcast=True) * factor, high.to(tl.float32, bitcast=True) * factor)
        return both | sign_bits(words, NAN == NAN_POSITIVE_MAX, PAIRS)
    elif PACKED and EVEN:
        return _bfloat16_pairs.encode_even(words, factor)
    elif PACKED and AWAY:
        return _bfloat16_pairs.encode_away(words, factor)
    elif FAST:
        tl.static_assert((NAN == NAN_POSITIVE_MAX) | (NAN == NAN_SIGNED_MAX))
        low, high = magnitudes(words, PAIRS)
        if ROUNDING == TIES_AWAY:
            factor = (factor.to(tl.int32, bitcast=True) | 1).to(tl.float32, bitcast=True)
            if PAIRS == _FLOAT32:
                low &= -8
                high &= -8
        first = nearest_e2m1(low.to(tl.float32, bitcast=True) * factor, True)
        second = nearest_e2m1(high.to(tl.float32, bitcast=True) * factor, True)
        return (first + second * 16).to(tl.int32, bitcast=True) | sign_bits(words, NAN == NAN_POSITIVE_MAX, PAIRS)
    else:
        NARROW: tl.constexpr = PAIRS != _FLOAT32
        low, high = signed(words, PAIRS)
        scaled_low = low.to(tl.float32, bitcast=True) * factor
        scaled_high = high.to(tl.float32, bitcast=True) * factor
        if EXPONENT_BITS == 2:
            first = encode_e2m1(scaled_low, 0, ROUNDING, NAN, NARROW, low)
            second = encode_e2m1(scaled_high, 0, ROUNDING, NAN, NARROW, high)
        else:
            first = encode_e3m0(scaled_low, 0, ROUNDING, NAN, NARROW, low)
            second = encode_e3m0(scaled_high, 0, ROUNDING, NAN, NARROW, high)
        return first | (second << 4)


@triton.jit
def encode_chunk(a, b, c, d, factor, PAIRS: tl.constexpr, PTX: tl.constexpr = False):
    """`encode_pairs` to E2M1, ties away from zero, NaN with its sign, of four words that have the same factor.

    a .. d: any shape; factor: float32 of that shape. -> int32 of that shape, byte i the codes of word i.
    """
    PACKED: tl.constexpr = PTX and PAIRS == _BFLOAT16
    if PACKED:
        return _bfloat16_pairs.encode_away_chunk(a, b, c, d, factor)
    else:
        first = encode_pairs(a, factor, TIES_AWAY, NAN_SIGNED_MAX, 2, PAIRS) & 0xFF
        second = encode_pairs(b, factor, TIES_AWAY, NAN_SIGNED_MAX, 2, PAIRS) & 0xFF
        third = encode_pairs(c, factor, TIES_AWAY, NAN_SIGNED_MAX, 2, PAIRS) & 0xFF
        fourth = encode_pairs(d, factor, TIES_AWAY, NAN_SIGNED_MAX, 2, PAIRS)
        return first | (second << 8) | (third << 16) | (fourth << 24)


@triton.jit
def to_words(low, high, signs, PAIRS: tl.constexpr):
    """low, high: any shape, float32 >= 0 that bfloat16 holds exactly, or NaN. -> words to store, rounded once.

    signs: int32 of that shape, bits 3 and 7.
    """
    if PAIRS == _FLOAT32:
        low_bits = low.to(tl.int32, bitcast=True) | ((signs & 8) << 28)
        high_bits = high.to(tl.int32, bitcast=True) | ((signs & 0x80) << 24)
        return (high_bits.to(tl.int64) << 32) | (low_bits.to(tl.int64) & 0xFFFFFFFF)
    else:
        both = ((signs & 8) << 12) | ((signs & 0x80) << 24)
        if PAIRS == _BFLOAT16:
            low_half = (low.to(tl.int32, bitcast=True) >> 16) & 0xFFFF
            high_half = high.to(tl.int32, bitcast=True) & -0x10000
        else:
            low_half = low.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
            high_half = high.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32) << 16
        return low_half | high_half | both
