"""What a checkpoint says of its own quantisation, and where it says so.

`quantization_config` in config.json, as transformers writes it; quantize_config.json, as AutoGPTQ and GPTQModel do;
quant_config.json, as early AutoAWQ did; where there is none of them, the headers of the safetensors files. What two of
them say of one thing must be the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowbit.checkpoints import files as checkpoint
from lowbit.errors import ArgumentError

SHARED = ("quant_method", "bits", "group_size", "desc_act", "sym", "zero_point", "checkpoint_format", "version")
"""Keys that mean the same wherever they stand."""

UNDERSTOOD = ("awq", "gptq", "bitsandbytes", "compressed-tensors", "quanto")
"""The methods some of whose layers have schemes."""

_METHODS = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files of one method each, which they need not name."""

_EARLY_NAMES = {"w_bit": "bits", "q_group_size": "group_size"}


@dataclass(frozen=True)
class Config:
    """A quantisation config; without fields where the checkpoint has none.

    Args:
      where: the file that says it, or ``""``.
      fields: as the file has them.
      also: further files that say the same, in part.
    """

    where: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """quant_method in lower case; ``""`` where nothing is said."""
        named = self.text("quant_method")
        if not named and (self.flag("load_in_4bit") or self.flag("load_in_8bit")):
            return "bitsandbytes"  # what transformers takes it for
        return named

    @property
    def source(self) -> str:
        """The name of the file, for people."""
        return Path(self.where).name if self.where else "no config"

    def text(self, *keys: str) -> str:
        """The text under the first of the keys that is there, in lower case; ``""`` if none is."""
        value = self._first(keys)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.wrong(keys[0], "a text")
        return value.lower()

    def integer(self, key: str) -> int | None:
        value = self.fields.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.wrong(key, "an integer")
        return value

    def flag(self, key: str) -> bool | None:
        value = self.fields.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def agree(self, key: str, found: Any, holder: str) -> None:
        """Checks a key against what the tensors say.

        Args:
          found: what they say. holder: the sentence that tells it, for the message.

        Raises:
          ArgumentError: the config says something else; names both.
        """
        said = self.fields.get(key)
        if said is not None and said != found:
            raise ArgumentError(f"{self.where} says {key} {said!r}, but {holder}")

    def agree_method(self, found: str, holder: str) -> None:
        """Checks `method` against what the tensors say, as `agree`."""
        if self.method not in ("", found):
            raise ArgumentError(f"{self.where} says quant_method {self.method!r}, but {holder}")

    def wrong(self, key: str, want: str) -> ArgumentError:
        return ArgumentError(f"{self.where}: {key} is {self.fields.get(key)!r}, want {want}")

    def of_layer(self, name: str) -> Config:
        """The config with what GPTQModel's `dynamic` changes for a layer.

        Raises:
          ArgumentError: `dynamic` leaves the layer out, which is quantised nevertheless; it is no object of objects.
        """
        rules = self.fields.get("dynamic")
        if not rules:
            return self
        if not isinstance(rules, Mapping):
            raise self.wrong("dynamic", "an object")
        for pattern, changes in rules.items():
            try:
                matches = re.match(pattern.removeprefix("+:").removeprefix("-:"), name)
            except re.error as error:
                raise ArgumentError(f"{self.where}: dynamic has {pattern!r}, want a regular expression") from error
            if matches is None:
                continue
            if pattern.startswith("-:"):
                raise ArgumentError(f"{self.where} leaves {name} out by {pattern!r}, but its tensors are quantised")
            if not isinstance(changes, Mapping):
                raise ArgumentError(f"{self.where}: dynamic {pattern!r} is {changes!r}, want an object")
            return Config(self.where, {**self.fields, **changes}, self.also)
        return self

    def _first(self, keys: Iterable[str]) -> Any:
        """The value of the first key that has one; keys of one meaning must not differ."""
        said = {key: self.fields[key] for key in keys if self.fields.get(key) is not None}
        if len({repr(value).lower() for value in said.values()}) > 1:
            raise ArgumentError(f"{self.where} contradicts itself: {said}")
        return next(iter(said.values()), None)


def read(folder: Path, files: Iterable[Path]) -> Config:
    """The quantisation config of a checkpoint, without fields if it has none.

    Args:
      folder: where the files lie. files: the safetensors files, whose headers are read if nothing else says anything.

    Raises:
      ArgumentError: a file that is no JSON object; two files that contradict each other.
    """
    found = []
    model = _object(folder / "config.json").get("quantization_config")
    if model is not None:
        if not isinstance(model, dict):
            raise ArgumentError(f"{folder / 'config.json'}: quantization_config is {model!r}, want an object")
        found.append(Config(str(folder / "config.json"), model))
    for name in _METHODS:
        if fields := _object(folder / name):
            fields = {_EARLY_NAMES.get(key, key): value for key, value in fields.items()}
            found.append(Config(str(folder / name), fields))
    if not found:
        found = [config for config in map(_of_header, files) if config.fields]
    return _joined(found)


def dtype(folder: Path) -> str:
    """The dtype that config.json gives the model's weights, as PyTorch names it; ``""`` if it gives none.

    Raises:
      ArgumentError: `torch_dtype` and `dtype` differ, or are no texts.
    """
    path = folder / "config.json"
    return Config(str(path), _object(path)).text("torch_dtype", "dtype").removeprefix("torch.")


def _joined(configs: list[Config]) -> Config:
    if not configs:
        return Config()
    first, *others = configs
    fields = dict(first.fields)
    for other in others:
        for key in SHARED:
            ours, theirs = fields.get(key), other.fields.get(key)
            if ours is not None and theirs is not None and str(ours).lower() != str(theirs).lower():
                raise ArgumentError(f"{first.where} says {key} {ours!r}, but {other.where} says {theirs!r}")
        fields = {**other.fields, **fields}
    if fields.get("quant_method") is None and (named := _METHODS.get(Path(first.where).name)):
        fields["quant_method"] = named
    return Config(first.where, fields, tuple(other.where for other in others))


def _of_header(path: Path) -> Config:
    """The config in a file's header: whole as JSON, or AutoGPTQ's entries ``gptq_bits`` and so on."""
    said = checkpoint.metadata(path)
    if "quantization_config" in said:
        return Config(str(path), _parsed(f"{path}: quantization_config in the header", said["quantization_config"]))
    fields = {key.removeprefix("gptq_"): _value(text) for key, text in said.items() if key.startswith("gptq_")}
    return Config(str(path), {"quant_method": "gptq", **fields}) if fields else Config()


def _value(text: str) -> Any:
    """What a value was before it was written as text in Python's manner."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text


def _object(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read: {error}") from error
    return _parsed(str(path), text)


def _parsed(where: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=checkpoint.unique)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{where} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArgumentError(f"{where} is a JSON {type(value).__name__}, want an object")
    return value
