"""The NumPy reference as an implementation: what a faithful one looks like, and the stock that mutants are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowbit import __version__, packing
from lowbit.formats import BFLOAT16, BINARY16, BINARY32
from lowbit.implementation import Implementation, Quantized
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
    encoded = packing.unpack(Quantized(*(_to_host(part) for part in quantized)), scheme)
    pattern = bits.dequantize(encoded, scheme, fmt)
    signed = torch.from_numpy(pattern.view(np.int32 if fmt is BINARY32 else np.int16).copy())
    return signed.view(dtype).to(quantized.packed.device)


def encode(x: Any, element: Any, rounding: Any, **options: Any) -> Any:
    """The scalar stage on the host; NaN as in the schemes that hold this element."""
    from lowbit.references import bits
    from lowbit.rules import NanCode

    nan = NanCode.POSITIVE_MAX if element.name == "e2m1" else NanCode.SIGNED_MAX
    codes = bits.encode(_to_host(x), element, rounding, nan, **{k: _to_host(v) for k, v in options.items()})
    return _to_device(codes, x.device)


def reference(
    name: str, *, quantize: Callable[..., Any] = quantize, dequantize: Callable[..., Any] = dequantize
) -> Implementation:
    """The reference under a name, with an operation exchanged for another."""
    return Implementation(
        name=name,
        version=__version__,
        quantize=quantize,
        dequantize=dequantize,
        swizzle=packing.swizzle,
        unswizzle=packing.unswizzle,
    )


IMPLEMENTATION = reference("reference")
