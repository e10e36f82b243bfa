"""The choice of a checkpoint at a start, by batch.sh under each POSIX shell and by the hook that it asks."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path

import pytest

from ftrun.hooks.bundle import zipapp
from ftrun.hooks.checkpoints import diverged
from ftrun.hooks.checkpoints.diverged import Divergence
from tests.unit.bundle.test_batch_sh import Attempt, attempt, under_one_shell, wait_for
from tests.unit.bundle.test_starts_sh import COUNT, inside, plan

__all__ = ["attempt", "inside"]

TELL = '#!/bin/sh\necho "$FTRUN_RESUME_FROM|$FTRUN_RESUME_STEP|$FTRUN_RESUME_ROOT"\nfor a; do echo "[$a]"; done\n'
OLD_S = 1_000_000


def saved(path: Path, *, torn: bool = False, at_s: float = OLD_S) -> Path:
    """A file as torch.save leaves it, whole or cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 1000)
        archive.writestr("archive/version", b"3\n")
    if torn:
        path.write_bytes(path.read_bytes()[:600])
    os.utime(path, (at_s, at_s))
    return path


def with_hook(one: Attempt, content: bytes | None = None) -> Attempt:
    """The run lies in a home that has the node side."""
    home = one.folder / "my home"
    one.run_dir = home / "runs" / "r"
    one.values |= {"run_dir": str(one.run_dir), "checkpoint_verify": "structure", "checkpoint_glob": "c/*"}
    one.place.mkdir(parents=True)
    (one.run_dir / "submit").mkdir()
    (one.run_dir / "submit" / "context.json").write_text("{}")
    if content is None:
        os.symlink(zipapp.build_zipapp(str(home)), home / "tools" / "ftrun-hook.pyz")
    else:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("__main__.py", content)
        (home / "tools").mkdir()
        name = f"ftrun-hook.{hashlib.sha256(packed.getvalue()).hexdigest()}.pyz"
        (home / "tools" / name).write_bytes(packed.getvalue())
        (home / "tools" / "ftrun-hook.pyz").symlink_to(name)
    return one


def picked(one: Attempt, name: str = "pick.0.1") -> list[str]:
    return (one.place / name).read_text().splitlines()


def test_a_torn_newest_checkpoint_is_passed_over(attempt: Attempt) -> None:
    """The next older one is loaded, the log and a record say why, and frameworks get a folder that leads to it."""
    with_hook(attempt)
    for step in (10, 20):
        saved(attempt.folder / "c" / f"step_{step}.pt")
    saved(attempt.folder / "c" / "step_30.pt", torn=True)
    attempt.values["resume_arg"] = "--load={checkpoint_root}\n--step={step} {x} {checkpoint}"
    code, out, err = attempt.run(TELL)

    root = attempt.run_dir / "views" / "1.0.1"
    assert (0, f"c/step_20.pt|20|{root}\n[--load={root}]\n[--step=20 {{x}} c/step_20.pt]\n") == (code, out)
    passed = "c/step_30.pt: torn: step_30.pt "
    assert err.startswith(f"ftrun: resuming from c/step_20.pt; passed over {passed}")
    told = picked(attempt)
    assert (True, "from=c/step_20.pt") == (told[0].startswith(f"passed={passed}"), told[1])
    assert ["step_20.pt"] == os.listdir(root)
    assert (root / "step_20.pt").resolve() == attempt.folder / "c" / "step_20.pt"
    assert "resume_from=c/step_20.pt\n" in (attempt.place / "launch.0").read_text()


def test_a_good_newest_checkpoint_is_loaded_without_a_word(attempt: Attempt) -> None:
    """The user's own folder leads to it, so nothing is made, and the log is the script's alone."""
    with_hook(attempt)
    saved(attempt.folder / "c" / "step_20.pt")

    assert (0, "c/step_20.pt|20|" + f"{attempt.folder}/c\n", "") == attempt.run(TELL)
    assert not (attempt.run_dir / "views").exists()


@under_one_shell("attempt")
@pytest.mark.parametrize(
    "hook",
    [b"import time; time.sleep(600)", b"import sys; sys.exit(3)", b"print('from=/x'); print('step=9')", b"("],
    ids=["hangs", "fails", "half an answer", "cannot run"],
)
def test_without_an_answer_the_names_decide(attempt: Attempt, hook: bytes) -> None:
    """Whatever becomes of Python on the node: the script starts, with what the shell's own rule says."""
    with_hook(attempt, hook)
    saved(attempt.folder / "c" / "step_20.pt")
    saved(attempt.folder / "c" / "step_30.pt", torn=True)
    answer = attempt.run(TELL, change=(b'_ft_within 10 "$_ft_k"', b'_ft_within 1 "$_ft_k"'))

    assert (0, "c/step_30.pt|30|c\n", "") == answer
    assert not (attempt.place / "pick.0.1").exists()


@under_one_shell("attempt")
@pytest.mark.parametrize("without", ["checkpoint_glob", "checkpoint_verify"])
def test_nobody_is_asked_who_was_not_wanted(attempt: Attempt, without: str) -> None:
    """Without a glob, and with `name`, no Python is started; without a glob the script is told nothing new, either."""
    asked = attempt.folder / "asked"
    with_hook(attempt, f"open({str(asked)!r}, 'w')".encode())
    saved(attempt.folder / "c" / "step_20.pt")
    attempt.values[without] = ""
    out = attempt.run("#!/bin/sh\nenv | grep -c ^FTRUN_RESUME\n")[1]

    assert ("1\n" if without == "checkpoint_glob" else "3\n") == out
    assert not asked.exists()


@under_one_shell("attempt")
def test_a_template_that_wants_a_step_is_left_out_where_none_is_known(attempt: Attempt) -> None:
    """An argument without its number would be worse than none."""
    saved(attempt.folder / "c" / "best.pt")
    attempt.values |= {"checkpoint_glob": "c/*", "resume_arg": "--step={step}\n--from={checkpoint}"}
    attempt.values["resume_env"] = "S={step}"

    assert "c/best.pt||c\n[--from=c/best.pt]\n" == attempt.run(TELL)[1]


def note_divergence(one: Attempt, *poisons: Divergence) -> None:
    """As whoever noted it leaves it in the run's folder."""
    one.values["checkpoint_poison"] = diverged.to_lines(poisons)
    folder = one.run_dir / "diverged"
    folder.mkdir(exist_ok=True)
    for each in poisons:
        for name, at_s in ((each.name, each.until_s), (f"{each.name}.since", each.since_s)):
            if at_s is not None:
                (folder / name).write_text(diverged.to_lines([each]) + "\n")
                os.utime(folder / name, (at_s, at_s))


POISONS = [
    ("from a step on", [Divergence("1.0", 20, None, OLD_S + 50)], "step_10.pt"),
    (
        "two times",
        [Divergence("1.0", 20, None, OLD_S + 50), Divergence("1.1", 10, None, OLD_S + 5)],
        "step_10.pt",
    ),
    ("long before", [Divergence("1.0", 10, None, OLD_S - 9)], "step_30.pt"),
    ("by time", [Divergence("1.0", None, OLD_S + 15, OLD_S + 50)], "step_10.pt"),
    ("all of them", [Divergence("1.0", 5, None, OLD_S + 50)], ""),
]


@under_one_shell("attempt")
@pytest.mark.parametrize("judge", ["structure", "name"])
@pytest.mark.parametrize(("poisons", "newest"), [row[1:] for row in POISONS], ids=[row[0] for row in POISONS])
def test_what_a_diverged_training_saved_is_not_loaded(
    attempt: Attempt, poisons: list[Divergence], newest: str, judge: str
) -> None:
    """By Python and by the shell alike; what was written after that training is trusted; with nothing left the job ends and says so."""
    with_hook(attempt)
    attempt.values["checkpoint_verify"] = judge
    for step in (10, 20, 30):
        saved(attempt.folder / "c" / f"step_{step}.pt", at_s=OLD_S + step)
    note_divergence(attempt, *poisons)
    code, out, err = attempt.run(TELL)

    if newest:
        assert (0, f"c/{newest}") == (code, out.split("|")[0])
        return
    assert (1, "") == (code, out)
    assert err.startswith("ftrun: attempt 1 of r-0001 ends here: ")
    assert any(line.startswith("stuck=") and len(line) > 20 for line in picked(attempt))
    assert (attempt.place / "launch.0").exists()
    attempt.values |= {"checkpoint_fresh": "1", "attempt": "2"}
    attempt.place.mkdir()
    assert (0, "|", attempt.folder) == (*(got := attempt.run(TELL))[:1], got[1][0], attempt.folder)


@under_one_shell("attempt")
def test_what_stands_in_the_runs_folder_counts_where_nobody_told_of_it(attempt: Attempt) -> None:
    """A job that Slurm starts again by itself has the words of its first start, and may have no Python; what else lies there says nothing."""
    with_hook(attempt)
    attempt.values["checkpoint_verify"] = "name"
    for step in (10, 20, 30):
        saved(attempt.folder / "c" / f"step_{step}.pt", at_s=OLD_S + step)
    note_divergence(attempt, Divergence("1.0", 30, None, OLD_S + 50), Divergence("1.1", 20, None, OLD_S + 20))
    (attempt.run_dir / "diverged" / "half").write_text("1.2 5")
    attempt.values["checkpoint_poison"] = ""

    assert "c/step_10.pt" == attempt.run(TELL)[1].split("|")[0]


@under_one_shell("attempt")
def test_a_run_that_never_had_a_whole_checkpoint_begins_as_it_began(attempt: Attempt) -> None:
    """Killed while it wrote its first one, it starts from nothing again; had it had one before, the user would be asked."""
    with_hook(attempt)
    torn = saved(attempt.folder / "c" / "step_10.pt", torn=True)
    os.utime(torn)
    code, out, err = attempt.run(TELL)

    assert (0, "||\n") == (code, out)
    assert err.startswith("ftrun: resuming from nothing; passed over c/step_10.pt: torn: ")
    attempt.values |= {"checkpoint_had": "1", "attempt": "2"}
    attempt.place.mkdir()
    assert (1, "") == attempt.run(TELL)[:2]


@under_one_shell("attempt")
def test_a_run_that_had_checkpoints_does_not_begin_anew_where_their_folder_is_not(attempt: Attempt) -> None:
    """A file system that this node has not mounted; an empty folder was emptied by somebody, and a first start has none yet."""
    with_hook(attempt)
    attempt.values["checkpoint_glob"] = "c/d*/step_*.pt"
    assert (0, "||\n", "") == attempt.run(TELL)
    attempt.values |= {"checkpoint_had": "1", "attempt": "2"}
    attempt.place.mkdir()
    code, out, err = attempt.run(TELL)

    assert (1, "") == (code, out)
    assert f"the run had checkpoints, and {attempt.folder}/c is not there: mount it" in err
    (attempt.folder / "c").mkdir()
    attempt.values["attempt"] = "3"
    attempt.place.mkdir()
    assert (0, "||\n", "") == attempt.run(TELL)


def test_a_start_in_place_chooses_anew(inside: Attempt) -> None:
    """What the agent says of divergence holds for the next start, and the answer is kept under that start's number."""
    with_hook(inside)
    for step in (10, 20):
        saved(inside.folder / "c" / f"step_{step}.pt")
    note_divergence(inside, Divergence("1.0.1", 20, None, OLD_S + 50))
    line = inside.values.pop("checkpoint_poison")
    mark = inside.run_dir / "diverged" / "1.0.1"
    mark.write_text("")  # the first start is before all that: only the mark's time is needed at the second
    os.utime(mark, (OLD_S + 50, OLD_S + 50))
    saved(inside.folder / "c" / "step_15.pt", torn=True)
    plan(inside, f"again|nodes=a,b|fault=network|had=1|poison={line}", "end")
    code, out, err = inside.run(COUNT + 'echo "$FTRUN_RESUME_FROM $FTRUN_RESUME_STEP"\nexit 3\n')

    assert (3, "start 1\nc/step_20.pt 20\nstart 2\nc/step_10.pt 10\n") == (code, out)
    assert "ftrun: resuming from c/step_10.pt; passed over c/step_20.pt: poisoned: " in err
    wait_for((inside.place / "pick.0.2").exists)
    assert "from=c/step_10.pt" in picked(inside, "pick.0.2")
    assert "resume_from=c/step_10.pt\n" in (inside.place / "begun.0.2").read_text()


@under_one_shell("attempt")
def test_a_start_in_place_that_may_load_nothing_is_not_made(inside: Attempt) -> None:
    """The job ends as the script ended, and the supervisor says why."""
    with_hook(inside)
    saved(inside.folder / "c" / "step_20.pt")
    plan(inside, f"again|nodes=a,b|fault=checkpoint|skip={inside.folder}/c/step_20.pt", "end")

    assert (3, "start 1\n") == inside.run(COUNT + "exit 3\n")[:2]
