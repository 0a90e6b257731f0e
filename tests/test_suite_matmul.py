"""The matmul's checks: what they record of a right implementation, and the judge's own faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from suite_runs import run_pytest

from lowbit import schemes
from lowbit.adapters import reference
from lowbit.cases.summable import exactly_summable, is_exactly_summable
from lowbit.errors import WitnessDisagreement
from lowbit.implementation import Implementation
from lowbit.records import read_records
from lowbit.references import matmul
from lowbit.suite import test_matmul
from lowbit.suite.judge import Settings
from lowbit.suite.matmul_judge import MatmulJudge, rows_of

NVFP4, MXFP4 = schemes.get("nvfp4"), schemes.get("mxfp4_floor")


def judge_of(matmul=reference.matmul, scheme=NVFP4, **options) -> MatmulJudge:
    settings = Settings(device="cpu", level="quick", seed=0, interpreted=True)
    subject = Implementation(name="mine", version="1", matmul=matmul)
    return MatmulJudge(subject, scheme, settings, "matmul exact", **options)


def test_what_a_right_implementation_gets(tmp_path: Path) -> None:
    """Every check passes, the hardware's is reported as not run and says why, the bound's says how near it was."""
    words = ["conformance/lowbit/suite/test_matmul.py", "--impl", "lowbit.adapters.reference:IMPLEMENTATION"]
    words += ["--device", "cpu", "--level", "quick", "--scheme", "*mxfp4*", "--scheme", "*nvfp4*"]
    words += ["--report-dir", str(tmp_path / "runs"), "--no-html", "-q", "-p", "no:cacheprovider"]
    done = run_pytest(*words, output=tmp_path / "output.txt")
    assert done.code == 0, done.output
    (folder,) = (tmp_path / "runs").iterdir()
    records = read_records(folder)
    passed = {(r.check, r.scheme) for r in records if r.status == "pass"}
    names = ("matmul exact", "matmul padding", "matmul bounded")
    assert passed == {(check, scheme) for check in names for scheme in ("nvfp4", "mxfp4_floor")}
    assert all(r.compared > 1000 and r.assurance for r in records if r.status == "pass")
    assert all(" of its bound " in r.message for r in records if r.check == "matmul bounded")
    left_out = {r.check: r.message for r in records if r.status == "not_run"}
    assert left_out.keys() == {"matmul blackwell", "matmul shapes"}
    assert "NOT judged, this run has no GPU" in left_out["matmul blackwell"]
    assert "NOT judged" in done.output


@pytest.mark.parametrize("scheme", [NVFP4, MXFP4], ids=lambda s: s.name)
def test_operands_are_stored_as_specified(scheme) -> None:
    """Packed codes, swizzled scales, padding of the asked fill, g as one element."""
    operands = exactly_summable(scheme, 5, 7, 3 * scheme.block, 1)
    a, _ = judge_of(scheme=scheme).stored(operands, padding=0x7F)
    assert a.packed.shape == (5, 3 * scheme.block // 2)
    assert a.scales.shape == (512,)
    assert (a.scales == 0x7F).sum() >= 512 - 15
    assert a.scales[16].item() == operands.a.scales[1, 0]
    assert (a.tensor_scale is None) == (scheme is MXFP4)
    if a.tensor_scale is not None:
        assert (a.tensor_scale.dtype, a.tensor_scale.tolist()) == (torch.float32, [8.0])


def test_the_form_of_a_result_is_judged() -> None:
    operands = exactly_summable(NVFP4, 3, 8, 32, 1)
    for result, kind in (
        (lambda out: out.numpy(force=True) if out.dtype is torch.float32 else None, "dtype"),
        (lambda out: out[:, :4], "shape"),
        (lambda out: out.double(), "dtype"),
        (lambda out: out.t(), "shape"),
    ):
        for multiply in (MatmulJudge.multiply, MatmulJudge.multiply_bounded):
            judge = judge_of(lambda *call, result=result: result(reference.matmul(*call)))
            multiply(judge, operands, (torch.float32,))
            assert (judge.compared, judge.mismatched) == (0, 1)
            assert judge.comparisons[0].kinds == {kind: 1}
            assert judge.diagnosis is None


def test_a_changed_operand_is_a_fault() -> None:
    def careless(a, b, scheme, out_dtype):
        out = reference.matmul(a, b, scheme, out_dtype)
        b.scales[0] += 1
        return out

    judge = judge_of(careless)
    judge.multiply(exactly_summable(NVFP4, 3, 8, 32, 1), (torch.float32,))
    assert [c.kinds for c in judge.comparisons if not c.ok] == [{"changed_input": 1}]


def test_references_that_differ_say_nothing_of_the_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = exactly_summable(NVFP4, 3, 8, 32, 1)
    right = matmul.sums

    def wrong_on_host(a, b, scheme):
        found = right(a, b, scheme)
        if isinstance(found.value, np.ndarray):
            found.value[1, 1] += 1
        return found

    monkeypatch.setattr(matmul, "sums", wrong_on_host)
    with pytest.raises(WitnessDisagreement, match="references NumPy and torch differ"):
        judge_of().multiply(operands)
    monkeypatch.undo()
    monkeypatch.setattr(
        "lowbit.suite.matmul_judge.matmul_exact.matmul", lambda a, b, s, fmt: np.zeros((3, 8), np.uint32)
    )
    judge_of().multiply(operands, (torch.float32,))
    with pytest.raises(WitnessDisagreement, match="references exact and float64 differ"):
        judge_of(exact_votes=24).multiply(operands, (torch.float32,))


def test_the_nearest_approach_to_a_bound_is_noted() -> None:
    judge = judge_of()
    for seed in (1, 2):
        with judge.part(f"seed {seed}"):
            judge.multiply_bounded(test_matmul.quantised(NVFP4, 9, 8, 64, seed), (torch.bfloat16,))
    assert len(judge.notes) == 1
    assert judge.notes[0].startswith("largest error")
    assert "bfloat16)" in judge.notes[0]


def test_the_blackwell_check_knows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Settings(device="cuda", level="quick", seed=0)
    for capability, words in (((9, 0), "this GPU has 9.0"), ((8, 6), "this GPU has 8.6"), ((10, 0), ""), ((12, 1), "")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        reason = test_matmul.no_blackwell(gpu)
        assert bool(reason) == bool(words)
        assert reason.endswith(words)
        assert ("NOT judged" in reason) == bool(words)


@pytest.mark.parametrize("scheme", [NVFP4, MXFP4], ids=lambda s: s.name)
def test_what_is_cut_out_of_the_grid_stays_summable(scheme) -> None:
    whole = exactly_summable(scheme, 129, 136, 96, 3)
    part = rows_of(whole, 3, 8)
    assert (len(part.a.codes), len(part.b.scales)) == (3, 8)
    assert is_exactly_summable(*part, scheme)


def test_the_grid_has_the_shapes_that_were_asked_for() -> None:
    shapes = {(m, n, k) for k, groups in test_matmul.GRID.items() for ms, ns in groups for m in ms for n in ns}
    assert {m for m, _, _ in shapes} >= {1, 3, 16, 127, 128, 129, 4096}
    assert {n for _, n, _ in shapes} >= {8, 8192}
    assert (4096, 8192, 8192) in shapes
    for scheme in (NVFP4, MXFP4):
        blocks = {test_matmul.blocks_of(scheme, k) for _, _, k in shapes}
        assert len(blocks) == 5
        assert sum(count % 2 for count in blocks) == 4
        assert max(blocks) * scheme.block == 8192


@pytest.mark.parametrize("scheme", [NVFP4, MXFP4], ids=lambda s: s.name)
def test_the_grid_is_run_through(scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape of a small grid, each named, each in every output dtype."""
    monkeypatch.setattr(test_matmul, "GRID", {16: (((1, 3), (8, 9)),), 80: (((2,), (8,)), ((5,), (24,)))})
    judge = judge_of(scheme=scheme)
    for about in test_matmul.GRID:
        test_matmul.test_exactly_summable_in_every_tile(judge, about)
    assert [c.compared for c in judge.comparisons] == [n for n in (8, 9, 24, 27, 16, 120) for _ in range(3)]
    assert judge.mismatched == 0
    assert len({c.tensor for c in judge.comparisons}) == 18
    assert judge.comparisons[0].tensor == f"1 × 8 × {scheme.block}: out, binary32"


def test_large_shapes_are_for_a_gpu() -> None:
    assert test_matmul.on_gpu(Settings(device="cuda", level="full", seed=0))
    assert not test_matmul.on_gpu(Settings(device="cuda", level="full", seed=0, interpreted=True))
    assert not test_matmul.on_gpu(Settings(device="cpu", level="full", seed=0))
