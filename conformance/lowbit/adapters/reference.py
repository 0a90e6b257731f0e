"""The NumPy reference as an implementation: what a faithful one looks like, and the stock that mutants are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowbit import __version__, packing
from lowbit.formats import BFLOAT16, BINARY16, BINARY32
from lowbit.implementation import Implementation, Quantized, Unsupported
from lowbit.schemes import Encoded, Scheme


def _to_host(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _to_device(array: Any, device: Any) -> Any:
    import numpy as np
    import torch

    return None if array is None else torch.from_numpy(np.atleast_1d(np.asarray(array)).copy()).to(device)


def quantize(x: Any, scheme: Scheme, *, swizzle: bool = False, **options: Any) -> Quantized:
    """Quantises on the host with `references.bits`, whatever the device of x; `swizzle` as in `Implementation`."""
    from lowbit.references import bits

    array = x.detach().float().cpu().numpy()
    encoded = bits.quantize(array, scheme, **{name: _to_host(value) for name, value in options.items()})
    return stored(encoded, scheme, x.device, swizzle=swizzle)


def stored(encoded: Encoded, scheme: Scheme, device: Any, *, swizzle: bool = False) -> Quantized:
    """Codes and scales packed, as tensors on a device."""
    return Quantized(*(_to_device(part, device) for part in packing.pack(encoded, scheme, swizzle=swizzle)))


def dequantize(quantized: Quantized, scheme: Scheme, dtype: Any) -> Any:
    """Decodes on the host with `references.bits`; the result is on the device of the bytes."""
    import numpy as np
    import torch

    from lowbit.references import bits

    fmt = {torch.float32: BINARY32, torch.float16: BINARY16, torch.bfloat16: BFLOAT16}[dtype]
    pattern = bits.dequantize(unpacked(quantized, scheme), scheme, fmt)
    signed = torch.from_numpy(pattern.view(np.int32 if fmt is BINARY32 else np.int16).copy())
    return signed.view(dtype).to(quantized.packed.device)


def encode(x: Any, element: Any, rounding: Any, **options: Any) -> Any:
    """The scalar stage on the host; NaN as in the schemes that hold this element."""
    from lowbit.references import bits
    from lowbit.rules import NanCode

    nan = NanCode.POSITIVE_MAX if element.name == "e2m1" else NanCode.SIGNED_MAX
    codes = bits.encode(_to_host(x), element, rounding, nan, **{k: _to_host(v) for k, v in options.items()})
    return _to_device(codes, x.device)


def matmul(a: Quantized, b: Quantized, scheme: Scheme, out_dtype: Any) -> Any:
    """Multiplies on the host with `references.matmul`; the result is on the device of A's bytes."""
    if scheme.family not in ("nvfp4", "mxfp4"):
        raise Unsupported(f"no matmul of the family {scheme.family}")
    return multiplied(unpacked(a, scheme), unpacked(b, scheme), scheme, out_dtype, a.packed.device)


def unpacked(quantized: Quantized, scheme: Scheme) -> Encoded:
    """Codes and scales on the host; swizzled scales in row-major order."""
    return packing.unpack(Quantized(*(_to_host(part) for part in quantized)), scheme)


def multiplied(a: Encoded, b: Encoded, scheme: Scheme, out_dtype: Any, device: Any) -> Any:
    """A · Bᵀ of operands on the host, as a tensor on a device."""
    import torch

    from lowbit.references import matmul as reference

    fmt = {torch.float32: BINARY32, torch.float16: BINARY16, torch.bfloat16: BFLOAT16}[out_dtype]
    signed = torch.from_numpy(reference.matmul(a, b, scheme, fmt).view("i4" if fmt is BINARY32 else "i2"))
    return signed.view(out_dtype).to(device)


def dequantize_weight(tensors: Any, scheme: Any, dtype: Any) -> Any:
    """Decodes a stored weight on the host with `references.weights_bits`; the result is on its tensors' device."""
    from lowbit.references import weights_bits

    fmt = {"float32": BINARY32, "float16": BINARY16, "bfloat16": BFLOAT16}[str(dtype).removeprefix("torch.")]
    return weights_as(weights_bits.dequantize(weights_on_host(tensors), scheme, fmt), tensors, dtype)


def weights_on_host(tensors: Any) -> Any:
    """A mapping of stored tensors as NumPy arrays, tuples of them too; bfloat16 as uint16 patterns."""
    import numpy as np
    import torch

    def on_host(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(on_host(part) for part in value)
        if isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16:
            return value.detach().cpu().contiguous().view(torch.int16).numpy().view(np.uint16)
        return _to_host(value)

    return {name: on_host(value) for name, value in tensors.items()}


def weights_as(patterns: Any, tensors: Any, dtype: Any) -> Any:
    """Bit patterns as a tensor of a dtype, on the device of a stored weight."""
    import torch

    device = next(value.device for value in tensors.values() if hasattr(value, "device"))
    return torch.from_numpy(patterns.view(f"i{patterns.itemsize}")).view(dtype).to(device)


def reference(
    name: str,
    *,
    quantize: Callable[..., Any] | None = quantize,
    dequantize: Callable[..., Any] | None = dequantize,
    matmul: Callable[..., Any] | None = matmul,
    dequantize_weight: Callable[..., Any] | None = dequantize_weight,
) -> Implementation:
    """The reference under a name, with an operation exchanged for another, or left out."""
    return Implementation(
        name=name,
        version=__version__,
        quantize=quantize,
        dequantize=dequantize,
        swizzle=packing.swizzle,
        unswizzle=packing.unswizzle,
        matmul=matmul,
        dequantize_weight=dequantize_weight,
    )


IMPLEMENTATION = reference("reference")
