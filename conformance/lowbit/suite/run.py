"""The suite as a pytest plugin: which nodes there are, what becomes of each, and the report at the end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from lowbit import environment, report, schemes, vectors
from lowbit.checkpoints import quantized as quantized_checkpoint
from lowbit.checkpoints.quantized import QuantizedCheckpoint
from lowbit.compare import Comparison, merge
from lowbit.errors import LowbitError, NothingCompared, Unsupported, WitnessDisagreement
from lowbit.implementation import DEFAULT, Implementation
from lowbit.records import Record, Run, read_about, read_records
from lowbit.report import github, terminal, text
from lowbit.suite.escapes import WrongForm, told
from lowbit.suite.gate import Gate, mark, node_of, refused_as_usage, today
from lowbit.suite.judge import EXACT_LIMIT, Judge, Settings, TensorOutcome
from lowbit.suite.keeper import JUDGE, Keeper, limits_of, load_timed
from lowbit.suite.listing import Listing
from lowbit.suite.memory import LOCK, give_back, turn
from lowbit.suite.selection import AnyScheme, select
from lowbit.waiving import Setting

STARTED = pytest.StashKey[float]()

CHECKPOINT_SCHEMES = ("mx4_ceil_e2m1_g32", "mxfp4_floor", "mxfp4_even", "nvfp4", "nvfp4_two_level")
"""What ``--weights`` tries on floating tensors unless ``--scheme`` says otherwise."""


class SuiteRun:
    """Hooks of one run of the suite; registered only when the command line names it."""

    def __init__(self, *, device: str, interpreted: bool):
        self.device, self.interpreted = device, interpreted
        self.implementations: list[Implementation] = []
        self.targets: list[str] = []
        self.imports: list[str] = []
        self.schemes: tuple[AnyScheme, ...] = ()
        self.settings: Settings
        self.checkpoint: QuantizedCheckpoint | None = None
        self.quantises = False
        self.run: Run
        self.gate: Gate
        self.listing: Listing
        self.not_run: dict[tuple[str, str], str] = {}
        self.worker = False
        self.about: dict[str, Any] = {}
        self.nothing = ""
        self.deselected = 0

    # -- before collection

    @refused_as_usage
    def pytest_configure(self, config: pytest.Config) -> None:
        option = config.option
        self.worker = hasattr(config, "workerinput")
        self.targets = option.impl or [DEFAULT]
        if option.weights:
            try:
                self.checkpoint = quantized_checkpoint.read(option.weights)
            except LowbitError as error:
                raise pytest.UsageError(f"--weights: {error}") from error
        self._choose_schemes(option.scheme)
        self.implementations, self.imports = load_timed(self.targets, limits_of(config)[0])
        self._check_names()
        self.gate = self._open_gate(option)
        self.listing = Listing(option.all_mismatches)
        if not self.worker:
            self._check_vectors(option.vectors)
        self.settings = Settings(
            device=self.device,
            level=option.level,
            seed=option.seed,
            max_mismatches=option.max_mismatches,
            weights=option.weights,
            vectors=option.vectors,
            interpreted=self.interpreted,
        )
        if self.worker:
            self.run = Run.join(Path(config.workerinput["lowbit_run"]), config.workerinput["workerid"])  # type: ignore[attr-defined]
        elif not option.collectonly:
            self.run = Run.start(
                Path(option.report_dir or config.rootpath / "reports" / "runs"),
                environment=environment.collect(self.device),
                command="pytest " + shlex.join(str(a) for a in config.invocation_params.args),
                options={
                    "impl": self.targets,
                    "scheme": list(option.scheme or ()),
                    "device": self.device,
                    "level": option.level,
                    "weights": Path(option.weights).name if option.weights else None,
                    "require_gpu": option.require_gpu,
                    "waivers": self.gate.file or None,
                    "all_mismatches": option.all_mismatches,
                },
                seed=option.seed,
                implementation=", ".join(i.name for i in self.implementations),
                version=", ".join(i.version for i in self.implementations),
                level=option.level,
            )
            self.about = read_about(self.run.folder)
        if not option.collectonly:
            self.listing.open(self.run)
            keeper = Keeper(self._record, self.run.folder, self.run.worker, self.device, limits_of(config))
            config.pluginmanager.register(keeper, "lowbit-keeper")

    def _choose_schemes(self, globs: Sequence[str] | None) -> None:
        """The schemes of the run: a quantised checkpoint runs its own unless the command line names others."""
        if self.checkpoint is None:
            self.schemes = select(globs or ("*",))
            return
        own = tuple(scheme.name for scheme in self.checkpoint.schemes) or CHECKPOINT_SCHEMES
        self.schemes = select(globs or own)
        self.quantises = bool(self.checkpoint.floating) and bool(globs or not self.checkpoint.layers)
        if not any(self._is_about(kind, scheme) for kind in ("floating", "quantized") for scheme in self.schemes):
            raise LowbitError(
                f"scheme: got {', '.join(globs or own)}, but {self.checkpoint.path} holds {', '.join(own)}"
            )

    def _open_gate(self, option: Any) -> Gate:
        setting = Setting(
            device=self.device_line(),
            level=option.level,
            seed=option.seed,
            weights=Path(option.weights).name if option.weights else "",
            implementations=tuple(i.name for i in self.implementations),
            today=today(),
        )
        return Gate(option.waivers, option.baseline, setting, [s.name for s in self.schemes], select)

    def _check_vectors(self, root: str | None) -> None:
        """Refuses golden files that were touched: what they say would be blamed on the kernel."""
        problems = vectors.verify(root)
        if problems:  # name the case as well, where the file can still be read
            with suppress(LowbitError):
                damaged = [g for g in vectors.groups(root) if any(g.file in problem for problem in problems)]
                problems += vectors.check_against_references(damaged, every=True)
        else:
            problems = vectors.check_against_references(vectors.groups(root))
        if problems:
            more = f"\n… and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise LowbitError("\n".join(problems[:5]) + more)

    def _check_names(self) -> None:
        names = [i.name for i in self.implementations]
        if len(set(names)) < len(names):
            raise LowbitError(f"impl: two implementations have one name: {', '.join(names)}")

    def device_line(self) -> str:
        """The device in words, as headers and reports show it."""
        return environment.device_line(self.device)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["lowbit_run"] = str(self.run.folder)

    def pytest_report_header(self, config: pytest.Config) -> list[str]:
        lines = terminal.header(self.about) if self.about else []
        lines += [f"schemes: {len(self.schemes)} · implementations: {', '.join(self.targets)}", *self.imports]
        if self.settings.weights:
            lines.append(f"weights: {self.settings.weights} (only the checkpoint check runs)")
        if self.checkpoint is not None and self.checkpoint.layers:
            found = (*self.checkpoint.lines(), self.checkpoint.floating_line(self.quantises))
            lines += map(text.clean, found)  # names are other people's
        return lines

    # -- collection

    @pytest.fixture
    def judge(self, request: pytest.FixtureRequest, subject: tuple[Implementation, AnyScheme]) -> Judge:
        """The judge of one implementation under one scheme."""
        implementation, scheme = subject
        declared = request.node.get_closest_marker("lowbit").kwargs
        votes = EXACT_LIMIT if declared["exact"] else 0
        judge: Judge = declared["judge"](implementation, scheme, self.settings, declared["name"], exact_votes=votes)
        request.node.stash[JUDGE] = judge
        self.listing.hear(judge, node_of(request.node))
        return judge

    @pytest.fixture
    def progress(self, request: pytest.FixtureRequest) -> Iterator[Progress]:
        """A bar on the terminal, past pytest's capture; silent in workers and where there is no terminal."""
        capture = request.config.pluginmanager.getplugin("capturemanager")
        shown = not self.worker and request.config.get_terminal_writer().hasmarkup
        hidden = capture.global_and_fixture_disabled() if capture and shown else nullcontext()
        with hidden, Progress(console=Console(stderr=True), disable=not shown, transient=True) as bar:
            yield bar

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        self.gate.collected.add(metafunc.definition.path.name)
        mark = metafunc.definition.get_closest_marker("lowbit")
        if mark is None or "judge" not in metafunc.fixturenames:  # a test of others may have a judge of its own
            return
        declared = mark.kwargs
        subjects, ids = [], []
        for implementation in self.implementations:
            for scheme in self.schemes:
                reason = self._reason_not_to_run(declared, scheme)
                if reason is None:
                    subjects.append((implementation, scheme))
                    ids.append(f"{implementation.name}-{scheme.name}")
                    continue
                if reason:
                    self.not_run.setdefault((declared["name"], implementation.name), reason)
                if reason or not self._is_about(declared["checkpoint"], scheme):
                    self.gate.leave_out(implementation.name, scheme.name, declared["name"])
        metafunc.parametrize("subject", subjects, ids=ids)

    def _reason_not_to_run(self, declared: Mapping[str, Any], scheme: AnyScheme) -> str | None:
        """None to run the check; "" where it means nothing; else why this run leaves it out."""
        if not isinstance(scheme, declared["judge"].of) or not self._is_about(declared["checkpoint"], scheme):
            return ""
        if not declared["where"](scheme):
            return ""
        level = declared["level"](scheme)
        if not self.settings.at_least(level):
            return f"level {level} only"
        if declared["needs_gpu"] and (self.device == "cpu" or self.interpreted):
            return "needs a GPU"
        return declared["lacks"](self.settings) or None

    def _is_about(self, kind: str, scheme: AnyScheme) -> bool:
        """Whether a check of checkpoints of a kind, or of none, has something to try under a scheme."""
        if self.checkpoint is None or not kind:
            return self.checkpoint is None and not kind
        if kind == "floating":
            return self.quantises and isinstance(scheme, schemes.Scheme)
        return bool(self.checkpoint.fitting(scheme))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.deselected += len(items)
        self.gate.deselect(items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Takes over what only a worker knows: it collects, the controller does not."""
        told = getattr(node, "workeroutput", {}).get("lowbit", {})
        for check, implementation, reason in told.get("not_run", ()):
            self.not_run.setdefault((check, implementation), reason)
        self.deselected = max(self.deselected, told.get("deselected", 0))
        self.gate.hear(told)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        empty = [i for i in items if isinstance(i, pytest.Function) and _is_empty(i)]
        items[:] = [item for item in items if item not in set(empty)]

    # -- running

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        item.stash[STARTED] = time.perf_counter()
        judge = item.stash.get(JUDGE, None)
        if judge is None:
            return (yield)
        shared = item.get_closest_marker("lowbit").kwargs["alone"] and self.device == "cuda"  # type: ignore[union-attr]
        try:
            with turn(self.run.folder) if shared else nullcontext():
                result = yield
        except Unsupported as declined:
            if not judge.mismatched:  # a mismatch is not undone by declining the rest
                judge.not_run = declined.reason
                pytest.skip(f"unsupported: {declined.reason}")
            judge.notes.append(f"declined the rest: {declined.reason}")
            result = None
        except WrongForm:
            result = None
        if judge.mismatched:
            found = self._records(item, judge, "mismatch")
            waived = [record for record in found if record.status == "waived"]
            if sum(record.mismatched for record in waived) == judge.mismatched:
                judge.waived = True
                pytest.skip(f"waived: {waived[0].message}")
            whole = self._record(item, judge, "mismatch") if judge.tensors else found[0]
            pytest.fail("\n".join(terminal.record_lines(whole)), pytrace=False)
        if not judge.compared:
            raise NothingCompared(f"{node_of(item)}: the check compared nothing")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        outcome = yield
        judge = item.stash.get(JUDGE, None)
        if judge is None or (call.when != "call" and call.excinfo is None) or call.when == "teardown":
            return outcome
        if call.excinfo is None:
            status = "pass"
        elif judge.not_run is not None:
            status = "unsupported" if call.when == "call" else "not_run"
        elif judge.waived or (judge.mismatched and call.excinfo.errisinstance(pytest.fail.Exception)):
            status = "mismatch"
        else:
            status = "error"
        found = self._records(item, judge, status)
        whole = found[-1] if not judge.tensors or status == "error" else self._record(item, judge, status)
        if status == "error" and call.excinfo is not None:
            whole.message = "; ".join([told(call.excinfo.value), *judge.notes])
            if call.excinfo.errisinstance(WitnessDisagreement):
                whole.message = "references disagree (a fault of lowbit): " + whole.message
        mark(item, outcome, whole, waived=judge.waived)
        self.listing.close()
        for record in found:
            self.run.add(record)
        if self.device == "cuda":
            give_back()
        return outcome

    def _records(self, item: pytest.Item, judge: Judge, status: str) -> list[Record]:
        """One record a tensor of a checkpoint, else one of the check; waived where waivers hold."""
        found = [self._tensor_record(item, judge, tensor) for tensor in judge.tensors]
        if not found or status == "error":  # the tensors' records say what became of the others
            found.append(self._record(item, judge, status))
        return [self.gate.waive(record) for record in found]

    def _tensor_record(self, item: pytest.Item, judge: Judge, tensor: TensorOutcome) -> Record:
        found = merge(tensor.comparisons, max_samples=self.settings.max_mismatches)
        status = "not_run" if tensor.not_run else "pass" if found.ok else "mismatch"
        whole = self._record(item, judge, status, found)
        message = tensor.not_run or found.message
        diagnosis = None if found.ok else whole.diagnosis
        extra = tensor.figures.as_dict()
        return replace(whole, seconds=tensor.seconds, message=message, diagnosis=diagnosis, extra=extra)

    def _record(self, item: pytest.Item, judge: Judge, status: str, found: Comparison | None = None) -> Record:
        if found is None:
            found = merge(judge.comparisons, max_samples=self.settings.max_mismatches)
        return Record(
            run=self.run.id,
            implementation=judge.subject.name,
            version=judge.subject.version,
            scheme=judge.scheme.name,
            check=judge.check,
            device=self.device_line(),
            level=self.settings.level,
            assurance=judge.assurance,
            status=status,
            compared=found.compared,
            mismatched=found.mismatched,
            kinds=found.kinds,
            samples=found.samples,
            digests=found.digests,
            pictures=found.pictures,
            diagnosis=judge.diagnosis,
            seconds=max(0.0, time.perf_counter() - item.stash.get(STARTED, float("inf"))),
            node=node_of(item),
            message=judge.not_run or "; ".join([m for m in (found.message, *judge.notes) if m]),
            repeat=self._repeat(item, judge),
        )

    def _repeat(self, item: pytest.Item, judge: Judge) -> str:
        """The command that runs this node alone."""
        target = self.targets[self.implementations.index(judge.subject)]
        node = [node_of(item)]
        if item.config.option.pyargs:  # an installed suite: node ids are relative to wherever pytest was called
            module, _, rest = node[0].partition("::")
            node = ["--pyargs", f"lowbit.suite.{Path(module).stem}::{rest}"]
        words = ["pytest", *node, "--impl", target, "--scheme", judge.scheme.name]
        words += ["--device", self.device, "--level", self.settings.level, "--seed", str(self.settings.seed)]
        for option, value in (("--weights", self.settings.weights), ("--vectors", self.settings.vectors)):
            words += [option, value] if value else []
        return shlex.join(words)

    # -- telling

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.worker:
            session.config.workeroutput["lowbit"] = {  # type: ignore[attr-defined]
                "not_run": [[*names, reason] for names, reason in self.not_run.items()],
                "deselected": self.deselected,
                **self.gate.told(),
            }
        if self.worker or session.config.option.collectonly:
            return
        for (check, implementation), reason in sorted(self.not_run.items()):
            self.run.add(self._not_run(check, implementation, reason))
        for subject in self.implementations:
            for check, tensor, reason in self.checkpoint.left_out(self.quantises) if self.checkpoint else ():
                self.run.add(replace(self._not_run(check, subject.name, reason), extra=tensor))
        records = read_records(self.run.folder)
        for failure in self.gate.close(session, self.about | {"deselected": self.deselected}, records):
            self.run.add(failure)
            records.append(failure)
        heard = {r.implementation for r in records if r.compared and r.status != "waived"}
        silent = [i.name for i in self.implementations if i.name not in heard]
        quiet = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if quiet and (silent or self.gate.stops or any(record.failed for record in records)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if silent and quiet:
            beside = " but what is waived" if any(r.status == "waived" for r in records) else ""
            self.nothing = f"nothing was compared for {', '.join(silent)}{beside}: that is a failure, not a pass"
        (self.run.folder / LOCK).unlink(missing_ok=True)
        self.run.finish(int(session.exitstatus), deselected=self.deselected, **self.gate.about())
        self.gate.write(self.run.folder)
        report.build(self.run.folder, html=not session.config.option.no_html)

    def _not_run(self, check: str, implementation: str, reason: str) -> Record:
        version = next(i.version for i in self.implementations if i.name == implementation)
        return Record(
            run=self.run.id,
            implementation=implementation,
            version=version,
            scheme="*",
            check=check,
            device=self.device_line(),
            level=self.settings.level,
            assurance="",
            status="not_run",
            message=reason,
        )

    def pytest_report_teststatus(self, report: Any) -> Any:
        if ("status", "waived") in map(tuple, getattr(report, "user_properties", ())) and report.when == "call":
            return "waived", "w", ("WAIVED", {"yellow": True})
        return None

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if config.option.collectonly:
            return
        width = terminalreporter.config.get_terminal_writer().fullwidth
        records, about = read_records(self.run.folder), read_about(self.run.folder)
        for line in terminal.summary_lines(records, about, width=max(width, 80)):
            terminalreporter.write_line(line)
        if self.deselected:
            terminalreporter.write_line(f"lowbit: REDUCED RUN: {self.deselected} checks were deselected", yellow=True)
        for line, style in self.gate.lines(records, about, self.run.folder):
            terminalreporter.write_line(line, **style)
        if self.nothing:
            terminalreporter.write_line(f"lowbit: {self.nothing}", red=True, bold=True)
        terminalreporter.write_line(f"lowbit: report in {self.run.folder}")
        for line in github.tell(about, records) if config.option.github else ():
            terminalreporter.write_line(line)


def _is_empty(item: pytest.Function) -> bool:
    """Whether pytest made this node of the suite for an empty list of subjects."""
    spec = getattr(item, "callspec", None) if item.get_closest_marker("lowbit") else None
    return spec is not None and "subject" in spec.params and not isinstance(spec.params["subject"], tuple)
