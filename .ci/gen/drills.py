"""Writes docs/drills.md from the table of drills; `--check` says whether it is current. (I/O)"""

from __future__ import annotations

import sys
from pathlib import Path

from ftrun.supervisor.drill.runner import user_scenarios
from ftrun.supervisor.drill.scenario import Expectation, Scenario
from ftrun.supervisor.drill.workload import DEFAULT_SETTINGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "drills.md"
HEAD = """\
# Drills: see a recovery with your own eyes

<!-- Written by `make docs` from supervisor/drill/scenarios.toml; do not edit by hand. -->

`ftrun drill` brings up a disposable real Slurm of four nodes ([the sandbox](sandbox.md)), submits a small training job by
`ftrun sbatch`, hurts it, and shows what ftrun sees, decides and does. At the end stand a table and a verdict:

```
DRILL     FAULT     DETECTED  DIAGNOSED AS                       BLAMED  ACTION               RUNNING AGAIN  STEPS LOST  FINISHED  VERDICT
gpu-lost  gpu-lost  0.2 s     hardware-gpu (nvidia-xid-79)  n1      resubmit without n1  2.2 s          1           yes       ok
```

| command | what it does |
|---|---|
| `ftrun drill` | the first drill of the table below |
| `ftrun drill NAME...` | these |
| `ftrun drill --all` | all of them, four at a time (`--lanes`); some five minutes on two cores |
| `ftrun drill --list` | what there is |
| `ftrun drill --json` | results as JSON on stdout, the course of events on stderr |
| `ftrun drill --keep` | keeps each drill's folder: log, journal, `$FTRUN_HOME`, logs of the daemons, the commands that were run |
| `ftrun drill --here` | on the Slurm of your shell instead of a sandbox: three nodes, a minute; the folder is made in your home (`--folder` elsewhere) because the nodes must see it |

Exit status: 0 where every expectation held, 1 where one did not; then the report says what was wanted, what was seen, and where to look.
Ctrl-C ends a drill at any moment and leaves no process, job or folder behind.

## The training

One rank a node, started by `srun`. Every step the ranks sum their gradients over TCP sockets; rank 0 prints the step as training
code does and writes a checkpoint now and then. The arithmetic is exact and depends on the order of steps, so the weights at the end
prove that no step was lost and none applied twice. It needs nothing but Python 3.9, and it hurts itself where a fault
would strike from within: it prints what the kernel, CUDA, NCCL or Slurm print and dies as a process dies of it. At SIGUSR1 rank 0 writes
a checkpoint, also while it waits for the others. Where the drill says `rejoin`, ranks that lost a peer wait for its successor and
go on in the same process, with what they have in memory. Where checkpoints are staged, every node has a `/dev/shm` of its own, and each rank saves
and reads a file with weights that no other file has. Everything else
is done to it for real: nodes lose all their processes or are stopped, slurmctld and the supervisor are killed, jobs are cancelled,
requeued, preempted and run into their limit.

## What every drill checks

Besides what the table says:

- the weights at the end are those of an undisturbed training, and there is one end;
- two starts of one run never overlap: nothing is trained or saved by an older start once a newer one has begun;
- every start goes on from a checkpoint and leaves no step out;
- no checkpoint is written over by an earlier start, or torn;
- where checkpoints are staged, what says on disk that it is whole is whole, and nothing is left in the memory of the nodes.

`--json` tells for each fault how many seconds after it the run was diagnosed, decided, stopped, placed and restarted, and when the first
new step was made (`phases`).

## The drills

"""
TAIL = """
ftrun's own tests hold many more, in the same form and by the same engine: `tests/drills/*.toml`. From a checkout
`python -m tests.drills` does with all drills what `ftrun drill` does with these; `make drills` holds every one.

A drill is a row of a TOML table: the size of the training, its settings, the faults that strike a rank from inside (`faults`), what is
done from outside and when (`actions`), and what must come of it (`expect`). `supervisor/drill/scenario.py` tells all fields.

## Settings

Drills run with ftrun's defaults, but for waits that a user may shorten as well: {usual}, `poll` 0.5 s in a site file of
their own; and what the table names.

## Two things worth knowing

A node that freezes and wakes up later goes on writing for a moment, beside its successor; Slurm cannot prevent that. The drill's
trainer does what training code should do before it moves a checkpoint into place: it asks whether the next
attempt exists (`$FTRUN_RUN_DIR/attempts/<n+1>`) or the link `$FTRUN_ATTEMPT_DIR/current` names another start than
`$FTRUN_START_TOKEN`, and gives up if so. A folder of its own for each start serves as well.

`srun --kill-on-bad-exit` ends the other ranks so quickly that the last lines of the rank that failed are often lost (seen on
Slurm 22.05 in half of the trials). Without it the log tells more. Where nothing tells why two starts from the same checkpoint
fail before their first step, ftrun tries an older one, once.
"""


def page() -> str:
    """Return the whole page."""
    rows = ["| drill | what happens | what must come of it | where |", "|---|---|---|---|"]
    rows += [_row(scenario) for scenario in user_scenarios()]
    usual = ", ".join(f"`{key}` {value}" for key, value in DEFAULT_SETTINGS.items())
    return HEAD + "\n".join(rows) + "\n" + TAIL.format(usual=usual)


def _row(scenario: Scenario) -> str:
    known = {"spares": str(scenario.spares)} if scenario.spares else {}
    known |= {"rank-restart": "yes"} if scenario.rejoin else {}
    settings = ", ".join(f"`--ft-{key}={value}`" for key, value in {**known, **scenario.settings}.items())
    where = ("sandbox" if scenario.needs_sandbox else "anywhere") + (
        ", as root" if scenario.needs_root else ""
    )
    title = scenario.title + (f" ({settings})" if settings else "")
    return f"| `{scenario.name}` | {title} | {_outcome(scenario.expect)} | {where} |"


def _outcome(expect: Expectation) -> str:
    said = [_classes(expect)]
    if expect.blamed == "hurt":
        said.append("that node is blamed")
    if expect.avoided:
        said.append("the last start avoids it")
    if expect.rungs:
        said.append("decided: " + ", then ".join(expect.rungs))
    if expect.processes_kept:
        said.append("all other ranks keep their processes")
    said.append(_attempts(expect))
    if expect.resumed_from_min:
        said.append(f"the last start begins at step {expect.resumed_from_min[-1]} or later")
    if expect.read_from:
        said.append(f"it reads from {expect.read_from}")
    if expect.published:
        said.append(f"the checkpoints of steps {', '.join(map(str, expect.published))} are on disk")
    if expect.steps_lost_max is not None:
        most = expect.steps_lost_max
        said.append(f"at most {most} steps are trained twice" if most else "no step is trained twice")
    return f"{expect.end}: " + "; ".join(said)


def _classes(expect: Expectation) -> str:
    if not expect.classes:
        return "no fault is diagnosed"
    names = [
        name.rstrip("?").replace("|", " or ") + (" or nothing" if name.endswith("?") else "")
        for name in expect.classes
    ]
    return "diagnosed as " + ", then ".join(names)


def _attempts(expect: Expectation) -> str:
    low, high = expect.attempts_range
    text = f"{low} attempt{'s' if low > 1 else ''}" if low == high else f"{low} or {high} attempts"
    return text + (f", {expect.starts} starts" if expect.starts is not None and expect.starts > high else "")


def main() -> None:
    """Write the page, or with `--check` compare it."""
    text = page()
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            sys.exit("docs/drills.md is not current: run `make docs`")
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
