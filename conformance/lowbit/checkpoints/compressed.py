"""compressed-tensors' layers of a checkpoint: NVFP4, MXFP4, and int8 with a scale for each channel; quanto's int8.

    nvfp4-pack-quantized   X.weight_packed uint8 [.., K / 2], X.weight_scale E4M3 [.., K / 16],
                           X.weight_global_scale [1]
    mxfp4-pack-quantized   X.weight_packed uint8 [.., K / 2], X.weight_scale uint8 [.., K / 32], E8M0
    int-quantized          X.weight int8 [N, K], X.weight_scale [N, 1]
    quanto                 X.weight._data int8 [N, K], X.weight._scale [N, 1]

The low nibble is the even element; the global scale is the factor that weights were multiplied by.
"""

from __future__ import annotations

from typing import Any

from lowbit import schemes, weights
from lowbit.checkpoints.layer import DTYPES, Layer, NoScheme, Part, Place, Source, whole
from lowbit.errors import ArgumentError

FAMILIES = {"F8_E4M3": "nvfp4", "U8": "mxfp4", "F8_E8M0": "mxfp4"}
"""dtype of the scales beside packed FP4 → family."""


def of_packed_floats(name: str, packed: Place, source: Source) -> Layer:
    """compressed-tensors' NVFP4 and MXFP4: two codes a byte, scales beside."""
    if packed.entry.dtype != "U8":
        raise NoScheme(f"{packed}: pack-quantized integers, of compressed-tensors' packing, have no scheme")
    for unread in ("weight_zero_point", "weight_g_idx"):
        if f"{name}.{unread}" in source.places:
            raise NoScheme(f"{packed} with {source.places[f'{name}.{unread}']}: no scheme has that")
    scales = source.part(f"{name}.weight_scale", packed, tuple(FAMILIES), (None,) * len(packed.shape))
    family = FAMILIES[scales.entry.dtype]
    scheme = schemes.get("nvfp4" if family == "nvfp4" else "mxfp4_floor")
    *rows, half = packed.shape or (0,)
    blocks, rest = divmod(2 * half, scheme.block)
    others = _formats(source) - {f"{family}-pack-quantized" for family in FAMILIES.values()}
    if (rest or scales.shape != (*rows, blocks)) and (others or not source.config.fields):
        raise NoScheme(f"{packed} with {scales}: no {family.upper()}, which has a scale for {scheme.block} elements")
    _agree((f"{family}-pack-quantized",), {"num_bits": 4, "type": "float", "group_size": scheme.block}, packed, source)
    if rest:
        raise packed.unlike(f"a multiple of {scheme.block // 2} bytes a row, to go with {scales}")
    source.part(scales.name, packed, (scales.entry.dtype,), (*rows, blocks))
    parts = {"packed": whole(packed), "scales": whole(scales)}
    if family == "nvfp4":
        factor = source.part(f"{name}.weight_global_scale", packed, ("F32",), (1,))
        parts["tensor_scale"] = whole(factor)
    return Layer(
        name=name,
        scheme=scheme,
        shape=(*rows, 2 * half),
        dtype=source.to,
        found=f"compressed-tensors {family}-pack-quantized",
        parts=parts,
    )


def of_channels(name: str, scale: Place, source: Source) -> Layer:
    """compressed-tensors' int8: a scale for each output channel, multiplied in the scale's own dtype."""
    weight = source.places[f"{name}.weight"]
    if weight.entry.dtype != "I8":
        raise NoScheme(f"{weight} with {scale}: only int8 codes and packed FP4 have schemes")
    zero = source.places.get(f"{name}.weight_zero_point")
    if zero is not None:
        raise NoScheme(f"{weight} with {zero}: no scheme of int8 has zero points")
    rows = weight.shape[0] if len(weight.shape) == 2 else -1
    if scale.shape not in ((rows,), (rows, 1)) or scale.entry.dtype not in DTYPES:
        strategies = {str(group.get("strategy")) for group in _groups(source)}
        if strategies == {"channel"}:
            raise scale.unlike(f"F32, F16 or BF16 [{rows}, 1], to go with {weight} of strategy 'channel'")
        raise NoScheme(f"{weight} with {scale}: only a scale for each channel has a scheme")
    settings = {"num_bits": 8, "type": "int", "strategy": "channel"}
    _agree(("int-quantized", "naive-quantized"), settings, weight, source)
    return _int8(name, weight, scale, source, "compressed-tensors")


def of_quanto(name: str, scale: Place, source: Source) -> Layer:
    """quanto's int8: a scale for each channel, multiplied in the scale's own dtype."""
    weight = source.places.get(f"{name}.weight._data")
    if weight is None or weight.entry.dtype != "I8":
        raise NoScheme(f"quanto's {weight or scale}: of its types only int8 has a scheme")
    source.config.agree_method("quanto", f"there is {weight}")
    source.config.agree("weights", "int8", f"there is {weight}")
    source.part(weight.name, scale, ("I8",), (None, None))
    source.part(scale.name, weight, tuple(DTYPES), (weight.shape[0], 1))
    return _int8(name, weight, scale, source, "quanto")


def _int8(name: str, weight: Place, scale: Place, source: Source, library: str) -> Layer:
    return Layer(
        name=name,
        # with binary32 scales both dialects are one; that of the kernels is named
        scheme=weights.get("int8_channel" if scale.entry.dtype == "F32" else "int8_torch"),
        shape=weight.shape,
        dtype=source.to,
        found=f"{library} int8, a scale a channel, {scale.entry.dtype}",
        parts={"weight": whole(weight), "scale": Part(scale, (weight.shape[0],))},
    )


def _agree(wanted: tuple[str, ...], settings: dict[str, Any], place: Place, source: Source) -> None:
    """Checks that the config names the format of a layer, and has a group of weights with its settings."""
    config = source.config
    if not config.fields:
        return
    config.agree_method("compressed-tensors", f"there is {place}")
    formats = _formats(source)
    if formats and not formats & set(wanted):
        raise ArgumentError(
            f"{config.where} says format {', '.join(sorted(formats))}, but {place} is {' or '.join(wanted)}"
        )
    groups = _groups(source)
    if groups and not any(all(group.get(key) in (None, value) for key, value in settings.items()) for group in groups):
        words = ", ".join(f"{key} {value!r}" for key, value in settings.items())
        raise ArgumentError(f"{config.where} has config_groups whose weights are {groups}, but {place} is {words}")


def _formats(source: Source) -> set[str]:
    """Every format that the config names; a group may have its own."""
    named = {source.config.text("format"), *(str(group.get("format") or "") for group in _config_groups(source))}
    return named - {"", "mixed-precision"}


def _groups(source: Source) -> list[dict[str, Any]]:
    """What the config says of the weights of each group."""
    return [group["weights"] for group in _config_groups(source) if isinstance(group.get("weights"), dict)]


def _config_groups(source: Source) -> list[dict[str, Any]]:
    groups = source.config.fields.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise source.config.wrong("config_groups", "an object of objects")
    return list(groups.values())
