"""Blocks of one nonzero element: two of each are encoded, yet no wrong bit among those stored goes unseen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowbit import packing, schemes
from lowbit.compare import Comparison
from lowbit.implementation import Implementation
from lowbit.references import tensors
from lowbit.schemes import Quantized, Scheme
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.judge import Settings

NAMES = [
    *("mxfp4_floor", "mxfp4_floor+toward_negative", "mxfp4_floor+stochastic", "nvfp4", "nvfp4_two_level"),
    *("mx4_ceil_e2m1_g8", "mx4_floor_e3m0_g32", "mx4_stochastic_e2m1_g16"),
]

MAGNITUDES = (0.0, -0.0, 1.0, -3.5, 1e-45, -1e-38, 3e38, float("inf"), float("nan"))


def judged(name: str, wrong: tuple[str, int, int] | None = None) -> tuple[list[Comparison], int]:
    """The comparisons, and the bytes of a row, where one bit of the third row is wrong.

    Args:
      wrong: the tensor, and which byte and bit of the row.
    """
    widths = []

    def quantize(x: torch.Tensor, scheme: Scheme, **options: Any) -> Quantized:
        made = packing.pack(tensors.quantize(x, scheme, **options), scheme)
        widths.append(made.packed.shape[1])
        if wrong is not None:
            getattr(made, wrong[0])[2, wrong[1]] ^= 1 << wrong[2]
        return made

    settings = Settings(device="cpu", level="quick", seed=0, interpreted=True)
    subject = Implementation(name="mine", version="1", quantize=quantize)
    judge = BlockJudge(subject, schemes.get(name), settings, "scale 2^31")
    x = torch.zeros(len(MAGNITUDES), judge.scheme.block)
    x[:, 0] = torch.tensor(MAGNITUDES)
    given = {"tensor_scale": torch.ones(1)} if judge.scheme.family == "nvfp4" else {}
    judge.quantize_sparse(x, **given)
    return judge.comparisons, widths[0]


@pytest.mark.parametrize("name", NAMES)
def test_right_bytes_are_right_and_all_counted(name: str) -> None:
    scheme = schemes.get(name)
    comparisons, _ = judged(name)
    assert all(comparison.ok for comparison in comparisons)
    scalars = 1 if scheme.family == "nvfp4" else 0
    assert sum(comparison.compared for comparison in comparisons) == len(MAGNITUDES) * (scheme.block + 1) + scalars


@pytest.mark.parametrize("name", NAMES)
def test_every_wrong_bit_is_found_once(name: str) -> None:
    """Of the first byte, the scale, those of zeros: found, and as one mismatch in as many elements as before."""
    right, width = judged(name)
    parts = [("packed", byte, bit) for byte in range(width) for bit in (0, 3, 4, 7)]
    if schemes.get(name).scale_layout.name == "SEPARATE":
        parts += [("scales", 0, bit) for bit in range(8)]
    for wrong in parts:
        found, _ = judged(name, wrong)
        assert [comparison.compared for comparison in found] == [comparison.compared for comparison in right], wrong
        assert sum(comparison.mismatched for comparison in found) == 1, wrong


@pytest.mark.parametrize("rows", [8, 10])
def test_another_number_of_rows_is_a_fault(rows: int) -> None:
    def quantize(x: torch.Tensor, scheme: Scheme, **options: Any) -> Quantized:
        return Quantized(*(torch.zeros(rows, n, dtype=torch.uint8) for n in (16, 1)), None)

    settings = Settings(device="cpu", level="quick", seed=0, interpreted=True)
    subject = Implementation(name="mine", version="1", quantize=quantize)
    judge = BlockJudge(subject, schemes.get("mxfp4_floor"), settings, "scale 2^31")
    judge.quantize_sparse(torch.zeros(9, 32))
    assert [comparison.kinds for comparison in judge.comparisons] == [{"shape": 1}]
