"""Adapters of released packages for block formats: what they claim, how they hand data over, what they say if it is not
there. Packages are faked where a fake shows the handing over; where one is installed it is judged on ordinary values.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowbit import cli, implementation, packing, schemes, weights
from lowbit.adapters import _released
from lowbit.errors import Unsupported
from lowbit.formats import BINARY16, E2M1, E3M0, E4M3
from lowbit.implementation import Implementation, Quantized, load
from lowbit.references import bits
from lowbit.rules import NanCode, Rounding

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = {
    "torchao": ("mxfp4_floor", "mxfp4_ceil", "mxfp4_even", "mxfp4_rceil", "nvfp4", "nvfp4_one_level"),
    "compressed_tensors": ("mxfp4_even", "nvfp4"),
    "modelopt": ("mxfp4_rceil", "nvfp4"),
    "transformers": (),
}
"""Adapter → the schemes that it says it quantises by."""

DECODES = dict.fromkeys(CLAIMS, ("mxfp4", "nvfp4")) | {"transformers": ("mxfp4",)}
"""Adapter → the families that it decodes."""

SCALAR = ("gfloat", "ml_dtypes", "torch")
ALL = (*CLAIMS, *SCALAR)
CLAIMED = [(name, scheme) for name, found in CLAIMS.items() for scheme in found]


def adapter(name: str) -> Implementation:
    return load(f"lowbit.adapters.{name}:IMPLEMENTATION")


def installed(name: str) -> Implementation:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install 'lowbit[{name.replace('_', '-')}]'")
    return adapter(name)


def fake(monkeypatch: pytest.MonkeyPatch, path: str, **contents: Any) -> None:
    """A module of that path, with its parents, in place of what is installed."""
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(parts[end - 1]))
    vars(sys.modules[path]).update(contents)


def remove(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Makes a package look as if it were not installed, also where parts of it are imported already."""
    for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)


# -- claims


@pytest.mark.parametrize("name", ALL)
def test_each_is_announced_with_an_extra(name: str) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    assert project["entry-points"][implementation.ENTRY_POINTS][name] == f"lowbit.adapters.{name}:IMPLEMENTATION"
    assert project["optional-dependencies"][name.replace("_", "-")]
    assert adapter(name).name == name


@pytest.mark.parametrize("name", CLAIMS)
def test_what_it_does_not_claim_is_unsupported(name: str) -> None:
    for scheme in schemes.select():
        if scheme.name not in CLAIMS[name]:
            with pytest.raises(Unsupported):
                adapter(name).call("quantize", torch.ones(1, 64), scheme)


@pytest.mark.parametrize("name", CLAIMS)
def test_other_families_are_not_decoded(name: str) -> None:
    stored = Quantized(torch.zeros(1, 16, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8))
    for scheme in ("mx4_ceil_e2m1_g32", "rtn_mxfp4", *(() if "nvfp4" in DECODES[name] else ("nvfp4",))):
        with pytest.raises(Unsupported):
            adapter(name).call("dequantize", stored, schemes.get(scheme), torch.bfloat16)


@pytest.mark.parametrize("name", [name for name in CLAIMS if CLAIMS[name]])
def test_random_bits_are_declined(name: str) -> None:
    with pytest.raises(Unsupported, match="takes no random_bits"):
        adapter(name).call("quantize", torch.ones(1, 64), schemes.get(CLAIMS[name][0]), random_bits=torch.ones(1))


@pytest.mark.parametrize("name", SCALAR)
def test_formats_and_rules_that_are_not_there(name: str) -> None:
    x = torch.ones(3)
    for element, rounding in ((E3M0, Rounding.TIES_TO_EVEN), (E4M3, Rounding.TIES_DOWN)):
        with pytest.raises(Unsupported):
            adapter(name).call("encode", x, element, rounding)


def test_weights_that_are_not_packed_integers() -> None:
    subject, half = adapter("compressed_tensors"), torch.float16
    for scheme in ("awq_g128", "gptq4_v1_g128", "gptq4_v2_g128+act_order", "nf4_b64"):
        with pytest.raises(Unsupported):
            subject.call("dequantize_weight", {"scales": torch.ones(1, dtype=half)}, weights.get(scheme), half)
    stored = {"scales": torch.ones(1, 8, dtype=half)}
    with pytest.raises(Unsupported, match="dtype of the scales"):
        subject.call("dequantize_weight", stored, weights.get("gptq4_v2_g128"), torch.bfloat16)


# -- packages that are not there


@pytest.mark.parametrize(("name", "scheme"), [*CLAIMED, ("transformers", "mxfp4_floor")])
def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch, name: str, scheme: str) -> None:
    remove(monkeypatch, name)
    told = re.escape(f"not installed: pip install 'lowbit[{name.replace('_', '-')}]'")
    stored = Quantized(torch.zeros(1, 16, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8), torch.ones(1))
    if CLAIMS[name]:
        with pytest.raises(Unsupported, match=told):
            adapter(name).call("quantize", torch.ones(1, 32), schemes.get(scheme))
    with pytest.raises(Unsupported, match=told):
        adapter(name).call("dequantize", stored, schemes.get("mxfp4_floor"), torch.bfloat16)


@pytest.mark.parametrize("name", ["gfloat", "ml_dtypes"])
def test_a_missing_cast_is_told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    remove(monkeypatch, name)
    with pytest.raises(Unsupported, match=f"{name} is not installed"):
        adapter(name).call("encode", torch.ones(1), E2M1, Rounding.TIES_TO_EVEN)


def test_what_a_package_needs_is_told_too() -> None:
    def call() -> None:
        raise ModuleNotFoundError("No module named 'requests'", name="requests.sessions")

    subject = _released.adapt("some_name", "some-package", "some_package", quantize=call)
    assert subject.version == "not installed"
    told = r"some-package needs requests, which is not installed: pip install 'lowbit\[some-name\]'"
    with pytest.raises(Unsupported, match=told):
        subject.call("quantize")


def test_a_fault_of_lowbit_is_no_missing_package() -> None:
    def call() -> None:
        raise ModuleNotFoundError("no", name="lowbit.forgotten")

    with pytest.raises(ModuleNotFoundError):
        _released.adapt("a", "a", "a", quantize=call).call("quantize")


# -- how data is handed over


def test_torchao_is_given_the_decode_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """p = amax / 2688 or 1 / g; g is what was given, else 1 / p."""
    seen = []

    class Fake:
        @staticmethod
        def to_nvfp4(x: Any, per_tensor_scale: Any, is_swizzled_scales: bool) -> Any:
            seen.append(per_tensor_scale)
            return types.SimpleNamespace(qdata="codes", scale=torch.zeros(2, 2))

    path = "torchao.prototype.mx_formats.nvfp4_tensor"
    fake(monkeypatch, path, NVFP4Tensor=Fake, per_tensor_amax_to_scale=lambda amax: amax / 2688)
    x = torch.tensor([[-5.25] + [1.0] * 15])
    assert adapter("torchao").call("quantize", x, schemes.get("nvfp4")).tensor_scale.tolist() == [512.0]
    given = torch.tensor([448.0])
    assert adapter("torchao").call("quantize", x, schemes.get("nvfp4"), tensor_scale=given).tensor_scale is given
    swizzled = adapter("torchao").call("quantize", x, schemes.get("nvfp4_one_level"), swizzle=True)
    assert (swizzled.scales.shape, swizzled.tensor_scale.tolist()) == ((4,), [1.0])
    assert (float(seen[0]), float(seen[1]), seen[2]) == (2.0**-9, float(1 / given), None)
    assert seen[0].shape == seen[1].shape == ()


def test_torchao_takes_the_mode_of_the_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    class Modes:
        def __class_getitem__(cls, name: str) -> str:
            return f"mode {name}"

    fake(monkeypatch, "torchao.prototype.mx_formats.mx_tensor", to_mx=lambda *given, **named: given[2:])
    config = types.ModuleType("config")
    monkeypatch.setitem(sys.modules, "torchao.prototype.mx_formats.config", config)
    vars(config)["ScaleCalculationMode"] = Modes
    for scheme, mode in (("mxfp4_floor", "FLOOR"), ("mxfp4_rceil", "RCEIL"), ("mxfp4_even", "EVEN")):
        packed, scales, _ = adapter("torchao").call("quantize", torch.ones(1, 32), schemes.get(scheme))
        assert (scales, packed) == (32, f"mode {mode}")


def test_transformers_returns_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function takes (experts, rows, blocks, 16) and returns (experts, columns, rows)."""

    def convert(blocks: Any, scales: Any, dtype: Any) -> Any:
        assert (blocks.shape, scales.shape) == ((1, 6, 2, 16), (1, 6, 2))
        low, high = blocks & 15, blocks >> 4
        return torch.stack([low, high], -1).reshape(1, 6, 64).to(dtype).transpose(1, 2)

    fake(monkeypatch, "transformers.integrations.mxfp4", convert_moe_packed_tensors=convert)
    codes = torch.arange(6 * 64, dtype=torch.uint8).reshape(2, 3, 64) % 16
    stored = Quantized(packing.pack_nibbles(codes), torch.zeros(2, 3, 2, dtype=torch.uint8))
    values = adapter("transformers").call("dequantize", stored, schemes.get("mxfp4_even"), torch.float32)
    assert torch.equal(values, codes.float())


def test_modelopt_scales_get_the_shape_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        @staticmethod
        def quantize(x: Any, block: int) -> Any:
            return types.SimpleNamespace(_quantized_data="codes"), torch.arange(x.numel() // block).unsqueeze(1)

    fake(monkeypatch, "modelopt.torch.quantization.qtensor.mxfp4_tensor", MXFP4QTensor=Fake)
    packed, scales, _ = adapter("modelopt").call("quantize", torch.ones(2, 3, 64), schemes.get("mxfp4_rceil"))
    assert packed == "codes"
    assert torch.equal(scales, torch.arange(12).reshape(2, 3, 2))


# -- where the package is installed


@pytest.mark.parametrize(("name", "scheme"), CLAIMED)
def test_ordinary_values(name: str, scheme: str) -> None:
    """Normal random values have neither ties nor small scales: an adapter that hands over rightly agrees on all."""
    subject, of = installed(name), schemes.get(scheme)
    x = np.random.default_rng(7).standard_normal((4, 2 * of.block)).astype(np.float32)
    expected = bits.quantize(x, of)
    packed, scales, g = subject.call("quantize", torch.from_numpy(x), of)
    found = packing.unpack(Quantized(packed.view(torch.uint8), scales.view(torch.uint8)), of)
    assert np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.scales, expected.scales)
    if g is not None:
        assert g.shape == (1,)
        assert abs(float(g) / float(expected.tensor_scale) - 1) < 2.0**-22  # of another order of operations


@pytest.mark.parametrize(("name", "family"), [(name, f) for name, families in DECODES.items() for f in families])
def test_values_that_are_stored(name: str, family: str) -> None:
    """Codes and scales of small powers of two: exact in any order of operations."""
    subject = installed(name)
    of = schemes.get({"mxfp4": "mxfp4_floor", "nvfp4": "nvfp4"}[family])
    codes = np.random.default_rng(8).integers(1, 8, (3, 2 * of.block)).astype(np.uint8)  # without zeros of any sign
    scales = np.array(
        [[120, 127], [130, 126], [125, 128]] if family == "mxfp4" else [[0x38, 0x40], [0x30, 0x48], [0x28, 8]]
    )
    g = np.array([4.0], np.float32) if family == "nvfp4" else None
    stored = Quantized(packing.pack_nibbles(codes), scales.astype(np.uint8), g)
    right = bits.dequantize(packing.unpack(stored, of), of).view(np.float32)
    given = Quantized(*(None if part is None else torch.from_numpy(part) for part in stored))
    values = subject.call("dequantize", given, of, torch.bfloat16)
    assert values.dtype is torch.bfloat16
    assert np.array_equal(values.float().numpy(), right)


@pytest.mark.parametrize("name", SCALAR)
def test_grid_values(name: str) -> None:
    element = E4M3 if name == "torch" else E2M1
    x = np.array([0.0, 0.5, -1.0, 6.0, 0.75, -2.5, 1e-9, 100.0 if name == "torch" else 7.0], np.float32)
    codes = installed(name).call("encode", torch.from_numpy(x), element, Rounding.TIES_TO_EVEN)
    assert codes.dtype is torch.uint8
    assert np.array_equal(codes.numpy(), bits.encode(x, element, Rounding.TIES_TO_EVEN, NanCode.POSITIVE_MAX))


@pytest.mark.parametrize("name", ["torchao", "torch"])
def test_the_swizzled_layout(name: str) -> None:
    subject = installed(name)
    if name == "torch" and importlib.util.find_spec("expecttest") is None:
        pytest.skip("torch's test helpers need expecttest, which is not installed: pip install 'lowbit[torch]'")
    scales = torch.arange(130 * 5, dtype=torch.int32).to(torch.uint8).reshape(130, 5)
    assert torch.equal(subject.call("swizzle", scales), packing.swizzle(scales))


def test_packed_integers() -> None:
    """A GPTQ weight with stored zeros is a packed weight, transposed."""
    from lowbit.references import weights_bits

    subject, generator = installed("compressed_tensors"), np.random.default_rng(9)
    for scheme in map(weights.get, ("gptq4_v2_g32", "gptq8_v2_g32")):
        words = 64 * scheme.bits // 32
        qweight, qzeros = (generator.integers(-(2**31), 2**31, shape) for shape in ((words, 32), (2, scheme.bits)))
        scales = generator.integers(1, 64, (2, 32)).astype(np.float16)
        stored = {"qweight": qweight.astype(np.int32), "qzeros": qzeros.astype(np.int32), "scales": scales}
        right = weights_bits.dequantize(stored, scheme, BINARY16).view(np.float16)
        tensors = {name: torch.from_numpy(part) for name, part in stored.items()}
        values = subject.call("dequantize_weight", tensors, scheme, torch.float16)
        assert np.array_equal(values.numpy(), right)


# -- lowbit list impls


class Distribution:
    version = "0.1.0"
    name = "lowbit"
    requires = ("numpy", 'here>=2 ; extra == "here"', "other-name>=1; extra == 'an-other'", 'requests; extra == "here"')


def test_implementations_are_listed_with_versions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def point(name: str, value: str) -> Any:
        return types.SimpleNamespace(name=name, value=value, dist=Distribution)

    def version(distribution: str) -> str:
        if distribution != "here":
            raise importlib.metadata.PackageNotFoundError(distribution)
        return "2.5"

    points = [
        point("here", "lowbit.adapters.here:IMPLEMENTATION"),
        point("again", "lowbit.adapters.here:OTHER"),
        point("an_other", "lowbit.adapters.an_other:IMPLEMENTATION"),
        point("lowbit_kernels", "lowbit_kernels.adapter:IMPLEMENTATION"),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    monkeypatch.setattr(importlib.metadata, "version", version)
    rows = {row["name"]: (row["version"], row["install"]) for row in implementation.installed()}
    assert rows == {
        "again": ("2.5", ""),
        "an_other": ("not installed", "pip install 'lowbit[an-other]'"),
        "here": ("2.5", ""),
        "lowbit_kernels": ("0.1.0", ""),
    }
    assert cli.main(["list", "impls"]) == 0
    assert re.search(r"an_other +not installed +lowbit\S+ +pip install 'lowbit\[an-other\]'", capsys.readouterr().out)
    assert cli.main(["list", "impls", "--json"]) == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == set(rows)
