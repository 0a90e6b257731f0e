"""What a check declares of itself: its name, the schemes it is for, and what it takes to run it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowbit.schemes import Scheme


def check(
    name: str,
    *,
    where: Callable[[Scheme], bool] = lambda scheme: True,
    level: str = "quick",
    full_for: Callable[[Scheme], bool] | None = None,
    needs_gpu: bool = False,
    checkpoint: bool = False,
    exact: bool = False,
) -> pytest.MarkDecorator:
    """Marks a test of the suite.

    Args:
      name: as records and reports show it.
      where: the schemes for which the check means something.
      level: the least level at which it runs.
      full_for: schemes for which it runs at level "full" already, though `level` is "exhaustive".
      needs_gpu: the domain is too large for the interpreter; without a GPU the check is reported as not run.
      exact: the scalar reference votes too, on a bounded number of elements.
      checkpoint: runs under ``--weights``, and only there.
    """
    return pytest.mark.lowbit(
        name=name,
        where=where,
        level=level,
        full_for=full_for,
        needs_gpu=needs_gpu,
        checkpoint=checkpoint,
        exact=exact,
    )
