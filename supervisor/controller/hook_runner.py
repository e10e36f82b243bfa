"""The parent process of one user command: limits its time and records its end. (I/O)

    python -I -S hook_runner.py FOLDER KEY LIMIT_S CWD COMMAND UMASK

The supervisor waits for no command and may die, so each command gets a parent of its own, in its own session,
that imports nothing of ftrun. The output of the command goes to FOLDER/KEY.log, its end to FOLDER/KEY.end,
written atomically.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys

GRACE_S = 2.0


def main(folder: str, key: str, limit_s: float, cwd: str, command: str, *, umask: int) -> None:
    """Run the command by a shell in `cwd`, with our environment and the user's umask, and record its end."""
    base = os.path.join(folder, key)
    try:
        with open(base + ".log", "wb") as log:
            end = _run(command, limit_s, cwd, log.fileno(), umask=umask)
    except OSError as error:
        end = {"code": None, "why": f"not started: {error.strerror}"}
    with open(base + ".draft", "w", encoding="utf-8") as stream:
        json.dump(end, stream)
    os.replace(base + ".draft", base + ".end")


def _run(command: str, limit_s: float, cwd: str, log: int, *, umask: int) -> dict[str, object]:
    child = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        umask=umask,
    )
    try:
        return {"code": child.wait(limit_s), "why": "itself"}
    except subprocess.TimeoutExpired:
        _signal(child, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
        _signal(child, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
        return {"code": child.returncode, "why": "limit"}


def _signal(child: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    os.umask(0o077)
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4], sys.argv[5], umask=int(sys.argv[6]))
