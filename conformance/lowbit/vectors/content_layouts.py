"""Where codes and scales lie in memory: nibbles, MX4's stream with its padding, the swizzled scales."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowbit import packing, schemes
from lowbit.cases.blocks import SWIZZLE_SHAPES
from lowbit.references import bits
from lowbit.schemes import Quantized
from lowbit.vectors import draws
from lowbit.vectors.content_blocks import Input, answered
from lowbit.vectors.hextext import write_digits, write_octets
from lowbit.vectors.payload import Draft, Raw, draft

STREAMS: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = (
    ("mx4_ceil_e2m1_g32", ((1, 1), (1, 31), (2, 32), (3, 33), (1, 64), (2, 70))),
    ("mx4_ceil_e3m0_g32", ((1, 32), (3, 33))),
    ("mx4_ceil_e2m1_g8", ((1, 8), (3, 9), (1, 20))),
    ("mx4_ceil_e2m1_g16", ((1, 16), (3, 17))),
    ("mx4_ceil_e2m1_g64", ((1, 64), (2, 65))),
    ("mx4_floor_e2m1_g32", ((3, 33),)),
)
"""Scheme → shapes of x."""


def build() -> Iterator[Draft]:
    """The groups of all layouts."""
    yield draft(
        "layouts/nibbles/layout.json",
        "nibbles/order",
        "layout",
        "nibbles",
        _nibbles(),
        layout="nibbles",
        source="SPEC.md 3; triton#5197",
        flags=("byte_order",),
    )
    yield draft(
        "layouts/swizzle_32_4_4/layout.json",
        "swizzle_32_4_4/index_coded",
        "layout",
        "swizzle",
        _swizzled(),
        layout="swizzle_32_4_4",
        source="SPEC.md 4; the scale layout of cuBLAS's block-scaled matmul; MSLK#339; vllm#45741",
        flags=("byte_order", "index_coded"),
    )
    for name, shapes in STREAMS:
        yield draft(
            f"schemes/{name}/layout.json",
            f"{name}/stream",
            "layout",
            "stream",
            [_stream(name, shape) for shape in shapes],
            scheme=name,
            source="SPEC.md 3.1; FBGEMM#2827",
            flags=("byte_order",),
        )
    for name in ("mxfp4_floor", "nvfp4"):
        yield draft(
            f"schemes/{name}/layout.json",
            f"{name}/packed",
            "layout",
            "stream",
            [_stream(name, (2, 64))],
            scheme=name,
            source=f"{schemes.get(name).cites}; triton#5197",
            flags=("byte_order",),
        )


def _nibbles() -> Iterator[Raw]:
    rows = {
        "1.0 and 2.0 of E2M1": [2, 4],
        "0 to 15": list(range(16)),
        "15 to 0": list(range(15, -1, -1)),
        "only element 0": [15, 0, 0, 0],
        "only element 1": [0, 15, 0, 0],
        "every pair": [code for high in range(16) for low in range(16) for code in (low, high)],
    }
    for name, codes in rows.items():
        packed = packing.pack_nibbles(np.array(codes, np.uint8))
        yield {"name": name, "codes": write_digits(codes), "packed": write_octets(packed)}


def _swizzled() -> Iterator[Raw]:
    """Two matrices a shape, which together hold each scale's index; no scale is 0, as all padding is."""
    for rows, columns in SWIZZLE_SHAPES:
        index = np.arange(rows * columns).reshape(rows, columns)
        planes = {"low": index % 255 + 1, "high": index // 255 % 255 + 1}
        for plane, scales in planes.items():
            buffer = packing.swizzle(scales.astype(np.uint8))
            yield {
                "name": f"{rows} x {columns}, {plane} part of the index",
                "shape": [rows, columns],
                "scales": write_octets(scales.ravel()),
                "buffer": write_octets(buffer),
            }


def _stream(name: str, shape: tuple[int, int]) -> Raw:
    scheme = schemes.get(name)
    x = draws.ordinary(f"{name} {shape}", shape[0] * shape[1]).reshape(shape)
    flags = ("padding",) if shape[1] % scheme.block else ()
    fields = answered(Input(f"{shape[0]} x {shape[1]}", x, flags), scheme)
    stored: Quantized = packing.pack(bits.quantize(x, scheme), scheme)
    return fields | {"packed": write_octets(stored.packed.ravel())}
