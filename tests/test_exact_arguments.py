"""What the exact reference does with shapes, layouts and arguments, for every scheme."""

import math

import ml_dtypes
import numpy as np
import pytest

from lowbit import schemes
from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import BFLOAT16, E4M3
from lowbit.references.exact import dequantize, quantize
from lowbit.schemes import Encoded

NAN, INF = math.nan, math.inf


def test_a_column_slice_is_its_contiguous_copy():
    # vllm#49092: row 0 right, the rest garbage.
    big = np.arange(4 * 80, dtype=np.float32).reshape(4, 80)
    for name in ("mx4_ceil_e2m1_g32", "mxfp4_floor", "nvfp4", "rtn_nvfp4"):
        scheme = schemes.get(name)
        view, copy = quantize(big[:, 8:72], scheme), quantize(big[:, 8:72].copy(), scheme)
        assert view.codes.tolist() == copy.codes.tolist()
        assert view.scales.tolist() == copy.scales.tolist()


@pytest.mark.parametrize("name", schemes.names())
def test_every_scheme_takes_any_leading_shape_and_no_rows(name):
    # TransformerEngine#2779, sglang#23609: zero rows were a launch error.
    scheme = schemes.get(name)
    empty = quantize(np.zeros((0, 2, 64), np.float32), scheme, seed=1)
    assert (empty.codes.shape, empty.scales.shape) == ((0, 2, 64), (0, 2, 64 // scheme.block))
    x = np.arange(128, dtype=np.float32).reshape(1, 2, 64) - 60
    wide = quantize(x, scheme, seed=1)
    flat = quantize(x.reshape(-1), scheme, seed=1)
    assert wide.codes.ravel().tolist() == flat.codes.tolist()
    assert wide.scales.ravel().tolist() == flat.scales.tolist()
    assert dequantize(wide, scheme, BFLOAT16).shape == (1, 2, 64)


def test_arguments_are_refused_with_what_was_got_and_what_is_wanted():
    x = np.zeros((2, 32), np.float32)
    mxfp4, nvfp4, stochastic = (schemes.get(n) for n in ("mxfp4_floor", "nvfp4", "nvfp4+stochastic"))
    with pytest.raises(ShapeError, match=r"got a last dimension of 33, want a multiple of 32 .* pad"):
        quantize(np.zeros((2, 33), np.float32), mxfp4)
    with pytest.raises(ShapeError, match="want at least one"):
        quantize(np.array(1, np.float32), mxfp4)
    for wrong in (x.astype(np.float64), x.astype(ml_dtypes.bfloat16), [1.0] * 32):
        with pytest.raises(DtypeError, match=r"x: got .* want a NumPy array of float32"):
            quantize(wrong, mxfp4)
    with pytest.raises(ArgumentError, match="random_bits: got neither"):
        quantize(x, stochastic)
    with pytest.raises(ShapeError, match=r"random_bits: got shape \(32,\), want \(2, 32\)"):
        quantize(x, stochastic, random_bits=np.zeros(32, np.uint8))
    with pytest.raises(DtypeError, match="random_bits: got int64, want uint8"):
        quantize(x, stochastic, random_bits=np.zeros((2, 32), np.int64))
    exponent = schemes.get("mx4_stochastic_e2m1_g32")
    with pytest.raises(ArgumentError, match="scale_random_bits: got neither"):
        quantize(x, exponent)
    with pytest.raises(ShapeError, match="scale_random_bits"):
        quantize(x, exponent, scale_random_bits=np.zeros((2, 2), np.int32))
    with pytest.raises(ArgumentError, match="fmt: got e4m3"):
        dequantize(quantize(x, nvfp4), nvfp4, E4M3)
    with pytest.raises(ShapeError, match="codes: got shape"):
        dequantize(Encoded(np.zeros((2, 32), np.uint8), np.zeros((2, 3), np.uint8)), nvfp4)


@pytest.mark.parametrize(
    "value",
    [
        *np.array([0, -0.0, -1, INF, NAN], np.float32),
        np.array([1, 2], np.float32),
        np.array([], np.float32),
        np.float64(1),
        np.array(1, ml_dtypes.bfloat16),
        np.array(0x3F80, np.uint16),
        1.0,
    ],
    ids=repr,
)
def test_a_given_tensor_scale_is_one_finite_float32_above_zero(value):
    # flashinfer#3398: a bfloat16 scale was read as float32, and everything became zero.
    with pytest.raises(ValueError, match="tensor_scale: got"):
        quantize(np.ones(16, np.float32), schemes.get("nvfp4"), tensor_scale=value)


@pytest.mark.parametrize("name", ["nvfp4_one_level", "mxfp4_floor", "mx4_ceil_e2m1_g32", "rtn_nvfp4"])
def test_schemes_without_a_choice_refuse_a_tensor_scale(name):
    with pytest.raises(ValueError, match=r"tensor_scale: got 1\.0, want None"):
        quantize(np.ones(32, np.float32), schemes.get(name), tensor_scale=np.float32(1))


def test_a_given_tensor_scale_is_used_and_returned():
    x = np.ones((2, 16), np.float32)
    for value in (np.float32(3), np.array([3], np.float32), np.array([[3]], np.float32)):
        result = quantize(x, schemes.get("nvfp4"), tensor_scale=value)
        assert result.tensor_scale == 3
        assert result.scales.tolist() == [[0x30], [0x30]]  # 3 / 6
