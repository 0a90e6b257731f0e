"""Findings of block formats that only a GPU shows in a call, each as seen on an H200 with the release that it names."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from findings import Called
from findings_blocks import MODELOPT
from findings_weights import patterns, raised

BLOCK_POINTERS, HOPPER = "cuda, triton < 3.9", "cuda, sm_90"


def on_gpu(values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device="cuda")


def block_of(first: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A block whose rest is +0."""
    return on_gpu([first + [0.0] * (16 - len(first))], dtype)


def simulated(x: torch.Tensor, amax: torch.Tensor | None = None) -> tuple[str, ...]:
    """The first two values of NVFP4 fake quantisation, in the package's Triton kernel, under the amax of a tensor."""
    kernel = importlib.import_module("modelopt.torch.kernels.quantization.gemm.fp4_kernel_hopper").fp4_fake_quant_block
    return patterns(kernel(x, x.abs().amax() if amax is None else amax), (0, 0), (0, 1))


def stored() -> Any:
    return importlib.import_module("modelopt.torch.quantization.qtensor.nvfp4_tensor").NVFP4QTensor


def fast() -> str:
    """What decoding raises, with `fast` alone."""
    made, scale, second = stored().quantize(block_of([1.0]), 16)
    options = {"scale": scale, "double_scale": second, "block_sizes": {-1: 16}}
    made.dequantize(torch.float32, **options)
    return raised(lambda: made.dequantize(torch.float32, fast=True, **options))


def second_factor() -> tuple[str, ...]:
    """Of a tensor of amax 432a5e02 (170.36722)."""
    return patterns(stored().get_weights_scaling_factor_2(on_gpu([[0x432A5E02]], torch.int32).view(torch.float32)))


def one_under_byte_0() -> bool:
    """Whether code 2, which stands for 1, decodes to 2^-127."""
    made = importlib.import_module("modelopt.torch.quantization.qtensor.mxfp4_tensor").MXFP4QTensor
    codes = torch.full((1, 16), 0x22, dtype=torch.uint8, device="cuda")
    held = made(torch.Size((1, 32)), torch.float32, codes)
    values = held.dequantize(torch.float32, scale=on_gpu([[0]], torch.uint8), block_sizes={-1: 32})
    return bool((values.view(torch.int32) == 0x00400000).all())


CALLED: tuple[Called, ...] = (
    Called(
        name="modelopt-cuda-small-blocks",
        **MODELOPT,
        needs=BLOCK_POINTERS,
        call=lambda: simulated(block_of([2.0**-15] * 16)),
        got=("00000000", "00000000"),
        right="38000000 38000000, as it stores them",
    ),
    Called(
        name="modelopt-cuda-nan",
        **MODELOPT,
        needs=BLOCK_POINTERS,
        call=lambda: simulated(block_of([float("nan"), 1.0])),
        got=("c0c00000", "3f800000"),
        right="NaN NaN, as it stores them",
    ),
    Called(
        name="modelopt-cuda-division",
        **MODELOPT,
        needs=BLOCK_POINTERS,
        call=lambda: simulated(block_of([2.109375, -0.62109375], torch.bfloat16), on_gpu(4.96875))[1:],
        got=("bf36",),
        right="bf08, as it stores it",
    ),
    Called(
        name="modelopt-cuda-reciprocal",
        **MODELOPT,
        needs="cuda",
        call=second_factor,
        got=("3d81cdb9",),
        right="3d81cdb8, which is the quotient, as on the CPU",
    ),
    Called(
        name="modelopt-cuda-byte-0",
        **MODELOPT,
        needs="cuda",
        call=one_under_byte_0,
        got=False,
        right="00400000, as on the CPU",
    ),
    Called(
        name="modelopt-cuda-fast",
        **MODELOPT,
        needs=HOPPER,
        call=fast,
        got="PTXASError",
        right="1, as without fast",
    ),
)
