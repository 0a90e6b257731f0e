"""Findings of block formats and casts, each as measured with the release that it names, on the CPU or on a GPU."""

from __future__ import annotations

from typing import Any

from findings import NAN, Called, Cast, Decoded, Encoded

ONE, NAN32, INF32 = 0x3F800000, 0x7FC00000, 0x7F800000

TORCHAO = {"subject": "torchao", "version": "0.18.0"}
COMPRESSED = {"subject": "compressed_tensors", "version": "0.20.1"}
MODELOPT = {"subject": "modelopt", "version": "0.47.0"}
TRANSFORMERS = {"subject": "transformers", "version": "5.24.0"}
ML_DTYPES = {"subject": "ml_dtypes", "version": "0.6.0"}
TORCH = {"subject": "torch", "version": "2.13.0"}
GFLOAT = {"subject": "gfloat", "version": "0.5.2"}


def _encoded(name: str, of: dict[str, str], scheme: str, x: Any, got: Any, right: Any, **more: Any) -> Encoded:
    return Encoded(name=name, **of, scheme=scheme, x=x, got=got, right=right, **more)


ENCODED: tuple[Encoded, ...] = (
    *(
        _encoded("torchao-byte-0", TORCHAO, f"mxfp4_{rule}", (0x00800000,), (0x00, (2,)), (0x00, (4,)))
        for rule in ("floor", "ceil", "even")
    ),
    _encoded("torchao-rceil-byte-0", TORCHAO, "mxfp4_rceil", (0x01400000,), (0x00, (0,)), (0x00, (7,))),
    _encoded("torchao-rceil-log2", TORCHAO, "mxfp4_rceil", (0x42C00001,), (0x83, (7,)), (0x84, (5,))),
    _encoded("torchao-nan-code", TORCHAO, "mxfp4_floor", (NAN32, ONE), (0xFF, (3, 0)), (0xFF, (7, 2))),
    _encoded("torchao-inf", TORCHAO, "mxfp4_floor", (INF32, ONE), (0xFD, (7, 0)), (0xFF, (7, 2))),
    _encoded("torchao-inf", TORCHAO, "mxfp4_rceil", (INF32, ONE), (0xFE, (7, 0)), (0xFF, (7, 2))),
    _encoded(
        "torchao-nvfp4", TORCHAO, "nvfp4", (0x40B80000,), (0x7B, (7,)), (0x7C, (7,)), before=(0x40E00000,)
    ),  # 5.75 beside 7
    _encoded("torchao-nvfp4", TORCHAO, "nvfp4", (0x3BA3D70A,), (0x08, (1,)), (0x01, (5,)), tensor_scale=1.0),
    *(
        _encoded(
            "torchao-cuda-nan-code", TORCHAO, "mxfp4_floor", (x, ONE), (0xFF, (4, 0)), (0xFF, (7, 2)), needs="cuda"
        )
        for x in (NAN32, 0xFFC00000)
    ),
    _encoded(
        "torchao-cuda-reciprocal", TORCHAO, "nvfp4_one_level", (0x3DE3FFFF,), (0x0A, (7,)), (0x09, (7,)), needs="cuda"
    ),
    _encoded("compressed-mxfp4-nan", COMPRESSED, "mxfp4_even", (NAN32, ONE), (0x7F, (0, 0)), (0xFF, (7, 2))),
    _encoded("compressed-mxfp4-nan", COMPRESSED, "mxfp4_even", (INF32, ONE), (0x7F, (0, 0)), (0xFF, (7, 2))),
    _encoded("compressed-mxfp4-large", COMPRESSED, "mxfp4_even", (0x7F600000,), (0x7F, (0,)), (0xFD, (6,))),
    _encoded(
        "compressed-mxfp4-large", COMPRESSED, "mxfp4_even", (0x7F600000,), (0x7E, (0,)), (0xFD, (6,)), needs="cuda"
    ),
    _encoded("compressed-minus-zero", COMPRESSED, "mxfp4_even", (1 << 31, ONE), (0x7D, (0, 6)), (0x7D, (8, 6))),
    _encoded("compressed-nvfp4", COMPRESSED, "nvfp4", (0x3BA3D70A,), (0x20, (0,)), (0x01, (5,)), tensor_scale=1.0),
    _encoded(
        "compressed-nvfp4",
        *(COMPRESSED, "nvfp4"),
        (0x3FDB6DB7, ONE),  # amax 12/7, so that the scale is 128; 1 / (128 / 448) is 3.5 divided out, a tie if exact
        *((0x70, (7, 5)), (0x70, (7, 6))),
        tensor_scale=448.0,
    ),
    _encoded("modelopt-mxfp4-nan", MODELOPT, "mxfp4_rceil", (NAN32, ONE), (0x00, (8, 8)), (0xFF, (7, 2))),
    _encoded("modelopt-mxfp4-nan", MODELOPT, "mxfp4_rceil", (INF32, ONE), (0x00, (8, 8)), (0xFF, (7, 2))),
    _encoded("modelopt-rceil-log2", MODELOPT, "mxfp4_rceil", (0x42C00001,), (0x83, (7,)), (0x84, (5,))),
    _encoded("modelopt-mxfp4-zero", MODELOPT, "mxfp4_rceil", (0, ONE), (0x7D, (8, 6)), (0x7D, (0, 6))),
    _encoded(
        *("modelopt-mxfp4-ties", MODELOPT, "mxfp4_rceil"),
        (0x40C00000, 0x3F400000, 0x3FE00000, 0x40600000),  # 6, then 0.75, 1.75, 3.5
        *((0x7F, (7, 1, 3, 5)), (0x7F, (7, 2, 4, 6))),
    ),
    _encoded("modelopt-nvfp4-minus-zero", MODELOPT, "nvfp4", (1 << 31, ONE), (0x7E, (0, 7)), (0x7E, (8, 7))),
    _encoded("modelopt-nvfp4", MODELOPT, "nvfp4", (0, 0), (0x38, (0, 0)), (0x00, (0, 0)), before=(ONE,)),
    _encoded(
        *("modelopt-nvfp4", MODELOPT, "nvfp4"),
        (0x404A0000, 0x3FEF0000),  # 3.15625 and 1.8671875 beside 7.46875: (x / p) / s would give 6
        *((0x74, (7, 5)), (0x74, (7, 6))),
        before=(0x40EF0000,),
    ),
)


def _byte_255(of: dict[str, str], dtype: str, got: Any) -> Decoded:
    right = (NAN, NAN, NAN, NAN)
    return Decoded(
        name="byte-255", **of, scheme="mxfp4_floor", dtype=dtype, scale=255, codes=(0, 1, 2, 7), got=got, right=right
    )


DECODED: tuple[Decoded, ...] = (
    _byte_255(TRANSFORMERS, "bfloat16", (0x0000, 0x7F00, 0x7F80, 0x7F80)),
    _byte_255(MODELOPT, "bfloat16", (NAN, 0x7F80, 0x7F80, 0x7F80)),
    _byte_255(COMPRESSED, "bfloat16", (NAN, 0x7F80, 0x7F80, 0x7F80)),
    Decoded(
        name="torchao-mx-float16",
        **TORCHAO,
        scheme="mxfp4_floor",
        dtype="float16",
        scale=143,
        codes=(0, 1),
        got=(NAN, 0x7C00),
        right=(0x0000, 0x7800),
    ),
    Decoded(
        name="torchao-mx-float16",
        **TORCHAO,
        scheme="mxfp4_floor",
        dtype="float16",
        scale=102,
        codes=(7,),
        got=(0x0000,),
        right=(0x0003,),
    ),
    Decoded(
        name="torchao-nvfp4",
        **TORCHAO,
        scheme="nvfp4",
        dtype="float32",
        scale=0x46,
        codes=(0,),
        got=(NAN,),
        right=(0x00000000,),
        tensor_scale=1e-38,
    ),
    Decoded(
        name="modelopt-nvfp4-minus-zero",
        **MODELOPT,
        scheme="nvfp4",
        dtype="float32",
        scale=0x38,
        codes=(8,),
        got=(0x00000000,),
        right=(0x80000000,),
        tensor_scale=1.0,
    ),
)

CASTS: tuple[Cast, ...] = (
    *(Cast(name="e8m0-bottom", **of, format="e8m0", x=0x00400001, got=0x01, right=0x00) for of in (ML_DTYPES, TORCH)),
    *(Cast(name="e8m0-ties", **of, format="e8m0", x=0x40400000, got=0x81, right=0x80) for of in (ML_DTYPES, TORCH)),
    Cast(name="ml_dtypes-e8m0-zero", **ML_DTYPES, format="e8m0", x=0, got=0xFF, right=0x00),
    Cast(name="torch-e8m0-sign", **TORCH, format="e8m0", x=0xBF800000, got=0x7F, right=0xFF),
    Cast(name="ml_dtypes-float4-nan", **ML_DTYPES, format="e2m1", x=NAN32, got=0x8, right=0x7),
    Cast(name="ml_dtypes-float4-nan", **ML_DTYPES, format="e2m1", x=0xFFC00000, got=0x0, right=0x7),
)


def torchao_zero_layer() -> Any:
    import torch
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
    from torchao.quantization import quantize_

    layer = torch.nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    layer.weight.data.zero_()
    quantize_(layer, NVFP4WeightOnlyConfig())
    return bool(layer.weight.dequantize(torch.float32).isnan().all())


def torchao_factor(device: str = "cuda") -> str:
    """The decode factor of a tensor of amax 4368af6e (232.68527)."""
    import torch
    from torchao.prototype.mx_formats.nvfp4_tensor import per_tensor_amax_to_scale

    amax = torch.tensor(0x4368AF6E, dtype=torch.int32, device=device).view(torch.float32)
    return f"{int(per_tensor_amax_to_scale(amax).view(torch.int32)):08x}"


def torchao_three_dimensions() -> Any:
    import torch
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    x = torch.ones(2, 64, 128)
    plain, _ = to_mx(x, torch.float4_e2m1fn_x2, 32)
    assert plain.shape == (2, 64, 4)
    try:
        to_mx(x, torch.float4_e2m1fn_x2, 32, is_swizzled_scales=True)
    except RuntimeError as error:
        return str(error)
    return "no error"


def modelopt_zero_tensor() -> Any:
    import torch
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    made, scales, second = NVFP4QTensor.quantize(torch.zeros(1, 16), 16)
    decoded = made.dequantize(torch.float32, scale=scales, double_scale=second, block_sizes={-1: 16})
    return bool(decoded.isnan().all())


def modelopt_partial_block() -> Any:
    import torch
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    made, scales, second = NVFP4QTensor.quantize(torch.ones(1, 20), 16)
    try:
        made.dequantize(torch.float32, scale=scales, double_scale=second, block_sizes={-1: 16})
    except RuntimeError as error:
        return str(error)
    return "no error"


def compressed_float16_factor() -> Any:
    """g of a float16 tensor of amax 0x2940 (0.04102) and of the next value."""
    import numpy as np
    import torch
    from compressed_tensors.quantization.utils import generate_gparam

    amax = torch.from_numpy(np.array([0x2940, 0x2941], np.uint16).view(np.float16))
    return tuple(float(generate_gparam(-one, one)) for one in amax)


def compressed_float16_weight() -> Any:
    """What a weight of 0.004 in float16 decodes to."""
    import torch

    from lowbit import schemes
    from lowbit.implementation import load

    subject, scheme = load("lowbit.adapters.compressed_tensors:IMPLEMENTATION"), schemes.get("nvfp4")
    stored = subject.call("quantize", torch.full((1, 16), 0.004, dtype=torch.float16), scheme)
    return subject.call("dequantize", stored, scheme, torch.bfloat16).unique().tolist()


def gfloat_no_byte() -> Any:
    """The code of 2**-129 in E8M0."""
    import gfloat
    import numpy as np
    from gfloat.formats import format_info_ocp_e8m0 as info

    rounded = gfloat.round_ndarray(info, np.array([2.0**-129]), gfloat.RoundMode.TiesToEven, True)
    return int(gfloat.encode_ndarray(info, rounded)[0])


def gfloat_nan() -> Any:
    import gfloat
    import numpy as np
    from gfloat.formats import format_info_ocp_e2m1 as info

    try:
        rounded = gfloat.round_ndarray(info, np.array([np.nan]), gfloat.RoundMode.TiesToEven, True)
        return int(gfloat.encode_ndarray(info, rounded)[0])
    except AssertionError as error:
        return f"AssertionError{error}"


CALLED: tuple[Called, ...] = (
    Called(name="torchao-nvfp4-zero-tensor", **TORCHAO, call=torchao_zero_layer, got=True, right="zeros"),
    Called(
        name="torchao-cuda-reciprocal",
        **TORCHAO,
        needs="cuda",
        call=torchao_factor,
        got="3db148b6",
        right="3db148b5, which is the quotient, as on the CPU",
    ),
    Called(
        name="torchao-3d-swizzled",
        **TORCHAO,
        call=torchao_three_dimensions,
        got="shape '[2, 32, 16]' is invalid for input of size 512",
        right="the swizzled scales of 128 rows",
    ),
    Called(name="modelopt-nvfp4-zero-tensor", **MODELOPT, call=modelopt_zero_tensor, got=True, right="zeros"),
    Called(
        name="modelopt-nvfp4-partial",
        **MODELOPT,
        call=modelopt_partial_block,
        got="shape '[1, 20]' is invalid for input of size 32",
        right="20 values, or an error of quantize",
    ),
    Called(
        name="compressed-nvfp4-float16",
        **COMPRESSED,
        call=compressed_float16_factor,
        got=(1.0, 65472.0),
        right="65533.7 and 65471.8, as in float32",
    ),
    Called(
        name="compressed-nvfp4-float16",
        **COMPRESSED,
        call=compressed_float16_weight,
        got=[0.0],
        right="0.004 in bfloat16",
    ),
    Called(name="gfloat-e8m0-bottom", **GFLOAT, call=gfloat_no_byte, got=2**64 - 2, right="0"),
    Called(name="gfloat-nan", **GFLOAT, call=gfloat_nan, got="AssertionError", right="a code that a rule names"),
)
