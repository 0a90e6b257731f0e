"""Proofs: z3 decides, for all inputs, the lemmas that cover a scheme's arithmetic as the kernels' sources state it."""

from __future__ import annotations

import functools
import importlib.util

from lowbit import proofs
from lowbit.compare import Comparison
from lowbit.errors import Unsupported
from lowbit.implementation import DEFAULT
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.checks import check, full_for_canonical


@functools.cache
def proof(name: str) -> proofs.Proof:
    """Of one lemma; schemes share many."""
    return proofs.prove(proofs.lemmas()[name])


@check("proof", level=full_for_canonical, where=lambda scheme: bool(proofs.covering(scheme)))
def test_lemmas(judge: BlockJudge) -> None:
    """From x to its codes, from amax to the scale, and back; what a compiler makes of it the other checks judge."""
    if judge.implementation.name != DEFAULT:
        raise Unsupported(f"the lemmas are about the sources of {DEFAULT}")
    if importlib.util.find_spec("z3") is None:
        raise Unsupported("z3 is not installed, want `pip install 'lowbit[proofs]'`")
    for name in sorted({name for names in proofs.covering(judge.scheme).values() for name in names}):
        found = proof(name)
        if found.proved:
            judge.add(Comparison(tensor="lemmas", compared=1))
        else:
            judge.fault("lemma", "lemmas", found.line())
    judge.assurance = proofs.assurance(judge.scheme)
