"""Sizes of an elastic run at submission: what is refused, and what each size tells its script. (pure)

A run that may shrink unattended is checked before it starts: every size can be submitted in proportion, the
batch of the whole run can be kept at each of them, and nothing ties the job to nodes by name. What does not
fit is refused in one line that says what does. The full size is always the one of -N, so that no two
numbers mean the same.

`ftrun sbatch` imports this module only where one of its settings is used.
"""

from __future__ import annotations

from ftrun.supervisor.config import node_counts
from ftrun.supervisor.config.node_counts import Sizes, sizes_of_settings
from ftrun.supervisor.config.settings import SETTINGS, number_of
from ftrun.supervisor.model.errors import SettingError, SubmitImpossible
from ftrun.supervisor.submission import resize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ftrun.slurm.client.options import SbatchOptions
    from ftrun.supervisor.config.node_counts import GlobalBatch
    from ftrun.supervisor.config.sources import Config


def refuse_sizes(config: Config, given: SbatchOptions) -> None:
    """Refuse sizes and batches that this submission cannot have. Raises SettingError, SubmitImpossible.

    A default from a configuration file that was not written for this job is applied where it can be.
    """
    chosen, known = config.values, sizes_of_settings(config.values)
    shrinks = chosen["on-queue-timeout"] == "shrink" and config.meant("on-queue-timeout")
    if shrinks and known is None:
        raise SettingError("on-queue-timeout: shrink wants the sizes: --ft-nodes=MIN-MAX beside it")
    _refuse_companion(config, given)
    _refuse_segments(node_counts.segment_size(chosen), chosen, given)
    if known is not None:
        _refuse_sizes(known, chosen, given)
    elif chosen["replicas"] and not chosen["global-batch"]:
        raise SettingError(
            "replicas: nothing is reckoned with them: --ft-global-batch and --ft-micro-batch are missing"
        )
    _batch(known, chosen, given)


def size_facts(chosen: Mapping[str, Any], given: SbatchOptions, size: int) -> dict[str, str]:
    """What the submitted file says of its size (0 = the full one).

    Each start computes from it what its script sees.

    See `compose.compose`. Raises SettingError, SubmitImpossible.
    """
    known = sizes_of_settings(chosen)
    batch = _batch(known, chosen, given)
    full = resize.requested_nodes(given)[0]
    at_once, whole = (batch.micro * batch.replicas, batch.whole) if batch is not None else (0, 0)
    return {"sized": f"{size or full} {full} {known.unit if known is not None else 1} {at_once} {whole}"}


def _refuse_companion(config: Config, given: SbatchOptions) -> None:
    """A user who lists companions explicitly wants them: then a node's share of the job must be known."""
    said = config.text("recover")
    if said == SETTINGS["recover"].default or not config.meant("recover"):
        return
    if "companion" not in (word.strip() for word in said.split(",")):
        return
    try:
        resize.requested_nodes(given)
    except SubmitImpossible:
        raise SettingError(
            "recover: companion cannot be used: it wants a plain number of nodes"
            " (-N 4, or -n with --ntasks-per-node); or leave it out"
        ) from None


def _refuse_segments(unit: int, chosen: Mapping[str, Any], given: SbatchOptions) -> None:
    """Whole segments only, and as many nodes in each as Slurm is asked for."""
    if not unit:
        return
    full = resize.requested_nodes(given)[0]
    if full % unit:
        raise SettingError(f"unit: {full} nodes are no whole segments of {unit}")
    said = given.get("segment")
    if said and said != str(unit) and not number_of(chosen, "spares"):
        raise SettingError(f"unit: --segment={said} and segments of {unit} nodes: say the same number twice")


def _refuse_sizes(known: Sizes, chosen: Mapping[str, Any], given: SbatchOptions) -> None:
    if any(given.get(name) for name in ("nodelist", "nodefile")):
        raise SettingError(
            "nodes: the job names its nodes (-w, -F), so it cannot have fewer: leave one of the two out"
        )
    full = resize.resize(given, None, size=known.all[0]).full
    if known.full != full:
        said, right = "nodes", f"{min(known.all[0], full)}-{full}"
        if not chosen["nodes"]:
            said, right = (
                "nodes-valid",
                ",".join(map(str, sorted({*(n for n in known.all if n < full), full}))),
            )
        raise SettingError(
            f"{said}: the largest size is {known.full}, and -N says {full}: --ft-{said}={right}"
        )
    if len(known.all) == 1:
        said = "nodes" if chosen["nodes"] else "nodes-valid"
        raise SettingError(
            f"{said}: {full} is the only size, so the run could never go on with fewer: add a smaller one, or leave it out"
        )
    if chosen["observe"] or not chosen["retries"]:
        raise SettingError("nodes: nothing would ever use them: retries=0 and observe start nothing again")


def _batch(known: Sizes | None, chosen: Mapping[str, Any], given: SbatchOptions) -> GlobalBatch | None:
    whole, micro = int(number_of(chosen, "global-batch")), int(number_of(chosen, "micro-batch"))
    if not whole and not micro:
        return None
    full, tasks = resize.requested_nodes(given)
    per_node = _gpus_per_node(given, full, tasks) or tasks
    return node_counts.plan_batch(
        known or Sizes((full,)), whole, micro, per_node, replicas=int(number_of(chosen, "replicas"))
    )


def _gpus_per_node(given: SbatchOptions, full: int, tasks: int) -> int:
    """How many GPUs a node has in this job, by whichever option says so; 0 where none does."""
    for name, variable, share in (
        ("gpus-per-node", "SBATCH_GPUS_PER_NODE", 1),
        ("gpus-per-task", "SBATCH_GPUS_PER_TASK", tasks),
    ):
        if text := given.get(name, variable):
            return _counted(text) * share
    if text := given.get("gpus", "SBATCH_GPUS"):
        return _counted(text) // full
    wanted = given.get("gres", "SBATCH_GRES").split(",")
    return sum(_counted(part[4:]) for part in wanted if part == "gpu" or part.startswith("gpu:"))


def _counted(text: str) -> int:
    """8, a100:4, a100 (one), or several of them: how many in all."""
    last = [part.rpartition(":")[2] for part in text.split(",")]
    return sum(int(word) if word.isdigit() else 1 for word in last)
