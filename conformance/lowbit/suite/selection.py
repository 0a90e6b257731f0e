"""The schemes that a command line means, of blocks and of weights."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from lowbit import schemes, weights
from lowbit.errors import UnknownScheme

AnyScheme = schemes.Scheme | weights.WeightScheme


def select(globs: Sequence[str]) -> tuple[AnyScheme, ...]:
    """The schemes, of blocks and then of weights, that match any glob.

    Raises:
      UnknownScheme: a glob matches neither; names the nearest.
    """
    blocks: list[str] = []
    stored: list[str] = []
    for glob in globs:
        errors: list[UnknownScheme] = []
        for registry, found in ((schemes, blocks), (weights, stored)):
            try:
                found += [scheme.name for scheme in registry.select([glob])]
            except UnknownScheme as error:
                errors.append(error)
        if len(errors) == 2:
            raise _unknown(glob, errors)
    return (*(schemes.select(blocks) if blocks else ()), *(weights.select(stored) if stored else ()))


def _unknown(glob: str, errors: Sequence[UnknownScheme]) -> UnknownScheme:
    base = glob.partition("+")[0]
    for registry, error in zip((schemes, weights), errors, strict=True):
        if base in registry.names():  # what is wrong is a rule or a flag, which that error names
            return error
    known = (*schemes.names(), *weights.names())
    near = difflib.get_close_matches(glob, known, n=4, cutoff=0.3) or known[:4]
    return UnknownScheme(f"scheme: got {glob!r}, want one of {', '.join(near)} … (see `lowbit list`)")
