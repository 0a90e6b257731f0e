"""What the weight kernels become on each architecture: exact arithmetic, wide accesses, no spills, no table in memory.

The interpreter divides exactly, keeps subnormals and fuses nothing whatever a kernel asks for; the assembly tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from compiling import TARGETS, compiled_by

pytestmark = pytest.mark.compile_matrix

EVERY_TARGET = pytest.mark.parametrize("target", TARGETS)
USUAL = ("awq", "gptq4", "gptq8", "gptq3", "gptq4, g_idx", "nf4", "nf4, nested", "fp4", "int8", "squeezellm4")
"""Calls that speed is asked of."""

SUMS = ("check_sparse_kernel", "check_full_rows_kernel", "add_full_rows_kernel", "add_sparse_kernel")
Compiled = dict[str, dict[str, dict[str, dict[str, Any]]]]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compiled_by("compile_weights.py")


def kernels(compiled: Compiled, target: str) -> Iterator[tuple[str, set[str], int | None]]:
    """Call and kernel, what stands in its assembly, its own memory in bytes."""
    for call, found in compiled[target].items():
        for kernel, facts in found.items():
            yield f"{call}: {kernel}", set(facts["patterns"]), facts["memory"]


@EVERY_TARGET
def test_every_call_compiles(compiled: Compiled, target: str) -> None:
    assert set(compiled[target]) >= set(USUAL)


def test_every_kernel_compiles_for_one_target(compiled: Compiled) -> None:
    launched = {kernel for found in compiled["sm_90"].values() for kernel in found}
    assert launched == {
        *("dequantize_awq_kernel", "dequantize_gptq_kernel", "dequantize_4bit_kernel", "dequantize_int8_kernel"),
        *("dequantize_squeezellm_kernel", *SUMS),
    }


def test_lengths_make_no_kernels(compiled: Compiled) -> None:
    """A model has many shapes, and a kernel takes a second to compile: one for all."""
    variants: dict[str, Any] = compiled["variants"]
    assert variants == {
        **dict.fromkeys(("dequantize_awq_kernel", "dequantize_gptq_kernel", "dequantize_4bit_kernel"), 1),
        **dict.fromkeys(("dequantize_int8_kernel", "dequantize_squeezellm_kernel", *SUMS), 1),
    }


@EVERY_TARGET
def test_nothing_is_approximate_flushed_fused_or_double(compiled: Compiled, target: str) -> None:
    """Nor divided: no rule of a weight scheme has a quotient."""
    for name, found, _ in kernels(compiled, target):
        assert not found & {"approximate", "flushing", "fused", "double"}, name


@EVERY_TARGET
def test_no_register_is_spilled(compiled: Compiled, target: str) -> None:
    for name, found, memory in kernels(compiled, target):
        assert "local" not in found, name
        assert not memory, name
    if target.startswith("gfx"):
        assert all(memory is not None for _, _, memory in kernels(compiled, target)), "no figure found"


@EVERY_TARGET
def test_codebooks_are_in_no_memory(compiled: Compiled, target: str) -> None:
    """NF4 and FP4: sixteen lanes of a register, not a constant, a global or a shared array."""
    for call in ("nf4", "nf4, nested", "fp4"):
        for facts in compiled[target][call].values():
            assert not set(facts["patterns"]) & {"constants", "shared"}, call


@pytest.mark.parametrize("target", [target for target in TARGETS if target.startswith("sm")])
def test_accesses_are_wide(compiled: Compiled, target: str) -> None:
    """A thread stores 16 bytes at a time, and loads words of 4 bytes or more; of packed bytes none is loaded alone."""
    for call in USUAL:
        for facts in compiled[target][call].values():
            found = set(facts["patterns"])
            assert ("stores of 16 bytes" in found) == (call != "squeezellm4"), (
                call
            )  # whose threads store 4, side by side
            assert "narrow stores" not in found, call
            assert ("narrow loads" in found) == (call == "nf4, nested"), call  # the codes of absmax are bytes
    for call in ("gptq4", "gptq8", "gptq3", "gptq4, g_idx"):
        assert "loads of 16 bytes" in compiled[target][call]["dequantize_gptq_kernel"]["patterns"], call


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_no_thread_needs_the_words_of_another(compiled: Compiled, target: str) -> None:
    """Words are decoded and stored by the thread that loaded them; only SqueezeLLM's tables are shared."""
    for call in USUAL:
        for facts in compiled[target][call].values():
            assert ("shared" in facts["patterns"]) == (call == "squeezellm4"), call
