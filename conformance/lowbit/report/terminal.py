"""A run in the terminal: lines of text, for whoever prints them.

One line a mismatch in the manner of Berkeley TestFloat, then counts, then the diagnosis, then the command that
repeats it; a matrix scheme × check at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lowbit.records import Record, readable
from lowbit.report.outcome import Cell, axes, first_failures, judge, matrix
from lowbit.report.text import anchor, count, diagnosis, line, number, of_kinds, reason

SYMBOLS = {"pass": ".", "mismatch": "F", "error": "E", "unsupported": "u", "not_run": "-", "waived": "w"}
"""A cell of the matrix; a blank is a check that the scheme does not have."""


def header(about: Mapping[str, Any]) -> list[str]:
    """What is judged, on what, how far: the lines at the start of a run.

    Args:
      about: run.json.
    """
    environment = about.get("environment") or {}
    packages = environment.get("packages") or {}
    known = [f"{name} {packages[name]}" for name in ("torch", "triton", "numpy") if name in packages]
    judged = " ".join(filter(None, (line(about.get("implementation")), line(about.get("version")))))
    level = line(about.get("level")) or "?"
    return [
        f"lowbit {line(about.get('lowbit'))}: judging {judged or 'nothing yet'}",
        f"device: {line(environment.get('device'))}",
        f"python {line(environment.get('python'))}, {', '.join(map(line, known))}",
        f"level: {level}{'' if level == 'exhaustive' else ' (reduced: not every domain is tried)'}"
        f" · seed: {line(about.get('seed'))} · run: {line(about.get('run'))}",
    ]


def sample_line(sample: Mapping[str, Any]) -> str:
    """One mismatch: ``[3,17] x=0x3e800000 (0.25) scale 0x7f: got 0x1 (0.5) want 0x0 (0) · tie → even``."""
    shown = readable(sample)
    tensor = str(sample.get("tensor") or "")
    words = [f"{tensor} {shown['coordinates']}" if tensor != "codes" else str(shown["coordinates"])]
    if shown["x_bits"] is not None:
        words.append(f"x={shown['x_bits']} ({number(sample.get('x'))})")
    got, want = shown["scale_actual"], shown["scale_expected"]
    if want is not None and not tensor.endswith("scales"):
        words.append(f"scale {want}" if got == want else f"scale {got} for {want}")
    sides = [
        f"{name} {shown[key]}" + (f" ({number(value)})" if (value := sample.get(f"value_{key}")) is not None else "")
        for name, key in (("got", "actual"), ("want", "expected"))
    ]
    return line(f"{' '.join(words)}: {' '.join(sides)} · {reason(sample)}")


def record_lines(record: Record, *, limit: int = 12) -> list[str]:
    """A record that fails: some mismatches, counts, message, diagnosis, the command that repeats it, its place.

    Args:
      limit: lines of mismatches; those of the gravest kinds come first.
    """
    lines = [f"{line(record.implementation)} · {line(record.scheme)} · {line(record.check)}: {record.status}"]
    shown = list(record.samples)[:limit]
    lines += [f"  {sample_line(sample)}" for sample in shown]
    if record.mismatched:
        examples = (
            f" · {len(shown)} of {count(record.mismatched)} shown" if len(shown) < record.mismatched and shown else ""
        )
        lines.append(
            f"  {count(record.mismatched)} of {count(record.compared)} differ: {of_kinds(record.kinds)}{examples}"
        )
    if record.message:
        lines.append(f"  {line(record.message)}")
    if record.diagnosis:
        lines.append(f"  diagnosis: {line(diagnosis(record))}")
    if record.repeat:
        lines.append(f"  repeat: {line(record.repeat)}")
    lines.append(f"  report: index.html#{anchor(record.implementation, record.scheme, record.check)}")
    return lines


def summary_lines(
    records: Sequence[Record], about: Mapping[str, Any] | None = None, *, width: int = 100, failures: int = 5
) -> list[str]:
    """The end of a run: matrix, first failures, what did not run, totals.

    Args:
      about: run.json, for the verdict; without it there is none.
      width: of the terminal; the matrix is cut into parts that fit.
      failures: how many different failures are shown.
    """
    cells = {key: cell for key, cell in matrix(records).items() if cell.status != "not_run"}  # listed below
    lines = matrix_lines(cells, width=width)
    for record, alike in first_failures(records, failures):
        more = f" (and {alike - 1:,} more like it)" if alike > 1 else ""
        what = line(diagnosis(record) or record.message) or of_kinds(record.kinds)
        lines.append(f"{record.status}: {line(record.scheme)} × {line(record.check)}{more}: {what}")
        lines.append(f"  index.html#{anchor(record.implementation, record.scheme, record.check)}")
        if record.repeat:
            lines.append(f"  {line(record.repeat)}")
    for status, title in (("not_run", "not run"), ("unsupported", "unsupported"), ("waived", "waived")):
        reasons: dict[str, list[Record]] = {}
        for record in records:
            if record.status == status:
                reasons.setdefault(line(record.message) or "no reason given", []).append(record)
        for why, group in reasons.items():
            names = list(dict.fromkeys(line(r.check) for r in group))
            wrong = sum(r.mismatched for r in group)
            size = f"{len(group):,}, {count(wrong)} mismatches" if wrong else f"{len(group):,}"
            lines.append(f"{title}: {', '.join(names[:6])}{' …' if len(names) > 6 else ''}: {why} ({size})")
    outcome = judge(about or {"finished": True, "exit_status": 0}, records)
    tally = ", ".join(f"{n:,} {status}" for status, n in sorted(outcome.statuses.items()))
    lines.append(f"{count(outcome.compared)} compared, {count(outcome.mismatched)} differ · records: {tally or 'none'}")
    if about is not None:
        lines.append(f"{outcome.verdict}: {outcome.because}")
    return lines


def matrix_lines(cells: Mapping[tuple[str, str, str], Cell], *, width: int = 100) -> list[str]:
    """The matrix scheme × check, one letter a cell; rows of one family that look the same and pass share a line."""
    rows, checks = axes(cells)
    if not rows:
        return []
    several = len({implementation for implementation, _ in rows}) > 1
    groups: dict[tuple[str, ...], list[str]] = {}
    for implementation, scheme in rows:
        found = [cells.get((implementation, scheme, check)) for check in checks]
        letters = "".join(" " if cell is None else SYMBOLS[cell.status] for cell in found)
        name = "(all schemes)" if scheme == "*" else line(scheme, 60)
        name = f"{line(implementation, 30)}: {name}" if several else name
        failed = any(cell is not None and cell.failed for cell in found)
        family = name if failed else scheme.partition("_")[0].partition("+")[0]
        groups.setdefault((implementation, family, letters), []).append(name)
    names = [f"{group[0]} (+{len(group) - 1})" if len(group) > 1 else group[0] for group in groups.values()]
    edge = max(map(len, names)) + 2
    step = max((width - edge) // 3, 5)
    lines = []
    for start in range(0, len(checks), step):
        part = range(start, min(start + step, len(checks)))
        lines.append(" " * edge + "".join(f"{column + 1:>3}" for column in part))
        for name, (_, _, letters) in zip(names, groups, strict=True):
            lines.append((name.ljust(edge) + "".join(f"  {letters[column]}" for column in part)).rstrip())
    numbered = [f"{i} {line(check, 40)}" for i, check in enumerate(checks, 1)]
    lines += _wrapped(numbered, width)
    used = {SYMBOLS[cell.status]: status for cell in cells.values() for status in (cell.status,)}
    lines.append(" · ".join(f"{letter} {status.replace('_', ' ')}" for letter, status in sorted(used.items())))
    return lines


def _wrapped(words: Iterable[str], width: int) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) + 3 <= width:
            lines[-1] += f" · {word}"
        else:
            lines.append(word)
    return lines
