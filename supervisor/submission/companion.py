"""What a companion is submitted with: a small job that holds nodes for another job of the run. (I/O)

Its nodes must be like those of the main job, and it must not wait for what the main job waited for. So the
user's script is not part of it, and of what the user typed (arguments, variables, directives) only the
options that say *which nodes* and *how much of each* are repeated, in figures for the companion's number of
nodes. Options that say when to start, whom to notify, what to do at the end and which nodes by name are
left out. Its time limit ends with the main job's, and it is never requeued. Its comment holds its own mark
and never the token of the attempt: a search for the attempt's job must not find it.

A site or a user may set aside a pool of spares, from which companions are borrowed. A job has one
partition, and a job in a reservation has nodes of that reservation only [tried on 22.05; with Flags=FLEX
others, too], so spares of a job cannot come from a pool that its other nodes are not in. A companion is a
job of its own, so it can. The pool replaces nodes that a fault took; it is not used for growth. If it has
enough idle nodes they are taken, since nobody waits for them; otherwise the companion is requested in the
job's own partition.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping

from ftrun.hooks.bundle.shell import COMPANION_SH
from ftrun.slurm.client import nodeset, options
from ftrun.slurm.client.errors import OptionError, SlurmError
from ftrun.slurm.client.options import SbatchOptions
from ftrun.supervisor.model.agent_events import companion_mark
from ftrun.supervisor.model.errors import SubmitImpossible
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.store import submission_context
from ftrun.supervisor.submission import compose, named_nodes, plan, resize, sbatch_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ftrun.slurm.client.cluster import Cluster, NodeRow, SubmitRequest
    from ftrun.supervisor.config.node_counts import Pool

# Options that say which nodes and how much of each, and their variables (opt.c of sbatch, 22.05 to 26.05).
_CARRIED = {
    "account": "SBATCH_ACCOUNT",
    "partition": "SBATCH_PARTITION",
    "qos": "SBATCH_QOS",
    "reservation": "SBATCH_RESERVATION",
    "wckey": "SBATCH_WCKEY",
    "mcs-label": "",
    "constraint": "SBATCH_CONSTRAINT",
    "network": "SBATCH_NETWORK",
    "exclusive": "SBATCH_EXCLUSIVE",
    "oversubscribe": "",
    "overcommit": "SBATCH_OVERCOMMIT",
    "core-spec": "SBATCH_CORE_SPEC",
    "thread-spec": "SBATCH_THREAD_SPEC",
    "extra-node-info": "",
    "sockets-per-node": "",
    "cores-per-socket": "",
    "threads-per-core": "SBATCH_THREADS_PER_CORE",
    "hint": "SBATCH_HINT",
    "mincpus": "",
    "tmp": "",
    "cpus-per-task": "",
    "cpus-per-gpu": "SBATCH_CPUS_PER_GPU",
    "mem": "SBATCH_MEM_PER_NODE",
    "mem-per-cpu": "SBATCH_MEM_PER_CPU",
    "mem-per-gpu": "SBATCH_MEM_PER_GPU",
    "gres": "SBATCH_GRES",
    "gres-flags": "SBATCH_GRES_FLAGS",
    "gpus-per-node": "SBATCH_GPUS_PER_NODE",
    "gpus-per-task": "SBATCH_GPUS_PER_TASK",
    "gpus-per-socket": "",
    "tres-per-task": "SBATCH_TRES_PER_TASK",
    "ntasks-per-core": "",
    "ntasks-per-socket": "",
    "ntasks-per-gpu": "",
    "nice": "",
}
# Variables that would bring back what is left out.
_DROPPED = frozenset(
    f"SBATCH_{name}"
    for name in (
        "ARRAY_INX", "BATCH", "CLUSTERS", "CONTAINER", "CONTAINER_ID", "DELAY_BOOT", "DISTRIBUTION", "ERROR", "EXPORT", "GET_USER_ENV", "GPUS",
        "IGNORE_PBS", "INPUT", "JOB_NAME", "NO_KILL", "NO_REQUEUE", "OPEN_MODE", "OUTPUT", "PROFILE", "REQUEUE", "REQ_SWITCH", "SEGMENT_SIZE", "SIGNAL",
        "SPREAD_JOB", "TIMELIMIT", "USE_MIN_NODES", "WAIT", "WAIT4SWITCH", "WAIT_ALL_NODES",
    )
) | {"SLURM_CLUSTERS"}  # fmt: skip


class CompanionCall:
    """One call of sbatch for a companion: arguments, script for its standard input, environment."""

    __slots__ = ("argv", "content", "env")

    def __init__(self, argv: Sequence[str], content: bytes, env: Mapping[str, str]) -> None:
        self.argv = tuple(argv)
        self.content = content
        self.env = dict(env)


def companion_call(
    kept: Mapping[str, Any],
    script: bytes,
    env: Mapping[str, str],
    *,
    run_dir: str,
    attempt: int,
    launch: int,
    number: int,
    nodes: int,
    limit_s: float | None,
    main_job: str,
    main_started: float | None,
    exclude: Sequence[str],
    main_host: str = "",
    mark: str = "",
    partition: str = "",
    pool: str = "",
) -> CompanionCall:
    """The call of sbatch for companion `number` of one launch of the run in `run_dir`.

    `kept`, `script` and `env` are the submission context. `limit_s` is what is left of the main job's time
    (None: no limit), `main_started` when it started, in Unix time (None: not compared), `main_host` the
    node of its script ("": unknown). `exclude` are the main job's nodes and those to avoid. `partition` is
    where the companion runs ("" = as the user said), `pool` the option that borrows it from a pool. Raises
    SubmitImpossible with the reason why there can be none; OptionError.
    """
    given = options.submitted_options(kept, script, env)
    if given.get("clusters", "SBATCH_CLUSTERS"):
        raise SubmitImpossible("a companion on another cluster (-M) cannot be had")
    shape = _shape(given, nodes)
    argv = [f"--nodes={nodes}", f"--time={_limit(limit_s)}", "--no-requeue", "--open-mode=append", *shape]
    if pool:
        argv.append(pool)
    if partition and not pool.startswith("--partition="):
        argv.append(f"--partition={partition}")
    own_names = {word.partition("=")[0] for word in argv}
    for name, variable in _CARRIED.items():
        argv += [] if f"--{name}" in own_names else _said(name, variable, given)
    own = ",".join(named_nodes.excluded_nodes(given, kept.get("cwd", "")))
    if away := ",".join(filter(None, (own, nodeset.fold(exclude)))):
        argv.append(f"--exclude={away}")
    folder = os.path.join(run_dir, "attempts", str(attempt), "companions")
    log = os.path.join(folder, f"{number}.log").replace("%", "%%")
    mark = mark or companion_mark(kept["run_token"], attempt, launch, number)
    comment = given.get("comment")
    argv += [
        f"--output={log}",
        "--input=/dev/null",
        f"--job-name={_name(kept, given)}",
        f"--comment={options.comment_with(comment or '', mark)}",
    ]
    facts = {
        "_ft_dir": run_dir,
        "_ft_place": os.path.dirname(folder),
        "_ft_folder": folder,
        "_ft_launch": str(launch),
        "_ft_number": str(number),
        "_ft_main_job": main_job,
        "_ft_main_host": main_host,
        "_ft_main_started": "" if main_started is None else f"{main_started:.0f}",
    }
    content = compose.with_variables(COMPANION_SH, facts | _facts_of_run(kept, env, run_dir))
    return CompanionCall(argv, content, {name: value for name, value in env.items() if name not in _DROPPED})


def _facts_of_run(kept: Mapping[str, Any], env: Mapping[str, str], run_dir: str) -> dict[str, str]:
    slurm = sbatch_process.slurm_facts(env, kept.get("cwd", ""))
    return {
        "_ft_pack": store_run_dir.tools_name(os.path.dirname(os.path.dirname(run_dir))),
        "_ft_agent": str(kept.get("python", "")),
        "_ft_watch": plan.monitor_period(kept["settings"]),
        "_ft_checks": str(kept["settings"].get("checks", "")),
        "_ft_clients": slurm["clients"],
        "_ft_conf": slurm["conf"],
    }


def companion_request(run_dir: str, attempt: int, **about: Any) -> SubmitRequest:
    """The request for a companion, from the submission context; creates the folder for its log.

    `about` is as for `form`. Raises SubmitImpossible.
    """
    try:
        kept = submission_context.load(run_dir)
        made = companion_call(
            kept,
            submission_context.script(run_dir),
            submission_context.environment(run_dir),
            run_dir=run_dir,
            attempt=attempt,
            **about,
        )
        os.makedirs(os.path.join(run_dir, "attempts", str(attempt), "companions"), mode=0o700, exist_ok=True)
    except (submission_context.ContextError, OptionError) as error:
        raise SubmitImpossible(str(error)) from None
    except OSError as error:
        raise SubmitImpossible(f"{run_dir}: cannot be written: {error.strerror}") from None
    mark = about.get("mark")
    mark = mark or companion_mark(kept["run_token"], attempt, about["launch"], about["number"])
    return plan.request_in(kept, mark, made.argv, made.content, made.env)


def _shape(given: SbatchOptions, nodes: int) -> list[str]:
    """Tasks and GPUs per node as in the main job, also where the user gave them for the whole job."""
    one = resize.resize(given, None, size=1)
    _, per_node = resize.requested_nodes(given)
    words = [f"--ntasks={per_node * nodes}", f"--ntasks-per-node={per_node}"] if per_node else []
    if "gpus" in one.options:
        words.append(f"--gpus-per-node={one.options['gpus']}")
    return words


def _said(name: str, variable: str, given: SbatchOptions) -> list[str]:
    """The option as sbatch goes by it: with its value, bare, or not at all."""
    if given.line.has(name):
        value = given.line.get(name)
    elif variable and variable in given.env:
        value = given.env[variable] or None
    elif given.head[0].has(name):
        value = given.head[0].get(name)
    else:
        return []
    return [f"--{name}" if value is None else f"--{name}={value}"]


def _limit(limit_s: float | None) -> str:
    """Whole minutes, rounded up: a companion that ended first would end a healthy start."""
    if limit_s is None:
        return "UNLIMITED"
    if limit_s < 60.0:
        raise SubmitImpossible("less than a minute is left of the job's time")
    return str(math.ceil(limit_s / 60.0))


def _name(kept: Mapping[str, Any], given: SbatchOptions) -> str:
    """The main job's name, so that `scancel --name` ends both."""
    if own := given.get("job-name", "SBATCH_JOB_NAME"):
        return own
    if given.line.has("wrap"):
        return "wrap"
    return str(kept["script_name"] or "script") if kept["source"] == "file" else "sbatch"


_AWAY = frozenset({"maint", "fail", "powering_down", "powered_down", "completing"})
_FREE = frozenset({"idle", "reserved"})


def pool_nodes(cluster: Cluster, pool: Pool) -> frozenset[str]:
    """The pool's nodes; none where Slurm knows no such pool. Raises SlurmError."""
    if pool.kind == "reservation":
        return frozenset(cluster.reserved(pool.name))
    row = cluster.partitions().get(pool.name)
    return frozenset(row.nodes) if row is not None and row.up else frozenset()


def idle_pool_nodes(
    cluster: Cluster, pool: Pool, nodes: Mapping[str, NodeRow], but: Collection[str]
) -> tuple[str, ...]:
    """The healthy nodes of the pool that a companion could have now, less `but`; none if Slurm is silent."""
    try:
        found = pool_nodes(cluster, pool)
    except SlurmError:
        return ()
    return tuple(sorted(node for node in found - set(but) if node in nodes and _is_free(nodes[node])))


def _is_free(row: NodeRow) -> bool:
    return row.state in _FREE and row.responding and not row.drained and not row.flags & _AWAY
