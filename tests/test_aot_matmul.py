"""What the matmul kernels become on each architecture: tensor cores of the right type, nothing approximate or flushing.

Their decoding and their epilogue are exact only if subnormals are kept and nothing is contracted; the interpreter keeps
them whatever a kernel asks for, so that the assembly tells.
"""

from __future__ import annotations

from typing import Any

import pytest
from compiling import TARGETS, compiled_by

pytestmark = pytest.mark.compile_matrix

INSTRUCTION = {"sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma", "gfx950": "mfma"}
"""What multiplies large tiles; on other targets, and few rows on all of NVIDIA's, mma.sync does."""

Compiled = dict[str, dict[str, dict[str, dict[str, Any]]]]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compiled_by("compile_matmul.py")


def multiplying(kernels: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The kernel of a variant that multiplies."""
    (name,) = set(kernels) - {"reduce_kernel"}
    return name, kernels[name]


@pytest.mark.parametrize("target", TARGETS)
def test_every_variant_compiles(compiled: Compiled, target: str) -> None:
    assert compiled[target]
    for variant, kernels in compiled[target].items():
        assert multiplying(kernels)[0] == ("small_kernel" if variant.startswith("few") else "matmul_kernel"), variant
    assert any("reduce_kernel" in kernels for kernels in compiled[target].values())


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_approximate_flushed_or_double(compiled: Compiled, target: str) -> None:
    for variant, kernels in compiled[target].items():
        for kernel, result in kernels.items():
            assert not {"approximate", "flushing", "double"} & set(result["found"]), (variant, kernel)


@pytest.mark.parametrize("target", TARGETS)
def test_tensor_cores_multiply(compiled: Compiled, target: str) -> None:
    """NVFP4's operands in binary16, MXFP4's in bfloat16, whose range they need."""
    instructions = {"mma.sync", *INSTRUCTION.values()}
    for variant, kernels in compiled[target].items():
        kernel, result = multiplying(kernels)
        small = kernel == "small_kernel" and target.startswith("sm")
        instruction = "mma.sync" if small else INSTRUCTION.get(target, "mma.sync")
        assert instructions & set(result["found"]) == {instruction}, variant
        right, wrong = ("of bfloat16", "of binary16") if "MXFP4" in variant else ("of binary16", "of bfloat16")
        assert right in result["found"], variant
        if instruction != "tcgen05":  # which has one kind for both
            assert wrong not in result["found"], variant


@pytest.mark.parametrize("target", TARGETS)
def test_the_inline_text_is_for_nvidia(compiled: Compiled, target: str) -> None:
    """And conversions of E4M3 for those that have them."""
    for variant, kernels in compiled[target].items():
        kernel, result = multiplying(kernels)
        own = {"halves of bfloat16"} if "MXFP4" in variant else {"halves of binary16"}
        if "NVFP4" in variant and target != "sm_80" and (kernel == "small_kernel" or variant.startswith("Hopper")):
            own |= {"conversions"}
        found = set(result["found"]) & {"halves of binary16", "halves of bfloat16", "conversions"}
        assert found == (set() if target.startswith("gfx") else own), variant


@pytest.mark.parametrize("target", TARGETS)
def test_it_fits_into_shared_memory(compiled: Compiled, target: str) -> None:
    """More compiles all the same, and fails at the first launch."""
    for variant, kernels in compiled[target].items():
        for kernel, result in kernels.items():
            assert result["shared"] <= result["there is"], (variant, kernel)
