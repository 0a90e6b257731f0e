"""Whole domains of the scalar stages of weight schemes: the NumPy and the PyTorch reference agree on every one.

Zero points and codes under all scales of 16 bits, codebooks under every absmax that 16 bits can hold; samples of the
same are judged by the scalar reference.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lowbit import weights
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import weights_bits, weights_tensors

from .weight_builders import four_bits, int8, integer_scheme
from .weight_checks import agree, dequantize, patterns


@pytest.mark.parametrize(("dtype", "fmt"), [("float16", BINARY16), ("float16", BFLOAT16), ("bfloat16", BFLOAT16)])
def test_all_codes_zeros_and_scales(dtype: str, fmt: FloatFormat) -> None:
    """16.8 million: 16 codes down K, 16 zero points, one a group, and every scale of 16 bits along N."""
    columns = 65536
    lanes = (np.arange(256) % 16 * 0x11111111).astype(np.uint32).view(np.int32)[:, None]
    scales = np.ascontiguousarray(np.broadcast_to(np.arange(columns, dtype=np.uint16), (16, columns)))
    tensors = {
        "qweight": np.repeat(lanes, columns // 8, 1),
        "qzeros": np.repeat(lanes[:16], columns // 8, 1),
        "scales": scales.view(np.float16) if dtype == "float16" else scales,
    }
    found = agree(tensors, weights.get("awq_g16"), fmt).reshape(16, 16, columns)
    for z in range(1, 16):  # only q - z matters
        assert np.array_equal(found[z, z:], found[0, : 16 - z])


def wide_absmax() -> np.ndarray:
    """Every binary32 that is a bfloat16 or a binary16 value."""
    upper = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
    return np.concatenate([upper, np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)])


@pytest.mark.parametrize(
    ("name", "fmt"), [("nf4_b16", BINARY16), ("nf4_b16", BFLOAT16), ("fp4_b16", BINARY16), ("fp4_b16", BINARY32)]
)
def test_all_codes_under_every_16_bit_absmax(name: str, fmt: FloatFormat) -> None:
    absmax = wide_absmax()
    case = four_bits(name, np.tile(np.arange(16), absmax.size), absmax, (absmax.size, 16))
    expected = agree(*case, fmt)
    picked = np.arange(0, absmax.size, 1291)
    few = four_bits(name, np.tile(np.arange(16), picked.size), absmax[picked], (picked.size, 16))
    assert np.array_equal(dequantize("exact", *few, fmt), expected[picked])


@pytest.mark.parametrize("name", ["int8_channel", "int8_scb"])
def test_all_bytes_under_scales_of_every_class(name: str) -> None:
    scale = wide_absmax()[::7]
    codes = np.broadcast_to(np.arange(-128, 128), (scale.size, 256))
    expected = agree(*int8(name, codes, scale), BINARY16)
    picked = np.arange(0, scale.size, 1291)
    few = int8(name, codes[picked, ::5], scale[picked])
    assert np.array_equal(dequantize("exact", *few, BINARY16), expected[picked, ::5])


def test_all_differences_of_8_bits() -> None:
    """-255..255 under a seventh of the binary16 scales."""
    scales = np.arange(0, 65536, 7, dtype=np.uint16)[:9360].view(np.float16)
    codes = np.repeat(np.concatenate([np.arange(256)] * 2)[:, None], scales.size, 1)
    zeros = np.repeat(np.array([[0], [255]]), scales.size, 1)
    agree(*integer_scheme("gptq8_v1_g256", codes, zeros, np.repeat(scales[None], 2, 0)), BFLOAT16)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs the memory of a GPU")


@GPU
def test_more_than_2_to_the_31_elements_of_a_matrix() -> None:
    """The last group alone must give the last rows: an index of 32 bits would have gone round."""
    rows, columns = 32768 + 128, 65536
    scheme = weights.get("awq_g128")
    generator = torch.Generator("cuda").manual_seed(6)
    whole = {
        name: torch.randint(-(2**31), 2**31, (n, columns // 8), device="cuda", generator=generator, dtype=torch.int32)
        for name, n in (("qweight", rows), ("qzeros", rows // 128))
    }
    whole["scales"] = torch.randn(rows // 128, columns, device="cuda", generator=generator).half()
    found = weights_tensors.dequantize(whole, scheme)[-128:]
    last = {name: tensor[-128:] if name == "qweight" else tensor[-1:] for name, tensor in whole.items()}
    expected = weights_bits.dequantize({name: tensor.cpu().numpy() for name, tensor in last.items()}, scheme)
    assert np.array_equal(patterns(found), expected)


@GPU
def test_more_than_2_to_the_31_elements_in_blocks() -> None:
    n = 2**31 + 131
    scheme = weights.get("nf4_b64")
    generator = torch.Generator("cuda").manual_seed(7)
    packed = torch.randint(0, 256, (n // 2 + 1,), device="cuda", generator=generator, dtype=torch.uint8)
    absmax = torch.rand(scheme.groups(n), device="cuda", generator=generator)
    found = weights_tensors.dequantize({"packed": packed, "absmax": absmax, "shape": (n,)}, scheme)[2**31 - 128 :]
    last = {"packed": packed[2**30 - 64 :].cpu().numpy(), "absmax": absmax[2**25 - 2 :].cpu().numpy(), "shape": (259,)}
    assert np.array_equal(patterns(found), weights_bits.dequantize(last, scheme))
