"""What a check declares of itself: its name, the schemes it is for, and what it takes to run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lowbit.rules import ScaleRule
from lowbit.schemes import Scheme
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.judge import Judge, Settings

STOCHASTIC_REPRESENTATIVES = (
    "mx4_ceil_e2m1_g32+stochastic",
    "mx4_stochastic_e2m1_g32",
    "mxfp4_floor+stochastic",
    "nvfp4+stochastic",
)


def representative(scheme: Scheme) -> bool:
    """One scheme for each way to launch and lay out: each family, element, block and source of randomness.

    What depends on memory, shape or layout does not depend on the scale rule or on the tie rule.
    """
    if scheme.stochastic:
        return scheme.name in STOCHASTIC_REPRESENTATIVES
    plain = {ScaleRule.FLOOR, ScaleRule.AMAX_OVER_SIX, ScaleRule.RTN_CAST}
    rules = {ScaleRule.CEIL} if scheme.family == "mx4" else plain
    return "+" not in scheme.name and scheme.scale_rule in rules


def quick_for_representatives(scheme: Scheme) -> str:
    """Level "quick" for a representative scheme, "exhaustive" for those that share its launch."""
    return "quick" if representative(scheme) else "exhaustive"


def quick_for_representatives_full_for_all(scheme: Scheme) -> str:
    """Level "quick" for a representative scheme, "full" for the others."""
    return "quick" if representative(scheme) else "full"


def full_for_representatives(scheme: Scheme) -> str:
    """Level "full" for a representative scheme, "exhaustive" for those that share its launch."""
    return "full" if representative(scheme) else "exhaustive"


def full_for_canonical(scheme: Scheme) -> str:
    """Level "full" for a canonical scheme, "exhaustive" for the others."""
    return "full" if scheme.canonical else "exhaustive"


def check(
    name: str,
    *,
    where: Callable[[Any], bool] = lambda scheme: True,
    level: str | Callable[[Any], str] = "quick",
    needs_gpu: bool = False,
    checkpoint: str = "",
    exact: bool = False,
    alone: bool = False,
    lacks: Callable[[Settings], str] = lambda settings: "",
    judge: type[Judge] = BlockJudge,
) -> pytest.MarkDecorator:
    """Marks a test of the suite.

    Args:
      name: as records and reports show it.
      where: the schemes for which the check means something.
      level: the least level at which it runs, for all schemes or by scheme.
      needs_gpu: the domain is too large for the interpreter; without a GPU the check is reported as not run.
      checkpoint: runs under ``--weights``, and only there: "floating" for the tensors that are not quantised,
        "quantized" for the layers that are.
      exact: the scalar reference votes too, on a bounded number of elements.
      alone: takes so much of the GPU's memory that no other worker may run such a check at the same time.
      lacks: what this machine or run lacks for the check, which is then reported as not run; "" if nothing.
      judge: what judges; it also says for which kind of scheme the check is.
    """
    return pytest.mark.lowbit(
        name=name,
        where=where,
        level=level if callable(level) else lambda scheme: level,
        needs_gpu=needs_gpu,
        checkpoint=checkpoint,
        exact=exact,
        alone=alone,
        lacks=lacks,
        judge=judge,
    )
