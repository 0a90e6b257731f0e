"""What every pair of element code and scale code stands for, one table a family."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowbit import schemes
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import bits
from lowbit.rules import TensorScaleRule
from lowbit.schemes import Encoded, Scheme
from lowbit.vectors.payload import Draft, Raw, draft

OUTPUTS: dict[str, FloatFormat] = {f.name: f for f in (BINARY32, BINARY16, BFLOAT16)}

UNIT = "3f800000"

DECIDING: tuple[tuple[str, str | None], ...] = (
    ("mx4_ceil_e2m1_g32", None),
    ("mx4_ceil_e3m0_g32", None),
    ("mxfp4_floor", None),
    ("nvfp4", UNIT),
    ("nvfp4", "443f9b37"),  # a g with all its bits in use
    ("rtn_mxfp4_three_quarters", None),
)
"""Scheme, pattern of g. Rounding and scale rules do not enter decoding."""


def build() -> Iterator[Draft]:
    """The tables of `DECIDING`."""
    for name, g in DECIDING:
        scheme = schemes.get(name)
        also = [s.name for s in schemes.select() if s.name != name and same_decoding(s, scheme, unit=g == UNIT)]
        yield draft(
            f"schemes/{name}/decode.json",
            f"{name}/decode" + (f"_g_{g}" if g else ""),
            "decode",
            "scaled_codes",
            [case(scheme, scale, g) for scale in range(256)],
            scheme=name,
            also=also or None,
            tensor_scale=g,
            source=scheme.cites,
            flags=("complete", "decode"),
        )


def same_decoding(a: Scheme, b: Scheme, *, unit: bool) -> bool:
    """Whether two schemes decode alike; `unit`: under g = 1, which is the only g of some."""
    same = all(getattr(a, rule) == getattr(b, rule) for rule in ("family", "element", "scale", "global_scale", "high"))
    return same and (unit or a.tensor_scale is not TensorScaleRule.UNIT)


def case(scheme: Scheme, scale: int, g: str | None) -> Raw:
    """One scale code: the decoded patterns of all element codes, in each output format."""
    count = 1 << scheme.element.bits
    codes = np.resize(np.arange(count, dtype=np.uint8), (1, max(count, scheme.block)))
    factor = None if g is None else np.uint32(int(g, 16)).view(np.float32)
    fields: Raw = {"scale": f"{scale:02x}"}
    for name, fmt in OUTPUTS.items():
        blocks = codes.shape[1] // scheme.block
        encoded = Encoded(codes, np.full((1, blocks), scale, np.uint8), factor)
        values = bits.dequantize(encoded, scheme, fmt)[0, :count].tolist()
        fields[name] = " ".join(f"{canonical(value, fmt):0{fmt.bits // 4}x}" for value in values)
    return fields


def canonical(pattern: int, fmt: FloatFormat) -> int:
    """A pattern, every NaN as the quiet one whose other payload bits are 0."""
    if not fmt.is_nan(pattern):
        return pattern
    return fmt.max_magnitude + 1 | 1 << (fmt.mantissa_bits - 1)
