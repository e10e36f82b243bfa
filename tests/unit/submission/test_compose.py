"""The submitted file: directives first, our lines, the user's bytes last."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.submission.compose import (
    ScriptError,
    compose,
    directives,
    ftrun_directives,
    shebang,
)

ATTEMPT = {"run": "r-0001", "attempt": "1", "token": "ftrun:r-0001:0:1", "run_dir": "/home/a b/runs/r"}


def user_script(composed: bytes) -> bytes:
    """What stands behind the line that the composed file names."""
    found = re.search(rb"^_ft_mark='(#ftrun-payload-\d+#)'$", composed, re.MULTILINE)
    assert found is not None
    return composed.partition(b"\n" + found[1] + b"\n")[2]


@given(st.binary())
def test_the_users_script_is_there_byte_for_byte(body: bytes) -> None:
    """Whatever bytes follow the first line, they stand unchanged behind the payload line."""
    script = b"#!/bin/sh\n" + body

    assert script == user_script(compose(script, ATTEMPT))


def test_a_composed_file_can_be_composed_again() -> None:
    """The line before the payload is one that occurs nowhere before it."""
    script = b"#!/bin/sh\n#ftrun-payload-0#\n#SBATCH -N1\necho\n"
    again = compose(compose(script, ATTEMPT), ATTEMPT)

    assert script == user_script(user_script(again))
    assert b"_ft_mark='#ftrun-payload-1#'" in compose(script, ATTEMPT)


def test_the_directive_block_ends_at_the_first_command() -> None:
    """Comments, blank lines and other schedulers' directives belong to the block; nothing behind a command does."""
    script = b"#!/bin/bash\n#SBATCH -N 2\n\n  # note\n#SBATCH hetjob\n#PBS -l x\n \t\n#BSUB -n 1\necho #SBATCH -N 3\n#SBATCH -N 4\n"

    assert [
        b"#SBATCH -N 2",
        b"",
        b"  # note",
        b"#SBATCH hetjob",
        b"#PBS -l x",
        b" \t",
        b"#BSUB -n 1",
    ] == directives(script)


def test_the_directive_block_opens_the_file() -> None:
    """Between the first line and the user's directives stands nothing, for sbatch stops at the first command."""
    composed = compose(b"#!/bin/bash\n#SBATCH -J 'a b'\n#SBATCH -N 2\necho\n", ATTEMPT)

    assert composed.startswith(b"#!/bin/sh\n#SBATCH -J 'a b'\n#SBATCH -N 2\n_ft_run=")


def test_what_is_blank_to_sbatch_alone_is_blank_to_the_shell_too() -> None:
    """Form feeds and the like before a comment are white space to sbatch and a command to a shell."""
    composed = compose(b"#!/bin/sh\n\f\v\r\n\f# a\n \f#SBATCH -N 9\n#SBATCH -N 2\necho\n", ATTEMPT)

    assert composed.startswith(b"#!/bin/sh\n\n # a\n #SBATCH -N 9\n#SBATCH -N 2\n_ft_run=")


def test_a_script_of_nothing_but_comments_is_composed() -> None:
    """Directives may end with the file, with or without a newline."""
    assert b"\n#SBATCH -N 2\n_ft_run=" in compose(b"#!/bin/sh\n#SBATCH -N 2", ATTEMPT)
    assert compose(b"#!/bin/sh", ATTEMPT).endswith(b"#\n#!/bin/sh")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (b"", "empty"),
        (b" \n\t\n", "whitespace"),
        (b"echo a\n", "does not look like"),
        (b" #!/bin/sh\n", "does not look like"),
    ],
)
def test_what_sbatch_would_refuse_is_refused(script: bytes, words: str) -> None:
    """A composed file always begins with #!, so these are caught before."""
    with pytest.raises(ScriptError, match=words):
        compose(script, ATTEMPT)


@given(st.text().filter(lambda text: "\0" not in text))
def test_values_reach_the_shell_unchanged(value: str) -> None:
    """Quotes, newlines and every other character survive; no value can run as a command."""
    line = compose(b"#!/bin/sh\n", {**ATTEMPT, "last_fault": value}).partition(b"_ft_fault=")[2]

    assert shlex.split(line.partition(b"\n_ft_why=")[0].decode()) == ([value] if value else [""])


def test_values_that_are_no_utf8_survive() -> None:
    """Paths are bytes; they travel as surrogate escapes."""
    composed = compose(b"#!/bin/sh\n", {**ATTEMPT, "checkpoint_glob": "/a\udce9/*"})

    assert b"_ft_glob='/a\xe9/*'\n" in composed


def test_a_nul_byte_in_a_value_is_refused() -> None:
    """No process can be given one."""
    with pytest.raises(ValueError, match="NUL"):
        compose(b"#!/bin/sh\n", {**ATTEMPT, "excluded": "a\0b"})


def test_a_missing_identity_is_a_mistake_of_the_caller() -> None:
    """Without run, attempt, token and folder no attempt can be claimed."""
    with pytest.raises(KeyError):
        compose(b"#!/bin/sh\n", {"run": "r"})


@pytest.mark.parametrize("shell", [["dash", "-n"], ["bash", "--posix", "-n"]])
def test_the_composed_file_parses(shell: list[str]) -> None:
    """Before the payload there is nothing a POSIX shell cannot read."""
    composed = compose(b"#!/bin/sh\n", ATTEMPT)

    assert (0, b"") == (
        (done := subprocess.run(shell, input=composed, capture_output=True)).returncode,
        done.stderr,
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"#!/bin/sh", (b"/bin/sh", b"")),
        (b"#! \t/bin/sh  -e -u \t", (b"/bin/sh", b"-e -u")),
        (b"#!/usr/bin/env\t-S bash -x", (b"/usr/bin/env", b"-S bash -x")),
        (b"#!bash", (b"./bash", b"")),
        (b"#!", (b"", b"")),
        (b"#!/bin/sh\r", (b"/bin/sh\r", b"")),
    ],
)
def test_a_shebang_is_cut_as_the_kernel_cuts_it(line: bytes, expected: tuple[bytes, bytes]) -> None:
    """One interpreter, at most one argument, blanks around them dropped."""
    assert expected == shebang(line + b"\necho\n")


def test_ftrun_lines_are_words_of_a_shell() -> None:
    """#FTRUN lines of the directive block become arguments; quotes group, # ends a line."""
    script = b"#!/bin/sh\n#FTRUN --retries=3 --log '/a b/*.log' # why\n#FTRUNX --no\n# FTRUN --no\n#FTRUN\n#FTRUN\t--observe\necho\n#FTRUN --late\n"

    assert ["--retries=3", "--log", "/a b/*.log", "--observe"] == ftrun_directives(script)


def test_an_open_quote_in_an_ftrun_line_is_named_with_its_line() -> None:
    """The user is told where to look."""
    with pytest.raises(ScriptError, match="line 3"):
        ftrun_directives(b"#!/bin/sh\n\n#FTRUN --log='x\n")
