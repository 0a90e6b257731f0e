"""What is proved of which scheme, and the command `lowbit prove`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lowbit import cli, proofs, schemes
from lowbit.errors import ArgumentError
from lowbit.proofs import sources
from lowbit.rules import NanCode


@pytest.mark.parametrize("name", schemes.names())
def test_covering_names_lemmas(name: str) -> None:
    scheme = schemes.get(name)
    stages = proofs.covering(scheme)
    for names in stages.values():
        assert names
        assert set(names) <= set(proofs.lemmas())
        assert all(proofs.lemmas()[lemma].expected for lemma in names)
    assert bool(stages) == bool(proofs.assurance(scheme))
    other_nan = scheme.family == "mxfp4" and scheme.nan is not NanCode.POSITIVE_MAX
    assert bool(stages) == (scheme.family != "rtn_xxfp4" and name != "nvfp4_two_level_cuda" and not other_nan)


def test_assurance_says_how_many() -> None:
    assert proofs.assurance(schemes.get("mxfp4_floor")) == "proved(element: 10 lemmas, scale: 5 lemmas)"


def test_select() -> None:
    assert [lemma.name for lemma in proofs.select(["quotient/six"])] == ["quotient/six"]
    assert {lemma.name for lemma in proofs.select(["nvfp4"])} >= {"quotient/scale", "nvfp4_scale/canonical"}
    assert len(proofs.select()) == len(proofs.lemmas())
    with pytest.raises(ArgumentError, match="want a lemma, a glob of lemmas or a scheme"):
        proofs.select(["no_such_lemma"])
    with pytest.raises(ArgumentError, match="that no kernel here has"):
        proofs.select(["rtn_mxfp4"])


def test_the_command_proves(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prove", "scale/e2m1/floor", "variant/add_half"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("PROVED")
    assert lines[0].endswith("scale/e2m1/floor")
    assert lines[1].startswith("REFUTED")
    assert "variant/add_half  x=0x" in lines[1]
    assert lines[2].startswith("2 lemmas: 1 proved, 1 refuted, all as expected")


def test_the_command_fails_on_a_fault(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = sources.load([sources.Edit("_codec", "amax_bits += 0x7FFFFF", "amax_bits += 0x7FFFFE")])
    monkeypatch.setattr("lowbit.proofs.lemma.kernels", lambda: wrong)
    assert cli.main(["prove", "scale/e2m1/ceil"]) == 1
    assert "NOT AS EXPECTED" in capsys.readouterr().out


def test_the_command_states(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prove", "--statements"]) == 0
    text = capsys.readouterr().out
    assert all(lemma.statement in text for lemma in proofs.lemmas().values())


def test_without_the_solver(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    assert cli.main(["prove", "casts"]) == 2
    assert "pip install 'lowbit[proofs]'" in capsys.readouterr().err


def test_without_kernels(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="_codec, _e4m3"):
        sources.load(folder=tmp_path)
