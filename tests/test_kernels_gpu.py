"""What only a GPU can show of the MX kernels: graphs, streams, no waiting, generated code, more than 2**31 elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton

from lowbit_kernels import (
    _compiled,
    dequantize_int8,
    dequantize_mx4,
    dequantize_mxfp4,
    dequantize_nvfp4,
    quantize_mx4,
    quantize_mxfp4,
    quantize_nvfp4,
    swizzle_scales,
)

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


def at(offset: int, stride: int, x: torch.Tensor) -> torch.Tensor:
    """x (rows, K) again, at an offset in elements of an aligned buffer and with so many elements from row to row."""
    rows, columns = x.shape
    room = torch.full((offset + rows * stride,), float("nan"), dtype=x.dtype, device="cuda")
    return room[offset:].view(rows, stride)[:, :columns].copy_(x)


def surrounded(result: torch.Tensor, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes with a result's in their midst, at an offset from a multiple of 16, twice; the second are to be written.

    Returns:
      memory: (2, n) uint8, what there has to be and what there is. buffer: where the result goes in the second.
    """
    size, begin = result.numel() * result.element_size(), 64 + offset
    memory = torch.full((2, 128 + -(-size // 16) * 16), 0xA5, dtype=torch.uint8, device="cuda")
    memory[0, begin : begin + size] = raw(result).reshape(-1)
    buffer = memory[1, begin : begin + size]
    return memory, buffer.view(torch.uint8 if result.element_size() == 1 else result.dtype).view(result.shape)


ALIGNED = [(packed, (x, gap)) for packed in (0, 1, 2, 4) for x in (0, 1, 2, 4) for gap in (0, 1, 2)]


@pytest.mark.parametrize("swizzle", [False, True], ids=["plain", "swizzled"])
@pytest.mark.parametrize("rounding", [{}, {"rounding": "stochastic", "seed": 3}], ids=["even", "seed"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("quantize", [quantize_mxfp4, quantize_nvfp4])
def test_no_alignment_of_input_or_results_counts(
    quantize: Callable[..., Any], dtype: torch.dtype, rounding: dict[str, Any], swizzle: bool
) -> None:
    """A compiler that knows less of addresses gives a thread other elements: the bytes are the aligned call's.

    All combinations; and one row, which is loaded without a row's stride.
    """
    for plain in (sample(0)[:33, :160].to(dtype), sample(1)[:1].to(dtype)):
        expected = quantize(plain, swizzle=swizzle, **rounding)
        for packed, (offset, gap) in ALIGNED:
            x = at(offset, plain.shape[1] + gap, plain)
            places = [surrounded(part, packed if part.element_size() == 1 else 0) for part in expected]
            quantize(x, swizzle=swizzle, out=tuple(buffer for _, buffer in places), **rounding)
            for (memory, _), name in zip(places, ("packed", "scales", "tensor scale"), strict=False):
                assert torch.equal(*memory), (name, f"x at {offset}, rows {gap} apart, results at {packed}")


@pytest.mark.parametrize("stochastic", [False, True], ids=["nearest", "seed"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_no_alignment_of_input_or_stream_counts(dtype: torch.dtype, stochastic: bool) -> None:
    options = {"stochastic_casting": True, "seed": 3} if stochastic else {}
    plain = sample(0)[:33, :160].to(dtype)
    expected = quantize_mx4(plain, **options)
    for packed, (offset, gap) in ALIGNED:
        memory, buffer = surrounded(expected, packed)
        quantize_mx4(at(offset, plain.shape[1] + gap, plain), out=buffer, **options)
        assert torch.equal(*memory), f"x at {offset}, rows {gap} apart, stream at {packed}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_no_alignment_of_stored_or_decoded_counts(dtype: torch.dtype) -> None:
    """Stored bytes at any offset, values at any of their elements."""
    x = sample(0)[:33, :160]
    decoders = {
        dequantize_mxfp4: quantize_mxfp4(x),
        dequantize_nvfp4: quantize_nvfp4(x),
        dequantize_mx4: (quantize_mx4(x),),
    }
    for decode, stored in decoders.items():
        expected = decode(*stored, dtype=dtype)
        for offset in (0, 1, 2, 4):
            moved = [surrounded(raw(part), offset)[1].copy_(raw(part)) for part in stored[:2]]
            for elements in (0, 1, 2, 4):
                memory, out = surrounded(expected, elements * expected.element_size())
                decode(*moved, *stored[2:], dtype=dtype, out=out)
                assert torch.equal(*memory), (decode, f"stored at {offset}, values at {elements}")


def kept(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Results of kernels that get x, its dtype, its alignment and its lengths."""
    stream, whole = quantize_mx4(x), x[:, : x.shape[1] // 32 * 32]
    yield stream
    yield dequantize_mx4(stream, columns=x.shape[1], dtype=x.dtype)
    yield from quantize_mxfp4(whole, swizzle=True)
    yield from quantize_nvfp4(whole)
    if x.stride(1) == 1:
        yield swizzle_scales(raw(x))
        yield dequantize_int8(raw(x).view(torch.int8), x.new_ones(x.shape[0], dtype=torch.float32))


def views() -> Iterator[torch.Tensor]:
    """What is aligned, 1 or a multiple of 16 comes before what is not, and a row stride above 2**31 at the end."""
    memory = torch.randn(1 << 16, device="cuda", generator=torch.Generator("cuda").manual_seed(5))
    for dtype in (torch.bfloat16, torch.float32):
        for rows, columns in ((16, 512), (1, 512), (17, 544), (1, 1), (1, 17)):
            for offset in (0, 1) if rows > 1 else (0,):
                yield memory.to(dtype)[offset:][: rows * columns].view(rows, columns)
    yield memory.bfloat16()[: 17 * 512].view(17, 512)[:, :480]
    yield memory.bfloat16()[: 17 * 512].view(512, 17).T
    far = torch.empty((1 << 31) + 4096, dtype=torch.bfloat16, device="cuda").as_strided((2, 512), ((1 << 31) + 16, 1))
    yield far.copy_(memory[:1024].view(2, 512))


def test_a_kernel_that_was_started_before_is_the_one_that_triton_starts(request: pytest.FixtureRequest) -> None:
    """One that supposes more of its arguments than is true would write other bytes, or fault; so would a wrong plan."""
    inputs = list(views())
    ours = [[raw(part) for part in kept(x)] for _ in range(2) for x in inputs]
    assert len(_compiled._STARTED) > 10
    request.getfixturevalue("unplanned")
    for number, x in enumerate(inputs):
        expected = [raw(part) for part in kept(x)]
        same(ours[number], expected)
        same(ours[len(inputs) + number], expected)


def test_hooks_of_launches_see_a_kernel_that_was_started_before() -> None:
    x = sample(0)
    quantize_mx4(x)
    names: list[str] = []

    def hook(metadata: Any) -> None:
        names.append(metadata.get()["name"])

    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        quantize_mx4(x)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    quantize_mx4(x)
    assert len(names) == 1
