"""Laws of the layers of settings: who outweighs whom, what is refused, and where a value came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrun.supervisor.cli import main
from ftrun.supervisor.config import sources
from ftrun.supervisor.model.errors import UserError


class Place:
    """A home folder with a repository in it, and every layer that a file can be."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.repository = self.home / "project"
        self.cwd = self.repository / "a" / "b"
        self.site = root / "site.toml"
        self.user = self.home / ".config" / "ftrun" / "config.toml"
        self.project = self.repository / "ftrun.toml"
        self.cwd.mkdir(parents=True)
        self.user.parent.mkdir(parents=True)
        self.env = {"HOME": str(self.home), "FTRUN_SITE_CONFIG": str(self.site)}

    def load(
        self, *, script: tuple[str, ...] = (), own: tuple[tuple[str, str | None], ...] = (), **env: str
    ) -> sources.Config:
        return sources.load(str(self.cwd), {**self.env, **env}, script=script, own=own)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_later_layer_wins(place: Place) -> None:
    """default < site < user < project < script < environment < command line, one at a time."""
    seen = [(place.load()["retries"], place.load().origin["retries"][0])]
    for number, path in enumerate((place.site, place.user, place.project), start=1):
        path.write_text(f"retries = {number}\n")
        seen.append((place.load()["retries"], place.load().origin["retries"][0]))
    loaded = place.load(script=("--retries=4",))
    seen.append((loaded["retries"], loaded.origin["retries"][0]))
    loaded = place.load(script=("--retries=4",), FTRUN_RETRIES="5")
    seen.append((loaded["retries"], loaded.origin["retries"][0]))
    loaded = place.load(script=("--retries=4",), FTRUN_RETRIES="5", own=(("retries", "6"),))
    seen.append((loaded["retries"], loaded.origin["retries"][0]))
    assert seen == [
        (20, "default"),
        (1, "site"),
        (2, "user"),
        (3, "project"),
        (4, "script"),
        (5, "environment"),
        (6, "command line"),
    ]


def test_a_list_of_a_later_layer_replaces_the_earlier_and_grows_within_its_own(place: Place) -> None:
    """Given twice on one command line it has two elements; the project's are gone then."""
    place.project.write_text('log = ["p1", "p2"]\n')
    assert place.load()["log"] == ["p1", "p2"]
    assert place.load(own=(("log", "a"), ("log", "b")))["log"] == ["a", "b"]
    assert place.load(script=("--log=a", "--ft-log", "b", "--observe"))["log"] == ["a", "b"]
    assert place.load(FTRUN_LOG="x\ny")["log"] == ["x", "y"]


LOCKED = 'retries = 3\nlock = ["retries", "poll"]\n'


@pytest.mark.parametrize(
    ("where", "place_named"),
    [
        ("user", "config.toml"),
        ("project", "ftrun.toml"),
        ("script", "#FTRUN"),
        ("environment", "FTRUN_RETRIES"),
        ("command line", "command line"),
    ],
)
def test_what_the_site_locks_nobody_else_sets(place: Place, where: str, place_named: str) -> None:
    """Whatever the place, one line with that place, the setting and the site's file, exit 2; a setting at its default is locked as well."""
    place.site.write_text(LOCKED)
    assert (3, 2.0) == (place.load()["retries"], place.load()["poll"])
    for path in (place.user, place.project):
        path.write_text("retries = 9\n" if path == getattr(place, where, None) else "")
    with pytest.raises(UserError) as refused:
        place.load(
            script=("--retries=9",) * (where == "script"),
            own=(("retries", "9"),) * (where == "command line"),
            **({"FTRUN_RETRIES": "9"} if where == "environment" else {}),
        )
    assert refused.value.message.endswith(f": retries is locked by the site ({place.site}); leave it out")
    assert place_named in refused.value.message.partition(": retries")[0]
    assert refused.value.exit_code == 2
    for path in (place.user, place.project):
        path.write_text("")
    with pytest.raises(UserError, match="poll is locked by the site"):
        place.load(FTRUN_POLL="9")


def test_a_locked_setting_may_be_said_again_as_it_is(place: Place) -> None:
    """A supervisor is told its home by a variable, which is the site's own, read and made absolute."""
    place.site.write_text('home = "$SCRATCH/../x/runs"\nretries = 3\nlock = ["home", "retries"]\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCRATCH", "/scratch/anna")
        loaded = place.load(FTRUN_HOME="/scratch/x/runs", FTRUN_RETRIES="3")
        assert "/scratch/x/runs" == loaded.home({})
        assert ("site", str(place.site)) == loaded.origin["retries"] == loaded.origin["home"]
        with pytest.raises(UserError, match="FTRUN_HOME: home is locked"):
            place.load(FTRUN_HOME="/home/anna/runs")


def test_a_variable_is_no_way_around_the_sites_own_locks(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FTRUN_SITE_CONFIG names another file: what /etc's locks stays locked to /etc's value, the rest is the other file's; it may lock more."""
    real = tmp_path / "etc.toml"
    real.write_text(f"{LOCKED}log-quiet = 7\n")
    monkeypatch.setattr(sources, "SITE_CONFIG", str(real))
    place.site.write_text('drain = "never"\nlock = ["drain"]\n')
    loaded = place.load()
    assert (3, 2.0, "never") == (loaded["retries"], loaded["log-quiet"], loaded["drain"])
    assert {"retries": str(real), "poll": str(real), "drain": str(place.site)} == loaded.locked
    assert ["retries", "poll", "drain"] == loaded["lock"]
    with pytest.raises(UserError, match=r"FTRUN_DRAIN: drain is locked by the site .*site\.toml"):
        place.load(FTRUN_DRAIN="auto")
    for mine in ("retries = 9\n", "poll = 9\n", "lock = []\nretries = 9\n"):
        place.site.write_text(mine)
        with pytest.raises(UserError, match=rf"site\.toml: \w+ is locked by the site \({real}\)"):
            place.load()
    place.site.write_text("lock = []\n")
    assert {"retries", "poll"} == set(place.load().locked)


def test_what_is_locked_is_shown(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ftrun config show` says where each value came from, and which the site has locked, in words and in JSON."""
    place.site.write_text(LOCKED)
    place.user.write_text("log-quiet = 7\n")
    for name, value in (*place.env.items(), ("XDG_CONFIG_HOME", "")):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(place.cwd)
    assert 0 == main(["config", "show"])
    lines = capsys.readouterr().out.splitlines()
    begin = lines[0].index("meaning")
    rows = {line.split()[0]: line[:begin].split(maxsplit=2)[2].rstrip() for line in lines}
    assert f"site {place.site} (locked)" == " ".join(rows["retries"].split())
    assert rows["poll"].endswith(f"locked by {place.site}")
    assert rows["log-quiet"].endswith(str(place.user))
    assert all(line[begin:].strip() for line in lines)
    assert 0 == main(["config", "show", "--json"])
    told = {row["key"]: row for row in json.loads(capsys.readouterr().out)["settings"]}
    assert (str(place.site), str(place.site), None) == tuple(
        told[key]["locked"] for key in ("retries", "poll", "log-quiet")
    )
    assert ("user", str(place.user)) == (told["log-quiet"]["layer"], told["log-quiet"]["where"])


def test_a_complaint_about_a_setting_names_the_place_that_said_so(place: Place) -> None:
    """What stands in a file, a script or a variable is not before the user's eyes; what was typed just now is."""
    place.project.write_text("limit-swap = '20m'\n")
    found = place.load(
        script=("--spares=1",), own=(("recover", "swap,resubmit"),), FTRUN_LIMIT_COMPANION="20m"
    )
    assert found.blame("limit-swap: at most 9m") == f"{place.project}: limit-swap: at most 9m"
    assert found.blame("limit-companion: at most 9m") == "FTRUN_LIMIT_COMPANION: limit-companion: at most 9m"
    assert found.blame("spares: never used") == "#FTRUN: spares: never used"
    assert found.blame("recover: no") == "recover: no"
    assert found.blame("log-quiet: no") == "log-quiet: no"
    assert found.blame("sbatch says no") == "sbatch says no"


@pytest.mark.parametrize(
    ("layer", "text", "says"),
    [
        ("project", "retrys = 1\n", "did you mean 'retries'?"),
        ("project", "retries = 'x'\n", "a whole number"),
        ("project", "retries = \n", "line 1"),
        ("project", "[budget]\nnode = 1\n", "top level"),
        ("project", "home = '/x'\n", "only in: site, user, environment"),
        ("project", "nodes = '2-4'\n", "only in: script, command line"),
        ("project", "pool = 'spares'\n", "pool: 'spares' wants reservation:NAME"),
        ("project", "[policy.node]\nbudget-companion = true\n", "a whole number"),
        ("user", "lock = ['drain']\n", "only in: site"),
        ("site", "dry-run = true\n", "only in: script"),
    ],
)
def test_a_wrong_line_in_a_file_is_refused_with_the_file(
    place: Place, layer: str, text: str, says: str
) -> None:
    """One line: the file, what is wrong, what would be right."""
    path: Path = getattr(place, layer)
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        place.load()
    assert str(path) in refused.value.message
    assert says in refused.value.message


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (("--retrys=1",), "did you mean"),
        (("--retries",), "wants a value"),
        (("retries=1",), "such as --retries=10"),
    ],
)
def test_a_wrong_ftrun_line_is_refused(place: Place, script: tuple[str, ...], says: str) -> None:
    """The #FTRUN lines of a script are checked at submission."""
    with pytest.raises(UserError, match=says):
        place.load(script=script)


def test_a_variable_that_resembles_a_setting_is_refused_and_any_other_is_somebody_elses(place: Place) -> None:
    """FTRUN_RETRYS is a slip; what batch.sh exports is none."""
    with pytest.raises(UserError, match="FTRUN_RETRIES"):
        place.load(FTRUN_RETRYS="1")
    batch = ("RUN_ID", "ATTEMPT", "RESTART", "RESUME_FROM", "LAST_FAULT", "EXCLUDED", "RUN_DIR", "NNODES")
    env = {f"FTRUN_{name}": "x" for name in (*batch, "SOMETHING_OF_MINE")}
    assert sources.load(str(place.cwd), {**place.env, **env}).values == place.load().values


def test_the_project_file_is_looked_for_within_the_repository_or_the_home_only(
    place: Place, tmp_path: Path
) -> None:
    """A file further up could be anybody's."""
    (place.home / "ftrun.toml").write_text("retries = 1\n")
    assert place.load()["retries"] == 1
    (place.repository / ".git").mkdir()
    assert place.load()["retries"] == 20
    place.project.write_text("retries = 2\n")
    assert place.load()["retries"] == 2
    outside = tmp_path / "scratch" / "x"
    outside.mkdir(parents=True)
    (tmp_path / "scratch" / "ftrun.toml").write_text("retries = 3\n")
    assert sources.load(str(outside), place.env)["retries"] == 20
    (outside / "ftrun.toml").write_text("retries = 4\n")
    assert sources.load(str(outside), place.env)["retries"] == 4


def test_the_home_of_the_runs_comes_from_the_variable_the_site_or_the_usual_place(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment outweighs the site; a site may write $USER."""
    monkeypatch.setenv("USER", "ann")
    monkeypatch.setenv("HOME", str(place.home))
    assert place.load().home(place.env) == str(place.home / ".local/state/ftrun")
    place.site.write_text('home = "/shared/$USER/ftrun"\n')
    assert place.load().home(place.env) == "/shared/ann/ftrun"
    assert place.load(FTRUN_HOME="/mine").home(place.env) == "/mine"


def test_config_show_tells_where_each_value_came_from(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a table for people, as JSON for programs."""
    place.project.write_text("exclude-for = '2h'\n")
    monkeypatch.chdir(place.cwd)
    for key, value in {**place.env, "FTRUN_RETRIES": "7"}.items():
        monkeypatch.setenv(key, value)
    assert main(["config", "show", "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)["settings"]}
    assert (rows["retries"]["value"], rows["retries"]["layer"]) == (7, "environment")
    assert (rows["exclude-for"]["value"], rows["exclude-for"]["where"]) == (7200.0, str(place.project))
    assert rows["drain"]["layer"] == "default"
    assert main(["config", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["exclude-for", "2h", "project"] for line in lines)
    assert main(["config", "show", "--ft-exclude-for"]) == 0
    assert 2 == len(capsys.readouterr().out.splitlines())
    assert main(["config", "show", "exclude-fro"]) == 2
    assert "did you mean 'exclude-for'" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["file", "script", "environment", "command line"])
def test_an_old_name_says_what_it_is_called_now(place: Place, source: str) -> None:
    """Wherever it stands: one line, with the source and the new name."""
    place.user.write_text("settle = 2\n" if source == "file" else "")
    script = ("--settle=2",) if source == "script" else ()
    env = {"FTRUN_SETTLE": "2"} if source == "environment" else {}
    own = (("settle", "2"),) if source == "command line" else ()

    with pytest.raises(UserError, match="'settle' is now called 'log-quiet'") as refused:
        place.load(script=script, own=own, **env)

    where = {"file": str(place.user), "script": "#FTRUN", "environment": "FTRUN_SETTLE"}.get(source, source)
    assert refused.value.message.startswith(f"{where}: ")
    assert "\n" not in refused.value.message
