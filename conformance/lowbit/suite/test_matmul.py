"""The matmul of two quantised operands: exact on exactly summable operands, within a derived bound on others."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from lowbit.cases.summable import Operands, exactly_summable
from lowbit.references import bits
from lowbit.schemes import Encoded, Scheme
from lowbit.suite.checks import check
from lowbit.suite.judge import Settings
from lowbit.suite.matmul_judge import MatmulJudge, rows_of
from lowbit.suite.poison import poisoned

SMALL = ((1, 8, 1), (3, 24, 3), (5, 40, 65), (16, 136, 5), (129, 136, 9))
"""M, N and blocks in K: each of M, N and K below, at and above a tile, the number of blocks odd."""

MORE = ((127, 8, 1), (128, 24, 2), (17, 264, 4), (2, 8, 129))

EDGES = (1, 3, 16, 127, 128, 129)

GRID: dict[int, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]] = {
    16: ((EDGES, (8, 136, 1000)),),
    80: ((EDGES, (8, 136, 1000)),),
    1040: ((EDGES, (8, 136, 1000)),),
    4112: ((EDGES, (8, 1000)),),
    8192: (((3, 127, 128, 4096), (8, 1000)), ((1, 16, 129, 4096), (8192,))),
}
"""On a GPU: about K, see `blocks_of`, and every M with every N."""


def blocks_of(scheme: Scheme, terms: int) -> int:
    """Blocks in K: 8,192 as it is, else an odd number, so that the last tile of scales is partial."""
    count = terms // scheme.block
    return count if terms == 8192 else count | 1


FLOAT32 = (torch.float32,)


def multiplied(scheme: Scheme) -> bool:
    """One scheme of each format: how the codes came about is nothing to a matmul."""
    return scheme.family in ("nvfp4", "mxfp4") and scheme.canonical


def on_gpu(settings: Settings) -> bool:
    """Whether large shapes are cheap."""
    return settings.device == "cuda" and not settings.interpreted


def no_blackwell(settings: Settings) -> str:
    """Why the hardware's block-scaled matmul cannot be judged here."""
    wanted = "needs compute capability 10.0 (Blackwell): torch's scaled matmul on FP4 tensor cores is NOT judged"
    if not on_gpu(settings):
        return f"{wanted}, this run has no GPU"
    if torch.version.hip:  # its numbers are those of other architectures
        return f"{wanted}, this GPU is none of NVIDIA's"
    major, minor = torch.cuda.get_device_capability()
    return "" if major >= 10 else f"{wanted}, this GPU has {major}.{minor}"


@check("matmul exact", where=multiplied, exact=True, judge=MatmulJudge)
def test_exactly_summable_operands(judge: MatmulJudge) -> None:
    """Operands whose product has one right bit pattern in any order of accumulation; every output dtype."""
    scheme, seed = judge.scheme, judge.settings.seed
    shapes: tuple[tuple[int, int, int], ...] = SMALL
    if judge.settings.at_least("full") and not on_gpu(judge.settings):
        shapes += MORE
    for rows, columns, blocks in shapes:
        with judge.part(f"{rows} × {columns} × {blocks * scheme.block}"):
            judge.multiply(exactly_summable(scheme, rows, columns, blocks * scheme.block, seed))
    if scheme.family == "nvfp4":
        multiply_tensor_scales(judge)
    for fill in (0xFF, 0x00):
        with judge.part(f"fill {fill:#04x}"), poisoned(fill, judge):
            judge.multiply(exactly_summable(scheme, 19, 40, 3 * scheme.block, seed), FLOAT32)
    judge.assurance = f"sampled({judge.compared}, {seed}), exactly summable"


def multiply_tensor_scales(judge: MatmulJudge) -> None:
    """Sides without a tensor scale, scales that no power of two is, factors that under- and overflow."""
    block, seed = judge.scheme.block, judge.settings.seed
    cases: tuple[tuple[float | None, float | None], ...] = (
        *((None, None), (0.25, None), (None, 3.0), (0.7, 1.3), (448.0, 2688.0)),
        *((2.0**-60, 2.0**-60), (2.0**80, 2.0**60), (3e38, 1e-38)),
    )
    for scales in cases:
        with judge.part(f"tensor scales {scales[0]}, {scales[1]}"):
            judge.multiply(exactly_summable(judge.scheme, 9, 24, 5 * block, seed, tensor_scales=scales))
    operands = exactly_summable(judge.scheme, 9, 24, 5 * block, seed)
    signs = np.random.default_rng(seed).integers(0, 2, operands.b.scales.shape, dtype=np.uint8) << 7
    if not no_blackwell(judge.settings):
        judge.notes.append("negative scales left out: the hardware's scales have no sign")
        return
    with judge.part("negative scales"):
        judge.multiply(Operands(operands.a, operands.b._replace(scales=operands.b.scales | signs)))


@check("matmul shapes", where=multiplied, level="full", needs_gpu=True, exact=True, judge=MatmulJudge)
@pytest.mark.parametrize("about", GRID, ids="K{}".format)
def test_exactly_summable_in_every_tile(judge: MatmulJudge, about: int) -> None:
    """Exactly summable operands of every shape of `GRID`, cut out of one pair for each K; every output dtype."""
    seed, groups = judge.settings.seed, GRID[about]
    terms = blocks_of(judge.scheme, about) * judge.scheme.block
    largest = [max(max(group[side]) for group in groups) for side in (0, 1)]
    whole = exactly_summable(judge.scheme, largest[0], largest[1], terms, seed)
    for m, n in (shape for group in groups for shape in itertools.product(*group)):
        with judge.part(f"{m} × {n} × {terms}"):
            judge.multiply(rows_of(whole, m, n))
    judge.assurance = f"sampled({judge.compared}, {seed}), exactly summable"


@check("matmul padding", where=multiplied, exact=True, judge=MatmulJudge)
def test_padding_of_scales(judge: MatmulJudge) -> None:
    """Bytes of the swizzled buffers that hold no scale are NaN, or 0x7F: nothing of them reaches the product."""
    scheme, seed = judge.scheme, judge.settings.seed
    fills = sorted({scheme.scale.nan_magnitude or 0, 0x7F})
    for rows, columns, blocks in ((1, 8, 1), (3, 24, 5), (130, 40, 6), (17, 136, 3)):
        for fill in fills:
            with judge.part(f"{rows} × {columns} × {blocks * scheme.block}, padding {fill:#04x}"):
                operands = exactly_summable(scheme, rows, columns, blocks * scheme.block, seed)
                judge.multiply(operands, FLOAT32, padding=fill)
    judge.assurance = f"property({4 * len(fills)}, {seed}), poisoned padding"


@check("matmul bounded", where=multiplied, judge=MatmulJudge)
def test_arbitrary_operands(judge: MatmulJudge) -> None:
    """Any codes and scales, quantised normal values, rows with NaN: within the bound of the operands, NaN by class."""
    scheme, seed = judge.scheme, judge.settings.seed
    shapes = [(33, 40, 9)]
    if judge.settings.at_least("full"):
        large = [(129, 1000, 65), (128, 1024, 8192 // scheme.block)]
        shapes += large if on_gpu(judge.settings) else [(129, 24, 9)]
    for rows, columns, blocks in shapes:
        shape = rows, columns, blocks * scheme.block
        name = " × ".join(map(str, shape))
        for kind, least, greatest in scale_ranges(scheme):
            with judge.part(f"{name}, {kind}"):
                judge.multiply_bounded(arbitrary(scheme, *shape, seed, least, greatest))
        with judge.part(f"{name}, quantised normal values"):
            judge.multiply_bounded(quantised(scheme, *shape, seed))
    with judge.part("NaN rows"):
        judge.multiply_bounded(
            with_nan(arbitrary(scheme, 19, 40, 5 * scheme.block, seed, *scale_ranges(scheme)[0][1:]))
        )
    judge.assurance = f"sampled({judge.compared}, {seed}), within the bound of compare/bounds.py"


def scale_ranges(scheme: Scheme) -> tuple[tuple[str, int, int], ...]:
    """Ranges of scale bytes, inclusive, by name. MXFP4's bytes from 253 are left out: no bfloat16 holds the operand."""
    if scheme.family == "nvfp4":
        return ("any scale", 0x00, 0x7E), ("scales of one binade", 0x38, 0x3F), ("subnormal scales", 0x00, 0x07)
    return ("scales around 1", 117, 137), ("products that underflow", 44, 66), ("sums that overflow", 182, 190)


def arbitrary(scheme: Scheme, rows: int, columns: int, terms: int, seed: int, least: int, greatest: int) -> Operands:
    """Random codes and scale bytes, tensor scales that are no powers of two."""
    generator = np.random.default_rng([seed, rows, columns, terms, least])
    sides = []
    for count, g in ((rows, 0.7), (columns, 11.0)):
        codes = generator.integers(0, 16, (count, terms), dtype=np.uint8)
        scales = generator.integers(least, greatest + 1, (count, terms // scheme.block)).astype(np.uint8)
        sides.append(Encoded(codes, scales, np.float32(g) if scheme.family == "nvfp4" else None))
    return Operands(*sides)


def quantised(scheme: Scheme, rows: int, columns: int, terms: int, seed: int) -> Operands:
    """What the reference makes of normal values."""
    generator = np.random.default_rng([seed, rows, columns, terms])
    values = (generator.standard_normal((count, terms), dtype=np.float32) for count in (rows, columns))
    return Operands(*(bits.quantize(x, scheme) for x in values))


def with_nan(operands: Operands) -> Operands:
    """NaN as one scale of a few rows of either side, the last one among them."""
    sides = []
    for side in operands:
        scales = side.scales.copy()
        scales[[1, 4, -1], [0, 2, -1]] = 0xFF if side.tensor_scale is None else 0x7F
        sides.append(side._replace(scales=scales))
    return Operands(*sides)


@check("matmul blackwell", where=multiplied, lacks=no_blackwell, judge=MatmulJudge)
def test_hardware_scaled_matmul(judge: MatmulJudge) -> None:
    """On FP4 tensor cores: exactly summable operands, shapes that every version of torch's scaled matmul takes."""
    for rows, columns, terms in ((1, 128, 128), (16, 128, 256), (129, 256, 1024), (128, 1024, 8192)):
        with judge.part(f"{rows} × {columns} × {terms}"):
            judge.multiply(exactly_summable(judge.scheme, rows, columns, terms, judge.settings.seed))
    judge.assurance = f"sampled({judge.compared}, {judge.settings.seed}), exactly summable, on the tensor cores"
