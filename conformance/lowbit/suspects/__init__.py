"""Faults that would explain a wrong result: tables of a name, a sentence, and a function of what is tried.

    trial          what a suspect is tried on: a failed comparison cut down; `decode_trial`, `matmul_trial`,
                   `weight_trial` of the other operations
    blocks         of block quantisers; its parts `scales`, `order`, `dialects`; two at a time in `pairs`
    decoding       of block decoders
    matmul         of products
    weights        of dequantised weights; its parts `fields`, `integers`, `codebooks`, `tables`; two in `weight_pairs`

`lowbit.diagnose` asks which of a quantiser's explain a result; `decoding`, `matmul` and `weights` ask their own.
"""
