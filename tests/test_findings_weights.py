"""Each finding of stored weights, run again: a release that does otherwise fails here; then change FINDINGS.md.

What is called right of blocks is checked against the references whether the package is installed or not.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import Any

import findings_gpu
import findings_weights
import pytest
import torch
from findings import Called, Decoded, Encoded, Finding, lacking
from findings_weights import DECODED, DISTRIBUTIONS, ENCODED, MODULES
from test_findings_blocks import last_block, patterns, rows, stored_block

from lowbit import packing, schemes
from lowbit.formats import BINARY32
from lowbit.implementation import Quantized, load
from lowbit.references import bits

FINDINGS = (Path(__file__).resolve().parents[1] / "FINDINGS.md").read_text(encoding="utf-8")
SECTION = FINDINGS.partition("## Stored weights")[2].partition("\n## ")[0]
CALLED = (*findings_weights.CALLED, *findings_gpu.CALLED)
ALL: tuple[Finding, ...] = (*ENCODED, *DECODED, *CALLED)


def name(finding: Finding) -> str:
    return finding.name


def need(finding: Finding) -> None:
    """Skips where the package, or the CPU or GPU of that kind, is missing."""
    distribution = DISTRIBUTIONS.get(finding.subject, finding.subject)
    if importlib.util.find_spec(MODULES.get(finding.subject, finding.subject).partition(".")[0]) is None:
        pytest.skip(f"{distribution} is not installed: pip install 'lowbit[{finding.subject}]'")
    if lacks := lacking(finding):
        pytest.skip(lacks)


def compare(finding: Any, actual: Any) -> None:
    installed = importlib.metadata.version(DISTRIBUTIONS.get(finding.subject, finding.subject))
    assert actual == finding.got, (
        f"{finding.subject} {installed}: {finding.name}: got {actual}; FINDINGS.md says of {finding.version}: "
        f"{finding.got}, and that {finding.right} is right. The release changed it: change the finding and its row"
    )


@pytest.mark.parametrize("finding", ENCODED, ids=name)
def test_what_is_right_of_a_block(finding: Encoded) -> None:
    right = bits.quantize(rows(finding), schemes.get(finding.scheme))
    assert last_block(right, finding) == finding.right != finding.got


@pytest.mark.parametrize("finding", ENCODED, ids=name)
def test_blocks(finding: Encoded) -> None:
    need(finding)
    scheme = schemes.get(finding.scheme)
    subject = load(f"lowbit.adapters.{finding.subject}:IMPLEMENTATION")
    stored = subject.call("quantize", torch.from_numpy(rows(finding)), scheme)
    compare(finding, last_block(packing.unpack(stored, scheme), finding))


@pytest.mark.parametrize("finding", DECODED, ids=name)
def test_what_is_right_of_stored_bytes(finding: Decoded) -> None:
    scheme = schemes.get(finding.scheme)
    right = bits.dequantize(packing.unpack(stored_block(finding), scheme), scheme, BINARY32)
    assert patterns(right, finding.dtype, len(finding.codes)) == finding.right != finding.got


@pytest.mark.parametrize("finding", DECODED, ids=name)
def test_stored_bytes(finding: Decoded) -> None:
    need(finding)
    stored = Quantized(*(None if part is None else torch.from_numpy(part) for part in stored_block(finding)))
    subject = load(f"lowbit.adapters.{finding.subject}:IMPLEMENTATION")
    values = subject.call("dequantize", stored, schemes.get(finding.scheme), torch.float32)
    compare(finding, patterns(values.view(torch.int32).numpy().view("u4"), finding.dtype, len(finding.codes)))


@pytest.mark.parametrize("finding", CALLED, ids=name)
def test_calls(finding: Called) -> None:
    need(finding)
    compare(finding, finding.call())


def test_a_release_that_changes_a_finding_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9")
    finding = next(one for one in CALLED if one.name == "gptqmodel-carry")
    with pytest.raises(AssertionError, match=r"gptqmodel 9.9: gptqmodel-carry: got right; FINDINGS.md says of 7.7.0"):
        compare(finding, "right")


@pytest.mark.parametrize("finding", {one.name: one for one in ALL}.values(), ids=name)
def test_the_document_tells_it(finding: Finding) -> None:
    """A row of the table with its class and version, and a section of its own."""
    row = re.search(rf"^\| \[{finding.name}\]\(#{finding.name}\) \|(.*)$", SECTION, re.MULTILINE)
    assert row, "no row"
    assert f"{DISTRIBUTIONS.get(finding.subject, finding.subject)} {finding.version}" in row[1]
    assert re.search(r"\| (fault|dialect) \|", row[1])
    assert f"### {finding.name}\n" in SECTION


def test_the_document_tells_nothing_else() -> None:
    assert set(re.findall(r"^### (.*)$", SECTION, re.MULTILINE)) == {one.name for one in ALL}


def test_the_document_counts_them() -> None:
    classes = re.findall(r"^\| \[([\w-]+)\]\(#\1\) \|.*?\| (fault|dialect) \|", FINDINGS, re.MULTILINE)
    faults = sum(kind == "fault" for _, kind in classes)
    assert f"There are {len(classes)} findings: {faults} faults and {len(classes) - faults} dialects." in FINDINGS
    assert sorted(name for name, _ in classes) == sorted(re.findall(r"^### (.*)$", FINDINGS, re.MULTILINE))
