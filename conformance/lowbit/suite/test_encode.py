"""Element codes: every value at which a rule changes its mind, every 16-bit input, all 2**32 inputs."""

from __future__ import annotations

import numpy as np
import torch

from lowbit.cases import blocks as cases
from lowbit.formats import BFLOAT16, BINARY16, E4M3
from lowbit.rules import Rounding
from lowbit.schemes import Scheme
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check, full_for_canonical, quick_for_representatives
from lowbit.suite.judge import DTYPES, Options

CHUNK = 1 << 27
"""Elements a step over 2**32: 512 MiB of float32."""


def given(judge: BlockJudge, pin: cases.Pin) -> Options:
    """The tensor scale that goes with a pin, where there is one."""
    if pin.tensor_scale is None:
        return {}
    return {"tensor_scale": judge.tensor(np.array([pin.tensor_scale], dtype=np.float32))}


@check("encode", exact=True)
def test_boundaries(judge: BlockJudge) -> None:
    """Grid values, midpoints and their neighbours, in every lane, at the least, the unit and the greatest scale."""
    values = cases.floats(cases.boundary_patterns(judge.scheme.element))
    finite = values[np.isfinite(values)]
    rows = []
    for name, pin in zip(("unit scale", "least scale", "greatest scale"), cases.pins(judge.scheme), strict=True):
        scale = float(cases.floats([pin.amax])[0]) / float(judge.scheme.element.max_value)
        with np.errstate(over="ignore"):  # what leaves binary32 is above the pin and left out
            scaled = finite if name == "unit scale" else (finite * np.float64(scale)).astype(np.float32)
        once = cases.pinned_blocks(scaled, judge.scheme, pin, rotate=True)
        rows += [once, *(np.roll(once, shift, axis=1) for shift in (1, 5, judge.scheme.block // 2))]
    x = np.concatenate(rows)
    judge.quantize(judge.tensor(x), **given(judge, pin))
    judge.assurance = f"breakpoints({x.size})"


@check("encode special", exact=True)
def test_special_values(judge: BlockJudge) -> None:
    """±0, subnormals, ±Inf and NaN in each lane, alone, and filling a block."""
    if cases.spoils_tensor(judge.scheme):
        # One NaN decides the whole tensor: finite blocks together, then each special row as a tensor of its own.
        judge.quantize(judge.tensor(cases.finite_special_blocks(judge.scheme)))
        blocks = cases.special_blocks(judge.scheme)
        for row in blocks[~np.isfinite(blocks).all(axis=1)][:: judge.scheme.block + 1]:
            judge.quantize(judge.tensor(row[None]))
    else:
        judge.quantize(judge.tensor(cases.special_blocks(judge.scheme)))
    judge.assurance = f"breakpoints({judge.compared}), special values in every lane"


@check("encode edges", level=quick_for_representatives)
def test_edges_of_each_dtype(judge: BlockJudge) -> None:
    """Boundary and special values in every lane and in pairs, as the input's own bits, in each input type.

    Contiguous, and through an odd storage offset and every second column; a view is read or refused.
    """
    options = given(judge, cases.pins(judge.scheme)[0])  # a given g keeps one NaN or Inf from spoiling the tensor
    for dtype, fmt in DTYPES.items():
        patterns = cases.edge_blocks(judge.scheme, fmt)
        if dtype is torch.float32:
            x = judge.tensor(cases.floats(patterns))
        else:
            x = judge.tensor_of_patterns(patterns, dtype)
        expected = judge.expected(x, **judge.random_options(tuple(x.shape)), **options)
        with judge.part(fmt.name):
            judge.quantize(x, expected=expected, **options)
        shifted = torch.zeros(x.numel() + 7, dtype=dtype, device=x.device)[7:].view(x.shape)
        spread = torch.full((len(x), 2 * x.shape[1]), 3.0, dtype=dtype, device=x.device)[:, ::2]
        every = judge.scheme.canonical or not judge.settings.interpreted
        for name, view, wanted in (
            ("storage offset 7", shifted, dtype is torch.bfloat16),
            ("every second column", spread, dtype is torch.float16),
        ):
            if not (every or wanted):
                continue
            view.copy_(x)
            with judge.part(f"{fmt.name}, {name}"), judge.may_refuse(name):
                judge.quantize(view, expected=expected, **options)
    judge.assurance = f"breakpoints({judge.compared}), edges of binary32, bfloat16 and binary16"


@check("encode 16-bit", level=full_for_canonical)
def test_all_16_bit(judge: BlockJudge) -> None:
    """All 65,536 bfloat16 and all 65,536 binary16 inputs, as elements beside a pin and as they come."""
    pin = cases.pins(judge.scheme)[0]
    for fmt, dtype in ((BFLOAT16, torch.bfloat16), (BINARY16, torch.float16)):
        wide = cases.widened(cases.all_patterns_16(fmt), fmt)
        magnitudes = np.abs(wide[np.isfinite(wide)])
        # The pin has to be a value of the dtype as well: the greatest one of that magnitude at most.
        greatest = magnitudes[magnitudes <= cases.floats([pin.amax])[0]].max()
        fitting = cases.Pin(int(cases.patterns(greatest)), pin.tensor_scale)
        blocks = cases.pinned_blocks(wide[np.isfinite(wide)], judge.scheme, fitting)
        with judge.part(fmt.name):
            judge.quantize(judge.tensor(blocks).to(dtype), **given(judge, fitting))
            raw = judge.tensor_of_patterns(cases.all_patterns_16(fmt), dtype).reshape(-1, judge.scheme.block)
            if cases.spoils_tensor(judge.scheme):
                raw = raw[torch.isfinite(raw).all(dim=1)]
            judge.quantize(raw, **given(judge, pin))
    judge.assurance = f"exhaustive({judge.compared}), bfloat16 and binary16"


@check("encode × scale", where=lambda s: s.scale is E4M3 and s.family == "nvfp4", level=full_for_canonical)
def test_all_16_bit_under_every_scale(judge: BlockJudge) -> None:
    """All bfloat16 values (at level exhaustive and on a GPU all binary16 ones too) divided by each E4M3 scale.

    A pin of six times the scale makes it the block's scale; values above the pin are left out.
    """
    one = 1.0 if judge.scheme.tensor_scale in cases.GIVEN else None
    both = judge.settings.at_least("exhaustive") or not judge.settings.interpreted
    for fmt in (BFLOAT16, BINARY16) if both else (BFLOAT16,):
        wide = cases.widened(cases.all_patterns_16(fmt), fmt)
        values = wide[np.isfinite(wide)]
        for first in range(1, E4M3.max_magnitude + 1, 32):
            scales = range(first, min(first + 32, E4M3.max_magnitude + 1))
            amax = (np.array([float(E4M3.magnitude_value(code)) for code in scales]) * 6).astype(np.float32)
            pins = [cases.Pin(int(pattern), one) for pattern in cases.patterns(amax)]
            x = np.concatenate([cases.pinned_blocks(values, judge.scheme, pin) for pin in pins])
            with judge.part(f"{fmt.name}, scale codes {scales[0]:#04x} to {scales[-1]:#04x}"):
                judge.quantize(judge.tensor(x), **given(judge, pins[0]))
    judge.assurance = f"exhaustive({judge.compared}), 16-bit values × E4M3 scales"


@check("encode 2^32", level="exhaustive", needs_gpu=True)
def test_all_patterns_beside_a_pin(judge: BlockJudge) -> None:
    """Every binary32 pattern that leaves a pin in lane 0 the largest, and every NaN and Inf."""
    pin = cases.pins(judge.scheme)[0]
    lanes = judge.scheme.block - 1
    step = CHUNK // judge.scheme.block * lanes
    options = given(judge, pin)
    for sign in (0, cases.SIGN):
        for start in range(0, pin.amax + 1, step):
            count = min(step, pin.amax + 1 - start)
            judge.quantize(pinned_range(judge, sign + start, count, pin.amax), **options)
        if not cases.spoils_tensor(judge.scheme) or options:
            nonfinite = 0x80000000 - cases.INFINITY
            judge.quantize(pinned_range(judge, sign + cases.INFINITY, nonfinite, None), **options)
    judge.assurance = f"exhaustive({judge.compared}), every binary32 up to the pin, NaN and Inf"


def pinned_range(judge: BlockJudge, start: int, count: int, amax: int | None) -> torch.Tensor:
    """(rows, block) float32 on the device: patterns start … start + count - 1 beside the pin, or without one."""
    lanes = judge.scheme.block - (amax is not None)
    rows = -(-count // lanes)
    device = judge.settings.device
    flat = torch.arange(start, start + rows * lanes, dtype=torch.int64, device=device)
    flat.clamp_(max=start + count - 1)
    grid = torch.where(flat >= 1 << 31, flat - (1 << 32), flat).to(torch.int32).view(rows, lanes)
    if amax is not None:
        pins = torch.full((rows, 1), amax, dtype=torch.int32, device=device)
        grid = torch.cat([pins, grid], dim=1)
    return grid.view(torch.float32)


def scalar_stage(scheme: Scheme) -> bool:
    """One scheme for each element format and rounding: the others share their scalar stage."""
    return scheme.name == "nvfp4" or (scheme.base in ("mxfp4_floor", "mx4_ceil_e3m0_g32") and "nan" not in scheme.name)


@check(
    "encode scalar",
    where=scalar_stage,
)
def test_scalar_boundaries(judge: BlockJudge) -> None:
    """The element stage alone on every boundary, where the implementation offers `encode`."""
    x = judge.tensor(cases.floats(cases.boundary_patterns(judge.scheme.element)))
    for options in scalar_options(judge, x):
        judge.encode(x, judge.scheme.element, judge.scheme.rounding, **options)
    judge.assurance = f"breakpoints({judge.compared})"


@check(
    "encode scalar 2^32",
    where=scalar_stage,
    level="exhaustive",
    needs_gpu=True,
)
def test_scalar_all_patterns(judge: BlockJudge) -> None:
    """The element stage alone on all 2**32 inputs."""
    for start in range(0, 1 << 32, CHUNK):
        x = pinned_range(judge, start, CHUNK, None).reshape(-1)
        options = {}
        if judge.scheme.rounding is Rounding.STOCHASTIC:
            bits = torch.arange(start, start + CHUNK, device=x.device)
            options["random_bits"] = (bits * 0x9E3779B1 >> 13).to(torch.uint8)
        judge.encode(x, judge.scheme.element, judge.scheme.rounding, **options)
    judge.assurance = f"exhaustive({judge.compared})"


def scalar_options(judge: BlockJudge, x: torch.Tensor) -> list[Options]:
    """No options, or for stochastic rounding every one of the 256 random bytes for all of x."""
    if judge.scheme.rounding is not Rounding.STOCHASTIC:
        return [{}]
    return [{"random_bits": torch.full(x.shape, r, dtype=torch.uint8, device=x.device)} for r in range(256)]
