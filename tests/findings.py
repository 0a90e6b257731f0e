"""Findings about released packages, as data: what was given, what came back, what is right."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Codes = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What FINDINGS.md tells of a package under `name`.

    Attributes:
      subject: the adapter's name. version: the release in which it was seen.
      needs: "" for any CPU, "avx512" for one that torch uses AVX-512 on, beside no GPU, "cuda" for a GPU,
        "cuda, sm_90" for one of that architecture, "cuda, triton < 3.9" for one beside a Triton with block pointers.
    """

    name: str
    subject: str
    version: str
    needs: str = ""


@dataclass(frozen=True, kw_only=True)
class Encoded(Finding):
    """A block that is quantised.

    Attributes:
      scheme: under which the answer is right.
      x: binary32 patterns of the first elements; the rest of the block is +0.
      got, right: the scale byte, and the codes of these elements.
      before: the first elements of a block that stands before it. tensor_scale: the g that is given, if any.
    """

    scheme: str
    x: Codes
    got: tuple[int, Codes]
    right: tuple[int, Codes]
    before: Codes = ()
    tensor_scale: float | None = None


@dataclass(frozen=True, kw_only=True)
class Decoded(Finding):
    """A block of one scale byte that is decoded.

    Attributes:
      dtype: by torch's name. scale, codes: what is stored; the other codes are 0.
      got, right: patterns of dtype; `NAN` for NaN.
    """

    scheme: str
    dtype: str
    scale: int
    codes: Codes
    got: Codes
    right: Codes
    tensor_scale: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cast(Finding):
    """A binary32 pattern that is cast to a format, to nearest with ties to even."""

    format: str
    x: int
    got: int
    right: int


@dataclass(frozen=True, kw_only=True)
class Called(Finding):
    """A call of the package itself.

    Attributes: call, what is done; got, what it says; right, in words.
    """

    call: Callable[[], Any]
    got: Any
    right: str


NAN = -1
"""In place of a pattern: any NaN."""


def _triton() -> tuple[int, ...]:
    return tuple(int(part) for part in importlib.metadata.version("triton").split(".")[:2])


def lacking(finding: Finding) -> str:
    """What this machine lacks to run it again, "" if nothing."""
    if finding.needs.startswith("cuda") and not torch.cuda.is_available():
        return "not run: no GPU"
    if finding.needs == "cuda, sm_90" and torch.cuda.get_device_capability() != (9, 0):
        return "not run: no GPU of compute capability 9.0"
    if finding.needs == "cuda, triton < 3.9" and _triton() >= (3, 9):
        return "not run: Triton 3.9 has no block pointers, without which the package's kernel does not compile"
    if finding.needs == "avx512" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        return "not run: this CPU has no AVX-512"
    if finding.needs == "avx512" and torch.cuda.is_available():
        return "not run: there is a GPU, and the package loads another library beside one"
    return ""
