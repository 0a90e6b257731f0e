"""Quantised checkpoints: what is found in them, that it is judged bit for bit, and what is refused by name."""

from __future__ import annotations

import hashlib
import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import (
    DATA,
    LAYER,
    Built,
    Tensors,
    awq,
    channels,
    corner,
    four_bits,
    gptq,
    int8,
    packed_floats,
    quanto,
    tensor,
    write,
)
from rich.progress import Progress

from lowbit import packing, schemes, weights
from lowbit.adapters.reference import dequantize_weight, reference
from lowbit.checkpoints import quantized as quantized_checkpoint
from lowbit.errors import NothingCompared, Unsupported
from lowbit.formats import BFLOAT16, BINARY32
from lowbit.implementation import Implementation
from lowbit.references import tensors as block_reference
from lowbit.references import weights_tensors
from lowbit.schemes import Quantized, Scheme
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.judge import Judge, Settings
from lowbit.suite.test_quantized_checkpoint import test_block_layers as judge_block_layers
from lowbit.suite.test_quantized_checkpoint import test_weight_layers as judge_weight_layers
from lowbit.suite.weight_judge import WeightJudge

LAYERS: dict[str, tuple[Callable[[], Built], str, str]] = {
    "awq": (lambda: awq(corner()), "awq_g32", "AWQ gemm, 4 bits, group 32"),
    "awq, one group": (lambda: awq(corner(), group=-1), "awq_gk", "group all of K"),
    "awq, bfloat16": (lambda: awq(corner(), scale_format=BFLOAT16), "awq_g32", "AWQ"),
    "gptq": (lambda: gptq(corner()), "gptq4_v1_g32", "GPTQ, 4 bits, group 32, zeros v1"),
    "gptq v2": (lambda: gptq(corner(), zeros="v2"), "gptq4_v2_g32", "zeros v2"),
    "gptq, 2 bits": (lambda: gptq(corner(), bits=2), "gptq2_v1_g32", "2 bits"),
    "gptq, 3 bits": (lambda: gptq(corner(), bits=3, zeros="v2"), "gptq3_v2_g32", "3 bits"),
    "gptq, 8 bits": (lambda: gptq(corner(), bits=8, scale_format=BFLOAT16), "gptq8_v1_g32", "8 bits"),
    "gptq, one group": (lambda: gptq(corner(), group=-1), "gptq4_v1_gk", "group all of K"),
    "gptq, short last group": (lambda: gptq(corner(), group=48), "gptq4_v1_g48", "group 48"),
    "gptq, out of order": (lambda: gptq(corner(), act_order=True), "gptq4_v1_g32+act_order", "act-order"),
    "gptq, symmetric": (lambda: gptq(corner(), symmetric=True), "gptq4_v1_g32", "GPTQ"),
    "gptq v2, symmetric": (lambda: gptq(corner(), symmetric=True, zeros="v2", bits=3), "gptq3_v2_g32", "GPTQ"),
    "nf4": (lambda: four_bits(corner()), "nf4_b64", "bitsandbytes NF4, block 64"),
    "nf4, odd": (lambda: four_bits(corner(5, 27), block=32), "nf4_b32", "block 32"),
    "nf4, nested": (lambda: four_bits(corner(), nested=True), "nf4_b64+nested", "nested, block 16"),
    "fp4": (lambda: four_bits(corner(), table="fp4", block=128), "fp4_b128", "bitsandbytes FP4, block 128"),
    "int8": (lambda: int8(corner()), "int8_scb", "LLM.int8"),
    "nvfp4": (lambda: packed_floats(corner(), "nvfp4"), "nvfp4", "compressed-tensors nvfp4-pack-quantized"),
    "mxfp4": (lambda: packed_floats(corner(), "mxfp4"), "mxfp4_floor", "compressed-tensors mxfp4-pack-quantized"),
    "channels": (lambda: channels(corner()), "int8_torch", "compressed-tensors int8, a scale a channel, BF16"),
    "channels, F32": (lambda: channels(corner(), scale_format=BINARY32), "int8_channel", "F32"),
    "quanto": (lambda: quanto(corner()), "int8_channel", "quanto int8, a scale a channel, F32"),
}
"""Name → how it is built, its scheme, and what must be said of it."""


def judged(path: Path, implementation: Implementation, scheme: Any = None) -> Judge:
    """The judge of the check that ``--weights`` runs, after it ran.

    Args:
      scheme: None for the checkpoint's first.
    """
    scheme = scheme or quantized_checkpoint.read(path).schemes[0]
    settings = Settings(device="cpu", level="full", seed=1, weights=str(path))
    kind, run = (BlockJudge, judge_block_layers) if isinstance(scheme, Scheme) else (WeightJudge, judge_weight_layers)
    judge = kind(implementation, scheme, settings, "quantized checkpoint")
    run(judge, Progress(disable=True))
    return judge


def torch_reference(layer: quantized_checkpoint.Layer, dtype: torch.dtype) -> torch.Tensor:
    """What the stored tensors of a layer decode to."""
    stored = {k: tensor(v) if isinstance(v, np.ndarray) else v for k, v in layer.stored().items()}
    if isinstance(layer.scheme, Scheme):
        encoded = packing.unpack(Quantized(*(stored.get(name) for name in Quantized._fields)), layer.scheme)
        return block_reference.dequantize(encoded, layer.scheme, dtype)
    return weights_tensors.dequantize(stored, layer.scheme, dtype)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_found_and_judged(tmp_path: Path, name: str) -> None:
    """Scheme, shape and dtype come out right, and the values are those of the weights that were quantised."""
    build, scheme, found = LAYERS[name]
    tensors, config = build()
    bias = {f"{LAYER}.bias": torch.ones(64), "norm.weight": torch.ones(8, dtype=torch.float16)}
    path = write(tmp_path / "m", {**tensors, **bias}, config)
    checkpoint = quantized_checkpoint.read(path)
    (layer,) = checkpoint.layers
    assert layer.name.removesuffix(".weight") == LAYER
    assert layer.scheme.name == scheme
    assert found in layer.found
    assert layer.dtype == "float16"
    assert [place.name for place in checkpoint.floating] == sorted(bias, key=lambda n: tensors_order(path, n))
    assert checkpoint.unread == ()
    weight = corner(5, 27) if "odd" in name else corner()
    values = torch_reference(layer, torch.float32).numpy()
    values = values.T if layer.scheme.name.startswith(("awq", "gptq")) else values
    assert values.shape == weight.shape
    if "symmetric" not in name:  # where the test has put other zero points in
        # a coarse bound, only to tell a wrong order of rows, columns, nibbles or words: 2 bits have 4 steps a group
        error = np.linalg.norm(values - weight) / np.linalg.norm(weight)
        assert error < (0.6 if "2 bits" in name else 0.3 if "3 bits" in name else 0.2)
    judge = judged(path, reference("reference"))
    assert (judge.compared, judge.mismatched) == (weight.size, 0)
    (outcome,) = judge.tensors
    assert outcome.figures.as_dict()["found"] == layer.found
    assert outcome.comparisons == judge.comparisons
    assert list(checkpoint.left_out(True)) == []
    left = [(check, told["tensor"]) for check, told, _ in checkpoint.left_out(False)]
    assert left == [("checkpoint", place.name) for place in checkpoint.floating]


def tensors_order(path: Path, name: str) -> int:
    return [entry.name for entry in quantized_checkpoint.checkpoint.tensors(path / "model.safetensors")].index(name)


@pytest.mark.parametrize("name", LAYERS)
def test_a_wrong_kernel_is_caught(tmp_path: Path, name: str) -> None:
    """A single wrong bit in one weight, under every layout."""

    def flipped(values: torch.Tensor) -> torch.Tensor:
        width = {2: torch.int16, 4: torch.int32}[values.element_size()]
        values.view(-1).view(width)[-1] ^= 1
        return values

    def weight(*args: Any) -> torch.Tensor:
        return flipped(dequantize_weight(*args))

    def block(quantized: Quantized, scheme: Scheme, dtype: torch.dtype) -> torch.Tensor:
        return flipped(block_reference.dequantize(packing.unpack(quantized, scheme), scheme, dtype))

    tensors, config = LAYERS[name][0]()
    path = write(tmp_path / "m", tensors, config)
    judge = judged(path, Implementation(name="wrong", version="1", dequantize=block, dequantize_weight=weight))
    assert judge.mismatched == 1
    assert judge.comparisons[0].tensor.startswith(LAYER)


ANSWERS: dict[str, dict[str, str]] = json.loads((DATA / "bitsandbytes" / "answers.json").read_text())


@pytest.mark.parametrize("name", ANSWERS)
def test_what_bitsandbytes_wrote(name: str) -> None:
    """Its files are understood, and decode to the very bytes that it decodes them to itself."""
    path = DATA / "bitsandbytes" / name
    checkpoint = quantized_checkpoint.read(path)
    assert [p.name for p in checkpoint.floating] == [
        f"encoder.layer.0.attention.output.LayerNorm.{part}" for part in ("bias", "weight")
    ]
    found = {layer.name.removesuffix(".weight"): layer for layer in checkpoint.layers}
    assert set(found) == set(ANSWERS[name])
    base = name.replace("_nested", "_b64+nested") if "nested" in name else f"{name}_b64"
    assert {layer.scheme.name for layer in found.values()} == {"int8_scb" if name == "int8" else base}
    for key, layer in found.items():
        assert layer.dtype == ("bfloat16" if name == "fp4_nested" else "float16")
        values = torch_reference(layer, getattr(torch, layer.dtype))
        if layer.scheme.name.startswith("fp4") and layer.shape[-1] % 2:
            # 0.50.2 decodes odd rows through its quant_map, whose code 8 is +0, all others in a kernel, to -0
            assert int((values.view(torch.int16) == -0x8000).sum()) > 0
            values = torch.where(values == 0, torch.zeros_like(values), values)
        digest = hashlib.sha256(values.view(torch.int16).numpy().astype("<i2").tobytes()).hexdigest()
        assert digest == ANSWERS[name][key], key
    judge = judged(path, reference("reference"))
    assert (judge.compared, judge.mismatched) == (24 * 96 + 9 * 65 + 16 * 64, 0)


def test_the_quant_map_of_fp4_is_told() -> None:
    (text, *_) = {layer.found for layer in quantized_checkpoint.read(DATA / "bitsandbytes" / "fp4").layers}
    assert "quant_map has +0 for code 8" in text


def test_codebooks(tmp_path: Path) -> None:
    """The four-digit table is a scheme of its own in blocks of 64; any other table is named, and not judged."""
    tensors, config = four_bits(corner(), codebook=weights.NF4_FOUR_DIGIT_CODEBOOK)
    (layer,) = quantized_checkpoint.read(write(tmp_path / "four", tensors, config)).layers
    assert layer.scheme.name == "nf4_four_digit"
    assert "four-digit" in layer.found
    changed = (*weights.NF4_CODEBOOK[:3], 0xBECA32A1, *weights.NF4_CODEBOOK[4:])
    for codebook, options in ((changed, {}), (weights.NF4_FOUR_DIGIT_CODEBOOK, {"block": 128})):
        other, _ = four_bits(corner(), codebook=codebook, name="other", **options)
        path = write(tmp_path / "both", {**tensors, **other}, config)
        checkpoint = quantized_checkpoint.read(path)
        assert [layer.scheme.name for layer in checkpoint.layers] == ["nf4_four_digit"]
        (unread,) = checkpoint.unread
        assert unread.name == "other.weight"
        assert "another codebook than NF4's: code" in unread.reason
    with pytest.raises(NothingCompared, match="another codebook"):
        quantized_checkpoint.read(write(tmp_path / "alone", other, config))


# -- which schemes read a layer


def test_schemes_that_fit(tmp_path: Path) -> None:
    """A scheme that rounds the output otherwise reads the same bytes; another group, codebook or zero rule does not."""
    fits = {
        "awq": {"awq_g32"},
        "gptq": {"gptq4_v1_g32", "gptq4_v1_g32+act_order"},
        "nf4": {"nf4_b64"},
        "int8": {"int8_scb"},
        "channels": {"int8_torch"},
    }
    for name, wanted in fits.items():
        path = write(tmp_path / name, *LAYERS[name][0]())
        (layer,) = quantized_checkpoint.read(path).layers
        assert {scheme.name for scheme in (*weights.select(), *schemes.select()) if layer.fits(scheme)} == wanted
        for flag in ("through_scale_dtype",) if name in ("awq", "gptq") else ():
            assert layer.fits(weights.variant(layer.scheme, flag))  # type: ignore[arg-type]
    (layer,) = quantized_checkpoint.read(write(tmp_path / "mx", *packed_floats(corner(), "mxfp4"))).layers
    assert {s.family for s in schemes.select() if layer.fits(s)} == {"mxfp4"}


# -- what a run does with it


def test_an_implementation_that_declines(tmp_path: Path) -> None:
    """Declining everything is passed on; declining one layer is a record of that layer, the others are judged."""
    first, config = awq(corner(), name="first")
    second, _ = awq(corner(32), name="second")
    path = write(tmp_path / "m", {**first, **second}, config)

    def wide_only(stored: Any, scheme: Any, dtype: Any) -> Any:
        if stored["scales"].shape[1] != 64:
            raise Unsupported("only 64 columns")
        return dequantize_weight(stored, scheme, dtype)

    judge = judged(path, reference("wide_only", dequantize_weight=wide_only))
    assert {o.figures.as_dict()["tensor"]: o.not_run for o in judge.tensors} == {
        "first": None,
        "second": "unsupported: only 64 columns",
    }
    assert judge.compared == corner().size
    with pytest.raises(Unsupported, match="provides no dequantize_weight"):
        judged(path, Implementation(name="nothing", version="1"))


@pytest.mark.parametrize("family", ["nvfp4", "mxfp4"])
def test_block_layers_are_judged_in_pieces(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row, the last one alone too: 64 rows, 7 at a time."""
    monkeypatch.setattr(sys.modules[judge_block_layers.__module__], "BITS_LIMIT", 7 * 128)
    path = write(tmp_path / "m", *packed_floats(corner(), family))
    judge = judged(path, reference("reference"))
    assert (judge.compared, judge.mismatched) == (corner().size, 0)
    assert len(judge.comparisons) == 10


def test_figures_count_what_is_not_finite(tmp_path: Path) -> None:
    tensors, config = awq(corner())
    scales = tensors[f"{LAYER}.scales"].clone()
    scales[0, 0], scales[1, 1] = float("inf"), float("nan")
    path = write(tmp_path / "m", {**tensors, f"{LAYER}.scales": scales}, config)
    (outcome,) = judged(path, reference("reference")).tensors
    figures = outcome.figures.as_dict()
    assert figures["nonfinite_scales"] == 2
    assert figures["nonfinite_outputs"] == 64  # a group of 32 rows each: Inf and, from 0 times it, NaN
    assert figures["files"] == "model.safetensors"


def test_reading_a_checkpoint_reads_no_weights(tmp_path: Path) -> None:
    """Layers are read one at a time, when they are judged."""
    tensors: Tensors = {}
    for index in range(8):
        rows = {"qweight": (512, 512), "qzeros": (128, 512), "scales": (128, 4096)}
        layer = {k: torch.zeros(s, dtype=torch.float16 if k == "scales" else torch.int32) for k, s in rows.items()}
        tensors |= {f"layers.{index}.{key}": value for key, value in layer.items()}
    path = write(tmp_path / "m", tensors, {**awq(corner())[1], "group_size": 4})
    tracemalloc.start()
    checkpoint = quantized_checkpoint.read(path)
    read = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    for layer in checkpoint.layers:
        layer.stored()
    one = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(checkpoint.layers) == 8
    assert read < 1 << 18
    assert one < 6 << 20  # a layer has 2.3 MB, and the next is read before the last is gone
