"""`ftrun init`: what it proposes for ten scripts of each framework, and how it puts the lines in."""

from __future__ import annotations

import json
import os
import shlex
import stat
from pathlib import Path

import pytest

from ftrun.supervisor import cli
from ftrun.supervisor.submission import compose, framework_rules
from ftrun.supervisor.submission.training_script import read_script
from tests.unit.submission.init_cases import CASES, Case

NUMBERED = [
    pytest.param(name, case, id=f"{name}-{number}")
    for name, cases in CASES.items()
    for number, case in enumerate(cases)
]


def _written(folder: Path, case: Case) -> Path:
    script, python, _, _ = case
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\n#SBATCH -N1\n\n{script}\n")
    if python:
        (folder / "train.py").write_text(python)
    return path


def _as_it_stands(path: Path) -> tuple[int, int, int, bytes]:
    """What changes when a file is written."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_mode, path.read_bytes()


@pytest.mark.parametrize(("name", "case"), NUMBERED)
def test_what_is_proposed(name: str, case: Case, tmp_path: Path) -> None:
    """The framework, the lines, and one question for each thing that is not known."""
    _, _, lines, questions = case
    made = framework_rules.propose(read_script(str(_written(tmp_path, case))))
    assert made.framework == name
    assert tuple(f"#FTRUN --{key}={value}" for key, value in made.lines) == lines
    assert len(made.questions) == len(questions), made.questions
    assert all(word in told for word, told in zip(questions, made.questions, strict=True))


def test_there_are_ten_of_each() -> None:
    """And of each framework that init knows."""
    assert {name: len(cases) for name, cases in CASES.items()} == {
        one.name: 10 for one in framework_rules.FRAMEWORKS
    }


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return _written(tmp_path, CASES["PyTorch"][0])


def test_write_puts_the_lines_behind_the_directives_and_a_second_one_changes_nothing(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mode and every other byte stay; no draft is left; sbatch's reader finds the settings."""
    script.write_bytes(script.read_bytes() + b"echo '\xff' # last line without its end")
    os.chmod(script, 0o751)
    before = script.read_bytes().split(b"\n")
    assert cli.main(["init", "--write", str(script)]) == 0
    after = script.read_bytes().split(b"\n")
    assert after == [
        *before[:2],
        b"#FTRUN --checkpoint=ck/step_*.pt",
        b"#FTRUN --resume-arg=--resume={checkpoint}",
        *before[2:],
    ]
    assert stat.S_IMODE(script.stat().st_mode) == 0o751
    assert sorted(path.name for path in script.parent.iterdir()) == ["job.sh", "train.py"]
    assert compose.ftrun_directives(script.read_bytes()) == [
        "--checkpoint=ck/step_*.pt",
        "--resume-arg=--resume={checkpoint}",
    ]
    stood = _as_it_stands(script)
    capsys.readouterr()
    assert cli.main(["init", "--write", "--json", str(script)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["lines"], told["present"], told["written"]) == ([], ["checkpoint", "resume-arg"], False)
    assert _as_it_stands(script) == stood


def test_without_write_nothing_is_touched(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines, the questions and the notes are printed."""
    stood = _as_it_stands(script)
    assert cli.main(["init", str(script)]) == 0
    printed = capsys.readouterr().out
    assert "#FTRUN --checkpoint=ck/step_*.pt\n#FTRUN --resume-arg=--resume={checkpoint}\n" in printed
    assert "note: Beats:" in printed
    assert _as_it_stands(script) == stood


def test_what_the_script_says_stays(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only what is missing is proposed."""
    script.write_text(
        script.read_text().replace("#SBATCH -N1\n", "#SBATCH -N1\n#FTRUN --checkpoint=mine/*\n")
    )
    assert cli.main(["init", "--write", "--json", str(script)]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == ["#FTRUN --resume-arg=--resume={checkpoint}"]
    assert "#FTRUN --checkpoint=mine/*\n#FTRUN --resume-arg=--resume={checkpoint}\n" in script.read_text()


def test_a_link_stays_a_link_and_dos_line_ends_stay(script: Path) -> None:
    """The file that the link names is the one that changes."""
    script.write_bytes(script.read_bytes().replace(b"\n", b"\r\n"))
    link = script.parent / "link.sh"
    link.symlink_to(script)
    assert cli.main(["init", "--write", str(link)]) == 0
    assert link.is_symlink()
    assert b"#FTRUN --checkpoint=ck/step_*.pt\r\n" in script.read_bytes()


def test_a_value_with_a_space_is_one_word_of_the_directive(script: Path) -> None:
    """As the reader of #FTRUN lines splits it."""
    script.write_text(script.read_text().replace("train.py", "'my train.py'"))
    (script.parent / "train.py").rename(script.parent / "my train.py")
    (script.parent / "my train.py").write_text('import torch\ntorch.save(s, f"my ck/{n}.pt")\n')
    assert cli.main(["init", "--write", str(script)]) == 0
    line = next(line for line in script.read_text().splitlines() if "checkpoint" in line)
    assert shlex.split(line.removeprefix("#FTRUN ")) == ["--checkpoint=my ck/*.pt"]


def test_quotes_that_the_program_must_see_stay_in_the_directive(script: Path) -> None:
    """Hydra refuses an override whose value has an equals sign, as NeMo's file names have, unless it is quoted."""
    script.write_text('#!/bin/bash\npython train.py exp_manager.explicit_log_dir=r "$@"\n')
    wanted = "#FTRUN --resume-arg=\"++exp_manager.resume_from_checkpoint='{checkpoint}'\""
    assert cli.main(["init", "--write", str(script)]) == 0
    once = script.read_text()
    assert wanted in once.splitlines()
    assert cli.main(["init", "--write", str(script)]) == 0
    assert script.read_text() == once


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("echo hi\n", "no batch script"),
        ("#!/bin/sh\n#FTRUN --checkpoint='x\n", "#FTRUN"),
        (None, "No such file"),
    ],
)
def test_what_is_no_script_is_refused_in_one_line(
    content: str | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is written."""
    path = tmp_path / "job.sh"
    if content is not None:
        path.write_text(content)
    assert cli.main(["init", "--write", str(path)]) == 2
    told = capsys.readouterr().err
    assert why in told
    assert told.count("\n") == 1
    assert content is None or path.read_text() == content


def test_a_script_without_a_training_is_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As is one whose framework nobody knows."""
    (tmp_path / "job.sh").write_text("#!/bin/sh\nsleep 5\n")
    assert cli.main(["init", str(tmp_path / "job.sh")]) == 0
    assert "question: Which line starts the training?" in capsys.readouterr().out
    (tmp_path / "job.sh").write_text("#!/bin/sh\npython train.py\n")
    assert cli.main(["init", str(tmp_path / "job.sh")]) == 0
    assert "question: Which framework trains here?" in capsys.readouterr().out
