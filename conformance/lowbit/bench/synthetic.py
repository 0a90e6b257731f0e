"""Synthetic checkpoints of any size: the linear layers of a model of Llama's shape, with an index and a config.

Stored numbers are random, scales of a size that real ones have. Shards are written a piece at a time, so that a
checkpoint may be larger than memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowbit.errors import ArgumentError

PIECE = 1 << 24
"""Bytes made and written together."""

HIDDEN_STEP = 256
"""What `hidden` must be a multiple of, so that groups and words of every method are whole."""

GROUP = 128

WIDTHS = {"I32": 32, "BF16": 16, "F16": 16, "F32": 32, "U8": 8, "F8_E4M3": 8}
"""Bits of the dtypes that are written, as safetensors names them."""


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint.

    Args:
      name, dtype, shape: as the file has them.
      low, mask: patterns are ``low + (random & mask)``; a mask of None leaves every bit to chance.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: int = 0
    mask: int | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * WIDTHS[self.dtype] // 8

    def pieces(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """The bytes, in pieces of bounded size."""
        for first in range(0, self.size, PIECE):
            count = min(PIECE, self.size - first)
            words = generator.integers(0, 1 << 64, -(-count // 8), dtype=np.uint64)
            if self.mask is not None:
                patterns = words.view(f"u{WIDTHS[self.dtype] // 8}")
                patterns &= self.mask
                patterns += self.low
            yield words.view(np.uint8)[:count]


@dataclass(frozen=True)
class Linear:
    """A linear layer: its stored tensors, and how many weights they stand for."""

    weights: int
    tensors: tuple[Stored, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(tensor.size for tensor in self.tensors)


@dataclass(frozen=True)
class Written:
    """What a checkpoint holds; size in bytes of tensors."""

    layers: int
    weights: int
    size: int
    shards: int


def write(
    folder: Path, method: str, size: int, *, hidden: int = 4096, shard: int = 2 * 10**9, seed: int = 0
) -> Written:
    """Writes a checkpoint into an empty folder.

    Args:
      method: one of `METHODS`.
      size: bytes of tensors; the last layer may exceed it.
      hidden: width of the model, a multiple of `HIDDEN_STEP`.
      shard: bytes after which a file ends, layers staying whole.
      seed: 0 or more.

    Raises:
      ArgumentError: another method, a negative seed, or a size, width or shard that nothing can be made of.
    """
    if method not in METHODS:
        raise ArgumentError(f"method: got {method!r}, want one of {', '.join(METHODS)}")
    if hidden < 1 or hidden % HIDDEN_STEP:
        raise ArgumentError(f"hidden: got {hidden}, want a multiple of {HIDDEN_STEP}")
    for name, value in (("size", size), ("shard", shard)):
        if value < 1:
            raise ArgumentError(f"{name}: got {value} bytes, want 1 or more")
    if seed < 0:
        raise ArgumentError(f"seed: got {seed}, want 0 or more")
    shards = _shards(method, size, hidden, shard)
    generator = np.random.default_rng(seed)
    index: dict[str, str] = {}
    for number, layers in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = [tensor for layer in layers for tensor in layer.tensors]
        _write_file(folder / name, tensors, generator)
        index |= dict.fromkeys((tensor.name for tensor in tensors), name)
    layers = [layer for layers in shards for layer in layers]
    total = sum(layer.size for layer in layers)
    said = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(said))
    config = {"model_type": "llama", "hidden_size": hidden, "torch_dtype": DTYPES.get(method, "float16")}
    if METHODS[method]:
        config["quantization_config"] = METHODS[method]
    (folder / "config.json").write_text(json.dumps(config))
    return Written(len(layers), sum(layer.weights for layer in layers), total, len(shards))


def _shards(method: str, size: int, hidden: int, shard: int) -> list[list[Linear]]:
    shards: list[list[Linear]] = [[]]
    total = held = 0
    for layer in _layers(method, hidden):
        if held >= shard:
            shards.append([])
            held = 0
        shards[-1].append(layer)
        total, held = total + layer.size, held + layer.size
        if total >= size:
            break
    return shards


def _layers(method: str, hidden: int) -> Iterator[Linear]:
    """The layers of one block after another, without end: Llama 3's shapes at 4096."""
    narrow, wide = hidden // 4, hidden * 7 // 2
    block = {
        **{f"self_attn.{name}_proj": (narrow if name in "kv" else hidden, hidden) for name in "qkvo"},
        **{f"mlp.{name}_proj": (wide, hidden) for name in ("gate", "up")},
        "mlp.down_proj": (hidden, wide),
    }
    number = 0
    while True:
        for name, (rows, columns) in block.items():
            tensors = _tensors(method, f"model.layers.{number}.{name}", rows, columns)
            yield Linear(rows * columns, tuple(tensors))
        number += 1


def _tensors(method: str, name: str, n: int, k: int) -> Sequence[Stored]:
    """The stored tensors of a weight of N outputs and K inputs."""
    if method == "bfloat16":
        return (Stored(f"{name}.weight", "BF16", (n, k), 0x3800, 0x87FF),)  # ±2^-15 … 2
    if method == "nvfp4":
        return (
            Stored(f"{name}.weight_packed", "U8", (n, k // 2)),
            Stored(f"{name}.weight_scale", "F8_E4M3", (n, k // 16), 0x50, 0x1F),  # 8 … 120
            Stored(f"{name}.weight_global_scale", "F32", (1,), 0x45000000, 0xFFFFFF),  # 2^11 … 2^13
        )
    words = (k // 8, n) if method == "gptq" else (k, n // 8)
    return (
        Stored(f"{name}.qweight", "I32", words),
        Stored(f"{name}.qzeros", "I32", (k // GROUP, n // 8)),
        Stored(f"{name}.scales", "F16", (k // GROUP, n), 0x1000, 0x0FFF),  # 2^-11 … 2^-7
    )


def _write_file(path: Path, tensors: Sequence[Stored], generator: np.random.Generator) -> None:
    header: dict[str, Any] = {}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.size
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            for piece in tensor.pieces(generator):
                file.write(piece.data)


_NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group", "symmetric": True}

METHODS: dict[str, dict[str, Any]] = {
    "gptq": {
        **{"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False},
        "checkpoint_format": "gptq",
    },
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "nvfp4": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": _NVFP4}},
    },
    "bfloat16": {},
}
"""`quantization_config` of what can be written; {} of what is not quantised."""

DTYPES = {"bfloat16": "bfloat16", "nvfp4": "bfloat16"}
"""What config.json says of the dtype of the model; float16 for the others."""
