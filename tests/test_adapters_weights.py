"""Adapters of packages that hold stored weights: what they claim, what they decline, and that they import lazily."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowbit import packing, schemes, weights
from lowbit.adapters.reference import weights_as
from lowbit.cases import weights as weight_cases
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.implementation import Implementation, Quantized, Unsupported, load
from lowbit.references import bits, weights_bits

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "bitsandbytes": "bitsandbytes",
    "gguf": "gguf",
    "quanto": "optimum",
    "hqq": "hqq",
    "autoawq": "awq",
    "gptqmodel": "gptqmodel",
}
"""Adapter → the package that it imports."""

DTYPES: dict[torch.dtype, FloatFormat] = {
    torch.float16: BINARY16,
    torch.bfloat16: BFLOAT16,
    torch.float32: BINARY32,
}


def adapter(name: str) -> Implementation:
    """The adapter, where its package is there."""
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{name} is not installed: pip install 'lowbit[{name}]'")
    return load(f"lowbit.adapters.{name}:IMPLEMENTATION")


def stored(name: str, shape: tuple[int, ...], **changes: Any) -> dict[str, Any]:
    """Any words of a scheme, as arrays."""
    return weight_cases.replaced(weight_cases.random(weights.get(name), shape, 5), **changes)


def tensors(arrays: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in arrays.items()}


SEVENS = np.full((1, 1), 0x77777777, np.int32)
"""Words of zero points that nothing carries out of."""

CLAIMED: tuple[tuple[str, str, dict[str, Any], torch.dtype], ...] = (
    ("bitsandbytes", "nf4_b64", stored("nf4_b64", (4, 128)), torch.float16),
    ("bitsandbytes", "nf4_b64+nested", stored("nf4_b64+nested", (4, 128)), torch.float32),
    ("bitsandbytes", "int8_scb", stored("int8_scb", (3, 5)), torch.bfloat16),
    ("quanto", "int8_channel", stored("int8_channel", (3, 5)), torch.float16),
    ("quanto", "int8_torch", stored("int8_torch", (3, 5)), torch.bfloat16),
    ("quanto", "awq_g32", stored("awq_g32", (64, 16)), torch.float16),
    ("quanto", "gptq2_v2_g32", stored("gptq2_v2_g32", (64, 16), g_idx=None), torch.float32),
    ("hqq", "awq_g32+through_scale_dtype", stored("awq_g32", (64, 16)), torch.bfloat16),
    ("hqq", "gptq3_v1_g32", stored("gptq3_v1_g32", (64, 32), g_idx=None), torch.float16),
    ("hqq", "gptq8_v1_gk", stored("gptq8_v1_gk", (64, 4), g_idx=None), torch.float32),
    ("autoawq", "awq_g32", stored("awq_g32", (64, 16)), torch.float16),
    ("autoawq", "awq_gk", stored("awq_gk", (48, 8)), torch.float32),
    ("gptqmodel", "gptq4_v2_g32+act_order", stored("gptq4_v2_g32+act_order", (64, 8)), torch.float16),
    ("gptqmodel", "gptq3_v1_g32", stored("gptq3_v1_g32", (64, 32)), torch.float32),
    ("gptqmodel", "gptq4_v1_gk", stored("gptq4_v1_gk", (64, 8), qzeros=SEVENS), torch.float16),
)


@pytest.mark.parametrize(("name", "scheme", "arrays", "dtype"), CLAIMED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_claimed_is_right(name: str, scheme: str, arrays: dict[str, Any], dtype: torch.dtype) -> None:
    given = weights.get(scheme)
    right = weights_as(weights_bits.dequantize(arrays, given, DTYPES[dtype]), tensors(arrays), dtype)
    actual = adapter(name).call("dequantize_weight", tensors(arrays), given, dtype)
    assert (actual.shape, actual.dtype) == (right.shape, dtype)
    width = {4: torch.int32, 2: torch.int16}[dtype.itemsize]
    differ = (actual.contiguous().view(width) != right.view(width)) & ~(actual.isnan() & right.isnan())
    assert not differ.any()


def test_gguf_holds_blocks_of_its_own_layout() -> None:
    """0..7 and their negatives twice under scale 1 and 2: nothing of what FINDINGS.md tells, so all bits are right."""
    scheme = schemes.get("mxfp4_floor+ties_toward_zero")
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    row = np.tile(np.concatenate([magnitudes, -magnitudes[1:], magnitudes[:1]]), 4) * np.repeat([1, 2], 32)
    x = np.stack([row, -row[::-1] + np.float32(0)]).astype(np.float32)
    gguf = adapter("gguf")
    quantized = gguf.call("quantize", torch.from_numpy(x), scheme)
    right = bits.quantize(x, scheme)
    np.testing.assert_array_equal(packing.unpack(Quantized(*quantized), scheme).codes, right.codes)
    np.testing.assert_array_equal(quantized.scales, right.scales)
    values = gguf.call("dequantize", quantized, schemes.get("mxfp4_floor"), torch.float16)
    assert values.equal(torch.from_numpy(x).half())


def test_a_row_of_bitsandbytes_keeps_its_dimension() -> None:
    adapter("bitsandbytes")
    rows = load("lowbit.adapters.bitsandbytes:ROWS")
    given = tensors(stored("nf4_b64", (128,)))
    assert rows.name == "bitsandbytes_rows"
    assert rows.call("dequantize_weight", given, weights.get("nf4_b64"), torch.float16).shape == (128,)


DECLINED = (
    ("bitsandbytes", "nf4_four_digit", stored("nf4_four_digit", (2, 64)), "has no nf4_four_digit"),
    ("bitsandbytes", "nf4_b48", stored("nf4_b48", (2, 48)), "no blocks of 48"),
    ("bitsandbytes", "int8_channel", stored("int8_channel", (2, 3)), "has no int8_channel"),
    ("quanto", "int8_scb", stored("int8_scb", (2, 3)), "has no int8_scb"),
    ("quanto", "gptq8_v1_gk", stored("gptq8_v1_gk", (4, 4)), "packs 2 and 4 bits"),
    ("hqq", "squeezellm4", stored("squeezellm4", (8, 8)), "has no squeezellm4"),
    ("hqq", "gptq4_v1_g32+act_order", stored("gptq4_v1_g32+act_order", (64, 8)), "no g_idx"),
    ("hqq", "gptq4_v1_g32", stored("gptq4_v1_g32", (40, 8), g_idx=None), "no short last group: K 40, groups of 32"),
    ("autoawq", "gptq4_v1_g32", stored("gptq4_v1_g32", (64, 8)), "has no gptq4_v1_g32"),
    ("gptqmodel", "awq_g32", stored("awq_g32", (64, 8)), "has no awq_g32"),
    ("gptqmodel", "gptq4_v1_g48", stored("gptq4_v1_g48", (96, 8)), "no groups of 48"),
    *(
        (name, scheme, stored(scheme, (64, 8), g_idx=None), "asked for torch.bfloat16")
        for name, scheme in (("quanto", "awq_g32"), ("autoawq", "awq_g32"), ("gptqmodel", "gptq4_v1_g32"))
    ),
)


@pytest.mark.parametrize(("name", "scheme", "arrays", "words"), DECLINED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_not_claimed_is_declined(name: str, scheme: str, arrays: dict[str, Any], words: str) -> None:
    """Whether the package is there or not: nothing of it is needed to decline."""
    subject = load(f"lowbit.adapters.{name}:IMPLEMENTATION")
    with pytest.raises(Unsupported, match=words):
        subject.call("dequantize_weight", tensors(arrays), weights.get(scheme), torch.bfloat16)


@pytest.mark.parametrize("scheme", ["mxfp4_floor", "nvfp4", "mx4_ceil_e2m1_g32"])
def test_gguf_quantises_under_one_scheme(scheme: str) -> None:
    gguf = load("lowbit.adapters.gguf:IMPLEMENTATION")
    with pytest.raises(Unsupported, match="gguf quantises under mxfp4_floor"):
        gguf.call("quantize", torch.zeros(1, 32), schemes.get(scheme))
    with pytest.raises(Unsupported, match="gguf takes no swizzle"):
        gguf.call("quantize", torch.zeros(1, 32), schemes.get("mxfp4_floor+ties_toward_zero"), swizzle=True)
    with pytest.raises(Unsupported, match="gguf has no nvfp4"):
        gguf.call("dequantize", Quantized(torch.zeros(1, 8), None), schemes.get("nvfp4"), torch.float32)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_declined_with_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging goes on: the reason says how to get the package."""
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    for loaded in [module for module in sys.modules if module.startswith(f"{PACKAGES[name]}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    subject = load(f"lowbit.adapters.{name}:IMPLEMENTATION")
    call: tuple[Any, ...] = ("quantize", torch.zeros(1, 32), schemes.get("mxfp4_floor+ties_toward_zero"))
    if name != "gguf":
        _, scheme, arrays, dtype = next(one for one in CLAIMED if one[0] == name)
        call = ("dequantize_weight", tensors(arrays), weights.get(scheme), dtype)
    with pytest.raises(Unsupported, match=rf"is not installed: pip install 'lowbit\[{name}\]'"):
        subject.call(*call)


@pytest.mark.parametrize("name", PACKAGES)
def test_each_has_an_extra_and_an_entry_point(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    place = project["entry-points"]["lowbit.implementations"][name]
    assert load(place).name == name
    assert project["optional-dependencies"][name]
