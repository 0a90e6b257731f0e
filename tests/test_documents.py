"""What README promises: its example runs and has the faults it tells of, its options and verbs exist."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lowbit import cli, packing, plugin, schemes, waivers
from lowbit.errors import Unsupported
from lowbit.implementation import load
from lowbit.references import bits

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_is_an_implementation(tmp_path: Path) -> None:
    """It must be right where README says that it is, and wrong where README says that it is not."""
    (example,) = re.findall(r"<!-- example: my_kernel.py -->\n```python\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "my_kernel.py"
    path.write_text(example, encoding="utf-8")
    mine, scheme = load(f"{path}:IMPLEMENTATION"), schemes.get("mxfp4_floor")

    def scales_and_codes(x: np.ndarray) -> tuple[bool, bool]:
        actual = packing.unpack(mine.call("quantize", torch.from_numpy(x), scheme), scheme)
        expected = bits.quantize(x, scheme)
        pairs = zip(actual[:2], expected[:2], strict=True)
        codes, scales = (np.array_equal(got.numpy(), want) for got, want in pairs)
        return scales, codes

    random = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    assert scales_and_codes(random) == (True, True)
    for fault, right in (
        ([6, 0.75], (True, False)),  # a tie
        ([6, -0.0], (True, False)),
        ([2.0**-130], (False, False)),
        ([np.nan, 1], (False, False)),
    ):
        x = np.zeros((1, 32), np.float32)
        x[0, : len(fault)] = fault
        assert scales_and_codes(x) == right, fault
    with pytest.raises(Unsupported):
        mine.call("quantize", torch.from_numpy(random), schemes.get("nvfp4"))


def test_the_speeds_are_those_of_the_table() -> None:
    """Least and greatest fraction of a copy, of each kind of operation that README names."""
    with (ROOT / "reports" / "benchmarks" / "h200.csv").open(newline="", encoding="utf-8") as file:
        measured = {(row["operation"], row["dtype"]): float(row["fraction_of_copy"]) for row in csv.DictReader(file)}
    drawn = "stochastic"
    kinds: dict[str, Callable[[str], bool]] = {
        "decoders": lambda name: name.startswith("dequantize_"),
        "to nearest": lambda name: name.startswith("quantize_") and drawn not in name and "swizzled" not in name,
        "swizzled scales": lambda name: name.startswith("quantize_") and "swizzled" in name,
        "Philox": lambda name: name.startswith("quantize_") and drawn in name,
    }
    (told,) = re.findall(r"On an H200, of 16384 × 8192(.*?)\n\n", README, re.DOTALL)
    for kind, belongs in kinds.items():
        fractions = [fraction for (name, _), fraction in measured.items() if belongs(name)]
        (least, greatest) = re.findall(re.escape(kind) + r"\D+?([0-9.]+) to ([0-9.]+)", told)[0]
        assert (f"{min(fractions):.2f}", f"{max(fractions):.2f}") == (least, greatest.rstrip(".")), kind


class Options:
    """Takes the names of options in place of pytest's parser."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def getgroup(self, *texts: str) -> Options:
        return self

    def addoption(self, name: str, **how: object) -> None:
        self.names.add(name)


def test_the_options_are_those_of_the_plugin() -> None:
    options = Options()
    plugin.add_options(options)
    table = README.split("## Options of")[1].split("##")[0]
    listed = {
        option
        for row in table.splitlines()
        if row.startswith("| `--")
        for option in re.findall(r"--[a-z-]+", row.split("|")[1])
    }
    assert listed == options.names


def test_the_verbs_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    table = README.split("## The command")[1].split("##")[0]
    verbs = list(dict.fromkeys(re.findall(r"^lowbit ([a-z]+)", table, re.MULTILINE)))
    assert verbs == ["list", "show", "explain", "identify", "report", "vectors", "prove", "bench", "doctor"]
    for verb in verbs:
        with pytest.raises(SystemExit, match="0"):
            cli.main([verb, "--help"])
    capsys.readouterr()


def test_the_actions_are_those_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    table = README.split("## The command")[1].split("##")[0]
    named = [
        name for words in re.findall(r"^lowbit report ([a-z|]+)", table, re.MULTILINE) for name in words.split("|")
    ]
    with pytest.raises(SystemExit, match="0"):
        cli.main(["report", "--help"])
    assert set(re.findall(r"^    ([a-z]+) ", capsys.readouterr().out, re.MULTILINE)) == set(named)


def test_the_waiver_is_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "waivers.toml"
    path.write_text(example, encoding="utf-8")
    (found,) = waivers.read(path)
    assert found.covers(
        "my_kernel", "mxfp4_floor", "shapes", "suite/test_shapes.py::test_shapes[my_kernel-mxfp4_floor]"
    )


def test_the_commands_set_up_what_they_run() -> None:
    set_up = "python -m venv .venv && .venv/bin/pip install torch==2.13.0 && .venv/bin/pip install -e '.[test]' && "
    assert f"\n{set_up}.venv/bin/pytest conformance/\n" in README
    assert f"\n{set_up}.venv/bin/pytest tests/ -n 2\n" in README
