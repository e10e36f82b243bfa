"""Laws of what an attempt is submitted with: the first time, and every time after."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.slurm.client import options
from ftrun.slurm.client.directives import directives
from ftrun.slurm.client.options import SbatchOptions, script_options, split
from ftrun.supervisor.config import settings
from ftrun.supervisor.model.errors import SubmitImpossible, UserError
from ftrun.supervisor.store import attempt_dir, submission_context
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.submission import plan, sbatch_process
from ftrun.supervisor.submission.first_attempt import FirstAttempt
from ftrun.supervisor.submission.plan import AttemptSpec, SbatchCall, request_for

SCRIPT = b"#!/bin/bash\n#SBATCH -p main\necho hello\n"
TOKEN = "ftrun:job-0001:0123abcd:1"


def kept(*argv: str, source: str = "file", name: str = "job.sh", **more: Any) -> dict[str, Any]:
    """A submission context for these arguments."""
    return {
        "argv": list(argv),
        "source": source,
        "script_name": name,
        "run": "job-0001",
        "run_token": "ftrun:job-0001:0123abcd",
        "settings": settings.defaults(),
        **more,
    }


def planned(
    context: dict[str, Any], script: bytes, env: dict[str, str] | None = None, attempt: int = 1, **spec: Any
) -> SbatchCall:
    """The call of sbatch for an attempt of the run in /r."""
    given = options.submitted_options(context, script, env or {})
    return plan.plan_attempt(context, script, given, AttemptSpec(attempt, **spec), run_dir="/r")


def argv_of(
    *argv: str, script: bytes = SCRIPT, env: dict[str, str] | None = None, attempt: int = 1, **how: Any
) -> list[str]:
    """sbatch's arguments for an attempt, the path of the file replaced by FILE."""
    more = {key: how.pop(key) for key in ("source", "name") if key in how}
    made = planned(kept(*argv, **more), script, env, attempt, token=TOKEN, **how)
    assert made.path == f"/r/attempts/{attempt}/submitted/{more.get('name', 'job.sh') or 'script'}"
    return ["FILE" if word == made.path else word for word in made.argv]


APPENDING = "--open-mode=append"


def test_everything_typed_goes_to_sbatch_in_its_order_and_two_options_are_added() -> None:
    """Token and open mode stand behind the user's options, the copy of the script in the script's place."""
    assert argv_of("-N4", "-t", "5", "--", "job.sh", "a b") == [
        "-N4", "-t", "5", f"--comment={TOKEN}", APPENDING, "--", "FILE", "a b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "script", "comment"),
    [
        (("--comment=mine", "job.sh"), SCRIPT, f"--comment=mine {TOKEN}"),
        (("--comm", "mine too", "job.sh"), SCRIPT, f"--comment=mine too {TOKEN}"),
        (
            ("job.sh",),
            b"#!/bin/sh\n#SBATCH --comment='from the script'\n",
            f"--comment=from the script {TOKEN}",
        ),
        (("--comment=a", "job.sh"), b"#!/bin/sh\n#SBATCH --comment=b\n", f"--comment=a {TOKEN}"),
        (("--comment=", "job.sh"), SCRIPT, f"--comment={TOKEN}"),
        (
            ("--comment", ' {"APS":  {"maxRestarts": 3}} ', "job.sh"),
            SCRIPT,
            f'--comment={{"APS":  {{"maxRestarts": 3}}, "ftrun": "{TOKEN}"}}',
        ),
        (("--comment={}", "job.sh"), SCRIPT, f'--comment={{"ftrun": "{TOKEN}"}}'),
        (("--comment={mine}", "job.sh"), SCRIPT, f"--comment={{mine}} {TOKEN}"),
    ],
)
def test_the_users_comment_stays_in_front_of_the_token(
    argv: tuple[str, ...], script: bytes, comment: str
) -> None:
    """Wherever it was given; there is one comment in the end."""
    assert [word for word in argv_of(*argv, script=script) if "comm" in word] == [comment]


def test_each_component_of_a_heterogeneous_job_bears_the_token() -> None:
    """With its own comment in front of it, which is that of the component before where it has none, as sbatch has it."""
    words = argv_of("-N1", "--comment=a", ":", "-N2", "job.sh")
    assert words == [
        "-N1",
        f"--comment=a {TOKEN}",
        APPENDING,
        ":",
        "-N2",
        f"--comment=a {TOKEN}",
        APPENDING,
        "FILE",
    ]


HET = b"#!/bin/sh\n#SBATCH -n1 --comment=a\n#SBATCH hetjob\n#SBATCH -n2\n#SBATCH hetjob\n#SBATCH -n2 --comment=c\n"


def test_comments_of_components_in_the_script_stay_their_own() -> None:
    """One part of the command line counts for all components, so it is written once for each where their comments differ."""
    bearing = [f"--comment={own} {TOKEN}" for own in "aac"]
    own, *rest = [["-H", comment, APPENDING] for comment in bearing]
    assert argv_of("-H", "--", "job.sh", script=HET) == [
        *own,
        *(word for words in rest for word in (":", *words)),
        "--",
        "FILE",
    ]
    assert argv_of("--comment=mine", "job.sh", script=HET) == [f"--comment=mine {TOKEN}", APPENDING, "FILE"]


@pytest.mark.parametrize(
    ("argv", "script", "env"),
    [
        (("--open-mode=truncate", "job.sh"), SCRIPT, {}),
        (("job.sh",), b"#!/bin/sh\n#SBATCH --open-mode=t\n", {}),
        (("job.sh",), SCRIPT, {"SBATCH_OPEN_MODE": "t"}),
    ],
)
def test_the_open_mode_is_the_users_where_the_user_chose(
    argv: tuple[str, ...], script: bytes, env: dict[str, str]
) -> None:
    """On the command line, in the script or in the environment."""
    assert APPENDING not in argv_of(*argv, script=script, env=env)


def test_a_wrapped_command_goes_in_by_standard_input_under_the_name_that_sbatch_gives() -> None:
    """Unless another name was chosen."""
    script = b"#!/bin/sh\n\nhostname\n"
    assert argv_of("-N1", "--wrap=hostname", script=script, source="wrap", name="") == [
        "-N1", f"--comment={TOKEN}", APPENDING, "--job-name=wrap",
    ]  # fmt: skip
    named = argv_of("-J", "x", "--wrap=hostname", script=script, source="wrap", name="")
    assert "--job-name=wrap" not in named
    assert "--job-name=wrap" not in argv_of(
        "--wrap=x", script=script, source="wrap", name="", env={"SBATCH_JOB_NAME": "n"}
    )


def test_waiting_is_taken_out_because_ftrun_waits_for_the_run() -> None:
    """From the arguments and from the directives; the script itself keeps every byte."""
    script = b"#!/bin/sh\n#SBATCH -W -N2\n#SBATCH --wait\necho\n"
    made = planned(kept("-W", "job.sh"), script, token=TOKEN)
    assert "-W" not in made.argv
    assert directives(made.content) == [["-N2"]]
    assert made.content.endswith(script)


def test_a_later_attempt_leaves_out_what_was_meant_for_the_first_start() -> None:
    """Begin, hold, dependency and what only shaped sbatch's output; signal, requeue and no-kill stay."""
    argv = (
        "-H",
        "-b",
        "now+1hour",
        "-d",
        "afterok:5",
        "--parsable",
        "-Q",
        "--signal=B:USR1@60",
        "--requeue",
        "-k",
        "job.sh",
        "x",
    )
    script = (
        b"#!/bin/sh\n#SBATCH --hold --mem=5\n#SBATCH --dependency=singleton\n#SBATCH --no-requeue\necho\n"
    )
    made = planned(kept(*argv), script, attempt=2, token=TOKEN)
    assert made.argv == (
        "--signal=B:USR1@60",
        "--requeue",
        "-k",
        f"--comment={TOKEN}",
        APPENDING,
        made.path,
        "x",
    )
    assert directives(made.content) == [["--mem=5", "--no-requeue"]]
    again = planned(kept(*argv), script, attempt=2, token=TOKEN, dependency="afterok:9")
    assert "--dependency=afterok:9" in again.argv


@pytest.mark.parametrize("typed", ["singleton", "afterok:5,Singleton"])
def test_a_chain_of_one_name_stays_a_chain(typed: str) -> None:
    """`singleton` holds for each job of that name: a later attempt without it would run beside the next job of the chain."""
    head = f"#!/bin/sh\n#SBATCH --dependency={typed}\necho\n".encode()
    for argv, script in ((("-d", typed, "job.sh"), SCRIPT), (("job.sh",), head)):
        later = planned(kept(*argv), script, attempt=2, token=TOKEN)

        assert "--dependency=singleton" in later.argv
        assert "dependency" not in str(directives(later.content))


@pytest.mark.parametrize(
    ("argv", "script", "wanted"),
    [
        (("job.sh",), SCRIPT, {"--exclude=n[1-2]"}),
        (("-x", "n9", "job.sh"), SCRIPT, {"--exclude=n9,n[1-2]"}),
        (("job.sh",), b"#!/bin/sh\n#SBATCH --exclude=n8\n", {"--exclude=n8,n[1-2]"}),
        (("-w", "n0,n1", "job.sh"), SCRIPT, {"--exclude=n[1-2]", "--nodelist=n[0,5]"}),
        (("job.sh",), b"#!/bin/sh\n#SBATCH -w n[1-2]\n", {"--exclude=n[1-2]", "--nodelist=n[0,5]"}),
        (("-w", "n0", "job.sh"), SCRIPT, {"--exclude=n[1-2]"}),
    ],
)
def test_nodes_to_avoid_are_added_to_the_users_and_idle_ones_stand_in(
    argv: tuple[str, ...], script: bytes, wanted: set[str]
) -> None:
    """The user's own list stays as it was typed; nodes asked for by name are replaced one by one."""
    words = argv_of(*argv, script=script, attempt=2, exclude=("n1", "n2"), idle=("n0", "n5", "n6"))
    assert {word for word in words if word.startswith(("--exclude", "--nodelist"))} >= wanted
    assert len([word for word in words if word.startswith("--nodelist")]) == len(
        [w for w in wanted if "nodelist" in w]
    )


def test_an_attempt_that_must_have_the_bad_node_is_impossible() -> None:
    """And says which node it is."""
    with pytest.raises(SubmitImpossible, match="n1"):
        argv_of("-w", "n[0-1]", "job.sh", attempt=2, exclude=("n1",))


@pytest.mark.parametrize(
    ("argv", "script", "env", "shape"),
    [
        (("job.sh",), SCRIPT, {}, ("single", "")),
        (("-a", "0-9%2", "job.sh"), SCRIPT, {}, ("array", "0-9%2")),
        (("job.sh",), SCRIPT, {"SBATCH_ARRAY_INX": "1-3"}, ("array", "1-3")),
        (("job.sh",), b"#!/bin/sh\n#SBATCH --array=4\n", {}, ("array", "4")),
        (("-N1", ":", "-N2", "job.sh"), SCRIPT, {}, ("het", "")),
        (("job.sh",), b"#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\n", {}, ("het", "")),
    ],
)
def test_the_shape_of_the_job_is_seen_wherever_it_was_said(
    argv: tuple[str, ...], script: bytes, env: dict[str, str], shape: tuple[str, str]
) -> None:
    """Command line, environment or script."""
    given = SbatchOptions(split(argv), script_options(script, {}), env)
    assert (given.shape, given.array) == shape


@pytest.mark.parametrize(
    ("dependency", "moved"),
    [
        ("afterok:12", "afterok:99"),
        ("afterok:12:13+5,after:12", "afterok:99:13+5,after:99"),
        ("after:12+12:112", "after:99+12:112"),
        ("afterany:12_4?singleton", "afterany:99_4?singleton"),
        ("aftercorr:7_12", "aftercorr:7_12"),
        ("singleton", "singleton"),
    ],
)
def test_a_job_id_is_replaced_in_a_dependency_and_no_other_number(dependency: str, moved: str) -> None:
    """Delays and array tasks are numbers too."""
    assert submission_context.replace_job(dependency, "12", "99") == moved


@pytest.mark.parametrize(
    ("stdout", "found"),
    [
        (b"Submitted batch job 12\n", ("12", "")),
        (b"Submitted batch job 12 on cluster east\n", ("12", "east")),
        (b"12\n", ("12", "")),
        (b"12;east\n", ("12", "east")),
        (b"welcome\nSubmitted batch job 7\n", ("7", "")),
        (b"", None),
        (b"Hello 12\n", None),
    ],
)
def test_the_job_id_is_read_from_what_sbatch_printed(stdout: bytes, found: tuple[str, str] | None) -> None:
    """In both forms, behind whatever a plugin said first."""
    assert sbatch_process.job_id(stdout) == found


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    return store_run_dir.create_run(str(tmp_path / "home"), "job")


def test_the_context_comes_back_as_it_was(run_dir: str) -> None:
    """Byte for byte: newlines, exported functions and what is no UTF-8; readable by the owner alone."""
    env = {b"A": b"1\n2", b"BASH_FUNC_f%%": b"() {  echo\n}", b"B": b"\xff=x", b"E": b""}
    submission_context.save(
        run_dir, {**submission_context.capture(), "name": "j\udcffb"}, env, b"\0\xff script"
    )
    assert {os.fsencode(k): os.fsencode(v) for k, v in submission_context.environment(run_dir).items()} == env
    assert submission_context.script(run_dir) == b"\0\xff script"
    assert submission_context.load(run_dir)["name"] == "j\udcffb"
    assert submission_context.load(run_dir)["cwd"] == submission_context.cwd(run_dir) == os.getcwd()
    for name in ("context.json", "environment", "script"):
        assert stat.S_IMODE(os.stat(f"{run_dir}/submit/{name}").st_mode) == 0o600


def test_a_later_request_rests_on_the_kept_context_alone(run_dir: str) -> None:
    """Environment, folder, umask, limits and nice are those of the submission, whoever asks from wherever."""
    known = {
        **submission_context.capture(),
        **kept("-N2", "job.sh", "a b"),
        "umask": 0o27,
        "nice": 3,
        "cwd": "/elsewhere",
    }
    known["limits"]["NOFILE"] = [500, 600]
    submission_context.save(run_dir, known, {b"X": b"1", b"SBATCH_WAIT": b"1"}, SCRIPT)
    store_run_dir.open_attempt(run_dir, 2)
    request = request_for(run_dir, AttemptSpec(2, exclude=("n3",), last_fault="node"))
    assert request.token == "ftrun:job-0001:0123abcd:2"
    assert (request.env, request.cwd, request.umask, request.nice) == ({"X": "1"}, "/elsewhere", 0o27, 3)
    assert request.limits["NOFILE"] == (500, 600)
    path = f"{run_dir}/attempts/2/submitted/job.sh"
    assert request.argv == ("-N2", f"--comment={request.token}", APPENDING, "--exclude=n3", path, "a b")
    assert request.script is None
    assert Path(path).read_bytes().endswith(SCRIPT)


def test_a_context_that_is_gone_makes_an_attempt_impossible_in_one_line(run_dir: str) -> None:
    """The supervisor stops the run with that line."""
    with pytest.raises(SubmitImpossible, match=r"context\.json: cannot be read"):
        request_for(run_dir, AttemptSpec(2))


@pytest.mark.parametrize(("said", "goes_on"), [("off", False), ("OFF", False), ("No", False), ("set", True)])
def test_no_kill_is_read_as_sbatch_reads_it(said: str, goes_on: bool) -> None:
    """Upper case or lower: whether Slurm ends the job for a lost node must be known."""
    known = kept(f"--no-kill={said}", "-N4", "job.sh", python="/usr/bin/python3")
    known["settings"]["nodes"] = "2-4"
    given = SbatchOptions(split(["-N4", f"--no-kill={said}", "job.sh"]), [split([])], {})
    assert plan.survives_node_loss(known, given) is goes_on


# ---------------------------------------------------------------------- a submission that was suspended


@pytest.mark.parametrize("closed", [False, True])
def test_a_submission_that_was_given_up_meanwhile_calls_no_sbatch(tmp_path: Path, closed: bool) -> None:
    """P4: a supervisor closes what stands still before its sbatch; whoever goes on then is told, and makes no job that could never start."""
    called = tmp_path / "called"
    sbatch = tmp_path / "sbatch"
    refused = "sbatch: error: Batch job submission failed: Invalid partition name specified"
    sbatch.write_text(f"#!/bin/sh\ntouch {called}\necho '{refused}' >&2\nexit 1\n")
    sbatch.chmod(0o700)
    folder = store_run_dir.create_run(str(tmp_path / "home"), "train")
    asked: Any = SimpleNamespace(
        raw_env={b"PATH": os.environb[b"PATH"]}, sbatch=str(sbatch), kept=lambda *_: {}
    )
    run = FirstAttempt(asked, str(tmp_path / "home"), folder)
    run.plan = SbatchCall((), b"", "", stdin=False)
    store_run_dir.open_attempt(folder, 1)
    if closed:
        assert attempt_dir.close_attempt(folder, 1, 1, started=False) is None
        with pytest.raises(UserError, match="submit it again"):
            run.submit()
    else:
        assert run.submit() == 1

    assert called.exists() is not closed
