"""What the tests of the NVFP4 kernels share: calls, the reference's bytes, and the comparison of the two."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lowbit import packing, schemes
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, E4M3
from lowbit.references import bits
from lowbit.schemes import Encoded
from lowbit_kernels import dequantize_nvfp4, quantize_nvfp4

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = {torch.float32: BINARY32, torch.bfloat16: BFLOAT16, torch.float16: BINARY16}
SCHEMES = ("nvfp4", "nvfp4_two_level", "nvfp4_one_level")


def on(array: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor on the device under test."""
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(np.array(array))
    return tensor.to(DEVICE, dtype)


def raw(tensor: torch.Tensor) -> np.ndarray:
    """The bits of a tensor as unsigned integers."""
    width = tensor.element_size()
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[width]).cpu().numpy().view(f"u{width}")


def float32(bits32: Any) -> np.ndarray:
    """float32 of these patterns."""
    return np.asarray(bits32, dtype=np.uint32).view(np.float32)


def reference(x: torch.Tensor, scheme: str, *, swizzle: bool = False, **options: Any) -> tuple[Encoded, Any]:
    """Codes, and what is stored, by the integer reference from the widened x."""
    rule = schemes.get(scheme)
    encoded = bits.quantize(np.ascontiguousarray(x.float().cpu().numpy()), rule, **options)
    return encoded, packing.pack(encoded, rule, swizzle=swizzle)


def assert_same_bits(actual: torch.Tensor, expected: Any, name: str) -> None:
    """The same shape and bits; float32 NaN by class."""
    got, want = raw(actual), np.asarray(expected)
    if want.dtype == np.float32:
        want = np.where(np.isnan(want), np.float32(np.nan), want).view(np.uint32)
        got = np.where(np.isnan(got.view(np.float32)), np.float32(np.nan).view(np.uint32), got)
    assert got.shape == want.shape, f"{name}: shape {got.shape}, want {want.shape}"
    wrong = np.argwhere(got != want)
    first = tuple(wrong[0]) if len(wrong) else ()
    assert not len(wrong), f"{name}: {len(wrong)} wrong, first at {first}: {got[first]:#x}, want {want[first]:#x}"


def check(x: torch.Tensor, scheme: str, *, swizzle: bool = False, **options: Any) -> tuple[torch.Tensor, ...]:
    """Quantises by the kernel and compares all three results with the reference's; returns the kernel's.

    Args:
      scheme: ``base`` or ``base+rounding``.
      options: tensor_scale (a number), random_bits (NumPy), seed.
    """
    base, _, rounding = scheme.partition("+")
    tensors = {name: on(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
    actual = quantize_nvfp4(x, scheme=base, rounding=rounding or None, swizzle=swizzle, **tensors)
    if "tensor_scale" in options:
        options["tensor_scale"] = np.float32(options["tensor_scale"])
    _, stored = reference(x, scheme, swizzle=swizzle, **options)
    assert_same_bits(actual[2], np.float32(stored.tensor_scale).reshape(1), "tensor_scale")
    assert_same_bits(actual[1], stored.scales, "scales")
    assert_same_bits(actual[0], stored.packed, "packed")
    return actual


def check_decoded(packed: torch.Tensor, scales: torch.Tensor, g: Any, dtype: torch.dtype, **options: Any) -> None:
    """Dequantises by the kernel and compares with the reference; NaN by class."""
    actual = dequantize_nvfp4(packed, scales, g, dtype=dtype, **options)
    factor = None if g is None else np.float32(g.item() if isinstance(g, torch.Tensor) else g)
    encoded = Encoded(packing.unpack_nibbles(raw(packed)), raw(scales), factor)
    expected = bits.dequantize(encoded, schemes.get("nvfp4"), DTYPES[dtype])
    got, mantissa = raw(actual), DTYPES[dtype].mantissa_bits
    sign, inf = 1 << (8 * got.itemsize - 1), ((1 << (8 * got.itemsize - 1 - mantissa)) - 1) << mantissa
    both_nan = ((got & (sign - 1)) > inf) & ((expected & (sign - 1)) > inf)
    wrong = np.argwhere((got != expected) & ~both_nan)
    first = tuple(wrong[0]) if len(wrong) else ()
    assert actual.dtype == dtype
    assert got.shape == expected.shape
    assert not len(wrong), f"{len(wrong)} wrong, first at {first}: {got[first]:#x}, want {expected[first]:#x}"


def e4m3(code: int) -> float:
    """The value of an E4M3 code."""
    return float(E4M3.value(code))


def codes(packed: torch.Tensor) -> np.ndarray:
    """Element codes, one a byte."""
    return packing.unpack_nibbles(raw(packed))


def with_pin(elements: np.ndarray, pin: float) -> np.ndarray:
    """(n, 16): fifteen elements a block of those not above the pin, which is the last of each and so its amax."""
    kept = elements[np.abs(elements) <= pin]
    kept = np.append(kept, np.zeros(-len(kept) % 15, dtype=elements.dtype)).reshape(-1, 15)
    return np.hstack([kept, np.full((len(kept), 1), pin, dtype=elements.dtype)])
