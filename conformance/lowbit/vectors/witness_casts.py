"""Other packages' conversions between values and codes: gfloat, ml_dtypes, fpy2, bitstring.

They judge codes of formats, rows of breakpoints, thresholds of stochastic rounding, and the elements of blocks with a
power-of-two scale, which divides exactly. Where a package is known to differ it is not asked.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import schemes
from lowbit.formats import E8M0, FORMATS, FloatFormat
from lowbit.references import witnesses as outside
from lowbit.rules import NonFinite, Rounding
from lowbit.vectors.case import Block, Code, Row, Thresholds
from lowbit.vectors.group import Group
from lowbit.vectors.hextext import word
from lowbit.vectors.votes import Answer, Witness

Codes = npt.NDArray[np.int16]
Encoder = Callable[[npt.NDArray[np.uint32], FloatFormat, Rounding, npt.NDArray[np.uint8] | None], Codes]
"""(binary32 patterns, element, rounding, random bytes) -> codes, or NO_ANSWER where it is not asked."""

Decoder = Callable[[int, FloatFormat], float | None]

NO_ANSWER = outside.NO_ANSWER

Question = tuple[str, str, int, int, int]
"""Case, question, binary32 pattern, random byte or -1, right code."""


def asks(encode: Encoder, decode: Decoder | None) -> Callable[[Group], Iterator[Answer]]:
    """A witness's `ask`."""

    def ask(group: Group) -> Iterator[Answer]:
        if group.form == "codes" and decode is not None:
            yield from _values(group, decode)
            return
        rounding, element = _rule(group)
        if rounding is None or element is None:
            return
        questions = list(_questions(group))
        if not questions:
            return
        at = np.array([q[2] for q in questions], np.uint32)
        randoms = np.array([max(q[3], 0) for q in questions], np.uint8) if rounding is Rounding.STOCHASTIC else None
        digits = -(-element.bits // 4)
        for (case, question, _, _, right), code in zip(questions, encode(at, element, rounding, randoms), strict=True):
            if code != NO_ANSWER:
                yield Answer(case, question, f"{code:0{digits}x}", f"{right:0{digits}x}")

    return ask


def _rule(group: Group) -> tuple[Rounding | None, FloatFormat | None]:
    if group.format:
        return (Rounding(group.rounding) if group.rounding else None), FORMATS[group.format]
    if group.scheme and group.form in ("blocks", "stream"):
        scheme = schemes.get(group.scheme)
        if scheme.family in ("mx4", "mxfp4"):
            return scheme.rounding, scheme.element
    return None, None


def _questions(group: Group) -> Iterator[Question]:
    for case in group.cases:
        if isinstance(case, Row):
            for end in dict.fromkeys((case.first, case.last)):
                if end & 0x7FFFFFFF < 0x7F800000:
                    yield case.name, f"code of {word(end)}", end, -1, case.code
        elif isinstance(case, Thresholds):
            for r, first in enumerate(case.firsts.tolist()):
                yield case.name, f"code of {word(first)}, random byte {r:02x}", first, r, case.code
                below = first - 1
                yield case.name, f"code of {word(below)}, random byte {r:02x}", below, r, case.code - 1
        elif isinstance(case, Block):
            yield from _elements(case, group)


def _elements(case: Block, group: Group) -> Iterator[Question]:
    """The finite elements whose scaled value is a binary32 number; with a seed they are left out."""
    scheme = schemes.get(group.subject)
    stochastic = scheme.rounding is Rounding.STOCHASTIC
    if case.seed is not None and stochastic:
        return
    columns = case.shape[-1]
    scales = np.repeat(case.expected.scales, scheme.block, axis=1)[:, :columns].astype(np.int64)
    marked = (scales == 0xFF) & (scheme.nonfinite is NonFinite.MARK_BLOCK)
    exponents = np.where(marked, 0, scales - E8M0.bias)
    with np.errstate(all="ignore"):
        wide = np.ldexp(np.where(np.isfinite(case.x), case.x, 0).astype(np.float64), -exponents)
        scaled = wide.astype(np.float32)
        usable = np.isfinite(case.x) & (scaled.astype(np.float64) == wide)
    codes = case.expected.codes[:, :columns]
    randoms = case.random_bits if case.randoms is None else np.full(case.x.shape, case.randoms[0], np.uint8)
    for row, lane in zip(*np.nonzero(usable), strict=True):
        r = int(randoms[row, lane]) if stochastic and randoms is not None else -1
        pattern = int(scaled[row, lane].view(np.uint32))
        yield case.name, f"code of row {row}, element {lane}", pattern, r, int(codes[row, lane])


def _values(group: Group, decode: Decoder) -> Iterator[Answer]:
    for case in group.cases:
        assert isinstance(case, Code)  # by the form
        value = decode(case.code, FORMATS[group.subject])
        if value is not None:
            pattern = 0x7FC00000 if value != value else struct.unpack("<I", struct.pack("<f", value))[0]
            yield Answer(case.name, "value", word(pattern), word(case.binary32))


# -- encoders


def _known(witness: outside.Witness) -> Encoder:
    """A witness of `references.witnesses`, without the inputs on which it is known to differ."""

    def encode(
        at: npt.NDArray[np.uint32], element: FloatFormat, rounding: Rounding, randoms: npt.NDArray[np.uint8] | None
    ) -> Codes:
        if element not in witness.formats or rounding not in witness.roundings:
            return np.full(at.shape, NO_ANSWER, np.int16)
        codes = outside.encode(witness, at.view(np.float32), element, rounding, random_bits=randoms)
        return np.where(outside.differs(witness, element, rounding, at), NO_ANSWER, codes).astype(np.int16)

    return encode


def _each(encode_one: Callable[[float, FloatFormat, Rounding], int]) -> Encoder:
    """An encoder of single values, each pattern asked once."""

    def encode(
        at: npt.NDArray[np.uint32], element: FloatFormat, rounding: Rounding, randoms: npt.NDArray[np.uint8] | None
    ) -> Codes:
        different, places = np.unique(at, return_inverse=True)
        values = different.view(np.float32).astype(np.float64).tolist()
        return np.array([encode_one(v, element, rounding) for v in values], np.int16)[places]

    return encode


def _fpy2_encode(value: float, element: FloatFormat, rounding: Rounding) -> int:
    fpy2 = importlib.import_module("fpy2")
    modes = {
        Rounding.TIES_TO_EVEN: fpy2.RM.RNE,
        Rounding.TIES_AWAY: fpy2.RM.RNA,
        Rounding.TOWARD_ZERO: fpy2.RM.RTZ,
        Rounding.TOWARD_NEGATIVE: fpy2.RM.RTN,
        Rounding.TOWARD_POSITIVE: fpy2.RM.RTP,
    }
    context = _fpy2_context(element)
    # Its E8M0 has no code for zero or for negatives, and takes ties to the even significand, not the even code.
    own_e8m0 = element is E8M0 and (value <= 0 or rounding is Rounding.TIES_TO_EVEN)
    if context is None or rounding not in modes or own_e8m0:
        return NO_ANSWER
    context = context.with_params(rm=modes[rounding], overflow=fpy2.OV.SATURATE)
    return int(context.encode(context.round(value)))


def _fpy2_context(element: FloatFormat) -> Any:
    fpy2 = importlib.import_module("fpy2")
    return getattr(fpy2, f"MX_{element.name.upper()}", None)


BITSTRING = {
    "e2m1": "e2m1mxfp",
    "e2m3": "e2m3mxfp",
    "e3m2": "e3m2mxfp",
    "e4m3": "e4m3mxfp_saturate",
    "e5m2": "e5m2mxfp_saturate",
}
"""Format → the dtype of bitstring that is right there. Its E8M0 takes powers of two only."""


def _bitstring_encode(value: float, element: FloatFormat, rounding: Rounding) -> int:
    bitstring = importlib.import_module("bitstring")
    if element.name not in BITSTRING or rounding is not Rounding.TIES_TO_EVEN:
        return NO_ANSWER
    return int(bitstring.Bits(**{BITSTRING[element.name]: value}).uint)


# -- decoders


def _gfloat_decode(code: int, fmt: FloatFormat) -> float | None:
    import gfloat
    from gfloat import formats

    info = getattr(formats, f"format_info_ocp_{fmt.name}", None)
    return None if info is None else float(gfloat.decode_float(info, code).fval)


def _ml_dtypes_decode(code: int, fmt: FloatFormat) -> float | None:
    import ml_dtypes

    names = {
        "e2m1": "float4_e2m1fn",
        "e2m3": "float6_e2m3fn",
        "e3m2": "float6_e3m2fn",
        "e4m3": "float8_e4m3fn",
        "e5m2": "float8_e5m2",
        "e8m0": "float8_e8m0fnu",
    }
    if fmt.name not in names:
        return None
    dtype = getattr(ml_dtypes, names[fmt.name])
    return float(np.array([code], np.uint8).view(dtype).astype(np.float32)[0])


def _fpy2_decode(code: int, fmt: FloatFormat) -> float | None:
    context = _fpy2_context(fmt)
    return None if context is None else float(context.decode(code))


def _bitstring_decode(code: int, fmt: FloatFormat) -> float | None:
    bitstring = importlib.import_module("bitstring")
    dtype = {**BITSTRING, "e8m0": "e8m0mxfp"}.get(fmt.name)
    return None if dtype is None else float(getattr(bitstring.Bits(uint=code, length=fmt.bits), dtype))


WITNESSES = (
    Witness(
        "gfloat",
        "gfloat",
        "element codes and values, stochastic ones too",
        asks(_known(outside.GFLOAT), _gfloat_decode),
        "gfloat",
        "gfloat",
    ),
    Witness(
        "ml_dtypes",
        "ml_dtypes",
        "element codes to nearest even, and values",
        asks(_known(outside.ML_DTYPES), _ml_dtypes_decode),
        "ml_dtypes",
        "ml_dtypes",
    ),
    Witness("fpy2", "fpy2", "element codes and values", asks(_each(_fpy2_encode), _fpy2_decode), "fpy2", "fpy2"),
    Witness(
        "bitstring",
        "bitstring",
        "element codes to nearest even, and values",
        asks(_each(_bitstring_encode), _bitstring_decode),
        "bitstring",
        "bitstring",
    ),
)
