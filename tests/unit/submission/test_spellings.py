"""Every spelling of every option that any release's `sbatch --help` or manual page names goes through `ftrun sbatch` as it is.

The names come from tests/data/sbatch, which tests/matrix/spellings.py wrote in a root of each release; what is ambiguous among them follows from
the names alone, as in getopt_long.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.directives import directives
from ftrun.slurm.client.errors import Ambiguous, OptionError
from ftrun.slurm.client.options import split
from ftrun.slurm.client.releases import LONG, OPTIONAL, OPTIONS, REQUIRED, TRIED, Release, release_text
from ftrun.supervisor.config import settings
from tests.matrix.spellings import Spelling, kept
from tests.unit.submission.test_submit import planned

DATA = Path(__file__).parents[2] / "data" / "sbatch"
TOKEN = "ftrun:r-0001:00000000:1"
VALUE = "some=value 7"
RELEASES = [release for release, _ in TRIED]
# Names that no page tells, and each release takes.
UNTOLD = {"cluster", "gpus-per-socket", "tasks-per-node", "uid", "gid"}
# Asked of sbatch itself; or of ftrun, which does not leave it as it was typed (docs/sbatch.md).
# Options that `sbatch --help` of a release still lists although the program refuses them.
NAMED_ONLY = (("power", (24, 11)), ("power", (26, 5)))
NOT_THROUGH = {"help", "usage", "version", "autocomplete", "comment", "wrap", "wait"}


def spellings(release: Release) -> list[Spelling]:
    """What the program of a release takes, of what its help and its manual page name."""
    return [one for one in kept(DATA / f"{release_text(release)}.txt") if one.takes != "refused"]


def names(release: Release) -> set[str]:
    """All long names of a release, those of our table that nobody tells included."""
    ours = {
        name
        for name, (_, first, last) in LONG.items()
        if first <= release and (last is None or release <= last)
    }
    return ours | {one.name for one in spellings(release)}


def forms(one: Spelling) -> Iterator[tuple[list[str], str | None]]:
    """Every way to write an option, and the value that it has then."""
    if one.takes == "required":
        yield [f"--{one.name}={VALUE}"], VALUE
        yield [f"--{one.name}", VALUE], VALUE
        yield [f"--{one.name}="], ""
        if one.letter:
            yield [f"-{one.letter}{VALUE}"], VALUE
            yield [f"-{one.letter}", VALUE], VALUE
        return
    yield [f"--{one.name}"], None
    if one.letter:
        yield [f"-{one.letter}"], None
    if one.takes == "optional":
        yield [f"--{one.name}={VALUE}"], VALUE
        if one.letter:
            yield [f"-{one.letter}{VALUE}"], VALUE


def every(release: Release) -> list[tuple[Spelling, list[str], str | None]]:
    return [(one, words, value) for one in spellings(release) for words, value in forms(one)]


@pytest.mark.parametrize("release", RELEASES, ids=release_text)
def test_the_table_of_options_has_every_name_that_a_release_tells(release: Release) -> None:
    """With its letter, and whether it takes the next word; what only the help names is known as such."""
    known = names(release)
    for one in kept(DATA / f"{release_text(release)}.txt"):
        if one.takes == "refused":
            assert (one.name, release) in NAMED_ONLY
            continue
        takes, first, last = LONG[one.name]
        assert first <= release <= (last or release), one
        assert (takes == REQUIRED) == (one.takes == "required"), one
        assert takes == OPTIONAL or one.takes != "optional", one
        assert one.name in known
    told = {one.name for one in spellings(release)}
    sometimes = {name for name, _, first, last in OPTIONS if first <= release <= (last or release)}
    assert sometimes - told <= {"autocomplete", "external"}


@pytest.mark.parametrize("release", RELEASES, ids=release_text)
def test_every_spelling_is_read_as_the_option_that_it_is(release: Release) -> None:
    """With the version and without, on the command line and in the script; the word behind it is the script."""
    for one, words, value in every(release):
        for version in (release, None):
            if version is None and one.name == "extra" and words[0].startswith("--"):
                with pytest.raises(Ambiguous):  # it was short for another option once: the version decides
                    split([*words, "job.sh"])
                continue
            line = split([*words, "job.sh", "-N9"], version=version)
            assert (line.script, line.script_args) == ("job.sh", ("-N9",)), words
            assert line.argv() == [*words, "job.sh", "-N9"]
            assert line.has(one.name) or one.name in UNTOLD, words
            assert line.get(one.name) == value or one.name in UNTOLD, words
        quoted = " ".join(f"'{word}'" for word in words)
        assert directives(f"#!/bin/sh\n#SBATCH {quoted}\ntrue\n".encode()) == [words]


@pytest.mark.parametrize("release", RELEASES, ids=release_text)
def test_every_shortened_name_is_the_option_that_getopt_takes_it_for(release: Release) -> None:
    """A unique beginning is the option; without the version it is that one, or the version is asked for; never another one."""
    known = names(release)
    for one in spellings(release):
        value = [] if one.takes != "required" else ["v"]
        for length in range(1, len(one.name)):
            short = one.name[:length]
            meant = [short] if short in known else [name for name in known if name.startswith(short)]
            words = [f"--{short}", *value, "job.sh"]
            if len(meant) > 1:
                with pytest.raises(Ambiguous):
                    split(words, version=release)
                continue
            if meant != [one.name]:
                continue
            line = split(words, version=release)
            assert line.script == "job.sh"
            assert line.has(one.name) or one.name in UNTOLD
            assert line.argv() == words
            try:
                blind = split(words)
            except OptionError:
                continue
            assert [w.options for w in blind.words] == [w.options for w in line.words], short


def _planned(words: list[str], script: bytes, **more: Any) -> list[str]:
    context = {
        "argv": [*words, "job.sh", "arg"],
        "source": "file",
        "script_name": "job.sh",
        "run": "r-0001",
        "run_token": "ftrun:r-0001:00000000",
        "settings": settings.defaults(),
        **more,
    }
    made = planned(context, script, token=TOKEN)
    return ["job.sh" if word == made.path else word for word in made.argv]


@pytest.mark.parametrize("release", RELEASES, ids=release_text)
def test_every_spelling_reaches_sbatch_as_it_was_typed(release: Release) -> None:
    """Word for word and in its place; the options that ftrun adds stand behind them, and none where the user chose."""
    for one, words, _ in every(release):
        if one.name in NOT_THROUGH:
            continue
        added = [f"--comment={TOKEN}"] + ["--open-mode=append"] * (one.name != "open-mode")
        argv = _planned(words, b"#!/bin/sh\ntrue\n", slurm_version=release)
        assert argv == [*words, *added, "job.sh", "arg"]


@pytest.mark.parametrize("release", RELEASES, ids=release_text)
def test_every_spelling_in_a_script_stays_as_it_was_written(release: Release) -> None:
    """The lines of the user's script that sbatch reads are those of the file that it gets."""
    for one, words, _ in every(release):
        if one.name in NOT_THROUGH | {"array"}:
            continue
        script = f"#!/bin/sh\n#SBATCH {' '.join(repr(word) for word in words)}\ntrue\n".encode()
        context = {
            "argv": ["job.sh"],
            "source": "file",
            "script_name": "job.sh",
            "run": "r-0001",
            "run_token": "ftrun:r-0001:00000000",
        }
        made = planned(
            {**context, "settings": settings.defaults(), "slurm_version": release}, script, token=TOKEN
        )
        assert directives(made.content) == [words]
