"""#PBS and #BSUB lines: which of them sbatch reads, and their meaning in sbatch's own options. (pure)

A user who came from another scheduler often leaves its lines in the script. sbatch looks for them not only
above the first command, as for its own, but down to about the hundredth line. If there are #BSUB lines it
ignores #PBS lines, and both override #SBATCH. So ftrun must keep such lines where sbatch finds them when it
inserts its own commands in front of the script, and must know what they request: an array, for example. Only
options that ftrun itself reads are translated. Source: src/sbatch/xlate.c of Slurm, tried on 22.05, 24.11 and
26.05.

`ftrun sbatch` imports this module for scripts with such lines, so it imports only the parser of words.
"""

from __future__ import annotations

from ftrun.slurm.client.directives import line_of, words_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

COMMANDS_MAX = 100
"""sbatch stops looking after so many lines that are no comments."""

# Letter -> our name for it ("" = not of interest), those with a value first. Long names stand for their letters.
_LETTERS = {
    b"#BSUB": ("c:chdir e:error J:job-name m:nodelist M: n:ntasks o:output q:partition W:time x=exclusive"),
    b"#PBS": (
        "a:begin A:account c: C: e:error h=hold I= j: J:array k: l:resources m: M:mail-user N:job-name o:output p:nice q:partition r: S:"
        " t:array u: v:export V= W:attributes z="
    ),
}
_LONG = {
    b"#BSUB": "cwd:c error_file:e job_name:J hostname:m memory_limit:M output_file:o queue_name:q time:W exclusive:x",
    b"#PBS": (
        "start_time:a account:A error:e hold:h job_array:J resource_list:l job_name:N out:o destination:q array:t variable_list:v attributes:W"
    ),
}


def foreign_lines(script: bytes) -> list[tuple[int, bytes]]:
    """(line number from 0, line) of each #PBS or #BSUB line that sbatch reads; only one kind is read."""
    found: dict[bytes, list[tuple[int, bytes]]] = {magic: [] for magic in _LETTERS}
    commands = 0
    for number, line in enumerate(script.split(b"\n")):
        for magic, lines in found.items():
            if line.startswith(magic):
                lines.append((number, line))
        commands += not line.startswith(b"#")
        if commands > COMMANDS_MAX:
            break
    return found[b"#BSUB"] or found[b"#PBS"]


def foreign_words(script: bytes, export: str | None = None) -> list[str]:
    """These lines as arguments of sbatch; #PBS -v adds to `export`, that of the #SBATCH lines."""
    words: list[str] = []
    for name, value, _ in _options(foreign_lines(script)):
        if name == "resources":
            words += _resources(value)
        elif name == "attributes":
            if value.lower().startswith("depend="):
                words.append(f"--dependency={value[7:]}")
        elif name == "export":
            export = f"{export},{value}" if export else value
            words.append(f"--export={export}")
        elif name in ("hold", "exclusive"):
            words.append(f"--{name}")
        elif name == "ntasks":
            words.append(f"--ntasks={value.rpartition(',')[2]}")
        elif name:
            words.append(f"--{name}={value}")
    return words


def drop_foreign(script: bytes, names: Collection[str]) -> bytes:
    """The script without these options in its #PBS lines; every other byte stays."""
    lines = foreign_lines(script)
    doomed: set[tuple[int, int]] = set()
    for name, value, places in _options(lines):
        known = "dependency" if name == "attributes" and value.lower().startswith("depend=") else name
        if known in names:
            doomed.update(places)
    whole = script.split(b"\n")
    for number, line in lines:
        if any(place[0] == number for place in doomed):
            magic = _magic(line)
            kept = [
                word for at, word in enumerate(words_of(_text(line, magic))) if (number, at) not in doomed
            ]
            whole[number] = line_of(magic.decode(), kept)
    return b"\n".join(whole)


def _options(lines: list[tuple[int, bytes]]) -> Iterator[tuple[str, str, list[tuple[int, int]]]]:
    """(our name or "", value, [(line, word), ...]) of each option, up to the first that sbatch would refuse."""
    if not lines:
        return
    magic = _magic(lines[0][1])
    known = {entry[0]: (entry[1] == ":", entry[2:]) for entry in _LETTERS[magic].split()}
    long = dict(entry.split(":") for entry in _LONG[magic].split())
    flat = [
        (word, (number, at)) for number, line in lines for at, word in enumerate(words_of(_text(line, magic)))
    ]
    at = 0
    while at < len(flat):
        word, place = flat[at]
        at += 1
        name, equals, value = word[2:].partition("=") if word.startswith("--") else ("", "", "")
        letters = long.get(name, "") if name else word[1:]
        if not word.startswith("-") or not letters or letters[0] not in known:
            return
        wants, ours = known[letters[0]]
        if not wants:
            yield ours, "", [place]
            continue
        glued = value if equals else "" if name else letters[1:]
        if glued or equals:
            yield ours, glued, [place]
        elif at < len(flat):
            yield ours, flat[at][0], [place, flat[at][1]]
            at += 1


def _resources(text: str) -> list[str]:
    """`-l walltime=1:00:00,nodes=2:ppn=4` and PBS Pro's `-l select=2:ncpus=4:mpiprocs=4`."""
    words = []
    for part in text.split(","):
        key, _, value = part.partition("=")
        pieces = value.split(":")
        if key == "walltime":
            words.append(f"--time={value}")
        elif key in ("nodes", "select") and pieces[0].isdigit():
            words.append(f"--nodes={pieces[0]}")
            for piece in pieces[1:]:
                what, _, number = piece.partition("=")
                if what == "ppn" and number.isdigit():
                    words.append(f"--ntasks={int(number) * int(pieces[0])}")
                elif what == "mpiprocs":
                    words.append(f"--ntasks-per-node={number}")
    return words


def _magic(line: bytes) -> bytes:
    return next(magic for magic in _LETTERS if line.startswith(magic))


def _text(line: bytes, magic: bytes) -> str:
    return line[len(magic) :].decode("utf-8", "surrogateescape")
