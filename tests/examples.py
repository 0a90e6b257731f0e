"""Makes `reports/examples/`: the reports of a run that passes and of one that fails, and pictures of first screens.

``python tests/examples.py`` runs the suite twice, for about a minute, and writes everything. With ``--pages`` the suite
is not run: the pages and tables are made again from the records that are there. Time, versions and commit are fixed,
and each page says so, for the same records to give the same bytes everywhere.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import browser

from lowbit import report
from lowbit.records import append, plain, read_about, read_records

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "reports" / "examples"
MADE = ("index.html", "summary.csv", "mismatches.csv")
"""What is made from the records; `tests/test_report_examples.py` makes it again and compares."""

WINDOW = (1280, 800)


@dataclass(frozen=True)
class Example:
    """A folder of examples.

    Attributes:
      words: what follows ``pytest conformance/``. code: pytest's exit code.
    """

    name: str
    words: tuple[str, ...]
    code: int


RUNS = (
    Example("passing", ("--scheme", "mxfp4_floor", "--scheme", "nvfp4", "--level", "quick"), 0),
    Example(
        "failing",
        ("--impl", "tests/mutants/ties_away.py:IMPLEMENTATION", "--scheme", "mxfp4_floor", "--level", "quick"),
        1,
    ),
)


def make(example: Example) -> None:
    """Runs the suite and keeps its records, with what differs from machine to machine made constant."""
    folder = EXAMPLES / example.name
    folder.mkdir(parents=True, exist_ok=True)
    words = ["pytest", "conformance/", *example.words]
    with tempfile.TemporaryDirectory() as place:
        options = ["--device", "cpu", "--report-dir", place, "--no-html", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run([*words, *options], cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
        assert done.returncode == example.code, f"{example.name}: exit code {done.returncode}, want {example.code}"
        (run,) = Path(place).iterdir()
        about, records = read_about(run), read_records(run)
    (folder / "records.jsonl").unlink(missing_ok=True)
    for record in records:
        record.run, record.seconds = example.name, 0.0
        append(folder / "records.jsonl", record)
    note = "AN EXAMPLE: time, versions and commit are fixed, so that the same records give the same bytes"
    about |= {
        "run": example.name,
        "started": "2026-01-01T00:00:00Z",
        "finished": "2026-01-01T00:01:00Z",
        "command": shlex.join(words),
        "environment": {"example": note, "device": about["environment"]["device"]},
    }
    (folder / "run.json").write_text(json.dumps(plain(about), indent=2) + "\n", encoding="ascii")


def draw(example: Example, tab: browser.Tab) -> None:
    """Pictures of the page's first screen, for README."""
    for dark in (False, True):
        tab.open(EXAMPLES / example.name / "index.html", width=WINDOW[0], height=WINDOW[1], dark=dark)
        tab.picture(EXAMPLES / f"{example.name}-{'dark' if dark else 'light'}.png")


def main(words: list[str]) -> None:
    for example in RUNS:
        if "--pages" not in words:
            make(example)
        report.build(EXAMPLES / example.name)
    if browser.find() is None:
        print("no Chromium is installed: the pictures stay as they are")
        return
    with browser.tab() as tab:
        for example in RUNS:
            draw(example, tab)


if __name__ == "__main__":
    main(sys.argv[1:])
