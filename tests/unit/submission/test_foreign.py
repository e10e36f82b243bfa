"""Laws of #PBS and #BSUB lines: which of them sbatch reads, what they ask for, and how one is taken out."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.slurm.client import options
from ftrun.slurm.client.foreign_directives import drop_foreign, foreign_lines, foreign_words
from ftrun.supervisor.config import settings
from ftrun.supervisor.submission import compose
from tests.unit.submission.test_submit import planned

HEAD = b"#!/bin/sh\n#PBS -N name -l walltime=00:07:00,nodes=2:ppn=3\n#SBATCH -t 5\n#PBS -t 0-3 -h -W depend=afterok:7\n"


def test_lines_of_pbs_say_what_sbatch_takes_them_for() -> None:
    """Letters, long names, values of their own or glued; the resources of both kinds of PBS."""
    assert foreign_words(HEAD) == [
        "--job-name=name", "--time=00:07:00", "--nodes=2", "--ntasks=6", "--array=0-3", "--hold", "--dependency=afterok:7",
    ]  # fmt: skip
    assert foreign_words(b"#!/bin/sh\n#PBS --job_name x --out=o -qshort -l select=2:ncpus=4:mpiprocs=2\n") == [
        "--job-name=x", "--output=o", "--partition=short", "--nodes=2", "--ntasks-per-node=2",
    ]  # fmt: skip
    assert foreign_words(b"#!/bin/sh\n#PBS -v A=1\n#PBS -v B=2\n", "ALL")[-1] == "--export=ALL,A=1,B=2"


def test_lines_of_lsf_come_before_those_of_pbs() -> None:
    """Where there are any, sbatch does not look for the others."""
    assert foreign_words(b"#!/bin/sh\n#PBS -N a\n#BSUB -J b -n 2,4 -x\n") == [
        "--job-name=b",
        "--ntasks=4",
        "--exclusive",
    ]


@pytest.mark.parametrize(("commands", "seen"), [(0, True), (99, True), (100, True), (101, False)])
def test_such_lines_are_read_behind_commands_too(commands: int, *, seen: bool) -> None:
    """Down to the hundredth line that is no comment."""
    script = b"#!/bin/sh\n" + b"# remark\n" * 300 + b"true\n" * commands + b"#PBS -N late\n"
    assert bool(foreign_lines(script)) == seen


def test_an_option_that_sbatch_refuses_ends_the_reading() -> None:
    """What is behind it never counts: sbatch stops with its own words."""
    assert foreign_words(b"#!/bin/sh\n#BSUB -J a -P project -n 4\n") == ["--job-name=a"]


def test_what_was_for_the_first_start_only_is_taken_out() -> None:
    """And no other byte changes."""
    dropped = drop_foreign(HEAD, ("hold", "dependency", "begin"))
    assert dropped == HEAD.replace(b" -h -W depend=afterok:7", b"")
    assert drop_foreign(b"#!/bin/sh\n#PBS -h\ntrue\n", ("hold",)) == b"#!/bin/sh\n#\ntrue\n"


def _kept(**more: Any) -> dict[str, Any]:
    facts = {"argv": ["job.sh"], "source": "file", "script_name": "job.sh", "run": "r-0001", "run_token": "t"}
    return {**facts, "settings": settings.defaults(), **more}


def test_an_array_of_pbs_is_an_array() -> None:
    """Unless such lines are ignored, by argument, by #SBATCH line or by the environment of the submission."""
    shapes = [
        (given.shape, given.array)
        for kept in (_kept(), _kept(argv=["--ignore-pbs", "job.sh"]), _kept(foreign=False))
        for given in (options.submitted_options(kept, HEAD, {}),)
    ]
    assert shapes == [("array", "0-3"), ("single", ""), ("single", "")]


def test_the_submitted_file_says_all_that_the_users_does() -> None:
    """Lines behind the first command stand above ours; a later attempt is not held and waits for nobody."""
    script = HEAD + b"module load x\n#PBS -q short\n"
    first = compose.compose(script, {"run": "r", "attempt": "1", "token": "t", "run_dir": "/r"})
    assert foreign_words(first) == foreign_words(script)
    later = planned(_kept(), script, attempt=2, token="t:2", array="2")
    assert not {"--hold", "--dependency=afterok:7"} & {*foreign_words(later.content)}
    assert "--array=2" in later.argv
