"""The hex pipe: vectors as lines, answers in any language, judged and diagnosed as a kernel is."""

from __future__ import annotations

import re
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
