"""Outside oracles, and by name every input on which they are known to differ.

A witness is somebody else's conversion to an element format. It counts for what it was found to be right on: each
`Difference` says where a witness departs from SPEC.md section 2, as ranges of binary32 patterns, and a test finds the
departure exactly there and nowhere else. Provenance, not number, makes witnesses independent: the E8M0 casts of
ml_dtypes and PyTorch share code and faults.

Witnesses are compared with codes under `NanCode.POSITIVE_MAX`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError, DtypeError
from lowbit.formats import BINARY32, E2M1, E2M3, E3M0, E3M2, E4M3, E5M2, E8M0, FloatFormat
from lowbit.references.witness_casts import NO_ANSWER, Codes, by_gfloat, by_gmpy2, by_ml_dtypes, by_torch
from lowbit.rules import Rounding

__all__ = ["DIFFERENCES", "NO_ANSWER", "WITNESSES", "Difference", "Witness", "differs", "encode"]

Patterns = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Witness:
    """A conversion that lowbit did not write.

    Args:
      name: of the package, as `Difference.witness` has it.
      module: what must be importable.
      formats, roundings: what it converts to, and how.
      cast: ``(x, element, rounding, random_bits) -> codes``, one (N,) float32 array to (N,) int16.
    """

    name: str
    module: str
    formats: tuple[FloatFormat, ...]
    roundings: tuple[Rounding, ...]
    cast: Callable[[npt.NDArray[np.float32], FloatFormat, Rounding, npt.NDArray[np.uint8] | None], Codes]

    @property
    def available(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


@dataclass(frozen=True)
class Difference:
    """A set of inputs on which a witness departs from the specification.

    Args:
      witness, format, name: what differs.
      domain: the inputs and the wrong answer, in words.
      patterns: the inputs, as inclusive ranges of binary32 bit patterns.
      roundings: the rules under which it differs; None for all that the witness has.
    """

    witness: str
    format: str
    name: str
    domain: str
    patterns: Patterns
    roundings: tuple[Rounding, ...] | None = None

    def predicate(self, bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Which patterns it covers."""
        starts = np.array(sorted(first for first, _ in self.patterns), dtype=np.int64)
        ends = np.array(sorted(last for _, last in self.patterns), dtype=np.int64)
        wide = np.asarray(bits).astype(np.int64)
        place = np.searchsorted(starts, wide, side="right") - 1
        return (place >= 0) & (wide <= ends[place])


def encode(
    witness: Witness,
    x: npt.NDArray[np.float32],
    element: FloatFormat,
    rounding: Rounding,
    *,
    random_bits: npt.NDArray[np.uint8] | None = None,
) -> Codes:
    """What a witness makes of values.

    Args:
      witness: one that is available.
      x: (N,) float32. Never anything wider: several witnesses would round twice.
      element: one of `witness.formats`.
      rounding: one of `witness.roundings`.
      random_bits: (N,) uint8, for stochastic rounding.
    Returns:
      (N,) int16. Codes, or `NO_ANSWER`.
    Raises:
      DtypeError: x is not float32.
      ArgumentError: the witness does not know the format or the rule.
    """
    if x.dtype != np.float32:
        raise DtypeError(f"x: got {x.dtype}, want float32: from wider formats some witnesses round twice")
    if element not in witness.formats:
        raise ArgumentError(f"element: got {element.name}, want one of {', '.join(f.name for f in witness.formats)}")
    if rounding not in witness.roundings:
        raise ArgumentError(f"rounding: got {rounding}, want one of {', '.join(r.value for r in witness.roundings)}")
    return witness.cast(x, element, rounding, random_bits)


def differs(
    witness: Witness, element: FloatFormat, rounding: Rounding, bits: npt.NDArray[np.uint32]
) -> npt.NDArray[np.bool_]:
    """Where a witness is known to differ: the union of its named differences."""
    found = np.zeros(bits.shape, dtype=np.bool_)
    for difference in DIFFERENCES:
        if (difference.witness, difference.format) == (witness.name, element.name) and (
            difference.roundings is None or rounding in difference.roundings
        ):
            found |= difference.predicate(bits)
    return found


_NEAREST_EVEN = (Rounding.TIES_TO_EVEN,)
_DIRECTED = (Rounding.TOWARD_ZERO, Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE)

ML_DTYPES = Witness("ml_dtypes", "ml_dtypes", (E2M1, E2M3, E3M2, E4M3, E5M2, E8M0), _NEAREST_EVEN, by_ml_dtypes)
TORCH = Witness("torch", "torch", (E4M3, E5M2, E8M0), _NEAREST_EVEN, by_torch)
GFLOAT = Witness(
    "gfloat",
    "gfloat",
    (E2M1, E3M0, E2M3, E3M2, E4M3, E5M2, E8M0),
    (*_NEAREST_EVEN, Rounding.TIES_AWAY, *_DIRECTED, Rounding.STOCHASTIC),
    by_gfloat,
)
GMPY2 = Witness("gmpy2", "gmpy2", GFLOAT.formats, (*_NEAREST_EVEN, *_DIRECTED), by_gmpy2)

WITNESSES: tuple[Witness, ...] = (ML_DTYPES, TORCH, GFLOAT, GMPY2)
"""All witnesses, installed or not."""

_SIGN = BINARY32.sign_mask
_INF = 0x7F800000
_POSITIVE_NAN = ((_INF + 1, _SIGN - 1),)
_NEGATIVE_NAN = ((_SIGN | _INF + 1, 2 * _SIGN - 1),)
_NAN = _POSITIVE_NAN + _NEGATIVE_NAN
_NEGATIVE = ((_SIGN + 1, _SIGN | _INF),)
_E8M0_TOP = 0x7F400000  # 1.5 * 2**127, half-way to the NaN code


def _both_signs(first: int, last: int) -> Patterns:
    return (first, last), (_SIGN | first, _SIGN | last)


def _torch_version() -> tuple[int, ...]:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


_E4M3_OVERFLOW = "above 464 and Inf: NaN of the value's sign, not ±448"
_E5M2_OVERFLOW = "from 61440 on: ±Inf, not ±57344"
_E8M0_TIES = "exact midpoints above an even code: the odd code above, not the even one"
_E8M0_TIE_PATTERNS = tuple((field << 23 | 0x400000,) * 2 for field in range(2, 254, 2))
_E8M0_SHARED: tuple[tuple[str, str, Patterns], ...] = (
    ("ties up", _E8M0_TIES, ((0x600000, 0x600000), *_E8M0_TIE_PATTERNS)),
    ("bottom rounds up", "2**-127 < x < 1.5 * 2**-127: code 1, not 0", ((0x400001, 0x5FFFFF),)),
    ("overflow to NaN", "from 1.5 * 2**127 on: NaN, not 2**127", ((_E8M0_TOP, _INF),)),
)

DIFFERENCES: tuple[Difference, ...] = (
    *(
        Difference("ml_dtypes", f.name, "NaN to zero", "NaN: the zero of the other sign, not +max", _NAN)
        for f in (E2M1, E2M3, E3M2)
    ),
    Difference("ml_dtypes", "e4m3", "overflow to NaN", _E4M3_OVERFLOW, _both_signs(0x43E80001, _INF)),
    Difference("ml_dtypes", "e4m3", "NaN keeps its sign", "NaN with the sign bit: 0xFF, not 0x7F", _NEGATIVE_NAN),
    Difference("ml_dtypes", "e5m2", "overflow to Inf", _E5M2_OVERFLOW, _both_signs(0x47700000, _INF)),
    Difference("ml_dtypes", "e5m2", "another NaN", "NaN: 0x7E or 0xFE, not 0x7F", _NAN),
    Difference("ml_dtypes", "e8m0", "zero to NaN", "±0: NaN, not 2**-127", _both_signs(0, 0)),
    *(Difference(witness, "e8m0", *row) for witness in ("ml_dtypes", "torch") for row in _E8M0_SHARED),
    Difference(
        "torch",
        "e8m0",
        "sign ignored",
        "negative below 1.5 * 2**127: the code of |x|, not NaN",
        ((_SIGN + 1, _SIGN | _E8M0_TOP - 1),),
    ),
    *(
        ()
        if _torch_version() >= (2, 13)  # it saturates since then
        else (Difference("torch", "e4m3", "overflow to NaN", _E4M3_OVERFLOW, _both_signs(0x43E80001, _INF)),)
    ),
    Difference("torch", "e4m3", "NaN keeps its sign", "NaN with the sign bit: 0xFF, not 0x7F", _NEGATIVE_NAN),
    Difference("torch", "e5m2", "overflow to Inf", _E5M2_OVERFLOW, _both_signs(0x47700000, _INF)),
    Difference("torch", "e5m2", "NaN keeps its sign", "NaN with the sign bit: 0xFF, not 0x7F", _NEGATIVE_NAN),
    *(
        Difference("gfloat", f.name, "NaN refused", "NaN: an exception", _NAN)
        for f in GFLOAT.formats
        if f.nan_magnitude is None
    ),
    *(Difference("gfloat", f.name, "negative NaN", "NaN of either sign: 0xFF, not 0x7F", _NAN) for f in (E4M3, E5M2)),
    Difference("gfloat", "e8m0", "negative", "below zero: no code of a byte, not NaN", _NEGATIVE),
    Difference(
        "gfloat",
        "e8m0",
        "bottom, nearest",
        "0 < x < 0.75 * 2**-127: no code of a byte, not 0",
        ((1, 0x2FFFFF),),
        (*_NEAREST_EVEN, Rounding.TIES_AWAY),
    ),
    Difference(
        "gfloat",
        "e8m0",
        "bottom, down or stochastic",
        "0 < x < 2**-127: no code of a byte, not 0",
        ((1, 0x3FFFFF),),
        (Rounding.TOWARD_ZERO, Rounding.TOWARD_NEGATIVE, Rounding.STOCHASTIC),
    ),
    Difference(
        "gfloat",
        "e8m0",
        "bottom, upward",
        "0 < x ≤ 2**-128: no code of a byte, not 0",
        ((1, 0x200000),),
        (Rounding.TOWARD_POSITIVE,),
    ),
    *(Difference("gmpy2", f.name, "NaN has no code", "NaN: MPFR has no encodings", _NAN) for f in GMPY2.formats),
    Difference("gmpy2", "e8m0", "negative", "below zero: MPFR's values have signs", _NEGATIVE),
    # With one bit of precision every significand is odd, and MPFR's even neighbour is 10 in binary: the upper one.
    Difference(
        "gmpy2",
        "e3m0",
        "ties up",
        "exact midpoints of powers of two above an even code: the odd code above, not the even one",
        tuple(row for pattern in (0x3F400000, 0x40400000, 0x41400000) for row in _both_signs(pattern, pattern)),
        _NEAREST_EVEN,
    ),
    Difference("gmpy2", "e8m0", "ties up", _E8M0_TIES, ((0x600000, 0x600000), *_E8M0_TIE_PATTERNS), _NEAREST_EVEN),
)
"""Every known departure. What is not here is agreement."""
