"""How time and memory of a run grow with the data: a synthetic checkpoint, judged as a user judges one.

    python -m lowbit.bench.checkpoint --gigabytes 10 --growth 1,4,16 --method gptq
    python -m lowbit.bench.checkpoint --suite 1e9 --scheme mxfp4_floor

A checkpoint of each size is written into a temporary folder, judged by ``pytest --pyargs lowbit.suite --weights`` in a
process of its own, whose memory is watched, and removed. With ``--suite`` a check on one random tensor grows instead.

Seconds are those of the whole command, start and report included; judging is what its records tell of. Judging is
linear where an element that was added last takes as long as one that was added first: 1.0. On a machine that does other
work too, seconds of cores tell more than those of a clock. Memory is what the system counts as resident in the judging
process. The peak, by which the limit is judged, holds the pages of libraries too, which are told apart. Files of a
checkpoint are read, not mapped, so none of their pages are in it; what the system caches of them belongs to no process.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from lowbit import implementation, schemes
from lowbit.bench import child, suite, synthetic
from lowbit.bench.child import Finished
from lowbit.errors import ArgumentError, LowbitError
from lowbit.records import read_records

Row = dict[str, Any]

LIMIT = 4.0
"""Gigabytes of host memory that a run may take."""

TOLD = 15
"""Last lines that are told of a command that failed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; 1 where a run fails, a count is wrong or memory exceeds the limit. No time fails it.

    On SIGTERM, as on an interrupt, what runs is killed and what was written removed; then it exits with 143.
    """
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        return _main(arguments)
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: set by no Python


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lowbit.bench.checkpoint", description=__doc__.partition("\n\n")[0])
    add = parser.add_argument
    add("--gigabytes", type=suite.positive, default=1.0, help="the largest checkpoint, 10^9 bytes; default %(default)s")
    add("--growth", type=_growth, default=(1.0, 4.0, 16.0), help="sizes, relative to one another; default 1,4,16")
    add("--method", choices=synthetic.METHODS, default="gptq", help="default %(default)s")
    add("--hidden", type=int, default=4096, help="width of the model; default %(default)s")
    add("--shard-gigabytes", type=suite.positive, default=2.0, help="of one file; default %(default)s")
    said = "judge a random tensor, at most so large, and no checkpoint"
    add("--suite", type=suite.positive, metavar="ELEMENTS", help=said)
    add("--impl", default=implementation.DEFAULT, help="default %(default)s")
    said = f"repeatable; default as the suite has it, of a random tensor {suite.SCHEME}"
    add("--scheme", action="append", metavar="GLOB", help=said)
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--seed", type=suite.whole_seed, default=20260829)
    add("--host-gigabytes", type=suite.positive, default=LIMIT, help="limit of resident memory; default %(default)s")
    add("--folder", type=Path, help="where all is written and removed; default the system's temporary folder")
    add("--csv", type=Path, metavar="FILE", help="write the table there too")
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    try:
        _check(given)
        for part in given.growth:
            share = part / max(given.growth)
            row = _of_suite(given, share) if given.suite is not None else _of_checkpoint(given, share)
            rows.append({"times": part / given.growth[0], **row, **_of_linear([*rows, row])})
            _tell(rows)
        if given.csv:
            with given.csv.open("w", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)
    except (LowbitError, OSError) as error:
        parser.error(str(error))
    return 0 if all(row["verdict"] == "ok" for row in rows) else 1


def _terminated(number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one does not disturb the cleaning
    raise SystemExit(128 + number)


def _check(given: argparse.Namespace) -> None:
    """What would fail only after something was measured.

    Raises:
      ArgumentError: an argument that cannot be followed.
    """
    if given.suite is not None:
        schemes.select(given.scheme or ())
        least = int(given.suite * given.growth[0] / given.growth[-1])
        if least < suite.COLUMNS:
            raise ArgumentError(
                f"argument --suite: got {given.suite:g}, with --growth {least} elements at first,"
                f" want {suite.COLUMNS} or more"
            )
    if given.csv:
        new = not given.csv.exists()
        try:
            given.csv.open("a").close()
        except OSError as error:
            raise ArgumentError(f"argument --csv: got {given.csv}, want a file to write: {error.strerror}") from None
        if new:
            given.csv.resolve().unlink()


def _of_checkpoint(given: argparse.Namespace, share: float) -> Row:
    """Writes a checkpoint, judges it, removes it."""
    folder = Path(tempfile.mkdtemp(prefix="lowbit-bench-", dir=given.folder))
    try:
        model, runs = folder / "model", folder / "runs"
        model.mkdir()
        started = time.perf_counter()
        size, shard = int(given.gigabytes * share * 1e9), int(given.shard_gigabytes * 1e9)
        written = synthetic.write(model, given.method, size, hidden=given.hidden, shard=shard, seed=given.seed)
        writing = time.perf_counter() - started
        command = [sys.executable, "-m", "pytest", "--pyargs", "lowbit.suite", "-p", "no:cacheprovider"]
        command += ["-p", "lowbit.plugin"]  # where lowbit is on the path but not installed, pytest does not find it
        command += ["--weights", str(model), "--report-dir", str(runs), "--impl", given.impl]
        command += ["--device", given.device, *(f"--scheme={glob}" for glob in given.scheme or ())]
        done = child.run(command, folder / "log.txt")
        records = [record for run in sorted(runs.glob("*")) for record in read_records(run) if record.compared]
        judged = sum(record.extra["elements"] for record in records if record.status == "pass")
        schemes = {record.scheme for record in records}
        right = records and judged == written.weights * len(schemes)
        return {
            "gigabytes": round(written.size / 1e9, 4),
            "shards": written.shards,
            "layers": written.layers,
            "elements": written.weights,
            "schemes": len(schemes),
            "judged": judged,
            "compared": sum(record.compared for record in records),
            "writing": round(writing, 2),
            "seconds": round(done.seconds, 2),
            "cores": round(done.cpu, 2),
            "judging": round(sum(record.seconds for record in records), 2),
            **_memory(done),
            "verdict": _verdict(done, given.host_gigabytes, "" if right else "WRONG COUNTS"),
        }
    finally:
        shutil.rmtree(folder)


def _of_suite(given: argparse.Namespace, share: float) -> Row:
    """Judges one random tensor, under every scheme that is asked for."""
    command = [sys.executable, "-m", "lowbit.bench.suite", "--elements", str(int(given.suite * share))]
    command += ["--impl", given.impl, "--device", given.device, "--seed", str(given.seed)]
    command += [word for name in given.scheme or () for word in ("--scheme", name)]
    with tempfile.TemporaryDirectory(prefix="lowbit-bench-", dir=given.folder) as folder:
        done = child.run(command, Path(folder) / "log.txt")
    lines = [line for line in done.output.splitlines() if line.startswith("{")]  # warnings may stand around it
    said = json.loads(lines[-1]) if done.code == 0 and lines else {}
    return {
        "elements": said.get("elements", 0),
        "schemes": said.get("schemes", 0),
        "compared": said.get("compared", 0),
        "seconds": round(done.seconds, 2),
        "cores": round(done.cpu, 2),
        "judging": round(said.get("seconds", 0.0), 3),
        "device MB": round(said.get("device", 0) / 1e6, 1),
        **_memory(done),
        "verdict": _verdict(done, float("inf"), "" if said.get("compared") else "WRONG COUNTS"),
    }


def _memory(done: Finished) -> Row:
    """Megabytes of the child."""
    kinds = {"peak": done.peak, "own": done.anonymous, "libraries": done.files, "shared": done.shared}
    return {f"{name} MB": round(size / 1e6, 1) for name, size in kinds.items()}


def _verdict(done: Finished, limit: float, wrong: str) -> str:
    if done.code:
        print("\n".join(done.output.splitlines()[-TOLD:]), file=sys.stderr)
        return f"EXIT CODE {done.code}"
    return wrong or ("ok" if done.peak <= limit * 1e9 else f"MORE THAN {limit:g} GB")


def _of_linear(rows: Sequence[Row]) -> Row:
    """Seconds of an element added last, over those of one added first; None where no elements were added twice."""
    found: Row = {}
    grown = len(rows) > 2 and all(rows[i]["elements"] > rows[i - 1]["elements"] for i in (1, -1))
    for name in ("judging", "cores"):
        first, last = (_added(rows[i - 1], rows[i], name) for i in (1, -1)) if grown else (0.0, 0.0)
        found[f"{name} of linear"] = round(last / first, 3) if first > 0 else None
    return found


def _added(before: Row, after: Row, name: str) -> float:
    """Seconds of an element that one row has more than another."""
    return float(after[name] - before[name]) / (after["elements"] - before["elements"])


def _tell(rows: Sequence[Row]) -> None:
    """Prints the last row, before the first the head."""

    def shown(value: Any) -> str:
        return "-" if value is None else f"{value:,}" if isinstance(value, (int, float)) else str(value)

    widths = [max(len(name) + 2, 18 if name in ("elements", "judged", "compared") else 10) for name in rows[0]]
    if len(rows) == 1:
        print("".join(f"{name:>{width}}" for name, width in zip(rows[0], widths, strict=True)))
    print("".join(f"{shown(v):>{width}}" for v, width in zip(rows[-1].values(), widths, strict=True)), flush=True)


def _growth(text: str) -> tuple[float, ...]:
    try:
        found = tuple(suite.positive(part) for part in text.split(","))
    except argparse.ArgumentTypeError:
        found = ()
    if not found or list(found) != sorted(set(found)):
        raise argparse.ArgumentTypeError(f"got {text!r}, want ascending numbers above 0, such as 1,4,16")
    return found


if __name__ == "__main__":
    sys.exit(main())
