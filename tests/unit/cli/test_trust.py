"""Laws of whose settings count: every file that is read x owner x mode x link x repository, as an ordinary user among others. (I/O)"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import itertools
import json
import os
import pwd
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.hooks.runtime import ownership
from ftrun.supervisor.cli import doctor, main
from ftrun.supervisor.config import settings, sources, trust
from ftrun.supervisor.config.settings import SETTINGS
from ftrun.supervisor.config.table import LIST, NOTHING, READS, RUNS, SENDS, TEXT, WRITES, Setting
from ftrun.supervisor.model import errors
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.store import run_dir

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
ME, OTHER = pwd.getpwnam("daemon"), 12345
INSTALLER = os.stat(sources.__file__).st_uid
# Loaded before the tests are somebody who may not enter the folder of the interpreter.
_USED = (grp, hashlib, json, tomllib, run_dir, ownership)


@contextlib.contextmanager
def being(user: pwd.struct_passwd) -> Iterator[None]:
    """This process as another user; root again behind it."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder that others may enter, which pytest's own is not."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="ftrun-t-")))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def lay(path: Path, text: str | None, owner: int, mode: int = 0o644) -> Path:
    """A file with this content, or a folder; of that user, who must not be known by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        path.mkdir(exist_ok=True)
    else:
        path.write_text(text)
    group = ME.pw_gid if owner == ME.pw_uid else owner
    os.chown(path, owner, group)
    path.chmod(mode)
    return path


class World:
    """Home, site and project of one user, in folders that everybody may enter."""

    def __init__(self, top: Path) -> None:
        self.home = top / "home"
        self.cwd = top / "shared" / "a" / "b"
        self.cwd.mkdir(parents=True)
        self.elsewhere = top / "elsewhere"
        self.elsewhere.mkdir()
        self.paths = {
            sources.SITE: top / "site.toml",
            sources.USER: self.home / ".config" / "ftrun" / "config.toml",
            sources.PROJECT: self.cwd / "ftrun.toml",
        }
        self.env = {"HOME": str(self.home), "FTRUN_SITE_CONFIG": str(self.paths[sources.SITE])}

    def load(self) -> sources.Config:
        return sources.load(str(self.cwd), self.env)


MODES = {0o600: True, 0o644: True, 0o664: True, 0o646: False, 0o666: False, 0o1666: False}
LINKS = ("none", "own link", "link of another")


@ROOT_ONLY
@pytest.mark.parametrize("layer", [sources.SITE, sources.USER, sources.PROJECT])
@pytest.mark.parametrize("link", LINKS)
def test_a_file_counts_where_this_user_or_root_alone_can_have_written_it(
    top: Path, layer: str, link: str
) -> None:
    """Owner x mode, by whatever link: what does not count is refused for site and user, unread with one line for a project; never half of it."""
    for owner, (mode, is_closed) in itertools.product((ME.pw_uid, 0, OTHER), MODES.items()):
        world = World(top / f"{owner}-{mode:o}")
        path = world.paths[layer]
        lay(world.elsewhere / "real" if link != "none" else path, "retries = 7\n", owner, mode)
        if link != "none":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(world.elsewhere / "real")
            os.lchown(path, ME.pw_uid if link == "own link" else OTHER, -1)
        owners = {ME.pw_uid, 0} | ({INSTALLER} if layer != sources.PROJECT else set())
        readable = owner == ME.pw_uid or mode & 0o044
        counts = is_closed and readable and owner in owners and link != "link of another"
        unread = "ignored" if layer == sources.PROJECT else "refused"
        row = (layer, link, owner, oct(mode))
        assert (*row, "counts" if counts else unread) == (*row, outcome(world))


def outcome(world: World) -> str:
    """What came of one file that says retries = 7, for this user."""
    with being(ME):
        try:
            loaded = world.load()
        except UserError:
            return "refused"
    if loaded["retries"] == 7:
        assert [] == loaded.ignored
        return "counts"
    (line,) = loaded.ignored
    assert line.startswith(f"{world.paths[sources.PROJECT]} is not read: ")
    return "ignored"


@ROOT_ONLY
@pytest.mark.parametrize("repository", [None, ME.pw_uid, 0, OTHER], ids=["none", "me", "root", "another"])
@pytest.mark.parametrize("owner", [ME.pw_uid, 0, OTHER], ids=["me", "root", "another"])
@pytest.mark.parametrize("marker", ["folder", "file", "link"])
def test_only_a_repository_of_this_user_or_root_leads_to_a_file_above_the_working_folder(
    top: Path, repository: int | None, owner: int, marker: str
) -> None:
    """`.git` of another user is none, whether folder, file or link, as for git; then a file above is unread, and told in one line."""
    world = World(top)
    above = lay(world.cwd.parent / "ftrun.toml", "retries = 7\n", owner)
    git = world.cwd.parent / ".git"
    if repository is not None:
        if marker == "link":
            git.symlink_to(lay(world.elsewhere / "git", None, ME.pw_uid))
            os.lchown(git, repository, -1)
        else:
            lay(git, None if marker == "folder" else "gitdir: x\n", repository)
        lay(world.cwd.parent, None, repository, 0o755)
    with being(ME):
        loaded = world.load()
    counts = repository in (ME.pw_uid, 0) and owner != OTHER
    assert counts is (loaded["retries"] == 7)
    assert (0 if counts or repository is None else 1) == len(loaded.ignored)
    assert all(str(above) in line and f"user {OTHER}" in line for line in loaded.ignored)


@ROOT_ONLY
def test_a_file_of_another_user_hides_none_of_mine(top: Path) -> None:
    """In a folder of my repository that everybody may write: the next file upwards counts, and one line tells of the nearer one."""
    world = World(top)
    lay(world.cwd.parent / ".git", None, ME.pw_uid)
    lay(world.cwd.parent, None, ME.pw_uid, 0o755)
    lay(world.cwd.parent / "ftrun.toml", "retries = 7\n", ME.pw_uid)
    lay(world.cwd / ".git", None, OTHER)
    theirs = lay(world.cwd / "ftrun.toml", "retries = 0\n", OTHER)
    with being(ME):
        loaded = world.load()
    assert 7 == loaded["retries"]
    assert [
        f"{theirs} is not read: {theirs} belongs to user {OTHER}, not to daemon or root"
    ] == loaded.ignored


@ROOT_ONLY
def test_root_obeys_no_users_file(top: Path) -> None:
    """An administrator who submits below a user's folder runs nothing of theirs."""
    world = World(top)
    lay(world.cwd / "ftrun.toml", "on-give-up = 'id'\n", OTHER)
    loaded = world.load()
    assert "" == loaded["on-give-up"]
    assert ("", 1) == (loaded.untrusted, len(loaded.ignored))


def test_every_file_of_settings_is_opened_by_the_one_that_looks_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever `load` opens below the folders of its layers went through `trust.read`: a new place cannot be read past it."""
    world = World(tmp_path)
    for layer, path in world.paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("on-give-up = 'id'\n" if layer == sources.PROJECT else "retries = 7\n")
    seen: list[str] = []
    opened: list[str] = []
    real = trust.read_settings_file

    def noting(path: str, also: tuple[int, ...] = ()) -> tuple[bytes, str]:
        seen.append(path)
        return real(path, also)

    monkeypatch.setattr(trust, "read_settings_file", noting)
    sys.addaudithook(lambda event, words: opened.append(str(words[0])) if event == "open" and armed else None)
    armed = True
    loaded = world.load()
    armed = False
    assert "on-give-up" in loaded.untrusted
    assert {str(path) for path in world.paths.values()} <= set(seen)
    assert {path for path in opened if path.startswith(str(tmp_path))} <= set(seen)


@pytest.mark.parametrize(("rights", "counts"), [(4, True), (6, False)], ids=["reads", "writes"])
def test_a_file_that_an_access_list_opens_to_another_user_does_not_count(
    tmp_path: Path, rights: int, counts: bool
) -> None:
    """`ls -l` shows the group's rights, and means the most that anybody in the list has."""
    path = tmp_path / "ftrun.toml"
    path.write_text("retries = 7\n")
    everyone = 0xFFFFFFFF
    rows = [(1, 6, everyone), (2, rights, OTHER), (4, 4, everyone), (16, rights, everyone), (32, 4, everyone)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
    try:
        os.setxattr(path, "system.posix_acl_access", packed)
    except OSError:
        pytest.skip("this file system has no access lists")
    content, why = trust.read_settings_file(str(path))
    assert (counts, counts) == (bool(content), not why)
    assert counts or "may be written by" in why


def test_a_pipe_in_the_place_of_a_file_holds_up_nobody(tmp_path: Path) -> None:
    """It is opened without waiting, and is no file."""
    os.mkfifo(tmp_path / "ftrun.toml")
    assert (b"", f"{tmp_path}/ftrun.toml is no file") == trust.read_settings_file(f"{tmp_path}/ftrun.toml")


# ---------------------------------------------------------------- what a value can do

# A value of each row that can do something, as somebody would write it who means harm.
HARMFUL = {
    "checkpoint": "/home/other/ckpt/*",
    "checkpoint-marker": "../../x",
    "resume-arg": "-mevil",
    "resume-env": "LD_PRELOAD={checkpoint_root}/x.so",
    "stage": "/home/other/out",
    "stage-dir": "/home/other/shm",
    "cache-base": "/home/other/cache",
    "log": "~/.ssh/id_*",
    "site-spool": "/home/other/spool",
    "recheck-step": "touch x",
    "fence-command": "touch x",
    "ssh-config": "x",
    "pyslurm-python": "./python",
    "checks": "checks.json",
    "pre-hook": "touch x",
    "post-hook": "touch x",
    "on-fault": "touch x",
    "on-give-up": "touch x",
    "home": "/home/other/runs",
    "second-opinion": "https://collector.example.org/v1",
    "second-opinion-key-file": "/home/other/key",
    "notify": "/home/other/addresses",
}


@pytest.mark.parametrize("key", [key for key, row in SETTINGS.items() if row.reach])
def test_what_a_projects_file_can_do_waits_for_trust_in_this_very_content(tmp_path: Path, key: str) -> None:
    """Each row that runs, reads or writes: untrusted, trusted, changed, put back, revoked; or it cannot stand in a project at all."""
    world = World(tmp_path)
    path, folder = world.paths[sources.PROJECT], sources.user_folder(world.env)
    text = f"retries = 7\n{key} = {[HARMFUL[key]] if SETTINGS[key].kind == LIST else HARMFUL[key]!r}\n"
    path.write_text(text)
    if SETTINGS[key].scope != "any":
        with pytest.raises(UserError, match=f"{key} cannot be set here"):
            world.load()
        return
    seen = []
    for act in ("", "allow", "change", "back", "revoke"):
        if act == "allow":
            trust.trust_file(str(path), path.read_bytes(), folder)
        if act in ("change", "back"):
            path.write_text(text + ("\n" if act == "change" else ""))
        if act == "revoke":
            assert trust.untrust_file(str(path), folder)
        loaded = world.load()
        assert 7 == loaded["retries"]  # what is harmless counts either way
        holds = loaded[key] != SETTINGS[key].default
        assert holds is not bool(loaded.untrusted)
        seen.append(loaded.untrusted.removeprefix(str(path)).split(",")[0])
        assert holds or f"{key} ({SETTINGS[key].reach})" in loaded.untrusted
        assert holds or loaded.untrusted.endswith(f"ftrun trust {path}")
    changed = " has changed since it was trusted"
    assert [" is not trusted", "", changed, "", " is not trusted"] == seen


def test_every_row_of_texts_says_what_its_value_can_do() -> None:
    """A new row without it cannot be made; one that can do something has its harmful example above."""
    for kind in (TEXT, LIST):
        with pytest.raises(TypeError, match="what its value can do"):
            Setting("new", kind, "", "New.")
    assert {key for key, row in SETTINGS.items() if row.reach} == set(HARMFUL)
    assert {row.reach for row in SETTINGS.values()} == {NOTHING, RUNS, READS, WRITES, SENDS}
    assert all(settings.reach_of_value(key, settings.parse(key, value)) for key, value in HARMFUL.items())


@pytest.mark.parametrize(
    "key",
    [
        key
        for key, row in SETTINGS.items()
        if row.scope == "any" and row.kind in (TEXT, LIST) and not row.reach
    ],
)
@pytest.mark.parametrize("text", ["/bin/sh", "touch x", "~/x", "$HOME/x", "../x", "ftrun.so"])
def test_a_row_that_says_it_can_do_nothing_takes_no_path_and_no_command(key: str, text: str) -> None:
    """Each of them reads a form of its own and refuses the rest."""
    with pytest.raises(errors.SettingError):
        settings.parse(key, text)


@pytest.mark.parametrize(
    ("key", "text", "harmless"),
    [
        ("checkpoint", "ckpt/step-*", True),
        ("checkpoint", "./.cache/run/*.pt", True),
        ("checkpoint", "ckpt/../../x/*", False),
        ("checkpoint", "ckpt/.*/x", False),  # `.*` is `..` to a shell
        ("checkpoint", "~other/ckpt/*", False),
        ("checkpoint", "$HOME/ckpt/*", False),
        ("checkpoint-marker", "DONE", True),
        ("checkpoint-marker", "/x", False),
        ("log", "logs/*.out", True),
        ("resume-arg", "--resume={checkpoint}", True),
        ("resume-arg", "--resume", True),
        ("resume-arg", "+trainer.ckpt_path={checkpoint}", True),
        ("resume-arg", "{checkpoint_root}", True),
        ("resume-arg", "--step={step}", True),
        ("resume-arg", "-c", False),
        ("resume-arg", "import os", False),
        ("resume-arg", "--config=/x", False),
        ("resume-arg", "--x=$(id)", False),
        ("resume-arg", "--x={checkpoint};id", False),
        ("resume-env", "CKPT={checkpoint}", False),  # which variables a program obeys nobody knows
    ],
)
def test_a_value_of_a_harmless_form_counts_without_trust(key: str, text: str, harmless: bool) -> None:
    """A path that stays below the working folder, an option with what ftrun puts in."""
    assert harmless is (settings.reach_of_value(key, settings.parse(key, text)) == NOTHING)


def test_what_is_said_closer_by_needs_no_trust(tmp_path: Path) -> None:
    """The command line, a #FTRUN line or a variable sets it instead, or leaves it out: then the file's word is not wanted."""
    world = World(tmp_path)
    world.paths[sources.PROJECT].write_text("on-give-up = 'id'\npre-hook = 'id'\n")
    load = sources.load
    cwd = str(world.cwd)
    assert "on-give-up (runs), pre-hook (runs)" in world.load().untrusted
    left = load(cwd, world.env | {"FTRUN_PRE_HOOK": "mine"}, own=[("on-give-up", "")])
    assert ("", "", "mine") == (left.untrusted, left["on-give-up"], left["pre-hook"])
    assert "sets pre-hook (runs):" in load(cwd, world.env, script=["--on-give-up=x"]).untrusted


# ---------------------------------------------------------------- the command and its records


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(Path(os.path.realpath(tmp_path)))
    world.paths[sources.PROJECT].write_text("on-give-up = './tell'\ncheckpoint = '/x/*'\nretries = 7\n")
    monkeypatch.chdir(world.cwd)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for key, value in world.env.items():
        monkeypatch.setenv(key, value)
    return world


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_what_is_trusted_is_kept_where_nobody_else_writes(project: World, umask: int) -> None:
    """The record 0600, its folder 0700, no folder above it open to others, whatever the umask."""
    before = os.umask(umask)
    try:
        assert 0 == main(["trust", "ftrun.toml"])
    finally:
        os.umask(before)
    records = Path(sources.user_folder(project.env)) / "trusted"
    (record,) = records.iterdir()
    assert (0o600, 0o700) == (record.stat().st_mode & 0o7777, records.stat().st_mode & 0o7777)
    for above in (records.parent, records.parent.parent):
        assert 0 == above.stat().st_mode & 0o022
    assert "" == project.load().untrusted


def test_trust_shows_what_it_allows_and_lists_and_revokes_it(
    project: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words and as JSON; a changed and a gone file are told apart."""
    path = str(project.paths[sources.PROJECT])
    assert 0 == main(["trust", "--list"])
    assert "no file is trusted\n" == capsys.readouterr().out
    assert 0 == main(["trust", "ftrun.toml", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (path, True) == (told["path"], told["trusted"])
    assert [("on-give-up", "runs", "./tell"), ("checkpoint", "reads", "/x/*")] == [
        (row["key"], row["can"], row["value"]) for row in told["settings"]
    ]
    assert 0 == main(["trust", path])
    assert f"{path} is trusted with its present content" in capsys.readouterr().out
    states = []
    for content in (None, "on-give-up = 'other'\n", ""):
        if content:
            Path(path).write_text(content)
        elif content is not None:
            Path(path).unlink()
        assert 0 == main(["trust", "--list", "--json"])
        (row,) = json.loads(capsys.readouterr().out)["files"]
        states.append((row["path"], row["state"]))
    assert [(path, "trusted"), (path, "changed"), (path, "gone")] == states
    assert 0 == main(["trust", "--revoke", "ftrun.toml"])
    assert 1 == main(["trust", "--revoke", "ftrun.toml"])
    assert "was not trusted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text", "says"),
    [
        (["trust"], "", "a FILE is wanted, or --list"),
        (["trust", "--list", "ftrun.toml"], "", "a FILE is wanted, or --list"),
        (["trust", "job.sh"], "", "only files called ftrun.toml"),
        (["trust", "ftrun.toml"], "on-give-up = 3\n", "a text is wanted"),
        (["trust", "ftrun.toml"], "home = '/x'\n", "cannot be set here"),
        (["trust", "nowhere/ftrun.toml"], "", "nowhere/ftrun.toml"),
    ],
)
def test_what_cannot_be_trusted_is_refused_in_one_line(
    project: World, capsys: pytest.CaptureFixture[str], words: list[str], text: str, says: str
) -> None:
    """Wrong usage and wrong settings: exit 2, and nothing is recorded."""
    if text:
        project.paths[sources.PROJECT].write_text(text)
    assert 2 == main(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert [] == trust.list_trusted(sources.user_folder(project.env))


@ROOT_ONLY
@pytest.mark.parametrize(("owner", "mode"), [(OTHER, 0o644), (0, 0o666), (0, 0o646)])
def test_a_file_that_another_user_could_have_written_cannot_be_trusted(
    project: World, capsys: pytest.CaptureFixture[str], owner: int, mode: int
) -> None:
    """One line says whose it is, or who may write it; there is no way to insist."""
    path = project.paths[sources.PROJECT]
    os.chown(path, owner, owner)
    path.chmod(mode)
    assert 2 == main(["trust", "ftrun.toml"])
    assert "so it cannot be trusted" in capsys.readouterr().err
    assert "" == project.load()["on-give-up"]


@ROOT_ONLY
def test_a_record_that_another_user_left_trusts_nothing(project: World) -> None:
    """Whoever can write into the folder of the records still cannot speak for this user."""
    assert 0 == main(["trust", "ftrun.toml"])
    records = Path(sources.user_folder(project.env)) / "trusted"
    (record,) = records.iterdir()
    os.chown(record, OTHER, OTHER)
    assert "is not trusted" in project.load().untrusted


def test_trust_does_not_go_with_a_file_to_another_place(project: World) -> None:
    """A trusted file moved or linked elsewhere, by whomever: its commands would run in another folder."""
    assert 0 == main(["trust", "ftrun.toml"])
    elsewhere = project.elsewhere / "ftrun.toml"
    elsewhere.symlink_to(project.paths[sources.PROJECT])
    assert "is not trusted" in sources.load(str(project.elsewhere), project.env).untrusted
    elsewhere.unlink()
    project.paths[sources.PROJECT].rename(elsewhere)
    assert "is not trusted" in sources.load(str(project.elsewhere), project.env).untrusted


def test_what_waits_or_is_unread_is_shown(project: World, capsys: pytest.CaptureFixture[str]) -> None:
    """`ftrun config show` shows the values without it, and one line on stderr."""
    assert 0 == main(["config", "show", "--json"])
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert "is not trusted, and it sets on-give-up (runs), checkpoint (reads)" in told["untrusted"]
    assert f"ftrun: {told['untrusted']}\n" == shown.err
    assert {"on-give-up": "", "retries": 7} == {
        row["key"]: row["value"] for row in told["settings"] if row["key"] in ("on-give-up", "retries")
    }


# ---------------------------------------------------------------- modules of the working folder


def test_the_question_to_a_node_runs_nothing_of_the_folder_it_is_asked_in(tmp_path: Path) -> None:
    """`ftrun doctor` in a shared folder: somebody's `ftrun` or `os.py` there is not what it imports."""
    for name in ("ftrun/__init__.py", "ftrun/hooks/__init__.py", "os.py", "site.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("open('ran', 'w').close()\n")
    words = ["sh", "-c", doctor._NODE_PROBE, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ["folder", "python"] == done.stdout.split()[:2]
    assert not (tmp_path / "ran").exists()


def test_no_module_of_ours_is_started_with_the_working_folder_on_its_path() -> None:
    """`python -m` looks there first: a json.py that another user left would run as this one. Unpacked, only a developer runs the node side."""
    unpacked = {"hooks/runtime/command_line.py"}
    root = Path(sources.__file__).resolve().parents[2]
    starts = []
    for path in sorted(
        found for room in ("supervisor", "hooks", "slurm") for found in (root / room).rglob("*")
    ):
        if path.suffix not in (".py", ".sh") or str(path.relative_to(root)) in unpacked:
            continue
        text = path.read_text()
        for found in re.finditer(r"-m[\"', \n]+ftrun", text):
            line = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
            if "python -m" not in line and "python3 -m" not in line:  # how a document says it
                starts.append(
                    (str(path.relative_to(root)), bool(re.search(r"-P|safe", text[: found.start()][-20:])))
                )
    assert [] == [name for name, is_safe in starts if not is_safe]
    assert {"supervisor/submission/start_supervisor.py", "supervisor/cli/supervise.py"} <= {
        name for name, _ in starts
    }
