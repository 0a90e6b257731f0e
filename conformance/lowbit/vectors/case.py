"""A case: one line of a file, by the form of its group (see `group`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError
from lowbit.schemes import Encoded
from lowbit.vectors.hextext import digits, float32, octets, words
from lowbit.vectors.weight_text import OUTPUTS, read_weight
from lowbit.weights import WeightScheme


@dataclass(frozen=True)
class Case:
    """One line of a file.

    Attributes:
      fields: the line as JSON has it.
    """

    fields: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What tells it from the other cases of its group."""
        return str(self.fields["name"])

    @property
    def flags(self) -> tuple[str, ...]:
        """Its own flags, beside those of the group."""
        return tuple(self.fields.get("flags", ()))

    @property
    def decides(self) -> int:
        """How many inputs it gives the right answer of."""
        raise NotImplementedError


class Code(Case):
    """A code of a format and its value."""

    @property
    def name(self) -> str:
        return str(self.fields["code"])

    @property
    def code(self) -> int:
        return int(self.fields["code"], 16)

    @property
    def binary32(self) -> int:
        """The value's binary32 pattern, exact; a NaN is 0x7fc00000 and means any NaN."""
        return int(self.fields["binary32"], 16)

    @property
    def decides(self) -> int:
        return 1


class ScaledCodes(Case):
    """All element codes under one scale code."""

    @property
    def name(self) -> str:
        return str(self.fields["scale"])

    @property
    def scale(self) -> int:
        return int(self.fields["scale"], 16)

    def patterns(self, fmt: str) -> npt.NDArray[np.uint32]:
        """(codes,) uint32. By element code, the decoded value's pattern in binary32, binary16 or bfloat16."""
        return words(self.fields[fmt])

    @property
    def decides(self) -> int:
        return sum(len(self.fields[fmt].split()) for fmt in ("binary32", "binary16", "bfloat16"))


class Decoded(Case):
    """One element code under one scale code, and its value; of a report."""

    @property
    def code(self) -> int:
        return int(self.fields["code"], 16)

    @property
    def scale(self) -> int:
        return int(self.fields["scale"], 16)

    @property
    def binary32(self) -> int:
        """The value's binary32 pattern; a NaN is 0x7fc00000 and means any NaN."""
        return int(self.fields["binary32"], 16)

    @property
    def source(self) -> str:
        return str(self.fields["source"])

    @property
    def decides(self) -> int:
        return 1


class Row(Case):
    """All patterns from `first` to `last`, both included, have the code `code`."""

    @property
    def name(self) -> str:
        return str(self.fields["first"])

    @property
    def first(self) -> int:
        return int(self.fields["first"], 16)

    @property
    def last(self) -> int:
        return int(self.fields["last"], 16)

    @property
    def code(self) -> int:
        """An element code in a group of kind `breakpoints`, a scale code in one of kind `scale`."""
        return int(self.fields["code"], 16)

    @property
    def decides(self) -> int:
        return self.last - self.first + 1


class Block(Case):
    """A small tensor under a scheme: inputs, codes, scales."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.fields["shape"])

    @cached_property
    def x(self) -> npt.NDArray[np.float32]:
        """`shape` float32, NaN payloads kept."""
        return words(self.fields["x"]).view(np.float32).reshape(self.shape)

    @property
    def expected(self) -> Encoded:
        """The right codes (rows, P), scales (rows, blocks) and tensor scale, as the references return them."""
        rows = self.shape[:-1]
        scales = octets(self.fields["scales"]).reshape(*rows, -1 if self.shape[-1] else 0)
        codes = digits(self.fields["codes"]).reshape(*rows, -1 if self.shape[-1] else 0)
        return Encoded(codes, scales, float32(self.fields.get("tensor_scale")))

    @property
    def packed(self) -> npt.NDArray[np.uint8] | None:
        """(rows, bytes) uint8, where the case states the stored bytes."""
        text = self.fields.get("packed")
        return None if text is None else octets(text).reshape(*self.shape[:-1], -1)

    @property
    def tensor_scale(self) -> np.float32 | None:
        """The g that is *given* to the quantiser; None where it computes its own."""
        return float32(self.fields.get("given_tensor_scale"))

    @property
    def seed(self) -> int | None:
        """A 64-bit seed, where the case is about what a seed gives."""
        text = self.fields.get("seed")
        return None if text is None else int(text, 16)

    @property
    def randoms(self) -> range | None:
        """The random bytes for which the answer holds, one at a time for all elements alike."""
        if "random_first" not in self.fields:
            return None
        return range(int(self.fields["random_first"], 16), int(self.fields["random_last"], 16) + 1)

    @cached_property
    def scale_random_bits(self) -> npt.NDArray[np.int32] | None:
        """(rows, groups) int32, for the stochastic exponent."""
        text = self.fields.get("scale_random_bits")
        return None if text is None else words(text).astype(np.int32).reshape(*self.shape[:-1], -1)

    @cached_property
    def random_bits(self) -> npt.NDArray[np.uint8] | None:
        """`shape` uint8, one random byte an element."""
        text = self.fields.get("random_bits")
        return None if text is None else octets(text).reshape(self.shape)

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `quantize`, those that the case gives. With `randoms`, see `batches`."""
        given = {
            "tensor_scale": self.tensor_scale,
            "random_bits": self.random_bits,
            "scale_random_bits": self.scale_random_bits,
            "seed": self.seed,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def source(self) -> str:
        """The report, in a group of kind `known_bug`; else ""."""
        return str(self.fields.get("source", ""))

    @property
    def decides(self) -> int:
        randoms = self.randoms
        return len(self.fields["x"].split()) * (1 if randoms is None else len(randoms))


class Nibbles(Case):
    """Codes, and the bytes that hold them two by two."""

    @property
    def codes(self) -> npt.NDArray[np.uint8]:
        return digits(self.fields["codes"])

    @property
    def packed(self) -> npt.NDArray[np.uint8]:
        return octets(self.fields["packed"])

    @property
    def decides(self) -> int:
        return len(self.fields["codes"])


class Swizzle(Case):
    """A matrix of scales and the buffer that holds it."""

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.fields["shape"]
        return rows, columns

    @property
    def scales(self) -> npt.NDArray[np.uint8]:
        """`shape` uint8."""
        return octets(self.fields["scales"]).reshape(self.shape)

    @property
    def buffer(self) -> npt.NDArray[np.uint8]:
        return octets(self.fields["buffer"])

    @property
    def decides(self) -> int:
        return len(self.fields["buffer"]) // 2


class Thresholds(Case):
    """Where stochastic rounding goes up to a magnitude, for every random byte."""

    @property
    def name(self) -> str:
        return str(self.fields["code"])

    @property
    def code(self) -> int:
        """The magnitude reached, sign bit clear; below the thresholds it is `code - 1`."""
        return int(self.fields["code"], 16)

    @cached_property
    def firsts(self) -> npt.NDArray[np.uint32]:
        """(256,) uint32. By random byte, the first binary32 magnitude pattern with `code`; the sign is copied."""
        return words(self.fields["firsts"])

    @property
    def decides(self) -> int:
        raise ArgumentError("decides: thresholds decide together; ask the group")


class Exponent(Case):
    """One amax under MX4's stochastic shared exponent, for every random integer."""

    @property
    def name(self) -> str:
        return f"{self.fields['x']} {self.fields['first']}"

    @property
    def x(self) -> int:
        """The pattern of the block's only element that is not 0."""
        return int(self.fields["x"], 16)

    @property
    def first(self) -> int:
        """The least random integer, of which only the low bits that count are set."""
        return int(self.fields["first"], 16)

    @property
    def last(self) -> int:
        return int(self.fields["last"], 16)

    @property
    def code(self) -> int:
        """The scale code."""
        return int(self.fields["code"], 16)

    @property
    def decides(self) -> int:
        return self.last - self.first + 1


class Philox(Case):
    """A known answer of Philox4x32-10."""

    @property
    def name(self) -> str:
        return f"{self.fields['key']} {self.fields['counter']}"

    @property
    def key(self) -> tuple[int, ...]:
        return tuple(words(self.fields["key"]).tolist())

    @property
    def counter(self) -> tuple[int, ...]:
        return tuple(words(self.fields["counter"]).tolist())

    @property
    def words(self) -> tuple[int, ...]:
        return tuple(words(self.fields["words"]).tolist())

    @property
    def decides(self) -> int:
        return 1


class Draws(Case):
    """What a seed gives to a tensor's elements (stream 0, bytes) or groups (stream 1, 31-bit integers)."""

    @property
    def name(self) -> str:
        return f"{self.fields['seed']} {self.fields['stream']} {self.fields['start']}"

    @property
    def seed(self) -> int:
        return int(self.fields["seed"], 16)

    @property
    def stream(self) -> int:
        return int(self.fields["stream"])

    @property
    def start(self) -> int:
        """Index of the first element or group."""
        return int(self.fields["start"], 16)

    @property
    def values(self) -> npt.NDArray[np.uint32]:
        return octets(self.fields["values"]).astype(np.uint32) if self.stream == 0 else words(self.fields["values"])

    @property
    def decides(self) -> int:
        return len(self.values)


class Weight(Case):
    """A stored weight, and what it dequantises to."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output: (K, N), for int8 (N, K), for nf4 and fp4 any."""
        return tuple(self.fields["shape"])

    @property
    def formats(self) -> tuple[str, ...]:
        """The output formats whose answer the case gives; none if the weight must be refused."""
        return tuple(name for name in OUTPUTS if name in self.fields)

    @property
    def refused(self) -> str:
        """Why the weight must be refused with an error; "" if it is a right one."""
        return str(self.fields.get("refused", ""))

    def tensors(self, scheme: WeightScheme) -> dict[str, Any]:
        """The stored tensors under the names of `weight_tensors.entries`, NumPy arrays; bfloat16 as uint16."""
        return read_weight(self.fields, scheme)

    def expected(self, fmt: str) -> npt.NDArray[Any]:
        """`shape` uint16 or uint32. The right patterns of that format; the canonical NaN means any NaN."""
        patterns = words(self.fields[fmt]).astype(np.uint16 if OUTPUTS[fmt].bits == 16 else np.uint32)
        return patterns.reshape(self.shape)

    @property
    def source(self) -> str:
        """The report, in a group of kind `known_bug`; else ""."""
        return str(self.fields.get("source", ""))

    @property
    def decides(self) -> int:
        return sum(len(self.fields[fmt].split()) for fmt in self.formats) or 1


CASES: dict[str, type[Case]] = {
    "codes": Code,
    "scaled_codes": ScaledCodes,
    "decoded": Decoded,
    "rows": Row,
    "blocks": Block,
    "nibbles": Nibbles,
    "stream": Block,
    "swizzle": Swizzle,
    "thresholds": Thresholds,
    "exponents": Exponent,
    "philox": Philox,
    "draws": Draws,
    "weights": Weight,
}
"""The class of a case, by the group's form."""
