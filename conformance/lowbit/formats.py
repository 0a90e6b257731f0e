"""Number formats: one literal each, everything else derived.

A format is data. Code 0 … 2**bits - 1 is laid out as sign, exponent, mantissa from the most significant
bit; the *magnitude* of a code is the code without its sign bit, and the value grows with it.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from lowbit.errors import ArgumentError


class Specials(enum.Enum):
    """Which magnitudes are not finite numbers."""

    NONE = "none"
    ALL_ONES_NAN = "all_ones_nan"  # only the largest magnitude is NaN, and there is no Inf
    IEEE = "ieee"  # the top exponent holds Inf (mantissa 0) and NaN (the rest)


@dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """A binary floating-point format.

    Args:
      name: lower case; names folders, test ids and the columns of reports.
      exponent_bits, mantissa_bits, bias: value = 2**(exponent - bias) * (1 + mantissa / 2**mantissa_bits);
        exponent field 0 holds zero and subnormals, 2**(1 - bias) * mantissa / 2**mantissa_bits.
      specials: which magnitudes are Inf or NaN.
      signed: False drops the sign bit.
      has_zero: False makes exponent field 0 an ordinary exponent, so that there is no zero (E8M0).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials = Specials.NONE
    signed: bool = True
    has_zero: bool = True

    @cached_property
    def bits(self) -> int:
        return self.signed + self.exponent_bits + self.mantissa_bits

    @cached_property
    def sign_mask(self) -> int:
        """The sign bit of a code, 0 if the format has none."""
        return 1 << (self.bits - 1) if self.signed else 0

    @cached_property
    def magnitude_mask(self) -> int:
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    @cached_property
    def max_magnitude(self) -> int:
        """The magnitude of the largest finite value."""
        if self.specials is Specials.IEEE:
            return self.magnitude_mask - (1 << self.mantissa_bits)
        return self.magnitude_mask - (self.specials is Specials.ALL_ONES_NAN)

    @cached_property
    def inf_magnitude(self) -> int | None:
        return self.max_magnitude + 1 if self.specials is Specials.IEEE else None

    @property
    def nan_magnitude(self) -> int | None:
        """The canonical NaN, sign bit clear: quiet and all ones (E4M3 0x7F, E5M2 0x7F, E8M0 0xFF); None without NaN."""
        return None if self.specials is Specials.NONE else self.magnitude_mask

    @property
    def max_value(self) -> Fraction:
        return self.magnitude_value(self.max_magnitude)

    @property
    def emax(self) -> int:
        """The exponent of the largest finite value."""
        return math.frexp(self.max_value)[1] - 1

    @property
    def emin(self) -> int:
        """The exponent of the smallest normal value."""
        return (1 if self.has_zero else 0) - self.bias

    @property
    def min_positive(self) -> Fraction:
        """The smallest value above zero."""
        return self.magnitude_value(1 if self.has_zero else 0)

    def magnitude_value(self, magnitude: int) -> Fraction:
        """The exact value of a finite magnitude."""
        if not 0 <= magnitude <= self.max_magnitude:
            raise ArgumentError(f"magnitude: got {magnitude:#x}, want 0..{self.max_magnitude:#x} for {self.name}")
        exponent, significand = magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1)
        if exponent == 0 and self.has_zero:
            exponent = 1
        else:
            significand += 1 << self.mantissa_bits
        place = exponent - self.bias - self.mantissa_bits  # of the significand's last bit
        return Fraction(significand << place) if place >= 0 else Fraction(significand, 1 << -place)

    @cached_property
    def magnitudes(self) -> tuple[Fraction, ...]:
        """The values of all finite magnitudes, ascending. Only for formats of at most 16 bits."""
        if self.bits > 16:
            raise ArgumentError(f"magnitudes: {self.name} has {self.bits} bits, want at most 16")
        return tuple(self.magnitude_value(m) for m in range(self.max_magnitude + 1))

    def is_nan(self, code: int) -> bool:
        magnitude = self._checked(code) & self.magnitude_mask
        return magnitude > self.max_magnitude and magnitude != self.inf_magnitude

    def is_inf(self, code: int) -> bool:
        return self._checked(code) & self.magnitude_mask == self.inf_magnitude

    def is_negative(self, code: int) -> bool:
        """The sign bit; true of -0 and of a NaN with the bit set."""
        return bool(self._checked(code) & self.sign_mask)

    def value(self, code: int) -> Fraction | float:
        """The value of a code: a Fraction, or a float for what a Fraction cannot hold: NaN, ±Inf and -0.0."""
        negative = self.is_negative(code)
        if self.is_nan(code):
            return math.nan
        if self.is_inf(code):
            return -math.inf if negative else math.inf
        value = self.magnitude_value(code & self.magnitude_mask)
        if negative:
            return -value if value else -0.0
        return value

    def fields(self, code: int) -> str:
        """The bits of a code as ``s|eee|mm``, the fields that the format has."""
        text = f"{self._checked(code):0{self.bits}b}"
        cut = int(self.signed), int(self.signed) + self.exponent_bits
        return "|".join(part for part in (text[: cut[0]], text[cut[0] : cut[1]], text[cut[1] :]) if part)

    def _checked(self, code: int) -> int:
        if not 0 <= code < 1 << self.bits:
            raise ArgumentError(f"code: got {code:#x}, want 0..{(1 << self.bits) - 1:#x} for {self.name}")
        return code


E2M1 = FloatFormat(name="e2m1", exponent_bits=2, mantissa_bits=1, bias=1)
E3M0 = FloatFormat(name="e3m0", exponent_bits=3, mantissa_bits=0, bias=3)
E2M3 = FloatFormat(name="e2m3", exponent_bits=2, mantissa_bits=3, bias=1)
E3M2 = FloatFormat(name="e3m2", exponent_bits=3, mantissa_bits=2, bias=3)
E4M3 = FloatFormat(name="e4m3", exponent_bits=4, mantissa_bits=3, bias=7, specials=Specials.ALL_ONES_NAN)
E5M2 = FloatFormat(name="e5m2", exponent_bits=5, mantissa_bits=2, bias=15, specials=Specials.IEEE)
E8M0 = FloatFormat(
    name="e8m0",
    exponent_bits=8,
    mantissa_bits=0,
    bias=127,
    specials=Specials.ALL_ONES_NAN,
    signed=False,
    has_zero=False,
)
BINARY16 = FloatFormat(name="binary16", exponent_bits=5, mantissa_bits=10, bias=15, specials=Specials.IEEE)
BFLOAT16 = FloatFormat(name="bfloat16", exponent_bits=8, mantissa_bits=7, bias=127, specials=Specials.IEEE)
BINARY32 = FloatFormat(name="binary32", exponent_bits=8, mantissa_bits=23, bias=127, specials=Specials.IEEE)
BINARY64 = FloatFormat(name="binary64", exponent_bits=11, mantissa_bits=52, bias=1023, specials=Specials.IEEE)

FORMATS: dict[str, FloatFormat] = {
    f.name: f for f in (E2M1, E3M0, E2M3, E3M2, E4M3, E5M2, E8M0, BINARY16, BFLOAT16, BINARY32, BINARY64)
}
"""Every format by name."""

LOW_BIT: tuple[FloatFormat, ...] = tuple(f for f in FORMATS.values() if f.bits <= 8)
"""The formats that codes are made of; the others are formats of inputs and arithmetic."""
