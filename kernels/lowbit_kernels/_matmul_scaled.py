"""The way through torch's scaled matmul, for hardware that multiplies block-scaled operands itself.

    takes(m, n, k, mx, out_dtype, capability) -> bool       whether torch multiplies such operands there
    arguments(operands, out_dtype) -> keywords              of `torch.nn.functional.scaled_mm`
    call(keywords) -> out                                   by that function, or by `torch._scaled_mm_v2` alone
    multiply(operands, out) -> bool                         into a buffer; False where this way is not open

Scales are swizzled (SWIZZLE_32_4_4) as the kernels' own are, b goes in as its transposed view, and NVFP4's decode
factors are a second, tensor-wise scale of each operand: lists of two recipes, two swizzles, two scales.

torch's conditions (torch 2.11 to 2.13, `ScaledBlas.cpp`): N a multiple of 16; packed rows of whole 16 bytes, which
cuBLAS wants; MXFP4 on compute capability 10.x alone, to bfloat16, and in builds that have the kernel. Where torch says
NotImplementedError, or cuBLAS has no algorithm, the kernel here is used instead.

One condition is ours: K fills the tiles of the swizzled scales, four blocks wide. In a part of a tile the hardware may
multiply padding of the scales by the zeros that it reads behind K, and a NaN there would not vanish.

What differs there: the hardware's block scales have no sign, so that it does not say what bytes from 0x80 are.
"""

from __future__ import annotations

from typing import Any

import torch

from lowbit_kernels._matmul_launch import Operands

TENSOR_WISE, BLOCK_1X16, BLOCK_1X32 = 0, 2, 3
NO_SWIZZLE, SWIZZLE_32_4_4 = 0, 1
"""The numbers of torch's enumerations, which `torch._scaled_mm_v2` takes."""

_REFUSED: set[bool] = set()
"""MX or not: what torch has said it does not have."""


def takes(m: int, n: int, k: int, mx: bool, out_dtype: torch.dtype, capability: tuple[int, int]) -> bool:
    """Whether torch multiplies operands of these shapes on such a device."""
    if m == 0 or n == 0 or k == 0 or n % 16 or k % (128 if mx else 64):
        return False
    return capability[0] == 10 and out_dtype == torch.bfloat16 if mx else capability >= (10, 0)


def arguments(operands: Operands, out_dtype: torch.dtype) -> dict[str, Any]:
    """The keywords of `torch.nn.functional.scaled_mm`, recipes and swizzles as numbers.

    Args:
      operands: uint8 tensors.
      out_dtype: of the result.
    """
    scale_dtype = torch.float8_e8m0fnu if operands.mx else torch.float8_e4m3fn
    keywords: dict[str, Any] = {
        "mat_a": _aligned(operands.a).view(torch.float4_e2m1fn_x2),
        "mat_b": _aligned(operands.b).view(torch.float4_e2m1fn_x2).t(),
        "output_dtype": out_dtype,
    }
    for side, scales, factor in (
        ("a", operands.a_scales, operands.a_rglob),
        ("b", operands.b_scales, operands.b_rglob),
    ):
        block_scales = _aligned(scales).view(scale_dtype)
        if operands.mx:
            listed = ([block_scales], [BLOCK_1X32], [SWIZZLE_32_4_4])
        else:
            one = torch.ones(1, dtype=torch.float32, device=scales.device) if factor is None else factor
            listed = ([block_scales, one], [BLOCK_1X16, TENSOR_WISE], [SWIZZLE_32_4_4, NO_SWIZZLE])
        keywords[f"scale_{side}"], keywords[f"scale_recipe_{side}"], keywords[f"swizzle_{side}"] = listed
    return keywords


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes row after row from an address that cuBLAS takes, copied if they are not, with plain strides."""
    if not tensor.is_contiguous() or tensor.data_ptr() % 16:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor.view(-1).view(tensor.shape)


def call(keywords: dict[str, Any]) -> torch.Tensor:
    """Calls torch with the result of `arguments`.

    Raises:
      NotImplementedError: a torch that has neither function, or a build or device that they do not serve.
    """
    public = getattr(torch.nn.functional, "scaled_mm", None)
    if public is not None:
        from torch.nn.functional import ScalingType, SwizzleType

        recipes = {int(kind.value): kind for kind in ScalingType.__members__.values()}
        swizzles = {int(kind.value): kind for kind in SwizzleType.__members__.values()}
        named = dict(keywords)
        for side in ("a", "b"):
            named[f"scale_recipe_{side}"] = [recipes[number] for number in keywords[f"scale_recipe_{side}"]]
            named[f"swizzle_{side}"] = [swizzles[number] for number in keywords[f"swizzle_{side}"]]
        return public(**named)
    if not hasattr(torch, "_scaled_mm_v2"):
        raise NotImplementedError("no scaled matmul with lists of scales in this torch")
    return torch._scaled_mm_v2(*positional(keywords))


def positional(keywords: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of `torch._scaled_mm_v2`: mat_a, mat_b, then scale, recipe, swizzle of each, bias, dtype."""
    sides = [keywords[f"{part}_{side}"] for side in ("a", "b") for part in ("scale", "scale_recipe", "swizzle")]
    return keywords["mat_a"], keywords["mat_b"], *sides, None, keywords["output_dtype"]


def multiply(operands: Operands, out: torch.Tensor) -> bool:
    """Multiplies into a (m, n) buffer, if torch can; says whether it did."""
    if not out.is_cuda or torch.version.hip is not None or operands.mx in _REFUSED:
        return False
    (m, n), k = out.shape, operands.a.shape[1] * 2
    if not takes(m, n, k, operands.mx, out.dtype, torch.cuda.get_device_capability(out.device)):
        return False
    try:
        out.copy_(call(arguments(operands, out.dtype)))
    except NotImplementedError:
        _REFUSED.add(operands.mx)
        return False
    except RuntimeError as error:
        if "CUBLAS_STATUS_NOT_SUPPORTED" not in str(error):
            raise
        return False
    return True
