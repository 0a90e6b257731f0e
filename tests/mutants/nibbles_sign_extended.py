"""Wrong on purpose: nibbles are sign-extended, so that 0xF is -1 (AutoAWQ#329)."""

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "weights codes"
SCHEME = "awq_g128"
DIAGNOSIS = "sign-extended"

SIGNS = -0x77777778
"""The int32 0x88888888. With these bits flipped an unsigned difference is that of the signed nibbles."""


def dequantize_signed(tensors, scheme, dtype):
    changed = {name: tensors[name] ^ SIGNS for name in ("qweight", "qzeros")}
    return dequantize_weight({**tensors, **changed}, scheme, dtype)


IMPLEMENTATION = reference("nibbles_sign_extended", dequantize_weight=dequantize_signed)
