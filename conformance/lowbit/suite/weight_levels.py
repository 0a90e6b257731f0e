"""At which level a check of weight schemes runs: in the interpreter a call costs 20 to 500 ms, whatever its size."""

from __future__ import annotations

from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.suite.judge import Settings
from lowbit.weights import WeightScheme

LAUNCHES = (
    *("awq_g128", "awq_g48", "gptq4_v1_g128", "gptq4_v1_g32+act_order"),
    *("nf4_b64", "nf4_b64+nested", "int8_channel", "squeezellm4", "squeezellm3+sparse+full_rows"),
)
"""One scheme for each way to launch a kernel and to lie in memory."""

WIDTHS = ("gptq2_v1_g128", "gptq3_v1_g128", "gptq8_v1_g128")
"""The same with other widths of codes, which cost much in the interpreter."""

MEMORY = ("awq_g128", "gptq4_v1_g32+act_order", "nf4_b64", "int8_channel", "squeezellm3+sparse+full_rows")
"""One for each set of stored tensors."""

REPRESENTATIVES = (*LAUNCHES, "awq_gk", "awq_g32", "gptq4_v2_g128", "gptq3_v1_g128", "gptq8_v1_g128", "fp4_b64")
"""One for each rule, width and codebook too."""

CROSSED = ((BINARY16, BFLOAT16), (BFLOAT16, BINARY16), (BINARY32, BINARY16))
"""Formats of scales and of outputs: each of both, and none with its own."""


def quick_for_representatives(scheme: WeightScheme) -> str:
    """Level "quick" for a representative scheme, "full" for the others."""
    return "quick" if scheme.name in REPRESENTATIVES else "full"


def quick_for_launches(scheme: WeightScheme) -> str:
    """Level "quick" for a scheme of `LAUNCHES`, "exhaustive" for those that share its launch."""
    return "quick" if scheme.name in LAUNCHES else full_for_launches(scheme)


def quick_for_memory(scheme: WeightScheme) -> str:
    """Level "quick" for a scheme of `MEMORY`, "full" for the other launches, "exhaustive" for the rest."""
    return "quick" if scheme.name in MEMORY else "full" if scheme.name in LAUNCHES else "exhaustive"


def full_for_launches(scheme: WeightScheme) -> str:
    """Level "full" for a scheme of `LAUNCHES` or `WIDTHS`, "exhaustive" for those that share its launch."""
    return "full" if scheme.name in LAUNCHES + WIDTHS else "exhaustive"


def thorough(scheme: WeightScheme, settings: Settings) -> bool:
    """Whether to try every format: on a GPU, and for a scheme of `LAUNCHES` from level full on."""
    return not settings.interpreted or (settings.at_least("full") and scheme.name in LAUNCHES)


def pairs(scheme: WeightScheme, settings: Settings) -> list[tuple[FloatFormat, FloatFormat]]:
    """The formats of scales and of outputs to try together; in the interpreter none to binary32, or few."""
    if not thorough(scheme, settings):
        return [pair for pair in CROSSED if pair[0] in scheme.scale_formats]
    outputs = (BINARY16, BFLOAT16) if settings.interpreted else (BINARY16, BFLOAT16, BINARY32)
    return [(source, output) for source in scheme.scale_formats for output in outputs]
