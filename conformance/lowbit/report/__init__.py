"""Reports: views of a run's records, which need neither torch nor a GPU nor a network."""

from __future__ import annotations

from pathlib import Path

__all__ = ["build", "prepare"]


def build(run_dir: Path | str, *, html: bool = True) -> Path:
    """Writes summary.csv, mismatches.csv and index.html of a run from its run.json and records alone.

    The same records give the same bytes. A run that did not finish, or left no record, gets its report too.

    Args:
      run_dir: a run's folder.
      html: False leaves index.html out.

    Returns:
      The path of index.html, or of summary.csv without it.

    Raises:
      ReportError: the folder holds no run.
    """
    from lowbit.records import read_about, read_run
    from lowbit.report import csv, diff_files
    from lowbit.report import html as page

    folder = Path(run_dir)
    about = read_about(folder)
    records, problems = read_run(folder)
    csv.write(folder, records)
    if not html:
        return folder / "summary.csv"
    earlier = about.get("problems")
    kept = [str(problem) for problem in earlier if str(problem) not in problems] if isinstance(earlier, list) else []
    text = page.render(about, records, problems + kept, difference=diff_files.stored(folder))
    (folder / "index.html").write_text(text, encoding="utf-8")
    return folder / "index.html"


def prepare(*, html: bool = True) -> None:
    """Loads beforehand what `build` writes with, a second's work, for a process that has nothing else to do."""
    import pandas  # noqa: F401 - the tables'

    if html:
        from lowbit.report import html as page

        page.prepare()
