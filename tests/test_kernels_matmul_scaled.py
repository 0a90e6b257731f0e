"""What goes to torch's scaled matmul, tested without the hardware: which shapes, and with which arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lowbit.schemes import Scheme
from lowbit_kernels import _matmul_scaled
from lowbit_kernels._matmul_launch import Operands

from .matmul_checks import DEVICE, FAMILIES, MXFP4, NVFP4, launched, stored, summable

FP4, E4M3, E8M0 = torch.float4_e2m1fn_x2, torch.float8_e4m3fn, torch.float8_e8m0fnu
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
M, N, K = 33, 48, 256

HAS_PUBLIC = pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="this torch has no such function")


def operands(scheme: Scheme, factors: tuple[Any, Any] = (0.7, 1.3)) -> Operands:
    """(33, 256) by (48, 256): a shape that torch takes."""
    given = stored(summable(scheme, M, N, K // scheme.block), scheme)
    return launched(scheme, given, factors if scheme is NVFP4 else (None, None))


def same(actual: torch.Tensor, right: torch.Tensor) -> bool:
    """The same memory, seen in the same way."""
    return (actual.data_ptr(), actual.shape, actual.stride()) == (right.data_ptr(), right.shape, right.stride())


# Which calls go there


@pytest.mark.parametrize(
    ("m", "n", "k", "mx", "dtype", "capability", "takes"),
    [
        (1, 16, 64, False, BF16, (10, 0), True),
        (4096, 8192, 8192, False, FP16, (10, 3), True),
        (3, 48, 192, False, FP32, (12, 0), True),
        (1, 16, 128, True, BF16, (10, 0), True),
        (1, 16, 128, True, BF16, (10, 3), True),
        # no such hardware
        (16, 128, 256, False, BF16, (9, 0), False),
        (16, 128, 256, False, BF16, (8, 0), False),
        (16, 128, 256, True, BF16, (9, 0), False),
        (16, 128, 256, True, BF16, (12, 0), False),  # torch has MXFP4 for 10.x only
        # torch's MXFP4 gives bfloat16 only
        (16, 128, 256, True, FP32, (10, 0), False),
        (16, 128, 256, True, FP16, (10, 0), False),
        # N not a multiple of 16
        (16, 8, 256, False, BF16, (10, 0), False),
        (16, 129, 256, True, BF16, (10, 0), False),
        # a part of a scale tile, whose padding may be NaN
        (16, 128, 16, False, BF16, (10, 0), False),
        (16, 128, 96, False, BF16, (10, 0), False),
        (16, 128, 96, True, BF16, (10, 0), False),
        (16, 128, 192, True, BF16, (10, 0), False),
        # nothing to multiply
        (0, 128, 256, False, BF16, (10, 0), False),
        (16, 0, 256, False, BF16, (10, 0), False),
        (16, 128, 0, True, BF16, (10, 0), False),
    ],
)
def test_takes(m: int, n: int, k: int, mx: bool, dtype: torch.dtype, capability: tuple[int, int], takes: bool) -> None:
    assert _matmul_scaled.takes(m, n, k, mx, dtype, capability) is takes


# Its arguments


@FAMILIES
def test_the_operands_are_views(scheme: Scheme) -> None:
    """a row after row, b as its transposed view: torch.float4_e2m1fn_x2 in the memory that was given."""
    given = operands(scheme)
    keywords = _matmul_scaled.arguments(given, FP16)
    assert keywords["mat_a"].dtype == keywords["mat_b"].dtype == FP4
    assert same(keywords["mat_a"], given.a)
    assert same(keywords["mat_b"], given.b.t())
    assert (keywords["mat_a"].shape, keywords["mat_a"].stride()) == ((M, K // 2), (K // 2, 1))
    assert (keywords["mat_b"].shape, keywords["mat_b"].stride()) == ((K // 2, N), (1, K // 2))
    assert keywords["output_dtype"] == FP16


def test_nvfp4_has_two_scales_an_operand() -> None:
    """Lists of two: the block scales and then the decode factor; recipes and swizzles in the same order."""
    given = operands(NVFP4)
    keywords = _matmul_scaled.arguments(given, BF16)
    sides = (("a", given.a_scales, given.a_rglob), ("b", given.b_scales, given.b_rglob))
    for side, block_scales, rglob in sides:
        assert keywords[f"scale_recipe_{side}"] == [_matmul_scaled.BLOCK_1X16, _matmul_scaled.TENSOR_WISE]
        assert keywords[f"swizzle_{side}"] == [_matmul_scaled.SWIZZLE_32_4_4, _matmul_scaled.NO_SWIZZLE]
        first, second = keywords[f"scale_{side}"]
        assert (first.dtype, second.dtype) == (E4M3, FP32)
        assert same(first, block_scales)
        assert rglob is not None
        assert same(second, rglob)
    assert keywords["scale_a"][1].item() == pytest.approx(0.7)
    assert keywords["scale_b"][1].item() == pytest.approx(1.3)


@pytest.mark.parametrize("factors", [(None, 2.0), (3.0, None), (None, None)], ids=str)
def test_a_missing_factor_is_1(factors: tuple[float | None, float | None]) -> None:
    """torch wants both or neither, and with neither another recipe; 1 changes no bit."""
    keywords = _matmul_scaled.arguments(operands(NVFP4, factors), BF16)
    for side, value in zip("ab", factors, strict=True):
        scale = keywords[f"scale_{side}"][1]
        assert (scale.dtype, scale.shape, scale.device) == (FP32, (1,), keywords["mat_a"].device)
        assert scale.item() == (1.0 if value is None else value)


def test_mxfp4_has_one_scale_an_operand() -> None:
    given = operands(MXFP4)
    keywords = _matmul_scaled.arguments(given, BF16)
    for side, block_scales in (("a", given.a_scales), ("b", given.b_scales)):
        assert keywords[f"scale_recipe_{side}"] == [_matmul_scaled.BLOCK_1X32]
        assert keywords[f"swizzle_{side}"] == [_matmul_scaled.SWIZZLE_32_4_4]
        (only,) = keywords[f"scale_{side}"]
        assert only.dtype == E8M0
        assert same(only, block_scales)


@FAMILIES
def test_what_cublas_cannot_read_is_copied(scheme: Scheme) -> None:
    """Rows with gaps, an address that is no multiple of 16, scales apart, odd strides of a single row."""
    given = operands(scheme)
    wide = torch.zeros(M, K, dtype=torch.uint8, device=DEVICE)
    wide[:, : K // 2] = given.a
    odd = torch.zeros(given.b.numel() + 4, dtype=torch.uint8, device=DEVICE)[4:].view(given.b.shape)
    odd.copy_(given.b)
    spread = torch.stack([given.a_scales, given.a_scales], dim=1)[:, 0]
    shifted = torch.zeros(given.b_scales.numel() + 4, dtype=torch.uint8, device=DEVICE)[4:]
    shifted.copy_(given.b_scales)
    views = given._replace(a=wide[:, : K // 2], b=odd, a_scales=spread, b_scales=shifted)
    plain, copied = (_matmul_scaled.arguments(one, BF16) for one in (given, views))
    for name in ("mat_a", "mat_b", "scale_a", "scale_b"):
        first, second = (kw[name][0] if isinstance(kw[name], list) else kw[name] for kw in (plain, copied))
        assert (first.shape, first.stride(), first.dtype) == (second.shape, second.stride(), second.dtype)
        assert second.data_ptr() % 16 == 0
        assert torch.equal(first.view(torch.uint8), second.view(torch.uint8))
    single = given.a.t().contiguous().t()[:1]
    assert single.stride() == (1, M)
    contiguous = torch.empty(K // 2, dtype=torch.uint8, device=DEVICE).as_strided((1, K // 2), (1, 1))
    assert contiguous.is_contiguous(), "torch overlooks the stride of a single row; cuBLAS would not"
    for row in (single, contiguous):
        assert _matmul_scaled.arguments(given._replace(a=row), BF16)["mat_a"].stride() == (K // 2, 1)


# The functions of torch


@HAS_PUBLIC
def test_the_numbers_are_those_of_torch() -> None:
    from torch.nn.functional import ScalingType, SwizzleType

    recipes = {name: int(kind.value) for name, kind in ScalingType.__members__.items()}
    swizzles = {name: int(kind.value) for name, kind in SwizzleType.__members__.items()}
    assert recipes["TensorWise"] == _matmul_scaled.TENSOR_WISE
    assert recipes["BlockWise1x16"] == _matmul_scaled.BLOCK_1X16
    assert recipes["BlockWise1x32"] == _matmul_scaled.BLOCK_1X32
    assert swizzles == {"NO_SWIZZLE": _matmul_scaled.NO_SWIZZLE, "SWIZZLE_32_4_4": _matmul_scaled.SWIZZLE_32_4_4}


@HAS_PUBLIC
@FAMILIES
def test_the_public_function_gets_enumerations(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    """By keyword, every name one that it has, and the other function is left alone."""
    import inspect

    from torch.nn.functional import ScalingType, SwizzleType

    names = set(inspect.signature(torch.nn.functional.scaled_mm).parameters)
    seen: dict[str, Any] = {}
    monkeypatch.setattr(torch.nn.functional, "scaled_mm", lambda **keywords: seen.update(keywords) or "result")
    monkeypatch.setattr(torch, "_scaled_mm_v2", None)
    keywords = _matmul_scaled.arguments(operands(scheme), BF16)
    assert _matmul_scaled.call(keywords) == "result"
    assert set(seen) <= names
    recipes = [ScalingType.BlockWise1x16, ScalingType.TensorWise] if scheme is NVFP4 else [ScalingType.BlockWise1x32]
    layouts = [SwizzleType.SWIZZLE_32_4_4, SwizzleType.NO_SWIZZLE][: len(recipes)]
    for side in "ab":
        assert seen[f"scale_recipe_{side}"] == recipes
        assert seen[f"swizzle_{side}"] == layouts
        assert seen[f"scale_{side}"] is keywords[f"scale_{side}"]
    assert seen["mat_a"] is keywords["mat_a"]
    assert seen["mat_b"] is keywords["mat_b"]
    assert seen["output_dtype"] == BF16
    assert keywords["scale_recipe_a"][0] in (_matmul_scaled.BLOCK_1X16, _matmul_scaled.BLOCK_1X32), "not changed"


def test_the_other_function_gets_numbers_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that has `_scaled_mm_v2` alone."""
    seen: list[Any] = []
    monkeypatch.delattr(torch.nn.functional, "scaled_mm", raising=False)
    monkeypatch.setattr(torch, "_scaled_mm_v2", lambda *places: seen.extend(places) or "result", raising=False)
    keywords = _matmul_scaled.arguments(operands(NVFP4), FP32)
    assert _matmul_scaled.call(keywords) == "result"
    mat_a, mat_b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, dtype = seen
    assert mat_a is keywords["mat_a"]
    assert mat_b is keywords["mat_b"]
    assert scale_a is keywords["scale_a"]
    assert scale_b is keywords["scale_b"]
    assert recipe_a == recipe_b == [2, 0]
    assert swizzle_a == swizzle_b == [1, 0]
    assert bias is None
    assert dtype == FP32


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_scaled_mm_v2"), reason="this torch has no such function")
def test_the_places_are_those_of_the_schema() -> None:
    names = [argument.name for argument in torch.ops.aten._scaled_mm_v2.default._schema.arguments]
    wanted = ["self", "mat2"]
    wanted += [f"{part}_{side}" for side in "ab" for part in ("scale", "recipe", "swizzle")]
    assert names[:10] == [*wanted, "bias", "out_dtype"]


def test_neither_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.nn.functional, "scaled_mm", raising=False)
    monkeypatch.delattr(torch, "_scaled_mm_v2", raising=False)
    with pytest.raises(NotImplementedError, match="no scaled matmul"):
        _matmul_scaled.call(_matmul_scaled.arguments(operands(NVFP4), BF16))


# torch's own checks of them, on tensors that only say that they are on a GPU


def on_fake_gpu(keywords: dict[str, Any]) -> dict[str, Any]:
    """The same arguments without memory."""

    def fake(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
        return [fake(part) for part in value] if isinstance(value, list) else value

    return {name: fake(value) for name, value in keywords.items()}


@pytest.fixture
def fake_gpu() -> Iterator[FakeTensorMode]:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def wrong(keywords: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Arguments with one mistake each, which torch has to find: else its check proves nothing."""
    swapped = keywords["scale_a"][::-1]
    return {
        "one recipe": keywords | {"scale_recipe_a": [_matmul_scaled.BLOCK_1X16]},
        "recipes in the other order": keywords
        | {"scale_recipe_b": [_matmul_scaled.TENSOR_WISE, _matmul_scaled.BLOCK_1X16]},
        "scales in the other order": keywords | {"scale_a": swapped},
        "not swizzled": keywords | {"swizzle_b": [_matmul_scaled.NO_SWIZZLE] * 2},
        "b not transposed": keywords | {"mat_b": keywords["mat_b"].t().contiguous()},
        "scales of too few rows": keywords | {"scale_b": [keywords["scale_b"][0][:512], keywords["scale_b"][1]]},
        "scales of another dtype": keywords | {"scale_b": [keywords["scale_b"][0].view(E8M0), keywords["scale_b"][1]]},
    }


@HAS_PUBLIC
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("factors", [(0.7, 1.3), (None, None)], ids=str)
def test_torch_accepts_the_arguments(dtype: torch.dtype, factors: tuple[Any, Any], fake_gpu: FakeTensorMode) -> None:
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        keywords = _matmul_scaled.arguments(operands(NVFP4, factors), dtype)
    given = on_fake_gpu(keywords)
    for result in (_matmul_scaled.call(given), torch._scaled_mm_v2(*_matmul_scaled.positional(given))):
        assert (tuple(result.shape), result.dtype) == ((M, N), dtype)


@HAS_PUBLIC
def test_torch_accepts_those_of_mxfp4(fake_gpu: FakeTensorMode) -> None:
    """K = 128: for a larger K its check of shapes counts packed bytes as elements, which its kernel does not."""
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        given = launched(MXFP4, stored(summable(MXFP4, M, N, 4), MXFP4))
        keywords = _matmul_scaled.arguments(given, BF16)
    result = _matmul_scaled.call(on_fake_gpu(keywords))
    assert (tuple(result.shape), result.dtype) == ((M, N), BF16)


@HAS_PUBLIC
@pytest.mark.parametrize(
    "mistake",
    [
        *("one recipe", "recipes in the other order", "scales in the other order", "not swizzled", "b not transposed"),
        *("scales of too few rows", "scales of another dtype"),
    ],
)
def test_torch_refuses_others(mistake: str, fake_gpu: FakeTensorMode) -> None:
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        given = launched(NVFP4, stored(summable(NVFP4, M, N, K // 16), NVFP4), (0.7, 1.3))
        keywords = wrong(_matmul_scaled.arguments(given, BF16))[mistake]
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        torch._scaled_mm_v2(*_matmul_scaled.positional(on_fake_gpu(keywords)))
