"""Reports: what the first screen says of each kind of run; text stays text; the same records give the same bytes."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from lowbit import report, schemes
from lowbit.compare import compare_encoded, failure
from lowbit.compare.comparison import Comparison
from lowbit.diagnose import diagnose
from lowbit.errors import ReportError
from lowbit.records import MISMATCH_COLUMNS, SUMMARY_COLUMNS, Record, Run, read_about, read_records
from lowbit.references import bits
from lowbit.report import html, terminal, text
from lowbit.report.outcome import judge
from lowbit.rules import Rounding

MXFP4 = schemes.get("mxfp4_floor")
DEVICE = "cpu, Triton interpreter — GPU code generation not judged"
VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}{% raw %}\x1b[31m\u202e\ud800"


class Page(HTMLParser):
    """Tags, ids and links of a page; fails on tags that do not nest."""

    def __init__(self, source: str):
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"] or "")
        if "href" in found:
            self.links.append(found["href"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def run(tmp_path: Path, *, finished: int | None = 0, records: tuple[Record, ...] = (), **options: object) -> Path:
    about = {"level": "exhaustive", **options}
    made = Run.start(
        tmp_path,
        {"device": DEVICE, "python": "3.11"},
        "pytest conformance/",
        about,
        7,
        implementation="mine",
        version="1",
    )
    for record in records:
        made.add(record)
    if finished is not None:
        made.finish(finished)
    return made.folder


def page(folder: Path) -> Page:
    return Page(report.build(folder).read_text(encoding="utf-8"))


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


def test_passing_run(tmp_path: Path) -> None:
    folder = run(tmp_path, records=(record(), record(check="scale", compared=1 << 40)))
    found = page(folder)
    shown = found.text
    assert shown.index("PASS mine 1.2") < shown.index(DEVICE) < shown.index("Scheme × check")
    assert f"{65536 + (1 << 40):,} elements compared bit for bit, none differs." in shown
    assert "INCOMPLETE" not in shown
    assert "REDUCED" not in shown
    assert "What is wrong" not in shown
    assert {path.name for path in folder.iterdir()} == {
        *("run.json", "records.jsonl", "summary.csv", "mismatches.csv", "index.html")
    }
    with open(folder / "mismatches.csv", newline="") as file:
        assert list(csv.reader(file)) == [list(MISMATCH_COLUMNS)]


def test_failing_run_says_what_is_wrong_on_the_first_screen(tmp_path: Path) -> None:
    failing = ties_away()
    folder = run(tmp_path, finished=1, records=(record(check="decode"), failing))
    found = page(folder)
    first_screen = found.text[: found.text.index("Scheme × check")]
    for words in (
        "FAIL mine 1.2",
        DEVICE,
        f"1 of 2 checks failed; {failing.mismatched} of {failing.compared + 65536:,} compared elements differ.",
        "mismatches vanish with ties away from zero",
        failing.repeat,
    ):
        assert words in first_screen, words
    detail = found.text[found.text.index("Failed checks") :]
    for words in ("tie → even", "0x3e800000", "0 | 00 | 1", "[", "0x7f", "input exactly midway between the two codes"):
        assert words in detail, words
    with open(folder / "mismatches.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(failing.samples)
    row = next(row for row in rows if row["x"] == "0.25")
    assert (row["actual"], row["expected"], row["actual_fields"], row["kind"]) == ("0x1", "0x0", "0|00|1", "tie")
    assert (row["implementation"], row["scheme"], row["check"], row["lane"]) == ("mine", "mxfp4_floor", "encode", "16")
    assert (row["scale_actual"], row["value_actual"], row["distance"]) == ("0x7f", "0.5", "1")
    with open(folder / "summary.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == SUMMARY_COLUMNS
    assert [row["status"] for row in rows] == ["pass", "mismatch"]


def test_run_that_crashed(tmp_path: Path) -> None:
    """Killed in the middle of a line: never a pass, and the report is there with what it had."""
    folder = run(tmp_path, finished=None, records=(record(),))
    with open(folder / "records.jsonl", "a") as file:
        file.write('{"scheme": "cut')
    shown = page(folder).text
    assert "INCOMPLETE mine 1.2" in shown
    assert "INCOMPLETE RUN: it was started and never finished" in shown
    assert "1 line(s) of records could not be read: records.jsonl, line 2" in shown
    assert "PASS" not in shown
    between_lines = page(run(tmp_path, finished=None, records=(record(),))).text
    assert " INCOMPLETE mine 1.2" in between_lines
    both = page(run(tmp_path, finished=None, records=(ties_away(),))).text
    assert "FAIL mine" in both
    assert "INCOMPLETE RUN" in both


def test_crashed_workers_are_in_the_report(tmp_path: Path) -> None:
    folder = run(tmp_path, finished=None)
    Run.join(folder, "gw0").add(ties_away())
    assert "FAIL mine 1.2" in page(folder).text


@pytest.mark.parametrize(
    ("records", "status", "verdict"),
    [
        ((), 5, "NOTHING COMPARED"),
        ((), 0, "NOTHING COMPARED"),
        ((record(status="unsupported", message="no"),), 0, "NOTHING COMPARED"),
        ((record(status="not_run"), record()), 0, "PASS"),
        ((record(),), 1, "FAIL"),
        ((record(),), 2, "INCOMPLETE"),
        ((record(status="error", message="boom"), record()), 1, "FAIL"),
        ((record(status="waived", compared=9, mismatched=2),), 0, "NOTHING COMPARED"),
        ((record(status="waived", compared=9),), 0, "NOTHING COMPARED"),
        ((record(status="unsupported", compared=9),), 0, "NOTHING COMPARED"),
        ((record(status="unsupported", compared=9, mismatched=1), record()), 0, "INCOMPLETE"),
    ],
)
def test_verdict(tmp_path: Path, records: tuple[Record, ...], status: int, verdict: str) -> None:
    folder = run(tmp_path, finished=status, records=records)
    assert judge(read_about(folder), read_records(folder)).verdict == verdict
    shown = page(folder).text
    assert shown.startswith(f"{verdict} · mine 1")  # the title
    assert f" {verdict} mine 1" in shown  # the heading


@pytest.mark.parametrize(
    ("level", "words"), [("quick", "REDUCED RUN, level quick"), ("full", "Not every domain was tried")]
)
def test_reduced_run_is_loud(tmp_path: Path, level: str, words: str) -> None:
    shown = page(run(tmp_path, records=(record(level=level),), level=level, scheme=["mxfp4_*"])).text
    assert shown.index(words) < shown.index("Scheme × check")
    assert "Only these schemes were selected: mxfp4_*" in shown


def test_what_was_not_judged_is_listed_with_reasons(tmp_path: Path) -> None:
    silent = (
        record(scheme="*", check="encode 2^32", status="not_run", message="needs a GPU"),
        record(check="swizzle", status="unsupported", message="no such operation"),
        record(scheme="nvfp4", check="swizzle", status="unsupported", message="no such operation"),
        record(check="scale", status="waived", message="issue 12"),
    )
    shown = page(run(tmp_path, records=(record(), *silent))).text
    assert shown.index("NOT RUN: 1 check(s)") < shown.index("Scheme × check")
    listed = shown[shown.index("Not judged") :]
    for words in ("needs a GPU all schemes", "no such operation mxfp4_floor, nvfp4", "issue 12"):
        assert words in listed, words


def test_figures_of_a_checkpoint(tmp_path: Path) -> None:
    figures = {"tensor": "a.weight", "shape": [2, 64], "blocks": 4, "saturated": 1, "zero_blocks": 0}
    figures |= {"scale_min": 3, "scale_max": 126, "sqnr_db": 20.125, "surprise": "<b>"}
    shown = page(run(tmp_path, records=(record(check="checkpoint", extra=figures), record(check="checkpoint"))))
    assert "mxfp4_floor pass 65,536 0 a.weight 2 × 64 4 1 0 3 126 20.12 <b>" in shown.text
    assert "SQNR dB" in shown.text


def test_every_text_is_text(tmp_path: Path) -> None:
    """Markup, template syntax, control and direction characters, lone surrogates, in every field there is."""
    samples = [dict.fromkeys(("tensor", "kind", "rule", "format", "input", "x", "actual", "coordinates"), HOSTILE)]
    fields = dict.fromkeys(("implementation", "version", "scheme", "check", "device", "level", "assurance"), HOSTILE)
    fields |= dict.fromkeys(("diagnosis", "node", "message", "repeat"), HOSTILE)
    extra = {"tensor": HOSTILE, HOSTILE: HOSTILE}
    records = [
        record(**fields, status=status, samples=samples, kinds={HOSTILE: 3}, mismatched=wrong, compared=3, extra=extra)
        for status, wrong in {"mismatch": 3, "error": 3, "unsupported": 0, "not_run": 0, "waived": 3, "pass": 0}.items()
    ]
    made = Run.start(
        tmp_path,
        {"device": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}},
        [HOSTILE],
        {HOSTILE: HOSTILE},
        7,
        implementation=HOSTILE,
    )
    for one in records:
        made.add(one)
    made.finish(1)
    source = report.build(made.folder).read_text(encoding="utf-8")
    found = Page(source)
    assert found.tags.count("script") == 1  # its own, at the end
    assert found.tags[-1] == "script"
    assert not {"img", "iframe", "object", "embed", "base"} & set(found.tags)
    assert not [name for name in found.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in found.text
    assert "{{7*7}}" in found.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ud800]", source)
    assert "\\u202e" in source
    for line in [*terminal.summary_lines(records, read_about(made.folder)), *terminal.record_lines(records[0])]:
        assert not re.search("[\x00-\x1f\x7f\u202e\ud800]", line)
    with open(made.folder / "summary.csv", encoding="utf-8", newline="") as file:
        assert len(list(csv.reader(file))) == 7


def test_page_is_self_contained_and_its_links_resolve(tmp_path: Path) -> None:
    folder = run(tmp_path, finished=1, records=(record(check="decode"), ties_away(), ties_away(check="encode/x")))
    found = page(folder)
    source = (folder / "index.html").read_text(encoding="utf-8")
    assert "http:" not in source
    assert "https:" not in source
    assert "src=" not in source
    assert "url(" not in source
    assert len(found.ids) == len(set(found.ids))
    for link in found.links:
        if link.startswith("#"):
            assert link[1:] in found.ids
        else:
            assert (folder / link).is_file()
    assert text.anchor("mine", "mxfp4_floor", "encode") in found.ids


def test_same_records_same_bytes(tmp_path: Path) -> None:
    """In another folder, in another process with another hash seed."""
    folder = run(
        tmp_path, finished=1, records=(record(), ties_away(), record(status="unsupported", message="x", check="y"))
    )
    first = {path.name: path.read_bytes() for path in folder.iterdir()} | {
        "index.html": report.build(folder).read_bytes()
    }
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    code = "import sys\nfrom lowbit import report\nreport.build(sys.argv[1])\n"
    code += "print({'torch', 'triton'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(copy)],
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "123"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"  # neither torch nor triton is needed
    report.build(folder)
    for name in ("index.html", "summary.csv", "mismatches.csv"):
        assert (copy / name).read_bytes() == (folder / name).read_bytes(), name
    assert (copy / "index.html").read_bytes() == first["index.html"]


def test_thousands_of_records_stay_small(tmp_path: Path) -> None:
    """4,000 failing records with long names, 20 samples each."""
    failing = ties_away()
    records = [
        replace(
            failing,
            scheme=f"scheme_{i % 200}_{'x' * 300}",
            check=f"check {i // 200}",
            node="n" * 5000,
            message="m" * 50_000,
        )
        for i in range(4000)
    ]
    about = {"run": "r", "finished": "now", "exit_status": 1, "level": "full"}
    source = html.render(about, records)
    assert len(source.encode()) < 5_000_000
    found = Page(source)
    assert "more failed checks are in" in found.text
    assert f"4,000 of 4,000 checks failed; {failing.mismatched * 4000:,}" in found.text
    assert len(html.render(about, [record(scheme=f"s{i}", check=f"c{i}") for i in range(2000)]).encode()) < 5_000_000


def test_html_can_be_left_out(tmp_path: Path) -> None:
    folder = run(tmp_path, records=(record(),))
    assert report.build(folder, html=False) == folder / "summary.csv"
    assert not (folder / "index.html").exists()
    with pytest.raises(ReportError, match=r"run\.json"):
        report.build(tmp_path / "nowhere")


def test_run_json_of_another_version(tmp_path: Path) -> None:
    """What is missing, or is not what it should be, costs a detail and not the report."""
    for about in ("{}", '{"environment": 3, "options": [1], "problems": 4, "command": {"a": 1}, "level": null}'):
        (tmp_path / "run.json").write_text(about)
        assert "INCOMPLETE" in page(tmp_path).text


def test_failure_without_bits_is_told(tmp_path: Path) -> None:
    broken = Record.of(
        failure("shape", tensor="codes", message="shape of codes: got (2,), want (3,)"),
        scheme="s",
        check="c",
        implementation="mine",
    )
    shown = page(run(tmp_path, finished=1, records=(broken, Record.of(Comparison("x", 3), scheme="s", check="d")))).text
    assert "shape of codes: got (2,), want (3,)" in shown
    assert "wrong shape" in shown


def test_waived_mismatches_are_told_apart(tmp_path: Path) -> None:
    """What was waived neither passes nor vanishes in "none differs"."""
    waived = record(check="scale", status="waived", compared=100, mismatched=40, kinds={"scale": 40})
    shown = page(run(tmp_path, records=(record(compared=7), waived))).text
    assert "7 elements compared bit for bit, none differs. Not among them: 40 that differ in waived checks." in shown
    assert "WAIVED: 1 check(s) with 40 mismatches that count in no total" in shown


def test_hostile_records_are_no_records(tmp_path: Path) -> None:
    """Values that JSON can hold and a report cannot: the report is there, and the run is incomplete."""
    folder = run(tmp_path, records=(record(),))
    given = '"scheme":"s","check":"c","status":"pass"'
    lines = (
        f'{{{given},"extra":{{"a":{"[" * 100_000}{"]" * 100_000}}}}}',
        f'{{{given},"extra":{{"a":{"[" * 400}{"]" * 400}}}}}',
        f'{{{given},"seconds":1{"0" * 400}}}',
        f'{{{given},"seconds":1e999}}',
        f'{{{given},"compared":{"9" * 4300}}}',
        f'{{{given},"compared":{"9" * 4301}}}',
    )
    with open(folder / "records.jsonl", "a") as file:
        file.write("".join(f"{line}\n" for line in lines))
    shown = page(folder).text
    assert " INCOMPLETE mine 1.2" in shown
    assert f"{len(lines)} line(s) of records could not be read" in shown


def test_formulas_stay_texts_in_tables(tmp_path: Path) -> None:
    samples = [{"tensor": "@SUM(A1)", "x": "-inf", "value_actual": -2.5, "index": -3, "kind": "\tx", "rule": "\rx"}]
    failing = record(
        status="mismatch",
        compared=2,
        mismatched=1,
        kinds={"tie": 1},
        samples=samples,
        implementation="=cmd|' /C calc'!A0",
        message="+1",
        diagnosis="-1+1",
        node="fine\r=1+1",
    )
    folder = run(tmp_path, finished=1, records=(failing,))
    report.build(folder)
    with open(folder / "summary.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["implementation"], row["message"], row["diagnosis"]) == ("'=cmd|' /C calc'!A0", "'+1", "'-1+1")
    assert (row["node"], row["compared"], row["mismatched"], row["seconds"]) == ("fine\\r=1+1", "2", "1", "0.0")
    with open(folder / "mismatches.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["implementation"], row["tensor"], row["kind"]) == ("'=cmd|' /C calc'!A0", "'@SUM(A1)", "'\tx")
    assert (row["rule"], row["x"], row["value_actual"], row["index"]) == ("'\\rx", "-inf", "-2.5", "-3")


def test_diagnosis_of_a_part_says_so(tmp_path: Path) -> None:
    """The sentence counts the mismatches of the comparison that was diagnosed; the record may have more."""
    sentence = "the one mismatch vanishes with ties away from zero"
    failing = record(status="mismatch", compared=99, mismatched=10, kinds={"tie": 10}, diagnosis=sentence)
    assert f"looked into 1 of 10 mismatches: {sentence}" in page(run(tmp_path, finished=1, records=(failing,))).text


def test_headings_of_the_matrix_are_not_cut(tmp_path: Path) -> None:
    """A letter is at most 0.6 em of 0.82 rem; a check's name has up to 50."""
    source = report.build(run(tmp_path, records=(record(),))).read_text(encoding="utf-8")
    height = re.search(r"\.matrix thead th span \{[^}]*max-height: ([\d.]+)rem", source)
    assert height is None or float(height[1]) >= 50 * 0.6 * 0.82
