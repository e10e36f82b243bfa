"""systemd on a host, as far as this user may use it: the system's as root, else the user's own if it lingers. (I/O)

A user's systemd without linger ends at logout and does not start at boot, so it counts as none.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from typing import Optional

ASK_S = 20.0


def systemd_mode() -> Optional[str]:
    """--system or --user: which systemd looks after what this user starts, and answers; None for neither."""
    if not os.path.isdir("/run/systemd/system"):
        return None
    mode = _mode()
    if mode == "--user" and not os.path.exists(
        f"/var/lib/systemd/linger/{pwd.getpwuid(os.geteuid()).pw_name}"
    ):
        return None
    return mode if systemctl("show", "--property=Version") else None


def systemctl(*words: str) -> bool:
    """Whether systemctl did this."""
    return _works(["systemctl", _mode(), "--quiet", *words])


def _works(command: list[str]) -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=environment(), timeout=ASK_S, check=False,
        )  # fmt: skip
        return done.returncode == 0
    return False


def scope_words() -> list[str]:
    """The words before a daemon's command that give it a scope of its own, which outlives the session and the unit that it is started
    from (KillUserProcesses); [] where systemd makes none for this user.
    """
    mode = systemd_mode()
    words = ["systemd-run", mode, "--scope", "--quiet", "--collect", "--"] if mode else []
    return words if words and _works([*words, "true"]) else []


def environment() -> dict[str, str]:
    """The environment in which systemctl and systemd-run find the user's systemd."""
    return {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}", **os.environ}


def unit_folder() -> str:
    """Where units of this user lie that are there after a reboot."""
    if os.geteuid() == 0:
        return "/etc/systemd/system"
    return os.path.join(os.path.expanduser("~"), ".config", "systemd", "user")


def _mode() -> str:
    return "--system" if os.geteuid() == 0 else "--user"
