"""Two users on a real Slurm: what one of them lays into a shared folder never runs as the other. (I/O)"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.slurm.sandbox import lifecycle
from ftrun.slurm.sandbox.handle import Sandbox

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

OTHER = 12345
SUBMITTER = pwd.getpwnam("daemon")  # whoever submits has a name, or Slurm does not know them
PATIENCE_S = 240.0
SOURCES = Path(lifecycle.__file__).resolve().parents[2]


class Shared:
    """A folder that everybody may write, as a scratch file system has it, with a folder of the submitter in it."""

    def __init__(self, box: Sandbox, root: Path) -> None:
        self.box = box
        self.folder = root / "shared"
        self.work = self.folder / "work"
        self.own = root / "own"
        self.ran = root / "ran"
        for folder, mode in ((self.folder, 0o1777), (self.work, 0o755), (self.own, 0o700), (self.ran, 0o777)):
            folder.mkdir()
            folder.chmod(mode)
        for folder in (self.work, self.own):
            os.chown(folder, SUBMITTER.pw_uid, SUBMITTER.pw_gid)
        # A copy: the checkout may lie in a home that is closed to others.
        for name in ("supervisor", "hooks", "slurm"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(SOURCES / name, root / "code" / "ftrun" / name, ignore=ignored)

    @property
    def words(self) -> str:
        """Settings that run something, each of which says as whom."""
        rows = (
            f"{hook} = 'id -u >{self.ran}/{hook}'"
            for hook in ("pre-hook", "post-hook", "on-give-up", "on-fault")
        )
        return "\n".join(rows) + "\n"

    def lay(self, path: Path, text: str | None, owner: int) -> None:
        """A file of `owner`, or a folder where there is no text."""
        path.mkdir() if text is None else path.write_text(text)
        os.chown(path, owner, owner)

    def ftrun(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """The submitter calls ftrun in their folder."""
        return self.python("-m", "ftrun.supervisor", *words, code=code)

    def python(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """A Python that everybody may start, as the submitter."""
        env = {k: v for k, v in self.box.env().items() if not k.startswith(("FTRUN_", "SBATCH_", "XDG_"))}
        env |= {
            "HOME": str(self.own),
            "FTRUN_HOME": str(self.own / "runs"),
            "FTRUN_SUPERVISOR": "none",
            "PYTHONPATH": str(self.own.parent / "code"),
        }
        user = [f"--reuid={SUBMITTER.pw_uid}", f"--regid={SUBMITTER.pw_gid}", "--clear-groups"]
        done = subprocess.run(
            ["setpriv", *user, _python(), "-P", *words],
            env=env,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert code == done.returncode, (words, done.stdout, done.stderr)
        return done

    def lives(self) -> bool:
        """Some job of the submitter's has not ended: its post-hook may run still."""
        return bool(self.box.run(["squeue", "-h", "-u", SUBMITTER.pw_name]).stdout.strip())

    def submit(self) -> tuple[str, set[str]]:
        """Submit a script, wait for its end: what was said on stderr, and which of the commands ran."""
        said = self.ftrun("sbatch", f"--output={self.own}/log", "--wrap=true", "--ft-agent=never").stderr
        give_up_s = time.monotonic() + PATIENCE_S
        while not list((self.own / "runs").glob("runs/*/attempts/1/exit*")) or self.lives():
            assert time.monotonic() < give_up_s, (
                "the script left no record of its end, or its job does not end"
            )
            time.sleep(0.2)
        return said, {path.name for path in self.ran.iterdir()}

    def kept(self) -> dict[str, object]:
        """The settings that later attempts and the supervisor go by."""
        (context,) = (self.own / "runs").glob("runs/*/submit/context.json")
        settings: dict[str, object] = json.loads(context.read_text())["settings"]
        return settings


def _python() -> str:
    found = Path("/usr/bin/python3")
    asked = [str(found), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if not found.exists() or subprocess.run(asked).returncode:
        pytest.skip("no Python 3.11 that an ordinary user may start: /usr/bin/python3")
    return str(found)


@pytest.fixture
def shared(slurm_sandbox: Sandbox) -> Iterator[Shared]:
    root = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    root.chmod(0o755)
    yield Shared(slurm_sandbox, root)
    shutil.rmtree(root)


@pytest.mark.parametrize("below", [True, False], ids=["above the folder", "in the folder"])
def test_another_users_repository_and_settings_run_nothing_as_whoever_submits_below_them(
    shared: Shared, below: bool
) -> None:
    """Neither on the node nor by what is kept for the supervisor; one line says whose file it is, and the job runs."""
    folder = shared.folder if below else shared.work
    shared.lay(folder / ".git", None, OTHER)
    shared.lay(folder / "ftrun.toml", shared.words, OTHER)
    said, ran = shared.submit()
    kept = shared.kept()
    assert set() == ran
    assert {""} == {kept[hook] for hook in ("pre-hook", "post-hook", "on-give-up", "on-fault")}
    (line,) = [line for line in said.splitlines() if "ftrun.toml" in line]
    assert f"{folder}/" in line
    assert f"user {OTHER}" in line


def test_a_projects_own_commands_run_once_they_are_trusted_and_not_before(shared: Shared) -> None:
    """A file of the submitter, cloned or unpacked: refused in one line without a job, then trusted, then changed by somebody's commit."""
    path = shared.work / "ftrun.toml"
    shared.lay(path, shared.words, SUBMITTER.pw_uid)
    refused = shared.ftrun("sbatch", "--wrap=true", code=2)
    assert f"ftrun trust {path}" in refused.stderr
    assert ("", 1) == (refused.stdout, len(refused.stderr.splitlines()))
    assert not (shared.own / "runs").exists()
    allow = "import sys; from ftrun.supervisor.config import sources, trust; import os;"
    allow += "trust.trust_file(sys.argv[1], open(sys.argv[1], 'rb').read(), sources.user_folder(os.environ))"
    shared.python("-c", allow, str(path))
    said, ran = shared.submit()
    assert ("", {"pre-hook", "post-hook"}) == (said, ran)
    assert {str(SUBMITTER.pw_uid)} == {(shared.ran / name).read_text().strip() for name in ran}
    shared.lay(path, shared.words + "# more\n", SUBMITTER.pw_uid)
    assert "has changed since it was trusted" in shared.ftrun("sbatch", "--wrap=true", code=2).stderr
