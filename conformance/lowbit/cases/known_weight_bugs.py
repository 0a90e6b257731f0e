"""Real bugs of weight dequantisers as small inputs: publicly reported faults, each with the right answer.

The right values are written here by hand from the storage conventions and the reports; no reference computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.weights import WeightScheme

Arrays = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class KnownWeight:
    """A stored weight, and what must come out.

    Attributes:
      name: says what the case catches.
      source: the public report (repository#number).
      scheme: under which the answer is right.
      tensors: makes the stored arrays; bfloat16 as uint16.
      fmt: of the output.
      patterns: of the output, that broadcast to its shape; None where the weight must be refused.
      seen: the wrong answer of the report.
    """

    name: str
    source: str
    scheme: str
    tensors: Callable[[], Arrays]
    fmt: FloatFormat = BINARY16
    patterns: Callable[[], Any] | None
    seen: str


def half(values: Any) -> Any:
    """binary16 patterns of small integers and their like, which binary16 holds."""
    return np.asarray(values, np.float16).view(np.uint16)


def words(*patterns: int) -> Any:
    """Patterns of 32 bits as int32."""
    return np.array(patterns, np.uint32).view(np.int32)


def integers(
    code: int, rows: int, columns: int, zero: int, scales: Any, *, zero_columns: int | None = None, **others: Any
) -> Arrays:
    """A weight whose words of codes, (rows, columns), are all one, and so are its words of zero points.

    Args:
      zero_columns: words of zero points a group; None for `columns`.
    """
    scales = np.asarray(scales, np.float16)
    wide = (len(scales), columns if zero_columns is None else zero_columns)
    qweight, qzeros = (np.tile(words(word), shape) for word, shape in ((code, (rows, columns)), (zero, wide)))
    return {"qweight": qweight, "qzeros": qzeros, "scales": scales, **others}


def awq_row() -> Arrays:
    return integers(0x75316420, 1, 1, 0, np.ones((1, 8)))


def awq_columns(columns: int) -> Arrays:
    """K 32, G 32: every code 3, every zero point 1, column n scaled by n + 1."""
    return integers(0x33333333, 32, columns // 8, 0x11111111, [np.arange(1, columns + 1)])


def doubled_places(columns: int) -> Any:
    """2, 4, 6 … in binary16."""
    return half(2.0 * np.arange(1, columns + 1))


def three_bits() -> Arrays:
    """K 32, N 32: 0..7 four times down each column; zero points 0, stored as all ones."""
    stream = words(0x88FAC688, 0xC688FAC6, 0xFAC688FA)
    return {
        "qweight": np.repeat(stream[:, None], 32, axis=1),
        "qzeros": words(*[0xFFFFFFFF] * 3).reshape(1, 3),
        "scales": np.ones((1, 32), np.float16),
    }


def act_order() -> Arrays:
    """K 64, G 32: rows take turns between two groups of scales 1 and 10; codes 9, zero points 8, stored as 7."""
    index = (1 - np.arange(64) % 2).astype(np.int32)
    return integers(0x99999999, 8, 8, 0x77777777, [[1.0] * 8, [10.0] * 8], g_idx=index, zero_columns=1)


def nibbles(shape: tuple[int, ...], byte: int, absmax: Any) -> Arrays:
    count = -(-int(np.prod(shape)) // 2)
    return {"packed": np.full(count, byte, np.uint8), "absmax": np.asarray(absmax, np.float32), "shape": shape}


def nested() -> Arrays:
    table = np.zeros(256, np.float32)
    table[0] = -0.57109374
    return {
        "packed": np.full(32, 0x55, np.uint8),
        "absmax": np.zeros(1, np.uint8),
        "code2": table,
        "absmax2": words(0x3D470736).view(np.float32),
        "offset": words(0x3CE920C3).view(np.float32),
        "block_size2": 256,
        "shape": (64,),
    }


def tables() -> Arrays:
    """3 bits, K 32, N 2: 0..7 four times down each column; channel n has the entries 8n..8n + 7."""
    stream = words(0x88FAC688, 0xC688FAC6, 0xFAC688FA)
    return {
        "qweight": np.repeat(stream[:, None], 2, axis=1),
        "lookup_table": np.arange(16, dtype=np.float32).reshape(2, 8),
    }


KNOWN_WEIGHTS: tuple[KnownWeight, ...] = (
    KnownWeight(
        name="order of AWQ's columns",
        source="GPTQModel, AWQ converter",
        scheme="awq_gk",
        tensors=awq_row,
        patterns=lambda: half([range(8)]),
        seen="0 2 4 6 1 3 5 7",
    ),
    KnownWeight(
        name="nibble 0xF sign-extended",
        source="AutoAWQ#329",
        scheme="awq_gk",
        tensors=lambda: integers(0xFFFFFFFF, 1, 1, 0, np.ones((1, 8))),
        patterns=lambda: half(15),
        seen="-1",
    ),
    KnownWeight(
        name="one added to AWQ's zero points, or taken from them",
        source="GPTQModel#2350–2352",
        scheme="awq_gk",
        tensors=lambda: integers(0x55555555, 1, 1, 0, np.ones((1, 8))),
        patterns=lambda: half(5),
        seen="-10; 4",
    ),
    KnownWeight(
        name="a tile of 64 rows under groups of 32",
        source="vllm#39705",
        scheme="awq_g32",
        tensors=lambda: integers(0x11111111, 64, 1, 0, [[1.0] * 8, [2.0] * 8]),
        patterns=lambda: half(np.repeat([1.0, 2.0], 32)[:, None]),
        seen="1 in all rows",
    ),
    KnownWeight(
        name="group size -1",
        source="vllm#37329",
        scheme="awq_gk",
        tensors=lambda: integers(0x33333333, 128, 1, 0x11111111, np.full((1, 8), 0.5)),
        patterns=lambda: half(1.0),
        seen="scales read before the tensor from row 64 on",
    ),
    *(
        KnownWeight(
            name=f"N = {columns}",
            source="vllm#13227",
            scheme="awq_g32",
            tensors=partial(awq_columns, columns),
            patterns=partial(doubled_places, columns),
            seen="tail of the columns wrong",
        )
        for columns in (8, 64, 72, 200)
    ),
    KnownWeight(
        name="carry between zero points",
        source="AutoGPTQ#325; GPTQModel",
        scheme="gptq4_v1_g128",
        tensors=lambda: integers(0x88888888, 1, 8, 0x777777F7, np.ones((1, 8)), zero_columns=1),
        patterns=lambda: half([0, 8, 0, 0, 0, 0, 0, 0]),
        seen="zero point 9 beside the one that wraps",
    ),
    KnownWeight(
        name="v2 read as v1",
        source="vllm#26343",
        scheme="gptq4_v2_g128",
        tensors=lambda: integers(0x88888888, 1, 8, 0x88888888, np.ones((1, 8)), zero_columns=1),
        patterns=lambda: half(0.0),
        seen="-1",
    ),
    KnownWeight(
        name="g_idx ignored",
        source="AutoGPTQ#62",
        scheme="gptq4_v1_g32+act_order",
        tensors=act_order,
        patterns=lambda: half(np.tile([10.0, 1.0], 32)[:, None]),
        seen="1 in the first group of rows, 10 in the second",
    ),
    KnownWeight(
        name="g_idx 5 with one group",
        source="GPTQModel#2949",
        scheme="gptq4_v1_g128",
        tensors=lambda: integers(
            0, 1, 8, 0, np.ones((1, 8)), zero_columns=1, g_idx=np.array([0, 0, 0, 5, 0, 0, 0, 0], np.int32)
        ),
        patterns=None,
        seen="memory beyond the scales is read",
    ),
    KnownWeight(
        name="3-bit fields across words",
        source="GPTQModel#2251",
        scheme="gptq3_v1_g128",
        tensors=three_bits,
        patterns=lambda: half(np.tile(np.arange(8.0), 4)[:, None]),
        seen="fields 10, 21 and their like wrong",
    ),
    KnownWeight(
        name="8-bit zero points masked with 0xF",
        source="AutoGPTQ",
        scheme="gptq8_v1_g128",
        tensors=lambda: integers(0x80808080, 1, 4, 0x7F7F7F7F, np.ones((1, 4)), zero_columns=1),
        patterns=lambda: half(0.0),
        seen="128",
    ),
    KnownWeight(
        name="FP4 code 1",
        source="bitsandbytes#2025",
        scheme="fp4_b64",
        tensors=lambda: nibbles((2,), 0x11, [1.0]),
        fmt=BINARY32,
        patterns=lambda: np.uint32(0x3BAAAAAB),
        seen="0x3baaaaa4",
    ),
    KnownWeight(
        name="65 elements in blocks of 64",
        source="bitsandbytes#1884",
        scheme="nf4_b64",
        tensors=lambda: nibbles((65,), 0xF0, [1.0, 2.0]),
        patterns=lambda: half([*[1.0, -1.0] * 32, 2.0]),
        seen="tail wrong",
    ),
    KnownWeight(
        name="shape (5, 3)",
        source="bitsandbytes#1884",
        scheme="nf4_b64",
        tensors=lambda: nibbles((5, 3), 0xF0, [3.0]),
        patterns=lambda: half([*[3.0, -3.0] * 7, 3.0]).reshape(5, 3),
        seen="tail wrong",
    ),
    KnownWeight(
        name="blocks cross rows",
        source="bitsandbytes 0.50.2, on the CPU",
        scheme="nf4_b64",
        tensors=lambda: nibbles((2, 96), 0xFF, [1.0, 2.0, 4.0]),
        patterns=lambda: half(np.repeat([1.0, 2.0, 4.0], 64)).reshape(2, 96),
        seen="columns 32..63 of the second row scaled by 2",
    ),
    KnownWeight(
        name="axis of int8's scales",
        source="bitsandbytes#1142",
        scheme="int8_scb",
        tensors=lambda: {"weight": np.ones((2, 3), np.int8), "scale": np.array([127, 254], np.float32)},
        patterns=lambda: half([[1.0], [2.0]]),
        seen="broadcast along the other axis",
    ),
    KnownWeight(
        name="axis of int8's scales",
        source="bitsandbytes#1142",
        scheme="int8_channel",
        tensors=lambda: {"weight": np.ones((2, 3), np.int8), "scale": np.array([1, 2], np.float32)},
        patterns=lambda: half([[1.0], [2.0]]),
        seen="broadcast along the other axis",
    ),
    *(
        KnownWeight(
            name=f"overflow, {fmt.name}",
            source="vllm#16579",
            scheme="awq_gk",
            tensors=lambda: integers(0xFFFFFFFF, 1, 1, 0, np.full((1, 8), 5000.0)),
            fmt=fmt,
            patterns=partial(np.uint16, pattern),
            seen="nothing wrong: Inf is right in binary16, and counted in the report",
        )
        for fmt, pattern in ((BINARY16, 0x7C00), (BFLOAT16, 0x4792))
    ),
    KnownWeight(
        name="entries of a 3-bit table",
        source="SqueezeLLM in vllm",
        scheme="squeezellm3",
        tensors=tables,
        patterns=lambda: half(np.add.outer(np.tile(np.arange(8.0), 4), [0.0, 8.0])),
        seen="9 entries a channel",
    ),
    KnownWeight(
        name="nested absmax by a fused multiply-add",
        source="bitsandbytes, nested absmax",
        scheme="nf4_b64+nested",
        tensors=nested,
        patterns=lambda: np.uint16(0x8849),
        seen="0x884a",
    ),
)


def of_scheme(scheme: WeightScheme) -> tuple[KnownWeight, ...]:
    """The cases that this very scheme decides."""
    return tuple(case for case in KNOWN_WEIGHTS if case.scheme == scheme.name)
