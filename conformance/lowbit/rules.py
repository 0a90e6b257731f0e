"""Every legal choice of a block format, as an enum with a true name.

A rule says what an exact value becomes; `schemes.py` pins one member of each. The value of a member is the
name that the command line, scheme names and reports use.
"""

from __future__ import annotations

import enum


class Rounding(enum.Enum):
    """From a value between two neighbouring codes to one of them (SPEC.md section 2).

    The five ``TIES_*`` rules take the nearer neighbour and differ at exact midpoints only.
    """

    TIES_TO_EVEN = "ties_to_even"  # the code whose least significant bit is 0
    TIES_TOWARD_ZERO = "ties_toward_zero"
    TIES_AWAY = "ties_away"
    TIES_DOWN = "ties_down"  # toward -Inf
    TIES_UP = "ties_up"  # toward +Inf
    TOWARD_ZERO = "toward_zero"
    TOWARD_NEGATIVE = "toward_negative"
    TOWARD_POSITIVE = "toward_positive"
    STOCHASTIC = "stochastic"  # an n-bit r rounds away from zero iff r >= 2**n - floor(p * 2**n)


class NanCode(enum.Enum):
    """What NaN becomes in a format that has no NaN."""

    POSITIVE_MAX = "nan_positive_max"  # all-ones magnitude, sign clear
    SIGNED_MAX = "nan_signed_max"  # all-ones magnitude, sign of the NaN kept
    NEGATIVE_ZERO = "nan_negative_zero"
    ZERO = "nan_zero"


class ScaleRule(enum.Enum):
    """From the block's amax to its scale.

    The first seven give a power of two 2**E. e is `FloatFormat.emax` of the element, but under MX4 its number of
    exponent bits (2 for E2M1 either way, 3 for E3M0); RCEIL needs none. The next two give an E4M3 scale; RTN_CAST
    whatever the scale's format is.
    """

    FLOOR = "floor"  # E = floor(log2 amax) - e
    CEIL = "ceil"  # E = ceil(log2 amax) - e
    NEAREST = "nearest"  # E = floor(log2 amax + 1/2) - e: up iff the significand >= sqrt 2
    EVEN = "even"  # up iff the significand >= 2 - 2**-(m + 1), m mantissa bits of the element: 1.75 for E2M1
    EVEN_EXCLUSIVE = "even_exclusive"  # up iff the significand > that bound
    RCEIL = "rceil"  # least E with max_value * 2**E >= amax
    STOCHASTIC = "stochastic"  # floor(bits + (r & (2**(23 - m) - 1))) - e, r one 31-bit integer a group
    AMAX_OVER_SIX = "amax_over_six"  # E4M3 of clamp(RN32(amax / 6))
    AMAX_TIMES_SIXTH = "amax_times_sixth"  # E4M3 of clamp(RN32(amax * RN32(1/6)))
    RTN_CAST = "rtn_cast"  # amax / (scale_scale * global_scale), clamped, cast as PyTorch casts


class TensorScaleRule(enum.Enum):
    """The binary32 factor g of a whole tensor; what is quantised is RN32(x * g) (SPEC.md section 3.3)."""

    NONE = "none"  # the scheme has none
    UNIT = "unit"  # g = 1 and may not be given
    ONE_ROUNDING = "one_rounding"  # min(RN32(2688 / a), FLT_MAX), a the largest finite magnitude; 1 if a = 0
    TWO_ROUNDINGS = "two_roundings"  # RN32(RN32(1 / a) * 2688), a = max(amax, RN32(1e-12)); NaN and Inf propagate
    GLOBAL_SCALE = "global_scale"  # a constant of the scheme, multiplied on *decoding* (rtn_xxfp4)


class NonFinite(enum.Enum):
    """A block that holds NaN or Inf."""

    IGNORE_NAN = "ignore_nan"  # NaN does not enter amax, Inf does and saturates the exponent
    MARK_BLOCK = "mark_block"  # the scale becomes NaN, codes are encoded as if the scale were 1
    PROPAGATE = "propagate"  # NaN and Inf go through the scheme's arithmetic as IEEE values


class ZeroBlock(enum.Enum):
    """A block whose every element is ±0."""

    MIN_NORMAL_AMAX = "min_normal_amax"  # amax counts as 2**-126
    BYTE_ZERO = "byte_zero"  # scale byte 0, codes ±0
    FORMULA = "formula"  # whatever the formulas give


class PartialBlock(enum.Enum):
    """A last dimension that is not a multiple of the block."""

    PAD = "pad"  # rows are padded with +0
    REFUSE = "refuse"


class ScaleLayout(enum.Enum):
    """Where the scale bytes go."""

    SEPARATE = "separate"  # a tensor [..., blocks] of their own
    INTERLEAVED = "interleaved"  # one stream, per block [block/2 bytes of codes][1 scale byte]


class ZeroPoint(enum.Enum):
    """What of a weight's zero point is stored (SPEC.md section 5); both integers are unsigned."""

    NONE = "no_zero"  # the scheme has none: codes stand for signed values
    STORED = "zero_stored"  # the field holds z
    STORED_MINUS_ONE = "zero_minus_one_stored"  # the field holds z - 1, modulo 2**bits: all ones is z = 0


class Grouping(enum.Enum):
    """Which weights share a scale."""

    WHOLE = "whole_groups"  # row k of K belongs to group k // G; K a multiple of G
    SHORT_LAST = "short_last_group"  # the same, the last group may be short; a `g_idx` that is given decides instead
    ACT_ORDER = "act_order"  # row k belongs to group g_idx[k], which must be given
    FLAT = "flat_blocks"  # blocks of the row-major flattened tensor, crossing rows; the last may be short
    CHANNEL = "channel"  # one scale, or one table, an output channel


class OutputRounding(enum.Enum):
    """Which roundings the product of the scheme's arithmetic goes through."""

    DIRECT = "direct"  # to the output dtype alone
    THROUGH_SCALE_DTYPE = "through_scale_dtype"  # to the dtype of the scales, then to the output dtype


class Arithmetic(enum.Enum):
    """From a code to the value that is rounded to the output dtype; RN32 rounds to binary32, ties to even."""

    EXACT_PRODUCT = "exact_product"  # scale * (q - zero), the exact product
    BINARY32_PRODUCT = "binary32_product"  # RN32(v * scale), v the codebook's value of q, or q itself
    SCB_PRODUCT = "scb_product"  # RN32(RN32(q * SCB) * RN32(1/127))
    LOOKUP = "lookup"  # the table's entry [n, q]
    LOOKUP_SUM = "lookup_sum"  # RN32(RN32(entry + sparse) + full row), a term that is not stored is not added
