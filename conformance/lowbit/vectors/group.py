"""Groups and cases as the reader hands them out.

A group's `kind` says what it is about, its `form` how a case is written; a reader needs to look at the form only.

    kind         form          a case
    decode       codes         Code         one code, its value
                 scaled_codes  ScaledCodes  one scale code, the values of all element codes under it
    breakpoints  rows          Row          first … last pattern of binary32, the code of them all
    scale        rows          Row          first … last magnitude of a block's amax, the scale code of them all
    blocks       blocks        Block        a small tensor, its codes and scales
    known_bug    blocks        Block        the same, with the report it comes from
                 decoded       Decoded      one code under one scale code, its value, and the report
                 weights       Weight       a stored weight with the report
    layout       nibbles       Nibbles      codes, and the bytes that hold them
                 stream        Block        x, its codes and scales, and the one stream that holds both
                 swizzle       Swizzle      a matrix of scales, and its buffer
    stochastic   thresholds    Thresholds   for each random byte, the first magnitude that rounds up to a code
                 blocks        Block        a block, and a range of random bytes with one result; or a seed
                 exponents     Exponent     one amax, first … last random integer, the scale code of them all
                 philox        Philox       key, counter, the four words
                 draws         Draws        seed, start, what a tensor's elements or groups get
    weights      weights       Weight       a stored weight, and what it dequantises to, in some formats
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import schemes
from lowbit.errors import ArgumentError
from lowbit.rules import TensorScaleRule
from lowbit.schemes import Encoded
from lowbit.vectors.case import Block, Case

KINDS = ("decode", "breakpoints", "scale", "blocks", "layout", "stochastic", "weights", "known_bug")

RANDOM_BYTES = 256
"""The values of r where n = 8."""


@dataclass(frozen=True)
class Batch:
    """Cases that one call of a quantiser can answer.

    Attributes:
      names: (rows) the case of each row.
      x: (rows, K) float32.
      options: keyword arguments of `quantize`.
      expected: codes (rows, P), scales (rows, blocks), tensor scale.
    """

    names: tuple[str, ...]
    x: npt.NDArray[np.float32]
    options: dict[str, Any]
    expected: Encoded


@dataclass(frozen=True, kw_only=True)
class Group:
    """Cases of one kind that one scheme, format, layout or generator decides.

    Attributes:
      name: unique among all files: ``mxfp4_floor/ties``.
      kind: one of `KINDS`. form: see the module.
      subject: the name of what decides. subject_kind: scheme, format, layout or generator.
      also: further schemes under which every answer is the same.
      rounding, nan: names of the rules, in groups of a format; None where there is none.
      tensor_scale: pattern of the g under which a table of scales, or of decoded values, holds; None: none, or 1.
      source: clause, paper or report.
      flags: flag → what it means, all that the group and its cases carry.
      group_flags: the flags that every case has.
      cases: in the file's order.
      file: path of the file, relative to the vectors' folder.
      votes: witness → cases on which it was asked, and agreed; from the manifest, {} without one.
    """

    name: str
    kind: str
    form: str
    subject: str
    subject_kind: str
    source: str
    flags: Mapping[str, str]
    group_flags: tuple[str, ...]
    cases: tuple[Case, ...]
    file: str
    also: tuple[str, ...] = ()
    rounding: str | None = None
    nan: str | None = None
    tensor_scale: int | None = None
    votes: Mapping[str, int]

    @property
    def scheme(self) -> str | None:
        """The scheme that decides it, None where a format, a layout or a generator does."""
        return self.subject if self.subject_kind == "scheme" else None

    @property
    def format(self) -> str | None:
        """The format that decides it, None where something else does."""
        return self.subject if self.subject_kind == "format" else None

    @property
    def schemes(self) -> tuple[str, ...]:
        """All schemes under which the answers hold."""
        return (self.subject, *self.also) if self.scheme else ()

    @property
    def decides(self) -> int:
        """How many inputs the group gives the right answer of."""
        if self.form == "thresholds":
            return 2 * 0x7F800001 * RANDOM_BYTES  # every binary32 that is not NaN, with every random byte
        return sum(case.decides for case in self.cases)

    def case(self, name: str) -> Case:
        """The case of that name.

        Raises:
          ArgumentError: there is none.
        """
        for case in self.cases:
            if case.name == name:
                return case
        raise ArgumentError(f"case: got {name!r}, want a case of {self.name}")

    def batches(self) -> Iterator[Batch]:
        """The cases of a group of blocks, as few calls of a quantiser.

        Cases are put together where no number depends on the whole tensor: the same width, the same given tensor
        scale, no seed. A case that holds for a range of random bytes becomes one row a byte. A case whose tensor
        scale is computed from x stays alone.
        """
        if self.form not in ("blocks", "stream"):
            raise ArgumentError(f"group: got {self.name} of form {self.form!r}, want one of blocks")
        computed = {TensorScaleRule.ONE_ROUNDING, TensorScaleRule.TWO_ROUNDINGS}
        coupled = schemes.get(self.subject).tensor_scale in computed
        together: dict[tuple[Any, ...], list[Block]] = {}
        for index, case in enumerate(self.cases):
            assert isinstance(case, Block)  # by the form
            fields = case.fields
            alone = index if case.seed is not None or (coupled and "given_tensor_scale" not in fields) else None
            key = (alone, case.shape[-1], fields.get("given_tensor_scale"), "random_first" in fields)
            together.setdefault((*key, "random_bits" in fields, "scale_random_bits" in fields), []).append(case)
        for cases in together.values():
            yield _batch(cases)


def _batch(cases: list[Block]) -> Batch:
    first = cases[0]
    options: dict[str, Any] = {}
    if first.tensor_scale is not None:
        options["tensor_scale"] = first.tensor_scale
    if first.seed is not None:
        options["seed"] = first.seed
    repeats = [1 if case.randoms is None else len(case.randoms) for case in cases]
    parts = list(zip(cases, repeats, strict=True))
    if first.randoms is not None:
        bits = [np.repeat(np.array(c.randoms, np.uint8)[:, None], c.x.size, axis=1) for c in cases]
        options["random_bits"] = np.concatenate([b.reshape(-1, c.shape[-1]) for b, c in zip(bits, cases, strict=True)])
    if first.random_bits is not None:
        options["random_bits"] = np.concatenate([c.random_bits for c in cases if c.random_bits is not None])
    if first.scale_random_bits is not None:
        given = [c.scale_random_bits for c in cases if c.scale_random_bits is not None]
        options["scale_random_bits"] = np.concatenate(given)
    return Batch(
        tuple(c.name for c, n in parts for _ in range(n * len(c.x))),
        np.concatenate([np.tile(c.x, (n, 1)) for c, n in parts]),
        options,
        Encoded(
            np.concatenate([np.tile(c.expected.codes, (n, 1)) for c, n in parts]),
            np.concatenate([np.tile(c.expected.scales, (n, 1)) for c, n in parts]),
            first.expected.tensor_scale,
        ),
    )
