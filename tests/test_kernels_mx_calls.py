"""How the MX kernels are called: refusals, torch's machinery, the adapter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kernel_calls import DEVICE, MX4, RNG, bfloat16_values, boundaries, host, on, pattern, same

import lowbit_kernels
from lowbit import schemes
from lowbit.errors import ArgumentError, DeviceError, DtypeError, LowbitError, ShapeError, Unsupported
from lowbit.formats import E2M1, E3M0, E4M3
from lowbit.references import bits
from lowbit.rules import NanCode, Rounding
from lowbit_kernels import adapter, dequantize_mx4, dequantize_mxfp4, quantize_mx4, quantize_mxfp4

# Refusals


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


BYTES = torch.uint8
REFUSALS = [
    (lambda: quantize_mxfp4(tensor(2, 33)), ShapeError, r"x: .*33.*32.*pad_last_dimension"),
    (lambda: quantize_mxfp4(tensor()), ShapeError, r"x: .*without dimensions"),
    (
        lambda: quantize_mxfp4(tensor(32, dtype=torch.float64)),
        DtypeError,
        r"x: got torch\.float64, want torch\.float32",
    ),
    (lambda: quantize_mxfp4(tensor(32, dtype=torch.int32)), DtypeError, r"x: got torch\.int32"),
    (lambda: quantize_mxfp4([1.0]), DtypeError, r"x: got list, want a torch\.Tensor"),
    (lambda: quantize_mxfp4(torch.zeros(32, device="meta")), DeviceError, r"x: got a tensor on meta"),
    (lambda: quantize_mxfp4(tensor(32), scale_rule="nearest"), ArgumentError, r"scale_rule: got 'nearest', want floor"),
    (lambda: quantize_mxfp4(tensor(32), rounding="even"), ArgumentError, r"rounding: got 'even', want ties_to_even"),
    (lambda: quantize_mxfp4(tensor(32), rounding=[]), ArgumentError, r"rounding: got \[\]"),
    (lambda: quantize_mxfp4(tensor(32), rounding="stochastic"), ArgumentError, r"seed: got None.*random_bits"),
    (lambda: quantize_mxfp4(tensor(32), random_bits=tensor(32, dtype=BYTES)), ArgumentError, r"random_bits: .*None"),
    (
        lambda: quantize_mxfp4(tensor(32), rounding="stochastic", random_bits=tensor(31, dtype=BYTES)),
        ShapeError,
        r"random_bits: got shape \(31,\), want \(32,\)",
    ),
    (
        lambda: quantize_mxfp4(tensor(32), rounding="stochastic", random_bits=tensor(32)),
        DtypeError,
        r"random_bits: got torch\.float32, want torch\.uint8",
    ),
    (lambda: quantize_mxfp4(tensor(32), rounding="stochastic", seed=2**64), ArgumentError, r"seed: .*64-bit"),
    (lambda: quantize_mxfp4(tensor(32), rounding="stochastic", seed=1.5), DtypeError, r"seed: got float"),
    (
        lambda: quantize_mxfp4(tensor(2, 32), out=(tensor(2, 16, dtype=BYTES), tensor(2, 2, dtype=BYTES))),
        ShapeError,
        r"out\[1\]: got shape \(2, 2\), want \(2, 1\)",
    ),
    (
        lambda: quantize_mxfp4(tensor(2, 32), out=(tensor(2, 16), tensor(2, 1, dtype=BYTES))),
        DtypeError,
        r"out\[0\]: got torch\.float32",
    ),
    (
        lambda: quantize_mxfp4(tensor(2, 32), out=(tensor(16, 2, dtype=BYTES).t(), tensor(2, 1, dtype=BYTES))),
        ArgumentError,
        r"out\[0\]: got strides",
    ),
    (lambda: dequantize_mxfp4(tensor(2, 15, dtype=BYTES), tensor(2, 1, dtype=BYTES)), ShapeError, r"packed: got shape"),
    (
        lambda: dequantize_mxfp4(tensor(2, 16, dtype=BYTES), tensor(512, dtype=BYTES)),
        ShapeError,
        r"scales: got shape \(512,\), want \(2, 1\).*unswizzle_scales",
    ),
    (lambda: dequantize_mxfp4(tensor(2, 16), tensor(2, 1, dtype=BYTES)), DtypeError, r"packed: got torch\.float32"),
    (
        lambda: dequantize_mxfp4(tensor(2, 16, dtype=BYTES), tensor(2, 1, dtype=torch.float8_e4m3fn)),
        DtypeError,
        r"scales: got torch\.float8_e4m3fn, want torch\.uint8 or torch\.float8_e8m0fnu",
    ),
    (
        lambda: dequantize_mxfp4(tensor(2, 16, dtype=BYTES), tensor(2, 1, dtype=BYTES), dtype=torch.float64),
        DtypeError,
        r"dtype: got torch\.float64",
    ),
    (lambda: quantize_mx4(tensor(32), group_size=24), ArgumentError, r"group_size: got 24, want 8, 16, 32 or 64"),
    (lambda: quantize_mx4(tensor(32), element="e4m3"), ArgumentError, r"element: got 'e4m3', want e2m1 or e3m0"),
    (lambda: quantize_mx4(tensor(32), scale_rounding="even"), ArgumentError, r"scale_rounding: .*even_exclusive"),
    (lambda: quantize_mx4(tensor(32), stochastic_casting=True), ArgumentError, r"seed: got None.*random_bits"),
    (lambda: quantize_mx4(tensor(32), scale_rounding="stochastic"), ArgumentError, r"seed: .*scale_random_bits"),
    (
        lambda: quantize_mx4(tensor(33), scale_rounding="stochastic", scale_random_bits=tensor(1, dtype=torch.int32)),
        ShapeError,
        r"scale_random_bits: got shape \(1,\), want \(2,\)",
    ),
    (
        lambda: quantize_mx4(tensor(33), out=tensor(17, dtype=BYTES)),
        ShapeError,
        r"out: got shape \(17,\), want \(34,\)",
    ),
    (lambda: dequantize_mx4(tensor(2, 16, dtype=BYTES)), ShapeError, r"packed: got shape \(2, 16\).*17"),
    (lambda: dequantize_mx4(tensor(2, 34, dtype=BYTES), columns=32), ShapeError, r"columns: got 32, want 33\.\.64"),
    (lambda: dequantize_mx4(tensor(2, 34, dtype=BYTES), columns=65), ShapeError, r"columns: got 65, want 33\.\.64"),
    (
        lambda: dequantize_mx4(tensor(2, 34, dtype=torch.int8)),
        DtypeError,
        r"packed: got torch\.int8, want torch\.uint8",
    ),
    (lambda: lowbit_kernels.pad_last_dimension(tensor(), 32), ShapeError, r"x: .*without dimensions"),
    (lambda: lowbit_kernels.pad_last_dimension(tensor(3), 0), ArgumentError, r"multiple: got 0"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS, ids=[m for _, _, m in REFUSALS])
def test_refusals_name_the_argument(call: Any, error: type[LowbitError], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call()
    assert isinstance(raised.value, ValueError | TypeError)


def test_pad_last_dimension() -> None:
    x = on(RNG.standard_normal((2, 33)).astype(np.float32))
    padded = lowbit_kernels.pad_last_dimension(x, 32)
    assert padded.shape == (2, 64)
    assert torch.equal(padded[:, :33], x)
    assert not padded[:, 33:].any()
    assert lowbit_kernels.pad_last_dimension(padded, 32) is padded


# torch


def test_ops_pass_opcheck() -> None:
    x = on(RNG.standard_normal((3, 64)).astype(np.float32))
    ops = torch.ops.lowbit_kernels
    packed, scales = (part.view(torch.uint8) for part in quantize_mxfp4(x))
    stream = quantize_mx4(x)
    random_bits = torch.zeros(3, 64, dtype=torch.uint8, device=DEVICE)
    calls = [
        (ops.quantize_mxfp4.default, (x, 0, 0, False, None, 0, 0)),
        (ops.quantize_mxfp4.default, (x, 0, 8, True, random_bits, 0, 0)),
        (ops.quantize_mxfp4_out.default, (x, 0, 0, False, None, 0, 0, packed.clone(), scales.clone())),
        (ops.dequantize_mxfp4.default, (packed, scales, torch.bfloat16)),
        (ops.dequantize_mxfp4_out.default, (packed, scales, torch.empty_like(x))),
        (ops.quantize_mx4.default, (x, 32, 2, 1, 2, None, None, 0, 0)),
        (ops.quantize_mx4_out.default, (x, 32, 2, 1, 2, None, None, 0, 0, stream.clone())),
        (ops.dequantize_mx4.default, (stream, 32, 2, 64, torch.float32)),
        (ops.dequantize_mx4_out.default, (stream, 32, 2, torch.empty_like(x))),
    ]
    for op, args in calls:
        torch.library.opcheck(op, args)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_graph_of_torch_compile_is_whole(dynamic: bool) -> None:
    def round_trip(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        packed, scales = quantize_mxfp4(x * 2, scale_rule="even", swizzle=False)
        stream = quantize_mx4(x * 2, stochastic_casting=True, seed=7)
        return dequantize_mxfp4(packed, scales, dtype=torch.bfloat16) + 1, dequantize_mx4(stream, columns=x.shape[-1])

    compiled = torch.compile(round_trip, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (3, 5):
        x = on(RNG.standard_normal((rows, 64)).astype(np.float32))
        for actual, wanted in zip(compiled(x), round_trip(x), strict=True):
            np.testing.assert_array_equal(pattern(actual), pattern(wanted))


def test_compiled_calls_write_into_out() -> None:
    def into(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        quantize_mxfp4(x, out=(packed, scales))
        return dequantize_mxfp4(packed, scales)

    x = on(RNG.standard_normal((3, 64)).astype(np.float32))
    wanted = quantize_mxfp4(x)
    buffers = [torch.empty_like(part.view(torch.uint8)) for part in wanted]
    decoded = torch.compile(into, backend="aot_eager", fullgraph=True)(x, *buffers)
    same(tuple(buffers), tuple(host(part) for part in wanted))
    np.testing.assert_array_equal(pattern(decoded), pattern(dequantize_mxfp4(*wanted)))


def test_no_gradient_is_pretended() -> None:
    x = on(RNG.standard_normal((3, 64)).astype(np.float32)).requires_grad_()
    assert not any(part.requires_grad for part in quantize_mxfp4(x))


# The adapter


@pytest.mark.parametrize("rounding", Rounding, ids=lambda r: r.value)
@pytest.mark.parametrize("element", [E2M1, E3M0], ids=lambda e: e.name)
@pytest.mark.parametrize("nan", NanCode, ids=lambda n: n.value)
def test_the_element_stage_alone(element: Any, rounding: Rounding, nan: NanCode) -> None:
    """Every first pattern of a code and its neighbours, every binade, and every bfloat16 value."""
    x = np.concatenate([boundaries(element, rounding), bfloat16_values()])
    random_bits = RNG.integers(0, 256, x.shape).astype(np.uint8) if rounding is Rounding.STOCHASTIC else None
    actual = adapter.encode(
        on(x), element, rounding, random_bits=None if random_bits is None else on(random_bits), nan=nan
    )
    right = bits.encode(x, element, rounding, nan, random_bits=random_bits)
    np.testing.assert_array_equal(host(actual), right)


def test_the_adapter_declines_what_has_no_kernel() -> None:
    x = tensor(32)
    for name in ("mxfp4_floor+nan_zero", "rtn_mxfp4", "nvfp4_two_level_cuda"):
        with pytest.raises(Unsupported):
            adapter.quantize(x, schemes.get(name))
    with pytest.raises(Unsupported):
        adapter.quantize(x, MX4[0], swizzle=True)
    with pytest.raises(Unsupported):
        adapter.encode(x, E4M3, Rounding.TIES_TO_EVEN)
