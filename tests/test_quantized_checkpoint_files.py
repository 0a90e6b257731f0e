"""Where a quantised checkpoint lies, and where it says what it is: files, folders, indices, configs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import LAYER, Tensors, awq, corner, four_bits, gptq, write
from safetensors.torch import save_file

from lowbit import weights
from lowbit.checkpoints import quantized as quantized_checkpoint
from lowbit.errors import ArgumentError


def test_configs_stand_in_many_places(tmp_path: Path) -> None:
    tensors, config = gptq(corner(), zeros="v2")
    early = {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}
    fields = {key: value for key, value in config.items() if key != "quant_method"}
    header = {"gptq_bits": "4", "gptq_group_size": "32", "gptq_desc_act": "False"}
    cases: dict[str, tuple[Callable[[Path], Any], str]] = {
        "quantize_config": (lambda p: write(p, tensors, quantize_config=fields), "gptq4_v2_g32"),
        "both": (lambda p: write(p, tensors, config, quantize_config=fields), "gptq4_v2_g32"),
        "quant_config": (lambda p: write(p, awq(corner())[0], quant_config=early), "awq_g32"),
        "header": (lambda p: with_header(p, tensors, {"quantization_config": json.dumps(config)}), "gptq4_v2_g32"),
        "entries": (lambda p: with_header(p, gptq(corner())[0], header), "gptq4_v1_g32"),
        "shapes alone": (lambda p: write(p, awq(corner())[0]), "awq_g32"),
        "one group": (lambda p: write(p, awq(corner(), group=-1)[0]), "awq_gk"),
    }
    for name, (make, scheme) in cases.items():
        make(tmp_path / name)
        for path in (tmp_path / name, tmp_path / name / "model.safetensors"):
            (layer,) = quantized_checkpoint.read(path).layers
            assert layer.scheme.name == scheme, name
            assert layer.dtype == "float16"


def with_header(folder: Path, tensors: Tensors, metadata: dict[str, str]) -> None:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata)


def test_the_dtype_is_the_models(tmp_path: Path) -> None:
    tensors, config = awq(corner())
    for key, said in (("torch_dtype", "bfloat16"), ("dtype", "torch.bfloat16"), ("dtype", "float32")):
        path = write(tmp_path / "m", tensors, config={key: said, "quantization_config": config})
        (path / "config.json").write_text(json.dumps({key: said, "quantization_config": config}))
        assert quantized_checkpoint.read(path).layers[0].dtype == said.removeprefix("torch.")
    (path / "config.json").write_text(json.dumps({"torch_dtype": "float64", "quantization_config": config}))
    with pytest.raises(ArgumentError, match="dtype is 'float64', want float16"):
        quantized_checkpoint.read(path)
    tensors, config = four_bits(corner(), dtype="bfloat16")
    (layer,) = quantized_checkpoint.read(write(tmp_path / "own", tensors, config)).layers
    assert layer.dtype == "bfloat16"
    assert "not to config.json's float16" in layer.found


def test_layers_may_differ(tmp_path: Path) -> None:
    """GPTQModel's `dynamic` gives some layers other bits; each is judged under its own scheme."""
    eight, _ = gptq(corner(), bits=8, group=64, name="down")
    four, config = gptq(corner(), name="up")
    config["dynamic"] = {r"+:.*own$": {"bits": 8, "group_size": 64}, "-:lm_head": {}}
    path = write(tmp_path / "m", {**eight, **four}, config)
    checkpoint = quantized_checkpoint.read(path)
    assert [(layer.name, layer.scheme.name) for layer in checkpoint.layers] == [
        ("down", "gptq8_v1_g64"),
        ("up", "gptq4_v1_g32"),
    ]
    assert "1 × gptq8_v1_g64, 1 × gptq4_v1_g32 to float16" in checkpoint.lines()[0]
    assert [layer.name for layer in checkpoint.fitting(weights.get("gptq8_v1_g64"))] == ["down"]
    config["dynamic"] = {r"-:down": {}}
    (path / "config.json").write_text(json.dumps({"quantization_config": config}))
    with pytest.raises(ArgumentError, match="leaves down out by '-:down', but its tensors are quantised"):
        quantized_checkpoint.read(path)


# -- several files


def sharded(folder: Path) -> tuple[Path, dict[str, str]]:
    """A layer in two files, with an index."""
    tensors, config = gptq(corner())
    write(folder, {}, config)
    (folder / "model.safetensors").unlink()
    files = {name: f"model-{1 + name.endswith(('scales', 'g_idx'))}.safetensors" for name in tensors}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder, files


def test_a_layer_in_two_files(tmp_path: Path) -> None:
    folder, _ = sharded(tmp_path / "m")
    (layer,) = quantized_checkpoint.read(folder).layers
    assert layer.files == ("model-1.safetensors", "model-2.safetensors")
    assert layer.stored()["scales"].shape == (4, 64)
    with pytest.raises(ArgumentError, match=rf"model-1.*{LAYER}.qweight.* but no {LAYER}.scales.* given as a folder"):
        quantized_checkpoint.read(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").unlink()
    assert len(quantized_checkpoint.read(folder).layers) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: {**files, "x": "model-3.safetensors"}, "names model-3.safetensors, which is not in"),
        (lambda files: {**files, "x": "model-1.safetensors"}, "'x' is in model-1.safetensors, which does not hold it"),
        (lambda files: {}, "weight_map is {}, want file names"),
        (lambda files: [], "weight_map is|no index"),
        (lambda files: {**files, "x": "../m/model-1.safetensors"}, "which is not in"),
    ],
)
def test_a_wrong_index(tmp_path: Path, change: Callable[[dict[str, str]], Any], message: str) -> None:
    folder, files = sharded(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": change(files)}))
    with pytest.raises(ArgumentError, match=message):
        quantized_checkpoint.read(folder)


def test_folders_that_hold_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"none\.safetensors is not a file, want .*, or the folder of a checkpoint"):
        quantized_checkpoint.read(tmp_path / "none.safetensors")
    with pytest.raises(ArgumentError, match=r"holds no \.safetensors file"):
        quantized_checkpoint.read(tmp_path)
    for name in ("a", "b"):
        save_file({"x": torch.ones(4)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ArgumentError, match=r"b\.safetensors and .*a\.safetensors both hold 'x'"):
        quantized_checkpoint.read(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    checkpoint = quantized_checkpoint.read(tmp_path)
    assert (checkpoint.layers, checkpoint.unread) == ((), ())
    assert [place.name for place in checkpoint.floating] == ["x"]
    for text, message in (("{", "is no JSON"), ("[]", "is a JSON list"), ('{"a": 1, "a": 2}', "twice")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ArgumentError, match=message):
            quantized_checkpoint.read(tmp_path)
