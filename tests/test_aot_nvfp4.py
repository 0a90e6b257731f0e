"""What the NVFP4 kernels become on each architecture: they compile, and nothing approximate or flushing is in them.

The interpreter divides exactly and keeps subnormals whatever a kernel asks for; the assembly tells.
"""

from __future__ import annotations

import pytest
from compiling import TARGETS, compiled_by

pytestmark = pytest.mark.compile_matrix

Compiled = dict[str, dict[str, dict[str, list[str]]]]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compiled_by("compile_nvfp4.py")


@pytest.mark.parametrize("target", TARGETS)
def test_every_variant_compiles(compiled: Compiled, target: str) -> None:
    assert len(compiled[target]) >= 11
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


@pytest.mark.parametrize("target", [target for target in TARGETS if target.startswith("sm_")])
def test_the_table_is_in_registers(compiled: Compiled, target: str) -> None:
    """Looked up by permutations of bytes, stored by 16 bytes alone, and nothing moves through shared memory."""
    name = "dequantize_table_kernel"
    tables = [kernels[name] for kernels in compiled[target].values() if name in kernels]
    assert len(tables) == 4
    for found in tables:
        assert set(found) - {"division"} == {"permutation", "stores of 16 bytes"}
