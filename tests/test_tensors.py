"""Whole schemes in the PyTorch reference: against the scalar one; shapes, chunks, random bits.

Runs on the CPU, and on the GPU too where there is one.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import E2M1
from lowbit.references import exact, philox, tensor_blocks, tensor_elements, tensors
from lowbit.rules import Rounding
from lowbit.schemes import Encoded, Scheme

from .tensor_checks import DEVICES, FORMATS, agree, agree_decoded


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def samples(scheme: Scheme, rng: np.random.Generator) -> np.ndarray:
    """Ordinary blocks, wide exponents, specials alone and among others. (7, 2 * block) float32"""
    shape = (1, 2 * scheme.block)
    ordinary = rng.standard_normal(shape)
    wide = rng.standard_normal(shape) * np.exp2(rng.integers(-140, 120, shape))
    subnormal = rng.standard_normal(shape) * 2.0**-126
    ties = rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0], shape) * rng.choice([-1, 1], shape)
    rows = [row.astype(np.float32) for row in (ordinary, wide, subnormal, ties)]
    for special in (0x7FC00000, 0xFF800000, 0):
        row = rng.standard_normal(shape).astype(np.float32)
        row.view(np.uint32)[:, : scheme.block : 3 if special else 1] = special
        rows.append(row)
    return np.concatenate(rows)


@pytest.mark.parametrize("name", schemes.names())
def test_quantize_and_dequantize_agree_with_the_scalar_reference(name, device):
    scheme = schemes.get(name)
    rng = np.random.default_rng(len(name))
    x = samples(scheme, rng)
    # NaN and Inf decide a whole tensor under nvfp4_two_level, so that it needs a tensor without them as well.
    for part in (x, x[:4]) if scheme.family == "nvfp4" else (x,):
        options = {"seed": 77} if scheme.stochastic else {}
        expected = exact.quantize(part, scheme, **options)
        actual = tensors.quantize(torch.from_numpy(part).to(device), scheme, **options)
        agree(actual, expected)
        for dtype, fmt in FORMATS.items():
            agree_decoded(tensors.dequantize(actual, scheme, dtype), exact.dequantize(expected, scheme, fmt))


@pytest.mark.parametrize(
    "name", ["mx4_ceil_e2m1_g32", "mx4_ceil_e3m0_g32", "mxfp4_floor", "nvfp4", "rtn_mxfp4", "rtn_nvfp4"]
)
def test_every_code_under_a_choice_of_scale_bytes(name, device):
    scheme = schemes.get(name)
    scales = np.array([0, 1, 2, 8, 56, 60, 101, 126, 127, 128, 129, 160, 184, 251, 252, 253, 254, 255], dtype=np.uint8)[
        :, None
    ]
    codes = np.resize(np.arange(16, dtype=np.uint8), (len(scales), scheme.block))
    for g in (None, 3.0, 1e-38) if scheme.family == "nvfp4" else (None,):
        host = Encoded(codes, scales, None if g is None else np.float32(g))
        here = Encoded(
            *(torch.from_numpy(part).to(device) for part in host[:2]),
            None if g is None else torch.tensor([g], device=device),
        )
        for dtype, fmt in FORMATS.items():
            agree_decoded(tensors.dequantize(here, scheme, dtype), exact.dequantize(host, scheme, fmt))


def test_decoded_values_written_out(device):
    def decoded(name: str, code: int, byte: int, g: float | None = None) -> float:
        scheme = schemes.get(name)
        codes = torch.full((scheme.block,), code, dtype=torch.uint8, device=device)
        scales = torch.full((1,), byte, dtype=torch.uint8, device=device)
        return tensors.dequantize(Encoded(codes, scales, None if g is None else torch.tensor([g])), scheme)[0].item()

    assert decoded("mxfp4_floor", 2, 0) == 2.0**-127  # pytorch#125557: not 0
    assert decoded("mxfp4_floor", 2, 134) == 128.0  # sglang#25519
    assert math.isnan(decoded("mxfp4_floor", 2, 255))
    assert math.isnan(decoded("mxfp4_floor", 0, 255))
    assert decoded("mxfp4_floor", 7, 253) == math.inf  # beyond binary32
    assert decoded("mxfp4_floor", 1, 0) == 2.0**-128
    assert decoded("mx4_ceil_e2m1_g32", 9, 255) == -math.inf
    assert math.isnan(decoded("mx4_ceil_e2m1_g32", 0, 255))
    assert decoded("nvfp4", 7, 0xB8, 2.0) == -3.0  # a negative scale decodes as one
    assert math.isnan(decoded("nvfp4", 0, 0xFF, 2.0))
    assert decoded("nvfp4", 7, 0x38) == 6.0  # no division without g


def test_shape_errors():
    with pytest.raises(ShapeError, match=r"last dimension of 33, want a multiple of 32.*pad"):
        tensors.quantize(torch.zeros(2, 33), schemes.get("mxfp4_floor"))
    with pytest.raises(ShapeError, match="no dimension"):
        tensors.quantize(torch.tensor(1.0), schemes.get("mxfp4_floor"))
    with pytest.raises(DtypeError, match="x: got"):
        tensors.quantize(torch.zeros(32, dtype=torch.float64), schemes.get("mxfp4_floor"))
    with pytest.raises(DtypeError, match="dtype: got"):
        tensors.dequantize(
            tensors.quantize(torch.zeros(32), schemes.get("mxfp4_floor")), schemes.get("mxfp4_floor"), torch.int8
        )
    zeros = torch.zeros(2, 32, dtype=torch.uint8)
    with pytest.raises(ShapeError, match="scales: got shape"):
        tensors.dequantize(Encoded(zeros, zeros), schemes.get("mxfp4_floor"))


@pytest.mark.parametrize("name", ["mx4_ceil_e2m1_g32", "mxfp4_floor", "nvfp4", "nvfp4_two_level", "rtn_mxfp4"])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 32), (2, 0, 32), (2, 3, 64), (32,)])
def test_shapes(name, shape):
    scheme = schemes.get(name)
    x = torch.full(shape, 6.0 if name == "rtn_mxfp4" else 1.0)  # what the scheme holds exactly
    encoded = tensors.quantize(x, scheme)
    assert encoded.codes.shape == shape
    assert encoded.scales.shape == (*shape[:-1], shape[-1] // scheme.block)
    assert torch.equal(tensors.dequantize(encoded, scheme), x)


def test_mx4_pads_rows(device):
    # FBGEMM#2827: (3, 33) in groups of 32
    x = torch.arange(1.0, 100.0).reshape(3, 33)
    scheme = schemes.get("mx4_ceil_e2m1_g32")
    encoded = tensors.quantize(x.to(device), scheme)
    assert encoded.codes.shape == (3, 64)
    assert encoded.scales.shape == (3, 2)
    agree(encoded, exact.quantize(x.numpy(), scheme))
    assert (encoded.codes[:, 33:] == 0).all()
    assert tensors.dequantize(encoded, scheme).shape == (3, 64)
    # random bits go with the elements of the unpadded x
    for name in ("mx4_ceil_e2m1_g32+stochastic", "mx4_stochastic_e2m1_g32"):
        scheme = schemes.get(name)
        agree(tensors.quantize(x.to(device), scheme, seed=3), exact.quantize(x.numpy(), scheme, seed=3))


@pytest.mark.parametrize(
    "name", ["mx4_stochastic_e2m1_g32", "mx4_ceil_e2m1_g32+stochastic", "mxfp4_floor+stochastic", "nvfp4"]
)
def test_chunks_do_not_show(name, monkeypatch, device):
    scheme = schemes.get(name)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(4)).to(device)
    options = {"seed": 5} if scheme.stochastic else {}
    expected = tensors.quantize(x, scheme, **options)
    values = tensors.dequantize(expected, scheme)
    codes = tensors.encode(x, E2M1, Rounding.TIES_TO_EVEN)
    for module in (tensors, tensor_elements, tensor_blocks):
        monkeypatch.setattr(module, "CHUNK", 64)
    actual = tensors.quantize(x, scheme, **options)
    assert torch.equal(actual.codes, expected.codes)
    assert torch.equal(actual.scales, expected.scales)
    assert expected.tensor_scale is None or torch.equal(actual.tensor_scale, expected.tensor_scale)
    assert torch.equal(tensors.dequantize(expected, scheme), values)
    assert torch.equal(tensors.encode(x, E2M1, Rounding.TIES_TO_EVEN), codes)


def test_a_seed_stands_for_its_philox_bits(device):
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(6)).to(device)
    scheme = schemes.get("mx4_ceil_e2m1_g32+stochastic")
    bits = philox.element_bytes(2**63 + 5, 120).reshape(3, 40)  # row-major in the unpadded x
    from_seed = tensors.quantize(x, scheme, seed=2**63 + 5)
    for given in (bits, torch.from_numpy(bits)):
        assert torch.equal(tensors.quantize(x, scheme, random_bits=given).codes, from_seed.codes)
    assert not torch.equal(tensors.quantize(x, scheme, seed=6).codes, from_seed.codes)

    scheme = schemes.get("mx4_stochastic_e2m1_g8")
    words = philox.scale_words(9, 15).reshape(3, 5)
    from_seed = tensors.quantize(x, scheme, seed=9)
    assert torch.equal(tensors.quantize(x, scheme, scale_random_bits=words).scales, from_seed.scales)


@pytest.mark.parametrize("name", ["mxfp4_floor+stochastic", "mx4_stochastic_e2m1_g32"])
def test_a_stochastic_scheme_needs_bits_or_a_seed(name):
    with pytest.raises(ArgumentError, match="random_bits, seed: got neither"):
        tensors.quantize(torch.ones(32), schemes.get(name))


def test_strides_and_dtypes_do_not_matter():
    big = torch.randn(8, 128, generator=torch.Generator().manual_seed(8)).to(torch.bfloat16)
    scheme = schemes.get("nvfp4")
    for x in (big[:, :32], big[:, ::2], big.T[:32, :].T, big[::2, 16:48]):  # vllm#49092: a column slice
        expected = tensors.quantize(x.to(torch.float32).contiguous(), scheme)
        actual = tensors.quantize(x, scheme)
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_nothing_global_is_set():
    state = torch.get_default_dtype(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    draws = torch.Generator().manual_seed(0), torch.random.get_rng_state()
    tensors.quantize(torch.ones(32), schemes.get("mxfp4_floor+stochastic"), seed=1)
    assert state == (torch.get_default_dtype(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
    assert torch.equal(draws[1], torch.random.get_rng_state())
