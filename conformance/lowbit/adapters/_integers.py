"""Codes, zero points and scales of AWQ and GPTQ weights, for packages that store integers in a way of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lowbit.implementation import Unsupported
from lowbit.rules import Grouping, OutputRounding
from lowbit.weights import WeightScheme

FAMILIES = ("awq", "gptq")


class Integers(NamedTuple):
    """A weight, unpacked.

    Args:
      codes: (K, N) uint8.
      zeros: (K / group, N) uint8.
      scales: (K / group, N) of the dtype to multiply in.
      group: rows that share a scale.
    """

    codes: Any
    zeros: Any
    scales: Any
    group: int


def integers(package: str, tensors: Mapping[str, Any], scheme: WeightScheme, dtype: Any) -> Integers:
    """Unpacks a stored weight on the host, back to its device.

    Raises:
      Unsupported: another family, rows in any order, a short last group, or what `computed` declines.
    """
    if scheme.family not in FAMILIES:
        raise Unsupported(f"{package} has no {scheme.name}")
    if scheme.grouping is Grouping.ACT_ORDER or tensors.get("g_idx") is not None:
        raise Unsupported(f"{package} has groups of neighbouring rows only, no g_idx")
    import torch

    from lowbit import packing_weights

    device = tensors["scales"].device
    codes = torch.from_numpy(packing_weights.unpack_codes(tensors["qweight"].cpu().numpy(), scheme)).to(device)
    group = scheme.group_size(codes.shape[0])
    if codes.shape[0] % group:
        raise Unsupported(f"{package} has no short last group: K {codes.shape[0]}, groups of {group}")
    scales = computed(package, tensors["scales"], scheme, dtype)
    zeros = torch.from_numpy(packing_weights.unpack_zeros(tensors["qzeros"].cpu().numpy(), scheme)).to(device)
    return Integers(codes, zeros, scales, group)


def computed(package: str, scales: Any, scheme: WeightScheme, dtype: Any) -> Any:
    """Scales in the dtype that a package multiplies in, which is theirs; binary32 holds them as they are.

    Raises:
      Unsupported: the product would be rounded to the dtype of the scales first, which the scheme does not do.
    """
    if scheme.output_rounding is OutputRounding.THROUGH_SCALE_DTYPE or dtype == scales.dtype:
        return scales
    import torch

    if dtype is torch.float32:
        return scales.float()
    raise Unsupported(f"{package} multiplies in the dtype of the scales, {scales.dtype}; asked for {dtype}")
