"""What only a GPU can show of the MX kernels: graphs, streams, no waiting, generated code, more than 2**31 elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lowbit_kernels import dequantize_mx4, dequantize_mxfp4, quantize_mx4, quantize_mxfp4

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def mxfp4(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    packed, scales = quantize_mxfp4(x)
    swizzled = quantize_mxfp4(x, swizzle=True, rounding="stochastic", seed=3)
    return packed, scales, *swizzled, dequantize_mxfp4(packed, scales, dtype=torch.bfloat16)


def mx4(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    stream = quantize_mx4(x)
    stochastic = quantize_mx4(x, scale_rounding="stochastic", stochastic_casting=True, element="e3m0", seed=3)
    return stream, stochastic, dequantize_mx4(stream, columns=x.shape[-1])


CALLS = pytest.mark.parametrize("call", [mxfp4, mx4])


def sample(seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(130, 320, device="cuda", generator=generator).bfloat16()


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def same(actual: Any, expected: Any) -> None:
    for got, right in zip(actual, expected, strict=True):
        assert torch.equal(raw(got), raw(right))


@CALLS
def test_a_captured_graph_replays_on_new_data(call: Callable[..., Any]) -> None:
    x = sample(0)
    call(x)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call(x)
    for seed in (1, 2):
        x.copy_(sample(seed))
        graph.replay()
        same(results, call(x))


@CALLS
def test_nothing_waits_for_the_device(call: Callable[..., Any]) -> None:
    x = sample(0)
    call(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@CALLS
def test_work_goes_to_the_current_stream(call: Callable[..., Any]) -> None:
    """The input is ready late on a side stream only; a kernel on another stream would read what was there before."""
    x, late = sample(0), sample(1)
    expected = call(late)
    call(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.copy_(late)
        results = call(x)
    stream.synchronize()
    same(results, expected)


@CALLS
def test_inductor_gives_the_same_bytes(call: Callable[..., Any]) -> None:
    x = sample(0)
    same(torch.compile(call, fullgraph=True)(x), call(x))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@CALLS
def test_another_than_the_current_device(call: Callable[..., Any]) -> None:
    x = sample(0)
    assert torch.cuda.current_device() == 0
    results = call(x.to("cuda:1"))
    assert all(part.device == torch.device("cuda:1") for part in results)
    same([part.to("cuda:0") for part in results], call(x))


@pytest.mark.parametrize(("rows", "columns"), [(2**26 + 1, 32), (1, 2**31 + 64), (33, 2**26)])
@pytest.mark.parametrize("gap", [0, 64])
def test_more_than_31_bits_of_elements(rows: int, columns: int, gap: int) -> None:
    """The last rows or columns of a huge tensor get the bytes that they get alone, with gaps between rows or not."""
    x = torch.zeros(rows, columns + gap, dtype=torch.bfloat16, device="cuda")[:, :columns]
    tail = torch.randn(rows, 64, device="cuda").bfloat16()[:, : min(columns, 64)]
    x[:, -tail.shape[1] :] = tail
    packed, scales = quantize_mxfp4(x)
    alone_packed, alone_scales = quantize_mxfp4(tail)
    width = tail.shape[1]
    assert torch.equal(raw(packed)[:, -width // 2 :], raw(alone_packed))
    assert torch.equal(raw(scales)[:, -width // 32 :], raw(alone_scales))
    stream, alone = quantize_mx4(x), quantize_mx4(tail)
    assert torch.equal(stream[:, -alone.shape[1] :], alone)
    del x
    decoded = dequantize_mxfp4(packed, scales, dtype=torch.bfloat16)[:, -width:]
    assert torch.equal(decoded, dequantize_mxfp4(alone_packed, alone_scales, dtype=torch.bfloat16))
    del packed, scales, decoded
    decoded = dequantize_mx4(stream, dtype=torch.bfloat16, columns=columns)[:, -width:]
    assert torch.equal(decoded, dequantize_mx4(alone, dtype=torch.bfloat16))
