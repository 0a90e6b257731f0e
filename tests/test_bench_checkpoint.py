"""The benchmark of growing data: its checkpoints are real ones, its counts the run's, its memory the judge's own."""

from __future__ import annotations

import csv
import json
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


def test_the_numbers_are_those_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was compared is what the checkpoint holds, told by the records of a run of the suite in its own process."""
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


def test_a_check_of_the_suite_on_one_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    """Codes, scales, the scale of the tensor and values of so many elements, judged by the suite's own judge."""
    words = ["--elements", "1e4", "--impl", REFERENCE, "--device", "cpu", "--scheme", "nvfp4"]
    assert bench_suite.main(words) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["elements"] == 8192
    assert (said["compared"], said["mismatched"]) == (8192 + 8192 // 16 + 1 + 8192, 0)
    assert said["seconds"] > 0


def test_the_suite_grows_in_a_process_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--suite", "8192", "--growth", "2", "--impl", REFERENCE, "--device", "cpu"]
    assert bench_checkpoint.main(words) == 0
    head, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert row[:3] == ["1.0", "8,192", f"{8192 + 8192 // 32 + 8192:,}"]
    assert head[:3] == ["times", "elements", "compared"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--growth", "4,1"], "ascending"),
        (["--growth", "0,1"], "above 0"),
        (["--hidden", "100"], "hidden: got 100"),
        (["--gigabytes", "0"], "size: got 0"),
        (["--method", "gguf"], "invalid choice"),
        (["--folder", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_usage(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench_checkpoint.main(words)
    assert says in capsys.readouterr().err


def test_another_method() -> None:
    with pytest.raises(ArgumentError, match="method: got 'gguf'"):
        bench_synthetic.write(Path(), "gguf", 1)
