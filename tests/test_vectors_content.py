"""What the golden vectors hold, and that the reader says what the files say."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowbit import schemes
from lowbit.formats import BINARY32, E2M1, LOW_BIT
from lowbit.references import bits
from lowbit.rules import NanCode, Rounding
from lowbit.schemes import Encoded
from lowbit.vectors import Block, Row, ScaledCodes, Thresholds, groups
from lowbit.vectors.content_formats import DETERMINISTIC

ROOT = Path(__file__).resolve().parents[1]
VECTORS = ROOT / "vectors"


def test_tables_are_complete() -> None:
    """Every format under every deterministic rule, every scheme's scales; lint has seen that no row is missing."""
    complete = {g.name for g in groups() if "complete" in g.group_flags}
    assert {f"{f.name}/{r.value}" for f in LOW_BIT for r in DETERMINISTIC} <= complete
    assert {f"{f.name}/{n.value}" for f in LOW_BIT if f.nan_magnitude is None for n in NanCode} <= complete
    scaled = {scheme for g in groups() if g.kind == "scale" for scheme in g.schemes}
    exponents = {scheme for g in groups() if g.form == "exponents" for scheme in g.schemes}
    assert scaled | exponents == set(schemes.names())


def test_a_table_decides_every_input() -> None:
    """E2M1 to nearest even, expanded over bfloat16: 65,536 inputs, of which 254 are NaN."""
    group = next(g for g in groups() if g.name == "e2m1/ties_to_even")
    patterns = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    firsts = np.array([row.first for row in group.cases if isinstance(row, Row)])
    codes = np.array([row.code for row in group.cases if isinstance(row, Row)])
    finite = patterns & np.uint32(0x7FFFFFFF) <= 0x7F800000
    expanded = codes[np.searchsorted(firsts, patterns[finite], side="right") - 1]
    right = bits.encode(patterns[finite].view(np.float32), E2M1, Rounding.TIES_TO_EVEN)
    assert (expanded == right).all()
    assert finite.sum() == 65_536 - 254
    assert group.decides == 2 * 0x7F800001


def test_thresholds_decide_every_random_byte() -> None:
    group = next(g for g in groups() if g.name == "e2m1/stochastic")
    firsts = np.stack([case.firsts for case in group.cases if isinstance(case, Thresholds)]).astype(np.int64)
    patterns = np.arange(0x3B000000, 0x41000000, 0x35A5A, dtype=np.uint32)
    for r in (0, 1, 127, 128, 200, 255):
        codes = (firsts[:, r, None] <= patterns[None, :]).sum(axis=0)
        random = np.full(patterns.shape, r, np.uint8)
        right = bits.encode(patterns.view(np.float32), E2M1, Rounding.STOCHASTIC, random_bits=random)
        assert (codes == right).all()


def test_every_scheme_has_blocks_and_batches_say_what_cases_say() -> None:
    """A reference, called as the suite calls a kernel, gives every batch's answer."""
    seen = set()
    rows = 0
    for group in groups():
        if group.form not in ("blocks", "stream"):
            continue
        seen.add(group.subject)
        for batch in group.batches():
            encoded = bits.quantize(batch.x, schemes.get(group.subject), **batch.options)
            assert (encoded.codes == batch.expected.codes).all(), (group.name, batch.names)
            assert (encoded.scales == batch.expected.scales).all(), (group.name, batch.names)
            assert len(batch.names) == len(batch.x)
            rows += len(batch.x)
    assert seen == set(schemes.names())
    assert rows > 5000


@pytest.mark.parametrize("name", ["mxfp4_floor", "mx4_ceil_e2m1_g32", "nvfp4", "mx4_floor_e3m0_g8"])
def test_every_tie_is_met_in_every_lane(name: str) -> None:
    scheme = schemes.get(name)
    group = next(g for g in groups() if g.name == f"{name}/ties")
    x = np.concatenate([case.x for case in group.cases if isinstance(case, Block)])
    values = [float(v) for v in scheme.element.magnitudes]
    reached = [v for v in ((a + b) / 2 for a, b in itertools.pairwise(values)) if v <= np.abs(x).max()]
    for tie in (sign * v for v in reached for sign in (1, -1)):
        assert (x == np.float32(tie)).any(axis=0).all(), tie
    assert len(reached) >= 6


@pytest.mark.parametrize("name", ["mxfp4_floor", "mx4_ceil_e2m1_g32", "nvfp4"])
def test_nan_and_inf_in_every_lane_of_canonical_schemes(name: str) -> None:
    group = next(g for g in groups() if g.name == f"{name}/specials")
    names = {case.name for case in group.cases}
    block = schemes.get(name).block
    wanted = {f"{p} in lane {i}" for p in ("7f800001", "ffc00000", "7f800000", "ff800000") for i in range(block)}
    assert wanted <= names


def test_decoding_holds_for_the_other_schemes_too() -> None:
    """Group by group: `also` is no guess."""
    for group in groups():
        if group.form != "scaled_codes":
            continue
        cases = [case for case in group.cases if isinstance(case, ScaledCodes)]
        g = None if group.tensor_scale is None else np.uint32(group.tensor_scale).view(np.float32)
        right = np.stack([case.patterns("binary32") for case in cases])
        for name in group.also:
            scheme = schemes.get(name)
            codes = np.tile(np.arange(16, dtype=np.uint8), (256, scheme.block // 16 or 1))[:, : max(16, scheme.block)]
            scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], codes.shape[1] // scheme.block, axis=1)
            values = bits.dequantize(Encoded(codes, scales, g), scheme, BINARY32)[:, :16]
            nan = np.isnan(right.view(np.float32))
            assert (np.isnan(values.view(np.float32)) == nan).all(), name
            assert (values == right)[~nan].all(), name


def test_the_reader_of_the_document_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program in VECTORS.md runs, passes with a right encoder, and fails with one that takes ties away."""
    program = re.search(r"```python\n(.*?)```", (VECTORS / "VECTORS.md").read_text(), re.S)
    assert program
    monkeypatch.chdir(ROOT)

    def encoder(rounding: Rounding) -> Callable[[int], int]:
        return lambda pattern: int(bits.encode(np.array([pattern], np.uint32).view(np.float32), E2M1, rounding)[0])

    def quantiser(x: list[int], shape: list[int]) -> tuple[list[int], list[int]]:
        encoded = bits.quantize(np.array(x, np.uint32).view(np.float32).reshape(shape), schemes.get("mxfp4_floor"))
        return encoded.codes.ravel().tolist(), encoded.scales.ravel().tolist()

    names = {"my_encoder": encoder(Rounding.TIES_TO_EVEN), "my_quantiser": quantiser}
    exec(program[1], names)
    with pytest.raises(AssertionError):
        exec(program[1], {**names, "my_encoder": encoder(Rounding.TIES_AWAY)})


def test_the_document_states_the_ends_of_e8m0() -> None:
    """What VECTORS.md says in words of -0, Inf, what is too small and what is negative, is what the tables say."""
    text = " ".join((VECTORS / "VECTORS.md").read_text().split())
    assert "What is below 2^-127 becomes `00` under every rule, +0 and −0 included" in text
    assert "every negative number, −Inf included but not −0, and every NaN becomes `ff`" in text
    right = {0: 0, 1: 0, 0x003FFFFF: 0, 0x80000000: 0, 0x7F000001: 0xFE, 0x7F800000: 0xFE, 0x7F800001: 0xFF}
    right |= {0x7FFFFFFF: 0xFF, 0x80000001: 0xFF, 0xFF800000: 0xFF, 0xFFFFFFFF: 0xFF}
    tables = [g for g in groups() if g.format == "e8m0" and g.kind == "breakpoints"]
    assert len(tables) == len(DETERMINISTIC)
    for group in tables:
        rows = [case for case in group.cases if isinstance(case, Row)]
        found = {p: next(row.code for row in rows if row.first <= p <= row.last) for p in right}
        assert found == right, group.name
