"""What administrators told the service: whose requests it takes no more, and whether it stands still. (I/O)

    $FTRUN_HOME/site/orders.json    written by `ftrun site deny|allow|pause|resume`: whole, by rename

The service reads it in each round. It does not depend on the ledger. A file that cannot be understood counts as a
pause: an order that somebody gave is not forgotten because a disk is damaged.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from ftrun.supervisor.config import home as config_home
from ftrun.supervisor.site.standing import Order, Orders

FILE = "orders.json"
SCHEMA = 1


def read_orders(folder: str) -> Orders:
    """The orders in the service's folder; none where there is no file. Raises nothing."""
    path = os.path.join(folder, FILE)
    try:
        with open(path, encoding="utf-8") as stream:
            told = json.load(stream)
        if told["schema"] != SCHEMA:
            raise ValueError(f"schema {told['schema']}")
        paused = None if told["paused"] is None else Order(**told["paused"])
        return Orders(paused, {int(uid): Order(**one) for uid, one in told["denied"].items()})
    except FileNotFoundError:
        return Orders()
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        why = f"{path} cannot be understood ({error}): remove it, then give the orders again"
        return Orders(paused=Order(0.0, "ftrun", why))


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    fd = os.open(os.path.join(folder, "orders.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def change_orders(folder: str, change: Callable[[Orders], Orders]) -> Orders:
    """Change the orders, one caller after the other; what they are now. Raises OSError."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with _alone(folder):
        now = change(read_orders(folder))
        told: dict[str, Any] = {
            "schema": SCHEMA,
            "paused": now.paused and asdict(now.paused),
            "denied": {str(uid): asdict(one) for uid, one in now.denied.items()},
        }
        config_home.write_atomically(os.path.join(folder, FILE), (json.dumps(told, indent=1) + "\n").encode())
        return now
