"""What the tests of the matmul kernels share: operands, the bytes they are stored as, calls, and what is right."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lowbit import packing, schemes
from lowbit.cases.summable import Operands, exactly_summable
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import matmul, matmul_exact
from lowbit.schemes import Encoded, Scheme
from lowbit_kernels import _matmul_launch, mxfp4_mm, nvfp4_mm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES: dict[torch.dtype, FloatFormat] = {
    torch.float32: BINARY32,
    torch.bfloat16: BFLOAT16,
    torch.float16: BINARY16,
}
NVFP4, MXFP4 = schemes.get("nvfp4"), schemes.get("mxfp4_floor")
FAMILIES = pytest.mark.parametrize("scheme", [NVFP4, MXFP4], ids=lambda scheme: scheme.family)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)

ONE = {"nvfp4": 0x38, "mxfp4": 127}
"""The scale byte of 1, by family."""

CODE_OF_ONE = 2

SCALAR_LIMIT = 1 << 13
"""Products up to which the scalar reference votes, too."""

Factors = tuple[Any, Any]


class Stored(NamedTuple):
    """The four tensors of a call, uint8."""

    a: torch.Tensor
    a_scales: torch.Tensor
    b: torch.Tensor
    b_scales: torch.Tensor


def on(array: Any) -> torch.Tensor:
    """A tensor of these numbers on the device under test."""
    return torch.from_numpy(np.array(array)).to(DEVICE)


def factor(value: Any) -> torch.Tensor | None:
    """A decode factor of one element."""
    return None if value is None else torch.tensor([value], dtype=torch.float32, device=DEVICE)


def summable(scheme: Scheme, rows: int, columns: int, blocks: int, seed: int = 1) -> Operands:
    """Exactly summable operands without tensor scales, K = blocks * scheme.block."""
    return exactly_summable(scheme, rows, columns, blocks * scheme.block, seed, tensor_scales=(None, None))


def identity(scheme: Scheme, size: int) -> Encoded:
    """(size, size), 1 on the diagonal."""
    codes = np.eye(size, dtype=np.uint8) * CODE_OF_ONE
    return Encoded(codes, np.full((size, size // scheme.block), ONE[scheme.family], np.uint8))


def decoded(operand: Encoded, scheme: Scheme) -> npt.NDArray[np.float64]:
    """The values of an operand, straight from the tables of its formats."""
    codes = np.array([float(scheme.element.value(code)) for code in range(16)])
    scales = np.array([float(scheme.scale.value(byte)) for byte in range(256)])
    return codes[operand.codes] * np.repeat(scales[operand.scales], scheme.block, axis=1)


def every_code_and_byte(scheme: Scheme) -> tuple[Operands, npt.NDArray[np.uint32]]:
    """Each code with each scale byte, by row, at a place of its own in a block; times the identity: the product alone.

    Returns:
      The operands, and (4096, block) binary32 patterns of what comes out. What is not finite makes NaN of the zeros
      that it meets; MXFP4's bytes 253 and 254 leave bfloat16 to infinity.
    """
    byte, code = (index.ravel() for index in np.indices((256, 16)))
    place = (byte + code) % scheme.block
    codes = np.zeros((4096, scheme.block), np.uint8)
    codes[np.arange(4096), place] = code
    operand = Encoded(codes, byte[:, None].astype(np.uint8))
    values = decoded(operand, scheme)[np.arange(4096), place]
    values[abs(values) >= 2.0**128] *= np.inf
    meeting = np.where(np.isfinite(values), 0.0, np.nan)
    right = np.where(np.arange(scheme.block) == place[:, None], values[:, None] + 0.0, meeting[:, None])
    return Operands(operand, identity(scheme, scheme.block)), patterns(right)


def stored(operands: Operands, scheme: Scheme, padding: int = 0x7F) -> Stored:
    """What the kernels get: packed codes, swizzled scales with this byte where there is no scale."""
    parts = []
    for side in operands:
        packed, buffer, _ = packing.pack(side, scheme, swizzle=True)
        buffer[packing.swizzle_padding(*side.scales.shape)] = padding
        parts += [on(packed), on(buffer)]
    return Stored(*parts)


def multiply(
    scheme: Scheme, given: Stored, dtype: torch.dtype = torch.float32, factors: Factors = (None, None), **options: Any
) -> torch.Tensor:
    """A call of the public function of the family; factors are numbers or None."""
    if scheme is MXFP4:
        return mxfp4_mm(*given, dtype, **options)
    return nvfp4_mm(*given, *map(factor, factors), dtype, **options)


def launched(scheme: Scheme, given: Stored, factors: Factors = (None, None)) -> _matmul_launch.Operands:
    """The operands of `_matmul_launch.multiply`."""
    a, a_scales, b, b_scales = given
    return _matmul_launch.Operands(a, a_scales, b, b_scales, *map(factor, factors), scheme is MXFP4)


def expected(
    operands: Operands, scheme: Scheme, dtype: torch.dtype = torch.float32, factors: Factors = (None, None)
) -> npt.NDArray[Any]:
    """The right bit patterns, RN(out)(RN32(sum * RN32(ra * rb))), of operands whose sums are exact."""
    fmt, r = DTYPES[dtype], product(factors)
    a, b = (side._replace(tensor_scale=None) for side in operands)
    sums = matmul.sums(a, b, scheme)
    assert sums.exact.all(), "float64 does not hold the sums of these operands"
    right = matmul.finish(sums.value, None if r is None else float(r), fmt)
    if right.size * sums.terms <= SCALAR_LIMIT:
        scalar = None if r is None else int(r.view(np.uint32))
        rows = [[matmul_exact.finish(total, scalar, fmt) for total in row] for row in matmul_exact.sums(a, b, scheme)]
        assert_same(np.array(rows, right.dtype).reshape(right.shape), right, fmt)
    return right


def product(factors: Factors) -> np.float32 | None:
    """RN32(ra * rb); None if there is neither."""
    given = [np.float32(value) for value in factors if value is not None]
    with np.errstate(all="ignore"):
        return np.float32(np.multiply.reduce(given)) if given else None


def check(
    operands: Operands,
    scheme: Scheme,
    dtype: torch.dtype = torch.float32,
    factors: Factors = (None, None),
    padding: int = 0x7F,
) -> torch.Tensor:
    """One call, compared with what is right."""
    actual = multiply(scheme, stored(operands, scheme, padding), dtype, factors)
    assert actual.dtype == dtype
    assert_same(bits(actual), expected(operands, scheme, dtype, factors), DTYPES[dtype])
    return actual


def bits(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The bit patterns of a floating tensor, or bytes."""
    width = tensor.element_size()
    integers = tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[width])
    return integers.cpu().numpy().view(f"u{width}")


def patterns(values: Any) -> npt.NDArray[np.uint32]:
    """The binary32 bit patterns of numbers that binary32 holds, those beyond it as infinities."""
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float64).astype(np.float32).view(np.uint32)


def assert_same(actual: npt.NDArray[Any], right: npt.NDArray[Any], fmt: FloatFormat = BINARY32) -> None:
    """The same shape and bits; NaN by class."""
    assert actual.shape == right.shape
    infinity = fmt.max_magnitude + 1
    both_nan = (actual & fmt.magnitude_mask > infinity) & (right & fmt.magnitude_mask > infinity)
    wrong = np.argwhere((actual != right) & ~both_nan)
    first = tuple(wrong[0]) if len(wrong) else ()
    assert not len(wrong), f"{len(wrong)} of {right.size} wrong, {first}: {actual[first]:#x}, want {right[first]:#x}"
