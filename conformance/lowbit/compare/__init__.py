"""Comparison of bits: what differs from the right result, how, and how often.

    tensors       codes, bytes and values; whole results of block quantisers
    blocks        scale codes, and codes under their block's scale
    weights       dequantised weights, each with what it was made of
    bounds        matmuls that have no one right result: how far theirs may lie from the exact one
    comparison    what a comparison returns
    kinds         the kinds of mismatch; `digest` and `pictures` are of all of them
    rows          mismatching places, found where the tensors are; `arrays` lets them be NumPy's or torch's

Nothing is broadcast, converted or masked, and nothing is tolerated but what `bounds` derives.
"""

from lowbit.compare.comparison import Comparison, Sample, failure, merge
from lowbit.compare.tensors import compare_bytes, compare_codes, compare_encoded, compare_values

__all__ = [
    "Comparison",
    "Sample",
    "compare_bytes",
    "compare_codes",
    "compare_encoded",
    "compare_values",
    "failure",
    "merge",
]
