"""Small checkpoints as libraries lay them out, quantised from a corner of a real model by lowbit's own quantisers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from lowbit import packing, schemes, weights
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.packing_weights import pack_zeros
from lowbit.references import bits, weights_quantize

DATA = Path(__file__).parent / "data"
LAYER = "encoder.layer.0.attention.self.query"

Tensors = dict[str, torch.Tensor]

Built = tuple[Tensors, dict[str, Any]]
"""The tensors of a layer, and the config that says how it is quantised."""


def corner(rows: int = 64, columns: int = 128) -> np.ndarray:
    """(N, K) float32. Real weights."""
    return load_file(DATA / "minilm.safetensors")[f"{LAYER}.weight"][:rows, :columns].float().numpy()


def write(folder: Path, tensors: Tensors, config: Mapping[str, Any] | None = None, **files: Mapping[str, Any]) -> Path:
    """Writes model.safetensors, and JSON files by name.

    Args:
      config: `quantization_config` of config.json. files: name without .json → content.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    if config is not None:
        files = {"config": {"torch_dtype": "float16", "quantization_config": config}, **files}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def tensor(array: np.ndarray) -> torch.Tensor:
    """The same bits; uint16 is bfloat16."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, order="C"))


def awq(weight: np.ndarray, *, group: int = 32, scale_format: FloatFormat = BINARY16, name: str = LAYER) -> Built:
    """AutoAWQ's GEMM layout of an (N, K) weight, and its config."""
    stored = weights_quantize.quantize(weight.T.copy(), weights.awq(group), scale_format=scale_format)
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return {f"{name}.{key}": tensor(value) for key, value in stored.items()}, config


def gptq(
    weight: np.ndarray,
    *,
    bits: int = 4,
    zeros: str = "v1",
    group: int = 32,
    act_order: bool = False,
    symmetric: bool = False,
    scale_format: FloatFormat = BINARY16,
    name: str = LAYER,
) -> Built:
    """GPTQModel's layout of an (N, K) weight, and its config."""
    scheme = weights.gptq(bits, zeros, group)
    scheme = weights.variant(scheme, "act_order") if act_order else scheme
    stored = weights_quantize.quantize(weight.T.copy(), scheme, scale_format=scale_format)
    if symmetric:
        stored["qzeros"] = pack_zeros(np.full(stored["scales"].shape, 1 << (bits - 1)), scheme)
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": act_order,
        "sym": symmetric,
        "checkpoint_format": "gptq" if zeros == "v1" else "gptq_v2",
    }
    return {f"{name}.{key}": tensor(value) for key, value in stored.items()}, config


def four_bits(
    weight: np.ndarray,
    *,
    table: str = "nf4",
    block: int = 64,
    nested: bool = False,
    dtype: str = "float16",
    codebook: tuple[int, ...] | None = None,
    name: str = LAYER,
) -> Built:
    """bitsandbytes' layout of a weight of any shape, and its config.

    Args:
      codebook: what quant_map says; the scheme's own if None.
    """
    scheme = weights.get(f"{table}_b{block}{'+nested' if nested else ''}")
    stored = weights_quantize.quantize(weight, scheme, block_size2=16)
    state: dict[str, Any] = {"quant_type": table, "blocksize": block, "dtype": dtype, "shape": list(weight.shape)}
    quant_map = np.array(scheme.codebook if codebook is None else codebook, np.uint32).view(np.float32)
    tensors = {"": stored["packed"][:, None], ".absmax": stored["absmax"], ".quant_map": quant_map}
    if nested:
        tensors |= {".nested_absmax": stored["absmax2"], ".nested_quant_map": stored["code2"]}
        state |= {"nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": stored["offset"].item()}
    tensors[f".quant_state.bitsandbytes__{table}"] = as_bytes(state)
    config = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": table,
        "bnb_4bit_use_double_quant": nested,
    }
    return {f"{name}.weight{key}": tensor(value) for key, value in tensors.items()}, config


def as_bytes(state: Mapping[str, Any]) -> np.ndarray:
    """A quant_state as bitsandbytes packs it: JSON, a byte an element."""
    return np.frombuffer(json.dumps(state).encode(), np.uint8).copy()


def int8(weight: np.ndarray, *, name: str = LAYER) -> Built:
    """LLM.int8's layout of an (N, K) weight, and its config."""
    stored = weights_quantize.quantize(weight, weights.get("int8_scb"))
    tensors = {"weight": stored["weight"], "SCB": stored["scale"], "weight_format": np.array(0, np.uint8)}
    config = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}
    return {f"{name}.{key}": tensor(value) for key, value in tensors.items()}, config


def packed_floats(weight: np.ndarray, family: str, *, name: str = LAYER) -> Built:
    """compressed-tensors' layout of NVFP4 or MXFP4, and its config."""
    scheme = schemes.get("nvfp4" if family == "nvfp4" else "mxfp4_floor")
    packed, scales, g = packing.pack(bits.quantize(weight, scheme), scheme)
    tensors = {"weight_packed": tensor(packed), "weight_scale": tensor(scales)}
    if family == "nvfp4":
        tensors["weight_scale"] = tensors["weight_scale"].view(torch.float8_e4m3fn)
        tensors["weight_global_scale"] = torch.tensor([float(g)])
        tensors["input_global_scale"] = torch.tensor([3.0])
    args = {"num_bits": 4, "type": "float", "group_size": scheme.block, "symmetric": True}
    return {f"{name}.{key}": value for key, value in tensors.items()}, compressed(f"{family}-pack-quantized", args)


def channels(weight: np.ndarray, *, scale_format: FloatFormat = BFLOAT16, name: str = LAYER) -> Built:
    """compressed-tensors' layout of int8 with a scale a channel, and its config."""
    stored = weights_quantize.quantize(weight, weights.get("int8_torch"), scale_format=scale_format)
    tensors = {"weight": tensor(stored["weight"]), "weight_scale": tensor(stored["scale"])[:, None]}
    args = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    return {f"{name}.{key}": value for key, value in tensors.items()}, compressed("int-quantized", args)


def quanto(weight: np.ndarray, *, name: str = LAYER) -> Built:
    """quanto's layout of int8, and its config."""
    tensors, _ = channels(weight, scale_format=BINARY32, name=name)
    tensors = {f"{name}.weight._{new}": tensors[f"{name}.{key}"] for key, new in QUANTO.items()}
    scales = {f"{name}.{key}": torch.tensor(1.0) for key in ("input_scale", "output_scale")}
    return {**tensors, **scales}, {"quant_method": "quanto", "weights": "int8"}


QUANTO = {"weight": "data", "weight_scale": "scale"}
"""compressed-tensors' names → quanto's."""


def compressed(format: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """A config of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": dict(args), "format": None}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}}
