"""Weights that are quantised already: every layer of the checkpoint given by ``--weights``, one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.progress import Progress

from lowbit import packing
from lowbit.checkpoints import quantized as quantized_checkpoint
from lowbit.checkpoints.layer import Layer
from lowbit.errors import Unsupported
from lowbit.references import tensors
from lowbit.schemes import Quantized
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check
from lowbit.suite.judge import BITS_LIMIT, Judge, TensorOutcome
from lowbit.suite.weight_judge import WeightJudge

GPU_PIECE = 1 << 26
"""Weights of a block scheme decoded at a time on a GPU; else as many as the NumPy reference votes on."""

SCALES = ("scales", "absmax", "absmax2", "scale")
"""Stored tensors whose NaN and Inf are counted, where they are floating."""


@dataclass
class LayerFigures:
    """What the report tells of a layer.

    Attributes:
      nonfinite_scales: NaN and Inf among the stored scales.
      nonfinite_outputs: weights that decode to NaN or Inf, such as those too large for float16.
    """

    layer: Layer
    scheme: str
    nonfinite_scales: int = 0
    nonfinite_outputs: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "tensor": self.layer.name,
            "scheme": self.scheme,
            "dtype": self.layer.dtype,
            "shape": list(self.layer.shape),
            "elements": self.layer.elements,
            "found": self.layer.found,
            "files": ", ".join(self.layer.files),
            "nonfinite_scales": self.nonfinite_scales,
            "nonfinite_outputs": self.nonfinite_outputs,
        }


@check("quantized checkpoint", checkpoint="quantized", judge=WeightJudge)
def test_weight_layers(judge: WeightJudge, progress: Progress) -> None:
    """Dequantise each layer of a weight scheme, bit for bit; the stored tensors are handed on as they are."""

    def dequantize(layer: Layer, figures: LayerFigures) -> None:
        stored, dtype = judge.stored(layer.stored()), getattr(torch, layer.dtype)
        figures.nonfinite_scales = sum(count_nonfinite(stored[name]) for name in SCALES if name in stored)
        expected = judge.expected(stored, dtype)
        figures.nonfinite_outputs = count_nonfinite(expected)
        judge.dequantize(stored, dtype, expected=expected)

    judge_layers(judge, progress, dequantize)


@check("quantized checkpoint", checkpoint="quantized")
def test_block_layers(judge: BlockJudge, progress: Progress) -> None:
    """Dequantise each layer of FP4 codes and block scales, bit for bit, some rows at a time."""
    size = BITS_LIMIT if judge.settings.device == "cpu" else GPU_PIECE

    def dequantize(layer: Layer, figures: LayerFigures) -> None:
        arrays, dtype = layer.stored(), getattr(torch, layer.dtype)
        packed, scales = (arrays[name].reshape(-1, arrays[name].shape[-1]) for name in ("packed", "scales"))
        g = judge.tensor(arrays["tensor_scale"]) if "tensor_scale" in arrays else None
        figures.nonfinite_scales = 0 if g is None else count_nonfinite(g)
        step = max(1, size // layer.shape[-1])
        for row in range(0, len(packed), step):
            part = slice(row, row + step)
            quantized = Quantized(judge.tensor(packed[part]), judge.tensor(scales[part]), g)
            encoded = packing.unpack(quantized, judge.scheme)
            with judge.part(f"rows from {row}"):
                judge.dequantize(quantized, encoded, dtype)
            figures.nonfinite_outputs += count_nonfinite(tensors.dequantize(encoded, judge.scheme, dtype))

    judge_layers(judge, progress, dequantize)


def judge_layers(judge: Judge, progress: Progress, dequantize: Callable[[Layer, LayerFigures], None]) -> None:
    """Judges every layer that the scheme reads, each with a record of its own.

    Args:
      dequantize: judges one layer of at least one weight, and counts.
    """
    assert judge.settings.weights is not None
    layers = quantized_checkpoint.read(judge.settings.weights).fitting(judge.scheme)
    total = sum(layer.elements for layer in layers)
    task = progress.add_task(f"{judge.implementation.name} {judge.scheme.name}", total=total)
    declined: Unsupported | None = None
    for layer in layers:
        started, before = time.perf_counter(), len(judge.comparisons)
        figures = LayerFigures(layer, judge.scheme.name)
        outcome = TensorOutcome(figures, not_run=None if layer.elements else "no elements")
        try:
            if layer.elements:
                with judge.part(layer.name):
                    dequantize(layer, figures)
        except Unsupported as reason:
            outcome.not_run, declined = f"unsupported: {reason.reason}", reason
        outcome.comparisons = judge.comparisons[before:]
        outcome.seconds = time.perf_counter() - started
        judge.tensors.append(outcome)
        progress.advance(task, layer.elements)
    if declined is not None and not judge.compared:
        judge.tensors.clear()  # one record says it of all
        raise declined
    judge.assurance = f"exhaustive({total}), every weight of {len(layers)} layers"


def count_nonfinite(values: torch.Tensor) -> int:
    return int((~values.isfinite()).sum()) if values.is_floating_point() else 0
