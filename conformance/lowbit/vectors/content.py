"""All groups: what the files hold."""

from __future__ import annotations

from collections.abc import Iterator

from lowbit.vectors import (
    content_blocks,
    content_decoding,
    content_formats,
    content_known_bugs,
    content_layouts,
    content_scales,
    content_stochastic,
    content_weight_blocks,
    content_weight_integers,
    content_weight_tables,
)
from lowbit.vectors.payload import Draft

PARTS = (
    content_formats,
    content_scales,
    content_decoding,
    content_blocks,
    content_layouts,
    content_stochastic,
    content_weight_integers,
    content_weight_blocks,
    content_weight_tables,
    content_known_bugs,
)


def build() -> Iterator[Draft]:
    """Every group, in the order in which files hold them."""
    for part in PARTS:
        yield from part.build()
