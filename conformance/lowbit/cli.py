"""The command `lowbit`: verbs, no logic. Each verb imports what it needs when it runs, so that most need no torch."""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from lowbit import __version__, cli_report
from lowbit.errors import ArgumentError, LowbitError, UnknownScheme

INTERRUPTED_PIPE = 141
"""128 + SIGPIPE, what a shell reports of a program whose reader went away."""

SHOWN = 3000
"""Letters of a message; arguments are repeated in messages, and may be of any length."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Returns:
      0 · 1: `doctor`, `vectors` or `prove` found a fault or a difference, `identify` nothing that is followed exactly
      · 2: a wrong argument, or a file, stream or package that this needs and that cannot be had, with a message on
      stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a console that lacks a letter still shows the rest
    arguments = _parser().parse_args(_shield_numbers(sys.argv[1:] if argv is None else argv))
    if sys.stdout is None:
        return _complain("standard output is closed, want an open one")
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except LowbitError as error:
        return _complain(str(error))
    except BrokenPipeError:
        _drop_output()
        return INTERRUPTED_PIPE
    except OSError as error:
        _drop_output()
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        return _complain(f"{place}{error.strerror or error}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "lowbit"):
            raise  # a fault of lowbit
        return _complain(f"this needs the package {package}, which is not installed: pip install {package}")
    except UnicodeError as error:
        return _complain(f"text that cannot be read or written: {error}")
    except RecursionError:
        return _complain("something is nested too deeply to be read")
    return code


def _complain(message: str) -> int:
    """A message in one line on stderr, if there is one; the exit code of a fault."""
    if sys.stderr is not None:
        print(f"lowbit: {_shown(message)}", file=sys.stderr)
    return 2


def _shown(message: str) -> str:
    """A message that no argument makes a screenful, or changes the terminal with."""
    from lowbit.report import text

    if len(message) > SHOWN:
        half = SHOWN // 2
        message = f"{message[:half]} … ({len(message) - 2 * half:,} characters) … {message[-half:]}"
    return text.line(message, 2 * SHOWN)


def _indented(told: str) -> str:
    """A line of a listing, as `_shown`, with the spaces that it begins with."""
    return " " * (len(told) - len(told.lstrip(" "))) + _shown(told)


def _drop_output() -> None:
    """Lets the last flush of stdout, which Python does on exit, succeed: it would complain there otherwise."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """One whose messages repeat arguments as `_shown` shows them."""

    def error(self, message: str) -> NoReturn:
        super().error(_shown(message))


def _list(arguments: argparse.Namespace) -> int:
    from lowbit import glossary, implementation, weight_glossary

    # Several tables where rows differ in what they tell; as JSON one array.
    tables = {
        "schemes": lambda: [glossary.scheme_rows(), weight_glossary.scheme_rows()],
        "formats": lambda: [glossary.format_rows()],
        "rules": lambda: [glossary.rule_rows() + weight_glossary.rule_rows()],
        "impls": lambda: [implementation.installed()],
    }[arguments.what]()
    if arguments.json:
        print(json.dumps([row for rows in tables for row in rows], indent=2))
    else:
        print("\n\n".join("\n".join(glossary.table_of(rows)) for rows in tables))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from lowbit import glossary, schemes, weight_glossary, weights
    from lowbit.formats import FORMATS

    name: str = arguments.name
    families = dict.fromkeys(scheme.family for scheme in schemes.select())
    try:
        if name in FORMATS:
            print(glossary.describe_format(FORMATS[name]))
        elif name in families and name not in schemes.names():
            members = [scheme for scheme in schemes.select() if scheme.family == name]
            print(f"{name}: {', '.join(m.name for m in members)}\n\n{glossary.describe_scheme(members[0])}")
        elif name.startswith(weights.families()):
            print(weight_glossary.describe(name))
        else:
            print(glossary.describe_scheme(schemes.get(name)))
    except UnknownScheme as error:
        if "+" in name:  # a rule or a flag is told by those that there are
            raise
        named = (*schemes.names(), *weights.names(), *FORMATS, *families, *weights.families())
        known = list(dict.fromkeys(named))  # a family may have a scheme's name
        near = ", ".join(difflib.get_close_matches(name, known, n=4, cutoff=0.3) or known[:4])
        raise UnknownScheme(
            f"name: got {name!r}, want one of {near} … : a scheme or a family (see `lowbit list`), or a format "
            "(see `lowbit list formats`)"
        ) from error
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from lowbit import explain

    values = [explain.parse_value(text) for text in arguments.values]
    scale = None if arguments.tensor_scale is None else explain.parse_value(arguments.tensor_scale)
    print(explain.explain(explain.choose(arguments.scheme), values, tensor_scale=scale, seed=arguments.seed))
    return 0


def _identify(arguments: argparse.Namespace) -> int:
    from lowbit import identify, implementation
    from lowbit.identify import identity

    device = identify.choose_device(arguments.device)  # before anything imports triton
    found = []
    for one in identify.identities(implementation.load(arguments.impl), arguments.scheme or (), device=device):
        found.append(one)
        if not arguments.json:
            print("\n".join(map(_indented, one.lines())), flush=True)  # it may tell what an implementation raised
    if arguments.json:
        print(json.dumps({"identities": [one.as_dict() for one in found], "table": identity.table(found)}, indent=2))
    elif not found:
        print(f"{arguments.impl} provides nothing for {', '.join(arguments.scheme or ['any scheme'])}")
    return identify.exit_code(found)


def _doctor(arguments: argparse.Namespace) -> int:
    from lowbit import doctor, implementation

    findings = doctor.examine(implementation.load, implementation.DEFAULT)
    print(doctor.render(findings))
    return doctor.exit_code(findings)


def _bench(arguments: argparse.Namespace) -> int:
    import importlib

    from lowbit import implementation
    from lowbit.errors import UnknownImplementation

    # The kernels' own command, found where their implementation is announced; nothing here imports it by name.
    package = implementation.available().get(implementation.DEFAULT, implementation.DEFAULT).partition(".")[0]
    try:
        bench = importlib.import_module(f"{package}.bench")
    except ImportError as error:
        raise UnknownImplementation(f"bench: {implementation.DEFAULT} cannot be loaded: {error}") from error
    code: int = bench.main([text.strip() for text in arguments.words])
    return code


def _prove(arguments: argparse.Namespace) -> int:
    from lowbit import proofs

    chosen = proofs.select(arguments.names or ("*",))
    if arguments.statements:
        for lemma in chosen:
            print(lemma.described())
        return 0
    found = []
    for lemma in chosen:
        found.append(proofs.prove(lemma))
        print(found[-1].line(), flush=True)
    print(proofs.total(found))
    return 0 if all(proof.as_expected for proof in found) else 1


def _vectors_make(arguments: argparse.Namespace) -> int:
    from lowbit.vectors import make

    difference = make.make(arguments.root, overwrite=arguments.overwrite, reason=arguments.reason)
    print("\n".join(difference.lines()))
    return 0


def _vectors_check(arguments: argparse.Namespace) -> int:
    from lowbit.vectors import make

    found = make.check(arguments.root)
    print("\n".join(found.lines()))
    return 0 if found.ok else 1


def _vectors_diff(arguments: argparse.Namespace) -> int:
    from lowbit.vectors import diff
    from lowbit.vectors.read import locate

    found = diff.compare(diff.contents(locate(arguments.old)), diff.contents(locate(arguments.new)))
    print("\n".join(found.lines()))
    return 1 if found.changes else 0


def _vectors_lint(arguments: argparse.Namespace) -> int:
    from lowbit.vectors import lint
    from lowbit.vectors.read import locate

    problems = lint.lint(locate(arguments.root))
    print("\n".join(map(str, problems)) or "in order")
    return 1 if problems else 0


def _vectors_export(arguments: argparse.Namespace) -> int:
    from lowbit import pipe

    rounding, nan = pipe.rules(arguments.rounding, arguments.nan)
    for line in pipe.export(arguments.name, rounding=rounding, nan=nan, root=arguments.root):
        print(line.words)
    return 0


def _vectors_judge(arguments: argparse.Namespace) -> int:
    from lowbit import pipe
    from lowbit.report import terminal

    if arguments.answers == "-" and sys.stdin is None:
        raise ArgumentError("answers: got -, but standard input is closed; want a file, or an open one")
    rounding, nan = pipe.rules(arguments.rounding, arguments.nan)
    found = pipe.judge(
        arguments.name,
        pipe.read_answers(arguments.answers),
        program=arguments.program or ("stdin" if arguments.answers == "-" else arguments.answers),
        report_dir=arguments.report_dir,
        rounding=rounding,
        nan=nan,
        max_mismatches=arguments.max_mismatches,
        root=arguments.root,
    )
    print("\n".join([*terminal.record_lines(found.record), found.total, f"report in {found.folder}"]))
    return found.status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("lowbit", description="Says what low-bit formats are, and what runs found.")
    parser.add_argument("--version", action="version", version=f"lowbit {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    verb = verbs.add_parser("list", help="schemes, formats, rules, or implementations and whether they are installed")
    verb.add_argument("what", nargs="?", choices=("schemes", "formats", "rules", "impls"), default="schemes")
    verb.add_argument("--json", action="store_true", help="a JSON array of objects")
    verb.set_defaults(run=_list)

    verb = verbs.add_parser("show", help="everything that a scheme pins, a family's first scheme, or a format")
    verb.add_argument("name", metavar="SCHEME|FAMILY|FORMAT")
    verb.set_defaults(run=_show)

    verb = verbs.add_parser("explain", help="one block by hand: amax, scale, code, value, each rule named")
    verb.add_argument("scheme", metavar="SCHEME")
    verb.add_argument(
        "values", metavar="VALUE", nargs="+", help="decimal, hex float, 0x and 8 digits of binary32, nan, inf, -0"
    )
    verb.add_argument("--tensor-scale", metavar="G", help="the factor g, for schemes that take one")
    verb.add_argument("--seed", type=int, default=0, help="of a stochastic scheme's random bits (default 0)")
    verb.set_defaults(run=_explain)

    verb = verbs.add_parser(
        "identify",
        help="which scheme or dialect an implementation follows, and the input that says so; 1: none exactly",
    )
    verb.add_argument("impl", metavar="NAME|MODULE:ATTR|FILE.py:ATTR")
    verb.add_argument("--scheme", action="append", metavar="GLOB", help="schemes to ask for (default: all)")
    verb.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    verb.add_argument("--json", action="store_true", help="a JSON object: identities, and a table of what was seen")
    verb.set_defaults(run=_identify)

    verb = verbs.add_parser("doctor", help="what is installed and working here; exit code 1 if something is not")
    verb.set_defaults(run=_doctor)

    verb = verbs.add_parser(
        "prove", help="decide by z3 that the kernels' arithmetic is right for all inputs, and shortcuts are wrong"
    )
    verb.add_argument(
        "names", metavar="NAME", nargs="*", help="lemmas, globs of lemmas, or schemes (default: all lemmas)"
    )
    verb.add_argument("--statements", action="store_true", help="say what the lemmas state, and prove nothing")
    verb.set_defaults(run=_prove)

    # The bench parses its own options, --help too: with this prefix none of them is an option here.
    verb = verbs.add_parser(
        "bench",
        help="how fast our kernels are on this GPU; --help lists its options",
        prefix_chars="\0",
        add_help=False,
    )
    verb.add_argument("words", nargs="*")
    verb.set_defaults(run=_bench)

    verb = verbs.add_parser("report", help="the report of a run")
    cli_report.add_actions(verb)
    _add_vectors(verbs.add_parser("vectors", help="golden vectors: make, check, and judge programs by them"))
    return parser


def _add_vectors(verb: argparse.ArgumentParser) -> None:
    actions = verb.add_subparsers(required=True, metavar="ACTION")
    for name, function, text in (
        ("make", _vectors_make, "write the files, if independent witnesses agree on everything in them"),
        ("check", _vectors_check, "make them again elsewhere, compare the bytes, let the witnesses vote"),
        ("diff", _vectors_diff, "what changed from one folder to another, by group and case"),
        ("lint", _vectors_lint, "schema, flags, hashes, duplicates, gaps"),
        ("export", _vectors_export, "hex lines of a scheme or format, for a program in any language"),
        ("judge", _vectors_judge, "judge the answers to those lines; 1: some are wrong, 2: some are missing or no hex"),
    ):
        action = actions.add_parser(name, help=text)
        action.set_defaults(run=function)
        if name == "diff":
            action.add_argument("old", metavar="A")
            action.add_argument("new", metavar="B")
            continue
        if name in ("export", "judge"):
            action.add_argument("name", metavar="SCHEME|FORMAT")
            action.add_argument("--rounding", metavar="RULE", help="of a format (default ties_to_even)")
            action.add_argument("--nan", metavar="RULE", help="adds NaN inputs to a format without NaN")
        action.add_argument("--root", metavar="DIR", help="another folder of vectors")
        if name == "make":
            action.add_argument("--overwrite", action="store_true", help="allow that existing values change")
            action.add_argument("--reason", default="", metavar="TEXT", help="why; kept in the list of changes")
        if name == "judge":
            action.add_argument("answers", metavar="FILE|-")
            action.add_argument("--program", metavar="NAME", help="what is judged, for the report (default: the file)")
            action.add_argument("--report-dir", default="reports/runs", metavar="DIR")
            action.add_argument("--max-mismatches", type=int, default=20, metavar="N")


def _shield_numbers(argv: Sequence[str]) -> list[str]:
    """Arguments such as -1.5, -0x1p-3 or -inf with a space before them: argparse takes them for options otherwise."""
    return [f" {text}" if re.match(r"-([0-9.]|inf|nan)", text, re.IGNORECASE) else text for text in argv]


if __name__ == "__main__":
    sys.exit(main())
