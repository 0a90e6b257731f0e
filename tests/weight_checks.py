"""What tests of weight schemes share: stored tensors of any bits, and the three references under one signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lowbit import weight_tensors
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import weights_bits, weights_exact, weights_tensors
from lowbit.weights import WeightScheme

REFERENCES = ("exact", "bits", "tensors")
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
OUTPUTS = {BINARY16: torch.float16, BFLOAT16: torch.bfloat16, BINARY32: torch.float32}


def dequantize(
    reference: str, tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat, **options: Any
) -> np.ndarray:
    """Bit patterns by one reference, from NumPy arrays; a NaN is the canonical one."""
    if reference == "exact":
        return weights_exact.dequantize(tensors, scheme, fmt)
    if reference == "bits":
        return weights_bits.dequantize(tensors, scheme, fmt)
    values = weights_tensors.dequantize(to_torch(tensors), scheme, OUTPUTS[fmt], **options)
    assert values.dtype is OUTPUTS[fmt]
    return canonical(patterns(values), fmt)


def agree(tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat) -> np.ndarray:
    """What the NumPy and the PyTorch reference both say, the latter on every device that is here."""
    expected = weights_bits.dequantize(tensors, scheme, fmt)
    for device in DEVICES:
        actual = weights_tensors.dequantize(to_torch(tensors, device), scheme, OUTPUTS[fmt])
        assert actual.device.type == device
        assert np.array_equal(canonical(patterns(actual), fmt), expected), device
    return expected


def patterns(values: torch.Tensor) -> np.ndarray:
    """The bit patterns of a floating tensor."""
    values = values.cpu()
    if values.dtype is torch.float32:
        return values.view(torch.int32).numpy().view(np.uint32)
    return values.view(torch.int16).numpy().view(np.uint16)


def canonical(bits: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    """The patterns with every NaN as the canonical one."""
    assert fmt.inf_magnitude is not None
    assert fmt.nan_magnitude is not None
    nan = (bits & fmt.magnitude_mask) > fmt.inf_magnitude
    return np.where(nan, bits.dtype.type(fmt.nan_magnitude), bits)


def floats(bits: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    """The float32 values of bit patterns."""
    if fmt is BINARY16:
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << (32 - fmt.bits)).view(np.float32)


def to_torch(value: Any, device: str = "cpu") -> Any:
    """NumPy arrays as tensors, in mappings and tuples too; uint16 holds bfloat16."""
    if isinstance(value, Mapping):
        return {name: to_torch(entry, device) for name, entry in value.items()}
    if isinstance(value, tuple) and any(isinstance(part, np.ndarray) for part in value):
        return tuple(to_torch(part, device) for part in value)
    if not isinstance(value, np.ndarray):
        return value
    value = np.ascontiguousarray(value)
    if value.dtype == np.uint16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(value).to(device)


def any_bits(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Any pattern of a dtype; floats are half of them of everyday size."""
    size = {"int32": 4, "float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "int8": 1}[dtype]
    raw = rng.integers(0, 256, (*shape, size), dtype=np.uint8)
    found = raw.view({1: "u1", 2: "u2", 4: "u4"}[size])[..., 0]
    if dtype == "bfloat16":
        everyday = rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16
        return np.where(rng.random(shape) < 0.5, found, everyday.astype(np.uint16))
    if dtype in ("float16", "float32"):
        everyday = rng.standard_normal(shape).astype(dtype)
        return np.where(rng.random(shape) < 0.5, found.view(dtype), everyday)
    return found.view(dtype)


def any_tensors(
    scheme: WeightScheme, shape: tuple[int, ...], rng: np.random.Generator, *, choice: int = 0, block_size2: int = 3
) -> dict[str, Any]:
    """Stored tensors of any bits for an output shape.

    Args:
      choice: which of the dtypes that scales may have.
    """
    lengths = weight_tensors.shapes(scheme, shape, block_size2=block_size2)
    made: dict[str, Any] = {}
    for stored in weight_tensors.entries(scheme):
        match stored.name:
            case "shape":
                made["shape"] = shape
            case "block_size2":
                made["block_size2"] = block_size2
            case "offset":
                made["offset"] = any_bits("float32", (1,), rng)
            case "g_idx":
                if not weight_tensors.optional(stored, scheme):
                    made["g_idx"] = rng.integers(0, scheme.groups(shape[0]), shape[0]).astype(np.int32)
            case "sparse":
                held = rng.random(shape[::-1]) < 0.1
                starts = np.concatenate([[0], held.sum(1).cumsum()]).astype(np.int32)
                values = any_bits("float32", (int(held.sum()),), rng)
                made["sparse"] = (starts, np.nonzero(held)[1].astype(np.int32), values)
            case "full_rows":
                channels = rng.permutation(shape[1])[:3].astype(np.int32)
                made["full_rows"] = (channels, any_bits("float32", (shape[0], channels.size), rng))
            case _:
                allowed = weight_tensors.dtypes(stored, scheme)
                made[stored.name] = any_bits(allowed[choice % len(allowed)], lengths[stored.name], rng)
    return made


def a_shape(scheme: WeightScheme) -> tuple[int, ...]:
    """A small output shape that the scheme can store, with a short last group or block where it may have one."""
    if scheme.family == "awq":
        return (2 * scheme.group, 24) if scheme.group > 0 else (40, 24)
    if scheme.family == "gptq":
        return (scheme.group + 32 if scheme.group > 0 else 96, 32)
    return {"squeezellm": (64, 32), "int8": (9, 33)}.get(scheme.family, (5, 77))


def values(reference: str, case: tuple[Any, Any], fmt: Any = BINARY32) -> Any:
    """The float32 values of a case, as nested lists."""
    return floats(dequantize(reference, *case, fmt), fmt).tolist()
