"""Each finding of block formats, run again: a release that does otherwise fails here, and FINDINGS.md is to be changed.

What is called right is checked against the references whether the package is installed or not.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import Any

import findings_blocks
import findings_gpu_blocks
import numpy as np
import pytest
import torch
from findings import NAN, Called, Cast, Decoded, Encoded, Finding, lacking
from findings_blocks import CASTS, DECODED, ENCODED

from lowbit import packing, schemes
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FORMATS
from lowbit.implementation import Implementation, Quantized, load
from lowbit.references import bits
from lowbit.rules import NanCode, Rounding

FINDINGS = (Path(__file__).resolve().parents[1] / "FINDINGS.md").read_text(encoding="utf-8")
SECTION = FINDINGS.partition("## Block formats")[2].partition("\n## ")[0]
DISTRIBUTIONS = {"modelopt": "nvidia-modelopt"}
CALLED = (*findings_blocks.CALLED, *findings_gpu_blocks.CALLED)
ALL = (*ENCODED, *DECODED, *CASTS, *CALLED)


def name(finding: Finding) -> str:
    return f"{finding.subject}-{finding.name}-{getattr(finding, 'scheme', '')}"


def adapter(finding: Finding) -> Implementation:
    if importlib.util.find_spec(finding.subject) is None:
        pytest.skip(f"{finding.subject} is not installed: pip install 'lowbit[{finding.subject.replace('_', '-')}]'")
    if lacks := lacking(finding):
        pytest.skip(lacks)
    return load(f"lowbit.adapters.{finding.subject}:IMPLEMENTATION")


def compare(finding: Any, actual: Any) -> None:
    installed = importlib.metadata.version(DISTRIBUTIONS.get(finding.subject, finding.subject))
    assert actual == finding.got, (
        f"{finding.subject} {installed}: {finding.name}: got {actual}; FINDINGS.md says of {finding.version}: "
        f"{finding.got}, and that {finding.right} is right. The release changed it: change the finding and its row"
    )


def rows(finding: Encoded) -> np.ndarray:
    """(1, blocks · block) float32."""
    block = schemes.get(finding.scheme).block
    patterns = np.zeros((1 + bool(finding.before), block), np.uint32)
    for row, given in zip(patterns[::-1], (finding.x, finding.before), strict=False):
        row[: len(given)] = given
    return patterns.view(np.float32).reshape(1, -1)


def last_block(encoded: Any, finding: Encoded) -> tuple[int, tuple[int, ...]]:
    codes = np.asarray(encoded.codes).reshape(-1, schemes.get(finding.scheme).block)[-1]
    return int(np.asarray(encoded.scales).reshape(-1)[-1]), tuple(map(int, codes[: len(finding.x)]))


@pytest.mark.parametrize("finding", ENCODED, ids=name)
def test_what_is_right_of_a_block(finding: Encoded) -> None:
    options = {} if finding.tensor_scale is None else {"tensor_scale": np.float32(finding.tensor_scale)}
    right = bits.quantize(rows(finding), schemes.get(finding.scheme), **options)
    assert last_block(right, finding) == finding.right != finding.got


@pytest.mark.parametrize("finding", ENCODED, ids=name)
def test_blocks(finding: Encoded) -> None:
    subject, scheme = adapter(finding), schemes.get(finding.scheme)
    options = {} if finding.tensor_scale is None else {"tensor_scale": torch.tensor([finding.tensor_scale])}
    x = torch.from_numpy(rows(finding)).to("cuda" if finding.needs == "cuda" else "cpu")
    packed, scales, _ = subject.call("quantize", x, scheme, **options)
    stored = Quantized(packed.view(torch.uint8).cpu(), scales.view(torch.uint8).cpu())
    compare(finding, last_block(packing.unpack(stored, scheme), finding))


def stored_block(finding: Decoded) -> Quantized:
    codes = np.zeros((1, schemes.get(finding.scheme).block), np.uint8)
    codes[0, : len(finding.codes)] = finding.codes
    factor = None if finding.tensor_scale is None else np.array([finding.tensor_scale], np.float32)
    return Quantized(packing.pack_nibbles(codes), np.array([[finding.scale]], np.uint8), factor)


def patterns(values: np.ndarray, dtype: str, count: int) -> tuple[int, ...]:
    """Patterns of a type, `NAN` for NaN."""
    infinity, sign = {"float32": (0x7F800000, 1 << 31), "float16": (0x7C00, 1 << 15), "bfloat16": (0x7F80, 1 << 15)}[
        dtype
    ]
    return tuple(NAN if value & ~sign > infinity else value for value in map(int, values.reshape(-1)[:count]))


@pytest.mark.parametrize("finding", DECODED, ids=name)
def test_what_is_right_of_stored_bytes(finding: Decoded) -> None:
    fmt = {"float32": BINARY32, "float16": BINARY16, "bfloat16": BFLOAT16}[finding.dtype]
    scheme = schemes.get(finding.scheme)
    right = bits.dequantize(packing.unpack(stored_block(finding), scheme), scheme, fmt)
    assert patterns(right, finding.dtype, len(finding.codes)) == finding.right != finding.got


@pytest.mark.parametrize("finding", DECODED, ids=name)
def test_stored_bytes(finding: Decoded) -> None:
    subject, scheme, dtype = adapter(finding), schemes.get(finding.scheme), getattr(torch, finding.dtype)
    stored = Quantized(*(None if part is None else torch.from_numpy(part) for part in stored_block(finding)))
    values = subject.call("dequantize", stored, scheme, dtype).contiguous()
    width = {4: torch.int32, 2: torch.int16}[dtype.itemsize]
    unsigned = values.view(width).numpy().view(f"u{dtype.itemsize}")
    compare(finding, patterns(unsigned, finding.dtype, len(finding.codes)))


@pytest.mark.parametrize("finding", CASTS, ids=name)
def test_what_is_right_of_a_cast(finding: Cast) -> None:
    x = np.array([finding.x], np.uint32).view(np.float32)
    right = bits.encode(x, FORMATS[finding.format], Rounding.TIES_TO_EVEN, NanCode.POSITIVE_MAX)
    assert int(right[0]) == finding.right != finding.got


@pytest.mark.parametrize("finding", CASTS, ids=name)
def test_casts(finding: Cast) -> None:
    x = torch.from_numpy(np.array([finding.x], np.uint32).view(np.float32))
    codes = adapter(finding).call("encode", x, FORMATS[finding.format], Rounding.TIES_TO_EVEN)
    compare(finding, int(codes[0]))


@pytest.mark.parametrize("finding", CALLED, ids=name)
def test_calls(finding: Called) -> None:
    adapter(finding)
    compare(finding, finding.call())


def test_a_release_that_changes_a_finding_is_told() -> None:
    with pytest.raises(AssertionError, match=r"ml_dtypes .*e8m0-ties: got 128; FINDINGS.md says of 0.6.0: 129"):
        compare(next(one for one in CASTS if one.name == "e8m0-ties"), 128)


@pytest.mark.parametrize("finding", {one.name: one for one in ALL}.values(), ids=name)
def test_the_document_tells_it(finding: Finding) -> None:
    """A row of the table with its class and version, and a section of its own."""
    row = re.search(rf"^\| \[{finding.name}\]\(#{finding.name}\) \|(.*)$", SECTION, re.MULTILINE)
    assert row, "no row"
    told = {one.subject.replace("_", "-"): one.version for one in ALL if one.name == finding.name}
    for subject, version in told.items():
        assert f"{subject} {version}" in row[1].replace("ml_dtypes", "ml-dtypes")
    assert re.search(r"\| (fault|dialect) \|", row[1])
    assert f"### {finding.name}\n" in SECTION


def test_the_document_tells_nothing_else() -> None:
    assert set(re.findall(r"^### (.*)$", SECTION, re.MULTILINE)) == {one.name for one in ALL}
