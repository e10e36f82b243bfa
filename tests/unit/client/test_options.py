"""Laws of splitting an argument list as sbatch does. The referee is the C library's own getopt_long."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.slurm.client import releases
from ftrun.slurm.client.directives import directives
from ftrun.slurm.client.errors import Ambiguous, OptionError, UnknownOption
from ftrun.slurm.client.options import drop_directives, split
from ftrun.slurm.client.releases import LONG, NONE, OPTIONAL, REQUIRED, SHORT

NEWEST = (26, 5)


@pytest.mark.parametrize(
    "typed",
    [["-N4"], ["-N", "4"], ["--nodes=4"], ["--nodes", "4"], ["--nodes=2", "-N4"], ["-HN4"], ["-HN", "4"]],
)
def test_every_spelling_of_an_option_is_the_same_option(typed: list[str]) -> None:
    """However four nodes are asked for, and the last word on it counts."""
    line = split([*typed, "job.sh", "-N9"])
    assert line.get("nodes") == "4"
    assert (line.script, line.script_args) == ("job.sh", ("-N9",))


@pytest.mark.parametrize(
    ("typed", "script", "args"),
    [
        ("job.sh", "job.sh", ()),
        ("job.sh -N4 --ft-retries=3", "job.sh", ("-N4", "--ft-retries=3")),
        ("-N 4 job.sh", "job.sh", ()),
        ("-k job.sh", "job.sh", ()),
        ("-koff job.sh", "job.sh", ()),
        ("--exclusive job.sh", "job.sh", ()),
        ("--exclusive=user job.sh a", "job.sh", ("a",)),
        ("--comment job.sh", None, ()),
        ("--comment -x job.sh", "job.sh", ()),
        ("-- -job.sh -x", "-job.sh", ("-x",)),
        ("-H -- job.sh -- x", "job.sh", ("--", "x")),
        ("- x", "-", ("x",)),
        ("--wrap=hostname", None, ()),
        ("-N1 : -N2 job.sh : x", "job.sh", (":", "x")),
    ],
)
def test_the_script_is_the_first_word_that_is_no_option(
    typed: str, script: str | None, args: tuple[str, ...]
) -> None:
    """Options end where getopt_long with a leading plus ends them."""
    line = split(typed.split())
    assert (line.script, line.script_args) == (script, args)


@given(
    st.lists(
        st.sampled_from(
            ["-N4", "-H", "--time=5", "-t", "5", "--hold", ":", "-koff", "--", "a b", "-Hn4", "--comm=x"]
        )
    )
)
def test_what_is_not_changed_comes_out_as_it_was_typed(typed: list[str]) -> None:
    """Splitting and joining again gives every token back, in order."""
    try:
        line = split(typed)
    except OptionError:
        return
    assert line.argv() == typed


class _Option(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("has_arg", ctypes.c_int),
        ("flag", ctypes.c_void_p),
        ("val", ctypes.c_int),
    )


def _getopt(
    argv: list[str], version: tuple[int, int]
) -> tuple[list[tuple[str, str | None]], list[str]] | None:
    """What glibc makes of these arguments; None where it complains."""
    libc = ctypes.CDLL(None)
    names = [
        n for n, (_, since, until) in LONG.items() if since <= version and (until is None or version <= until)
    ]
    letters = {name: letter for letter, name in SHORT.items()}
    values = {name: ord(letters[name]) if name in letters else 1000 + i for i, name in enumerate(names)}
    back = {value: name for name, value in values.items()}
    table = (_Option * (len(names) + 1))(
        *[_Option(n.encode(), LONG[n][0], None, values[n]) for n in names], _Option(None, 0, None, 0)
    )
    marks = {NONE: "", REQUIRED: ":", OPTIONAL: "::"}
    short = "+" + "".join(letter + marks[LONG[name][0]] for letter, name in SHORT.items())
    words = (ctypes.c_char_p * (len(argv) + 2))(b"sbatch", *[w.encode() for w in argv], None)
    ctypes.c_int.in_dll(libc, "optind").value = 0
    ctypes.c_int.in_dll(libc, "opterr").value = 0
    found: list[tuple[str, str | None]] = []
    while (code := libc.getopt_long(len(argv) + 1, words, short.encode(), table, None)) != -1:
        if code == ord("?"):
            return None
        value = ctypes.c_char_p.in_dll(libc, "optarg").value
        found.append(
            (releases.SAME_OPTION.get(back[code], back[code]), None if value is None else value.decode())
        )
    optind = ctypes.c_int.in_dll(libc, "optind").value
    return found, [w.decode() for w in words[optind : len(argv) + 1] if w is not None]


_names = st.sampled_from(sorted(LONG))
_values = st.sampled_from(["4", "", "a b", "-N", "x=y", "--hold"])
_words = st.one_of(
    st.builds(lambda n: f"--{n}", _names),
    st.builds(lambda n, k: f"--{n[:k]}", _names, st.integers(1, 8)),
    st.builds(lambda n, v: f"--{n}={v}", _names, _values),
    st.builds(lambda n, k, v: f"--{n[:k]}={v}", _names, st.integers(1, 8), _values),
    st.builds(lambda a: "-" + "".join(a), st.lists(st.sampled_from(sorted(SHORT)), min_size=1, max_size=4)),
    st.builds(lambda a, v: f"-{a}{v}", st.sampled_from(sorted(SHORT)), st.sampled_from(["4", "HW", "x"])),
    _values,
    st.sampled_from(["--", "-", "job.sh", "-?", "--nonsense"]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_words, max_size=6), st.sampled_from([(22, 5), (23, 11), (25, 5), (26, 5)]))
def test_the_split_agrees_with_the_c_library(argv: list[str], version: tuple[int, int]) -> None:
    """For any arguments and any version: the same options with the same values, the same rest, the same refusals."""
    expected = _getopt(argv, version)
    try:
        line = split(argv, version=version)
    except OptionError:
        assert expected is None
        return
    assert expected is not None
    rest = [] if line.script is None else [line.script, *line.script_args]
    assert ([o for word in line.words for o in word.options], rest) == expected


def test_a_short_form_that_another_version_reads_otherwise_needs_the_version() -> None:
    """`--res` is the reservation on 22.05 and could be three things on 26.05."""
    with pytest.raises(Ambiguous):
        split(["--res=x", "job.sh"])
    assert split(["--res=x", "job.sh"], version=(22, 5)).get("reservation") == "x"
    with pytest.raises(Ambiguous):
        split(["--res=x", "job.sh"], version=NEWEST)


def test_an_option_of_a_plugin_is_read_from_the_help() -> None:
    """A plugin's option may take a value, and only sbatch's own help tells so."""
    help_text = "Options provided by plugins:\n      --pyxis-image=[USER@]IMG  image\n      --warm[=level]  heat\n      --cold   no\n"
    extra = releases.plugin_options(help_text)
    assert extra == {"pyxis-image": REQUIRED, "warm": OPTIONAL, "cold": NONE}
    assert split(["--pyxis-image", "a", "--cold", "job.sh"], extra=extra).script == "job.sh"
    with pytest.raises(UnknownOption):
        split(["--pyxis-image", "a", "job.sh"])


def test_options_of_ours_are_taken_out_in_both_forms() -> None:
    """`--ft-x value` and `--ft-x=value` leave no trace in what sbatch gets."""
    line = split(
        ["-N2", "--ft-retries", "3", "--ft-observe", "--ft-log=a=b", "job.sh", "--ft-x"],
        own=lambda name: name == "retries",
    )
    assert line.own == (("retries", "3"), ("observe", None), ("log", "a=b"))
    assert line.argv() == ["-N2", "job.sh", "--ft-x"]


@pytest.mark.parametrize(
    ("typed", "names", "left"),
    [
        ("-HWn4 job.sh", ("wait",), ["--hold", "--ntasks=4", "job.sh"]),
        ("-W -N1 job.sh -W", ("wait",), ["-N1", "job.sh", "-W"]),
        ("--dependency afterok:1 --hold -d singleton x", ("dependency", "hold"), ["x"]),
        ("-N1 -W : -W -N2 x", ("wait",), ["-N1", ":", "-N2", "x"]),
    ],
)
def test_an_option_is_removed_and_nothing_else(typed: str, names: tuple[str, ...], left: list[str]) -> None:
    """Also out of a bundle of short options, and in every component."""
    assert split(typed.split()).without(*names).argv() == left


def test_an_added_option_stands_in_front_of_the_end_mark_in_every_component() -> None:
    """Behind `--` or `:` it would belong to somebody else."""
    line = split(["-N1", ":", "-N2", "--", "job.sh"])
    assert line.with_option("comment", "c").argv() == [
        "-N1",
        "--comment=c",
        ":",
        "-N2",
        "--comment=c",
        "--",
        "job.sh",
    ]
    assert line.with_option("comment", "c", 0).argv() == ["-N1", "--comment=c", ":", "-N2", "--", "job.sh"]
    assert split(["--comment=a", "x"]).replacing("comment", "b").argv() == ["--comment=b", "x"]
    assert split(["-N1"]).with_script("-x", ["y"]).argv() == ["-N1", "--", "-x", "y"]


SCRIPT = b"""#!/bin/bash
#SBATCH -N2 --comment="a b" # remark
#SBATCH --job-name=it\\'s -d
#SBATCH afterok:5

# a comment
#SBATCH --hold
#SBATCH hetjob
#SBATCH -N3
echo
#SBATCH -N9
"""


def test_directives_are_read_up_to_the_first_command() -> None:
    """Quotes group, a backslash takes the next character, a value may stand on the next line."""
    assert directives(SCRIPT) == [
        ["-N2", "--comment=a b", "--job-name=it's", "-d", "afterok:5", "--hold"],
        ["-N3"],
    ]
    assert directives(b"") == directives(b"#!/bin/sh\n") == [[]]


def test_directives_are_dropped_and_every_other_line_stays() -> None:
    """Only lines that hold the option change; a line that held nothing else becomes an empty comment."""
    dropped = drop_directives(SCRIPT, ("dependency", "hold"))
    before, after = SCRIPT.splitlines(), dropped.splitlines()
    assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [2, 3, 6]
    assert directives(dropped) == [["-N2", "--comment=a b", "--job-name=it's"], ["-N3"]]
    assert drop_directives(SCRIPT, ("wait",)) == SCRIPT


@given(st.lists(st.text(alphabet="ab '\"\\#\t$-", max_size=6), max_size=4))
def test_a_rewritten_directive_says_what_it_said(words: list[str]) -> None:
    """Whatever the values hold: after taking one option out the others read the same."""
    quoted = " ".join(
        '"' + w.replace("\\", "\\\\").replace('"', '\\"') + '"' for w in [f"--comment={w}" for w in words]
    )
    script = f"#!/bin/sh\n#SBATCH --hold {quoted}\ntrue\n".encode()
    assert directives(drop_directives(script, ("hold",))) == [[f"--comment={w}" for w in words]]
