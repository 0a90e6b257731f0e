"""Weight codes to words and back, for the packing of every weight scheme.

    AWQ          bits 4i..4i+3 of word c hold column 8c + [0, 2, 4, 6, 1, 3, 5, 7][i]    columns 0..7 = 0..7: 0x75316420
    GPTQ         value i at bits b*i..b*i+b-1 of a stream of 32-bit words, down K for codes, along N for zero points;
    SqueezeLLM   fields of 3 bits cross words                       3 bits, 0..7 four times: 88fac688 c688fac6 fac688fa
    NF4, FP4     byte j = element 2j in the high nibble, 2j + 1 in the low one            elements 1, 2: 0x12
    int8         one code a byte, two's complement

The permutations and widths are those of `WordPacking`; nothing here knows a family. A code out of range raises: it
would spill into its neighbour.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.rules import ZeroPoint
from lowbit.weights import WeightScheme, WordPacking

_WORDS: dict[int, np.dtype[Any]] = {8: np.dtype(np.uint8), 32: np.dtype(np.int32)}


def pack_codes(codes: Any, scheme: WeightScheme) -> npt.NDArray[Any]:
    """Codes as the scheme stores them.

    Args:
      codes: any integer dtype. (K, N) for awq, gptq and squeezellm; any shape for nf4 and fp4; (N, K) for int8.

    Returns:
      int32 words of the shape of `qweight`; (ceil(n / 2),) uint8, a last low nibble without element 0; (N, K) int8.

    Raises:
      ArgumentError: a code out of range; names its place and value.
      DtypeError: no integers.
      ShapeError: not two dimensions; no whole number of words.

    Spec: SPEC.md 5.
    """
    codes = _integers("codes", codes, scheme.code_range)
    if scheme.signed:
        return codes.astype(np.int8)
    if scheme.packing.word_bits == 8:
        flat = codes.reshape(-1)
        return pack_words(np.pad(flat, (0, -flat.size % scheme.packing.period_codes)), scheme.packing)
    return pack_words(_matrix("codes", codes), scheme.packing)


def unpack_codes(stored: npt.NDArray[Any], scheme: WeightScheme, *, shape: tuple[int, ...] | None = None) -> Any:
    """The inverse of `pack_codes`.

    Args:
      stored: `qweight`, `packed` or `weight`.
      shape: of the codes, for nf4 and fp4, which do not store it.

    Returns:
      One code a byte: uint8, of int8 int8.

    Raises:
      ShapeError: `stored` does not hold that many codes, or no whole number of them.
    """
    if scheme.signed:
        return _stored("stored", stored, np.dtype(np.int8))
    if scheme.packing.word_bits == 8:
        if shape is None:
            raise ArgumentError(f"shape: got None, want the shape of the weight for {scheme.name}")
        count = math.prod(shape)
        if stored.shape != (scheme.packing.words(count),):
            raise ShapeError(f"stored: got shape {stored.shape}, want ({scheme.packing.words(count)},) for {shape}")
        return unpack_words(stored, scheme.packing)[:count].reshape(shape)
    return unpack_words(_matrix("stored", stored), scheme.packing)


def pack_zeros(zeros: Any, scheme: WeightScheme) -> npt.NDArray[np.int32]:
    """Zero points as the scheme stores them: z, or z - 1 with the field wrapping around.

    Args:
      zeros: (groups, N), any integer dtype. 0..2**bits - 1.

    Returns:
      int32 words of the shape of `qzeros`.

    Raises:
      ArgumentError: a zero point out of range; a scheme that has none.
      DtypeError, ShapeError: as `pack_codes`.

    Spec: SPEC.md 5.1, 5.2.
    """
    packing = _zero_packing(scheme)
    zeros = _matrix("zeros", _integers("zeros", zeros, scheme.code_range))
    if scheme.zero is ZeroPoint.STORED_MINUS_ONE:
        zeros = (zeros.astype(np.int64) - 1) & scheme.code_range[1]
    return pack_words(zeros, packing, name="zeros")


def unpack_zeros(stored: npt.NDArray[np.int32], scheme: WeightScheme) -> npt.NDArray[np.uint8]:
    """The inverse of `pack_zeros`: the zero points that are subtracted, not the fields.

    Returns:
      (groups, N) uint8.
    """
    zeros = unpack_words(_matrix("stored", stored), _zero_packing(scheme), name="stored")
    if scheme.zero is ZeroPoint.STORED_MINUS_ONE:
        return ((zeros.astype(np.int64) + 1) & scheme.code_range[1]).astype(np.uint8)
    return zeros


def pack_words(codes: Any, packing: WordPacking, *, name: str = "codes") -> npt.NDArray[Any]:
    """Codes in words, along the packing's axis.

    Args:
      codes: any integer dtype; along the axis a whole number of words.
      name: of the argument, for messages.

    Returns:
      int32 or uint8, shorter along the axis.

    Raises:
      ArgumentError: a code of more than `packing.bits` bits, or below 0.
      DtypeError: no integers.
      ShapeError: no whole number of words.
    """
    codes = np.moveaxis(_integers(name, codes, (0, (1 << packing.bits) - 1)), packing.axis, -1)
    count = codes.shape[-1]
    if count % packing.period_codes:
        raise ShapeError(
            f"{name}: got {count} along dimension {packing.axis}, want a multiple of {packing.period_codes}: "
            f"{packing.period_codes} codes of {packing.bits} bits fill whole words"
        )
    stream = codes[..., _places(packing, count)].astype(np.uint8)
    bits = np.unpackbits(stream[..., None], axis=-1, count=packing.bits, bitorder="little")
    packed = np.packbits(bits.reshape(*codes.shape[:-1], count * packing.bits), axis=-1, bitorder="little")
    dtype = _WORDS[packing.word_bits]
    words = np.ascontiguousarray(packed).view(dtype.newbyteorder("<")).astype(dtype)
    return np.ascontiguousarray(np.moveaxis(words, -1, packing.axis))


def unpack_words(words: npt.NDArray[Any], packing: WordPacking, *, name: str = "words") -> npt.NDArray[np.uint8]:
    """The inverse of `pack_words`.

    Args:
      words: int32 or uint8.

    Returns:
      uint8, one code a byte, longer along the axis.

    Raises:
      DtypeError: words of another dtype.
      ShapeError: words that end inside a code.
    """
    dtype = _WORDS[packing.word_bits]
    words = np.moveaxis(_stored(name, words, dtype), packing.axis, -1)
    if words.shape[-1] % packing.period_words:
        raise ShapeError(
            f"{name}: got {words.shape[-1]} words along dimension {packing.axis}, want a multiple of "
            f"{packing.period_words}: {packing.period_codes} codes of {packing.bits} bits fill so many"
        )
    data = np.ascontiguousarray(words).astype(dtype.newbyteorder("<")).view(np.uint8)
    bits = np.unpackbits(data, axis=-1, bitorder="little")
    count = words.shape[-1] * packing.word_bits // packing.bits
    fields = np.packbits(bits.reshape(*words.shape[:-1], count, packing.bits), axis=-1, bitorder="little")[..., 0]
    codes = np.empty_like(fields)
    codes[..., _places(packing, count)] = fields
    return np.ascontiguousarray(np.moveaxis(codes, -1, packing.axis))


def _places(packing: WordPacking, count: int) -> npt.NDArray[np.intp] | slice:
    """Which code each field of the stream holds: `WordPacking.place` of all at once."""
    if packing.order == (0,):
        return slice(None)
    position, run = np.arange(count), len(packing.order)
    return position // run * run + np.array(packing.order)[position % run]


def _integers(name: str, values: Any, allowed: tuple[int, int]) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise DtypeError(f"{name}: got {array.dtype}, want integers")
    low, high = allowed
    wrong = np.argwhere((array < low) | (array > high))
    if wrong.size:
        place = tuple(map(int, wrong[0]))
        raise ArgumentError(f"{name}: got {int(array[place])} at {place}, want {low}..{high}: more bits would spill")
    return array


def _stored(name: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if array.dtype != dtype:
        raise DtypeError(f"{name}: got {array.dtype}, want {dtype}")
    return array


def _matrix(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.ndim != 2:
        raise ShapeError(f"{name}: got shape {array.shape}, want two dimensions")
    return array


def _zero_packing(scheme: WeightScheme) -> WordPacking:
    if scheme.zero_packing is None:
        raise ArgumentError(f"scheme: got {scheme.name}, which has no zero points")
    return scheme.zero_packing
