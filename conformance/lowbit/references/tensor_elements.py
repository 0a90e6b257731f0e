"""The element stage in PyTorch: codes by a search of the exact ladder, on any device.

The code of every binary32 pattern is a step function with at most a few hundred steps (`ladders`). Read as int32 the
patterns of either sign are ordered by magnitude, so one `torch.bucketize` over integers is the whole encoder: no
floating-point operation decides anything, NaN included. Work goes in chunks, so that memory beyond the result is
bounded.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import FloatFormat
from lowbit.references import ladders
from lowbit.rules import NanCode, Rounding

CHUNK = 1 << 24
"""Elements worked on together."""

INPUTS = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of inputs and of decoded values."""

_RANDOM_RANGE = 256


def encode(
    x: torch.Tensor,
    element: FloatFormat,
    rounding: Rounding,
    nan: NanCode | None = None,
    *,
    random_bits: Any = None,
) -> torch.Tensor:
    """The code of every element, without a scale.

    Args:
      x: (...) float32, bfloat16 or float16. Any value, NaN and ±Inf included.
      element: format of the codes, at most 8 bits.
      rounding: element rule.
      nan: code of NaN; not used where the format has a NaN of its own.
      random_bits: (...) uint8, shape of x; for STOCHASTIC.

    Returns:
      (...) uint8. One code a byte, not packed.

    Raises:
      DtypeError: x of another dtype.
      ArgumentError: STOCHASTIC without `random_bits`; a NaN in x with neither `nan` nor a NaN in the format.
      ShapeError: `random_bits` of another shape.

    Exactness: bit-exact with `references.exact.encode`.
    Spec: SPEC.md 2.
    """
    check_input(x)
    flat = x.detach().reshape(-1)
    if nan is None and element.nan_magnitude is None:
        if torch.isnan(flat).any():
            raise ArgumentError(f"nan: got None with NaN in x, want a NanCode, since {element.name} has no NaN")
        nan = NanCode.ZERO
    random = None
    if rounding is Rounding.STOCHASTIC:
        if random_bits is None:
            raise ArgumentError("random_bits: got None, want uint8 of x's shape for stochastic rounding")
        random = bits("random_bits", random_bits, torch.uint8, x.shape, x.device).reshape(-1)
    codes = torch.empty(flat.shape, dtype=torch.uint8, device=x.device)
    for part in slices(len(flat), CHUNK):
        codes[part] = encode_chunk(widen(flat[part]), element, rounding, nan, None if random is None else random[part])
    return codes.reshape(x.shape)


def codes_of_patterns(
    start: int,
    count: int,
    element: FloatFormat,
    rounding: Rounding,
    nan: NanCode | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """The codes of consecutive binary32 patterns, filled in run by run from the ladder.

    Args:
      start: first pattern, 0..2**32 - 1.
      count: patterns; start + count is at most 2**32.
      element, rounding, nan: as `encode`; any rule but STOCHASTIC.
      device: of the result.

    Returns:
      (count,) uint8.

    Raises:
      ArgumentError: a range outside 0..2**32; as `ladders.element_rows`.

    Exactness: bit-exact with `encode` of those patterns.
    """
    end = start + count
    if start < 0 or count < 0 or end > 1 << 32:
        raise ArgumentError(f"start, count: got {start}, {count}, want a range within 0..2**32")
    rows = ladders.element_rows(element, rounding, nan)
    codes = torch.empty(count, dtype=torch.uint8, device=device)
    for (first, code), (stop, _) in zip(rows, (*rows[1:], (1 << 32, 0)), strict=True):
        if first < end and stop > start:
            codes[max(first, start) - start : min(stop, end) - start] = code
    return codes


def widen(x: torch.Tensor) -> torch.Tensor:
    """float32 of the same values; a NaN keeps its sign, which a conversion on a GPU need not do."""
    if x.dtype == torch.float32:
        return x
    wide = x.to(torch.float32)
    quiet = torch.where(x.view(torch.int16) < 0, -0x400000, 0x7FC00000).to(torch.int32)
    return torch.where(torch.isnan(x), quiet, wide.view(torch.int32)).view(torch.float32)


def encode_chunk(
    x: torch.Tensor, element: FloatFormat, rounding: Rounding, nan: NanCode | None, random: torch.Tensor | None
) -> torch.Tensor:
    """One chunk. x: float32."""
    if rounding is Rounding.STOCHASTIC:
        assert random is not None  # checked where it was given
        return _encode_stochastic(x, element, nan, random)
    boundaries, codes = element_table(element, rounding, nan, x.device)
    steps = torch.bucketize(x.contiguous().view(torch.int32), boundaries, right=True, out_int32=True)
    return look_up(codes, steps)


def _encode_stochastic(
    x: torch.Tensor, element: FloatFormat, nan: NanCode | None, random: torch.Tensor
) -> torch.Tensor:
    """The code toward zero, and one more iff r + floor(p * 2**n) reaches 2**n.

    In binary64 the position p is exact: |x| has 24 bits and is within a factor 2 of lo, or lo is 0; the step is a
    power of two. Above the last code, and for NaN, the table's reciprocal step 0 or NaN lets nothing move.
    """
    down = encode_chunk(x, element, Rounding.TOWARD_ZERO, nan, None)
    low, reciprocal_step = _position_tables(element, x.device)
    position = (x.abs().to(torch.float64) - look_up(low, down)) * look_up(reciprocal_step, down)
    up = random.to(torch.float64) + torch.floor(position * _RANDOM_RANGE) >= _RANDOM_RANGE
    return down + up.to(torch.uint8)


def check_input(x: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor) or x.dtype not in INPUTS:
        got = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        raise DtypeError(f"x: got {got}, want a tensor of {', '.join(map(str, INPUTS))}")


def bits(argument: str, given: Any, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Random bits on the device; a NumPy array or a tensor."""
    bits = torch.as_tensor(given, device=device)
    if bits.dtype != dtype:
        raise DtypeError(f"{argument}: got {bits.dtype}, want {dtype}")
    if bits.shape != torch.Size(shape):
        raise ShapeError(f"{argument}: got shape {tuple(bits.shape)}, want {tuple(shape)}")
    return bits


def slices(length: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, length, size)]


def look_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table.index_select(0, index.reshape(-1).to(torch.int32)).reshape(index.shape)


@functools.cache
def values(fmt: FloatFormat, device: torch.device) -> torch.Tensor:
    """By code: the value, float32."""
    return torch.tensor(ladders.values(fmt), dtype=torch.float32, device=device)


@functools.cache
def element_table(
    element: FloatFormat, rounding: Rounding, nan: NanCode | None, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The complete encoder as two tensors on a device.

    Args:
      element, rounding, nan: as `encode`; any rule but STOCHASTIC.
      device: of the result.

    Returns:
      boundaries: (n,) int32, ascending. Binary32 patterns, read as int32, at which the code changes.
      codes: (n + 1,) uint8. Code i is that of the patterns from boundary i - 1, inclusive, to boundary i, exclusive.
    """
    rows = ladders.signed_rows(ladders.element_rows(element, rounding, nan))
    boundaries = torch.tensor([first for first, _ in rows[1:]], dtype=torch.int32, device=device)
    return boundaries, torch.tensor([code for _, code in rows], dtype=torch.uint8, device=device)


@functools.cache
def _position_tables(element: FloatFormat, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """By code, in float64: its magnitude's value, and 1 / (next - value), a power of two; 0 for the last one."""
    last = element.max_magnitude
    steps = [element.magnitudes[m + 1] - element.magnitudes[m] for m in range(last)]
    low = [abs(value) for value in ladders.values(element)]
    reciprocals = [
        float(1 / steps[m]) if m < last else 0.0 for m in (c & element.magnitude_mask for c in range(len(low)))
    ]
    return (
        torch.tensor(low, dtype=torch.float64, device=device),
        torch.tensor(reciprocals, dtype=torch.float64, device=device),
    )
