"""The command `lowbit`: what it prints, how it fails, what it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest

import lowbit
from lowbit import cli, report, schemes, weights
from lowbit.doctor import Finding, Status
from lowbit.errors import ReportError
from lowbit.formats import FORMATS
from lowbit.records import Run


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "lowbit.cli", *words]


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(words) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_list_schemes(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "list")
    for part, names in zip(text.split("\n\n"), (schemes.names(), weights.names()), strict=True):
        lines = part.splitlines()
        assert lines[0].split()[0] == "name"
        assert [line.split()[0] for line in lines[1:]] == list(names)
    assert output(capsys, "list", "schemes") == text


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(output(capsys, "list", "schemes", "--json"))
    registered = (*schemes.select(), *weights.select())
    assert {row["name"] for row in rows if row["canonical"]} == {s.name for s in registered if s.canonical}
    assert {row["name"] for row in json.loads(output(capsys, "list", "formats", "--json"))} == set(FORMATS)
    rows = json.loads(output(capsys, "list", "rules", "--json"))
    assert {"rule": "nan", "name": "nan_zero", "meaning": "NaN becomes +0", "as_in": "mxfp4_floor+nan_zero"} in rows


def test_list_implementations(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(output(capsys, "list", "impls", "--json"))
    assert {"name": "lowbit_kernels", "target": "lowbit_kernels.adapter:IMPLEMENTATION"}.items() <= next(
        row for row in rows if row["name"] == "lowbit_kernels"
    ).items()
    assert "lowbit_kernels.adapter:IMPLEMENTATION" in output(capsys, "list", "impls")


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "show", "mxfp4_floor+ties_away").startswith("mxfp4_floor+ties_away\n")
    assert output(capsys, "show", "e4m3").startswith("e4m3\n")
    assert output(capsys, "show", "gptq4_v1_g96+act_order").startswith("gptq4_v1_g96+act_order\n")
    assert output(capsys, "show", "awq").startswith("awq: awq_g128, ")
    for family in ("mx4", "mxfp4", "rtn_xxfp4"):
        first = next(scheme.name for scheme in schemes.select() if scheme.family == family)
        text = output(capsys, "show", family)
        assert text.startswith(f"{family}: {first}, ")
        assert f"\n\n{first}\n" in text
    assert output(capsys, "show", "nvfp4").startswith("nvfp4\n")  # a scheme and a family: the scheme


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "explain", "mxfp4_floor", "6", "0.25", "0x3fa00000")
    assert "0x3fa00000" in text
    assert "1 | 1.5" in text


@pytest.mark.parametrize("value", ["-0", "-1.5", "-.5", "-1e-40", "-0x1.8p0", "-inf", "-nan", "-Infinity", "-1/3"])
def test_negative_values_are_no_options(capsys: pytest.CaptureFixture[str], value: str) -> None:
    text = output(capsys, "explain", "nvfp4", value, "1", "--tensor-scale", "2")
    assert "2 of 16 elements given" in text
    assert "g      2, given" in text


def test_options_of_explain(capsys: pytest.CaptureFixture[str]) -> None:
    first = output(capsys, "explain", "mxfp4_floor+stochastic", "0.2", "-4", "--seed", "1")
    assert first == output(capsys, "explain", "--seed", "1", "mxfp4_floor+stochastic", "0.2", "-4")
    assert first != output(capsys, "explain", "mxfp4_floor+stochastic", "0.2", "-4", "--seed", "2")
    assert output(capsys, "explain", "mxfp4_floor+stochastic", "1", "--seed", "-3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "nvfp5"), "want one of nvfp4, "),
        (("show", "mxfp4_flor"), "mxfp4_floor"),
        (("show", "awq_g12x"), "want one of awq_g128, "),
        (("show", "e2m9"), "want one of e2m3, e2m1, "),
        (("show", "mxpf4"), "want one of mxfp4, "),
        (("show", "nvfp5"), "a scheme or a family (see `lowbit list`), or a format (see `lowbit list formats`)"),
        (("show", "awq_g128+nested"), "got the flag 'nested' for awq_g128, want one of: through_scale_dtype"),
        (("explain", "mxfp4_floor+ties_odd", "1"), "whose rule 'ties_odd' is none of"),
        (("explain", "awq_g128", "1"), "got 'awq_g128', of stored weights, want a block scheme: "),
        (("explain", "mxfp4_floor", "one"), "value: got 'one'"),
        (("explain", "mxfp4_floor", *["1"] * 33), "values: got 33, want 1..32"),
        (("explain", "mxfp4_floor", "1", "--tensor-scale", "2"), "tensor_scale"),
    ],
)
def test_faults_are_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lowbit: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize(
    "words", [(), ("shew",), ("list", "kernels"), ("explain", "nvfp4"), ("report",), ("report", "build")]
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert "usage: lowbit" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"lowbit {lowbit.__version__}\n"


@pytest.mark.parametrize(("status", "code"), [(Status.OK, 0), (Status.WARN, 0), (Status.FAIL, 1)])
def test_doctor_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: Status, code: int
) -> None:
    monkeypatch.setattr("lowbit.doctor.examine", lambda load, name: [Finding(status, name, "found")])
    assert cli.main(["doctor"]) == code
    assert "lowbit_kernels" in capsys.readouterr().out  # the default implementation is the one examined


def test_report_build_and_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, opened = tmp_path / "index.html", []
    monkeypatch.setattr(report, "build", lambda run_dir: Path(run_dir) / "index.html", raising=False)
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    assert output(capsys, "report", "build", str(tmp_path)) == f"{page}\n"
    assert opened == []
    assert output(capsys, "report", "open", str(tmp_path)) == f"{page}\n"
    assert opened == [page.as_uri()]


def test_a_run_folder_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def build(run_dir: str) -> None:
        raise ReportError(f"run_dir: {run_dir} has no run.json")

    monkeypatch.setattr(report, "build", build, raising=False)
    assert cli.main(["report", "build", str(tmp_path)]) == 2
    assert "has no run.json" in capsys.readouterr().err


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command("show", "e2m1"), stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == cli.INTERRUPTED_PIPE
    assert done.stderr == ""


@pytest.mark.parametrize(
    "words",
    [
        *[("list",), ("list", "impls"), ("show", "nvfp4"), ("show", "e8m0"), ("show", "awq"), ("show", "nf4_b64")],
        ("explain", "nvfp4", "-1.5"),
    ],
)
def test_what_needs_no_torch_imports_none(words: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom lowbit import cli\n"
        f"assert cli.main({list(words)!r}) == 0\n"
        "print(*(name for name in ('torch', 'triton', 'numpy', 'pandas') if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr.split() == (["numpy"] if words[0] == "explain" else [])


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(command("explain", "mxfp4_floor", "-0", "-1.5"), capture_output=True, text=True, check=True)
    assert "1|00|0" in done.stdout
    done = subprocess.run(command("show", "nvfp"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def fault(words: tuple[str, ...], **options: object) -> str:
    """The message of a command that fails as it should: one line, exit code 2."""
    done = subprocess.run(command(*words), stderr=subprocess.PIPE, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("lowbit: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_files_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, reason in ((tmp_path / ("n" * 300), "too long"), (tmp_path / "file", "ot a directory")):
        assert reason in fault(("report", "build", str(folder)))
    (tmp_path / "answers").write_text("0\n")
    words = ("vectors", "judge", "e2m1", str(tmp_path / "answers"), "--report-dir", str(tmp_path / "file" / "runs"))
    assert "Not a directory" in fault(words)


def test_disk_that_is_full() -> None:
    with open("/dev/full", "w") as full:
        assert "No space left" in fault(("list",), stdout=full)


def closed(number: int, *words: str) -> subprocess.CompletedProcess[str]:
    close = f"import os, sys; os.close({number}); os.execv(sys.executable, {command(*words)!r})"
    return subprocess.run([sys.executable, "-c", close], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("number", "words", "message"),
    [
        (1, ("list",), "standard output is closed"),
        (0, ("vectors", "judge", "e2m1", "-"), "standard input is closed"),
    ],
)
def test_closed_streams(number: int, words: tuple[str, ...], message: str) -> None:
    done = closed(number, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lowbit: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_closed_stderr_leaves_stdout_alone() -> None:
    done = closed(2, "show", "nvfp5")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_narrow_console(tmp_path: Path) -> None:
    """Letters that the console's encoding lacks are escaped."""
    folder = Run.start(tmp_path / "\u6f22", {}, [], {}, 7).folder
    narrow = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        command("report", "build", str(folder)), capture_output=True, text=True, check=False, env=narrow
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "/\\u6f22/" in done.stdout


def test_what_is_nested_too_deeply(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def build(run_dir: str) -> None:
        build(run_dir)

    monkeypatch.setattr(report, "build", build, raising=False)
    assert cli.main(["report", "build", "x"]) == 2
    assert capsys.readouterr().err == "lowbit: something is nested too deeply to be read\n"


@pytest.mark.parametrize("package", ["jinja2", "jsonschema"])
def test_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    def build(run_dir: str) -> None:
        raise ModuleNotFoundError(f"No module named '{package}.x'", name=f"{package}.x")

    monkeypatch.setattr(report, "build", build, raising=False)
    assert cli.main(["report", "build", "x"]) == 2
    assert f"pip install {package}\n" in capsys.readouterr().err


def test_fault_of_lowbit_itself_is_no_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(run_dir: str) -> None:
        raise ModuleNotFoundError("No module named 'lowbit.nothing'", name="lowbit.nothing")

    monkeypatch.setattr(report, "build", build, raising=False)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["report", "build", "x"])


def test_arguments_in_messages_are_cut_and_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "\x1b[31m\u202ea\nb"]) == 2
    message = capsys.readouterr().err
    assert not set("\x1b\u202e") & set(message)
    assert message.count("\n") == 1
    assert cli.main(["explain", "mxfp4_floor", "a" * 100_000]) == 2
    message = capsys.readouterr().err
    assert len(message) < 4000
    assert "characters)" in message
    for words in (["list", "--\x1b[31m"], ["list", "--" + "a" * 100_000]):
        with pytest.raises(SystemExit, match="2"):
            cli.main(words)
        message = capsys.readouterr().err
        assert "\x1b" not in message
        assert len(message) < 4000
