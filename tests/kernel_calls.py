"""What the tests of the MX kernels share: a call, what the reference gives, inputs; on the GPU if there is one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from lowbit import packing, schemes
from lowbit.formats import BFLOAT16, BINARY16, BINARY32
from lowbit.references import bits
from lowbit.rules import NanCode, Rounding
from lowbit.schemes import Scheme
from lowbit_kernels import adapter

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = {torch.float32: BINARY32, torch.bfloat16: BFLOAT16, torch.float16: BINARY16}
RNG = np.random.default_rng(20240607)

MX4 = schemes.select(["mx4_*"])
MXFP4 = tuple(s for s in schemes.select(["mxfp4_*"]) if s.nan is NanCode.POSITIVE_MAX)
FAMILY = pytest.mark.parametrize("scheme", [*MX4, *MXFP4], ids=lambda s: s.name)
ONE_OF_EACH = pytest.mark.parametrize(
    "scheme",
    [schemes.get(name) for name in ("mx4_ceil_e2m1_g32", "mx4_stochastic_e3m0_g8", "mx4_ceil_e3m0_g32+stochastic")]
    + [schemes.get(name) for name in ("mxfp4_floor", "mxfp4_floor+stochastic", "mxfp4_rceil")],
    ids=lambda s: s.name,
)


def on(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(DEVICE)


def host(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor of a 1-byte dtype, or its values."""
    if tensor.element_size() == 1:
        tensor = tensor.view(torch.uint8)
    return tensor.cpu().numpy()


def pattern(tensor: torch.Tensor) -> np.ndarray:
    """The bits of a float tensor."""
    integers = {4: torch.int32, 2: torch.int16}[tensor.element_size()]
    return tensor.view(integers).cpu().numpy().view(f"u{tensor.element_size()}")


def random_options(scheme: Scheme, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The random bits that a scheme asks for."""
    options = {}
    if scheme.rounding is Rounding.STOCHASTIC:
        options["random_bits"] = RNG.integers(0, 256, shape).astype(np.uint8)
    if scheme.scale_rule.value == "stochastic":
        groups = -(-shape[-1] // scheme.block)
        options["scale_random_bits"] = RNG.integers(0, 2**31, (*shape[:-1], groups)).astype(np.int32)
    return options


def quantize(x: torch.Tensor, scheme: Scheme, **options: Any) -> tuple[torch.Tensor, ...]:
    """The kernel's bytes: (stream,) or (packed, scales)."""
    given = {name: on(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
    result = adapter.quantize(x, scheme, **given)
    return tuple(part for part in result if part is not None)


def expected(x: torch.Tensor, scheme: Scheme, swizzle: bool = False, **options: Any) -> tuple[np.ndarray, ...]:
    """The bytes that the integer reference gives for the widened x."""
    wide = np.ascontiguousarray(x.cpu().float().numpy())  # a GPU's cast from binary16 drops the sign of NaN
    stored = packing.pack(bits.quantize(wide, scheme, **options), scheme, swizzle=swizzle)
    return tuple(part for part in stored if part is not None)


def same(actual: tuple[torch.Tensor, ...], wanted: tuple[np.ndarray, ...]) -> None:
    assert len(actual) == len(wanted)
    for got, right in zip(actual, wanted, strict=True):
        assert tuple(got.shape) == right.shape
        np.testing.assert_array_equal(host(got), right)


def check(x: torch.Tensor, scheme: Scheme, **options: Any) -> None:
    """One call against the reference, with random bits where the scheme needs them."""
    if "seed" not in options:
        options |= random_options(scheme, tuple(x.shape))
    same(quantize(x, scheme, **options), expected(x, scheme, **options))


def bfloat16_values() -> np.ndarray:
    return (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)


def hard_values(rows: int, columns: int) -> np.ndarray:
    """Blocks of every kind: one binade, many binades, any pattern, specials, zeros, subnormals."""
    count = rows * columns
    kinds = [
        RNG.standard_normal(count),
        RNG.standard_normal(count) * 2.0 ** RNG.integers(-140, 120, count),
        RNG.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32),
        RNG.choice([0.0, -0.0, 0.25, -0.75, 1.25, 2.5, -5.0, 6.0, 7.0], count),
        RNG.choice([0.0, -0.0, 2.0**-126, -(2.0**-149), 2.0**-130, 0.75 * 2.0**-126], count),
    ]
    values = np.stack([kind.astype(np.float32).reshape(rows, columns) for kind in kinds], axis=1)
    return values.reshape(rows * len(kinds), columns)


def boundaries(element: Any, rounding: Rounding) -> np.ndarray:
    """binary32 values around all that decides: codes, midpoints, 1/256 steps between codes, powers of two."""
    points = [float(value) for value in element.magnitudes]
    step = 1 if rounding is Rounding.STOCHASTIC else 64
    for low, high in itertools.pairwise(element.magnitudes):
        points += [float(low + (high - low) * k / 256) for k in range(0, 256, step)]
    points += [2.0**e for e in range(-149, 128)]
    around = np.array(points, dtype=np.float32).view(np.int32)[:, None] + np.arange(-17, 18)
    kept = np.unique(around[(around >= 0) & (around <= 0x7F800000)]).astype(np.uint32)
    return np.concatenate([kept, kept | 0x80000000]).view(np.float32)
