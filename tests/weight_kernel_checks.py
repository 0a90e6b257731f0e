"""What the tests of the weight kernels share: bits, packing by hand, and the formulas of SPEC.md section 5 in NumPy.

The formulas stand here once more, apart from the references, so that a kernel's test says what it wants by itself. An
integer of 9 bits times a 16-bit scale is exact in binary64 and in binary32, so one conversion is the one rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF, BFLOAT, SINGLE = torch.float16, torch.bfloat16, torch.float32
DTYPES = (HALF, BFLOAT, SINGLE)
SCALES = (HALF, BFLOAT)
MANTISSA = {HALF: 10, BFLOAT: 7, SINGLE: 23}


def on(array: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor on the device under test."""
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(np.array(array))
    return tensor.to(DEVICE, dtype)


def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def raw(tensor: torch.Tensor) -> np.ndarray:
    """The bits of a tensor as unsigned integers."""
    width = tensor.element_size()
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[width]).cpu().numpy().view(f"u{width}")


def floats(bits: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of these bit patterns."""
    signed = np.asarray(bits).astype({2: np.uint16, 4: np.uint32}[dtype.itemsize]).view(f"i{dtype.itemsize}")
    return torch.from_numpy(np.array(signed)).view(dtype).to(DEVICE)


def wide(tensor: torch.Tensor) -> np.ndarray:
    """The values as float64, exact."""
    with np.errstate(invalid="ignore"):
        return tensor.float().cpu().numpy().astype(np.float64)


def rounded(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The bits of values, float64 or float32, rounded once to nearest even; bfloat16 by integers, from binary32."""
    with np.errstate(all="ignore"):
        if dtype == HALF:
            return values.astype(np.float16).view(np.uint16)
        single = values.astype(np.float32)
        if dtype == SINGLE:
            return single.view(np.uint32)
        exact = (single.astype(np.float64) == values) | np.isnan(values) | np.isinf(single)  # Inf in bfloat16 too
        assert exact.all(), "two roundings"
        bits = single.view(np.uint32).astype(np.uint64)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(single), np.uint16(0x7FC0), nearest)


def assert_bits(actual: torch.Tensor, expected: np.ndarray, what: Any = "") -> None:
    """The same shape and bits; NaN by class."""
    got, mantissa = raw(actual), MANTISSA[actual.dtype]
    sign, inf = 1 << (8 * got.itemsize - 1), ((1 << (8 * got.itemsize - 1 - mantissa)) - 1) << mantissa
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, want {expected.shape}"
    both_nan = ((got & (sign - 1)) > inf) & ((expected & (sign - 1)) > inf)
    wrong = np.argwhere((got != expected) & ~both_nan)
    first = tuple(wrong[0]) if len(wrong) else ()
    assert not len(wrong), f"{what}: {len(wrong)} wrong, first at {first}: {got[first]:#x}, want {expected[first]:#x}"


def assert_same(actual: torch.Tensor, expected: torch.Tensor, what: Any = "") -> None:
    """Two tensors of one dtype with the same bits, NaN included."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert np.array_equal(raw(actual), raw(expected)), what


def views(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Views with the elements of a vector or a matrix: inside a larger tensor, with gaps, at offset 2, transposed."""
    sizes = tensor.shape
    padded = torch.full([size + 5 for size in sizes], -1, device=tensor.device).to(tensor.dtype)
    spread = torch.full([size * 3 for size in sizes], -1, device=tensor.device).to(tensor.dtype)
    inside = padded[tuple(slice(3, 3 + size) for size in sizes)]
    apart = spread[(slice(None, None, 3),) * len(sizes)]
    flat = torch.full((tensor.numel() + 2,), -1, device=tensor.device).to(tensor.dtype)
    found = [inside, apart, flat[2:].view(sizes)]
    if tensor.dim() == 2:
        found.append(torch.empty_like(tensor.t().contiguous()).t())
    for view in found:
        view.copy_(tensor)
    return found


def words(fields: np.ndarray, bits: int) -> np.ndarray:
    """Packs a dense stream, least significant bit first, along the last dimension into int32 words."""
    assert fields.min(initial=0) >= 0
    assert fields.max(initial=0) < 1 << bits, "a field spills"
    planes = (fields[..., None].astype(np.uint8) >> np.arange(bits, dtype=np.uint8)) & 1
    stream = np.packbits(planes.reshape(*fields.shape[:-1], -1).astype(np.uint8), axis=-1, bitorder="little")
    return np.ascontiguousarray(stream).view("<i4")


def awq_words(codes: np.ndarray) -> np.ndarray:
    """(…, N) codes 0..15 → (…, N / 8) int32: field i of word c holds column 8c + [0, 2, 4, 6, 1, 3, 5, 7][i]."""
    places = codes.reshape(*codes.shape[:-1], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    return words(places.reshape(codes.shape), 4)


def gptq_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """(K, N) codes → (K * bits / 32, N) int32, a stream down each column."""
    return np.ascontiguousarray(words(np.ascontiguousarray(codes.T), bits).T)


def gptq_zeros(points: np.ndarray, bits: int, kind: str) -> np.ndarray:
    """(groups, N) zero points → (groups, N * bits / 32) int32; "v1" stores z - 1 modulo 2**bits."""
    return words((points - (kind == "v1")) % (1 << bits), bits)


def products(codes: np.ndarray, points: np.ndarray, scales: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The bits of RN(dtype)(scale * (q - z)); all (K, N), scales float64."""
    with np.errstate(all="ignore"):
        return rounded((codes.astype(np.int64) - points).astype(np.float64) * scales, dtype)


def scales_of(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Scales of every kind: of a real size, negative, any pattern, subnormal, zeros, Inf and NaN."""
    real = torch.from_numpy(rng.lognormal(-4, 1, shape) * rng.choice([1, 1, 1, -1], shape)).to(dtype)
    width = f"i{dtype.itemsize}"
    any_pattern = torch.from_numpy(rng.integers(0, 1 << 8 * dtype.itemsize, shape).astype(f"u{width[1]}").view(width))
    tiny = torch.from_numpy(rng.integers(0, 200, shape).astype(width))
    chosen = torch.from_numpy(rng.integers(0, 6, shape))
    bits = torch.where(chosen < 4, real.view(tiny.dtype), torch.where(chosen == 4, any_pattern, tiny))
    return bits.view(dtype).to(DEVICE)
