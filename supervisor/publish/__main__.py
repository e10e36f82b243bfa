"""`python -m ftrun.supervisor.publish`: the process that publishes; the user's supervisor starts it. (I/O)

stdin is a pipe of the supervisor: at its end this process publishes once more and ends. On stdout it writes a
line of JSON after each round: {"problems": {publisher: line}}; a supervisor that hears nothing for long ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from ftrun.supervisor.config import sources
from ftrun.supervisor.config.sources import Config
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.publish.follower import FOLDER, Follower
from ftrun.supervisor.publish.process import PERIOD_S
from ftrun.supervisor.publish.publisher import Publisher
from ftrun.supervisor.store.append_log import lock_service

LAST_ROUND_S = 30  # how long the last round may take

Maker = Callable[[str, Config, Mapping[str, str]], Publisher]

PUBLISHERS: Mapping[str, tuple[tuple[str, ...], Maker]] = {}
"""Name -> the settings any of which asks for it (`process.ASKING`), and what makes it of home, settings, environment."""


def main() -> int:
    """Publish until the supervisor is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it is the supervisor's
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        os.nice(10)
    os.umask(0o077)
    env = dict(os.environ)
    os.set_blocking(1, False)
    try:
        config = sources.load("/", env)
        home = config.home(env)
        publishers = made(home, config, env)
    except UserError as error:
        say({"settings": str(error)})
        return 2
    folder = os.path.join(home, FOLDER)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    while True:
        with lock_service(folder) as alone:
            if alone:
                publish(Follower(home, publishers))
                return 0
        say({"publisher": "another process publishes for this home"})
        if supervisor_gone(PERIOD_S):
            return 0


def made(home: str, config: Config, env: Mapping[str, str]) -> Sequence[Publisher]:
    """The publishers that the settings ask for."""
    return [
        make(home, config, env)
        for keys, make in PUBLISHERS.values()
        if any(config.values[key] for key in keys)
    ]


def publish(follower: Follower) -> None:
    """Round after round, until stdin ends."""
    last = False
    while True:
        done = follower.round()
        problems = follower.problems()
        try:
            follower.save()
        except OSError as error:
            problems["publisher"] = f"{error.filename or FOLDER}: {error.strerror}"
        say(problems)
        if last and done:
            follower.close()
            return
        if not last and supervisor_gone(PERIOD_S if done else 0.0):
            last = True
            signal.alarm(LAST_ROUND_S)


def supervisor_gone(within_s: float) -> bool:
    """Wait for so long, or until stdin ends."""
    return bool(select.select([0], [], [], within_s)[0]) and not os.read(0, 1024)


def say(problems: Mapping[str, str]) -> None:
    """Tell the supervisor that a round is over, and what cannot be published."""
    with contextlib.suppress(BlockingIOError):  # it is busy: the next line will do
        os.write(1, (json.dumps({"problems": problems}) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
