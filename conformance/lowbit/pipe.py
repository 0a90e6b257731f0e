"""The hex pipe: judges what a program in any language answered to exported lines, as the suite judges a kernel.

The answers are compared and diagnosed by the same code, and leave the same report.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lowbit import environment, report
from lowbit.compare import Comparison, compare_codes, compare_encoded, merge
from lowbit.diagnose import diagnose, diagnose_codes
from lowbit.errors import ArgumentError, UnknownScheme
from lowbit.formats import FloatFormat
from lowbit.records import Record, Run
from lowbit.rules import NanCode, Rounding
from lowbit.schemes import Scheme
from lowbit.vectors import hexlines
from lowbit.vectors.hexlines import Blocks, Line

CHECK = "hex lines"
DEVICE = "wherever the lines were answered"
LEVEL = "golden vectors"

MAX_MISMATCHES = 20

PLACES = 3
"""Cases named in a message."""


@dataclass(frozen=True)
class Judgement:
    """What became of a file of answers.

    Attributes:
      status: 0 all right · 1 some differ · 2 the lines could not be judged.
      record: as in the report.
      folder: of the report.
    """

    status: int
    record: Record
    folder: Path

    @property
    def total(self) -> str:
        """What was compared, in a line."""
        right = self.record.compared - self.record.mismatched
        return (
            f"{self.record.compared:,} numbers compared, {right:,} right · {self.record.assurance or 'nothing judged'}"
        )


def rules(rounding: str | None, nan: str | None) -> tuple[Rounding | None, NanCode | None]:
    """The rules of those names.

    Raises:
      UnknownScheme: there is no such rule.
    """
    try:
        return None if rounding is None else Rounding(rounding), None if nan is None else NanCode(nan)
    except ValueError as error:
        known = ", ".join(rule.value for rule in (*Rounding, *NanCode))
        raise UnknownScheme(f"rounding, nan: {error}, want one of {known}") from error


def export(name: str, *, rounding: Rounding | None = None, nan: NanCode | None = None, root: Any = None) -> list[Line]:
    """The lines of a scheme, or of a format under a rounding rule (ties to even if none is said)."""
    target = hexlines.target(name)
    if isinstance(target, Scheme):
        if rounding is not None or nan is not None:
            raise ArgumentError(f"rounding, nan: got one for {name}, want none: a scheme has its own")
        return hexlines.scheme_lines(target, root)
    return hexlines.format_lines(target, rounding or Rounding.TIES_TO_EVEN, nan, root)


class Answers(list[str]):
    """Answered lines that know where they were read from, so that a report can say how to judge them again."""

    place = "-"


def read_answers(place: str) -> Answers:
    """The lines of a file, or of standard input where `place` is ``-``; bytes that are no ASCII are kept visible.

    Lines end with a line feed, with or without a carriage return before it, and with nothing else.

    Raises:
      ArgumentError: the file cannot be read.
    """
    try:
        data = sys.stdin.buffer.read() if place == "-" else Path(place).read_bytes()
    except OSError as error:
        raise ArgumentError(f"answers: {place}: {error.strerror}, want a file of answered lines, or -") from error
    lines = data.decode("ascii", "replace").split("\n")
    found = Answers(line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1]))
    found.place = place
    return found


def repeating(
    name: str,
    answers: Iterable[str],
    *,
    program: str,
    report_dir: Path | str,
    rounding: Rounding | None,
    nan: NanCode | None,
    max_mismatches: int,
    root: Any,
) -> str:
    """The command that judges the answers again, with the arguments of `judge`; answers not from a file are ``-``."""
    words = ["lowbit", "vectors", "judge", name, getattr(answers, "place", "-")]
    words += [] if rounding is None else ["--rounding", rounding.value]
    words += [] if nan is None else ["--nan", nan.value]
    words += [] if root is None else ["--root", str(root)]
    words += ["--program", program, "--report-dir", str(report_dir)]
    words += [] if max_mismatches == MAX_MISMATCHES else ["--max-mismatches", str(max_mismatches)]
    return shlex.join(words)


def judge(
    name: str,
    answers: Iterable[str],
    *,
    program: str,
    report_dir: Path | str,
    command: str = "",
    rounding: Rounding | None = None,
    nan: NanCode | None = None,
    max_mismatches: int = MAX_MISMATCHES,
    root: Any = None,
) -> Judgement:
    """Judges answered lines, and writes a report.

    Args:
      name: the scheme or format whose lines were exported.
      answers: the answered lines, in order.
      program: what is judged, as the report shows it.
      report_dir: the folder of runs.
      command: that repeats the judgement; "" makes it from the arguments.
      rounding, nan: as in `export`.

    Raises:
      UnknownScheme: neither a scheme nor a format.
      NothingCompared: there are no such vectors.
      ArgumentError: report_dir is no folder, and none can be made there.
    """
    started = time.monotonic()
    lines = export(name, rounding=rounding, nan=nan, root=root)
    try:
        Path(report_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"report_dir: got {report_dir} ({error.strerror}), want a folder, or where to make one"
        ) from error
    command = command or repeating(
        name,
        answers,
        program=program,
        report_dir=report_dir,
        rounding=rounding,
        nan=nan,
        max_mismatches=max_mismatches,
        root=root,
    )
    options = {"scheme": [name], "rounding": rounding.value if rounding else None, "nan": nan.value if nan else None}
    run = Run.start(
        report_dir, environment.collect(DEVICE), command, options, None, implementation=program, level=LEVEL
    )
    fields: dict[str, Any] = {
        "scheme": name + (f"+{rounding.value}" if rounding else ""),
        "check": CHECK,
        "implementation": program,
        "device": DEVICE,
        "level": LEVEL,
        "node": f"{CHECK}: {name}",
        "repeat": command,
    }
    try:
        found, diagnosis = _compared(name, lines, answers, rounding, nan, max_mismatches)
        record = Record.of(found, diagnosis=diagnosis, assurance=f"golden({len(lines)})", **fields)
        status = 0 if record.status == "pass" else 1
    except ArgumentError as error:
        record, status = Record(status="error", message=str(error), **fields), 2
    record.seconds = time.monotonic() - started
    run.add(record)
    run.finish(status)
    report.build(run.folder)
    return Judgement(status, record, run.folder)


def _compared(
    name: str,
    lines: list[Line],
    answers: Iterable[str],
    rounding: Rounding | None,
    nan: NanCode | None,
    limit: int,
) -> tuple[Comparison, str]:
    added = hexlines.answers(lines, answers)
    target = hexlines.target(name)
    if isinstance(target, FloatFormat):
        x, actual, expected = hexlines.codes_of(lines, added, target)
        rule = rounding or Rounding.TIES_TO_EVEN
        # The first line has the number 1.
        found = compare_codes(x, actual, expected, target, start=1, max_samples=limit, rounding=rule)
        explained = None if found.ok else diagnose_codes(x, actual, expected, target, rule, nan)
        return _placed(found, lines), str(explained or "")
    parts, diagnoses = [], []
    for part in hexlines.blocks_of(lines, added, target):
        found = compare_encoded(part.x, part.actual, part.expected, target, max_samples=limit)
        samples = (replace(s, coordinates=hexlines.renumbered(part.numbers, s.coordinates)) for s in found.samples)
        parts.append(replace(found, samples=tuple(samples)))
        if not found.ok:
            diagnoses.append((found.mismatched, _diagnosed(part, target)))
    most = max(diagnoses, key=lambda pair: pair[0], default=(0, ""))
    return _placed(merge(parts, max_samples=limit), lines), most[1]


def _diagnosed(part: Blocks, scheme: Scheme) -> str:
    options = {"random_bits": part.random_bits, "scale_random_bits": part.scale_random_bits}
    if scheme.family == "nvfp4" and scheme.tensor_scale.value != "unit":
        options["tensor_scale"] = part.expected.tensor_scale
    given = {key: value for key, value in options.items() if value is not None}
    return str(diagnose(part.x, part.actual, scheme, part.expected, given) or "")


def _placed(found: Comparison, lines: list[Line]) -> Comparison:
    """The comparison with the first cases that failed in its message."""
    numbers = dict.fromkeys(s.coordinates[0] for s in found.samples if s.coordinates)
    places = dict.fromkeys(f"line {number}: {lines[number - 1].place}" for number in numbers)
    return replace(found, message="; ".join([*filter(None, [found.message]), *list(places)[:PLACES]]))
