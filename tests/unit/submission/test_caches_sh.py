"""batch_caches.sh under each POSIX shell, without Slurm: which starts are told of compile caches, and where these are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.supervisor.submission import library_env
from tests.unit.bundle.test_batch_sh import (
    EACH_SHELL,
    Attempt,
    reads_after_a_signal,
    shell_of,
    under_one_shell,
)

TELL = "#!/bin/sh\nenv | grep '^TORCHIND\\|^TRITON\\|^JAX\\|^MS_\\|^ASCEND\\|^FTRUN_CACHE_DIR' | sort\n"


@pytest.fixture(params=EACH_SHELL)
def attempt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attempt]:
    name, *words = shell = shell_of(request)
    if not reads_after_a_signal(name, *words):
        pytest.skip(f"this {request.param} can read nothing any more after a signal")
    one = Attempt(tmp_path, shell)
    one.values |= {
        "caches": f"1000 {tmp_path}/my cache",
        "cache_exports": library_env.export_lines(library_env.CACHES, "auto"),
    }
    one.env["SLURM_JOB_NUM_NODES"] = "1"
    yield one
    assert [] == list((tmp_path / "my tmp").iterdir())


def told(attempt: Attempt, script: str = TELL) -> dict[str, str]:
    code, out, err = attempt.run(script)
    assert (code, err) == (0, "")
    return dict(line.split("=", 1) for line in out.splitlines())


def test_a_script_is_told_where_its_frameworks_keep_what_they_compile(attempt: Attempt) -> None:
    """All in one folder of the node, which is this user's alone; whoever fills it finds it noted in the run's folder."""
    where = f"{attempt.folder}/my cache"
    code, out, _ = attempt.run(TELL + f"stat -c %a '{where}'\n")

    assert code == 0
    assert out.splitlines() == [
        f"FTRUN_CACHE_DIR={where}",
        f"JAX_COMPILATION_CACHE_DIR={where}/jax",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0",
        f"TORCHINDUCTOR_CACHE_DIR={where}/inductor",
        "TORCHINDUCTOR_FX_GRAPH_CACHE=1",
        f"TRITON_CACHE_DIR={where}/triton",
        "700",
    ]
    assert (attempt.run_dir / "caches" / "where").read_text() == f"1000 {where}\n"


@under_one_shell("attempt")
@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        ("TRITON_CACHE_DIR", "", {"TRITON_CACHE_DIR"}),
        ("TRITON_HOME", "/scratch/me", {"TRITON_CACHE_DIR"}),
        ("TORCHINDUCTOR_CACHE_DIR", "/scratch/me", {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}),
        (
            "JAX_COMPILATION_CACHE_DIR",
            "gs://mine",
            {"JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"},
        ),
    ],
)
def test_what_the_user_chose_stays_and_with_it_what_depends_on_it(
    attempt: Attempt, name: str, value: str, left: set[str]
) -> None:
    """A variable that is set, if only to nothing, is the user's; nothing is moved away from beside it."""
    usual = told(attempt)
    attempt.env |= {name: value, "SLURM_RESTART_COUNT": "1"}

    now = told(attempt)

    assert {key for key in usual if usual[key] != now.get(key)} == left
    assert name not in now or now[name] == value


def test_who_switches_mindspores_cache_on_is_warned_once(attempt: Attempt) -> None:
    """In the job's log, at the first start of the run."""
    attempt.values["cache_exports"] = library_env.export_lines(library_env.CACHES, "all")
    _, out, err = attempt.run(TELL)
    attempt.env["SLURM_RESTART_COUNT"] = "1"
    later = attempt.run(TELL)

    assert err.startswith("ftrun: caches=all: MindSpore's cache of graphs is on. It has given wrong results")
    assert (err.count("\n"), later[2]) == (1, "")
    assert all("MS_COMPILER_CACHE_ENABLE=1\n" in one for one in (out, later[1]))


def test_without_the_setting_nothing_is_set_and_nothing_made(attempt: Attempt) -> None:
    """The environment is Slurm's, and the run's folder has no caches."""
    attempt.values |= {"caches": "", "cache_exports": ""}

    assert told(attempt) == {}
    assert not (attempt.run_dir / "caches").exists()


@pytest.mark.parametrize("harm", ["file", "link", "refused"])
def test_a_folder_that_is_not_ours_is_told_to_nobody(attempt: Attempt, harm: str) -> None:
    """Code out of it would be run; the script starts as it would without us."""
    place = attempt.folder / "my cache"
    if harm == "file":
        place.write_text("")
    elif harm == "link":
        (attempt.folder / "other").mkdir()
        place.symlink_to("other")
    else:
        (attempt.run_dir / "caches").mkdir()
        (attempt.run_dir / "caches" / "refused").write_text("{}")

    code, out, err = attempt.run(TELL)

    assert (code, out) == (0, "")
    assert ("is not this user's alone" in err) is (harm != "refused")


def test_a_task_of_an_array_has_no_caches(attempt: Attempt) -> None:
    """A thousand tasks would merge into one folder."""
    attempt.env |= {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "7"}

    assert told(attempt) == {}


def test_a_later_launch_on_nodes_that_nobody_asked_is_told_only_of_its_own(attempt: Attempt) -> None:
    """Without the node side of ftrun one node can answer for itself, and not for others."""
    attempt.env["SLURM_RESTART_COUNT"] = "1"
    one = told(attempt)
    attempt.env |= {"SLURM_RESTART_COUNT": "2", "SLURM_JOB_NUM_NODES": "2"}

    assert one
    assert told(attempt) == {}


def test_where_the_script_ended_well_nothing_stays_on_the_node(attempt: Attempt) -> None:
    """The run is over; what failed finds its caches again."""
    where = attempt.folder / "my cache"
    attempt.run('#!/bin/sh\nmkdir "$TRITON_CACHE_DIR"\nexit 1\n')
    kept = sorted(os.listdir(where))
    attempt.env["SLURM_RESTART_COUNT"] = "1"
    attempt.run("#!/bin/sh\nexit 0\n")

    assert kept == ["triton"]
    assert not where.exists()


def test_a_list_of_exports_names_them_to_srun(attempt: Attempt) -> None:
    """With --export=NONE a task would see none of them."""
    attempt.env["SLURM_EXPORT_ENV"] = "NONE"
    out = attempt.run("#!/bin/sh\necho $SLURM_EXPORT_ENV\n")[1]

    assert {"FTRUN_CACHE_DIR", "TRITON_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR"} <= set(out.strip().split(","))


@pytest.mark.parametrize("left", ["", "unswept.1.0", "gpu/1.pack", "epoch"])
def test_a_later_launch_asks_the_nodes_only_where_something_may_be_there(attempt: Attempt, left: str) -> None:
    """Entries to fill in, or what an earlier launch left and no sweep has looked at; else it is told as the first one is."""
    caches = attempt.run_dir / "caches"
    if left:
        (caches / left).parent.mkdir(parents=True)
        (caches / left).write_text("")
    tools = attempt.run_dir / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "ftrun-hook.pyz").write_text("")
    called = attempt.folder / "called"
    (attempt.folder / "srun").write_text(f"#!/bin/sh\necho \"$@\" >>'{called}'\n")
    (attempt.folder / "srun").chmod(0o755)
    (attempt.folder / "scontrol").symlink_to("/bin/true")
    attempt.values |= {"clients": str(attempt.folder)}
    attempt.env["SLURM_RESTART_COUNT"] = "1"

    code, out, _ = attempt.run(TELL)

    assert (code, "FTRUN_CACHE_DIR=" in out) == (0, True)
    assert called.exists() is bool(left)
    assert (caches / "unswept.1.1").stat().st_mode & 0o777 == 0o600
