"""The benchmark of weight decoders beside the reference: bits before times, and wrong arguments in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from lowbit import weights
from lowbit.adapters.reference import IMPLEMENTATION
from lowbit.bench import weights as bench_weights

SMALL = ["--device", "cpu", "--rows", "64", "--columns", "64"]
WRONG = """
from dataclasses import replace
from lowbit.adapters.reference import IMPLEMENTATION as right

def decode(tensors, scheme, dtype):
    found = right.call("dequantize_weight", tensors, scheme, dtype)
    found[0, 0] = -found[0, 0] - 1
    return found

IMPLEMENTATION = replace(right, name="wrong", dequantize_weight=decode)
NOTHING = replace(right, name="nothing", dequantize_weight=None)
"""


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench chooses it on the CPU; other tests of the process keep what they had."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def test_a_row_a_scheme(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        bench_weights.main(["--impl", "lowbit.adapters.reference:IMPLEMENTATION", "--scheme", "nf4_b64", *SMALL]) == 0
    )
    head, names, row = capsys.readouterr().out.splitlines()
    assert head.startswith("reference ")
    assert head.endswith("bfloat16")
    assert names.split() == ["scheme", "rows", "columns", "us", "torch", "us", "times", "of", "copy"]
    assert row.split()[:3] == ["nf4_b64", "64", "64"]
    assert all(float(number) > 0 for number in row.split()[3:6])


def test_what_is_measured_is_compared_first() -> None:
    found = bench_weights.measure(IMPLEMENTATION, weights.get("gptq4_v1_g128"), (128, 64), torch.float16, "cpu", 1)
    assert found["differ"] == 0
    assert found["times"] == pytest.approx(found["torch us"] / found["us"])


def test_a_wrong_decoder_and_one_that_declines_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernels_here.py"
    path.write_text(WRONG)
    assert bench_weights.main(["--impl", f"{path}:IMPLEMENTATION", "--scheme", "int8_channel", *SMALL]) == 1
    assert "1 DIFFER" in capsys.readouterr().out
    assert bench_weights.main(["--impl", f"{path}:NOTHING", "--scheme", "int8_channel", *SMALL]) == 1
    assert "unsupported: nothing provides no dequantize_weight" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--scheme", "nf5*"], "nf5"),
        (["--impl", "nothing_of_this_name"], "nothing_of_this_name"),
        (["--scheme", "awq_g128", "--rows", "7"], "7"),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as ended:
        bench_weights.main(["--impl", "lowbit.adapters.reference:IMPLEMENTATION", "--device", "cpu", *words])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rows", "64"], "--rows: got 64, want a multiple of 128"),
        (["--columns", "12"], "--columns: got 12, want a multiple of 8"),
        (["--rows", "0"], "--rows: got 0, want at least 1"),
    ],
)
def test_a_wrong_length_is_told_by_its_option(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as ended:
        bench_weights.main(["--impl", "lowbit.adapters.reference:IMPLEMENTATION", "--device", "cpu", *words])
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert says in told.err
    assert not told.out


@pytest.mark.parametrize("words", [[], ["--device", "cuda"]])
def test_without_a_gpu_it_says_so_before_anything_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        bench_weights.main(words)
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert not told.out
    assert len(told.err.splitlines()) == 1
    assert "GPU" in told.err


def test_on_the_cpu_it_chooses_the_interpreter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    words = ["--impl", "lowbit.adapters.reference:IMPLEMENTATION", "--scheme", "nf4_b64", *SMALL]
    assert bench_weights.main(words) == 0
    assert os.environ["TRITON_INTERPRET"] == "1"
    assert "times say nothing" in capsys.readouterr().err


def test_every_kernel_is_measured_by_default() -> None:
    families = {scheme.family for scheme in weights.select(bench_weights.SCHEMES)}
    assert families == set(weights.families())
