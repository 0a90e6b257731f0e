"""torch's scaled matmul on a GPU, with the arguments that the matmul functions make for it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from lowbit.schemes import Scheme
from lowbit_kernels import _matmul_scaled

from .matmul_checks import (
    DTYPES,
    FAMILIES,
    MXFP4,
    NVFP4,
    assert_same,
    bits,
    expected,
    launched,
    multiply,
    stored,
    summable,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

UNSUPPORTED = re.compile(
    r"CUBLAS_STATUS_NOT_SUPPORTED|compute capability|only supported (in|on) CUDA|supported on ROCM and CUDA|B200"
)
"""Words of an error that says that this device or build has none, whatever the arguments."""

FUNCTIONS = pytest.mark.parametrize("public", [True, False], ids=["scaled_mm", "_scaled_mm_v2"])


def ask_torch(keywords: dict[str, Any], public: bool, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor | RuntimeError:
    """The product, or the error."""
    if public and not hasattr(torch.nn.functional, "scaled_mm"):
        pytest.skip("this torch has no scaled_mm")
    if not public:
        monkeypatch.delattr(torch.nn.functional, "scaled_mm", raising=False)
    try:
        result = _matmul_scaled.call(keywords)
        torch.cuda.synchronize()
    except (RuntimeError, ValueError) as error:
        return error if isinstance(error, RuntimeError) else RuntimeError(f"ValueError: {error}")
    return result


@FUNCTIONS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@FAMILIES
def test_torch_has_nothing_to_say_against_the_arguments(
    scheme: Scheme, dtype: torch.dtype, public: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either it multiplies, and then exactly; or it says that the hardware is missing, which it looks for last."""
    if scheme is MXFP4 and dtype != torch.bfloat16:
        dtype = torch.bfloat16
    operands = summable(scheme, 33, 128, 256 // scheme.block)
    for factors in [(0.5, 4.0), (None, None)] if scheme is NVFP4 else [(None, None)]:
        keywords = _matmul_scaled.arguments(launched(scheme, stored(operands, scheme), factors), dtype)
        answer = ask_torch(keywords, public, monkeypatch)
        if isinstance(answer, torch.Tensor):
            assert_same(bits(answer), expected(operands, scheme, dtype, factors), DTYPES[dtype])
        else:
            assert UNSUPPORTED.search(str(answer)), answer
            assert torch.cuda.get_device_capability() < (10, 0) or isinstance(answer, NotImplementedError), answer


@FUNCTIONS
@pytest.mark.parametrize("mistake", ["recipes", "order", "swizzle", "rows", "dtype"])
def test_torch_complains_of_other_arguments(mistake: str, public: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it looks at the hardware: else the test above would show nothing."""
    given = launched(NVFP4, stored(summable(NVFP4, 33, 128, 16), NVFP4), (0.5, 4.0))
    keywords = _matmul_scaled.arguments(given, torch.bfloat16)
    block, one = keywords["scale_b"]
    keywords |= {
        "recipes": {"scale_recipe_b": [_matmul_scaled.BLOCK_1X16]},
        "order": {"scale_b": [one, block]},
        "swizzle": {"swizzle_b": [_matmul_scaled.NO_SWIZZLE, _matmul_scaled.NO_SWIZZLE]},
        "rows": {"scale_b": [block[:512], one]},
        "dtype": {"scale_b": [block.view(torch.float8_e8m0fnu), one]},
    }[mistake]
    answer = ask_torch(keywords, public, monkeypatch)
    assert isinstance(answer, RuntimeError), "wrong arguments multiplied"
    assert not UNSUPPORTED.search(str(answer)), answer


def test_the_kernel_is_used_where_torch_has_none() -> None:
    """Whatever torch said to the arguments above, the public function has a right answer."""
    for scheme in (NVFP4, MXFP4):
        operands = summable(scheme, 33, 128, 256 // scheme.block)
        assert_same(bits(multiply(scheme, stored(operands, scheme))), expected(operands, scheme))
