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
    # Of stored weights
    "field_order": "Which bits of which word hold which code and which zero point: codes move on by one from lane to "
    "lane; where the group is complete, each code and each zero point has been in each lane. Catches a permutation "
    "that is omitted, inverted or applied twice, sign extension, and a carry.",
    "straddle": "Fields of 3 bits, of which two in 32 cross a word. Catches a field that is cut or read from one word.",
    "zeros_v1": "The field of a zero point holds z - 1, wrapping around: all ones is z = 0. Catches z read as it is, "
    "and a wrap that carries into the next field.",
    "zeros_v2": "The field of a zero point holds z itself. Catches one added.",
    "high_nibble_first": "The even element lies in the high nibble, every byte is there. Catches swapped nibbles.",
    "codebook": "All codes of a table. Catches rounded decimals, another table, and a lost sign of code 8 of FP4.",
    "groups": "Scales and zero points say their group and column. Catches a group index that is off by one, taken from "
    "a tile's first row, or of another group size.",
    "short_group": "K is no multiple of the group: the last group is short.",
    "act_order": "g_idx alone decides the group of a row. Catches k // G, and groups taken to be in order.",
    "index_out_of_range": "An index of no group: an error, also below 0. Catches indices that wrap, and reads beyond.",
    "partial_block": "The last block of the flattened tensor is short.",
    "odd_length": "An odd number of elements: the low nibble of the last byte is no element.",
    "blocks_cross_rows": "Blocks are of the flattened tensor. Catches blocks that start anew in each row.",
    "nested": "absmax is RN32(RN32(code2[q8] * absmax2) + offset). Catches another order, and a wrong block of blocks.",
    "no_fma": "Product and sum of the nested absmax are rounded each. Catches a fused multiply-add.",
    "one_rounding": "The exact product scale * (q - z) is rounded once, to the output format. Catches rounding to "
    "binary16 before bfloat16, and a zero point that is subtracted after scaling.",
    "two_roundings": "The product or sum is rounded to binary32, and that to the output format, where it is a tie. "
    "Catches arithmetic that is more exact than the scheme.",
    "through_scale_dtype": "The product is rounded to the format of the scales, and that to the output format.",
    "scale_edge": "Scales, absmax or entries of tables at the edges of their format. They are values like any other: "
    "nothing is clamped, flushed or refused.",
    "scale_zero": "The scale is 0 or -0. The weight is a zero with the sign of the product; of Inf by 0 it is NaN.",
    "scale_negative": "The scale has its sign bit set. A difference of 0 gives -0. Catches a sign taken from a "
    "comparison, and a lost -0.",
    "scale_subnormal": "The scale or the weight is subnormal. Catches flushing to zero.",
    "scale_not_finite": "The scale is Inf or NaN, which go on by the rules of IEEE 754.",
    "overflow": "Weights beyond the output format become Inf. Catches saturation.",
    "shape": "The shape is what matters: the case is to be tried alone. Catches tails that are left or misread.",
    "least_code": "Holds -128, which is a code like any other. Catches a clamp to -127.",
    "row_scale": "One scale a row of (N, K). Catches scales taken along the other axis.",
    "sparse": "A CSR term of (N, K), columns in no order, channels without any.",
    "full_rows": "Whole output channels with values of their own, in no order.",
    "order_of_sums": "RN32(RN32(entry + sparse) + full row). Catches another order, and a sum rounded once.",
    "not_added": "A term that is not stored is not added, not even as +0: -0 stays.",
}
"""Flag → explanation."""
