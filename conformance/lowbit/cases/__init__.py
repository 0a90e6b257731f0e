"""Inputs worth trying.

    blocks        of block schemes: special, boundary, worst and exhaustive values, random ones
    weights       of weight schemes; parts of them in `weight_parts`, whole domains in `weight_domains`
    summable      operands of a matmul that has one right result; `summability` says when, and why
    known_bugs    faults that were reported, with the right answers; `known_weight_bugs` those of weights

What is tried follows from the tables of formats and schemes: a new one has its inputs at once.
"""
