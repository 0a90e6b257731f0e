"""Real weights: every floating tensor of the checkpoint given by ``--weights``, streamed."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from lowbit import packing
from lowbit.checkpoints import files as checkpoint
from lowbit.checkpoints import quantized as quantized_checkpoint
from lowbit.checkpoints.figures import Figures
from lowbit.checkpoints.files import Entry
from lowbit.errors import Unsupported
from lowbit.references import tensors
from lowbit.rules import PartialBlock
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check
from lowbit.suite.judge import Options, TensorOutcome

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

GPU_CHUNK = 1 << 26
"""Elements read at a time for a GPU; the interpreter gets `checkpoint.CHUNK`."""


@check("checkpoint", checkpoint="floating")
def test_checkpoint(judge: BlockJudge, progress: Progress) -> None:
    """Quantise and dequantise each tensor, bit for bit; figures of each tensor go into the report."""
    assert judge.settings.weights is not None
    places = quantized_checkpoint.read(judge.settings.weights).floating
    total = sum(place.entry.elements for place in places)
    task = progress.add_task(f"{judge.implementation.name} {judge.scheme.name}", total=total)
    for place in places:
        entry = place.entry
        started, before = time.perf_counter(), len(judge.comparisons)
        figures = Figures(entry.name, entry.dtype, entry.shape, judge.scheme)
        outcome = TensorOutcome(figures)
        outcome.not_run = judge_tensor(judge, place.file, entry, figures)
        outcome.comparisons = judge.comparisons[before:]
        outcome.seconds = time.perf_counter() - started
        judge.tensors.append(outcome)
        progress.advance(task, entry.elements)
    judge.assurance = f"exhaustive({total}), every weight of {len(places)} tensors"


def judge_tensor(judge: BlockJudge, path: Path, entry: Entry, figures: Figures) -> str | None:
    """Judges one tensor of a file; says why it cannot, if it cannot."""
    size = checkpoint.CHUNK if judge.settings.interpreted else GPU_CHUNK
    options: Options | None = None
    for index, chunk in enumerate(checkpoint.chunks(path, entry, elements=size)):
        if options is None:
            options = {}
            try:
                g = None if chunk.whole else checkpoint.tensor_scale(path, entry, judge.scheme, elements=size)
            except Unsupported as reason:
                return reason.reason
            if g is not None:
                options["tensor_scale"] = judge.tensor(np.array([g], dtype=np.float32))
        values = chunk.values
        if judge.scheme.partial_block is PartialBlock.REFUSE:
            values = checkpoint.pad_columns(values, judge.scheme.block)
        x = judge.tensor(values).to(DTYPES[entry.dtype])
        bits = judge.random_options(tuple(x.shape), salt=index)
        expected = judge.expected(x, **options, **bits)
        with judge.part(f"{entry.name} [{chunk.row}, {chunk.column}]"):
            judge.quantize(x, expected=expected, **options, **bits)
            with contextlib.suppress(Unsupported):  # an implementation may quantise only; the decode check says so
                judge.dequantize(packing.pack(expected, judge.scheme), expected, torch.float32)
        figures.add(judge.tensor(chunk.values), expected, tensors.dequantize(expected, judge.scheme, torch.float32))
    return None
