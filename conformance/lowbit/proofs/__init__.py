"""Machine-checked proofs: that the kernels' arithmetic, as their sources state it, gives what the formats define.

    lemmas() -> every Lemma, by name        prove(lemma) -> Proof        assurance(scheme) -> str

z3 decides each lemma for all its inputs at once. One side of it is a device function of `lowbit_kernels`, read as text
and run on a model of Triton's language (`sources`, `device`); the other is the definition: breakpoints of the exact
reference, or real numbers (`reals`). Some lemmas rest on others, which `about` then names. By meaning:

    elements, pairs, nearest    codes of numbers          decoding    values of codes
    scales                      power-of-two scale bytes  quotients   quotients without a division
    nvfp4, products, whole      codes of quotients        drawn       stochastic ones
    variants                    tempting shortcuts, refuted

So an edited kernel is proved or refuted anew, without a transcription that could grow stale. What is not proved: what a
compiler makes of the source, addresses and masks, the reduction over a whole block (that over two words is), and
division by the tensor scale on decoding, for which every significand is tried by a test of the kernels.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable

from lowbit import schemes
from lowbit.errors import ArgumentError, UnknownScheme
from lowbit.proofs import decoding, drawn, elements, nearest, nvfp4, pairs, products, quotients, scales, variants, whole
from lowbit.proofs.coverage import assurance, covering
from lowbit.proofs.lemma import Lemma, Proof, Verdict, prove, total

__all__ = ["Lemma", "Proof", "Verdict", "assurance", "covering", "lemmas", "prove", "select", "total"]


@functools.cache
def lemmas() -> dict[str, Lemma]:
    """Every lemma by name."""
    modules = (elements, nearest, pairs, scales, quotients, products, drawn, nvfp4, whole, decoding, variants)
    return {lemma.name: lemma for module in modules for lemma in module.lemmas()}


def select(names: Iterable[str] = ("*",)) -> tuple[Lemma, ...]:
    """The lemmas of some names, in order.

    Args:
      names: lemmas or globs of them, or schemes, which stand for the lemmas that cover them.

    Raises:
      ArgumentError: a name is neither, or a scheme's that no lemma covers.
    """
    wanted: set[str] = set()
    for name in names:
        found = fnmatch.filter(lemmas(), name)
        if not found:
            found = _of_scheme(name)
        wanted.update(found)
    return tuple(lemma for name, lemma in lemmas().items() if name in wanted)


def _of_scheme(name: str) -> list[str]:
    try:
        stages = covering(schemes.get(name))
    except UnknownScheme:
        raise ArgumentError(f"name: got {name!r}, want a lemma, a glob of lemmas or a scheme") from None
    if not stages:
        raise ArgumentError(f"name: got {name!r}, a scheme that no kernel here has, want one that lemmas cover")
    return [lemma for names in stages.values() for lemma in names]
