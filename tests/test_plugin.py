"""The suite as a user calls it: what it refuses, what it writes, and that it cannot pass by comparing nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from suite_runs import ROOT, Finished, run_pytest

from lowbit.plugin import names_suite
from lowbit.records import Record, read_about, read_records

FILES = {"run.json", "records.jsonl", "summary.csv", "mismatches.csv", "index.html"}
FAST = ("--scheme", "mxfp4_floor", "--level", "quick", "--device", "cpu")
ONE_CHECK = ("-k", "test_every_pair_of_codes")


def suite(tmp_path: Path, *words: str, cwd: Path = ROOT) -> tuple[Finished, list[Path]]:
    """Runs the suite in a process of its own; what became of it and the run folders that it left."""
    runs = tmp_path / "runs"
    path = str(ROOT / "conformance") if cwd != ROOT else "conformance/"
    options = ("--report-dir", str(runs), "-p", "no:cacheprovider")
    done = run_pytest(path, *options, *words, output=tmp_path / "output.txt", cwd=cwd)
    return done, sorted(runs.iterdir()) if runs.exists() else []


def records(folder: Path) -> list[Record]:
    return [record for record in read_records(folder) if record.status != "not_run"]


def implementation(tmp_path: Path, body: str) -> str:
    """A file with an implementation in it, as ``--impl`` takes it."""
    path = tmp_path / "mine.py"
    head = "from lowbit.implementation import Implementation, Unsupported\n"
    path.write_text(f"{head}from lowbit.adapters.reference import quantize\n{body}")
    return f"{path}:IMPLEMENTATION"


def test_passing_run_writes_a_report_and_says_what_it_did_not_judge(tmp_path: Path) -> None:
    """From the command line itself."""
    command = [sys.executable, "-m", "pytest", "conformance/", "--report-dir", str(tmp_path), "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("TRITON_INTERPRET", None)
    command += [*FAST, *ONE_CHECK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    assert "GPU code generation not judged" in done.stdout
    assert {path.name for path in folder.iterdir()} == FILES
    assert "GPU code generation not judged" in (folder / "index.html").read_text()
    (record,) = records(folder)
    assert (record.status, record.check) == ("pass", "packing")
    assert record.compared > 256 * 2
    assert read_about(folder)["exit_status"] == 0


SEEN = """
import os, sys
import pytest
NAMES = []
def pytest_runtest_setup(item):
    NAMES.append(item.originalname)
@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    with open(f"FOLDER/{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.txt", "w") as file:
        file.write(" ".join([str("hypothesis" in sys.modules), str(config.option.maxschedchunk), *NAMES]))
"""
"""Each process tells whether Hypothesis was imported, how many nodes a worker is given at once, and what it ran."""


def test_two_workers_leave_one_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers collect, the controller writes: both the checks left out and the ones deselected reach the end.

    The long `test_blocks` is run first, though its file comes after that of `test_special_values`.
    """
    (tmp_path / "seen.py").write_text(SEEN.replace("FOLDER", str(tmp_path)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # of the run that this test is part of
    selected = "test_every_pair_of_codes or test_every_binade or test_special_values or test_blocks"
    done, (folder,) = suite(tmp_path, *FAST, "-n", "2", "-p", "seen", "-k", selected)
    assert done.code == 0, done.output
    assert {path.name for path in folder.iterdir()} == FILES
    assert {record.check for record in records(folder)} == {"packing", "scale", "encode special", "golden blocks"}
    assert {record.check for record in read_records(folder) if record.status == "not_run"} >= {
        "scale 2^31",
        "encode 2^32",
    }
    assert "checks were deselected" in done.output
    told = {path.stem: path.read_text().split() for path in tmp_path.glob("*.txt") if path.stem != "output"}
    assert told.keys() == {"main", "gw0", "gw1"}
    assert {words[0] for words in told.values()} == {"False"}
    assert told["main"][1:] == ["1"]
    assert "test_blocks" in (told["gw0"][2], told["gw1"][2])
    assert sorted(told["gw0"][2:] + told["gw1"][2:]) == sorted(selected.split(" or "))


def test_a_killed_worker_leaves_what_it_had(tmp_path: Path) -> None:
    """The process that dies takes one node with it; the others are in the report, and the run fails."""
    body = """
import os
def die(x, scheme, **options):
    if scheme.name == "mxfp4_ceil":
        os._exit(3)
    return quantize(x, scheme, **options)
IMPLEMENTATION = Implementation(name="dies", version="1", quantize=die)
"""
    target = implementation(tmp_path, body)
    words = ("--scheme", "mxfp4_floor", "--scheme", "mxfp4_ceil", "--level", "quick", "--device", "cpu")
    done, (folder,) = suite(tmp_path, "--impl", target, *words, *ONE_CHECK, "-n", "1")
    assert done.code != 0
    assert {path.name for path in folder.iterdir()} == FILES
    assert ("mxfp4_floor", "pass") in {(r.scheme, r.status) for r in records(folder)}


def test_a_call_that_raises_is_an_error_of_its_check_and_the_run_goes_on(tmp_path: Path) -> None:
    body = """
def fail(x, scheme, **options):
    if x.shape[-1] == 64:
        raise RuntimeError("<b>boom</b>")
    return quantize(x, scheme, **options)
IMPLEMENTATION = Implementation(name="<i>raises</i>", version="1", quantize=fail)
"""
    target = implementation(tmp_path, body)
    done, (folder,) = suite(tmp_path, "--impl", target, *FAST, "-k", "test_every_pair_of_codes or test_every_binade")
    assert done.code == 1
    assert {r.check: r.status for r in records(folder)} == {"packing": "error", "scale": "pass"}
    page = (folder / "index.html").read_text()
    assert "<b>boom" not in page
    assert "<i>raises" not in page
    assert "&lt;b&gt;boom" in page


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--impl", "no_such_module:IMPLEMENTATION"), "no_such_module"),
        (("--impl", "nothing"), "module:attr"),
        (("--impl", "lowbit.formats:E2M1"), "FloatFormat, want an Implementation"),
        (("--scheme", "mxfp5*"), "mxfp4"),
        (("--require-gpu", "--device", "cpu"), "want a GPU"),
        (("--level", "most"), "most"),
        (("--weights", "no/such/file.safetensors"), "no/such/file.safetensors"),
    ],
)
def test_usage_errors(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    """Each ends in pytest's usage error, with the argument named and no report that could be taken for one."""
    done, folders = suite(tmp_path, "--device", "cpu", *words)
    assert done.code == 4, done.output
    assert says in done.output
    assert folders == []


def test_require_gpu_without_one(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done, folders = suite(tmp_path, "--require-gpu")
    assert done.code == 4
    assert "finds no GPU" in done.output
    assert folders == []


def test_an_implementation_that_supports_nothing_fails(tmp_path: Path) -> None:
    body = """
def decline(x, scheme, **options):
    raise Unsupported("not today")
IMPLEMENTATION = Implementation(name="declines", version="1", quantize=decline)
"""
    done, (folder,) = suite(tmp_path, "--impl", implementation(tmp_path, body), *FAST)
    assert done.code == 1
    assert "nothing was compared for declines" in done.output
    assert {record.status for record in records(folder)} == {"unsupported"}
    assert "NOTHING COMPARED" in (folder / "index.html").read_text()


def test_a_selection_of_no_test_fails(tmp_path: Path) -> None:
    done, _ = suite(tmp_path, *FAST, "-k", "no_such_test")
    assert done.code != 0


def test_empty_checkpoints_fail(tmp_path: Path) -> None:
    """No tensors, only integers, an empty file: each is refused by name."""
    nothing, integers, empty = (
        tmp_path / name for name in ("none.safetensors", "int.safetensors", "empty.safetensors")
    )
    save_file({}, nothing)
    save_file({"ids": np.arange(4)}, integers)
    empty.touch()
    for path in (nothing, integers, empty):
        done, folders = suite(tmp_path, "--device", "cpu", "--weights", str(path))
        assert done.code == 4, done.output
        assert path.name in done.output
        assert folders == []


def test_checkpoint_has_a_record_a_tensor(tmp_path: Path) -> None:
    """A small checkpoint: one row wide enough, one that no block divides, a name with markup; five schemes each."""
    path = tmp_path / "small.safetensors"
    generator = np.random.default_rng(0)
    save_file(
        {
            "layer.weight": generator.standard_normal((8, 64), dtype=np.float32),
            "<b>odd</b>": generator.standard_normal((3, 50)).astype(np.float16),
            "ids": np.arange(4),
        },
        path,
    )
    done, (folder,) = suite(tmp_path, "--device", "cpu", "--weights", str(path))
    assert done.code == 0, done.output
    found = records(folder)
    assert len(found) == 5 * 2
    assert {r.status for r in found} == {"pass"}
    assert {r.extra["tensor"] for r in found} == {"layer.weight", "<b>odd</b>"}
    assert all(r.compared >= r.extra["elements"] for r in found)
    assert "<b>odd" not in (folder / "index.html").read_text()


def test_the_report_tells_a_wrong_kernel_by_its_shape_and_dtype(tmp_path: Path) -> None:
    body = """
import torch
def wide(x, scheme, **options):
    result = quantize(x, scheme, **options)
    return result._replace(packed=result.packed.to(torch.int32))
IMPLEMENTATION = Implementation(name="wide", version="1", quantize=wide)
"""
    done, (folder,) = suite(tmp_path, "--impl", implementation(tmp_path, body), *FAST, *ONE_CHECK)
    assert done.code == 1
    (record,) = records(folder)
    assert record.kinds == {"dtype": 1}
    assert "int32" in record.message


WRONG_THEN = """
def late(x, scheme, **options):
    result = quantize(x, scheme, **options)
    if late.calls:
        {then}
    late.calls += 1
    return result._replace(packed=result.packed ^ 1)
late.calls = 0
IMPLEMENTATION = Implementation(name="{name}", version="1", quantize=late)
"""

ENDINGS = {
    "declines": ('raise Unsupported("the rest")', "mismatch"),
    "skips": ('import pytest; pytest.skip("the rest")', "error"),
    "xfails": ('import pytest; pytest.xfail("the rest")', "error"),
    "skips_as_unittest": ('import unittest; raise unittest.SkipTest("the rest")', "error"),
}


def test_a_mismatch_is_not_undone_by_what_comes_after(tmp_path: Path) -> None:
    """Implementations that are wrong once and then decline, or raise what pytest counts as no failure; in one run."""
    words = []
    for name, (then, _) in ENDINGS.items():
        folder = tmp_path / name
        folder.mkdir()
        words += ["--impl", implementation(folder, WRONG_THEN.format(then=then, name=name))]
    done, (folder,) = suite(tmp_path, *words, *FAST, "-k", "test_every_byte_is_written and plain")
    assert done.code == 1, done.output
    assert sorted(re.findall(r"^FAILED .*\[(\w+)-mxfp4_floor", done.output, re.MULTILINE)) == sorted(ENDINGS)
    found = {record.implementation: record for record in records(folder)}
    assert {name: record.status for name, record in found.items()} == {
        name: status for name, (_, status) in ENDINGS.items()
    }
    assert all(record.mismatched for record in found.values())


def test_a_changed_option_is_a_fault(tmp_path: Path) -> None:
    """Not only x: a call that scales the given tensor scale in place is found out."""
    body = """
def doubles(x, scheme, **options):
    result = quantize(x, scheme, **options)
    if "tensor_scale" in options:
        options["tensor_scale"].mul_(2)
    return result
IMPLEMENTATION = Implementation(name="doubles", version="1", quantize=doubles)
"""
    words = ("--scheme", "nvfp4", "--level", "quick", "--device", "cpu", "-k", "test_boundaries")
    done, (folder,) = suite(tmp_path, "--impl", implementation(tmp_path, body), *words)
    assert done.code == 1
    (record,) = records(folder)
    assert "changed_input" in record.kinds
    assert "tensor_scale" in record.message


def test_other_projects_keep_their_options(tmp_path: Path) -> None:
    """A test suite with a --device option of its own runs beside an installed lowbit."""
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--device')\n")
    (tmp_path / "test_it.py").write_text("def test_it(pytestconfig):\n    assert pytestconfig.option.device == 'x'\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "lowbit.plugin", "--device", "x", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_names_the_suite() -> None:
    assert names_suite(["conformance/"], ROOT)
    assert names_suite(["conformance/lowbit/suite/test_encode.py::test_boundaries[a-b]"], ROOT)
    assert names_suite(["--pyargs", "lowbit.suite"], ROOT)
    assert not names_suite(["tests/"], ROOT)
    assert not names_suite([], ROOT)
    assert not names_suite(["lowbit.suite"], ROOT)
