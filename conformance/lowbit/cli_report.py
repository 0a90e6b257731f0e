"""The verbs of `lowbit report`; each imports what it needs when it runs."""

from __future__ import annotations

import argparse


def _build(arguments: argparse.Namespace) -> int:
    from lowbit import report

    print(report.build(arguments.run_dir))
    return 0


def _open(arguments: argparse.Namespace) -> int:
    import webbrowser
    from pathlib import Path

    from lowbit import report

    page = Path(report.build(arguments.run_dir)).resolve()
    print(page)
    return 0 if webbrowser.open(page.as_uri()) else 1


def _diff(arguments: argparse.Namespace) -> int:
    from lowbit.records import read_about, read_run
    from lowbit.report import diff, diff_files

    (before, unread), (after, problems) = read_run(arguments.before), read_run(arguments.after)
    abouts = read_about(arguments.before), read_about(arguments.after)
    if problems:
        abouts[1]["problems"] = problems
    found = diff.compare(abouts[0], before, abouts[1], after, problems=unread)
    for path, write in ((arguments.csv, diff_files.as_csv), (arguments.html, diff_files.as_page)):
        if path:
            diff_files.write(path, write(found))
    print(diff_files.as_json(found) if arguments.json else "\n".join(found.lines()))
    return found.exit_code


def _merge(arguments: argparse.Namespace) -> int:
    from lowbit.report import merge

    print(merge.merge(arguments.run_dirs, arguments.into, mixed=arguments.mixed))
    return 0


def _waivers(arguments: argparse.Namespace) -> int:
    from lowbit import waivers
    from lowbit.records import read_about, read_records

    found = waivers.entries(read_records(arguments.run_dir), read_about(arguments.run_dir))
    print("\n\n".join(found) or "# nothing to waive")
    return 0


def _github(arguments: argparse.Namespace) -> int:
    from lowbit.records import read_about, read_records
    from lowbit.report import github

    print("\n".join(github.tell(read_about(arguments.run_dir), read_records(arguments.run_dir))))
    return 0


def add_actions(verb: argparse.ArgumentParser) -> None:
    """Adds the verbs to the parser of `lowbit report`."""
    actions = verb.add_subparsers(required=True, metavar="ACTION")
    for name, function, text in (
        ("build", _build, "write index.html and the CSV files again from the records"),
        ("open", _open, "the same, and show it in a browser"),
        ("waivers", _waivers, "entries for the file of --waivers that name what is wrong in the run"),
        ("github", _github, "annotations on stdout; a Markdown summary where GITHUB_STEP_SUMMARY says"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("run_dir", metavar="RUN_DIR")
        action.set_defaults(run=function)
    action = actions.add_parser("diff", help="what is new in B since A, fixed, changed, the same; 1: something is new")
    action.add_argument("before", metavar="A")
    action.add_argument("after", metavar="B")
    action.add_argument("--json", action="store_true", help="as JSON on stdout")
    action.add_argument("--csv", metavar="FILE", help="also write a table")
    action.add_argument("--html", metavar="FILE", help="also write a page")
    action.set_defaults(run=_diff)
    action = actions.add_parser("merge", help="one run out of several, such as shards of a release")
    action.add_argument("run_dirs", metavar="RUN_DIR", nargs="+")
    action.add_argument("--into", metavar="DIR", required=True, help="a new folder")
    action.add_argument("--mixed", action="store_true", help="allow several versions, levels or seeds")
    action.set_defaults(run=_merge)
