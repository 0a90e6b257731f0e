"""README's tutorial: every file that it shows does what it says, every command has the options that it needs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from lowbit import cli, packing, pipe, schemes
from lowbit.errors import Unsupported
from lowbit.implementation import Implementation, load
from lowbit.plugin import add_options, names_suite
from lowbit.references import tensors
from lowbit.schemes import Encoded

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = README.split("## Check your own kernel in five minutes")[1].split("\n## ")[0]
FILES = dict(re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)```", TUTORIAL, re.DOTALL))
(MENDED,) = re.findall(r"<!-- mended: my_decoder.py -->\n```python\n(.*?)```", TUTORIAL, re.DOTALL)
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]
COMMANDS += re.findall(r"- run: (.*)", TUTORIAL)
SCHEME = schemes.get("mxfp4_floor")


def wrong_scales(implementation: Implementation, dtype: torch.dtype) -> list[int]:
    """The scale bytes under which some code is decoded to other bits than the reference's, NaN by class."""
    codes = torch.arange(32, dtype=torch.uint8).remainder(16).repeat(256, 1)
    encoded = Encoded(codes, torch.arange(256, dtype=torch.uint8)[:, None], None)
    actual = implementation.call("dequantize", packing.pack(encoded, SCHEME), SCHEME, dtype)
    expected = tensors.dequantize(encoded, SCHEME, dtype)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    width = torch.int32 if dtype is torch.float32 else torch.int16
    differ = (actual.view(width) != expected.view(width)) & ~(actual.isnan() & expected.isnan())
    return differ.any(dim=1).nonzero()[:, 0].tolist()


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_draft_has_the_faults_that_are_told_and_the_line_mends_them(tmp_path: Path) -> None:
    text = FILES["my_decoder.py"]
    draft = load(f"{written(tmp_path, 'draft.py', text)}:IMPL")
    assert wrong_scales(draft, torch.float32) == [0, 255]
    assert wrong_scales(draft, torch.float16) == [255]
    mended = re.sub(r"    scale = byte << 23\n", MENDED, text)
    assert mended != text
    right = load(f"{written(tmp_path, 'mended.py', mended)}:IMPL")
    assert [wrong_scales(right, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)] == [[], [], []]
    with pytest.raises(Unsupported):
        right.call("dequantize", None, schemes.get("nvfp4"), torch.float32)


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here")
    return found


def compiled(tmp_path: Path, command: str) -> None:
    """Runs a command of the tutorial that calls a compiler."""
    (found,) = [line for line in COMMANDS if line.startswith(command)]
    subprocess.run([compiler(command), *shlex.split(found)[1:]], cwd=tmp_path, check=True)


def test_the_library_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "decode.cpp", FILES["decode.cpp"])
    written(tmp_path, "my_library.py", FILES["my_library.py"])
    compiled(tmp_path, "c++")
    monkeypatch.chdir(tmp_path)
    assert wrong_scales(load("my_library.py:IMPL"), torch.float32) == []


@pytest.mark.parametrize("mended", [False, True])
def test_the_pipe_tells_ties_away(tmp_path: Path, mended: bool) -> None:
    text = FILES["my_encoder.c"]
    if mended:
        text = text.replace("fabsf(x) >= middle[i]", "i % 2 ? fabsf(x) >= middle[i] : fabsf(x) > middle[i]")
    written(tmp_path, "my_encoder.c", text)
    compiled(tmp_path, "cc")
    lines = "".join(f"{line.words}\n" for line in pipe.export("e2m1"))
    done = subprocess.run(
        [str(tmp_path / "my_encoder")], input=lines, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    found = pipe.judge("e2m1", done.stdout.splitlines(), program="my_encoder", report_dir=tmp_path / "runs")
    assert found.status == (0 if mended else 1)
    assert ("ties away from zero" in str(found.record.diagnosis)) is not mended


def test_the_commands_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """Each names the suite and options that exist, verbs that exist, and files that the tutorial shows or makes."""
    made = {*FILES, "libdecode.so", "my_encoder", "lines.txt", "answers.txt"}
    for command in COMMANDS:
        words = shlex.split(command.split(" > ")[0].split(" < ")[0])
        if words[0] == "pytest":
            assert names_suite(words[1:], ROOT)
            parser = pytest.Parser(_ispytest=True)
            add_options(parser)
            known, rest = parser.parse_known_and_unknown_args(words[1:])
            assert rest == ["--pyargs"]
            module, _, attribute = known.impl[0].partition(":")
            assert f"{module}.py" in FILES
            assert attribute == "IMPL"
            assert [schemes.get(name).name for name in known.scheme] == known.scheme
        elif words[0] == "lowbit":
            with pytest.raises(SystemExit, match="0"):
                cli.main([*words[1:3], "--help"])
        elif words[0] in ("cc", "c++"):
            assert words[words.index("-o") + 1] in made
            assert {word for word in words if word.endswith((".c", ".cpp"))} <= made
        else:
            assert words[0] in ("python", "pip") or words[0].startswith("./"), command
    capsys.readouterr()


def test_the_workflow_is_short() -> None:
    workflow = FILES[".github/workflows/bits.yml"]
    assert len(workflow.splitlines()) <= 12
    assert np.all([len(line) - len(line.lstrip()) in (0, 2, 4, 6, 8) for line in workflow.splitlines()])
