"""Stored tensors of weight schemes from values written by hand: each gives the tensors and their scheme."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit import weights
from lowbit.packing_weights import pack_codes, pack_zeros


def words(*values: int) -> np.ndarray:
    """int32 of 32-bit patterns."""
    return np.array(values, np.uint32).view(np.int32)


def f32(*patterns: int) -> np.ndarray:
    """float32 of bit patterns."""
    return np.array(patterns, np.uint32).view(np.float32)


def halves(*shape: int) -> np.ndarray:
    """Ones, as binary16 scales."""
    return np.ones(shape, np.float16)


def integer_scheme(name: str, codes: Any, zeros: Any, scales: Any, g_idx: Any = None) -> tuple[Any, Any]:
    """Tensors and scheme of AWQ or GPTQ, from codes (K, N), zeros and scales (groups, N)."""
    scheme = weights.get(name)
    tensors = {
        "qweight": pack_codes(np.asarray(codes), scheme),
        "qzeros": pack_zeros(np.asarray(zeros), scheme),
        "scales": np.asarray(scales),
    }
    return tensors if g_idx is None else {**tensors, "g_idx": np.array(g_idx, np.int32)}, scheme


def four_bits(name: str, codes: Any, absmax: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Tensors and scheme of NF4 or FP4."""
    scheme = weights.get(name)
    packed = pack_codes(np.asarray(codes).reshape(-1), scheme)
    return {"packed": packed, "absmax": np.asarray(absmax, np.float32), "shape": shape}, scheme


def nested(offset: Any) -> tuple[Any, Any]:
    """One NF4 weight of code 5 whose absmax is -0.57109374 * 0x3d470736 + offset."""
    code2 = np.zeros(256, np.float32)
    code2[17] = -0.57109374
    scheme = weights.get("nf4_b64+nested")
    tensors = {
        **{"packed": pack_codes(np.array([5]), scheme), "shape": (1,), "absmax": np.array([17], np.uint8)},
        **{"code2": code2, "absmax2": f32(0x3D470736), "offset": offset, "block_size2": 256},
    }
    return tensors, scheme


def int8(name: str, codes: Any, scale: Any) -> tuple[Any, Any]:
    """Tensors and scheme of int8."""
    return {"weight": np.array(codes, np.int8), "scale": np.asarray(scale)}, weights.get(name)


def squeezed(name: str, codes: Any, table: Any, **terms: Any) -> tuple[Any, Any]:
    """Tensors and scheme of SqueezeLLM, from codes (K, N)."""
    scheme = weights.get(name)
    return {"qweight": pack_codes(np.asarray(codes), scheme), "lookup_table": np.asarray(table), **terms}, scheme


def csr(*entries: tuple[int, int, float], channels: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CSR of (N, K) from (n, k, value), in the order given within a channel."""
    counts = np.bincount([n for n, _, _ in entries], minlength=channels)
    ordered = sorted(entries, key=lambda entry: entry[0])
    return (
        np.concatenate([[0], counts.cumsum()]).astype(np.int32),
        np.array([k for _, k, _ in ordered], np.int32),
        np.array([value for _, _, value in ordered], np.float32),
    )
