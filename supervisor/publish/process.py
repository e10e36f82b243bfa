"""The supervisor's side of the process that publishes: starts it, watches it, starts it again. (I/O)

`look` is called in each round of the supervisor and never waits. Every `PERIOD_S` it tells the process that the
supervisor lives. A process that ends is started again after a pause that doubles; one that says nothing for
`SILENT_S` is killed; one whose settings have changed ends, and begins again where they still ask for it. What
cannot be published is in `problems`, which goes to the supervisor's state file, where `ftrun status` reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ftrun.supervisor.config import sources
from ftrun.supervisor.model.errors import UserError

PERIOD_S = 5.0  # between two rounds of the process
SILENT_S = 180.0
PAUSE_S, PAUSE_MAX_S = 5.0, 600.0
END_WAIT_S = 3.0
SAID_MAX_BYTES = 1 << 16
SETTINGS_EVERY_S = 60.0  # how often the settings are read

ASKING: tuple[str, ...] = ("metrics-folder", "metrics-port", "notify")
"""The settings any of which asks for the process."""


def asked_for(env: Mapping[str, str]) -> Mapping[str, object]:
    """What is to be published, by the settings of site, user and environment; {} = nothing. Raises UserError."""
    values = sources.load("/", env).values
    return {key: values[key] for key in ASKING if values[key]}


class PublishProcess:
    """`tell` writes to the supervisor's log; `clock` tells monotonic seconds."""

    def __init__(
        self,
        env: Mapping[str, str],
        tell: Callable[..., None],
        clock: Callable[[], float],
        argv: tuple[str, ...] = (sys.executable, "-P", "-m", "ftrun.supervisor.publish"),
    ) -> None:
        self._env, self._tell, self._clock, self._argv = dict(env), tell, clock, argv
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: Mapping[str, object] = {}
        self._asked_s = self._spoke_s = float("-inf")
        self._leaves = False  # it was told to end
        self._started_s = self._heard_s = 0.0
        self._due_s = float("-inf")
        self._pause_s = PAUSE_S
        self._said = b""
        self.problems: Mapping[str, str] = {}

    def look(self) -> None:
        """Start it where it is due, hear what it says, end it where it is silent. Never waits, never raises."""
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - no mistake here may cost the supervision of a run
            self._note(f"{type(error).__name__}: {error}")

    def _look(self) -> None:
        now_s = self._clock()
        if now_s - self._asked_s >= SETTINGS_EVERY_S:
            self._asked_s = now_s
            self._read_settings()
        if self._child is None:
            if self._asked and now_s >= self._due_s:
                self._start(now_s)
            return
        self._hear(now_s)
        if now_s - self._spoke_s >= PERIOD_S and not self._leaves:
            self._spoke_s = now_s
            assert self._child.stdin is not None
            with contextlib.suppress(
                OSError
            ):  # full: it has not listened for hours; gone: that is seen below
                os.write(self._child.stdin.fileno(), b".")
        code = self._child.poll()
        if code is not None:
            self._ended(code, now_s)
        elif now_s - self._heard_s > SILENT_S:
            self._note(f"the process that publishes said nothing for {SILENT_S:.0f} s and is ended")
            self._child.kill()  # one that waits for a dead file system goes later; no second one is started before

    def stop(self) -> None:
        """Let it publish once more and end; it is not waited for much longer than that takes."""
        child, self._child = self._child, None
        self._due_s = self._asked_s = float("-inf")
        if child is None:
            return
        _close(child.stdin)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_WAIT_S)
        _close(child.stdout)

    def _read_settings(self) -> None:
        try:
            asked = asked_for(self._env)
        except UserError as error:  # whoever published goes on
            self._set_problems({**self.problems, "settings": str(error)})
            return
        if asked != self._asked and self._child is not None:
            self._leaves = True
            _close(self._child.stdin)
        self._asked = asked

    def _start(self, now_s: float) -> None:
        try:
            self._child = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._env, cwd="/"
            )
        except OSError as error:
            self._wait_longer(now_s)
            self._note(f"the process that publishes cannot be started: {error.strerror}")
            return
        assert self._child.stdout is not None
        assert self._child.stdin is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        os.set_blocking(self._child.stdin.fileno(), False)
        self._started_s = self._heard_s = now_s
        self._said = b""

    def _hear(self, now_s: float) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        with contextlib.suppress(OSError):
            while heard := os.read(self._child.stdout.fileno(), SAID_MAX_BYTES):
                self._said = (self._said + heard)[-SAID_MAX_BYTES:]
                self._heard_s = now_s
        *lines, self._said = self._said.split(b"\n")
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            told: dict[str, Any] = json.loads(lines[-1])["problems"]
            self._set_problems({str(name): " ".join(str(why).split()) for name, why in told.items()})

    def _ended(self, code: int, now_s: float) -> None:
        assert self._child is not None
        _close(self._child.stdin)
        _close(self._child.stdout)
        self._child = None
        if self._leaves:
            self._leaves, self._due_s = False, now_s
            self._set_problems({})
            return
        if now_s - self._started_s > PAUSE_MAX_S:
            self._pause_s = PAUSE_S
        wait_s = self._wait_longer(now_s)
        if "settings" not in self.problems:
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            self._note(f"the process that publishes ended {how}; it starts again within {wait_s:.0f} s")

    def _wait_longer(self, now_s: float) -> float:
        wait_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_MAX_S)
        self._due_s = now_s + wait_s
        return wait_s

    def _note(self, why: str) -> None:
        self._set_problems({**self.problems, "publisher": why})

    def _set_problems(self, problems: Mapping[str, str]) -> None:
        if problems != self.problems:
            self.problems = problems
            self._tell("publish.problems" if problems else "publish.well", **problems)


def _close(stream: Any) -> None:
    with contextlib.suppress(OSError):
        if stream is not None:
            stream.close()
