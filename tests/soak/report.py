"""What a soak tells: figures as data, and the table that a person reads. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tests.soak.goodput import alive_until_s, lost, spent

__all__ = ["of_ours", "of_side", "text"]

ABOUT = {
    "ftrun": "ftrun sbatch",
    "plain": "sbatch --requeue",
    "loop": "sbatch, and the script requeues itself when it fails",
    "attended": "the same, and a person looks after it",
}


def of_side(side: Any, book: Any, began_s: float, ended_s: float, step_s: float) -> dict[str, Any]:
    """The figures of one side."""
    used = spent(book.steps, book.saves, book.ranks, began_s=began_s, ended_s=ended_s, step_s=step_s)
    struck = [(blow, at_s, node) for blow, at_s, node in side.struck if at_s <= ended_s]
    took = lost(book.steps, [at_s for _, at_s, _ in struck], ended_s=ended_s, step_s=step_s)
    noted = {(line["what"], line["step"]) for line in book.faults}
    return {
        "side": side.name,
        "useful": round(used.useful, 4),
        "repeated": round(used.repeated, 4),
        "standing_still": round(used.idle, 4),
        "steps_kept": used.kept,
        "steps_again": used.again,
        "starts": used.starts,
        "dead_after_s": alive_until_s(book.steps, began_s=began_s, ended_s=ended_s),
        "struck_inside": len(noted),
        "blows": [
            {
                "kind": blow.kind.name,
                "at_s": round(at_s - began_s, 1),
                "node": node,
                "lost_s": after,
            }
            for (blow, at_s, node), after in zip(struck, took, strict=True)
        ],
    }


def of_ours(ours: Any, hours: float) -> dict[str, Any]:
    """What only ftrun's side can tell."""
    run, rss, files = ours.run(), [s.rss_kib for s in ours.samples], [s.files for s in ours.samples]
    tenth = max(1, len(rss) // 10)
    return {
        "laws": [
            {"law": law, "looks": looks, "breaches": ours.laws.breaches.get(law, [])}
            for law, looks in ours.laws.looks.items()
        ],
        "checksum": {
            "seen": [line["checksum"] for line in ours.trace().finals],
            "right": ours.right_checksum(),
        },
        "attempts": len(run.attempts),
        "incidents": [
            {"class": one.fault, "nodes": list(one.nodes), "kind": one.decision.get("kind", "")}
            for one in run.incidents
        ],
        "drained": sorted({str(node) for node in run.drained}),
        "supervisor": {
            "rss_kib_first_last": [median(rss[:tenth]), median(rss[-tenth:])] if rss else [],
            "files_first_last": [median(files[:tenth]), median(files[-tenth:])] if files else [],
        },
        "run_folder_kib_per_hour": round(ours.run_folder_bytes() / 1024 / max(hours, 1e-9)),
    }


def text(told: Mapping[str, Any]) -> str:
    """The tables."""
    sides = told["sides"]
    lines = [
        "",
        f"seed {told['seed']}: {len(told['plan'])} blows in {told['minutes']} min; a step usually takes {told['usual_step_s']} s; load of the machine: median {told['load'][0]}, at most {told['load'][1]}",
        "",
        f"{'SIDE':<10}{'USEFUL':>8}{'AGAIN':>8}{'STILL':>8}{'STEPS':>8}{'STARTS':>8}  {'DEAD AFTER':<12}",
    ]
    for side in sides:
        dead = side["dead_after_s"]
        lines.append(
            f"{side['side']:<10}{side['useful']:>8.1%}{side['repeated']:>8.1%}{side['standing_still']:>8.1%}{side['steps_kept']:>8}"
            f"{side['starts']:>8}  {'-' if dead is None else f'{dead / 60:.1f} min':<12}{ABOUT[side['side']]}"
        )
    lines += [
        "",
        "seconds after a blow, and before the next one, that did not go into new steps (median)",
    ]
    lines += _blows(sides)
    if "laws" in told:
        lines += ["", f"{'INVARIANT':<64}{'LOOKS':>7}{'VIOLATED':>10}"]
        lines += [f"{one['law']:<64}{one['looks']:>7}{len(one['breaches']):>10}" for one in told["laws"]]
        lines += [f"  {one['law']}: {breach}" for one in told["laws"] for breach in one["breaches"]]
        rss, files = told["supervisor"]["rss_kib_first_last"], told["supervisor"]["files_first_last"]
        lines += [
            "",
            f"supervisor, first and last tenth: {' -> '.join(f'{kib / 1024:.1f} MiB' for kib in rss)}; {' -> '.join(f'{n:g}' for n in files)} open files",
            (
                f"the run's folder: {told['run_folder_kib_per_hour']} KiB an hour; {told['attempts']} attempts, {len(told['incidents'])} incidents, "
                f"nodes drained by ftrun: {', '.join(told['drained']) or 'none'}"
            ),
        ]
    lines.append(f"violations: {told['violations']}")
    return "\n".join(lines)


def _blows(sides: Sequence[Mapping[str, Any]]) -> list[str]:
    kinds = sorted({blow["kind"] for side in sides for blow in side["blows"]})
    rows = [f"{'BLOW':<20}" + "".join(f"{side['side']:>12}" for side in sides)]
    for kind in kinds:
        cells = []
        for side in sides:
            took = [blow["lost_s"] for blow in side["blows"] if blow["kind"] == kind]
            cells.append(f"{median(took) if took else 0:>12.1f}")
        rows.append(f"{kind:<20}" + "".join(cells))
    return rows
