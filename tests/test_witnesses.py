"""Outside oracles: they differ from the bit-level reference exactly where `DIFFERENCES` says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lowbit.errors import ArgumentError, DtypeError
from lowbit.formats import E2M1, E4M3, E8M0, FORMATS, LOW_BIT, FloatFormat
from lowbit.references import bits
from lowbit.references.witnesses import DIFFERENCES, WITNESSES, Witness, differs, encode
from lowbit.rules import NanCode, Rounding

INSTALLED = [w for w in WITNESSES if w.available]
CASES = [
    pytest.param(w, f, r, id=f"{w.name}-{f.name}-{r.value}") for w in INSTALLED for f in w.formats for r in w.roundings
]


def probes(element: FloatFormat) -> np.ndarray:
    """All bf16 and fp16 values; every code, midpoint, and edge of a named difference, ± 1 ulp; both signs."""
    values = element.magnitudes
    middles = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    beyond = [2 * values[-1] - middles[-1], 2 * values[-1]]
    points = np.array([float(v) for v in (*values, *middles, *beyond)], dtype=np.float64)
    with np.errstate(over="ignore"):
        edges = [points.astype(np.float32).view(np.uint32).astype(np.int64)]
    edges += [np.array(d.patterns, dtype=np.int64).ravel() for d in DIFFERENCES if d.format == element.name]
    edge = np.concatenate([*edges, [0, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000]])
    near = (np.concatenate([edge - 1, edge, edge + 1]) & 0x7FFFFFFF).astype(np.uint32)
    bf16 = np.arange(1 << 16, dtype=np.uint32) << 16
    fp16 = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    return np.unique(np.concatenate([near, near | 0x80000000, bf16, fp16]))


def random_bits(rounding: Rounding, count: int) -> np.ndarray | None:
    if rounding is not Rounding.STOCHASTIC:
        return None
    return np.random.default_rng(0).integers(0, 256, count, dtype=np.uint8)


@pytest.mark.parametrize(("witness", "element", "rounding"), CASES)
def test_a_witness_differs_where_it_is_said_to_and_nowhere_else(witness: Witness, element, rounding):
    pattern = probes(element)
    x, random = pattern.view(np.float32), random_bits(rounding, pattern.size)
    actual = encode(witness, x, element, rounding, random_bits=random)
    expected = bits.encode(x, element, rounding, NanCode.POSITIVE_MAX, random_bits=random)
    wrong = (actual != expected) != differs(witness, element, rounding, pattern)
    first = [(f"{pattern[i]:#010x}", int(actual[i]), int(expected[i])) for i in np.flatnonzero(wrong)[:5]]
    assert not first, f"{wrong.sum()} inputs, of which (pattern, actual, expected): {first}"


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda d: f"{d.witness}-{d.format}-{d.name}".replace(" ", "_"))
def test_every_difference_is_met(difference):
    """Names an existing witness, and no difference is there for nothing: the probes meet it."""
    witness = next(w for w in WITNESSES if w.name == difference.witness)
    assert FORMATS[difference.format] in witness.formats
    assert set(difference.roundings or ()) <= set(witness.roundings)
    assert difference.predicate(probes(FORMATS[difference.format])).any()
    assert all(first <= last for first, last in difference.patterns)


def test_witnesses_among_the_dependencies_are_there():
    """gfloat and gmpy2 are extras; without these two nothing would be compared."""
    assert {"ml_dtypes", "torch"} <= {w.name for w in INSTALLED}


def test_every_format_has_independent_witnesses():
    """gfloat and gmpy2 share no code with each other, ml_dtypes or PyTorch, and cover every format."""
    for element in LOW_BIT:
        assert {w.name for w in WITNESSES if element in w.formats} >= {"gfloat", "gmpy2"}


def test_wider_input_is_refused():
    """ml_dtypes rounds twice on the way from float64 to E2M1: just above the midpoint 0.25 it gives 0, not 0.5."""
    import ml_dtypes

    above = np.array([0.25 + 2.0**-30])
    assert above.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)[0] == 0
    with pytest.raises(DtypeError, match="float32"):
        encode(WITNESSES[0], above, E2M1, Rounding.TIES_TO_EVEN)  # type: ignore[arg-type]


def test_torch_narrows_doubles_through_binary32():
    """One more than a midpoint in binary64 is the midpoint in binary32, and E4M3 then takes the even code."""
    import torch

    double = torch.tensor([1.0625 + 2.0**-40], dtype=torch.float64)
    assert double.to(torch.float8_e4m3fn).view(torch.uint8).item() == 0x38, "1.0, though 1.125 is nearer"


def test_what_a_witness_does_not_know_is_refused():
    ml_dtypes = WITNESSES[0]
    one = np.ones(1, dtype=np.float32)
    with pytest.raises(ArgumentError, match="rounding"):
        encode(ml_dtypes, one, E4M3, Rounding.TIES_UP)
    with pytest.raises(ArgumentError, match="element"):
        encode(next(w for w in WITNESSES if w.name == "torch"), one, E2M1, Rounding.TIES_TO_EVEN)


def test_stated_answers():
    """The rows of the table of measured facts, one input each."""
    answers = {
        ("ml_dtypes", E2M1, float("nan")): 0x8,
        ("ml_dtypes", E4M3, 464.0): 0x7E,
        ("ml_dtypes", E4M3, 465.0): 0x7F,
        ("ml_dtypes", E8M0, 0.0): 0xFF,
        ("torch", E8M0, 0.0): 0x00,
        ("ml_dtypes", E8M0, 3.0): 0x81,
        ("torch", E8M0, 3.0): 0x81,
        ("gfloat", E8M0, 3.0): 0x80,
        ("ml_dtypes", E8M0, 1.25 * 2.0**-127): 1,
        ("torch", E8M0, 1.25 * 2.0**-127): 1,
    }
    for (name, element, x), expected in answers.items():
        for witness in INSTALLED:
            if witness.name == name:
                actual = encode(witness, np.array([x], dtype=np.float32), element, Rounding.TIES_TO_EVEN)[0]
                assert actual == expected, (name, element.name, x)
