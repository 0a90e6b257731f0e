"""The conversions of other packages, under one signature: ``(x, element, rounding, random) -> codes``.

Each imports its package when it is called. What they get wrong stands in `witnesses.DIFFERENCES`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.formats import E3M0, FloatFormat
from lowbit.references.bits_elements import decode
from lowbit.rules import Rounding

Codes = npt.NDArray[np.int16]

NO_ANSWER = -1
"""In place of a code, where a witness raises or leaves the format."""


def by_ml_dtypes(x: npt.NDArray[np.float32], element: FloatFormat, rounding: Rounding, random: Any) -> Codes:
    import ml_dtypes

    dtypes: dict[str, Any] = {
        "e2m1": ml_dtypes.float4_e2m1fn,
        "e2m3": ml_dtypes.float6_e2m3fn,
        "e3m2": ml_dtypes.float6_e3m2fn,
        "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
        "e8m0": ml_dtypes.float8_e8m0fnu,
    }
    with np.errstate(all="ignore"):
        return x.astype(dtypes[element.name]).view(np.uint8).astype(np.int16)


def by_torch(x: npt.NDArray[np.float32], element: FloatFormat, rounding: Rounding, random: Any) -> Codes:
    import torch

    dtypes = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e8m0": torch.float8_e8m0fnu}
    cast = torch.from_numpy(np.ascontiguousarray(x)).to(dtypes[element.name])
    return cast.view(torch.uint8).numpy().astype(np.int16)


def by_gfloat(x: npt.NDArray[np.float32], element: FloatFormat, rounding: Rounding, random: Any) -> Codes:
    import gfloat
    from gfloat import formats

    infos = {
        "e2m1": formats.format_info_ocp_e2m1,
        "e3m0": gfloat.FormatInfo(
            "e3m0",
            E3M0.bits,
            E3M0.mantissa_bits + 1,
            bias=E3M0.bias,
            is_signed=True,
            domain=gfloat.Domain.Finite,
            has_nz=True,
            num_high_nans=0,
            has_subnormals=True,
            is_twos_complement=False,
        ),
        "e2m3": formats.format_info_ocp_e2m3,
        "e3m2": formats.format_info_ocp_e3m2,
        "e4m3": formats.format_info_ocp_e4m3,
        "e5m2": formats.format_info_ocp_e5m2,
        "e8m0": formats.format_info_ocp_e8m0,
    }
    modes = {
        Rounding.TIES_TO_EVEN: gfloat.RoundMode.TiesToEven,
        Rounding.TIES_AWAY: gfloat.RoundMode.TiesToAway,
        Rounding.TOWARD_ZERO: gfloat.RoundMode.TowardZero,
        Rounding.TOWARD_NEGATIVE: gfloat.RoundMode.TowardNegative,
        Rounding.TOWARD_POSITIVE: gfloat.RoundMode.TowardPositive,
        # Of gfloat's four stochastic modes, the one that adds r to floor(p * 2**n) and looks for a carry.
        Rounding.STOCHASTIC: gfloat.RoundMode.StochasticFastest,
    }
    info, mode = infos[element.name], modes[rounding]
    refused = np.isnan(x) if element.nan_magnitude is None else np.zeros(x.shape, dtype=np.bool_)
    options = {} if random is None else {"srbits": random.astype(np.int64), "srnumbits": 8}
    with np.errstate(all="ignore"):  # a signalling NaN warns when it is widened
        wide = np.where(refused, 0, x).astype(np.float64)
        codes = gfloat.encode_ndarray(info, gfloat.round_ndarray(info, wide, mode, True, **options)).astype(np.int64)
    refused |= (codes < 0) | (codes >> element.bits != 0)
    if not element.signed:
        refused |= x < 0  # out of the format too, but some of its codes happen to lie in a byte
    if not element.has_zero and random is not None:
        refused |= (x > 0) & (x < float(element.min_positive))  # out of the format for some random bits
    return np.where(refused, NO_ANSWER, codes).astype(np.int16)


def by_gmpy2(x: npt.NDArray[np.float32], element: FloatFormat, rounding: Rounding, random: Any) -> Codes:
    import gmpy2

    modes = {
        Rounding.TIES_TO_EVEN: gmpy2.RoundToNearest,
        Rounding.TOWARD_ZERO: gmpy2.RoundToZero,
        Rounding.TOWARD_NEGATIVE: gmpy2.RoundDown,
        Rounding.TOWARD_POSITIVE: gmpy2.RoundUp,
    }
    values = decode(np.arange(element.max_magnitude + 1, dtype=np.uint8), element)
    # MPFR counts exponents from significands in [1/2, 1).
    context = gmpy2.context(
        precision=element.mantissa_bits + 1,
        emin=int(np.frexp(values[int(element.has_zero)])[1]),
        emax=element.emax + 1,
        subnormalize=True,
        round=modes[rounding],
    )
    # Rounded in a step of its own: a constructor given one bit of precision does not look at the exponent.
    rounded = np.array([float(context.plus(gmpy2.mpfr(v, 53))) for v in x.tolist()], dtype=np.float64)
    # MPFR has the format's finite values and Inf: saturation, and E8M0's at the bottom, is not its business.
    magnitude = np.clip(np.abs(rounded), values[0], values[-1])
    place = np.searchsorted(values, np.where(np.isnan(x), 0, magnitude))
    refused = np.isnan(x) | (values[place] != magnitude)
    if not element.signed:
        refused |= x < 0
    return np.where(refused, NO_ANSWER, place | np.where(np.signbit(rounded), element.sign_mask, 0)).astype(np.int16)
