"""`ftrun explain --what-if`: the path that a fault would take, from the settings alone. (I/O)"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.supervisor import config, inside, settings, settings_errors
from ftrun.supervisor.cli import common, output
from ftrun.supervisor.errors import UserError
from ftrun.supervisor.model import Action, FaultClass
from ftrun.supervisor.rungs import rungs_from
from ftrun.supervisor.whatif import what_if

__all__ = ["tell"]


def tell(what: str, run: str, own: Sequence[str], *, json: bool) -> int:
    """Print the path for a class or signature, by the settings of a run or those in force here and `own` (KEY=VALUE).

    Raises UserError for what is no class, signature, run or setting.
    """
    fault, signature, retry, action = _asked(what)
    values = _of_run(run, own) if run else _here(own)
    try:
        rungs_from(values, signatures=inside.known_signatures)
        rows = what_if(values, fault, signature, retry=retry, action=action)
    except settings_errors.SettingError as error:
        raise UserError(str(error)) from None
    if json:
        path = [{"rung": rung, "when": when} for rung, when in rows]
        output.emit_json({"class": fault.value, "signature": signature, "run": run, "path": path})
        return 0
    if signature:
        print(f"{signature}: class {fault.value}")
    output.table(("rung", "when"), rows)
    return 0


def _asked(what: str) -> tuple[FaultClass, str, bool | None, Action | None]:
    """(class, signature or "", what the signature says of another try, and what it recommends)."""
    classes = [fault.value for fault in FaultClass if fault is not FaultClass.HEALTHY]
    if what in classes:
        return FaultClass(what), "", None, None
    known = inside.known_signatures()
    found = known.get(what)
    if found is not None:
        return found.fault, what, found.retry, found.action
    near = settings_errors.nearest(what, classes) or settings_errors.nearest(what, known)
    hint = f"did you mean {near}?" if near else "`ftrun catalog list` names the signatures"
    raise UserError(f"--what-if: {what!r} is neither a fault class nor a known signature; {hint}")


def _here(own: Sequence[str]) -> Mapping[str, Any]:
    pairs: list[tuple[str, str | None]] = []
    for word in own:
        key, equals, value = word.partition("=")
        try:
            if not equals and settings.takes_value(key):
                raise UserError(f"--ft {key}: KEY=VALUE is wanted, such as --ft spares=2")
        except settings_errors.SettingError as error:
            raise UserError(f"--ft: {error}") from None
        pairs.append((key, value if equals else None))
    return config.load(os.getcwd(), dict(os.environ), own=pairs).values


def _of_run(name: str, own: Sequence[str]) -> Mapping[str, Any]:
    if own:
        raise UserError("--ft: a run has its own settings; give one of the two")
    _, run = common.find(name)
    return {**settings.defaults(), **run.settings}
