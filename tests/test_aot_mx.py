"""What the MX kernels become on each architecture: nothing spills, loads have 16 bytes, and few variants are compiled.

Whether a load has 16 bytes and whether arithmetic is packed only the assembly tells.
"""

from __future__ import annotations

from typing import Any

import pytest
from compiling import TARGETS, compiled_by

pytestmark = pytest.mark.compile_matrix

NVIDIA = [target for target in TARGETS if target.startswith("sm_")]


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return compiled_by("compile_mx.py")


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_spills_or_flushes(table: dict[str, Any], target: str) -> None:
    variants = table["compiled"][target]
    assert len(variants) == (23 if target in ("sm_90", "gfx942") else 9)
    for variant, found in variants.items():
        assert (found["memory"], found["forbidden"]) == (0, []), variant
    assert {found["kernel"] for found in variants.values()} >= {
        "quantize",
        "quantize_words",
        "quantize_words_stochastic",
    }


@pytest.mark.parametrize("target", NVIDIA)
def test_loads_and_stores_are_as_wide_as_can_be(table: dict[str, Any], target: str) -> None:
    """Of x 16 bytes, whatever the lengths of rows are multiples of; MX4's words of 4 bytes and no byte alone."""
    for variant, found in table["compiled"][target].items():
        if "decoded" in variant:
            assert found["st"] == [128], variant
            continue
        assert found["ld"] == [128], variant
        if found["kernel"].startswith("quantize_words"):
            assert found["st"] == [32], variant
        elif variant.startswith("mxfp4"):
            codes = 64 if "float32" in variant else 128
            assert found["st"] == [8, codes], variant


@pytest.mark.parametrize("target", TARGETS)
def test_bfloat16_is_calculated_in_pairs(table: dict[str, Any], target: str) -> None:
    """With PTX, of words of two, and two codes of any type that are drawn; else in binary32."""
    for variant, found in table["compiled"][target].items():
        packed = target in NVIDIA and ("bfloat16" in variant or "stochastic" in variant)
        assert found["packed"] == packed, variant


def test_lengths_make_no_kernels(table: dict[str, Any]) -> None:
    """60 shapes: one kernel where rows have no gaps, two for MX4, by words or bytes; else one for a width of tiles."""
    counted = table["counted"]
    assert (counted["mxfp4"], counted["mx4"], counted["mx4, decoded"]) == (1, 2, 1)
    assert counted["mxfp4, swizzled"] == 3  # widths of 4, 8 and 16 groups
    assert counted["mxfp4, gaps"] <= 6
    assert counted["mx4, columns 97 to 160"] <= 10
