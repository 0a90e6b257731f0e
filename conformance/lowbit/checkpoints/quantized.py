"""Checkpoints whose weights are quantised already: what they hold, layer by layer, and what is left over.

A checkpoint is a safetensors file with its config beside it, or a folder of such files, with an index or without.
Only headers, configs and small tensors are read here (`g_idx`, zero points under `sym`, codebooks); a layer's stored
tensors are read when they are wanted, so that one layer is in memory at a time.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lowbit.checkpoints import config as checkpoint_config
from lowbit.checkpoints import files as checkpoint
from lowbit.checkpoints.config import UNDERSTOOD, Config
from lowbit.checkpoints.layer import DTYPES, Layer, NoScheme, Place, Source
from lowbit.checkpoints.layouts import find
from lowbit.errors import ArgumentError, NothingCompared
from lowbit.schemes import Scheme
from lowbit.weights import WeightScheme

NO_WEIGHTS = ("BOOL", "I64", "U64", "F64", "C64")
"""Dtypes in which no quantised weight is stored: positions, masks, counters."""

NAMED = 3
"""Tensors named in a line about many."""


@dataclass(frozen=True)
class Unread:
    """A quantised tensor, or a layer by its anchor, for which there is no scheme."""

    name: str
    place: Place
    reason: str


@dataclass(frozen=True)
class QuantizedCheckpoint:
    """A checkpoint.

    Args:
      path: as given: a file or a folder.
      config: without fields if the checkpoint has none.
      dtype: of the model's weights as config.json says, ``""`` if it does not.
      layers: quantised, with a scheme; none in a checkpoint of floating weights.
      unread: quantised, without one.
      floating: not quantised, and no part of a layer.
    """

    path: Path
    config: Config
    dtype: str
    layers: tuple[Layer, ...]
    unread: tuple[Unread, ...]
    floating: tuple[Place, ...]

    @property
    def schemes(self) -> tuple[Scheme | WeightScheme, ...]:
        """Those of the layers, each once, in the order of the layers."""
        return tuple({layer.scheme.name: layer.scheme for layer in self.layers}.values())

    def fitting(self, scheme: Scheme | WeightScheme) -> tuple[Layer, ...]:
        """The layers whose stored tensors a scheme reads."""
        return tuple(layer for layer in self.layers if layer.fits(scheme))

    def lines(self) -> list[str]:
        """What was found, for people; of what there may be thousands only the first are named."""
        to = {layer.dtype for layer in self.layers}
        said = f"quantised, as {self.config.source} says: " if self.config.fields else "quantised, no config: "
        held = [f"{n} × {name}" for name, n in Counter(layer.scheme.name for layer in self.layers).items()]
        found = list(dict.fromkeys(layer.found for layer in self.layers))
        lines = [f"{said}{', '.join(held)} to {', '.join(sorted(to))}{'' if self.dtype else ' (no torch_dtype)'}"]
        lines += [f"  found: {text}" for text in _some(found)]
        if self.unread:
            lines.append(f"  NOT READ: {_named(unread.name for unread in self.unread)}")
            lines += [f"    {text}" for text in _some(list(dict.fromkeys(unread.reason for unread in self.unread)))]
        return lines

    def left_out(self, floating_judged: bool) -> Iterator[tuple[str, dict[str, Any], str]]:
        """What no check of a run looks at: the check that would, the tensor as a record has it, and why not."""
        for unread in self.unread:
            yield "quantized checkpoint", _described(unread.name, unread.place), unread.reason
        if not floating_judged:
            for place in self.floating:
                yield "checkpoint", _described(place.name, place), "not quantised, so not judged without --scheme"

    def floating_line(self, judged: bool) -> str:
        """What becomes of the floating tensors of a checkpoint with quantised layers."""
        if not self.floating:
            return "  every floating tensor belongs to a layer"
        what = "quantised by this run" if judged else "not judged; --scheme with a block scheme would quantise them"
        return f"  not quantised, {what}: {_named(place.name for place in self.floating)}"


def read(path: str | os.PathLike[str]) -> QuantizedCheckpoint:
    """What a checkpoint holds.

    Args:
      path: of a .safetensors file, with config.json or quantize_config.json beside it or neither, or of a folder.

    Raises:
      ArgumentError: no such file; a damaged one; config and tensors, or two configs, contradict each other; a layer
        that is not whole. Names file, tensor, what was found and what was wanted.
      NothingCompared: the checkpoint holds nothing to judge.
    """
    path = Path(path)
    folder, files = _files(path)
    places = _places(files)
    config, dtype = checkpoint_config.read(folder, files), checkpoint_config.dtype(folder)
    source = Source(places, config, dtype)
    layers, unread, claimed = _layers(source)
    rest = [place for name, place in places.items() if name not in claimed]
    floating = tuple(place for place in rest if place.entry.skipped is None)
    if layers or config.fields:
        known = f"no layer of {config.method}" if config.method in UNDERSTOOD else "no layout that is known"
        kept = [p for p in rest if p.entry.skipped not in (None, "no elements") and p.entry.dtype not in NO_WEIGHTS]
        unread += [Unread(place.name, place, f"{place.entry.dtype}: belongs to {known}") for place in kept]
        if not layers:
            raise _no_layers(path, config, unread)
        wanted = {layer.dtype for layer in layers} - set(DTYPES.values())
        if wanted:
            raise ArgumentError(f"{folder / 'config.json'}: dtype is {dtype!r}, want {', '.join(DTYPES.values())}")
        modules = {unread.place.name.rpartition(".")[0] for unread in unread}
        floating = tuple(place for place in floating if not _is_beside(place.name, modules))
    elif not floating:
        checkpoint.floating(files[0])
        raise NothingCompared(f"{path} holds no floating tensor to judge and no quantised layer, of {len(places)}")
    return QuantizedCheckpoint(path, config, dtype, tuple(layers), tuple(unread), floating)


def _is_beside(name: str, modules: set[str]) -> bool:
    """Whether a tensor belongs to one of some unread layers: whatever lies beside such a weight but its bias."""
    module, _, leaf = name.rpartition(".")
    return module in modules and leaf not in ("weight", "bias")


def _described(name: str, place: Place) -> dict[str, Any]:
    return {"tensor": name, "dtype": place.entry.dtype, "shape": list(place.shape), "elements": place.entry.elements}


def _layers(source: Source) -> tuple[list[Layer], list[Unread], set[str]]:
    """The layers, those without a scheme, and the names of all their tensors."""
    layers: list[Layer] = []
    unread: list[Unread] = []
    claimed: set[str] = set()
    for place in source.places.values():
        if (found := find(place, source)) is None:
            continue
        name, layout = found
        claimed |= {place.name, *(name + end for end in layout.companions if name + end in source.places)}
        try:
            layers.append(layout.read(name, place, replace(source, config=source.config.of_layer(name))))
        except NoScheme as reason:
            unread.append(Unread(name, place, reason.reason))
    return layers, unread, claimed


def _no_layers(path: Path, config: Config, unread: Iterable[Unread]) -> NothingCompared:
    reasons = "; ".join(f"{u.name}: {u.reason}" for u in list(unread)[:NAMED])
    method = f"quant_method {config.method!r}" if config.method else "a quantisation without quant_method"
    return NothingCompared(
        f"{path}: {config.where} says {method}, but no quantised layer was found for which there is a scheme"
        f"{': ' if reasons else ''}{reasons}"
    )


def _files(path: Path) -> tuple[Path, list[Path]]:
    """The folder of a checkpoint and its files: those that the index names, where there is one."""
    if not path.is_dir():
        return path.parent, [path]
    indices = sorted(path.glob("*.safetensors.index.json"))
    if len(indices) > 1:
        raise ArgumentError(f"{path} has {len(indices)} indices, want one: {', '.join(i.name for i in indices)}")
    if not indices:
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise ArgumentError(f"{path} holds no .safetensors file, want at least one")
        return path, files
    named = _weight_map(indices[0])
    files = [path / name for name in dict.fromkeys(named.values())]
    for file in files:
        if file.parent != path or not file.is_file():
            raise ArgumentError(f"{indices[0]} names {file.name}, which is not in {path}")
    held = {file.name: {entry.name for entry in checkpoint.tensors(file)} for file in files}
    for tensor, file_name in named.items():
        if tensor not in held[file_name]:
            raise ArgumentError(f"{indices[0]} says that {tensor!r} is in {file_name}, which does not hold it")
    return path, files


def _weight_map(index: Path) -> dict[str, str]:
    try:
        named: Any = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=checkpoint.unique)["weight_map"]
        sound = bool(named) and all(isinstance(file, str) for file in named.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"{index} is no index of tensors: {error!r}") from error
    if not sound:
        raise ArgumentError(f"{index}: weight_map is {named!r}, want file names by tensor")
    return named


def _places(files: Iterable[Path]) -> dict[str, Place]:
    """Every tensor of the files by name, in the order of files and data."""
    places: dict[str, Place] = {}
    for file in files:
        for entry in checkpoint.tensors(file):
            if entry.name in places:
                raise ArgumentError(f"{file} and {places[entry.name].file} both hold {entry.name!r}")
            places[entry.name] = Place(file, entry)
    return places


def _some(texts: list[str]) -> list[str]:
    more = [f"… and {len(texts) - NAMED} more"] if len(texts) > NAMED else []
    return texts[:NAMED] + more


def _named(names: Iterable[str]) -> str:
    every = list(names)
    more = f" … and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return f"{len(every)} tensor{'s' if len(every) > 1 else ''}, {', '.join(every[:NAMED])}{more}"
