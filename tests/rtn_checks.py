"""What the tests of the rtn_xxfp4 path share: dtypes, the combinations that are allowed, and bits to compare."""

from __future__ import annotations

import itertools

import torch

from lowbit.formats import BFLOAT16, BINARY16, BINARY32, BINARY64, E4M3, E8M0, FloatFormat
from lowbit.rules import Rounding

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
RULES = {
    "even": Rounding.TIES_TO_EVEN,
    "zero": Rounding.TIES_TOWARD_ZERO,
    "down": Rounding.TIES_DOWN,
    "up": Rounding.TIES_UP,
}
FORMATS: dict[torch.dtype, FloatFormat] = {
    torch.float16: BINARY16,
    torch.bfloat16: BFLOAT16,
    torch.float32: BINARY32,
    torch.float64: BINARY64,
    torch.float8_e4m3fn: E4M3,
    torch.float8_e8m0fnu: E8M0,
}
DATA = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Patterns as integers, every NaN as one: NaN is compared by class, everything else exactly, -0 included."""
    raw = tensor.view(INTEGERS[tensor.dtype.itemsize])
    if tensor.dtype in DATA:
        raw = torch.where(torch.isnan(tensor), -1, raw)
    return raw.cpu()


def codes_of(packed: torch.Tensor) -> list[int]:
    return [nibble for byte in packed.flatten().tolist() for nibble in (byte & 15, byte >> 4)]


def scale_bytes(result: dict[str, torch.Tensor]) -> list[int]:
    return result["scale_quant"].view(torch.uint8).flatten().tolist()


def holds(high: torch.dtype, scale_dtype: torch.dtype) -> bool:
    """Whether high_dtype can hold the bounds of scale_dtype, written out from SPEC.md 3.4."""
    too_large = {
        torch.float64: (torch.float32, torch.bfloat16, torch.float16),
        torch.float32: (torch.bfloat16, torch.float16),
        torch.bfloat16: (torch.float16,),
        torch.float8_e8m0fnu: (torch.float16,),
    }
    return high not in too_large.get(scale_dtype, ())


COMBINATIONS = [
    (dtype, high, scale_dtype)
    for dtype, high, scale_dtype in itertools.product(DATA, DATA, FORMATS)
    if holds(high, scale_dtype)
]
