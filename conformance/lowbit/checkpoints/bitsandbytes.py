"""bitsandbytes' layers of a checkpoint: NF4 and FP4, nested or not, and LLM.int8.

    NF4, FP4   W uint8, under its name .absmax .quant_map .quant_state.bitsandbytes__nf4 or __fp4
    nested     .absmax uint8, and .nested_absmax .nested_quant_map beside it
    LLM.int8   X.weight int8, X.SCB: absmax of each row, and X.weight_format: 0 for row-major

The quant_state is JSON as bytes: block sizes, shape, and the dtype that was quantised, to which it is decoded.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from lowbit import weights
from lowbit.checkpoints import files
from lowbit.checkpoints.layer import DTYPES, Layer, NoScheme, Part, Place, Source, whole
from lowbit.weights import FP4_CODEBOOK, NF4_CODEBOOK, NF4_FOUR_DIGIT_CODEBOOK, WeightScheme

WRITTEN_FP4_MAP = (*FP4_CODEBOOK[:8], 0, *FP4_CODEBOOK[9:])
"""The quant_map that bitsandbytes writes for FP4: code 8 as +0. Its kernels do not read it and decode -0."""


def of_4_bits(name: str, absmax: Place, source: Source) -> Layer:
    """bitsandbytes' NF4 or FP4."""
    table, state, place = _state(name, absmax, source)
    config = source.config
    config.agree_method("bitsandbytes", f"there is {place}")
    config.agree("load_in_4bit", True, f"there is {place}")
    config.agree("bnb_4bit_quant_type", table, f"there is {place}")
    block, shape, dtype = state["blocksize"], tuple(state["shape"]), state["dtype"]
    count, nested = math.prod(shape), f"{name}.nested_absmax" in source.places
    blocks = -(-count // block)
    config.agree("bnb_4bit_use_double_quant", nested, f"{place} is {'' if nested else 'not '}nested")
    if nested is not ("nested_blocksize" in state):
        raise place.unlike(f"{'a' if nested else 'no'} nested_blocksize, as {absmax}")
    packed = source.places.get(name)
    if packed is not None and packed.entry.dtype != "U8":
        raise NoScheme(f"{packed}: codes under another dtype than U8 (bnb_4bit_quant_storage)")
    if packed is None or packed.entry.elements != -(-count // 2):
        raise (packed or place).unlike(f"{name}, U8 of {-(-count // 2)} bytes for shape {list(shape)}")
    source.part(absmax.name, place, ("U8",) if nested else ("F32",), (blocks,))
    scheme, told = _codebook(table, block, nested, source.part(f"{name}.quant_map", place, ("F32",), (16,)))
    parts = {"packed": Part(packed, (-(-count // 2),)), "absmax": whole(absmax)}
    constants: dict[str, Any] = {"shape": shape}
    if nested:
        size = state["nested_blocksize"]
        code2 = source.part(f"{name}.nested_quant_map", place, ("F32",), (256,))
        absmax2 = source.part(f"{name}.nested_absmax", place, ("F32",), (-(-blocks // size),))
        parts |= {"code2": whole(code2), "absmax2": whole(absmax2)}
        constants |= {"offset": _offset(state, place), "block_size2": size}
    words = [f"bitsandbytes {table.upper()}, block {block}", f"nested, block {size}" if nested else "", told]
    if source.dtype and dtype != source.dtype:
        words.append(f"decoded to its own dtype, not to config.json's {source.dtype}")
    found = ", ".join(filter(None, words))
    return Layer(name=name, scheme=scheme, shape=shape, dtype=dtype, found=found, parts=parts, constants=constants)


def _state(name: str, absmax: Place, source: Source) -> tuple[str, dict[str, Any], Place]:
    """The codebook's name, the quant_state and its place."""
    there = [p for t in ("nf4", "fp4") if (p := source.places.get(f"{name}.quant_state.bitsandbytes__{t}")) is not None]
    if len(there) != 1:
        raise absmax.unlike(f"one {name}.quant_state.bitsandbytes__nf4 or __fp4 beside it, there are {len(there)}")
    (place,) = there
    table = place.name[-3:]
    try:
        state = json.loads(place.read().astype(np.uint8).tobytes(), object_pairs_hook=files.unique)
        sound = (
            state["quant_type"] == table
            and state["dtype"] in DTYPES.values()
            and all(isinstance(n, int) and n >= 0 for n in state["shape"])
            and all(isinstance(n, int) and n > 0 for n in (state["blocksize"], state.get("nested_blocksize", 1)))
            and state.get("nested_dtype", "float32") == "float32"
        )
    except (ValueError, KeyError, TypeError) as error:
        raise place.unlike("JSON with quant_type, blocksize, dtype and shape") from error
    if not sound:
        raise place.unlike(f"quant_type {table}, a 16-bit or float32 dtype, whole sizes; it says {state}")
    return table, state, place


def _codebook(table: str, block: int, nested: bool, place: Place) -> tuple[WeightScheme, str]:
    """The scheme whose codebook the stored quant_map is, bit for bit, and what is to be told of it."""
    stored = tuple(int(pattern) for pattern in place.read().view(np.uint32))
    own = NF4_CODEBOOK if table == "nf4" else FP4_CODEBOOK
    if stored == own or (table == "fp4" and stored == WRITTEN_FP4_MAP):
        scheme = weights.bitsandbytes(table, block)
        told = "" if stored == own else "quant_map has +0 for code 8, decoded to -0 as bitsandbytes' kernels do"
        return weights.get(scheme.name + ("+nested" if nested else "")), told
    if stored == NF4_FOUR_DIGIT_CODEBOOK and (block, nested) == (64, False):
        return weights.get("nf4_four_digit"), "the four-digit codebook"
    code = next(i for i in range(16) if stored[i] != own[i])
    raise NoScheme(
        f"{place} is another codebook than {table.upper()}'s: code {code} is {stored[code]:#010x}, want "
        f"{own[code]:#010x}; no scheme stands for that dialect"
    )


def _offset(state: dict[str, Any], place: Place) -> np.ndarray:
    value = state.get("nested_offset")
    if isinstance(value, bool) or not isinstance(value, int | float) or float(np.float32(value)) != value:
        raise place.unlike(f"a binary32 number as nested_offset; it says {value!r}")
    return np.array([value], np.float32)


def of_int8(name: str, scb: Place, source: Source) -> Layer:
    """LLM.int8: codes and the absmax of every output channel."""
    config = source.config
    config.agree_method("bitsandbytes", f"there is {scb}")
    config.agree("load_in_8bit", True, f"there is {scb}")
    weight = source.part(f"{name}.weight", scb, ("I8",), (None, None))
    source.part(scb.name, weight, ("F32",), (weight.shape[0],))
    order = source.places.get(f"{name}.weight_format")
    if order is not None:
        if order.entry.dtype != "U8" or order.entry.elements != 1:
            raise order.unlike(f"U8 of one element, to go with {weight}")
        if (code := order.read().item()) != 0:
            raise NoScheme(f"{order} is {code}: only row-major int8 (0) has a scheme")
    return Layer(
        name=name,
        scheme=weights.get("int8_scb"),
        shape=weight.shape,
        dtype=source.to,
        found="LLM.int8, absmax of each channel (SCB)",
        parts={"weight": whole(weight), "scale": whole(scb)},
    )
