"""Streaming of safetensors files: every value, in bounded memory, and clear refusals."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lowbit import schemes
from lowbit.checkpoints import files as checkpoint
from lowbit.checkpoints.files import Entry
from lowbit.errors import ArgumentError, NothingCompared, Unsupported
from lowbit.references import bits

MARKUP = 'layer.0 <script>alert("&")</script>\n|`x`'


def written(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry_of(path: Path, name: str) -> Entry:
    return next(entry for entry in checkpoint.tensors(path) if entry.name == name)


def joined(path: Path, entry: Entry, elements: int) -> np.ndarray:
    """The tensor put together again from its chunks, each checked against the bound and its place."""
    whole = np.full((entry.rows, entry.columns), np.nan, np.float32)
    filled = np.zeros(whole.shape, bool)
    for chunk in checkpoint.chunks(path, entry, elements=elements):
        assert chunk.values.dtype == np.float32
        assert 0 < chunk.values.size <= elements
        rows, columns = chunk.values.shape
        place = slice(chunk.row, chunk.row + rows), slice(chunk.column, chunk.column + columns)
        assert not filled[place].any(), "read twice"
        assert chunk.whole == (chunk.values.size == entry.elements)
        whole[place], filled[place] = chunk.values, True
    assert filled.all(), "not all was read"
    return whole


def test_entries_are_what_the_file_says(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.safetensors",
        {
            MARKUP: torch.zeros(3, 5, 7),
            "vector": torch.zeros(9, dtype=torch.bfloat16),
            "scalar": torch.tensor(2.5),
            "half": torch.zeros(2, 2, dtype=torch.float16),
            "double": torch.zeros(2, dtype=torch.float64),
            "ids": torch.zeros(4, dtype=torch.int64),
            "codes": torch.zeros(4, dtype=torch.uint8),
            "mask": torch.zeros(4, dtype=torch.bool),
            "quantised": torch.zeros(4, dtype=torch.float8_e4m3fn),
            "no rows": torch.zeros(0, 4),
            "no columns": torch.zeros(4, 0, dtype=torch.bfloat16),
        },
    )
    entries = checkpoint.tensors(path)
    with safe_open(path, "pt") as file:  # the format's own reader is the witness
        slices = {name: file.get_slice(name) for name in sorted(file.keys())}
        said = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    assert {e.name: (e.shape, e.dtype) for e in entries} == said
    assert [e.start for e in entries] == sorted(e.start for e in entries)
    # A vector and a scalar are one row; leading dimensions are rows.
    shapes = {e.name: (e.rows, e.columns) for e in entries}
    assert shapes[MARKUP] == (15, 7)
    assert shapes["vector"] == (1, 9)
    assert shapes["scalar"] == (1, 1)
    skipped = {e.name: e.skipped for e in entries if e.skipped is not None}
    assert set(skipped) == {"double", "ids", "codes", "mask", "quantised", "no rows", "no columns"}
    assert "rounding" in skipped["double"]
    assert skipped["ids"] == "I64: not floating"
    assert "quantised already" in skipped["quantised"]
    assert skipped["no rows"] == skipped["no columns"] == "no elements"
    assert {e.name for e in checkpoint.floating(path)} == {MARKUP, "vector", "scalar", "half"}


@pytest.mark.parametrize("elements", [64, 100, 192, 1000, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (7,), (300,), (5, 33), (3, 2, 130), (1, 1000), (64, 1)])
def test_chunks_join_to_the_tensor(tmp_path: Path, shape: tuple[int, ...], dtype: torch.dtype, elements: int) -> None:
    generator = torch.Generator().manual_seed(1)
    tensor = torch.randn(shape, generator=generator).to(dtype)
    path = written(tmp_path / "m.safetensors", {"first": torch.ones(3, dtype=torch.uint8), "x": tensor})
    entry = entry_of(path, "x")
    expected = tensor.float().reshape(entry.rows, entry.columns).numpy()
    np.testing.assert_array_equal(joined(path, entry, elements).view(np.uint32), expected.view(np.uint32))


def test_a_row_is_cut_between_blocks_of_every_scheme(tmp_path: Path) -> None:
    path = written(tmp_path / "m.safetensors", {"x": torch.zeros(2, 1000)})
    columns = [chunk.column for chunk in checkpoint.chunks(path, entry_of(path, "x"), elements=300)]
    assert columns == [0, 256, 512, 768] * 2  # 300 down to a multiple of 64, the widest block
    assert all(column % scheme.block == 0 for column in columns for scheme in schemes.select())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_pattern_widens_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype)
    path = written(tmp_path / "m.safetensors", {"x": tensor})
    (chunk,) = checkpoint.chunks(path, entry_of(path, "x"))
    actual, expected = chunk.values.reshape(-1), tensor.float().numpy()
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(actual.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def test_binary32_patterns_are_kept(tmp_path: Path) -> None:
    patterns = np.array([0x80000000, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001], np.uint32)
    path = written(tmp_path / "m.safetensors", {"x": torch.from_numpy(patterns.view(np.int32)).view(torch.float32)})
    (chunk,) = checkpoint.chunks(path, entry_of(path, "x"))
    np.testing.assert_array_equal(chunk.values.view(np.uint32).reshape(-1), patterns)


def test_memory_stays_bounded(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.safetensors", {"x": torch.zeros(1024, 8192, dtype=torch.bfloat16)}
    )  # 32 MiB as float32
    entry = entry_of(path, "x")
    tracemalloc.start()
    read = sum(chunk.values.size for chunk in checkpoint.chunks(path, entry, elements=1 << 16))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == entry.elements
    assert peak < 2 << 20  # a chunk is 256 KiB as float32; the file is 16 MiB


def test_reading_refuses_what_cannot_be_judged(tmp_path: Path) -> None:
    path = written(tmp_path / "m.safetensors", {"ids": torch.zeros(4, dtype=torch.int64), "x": torch.zeros(4)})
    with pytest.raises(ArgumentError, match="ids cannot be read as float32: I64"):
        next(checkpoint.chunks(path, entry_of(path, "ids")))
    with pytest.raises(ArgumentError, match="want at least 64"):
        next(checkpoint.chunks(path, entry_of(path, "x"), elements=63))


def test_nothing_to_compare(tmp_path: Path) -> None:
    empty = tmp_path / "empty.safetensors"
    empty.touch()
    with pytest.raises(NothingCompared, match="is empty"):
        checkpoint.tensors(empty)
    with pytest.raises(NothingCompared, match="holds no tensor"):
        checkpoint.tensors(raw(tmp_path / "none.safetensors", {"__metadata__": {"a": "b"}}))
    path = written(tmp_path / "ints.safetensors", {"ids": torch.zeros(4, dtype=torch.int32), "e": torch.zeros(0)})
    with pytest.raises(NothingCompared, match=r"no floating tensor to judge, of 2: .*ids \(I32: not floating\)"):
        checkpoint.floating(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"short", "not a safetensors file, or is truncated"),
        (b"this is a text file, and a longer one than eight bytes", "not a safetensors file, or is truncated"),
        (b"\x04\0\0\0\0\0\0\0{{{{", "its header is no JSON"),
        (b"\x04\0\0\0\0\0\0\0\xff\xfe\xfd\xfc", "its header is no JSON"),
        (b"\x02\0\0\0\0\0\0\0[]", "its header is a list"),
    ],
)
def test_not_a_safetensors_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        checkpoint.tensors(path)


@pytest.mark.parametrize("path", ["nowhere.safetensors", "."])
def test_no_such_file(tmp_path: Path, path: str) -> None:
    with pytest.raises(ArgumentError, match="is not a file"):
        checkpoint.tensors(tmp_path / path)


def test_truncated(tmp_path: Path) -> None:
    path = written(tmp_path / "m.safetensors", {"a": torch.zeros(64), "b": torch.zeros(64)})
    content = path.read_bytes()
    for kept, message in ((len(content) - 1, "truncated: 'b' ends at byte"), (20, "announce a header")):
        path.write_bytes(content[:kept])
        with pytest.raises(ArgumentError, match=message):
            checkpoint.tensors(path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "m.safetensors", {"a": torch.zeros(4, 64)})
    entry = entry_of(path, "a")
    chunks = checkpoint.chunks(path, entry, elements=64)
    next(chunks)
    path.write_bytes(path.read_bytes()[: entry.start + 300])
    with pytest.raises(ArgumentError, match="truncated inside 'a'"):
        next(chunks)


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},  # 12 bytes are wanted
        {"dtype": "F32", "shape": [-3], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},  # would read the header as weights
        {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]},
        {"dtype": "F31", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0]},
        {"dtype": "F32", "shape": [2]},
        "F32",
    ],
)
def test_a_header_that_contradicts_itself(tmp_path: Path, fields: object) -> None:
    with pytest.raises(ArgumentError, match="'x'"):
        checkpoint.tensors(raw(tmp_path / "m.safetensors", {"x": fields}, bytes(8)))


def test_a_name_that_stands_twice(tmp_path: Path) -> None:
    one = '"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    with pytest.raises(ArgumentError, match="twice"):
        checkpoint.tensors(raw(tmp_path / "m.safetensors", f"{{{one}, {one}}}".encode(), bytes(4)))


def test_amax(tmp_path: Path) -> None:
    values = torch.zeros(3, 100)
    values[0, 1], values[2, 99] = -7.5, 2.0
    unclean = values.clone()
    unclean[1, 3], unclean[1, 4] = math.nan, -math.inf
    path = written(tmp_path / "m.safetensors", {"x": values, "unclean": unclean})
    for elements in (64, 1 << 20):
        assert checkpoint.amax(path, entry_of(path, "x"), elements=elements) == 7.5
        assert checkpoint.amax(path, entry_of(path, "unclean"), finite=True, elements=elements) == 7.5
        assert math.isnan(checkpoint.amax(path, entry_of(path, "unclean"), elements=elements))


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_two_level", "nvfp4_two_level_cuda"])
def test_chunks_under_the_tensor_scale_give_the_whole_tensors_bytes(tmp_path: Path, name: str) -> None:
    scheme = schemes.get(name)
    tensor = torch.randn(40, 96, generator=torch.Generator().manual_seed(2)) * 3
    tensor[33, 5] = 17.0  # amax is not in the first chunk
    path = written(tmp_path / "m.safetensors", {"x": tensor})
    entry = entry_of(path, "x")
    g = checkpoint.tensor_scale(path, entry, scheme, elements=96 * 8)
    whole = bits.quantize(tensor.numpy(), scheme)
    assert g == whole.tensor_scale
    parts = [
        bits.quantize(chunk.values, scheme, tensor_scale=g) for chunk in checkpoint.chunks(path, entry, elements=96 * 8)
    ]
    assert len(parts) == 5
    np.testing.assert_array_equal(np.concatenate([p.codes for p in parts]), whole.codes)
    np.testing.assert_array_equal(np.concatenate([p.scales for p in parts]), whole.scales)


def test_tensor_scale_of_schemes_that_take_none(tmp_path: Path) -> None:
    path = written(tmp_path / "m.safetensors", {"x": torch.ones(4, 64)})
    for name in ("mx4_ceil_e2m1_g32", "mxfp4_floor", "nvfp4_one_level", "rtn_nvfp4"):
        assert checkpoint.tensor_scale(path, entry_of(path, "x"), schemes.get(name)) is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_tensor_scale_of_unclean_weights(tmp_path: Path, value: float) -> None:
    tensor = torch.ones(4, 64)
    tensor[2, 2] = value
    path = written(tmp_path / "m.safetensors", {"x": tensor})
    entry = entry_of(path, "x")
    # nvfp4 takes the largest finite magnitude; two_level's g would be NaN or 0, which nobody may give.
    assert checkpoint.tensor_scale(path, entry, schemes.get("nvfp4")) == 2688
    with pytest.raises(checkpoint.NoTensorScale, match="no part of a tensor can be given") as caught:
        checkpoint.tensor_scale(path, entry, schemes.get("nvfp4_two_level"))
    assert isinstance(caught.value, Unsupported)


@pytest.mark.parametrize("make", [lambda shape: np.ones(shape, np.float32), torch.ones], ids=["numpy", "torch"])
def test_pad_columns(make) -> None:
    x = make((2, 33))
    padded = checkpoint.pad_columns(x, 16)
    assert type(padded) is type(x)
    assert padded.dtype == x.dtype
    assert tuple(padded.shape) == (2, 48)
    assert bool((padded[:, :33] == x).all())
    assert not np.signbit(np.asarray(padded)[:, 33:]).any()
    assert not np.asarray(padded)[:, 33:].any()
    even = make((2, 32))
    assert checkpoint.pad_columns(even, 16) is even
