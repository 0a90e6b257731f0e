"""`--weights` on a quantised checkpoint, as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import DATA, LAYER, awq, corner, four_bits, int8, write
from test_plugin import implementation, records, suite

from lowbit.checkpoints import quantized as quantized_checkpoint
from lowbit.errors import LowbitError
from lowbit.records import read_records
from lowbit.suite.run import SuiteRun

WORDS = ("--device", "cpu", "--impl", "lowbit.adapters.reference:IMPLEMENTATION", "--no-html")

NORM = "<b>norm</b>\x1b[31m"
"""Names are other people's."""


def test_a_run_judges_the_schemes_that_the_checkpoint_holds(tmp_path: Path) -> None:
    """A record a layer, one for each tensor that is not judged, and a header that says what was found."""
    four, config = four_bits(corner())
    eight, _ = int8(corner(), name="eight")
    config = {"quant_method": "bitsandbytes"}
    path = write(tmp_path / "m", {**four, **eight, NORM: four[f"{LAYER}.weight.absmax"].clone()}, config)
    done, (folder,) = suite(tmp_path, *WORDS[:-1], "--weights", str(path))
    assert done.code == 0, done.output
    assert "quantised, as config.json says: 1 × int8_scb, 1 × nf4_b64 to float16" in done.output
    assert "not quantised, not judged" in done.output
    found = {(r.scheme, r.check, r.status, r.extra["tensor"]): r for r in read_records(folder)}
    assert set(found) == {
        ("nf4_b64", "quantized checkpoint", "pass", f"{LAYER}.weight"),
        ("int8_scb", "quantized checkpoint", "pass", "eight"),
        ("*", "checkpoint", "not_run", NORM),
    }
    layer = found["nf4_b64", "quantized checkpoint", "pass", f"{LAYER}.weight"]
    assert layer.compared == layer.extra["elements"] == corner().size
    assert layer.extra["found"] == "bitsandbytes NF4, block 64"
    assert "every weight of 1 layers" in layer.assurance
    assert "<b>norm" not in (folder / "index.html").read_text()
    assert "\x1b" not in done.output


def test_a_wrong_kernel_fails_with_the_layers_name(tmp_path: Path) -> None:
    body = """
from lowbit.adapters.reference import dequantize_weight
def low_first(stored, scheme, dtype):
    packed = stored["packed"]
    if stored["shape"] != (24, 96):
        return dequantize_weight(stored, scheme, dtype)
    return dequantize_weight({**stored, "packed": packed >> 4 | packed << 4}, scheme, dtype)
IMPLEMENTATION = Implementation(name="low_first", version="1", dequantize_weight=low_first)
"""
    target = implementation(tmp_path, body)
    path = DATA / "bitsandbytes" / "nf4_nested" / "model.safetensors"
    done, (folder,) = suite(tmp_path, "--device", "cpu", "--impl", target, "--no-html", "--weights", str(path))
    assert done.code == 1
    found = {record.extra["tensor"]: record for record in records(folder)}
    wrong = found.pop("encoder.layer.0.attention.self.query.weight")
    assert (wrong.status, wrong.compared) == ("mismatch", 24 * 96)
    assert "nibble" in (wrong.diagnosis or "")
    assert "encoder.layer.0.attention.self.query.weight" in done.output
    assert {(record.status, record.diagnosis) for record in found.values()} == {("pass", "")}


def test_scheme_says_otherwise(tmp_path: Path) -> None:
    """A block scheme quantises the floating tensors, but never scales; a scheme that reads nothing is refused."""
    tensors, config = awq(corner())
    path = write(tmp_path / "m", {**tensors, "embedding.weight": tensors[f"{LAYER}.scales"].clone()}, config)
    done, (folder,) = suite(
        tmp_path, *WORDS, "--weights", str(path), "--scheme", "mxfp4_floor", "--scheme", "awq_g32+through_scale_dtype"
    )
    assert done.code == 0, done.output
    assert {(r.scheme, r.check, r.extra["tensor"]) for r in read_records(folder)} == {
        ("mxfp4_floor", "checkpoint", "embedding.weight"),
        ("awq_g32+through_scale_dtype", "quantized checkpoint", LAYER),
    }
    run = SuiteRun(device="cpu", interpreted=True)
    run.checkpoint = quantized_checkpoint.read(path)
    with pytest.raises(LowbitError, match=r"got nf4\*, but .* holds awq_g32"):
        run._choose_schemes(["nf4*"])
