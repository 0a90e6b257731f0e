"""Golden vectors of stored weights: the suite judges by them, and faults of kernels, files and witnesses are found."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_vectors import VECTORS, changed, edit, rehash

from lowbit import vectors, weights
from lowbit.errors import NothingCompared, WitnessDisagreement
from lowbit.formats import FORMATS
from lowbit.implementation import Implementation
from lowbit.references import weights_bits, weights_tensors
from lowbit.suite import test_weights_golden
from lowbit.suite.judge import Settings
from lowbit.suite.weight_judge import WeightJudge
from lowbit.vectors import content_known_bugs, content_weight_blocks, content_weight_integers, content_weight_tables
from lowbit.vectors.make import check, groups_of, make
from lowbit.vectors.payload import Draft, files_of
from lowbit.vectors.votes import vote, witnesses
from lowbit.vectors.weight_text import read_weight, write_answer

MUTANTS = Path(__file__).parent / "mutants"

PARTS = (content_weight_integers, content_weight_blocks, content_weight_tables, content_known_bugs)


@pytest.fixture(scope="module")
def drafts() -> tuple[Draft, ...]:
    """Small groups of every family, some to refuse."""
    wanted = ("awq_gk/rounding", "gptq2_v1_g128/lanes", "gptq4_v1_g128/known_bugs", "nf4_b64/codebook")
    wanted += ("nf4_b64+nested/known_bugs", "int8_channel/rounding", "squeezellm4+sparse+full_rows/terms")
    found = [draft for part in PARTS for draft in part.build() if draft.raw["name"] in wanted]
    assert len(found) == len(wanted)
    return tuple(found)


@pytest.fixture
def small(tmp_path: Path, drafts: tuple[Draft, ...]) -> Path:
    folder = tmp_path / "vectors"
    folder.mkdir()
    shutil.copy(VECTORS / "VECTORS.md", folder)
    make(folder, drafts=drafts)
    return folder


# -- the check of the suite


def judged(subject: Any, scheme: str, folder: Path | None = None) -> WeightJudge:
    root = None if folder is None else str(folder)
    settings = Settings(device="cpu", level="quick", seed=1, interpreted=True, vectors=root)
    judge = WeightJudge(subject, weights.get(scheme), settings, "golden weights")
    test_weights_golden.test_weights(judge)
    return judge


def right(tensors: Any, scheme: Any, dtype: torch.dtype) -> torch.Tensor:
    return weights_tensors.dequantize(tensors, scheme, dtype)


SUBJECT = Implementation(name="mine", version="1", dequantize_weight=right)


@pytest.mark.parametrize("scheme", ["awq_gk", "gptq8_v1_g128", "nf4_b64+nested", "int8_torch", "squeezellm4+sparse"])
def test_a_right_implementation_passes(scheme: str) -> None:
    judge = judged(SUBJECT, scheme)
    assert judge.mismatched == 0
    assert judge.compared > 500
    assert judge.assurance == f"golden({judge.compared})"


def mutants() -> Iterator[Any]:
    """The mutants of weight schemes, each under its own scheme."""
    for path in sorted(MUTANTS.glob("*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if module.SCHEME in weights.names():
            yield pytest.param(module, id=path.stem)


SEEN_UNDER = {"columns_tail_left": "awq_g32"}
"""Mutants whose own scheme has no vector of a shape that would show them."""

OTHER_CAUSE = ("columns_tail_left", "g_idx_unchecked")
"""Mutants that the diagnosis of this check names in other words than those of their own check."""


@pytest.mark.parametrize("mutant", [*mutants()])
def test_mutants_are_caught_by_this_check_alone(mutant: Any) -> None:
    """Every wrong weight kernel, each a reported or a tempting fault, differs from the files, and is diagnosed."""
    name = mutant.__name__
    judge = judged(mutant.IMPLEMENTATION, SEEN_UNDER.get(name, mutant.SCHEME))
    assert judge.mismatched > 0
    if name not in OTHER_CAUSE:
        assert mutant.DIAGNOSIS in (judge.diagnosis or "")


def test_a_mismatch_names_the_case() -> None:
    """The one weight that is wrong lies in the third column of the case with a scale of -Inf."""

    def wrong(tensors: Any, scheme: Any, dtype: torch.dtype) -> torch.Tensor:
        result = right(tensors, scheme, dtype)
        scales = tensors["scales"]
        infinite = (scales == -torch.inf).all(0) if scales.dtype is torch.bfloat16 else torch.zeros(scales.shape[1]) > 0
        result[:, infinite] = torch.nan_to_num(result[:, infinite])
        return result

    judge = judged(replace(SUBJECT, dequantize_weight=wrong), "awq_gk")
    assert judge.mismatched > 0
    notes = {note for note in judge.notes if note.startswith("cases of ")}
    assert notes == {"cases of schemes/awq_gk/weights.json, awq_gk/scales: bfloat16 scale: -Inf"}


def test_what_must_be_refused_is_a_mismatch_if_accepted() -> None:
    def wrapping(tensors: Any, scheme: Any, dtype: torch.dtype) -> torch.Tensor:
        groups = tensors["scales"].shape[0]
        return right({**tensors, "g_idx": tensors["g_idx"] % groups}, scheme, dtype)

    judge = judged(replace(SUBJECT, dequantize_weight=wrapping), "gptq4_v1_g32+act_order")
    assert judge.mismatched == 4
    assert "not validated: g_idx -1" in (judge.diagnosis or "")


def test_a_wrong_file_is_not_blamed_on_the_kernel(small: Path) -> None:
    """Hashes that fit and a wrong value: the references differ from the file, and nothing is said of the kernel."""
    path = small / "schemes/nf4_b64/weights.json"
    path.write_bytes(path.read_bytes().replace(b"bf3239b1", b"bf3239b2", 1))
    rehash(small)
    assert vectors.verify(small) == ()
    with pytest.raises(WitnessDisagreement, match="references tensors and golden file differ"):
        judged(SUBJECT, "nf4_b64", small)


def test_a_folder_without_weights_compares_nothing(small: Path) -> None:
    """Which the plugin makes a failure."""
    assert judged(SUBJECT, "int8_scb", small).compared == 0
    shutil.rmtree(small / "schemes")
    with pytest.raises(NothingCompared):
        judged(SUBJECT, "int8_scb", small)


# -- damage


def test_the_small_folder_is_in_order(small: Path, drafts: tuple[Draft, ...]) -> None:
    found = check(small, drafts=drafts)
    assert found.ok, found.lines()
    assert found.voted["exact"] == found.voted["bits"] == found.voted["gmpy2"] == found.cases
    assert found.voted["published"] == 1


FILE = "schemes/awq_gk/weights.json"
FIRST = ("groups", 0, "cases", 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (edit(*FIRST, "comment", "hello"), "'comment' was unexpected"),
        (edit(*FIRST, "qweight", "0000000G"), "does not match"),
        (edit(*FIRST, "scale_format", "binary8"), "'binary8' is not one of"),
        (edit(*FIRST, "scales", "3c00"), "scales: got 1 items, want 8 for shape (4, 8)"),
        (edit(*FIRST, "binary16", "3c00"), "cannot reshape"),
        (edit(*FIRST, "shape", [4, 9]), "want a multiple of 8"),
        (edit(*FIRST, "packed", "00"), "packed is no entry of awq_gk"),
        (edit(*FIRST, "refused", "a reason"), "wants either answers or a reason to refuse"),
        (edit("groups", 0, "scheme", "awq_g0"), "got 'awq_g0', want one of awq_g"),
        (edit("groups", 0, "scheme", "mxfp4_floor"), "got 'mxfp4_floor', want one of"),
        (edit("groups", 0, "also", ["awq_h1"]), "got 'awq_h1', want one of"),
    ],
)
def test_lint_finds(small: Path, change: Any, says: str) -> None:
    found = changed(small, FILE, change)
    assert any(says in text for text in found), found
    assert all(FILE in problem for problem in vectors.verify(small)), "told before anything is judged"


def test_a_digit_changed_together_with_its_hash_is_found(small: Path, drafts: tuple[Draft, ...]) -> None:
    """Made again, the file is another one; and where nothing can be made, the references name the case."""
    path = small / "schemes/int8_channel/weights.json"
    data = path.read_bytes()
    at = data.index(b'"binary32": "') + 13
    path.write_bytes(data[:at] + (b"0" if data[at : at + 1] != b"0" else b"1") + data[at + 1 :])
    rehash(small)
    found = check(small, drafts=drafts)
    assert {problem.file for problem in found.problems} == {"schemes/int8_channel/weights.json"}
    assert "int8_channel/rounding, case 'code 3 in binary16': binary32 " in str(found.problems[0])
    told = vectors.check_against_references(vectors.read("schemes/int8_channel/weights.json", small), every=True)
    assert len(told) == 1
    assert "case 'code 3 in binary16': int8_channel: binary32: references say" in told[0]


# -- witnesses


@pytest.mark.parametrize("name", ["exact", "bits", "gmpy2"])
def test_each_witness_contradicts_a_wrong_value(drafts: tuple[Draft, ...], name: str) -> None:
    """One digit wrong in the first answer of every group: each of the three says so, of every family."""
    (witness,) = (w for w in witnesses() if w.name == name)
    for draft in drafts:
        cases = [dict(case) for case in draft.raw["cases"]]
        fmt = next(fmt for fmt in ("binary32", "bfloat16", "binary16") if fmt in cases[0])
        text = cases[0][fmt]
        cases[0][fmt] = f"{int(text[0], 16) ^ 8:x}{text[1:]}"  # the sign of the first weight
        groups = groups_of(files_of([Draft(draft.file, {**draft.raw, "cases": cases})]))
        found = vote(groups, [witness])
        assert {d.answer.case for d in found.disagreements} == {cases[0]["name"]}, draft.raw["name"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("awq_gk/rounding", {"order": (0, 1, 2, 3, 4, 5, 6, 7)}),
        ("gptq2_v1_g128/lanes", {"zero": weights.get("gptq2_v2_g128").zero}),
        ("nf4_b64/codebook", {"codebook": weights.NF4_FOUR_DIGIT_CODEBOOK}),
    ],
)
def test_a_wrong_table_stops_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drafts: tuple[Draft, ...], name: str, fault: dict[str, Any]
) -> None:
    """A scheme whose table is wrong deceives both references; MPFR's witness has conventions of its own."""
    (draft,) = (draft for draft in drafts if draft.raw["name"] == name)
    scheme = weights.get(draft.raw["scheme"])
    tables = {"packing": replace(scheme.packing, order=fault["order"])} if "order" in fault else fault
    wrong = replace(scheme, **tables)
    monkeypatch.setitem(weights._REGISTRY, scheme.name, wrong)
    cases = []
    for case in draft.raw["cases"]:
        answers = {
            fmt: write_answer(weights_bits.dequantize(read_weight(case, wrong), wrong, FORMATS[fmt]), FORMATS[fmt])
            for fmt in ("binary16", "bfloat16", "binary32")
            if fmt in case
        }
        cases.append({**case, **answers})
    with pytest.raises(WitnessDisagreement, match="gmpy2 says") as error:
        make(tmp_path, drafts=[Draft(draft.file, {**draft.raw, "cases": cases})])
    assert "exact says" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_the_answers_of_a_report_are_checked_by_hand(drafts: tuple[Draft, ...]) -> None:
    (draft,) = (draft for draft in drafts if draft.raw["name"] == "gptq4_v1_g128/known_bugs")
    cases = [dict(case) for case in draft.raw["cases"]]
    cases[1] = {key: value for key, value in cases[1].items() if key != "refused"}
    cases[1]["binary16"] = cases[0]["binary16"]
    (reports,) = (w for w in witnesses() if w.name == "reports")
    found = vote(groups_of(files_of([Draft(draft.file, {**draft.raw, "cases": cases})])), [reports])
    assert [d.answer.given for d in found.disagreements] == ["refused"]
