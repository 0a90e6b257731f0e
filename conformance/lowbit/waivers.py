"""Waivers: mismatches that are known, with a reason, an issue, a last day, and the digest of exactly what is wrong.

A file of them is TOML. Each entry says where it holds and what it expects there:

    [[waiver]]
    scheme = "mxfp4_floor"
    check = "shapes"
    implementation = "my_kernel"
    architecture = "sm_90"
    digest = "115:668e3499fc1fc9e4"
    reason = "ties go away from zero until the next release"
    issue = "https://example.org/issues/7"
    expires = 2027-03-31

Reading is strict: a file that is not understood wholly is refused before anything runs. `waiving` applies them.
"""

from __future__ import annotations

import datetime
import difflib
import fnmatch
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowbit.errors import ArgumentError
from lowbit.records import Record

GLOBS = ("node", "scheme", "check", "implementation", "architecture", "level", "weights")
"""Fields of an entry that say where it holds; ``*`` and ``?`` stand for any letters and for one."""

REQUIRED = ("digest", "reason", "issue", "expires")

_DIGEST = re.compile(r"[1-9][0-9]*:[0-9a-f]{16}")
_DEVICE = re.compile(r"(?P<kind>\w+)(?:, (?P<name>.+) \((?P<capability>[a-z]+_?\w+)\))?")

_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufffe\uffff]")
"""Letters without a shape of their own: control, direction, lone surrogates."""

DAYS = 30
"""How long an entry lasts that is made for pasting."""


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """One entry.

    Attributes:
      place: where it stands, as messages show it: file, line, number.
      digests: as `Record.digest`, of the wrong results that are waived.
      reason, issue: why, and where it is followed up. expires: the last day on which it holds, in UTC.
      node, scheme, check, implementation: globs of the record's fields; a node is compared by its last part.
      architecture: of the device: its kind, its compute capability (``sm_90`` or ``9.0``), or its name.
      level, weights, seed: of the run; the digest of random inputs holds for one seed.
    """

    place: str
    digests: tuple[str, ...]
    reason: str
    issue: str
    expires: datetime.date
    node: str = "*"
    scheme: str = "*"
    check: str = "*"
    implementation: str = "*"
    architecture: str = "*"
    level: str = "*"
    weights: str = "*"
    seed: int | None = None

    def covers(self, implementation: str, scheme: str, check: str, node: str) -> bool:
        """Whether a check of that name, scheme, implementation and node id is meant."""
        return (
            matches(implementation, self.implementation)
            and matches(scheme, self.scheme)
            and matches(check, self.check)
            and matches(node.rpartition("/")[2], self.node.rpartition("/")[2])
        )

    @property
    def why(self) -> str:
        """Reason, link and last day in one line."""
        return f"{self.reason} ({self.issue}, until {self.expires})"


def matches(value: str, glob: str) -> bool:
    """Whether a text is the glob, or fits it; brackets are letters, for node ids are full of them."""
    return value == glob or fnmatch.fnmatchcase(value, glob.replace("[", "[[]"))


def architectures(device: str) -> tuple[str, ...]:
    """What a device is called, out of a record's device line: kind, capability in two spellings, name."""
    found = _DEVICE.match(device)
    if found is None:
        return ()
    names = [found["kind"]]
    if found["capability"]:
        capability = found["capability"]
        names += [capability, found["name"]]
        if digits := re.fullmatch(r"sm_(\d+)(\d)", capability):
            names.append(f"{digits[1]}.{digits[2]}")
    return tuple(names)


def read(path: Path | str) -> list[Waiver]:
    """The entries of a file.

    Raises:
      ArgumentError: the file cannot be read, is no TOML, or an entry is not understood; names line, entry and field.
    """
    path = Path(path)
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"waivers: {path}: {getattr(error, 'strerror', None) or error}, want a TOML file"
        ) from error
    try:
        found = tomllib.loads(source)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"waivers: {path.name}: {error}, want TOML") from error
    if unknown := sorted(found.keys() - {"waiver"}):
        raise ArgumentError(f"waivers: {path.name}: got {unknown[0]!r}, want entries that begin with [[waiver]]")
    entries = found.get("waiver", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ArgumentError(f"waivers: {path.name}: got one `waiver`, want entries that begin with [[waiver]]")
    heads = [i for i, line in enumerate(source.splitlines(), 1) if re.match(r"\s*\[\[\s*waiver\s*\]\]", line)]
    lines = heads if len(heads) == len(entries) else [0] * len(entries)
    return [
        _waiver(entry, f"{path.name}, " + (f"line {line}, " if line else "") + f"waiver {number}")
        for number, (entry, line) in enumerate(zip(entries, lines, strict=True), 1)
    ]


def _waiver(entry: Mapping[str, Any], place: str) -> Waiver:
    def refuse(field: str, want: str) -> ArgumentError:
        got = f"got {str(entry[field])[:80]!r}" if field in entry else "is missing"
        return ArgumentError(f"waivers: {place}: {field}: {got}, want {want}")

    for name in entry:
        if name not in (*GLOBS, *REQUIRED, "seed"):
            near = difflib.get_close_matches(name, (*GLOBS, *REQUIRED, "seed"), n=1)
            raise refuse(name, f"{near[0]}?" if near else f"one of {', '.join((*GLOBS, *REQUIRED, 'seed'))}")
    if "node" not in entry and not {"scheme", "check"} <= entry.keys():
        raise refuse("check" if "scheme" in entry else "scheme", "a node, or a scheme and a check, to hold for")
    for name in (*GLOBS, "reason", "issue"):
        if name in entry and not (isinstance(entry[name], str) and entry[name].strip()):
            raise refuse(name, "a text that is not empty")
    if "reason" not in entry:
        raise refuse("reason", "why this may ship")
    if not re.fullmatch(r"https?://\S+", str(entry.get("issue"))):
        raise refuse("issue", "a link to follow it up, https://…")
    expires = entry.get("expires")
    if not isinstance(expires, datetime.date) or isinstance(expires, datetime.datetime):
        raise refuse("expires", "the last day, such as 2027-03-31, without quotes")
    given = entry.get("digest")
    digests: list[Any] = given if isinstance(given, list) else [given]
    if not digests or not all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in digests):
        raise refuse("digest", "one or a list of those that reports print, such as 115:668e3499fc1fc9e4")
    if len(set(digests)) < len(digests):
        raise refuse("digest", "each of them once")
    seed = entry.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise refuse("seed", "the number of the run's --seed")
    globs = {name: entry[name] for name in GLOBS if name in entry}
    told = {"reason": entry["reason"].strip(), "issue": entry["issue"], "expires": expires, "seed": seed}
    return Waiver(place=place, digests=tuple(digests), **globs, **told)


def entries(records: Iterable[Record], about: Mapping[str, Any]) -> list[str]:
    """TOML entries that would waive the mismatches of some records, one an implementation, scheme and check.

    `reason` and `issue` are empty and must be filled in, else the file is refused.

    Args:
      about: run.json, for the seed, the checkpoint and the day.
    """
    groups: dict[tuple[str, str, str, str, str], dict[str, None]] = {}
    for record in records:
        if record.status == "mismatch" and record.digest:
            names = architectures(record.device)
            where = names[1] if len(names) > 1 else (names[0] if names else "*")
            key = record.scheme, record.check, record.implementation, where, record.level
            groups.setdefault(key, {})[record.digest] = None
    options = about.get("options")
    checkpoint = options.get("weights") if isinstance(options, Mapping) else None
    found = []
    for key, digests in groups.items():
        named = zip(("scheme", "check", "implementation", "architecture", "level"), key, strict=True)
        lines = ["[[waiver]]", *(f"{name} = {quoted(value)}" for name, value in named if value)]
        lines += [f"weights = {quoted(str(checkpoint))}"] if checkpoint else []
        seed = about.get("seed")
        lines += [f"seed = {seed}"] if isinstance(seed, int) and not isinstance(seed, bool) else []
        each = ", ".join(map(quoted, digests))
        lines.append(f"digest = {each if len(digests) == 1 else f'[{each}]'}")
        lines += ['reason = ""', 'issue = ""', f"expires = {_later(about.get('started'))}"]
        found.append("\n".join(lines))
    return found


def _later(started: Any) -> str:
    lasts = datetime.timedelta(days=DAYS)
    try:
        return (datetime.date.fromisoformat(str(started)[:10]) + lasts).isoformat()
    except (ValueError, OverflowError):
        return (datetime.date(1970, 1, 1) + lasts).isoformat()


def quoted(value: str) -> str:
    """A TOML string; what TOML or a page cannot show becomes ``?``, which as a glob fits it."""
    return json.dumps(_HIDDEN.sub("?", value), ensure_ascii=False)
