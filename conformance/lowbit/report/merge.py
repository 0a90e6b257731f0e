"""One run out of several: shards of a release that ran on different machines, or one after another.

Nothing is made better by merging: what one shard did not finish, or did not run, is still said of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowbit import __version__, report
from lowbit.errors import ReportError
from lowbit.records import Record, append, miscount, plain, read_about, read_run

BROKEN = (2, 3)
"""Exit statuses of a run that was broken off."""

Key = tuple[str, ...]


@dataclass(frozen=True)
class Shard:
    """A run to merge.

    Attributes:
      name: its folder's name. about: its run.json. records: all that can be read. problems: what cannot.
    """

    name: str
    about: Mapping[str, Any]
    records: Sequence[Record]
    problems: Sequence[str]

    @property
    def incomplete(self) -> str:
        """What keeps the run from being whole; "" if nothing does."""
        if not self.about.get("finished"):
            return "it did not finish"
        if self.about.get("exit_status") in BROKEN:
            return f"it was broken off (exit status {self.about['exit_status']})"
        told, lost = self.about.get("problems"), miscount(self.about, self.records)
        return "; ".join(filter(None, [*self.problems, *(map(str, told) if isinstance(told, list) else ()), lost]))


def merge(folders: Sequence[Path | str], into: Path | str, *, mixed: bool = False) -> Path:
    """Merges runs into a new one, with its page and its CSV files.

    A record keeps the id of the run that it is from. A check that several runs made with the same result counts once.

    Args:
      folders: of the runs. into: a folder that is not there yet, or empty; its name becomes the id.
      mixed: allows runs of different versions of lowbit or of an implementation, of other levels or seeds.

    Returns:
      What `report.build` does.

    Raises:
      ReportError: a folder holds no run, `into` holds something, two runs contradict each other, or they are mixed.
    """
    into = Path(into)
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise ReportError(f"into: {into} is there already, want a new or an empty folder")
    shards = [_shard(Path(folder)) for folder in folders]
    if not shards:
        raise ReportError("runs: got none, want the folders of one or more")
    if len({json.dumps(shard.about.get("run")) for shard in shards}) < len(shards):
        raise ReportError("runs: got one of them twice, want each once")
    differing = _mixture(shards)
    if differing and not mixed:
        raise ReportError(f"runs: they differ in {'; '.join(differing)}; merge them with --mixed if that is meant")
    records = _records(shards)
    into.mkdir(parents=True, exist_ok=True)
    (into / "records.jsonl").touch()
    for record in records:
        append(into / "records.jsonl", record)
    told = {**_about(into.resolve().name, shards, differing), "records": len(records)}
    about = json.dumps(plain(told), indent=2, allow_nan=False)
    (into / "run.json").write_text(about + "\n", encoding="ascii")
    return report.build(into)


def _shard(folder: Path) -> Shard:
    records, problems = read_run(folder)
    return Shard(folder.resolve().name, read_about(folder), records, problems)


def _mixture(shards: Sequence[Shard]) -> list[str]:
    """What the runs should share and do not."""
    found = [_values(name, (shard.about.get(name) for shard in shards)) for name in ("lowbit", "level", "seed")]
    versions: dict[str, dict[str, None]] = {}
    for shard in shards:
        for record in shard.records:
            if record.version:
                versions.setdefault(record.implementation, {})[record.version] = None
    found += [_values(f"the version of {name}", each) for name, each in versions.items()]
    return [text for text in found if text]


def _values(name: str, values: Iterable[Any]) -> str:
    found = list(dict.fromkeys("none" if value is None else str(value) for value in values))
    return f"{name} ({', '.join(found)})" if len(found) > 1 else ""


def _key(record: Record) -> Key:
    """What a record is about; a check that did not run has one for each reason."""
    about = record.node, record.implementation, record.scheme, record.check, str(record.extra.get("tensor", ""))
    return (*about, record.device, record.level, record.message if record.status == "not_run" else "")


def _records(shards: Sequence[Shard]) -> list[Record]:
    """All records, each once, in the order of their nodes; those that did not run come last.

    Raises:
      ReportError: two runs found different things where they did the same.
    """
    found: dict[Key, tuple[str, Record]] = {}
    for shard in shards:
        own: dict[Key, int] = {}
        for record in shard.records:
            key = _key(record)
            own[key] = own.get(key, 0) + 1
            key = (*key, str(own[key]))  # a run may tell of one thing several times, such as of steps of a tensor
            first = found.setdefault(key, (shard.name, record))
            if first[1] is not record and _result(first[1]) != _result(record):
                where = f"{record.implementation}: {record.scheme} × {record.check}"
                raise ReportError(
                    f"runs: {first[0]} and {shard.name} contradict each other in {where}: {_told(first[1])}, and "
                    f"{_told(record)}; leave one of them out"
                )
    return [record for _, record in sorted(found.values(), key=lambda pair: _place(pair[1]))]


def _place(record: Record) -> tuple[Any, ...]:
    return record.scheme == "*", *_key(record), record.run


def _result(record: Record) -> dict[str, Any]:
    """What a record says but for when and in which run it was made."""
    aside = ("run", "seconds", "repeat", "samples")
    return {name: value for name, value in record.as_dict().items() if name not in aside}


def _told(record: Record) -> str:
    return f"{record.status} with {record.mismatched:,} of {record.compared:,} wrong ({record.digest or 'none'})"


def _about(name: str, shards: Sequence[Shard], differing: Sequence[str]) -> dict[str, Any]:
    """run.json of the whole: the worst of each shard, and what each of them was."""
    abouts = [shard.about for shard in shards]
    problems = [f"{shard.name}: {shard.incomplete}" for shard in shards if shard.incomplete]
    ends = [about.get("finished") for about in abouts]
    return {
        "run": name,
        "lowbit": __version__,
        "started": min((str(about.get("started") or "") for about in abouts), default=""),
        "finished": max(map(str, ends)) if all(ends) else None,
        "exit_status": _status([about.get("exit_status") for about in abouts]),
        "implementation": _joined(about.get("implementation") for about in abouts),
        "version": _joined(about.get("version") for about in abouts),
        "level": _joined(about.get("level") for about in abouts),
        "command": f"lowbit report merge {' '.join(shard.name for shard in shards)}",
        "seed": abouts[0].get("seed") if len({str(about.get("seed")) for about in abouts}) == 1 else None,
        "options": _common([about.get("options") for about in abouts]),
        "environment": _environment([about.get("environment") for about in abouts]),
        "problems": problems,
        "mixed": list(differing),
        "waivers": _waivers(abouts),
        "merged": [
            {
                "run": shard.name,
                "records": len(shard.records),
                **{key: shard.about.get(key) for key in ("lowbit", "command", "finished", "exit_status", "deselected")},
                **{key: shard.about.get(key) for key in ("options", "environment")},
            }
            for shard in shards
        ],
    }


def _status(found: Sequence[Any]) -> int | None:
    """The gravest exit status; None if one is no number."""
    numbers = [status for status in found if isinstance(status, int) and not isinstance(status, bool)]
    broken = [status for status in numbers if status in BROKEN]
    if broken:
        return max(broken)
    return max(numbers) if len(numbers) == len(found) else None


def _joined(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value))


def _common(found: Sequence[Any]) -> dict[str, Any]:
    """The options that all runs had alike."""
    each = [options if isinstance(options, Mapping) else {} for options in found]
    return {name: value for name, value in each[0].items() if all(o.get(name) == value for o in each)}


def _environment(found: Sequence[Any]) -> dict[str, Any]:
    """What the machines have in common, and all devices in one line; `merged` has each whole."""
    each = [environment if isinstance(environment, Mapping) else {} for environment in found]
    device = "; ".join(dict.fromkeys(str(e["device"]) for e in each if e.get("device")))
    return {**_common(each), "device": device}


def _waivers(abouts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The waivers of which no run could say anything; None if there was no file of them."""
    told = [about["waivers"] for about in abouts if isinstance(about.get("waivers"), Mapping)]
    if not told:
        return None
    given = [each.get("unjudged") for each in told]
    lists = [
        [tuple(map(str, pair)) for pair in pairs if isinstance(pair, list) and pair] if isinstance(pairs, list) else []
        for pairs in given
    ]
    places = [{pair[0] for pair in pairs} for pairs in lists]
    left = set.intersection(*places)
    unjudged = [list(pair) for pair in dict.fromkeys(pair for pairs in lists for pair in pairs) if pair[0] in left]
    return {"file": _joined(each.get("file") for each in told), "unjudged": unjudged}
