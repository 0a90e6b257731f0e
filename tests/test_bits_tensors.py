"""The bit-level reference under every scheme: decoding tables, shapes, seeds and cuts of a tensor, arguments."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from lowbit import schemes
from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, E4M3
from lowbit.references import bits, philox
from lowbit.references.bits_elements import CHUNK
from lowbit.schemes import Encoded

PATTERNS = {"binary32": np.uint32, "binary16": np.uint16, "bfloat16": np.uint16}


def block(scheme: schemes.Scheme, *values: float) -> np.ndarray:
    """One block that starts with these values and goes on with zeros."""
    x = np.zeros((1, scheme.block), dtype=np.float32)
    x[0, : len(values)] = values
    return x


@pytest.mark.parametrize("name", schemes.names())
def test_decoding_every_code_under_every_scale(name):
    """Against products of float64, which are exact here, and the casts of NumPy and ml_dtypes."""
    scheme = schemes.get(name)
    codes = np.broadcast_to(np.arange(16, dtype=np.uint8)[None, :], (256, 16))
    codes = np.concatenate([codes] * (scheme.block // 16), axis=1) if scheme.block >= 16 else codes
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], codes.shape[1] // scheme.block, axis=1)
    g = np.float32(3.7) if scheme.family == "nvfp4" else None
    values, factors = bits.decode(codes, scheme.element), bits.decode(scales, scheme.scale)
    if scheme.family == "mx4":
        factors[255] = np.inf
    with np.errstate(all="ignore"):
        wide = values * np.repeat(factors, scheme.block, axis=1)
        if g is not None:
            wide = wide.astype(np.float32) / g
        if scheme.family == "rtn_xxfp4" and scheme.global_scale != 1:
            wide = values * np.repeat(factors * float(scheme.global_scale), scheme.block, axis=1)
        single = wide.astype(np.float32)
        for fmt, dtype in ((BINARY32, np.float32), (BINARY16, np.float16), (BFLOAT16, ml_dtypes.bfloat16)):
            actual = bits.dequantize(Encoded(codes, scales, g), scheme, fmt)
            # Through binary32: exact for powers of two in range, and PyTorch's way for rtn_xxfp4.
            expected = single.astype(dtype).view(PATTERNS[fmt.name])
            number = ~np.isnan(single)
            np.testing.assert_array_equal(actual[number], expected[number])
            assert (actual[~number] == fmt.nan_magnitude).all()


@pytest.mark.parametrize("name", schemes.names())
def test_shapes(name):
    scheme = schemes.get(name)
    k = 2 * scheme.block
    for shape in ((0, k), (2, 0, k), (k,), (3, k), (2, 3, k), (4, 0)):
        encoded = bits.quantize(np.ones(shape, dtype=np.float32), scheme, seed=0)
        assert encoded.codes.shape == shape
        assert encoded.scales.shape == (*shape[:-1], shape[-1] // scheme.block)
        assert bits.dequantize(encoded, scheme).shape == shape
    with pytest.raises(ShapeError, match="scalar"):
        bits.quantize(np.float32(1), scheme, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mx4_stochastic_e2m1_g8", "mx4_ceil_e2m1_g32+stochastic", "nvfp4+stochastic"])
@pytest.mark.parametrize("shape", [(3, 40), (2, 5, 96), (2, 2 * CHUNK + 96), (1, CHUNK), (CHUNK // 16 + 3, 32)])
def test_a_seed_gives_the_documented_bits(name, shape):
    """Row-major index in the unpadded x, whatever the shape and wherever the tensor is cut."""
    scheme = schemes.get(name)
    if scheme.family == "nvfp4":
        shape = (*shape[:-1], shape[-1] // 16 * 16)
    x = np.random.default_rng(7).standard_normal(shape, dtype=np.float32)
    seed = 0xFEDCBA9876543210
    groups = (*shape[:-1], -(-shape[-1] // scheme.block))
    given = bits.quantize(
        x,
        scheme,
        random_bits=philox.element_bytes(seed, x.size).reshape(shape),
        scale_random_bits=philox.scale_words(seed, math.prod(groups)).reshape(groups),
    )
    seeded = bits.quantize(x, scheme, seed=seed)
    np.testing.assert_array_equal(seeded.codes, given.codes)
    np.testing.assert_array_equal(seeded.scales, given.scales)


@pytest.mark.parametrize("name", ["mx4_ceil_e2m1_g32", "mxfp4_floor", "nvfp4", "rtn_nvfp4"])
def test_cutting_leaves_no_seam(name):
    """Many rows, long rows, strides: every block as if it were alone."""
    scheme = schemes.get(name)
    rng = np.random.default_rng(8)
    for shape in ((CHUNK // 32 + 5, 64), (2, CHUNK + 64)):
        x = rng.standard_normal(shape, dtype=np.float32) * np.float32(7)
        g = np.float32(3) if scheme.family == "nvfp4" else None
        encoded = bits.quantize(x, scheme, tensor_scale=g)
        strided = bits.quantize(np.asfortranarray(x), scheme, tensor_scale=g)
        np.testing.assert_array_equal(strided.codes, encoded.codes)
        for row, i in [(r, c) for r in (0, 1, shape[0] - 1) for c in (0, shape[1] // scheme.block - 1)]:
            part = slice(i * scheme.block, (i + 1) * scheme.block)
            alone = bits.quantize(x[row, part], scheme, tensor_scale=g)
            np.testing.assert_array_equal(encoded.codes[row, part], alone.codes)
            assert encoded.scales[row, i] == alone.scales[0]


def test_a_stochastic_scheme_needs_bits():
    scheme = schemes.get("nvfp4+stochastic")
    x = block(scheme, 1.0)
    with pytest.raises(ArgumentError, match="random_bits: got None and no seed"):
        bits.quantize(x, scheme)
    with pytest.raises(ShapeError, match="random_bits"):
        bits.quantize(x, scheme, random_bits=np.zeros((1, 17), dtype=np.uint8))
    exponent = schemes.get("mx4_stochastic_e2m1_g32")
    with pytest.raises(ArgumentError, match="scale_random_bits: got None and no seed"):
        bits.quantize(block(exponent, 1.0), exponent)
    with pytest.raises(DtypeError, match="scale_random_bits"):
        bits.quantize(block(exponent, 1.0), exponent, scale_random_bits=np.zeros((1, 1), dtype=np.int64))  # type: ignore[arg-type]


def test_inputs_of_dequantize_are_checked():
    scheme = schemes.get("nvfp4")
    codes, scales = np.zeros((2, 32), dtype=np.uint8), np.zeros((2, 2), dtype=np.uint8)
    with pytest.raises(ShapeError, match=r"codes, scales: got shapes \(2, 32\) and \(2, 1\)"):
        bits.dequantize(Encoded(codes, scales[:, :1]), scheme)
    with pytest.raises(ArgumentError, match="codes: got up to 0x10"):
        bits.dequantize(Encoded(codes + np.uint8(16), scales), scheme)
    with pytest.raises(DtypeError, match="scales"):
        bits.dequantize(Encoded(codes, scales.astype(np.int32)), scheme)
    with pytest.raises(ArgumentError, match="fmt"):
        bits.dequantize(Encoded(codes, scales), scheme, E4M3)
    with pytest.raises(DtypeError, match="x: got float16"):
        bits.quantize(np.zeros((1, 16), dtype=np.float16), scheme)  # type: ignore[arg-type]
