"""The suite's check of proofs: a lemma that does not hold is a mismatch; proofs speak of one implementation only."""

from __future__ import annotations

import importlib

import pytest

from lowbit import proofs, schemes
from lowbit.errors import Unsupported
from lowbit.implementation import DEFAULT, Implementation
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.judge import Settings


def judge_of(name: str) -> BlockJudge:
    settings = Settings(device="cpu", level="full", seed=0, interpreted=True)
    return BlockJudge(Implementation(name=name, version="1"), schemes.get("mxfp4_floor"), settings, "proof")


@pytest.mark.parametrize("verdict", [proofs.Verdict.REFUTED, proofs.Verdict.UNDECIDED])
def test_a_lemma_that_is_not_proved_is_a_mismatch(monkeypatch: pytest.MonkeyPatch, verdict: proofs.Verdict) -> None:
    module = importlib.import_module("lowbit.suite.test_proof")
    wrong = "scale/mxfp4/floor"

    def proof(name: str) -> proofs.Proof:
        lemma = proofs.lemmas()[name]
        return proofs.Proof(lemma, verdict if name == wrong else proofs.Verdict.PROVED, 0.0, 1, {"amax": 0x40C00000})

    monkeypatch.setattr(module, "proof", proof)
    judge = judge_of(DEFAULT)
    module.test_lemmas(judge)
    assert judge.mismatched == 1
    assert [c.kinds for c in judge.comparisons if not c.ok] == [{"lemma": 1}]
    lemmas = {name for names in proofs.covering(judge.scheme).values() for name in names}
    assert judge.compared + judge.mismatched == len(lemmas)


def test_proofs_are_about_these_kernels_only() -> None:
    module = importlib.import_module("lowbit.suite.test_proof")
    with pytest.raises(Unsupported, match="about the sources of lowbit_kernels"):
        module.test_lemmas(judge_of("somebody"))
