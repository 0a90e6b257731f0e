"""The golden vectors: answers that stand in files, on which independent witnesses agreed before a kernel saw them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from lowbit import packing, vectors
from lowbit.cases import blocks as cases
from lowbit.formats import BINARY32
from lowbit.rules import Rounding, ScaleLayout
from lowbit.schemes import Encoded, Scheme
from lowbit.suite.answers import decodes_to_patterns, elements_are, encodes_to, given, quantize_golden, scales_of
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check, quick_for_representatives, quick_for_representatives_full_for_all
from lowbit.suite.convert import padding_mask
from lowbit.suite.judge import DTYPES, Options
from lowbit.suite.test_encode import scalar_stage
from lowbit.vectors import Group

CHUNK = 1 << 27
"""Patterns a step over a table that is expanded on the device."""


def of_scheme(judge: BlockJudge, *forms: str) -> Iterator[Group]:
    """The groups of those forms whose answers hold under the scheme."""
    for group in vectors.groups(judge.settings.vectors):
        if group.form in forms and judge.scheme.name in group.schemes:
            yield group


def of_format(judge: BlockJudge, form: str) -> Iterator[Group]:
    """The groups of that form for the scheme's element and rounding, and for its NaN rule."""
    for group in vectors.groups(judge.settings.vectors):
        if group.form != form or group.format != judge.scheme.element.name:
            continue
        if judge.scheme.nan.value == group.nan or (group.nan is None and group.rounding == judge.scheme.rounding.value):
            yield group


@check("golden blocks", level=quick_for_representatives_full_for_all)
def test_blocks(judge: BlockJudge) -> None:
    """Small tensors: codes, scales and tensor scale as the files have them."""
    for group in of_scheme(judge, "blocks", "stream"):
        for batch in group.batches():
            options = {name: given(judge, value) for name, value in batch.options.items()}
            expected = Encoded(*(given(judge, part) for part in batch.expected))
            with judge.part(f"{group.file}, {group.name}"):
                quantize_golden(judge, judge.tensor(batch.x), expected, batch.names, **options)
        if group.form == "stream":
            judge_streams(judge, group)
    judge.assurance = f"golden({judge.compared})"


def judge_streams(judge: BlockJudge, group: Group) -> None:
    """The stored bytes themselves: where each code and each scale lies in the stream."""
    for case in group.cases:
        if isinstance(case, vectors.Block) and case.packed is not None:
            options = {name: given(judge, value) for name, value in case.options.items()}
            result = judge.implementation.call("quantize", judge.tensor(case.x), judge.scheme, **options)
            with judge.part(f"{group.file}, {group.name}, {case.name}"):
                judge.same_bytes(result[0], judge.tensor(case.packed), tensor="stream")


@check("golden decode", level=quick_for_representatives, where=lambda s: s.family != "rtn_xxfp4")
def test_decode(judge: BlockJudge) -> None:
    """Every code under every scale code, and the decoding faults that were reported."""
    lanes = np.resize(np.arange(1 << judge.scheme.element.bits), -(-16 // judge.scheme.block) * judge.scheme.block)
    for group in of_scheme(judge, "scaled_codes", "decoded"):
        factor = None if group.tensor_scale is None else judge.tensor(cases.floats([group.tensor_scale]))
        for dtype, fmt in DTYPES.items():
            names, codes, scales, patterns = decoded_rows(group, fmt.name, lanes)
            if not len(codes):
                continue
            columns = len(lanes) // judge.scheme.block
            encoded = Encoded(judge.tensor(codes), judge.tensor(np.repeat(scales[:, None], columns, axis=1)), factor)
            with judge.part(f"{group.file}, {group.name}"):
                decodes_to_patterns(judge, packing.pack(encoded, judge.scheme), dtype, patterns, names)
    judge.assurance = f"golden({judge.compared})"


def ends_of(rows: list[vectors.Row]) -> list[str]:
    """The cases of the first and last amax of each row."""
    return [row.name for row in rows for _ in range(2)]


def decoded_rows(group: Group, fmt: str, lanes: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Names (N), codes (N, lanes), scale codes (N,) and patterns (N, lanes) of a group's cases, one row a case."""
    names, codes, scales, patterns = [], [], [], []
    for case in group.cases:
        if isinstance(case, vectors.ScaledCodes):
            row, values = lanes, case.patterns(fmt)[lanes]
        elif isinstance(case, vectors.Decoded) and fmt == BINARY32.name:
            row, values = np.full(len(lanes), case.code), np.full(len(lanes), case.binary32, dtype=np.uint32)
        else:
            continue
        names.append(case.name)
        codes.append(row.astype(np.uint8))
        scales.append(case.scale)
        patterns.append(values)
    return names, np.array(codes, dtype=np.uint8), np.array(scales, dtype=np.uint8), np.array(patterns)


@check("golden scale", where=lambda s: s.exponent_range is not None or s.family == "nvfp4")
def test_scale(judge: BlockJudge) -> None:
    """The first and the last amax of every scale code; on a GPU at level exhaustive every amax of the table."""
    whole = judge.settings.at_least("exhaustive") and judge.settings.device == "cuda"
    for group in of_scheme(judge, "rows"):
        factor: Options = (
            {} if group.tensor_scale is None else {"tensor_scale": judge.tensor(cases.floats([group.tensor_scale]))}
        )
        with judge.part(f"{group.file}, {group.name}"):
            rows = [case for case in group.cases if isinstance(case, vectors.Row)]
            ends = np.array([[row.first, row.last] for row in rows], dtype=np.int64)
            codes = np.array([row.code for row in rows], dtype=np.uint8)
            scales_of(judge, judge.tensor(ends.reshape(-1)), judge.tensor(np.repeat(codes, 2)), ends_of(rows), **factor)
            if not whole:
                continue
            firsts, table = judge.tensor(ends[:, 0]), judge.tensor(codes)
            stop = int(ends[-1, 1]) + 1
            for start in range(int(ends[0, 0]), stop, CHUNK // 4):
                amax = torch.arange(start, min(start + CHUNK // 4, stop), device=firsts.device)
                scales_of(judge, amax, table[torch.searchsorted(firsts, amax, right=True) - 1], **factor)
    for group in of_scheme(judge, "exponents"):
        found = [case for case in group.cases if isinstance(case, vectors.Exponent)]
        largest = np.array([case.x for case in found for _ in range(2)], dtype=np.int64)
        bits = np.array([r for case in found for r in (case.first, case.last)], dtype=np.int32)
        with judge.part(f"{group.file}, {group.name}"):
            expected = judge.tensor(np.array([case.code for case in found for _ in range(2)], dtype=np.uint8))
            scales_of(judge, judge.tensor(largest), expected, scale_random_bits=judge.tensor(bits[:, None]))
    judge.assurance = f"golden({judge.compared})"


@check("golden elements", where=lambda s: s.family != "rtn_xxfp4")
def test_elements(judge: BlockJudge) -> None:
    """The first and the last pattern of every element code, in blocks of scale 1; NaN in blocks of its own."""
    for group in of_format(judge, "rows"):
        rows = [case for case in group.cases if isinstance(case, vectors.Row)]
        patterns = np.array([p for row in rows for p in (row.first, row.last)], dtype=np.uint32)
        codes = np.array([row.code for row in rows for _ in range(2)], dtype=np.uint8)
        with judge.part(f"{group.file}, {group.name}"):
            elements_are(judge, patterns, codes)
    for group in of_format(judge, "thresholds"):
        found = [case for case in group.cases if isinstance(case, vectors.Thresholds)]
        firsts = np.stack([case.firsts for case in found])  # (codes, 256)
        up = np.broadcast_to(np.array([[case.code] for case in found], dtype=np.uint8), firsts.shape)
        randoms = np.broadcast_to(np.arange(256, dtype=np.uint8), firsts.shape)
        patterns, codes = np.stack([firsts - np.uint32(1), firsts]), np.stack([up - np.uint8(1), up])
        patterns = np.stack([patterns, patterns | np.uint32(cases.SIGN)])
        codes = np.stack([codes, codes | np.uint8(judge.scheme.element.sign_mask)])
        with judge.part(f"{group.file}, {group.name}"):
            every = np.broadcast_to(randoms, patterns.shape).reshape(-1)
            elements_are(judge, patterns.reshape(-1), codes.reshape(-1), random_bytes=every)
    judge.assurance = f"golden({judge.compared})"


def tabled_stage(scheme: Scheme) -> bool:
    """A scalar stage whose truth is a table of first patterns: every rounding but the stochastic one."""
    return scalar_stage(scheme) and scheme.rounding is not Rounding.STOCHASTIC


@check("golden elements 2^32", where=tabled_stage, level="exhaustive", needs_gpu=True)
def test_every_pattern(judge: BlockJudge) -> None:
    """The table of first patterns expanded on the device: the complete truth for all 2**32 inputs of `encode`."""
    groups = list(of_format(judge, "rows"))
    rows = sorted((c for g in groups for c in g.cases if isinstance(c, vectors.Row)), key=lambda row: row.first)
    device = judge.settings.device
    firsts = torch.tensor([row.first for row in rows], device=device)
    codes = torch.tensor([row.code for row in rows], dtype=torch.uint8, device=device)
    with judge.part(", ".join(f"{g.file}, {g.name}" for g in groups)):
        for start in range(0, 1 << 32, CHUNK):
            patterns = torch.arange(start, start + CHUNK, device=device)
            expected = codes[torch.searchsorted(firsts, patterns, right=True) - 1]
            encodes_to(judge, patterns, expected)
    judge.assurance = f"golden({judge.compared}), tables expanded"


@check("golden layouts", where=lambda s: s.canonical and s.scale_layout is ScaleLayout.SEPARATE)
def test_layouts(judge: BlockJudge) -> None:
    """Swizzled buffers, byte for byte, padding included, and their inverse."""
    for group in vectors.groups(judge.settings.vectors):
        if group.form != "swizzle":
            continue
        for case in group.cases:
            assert isinstance(case, vectors.Swizzle)
            scales, buffer = judge.tensor(case.scales), judge.tensor(case.buffer)
            padding = padding_mask(buffer.numel(), scales.shape, scales.device)
            with judge.part(f"{group.file}, {group.name}, {case.name}"):
                judge.same_bytes(judge.implementation.call("swizzle", scales), buffer, tensor="buffer", padding=padding)
                if judge.implementation.unswizzle is not None:
                    judge.same_bytes(
                        judge.implementation.call("unswizzle", buffer, *case.shape), scales, tensor="scales"
                    )
    judge.assurance = f"golden({judge.compared})"
