"""What the tests of the PyTorch reference share: patterns as tensors, and comparison with NumPy results."""

from __future__ import annotations

import numpy as np
import torch

from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.rules import NanCode
from lowbit.schemes import Encoded

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
FORMATS: dict[torch.dtype, FloatFormat] = {
    torch.float32: BINARY32,
    torch.bfloat16: BFLOAT16,
    torch.float16: BINARY16,
}
INF, SIGN = 0x7F800000, 0x80000000
SPECIALS = (
    *(0, SIGN, 1, SIGN | 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF),
    *(INF, SIGN | INF, 0x7FC00000, 0xFFC00000),
)


def floats(patterns, device: str = "cpu") -> torch.Tensor:
    """float32 of bit patterns, through an array, so that no NaN is touched."""
    return torch.from_numpy(np.asarray(patterns, dtype=np.uint32).view(np.float32).copy()).to(device)


def rule_of(element: FloatFormat) -> NanCode | None:
    return NanCode.POSITIVE_MAX if element.nan_magnitude is None else None


def agree(actual: Encoded, expected: Encoded) -> None:
    assert actual.codes.dtype == torch.uint8
    assert actual.scales.dtype == torch.uint8
    assert np.array_equal(actual.scales.cpu().numpy(), expected.scales)
    assert np.array_equal(actual.codes.cpu().numpy(), expected.codes)
    if expected.tensor_scale is None:
        assert actual.tensor_scale is None
    else:
        assert actual.tensor_scale.dtype == torch.float32
        pair = actual.tensor_scale.cpu().numpy(), np.array([expected.tensor_scale], dtype=np.float32)
        assert np.array_equal(*pair, equal_nan=True)


def agree_decoded(actual: torch.Tensor, expected: np.ndarray) -> None:
    raw = actual.cpu().view({4: torch.int32, 2: torch.int16}[actual.dtype.itemsize]).numpy().view(expected.dtype)
    nan = torch.isnan(actual).cpu().numpy()
    fmt = FORMATS[actual.dtype]
    magnitude = expected & fmt.magnitude_mask
    assert np.array_equal(nan, magnitude > fmt.max_magnitude + 1)
    assert np.array_equal(raw[~nan], expected[~nan])
