"""Element codes by the GPU's own conversion to E2M1, where an implementation can be asked for it."""

from __future__ import annotations

import numpy as np
import torch

from lowbit.cases import blocks as cases
from lowbit.formats import BFLOAT16, BINARY16, E2M1
from lowbit.implementation import Unsupported
from lowbit.rules import Rounding
from lowbit.schemes import Scheme
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check
from lowbit.suite.judge import DTYPES, Options, Settings
from lowbit.suite.test_encode import CHUNK, given, pinned_range


def converted(scheme: Scheme) -> bool:
    """Schemes whose elements are what the instruction gives: E2M1, ties to even, two in a byte of their own."""
    to_even = scheme.element is E2M1 and scheme.rounding is Rounding.TIES_TO_EVEN
    return to_even and scheme.family in ("mxfp4", "nvfp4") and scheme.canonical


def no_instruction(settings: Settings) -> str:
    """Why the GPU's conversion cannot be judged here."""
    wanted = "needs an NVIDIA GPU of compute capability 10.0: conversion to E2M1 by its own instruction is NOT judged"
    if settings.device != "cuda" or settings.interpreted:
        return f"{wanted}, this run has no GPU"
    if torch.version.hip is not None:
        return f"{wanted}, this GPU is another maker's"
    major, minor = torch.cuda.get_device_capability()
    return "" if major >= 10 else f"{wanted}, this GPU has {major}.{minor}"


@check("encode hardware", where=converted, lacks=no_instruction)
def test_conversion_by_the_gpu(judge: BlockJudge) -> None:
    """Boundary and special values in every lane, all 16-bit values; at level exhaustive all binary32 beside a pin."""
    if not judge.implementation.hardware:
        raise Unsupported(f"{judge.implementation.name} declares no hardware=")
    pin = cases.pins(judge.scheme)[0]
    options = given(judge, pin)
    for dtype, fmt in DTYPES.items():
        patterns = cases.edge_blocks(judge.scheme, fmt)
        in_float32 = dtype is torch.float32
        x = judge.tensor(cases.floats(patterns)) if in_float32 else judge.tensor_of_patterns(patterns, dtype)
        with judge.part(f"{fmt.name}, edges"):
            quantize(judge, x, options)
    for fmt, dtype in ((BFLOAT16, torch.bfloat16), (BINARY16, torch.float16)):
        raw = judge.tensor_of_patterns(cases.all_patterns_16(fmt), dtype).reshape(-1, judge.scheme.block)
        with judge.part(f"{fmt.name}, as they come"):
            quantize(judge, raw, options)
        wide = cases.widened(cases.all_patterns_16(fmt), fmt)
        pinned = cases.pinned_blocks(wide[np.isfinite(wide)], judge.scheme, pin)
        with judge.part(f"{fmt.name}, beside a pin"):
            quantize(judge, judge.tensor(pinned), options)
    judge.assurance = f"exhaustive({judge.compared}), bfloat16 and binary16, and edges of binary32"
    if judge.settings.at_least("exhaustive"):
        quantize_all(judge, pin, options)
        judge.assurance = f"exhaustive({judge.compared}), every binary32 up to the pin, NaN and Inf"


def quantize(judge: BlockJudge, x: torch.Tensor, options: Options) -> None:
    """Judges one call that asks for the instruction; to the references it is a call like any other."""
    result = judge.implementation.call("quantize", x, judge.scheme, hardware=True, **options)
    judge.compare_quantized(x, result, judge.expected(x, **options), **options)


def quantize_all(judge: BlockJudge, pin: cases.Pin, options: Options) -> None:
    """Every pattern that leaves the pin the largest of its block, and blocks of Inf and NaN."""
    step = CHUNK // judge.scheme.block * (judge.scheme.block - 1)
    for sign in (0, cases.SIGN):
        for start in range(0, pin.amax + 1, step):
            count = min(step, pin.amax + 1 - start)
            quantize(judge, pinned_range(judge, sign + start, count, pin.amax), options)
        quantize(judge, pinned_range(judge, sign + cases.INFINITY, 0x80000000 - cases.INFINITY, None), options)
