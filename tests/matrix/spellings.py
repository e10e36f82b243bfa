"""Every option that `sbatch --help` and its manual page name, and how the program itself takes it. (I/O)

    python -m tests.matrix.spellings >tests/data/sbatch/RELEASE.txt     (in a root of that release; needs no cluster)

A line for each option: its long name, its letter or `-`, what the program says of a value (none, required, optional, or refused where it does not
know the option at all), and where it is named: help, man or both.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.matrix.errors import slurm_folder

__all__ = ["Spelling", "asked", "in_help", "in_man", "kept", "manual_page"]

CONF = "ClusterName=x\nSlurmctldHost=localhost\nNodeName=n0\nPartitionName=a Nodes=ALL\n"
# These answer and end: getopt's complaint about what follows them never comes.
ASIDE = {"help": "none", "usage": "none", "version": "none", "autocomplete": "required"}


@dataclass(frozen=True)
class Spelling:
    """One option of one release. `takes`: none, required, optional, refused. `named`: help, man or both."""

    name: str
    letter: str
    takes: str
    named: str

    @classmethod
    def from_line(cls, line: str) -> Spelling:
        """As it is kept."""
        name, letter, takes, named = line.split()
        return cls(name, "" if letter == "-" else letter, takes, named)

    def __str__(self) -> str:
        return f"{self.name} {self.letter or '-'} {self.takes} {self.named}"


def in_help(text: str) -> dict[str, str]:
    """Long name -> letter or "", of every option that stands at the head of a line of `sbatch --help`."""
    found = re.findall(r"(?m)^ {1,8}(?:-(\w), )?--([a-z][a-z0-9-]*)", text)
    return {name: letter for letter, name in found}


def in_man(text: str) -> dict[str, str]:
    """The same of the manual page: the heads of its paragraphs on options."""
    plain = re.sub(r"\\f[A-Z]", "", text.replace("\\-", "-"))
    options = plain.partition('.SH "OPTIONS"')[2] or plain.partition(".SH OPTIONS")[2] or plain
    heads = re.findall(
        r"(?m)^(?:\.TP[^\n]*\n|\.IP[^\n]*\n)?(?:-(\w), )?--([a-z][a-z0-9-]*)(?:[=\[][^\n]*)?$",
        options.partition("\n.SH ")[0],
    )
    found: dict[str, str] = {}
    for letter, name in heads:
        found[name] = letter or found.get(name, "")
    return found


def asked(name: str, env: dict[str, str]) -> str:
    """What the program says of a value: none, required, optional, or refused."""
    if name in ASIDE:
        return ASIDE[name]
    given = _complaint([f"--{name}=1", "--no-such-option"], env)
    if f"unrecognized option '--{name}=1'" in given:
        return "refused"
    if "doesn't allow an argument" in given:
        return "none"
    return "required" if "requires an argument" in _complaint([f"--{name}"], env) else "optional"


def _complaint(words: list[str], env: dict[str, str]) -> str:
    answer = subprocess.run(
        ["sbatch", *words], stdin=subprocess.DEVNULL, capture_output=True, env=env, check=False, timeout=30
    )
    return answer.stderr.decode()


def kept(path: Path) -> list[Spelling]:
    """The spellings of a file that this module wrote."""
    return [Spelling.from_line(line) for line in path.read_text().splitlines()]


def manual_page() -> str:
    """That of the installed sbatch; "" where there is none. Packages have it compressed, an installation from source has not."""
    page = slurm_folder() / "share" / "man" / "man1" / "sbatch.1"
    packed = Path(f"{page}.gz")
    return (
        gzip.decompress(packed.read_bytes()).decode()
        if packed.exists()
        else page.read_text()
        if page.exists()
        else ""
    )


def _told() -> Iterator[Spelling]:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write(CONF)
        conf.flush()
        env = {"PATH": f"{slurm_folder()}/bin:/usr/bin:/bin", "SLURM_CONF": conf.name}
        answer = subprocess.run(["sbatch", "--help"], capture_output=True, text=True, env=env, check=True)
        helped, manned = in_help(answer.stdout), in_man(manual_page())
        for name in sorted({*helped, *manned}):
            named = "both" if name in helped and name in manned else "help" if name in helped else "man"
            yield Spelling(name, helped.get(name) or manned.get(name, ""), asked(name, env), named)


def main() -> None:
    """Print the spellings of the sbatch that is installed."""
    for spelling in _told():
        print(spelling)


if __name__ == "__main__":
    main()
