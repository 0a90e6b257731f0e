"""The quantisers with the E2M1 instruction: it is there, once for two elements, and nothing spills; without, it is not.

No device that has the instruction need be here; what it computes there, `test_kernels_hardware.py` says.
"""

from __future__ import annotations

from typing import Any

import pytest
from compiling import TARGETS, compiled_by

pytestmark = pytest.mark.compile_matrix

HAVE_IT = ("sm_100", "sm_120")
ONE_BY_ONE = "mxfp4, not aligned"
"""The variant that loads no pairs."""

Compiled = dict[str, dict[str, dict[str, dict[str, Any]]]]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compiled_by("compile_e2m1.py")


@pytest.mark.parametrize("target", TARGETS)
def test_off_is_off(compiled: Compiled, target: str) -> None:
    """By default no kernel has the instruction, on whatever target."""
    assert compiled[target]
    for variant, switches in compiled[target].items():
        off = switches["off"]
        assert "refused" not in off, (variant, off)
        assert off["instruction"] == off.get("converts", 0) == 0, variant


@pytest.mark.parametrize("target", HAVE_IT)
def test_the_instruction_is_there(compiled: Compiled, target: str) -> None:
    """In the PTX as often as in the machine code: one for two of a thread's elements."""
    assert len(compiled[target]) == 5
    for variant, switches in compiled[target].items():
        on = switches["on"]
        assert "refused" not in on, (variant, on)
        count = 0 if variant == ONE_BY_ONE else on["pairs"]
        assert (on["instruction"], on["converts"]) == (count, count), variant
        if count:
            assert on["instructions"] < switches["off"]["instructions"], variant


@pytest.mark.parametrize("target", HAVE_IT)
def test_nothing_spills_or_flushes(compiled: Compiled, target: str) -> None:
    for variant, switches in compiled[target].items():
        for switch, found in switches.items():
            assert found["local"] == 0, (variant, switch)
            assert found["forbidden"] == [], (variant, switch)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_older_targets_have_no_such_instruction(compiled: Compiled, target: str) -> None:
    """Why a call is refused there before anything is compiled."""
    (switches,) = compiled[target].values()
    assert "e2m1x2" in switches["on"]["refused"]
