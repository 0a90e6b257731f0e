"""What quantisation does to real weights, in figures: saturation, zero blocks, scale range, SQNR.

They are computed from a reference's result, so they describe scheme and data, never the kernel judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowbit.errors import ShapeError
from lowbit.schemes import Encoded, Scheme


@dataclass
class Figures:
    """What a scheme does to one tensor, accumulated over its chunks from a reference's codes and values.

    Args:
      tensor, dtype, shape: as the checkpoint has them; the name verbatim, it may hold markup.

    Attributes:
      elements: judged, padding excluded. blocks: padding included.
      saturated: elements whose code is ±max and whose magnitude is above what that code decodes to.
      zero_blocks: blocks that decode to zeros only, by their values or because the scale underflowed.
      scale_min, scale_max: least and greatest scale byte, as bytes; None before the first block.
      nonfinite_inputs: NaN and Inf in x. nonfinite_outputs: finite elements that decode to NaN or Inf.
      signal, noise: float64 sums of x**2 and (x - decoded)**2 where both are finite.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    scheme: Scheme
    elements: int = field(default=0, init=False)
    blocks: int = field(default=0, init=False)
    saturated: int = field(default=0, init=False)
    zero_blocks: int = field(default=0, init=False)
    scale_min: int | None = field(default=None, init=False)
    scale_max: int | None = field(default=None, init=False)
    nonfinite_inputs: int = field(default=0, init=False)
    nonfinite_outputs: int = field(default=0, init=False)
    signal: float = field(default=0.0, init=False)
    noise: float = field(default=0.0, init=False)

    @property
    def padded_columns(self) -> int:
        """Zeros at the end of each row, put there by the scheme or, where it refuses a partial block, for it."""
        return -(self.shape[-1] if self.shape else 1) % self.scheme.block

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantisation noise in dB; None where there is no signal or no noise."""
        return 10 * math.log10(self.signal / self.noise) if self.signal and self.noise else None

    def add(self, x: Any, encoded: Encoded, values: Any) -> None:
        """Adds a chunk; arrays and tensors alike, all on one device.

        Args:
          x: (M, K) float32, before padding.
          encoded: a reference's codes (M, P) and scales (M, P // block).
          values: (M, P), what a reference decodes them to: float32, or uint32 bit patterns in NumPy.
        """
        columns = x.shape[-1]
        if encoded.codes.shape != values.shape or values.shape[-1] < columns:
            raise ShapeError(
                f"values: got {tuple(values.shape)} with codes {tuple(encoded.codes.shape)} for x {tuple(x.shape)}, "
                "want both of x's shape, padded"
            )
        if isinstance(values, np.ndarray) and values.dtype == np.uint32:
            values = values.view(np.float32)
        blocks = values.reshape(-1, self.scheme.block)
        self.blocks += blocks.shape[0]
        self.zero_blocks += int((blocks == 0).all(-1).sum())
        least, greatest = int(encoded.scales.min()), int(encoded.scales.max())
        self.scale_min = least if self.scale_min is None else min(self.scale_min, least)
        self.scale_max = greatest if self.scale_max is None else max(self.scale_max, greatest)

        values, codes = values[..., :columns], encoded.codes[..., :columns]
        largest = codes & self.scheme.element.magnitude_mask == self.scheme.element.max_magnitude
        usable, decodable = abs(x) < math.inf, abs(values) < math.inf
        self.elements += math.prod(x.shape)
        self.saturated += int((largest & (abs(x) > abs(values))).sum())
        self.nonfinite_inputs += int((~usable).sum())
        self.nonfinite_outputs += int((usable & ~decodable).sum())
        exact, decoded = _double(x[usable & decodable]), _double(values[usable & decodable])
        self.signal += float((exact * exact).sum())
        self.noise += float(((exact - decoded) ** 2).sum())

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain JSON values, for `Record.extra`.

        dB are rounded to 6 digits, because the order of a sum of float64 may differ between devices.
        """
        figures = {
            "tensor": self.tensor,
            "scheme": self.scheme.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "padded_columns": self.padded_columns,
        }
        for name in ("elements", "blocks", "saturated", "zero_blocks", "scale_min", "scale_max"):
            figures[name] = getattr(self, name)
        figures["nonfinite_inputs"], figures["nonfinite_outputs"] = self.nonfinite_inputs, self.nonfinite_outputs
        figures["sqnr_db"] = None if self.sqnr_db is None else round(self.sqnr_db, 6)
        return figures


def _double(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.double()
