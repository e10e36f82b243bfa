"""`ftrun sbatch` many times for the price of one interpreter: a process that forks for each call. (I/O)

    python -m tests.slurm.callee    one request a line on standard input, one answer a line on standard output, in JSON

How it thinks. What a call costs is mostly the start of Python, and a table of hundreds of calls is about what they do. So modules are imported
once and each call is a fork that has working folder, environment, standard input and both streams of its own, and goes through the very entry
of the command line. Only the environment is handed to it: the kernel's record of it is that of the process that was started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ftrun.supervisor import cli
from ftrun.supervisor.cli import sbatch as cli_sbatch
from ftrun.supervisor.store import submission_context

__all__ = ["Callee"]

# Imported before the first fork, since every call of it needs them.
WARM = cli_sbatch


class Callee:
    """The process, and calls of it. A context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.slurm.callee"],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=240)

    def sbatch(
        self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """What `ftrun sbatch ARGS` prints and how it ends, as `subprocess.run` tells it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"args": [*args], "cwd": str(cwd), "env": {**env}, "stdin": stdin.decode("latin-1")}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline())
        streams = (told[name].encode("latin-1") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess([*args], told["code"], *streams)


def _call(request: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(request["stdin"].encode("latin-1"))
        given.seek(0)
        child = os.fork()
        if not child:
            for number, stream in enumerate((given, out, err)):
                os.dup2(stream.fileno(), number)
            _become(request)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode("latin-1"))
    return {"code": code, "stdout": said[0], "stderr": said[1]}


def _become(request: Mapping[str, Any]) -> None:
    """The rest of a forked child's life."""
    code = 120
    try:
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        submission_context.environment_of_process = lambda: dict(os.environb)
        code = cli.main(["sbatch", *request["args"]])
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def main() -> None:
    """Answer requests until there are none."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_call(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
