"""Casts between PyTorch dtypes with one result on every device and version.

From binary64 to a format of 16 or 8 bits a cast passes through binary32, as PyTorch's own casts do; here the step is
spelled out. The casts to E8M0 and from it are integer operations. The cast to E4M3 is for values up to ±448, above
which PyTorch's versions differ, and its NaN is 0x7F whatever the sign.
"""

from __future__ import annotations

import torch

from lowbit.formats import E4M3, E8M0


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values in another dtype; from binary64 to fewer than 32 bits by way of binary32."""
    if tensor.dtype == dtype:
        return tensor
    if tensor.dtype == torch.float8_e8m0fnu:
        tensor = _from_e8m0(tensor)
    elif tensor.dtype == torch.float8_e4m3fn:
        tensor = tensor.to(torch.float32)
    if tensor.dtype == torch.float64 and dtype.itemsize < 4:
        tensor = tensor.to(torch.float32)
    if dtype == torch.float8_e8m0fnu:
        return _to_e8m0(tensor.to(torch.float32))
    if dtype == torch.float8_e4m3fn:
        return _to_e4m3(tensor.to(torch.float32))
    return tensor.to(dtype)


def _to_e8m0(x: torch.Tensor) -> torch.Tensor:
    """Up iff the binary32 significand is 1.5 or more; all of (2^-127, 2^-126) goes up, 2^-127 and less is byte 0.

    x: float32 clamped to 2^-127..2^127, or NaN.
    """
    bits = x.view(torch.int32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    normal = exponent + (mantissa >> 22)
    codes = torch.where(exponent == 0, (mantissa > 0x400000).to(torch.int32), normal)
    codes = torch.where(torch.isnan(x), E8M0.magnitude_mask, codes)
    return codes.to(torch.uint8).view(torch.float8_e8m0fnu)


def _from_e8m0(x: torch.Tensor) -> torch.Tensor:
    """binary32 values: 2^-127 is a subnormal number of it, byte 255 is NaN."""
    codes = x.view(torch.uint8).to(torch.int32)
    bits = torch.where(codes == 0, 0x400000, codes << 23)
    bits = torch.where(codes == E8M0.magnitude_mask, 0x7FC00000, bits)
    return bits.view(torch.float32)


def _to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's cast on values up to ±448, with one NaN. x: clamped already."""
    codes = x.to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(torch.isnan(x), E4M3.magnitude_mask, codes).to(torch.uint8).view(torch.float8_e4m3fn)
