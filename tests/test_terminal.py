"""A run in the terminal: one terse line a mismatch, a matrix that fits, and the command that repeats it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from lowbit import schemes
from lowbit.compare import compare_encoded, compare_values
from lowbit.diagnose import UNEXPLAINED, diagnose
from lowbit.records import Record, Run, read_about
from lowbit.references import bits
from lowbit.report import terminal, text
from lowbit.report.outcome import matrix
from lowbit.rules import Rounding

MXFP4 = schemes.get("mxfp4_floor")
DEVICE = "cpu, Triton interpreter — GPU code generation not judged"
HOSTILE = "<b>\"'&\x1b[31m\u202e\ud800"


def record(**fields: object) -> Record:
    given = {
        "scheme": "mxfp4_floor",
        "check": "encode",
        "status": "pass",
        "implementation": "mine",
        "version": "1.2",
        "device": DEVICE,
        "level": "exhaustive",
        "assurance": "exhaustive(65536)",
        "compared": 65536,
        "node": "suite/test_encode.py::test_encode[mine-mxfp4_floor]",
        "repeat": "pytest 'suite/test_encode.py::test_encode[mine-mxfp4_floor]' --impl mine",
        **fields,
    }
    if given["status"] != "pass" and "compared" not in fields:
        given["compared"] = 0
    return Record(**given)  # type: ignore[arg-type]


def ties_away(**fields: object) -> Record:
    """A failing record: ties broken the other way, with its diagnosis."""
    x = np.ascontiguousarray((np.arange(-48, 48, dtype=np.float32) / 8).reshape(32, 3).T)
    expected = bits.quantize(x, MXFP4)
    actual = bits.quantize(x, replace(MXFP4, rounding=Rounding.TIES_AWAY))
    comparison = compare_encoded(x, actual, expected, MXFP4)
    base = record(**fields).as_dict() | {
        "status": "mismatch",
        "compared": comparison.compared,
        "mismatched": comparison.mismatched,
        "kinds": comparison.kinds,
        "samples": comparison.samples,
        "diagnosis": str(diagnose(x, actual, MXFP4, expected)),
    }
    return Record(**base)


def test_lines_in_the_terminal() -> None:
    failing = ties_away()
    lines = terminal.record_lines(failing, limit=40)
    assert lines[0] == "mine · mxfp4_floor · encode: mismatch"
    assert "  [2,16] x=0x3e800000 (0.25) scale 0x7f: got 0x1 (0.5) want 0x0 (0) · tie → even" in lines
    assert f"  {failing.mismatched} of {failing.compared} differ: tie {failing.mismatched}" in lines
    assert f"  diagnosis: all {failing.mismatched} mismatches vanish with ties away from zero" in lines
    assert lines[-2] == f"  repeat: {failing.repeat}"
    assert lines[-1] == f"  report: index.html#{text.anchor('mine', 'mxfp4_floor', 'encode')}"
    cut = terminal.record_lines(failing, limit=2)
    assert f"2 of {failing.mismatched} shown" in "\n".join(cut)
    assert len(cut) == 7


def test_lines_of_scales_and_of_values() -> None:
    x = np.ones((1, 32), np.float32)
    expected = bits.quantize(x, MXFP4)
    one = Record.of(
        compare_encoded(x, expected._replace(scales=expected.scales + 1, codes=expected.codes ^ 1), expected, MXFP4),
        scheme="mxfp4_floor",
        check="scale",
    )
    lines = [terminal.sample_line(sample) for sample in one.samples]
    assert lines[0] == "scales [0,0] x=0x3f800000 (1): got 0x7e (0.5) want 0x7d (0.25) · scale"
    assert lines[1] == "[0,0] x=0x3f800000 (1) scale 0x7e for 0x7d: got 0x7 (6) want 0x6 (4) · scaled"
    values = np.full((1, 32), 2, np.float32)
    values[0, 3] = -0.0
    right = np.full((1, 32), 2, np.float32)
    decoded = Record.of(
        compare_values(values, right, codes=expected.codes, scales=expected.scales, scheme=MXFP4), scheme="s", check="c"
    )
    assert terminal.sample_line(decoded.samples[0]) == (
        "values [0,3] x=0x6 (4) scale 0x7d: got 0x80000000 (-0) want 0x40000000 (2) · value"
    )


def test_summary_in_the_terminal() -> None:
    """Schemes that look the same share a line; those that fail do not."""
    names = [f"mx4_ceil_e2m1_g{n}" for n in (8, 16, 32, 64)] + ["mxfp4_floor", "mxfp4_ceil", "nvfp4"]
    records = [record(scheme=name, check=check) for name in names for check in ("decode", "scale")]
    records += [ties_away(scheme="mxfp4_floor"), ties_away(scheme="mxfp4_ceil"), ties_away(scheme="nvfp4")]
    records += [record(scheme="*", check="encode 2^32", status="not_run", message="needs a GPU")]
    lines = terminal.summary_lines(records, {"finished": "now", "exit_status": 1})
    joined = "\n".join(lines)
    assert "mx4_ceil_e2m1_g8 (+3)" in joined
    for name in ("mxfp4_floor", "mxfp4_ceil", "nvfp4"):
        assert re.search(rf"^{name} +\.  \.  F$", joined, re.M)
    assert "mismatch: mxfp4_floor × encode (and 2 more like it): all" in joined
    assert f"index.html#{text.anchor('mine', 'mxfp4_floor', 'encode')}" in joined
    assert "not run: encode 2^32: needs a GPU (1)" in joined
    assert lines[-1].startswith("FAIL: 3 of 18 checks failed; ")
    assert terminal.summary_lines([])[-1] == "0 compared, 0 differ · records: none"
    narrow = terminal.matrix_lines(matrix([record(check=f"check {i}") for i in range(60)]), width=80)
    assert max(map(len, narrow)) <= 80


def test_header_names_subject_device_level_and_seed(tmp_path: Path) -> None:
    run = Run.start(tmp_path, {"device": DEVICE}, [], {"level": "quick"}, 7, implementation="mine", version="1")
    joined = "\n".join(terminal.header(read_about(run.folder)))
    for words in ("judging mine 1", DEVICE, "level: quick (reduced: not every domain is tried)", "seed: 7"):
        assert words in joined
    assert terminal.header({})


def test_numbers_in_few_letters() -> None:
    assert [text.about(n) for n in (0, 999, 1000, 1999, 65536, 999_999, 4294967296, 10**18)] == [
        *("0", "999", "1.0k", "1.9k", "65k", "999k", "4.2G", "many")
    ]
    assert [text.number(v) for v in (6.0, -0.0, 0.5, "nan", None)] == ["6", "-0", "0.5", "nan", ""]


def test_anchors_of_different_names_differ() -> None:
    names = [("a", "b", "c"), ("a", "b-c", ""), ("a-b", "", "c"), ("", "<b>", "c"), ("", "b", "c"), ("", "b ", "c")]
    assert len({text.anchor(*name) for name in names}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", text.anchor(*name)) for name in [*names, (HOSTILE, HOSTILE, HOSTILE)])


def test_diagnosis_of_a_part_says_so() -> None:
    failing = replace(ties_away(), diagnosis="the one mismatch vanishes with ties up")
    said = f"looked into 1 of {failing.mismatched} mismatches: the one mismatch vanishes with ties up"
    assert f"  diagnosis: {said}" in terminal.record_lines(failing)
    assert any(line.endswith(f": {said}") for line in terminal.summary_lines([failing]))
    for said, told in {
        "all 1,000 mismatches vanish with a": "looked into 1,000 of 2,000 mismatches: "
        "all 1,000 mismatches vanish with a",
        "all 2,000 mismatches vanish with a": "all 2,000 mismatches vanish with a",
        "3 of 9 mismatches vanish (33 %) with a": "looked into 9 of 2,000 mismatches: "
        "3 of 9 mismatches vanish (33 %) with a",
        "all 500 mismatches vanish with a; tried on 500 of 900 (b: c)": "looked into 500 of 2,000 mismatches: "
        "all 500 mismatches vanish with a (b: c)",
        UNEXPLAINED: UNEXPLAINED,
        "": "",
    }.items():
        assert text.diagnosis(replace(failing, diagnosis=said, mismatched=2000)) == told
