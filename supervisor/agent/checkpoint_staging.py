"""Staged checkpoints as the agent sees them: partner nodes, and what the next start resumes from. (I/O)

The staging daemons on the nodes seal, copy and publish by themselves and need no agent. The agent adds what
needs a view of all nodes: which node copies to which (`ring.json`), which nodes are lost, and from which set
the next start resumes. That is the newest set that can be had. The agent waits, up to `stage-flush-timeout`,
while a set newer than the one on disk may still be published, or can be collected cheaply from the memory of
the nodes. Then it tells all nodes to build their view of the set. The view counts only if all nodes have it.
If anything fails, the start reads what is published, as it would without staging.

A set that a start could not load, or that a diverged training wrote, is skipped here as on disk.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftrun.hooks.checkpoints import diverged, manifest, names
from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.hooks.checkpoints.model import Damaged
from ftrun.hooks.runtime import node_report
from ftrun.hooks.staging import partner_map, publish, records, replace
from ftrun.hooks.staging.records import Publishing
from ftrun.hooks.staging.restore import Plan
from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor.agent import release_nodes
from ftrun.supervisor.agent.batch_channel import ResumeView, Started
from ftrun.supervisor.agent.context import AgentContext, log_line
from ftrun.supervisor.agent.node_liveness import NodeAnswers
from ftrun.supervisor.config.settings import number_of, text_of
from ftrun.supervisor.diagnosis import resumable
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.policy import staging
from ftrun.supervisor.policy.staging import StagedSet
from ftrun.supervisor.store import submission_context
from ftrun.supervisor.store.node_tools import node_command

LOOK_EVERY_S = 1.0
LOOK_LIMIT_S = 15.0
QUIET_S = 3.0
TRAVEL_S = 30.0
TRAVEL_MAX_S = 240.0
USUAL_BYTES_PER_S = 100e6  # between two nodes, if not measured
WAIT_MAX_S = 240.0  # batch.sh waits for 600 in all
LEAVES_S = 15.0  # of the job's time are reserved for what follows


@dataclass
class StagingCoordinator:
    """The staged checkpoints of one launch; without the setting `stage` it does nothing."""

    ctx: AgentContext
    settings: Mapping[str, Any]
    _to: str = ""
    _base: str = ""
    _run: str = ""
    _pairs: dict[str, str] = field(default_factory=dict)
    _lost: tuple[str, ...] = ()
    _kept: dict[str, str] = field(default_factory=dict)  # lost node -> the partner with its copies
    _trackers: tuple[str, ...] = ()  # files by which the script finds its newest checkpoint
    _growing: bool = False  # a node is about to seal something
    _started: Started | None = None
    _has_left: bool = False
    _end_s: float | None = None  # when the job's time is up (Unix seconds, None = unknown)

    def __post_init__(self) -> None:
        where, told = self.ctx.where, text_of(self.settings, "stage")
        if told:
            run = os.path.basename(where.run_dir.rstrip("/"))
            self._run = replace.run_of(where.run_dir)
            self._to = os.path.join(submission_context.cwd(where.run_dir), os.path.expanduser(told)).rstrip(
                "/"
            )
            folder = text_of(self.settings, "stage-dir")
            self._base = records.base_of(folder, os.getuid(), run, where.job)

    # ------------------------------------------------------------------ while a start runs

    def begun(self, started: Started) -> None:
        """A start has begun: assign partners."""
        self._started = started
        if not self._to or self.settings.get("stage-partner") == "never":
            return
        leaves: Mapping[str, Sequence[str]] = {}
        if len(started.nodes) > 1:
            leaves = self.ctx.cluster.topology().leaves
        pairs = staging.pair_nodes(started.nodes, leaves, self._pairs)
        if pairs != self._pairs:
            self._pairs = pairs
            self.ctx.journal.record("stage.paired", to=pairs)
        self._lost = tuple(node for node in self._lost if node not in started.nodes)
        self._kept = {node: to for node, to in self._kept.items() if node in self._lost}
        self._tell(started.token)

    def heard(self, started: Started, reach: NodeAnswers) -> None:
        """The answers of the nodes after a start: partners publish the copies of silent nodes."""
        self._end_s = reach.end_s
        fresh = tuple(node for node in reach.silent if node not in self._lost)
        if not self._to or not fresh or self.settings.get("stage-partner") == "never":
            return
        self._lost = (*self._lost, *fresh)
        self._kept |= {node: to for node, to in self._pairs.items() if node in fresh and to not in self._lost}
        gone = set(self._lost)
        self._pairs = {node: to for node, to in self._pairs.items() if not gone.intersection((node, to))}
        self._tell(started.token)

    def _tell(self, token: str) -> None:
        where = self.ctx.where
        told = partner_map.Ring(
            token, self._pairs, self._jobs(), self._lost, text_of(self.settings, "stage-limit"), self._kept
        )
        with contextlib.suppress(OSError):  # without the file there are no copies, and the run goes on
            partner_map.put_ring(where.place, told)

    def _jobs(self) -> dict[str, str]:
        spans = (*self.ctx.spans, *self.ctx.coming)
        lent = {node: span.job for span in spans for node in span.nodes}
        return {**dict.fromkeys(self.ctx.where.nodes, self.ctx.where.job), **lent}

    # ------------------------------------------------------------------ behind the last start

    def leave(self) -> None:
        """No start follows in this allocation: wait until what only node memory holds is published.

        The wait is at most `stage-flush-timeout` and ends before the job's time does. Lost nodes are given
        back first, so that Slurm does not end the job for them meanwhile. If all nodes are the job's own,
        batch.sh does the waiting. Raises OSError (journal), GivenUp.
        """
        started, nodes = self._started, tuple(node for node in self.ctx.nodes if node not in self._lost)
        if not self._to or started is None or self._has_left or self._is_flushed(started, nodes):
            return
        self._has_left = True
        if not any(record["kind"] == "release.refused" for record in self.ctx.journal.records):
            release_nodes.release_silent_nodes(self.ctx, self._lost)
        left_s = self._end_s - self.ctx.clock.now_s() - LEAVES_S if self._end_s is not None else WAIT_MAX_S
        until_s = self.ctx.clock.mono_s() + min(self._wait_s(), left_s)
        while self.ctx.spans and self.ctx.clock.mono_s() < until_s and not self._is_flushed(started, nodes):
            self.ctx.rest(LOOK_EVERY_S)

    # ------------------------------------------------------------------ between two starts

    def resume(self, started: Started, nodes: Sequence[str], skip: Sequence[str]) -> ResumeView | None:
        """The staged set from which the next start on these nodes resumes; None = it chooses among published
        checkpoints. Raises OSError (journal), GivenUp.
        """
        if not self._to:
            return None
        wanted = frozenset(nodes)
        nodes = tuple(node for node in self.ctx.nodes if node in wanted)  # the order of the ranks
        chosen = self._chosen(started, nodes, skip)
        if chosen is None:
            return None
        one, is_published = chosen
        path = f"{self._to}/{one.name}"
        plan = self._plan(started, one, nodes, is_published=is_published)
        if plan is None:
            return None
        number = started.number + 1
        file = f"{self.ctx.where.place}/restore.{self.ctx.where.launch}.{number}.json"
        self.ctx.journal.record(
            "restore.intended",
            set=one.name,
            token=one.token,
            nodes=list(nodes),
            give=[list(row) for row in plan.give],
            published=is_published,
        )
        began_s = self.ctx.clock.mono_s()
        made = self._made(plan, nodes, file)
        seconds = round(self.ctx.clock.mono_s() - began_s, 3)
        missing = [node for node in nodes if not made.get(node, {}).get("view")]
        if missing:
            why = str(made.get(missing[0], {}).get("why") or "it did not answer in time")
            self.ctx.journal.record("restore.failed", set=one.name, node=missing[0], why=why)
            log_line(f"no resume from memory: {missing[0]}: {why}")
            return None
        sums = {
            key: sum(int(row.get(key, 0)) for row in made.values())
            for key in ("memory_bytes", "fetched_bytes", "disk_files")
        }
        self.ctx.journal.record("restore.done", set=one.name, seconds=seconds, **sums)
        return ResumeView(str(made[nodes[0]]["view"]), path, one.step)

    def _chosen(
        self, started: Started, nodes: Sequence[str], skip: Sequence[str]
    ) -> tuple[StagedSet, bool] | None:
        """The set to resume from, and whether it is published; None if no set in memory is as new as the
        checkpoint on disk.
        """
        began_s, run = self.ctx.clock.mono_s(), self.ctx.journal.run()
        asked = tuple(node for node in self.ctx.nodes if node not in self._lost)
        looked = self._looked(started, asked)
        while True:
            waited_s = self.ctx.clock.mono_s() - began_s
            flushed = self._is_flushed(started, asked)
            last = flushed or waited_s > self._wait_s()
            sets = [one for one in looked if self._may(one, skip, run.poisoned)]
            newest = {one.name: one for one in reversed(sets)}
            published = {name for name, one in newest.items() if self._path(one)}
            hopeful = [one for one in sets if self._may_come(one)]
            found = staging.choose_set(sets, nodes, published=published, hopeful=hopeful, last=last)
            growing = self._growing and not last
            if isinstance(found, StagedSet) and not growing:
                return (found, found.name in published) if self._is_newest(found, run) else None
            if last or (found == staging.NONE and not growing):
                return None
            self.ctx.rest(LOOK_EVERY_S)
            looked = self._looked(started, asked) if growing else looked

    def _may(self, one: StagedSet, skip: Sequence[str], poisons: Sequence[Divergence]) -> bool:
        path = self._path(one) or f"{self._to}/{one.name}"
        return path not in skip and not diverged.why_diverged(one.step, one.sealed_s, poisons)

    def _may_come(self, one: StagedSet) -> bool:
        """Whether a set may still be published: each part is in the memory of some node, or on disk."""
        to = Publishing(self._to, one.name, self.ctx.where.job, one.token)
        return all(node in one.at or publish.has_part(to, node) for node in one.expected)

    def _is_newest(self, one: StagedSet, run: Run) -> bool:
        there = resumable.newest_by_name(self.settings, run, submission_context.cwd(self.ctx.where.run_dir))
        step = names.step_of(there) if there else None
        return step is None or (one.step is not None and one.step >= step)

    def _path(self, one: StagedSet) -> str:
        """Where this very set is published; "" if it is not, or if the script itself had saved under this
        name before.
        """
        with contextlib.suppress(OSError):
            return publish.published_path(self._to, one.name, self._run, one.sealed_s)
        return ""

    def _manifest(self, path: str) -> manifest.Manifest | None:
        try:
            return manifest.read(path)
        except (Damaged, OSError):
            return None

    def _plan(
        self, started: Started, one: StagedSet, nodes: Sequence[str], *, is_published: bool
    ) -> Plan | None:
        found = staging.transfer_plan(one, nodes, published=is_published)
        path = self._path(one) if is_published else ""
        known = self._manifest(path) if path else None
        if found is None or (is_published and known is None):
            return None
        travel_s = found.most_bytes / self._bytes_per_s(found)
        if travel_s > TRAVEL_MAX_S:
            if not is_published:
                return None
            found, travel_s = staging.TransferPlan((), {}, 0, 0), 0.0  # read it from disk
        sums = {name: entry.sha256 for name, entry in known.files.items()} if known is not None else {}
        if one.is_file and known is not None:
            sums = {"": next(iter(sums.values()), "")}
        return Plan(
            start=f"{self.ctx.where.launch}.{started.number + 1}",
            token=one.token,
            name=one.name,
            nodes=one.nodes,
            give=found.give,
            need=found.need,
            published=path,
            files=sums,
            trackers=self._trackers,
            marker=text_of(self.settings, "checkpoint-marker"),
            jobs=self._jobs(),
            limit=text_of(self.settings, "stage-limit"),
            limit_s=TRAVEL_S + min(3.0 * travel_s, TRAVEL_MAX_S) if found.give else 0.0,
        )

    def _bytes_per_s(self, wanted: staging.TransferPlan) -> float:
        holders = {holder for holder, _, _ in wanted.give}
        known = (partner_map.read_copies(self.ctx.where.place, holder).bytes_per_s for holder in holders)
        return min((rate for rate in known if rate > 0), default=USUAL_BYTES_PER_S)

    def _wait_s(self) -> float:
        return min(number_of(self.settings, "stage-flush-timeout"), WAIT_MAX_S)

    # ------------------------------------------------------------------ asking the nodes

    def _looked(self, started: Started, nodes: Sequence[str]) -> list[StagedSet]:
        answers = self._asked(nodes, ["restore", "--base", self._base, "--look"], LOOK_LIMIT_S, QUIET_S)
        held = [row for node, told in answers.items() for row in staging.parse_parts(node, told)]
        beside = {str(name) for told in answers.values() for name in told.get("trackers", ())}
        self._trackers = tuple(sorted(beside))
        self._growing = any(told.get("growing") for told in answers.values())
        expected = {started.token: started.nodes}
        for number in range(1, started.number):
            if (earlier := self.ctx.channel.started(number)) is not None:
                expected[earlier.token] = earlier.nodes
        return staging.group_sets(held, expected)

    def _made(self, plan: Plan, nodes: Sequence[str], file: str) -> dict[str, dict[str, Any]]:
        """The result of building the view, for each node that answered."""
        try:
            node_report.write_json(file, plan._asdict())
        except OSError as error:
            log_line(f"{file}: {error.strerror}")
            return {}
        asked = tuple(dict.fromkeys((*nodes, *(holder for holder, _, _ in plan.give))))
        words = ["restore", "--base", self._base, "--plan", file]
        limit_s = LOOK_LIMIT_S + plan.limit_s
        return self.ctx.journal.act("restore", lambda: self._asked(asked, words, limit_s, limit_s))

    def _asked(
        self, nodes: Sequence[str], words: Sequence[str], limit_s: float, quiet_s: float
    ) -> dict[str, dict[str, Any]]:
        """The JSON answer of each node; nodes without an answer are left out."""
        where, line = self.ctx.where, node_command(self.ctx.where.home, words)
        answers: dict[str, tuple[str, ...]] = {}
        if tuple(nodes) == (where.node,):
            answers = {where.node: self.ctx.own_node(line, where.job, where.node, limit_s) or ()}
        else:
            try:
                answers = dict(
                    self.ctx.steps.ask(
                        where.job, nodes, line, limit_s=limit_s, quiet_s=quiet_s, alive=self.ctx.alive
                    ).answers
                )
            except SlurmError as error:
                log_line(f"staged checkpoints: {error.message}")
        found = {}
        for node, lines in answers.items():
            with contextlib.suppress(ValueError, IndexError):
                told = json.loads(lines[-1])
                if isinstance(told, dict):
                    found[node] = told
        return found

    def _is_flushed(self, started: Started, nodes: Sequence[str]) -> bool:
        """Each of these nodes that took part reports that it has nothing left to publish."""
        folder = f"{self.ctx.where.place}/stage"
        own = [node for node in started.nodes if node in nodes]
        return all(os.path.exists(f"{folder}/flushed.{started.token}.{node}") for node in own)
