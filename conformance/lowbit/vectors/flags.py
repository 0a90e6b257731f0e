"""What each flag of a group or a case means: which fault it catches, or what it is about."""

from __future__ import annotations

FLAGS: dict[str, str] = {
    # Of whole groups
    "complete": "The group decides every input of its domain: nothing is left to sampling.",
    "decode": "Values of codes. Catches a shifted exponent bias, a lost subnormal, a NaN taken for a number.",
    "rounding": "Codes of values, each alone. Catches another rounding or tie rule, and rounding twice.",
    "nan": "NaN in the input. Catches a NaN taken for zero or for the largest value, and a lost or kept sign.",
    "scale_table": "Scale codes by the block's largest magnitude. Catches log2 in floating point, a wrong offset, a "
    "missing clamp.",
    "byte_order": "Where codes and scales lie in memory. Catches swapped nibbles and permuted scales.",
    "stochastic": "Results by random bits, all of them enumerated. Catches a biased or a shifted comparison, which "
    "statistics would need millions of draws to see.",
    "known_bug": "A publicly reported fault; `source` names the report, `seen` the wrong answer.",
    # Of cases
    "zero_block": "Every element is ±0. Catches 0/0, an infinite scale and a lost sign of zero.",
    "negative_zero": "Holds -0. Catches a sign taken from a comparison with 0.",
    "subnormal": "Holds binary32 subnormals. Catches flushing to zero, and exponents read without the hidden bit.",
    "underflow": "Elements far below the block's scale. They become zeros that keep their sign.",
    "inf": "Holds ±Inf.",
    "nan_input": "Holds NaN, of both signs and several payloads.",
    "extreme_scale": "The block's scale is the least or the greatest there is, or nearly. Catches exp2 that flushes, "
    "a scale that is stored clamped but used unclamped, and a finite block turned NaN.",
    "scale_underflow": "A block far below the others of its tensor. Catches division by a scale that rounded to 0.",
    "saturation": "Elements above the largest value. Catches wrapping around, and Inf or NaN in place of it.",
    "tie": "Elements exactly midway between two codes, each tie in every lane. Catches another tie rule, and a lane "
    "that takes another path.",
    "near_tie": "Elements one unit in the last place beside codes and ties. Catches rounding through a narrower "
    "format.",
    "ordinary": "Values as weights have them.",
    "bfloat16": "Values that bfloat16 holds: exact quotients and ties are frequent among them.",
    "random_patterns": "Finite bit patterns drawn uniformly.",
    "several_blocks": "A tensor of several rows and blocks of different scales. Catches scales used for the wrong "
    "block.",
    "padding": "The last dimension is no multiple of the block; rows are padded with +0.",
    "given_tensor_scale": "The tensor scale g is given, not computed.",
    "tensor_scale": "The tensor scale g is computed from x. Catches a single rounding for two and two for one.",
    "reciprocal": "The quotient decides. Catches a product with a rounded reciprocal, and an approximate division.",
    "dialect": "Public libraries give another scale or code here, by another order of operations: the flags that begin "
    "with `not_` name them.",
    "not_torchao": "The order of operations of torchao gives another answer.",
    "not_transformer_engine": "The order of operations of TransformerEngine gives another answer.",
    "not_fbgemm": "The order of operations of FBGEMM gives another answer.",
    "not_mslk_imprecise": "amax times a rounded 1/6, as MSLK's imprecise variant takes it, gives another answer.",
    "e4m3_tie": "amax / 6 lies exactly midway between two E4M3 values, or one unit in the last place of amax beside.",
    "index_coded": "Every scale is its own index, so that a permutation shows at once.",
    "seeded": "The random bits follow from a seed, by Philox4x32-10.",
}
"""Flag → explanation."""
