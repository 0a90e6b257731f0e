"""The programs that a page gives: they run, fail on the wrong kernel with the bits of the report, and on no other."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from report_runs import DEVICE, MARKUP, failing_run, record, ties_away

from lowbit import report, schemes
from lowbit.compare import compare_encoded, compare_values
from lowbit.records import Record
from lowbit.references import bits, tensors
from lowbit.report import snippet

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "lowbit.adapters.reference:IMPLEMENTATION"

WRONG = """
from lowbit.adapters import reference
from lowbit.rules import Rounding
from lowbit.schemes import Quantized, variant

def quantize(x, scheme, **options):
    found = reference.quantize(x, variant(scheme, Rounding.TIES_AWAY), **options)
    return found

def scales(x, scheme, **options):
    found = reference.quantize(x, scheme, **options)
    return Quantized(found.packed, found.scales + 1)

def dequantize(quantized, scheme, dtype):
    return -reference.dequantize(quantized, scheme, dtype)

TIES = reference.reference("ties", quantize=quantize)
SCALES = reference.reference("scales", quantize=scales)
SIGNS = reference.reference("signs", dequantize=dequantize)
"""


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A file with wrong implementations."""
    path = tmp_path / "it's wrong.py"
    path.write_text(WRONG, encoding="utf-8")
    return path


def programs(found: Record, target: str) -> list[str]:
    """What a page would give for a record of that implementation."""
    found = replace(found, repeat=f'pytest suite/test_x.py --impl "{target}"')
    return [program["source"] for program in snippet.of_kinds(found, found.samples)]


def execute(source: str) -> str:
    """Runs a program here; the words of its assertion, "" if it passes."""
    try:
        exec(compile(source, "snippet", "exec"), {})
    except AssertionError as failed:
        return str(failed)
    return ""


def test_a_program_of_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    """Copied out of the page into a file: the wrong kernel fails with the bits of the report."""
    source = report.build(failing_run(tmp_path)).read_text(encoding="utf-8")
    given = re.findall(r"<summary>Python that repeats <b>tie</b></summary><pre[^>]*>(.*?)</pre>", source, re.DOTALL)
    assert len(given) == 4  # one for each kind of each record that fails or is waived
    path = tmp_path / "repeat.py"
    path.write_text(html.unescape(given[0]), encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError: scale and code: got 0x7e, 0x9, want 0x7e, 0x8" in done.stderr
    assert "= 0xbe000000  # -0.125, the input\n" in path.read_text()


@pytest.mark.parametrize("name", [s.name for s in schemes.select() if "ties_" not in s.name])
def test_ties_are_repeated_under_every_scheme_that_a_block_decides(name: str, wrong: Path) -> None:
    scheme = schemes.get(name)
    found = ties_away(name) if not scheme.stochastic else record(scheme=name)
    if not found.mismatched:
        assert scheme.stochastic or scheme.rounding.value in ("ties_away", "ties_up", "toward_positive")
        return
    sources = programs(found, f"{wrong}:TIES")
    alone = [source for source in sources if "pattern" in source]
    assert bool(alone) == (scheme.tensor_scale.value in ("none", "global_scale"))
    for source in alone:
        assert execute(source).startswith("scale and code: got"), source

    for source in programs(found, REFERENCE):
        if "pattern" in source:
            assert execute(source) == "", source


def test_scales_and_decoded_values_are_repeated(wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scheme = schemes.get("mxfp4_floor")
    x = np.zeros((2, 64), np.float32)
    x[1, 40] = -3.5
    expected = bits.quantize(x, scheme)
    actual = replace_scales(expected)
    found = compare_encoded(x, actual, expected, scheme)
    scale = next(s for s in found.samples if s.tensor == "scales" and s.x)
    (source,) = programs(Record.of(found, **told(samples=[scale])), f"{wrong}:SCALES")
    assert execute(source) == "scale: got 0x7f, want 0x7e"
    (source,) = programs(Record.of(found, **told(samples=[scale])), REFERENCE)
    assert execute(source) == ""
    assert "needs its surroundings" in capsys.readouterr().out
    encoded = tensors.quantize(torch.from_numpy(x), scheme)
    for dtype, name, want in ((torch.float16, "binary16", 0xC200), (torch.float32, "binary32", 0xC0400000)):
        right = tensors.dequantize(encoded, scheme, dtype)
        values = compare_values(
            -right, right, tensor=f"values, {name}", codes=encoded.codes, scales=encoded.scales, scheme=scheme
        )
        chosen = [s for s in values.samples if s.expected == want]
        (source,) = programs(Record.of(values, **told(samples=chosen[:1])), f"{wrong}:SIGNS")
        assert execute(source) == f"value: got {want & 0x7FFFFFFF if want >> 31 else want & 0x7FFF:#x}, want {want:#x}"
        (source,) = programs(Record.of(values, **told(samples=chosen[:1])), REFERENCE)
        assert execute(source) == ""


def replace_scales(encoded: Any) -> Any:
    """The same codes with every scale one too large."""
    return encoded._replace(scales=encoded.scales + np.uint8(1))


def told(**fields: Any) -> dict[str, Any]:
    return {"scheme": "mxfp4_floor", "check": "x", "implementation": "mine", "device": DEVICE, **fields}


@pytest.mark.parametrize(
    "name", ["mxfp4_floor", "mx4_ceil_e2m1_g32", "mx4_floor_e3m0_g16", "mxfp4_rceil", "mxfp4_even"]
)
def test_the_filler_gives_the_scale(name: str) -> None:
    """Every scale code that a block can have."""
    scheme = schemes.get(name)
    reached = 0
    for scale in range(256):
        pattern = snippet.amax_of(scheme, scale)
        if pattern is None:
            continue
        x = np.zeros((1, scheme.block), np.uint32)
        x[0, 3] = pattern
        found = int(bits.quantize(x.view(np.float32), scheme).scales[0, 0])
        reached += found == scale
    assert reached >= 250, "some codes lie beyond what binary32 can ask for, and no others are missed"


def test_what_no_block_decides_runs_the_check() -> None:
    """A scheme unknown, an input unknown, a tensor scale: the program calls pytest and looks at the place."""
    failing = ties_away()
    for changed in ({"scheme": "not_one"}, {"scheme": "nvfp4"}):
        (source,) = programs(replace(failing, **changed), "mine")
        compile(source, "snippet", "exec")
        assert "subprocess" in source
        assert 'place = {"tensor": \'codes\', "index": 1}' in source
    sample = {**failing.samples[0], "x_bits": None}
    (source,) = programs(replace(failing, samples=[sample]), "mine")
    assert "subprocess" in source


def test_nothing_a_record_says_becomes_code(tmp_path: Path) -> None:
    """Names that try to leave their line or literal: the program stays what it is, or is not given."""
    hostile = "x'\"\n\\\r\u2028\x0c{0}{scheme!r}''' \"\"\"; open('made', 'w')  # " + MARKUP
    failing = ties_away()
    for name in ("implementation", "device", "node", "check", "diagnosis"):
        (source,) = programs(replace(failing, **{name: hostile}), "mine")
        assert "pattern" in source
        compile(source, "snippet", "exec")
        assert not [line for line in source.splitlines() if "made" in line and not line.startswith("#")]
    for field in ("kind", "tensor", "rule", "input", "format", "coordinates"):
        for source in programs(replace(failing, samples=[{**failing.samples[0], field: hostile}]), "mine"):
            tree = compile(source, "snippet", "exec")
            assert "open" not in tree.co_names
    for field in ("x_bits", "lane", "index", "actual", "expected", "scale_expected", "block"):
        for value in (hostile, -1, 1 << 80, True, 1.5, None, []):
            for source in programs(replace(failing, samples=[{**failing.samples[0], field: value}]), "mine"):
                assert "open" not in compile(source, "snippet", "exec").co_names
    for command in (hostile, "", "pytest 'open", "rm -rf x"):
        assert snippet.of_kinds(replace(failing, repeat=command), failing.samples) == []
