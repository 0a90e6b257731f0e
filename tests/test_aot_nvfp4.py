"""What the NVFP4 kernels become on each architecture: they compile, and nothing approximate or flushing is in them.

The interpreter divides exactly and keeps subnormals whatever a kernel asks for; the assembly tells.
"""

from __future__ import annotations

from typing import Any

import pytest
from compiling import TARGETS, compiled_by

from lowbit.rules import Rounding

pytestmark = pytest.mark.compile_matrix

EVEN = Rounding.TIES_TO_EVEN.value
ROUNDINGS = {rule.value for rule in Rounding}

Compiled = dict[str, Any]
"""By target and variant the kernels, each with what its assembly contains; ``variants``: numbers of kernels."""


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compiled_by("compile_nvfp4.py")


@pytest.mark.parametrize("target", TARGETS)
def test_every_variant_compiles(compiled: Compiled, target: str) -> None:
    assert len(compiled[target]) >= 15
    launched = {kernel for kernels in compiled[target].values() for kernel in kernels}
    assert launched == {
        *("amax_kernel", "tensor_scale_kernel", "quantize_kernel"),
        *("dequantize_kernel", "dequantize_table_kernel", "_swizzle_kernel", "_unswizzle_kernel"),
    }


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_approximate_flushed_or_double(compiled: Compiled, target: str) -> None:
    for variant, kernels in compiled[target].items():
        for kernel, found in kernels.items():
            assert not set(found) & {"approximate", "flushing", "double"}, (variant, kernel)


@pytest.mark.parametrize("target", TARGETS)
def test_only_these_divide(compiled: Compiled, target: str) -> None:
    """Correctly rounded, by the instruction or its expansion: g, 1 / g, and the rules that need to see a 0."""
    for variant, kernels in compiled[target].items():
        for kernel, found in kernels.items():
            divides = kernel == "tensor_scale_kernel" or (
                (kernel in ("dequantize_kernel", "dequantize_table_kernel") and "no factor" not in variant)
                or variant in ("toward_negative", "toward_positive")
            )
            assert ("division" in found) == divides, (variant, kernel)


@pytest.mark.parametrize("target", TARGETS)
def test_no_decoder_spills(compiled: Compiled, target: str) -> None:
    for variant, kernels in compiled[target].items():
        for kernel in kernels.keys() & {"dequantize_kernel", "dequantize_table_kernel"}:
            assert "local" not in kernels[kernel], (variant, kernel)


def test_few_kernels_serve_every_shape(compiled: Compiled) -> None:
    """Whole tiles or not; swizzled also by the width of narrow rows; strides by the words, or elements, to load."""
    assert compiled["variants"] == {
        **{"quantize_kernel, gapless": 2, "amax_kernel, gapless": 2},
        **{"quantize_kernel, gapless, swizzled": 6, "amax_kernel, gapless, swizzled": 2},
        **{"quantize_kernel, rows apart": 4, "amax_kernel, rows apart": 4},
    }


ALIGNED = (
    *("bfloat16", "bfloat16, rows apart", "bfloat16, two levels, swizzled", "float32, two levels, swizzled"),
    *("float16, one level", "stochastic", "stochastic, float32, swizzled"),
)
"""Variants whose rows begin at multiples of 16 bytes, which the compiler cannot see of an integer argument."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("variant", ALIGNED)
def test_what_is_aligned_is_loaded_by_16_bytes(compiled: Compiled, target: str, variant: str) -> None:
    for kernel in compiled[target].get(variant, {}).keys() & {"amax_kernel", "quantize_kernel"}:
        assert "loads of 16 bytes" in compiled[target][variant][kernel], kernel
        assert "local" not in compiled[target][variant][kernel], kernel


@pytest.mark.parametrize("target", TARGETS)
def test_ptx_multiplies_upward(compiled: Compiled, target: str) -> None:
    """For ties to even alone; other makers' GPUs form the quotient."""
    for variant, kernels in compiled[target].items():
        words = ("two levels", "one level", *(ROUNDINGS - {EVEN}))
        even = not any(word in variant for word in words)
        if "quantize_kernel" in kernels:
            wanted = even and target.startswith("sm_") and variant != "given bytes"
            assert ("upward" in kernels["quantize_kernel"]) == wanted, variant


@pytest.mark.parametrize("target", [target for target in TARGETS if target.startswith("sm_")])
def test_the_table_is_in_registers(compiled: Compiled, target: str) -> None:
    """Looked up by permutations of bytes, stored by 16 bytes alone, and nothing moves through shared memory."""
    name = "dequantize_table_kernel"
    tables = [kernels[name] for kernels in compiled[target].values() if name in kernels]
    assert len(tables) == 4
    for found in tables:
        assert set(found) - {"division"} == {"permutation", "stores of 16 bytes"}
