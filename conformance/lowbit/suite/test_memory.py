"""Memory: every output byte is written, none outside, and results repeat."""

from __future__ import annotations

import itertools

import pytest
import torch

from lowbit import packing
from lowbit.cases import blocks as cases
from lowbit.errors import Unsupported
from lowbit.rules import ScaleLayout
from lowbit.schemes import Encoded, Quantized
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check, quick_for_representatives
from lowbit.suite.convert import as_bytes
from lowbit.suite.judge import DTYPES, Options
from lowbit.suite.poison import GUARD, left_over, poisoned

FILLS = (0xFF, 0xA5, 0x00)
"""What uninitialised memory is filled with."""


def blocks(judge: BlockJudge, rows: int = 33, count: int = 5) -> torch.Tensor:
    return judge.tensor(cases.random_blocks(rows, count * judge.scheme.block, judge.settings.seed, binades=6))


@check("unwritten bytes", level=quick_for_representatives)
@pytest.mark.parametrize("swizzle", [False, True], ids=["plain", "swizzled"])
def test_every_byte_is_written(judge: BlockJudge, swizzle: bool) -> None:
    """Under two different fills of uninitialised memory the outputs are the same bytes, and the right ones."""
    if swizzle and judge.scheme.family == "mx4":
        raise Unsupported("an interleaved stream has no scale layout")
    x = blocks(judge)
    found: dict[int, Quantized] = {}
    for fill in FILLS:
        with judge.part(f"fill {fill:#04x}"), poisoned(fill, judge):
            found[fill] = judge.quantize(x, swizzle=swizzle or None)
    for name in ("packed", "scales"):
        left_over({fill: getattr(result, name) for fill, result in found.items()}, name, judge)
    if swizzle and judge.scheme.canonical and judge.implementation.swizzle is not None:
        judge_layout(judge)
    judge.assurance = f"property(3, {judge.settings.seed}), fills of memory"


def judge_layout(judge: BlockJudge) -> None:
    """`swizzle` and `unswizzle` alone: nothing is left unwritten, padding included, and nothing written outside."""
    scales = blocks(judge, rows=130, count=1).view(torch.uint8)[:, :9].contiguous()
    expected = packing.swizzle(scales)
    for fill in FILLS:
        with judge.part(f"fill {fill:#04x}"), poisoned(fill, judge):
            judge.same_bytes(judge.implementation.call("swizzle", scales), expected, tensor="buffer")
            if judge.implementation.unswizzle is not None:
                restored = judge.implementation.call("unswizzle", expected, *scales.shape)
                judge.same_bytes(restored, scales, tensor="unswizzled scales")


@check("unwritten values", level=quick_for_representatives)
def test_every_value_is_written(judge: BlockJudge) -> None:
    """Under three fills of uninitialised memory `dequantize` gives the right values, none of them left over."""
    x = blocks(judge)
    encoded = judge.expected(x, **judge.random_options(tuple(x.shape)))
    stored = packing.pack(encoded, judge.scheme)
    for dtype in DTYPES if judge.scheme.canonical else (torch.bfloat16,):
        found: dict[int, torch.Tensor] = {}
        for fill in FILLS:
            with judge.part(f"fill {fill:#04x}"), poisoned(fill, judge):
                found[fill] = judge.dequantize(stored, encoded, dtype)
        left_over(found, f"values, {DTYPES[dtype].name}", judge)
    judge.assurance = f"property(3, {judge.settings.seed}), fills of memory"


@check("guard bands", level=quick_for_representatives)
def test_nothing_is_written_outside(judge: BlockJudge) -> None:
    """With `out=`, the bytes before and after each buffer keep their fill, under two fills, wherever the buffers begin.

    Where bits are drawn from a seed too: a kernel may write these in another layout than it writes given ones.
    """
    if not judge.implementation.out:
        raise Unsupported(f"{judge.implementation.name} declares no out=")
    x = blocks(judge)
    options = judge.random_options(tuple(x.shape))
    expected = judge.expected(x, **options)
    layouts = [("plain", False)]
    if judge.scheme.scale_layout is ScaleLayout.SEPARATE:
        layouts.append(("swizzled", True))
    for (name, swizzle), fill in itertools.product(layouts, (0xFF, 0xA5)):
        with judge.part(f"{name}, fill {fill:#04x}"):
            judge_guards(judge, x, expected, fill, swizzle=swizzle, options=options)
    seeds: list[Options] = [{}, {"seed": judge.settings.seed}] if judge.scheme.stochastic else [{}]
    count = 2 * len(layouts)
    every = judge.scheme.canonical and not judge.settings.interpreted
    for dtype, seed in itertools.product(DTYPES if every else (torch.bfloat16,), seeds):
        inputs = aligned_differently(x.to(dtype))
        given = seed or options
        expected = judge.expected(x.to(dtype), **given)
        for (name, swizzle), (place, view), shift in itertools.product(layouts, inputs.items(), SHIFTS):
            what = f"{DTYPES[dtype].name}, {name}, {place}, buffers {shift} bytes on{', seed' if seed else ''}"
            count += 1
            with judge.part(what), judge.may_refuse(what):
                judge_guards(judge, view, expected, 0xA5, swizzle=swizzle, options=given, shift=shift)
    judge.assurance = f"property({count}, {judge.settings.seed}), {GUARD} bytes on either side"


SHIFTS = (1, 2, 4)
"""Bytes by which buffers begin after a multiple of 16."""


def aligned_differently(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """(rows, K) as it is, and where pairs of elements are aligned words, and no more of them are; by name."""
    rows, width = x.shape
    found = {"x as it comes": x}
    for name, stride in (("x at offset 2", width), ("x at offset 2, rows two elements apart", width + 2)):
        room = torch.full((rows * stride + 2,), float("nan"), dtype=x.dtype, device=x.device)
        found[name] = room[2:].view(rows, stride)[:, :width].copy_(x)
    return found


def judge_guards(
    judge: BlockJudge,
    x: torch.Tensor,
    expected: Encoded,
    fill: int,
    *,
    swizzle: bool,
    options: Options,
    shift: int = 0,
) -> None:
    """Judges one call with `out=` between guard bands; a padding byte that keeps the fill is a fault as well.

    Args:
      shift: bytes by which both buffers are misaligned.
    """
    want = packing.pack(expected, judge.scheme, swizzle=swizzle)
    arenas: list[torch.Tensor] = []
    views: list[torch.Tensor | None] = []
    for part in want[:2]:
        if part is None:
            views.append(None)
            continue
        arena = torch.full((2 * GUARD + part.numel(),), fill, dtype=torch.uint8, device=x.device)
        arenas.append(arena)
        begin = GUARD + shift
        views.append(arena[begin : begin + part.numel()].view(part.shape))
    scale = None
    if want.tensor_scale is not None:
        scale = torch.full((1,), float("nan"), dtype=torch.float32, device=x.device)
    out = Quantized(views[0], views[1], scale)
    result = judge.quantize(x, expected=expected, out=out, swizzle=swizzle or None, **options)
    for name, arena in zip(("packed", "scales"), arenas, strict=False):
        outside = torch.cat([arena[: GUARD + shift], arena[arena.numel() - GUARD + shift :]])
        judge.same_bytes(outside, torch.full_like(outside, fill), tensor=f"guard of {name}", kind="guard")
    for name, view, got in zip(("packed", "scales"), views, result[:2], strict=True):
        if view is not None and got is not None and as_bytes(got).data_ptr() != view.data_ptr():
            judge.fault("guard", name, f"{name} was not written to the buffer given as out")


@check("determinism", level=quick_for_representatives)
def test_twice_in_a_row(judge: BlockJudge) -> None:
    """The same bytes from the same input, call after call."""
    x = blocks(judge)
    options = judge.random_options(tuple(x.shape))
    first = judge.quantize(x, **options)
    calls = 2 if judge.settings.interpreted else 64
    for _ in range(calls):
        again = judge.implementation.call("quantize", x, judge.scheme, **options)
        for name, got, right in zip(("packed", "scales"), again[:2], first[:2], strict=True):
            if right is not None:
                judge.same_bytes(got, right, tensor=name, kind="nondeterministic")
    judge.assurance = f"property({calls}, {judge.settings.seed}), repeated calls"


@check(
    "placement", level=quick_for_representatives, where=lambda s: not s.stochastic and s.tensor_scale not in cases.GIVEN
)
def test_rows_inside_a_larger_tensor(judge: BlockJudge) -> None:
    """A row's bytes do not depend on the rows around it, nor on how many there are."""
    few = blocks(judge, rows=5)
    many = torch.cat([blocks(judge, rows=150, count=5) * 3, few, blocks(judge, rows=70, count=5) * 0.5])
    inside = judge.quantize(many)
    alone = judge.quantize(few)
    for name, got, right in zip(("packed", "scales"), inside[:2], alone[:2], strict=True):
        if right is not None:
            judge.same_bytes(as_bytes(got)[150:155], as_bytes(right), tensor=name, kind="nondeterministic")
    judge.assurance = f"property(2, {judge.settings.seed}), placements"


@check("random bits", where=lambda s: s.stochastic)
def test_every_random_byte(judge: BlockJudge) -> None:
    """All 256 random bytes for each of a set of values between and on grid points, and seeds by Philox."""
    element, block = judge.scheme.element, judge.scheme.block
    values = cases.floats(cases.boundary_patterns(element))
    values = values[abs(values) <= float(element.max_value)]
    between = [float(a + (b - a) * k / 7) for a, b in itertools.pairwise(element.magnitudes) for k in (1, 2, 3, 5)]
    row = torch.tensor([*values.tolist(), *between], dtype=torch.float32)
    pin = cases.pins(judge.scheme)[0]
    x = judge.tensor(cases.pinned_blocks(row.numpy(), judge.scheme, pin))
    given: Options = (
        {} if pin.tensor_scale is None else {"tensor_scale": judge.tensor(torch.tensor([pin.tensor_scale]))}
    )
    every = x.repeat(256, 1)
    options = judge.random_options(tuple(every.shape))
    if "random_bits" in options:
        bytes_ = torch.arange(256, dtype=torch.uint8, device=x.device)
        options["random_bits"] = bytes_.repeat_interleave(len(x))[:, None].expand(every.shape).contiguous()
    judge.quantize(every, **given, **options)
    odd = judge.tensor(cases.random_blocks(7, 3 * block, judge.settings.seed, binades=3))
    for seed in (0, 1, judge.settings.seed, 2**32 + 5, 2**63 + 11):
        with judge.part(f"seed {seed}"):
            judge.quantize(odd, seed=seed)
    judge.assurance = f"exhaustive(256 random bytes × {x.numel()}), five seeds"
