"""Real bugs as small inputs: publicly reported faults, each with the right answer under a named scheme.

The right values are written here by hand from the format's definition and the reports; no reference computes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowbit.schemes import Scheme, get


@dataclass(frozen=True, kw_only=True)
class KnownBug:
    """One block, or a few, and what must come out.

    Attributes:
      name: says what the case catches.
      source: the public report (repository#number).
      scheme: under which the answer is right.
      values: (…) the first elements of the block; ints are binary32 patterns. The rest is +0.
      codes: of these elements; None where only the scale is in question.
      scale: the block's scale code.
      seen: the wrong answer of the report.
      tensor_scale: the g that is given, if any.
      others: further blocks of the same tensor before this one.
    """

    name: str
    source: str
    scheme: str
    values: tuple[float | int, ...]
    codes: tuple[int, ...] | None
    scale: int
    seen: str
    tensor_scale: float | None = None
    others: tuple[tuple[float, ...], ...] = ()

    def rows(self) -> np.ndarray:
        """(1, blocks · block) float32. The case's own block comes last."""
        block = get(self.scheme).block
        out = np.zeros((len(self.others) + 1, block), dtype=np.float32)
        for row, values in zip(out, (*self.others, self.values), strict=True):
            for lane, value in enumerate(values):
                row[lane] = np.uint32(value).view(np.float32) if isinstance(value, int) else np.float32(value)
        return out.reshape(1, -1)


KNOWN_BUGS: tuple[KnownBug, ...] = (
    # Element rounding
    KnownBug(
        name="ties to even taken for ties away",
        source="triton#8110, ROCm/aiter#3992",
        scheme="mxfp4_floor",
        values=(6.0, 0.25, 1.25, 2.5, 5.0),
        codes=(7, 0, 2, 4, 6),
        scale=127,
        seen="1 3 5 7",
    ),
    KnownBug(
        name="rounded to bfloat16 first, above a tie",
        source="compressed-tensors#822",
        scheme="mxfp4_floor",
        values=(6.0, 2.500004),
        codes=(7, 5),
        scale=127,
        seen="4",
    ),
    KnownBug(
        name="rounded to bfloat16 first, above 5",
        source="compressed-tensors#824",
        scheme="mxfp4_floor",
        values=(6.0, 0x40A08000),
        codes=(7, 7),
        scale=127,
        seen="6",
    ),
    KnownBug(
        name="sign of zero lost",
        source="TransformerEngine, reference quantiser",
        scheme="mxfp4_floor",
        values=(6.0, -0.0, -1e-40),
        codes=(7, 8, 8),
        scale=127,
        seen="0",
    ),
    KnownBug(
        name="0.75 goes down, +0 becomes -0",
        source="Model-Optimizer, MXFP4",
        scheme="mxfp4_floor",
        values=(6.0, 0.75, 0.0),
        codes=(7, 2, 0),
        scale=127,
        seen="1; 8",
    ),
    # Block scale
    KnownBug(
        name="scale by floor(amax / 6)",
        source="triton#8413",
        scheme="mxfp4_floor",
        values=(5.0, 3.0),
        codes=(6, 5),
        scale=127,
        seen="scale 126, 5 clips to 3",
    ),
    KnownBug(
        name="emax not subtracted, or subtracted twice",
        source="vllm#53110; compressed-tensors#538",
        scheme="mxfp4_floor",
        values=(6.0,),
        codes=(7,),
        scale=127,
        seen="129; 125",
    ),
    KnownBug(
        name="EVEN rounds 1.75 up",
        source="FBGEMM, even",
        scheme="mxfp4_even",
        values=(7.0,),
        codes=(6,),
        scale=128,
        seen="127",
    ),
    KnownBug(
        name="EVEN_EXCLUSIVE keeps 1.75 down",
        source="FBGEMM, even",
        scheme="mx4_even_exclusive_e2m1_g32",
        values=(7.0,),
        codes=(7,),
        scale=127,
        seen="128",
    ),
    KnownBug(
        name="log2 in floating point, floor just below a power of two",
        source="FBGEMM, reference",
        scheme="mx4_floor_e2m1_g32",
        values=(1048575.9375,),
        codes=None,
        scale=144,
        seen="145",
    ),
    KnownBug(
        name="log2 in floating point, ceil just above a power of two",
        source="FBGEMM, reference",
        scheme="mx4_ceil_e2m1_g32",
        values=(0x49800001,),
        codes=None,
        scale=146,
        seen="145",
    ),
    KnownBug(
        name="byte 0 divided by 2^-126, amax 2^-126",
        source="torchao 0.18",
        scheme="mxfp4_floor",
        values=(2.0**-126,),
        codes=(4,),
        scale=0,
        seen="2",
    ),
    KnownBug(
        name="byte 0 divided by 2^-126, amax 2^-125",
        source="torchao 0.18",
        scheme="mxfp4_floor",
        values=(2.0**-125,),
        codes=(6,),
        scale=0,
        seen="4",
    ),
    KnownBug(
        name="finite block turned NaN",
        source="torchao, EVEN",
        scheme="mxfp4_even",
        values=(1.75 * 2.0**127,),
        codes=(6,),
        scale=253,
        seen="scale 255",
    ),
    KnownBug(
        name="codes by the unrounded scale",
        source="kekzl/imp#250",
        scheme="mxfp4_rceil",
        values=(6.1, 6.0),
        codes=(5, 5),
        scale=128,
        seen="7",
    ),
    KnownBug(
        name="zero block beside others",
        source="MSLK#486; Model-Optimizer#1397; FBGEMM NVFP4",
        scheme="nvfp4",
        values=(0.0, -0.0, 0.0),
        codes=(0, 8, 0),
        scale=0,
        seen="x·Inf; scale 0x7F; codes 7",
        others=((1.0, -0.5),),
    ),
    KnownBug(
        name="block whose scale is under 2^-10",
        source="MSLK#486",
        scheme="nvfp4",
        values=(0.005, -0.001),
        codes=(5, 9),
        scale=1,
        seen="x·Inf",
        tensor_scale=1.0,
    ),
    KnownBug(
        name="zero tensor",
        source="compressed-tensors#595",
        scheme="nvfp4",
        values=(0.0, 0.0),
        codes=(0, 0),
        scale=0,
        seen="global scale Inf",
    ),
    # Division
    KnownBug(
        name="approximate division crosses a tie",
        source="triton#10661",
        scheme="nvfp4",
        values=(5.625, 4.6875),
        codes=(7, 6),
        scale=0x37,
        seen="7",
        tensor_scale=1.0,
    ),
    KnownBug(
        name="multiplication by the reciprocal crosses a tie",
        source="z3 counter-example",
        scheme="nvfp4",
        values=(11.25, 4.6875),
        codes=(7, 4),
        scale=0x3F,
        seen="5",
        tensor_scale=1.0,
    ),
    KnownBug(
        name="multiplication by the reciprocal, all that 1.75 gets wrong",
        source="z3 counter-example",
        scheme="nvfp4",
        values=(10.5, 0x4043FFFF, 0x40C3FFFF),
        codes=(7, 3, 5),
        scale=0x3E,
        seen="4; 6: ties reached from below",
        tensor_scale=1.0,
    ),
    KnownBug(
        name="multiplication by the reciprocal, all that 1.875 gets wrong",
        source="z3 counter-example",
        scheme="nvfp4",
        values=(11.25, 0x3FB3FFFF, 0x40160000, 0x4051FFFF, 0x40960000, 0x40D1FFFF, 0x41160000),
        codes=(7, 1, 2, 3, 4, 5, 6),
        scale=0x3F,
        seen="2 3 4 5 6 7: ties reached from below, or left above",
        tensor_scale=1.0,
    ),
    # Packing
    KnownBug(
        name="nibbles swapped",
        source="triton#5197",
        scheme="mxfp4_floor",
        values=(1.0, 2.0, 6.0),
        codes=(2, 4, 7),
        scale=127,
        seen="0x24",
    ),
)


def of_scheme(scheme: Scheme) -> tuple[KnownBug, ...]:
    """The cases that this very scheme decides."""
    return tuple(case for case in KNOWN_BUGS if case.scheme == scheme.name)


@dataclass(frozen=True, kw_only=True)
class KnownDecode:
    """A code, a scale code and the value they stand for."""

    name: str
    source: str
    code: int
    scale: int
    value: float
    seen: str


KNOWN_DECODES: tuple[KnownDecode, ...] = (
    KnownDecode(name="code 0", source="tilelang#2704", code=0, scale=127, value=0.0, seen="0.5"),
    KnownDecode(name="subnormal code", source="tilelang#2704", code=1, scale=127, value=0.5, seen="0.75"),
    KnownDecode(name="byte 0", source="pytorch#125557", code=2, scale=0, value=2.0**-127, seen="0: exp2 flushed"),
    KnownDecode(name="byte 134", source="sglang#25519", code=2, scale=134, value=128.0, seen="NaN"),
    KnownDecode(
        name="byte 255", source="sglang#25519; transformers", code=2, scale=255, value=float("nan"), seen="Inf"
    ),
)
"""Decoding of MXFP4 pairs."""
