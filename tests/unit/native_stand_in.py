"""A child that speaks as the one for pyslurm does, and misbehaves in the way that its argument names. (I/O)

`MODE` alone misbehaves at the start, `MODE:WORD` when it is asked for WORD, `begun-MODE:WORD` once it has begun that;
"leaves:WORD" goes after its answer, "well" never does. What it knows is one plain job, 7, and two nodes.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

MODE, _, WORD = sys.argv[1].partition(":")
NODES = [[name, "IDLE", None, None, ["main"], {"gpu": 8}] for name in ("n0", "n1")]
ROW = [
    7,
    None,
    None,
    None,
    None,
    None,
    "PENDING",
    "JobHeldUser",
    None,
    1,
    "me",
    "main",
    100,
    None,
    None,
    0,
    None,
    "j",
    "ftrun:t:1",
]
KNOWN = {"nodes": NODES, "jobs": [ROW], "partitions": [["main", "UP", True, "n[0-1]"]]}


def say(**line: object) -> None:
    """One line."""
    write((json.dumps(line) + "\n").encode())


def write(data: bytes) -> None:
    """As it stands."""
    os.write(1, data)


def hang() -> None:
    """For ever."""
    while True:
        time.sleep(600)


def die() -> None:
    """As libslurm ends a process."""
    os.write(2, b"child: error: something else\nchild: fatal: Unable to process configuration file\n")
    os._exit(1)


def endless() -> None:
    """A line without an end."""
    while True:
        write(b"x" * 65536)


def drip() -> None:
    """One byte after the other."""
    while True:
        write(b" ")
        time.sleep(0.01)


def half() -> None:
    """The beginning of an answer."""
    write(b'{"id": 2, "ok": [[7, nu')


def flood() -> None:
    """More words aside than a pipe holds."""
    for _ in range(64):
        os.write(2, b"slurm: debug: words\n" * 1000)


MISDEEDS: dict[str, tuple[Callable[[], object], ...]] = {
    "hang": (hang,),
    "die": (die,),
    "rubbish": (partial(write, b"slurm: debug: words\n"),),
    "list": (partial(write, b"[1, 2]\n"),),
    "half": (half, die),
    "half-hang": (half, hang),
    "stopped": (partial(os.kill, os.getpid(), signal.SIGSTOP),),
    "killed": (partial(os.kill, os.getpid(), signal.SIGKILL),),
    "endless": (endless,),
    "drip": (drip,),
    "flood": (flood,),
    "other-id": (partial(say, id=1, ok=[]),),
    "no-id": (partial(say, ok=[]),),
    "nonsense": (partial(say, id=2, ok=[[7]]),),
    "wrong-kind": (partial(say, id=2, ok={"7": 7}),),
    "no-answer": (partial(say, id=2),),
    "broken": (partial(say, id=2, broken="UnicodeDecodeError: 'utf-8' codec"),),
    "unheard": (partial(say, id=2, rpc=[-1, "The flux capacitor is empty"]),),
    "refused": (partial(say, id=2, rpc=[2017, "Invalid job id specified"]),),
    "away": (partial(say, id=2, rpc=[5004, "Socket timed out on send/recv operation"]),),
    "other": (partial(say, id=2, other="an array"),),
    "closed": (partial(os.close, 1), hang),
    "cannot": (partial(say, hello=1, cannot="ModuleNotFoundError: No module named 'pyslurm'"), sys.exit),
    "stranger": (partial(say, hello=2, pyslurm="22.5.3"),),
}


def misbehave(how: str) -> None:
    """Do what the table says; "well" and "newer" stand in none."""
    for deed in MISDEEDS.get(how, ()):
        deed()


def main() -> None:
    """Greet and answer."""
    if not WORD:
        misbehave(MODE)
    say(hello=1, pyslurm="24.11.0" if MODE == "newer" else "22.5.3")
    if MODE == "deaf":
        hang()
    for line in sys.stdin:
        asked = json.loads(line)
        begins = asked["do"] not in KNOWN
        if asked["do"] == WORD and not MODE.startswith("begun-"):
            misbehave(MODE)
            if MODE not in {"flood", "leaves"}:
                continue
        if begins:
            say(id=asked["id"], begun=True)
        if asked["do"] == WORD and MODE.startswith("begun-"):
            misbehave(MODE.removeprefix("begun-"))
            continue
        if MODE == "leaves" and asked["do"] == WORD:
            say(id=asked["id"], ok=KNOWN[WORD])
            break
        say(id=asked["id"], ok=KNOWN.get(asked["do"]))


if __name__ == "__main__":
    main()
