"""The manifest: what the files are, what they decide, who voted, and where they came from.

All provenance stands here, so that payloads hold nothing of the machine that wrote them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lowbit
from lowbit.vectors.draws import SEED
from lowbit.vectors.group import KINDS, Group
from lowbit.vectors.payload import SCHEMA_VERSION, render_plain
from lowbit.vectors.read import PACKAGE
from lowbit.vectors.votes import Votes, Witness

INPUTS = {
    "decode": "codes, or pairs of an element code and a scale code, once for each output format",
    "breakpoints": "binary32 patterns, once for each format and rule",
    "scale": "magnitudes of a block's largest element, once for each scale rule",
    "blocks": "elements of small tensors",
    "layout": "elements, or bytes of a buffer",
    "stochastic": "pairs of an input and a random integer; draws",
    "weights": "stored weights, once for each output format",
    "known_bug": "elements of small tensors, codes, and stored weights",
}
"""What is counted as an input, by kind."""

SOURCES = (
    *("formats.py", "rules.py", "schemes.py", "packing.py", "cases/blocks.py", "cases/known_bugs.py"),
    *("references/philox.py", "references/exact*.py", "references/bits*.py", "vectors/*.py", "weights.py"),
    *("weight_tensors.py", "cases/weights.py", "cases/weight_parts.py", "packing_weights.py"),
    *("cases/known_weight_bugs.py", "references/weights_[abe]*.py"),
)
"""The files of lowbit from which vectors are made, and by which they are voted on."""


def build(
    files: Mapping[str, bytes],
    beside: Mapping[str, bytes],
    groups: Sequence[Group],
    votes: Votes,
    asked: Iterable[Witness],
) -> dict[str, Any]:
    """The manifest of a set of files.

    Args:
      files: payloads by path. beside: the other files by path.
      groups: what the payloads hold.
      votes: of every group.
      asked: the witnesses that voted.
    """
    rows: dict[str, Any] = {path: _hashed(data) for path, data in {**files, **beside}.items()}
    for path in files:
        held = [group for group in groups if group.file == path]
        rows[path] |= _counts(held)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "files": rows,
        "groups": {
            group.name: {
                "file": group.file,
                "cases": len(group.cases),
                "decides": group.decides,
                "votes": votes.counts[group.name],
            }
            for group in groups
        },
        "counts": {
            "files": len(files),
            "groups": len(groups),
            "cases": sum(len(group.cases) for group in groups),
            "bytes": sum(map(len, files.values())),
        },
        "coverage": {
            kind: {**_counts([group for group in groups if group.kind == kind]), "inputs": INPUTS[kind]}
            for kind in KINDS
        },
        "provenance": {
            "lowbit": lowbit.__version__,
            "python": platform.python_version(),
            "numpy": importlib.metadata.version("numpy"),
            "seed": SEED,
            "sources": [path.relative_to(PACKAGE).as_posix() for path in sources()],
            "sources_sha256": sources_hash(),
            "witnesses": {
                witness.name: {
                    "about": witness.about,
                    "provenance": witness.provenance,
                    "version": witness.version,
                    "cases": sum(counts.get(witness.name, 0) for counts in votes.counts.values()),
                }
                for witness in asked
            },
        },
    }
    return {**manifest, "sha256": own_hash(manifest)}


def own_hash(manifest: Mapping[str, Any]) -> str:
    """The hash of a manifest without its own hash."""
    return hashlib.sha256(render_plain({k: v for k, v in manifest.items() if k != "sha256"})).hexdigest()


def sources() -> list[Path]:
    """The files that `SOURCES` names, in order of their paths."""
    return sorted(
        {path for pattern in SOURCES for path in PACKAGE.glob(pattern)},
        key=lambda path: path.relative_to(PACKAGE).as_posix(),
    )


def sources_hash() -> str:
    """One hash over the names and the text of all sources; line ends do not count."""
    whole = hashlib.sha256()
    for path in sources():
        text = path.read_bytes().replace(b"\r\n", b"\n")
        whole.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + hashlib.sha256(text).digest())
    return whole.hexdigest()


def _hashed(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _counts(groups: Sequence[Group]) -> dict[str, int]:
    return {
        "groups": len(groups),
        "cases": sum(len(group.cases) for group in groups),
        "decides": sum(group.decides for group in groups),
    }
