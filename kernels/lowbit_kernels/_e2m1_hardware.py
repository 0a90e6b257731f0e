"""Two E2M1 codes by one instruction, on NVIDIA's GPUs that have it (compute capability 10.0 and later); off by default.

    HARDWARE_EVEN                            a rounding's number for ops: ties to even, by the instruction
    number(hardware, rule, scheme) -> int    the rounding's number that a public function hands on
    kernel_options(x, rounding) -> dict      a kernel's constexprs ROUNDING and HARDWARE, once x's device is checked
    convert_pair(low, high) -> int32         a byte: low's code in bits 0..3, high's in bits 4..7

With the constexpr HARDWARE the quantisers of MXFP4 and of canonical NVFP4, ties to even, call `convert_pair` where they
else call `nearest_e2m1` twice and shift, or, for bfloat16 to MXFP4, `_bfloat16_pairs.py`; nothing else of them changes.
Tensors whose neighbours share no aligned words (`_pairs.view_pairs`) are encoded in integers with it too.

What the instruction does, by PTX ISA 9.0, 9.7.9.21 (`cvt`) and 5.2.3, in our words:

    A  cvt.rn.satfinite.e2m1x2.f32 d, a, b: d[7:4] = convert(a), d[3:0] = convert(b).
    B  .rn rounds to nearest, ties to even. e2m1 has 2 exponent bits and 1 mantissa bit, neither Inf nor NaN.
    C  .satfinite: NaN becomes positive MAX_NORM; what is above MAX_NORM in magnitude, MAX_NORM of the same sign.
       (CUDA Math API, FP4 conversions, says the same of both.)
    D  Subnormal binary32 inputs are kept: only .ftz flushes them, which this form of `cvt` does not take.
    E  Targets: from PTX ISA 8.6 sm_100a, sm_101a (sm_110a since 9.0) and sm_120a, from 8.8 also their families.
       Triton compiles for targets with an ``a``. Seen: ptxas of CUDA 12.9 and 13.4 assembles it for sm_100a, 103a,
       120a and 121a, to F2FP.SATFINITE.E2M1, and refuses it for sm_90a.

Which sign a zero gets the text does not say, so the instruction is given no signs: in `_pairs.encode_pairs` its inputs
are |x| * 2**-E, in the NVFP4 kernel q = |x * g| / s with s above 0 (`divide_by_scale` gives such a q no sign). Signs
are put in afterwards (`_pairs.sign_bits`, `_join_signs`), which also makes the NaN rule: POSITIVE_MAX and SIGNED_MAX
differ in the sign alone.

Why the bits are equal. Let v be such an input, a binary32 pattern 0 .. 0x7F800000 or a NaN of either sign, and N(v) the
low four bits of `nearest_e2m1(v, True)`.

* v <= 6. E2M1's magnitudes are 0, 0.5, 1, 1.5, 2, 3, 4, 6, with the codes 0..7 (SPEC.md 1). By B and D convert(v) is
  the code of the nearest one, and of two equally near ones that whose mantissa bit, the code's last, is 0. So v has
  code k from the midpoint of magnitudes k - 1 and k, included where k is even, to that of k and k + 1, likewise. That
  is TIES_TO_EVEN of SPEC.md 2, and what the lemma nearest/e2m1/ties_to_even (`lowbit prove`) says of N(v). The
  midpoints 0.25, 0.75, 1.25, 1.75, 2.5, 3.5 and 5 are binary32 numbers; nothing is rounded twice. +0, and what rounds
  to 0, has code 0: it is not negative.
* 6 < v <= Inf. By C convert(v) = 7, as 6 is MAX_NORM; N(v) = 7 by the same lemma.
* v is NaN. By C convert(v) = 7, whatever its sign and payload; N(v) = 7 by the lemma's second half.

By A the byte is N(low) + 16 N(high), and the lemmas pairs/e2m1/ties_to_even and nvfp4_pairs, which say that the stored
bytes are right, use nothing of N but the above. So the bytes are equal for every x.

All this holds as far as a device does what its manual says. None that has the instruction has run this yet: the check
`encode hardware` does where there is one, and is reported as not run elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from lowbit.errors import ArgumentError, DeviceError
from lowbit.rules import Rounding
from lowbit_kernels import _arguments, _codec, _launch

HARDWARE_EVEN = len(_codec.ROUNDINGS)
"""Ties to even by the instruction, beside the numbers of `_codec.ROUNDINGS`."""

CAPABILITY = (10, 0)
"""The least compute capability that has it."""

PAIR = tl.constexpr(
    """{
.reg .b8 pair;
cvt.rn.satfinite.e2m1x2.f32 pair, $2, $1;
cvt.u32.u8 $0, pair;
}"""
)


@triton.jit
def convert_pair(low, high):
    """low, high: any shape, float32, +0..Inf or NaN. -> int32 0..0x77 of that shape, low's code in the low nibble."""
    return tl.inline_asm_elementwise(PAIR, "=r,f,f", [low, high], dtype=tl.int32, is_pure=True, pack=1)


def number(hardware: bool, rule: str, scheme: str = "") -> int:
    """The number of a rounding, that of the instruction if it is asked for.

    Args:
      hardware: as it was given.
      rule: the rounding's name.
      scheme: the name of a scheme for which the instruction cannot be asked, if it is one of those.

    Raises:
      DtypeError: neither True nor False.
      ArgumentError: an unknown rule; another than ties to even, or such a scheme, with the instruction.
    """
    _arguments.require_bool("hardware", hardware)
    rounding = _launch.choose("rounding", rule, _codec.ROUNDINGS)
    if not hardware:
        return rounding
    if scheme:
        raise ArgumentError(f"hardware: got True with scheme {scheme}, want nvfp4 or False")
    if rule != Rounding.TIES_TO_EVEN.value:
        raise ArgumentError(f"hardware: got True with rounding {rule}, want {Rounding.TIES_TO_EVEN.value} or False")
    return HARDWARE_EVEN


def kernel_options(x: torch.Tensor, rounding: int) -> dict[str, Any]:
    """The constexprs for a rounding's number.

    Raises:
      DeviceError: the instruction is asked for and x's device has none.
    """
    if rounding != HARDWARE_EVEN:
        return {"ROUNDING": rounding, "HARDWARE": False}
    require_device(x)
    return {"ROUNDING": _codec.TIES_TO_EVEN.value, "HARDWARE": True}


def require_device(x: torch.Tensor) -> None:
    """Checks that the device of a tensor has the instruction.

    Raises:
      DeviceError: an older GPU, another maker's, or none.
    """
    if not _launch.takes_ptx(x):
        found = f"a GPU of HIP {torch.version.hip}" if x.is_cuda else f"a tensor on {x.device}"
    else:
        capability = torch.cuda.get_device_capability(x.device)
        if capability >= CAPABILITY:
            return
        found = f"a GPU of compute capability {capability[0]}.{capability[1]}"
    raise DeviceError(
        f"hardware: got True for {found}, want an NVIDIA GPU of compute capability {CAPABILITY[0]}.{CAPABILITY[1]} or "
        "later; hardware=False gives the same bits on any device"
    )
