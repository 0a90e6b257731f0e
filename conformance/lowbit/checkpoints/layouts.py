"""The layouts of quantised layers, each found by the name of one of its tensors.

Names and shapes decide, the config must agree: what contradicts it, or does not fit, is an error that names both. What
is stored in a way that no scheme stands for is told as `NoScheme`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowbit.checkpoints.bitsandbytes import of_4_bits, of_int8
from lowbit.checkpoints.compressed import of_channels, of_packed_floats, of_quanto
from lowbit.checkpoints.layer import Layer, Place, Source
from lowbit.checkpoints.words import of_words


@dataclass(frozen=True)
class Layout:
    """A way to store a layer.

    Args:
      anchor: the end of the name of the tensor by which it is found.
      companions: ends of the names of what else belongs to it.
      read: ``(name, anchor's place, source) -> Layer``.
    """

    anchor: str
    companions: tuple[str, ...]
    read: Callable[[str, Place, Source], Layer]


def find(place: Place, source: Source) -> tuple[str, Layout] | None:
    """The name of the layer whose anchor a tensor is, and its layout; None for every other tensor."""
    for layout in LAYOUTS:
        if place.name.endswith(layout.anchor):
            name = place.name.removesuffix(layout.anchor)
            weight = source.places.get(f"{name}.weight")
            # a scale may also stand beside packed codes, which have an anchor of their own, or a weight left floating
            if layout.anchor != ".weight_scale" or (weight is not None and weight.entry.skipped is not None):
                return name, layout
    return None


LAYOUTS = (
    Layout(".qweight", (".qzeros", ".scales", ".g_idx"), of_words),
    Layout(
        ".absmax",
        (
            *("", ".quant_map", ".nested_absmax", ".nested_quant_map"),
            *(f".quant_state.bitsandbytes__{table}" for table in ("nf4", "fp4")),
        ),
        of_4_bits,
    ),
    Layout(".SCB", (".weight", ".weight_format"), of_int8),
    Layout(
        ".weight_packed",
        (
            *(".weight_scale", ".weight_global_scale", ".weight_zero_point", ".weight_g_idx", ".weight_shape"),
            *(".input_global_scale", ".input_scale", ".input_zero_point"),
        ),
        of_packed_floats,
    ),
    Layout(".weight_scale", (".weight", ".weight_zero_point", ".input_scale", ".input_zero_point"), of_channels),
    Layout(
        ".weight._scale",
        (".weight._data", ".weight._data._data", ".weight._shift", ".input_scale", ".output_scale"),
        of_quanto,
    ),
)
"""Each layout, found by its anchor."""
