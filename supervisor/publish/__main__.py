"""`python -m ftrun.supervisor.publish`: the process that publishes; the user's supervisor starts it. (I/O)

stdin is a pipe of the supervisor, which writes a byte every `PERIOD_S` while its loop goes round: that begins a
round here. At its end this process publishes once more and ends. On stdout it writes a line of JSON after each
round: {"problems": {publisher: line}}; a supervisor that hears nothing for long ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
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


def _metrics(home: str, config: Config, _env: Mapping[str, str]) -> Publisher:
    from ftrun.supervisor.publish.metrics import Metrics

    folder, port = config.path("metrics-folder"), config.whole("metrics-port")
    return Metrics(home, folder=folder, port=port)


def _notices(home: str, config: Config, _env: Mapping[str, str]) -> Publisher:
    from ftrun.supervisor.publish.notices import Notices

    return Notices.of(home, config)


PUBLISHERS: Mapping[str, tuple[tuple[str, ...], Maker]] = {
    "metrics": (("metrics-folder", "metrics-port"), _metrics),
    "notices": (("notify",), _notices),
}
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
    while True:
        try:
            with lock_service(folder) as alone:
                if alone:
                    publish(Follower(home, publishers), publishers)
                    return 0
            say({"publisher": "another process publishes for this home"})
        except OSError as error:
            say({"publisher": f"{error.filename or folder}: {error.strerror}"})
        if wait_for_supervisor(PERIOD_S) is False:
            return 0


def made(home: str, config: Config, env: Mapping[str, str]) -> Sequence[Publisher]:
    """The publishers that the settings ask for."""
    return [
        make(home, config, env)
        for keys, make in PUBLISHERS.values()
        if any(config.values[key] for key in keys)
    ]


def publish(follower: Follower, publishers: Sequence[Publisher]) -> None:
    """Round after round, until stdin ends."""
    last = False
    seen_s = time.time()
    while True:
        for one in publishers:
            one.supervisor_seen_s = seen_s
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
        if not last:
            heard = wait_for_supervisor(2 * PERIOD_S if done else 0.0)
            seen_s = time.time() if heard else seen_s
            if heard is False:
                last = True
                signal.alarm(LAST_ROUND_S)


def wait_for_supervisor(within_s: float) -> bool | None:
    """True when it says that it lives; False when it is gone; None when it said nothing for so long."""
    if not select.select([0], [], [], within_s)[0]:
        return None
    return bool(os.read(0, 1024))


def say(problems: Mapping[str, str]) -> None:
    """Tell the supervisor that a round is over, and what cannot be published."""
    with contextlib.suppress(BlockingIOError):  # it is busy: the next line will do
        os.write(1, (json.dumps({"problems": problems}) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
