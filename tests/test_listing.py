"""The full list of mismatches: the rows of mismatches.csv for every place, bounded, in parts that survive a crash."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.dataset
import pytest
import torch
from pyarrow import parquet
from suite_runs import ROOT, Finished, run_pytest

from lowbit import schemes
from lowbit.compare import compare_bytes, compare_codes, compare_encoded, compare_values
from lowbit.compare.bounds import accumulation_bound, compare_within_bound
from lowbit.compare.comparison import LISTED, Comparison
from lowbit.errors import ReportError
from lowbit.formats import BINARY32, E4M3
from lowbit.records import MISMATCH_COLUMNS, Record, plain, read_records, readable
from lowbit.references import bits, matmul
from lowbit.report import parquet as full
from lowbit.report.parquet import FOLDER, GROUP, Parts
from lowbit.schemes import Encoded

NAMES = {
    **{"run": "r", "implementation": "mine \ud800", "version": "1", "scheme": "s", "check": "c"},
    "node": "test_x.py::test[é]",
}
EVERY = 1 << 20


@pytest.fixture(autouse=True)
def listed() -> Iterator[None]:
    token = LISTED.set(True)
    yield
    LISTED.reset(token)


def blocks(name: str, columns: int) -> Comparison:
    """A tensor scale, scales, codes and padding that are wrong, NaN among the inputs."""
    scheme = schemes.get(name)
    generator = np.random.default_rng(1)
    x = generator.standard_normal((5, columns)).astype(np.float32)
    x[0, 3], x[1, 4] = np.nan, np.inf
    right = bits.quantize(x, scheme)
    wrong = [side ^ generator.integers(0, 4, side.shape).astype(np.uint8) for side in right[:2]]
    scale = None if right.tensor_scale is None else np.float32(2) * right.tensor_scale
    return compare_encoded(x, Encoded(*wrong, scale), right, scheme, max_samples=EVERY)


def codes() -> Comparison:
    x = np.array([0.25, np.nan, -0.0, 1e-45, -np.inf, 3], np.float32)
    right = np.array([0, 7, 8, 1, 15, 5], np.uint8)
    wrong = np.array([1, 0x47, 0, 2, 7, 0x85], np.uint8)
    return compare_codes(torch.from_numpy(x), wrong, right, E4M3, start=1 << 40, max_samples=EVERY)


def values(dtype: torch.dtype) -> Comparison:
    right = torch.tensor([[1, -0.0, torch.inf, 2], [3, 4, torch.nan, 0]], dtype=dtype)
    wrong = torch.tensor([[-1, 0, 2, torch.nan], [3, 4.5, 1, 1e-5]], dtype=dtype)
    made_of = torch.full((2, 32), 3, dtype=torch.uint8)
    parts: dict[str, Any] = {"codes": made_of, "scales": made_of[:, :1], "scheme": schemes.get("mxfp4_floor")}
    return compare_values(wrong, right, max_samples=EVERY, **parts if dtype is torch.bfloat16 else {})


def memory() -> Comparison:
    right = np.arange(12, dtype=np.int16).reshape(3, 4)
    flags = np.arange(24) % 2 == 0
    return compare_bytes(right + 255, right, tensor="packed", padding=flags, max_samples=EVERY)


def product() -> Comparison:
    scheme = schemes.get("mxfp4_floor")
    one = bits.quantize(np.ones((4, 32), np.float32), scheme)
    actual = np.full((4, 4), 32, np.float32)
    actual[0, 1], actual[2, 2], actual[3, 3] = -5, np.nan, 33
    bound = accumulation_bound(matmul.sums(one, one, scheme), None, BINARY32)
    return compare_within_bound(actual, bound, max_samples=EVERY)


CASES: dict[str, Any] = {
    "mxfp4": lambda: blocks("mxfp4_floor", 64),
    "nvfp4": lambda: blocks("nvfp4", 32),
    "mx4 with padding": lambda: blocks("mx4_ceil_e2m1_g32", 40),
    "codes": codes,
    "float32": lambda: values(torch.float32),
    "bfloat16 with its codes": lambda: values(torch.bfloat16),
    "float16": lambda: values(torch.float16),
    "bytes": memory,
    "product": product,
}


def shown(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample as mismatches.csv has it, with the texts that stand for absence there left out."""
    row = readable(plain(sample))
    floats = {name: float(row[name]) for name in ("x", "value_actual", "value_expected") if row[name] is not None}
    return {name: None if value == "" else value for name, value in (row | floats).items()}


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return math.isnan(first) == math.isnan(second) and str(first) == str(second)
    return first == second and type(first) is type(second)


@pytest.mark.parametrize("case", CASES)
def test_every_row_is_that_of_a_sample(tmp_path: Path, case: str) -> None:
    found = CASES[case]()
    assert found.mismatched == len(found.samples) > 2
    parts = Parts(tmp_path)
    assert found.rows is not None
    for rows in found.rows():
        parts.add(rows.columns(), NAMES)
    parts.close()
    table = parquet.read_table(tmp_path / FOLDER)
    assert tuple(table.column_names) == MISMATCH_COLUMNS
    wanted = {
        (s.tensor, s.index): {**NAMES, "implementation": "mine \\ud800", **shown(asdict(s))} for s in found.samples
    }
    listed = {(row["tensor"], row["index"]): row for row in table.to_pylist()}
    assert listed.keys() == wanted.keys()
    for place, row in listed.items():
        assert {
            name: (row[name], wanted[place][name]) for name in row if not equal(row[name], wanted[place][name])
        } == {}


def test_nothing_is_held_unless_it_is_to_be_listed() -> None:
    LISTED.set(False)
    assert codes().rows is None
    assert blocks("nvfp4", 32).rows is None


def test_groups_and_parts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part holds so many rows and is finished when it does, whatever is added next; memory does not grow."""
    monkeypatch.setattr(full, "PART", 3 * GROUP)
    count = 5 * GROUP + 7
    found = compare_codes(np.ones(count, np.float32), np.full(count, 3, np.uint8), np.zeros(count, np.uint8), E4M3)
    parts = Parts(tmp_path, "gw0")
    assert found.rows is not None
    for rows in found.rows():
        assert len(rows.index) <= GROUP
        parts.add(rows.columns(), NAMES)
    finished = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert finished == ["_gw0-000001.parquet", "gw0-000000.parquet"]
    assert pyarrow.dataset.dataset(tmp_path / FOLDER).count_rows() == 3 * GROUP  # the open part is passed over
    parts.close()
    files = [parquet.ParquetFile(tmp_path / FOLDER / f"gw0-{i:06d}.parquet") for i in range(2)]
    assert [file.metadata.num_rows for file in files] == [3 * GROUP, 2 * GROUP + 7]
    groups = [file.metadata.row_group(i).num_rows for file in files for i in range(file.metadata.num_row_groups)]
    assert max(groups) == GROUP
    index = parquet.read_table(tmp_path / FOLDER, columns=["index"])["index"].to_pylist()
    assert index == list(range(count))
    assert pyarrow.default_memory_pool().max_memory() < 80 << 20


def test_a_run_without_mismatches_has_an_empty_table(tmp_path: Path) -> None:
    Parts(tmp_path)
    table = parquet.read_table(tmp_path / FOLDER)
    assert (table.num_rows, tuple(table.column_names)) == (0, MISMATCH_COLUMNS)


CRASHING = """
import os
from pathlib import Path

from lowbit.adapters.reference import quantize, reference
from lowbit.rules import Rounding
from lowbit.schemes import variant

MARK = Path(__file__).with_name("crashed")


def ties_away(x, scheme, **options):
    if "test_strides" in os.environ.get("PYTEST_CURRENT_TEST", "") and not MARK.exists():
        calls.append(x)
        if len(calls) == 8:
            MARK.touch()
            os._exit(9)
    return quantize(x, variant(scheme, Rounding.TIES_AWAY), **options)


calls = []
IMPLEMENTATION = reference("crashing", quantize=ties_away)
"""


def run_suite(tmp_path: Path, *before: str) -> Finished:
    """A module of the suite under `CRASHING`. `before`: words of the command line that come first."""
    (tmp_path / "mine.py").write_text(CRASHING)
    suite = str(ROOT / "conformance" / "lowbit" / "suite" / "test_shapes.py")
    scope = ["--impl", f"{tmp_path / 'mine.py'}:IMPLEMENTATION", "--scheme", "mxfp4_floor", "--level", "quick"]
    how = ["--all-mismatches", "--no-html", "--report-dir", str(tmp_path / "runs"), "-p", "no:cacheprovider"]
    return run_pytest(*before, suite, *scope, *how, "-n", "0", output=tmp_path / "output")


def test_a_process_that_dies_leaves_what_it_had_finished(tmp_path: Path) -> None:
    """Every mismatch that a record counts is in the list, once."""
    done = run_suite(tmp_path)
    assert done.code == 9, done.output
    (folder,) = (tmp_path / "runs").iterdir()
    rows = parquet.read_table(folder / FOLDER, columns=["node", "kind", "tensor"]).to_pylist()
    counted: Counter[tuple[str, str]] = Counter()
    for record in read_records(folder):
        counted.update({(record.node, kind): count for kind, count in record.kinds.items()})
    assert Counter((row["node"], row["kind"]) for row in rows) == counted
    assert sum(counted.values()) > 100
    assert any(row["tensor"].startswith("bfloat16: (") for row in rows)


def test_workers_write_parts_of_one_table(tmp_path: Path) -> None:
    owner, workers = Parts(tmp_path), [Parts(tmp_path, f"gw{i}") for i in range(2)]
    for parts in (owner, *workers, *workers):
        for rows in codes().rows():  # type: ignore[misc]
            parts.add(rows.columns(), NAMES | {"node": parts.worker})
        parts.close()
    names = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert names == [f"{name}-{i:06d}.parquet" for name in ("gw0", "gw1", "main") for i in range(2)]
    nodes = parquet.read_table(tmp_path / FOLDER)["node"].to_pylist()
    assert Counter(nodes) == {None: 6, "gw0": 12, "gw1": 12}


def test_without_pyarrow_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "without_pyarrow.py"
    blocker.write_text("import sys\nsys.modules['pyarrow'] = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = run_suite(tmp_path, "-p", blocker.stem)
    assert done.code == 4
    assert "--all-mismatches: needs pyarrow, got none; pip install 'lowbit[parquet]'" in done.output
    assert not (tmp_path / "runs").exists()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ReportError, match="pyarrow"):
        full.require()


def test_records_hold_no_tensors() -> None:
    found = blocks("mxfp4_floor", 64)
    assert "rows" not in Record.of(found, scheme="s", check="c").as_dict()
