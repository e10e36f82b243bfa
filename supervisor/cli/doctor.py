"""`ftrun doctor`: what this site lets ftrun do, and what is in its way. (I/O)"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from ftrun.supervisor.cli import common, output
from ftrun.supervisor.cli.runs import Json


def doctor(
    nodes: Annotated[bool, typer.Option("--nodes", help="Also ask a node, by one short srun.")] = False,
    units: Annotated[
        bool,
        typer.Option(
            "--units", help="Print a systemd user unit, a crontab line and a scrontab entry, nothing else."
        ),
    ] = False,
    cron: Annotated[
        bool, typer.Option("--cron", help="Print the crontab lines of an operator, nothing else.")
    ] = False,
    json: Json = False,
) -> int:
    """Check this site: Slurm, rights, folders, life after logout. Exit 1 where recovery would not work."""
    from ftrun.slurm.commands.cluster import CommandCluster
    from ftrun.supervisor import doctor as examiner
    from ftrun.supervisor import units as texts

    home = common.home()
    env = dict(os.environ)
    if cron:
        lines = texts.operator_crontab(home, env)
        if json:
            output.emit_json({"crontab": lines})
        else:
            print(lines, end="")
        return 0
    if units:
        made = [make(home, env) for make in (texts.unit, texts.crontab, texts.scrontab)]
        if json:
            output.emit_json(dict(zip(("unit", "crontab", "scrontab"), made, strict=True)))
        else:
            print("\n".join(made), end="")
        return 0
    findings = list(examiner.examine(home, CommandCluster(env, timeout_s=15), env, nodes=nodes))
    bad = any(finding.state == "bad" for finding in findings)
    if json:
        output.emit_json({"ok": not bad, "findings": [asdict(finding) for finding in findings]})
    else:
        output.table(
            ["CHECK", "", "WHAT", "HOW TO MEND"],
            [[f.check, f.state, f.what, f.mend or None] for f in findings],
        )
    return 1 if bad else 0
