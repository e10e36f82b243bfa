"""Recovery inside the allocation, as a submission sees it: what is refused, what batch.sh gets. (I/O)

Whether a script can be started again in place depends on the arguments and the settings, so all of it is
checked before sbatch is called, and one line says what is wrong. The rules of the recovery order are
imported only where a setting asks for more than the defaults: most submissions do not.

`ready` checks the folder that staged checkpoints are published to. The first checkpoint would find a wrong
folder hours later, on a node. A file system that does not answer does not keep the job from being
submitted.
"""

from __future__ import annotations

import os

from ftrun.supervisor.config import settings
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.model.errors import SettingError, UserError
from ftrun.supervisor.submission import library_env, named_nodes, resize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from ftrun.slurm.client.options import SbatchOptions
    from ftrun.supervisor.config.sources import Config
    from ftrun.supervisor.model.run import Attempt
    from ftrun.supervisor.policy.policy_input import ClusterView
    from ftrun.supervisor.signatures.catalog import Signature


def with_spares(
    chosen: Mapping[str, Any],
    given: SbatchOptions,
    fewer: int | None = None,
    *,
    size: int = 0,
    exclude: Sequence[str] = (),
    idle: Sequence[str] = (),
    agent: bool = True,
    cwd: str = "",
) -> resize.ResizedSubmission | None:
    """The submission with its spares, for `size` nodes (0 = as many as the user says).

    None where it stays as typed.

    `fewer`: this many spares instead of what the settings want. Where the user named the nodes, those in
    `exclude` that no node of `idle` can replace are left out, as long as they are spares. `agent`: one can
    run beside the script; `cwd` is where the job was submitted ("" = here). Raises SubmitImpossible.
    """
    wanted = int(chosen.get("spares", 0) or 0)
    if not wanted:
        equal = agent and survives_node_loss(chosen, "single") and _sized(chosen)
        made = resize.resize(given, None, size=size, equal=equal) if size or equal else None
        return made if made is not None and (equal or made.active != made.full) else None
    number = wanted if fewer is None else min(fewer, wanted)
    named = named_nodes.required_nodes(given, cwd)
    if named and exclude:
        usable = {*named, *idle} - {*exclude}
        needed = resize.resize(given, 0).active
        number = max(0, min(number, len(usable) - needed))
    made = resize.resize(given, number, size=size, named=named)
    if number < wanted and len(named) > made.active + number:
        first = sorted(named, key=lambda node: node in exclude)[: made.active + number]
        made.options["nodelist"] = ",".join(node for node in named if node in first)
    return made


def active_nodes_of_run(run_dir: str) -> int:
    """How many nodes the user asked for, where spares were added; 0 where none were, or it is not known."""
    from ftrun.supervisor.store import submission_context

    try:
        return int(submission_context.load(run_dir).get("active", 0))
    except submission_context.ContextError:
        return 0


def spares_of(chosen: Mapping[str, Any], attempt: Attempt) -> int:
    """How many spares an attempt was submitted with."""
    return int(chosen.get("spares", 0) if attempt.spares_asked is None else attempt.spares_asked)


def spares_for_next(
    chosen: Mapping[str, Any], before: Attempt, view: ClusterView, exclude: Collection[str], size: int = 0
) -> int | None:
    """How many spares the next attempt gets, as many as the partition has room for.

    None where none were asked for.

    `size` is how many nodes the attempt uses; 0 = as many as `view` says. Nodes that are down or busy count,
    since they come back; drained or excluded ones do not. If Slurm refused the attempt `before` with spares,
    the next one gets none. If Slurm does not show the partition, the next one gets as many as asked for.
    """
    wanted = int(number_of(chosen, "spares"))
    if not wanted:
        return None
    if before.launch.end.state == "REFUSED":
        return 0
    if not view.partition:
        return wanted
    left = (view.available | view.lost) - set(exclude)
    return max(0, min(wanted, len(left) - (size or view.nodes_needed)))


def fewer_spares_message(spares: int, wanted: int) -> str:
    """The message for an attempt that gets fewer spares than asked for."""
    return f"{spares} of {wanted} spares: the partition has no more nodes for this run"


def with_agent(chosen: Mapping[str, Any], shape: str) -> bool:
    """Whether an agent runs beside the script: where anything may be recovered inside the allocation."""
    if shape != "single" or chosen.get("agent") == "never" or chosen["observe"] or not chosen["retries"]:
        return False
    if chosen.get("policy"):
        from ftrun.supervisor.config.recovery_order import rung_rules_from

        return rung_rules_from(chosen).in_place
    words = str(chosen.get("recover", "")).split(",")
    usable = {
        "rank": bool(chosen.get("rank-restart")),
        "step": True,
        "swap": bool(chosen.get("spares")),
        "companion": True,
        "shrink": _sized(chosen),
    }
    return any(usable.get(word.strip(), False) for word in words)


def survives_node_loss(chosen: Mapping[str, Any], shape: str) -> bool:
    """Whether a job is to go on without a node that it lost: where sizes or a companion were asked for."""
    if not with_agent(chosen, shape):
        return False
    lists = (str(chosen.get("recover", "")), *map(str, chosen.get("policy") or ()))
    if any("companion" in words for words in lists if words != _default()):
        return True
    return _sized(chosen) and any("shrink" in words for words in lists)


def _sized(chosen: Mapping[str, Any]) -> bool:
    return bool(chosen.get("nodes") or chosen.get("nodes-valid"))


def batch_facts(kept: Mapping[str, Any], shape: str, made: resize.ResizedSubmission | None) -> dict[str, str]:
    """What the submitted file says about recovery inside the allocation; old contexts have no agent."""
    chosen = kept["settings"]
    facts = {
        "agent": str(kept.get("python", "")) if with_agent(chosen, shape) else "",
        "labels": chosen.get("srun-label", "never"),
        "shows": chosen.get("container-mounts", "never"),
        "rejoin": "1" if chosen.get("rank-restart") else "",
        "save_signal": chosen.get("save-signal", ""),
        "stage": _staged(chosen),
        **cache_facts(kept, shape),
    }
    if made is not None and (chosen.get("spares") or facts["agent"]):
        facts |= {
            "spares": str(made.spares),
            "active": str(made.active),
            "active_tasks": str(made.active_tasks or ""),
            "active_gpus": made.active_gpus,
            "hidden": " ".join(made.hidden),
        }
    return facts


def cache_facts(kept: Mapping[str, Any], shape: str) -> dict[str, str]:
    """What the submitted file says of compile caches.

    Nothing where no start can follow, in arrays and heterogeneous jobs, and in contexts of older versions.
    """
    chosen = kept["settings"]
    setting = chosen.get("caches", "never")
    if (
        setting == "never"
        or shape != "single"
        or chosen["observe"]
        or not chosen["retries"]
        or not kept.get("cache_name")
    ):
        return {}
    from ftrun.hooks.runtime.formats import parse_bytes

    base = str(chosen["cache-base"]).rstrip("/") or "/"
    if not base.startswith("/") or "\n" in base:
        return {}
    folder = f"{base.rstrip('/')}/{library_env.CACHE_FOLDER}{kept['cache_name']}"
    return {
        "caches": f"{parse_bytes(str(chosen['cache-limit']))} {folder}",
        "cache_exports": library_env.export_lines(library_env.CACHES, setting),
    }


def _staged(chosen: Mapping[str, Any]) -> str:
    """Where checkpoints are staged and published, and within which bounds, a line each."""
    if not chosen.get("stage"):
        return ""
    keys = (
        "stage",
        "stage-dir",
        "stage-limit",
        "stage-rate",
        "stage-keep",
        "stage-partner",
        "stage-flush-timeout",
    )
    return "\n".join(str(chosen[key]) for key in keys)


def refuse_recovery_settings(config: Config, shape: str) -> None:
    """Refuse recovery settings that this job cannot have. Raises SettingError."""
    chosen = config.values
    meant = {key for key in ("recover", "policy", "spares", "on-queue-timeout") if config.meant(key)}
    if chosen["hang-min"] > chosen["hang-max"]:  # type: ignore[operator]
        raise SettingError(
            f"hang-min ({settings.format_value('hang-min', chosen['hang-min'])}) is longer than"
            f" hang-max ({settings.format_value('hang-max', chosen['hang-max'])})"
        )
    if chosen["policy"] or any(
        config.origin[key][0] != "default" for key in config.origin if key in _OF_RUNGS
    ):
        _refuse_rungs(config, meant)
    if shape != "single" and "recover" in meant and chosen["recover"] not in ("resubmit", _default()):
        what = "an array" if shape == "array" else "a heterogeneous job"
        raise SettingError(f"recover: {what} recovers by a new submission only: recover=resubmit")
    if shape != "single" and "on-queue-timeout" in meant:
        raise SettingError(
            "on-queue-timeout: arrays and heterogeneous jobs wait as Slurm lets them: leave it out"
        )
    if chosen["spares"] and "spares" in meant and not _may_swap(config, shape):
        raise SettingError("spares: nothing would ever use them: " + _why_not(config, shape))


def known_signatures() -> Mapping[str, Signature]:
    """Every signature by name, with the site's own, as a supervisor knows them. Raises CatalogError."""
    from ftrun.supervisor.signatures import catalog

    return catalog.load([f for f in os.environ.get("FTRUN_CATALOG", "").split(":") if f]).by_id


_IN_PLACE = ("rank", "step", "swap", "companion", "shrink")
_OF_RUNGS = frozenset({"recover", *(f"{kind}-{rung}" for kind in ("budget", "limit") for rung in _IN_PLACE)})


def _refuse_rungs(config: Config, meant: Collection[str]) -> None:
    from ftrun.supervisor.config.recovery_order import rung_rules_from

    rung_rules_from(config.values, signatures=known_signatures, meant=meant)


def _may_swap(config: Config, shape: str) -> bool:
    from ftrun.supervisor.config.recovery_order import rung_rules_from
    from ftrun.supervisor.config.rungs import Rung

    if not with_agent(config.values, shape):
        return False
    orders = rung_rules_from(config.values).orders.values()
    return config.values["straggler"] == "swap" or any(Rung.SWAP in order for order in orders)


def _why_not(config: Config, shape: str) -> str:
    chosen = config.values
    if shape != "single":
        return "an array or a heterogeneous job recovers by a new submission only"
    if not chosen["retries"] or chosen["observe"]:
        return "retries=0 and observe start nothing again"
    if chosen["agent"] == "never":
        return "agent=never recovers nothing inside the allocation"
    return f"swap is not in recover={chosen['recover']}"


def _default() -> object:
    return settings.SETTINGS["recover"].default


STAGE_DIR_TIMEOUT_S = 5.0


def check_stage_dir(path: str, *, make: bool) -> None:
    """Check that `path` is a folder that this user may write to.

    `make` creates it, and those above it, where it is missing. Raises UserError (exit 2).
    """
    import threading  # only for runs that stage checkpoints

    found: list[str] = []
    looking = threading.Thread(
        target=lambda: found.append(_wrong(os.path.expanduser(path), make=make)), daemon=True
    )
    looking.start()
    looking.join(STAGE_DIR_TIMEOUT_S)
    if found and found[0]:
        raise UserError(f"stage: {found[0]}")


def _wrong(path: str, *, make: bool) -> str:
    """Why checkpoints cannot be published there; "" where they can."""
    above = path
    while not os.path.lexists(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        return f"{above} is no folder: name one that all nodes see, such as /shared/me/run7/checkpoints"
    if not os.access(above, os.W_OK | os.X_OK):
        missing = "" if above == path else f", so {path} cannot be made"
        return f"you may not write to {above}{missing}: name a folder that you may write to"
    try:
        if make:
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        return f"{path} cannot be made: {error.strerror}"
    return ""
