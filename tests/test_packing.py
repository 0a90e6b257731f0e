"""Packing: nibbles, the MX4 stream, the swizzled layout; each on NumPy arrays and torch tensors.

The swizzle is judged by the formula of SPEC.md section 4 written as a loop, with scales that carry their own index: a
permutation shows at once.
"""

import dataclasses
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowbit import packing, schemes
from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import E4M3
from lowbit.schemes import Encoded, Quantized

KINDS = {"numpy": np.asarray, "torch": lambda array: torch.from_numpy(np.array(array))}
SHAPES = [(1, 1), (2, 5), (3, 4), (31, 1), (33, 3), (128, 4), (129, 5), (130, 9), (257, 2)]


@pytest.fixture(params=list(KINDS))
def make(request):
    """Turns a NumPy array into the kind under test."""
    return KINDS[request.param]


def uint8(*values):
    return np.array(values, np.uint8)


def same(actual, expected):
    """Kind, shape, dtype and bytes."""
    assert isinstance(actual, type(expected))
    assert actual.dtype == expected.dtype
    assert np.asarray(actual).tolist() == np.asarray(expected).tolist()
    assert tuple(actual.shape) == tuple(expected.shape)


def by_the_formula(scales):
    """SWIZZLE_32_4_4, byte by byte."""
    rows, columns = scales.shape
    buffer = np.zeros(-(-rows // 128) * 128 * -(-columns // 4) * 4, np.uint8)
    for r in range(rows):
        for c in range(columns):
            tile = (r // 128) * -(-columns // 4) + c // 4
            buffer[tile * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4] = scales[r, c]
    return buffer


def test_element_0_is_in_the_low_nibble(make):
    # triton#5197: [1.0, 2.0], codes 2 and 4, gave 0x24.
    same(packing.pack_nibbles(make(uint8(2, 4))), make(uint8(0x42)))
    same(packing.unpack_nibbles(make(uint8(0x42, 0xF0))), make(uint8(2, 4, 0, 15)))


@given(
    codes=arrays(
        np.uint8, st.tuples(st.integers(0, 3), st.integers(0, 5).map(lambda n: 2 * n)), elements=st.integers(0, 15)
    )
)
@settings(max_examples=50, deadline=None)
def test_nibbles_round_trip(codes):
    for kind in KINDS.values():
        packed = packing.pack_nibbles(kind(codes))
        assert tuple(packed.shape) == (codes.shape[0], codes.shape[1] // 2)
        same(packing.unpack_nibbles(packed), kind(codes))


def test_nibbles_refuse_what_does_not_fit(make):
    with pytest.raises(ArgumentError, match="codes: got 0x10, want"):
        packing.pack_nibbles(make(uint8(1, 16)))
    with pytest.raises(ShapeError, match="codes: got a last dimension of 3, want an even one"):
        packing.pack_nibbles(make(uint8(1, 2, 3)))
    with pytest.raises(ShapeError, match="codes: got no dimension"):
        packing.pack_nibbles(make(np.array(3, np.uint8)))
    for dtype in (np.int8, np.int32, np.bool_, np.float32):
        with pytest.raises(DtypeError, match=r"codes: got .*, want uint8"):
            packing.pack_nibbles(make(np.zeros(2, dtype)))
    with pytest.raises(DtypeError, match="codes: got list"):
        packing.pack_nibbles([1, 2])


def test_nibbles_of_every_byte(make):
    every = np.arange(256, dtype=np.uint8)
    same(packing.pack_nibbles(packing.unpack_nibbles(make(every))), make(every))


def test_one_byte_floating_dtypes_are_read_as_their_bits():
    packed = torch.tensor([0x42], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert packing.unpack_nibbles(packed).tolist() == [2, 4]
    scales = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    for dtype in (torch.float8_e4m3fn, torch.float8_e8m0fnu):
        buffer = packing.swizzle(scales.view(dtype))
        assert buffer.dtype == dtype
        same(packing.unswizzle(buffer, 3, 4).view(torch.uint8), scales)
    buffer = packing.swizzle(scales.numpy().view(ml_dtypes.float8_e4m3fn))
    assert buffer.dtype == ml_dtypes.float8_e4m3fn
    same(buffer.view(np.uint8), by_the_formula(scales.numpy()))


def test_mx4_stream_is_codes_then_scale_block_after_block(make):
    packed, scales = make(np.arange(1, 17, dtype=np.uint8).reshape(1, 16)), make(uint8(0xA0, 0xB0).reshape(1, 2))
    stream = packing.interleave(packed, scales, 16)
    same(stream, make(uint8(*range(1, 9), 0xA0, *range(9, 17), 0xB0).reshape(1, 18)))
    again, scales_again = packing.deinterleave(stream, 16)
    same(again, packed)
    same(scales_again, scales)


@given(data=st.data(), leading=st.lists(st.integers(0, 3), max_size=2), groups=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_mx4_streams_round_trip(data, leading, groups):
    block = data.draw(st.sampled_from([8, 16, 32, 64]))
    packed = data.draw(arrays(np.uint8, (*leading, groups * block // 2)))
    scales = data.draw(arrays(np.uint8, (*leading, groups)))
    for kind in KINDS.values():
        stream = packing.interleave(kind(packed), kind(scales), block)
        assert tuple(stream.shape) == (*leading, groups * (block // 2 + 1))
        again = packing.deinterleave(stream, block)
        same(again[0], kind(packed))
        same(again[1], kind(scales))


def test_mx4_streams_refuse_what_does_not_fit(make):
    with pytest.raises(ShapeError, match=r"packed: got shape \(2, 16\), want \(2, 32\): 16 bytes for each"):
        packing.interleave(make(np.zeros((2, 16), np.uint8)), make(np.zeros((2, 2), np.uint8)), 32)
    with pytest.raises(ShapeError, match="stream: got a last dimension of 18, want a multiple of 17"):
        packing.deinterleave(make(np.zeros((2, 18), np.uint8)), 32)
    with pytest.raises(ArgumentError, match="block: got 7, want an even number"):
        packing.deinterleave(make(np.zeros((2, 18), np.uint8)), 7)


@pytest.mark.parametrize("shape", SHAPES)
def test_swizzle_is_the_formula_and_its_padding_is_zero(make, shape):
    # MSLK#339: with C % 4 != 0 the offset came from the unpadded index. vllm#45741: the padding was not written.
    rows, columns = shape
    index = np.arange(1, rows * columns + 1).reshape(shape)
    for digit in (index % 255 + 1, index // 255 + 1):  # two buffers of bytes, none 0, tell every index apart
        scales = digit.astype(np.uint8)
        buffer = packing.swizzle(make(scales))
        same(buffer, make(by_the_formula(scales)))
        assert tuple(buffer.shape) == (packing.swizzled_size(rows, columns),)
        assert (np.asarray(buffer) == 0).tolist() == packing.swizzle_padding(rows, columns).tolist()
        same(packing.unswizzle(buffer, rows, columns), make(scales))


@pytest.mark.parametrize("shape", SHAPES)
def test_swizzle_offset_is_where_swizzle_puts_it(shape):
    rows, columns = shape
    offsets = packing.swizzle_offset(np.arange(rows)[:, None], np.arange(columns), columns)
    scales = (np.arange(rows * columns) % 251).astype(np.uint8).reshape(shape)
    assert packing.swizzle(scales)[offsets].tolist() == scales.tolist()
    assert len(set(offsets.ravel().tolist())) == rows * columns
    assert offsets.max() < packing.swizzled_size(rows, columns)


def test_swizzle_offsets_by_hand():
    assert [
        packing.swizzle_offset(r, c, 5) for r, c in [(0, 0), (0, 3), (0, 4), (1, 0), (32, 0), (127, 4), (128, 0)]
    ] == [*(0, 3, 512, 16, 4, 512 + 31 * 16 + 12, 1024)]
    assert packing.swizzle_offset(1 << 33, 0, 4) == 1 << 35  # no 32-bit arithmetic
    assert [packing.swizzled_size(*shape) for shape in [(0, 4), (1, 0), (1, 1), (128, 4), (129, 5)]] == [
        0,
        0,
        512,
        512,
        2048,
    ]


def test_swizzle_flattens_leading_dimensions_and_takes_strides(make):
    scales = np.arange(2 * 70 * 6, dtype=np.int64).astype(np.uint8).reshape(2, 70, 6)
    same(packing.swizzle(make(scales)), make(by_the_formula(scales.reshape(140, 6))))
    same(packing.swizzle(make(scales)[:, :, 1:6]), make(by_the_formula(scales[:, :, 1:6].reshape(140, 5))))
    same(packing.swizzle(make(scales)[0, 0]), make(by_the_formula(scales[0, :1])))
    same(packing.swizzle(make(np.zeros((0, 6), np.uint8))), make(np.zeros(0, np.uint8)))
    same(packing.unswizzle(make(np.zeros(0, np.uint8)), 5, 0), make(np.zeros((5, 0), np.uint8)))


def test_unswizzle_refuses_another_size(make):
    with pytest.raises(ShapeError, match=r"buffer: got shape \(512,\), want \(1024,\) for 3 rows x 5 columns"):
        packing.unswizzle(make(np.zeros(512, np.uint8)), 3, 5)
    with pytest.raises(ShapeError, match="buffer: got shape"):
        packing.unswizzle(make(np.zeros((1, 512), np.uint8)), 3, 4)


def encoded(scheme, shape, make=np.asarray, seed=0):
    rng = np.random.default_rng(seed)
    scales = rng.integers(0, 256, (*shape[:-1], shape[-1] // scheme.block), np.uint8)
    codes = rng.integers(0, 1 << scheme.element.bits, shape, np.uint8)
    return Encoded(make(codes), make(scales), np.float32(3))


@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 65, 128), (0, 64), (3, 0)], ids=str)
@pytest.mark.parametrize("swizzle", [False, True], ids=["plain", "swizzled"])
@pytest.mark.parametrize("name", ["mxfp4_floor", "nvfp4", "rtn_nvfp4"])
def test_pack_and_unpack_separate_scales(make, name, swizzle, shape):
    scheme = schemes.get(name)
    before = encoded(scheme, shape, make)
    stored = packing.pack(before, scheme, swizzle=swizzle)
    same(stored.packed, packing.pack_nibbles(before.codes))
    same(stored.scales, packing.swizzle(before.scales) if swizzle else before.scales)
    for options in ({}, {"shape": shape}):
        after = packing.unpack(stored, scheme, **options)
        same(after.codes, before.codes)
        same(after.scales, before.scales)
        assert after.tensor_scale == 3


@pytest.mark.parametrize("block", [8, 16, 32, 64])
def test_pack_and_unpack_mx4(make, block):
    scheme = schemes.get(f"mx4_ceil_e2m1_g{block}")
    before = encoded(scheme, (3, 2 * block), make)
    stored = packing.pack(before, scheme)
    assert stored.scales is None
    same(stored.packed, packing.interleave(packing.pack_nibbles(before.codes), before.scales, block))
    for shape in (None, (3, 2 * block), (3, block + 1)):  # x had any width that pads to this one
        after = packing.unpack(stored, scheme, shape=shape)
        same(after.codes, before.codes)
        same(after.scales, before.scales)
    with pytest.raises(ShapeError, match="packed: holds codes of shape"):
        packing.unpack(stored, scheme, shape=(3, block))
    with pytest.raises(ArgumentError, match="swizzle: got True"):
        packing.pack(before, scheme, swizzle=True)


def test_wide_elements_are_one_a_byte(make):
    scheme = dataclasses.replace(schemes.get("mxfp4_floor"), name="mxfp8", element=E4M3)
    before = encoded(scheme, (2, 64), make)
    stored = packing.pack(before, scheme)
    same(stored.packed, before.codes)
    same(packing.unpack(stored, scheme).codes, before.codes)


def test_pack_and_unpack_refuse_what_does_not_fit(make):
    scheme = schemes.get("nvfp4")
    good = packing.pack(encoded(scheme, (2, 32), make), scheme)
    with pytest.raises(ShapeError, match=r"codes: got shape \(2, 32\) with scales \(2, 3\), want 16 codes a scale"):
        packing.pack(Encoded(make(np.zeros((2, 32), np.uint8)), make(np.zeros((2, 3), np.uint8))), scheme)
    for scales in (np.zeros((2, 3), np.uint8), np.zeros(1024, np.uint8), np.zeros((1, 512), np.uint8)):
        with pytest.raises(ShapeError, match=r"scales: got shape .*, want \(2, 2\), or \(512,\) swizzled"):
            packing.unpack(Quantized(good.packed, make(scales)), scheme)
    with pytest.raises(ShapeError, match="packed: got 8 codes a row, want a multiple of 16"):
        packing.unpack(Quantized(make(np.zeros((2, 4), np.uint8)), good.scales), scheme)
    with pytest.raises(ShapeError, match=r"want \(1, 64\) for x \(1, 64\)"):
        packing.unpack(good, scheme, shape=(1, 64))
    with pytest.raises(DtypeError, match="scales: got NoneType"):
        packing.unpack(Quantized(good.packed), scheme)


def test_inputs_are_not_changed(make):
    scheme = schemes.get("nvfp4")
    before = encoded(scheme, (3, 64))
    given_ = Encoded(make(before.codes.copy()), make(before.scales.copy()))
    packing.pack(given_, scheme, swizzle=True)
    same(given_.codes, make(before.codes))
    same(given_.scales, make(before.scales))


def test_packing_and_the_exact_reference_import_no_torch():
    code = (
        "import sys, numpy as np; from lowbit import packing; from lowbit.references import exact;"
        "packing.swizzle(packing.pack_nibbles(np.zeros((2, 8), np.uint8))); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
