"""A difference of two runs as files: CSV, and HTML as a section or as a page of its own."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from lowbit.report.diff import COLUMNS, MEANS, NEW, Difference
from lowbit.report.text import clean, count, line
from lowbit.tables import inert

BASELINE = "baseline.json"
"""The file in a run's folder that says what is new since an earlier run."""

LISTED = 500
"""Rows of one sort in HTML; the CSV file has all."""

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { max-width: 75rem; margin: 1.5rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: .9em; } th, td { padding: .15rem .6rem; text-align: left; }
tr { border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent); } td.number { text-align: right; }
.scroll { overflow-x: auto; } .stopped { color: light-dark(#a40000, #ff8a80); } .warning { font-weight: 600; }
"""


def as_json(difference: Difference) -> str:
    return json.dumps(difference.as_dict(), indent=2, allow_nan=False) + "\n"


def as_csv(difference: Difference) -> str:
    """A header of `diff.COLUMNS`, one row a change."""
    import pandas  # half a second, which no run without an earlier one need wait for

    rows = [[getattr(change, name) for name in COLUMNS] for change in difference.changes]
    frame = pandas.DataFrame(rows, columns=list(COLUMNS), dtype=object)
    text: str = inert(frame).to_csv(index=False, lineterminator="\n")
    return text


def as_section(difference: Difference) -> str:
    """``<section id="difference">…</section>``, everything escaped, for a page of any style."""
    verdict = "Something is new" if difference.exit_code else "Nothing is new"
    parts = [
        '<section id="difference">',
        f"<h2>{verdict} since {_text(difference.before)}</h2>",
        *(f'<p class="stopped">{_text(reason)}</p>' for reason in difference.stopped),
    ]
    if difference.warnings:
        items = "".join(f"<li>{_text(warning)}</li>" for warning in difference.warnings)
        parts.append(f'<p class="warning">The two runs are not alike:</p><ul class="warning">{items}</ul>')
    parts.append(f"<p>{difference.equal:,} checks without a mismatch in either run.</p>")
    for what, n in difference.counts.items():
        mark = ' class="stopped"' if what in NEW else ""
        parts.append(f"<h3{mark}>{_text(what)}: {n:,}</h3><p>{_text(MEANS[what])}</p>")
        parts.append('<div class="scroll"><table><thead><tr>')
        parts += [f"<th>{name}</th>" for name in COLUMNS[1:]]
        parts.append("</tr></thead><tbody>")
        for change in [change for change in difference.changes if change.what == what][:LISTED]:
            parts.append("<tr>" + "".join(_cell(getattr(change, name)) for name in COLUMNS[1:]) + "</tr>")
        left = f"<p>… and {n - LISTED:,} more, in the CSV file.</p>" if n > LISTED else ""
        parts.append(f"</tbody></table></div>{left}")
    return "\n".join([*parts, "</section>"])


def as_page(difference: Difference) -> str:
    """A self-contained HTML page with the section."""
    title = f"{_text(difference.before)} → {_text(difference.after)} · lowbit"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{as_section(difference)}\n</main>\n"
        f"</body>\n</html>\n"
    )


def stored(folder: Path) -> str:
    """The section of a run that was compared with an earlier one, out of its baseline.json; "" if it was not."""
    path = folder / BASELINE
    if not path.exists():
        return ""
    try:
        return as_section(Difference.of(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        said = f"{BASELINE} cannot be read: {error}"
        return f'<section id="difference"><h2>Compared with an earlier run</h2><p>{_text(said)}</p></section>'


def write(path: Path | str, text: str) -> None:
    """Writes a file in UTF-8; what that cannot hold becomes a visible escape."""
    Path(path).write_text(text, encoding="utf-8", errors="backslashreplace", newline="")


def _cell(value: Any) -> str:
    number = isinstance(value, int)
    return f"<td{' class=number' if number else ''}>{count(value) if number else _text(value)}</td>"


def _text(value: Any) -> str:
    return html.escape(clean(line(value)))
