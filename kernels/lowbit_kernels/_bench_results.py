"""What the bench found: rows, the CSV file and the JSON file beside it, and the comparison of two runs.

The CSV has the columns `COLUMNS` and nothing else. Beside RUN.csv lies RUN.json: the environment, and for each row the
spread of its times and how it was measured, which `compare` needs to tell a change from noise.
"""

from __future__ import annotations

import csv
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import triton

from lowbit.errors import ArgumentError
from lowbit_kernels._bench_timing import Spread

COLUMNS = (
    "operation",
    "dtype",
    "rows",
    "columns",
    "bytes",
    "microseconds",
    "terabytes_per_second",
    "fraction_of_copy",
    "target",
)
GIT_SECONDS = 5

Key = tuple[str, str, int, int]


@dataclass(frozen=True)
class Row:
    """One operation at one shape.

    Args:
      operation, dtype, rows, columns: what was measured.
      bytes: that a call moves.
      spread: of the microseconds of a call.
      fraction_of_copy: its bandwidth over that of the copies measured between its samples; None for host times.
      target: of fraction_of_copy, or None.
      details: how it was measured, for the JSON file.
    """

    operation: str
    dtype: str
    rows: int
    columns: int
    bytes: int
    spread: Spread
    fraction_of_copy: float | None = None
    target: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.operation, self.dtype, self.rows, self.columns

    @property
    def terabytes_per_second(self) -> float | None:
        return None if self.fraction_of_copy is None else self.bytes / self.spread.median / 1e6

    def cells(self) -> list[str]:
        """The texts of the CSV row; empty where there is nothing to say."""
        rate, fraction = self.terabytes_per_second, self.fraction_of_copy
        return [
            *(self.operation, self.dtype, str(self.rows), str(self.columns), str(self.bytes)),
            f"{self.spread.median:.3f}",
            "" if rate is None else f"{rate:.4f}",
            "" if fraction is None else f"{fraction:.4f}",
            "" if self.target is None else f"{self.target:.2f}",
        ]

    def facts(self) -> dict[str, Any]:
        """What the JSON file keeps beside the CSV row."""
        spread = {name: round(value, 3) for name, value in asdict(self.spread).items()}
        key = dict(zip(COLUMNS, self.key, strict=False))
        return {**key, "microseconds": spread, **self.details}


def header() -> str:
    """The first line of the table on the terminal."""
    place = _place("operation", "dtype", "rows", "columns")
    return f"{place} {'MB':>7} {'us':>9} {'spread':>7} {'TB/s':>6} {'of copy':>7} {'target':>6}"


def _place(operation: str, dtype: str, rows: object, columns: object) -> str:
    return f"{operation:<38} {dtype:<8} {rows:>6} {columns:>7}"


def line(row: Row) -> str:
    """A row on the terminal; `spread` is that between the deciles, relative to the median."""
    *_, fraction, target = row.cells()
    rate, spread = row.terabytes_per_second, row.spread
    return (
        f"{_place(*row.key)} {row.bytes / 1e6:>7.1f} {spread.median:>9.2f} "
        f"{(spread.high - spread.low) / spread.median:>7.1%} {'' if rate is None else f'{rate:.3f}':>6} "
        f"{fraction[:5]:>7} {target:>6} {verdict(row)}"
    ).rstrip()


def verdict(row: Row) -> str:
    """``below`` where a target is missed, ``met`` where it is reached, else nothing; for host times the ratio."""
    if "host_ratio" in row.details:
        limit = row.details["host_limit"]
        ratio = row.details["host_ratio"]
        ours = row.details["host_ratio_of_our_launch"]
        verdict = "" if ratio < limit else ": above"
        return f"{ratio:.2f} of an empty kernel, limit {limit}{verdict}; {ours:.2f} of one by our own launch"
    if row.target is None or row.fraction_of_copy is None:
        return ""
    return "met" if row.fraction_of_copy >= row.target else "below"


class Results:
    """Writes rows as they come: both files are complete after each."""

    def __init__(self, out: Path | None, environment: Mapping[str, Any]) -> None:
        self.rows: list[Row] = []
        self.errors: dict[str, str] = {}
        self._environment = environment
        self._out = out
        self._file = None
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            self._file = out.open("w", encoding="utf-8", newline="")
            self._write(COLUMNS)
            self._write_facts()

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, row: Row) -> None:
        """Keeps a row and writes it."""
        self.rows.append(row)
        self._write(row.cells())
        self._write_facts()

    def fail(self, what: str, error: BaseException) -> None:
        """Keeps why something could not be measured."""
        self.errors[what] = f"{type(error).__name__}: {error}"
        self._write_facts()

    def _write(self, cells: Sequence[str]) -> None:
        if self._file is not None:
            csv.writer(self._file, lineterminator="\n").writerow(cells)
            self._file.flush()

    def _write_facts(self) -> None:
        if self._out is not None:
            facts = {
                "environment": self._environment,
                "rows": [row.facts() for row in self.rows],
                "errors": self.errors,
            }
            self._out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> list[Row]:
    """The rows of a CSV file, with their spreads where the JSON file is beside it, else with none.

    Raises:
      ArgumentError: no such file; other columns; a row that cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            names, *lines = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"compare: {path} cannot be read: {error}") from error
    if tuple(names) != COLUMNS:
        raise ArgumentError(f"compare: got the columns {', '.join(names) or '(none)'}, want {', '.join(COLUMNS)}")
    spreads = _spreads(path)
    try:
        return [_row(cells, spreads) for cells in lines]
    except (ValueError, TypeError) as error:
        raise ArgumentError(f"compare: {path} has a row that cannot be read: {error}") from error


def facts(path: Path) -> dict[str, Any]:
    """The JSON file beside a CSV file; nothing where there is none.

    Raises:
      ArgumentError: it holds something else.
    """
    path = path.with_suffix(".json")
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"compare: {path} cannot be read: {error!r}") from error
    if not isinstance(found, dict):
        raise ArgumentError(f"compare: {path} holds a {type(found).__name__}, want an object")
    return found


def _spreads(path: Path) -> dict[Key, Spread]:
    found = facts(path)
    if not found:
        return {}
    try:
        return {
            (row["operation"], row["dtype"], row["rows"], row["columns"]): Spread(**row["microseconds"])
            for row in found["rows"]
        }
    except (KeyError, TypeError) as error:
        raise ArgumentError(f"compare: {path.with_suffix('.json')} cannot be read: {error!r}") from error


def _row(cells: Sequence[str], spreads: Mapping[Key, Spread]) -> Row:
    operation, dtype, rows, columns, size, time, _, fraction, target = cells
    key = (operation, dtype, int(rows), int(columns))
    median = float(time)
    spread = spreads.get(key, Spread(median, median, median, median, median, 0))
    return Row(*key, int(size), spread, float(fraction) if fraction else None, float(target) if target else None)


def compare(actual: Iterable[Row], expected: Iterable[Row]) -> list[str]:
    """Lines that set a run beside an earlier one.

    A row is slower where its first decile is above the earlier run's last, faster the other way round. An earlier run
    without spreads is taken to have been as unsteady as this one.
    """
    earlier = {row.key: row for row in expected}
    times = f"{'was us':>9} {'is us':>9} {'ratio':>6}"
    lines = [f"{_place('operation', 'dtype', 'rows', 'columns')} {times} of copy"]
    for row in actual:
        old = earlier.pop(row.key, None)
        start = _place(*row.key)
        if old is None:
            lines.append(f"{start} {'':>9} {row.spread.median:>9.2f} {'':>6} new")
            continue
        fractions = [f"{r.fraction_of_copy:.3f}" for r in (old, row) if r.fraction_of_copy is not None]
        ratio = row.spread.median / old.spread.median
        times = f"{old.spread.median:>9.2f} {row.spread.median:>9.2f} {ratio:>6.3f}"
        lines.append(f"{start} {times} {' -> '.join(fractions)} {change(row.spread, old.spread)}".rstrip())
    for old in earlier.values():
        lines.append(f"{_place(*old.key)} not measured this time")
    return lines


def change(actual: Spread, expected: Spread) -> str:
    """``slower``, ``faster`` or nothing: what exceeds the spread of both runs."""
    low, high = expected.low, expected.high
    if not expected.samples:
        low *= actual.low / actual.median
        high *= actual.high / actual.median
    return "slower" if actual.low > high else "faster" if actual.high < low else ""


def environment(device: torch.device, commit: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Where and how a run takes place: no path and no user name of the machine.

    Args:
      device: that is measured.
      commit: of the source, where the files are a copy without their repository; None asks git.
      options: of the command.
    """
    found: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": str(triton.__version__),
        "git": {"commit": commit} if commit else _git(),
        "options": dict(options),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "l2_bytes": getattr(properties, "L2_cache_size", None),
            "driver": _command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
        }
    return found


def _git() -> dict[str, Any] | None:
    folder = str(Path(__file__).resolve().parent)
    commit = _command("git", "-C", folder, "rev-parse", "HEAD")
    if not commit or _command("git", "-C", folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return {"commit": commit, "dirty": bool(_command("git", "-C", folder, "status", "--porcelain"))}


def _command(*words: str) -> str | None:
    """The first line that a program prints; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return next(iter(done.stdout.strip().splitlines()), "") if done.returncode == 0 else None
