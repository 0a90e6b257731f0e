"""Findings of stored weights, each as measured with the release that it names; one needs a CPU of some kind."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from findings import NAN, Called, Decoded, Encoded

ONE, NAN32, INF32 = 0x3F800000, 0x7FC00000, 0x7F800000

BITSANDBYTES = {"subject": "bitsandbytes", "version": "0.50.2"}
GGUF = {"subject": "gguf", "version": "0.19.0"}
QUANTO = {"subject": "quanto", "version": "0.2.7"}
HQQ = {"subject": "hqq", "version": "0.2.8.post1"}
GPTQMODEL = {"subject": "gptqmodel", "version": "7.7.0"}
AUTOAWQ = {"subject": "autoawq", "version": "0.2.9"}

MODULES = {"quanto": "optimum.quanto", "autoawq": "awq"}
DISTRIBUTIONS = {"quanto": "optimum-quanto"}

QUANTISED = "mxfp4_floor+ties_toward_zero"


def patterns(values: torch.Tensor, *places: Any) -> tuple[str, ...]:
    """Bit patterns in hex, of the places or of all."""
    width = {4: torch.int32, 2: torch.int16}[values.dtype.itemsize]
    chosen = [values[place] for place in places] if places else list(values.reshape(-1))
    return tuple(
        f"{int(one.cpu().view(width)) & ((1 << 8 * values.dtype.itemsize) - 1):0{2 * one.itemsize}x}" for one in chosen
    )


def raised(call: Callable[[], Any]) -> str:
    """The name of what a call raises, "" if it returns."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


def bitsandbytes_4_bits(
    byte: int,
    absmax: torch.Tensor,
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    table: str = "nf4",
    nested: dict[str, Any] | None = None,
) -> torch.Tensor:
    """Every byte one and the same, in blocks of 64, on the device of absmax."""
    functional = importlib.import_module("bitsandbytes.functional")
    state = functional.QuantState(
        absmax=absmax,
        shape=torch.Size(shape),
        code=functional.get_4bit_type(table, device=absmax.device),
        blocksize=64,
        quant_type=table,
        dtype=dtype,
        **(nested or {}),
    )
    count = torch.Size(shape).numel() // 2
    return functional.dequantize_4bit(torch.full((count, 1), byte, dtype=torch.uint8, device=absmax.device), state)


def there_and_back(x: torch.Tensor) -> torch.Tensor:
    functional = importlib.import_module("bitsandbytes.functional")
    return functional.dequantize_4bit(*functional.quantize_4bit(x, blocksize=64, quant_type="nf4"))


def fp4_minus_zero() -> tuple[str, ...]:
    """Code 8 in rows of an even and of an odd length; the latter take another path, which would be compiled."""
    with torch.compiler.set_stance("force_eager"):
        values = [bitsandbytes_4_bits(0x88, torch.ones(1), shape, table="fp4") for shape in [(1, 4), (4, 1)]]
    return tuple(pattern for one in values for pattern in patterns(one, (0, 0)))


def strided_absmax() -> tuple[str, ...]:
    absmax = torch.tensor([1.0, 8.0, 2.0])[::2]
    return patterns(bitsandbytes_4_bits(0xFF, absmax, (2, 64)), (0, 0), (1, 0))


def short_absmax() -> tuple[str, ...]:
    """One value for two blocks; what lies behind it in memory is 8."""
    return patterns(bitsandbytes_4_bits(0xFF, torch.tensor([1.0, 8.0])[:1], (2, 64)), (0, 0), (1, 0))


def nested_state(absmax2: torch.Tensor, size: int, code: float) -> dict[str, Any]:
    functional = importlib.import_module("bitsandbytes.functional")
    device = absmax2.device
    table = torch.full((256,), code, device=device)
    state2 = functional.QuantState(absmax=absmax2, blocksize=size, code=table, dtype=torch.float32)
    return {"offset": torch.zeros(1, device=device), "state2": state2}


def empty_absmax2() -> int:
    """In a process of its own; its status."""
    body = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from findings_weights import bitsandbytes_4_bits, nested_state
bitsandbytes_4_bits(0, torch.zeros(1, dtype=torch.uint8), (2, 32), nested=nested_state(torch.empty(0), 256, 1.0))
"""
    command = [sys.executable, "-c", body, str(Path(__file__).parent)]
    return subprocess.run(command, capture_output=True).returncode


def quanto_zeropoint(first: float, second: float) -> tuple[float, ...]:
    """A row of two weights, there and back, twice so that there are two rows."""
    quanto = importlib.import_module("optimum.quanto")
    weights = importlib.import_module("optimum.quanto.tensor.weights")
    row = torch.tensor([[first, second]] * 2)
    scale, shift = quanto.MaxOptimizer()(row, quanto.qint4, 0, 2, True)
    held = weights.quantize_weight(row, quanto.qint4, 0, scale, shift, group_size=2)
    return tuple(held.dequantize()[0].tolist())


def hqq_there_and_back(row: Any, **options: Any) -> torch.Tensor:
    quantizer = importlib.import_module("hqq.core.quantize").Quantizer
    packed, meta = quantizer.quantize(torch.as_tensor(row), axis=1, optimize=False, device="cpu", **options)
    return quantizer.dequantize(packed, meta | {"compute_dtype": torch.float32})


def hqq_bytes(rows: int) -> int:
    quantizer = importlib.import_module("hqq.core.quantize").Quantizer
    weight = torch.arange(rows * 64.0).reshape(rows, 64)
    return quantizer.quantize(weight, nbits=4, group_size=64, axis=1, optimize=False, device="cpu")[0].numel()


def gptq_layer(bits: int, code: int, zero: int, groups: int = 1, index: Any = None) -> Any:
    """A layer of `TorchLinear`, every word of codes one and the same, every group's word of zero points too."""
    linear = importlib.import_module("gptqmodel.nn_modules.qlinear.torch").TorchLinear
    fields = 32 // bits
    layer = linear(
        bits=bits,
        group_size=-1 if groups == 1 else 16,
        sym=False,
        desc_act=index is not None,
        in_features=16 * groups if groups > 1 else fields,
        out_features=fields,
        pack_dtype=torch.int32,
        bias=False,
    )
    layer.qweight = torch.tensor([code]).view(torch.int64).to(torch.int32).expand(layer.qweight.shape).clone()
    layer.qzeros = torch.full((groups, 1), zero, dtype=torch.int32)
    layer.scales = torch.arange(1.0, groups + 1).half()[:, None].repeat(1, fields)
    if index is not None:
        layer.g_idx = torch.tensor(index, dtype=torch.int32)
    return layer


def carried(bits: int, code: int, zero: int) -> tuple[str, ...]:
    """The zero points of v1 as a layer has them, as the reader of checkpoints has them; the row of weights."""
    convert = importlib.import_module("gptqmodel.utils.model").convert_gptq_v1_to_v2_format_module
    correct = importlib.import_module("gptqmodel.utils.model_dequant")._correct_gptq_v1_qzeros
    layer = gptq_layer(bits, code, zero)
    fields = correct(layer.qzeros.clone(), bits)
    convert(layer, bits=bits, pack_dtype=torch.int32)
    words = [f"{int(word) & 0xFFFFFFFF:08x}" for word in (layer.qzeros, fields)]
    return (*words, *patterns(layer.dequantize_weight()[0, :3]))


def wrapped_index() -> tuple[str, ...]:
    layer = gptq_layer(4, 0x11111111, 0, groups=2, index=[0] * 16 + [-1] * 16)
    return patterns(layer.dequantize_weight(), (0, 0), (16, 0))


ENCODED: tuple[Encoded, ...] = tuple(
    Encoded(name=f"gguf-{name}", **GGUF, scheme=QUANTISED, x=x, got=got, right=right)
    for name, x, got, right in (
        ("small-blocks", (0x00800000,), (0xFF, (0,)), (0x00, (4,))),
        ("log2", (0x40FFFFFF,), (0x80, (6,)), (0x7F, (7,))),
        ("nan", (NAN32, ONE), (0x00, (0, 0)), (0xFF, (7, 2))),
        ("nan", (INF32, ONE), (0x00, (0, 0)), (0xFF, (7, 2))),
        ("minus-zero", (1 << 31, ONE), (0x7D, (0, 6)), (0x7D, (8, 6))),
    )
)

DECODED: tuple[Decoded, ...] = tuple(
    Decoded(name=f"gguf-{name}", **GGUF, scheme="mxfp4_floor", dtype="float32", scale=s, codes=c, got=got, right=right)
    for name, s, c, got, right in (
        ("byte-255", 0xFF, (1,), (0x7F000000,), (NAN,)),
        ("minus-zero", 0x7F, (8,), (0,), (1 << 31,)),
    )
)

CALLED: tuple[Called, ...] = (
    Called(
        name="bitsandbytes-row-blocks",
        **BITSANDBYTES,
        needs="avx512",
        call=lambda: patterns(
            bitsandbytes_4_bits(0xFF, torch.tensor([1.0, 2.0, 4.0]), (2, 96), dtype=torch.float16), (1, 31), (1, 32)
        ),
        got=("4000", "4000"),
        right="4000 4400",
    ),
    Called(
        name="bitsandbytes-fp4-minus-zero",
        **BITSANDBYTES,
        call=fp4_minus_zero,
        got=("80000000", "00000000"),
        right="80000000 80000000",
    ),
    Called(
        name="bitsandbytes-one-dimension",
        **BITSANDBYTES,
        call=lambda: tuple(there_and_back(torch.ones(64)).shape),
        got=(1, 64),
        right="(64,)",
    ),
    Called(
        name="bitsandbytes-two-weights",
        **BITSANDBYTES,
        call=lambda: tuple(there_and_back(torch.ones(1, 2)).shape),
        got=(2, 1),
        right="(1, 2)",
    ),
    Called(
        name="bitsandbytes-strided-absmax",
        **BITSANDBYTES,
        call=strided_absmax,
        got=("3f800000", "41000000"),
        right="3f800000 40000000, or an error",
    ),
    Called(
        name="bitsandbytes-short-absmax",
        **BITSANDBYTES,
        call=short_absmax,
        got=("3f800000", "41000000"),
        right="an error",
    ),
    Called(name="bitsandbytes-empty-absmax2", **BITSANDBYTES, call=empty_absmax2, got=-11, right="an error"),
    Called(
        name="bitsandbytes-small-blocks",
        **BITSANDBYTES,
        call=lambda: patterns(there_and_back(torch.full((1, 64), 1e-39)), (0, 0)),
        got=("0000ddd6",),
        right="000ae398, which is its absmax",
    ),
    Called(
        name="gguf-ties",
        **GGUF,
        call=lambda: gguf_codes(6.0, 0.75, 1.75, 3.5),
        got=(7, 1, 3, 5),
        right="7 2 4 6 under mxfp4_floor",
    ),
    Called(
        name="quanto-zeropoint",
        **QUANTO,
        call=lambda: (*quanto_zeropoint(1.0, 2.0), *quanto_zeropoint(0.5, 0.5)),
        got=(1.0, 1.0, 0.0, 0.0),
        right="1 2 and 0.5 0.5, as without zeropoint",
    ),
    Called(
        name="hqq-odd-groups",
        **HQQ,
        call=lambda: (
            hqq_bytes(1),
            raised(lambda: hqq_there_and_back(torch.arange(192.0).reshape(3, 64), nbits=4, group_size=64)),
        ),
        got=(0, "RuntimeError"),
        right="32 bytes; the weight",
    ),
    Called(
        name="hqq-three-bits-ungrouped",
        **HQQ,
        call=lambda: raised(lambda: hqq_there_and_back([[0.0, 1.0]], nbits=3, group_size=None)),
        got="TypeError",
        right="0 1",
    ),
    Called(
        name="hqq-small-range",
        **HQQ,
        call=lambda: tuple(hqq_there_and_back([[0.0, 5e-5]] * 2, nbits=4, group_size=2)[0].tolist()),
        got=(0.0, 0.0),
        right="0 5e-5",
    ),
    Called(
        name="gptqmodel-carry",
        **GPTQMODEL,
        call=lambda: carried(4, -0x77777778, 0x777777F7),
        got=("88888908", "88888808", "0000", "4800", "bc00"),
        right="88888808; 0000 4800 0000",
    ),
    Called(
        name="gptqmodel-carry",
        **GPTQMODEL,
        call=lambda: carried(2, 0x55555555, 0x00000003),
        got=("55555558", "55555554", "3c00", "bc00", "0000"),
        right="55555554; 3c00 0000 0000",
    ),
    Called(
        name="gptqmodel-carry",
        **GPTQMODEL,
        call=lambda: carried(8, 0x01010101, 0x000000FF),
        got=("01010200", "01010100", "3c00", "bc00", "0000"),
        right="01010100; 3c00 0000 0000",
    ),
    Called(
        name="gptqmodel-negative-index",
        **GPTQMODEL,
        call=wrapped_index,
        got=("3c00", "4000"),
        right="an error",
    ),
)


def gguf_codes(*values: float) -> tuple[int, ...]:
    """The codes of the first elements of a block, by the package's own layout."""
    gguf = importlib.import_module("gguf")
    block = torch.zeros(1, 32)
    block[0, : len(values)] = torch.tensor(values)
    stored = gguf.quants.quantize(block.numpy(), gguf.GGMLQuantizationType.MXFP4)
    return tuple(int(byte) & 15 for byte in stored[0, 1 : 1 + len(values)])
