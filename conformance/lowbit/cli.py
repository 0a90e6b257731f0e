"""The command `lowbit`: verbs, no logic. Each verb imports what it needs when it runs, so that most need no torch."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence

from lowbit import __version__
from lowbit.errors import LowbitError

INTERRUPTED_PIPE = 141
"""128 + SIGPIPE, what a shell reports of a program whose reader went away."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Returns:
      0 · 1: `doctor` found a fault · 2: a wrong argument, with a message on stderr.
    """
    arguments = _parser().parse_args(_shield_numbers(sys.argv[1:] if argv is None else argv))
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except LowbitError as error:
        print(f"lowbit: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Python flushes stdout once more on exit; without this it would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED_PIPE
    return code


def _list(arguments: argparse.Namespace) -> int:
    from lowbit import glossary, implementation

    rows = {
        "schemes": glossary.scheme_rows,
        "formats": glossary.format_rows,
        "rules": glossary.rule_rows,
        "impls": lambda: [{"name": name, "target": place} for name, place in implementation.available().items()],
    }[arguments.what]()
    print(json.dumps(rows, indent=2) if arguments.json else "\n".join(glossary.table_of(rows)))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from lowbit import glossary, schemes
    from lowbit.formats import FORMATS

    fmt = FORMATS.get(arguments.name)
    print(glossary.describe_format(fmt) if fmt else glossary.describe_scheme(schemes.get(arguments.name)))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from lowbit import explain, schemes

    values = [explain.parse_value(text) for text in arguments.values]
    scale = None if arguments.tensor_scale is None else explain.parse_value(arguments.tensor_scale)
    print(explain.explain(schemes.get(arguments.scheme), values, tensor_scale=scale, seed=arguments.seed))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from lowbit import doctor, implementation

    findings = doctor.examine(implementation.load, implementation.DEFAULT)
    print(doctor.render(findings))
    return doctor.exit_code(findings)


def _report_build(arguments: argparse.Namespace) -> int:
    from lowbit import report

    print(report.build(arguments.run_dir))
    return 0


def _report_open(arguments: argparse.Namespace) -> int:
    import webbrowser
    from pathlib import Path

    from lowbit import report

    page = Path(report.build(arguments.run_dir)).resolve()
    print(page)
    return 0 if webbrowser.open(page.as_uri()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("lowbit", description="Says what low-bit formats are, and what runs found.")
    parser.add_argument("--version", action="version", version=f"lowbit {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    verb = verbs.add_parser("list", help="schemes, formats, rules, or installed implementations")
    verb.add_argument("what", nargs="?", choices=("schemes", "formats", "rules", "impls"), default="schemes")
    verb.add_argument("--json", action="store_true", help="a JSON array of objects")
    verb.set_defaults(run=_list)

    verb = verbs.add_parser("show", help="everything that a scheme pins, or a format is")
    verb.add_argument("name", metavar="SCHEME|FORMAT")
    verb.set_defaults(run=_show)

    verb = verbs.add_parser("explain", help="one block by hand: amax, scale, code, value, each rule named")
    verb.add_argument("scheme", metavar="SCHEME")
    verb.add_argument(
        "values", metavar="VALUE", nargs="+", help="decimal, hex float, 0x and 8 digits of binary32, nan, inf, -0"
    )
    verb.add_argument("--tensor-scale", metavar="G", help="the factor g, for schemes that take one")
    verb.add_argument("--seed", type=int, default=0, help="of a stochastic scheme's random bits (default 0)")
    verb.set_defaults(run=_explain)

    verb = verbs.add_parser("doctor", help="what is installed and working here; exit code 1 if something is not")
    verb.set_defaults(run=_doctor)

    verb = verbs.add_parser("report", help="the report of a run")
    actions = verb.add_subparsers(required=True, metavar="ACTION")
    for name, function, text in (
        ("build", _report_build, "write index.html and the CSV files again from the records"),
        ("open", _report_open, "the same, and show it in a browser"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("run_dir", metavar="RUN_DIR")
        action.set_defaults(run=function)
    return parser


def _shield_numbers(argv: Sequence[str]) -> list[str]:
    """Arguments such as -1.5, -0x1p-3 or -inf with a space before them: argparse takes them for options otherwise."""
    return [f" {text}" if re.match(r"-([0-9.]|inf|nan)", text, re.IGNORECASE) else text for text in argv]


if __name__ == "__main__":
    sys.exit(main())
