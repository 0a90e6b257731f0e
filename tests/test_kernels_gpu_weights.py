"""What only a GPU can show of the weight kernels: graphs, streams, no waiting, tiles as generated, 2**31 elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lowbit_kernels import (
    _weight_tiles,
    dequantize_awq,
    dequantize_fp4,
    dequantize_gptq,
    dequantize_int8,
    dequantize_nf4,
    dequantize_squeezellm,
)
from lowbit_kernels._weight_tiles import Tile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

HALF, BFLOAT, SINGLE = torch.float16, torch.bfloat16, torch.float32
GROUP = 64
Stored = tuple[Any, ...]


def integers(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Any bits."""
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, device="cuda")
    return raw.view(dtype).squeeze(-1)


def normal(*shape: int, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def awq(rows: int, columns: int) -> Stored:
    groups = rows // GROUP
    return integers(rows, columns // 8), integers(groups, columns // 8), normal(groups, columns, dtype=BFLOAT)


def gptq(bits: int, rows: int, columns: int) -> Stored:
    groups = -(-rows // GROUP)
    words, points = integers(rows * bits // 32, columns), integers(groups, columns * bits // 32)
    return words, points, normal(groups, columns, dtype=BFLOAT)


def act_order(rows: int, columns: int) -> Stored:
    return *gptq(4, rows, columns), (torch.randperm(rows, device="cuda") // GROUP).int()


def flat(rows: int, columns: int) -> Stored:
    n = rows * columns
    return integers(-(-n // 2), dtype=torch.uint8), normal(-(-n // 64)), (rows, columns)


def nested(rows: int, columns: int) -> Stored:
    n = rows * columns
    blocks = -(-n // 64)
    codes = integers(blocks, dtype=torch.uint8)
    return (
        integers(-(-n // 2), dtype=torch.uint8),
        codes,
        (rows, columns),
        normal(256),
        normal(-(-blocks // 256)),
        normal(1),
    )


def int8(rows: int, columns: int) -> Stored:
    return integers(rows, columns, dtype=torch.int8), normal(rows)


def tables(bits: int, rows: int, columns: int) -> Stored:
    return integers(rows * bits // 32, columns), normal(columns, 1 << bits)


def sums(rows: int, columns: int) -> Stored:
    held = torch.rand(columns, rows, device="cuda") < 0.01
    counts = held.sum(1).cumsum(0).int()
    crow = torch.cat([torch.zeros(1, dtype=torch.int32, device="cuda"), counts])
    col = held.nonzero()[:, 1].int()
    indices = torch.randperm(columns, device="cuda")[:10].int()
    return *tables(4, rows, columns), crow, col, normal(col.shape[0]), indices, normal(rows, 10)


def decode_flat(decode: Callable[..., Any], stored: Stored, **options: Any) -> torch.Tensor:
    packed, absmax, shape, *quantised = stored
    given = (*quantised, 256) if quantised else None
    return decode(packed, absmax, shape=shape, nested=given, **options)


def decode_sums(stored: Stored, **options: Any) -> torch.Tensor:
    words, table, crow, col, values, indices, full = stored
    return dequantize_squeezellm(words, table, sparse=(crow, col, values), full_rows=(indices, full), **options)


UNCHECKED = {"validate": False}
OPERATIONS: dict[str, tuple[Callable[[int, int], Stored], Callable[..., torch.Tensor]]] = {
    "awq": (awq, lambda s, **o: dequantize_awq(*s, group_size=GROUP, dtype=BFLOAT, **o)),
    **{
        f"gptq{bits}": (
            lambda k, n, bits=bits: gptq(bits, k, n),
            lambda s, bits=bits, **o: dequantize_gptq(*s, bits=bits, group_size=GROUP, dtype=BFLOAT, **o),
        )
        for bits in (2, 3, 4, 8)
    },
    "gptq_g_idx": (act_order, lambda s, **o: dequantize_gptq(*s, group_size=GROUP, dtype=BFLOAT, **UNCHECKED | o)),
    "nf4": (flat, lambda s, **o: decode_flat(dequantize_nf4, s, dtype=BFLOAT, **o)),
    "nf4_nested": (nested, lambda s, **o: decode_flat(dequantize_nf4, s, **o)),
    "fp4": (flat, lambda s, **o: decode_flat(dequantize_fp4, s, **o)),
    "int8": (int8, lambda s, **o: dequantize_int8(*s, dtype=BFLOAT, **o)),
    "squeezellm3": (lambda k, n: tables(3, k, n), lambda s, **o: dequantize_squeezellm(*s, bits=3, **o)),
    "squeezellm4": (lambda k, n: tables(4, k, n), lambda s, **o: dequantize_squeezellm(*s, dtype=BFLOAT, **o)),
    "squeezellm4, sums": (sums, lambda s, **o: decode_sums(s, **UNCHECKED | o)),
}
"""How stored tensors are made of (rows, columns), and decoded."""

EVERY = pytest.mark.parametrize("name", OPERATIONS)


def tensors(stored: Stored) -> list[torch.Tensor]:
    return [part for part in stored if isinstance(part, torch.Tensor)]


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.view(torch.uint8), expected.view(torch.uint8))


@EVERY
def test_a_captured_graph_replays_on_new_data(name: str) -> None:
    """With checks asked for, too: there is nothing to read while a graph is captured."""
    make, decode = OPERATIONS[name]
    stored = make(192, 320)
    decode(stored)  # compiles
    graph = torch.cuda.CUDAGraph()
    options = {"validate": True} if "gptq" in name or "squeezellm" in name else {}
    with torch.cuda.graph(graph):
        result = decode(stored, **options)
    for _ in range(2):
        for part, other in zip(tensors(stored)[:2], tensors(make(192, 320))[:2], strict=True):
            part.copy_(other)
        graph.replay()
        same(result, decode(stored))


@EVERY
def test_nothing_waits_for_the_device(name: str) -> None:
    make, decode = OPERATIONS[name]
    stored = make(192, 320)
    decode(stored)
    torch.cuda.set_sync_debug_mode("error")
    try:
        decode(stored)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@EVERY
def test_work_goes_to_the_current_stream(name: str) -> None:
    """The words are ready late on a side stream only; a kernel on another stream would read what was there before."""
    make, decode = OPERATIONS[name]
    stored = make(192, 320)
    words, late = stored[0], make(192, 320)[0]
    expected = decode((late, *stored[1:]))
    decode(stored)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        words.copy_(late)
        result = decode(stored)
    stream.synchronize()
    same(result, expected)


@EVERY
def test_inductor_gives_the_same_bytes(name: str) -> None:
    make, decode = OPERATIONS[name]
    stored = make(192, 320)
    same(torch.compile(decode, fullgraph=True)(stored), decode(stored))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@EVERY
def test_another_than_the_current_device(name: str) -> None:
    make, decode = OPERATIONS[name]
    stored = make(192, 320)
    assert torch.cuda.current_device() == 0
    moved = tuple(part.to("cuda:1") if isinstance(part, torch.Tensor) else part for part in stored)
    result = decode(moved)
    assert result.device == torch.device("cuda:1")
    same(result.to("cuda:0"), decode(stored))


def test_indices_that_do_not_exist_give_nan_in_a_captured_graph() -> None:
    """Neither an error, which would have to wait for the device, nor a read outside."""
    stored = act_order(192, 320)
    stored[3][[5, 100]] = torch.tensor([7, -1], dtype=torch.int32, device="cuda")
    summed = sums(192, 320)
    summed[3][3] = 192
    decode_sums(sums(192, 320))
    dequantize_gptq(*stored, group_size=GROUP, validate=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ordered = dequantize_gptq(*stored, group_size=GROUP)
        total = decode_sums(summed, validate=True)
    graph.replay()
    assert torch.isnan(ordered[[5, 100]]).all()
    assert torch.isfinite(ordered[:5]).all()
    assert torch.isnan(total).all()


TILES = [Tile(1, 64, 1, 1), Tile(2, 256, 3, 4), Tile(4, 1024, 1, 8), Tile(8, 128, 2, 2), Tile(32, 512, 1, 4)]


@pytest.mark.usefixtures("unplanned")
@EVERY
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("shape", [(192, 320), (128, 2080)])
def test_the_tile_does_not_count(
    name: str, tile: Tile, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles within groups and astride, several steps, any number of warps: the bits of each weight are the same."""
    make, decode = OPERATIONS[name]
    stored = make(*shape)
    expected = decode(stored)
    key = name.partition(",")[0].replace("fp4", "nf4")
    if "g_idx" in name or name == "gptq3":
        tile = tile._replace(rows=min(tile.rows, 4))  # the others have no registers left
    monkeypatch.setitem(_weight_tiles.TILES, key, tile)
    for least in (1, 1 << 20):
        monkeypatch.setattr(_weight_tiles, "_LEAST_UNIFORM", least)
        same(decode(stored), expected)


MATRICES = ("awq", "gptq2", "gptq3", "gptq4", "gptq8", "gptq_g_idx", "int8", "squeezellm3", "squeezellm4")


def last_rows(name: str, stored: Stored) -> Stored:
    """What the last 64 rows decode from."""
    words, *others = stored
    if name == "int8":
        return words[-64:], others[0][-64:]
    if name == "awq":
        return words[-64:], *(part[-1:] for part in others)
    if name == "gptq_g_idx":
        others[2][-64:] = others[0].shape[0] - 1
        return words[-8:], *(part[-1:] for part in others[:2]), torch.zeros_like(others[2][-64:])
    bits = int(name[-1])
    if "squeezellm" in name:
        return words[-2 * bits :], *others
    return words[-2 * bits :], *(part[-1:] for part in others)


def last_columns(name: str, stored: Stored) -> Stored:
    """What the last 32 columns decode from."""
    words, *others = stored
    if name == "int8":
        return words[:, -32:], *others
    if name == "awq":
        return words[:, -4:], others[0][:, -4:], others[1][:, -32:]
    if "squeezellm" in name:
        return words[:, -32:], others[0][-32:]
    bits = 4 if name == "gptq_g_idx" else int(name[-1])
    return words[:, -32:], others[0][:, -bits:], others[1][:, -32:], *others[2:]


def require_memory(gigabytes: int) -> None:
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < gigabytes << 30:
        pytest.skip(f"needs {gigabytes} GiB of free GPU memory: places that far apart are NOT judged here")


@pytest.mark.parametrize("name", MATRICES)
def test_more_than_31_bits_of_elements(name: str) -> None:
    """The last rows of a huge weight get the bytes that they get alone."""
    require_memory(24)
    make, decode = OPERATIONS[name]
    stored = make(2**16 + 64, 2**15 + 32)
    expected = decode(last_rows(name, stored))
    same(decode(stored)[-64:].contiguous(), expected)


TALL = {"gptq2": 16, "gptq3": 32, "gptq4": 8, "gptq8": 4, "gptq_g_idx": 8}
"""Rows of a pack; of the others 64 rows are a tile."""


@pytest.mark.parametrize("name", MATRICES)
def test_a_tile_that_spans_31_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row of a tile, of one pack for GPTQ, begins 2**31 elements behind its first or later.

    Of SqueezeLLM the columns are odd: two of 16 bits would be counted as one.
    """
    require_memory(40)
    make, decode = OPERATIONS[name]
    rows = TALL.get(name, 64)
    columns = -(-(2**31) // (rows - 1) // 32) * 32 + (33 if "squeezellm" in name else 32)
    assert (rows - 1) * columns >= 2**31
    stored = make(rows, columns)
    packs = {"awq": 64, "int8": 64, "squeezellm3": 2, "squeezellm4": 8}.get(name, 1)
    monkeypatch.setitem(_weight_tiles.TILES, name, Tile(packs, 128))
    expected = decode(last_columns(name, stored))
    same(decode(stored)[:, -32:].contiguous(), expected)


def test_a_row_of_nearly_2_to_the_31_columns() -> None:
    """Their number and a tile's added would be negative, and the last tile would lie in row -1."""
    require_memory(12)
    columns = 2**31 - 1
    weight, scale = torch.zeros(1, columns, dtype=torch.int8, device="cuda"), normal(1)
    weight[:, -2048:] = integers(1, 2048, dtype=torch.int8)
    expected = dequantize_int8(weight[:, -2048:], scale, dtype=BFLOAT)
    same(dequantize_int8(weight, scale, dtype=BFLOAT)[:, -2048:].contiguous(), expected)


APART = {
    "gptq3": (32, 2**30),
    "squeezellm3": (32, 2**30 + 1),
    "gptq4": (16, 2**31),
    "gptq8": (8, 2**31),
    "int8": (2, 2**31),
}
"""Rows, and the distance of the rows of what is stored. A kernel takes two or three at once; of odd ones one column."""


@pytest.mark.parametrize("name", APART)
def test_rows_that_lie_31_bits_apart(name: str) -> None:
    require_memory(12)
    make, decode = OPERATIONS[name]
    rows, stride = APART[name]
    words, *others = make(rows, 32)
    apart = torch.empty((words.shape[0] - 1) * stride + 32, dtype=words.dtype, device="cuda")
    apart = apart.as_strided(words.shape, (stride, 1))
    apart.copy_(words)
    same(decode((apart, *others)), decode((words, *others)))


@pytest.mark.parametrize("decode", [dequantize_nf4, dequantize_fp4])
@pytest.mark.parametrize("rest", [0, 5])
def test_more_than_31_bits_of_flat_elements(decode: Callable[..., torch.Tensor], rest: int) -> None:
    n = 2**31 + 64 + rest
    packed = torch.zeros(-(-n // 2), dtype=torch.uint8, device="cuda")
    packed[-64:] = integers(64, dtype=torch.uint8)
    absmax = torch.zeros(-(-n // 64), device="cuda")
    absmax[-2:] = normal(2)
    size = n - 2**31
    expected = decode(packed[2**30 :], absmax[2**25 :], shape=(size,))
    same(decode(packed, absmax, shape=(n,))[2**31 :], expected)
