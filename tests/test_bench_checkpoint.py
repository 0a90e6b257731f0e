"""The benchmark of growing data: its checkpoints are real ones, its counts the run's, its memory the judge's own."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from lowbit import weights
from lowbit.bench import checkpoint as bench_checkpoint
from lowbit.bench import child as bench_child
from lowbit.bench import suite as bench_suite
from lowbit.bench import synthetic as bench_synthetic
from lowbit.bench.child import Finished
from lowbit.checkpoints import quantized as quantized_checkpoint
from lowbit.errors import ArgumentError
from lowbit.references import weights_bits

REFERENCE = "lowbit.adapters.reference:IMPLEMENTATION"
SCHEMES = {"gptq": "gptq4_v1_g128", "awq": "awq_g128", "nvfp4": "nvfp4"}
HELD = 150 << 20
"""Bytes that a child takes, or its parent."""


def test_the_numbers_are_those_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compared is what the checkpoint holds, told by the records of a run of the suite in its own process.

    There pytest loads no plugin of an installed package, as where lowbit is on the path only.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    table, again = tmp_path / "table.csv", tmp_path / "again"
    words = ["--gigabytes", "0.0004", "--growth", "1", "--hidden", "256", "--shard-gigabytes", "0.0001"]
    words += ["--impl", REFERENCE, "--device", "cpu", "--folder", str(tmp_path), "--csv", str(table)]
    assert bench_checkpoint.main(words) == 0, capsys.readouterr()
    (row,) = csv.DictReader(table.open())
    again.mkdir()
    written = bench_synthetic.write(again, "gptq", 400_000, hidden=256, shard=100_000)
    held = sum(layer.elements for layer in quantized_checkpoint.read(again).layers)
    assert int(row["compared"]) == int(row["judged"]) == int(row["elements"]) == held == written.weights
    assert int(row["shards"]) == len(list(again.glob("*.safetensors"))) > 1
    assert float(row["peak MB"]) > 100, "a process that imported torch"
    assert float(row["peak MB"]) >= max(float(row["own MB"]), float(row["libraries MB"])) > 0
    assert float(row["seconds"]) > float(row["judging"]) > 0
    assert float(row["cores"]) > 1, "of the child, not of this process"
    assert row["verdict"] == "ok"
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["times", "1.0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "table.csv"], "all else is removed"


@pytest.mark.parametrize("method", bench_synthetic.METHODS)
def test_a_checkpoint_is_what_libraries_write(method: str, tmp_path: Path) -> None:
    written = bench_synthetic.write(tmp_path, method, 500_000, hidden=256, shard=200_000)
    files = sorted(tmp_path.glob("*.safetensors"))
    tensors = {} if method in ("bfloat16", "nvfp4") else {k: v for file in files for k, v in load_file(file).items()}
    assert len(files) == written.shards > 1
    assert sum(file.stat().st_size for file in files) > written.size >= 500_000
    found = quantized_checkpoint.read(tmp_path)
    assert not found.unread
    if method == "bfloat16":
        assert sum(place.entry.elements for place in found.floating) == written.weights
        return
    assert len(found.layers) == written.layers
    assert [scheme.name for scheme in found.schemes] == [SCHEMES[method]]
    if tensors:
        scales = tensors[f"{found.layers[0].name}.scales"]
        assert scales.dtype == np.float16
        assert 2**-11 <= scales.min() < scales.max() <= 2**-7
        patterns = weights_bits.dequantize(found.layers[0].stored(), weights.get(SCHEMES[method]))
        assert np.isfinite(patterns.view(np.float16)).all()


def test_a_checkpoint_is_seeded_and_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes depend on the seed, not on how much is made at a time; memory on the piece, not on the tensor."""
    contents = []
    for seed, piece in ((1, 1 << 24), (1, 1 << 13), (2, 1 << 24)):
        monkeypatch.setattr(bench_synthetic, "PIECE", piece)
        folder = tmp_path / f"{seed}-{piece}"
        folder.mkdir()
        bench_synthetic.write(folder, "awq", 1, hidden=1024, seed=seed)  # a layer of half a megabyte
        tracemalloc.start()
        bench_synthetic.write(folder, "awq", 1, hidden=1024, seed=seed)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        (file,) = folder.glob("*.safetensors")
        contents.append(file.read_bytes())
        if piece == 1 << 13:
            assert peak < 200_000 < len(contents[-1])
    assert contents[0] == contents[1] != contents[2]


def test_memory_is_the_childs(tmp_path: Path) -> None:
    """Its own pages and those of a mapped file, told apart; what the parent holds is none of it."""
    held = np.ones(2 * HELD, np.uint8)
    take = f"import time; x = b'1' * {HELD}; time.sleep(0.2)"
    done = bench_child.run([sys.executable, "-c", take], tmp_path / "log")
    assert done.code == 0, done.output
    assert HELD <= done.anonymous <= done.peak < HELD + (60 << 20)
    path = tmp_path / "mapped"
    path.write_bytes(held[: HELD // 4].tobytes())
    take = f"import mmap, time; f = open({str(path)!r}); m = mmap.mmap(f.fileno(), 0, prot=1); m.find(b'0')"
    take += "; time.sleep(0.2)"
    done = bench_child.run([sys.executable, "-c", take], tmp_path / "log")
    assert done.code == 0, done.output
    assert done.files >= HELD // 4 > done.anonymous


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """The judging child, which sends the signal to the benchmark alone, is killed; its files are removed."""
    body = "import os, signal, time\n"
    body += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    body += f"os.kill(os.getppid(), {int(number)})\ntime.sleep(600)\n"
    (tmp_path / "slow.py").write_text(body)
    folder = tmp_path / "folder"
    folder.mkdir()
    words = ["--growth", "1", "--impl", f"{tmp_path / 'slow.py'}:IMPLEMENTATION", "--device", "cpu"]
    words += ["--folder", str(folder), "--hidden", "256"]
    words += ["--gigabytes", "1e-4"] if number == signal.SIGTERM else ["--suite", "8192"]
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from lowbit.bench.checkpoint import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == (143 if number == signal.SIGTERM else -number), done.stdout + done.stderr
    assert not list(folder.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_handler_of_a_signal_is_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        bench_checkpoint.main(["--help"])
    assert signal.getsignal(signal.SIGTERM) == before
    assert "GLOB" in capsys.readouterr().out


@pytest.mark.parametrize(("code", "output", "verdict"), [(0, "", "WRONG COUNTS"), (1, "1 failed", "EXIT CODE 1")])
def test_a_run_that_judged_nothing_fails(
    code: int,
    output: str,
    verdict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = Finished(code, output, 1.0, 1.0, 1 << 30, 0, 0, 0)
    monkeypatch.setattr(bench_child, "run", lambda command, log: done)
    words = ["--gigabytes", "1e-4", "--growth", "1", "--hidden", "256", "--folder", str(tmp_path)]
    assert bench_checkpoint.main(words) == 1
    told = capsys.readouterr()
    assert verdict in told.out
    assert output in told.err
    assert not list(tmp_path.iterdir())


def test_too_much_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Finished(0, "", 1.0, 1.0, 3 * 10**9, 10**9, 10**9, 0)
    assert bench_checkpoint._verdict(done, 3.0, "") == "ok"
    assert bench_checkpoint._verdict(done, 2.9, "") == "MORE THAN 2.9 GB"


def test_linear_is_one_whatever_the_start_costs() -> None:
    """Of 3 + 2n seconds every element costs 2; of n^2 those between 4 and 16 cost 20 where those before cost 5."""
    rows = [{"judging": 3 + 2 * n, "cores": n * n, "elements": n} for n in (1, 4, 16)]
    assert bench_checkpoint._of_linear(rows) == {"judging of linear": 1.0, "cores of linear": 4.0}
    assert set(bench_checkpoint._of_linear(rows[:2]).values()) == {None}


@pytest.mark.parametrize("elements", [(7, 7, 7), (7, 7, 8), (7, 8, 8)])
def test_nothing_is_linear_where_nothing_was_added(elements: tuple[int, ...]) -> None:
    rows = [{"judging": 1 + i, "cores": 1 + i, "elements": count} for i, count in enumerate(elements)]
    assert set(bench_checkpoint._of_linear(rows).values()) == {None}


def test_a_check_of_the_suite_on_one_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    """Codes, scales, the scale of the tensor and values of so many elements, judged by the suite's own judge."""
    words = ["--elements", "1e4", "--impl", REFERENCE, "--device", "cpu", "--scheme", "nvfp4"]
    assert bench_suite.main(words) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["elements"] == 8192
    assert (said["compared"], said["mismatched"]) == (8192 + 8192 // 16 + 1 + 8192, 0)
    assert said["seconds"] > 0


def test_every_scheme_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of globs and names, what is declined excepted; the benchmark passes all of them on."""
    words = ["--scheme", "mxfp4_[fc]*l*r", "--scheme", "mxfp4_ceil", "--scheme", "nvfp4"]
    assert bench_suite.main(["--elements", "4096", "--impl", REFERENCE, "--device", "cpu", *words]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    codes = 2 * 4096
    assert (said["schemes"], said["elements"]) == (3, 4096)
    assert said["compared"] == 3 * codes + 2 * 4096 // 32 + 4096 // 16 + 1
    passed: list[str] = []

    def run(command: list[str], log: Path) -> Finished:
        passed.extend(command)
        return Finished(0, f"a warning\n{json.dumps(said)}\n", 1.0, 1.0, 1 << 30, 0, 0, 0)

    monkeypatch.setattr(bench_child, "run", run)
    assert bench_checkpoint.main(["--suite", "4096", "--growth", "1", "--folder", str(tmp_path), *words]) == 0
    assert passed[-len(words) :] == words


def test_what_is_declined_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "from lowbit.implementation import Implementation, Unsupported\n"
    body += "from lowbit.adapters import reference\n"
    body += "def quantize(x, scheme, **options):\n    if scheme.name == 'nvfp4':\n        raise Unsupported('no')\n"
    body += "    return reference.quantize(x, scheme, **options)\n"
    body += "IMPLEMENTATION = Implementation(name='m', version='1', quantize=quantize,"
    body += " dequantize=reference.dequantize)\n"
    (tmp_path / "mine.py").write_text(body)
    words = ["--elements", "4096", "--impl", f"{tmp_path / 'mine.py'}:IMPLEMENTATION", "--device", "cpu"]
    assert bench_suite.main([*words, "--scheme", "nvfp4", "--scheme", "mxfp4_floor"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["schemes"] == 1
    assert "nvfp4: unsupported: no" in told.err
    assert bench_suite.main([*words, "--scheme", "nvfp4"]) == 1


def test_the_suite_grows_in_a_process_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--suite", "8192", "--growth", "2", "--impl", REFERENCE, "--device", "cpu"]
    assert bench_checkpoint.main(words) == 0
    head, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert row[:4] == ["1.0", "8,192", "1", f"{8192 + 8192 // 32 + 8192:,}"]
    assert head[:4] == ["times", "elements", "schemes", "compared"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--growth", "4,1"], "ascending"),
        (["--growth", "0,1"], "above 0"),
        (["--hidden", "100"], "hidden: got 100"),
        (["--growth", "nan"], "argument --growth: got 'nan', want ascending"),
        (["--growth", "1,nan"], "argument --growth: got '1,nan', want ascending"),
        (["--growth", "inf"], "argument --growth: got 'inf', want ascending"),
        (["--growth", "1,x"], "argument --growth: got '1,x', want ascending"),
        (["--gigabytes", "0"], "argument --gigabytes: got '0', want a number above 0"),
        (["--gigabytes", "nan"], "argument --gigabytes: got 'nan', want a number above 0"),
        (["--gigabytes", "inf"], "argument --gigabytes: got 'inf', want a number above 0"),
        (["--gigabytes", "1e300"], "argument --gigabytes: got '1e300', want a number above 0, at most 1e+15"),
        (["--gigabytes", "1e-12"], "size: got 0"),
        (["--shard-gigabytes", "nan"], "argument --shard-gigabytes: got 'nan', want a number above 0"),
        (["--host-gigabytes", "nan"], "argument --host-gigabytes: got 'nan', want a number above 0"),
        (["--suite", "0"], "argument --suite: got '0', want a number above 0"),
        (["--suite", "nan"], "argument --suite: got 'nan', want a number above 0"),
        (["--suite", "8192", "--growth", "1,4"], "argument --suite: got 8192, with --growth 2048 elements at first"),
        (["--suite", "8192", "--growth", "1", "--scheme", "gptq*"], "scheme: got 'gptq*'"),
        (["--seed", "-1"], "argument --seed: got '-1', want an integer of 0 or more"),
        (["--csv", "/nowhere/at/all.csv"], "argument --csv: got /nowhere/at/all.csv, want a file to write: No such"),
        (["--method", "gguf"], "invalid choice"),
        (["--folder", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_usage(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told before anything is measured."""
    monkeypatch.delattr(bench_child, "run")
    with pytest.raises(SystemExit, match="2"):
        bench_checkpoint.main(words)
    assert says in capsys.readouterr().err


def test_a_table_is_left_alone_until_there_is_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text("old")
    for path in (old, new):
        with pytest.raises(SystemExit, match="2"):
            bench_checkpoint.main(["--hidden", "100", "--csv", str(path), "--folder", str(tmp_path)])
    assert "hidden: got 100" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["old.csv"]
    assert old.read_text() == "old"


def test_another_method() -> None:
    with pytest.raises(ArgumentError, match="method: got 'gguf'"):
        bench_synthetic.write(Path(), "gguf", 1)
    with pytest.raises(ArgumentError, match="seed: got -1, want 0 or more"):
        bench_synthetic.write(Path(), "gptq", 1, seed=-1)
