"""Where a step function over bit patterns steps, found with few calls of a vectorised reference."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lowbit.formats import E4M3, E8M0
from lowbit.references import bits
from lowbit.rules import Rounding, ScaleRule, TensorScaleRule
from lowbit.schemes import Scheme

Codes = Callable[[npt.NDArray[np.uint32]], npt.NDArray[np.uint8]]

GIVEN = (TensorScaleRule.ONE_ROUNDING, TensorScaleRule.TWO_ROUNDINGS)
"""The rules under which a tensor scale may be given."""

LARGEST, INFINITY, LAST_NAN = 0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF

ONE = np.float32(1)


def rows_of(codes: Codes, first: int, last: int) -> list[tuple[int, int, int]]:
    """(first pattern, last pattern, code) of every run of equal codes from `first` to `last`.

    Args:
      codes: of many patterns at once; monotone over the range, so that equal codes at two places mean equal codes
        between them.
    """
    low, high = np.array([first], np.int64), np.array([last], np.int64)
    starts = [first]
    while low.size:
        different = codes(low.astype(np.uint32)) != codes(high.astype(np.uint32))
        low, high = low[different], high[different]
        adjacent = high - low == 1
        starts += high[adjacent].tolist()
        low, high = low[~adjacent], high[~adjacent]
        middle = (low + high) // 2
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    starts.sort()
    ends = [*(start - 1 for start in starts[1:]), last]
    values = codes(np.array(starts, np.uint32)).tolist()
    return list(zip(starts, ends, values, strict=True))


def scale_codes(scheme: Scheme) -> Codes:
    """The scale code of a block whose first element has a pattern and whose others are +0; g, if any is given, is 1.

    The scheme of a stochastic exponent is asked with all random bits 0.
    """
    options: dict[str, object] = {"tensor_scale": ONE} if scheme.tensor_scale in GIVEN else {}
    scheme = replace(scheme, block=2)  # zeros beyond the first do not change a scale

    def codes(patterns: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        x = np.zeros((patterns.size, scheme.block), np.float32)
        x[:, 0] = patterns.view(np.float32)
        random: dict[str, object] = {}
        if scheme.rounding is Rounding.STOCHASTIC:
            random["random_bits"] = np.zeros(x.shape, np.uint8)
        if scheme.scale_rule is ScaleRule.STOCHASTIC:
            random["scale_random_bits"] = np.zeros((patterns.size, 1), np.int32)
        return np.asarray(bits.quantize(x, scheme, **options, **random).scales)[:, 0]  # type: ignore[arg-type]

    return codes


@functools.cache
def unit_amax(scheme: Scheme) -> int:
    """The greatest amax, as a pattern, whose block has the scale 1."""
    one = {E8M0: E8M0.bias, E4M3: E4M3.bias << E4M3.mantissa_bits}[scheme.scale]
    return next(last for _, last, code in rows_of(scale_codes(scheme), 0, LARGEST) if code == one)
