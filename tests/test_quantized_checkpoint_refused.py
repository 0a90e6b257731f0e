"""Quantised checkpoints that contradict themselves, are damaged, or are stored in a way that no scheme stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import (
    LAYER,
    Built,
    as_bytes,
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

from lowbit.checkpoints import quantized as quantized_checkpoint
from lowbit.errors import ArgumentError, NothingCompared


def changed(built: Built, config: dict[str, Any] | None = None, **tensors: torch.Tensor | None) -> Built:
    """A layer with other config entries, and other tensors or none under names without dots."""
    found, said = built
    found = {**found, **{f"{LAYER}.{name.replace('__', '.')}": value for name, value in tensors.items()}}  # type: ignore[dict-item]
    return {name: value for name, value in found.items() if value is not None}, {**said, **(config or {})}


INT = torch.int32
CONTRADICTIONS: dict[str, tuple[Callable[[], Built], str]] = {
    "bits": (lambda: changed(gptq(corner()), {"bits": 8}), r"config\.json says bits 8, but .*qzeros.* holds 4 bits"),
    "awq bits": (lambda: changed(awq(corner()), {"bits": 8}), "says bits 8, but .*qweight.* holds 4 bits"),
    "group": (lambda: changed(gptq(corner()), {"group_size": 128}), r"group_size 128, but .*scales.* 4 groups of 128"),
    "group of K": (lambda: changed(gptq(corner()), {"group_size": -1}), "says group_size -1, but .* has 4 groups"),
    "awq group": (lambda: changed(awq(corner()), {"group_size": 64}), "says group_size 64, but .* has 4 groups"),
    "group 0": (lambda: changed(awq(corner()), {"group_size": 0}), "says group_size 0, but .* has 4 groups"),
    "group text": (lambda: changed(awq(corner()), {"group_size": "32"}), "group_size is '32', want an integer"),
    "method": (lambda: changed(awq(corner()), {"quant_method": "gptq"}), "says quant_method 'gptq', but .* AWQ's"),
    "other method": (
        lambda: changed(gptq(corner()), {"quant_method": "bitsandbytes"}),
        "says quant_method 'bitsandbytes', but .* GPTQ's layout",
    ),
    "zero point": (lambda: changed(awq(corner()), {"zero_point": False}), "zero_point False, but there is .*qzeros"),
    "in order": (
        lambda: changed(gptq(corner(), act_order=True), {"desc_act": False}),
        "says desc_act False, but .*g_idx.* has rows out of order",
    ),
    "no g_idx": (
        lambda: changed(gptq(corner(), act_order=True), g_idx=None),
        rf"says desc_act True, but .* has no {LAYER}\.g_idx",
    ),
    "v1 for v2": (
        lambda: changed(gptq(corner(), symmetric=True, zeros="v2"), {"checkpoint_format": "gptq"}),
        "says sym True, but .*qzeros.* stores 8 where zeros v1 of 4 bits stores 7",
    ),
    "v2 for v1": (
        lambda: changed(gptq(corner(), symmetric=True), {"checkpoint_format": "gptq_v2"}),
        "says sym True, but .*qzeros.* stores 7 where zeros v2 of 4 bits stores 8",
    ),
    "two formats": (lambda: changed(gptq(corner()), {"format": "gptq_v2"}), "contradicts itself"),
    "table": (lambda: changed(four_bits(corner()), {"bnb_4bit_quant_type": "fp4"}), "'fp4', but there is .*__nf4"),
    "nested": (
        lambda: changed(four_bits(corner()), {"bnb_4bit_use_double_quant": True}),
        "bnb_4bit_use_double_quant True, but .* is not nested",
    ),
    "not 4 bits": (lambda: changed(four_bits(corner()), {"load_in_4bit": False}), "load_in_4bit False, but there is"),
    "not 8 bits": (lambda: changed(int8(corner()), {"load_in_8bit": False}), "load_in_8bit False, but there is .*SCB"),
    "format": (
        lambda: changed(packed_floats(corner(), "nvfp4"), {"format": "mxfp4-pack-quantized"}),
        "says format mxfp4-pack-quantized, but .*weight_packed.* is nvfp4-pack-quantized",
    ),
    "groups": (
        lambda: changed(
            packed_floats(corner(), "mxfp4"), {"config_groups": {"a": {"weights": {"num_bits": 4, "group_size": 16}}}}
        ),
        r"has config_groups whose weights are .*16.*, but .*weight_packed.* is .*group_size 32",
    ),
    "quanto": (lambda: changed(quanto(corner()), {"weights": "int4"}), "says weights 'int4', but there is .*_data, I8"),
    "no groups": (
        lambda: changed(
            gptq(corner()),
            {"group_size": None},
            scales=torch.zeros(0, 64, dtype=torch.float16),
            qzeros=torch.zeros(0, 8, dtype=INT),
        ),
        r"scales, F16 \[0, 64\], want at least one group",
    ),
    "no object": (lambda: changed(packed_floats(corner(), "mxfp4"), {"config_groups": [1]}), "want an object of obj"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_an_error_that_names_both(tmp_path: Path, name: str) -> None:
    build, message = CONTRADICTIONS[name]
    path = write(tmp_path / "m", *build())
    with pytest.raises(ArgumentError, match=message) as caught:
        quantized_checkpoint.read(path)
    assert str(path) in str(caught.value)


def test_two_configs_that_contradict_each_other(tmp_path: Path) -> None:
    tensors, config = gptq(corner())
    path = write(tmp_path / "m", tensors, config, quantize_config={**config, "checkpoint_format": "gptq_v2"})
    with pytest.raises(ArgumentError, match=r"config\.json says checkpoint_format 'gptq', but .*quantize_config\.json"):
        quantized_checkpoint.read(path)


STATE = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [64, 128]}
STATE_NAME = f"{LAYER}.weight.quant_state.bitsandbytes__nf4"


def stated(**fields: Any) -> Built:
    tensors, config = four_bits(corner())
    tensors[STATE_NAME] = tensor(as_bytes({**STATE, **fields}))
    return tensors, config


def nested_with(offset: float) -> Built:
    tensors, config = four_bits(corner(), nested=True)
    state = json.loads(bytes(tensors[STATE_NAME].tolist()))
    return {**tensors, STATE_NAME: tensor(as_bytes({**state, "nested_offset": offset}))}, config


def stateless() -> Built:
    tensors, config = four_bits(corner())
    del tensors[STATE_NAME]
    return tensors, config


DAMAGED: dict[str, tuple[Callable[[], Built], str]] = {
    "no zeros": (lambda: changed(awq(corner()), qzeros=None), rf"qweight.* but no {LAYER}\.qzeros, want both"),
    "float words": (
        lambda: changed(awq(corner()), qweight=torch.zeros(128, 8, dtype=torch.float16)),
        r"got .*qweight, F16 \[128, 8\], want I32",
    ),
    "words of no layout": (
        lambda: changed(awq(corner()), qweight=torch.zeros(128, 9, dtype=INT)),
        r"got .*qweight, I32 \[128, 9\], want I32 .*GPTQ.*AWQ",
    ),
    "zeros of another width": (
        lambda: changed(gptq(corner()), qzeros=torch.zeros(4, 10, dtype=INT)),
        r"got .*qzeros, I32 \[4, 10\], want 64 zero points of 2, 3, 4 or 8 bits",
    ),
    "zeros of other groups": (
        lambda: changed(awq(corner()), qzeros=torch.zeros(3, 8, dtype=INT)),
        r"got .*qzeros, I32 \[3, 8\], want I32 \[4, 8\]",
    ),
    "group out of range": (
        lambda: changed(gptq(corner()), g_idx=torch.full((128,), 4, dtype=INT)),
        r"g_idx.* want groups of 0\.\.3; position 0 holds 4",
    ),
    "negative group": (
        lambda: changed(gptq(corner()), g_idx=torch.full((128,), -1, dtype=INT)),
        r"g_idx.* want groups of 0\.\.3; position 0 holds -1",
    ),
    "short g_idx": (
        lambda: changed(gptq(corner()), g_idx=torch.zeros(127, dtype=INT)),
        r"g_idx, I32 \[127\], want I32 \[128\]",
    ),
    "no state": (stateless, "absmax.* want one .*quant_state"),
    "no codes": (lambda: changed(four_bits(corner()), weight=None), r"want .*weight, U8 of 4096 bytes"),
    "few codes": (
        lambda: changed(four_bits(corner()), weight=torch.zeros(4095, 1, dtype=torch.uint8)),
        r"weight, U8 \[4095, 1\], want .*U8 of 4096 bytes for shape \[64, 128\]",
    ),
    "few scales": (
        lambda: changed(four_bits(corner()), weight__absmax=torch.ones(127)),
        r"absmax, F32 \[127\], want F32 \[128\]",
    ),
    "half scales": (
        lambda: changed(four_bits(corner()), weight__absmax=torch.ones(128).half()),
        r"absmax, F16 \[128\], want F32 \[128\]",
    ),
    "short map": (
        lambda: changed(four_bits(corner()), weight__quant_map=torch.ones(15)),
        r"quant_map, F32 \[15\], want F32 \[16\]",
    ),
    "state of another type": (lambda: stated(quant_type="fp4"), "want quant_type nf4"),
    "state of no block": (lambda: stated(blocksize=0), "whole sizes; it says"),
    "state without shape": (lambda: stated(shape=None), "want JSON with"),
    "state in float64": (lambda: stated(dtype="float64"), "a 16-bit or float32 dtype"),
    "state nested alone": (lambda: stated(nested_blocksize=16), "want no nested_blocksize"),
    "offset in double": (lambda: nested_with(0.1), "want a binary32 number as nested_offset; it says 0.1"),
    "few channels": (lambda: changed(int8(corner()), SCB=torch.ones(63)), r"SCB, F32 \[63\], want F32 \[64\]"),
    "few block scales": (
        lambda: changed(packed_floats(corner(), "mxfp4"), weight_scale=torch.zeros(64, 3, dtype=torch.uint8)),
        r"weight_scale, U8 \[64, 3\], want U8 \[64, 4\]",
    ),
    "no block scales": (lambda: changed(packed_floats(corner(), "mxfp4"), weight_scale=None), "but no .*weight_scale"),
    "no global scale": (
        lambda: changed(packed_floats(corner(), "nvfp4"), weight_global_scale=None),
        "but no .*weight_global_scale",
    ),
    "few channel scales": (
        lambda: changed(channels(corner()), weight_scale=torch.ones(63, 1)),
        r"weight_scale, F32 \[63, 1\], want .* \[64, 1\]",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_layer_that_is_not_whole_is_an_error(tmp_path: Path, name: str) -> None:
    """Of a layout that is understood nothing is passed over: file, tensor, what was found and wanted are named."""
    build, message = DAMAGED[name]
    path = write(tmp_path / "m", *build())
    with pytest.raises(ArgumentError, match=message) as caught:
        quantized_checkpoint.read(path)
    assert str(path / "model.safetensors") in str(caught.value)


CONFIGS_WITHOUT_SCHEME: dict[str, tuple[Callable[[], Built], str]] = {
    "gemv": (lambda: changed(awq(corner()), {"version": "GEMV"}), "AWQ of version 'gemv'"),
    "marlin": (lambda: changed(gptq(corner()), {"checkpoint_format": "marlin"}), "checkpoint_format 'marlin'"),
    "marlin flag": (lambda: changed(gptq(corner()), {"is_marlin_format": True}), "repacked for Marlin"),
    "unknown method": (lambda: changed(gptq(corner()), {"quant_method": "auto-round"}), "quant_method 'auto-round'"),
    "fp8": (lambda: ({"x.weight": torch.ones(4, 4)}, {"quant_method": "fp8"}), "says quant_method 'fp8', but no quant"),
    "short group unsaid": (
        lambda: changed(gptq(corner(), group=48), {"group_size": None}),
        "a short last group of 128 rows, and no group_size",
    ),
    "six bits": (
        lambda: changed(
            packed_floats(corner(), "mxfp4"),
            {"format": "mxfp6-pack-quantized"},
            weight_packed=torch.zeros(64, 96, dtype=torch.uint8),
        ),
        "no MXFP4, which has a scale for 32 elements",
    ),
    "int8 in groups": (
        lambda: changed(
            channels(corner()),
            {"config_groups": {"a": {"weights": {"num_bits": 8, "strategy": "group"}}}},
            weight_scale=torch.ones(64, 4),
        ),
        "only a scale for each channel",
    ),
}


@pytest.mark.parametrize("name", CONFIGS_WITHOUT_SCHEME)
def test_a_checkpoint_without_any_scheme_is_an_error(tmp_path: Path, name: str) -> None:
    """Nothing would be compared; and its floating tensors may be scales, so they are not taken for weights."""
    build, message = CONFIGS_WITHOUT_SCHEME[name]
    with pytest.raises(NothingCompared, match=message):
        quantized_checkpoint.read(write(tmp_path / "m", *build()))


LAYERS_WITHOUT_SCHEME: dict[str, tuple[Callable[..., Built], dict[str, torch.Tensor], str]] = {
    "float32 scales": (
        awq,
        {"scales": torch.ones(4, 64)},
        "scales, F32 [4, 64]: a product with a binary32 scale would need two roundings",
    ),
    "other storage": (
        four_bits,
        {"weight": torch.zeros(2048, 1, dtype=torch.bfloat16)},
        "codes under another dtype than U8",
    ),
    "turing order": (
        int8,
        {"weight_format": torch.tensor(2, dtype=torch.uint8)},
        "weight_format, U8 [] is 2: only row-major",
    ),
    "packed integers": (
        lambda weight, **options: packed_floats(weight, "nvfp4", **options),
        {"weight_packed": torch.zeros(64, 16, dtype=INT)},
        "pack-quantized integers",
    ),
    "packed with zeros": (
        lambda weight, **options: packed_floats(weight, "mxfp4", **options),
        {"weight_zero_point": torch.zeros(64, 4)},
        "no scheme has that",
    ),
    "zero points": (
        channels,
        {"weight_zero_point": torch.zeros(64, 1, dtype=torch.int8)},
        "no scheme of int8 has zero points",
    ),
    "quanto, 4 bits": (quanto, {"weight._data": torch.zeros(32, 128, dtype=torch.uint8)}, "only int8 has a scheme"),
    "float8": (
        channels,
        {"weight": torch.zeros(64, 128).to(torch.float8_e4m3fn)},
        "only int8 codes and packed FP4 have schemes",
    ),
}


@pytest.mark.parametrize("name", LAYERS_WITHOUT_SCHEME)
def test_a_layer_without_scheme_is_told_by_name(tmp_path: Path, name: str) -> None:
    """Beside layers that have one it is listed with the reason, in the header and as a record."""
    build, tensors, message = LAYERS_WITHOUT_SCHEME[name]
    beside, _ = build(corner(), name="beside")
    own, config = changed(build(corner()), **tensors)
    checkpoint = quantized_checkpoint.read(write(tmp_path / "m", {**own, **beside}, config))
    assert [layer.name.removesuffix(".weight") for layer in checkpoint.layers] == ["beside"]
    (unread,) = checkpoint.unread
    assert unread.name.removesuffix(".weight") == LAYER
    assert message in unread.reason
    assert any("NOT READ: 1 tensor, " in line for line in checkpoint.lines())
    assert any(message in line for line in checkpoint.lines())
    ((check, described, reason),) = checkpoint.left_out(False)
    assert (check, described["tensor"], reason) == ("quantized checkpoint", unread.name, unread.reason)
    assert checkpoint.floating == ()  # its scales are no weights


def test_gptq_needs_its_config(tmp_path: Path) -> None:
    """Nothing else says whether zeros are v1 or v2; AWQ's shapes say all."""
    tensors = {**gptq(corner())[0], **awq(corner(), name="beside")[0]}
    checkpoint = quantized_checkpoint.read(write(tmp_path / "m", tensors))
    assert [layer.scheme.name for layer in checkpoint.layers] == ["awq_g32"]
    assert "nothing says whether zeros are stored as" in checkpoint.unread[0].reason


def test_codes_of_no_layer_are_listed(tmp_path: Path) -> None:
    tensors, config = awq(corner())
    lost = {"lost.weight": torch.zeros(4, 4, dtype=torch.uint8), "position_ids": torch.arange(4)}
    lost |= {"lost.weight_scale_inv": torch.ones(4), "lost.bias": torch.ones(4)}
    checkpoint = quantized_checkpoint.read(write(tmp_path / "m", {**tensors, **lost}, config))
    assert [(unread.name, unread.reason) for unread in checkpoint.unread] == [
        ("lost.weight", "U8: belongs to no layer of awq")
    ]
    assert [place.name for place in checkpoint.floating] == ["lost.bias"]  # what lies beside it is a scale of some kind
