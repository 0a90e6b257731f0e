"""The hex pipe: vectors as lines, answers in any language, judged and diagnosed as a kernel is."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowbit import pipe, schemes
from lowbit.errors import ArgumentError, NothingCompared, UnknownScheme
from lowbit.formats import FORMATS, LOW_BIT
from lowbit.references import bits
from lowbit.rules import NanCode, Rounding
from lowbit.vectors.hexlines import answers, format_lines, scheme_lines

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", schemes.names())
def test_exported_lines_take_the_right_answers(name: str) -> None:
    lines = scheme_lines(schemes.get(name))
    assert len(lines) > 10
    found, diagnosis = pipe._compared(name, lines, [f"{line.words} {line.answer}" for line in lines], None, None, 5)
    assert found.ok
    assert found.compared >= len(lines) * schemes.get(name).block
    assert diagnosis == ""


@pytest.mark.parametrize("fmt", LOW_BIT, ids=lambda f: f.name)
def test_formats_are_exported_too(fmt: Any, tmp_path: Path) -> None:
    nan = NanCode.SIGNED_MAX if fmt.nan_magnitude is None else None
    lines = format_lines(fmt, Rounding.TIES_UP, nan)
    x = np.array([int(line.words, 16) for line in lines], np.uint32).view(np.float32)
    codes = bits.encode(x, fmt, Rounding.TIES_UP, nan).tolist()
    answered = [f"{line.words} {code:0{-(-fmt.bits // 4)}x}" for line, code in zip(lines, codes, strict=True)]
    found = pipe.judge(fmt.name, answered, program="reference", report_dir=tmp_path, rounding=Rounding.TIES_UP, nan=nan)
    assert (found.status, found.record.mismatched, found.record.compared) == (0, 0, len(lines))


def test_a_wrong_rule_is_named_and_reported(tmp_path: Path) -> None:
    scheme = schemes.get("nvfp4")
    lines = scheme_lines(scheme)
    wrong = scheme_lines(schemes.get("nvfp4+ties_away"))
    swap = {line.words: line.answer for line in wrong}
    answered = [f"{line.words} {swap.get(line.words, line.answer)}" for line in lines]
    found = pipe.judge("nvfp4", answered, program="away", report_dir=tmp_path)
    assert found.status == 1
    assert "ties away from zero" in found.record.diagnosis
    assert found.record.kinds.keys() == {"tie"}
    assert "schemes/nvfp4/blocks.json, nvfp4/ties, case 'ties" in found.record.message
    page = (found.folder / "index.html").read_text()
    assert "ties away from zero" in page
    assert "golden(" in page


def spoilt(change: Callable[[list[str]], Any]) -> list[str]:
    answered = [f"{line.words} {line.answer}" for line in scheme_lines(schemes.get("mxfp4_ceil"))]
    change(answered)
    return answered


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: lines.pop(), r"want \d+: line \d+ and on are missing"),
        (lambda lines: lines.clear(), "answers: got 0"),
        (lambda lines: lines.append(lines[0]), "more answers than"),
        (lambda lines: lines.insert(2, ""), "line 3: got an empty line"),
        (lambda lines: lines.insert(0, lines.pop(5)), "line 1: got .* want the exported words first"),
        (lambda lines: lines.__setitem__(3, lines[3][:-3]), "line 4: got 1 words after the exported ones, want 2"),
        (lambda lines: lines.__setitem__(3, lines[3] + " 00"), "line 4: got 3 words"),
        (lambda lines: lines.__setitem__(3, lines[3][:-2] + "xy"), "line 4: scale: got 'xy', want 2 hex digits"),
        (lambda lines: lines.__setitem__(3, lines[3][:-4] + lines[3][-3:]), "line 4: codes: got .* want 32 hex"),
        (lambda lines: lines.__setitem__(3, "\ufffd" + lines[3]), "line 4: got"),
    ],
)
def test_malformed_answers_are_refused(tmp_path: Path, change: Callable[[list[str]], Any], says: str) -> None:
    """Exit status 2, and a report that says which line; nothing passes for want of answers."""
    found = pipe.judge("mxfp4_ceil", spoilt(change), program="broken", report_dir=tmp_path)
    assert (found.status, found.record.status) == (2, "error")
    assert re.search(says, found.record.message), found.record.message
    assert (found.folder / "index.html").is_file()


def test_targets_that_there_are_not() -> None:
    with pytest.raises(UnknownScheme):
        pipe.export("mxfp5")
    with pytest.raises(UnknownScheme, match="ties_sideways"):
        pipe.rules("ties_sideways", None)
    with pytest.raises(ArgumentError, match="a scheme has its own"):
        pipe.export("mxfp4_floor", rounding=Rounding.TIES_UP)
    with pytest.raises(NothingCompared, match="no table of e2m1 under stochastic"):
        pipe.export("e2m1", rounding=Rounding.STOCHASTIC)
    with pytest.raises(NothingCompared, match="no block under"):
        pipe.export("mxfp4_ceil+ties_up")
    with pytest.raises(ArgumentError, match="No such file"):
        pipe.read_answers("not/there")
    with pytest.raises(ArgumentError, match="got 0, want 1"):
        answers(format_lines(FORMATS["e2m1"], Rounding.TIES_UP)[:1], [])


ENCODER = r"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* MXFP4, scale rule FLOOR: 32 binary32 words a line, answered by the same, 32 codes and the scale byte. */
int main(void) {
  static const double middle[7] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
  uint32_t x[32];
  for (;;) {
    uint32_t amax = 0;
    for (int i = 0; i < 32; i++) {
      if (scanf("%8x", &x[i]) != 1) return 0;
      if ((x[i] & 0x7FFFFFFF) > amax) amax = x[i] & 0x7FFFFFFF;
    }
    int marked = amax >= 0x7F800000;            /* NaN or Inf in the block */
    int byte = (int)(amax >> 23) - 2;           /* floor(log2 amax) - 2 + 127 */
    if (byte < 0) byte = 0;
    double unit = 1;
    for (int i = byte; i < 127 && !marked; i++) unit /= 2;
    for (int i = 127; i < byte && !marked; i++) unit *= 2;
    for (int i = 0; i < 32; i++) printf("%08x ", x[i]);
    for (int i = 0; i < 32; i++) {
      uint32_t magnitude = x[i] & 0x7FFFFFFF;
      unsigned code = 0;
      float f;
      memcpy(&f, &magnitude, 4);
      while (code < 7 && (f > middle[code] * unit || (f == middle[code] * unit && TIE_GOES_UP))) code++;
      printf("%x", magnitude > 0x7F800000 ? 7 : code | x[i] >> 31 << 3);
    }
    printf(" %02x\n", marked ? 255 : byte);
  }
}
"""


def lowbit(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lowbit.cli", "vectors", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_program_in_c(tmp_path: Path) -> None:
    """Forty lines of C are judged right; the same with ties away is judged wrong, and its fault named."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "this test wants a C compiler: apt-get install gcc"
    exported = lowbit("export", "mxfp4_floor")
    assert exported.returncode == 0
    outcome = {}
    for name, tie in (("right", "code % 2"), ("away", "1")):
        source = tmp_path / f"{name}.c"
        source.write_text(ENCODER)
        program = tmp_path / name
        subprocess.run([compiler, "-O1", f"-DTIE_GOES_UP=({tie})", "-o", program, source], check=True)
        answered = subprocess.run([program], input=exported.stdout, capture_output=True, text=True, check=True).stdout
        options = ("--report-dir", str(tmp_path / "runs"), "--program", name)
        outcome[name] = lowbit("judge", "mxfp4_floor", "-", *options, stdin=answered)
        if name == "right":
            short = "".join(answered.splitlines(keepends=True)[:100])
            truncated = lowbit("judge", "mxfp4_floor", "-", *options, stdin=short)
    assert ENCODER.count("\n") <= 42
    assert outcome["right"].returncode == 0, outcome["right"].stdout + outcome["right"].stderr
    assert "right · golden(" in outcome["right"].stdout
    assert outcome["away"].returncode == 1
    assert "mismatches vanish with ties away from zero" in outcome["away"].stdout
    assert "tie → even" in outcome["away"].stdout
    assert truncated.returncode == 2
    assert "answers: got 100" in truncated.stdout
    assert len(list((tmp_path / "runs").glob("*/index.html"))) == 3


# -- arguments, and the command that repeats


@pytest.mark.parametrize("fmt", ["e2m3", "e3m2"])
def test_codes_beyond_a_format_are_malformed(tmp_path: Path, fmt: str) -> None:
    """Six bits take two digits, of which 40 and above are no code."""
    lines = format_lines(FORMATS[fmt], Rounding.TIES_TO_EVEN)
    answered = [f"{line.words} {line.answer}" for line in lines]
    answered[4] = f"{lines[4].words} 40"
    found = pipe.judge(fmt, answered, program="wide", report_dir=tmp_path)
    assert (found.status, found.record.status) == (2, "error")
    assert "line 5: code: got 40, want 00 to 3f" in found.record.message


def test_lines_end_with_line_feeds_only(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    path.write_bytes(b"a\r\nb\x0bc\x0c\x1c\x1d\x1e\rd\n\ne\n")
    assert pipe.read_answers(str(path)) == ["a", "b\x0bc\x0c\x1c\x1d\x1e\rd", "", "e"]
    path.write_bytes(b"")
    assert pipe.read_answers(str(path)) == []


@pytest.mark.parametrize("between", ["\x0b", "\x0c", "\x1c", "\x1f", "\r"])
def test_words_are_separated_by_blanks_only(between: str) -> None:
    line = format_lines(FORMATS["e2m1"], Rounding.TIES_UP)[0]
    with pytest.raises(ArgumentError, match="line 1"):
        answers([line], [f"{line.words}{between}{line.answer}"])
    assert answers([line], [f" {line.words} \t{line.answer} \r\n"]) == [[line.answer]]


@pytest.mark.parametrize("under", ["file", "file/runs"])
def test_a_report_needs_a_folder(tmp_path: Path, under: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"report_dir: got .*file.*want a folder"):
        pipe.judge("mxfp4_ceil", [], program="x", report_dir=tmp_path / under)


@pytest.mark.parametrize(("rounding", "nan"), [("", None), (None, ""), ("ties_up", ""), ("", "nan_zero")])
def test_empty_names_of_rules_are_refused(rounding: str | None, nan: str | None) -> None:
    with pytest.raises(UnknownScheme, match="want one of ties_to_even"):
        pipe.rules(rounding, nan)
    assert pipe.rules(None, None) == (None, None)


def test_the_repeat_command_repeats(tmp_path: Path) -> None:
    """Run as the report shows it, the command finds the same; every argument matters to it."""
    root = tmp_path / "other vectors"
    shutil.copytree(ROOT / "vectors", root)
    lines = format_lines(FORMATS["e2m1"], Rounding.TIES_UP, NanCode.ZERO, root)
    place = tmp_path / "my answers"
    answered = [f"{line.words} {line.answer}" for line in lines]
    answered[3] = f"{lines[3].words} {int(lines[3].answer, 16) ^ 1:x}"
    place.write_text("".join(f"{text}\n" for text in answered))
    found = pipe.judge(
        "e2m1",
        pipe.read_answers(str(place)),
        program="my program",
        report_dir=tmp_path / "runs",
        rounding=Rounding.TIES_UP,
        nan=NanCode.ZERO,
        max_mismatches=7,
        root=root,
    )
    assert found.status == 1
    words = shlex.split(found.record.repeat)
    assert words == [
        *("lowbit", "vectors", "judge", "e2m1", str(place), "--rounding", "ties_up", "--nan", NanCode.ZERO.value),
        *("--root", str(root), "--program", "my program", "--report-dir", str(tmp_path / "runs")),
        *("--max-mismatches", "7"),
    ]
    again = lowbit(*words[2:])
    assert again.returncode == 1, again.stderr
    assert f"{found.record.compared:,} numbers compared, {found.record.compared - 1:,} right" in again.stdout
    given = pipe.judge("e2m1", answered, program="x", report_dir=tmp_path / "runs")
    assert shlex.split(given.record.repeat)[:5] == ["lowbit", "vectors", "judge", "e2m1", "-"]
