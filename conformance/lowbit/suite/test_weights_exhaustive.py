"""Whole domains of weight dequantisation: every scale under every code and zero point, every value of a table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from lowbit.cases import weight_domains
from lowbit.cases.weights import FLAT, periods, store
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.suite.checks import check
from lowbit.suite.judge import DTYPES
from lowbit.suite.weight_judge import TORCH, Tensors, WeightJudge
from lowbit.suite.weight_levels import pairs
from lowbit.weights import WeightScheme

PATTERNS = 1 << 32
"""Of binary32."""

PIECE = 1 << 24
"""Weights of one call, at most, where a domain is larger."""

WIDTH = 512
"""Columns that the interpreter gives to a program."""

SAMPLED, FEWER = 64, 5
"""In the interpreter every so-many-th scale, and value of a table, of domains that are too large there."""

SWEPT = 1 << 25
"""Weights of one call where all binary32 scales are gone through."""

SHORT_DOMAINS = ("awq_g16", "gptq4_v1_g16", "nf4_b32", "fp4_b64", "int8_channel", "squeezellm4")
"""Schemes whose groups are as short as their codes are many: nothing of a domain is tried twice."""


def level_of_domain(scheme: WeightScheme) -> str:
    return "full" if scheme.name in SHORT_DOMAINS else "exhaustive"


def patterns_as(patterns: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Integers up to 2**16 or 2**32 as tensors of these bit patterns."""
    if fmt is BINARY32:
        return torch.where(patterns >= 1 << 31, patterns - (1 << 32), patterns).to(torch.int32).view(torch.float32)
    signed = torch.where(patterns >= 1 << 15, patterns - (1 << 16), patterns).to(torch.int16)
    return signed.view(torch.float16 if fmt is BINARY16 else torch.bfloat16)


@check("weights domain", level=level_of_domain, where=lambda s: s.family in ("awq", "gptq"), judge=WeightJudge)
def test_every_scale_of_integers(judge: WeightJudge) -> None:
    """Codes × zero points × all 65,536 scales of both formats; where that is too much all differences q - z × scales.

    They are those of z = 0 and of the greatest z.
    """
    interpreted = judge.settings.interpreted
    top = judge.scheme.code_range[1]
    whole = not interpreted and (judge.scheme.bits < 8 or judge.scheme.canonical)
    zeros = np.arange(top + 1) if whole else np.array([0, top])
    runs = [zeros] if judge.scheme.group != -1 else [zeros[i : i + 1] for i in range(len(zeros))]
    for source, fmt in domain_pairs(judge):
        for run in runs:
            for tensors in with_every_scale(judge, run, source):
                with judge.part(f"{source.name} scales"):
                    judge.dequantize(tensors, TORCH[fmt])
    what = "every q and z" if whole else "every q - z"
    judge.assurance = f"exhaustive({judge.compared}), {what} × every 16-bit scale"


def domain_pairs(judge: WeightJudge) -> list[tuple[FloatFormat, FloatFormat]]:
    """Formats of scales and of outputs: all; where that is much, of AWQ and of GPTQ each some of those that round."""
    if not judge.settings.interpreted and judge.scheme.bits < 8:
        return pairs(judge.scheme, judge.settings)
    if judge.scheme.family == "awq":
        return [(BINARY16, BINARY16), (BINARY16, BFLOAT16)]
    return [(BFLOAT16, BFLOAT16)]


def with_every_scale(judge: WeightJudge, zeros: np.ndarray, source: FloatFormat) -> Iterator[Tensors]:
    """Weights in which a scale stands over every code, under each zero point, until all patterns were there.

    The interpreter takes them in columns of a program's width, below each other.
    """
    scheme = judge.scheme
    _, zero_period = periods(scheme)
    rows = weight_domains.rows_of(scheme, zeros)
    columns, sets = max(min(1 << 16, PIECE // rows) // zero_period, 1) * zero_period, 1
    if judge.settings.interpreted and scheme.group != -1:
        columns, sets = WIDTH, (1 << 16) // WIDTH
    stored = judge.stored(weight_domains.scale_columns(scheme, np.tile(zeros, sets), columns))
    groups = stored["qzeros"].shape[0]
    of_group = torch.arange(groups, device=judge.settings.device) // (groups // sets) * columns
    places = of_group[:, None] + torch.arange(columns, device=judge.settings.device)
    for start in range(0, 1 << 16, columns * sets):
        yield {**stored, "scales": patterns_as((start + places) % (1 << 16), source)}


@check("weights domain", level=level_of_domain, where=lambda s: s.family in FLAT and not s.nested, judge=WeightJudge)
def test_every_sixteen_bit_absmax(judge: WeightJudge) -> None:
    """All 16 codes under every absmax of a bfloat16 or binary16 value; in the interpreter fewer, to that format."""
    values = weight_domains.sixteen_bit_values()
    halves = {BINARY16: values[: 1 << 16], BFLOAT16: values[1 << 16 :]}
    for fmt, dtype in ((BINARY16, torch.float16), (BFLOAT16, torch.bfloat16), (BINARY32, torch.float32)):
        if judge.settings.interpreted and fmt is BINARY32:
            continue
        patterns = halves[fmt] if judge.settings.interpreted else values
        if judge.settings.interpreted and judge.scheme.group > 32:
            patterns = patterns[:: judge.scheme.group // 16]
        judge.dequantize(every_code_of_blocks(judge, judge.tensor(patterns.view(np.float32))), dtype)
    judge.assurance = f"exhaustive({judge.compared}), codes × 16-bit absmax"


def every_code_of_blocks(judge: WeightJudge, absmax: torch.Tensor) -> Tensors:
    """All codes in turn in every block."""
    size = judge.scheme.group
    packed = store(judge.scheme, np.resize(np.arange(16), size))["packed"]
    count = len(absmax) * size
    return {"packed": judge.tensor(packed).repeat(len(absmax)), "absmax": absmax, "shape": (count,)}


@check("weights domain", level=level_of_domain, where=lambda s: s.family == "int8", judge=WeightJudge)
def test_every_sixteen_bit_scale(judge: WeightJudge) -> None:
    """All 256 codes under every scale that is a bfloat16 or a binary16 value; fewer scales in the interpreter."""
    step = SAMPLED if judge.settings.interpreted else 1
    patterns = weight_domains.sixteen_bit_values()[::step]
    codes = torch.arange(-128, 128, device=judge.settings.device).to(torch.int8)
    for source in judge.scheme.scale_formats:
        for dtype, fmt in DTYPES.items():
            if source is BINARY32:
                scale = judge.tensor(patterns.view(np.float32))
            else:
                scale = patterns_as(torch.arange(0, 1 << 16, step, device=codes.device), source)
            if not judge.settings.interpreted or fmt is source or (source is BINARY32 and fmt is BFLOAT16):
                judge.dequantize({"weight": codes.expand(len(scale), 256).contiguous(), "scale": scale}, dtype)
    kind = f"exhaustive({judge.compared})" if step == 1 else f"breakpoints({judge.compared})"
    judge.assurance = f"{kind}, codes × 16-bit scales"


def plain_tables(scheme: WeightScheme) -> bool:
    return scheme.family == "squeezellm" and not (scheme.sparse or scheme.full_rows)


@check("weights domain", level=level_of_domain, where=plain_tables, judge=WeightJudge)
def test_every_value_of_a_table(judge: WeightJudge) -> None:
    """All binary16 entries; binary32 entries at every point where a cast to 16 bits changes its mind, ± 1."""
    for dtype, fmt in DTYPES.items():
        tables: list[tuple[FloatFormat, np.ndarray]] = [(BINARY16, np.arange(1 << 16))]
        if fmt is not BINARY32:
            tables.append((BINARY32, weight_domains.turning_points(fmt)))
        for source, patterns in tables:
            step = FEWER if judge.settings.interpreted else 1
            for arrays in weight_domains.cast_tables(judge.scheme, patterns[::step], source):
                with judge.part(f"{source.name} tables"):
                    judge.dequantize(judge.stored(arrays), dtype)
    judge.assurance = (
        f"{'breakpoints' if judge.settings.interpreted else 'exhaustive'}({judge.compared}), casts of entries"
    )


@check(
    "weights every absmax",
    level="exhaustive",
    where=lambda s: s.name in ("nf4_b32", "fp4_b64"),
    needs_gpu=True,
    judge=WeightJudge,
)
def test_every_absmax(judge: WeightJudge) -> None:
    """All 16 codes under all 2**32 absmax, to binary32; of FP4, whose blocks are longer, every 16th absmax."""
    step = 16 if judge.scheme.group > 32 else 1
    count = SWEPT // judge.scheme.group
    for start in range(0, PATTERNS, count * step):
        places = torch.arange(start, start + count * step, step, device=judge.settings.device)
        places += (start // (count * step)) % step  # another remainder in every piece
        absmax = patterns_as(places, BINARY32)
        judge.dequantize(every_code_of_blocks(judge, absmax), torch.float32)
    judge.assurance = f"exhaustive({judge.compared}), codes × {'every' if step == 1 else 'every 16th'} absmax"


@check(
    "weights every scale",
    level="exhaustive",
    where=lambda s: s.name in ("int8_channel", "int8_scb"),
    needs_gpu=True,
    judge=WeightJudge,
)
def test_every_scale(judge: WeightJudge) -> None:
    """Eight codes under all 2**32 scales, to bfloat16."""
    device = judge.settings.device
    codes = torch.tensor([-128, -127, -1, 0, 1, 3, 85, 127], dtype=torch.int8, device=device)
    count = SWEPT // len(codes)
    weight = codes.expand(count, len(codes)).contiguous()
    for start in range(0, PATTERNS, count):
        scale = patterns_as(torch.arange(start, start + count, device=device), BINARY32)
        judge.dequantize({"weight": weight, "scale": scale}, torch.bfloat16)
    judge.assurance = f"exhaustive({judge.compared}), 8 codes × every scale"
