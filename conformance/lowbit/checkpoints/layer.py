"""One quantised layer of a checkpoint: its scheme, and where each of its stored tensors lies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lowbit.checkpoints import files as checkpoint
from lowbit.checkpoints.config import Config
from lowbit.checkpoints.files import Entry
from lowbit.errors import ArgumentError, Unsupported
from lowbit.rules import Grouping, OutputRounding
from lowbit.schemes import Scheme
from lowbit.weights import WeightScheme

DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
"""dtype of safetensors → of PyTorch, for what layers are decoded to and scales are stored in."""


class NoScheme(Unsupported):
    """A layer that is stored in a way for which there is no scheme; says which way."""


@dataclass(frozen=True)
class Place:
    """A tensor of a checkpoint of one or several files."""

    file: Path
    entry: Entry

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape

    def __str__(self) -> str:
        return f"{self.entry.name}, {self.entry.dtype} {list(self.entry.shape)}"

    def read(self) -> np.ndarray:
        """The tensor as it is stored, see `checkpoint.array`."""
        return checkpoint.array(self.file, self.entry)

    def unlike(self, want: str) -> ArgumentError:
        """The error of a tensor that is not what its layer wants: names file, tensor, what was found and wanted."""
        return ArgumentError(f"{self.file}: got {self}, want {want}")


@dataclass(frozen=True)
class Part:
    """A stored tensor in the shape that its scheme gives it; the bytes are the file's."""

    place: Place
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A quantised weight.

    Args:
      name: of the layer, as the checkpoint has it, verbatim: it may hold markup.
      scheme: the one that it is stored by. Of a block scheme a file tells the decoding only, not the quantiser: the
        family's canonical scheme stands for all.
      shape: of the values.
      dtype: that they are decoded to, as PyTorch names it.
      found: what was found, in words.
      parts: by the names of `weight_tensors`, or those of `Quantized`.
      constants: what the scheme wants beside, ready to be handed on.
    """

    name: str
    scheme: Scheme | WeightScheme
    shape: tuple[int, ...]
    dtype: str
    found: str
    parts: Mapping[str, Part]
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files that it lies in."""
        return tuple(dict.fromkeys(part.place.file.name for part in self.parts.values()))

    def stored(self) -> dict[str, Any]:
        """The stored tensors, read now: NumPy arrays and constants; bfloat16 as uint16, 8-bit floats as uint8."""
        arrays = {name: part.place.read().reshape(part.shape) for name, part in self.parts.items()}
        return {**arrays, **self.constants}

    def fits(self, scheme: Scheme | WeightScheme) -> bool:
        """Whether a scheme reads the stored tensors: their own, or one that differs in the rounding of the output."""
        if isinstance(scheme, Scheme) or isinstance(self.scheme, Scheme):
            return (
                isinstance(scheme, Scheme) and isinstance(self.scheme, Scheme) and scheme.family == self.scheme.family
            )
        if scheme.grouping is Grouping.ACT_ORDER and "g_idx" not in self.parts:
            return False
        return _storage(scheme) == _storage(self.scheme)


def _storage(scheme: WeightScheme) -> WeightScheme:
    """The scheme without what is no matter of storage; a `g_idx` decides the group under every GPTQ scheme."""
    grouping = Grouping.SHORT_LAST if scheme.grouping is Grouping.ACT_ORDER else scheme.grouping
    return replace(scheme, name="", cites="", canonical=False, grouping=grouping, output_rounding=OutputRounding.DIRECT)


@dataclass(frozen=True)
class Source:
    """What a layer is recognised in.

    Args:
      places: every tensor of the checkpoint, by name.
      config: of the layer.
      dtype: of the model's weights as config.json says, as PyTorch names it; ``""`` if it says none.
    """

    places: Mapping[str, Place]
    config: Config
    dtype: str

    @property
    def to(self) -> str:
        """The dtype to decode to."""
        return self.dtype or "float16"

    def part(self, name: str, beside: Place, dtypes: tuple[str, ...], shape: tuple[int | None, ...]) -> Place:
        """A tensor that a layer must have.

        Args:
          beside: another tensor of the layer.
          dtypes: those that it may have, as safetensors names them.
          shape: None for any length.

        Raises:
          ArgumentError: it is not there, or has another dtype or shape.
        """
        place = self.places.get(name)
        if place is None:
            raise ArgumentError(
                f"{beside.file}: got {beside}, but no {name}, want both; a model in several files is given as a folder"
            )
        lengths = place.shape
        fits = len(lengths) == len(shape) and all(want in (None, got) for got, want in zip(lengths, shape, strict=True))
        if place.entry.dtype not in dtypes or not fits:
            any_length = str([length if length is not None else "…" for length in shape]).replace("'", "")
            raise place.unlike(f"{' or '.join(dtypes)} {any_length}, to go with {beside}")
        return place


def whole(place: Place) -> Part:
    """A tensor in the shape that it has in the file."""
    return Part(place, place.shape)
