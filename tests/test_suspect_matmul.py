"""The diagnosis of a wrong matmul: every fault of the table is named where it was made, and nothing else is."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from lowbit import packing, schemes
from lowbit.cases.summable import Operands, exactly_summable
from lowbit.diagnose import UNEXPLAINED
from lowbit.formats import BFLOAT16, BINARY32
from lowbit.references import matmul
from lowbit.schemes import Quantized
from lowbit.suspects.matmul import Evidence, suspects
from lowbit.suspects.matmul_trial import ROWS, Product

NVFP4, MXFP4 = schemes.get("nvfp4"), schemes.get("mxfp4_floor")
G = (0.7, 11.0)


def stored(operands: Operands, scheme, padding: int = 0) -> tuple[Quantized, Quantized]:
    sides = []
    for side in operands:
        packed, buffer, g = packing.pack(side, scheme, swizzle=True)
        buffer[packing.swizzle_padding(*side.scales.shape)] = padding
        sides.append(Quantized(packed, buffer, g))
    return sides[0], sides[1]


@functools.cache
def products(scheme, fmt=BINARY32, padding: int = 0) -> list[tuple[Quantized, Quantized, np.ndarray]]:
    """Operands as stored, and what is right: several tiles of rows and of columns, K in no whole tiles."""
    found = []
    for rows, columns, blocks in ((130, 136, 5), (20, 40, 21)):
        operands = exactly_summable(scheme, rows, columns, blocks * scheme.block, 1, tensor_scales=G)
        found.append((*stored(operands, scheme, padding), matmul.matmul(*operands, scheme, fmt)))
    return found


def names(scheme) -> list[str]:
    a, b, right = products(scheme)[0]
    product = Product.of(a, b, scheme, BINARY32, right ^ 1, right)
    assert product is not None
    return [suspect.name for suspect in suspects(product)]


def faulty(name: str, product: Product) -> np.ndarray | None:
    (guess,) = (suspect.guess(product) for suspect in suspects(product) if suspect.name == name)
    return guess


ALIKE = ("nibbles_of_", "padding", "k_tile_")
"""Beginnings of the names of faults that these operands do not tell apart.

Exchanging neighbours in either factor gives the same sum; NaN in all rows of A leaves nothing to tell of B; K = 80 and
336 end with the same tile of several sizes.
"""

CASES = [(scheme, name) for scheme in (NVFP4, MXFP4) for name in names(scheme) if "_tail_" not in name]


@pytest.mark.parametrize(("scheme", "name"), CASES, ids=[f"{scheme.name}-{name}" for scheme, name in CASES])
def test_every_fault_is_named(scheme, name, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is made on whole products, the diagnosis sees some of their rows."""
    evidence = Evidence()
    padding = scheme.scale.nan_magnitude if name.startswith("padding") else 0
    for a, b, right in products(scheme, padding=padding):
        monkeypatch.setattr("lowbit.suspects.matmul_trial.ROWS", 1000)
        whole = Product.of(a, b, scheme, BINARY32, right ^ 1, right)
        assert whole is not None
        wrong = faulty(name, whole)
        monkeypatch.setattr("lowbit.suspects.matmul_trial.ROWS", ROWS)
        if wrong is not None:
            evidence.add(a, b, scheme, BINARY32, wrong, right)
    found = evidence.diagnosis
    assert found is not None
    complete = {finding.name: finding.text for finding in found.findings if finding.remaining == 0}
    assert name in complete
    alike = next((start for start in ALIKE if name.startswith(start)), name)
    others = {other for other in complete if not other.startswith(alike)}
    assert others <= ({"m_tail_256", "n_tail_256"} if alike == "padding" else set()), (
        complete
    )  # NaN everywhere: nothing written?
    assert str(found).startswith(f"all {found.tried:,} mismatches vanish with {next(iter(complete.values()))}")


@pytest.mark.parametrize(("axis", "letter"), [(0, "m"), (1, "n")])
@pytest.mark.parametrize("tile", [16, 32, 64, 128])
def test_a_tail_that_was_not_written(axis, letter, tile) -> None:
    """As zeros, or as any other fill; a tail that holds numbers was written and is not excused by this."""
    for fill in (0, 0xFFFFFFFF):
        evidence = Evidence()
        for a, b, right in products(NVFP4):
            wrong = right.copy()
            tail = (right.shape[axis] - 1) // tile * tile
            wrong[(slice(None),) * axis + (slice(tail, None),)] = fill
            evidence.add(a, b, NVFP4, BINARY32, wrong, right)
        found = evidence.diagnosis
        assert found is not None
        assert f"{letter}_tail_{tile}" in [finding.name for finding in found.findings if finding.remaining == 0]
        assert f"the {letter.upper()} tail dropped" in str(found)


def test_noise_is_unexplained() -> None:
    rng = np.random.default_rng(2)
    evidence = Evidence()
    for a, b, right in products(NVFP4):
        evidence.add(a, b, NVFP4, BINARY32, rng.integers(0, 1 << 31, right.shape, dtype=np.uint32), right)
        scattered = np.where(rng.random(right.shape) < 0.001, right ^ 1, right)
        evidence.add(a, b, NVFP4, BINARY32, scattered, right)
    assert str(evidence.diagnosis) == UNEXPLAINED


def test_one_product_may_not_tell_faults_apart_but_two_do() -> None:
    """In one row there is no difference between an omitted swizzle and rows padded to whole tiles."""
    evidence = Evidence()
    for rows, columns in ((1, 1), (3, 24)):
        operands = exactly_summable(NVFP4, rows, columns, 144, 3, tensor_scales=G)
        a, b = stored(operands, NVFP4)
        right = matmul.matmul(*operands, NVFP4, BINARY32)
        scales = [
            side.scales[: x.scales.size].reshape(x.scales.shape) for side, x in zip((a, b), operands, strict=True)
        ]
        wrong = [x._replace(scales=s) for x, s in zip(operands, scales, strict=True)]
        evidence.add(a, b, NVFP4, BINARY32, matmul.matmul(*wrong, NVFP4, BINARY32), right)
        found = evidence.diagnosis
        assert found is not None
        complete = [finding.name for finding in found.findings if finding.remaining == 0]
        assert "swizzle_omitted" in complete
        assert ("row_major" in complete) == (rows == 1)
    assert "swizzle omitted" in str(evidence.diagnosis)


def test_evidence_counts() -> None:
    """All mismatches are counted, those of the chosen rows are tried; nothing wrong is no evidence."""
    evidence = Evidence()
    a, b, right = products(NVFP4, BFLOAT16)[0]
    evidence.add(a, b, NVFP4, BFLOAT16, right, right)
    evidence.add(a, b, NVFP4, BFLOAT16, right[:1], right)
    nan = np.where(right == right[0, 0], np.uint16(0x7FC0), right)
    evidence.add(a, b, NVFP4, BFLOAT16, nan, np.where(right == right[0, 0], np.uint16(0xFFFF), right))
    assert (evidence.products, evidence.diagnosis) == (0, None)
    evidence.add(a, b, NVFP4, BFLOAT16, right ^ 1, right)
    assert (evidence.products, evidence.tried, evidence.mismatched) == (1, ROWS * ROWS, right.size)
    assert str(evidence.diagnosis) == UNEXPLAINED
    one = right.copy()
    one[77, 99] ^= 1
    single = Evidence()
    single.add(a, b, NVFP4, BFLOAT16, one, right)
    assert (single.tried, single.mismatched) == (1, 1)


def test_plain_scales_have_no_layout() -> None:
    """Scales that were not swizzled: the other faults are found all the same."""
    operands = exactly_summable(NVFP4, 9, 10, 80, 4, tensor_scales=G)
    a, b = (packing.pack(side, NVFP4) for side in operands)
    right = matmul.matmul(*operands, NVFP4, BINARY32)
    wrong = matmul.matmul(operands.a._replace(tensor_scale=None), operands.b, NVFP4, BINARY32)
    evidence = Evidence()
    evidence.add(a, b, NVFP4, BINARY32, wrong, right)
    assert "the tensor scale of A forgotten" in str(evidence.diagnosis)
