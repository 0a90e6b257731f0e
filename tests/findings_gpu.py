"""Findings of stored weights that only a GPU shows, each as seen on an H200 with the release that it names."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from findings import Called
from findings_weights import AUTOAWQ, BITSANDBYTES, GPTQMODEL, bitsandbytes_4_bits, gptq_layer, nested_state, patterns


def on_gpu(values: list[Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device="cuda")


def nf4_of_code_0(absmax: int, dtype: torch.dtype) -> tuple[str, ...]:
    """What code 0, which stands for -1, decodes to under an absmax of that binary32 pattern."""
    scale = on_gpu([absmax], torch.int32).view(torch.float32)
    return patterns(bitsandbytes_4_bits(0x00, scale, (1, 64), dtype=dtype), (0, 0))


def nested_size() -> bool:
    """Whether 256 blocks that share scales of 1, 2, 3 … a hundred at a time decode to those."""
    scales = on_gpu([1.0, 2.0, 3.0], torch.float32)
    blocks = torch.zeros(256, dtype=torch.uint8, device="cuda")
    values = bitsandbytes_4_bits(0xFF, blocks, (256, 64), nested=nested_state(scales, 100, 1.0))
    return bool((values == scales.repeat_interleave(100)[:256, None]).all())


def empty_weight() -> tuple[int, bool]:
    """In a process of its own: its status, and whether it says why."""
    body = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from findings_weights import bitsandbytes_4_bits
bitsandbytes_4_bits(0, torch.zeros(0, device="cuda"), (0,))
"""
    command = [sys.executable, "-c", body, str(Path(__file__).parent)]
    made = subprocess.run(command, capture_output=True, text=True)
    return made.returncode, "Error invalid argument at line" in made.stderr


def strided_words() -> tuple[str, ...]:
    """The first of two columns of words; codes of 1, beside codes of 2."""
    dequantize = importlib.import_module("awq.modules.triton.gemm").awq_dequantize_triton
    words = on_gpu([[0x11111111, 0x22222222]] * 32, torch.int32)[:, :1]
    scales = torch.ones(1, 8, dtype=torch.float16, device="cuda")
    return patterns(dequantize(words, scales, on_gpu([[0]], torch.int32)), (0, 0), (1, 0))


def index_beyond() -> tuple[str, ...]:
    """g_idx 0 and 1 with one group, of scale 1; what lies behind it in memory is 8."""
    layer = gptq_layer(4, 0x11111111, 0, index=[0] * 4 + [1] * 4).eval().to("cuda")
    layer.scales = on_gpu([[1.0] * 8, [8.0] * 8], torch.float16)[:1]
    layer.qzeros = on_gpu([[0], [0]], torch.int32)[:1]
    return patterns(layer.dequantize_weight(), (0, 0), (4, 0))


def _seen(name: str, of: dict[str, str], call: Any, got: Any, right: str) -> Called:
    return Called(name=name, **of, needs="cuda", call=call, got=got, right=right)


CALLED: tuple[Called, ...] = (
    _seen(
        *("bitsandbytes-cuda-subnormals", BITSANDBYTES),
        lambda: nf4_of_code_0(0x00000001, torch.float32),
        *(("80000000",), "80000001"),
    ),
    _seen(
        *("bitsandbytes-cuda-subnormals", BITSANDBYTES),
        lambda: nf4_of_code_0(0x00100000, torch.bfloat16),
        *(("8000",), "8010"),
    ),
    _seen(
        *("bitsandbytes-cuda-nested-size", BITSANDBYTES, nested_size),
        *(False, "the scale of each hundred blocks, or an error"),
    ),
    _seen(
        *("bitsandbytes-cuda-empty", BITSANDBYTES, empty_weight),
        *((1, True), "a weight without an element, or an error that can be caught"),
    ),
    _seen("autoawq-cuda-strides", AUTOAWQ, strided_words, ("3c00", "4000"), "3c00 3c00, or an error"),
    _seen("gptqmodel-cuda-index", GPTQMODEL, index_beyond, ("3c00", "4800"), "an error, as on the CPU"),
)
