"""srun calls whose tasks run in a container: what is added to their mounts, and what the user's checkpoint is called inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.bundle.test_batch_sh import EACH_SHELL, shell_of
from tests.unit.bundle.test_starts_sh import Shim


class Boxed(Shim):
    """A shim of a first start, in a run whose folder and node side are there, and that has a checkpoint."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        super().__init__(folder, shell)
        self.run, self.tools = folder / "home" / "runs" / "r", folder / "home" / "tools"
        self.run.mkdir(parents=True)
        self.tools.mkdir()
        self.data = folder / "data"
        (self.data / "step-5").mkdir(parents=True)
        names = 'echo " $FTRUN_RESUME_FROM $LOAD $FTRUN_STAGE_DIR"'
        self._tool("srun", f'for a; do printf "[%s]" "$a"; done; {names}')
        self.env |= {
            "FTRUN_RUN_DIR": str(self.run),
            "FTRUN_RESUME_FROM": f"{self.data}/step-5",
            "FTRUN_RESUME_ROOT": str(self.data),
            "LOAD": f"at:{self.data}/step-5",
        }
        self.shown()

    def shown(self, how: str = "auto") -> None:
        """A first start without spares, told so by batch.sh, with a parent for each rank."""
        self.brief(no="", active="", moved="", front="", pyz=f"{self.tools}/pyz")
        brief = self.talk / "shim.2"
        brief.write_text(f"_ft_shows={how} _ft_resumed_by=' LOAD'; {brief.read_text()}")

    @property
    def ours(self) -> str:
        return f"{self.run}:{self.run},{self.tools}:{self.tools}"


@pytest.fixture(params=EACH_SHELL)
def boxed(request: pytest.FixtureRequest, tmp_path: Path) -> Boxed:
    return Boxed(tmp_path, shell_of(request))


@pytest.mark.parametrize("words", ["--container-image=i", "--container-image i", "--container-name n"])
def test_a_container_gets_the_runs_folder(boxed: Boxed, words: str) -> None:
    """Under its own path, so that a rank has one name for it inside and outside."""
    assert f"[--container-mounts={boxed.ours}]" in boxed.call(*words.split(), "a")
    assert "[ftrun-rank]" in boxed.call(*words.split(), "a")


@pytest.mark.parametrize("form", ["--container-mounts=/d:/e", "--container-mounts /d:/e"])
def test_what_the_user_mounts_stays(boxed: Boxed, form: str) -> None:
    """In front of ours, in one option: Slurm hands on the last one only."""
    said = boxed.call("--container-image=i", *form.split(), "-N1", "--", "a", "--container-mounts=x")

    assert said.startswith("[--kill-on-bad-exit=0][--wait=0]"), said
    assert f"[--container-mounts=/d:/e,{boxed.ours}][--container-image=i][-N1][--][/bin/sh]" in said
    assert "[a][--container-mounts=x]" in said  # a word of the program


def test_mounts_that_the_environment_names_are_kept(boxed: Boxed) -> None:
    """An option would replace them."""
    boxed.env |= {"PYXIS_CONTAINER_IMAGE": "i", "PYXIS_CONTAINER_MOUNTS": "/d:/e"}

    assert f"[--container-mounts=/d:/e,{boxed.ours}]" in boxed.call("a")


def test_without_a_container_nothing_is_added(boxed: Boxed) -> None:
    """Not to a plain call, nor to a bundle of OCI, which has its own list of mounts and no place for the parent of a rank."""
    assert "--container-mounts" not in boxed.call("a", "--container-image=i")
    said = boxed.call("--container=bundle", "a")
    assert "--container-mounts" not in said
    assert "ftrun-rank" not in said


def test_a_checkpoint_is_named_as_the_container_shows_it(boxed: Boxed) -> None:
    """In variables, in the program's words, also within a shell's text; other paths stay as they are."""
    mounts = f"--container-mounts={boxed.data}:/ckpt"
    step, root = f"{boxed.data}/step-5", str(boxed.data)
    words = ("p", f"--load={step}", f"load {step}; ls '{step}'", f"{step}0", f"/x{step}", root)
    said = boxed.call("--container-image=i", mounts, *words)

    inside = f"[p][--load=/ckpt/step-5][load /ckpt/step-5; ls '/ckpt/step-5'][{step}0][/x{step}][/ckpt]"
    assert said.endswith(f"{inside} /ckpt/step-5 at:/ckpt/step-5"), said


def test_a_checkpoint_that_is_mounted_under_its_own_path_keeps_it(boxed: Boxed) -> None:
    """However many other names it has."""
    mounts = f"{boxed.folder}:{boxed.folder},{boxed.data}:/ckpt"

    assert f"[{boxed.data}/step-5] {boxed.data}/step-5" in boxed.call(
        "--container-image=i", "--container-mounts", mounts, f"{boxed.data}/step-5"
    )


def test_the_longest_mount_names_it(boxed: Boxed) -> None:
    """As in the container, where the deeper mount lies on top."""
    mounts = f"{boxed.folder}:/all,{boxed.data}:/ckpt:ro"

    assert " /ckpt/step-5 at:/ckpt/step-5" in boxed.call(
        "--container-image=i", f"--container-mounts={mounts}", "a"
    )


def test_a_mount_over_a_link_counts(boxed: Boxed) -> None:
    """The mount names the folder itself, the checkpoint a link to it."""
    (boxed.folder / "link").symlink_to(boxed.data)
    boxed.env["FTRUN_RESUME_FROM"] = f"{boxed.folder}/link/step-5"

    assert " /ckpt/step-5 " in boxed.call(
        "--container-image=i", f"--container-mounts={boxed.data}:/ckpt", "a"
    )


def test_staging_and_caches_are_shown(boxed: Boxed) -> None:
    """The node's memory is in every container; another folder is mounted where it is there, and a shared one is named as it is inside."""
    stage, caches = boxed.folder / "m" / "job", boxed.folder / "ftrun-cache"
    (stage / "stage" / "0.2").mkdir(parents=True)
    boxed.env |= {
        "FTRUN_STAGE_DIR": f"{stage}/stage/0.2",
        "FTRUN_STAGE_TO": str(boxed.data),
        "FTRUN_CACHE_DIR": str(caches),
    }
    said = boxed.call("--container-image=i", "a")
    assert f"{boxed.run},{stage}:{stage},{boxed.tools}" in said
    caches.mkdir()
    assert f"{stage}:{stage},{caches}:{caches},{boxed.tools}" in boxed.call("--container-image=i", "a")
    boxed.env["FTRUN_STAGE_DIR"] = str(boxed.data)

    assert boxed.call("--container-image=i", f"--container-mounts={boxed.data}:/ckpt", "a").endswith(" /ckpt")


def test_what_cannot_be_mounted_costs_the_parent_of_the_rank_and_no_more(boxed: Boxed) -> None:
    """A folder that is not here, or that the user shows something else in: the call goes on as it was typed."""
    boxed.env["FTRUN_RUN_DIR"] = f"{boxed.folder}/gone"
    assert boxed.call("--container-image=i", "a").startswith("[--container-image=i][a] ")
    boxed.env["FTRUN_RUN_DIR"] = str(boxed.run)
    mounts = f"--container-mounts=/other:/x,{boxed.folder}:/elsewhere"
    assert boxed.call("--container-image=i", mounts, "a").startswith(f"[{mounts}][--container-image=i][a] ")


def test_the_user_may_say_never(boxed: Boxed) -> None:
    """Then only what he mounts himself is there, and the checkpoint is still named as it is inside."""
    boxed.shown("never")
    mounts = f"--container-mounts={boxed.data}:/ckpt"

    assert boxed.call("--container-image=i", mounts, "a").startswith(
        f"[{mounts}][--container-image=i][a] /ckpt/step-5 "
    )
