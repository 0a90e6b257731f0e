"""One record a comparison, as JSON lines; a run's folder; both as tables.

The records are the report: everything else in a run's folder is a view of `run.json` and `records.jsonl`.
A record is on disk as soon as it is made, so that a run that dies leaves what it had.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lowbit import __version__
from lowbit.compare import digest, pictures
from lowbit.compare.comparison import Comparison, Sample
from lowbit.compare.kinds import KINDS
from lowbit.compare.pictures import Pictures
from lowbit.errors import ArgumentError, ReportError
from lowbit.tables import MISMATCH_COLUMNS, SUMMARY_COLUMNS, mismatches, readable, summary

__all__ = [
    "FAILING",
    "KINDS",
    "MISMATCH_COLUMNS",
    "STATUSES",
    "SUMMARY_COLUMNS",
    "Record",
    "Run",
    "append",
    "miscount",
    "mismatches",
    "plain",
    "read",
    "read_about",
    "read_records",
    "read_run",
    "readable",
    "summary",
    "worker_files",
]

STATUSES = ("pass", "mismatch", "error", "unsupported", "not_run", "waived")
"""What a record can say. `unsupported` and `not_run` compared nothing; the message says why."""

FAILING = ("mismatch", "error")

DEPTH = 32
"""Objects and lists inside each other that are read; whatever is deeper was not written by a run."""

_UNCOUNTED = (
    *("error", "shape", "dtype", "changed_input", "view", "setting"),
    *("guard", "unwritten", "nondeterministic"),
)
"""Kinds of mismatch of which no element was compared: they may bring `mismatched` above `compared`."""


@dataclass(kw_only=True)
class Record:
    """The outcome of one check of one scheme of one implementation.

    Attributes:
      run: the run's id. implementation, version: what was judged. scheme, check: by name.
      device: the line that says on what. level: quick, full or exhaustive.
      assurance: ``proved``, ``exhaustive(N)``, ``breakpoints(N)``, ``golden(N)``, ``property(n, seed)`` or
        ``sampled(n, seed)``.
      status: one of `STATUSES`.
      compared, mismatched, kinds, samples, message: as `Comparison` has them; samples become dicts.
      diagnosis: a sentence that says which rule was broken, or "".
      seconds: duration. node: pytest's node id. repeat: the command that repeats this check.
      digests: kind → 16 hex digits that stand for exactly these mismatches; `digest` is one of all kinds.
      pictures: counts of where and how it differs, see `pictures` and REPORTS.md; {} where nothing does.
      extra: further figures, by name; of a checkpoint's tensor `tensor`, `blocks`, `saturated`, ….
    """

    scheme: str
    check: str
    status: str
    run: str = ""
    implementation: str = ""
    version: str = ""
    device: str = ""
    level: str = ""
    assurance: str = ""
    compared: int = 0
    mismatched: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    samples: Sequence[Any] = field(default_factory=list)
    diagnosis: str | None = ""
    seconds: float = 0.0
    node: str = ""
    message: str = ""
    repeat: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, Any] = field(default_factory=dict)
    pictures: Any = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ArgumentError(f"status: got {self.status!r}, want one of {', '.join(STATUSES)}")
        self.samples = [dataclasses.asdict(s) if isinstance(s, Sample) else s for s in self.samples]
        self.diagnosis = self.diagnosis or ""
        if self.pictures is None or isinstance(self.pictures, Pictures):
            self.pictures = self.pictures.as_dict() if self.pictures else {}
        if isinstance(self.digests, dict):
            self.digests = {kind: f"{d:016x}" if isinstance(d, int) else d for kind, d in self.digests.items()}

    @property
    def failed(self) -> bool:
        return self.status in FAILING

    @property
    def digest(self) -> str:
        """How many mismatches, and 16 hex digits over all of them, as waivers state it; "" where nothing differs."""
        return digest.of_result(self.kinds, self.digests) if self.mismatched else ""

    @classmethod
    def of(cls, comparison: Comparison, **fields: Any) -> Record:
        """The record of a comparison; status follows from it, and a comparison of nothing is an error."""
        status, message = "pass" if comparison.ok else "mismatch", comparison.message
        if comparison.ok and comparison.compared == 0:
            status, message = "error", message or f"nothing was compared of {comparison.tensor}"
        return cls(
            **{
                "status": status,
                "compared": comparison.compared,
                "mismatched": comparison.mismatched,
                "kinds": dict(comparison.kinds),
                "samples": comparison.samples,
                "message": message,
                "digests": comparison.digests,
                "pictures": comparison.pictures,
                **fields,
            }
        )

    def as_dict(self) -> dict[str, Any]:
        """The record in JSON's own types; NaN and ±Inf as the strings ``nan``, ``inf``, ``-inf``."""
        return {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys((f.name for f in dataclasses.fields(Record)), (str,)),
    **{"compared": (int,), "mismatched": (int,), "seconds": (int, float)},
    **{"kinds": (dict,), "samples": (list,), "extra": (dict,), "digests": (dict,), "pictures": (dict,)},
}


def append(path: Path | str, record: Record) -> None:
    """Writes one line at once, in a single write at the file's end."""
    line = json.dumps(record.as_dict(), allow_nan=False) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        data = memoryview(line.encode("ascii"))
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def read(path: Path | str, problems: list[str] | None = None) -> list[Record]:
    """The records of a file, in its order.

    Args:
      problems: collects a sentence a line that is no record: a process was killed while it wrote, or its counts
        contradict each other or its status. If None, such a line raises.

    Raises:
      ReportError: the file cannot be read, or a line is no record and `problems` is None.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ReportError(f"{path.name}: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(_record(_load(line)))
        except (ValueError, TypeError, RecursionError) as error:
            problem = f"{path.name}, line {number}: no record ({type(error).__name__})"
            if problems is None:
                raise ReportError(problem) from error
            problems.append(problem)
    return records


def _load(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError for what can be read in two ways, or is nested too deeply to be told."""
    value = json.loads(text, object_pairs_hook=_object, parse_constant=_refused)
    layer = [value]
    for _ in range(DEPTH + 1):
        nested = [outer for outer in layer if isinstance(outer, (dict, list))]
        layer = [item for outer in nested for item in (outer.values() if isinstance(outer, dict) else outer)]
    if layer:
        raise ValueError(f"more than {DEPTH} objects and lists inside each other")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice in one object")
    return found


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _record(value: Any) -> Record:
    """A record out of a JSON object; TypeError if it is none. Fields of later versions are passed over."""
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__}, want an object")
    record = Record(**{name: v for name, v in value.items() if name in _TYPES})
    for name, wanted in _TYPES.items():
        if not isinstance(getattr(record, name), wanted):
            raise TypeError(f"{name} is a {type(getattr(record, name)).__name__}, want {wanted}")
    if not all(isinstance(sample, dict) for sample in record.samples):
        raise TypeError("samples holds what is no object")
    if not all(isinstance(found, str) for found in record.digests.values()):
        raise TypeError("digests holds what is no text")
    if not all(map(_is_count, (record.compared, record.mismatched, *record.kinds.values()))):
        raise ValueError("counts: want integers of 0..2^63-1")
    if isinstance(record.seconds, bool) or not 0 <= record.seconds < float(1 << 63):
        raise ValueError("seconds: want a finite number that is not negative")
    if record.status == "pass" and record.mismatched:
        raise ValueError(f"mismatched: got {record.mismatched} in a record that passed, want 0")
    if record.mismatched > record.compared + sum(record.kinds.get(kind, 0) for kind in _UNCOUNTED):
        raise ValueError(f"mismatched: got {record.mismatched}, want at most compared, {record.compared}")
    record.pictures = pictures.validated(record.pictures, record.mismatched)
    return record


def plain(value: Any) -> Any:
    """A value in JSON's own types, whatever it was."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(name): plain(v) for name, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in (sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)]
    if hasattr(value, "item") and getattr(value, "size", None) == 1:
        return plain(value.item())
    return str(value)


class Run:
    """A run's folder while the run goes on.

    Attributes:
      id: UTC time and four hex digits. folder: where everything is written. worker: "" for the process that owns
        the run, else the name of one that only adds records.
    """

    def __init__(self, folder: Path | str, *, worker: str = ""):
        self.folder = Path(folder)
        self.id = self.folder.name
        self.worker = worker

    @classmethod
    def start(
        cls,
        report_dir: Path | str,
        environment: Mapping[str, Any],
        command: Iterable[str] | str,
        options: Mapping[str, Any],
        seed: int | None,
        *,
        implementation: str = "",
        version: str = "",
        level: str = "",
    ) -> Run:
        """Makes the folder, an empty records.jsonl, and run.json, unfinished.

        Args:
          report_dir: the folder of runs.
          environment: as `environment.collect` returns. command: the command line of the run.
          options: those in force, by name. seed: of random inputs.
          implementation, version, level: for the report of a run that leaves no record; else `options` say it.

        Raises:
          ReportError: nothing can be written there.
        """
        now = datetime.now(UTC)
        while True:
            folder = Path(report_dir) / f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
            try:
                folder.mkdir(parents=True)
                break
            except OSError as error:
                if not isinstance(error, FileExistsError) or not folder.parent.is_dir():
                    told = f"report_dir: {report_dir}: {error.strerror}, want a folder to write to"
                    raise ReportError(told) from error
        run = cls(folder)
        run.path.touch()
        run._write(
            {
                "run": run.id,
                "lowbit": __version__,
                "started": f"{now:%Y-%m-%dT%H:%M:%SZ}",
                "finished": None,
                "exit_status": None,
                "implementation": implementation,
                "version": version,
                "level": level or str(options.get("level") or ""),
                "command": command if isinstance(command, str) else list(command),
                "seed": seed,
                "options": dict(options),
                "environment": dict(environment),
            }
        )
        return run

    @classmethod
    def join(cls, folder: Path | str, worker: str) -> Run:
        """The run of another process, in a worker; it adds records to a file of its own."""
        return cls(folder, worker=worker)

    @property
    def path(self) -> Path:
        """The file that `add` writes to."""
        return self.folder / (f"records.{self.worker}.jsonl" if self.worker else "records.jsonl")

    def add(self, record: Record) -> None:
        """Writes a record at once, under this run's id."""
        record.run = self.id
        append(self.path, record)

    def finish(self, status: int, **told: Any) -> list[Record]:
        """Merges the workers' records, ordered by node id, and writes the end into run.json.

        Args:
          status: the exit status of the process.
          told: what else is known only now, by name.
        """
        found, problems = read_run(self.folder)
        workers = worker_files(self.folder)
        if workers:
            merged = self.folder / "records.merged"
            merged.unlink(missing_ok=True)
            merged.touch()
            for record in found:
                append(merged, record)
            merged.replace(self.folder / "records.jsonl")
            for path in workers:
                path.unlink()
        about = read_about(self.folder)
        about["finished"] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        about["exit_status"] = int(status)
        about["problems"] = problems
        about["records"] = len(found)
        about |= told
        self._write(about)
        return found

    def _write(self, about: Mapping[str, Any]) -> None:
        temporary = self.folder / "run.json.new"
        temporary.write_text(json.dumps(plain(about), indent=2, allow_nan=False) + "\n", encoding="ascii")
        temporary.replace(self.folder / "run.json")


def worker_files(folder: Path) -> list[Path]:
    """The record files of workers that have not been merged."""
    return sorted(folder.glob("records.*.jsonl"))


def read_run(folder: Path | str) -> tuple[list[Record], list[str]]:
    """All records of a run, merged or not, and what could not be read.

    Workers finish in any order, so their records are put in order of node id, scheme and tensor; a run of one
    process keeps the order in which it wrote.
    """
    folder = Path(folder)
    problems: list[str] = []
    main = folder / "records.jsonl"
    found = read(main, problems) if main.exists() else []
    workers = worker_files(folder)
    for path in workers:
        found += read(path, problems)
    if workers:
        found.sort(key=lambda r: (r.node, r.implementation, r.scheme, r.check, str(r.extra.get("tensor", ""))))
    return found, problems


def read_records(folder: Path | str) -> list[Record]:
    """All records of a run that can be read, as `read_run`."""
    return read_run(folder)[0]


def read_about(folder: Path | str) -> dict[str, Any]:
    """run.json.

    Raises:
      ReportError: there is none, or it is no JSON object, or one that can be read in two ways.
    """
    path = Path(folder) / "run.json"
    try:
        about = _load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(
            f"run_dir: {Path(folder).name} holds no readable run.json ({error}), want a run's folder"
        ) from error
    if not isinstance(about, dict):
        raise ReportError(f"run_dir: run.json of {Path(folder).name} is a {type(about).__name__}, want an object")
    return about


def miscount(about: Mapping[str, Any], records: Sequence[Record]) -> str:
    """That there are fewer records, or more, than when the run ended, in a sentence; "" if there are as many.

    Lines that were lost whole leave no other trace.
    """
    counted = about.get("records")
    if counted is None or counted == len(records):
        return ""
    return f"records: {len(records):,} are there, {str(counted)[:20]} were when the run ended"
