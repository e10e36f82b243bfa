"""Metrics of the user's runs: a text file for node_exporter, or a port on loopback for Prometheus. (I/O)

The only module that imports prometheus_client, late. The text file has the Prometheus text format, which is all
that node_exporter's textfile collector reads; the port answers in OpenMetrics to who asks for that.

Every sample has the label `user`, since many users' files lie in one folder, and `home` where that is not the
user's usual one. At most `RUNS_MAX` runs have series of their own: those that changed last. A run that ended is
left with its last values for a while (`follower.LEAVE_AFTER_S`); what it counted stays in the sums for ever.

The checkpoints of runs are the users', on file systems that may not answer, so a thread looks at them and nobody waits
for it.

$FTRUN_HOME/publish/metrics.json   what the counters were last, so that they never fall
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ftrun.supervisor.config.home import home_dir, write_atomically
from ftrun.supervisor.config.settings import text_of
from ftrun.supervisor.model.run import Record, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.nodes import ledger
from ftrun.supervisor.nodes.history import fold_entries
from ftrun.supervisor.publish import series
from ftrun.supervisor.publish.public_file import write_public
from ftrun.supervisor.publish.publisher import FollowedRun, Kept, Publisher
from ftrun.supervisor.publish.series import GAUGE, HISTOGRAM, NAMES, RunFigures, Samples, Totals
from ftrun.supervisor.store import checkpoints, run_dir, submission_context

PUBLISH_EVERY_S = 15.0
RECOUNT_EVERY_S = 60.0  # how often the time of a run is counted that only goes on
COST_SHARE = 50.0  # the pause after counting is at least so many times its cost
NODES_EVERY_S = 60.0
PORT_EVERY_S = 60.0  # how often a port that is in use is tried
RUNS_MAX, NODES_MAX = 1000, 500
LOOPBACK = "127.0.0.1"
CHECKPOINTS_EVERY_S = 120.0
_LIVE = (State.RUNNING, State.SUSPECT)


class _Counted:
    """One followed run: its figures, when they were counted last, and what they were."""

    def __init__(self) -> None:
        self.figures = RunFigures()
        self.totals: Totals = {}
        self.due_s = float("-inf")  # by the monotonic clock
        self.next_s = float("-inf")  # not before, whatever comes: counting costs


class Metrics(Publisher):
    """`folder`: of the textfile collector, "" = none; `port`: on loopback, 0 = none."""

    name = "metrics"

    def __init__(
        self,
        home: str,
        *,
        folder: str = "",
        port: int = 0,
        user: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home, self._port, self._clock = home, port, clock
        self._labels = labels_of(home, user)
        self._path = os.path.join(folder, file_name(self._labels)) if folder else ""
        self._floor_path = os.path.join(home, "publish", "metrics.json")
        self._sum = series.Sum(_read_floor(self._floor_path))
        self._kept: Totals = series.known_from_the_start()
        self._runs: dict[str, FollowedRun] = {}
        self._counted: dict[str, _Counted] = {}
        self._ages = CheckpointAges()
        self._nodes = ledger.Reader(home)
        self._strikes: Samples = {}
        self._strikes_due_s = self._port_due_s = self._due_s = float("-inf")
        self._snapshot: Totals = {}
        self._server: Any = None
        self._trouble: dict[str, str] = {}

    # ------------------------------------------------------------------ what it is told

    def on_history(self, run: FollowedRun, records: Sequence[Record]) -> None:
        """Count a run from its beginning."""
        self._runs[run.run.id], self._counted[run.run.id] = run, _Counted()
        self.on_events(run, records)

    def on_events(self, run: FollowedRun, events: Sequence[Record]) -> None:
        """Count what is new."""
        counted = self._counted[run.run.id]
        counted.figures.take(run.run, events)
        counted.due_s = float("-inf")

    def on_left(self, run: FollowedRun) -> Kept:
        """What the run counted stays in the sums."""
        counted, _ = self._counted.pop(run.run.id), self._runs.pop(run.run.id)
        totals = counted.figures.totals(run.run, run.run.last_at_s)
        self._keep(totals, 1.0)
        return {"totals": series.totals_to_json(totals)}

    def on_kept(self, run_id: str, kept: Kept) -> None:  # noqa: ARG002 - all runs are one sum
        """A run of an earlier process."""
        self._keep(series.totals_from_json(kept.get("totals")), 1.0)

    def on_back(self, run_id: str, kept: Kept) -> None:  # noqa: ARG002
        """It is counted anew."""
        self._keep(series.totals_from_json(kept.get("totals")), -1.0)

    def tick(self, now_s: float) -> None:
        """Publish where it is due."""
        mono_s = self._clock()
        self._serve(mono_s)
        if mono_s >= self._due_s:
            self._due_s = mono_s + PUBLISH_EVERY_S
            self._ages.look(self._runs, mono_s)
            self._publish(now_s)

    def close(self, now_s: float) -> None:
        """Publish once more."""
        self._publish(now_s)

    def problem(self) -> str:
        """What cannot be written or opened."""
        return "; ".join(self._trouble.values())

    # ------------------------------------------------------------------ what it tells

    def text(self, now_s: float) -> bytes:
        """All metrics in the Prometheus text format."""
        self._snapshot = self._samples(now_s)
        return samples_text(self._snapshot, self._labels)

    def _publish(self, now_s: float) -> None:
        if self._path:
            with self._noting("folder", self._path):
                write_public(self._path, self.text(now_s))
        else:
            self._snapshot = self._samples(now_s)
        with self._noting("floor", self._floor_path):
            told = json.dumps(series.totals_to_json(self._sum.floor))
            write_atomically(self._floor_path, told.encode(), sync=False)

    def _samples(self, now_s: float) -> Samples:
        mono_s = self._clock()
        for run_id, counted in self._counted.items():
            if mono_s >= max(counted.due_s, counted.next_s):
                began_s = time.thread_time()
                counted.totals = counted.figures.totals(self._runs[run_id].run, now_s)
                cost_s = time.thread_time() - began_s
                counted.due_s = mono_s + (RECOUNT_EVERY_S if not self._runs[run_id].run.final else 1e9)
                counted.next_s = mono_s + COST_SHARE * cost_s
        found: Samples = self._sum.of([self._kept, *(one.totals for one in self._counted.values())])
        found = {
            **found,
            **series.runs_by_state(one.run for one in self._runs.values()),
            **self._node_strikes(),
        }
        newest = sorted(self._runs.values(), key=lambda one: (not one.run.final, one.run.last_at_s))[
            -RUNS_MAX:
        ]
        for one in newest:
            found.update(self._counted[one.run.id].figures.samples(one.run))
            written_s = self._ages.written_s.get(one.run.id)
            if written_s is not None:
                found["ftrun_checkpoint_age_seconds", one.run.id] = max(0.0, now_s - written_s)
        if self.supervisor_seen_s:
            found["ftrun_supervisor_seen_timestamp_seconds",] = self.supervisor_seen_s
        found["ftrun_build_info", _version()] = 1.0
        return found

    def _node_strikes(self) -> Samples:
        if self._clock() >= self._strikes_due_s:
            began_s = time.thread_time()
            nodes = fold_entries(self._nodes.entries()).nodes.values()
            struck = sorted(
                (one for one in nodes if one.strikes), key=lambda one: (-len(one.strikes), one.node)
            )
            self._strikes = {
                ("ftrun_node_strikes", series.label_text(one.node)): float(len(one.strikes))
                for one in struck[:NODES_MAX]
            }
            cost_s = time.thread_time() - began_s
            self._strikes_due_s = self._clock() + max(NODES_EVERY_S, COST_SHARE * cost_s)
        return self._strikes

    def collect(self) -> Iterator[Any]:
        """For prometheus_client: the families of what was counted last. Called in the threads of its server."""
        return families(self._snapshot, self._labels)

    def _serve(self, mono_s: float) -> None:
        if not self._port or self._server is not None or mono_s < self._port_due_s:
            return
        self._port_due_s = mono_s + PORT_EVERY_S
        from prometheus_client import start_http_server

        with self._noting("port", f"metrics-port {self._port}"):
            self._server = start_http_server(self._port, addr=LOOPBACK, registry=_registry(self))

    def _keep(self, totals: Totals, sign: float) -> None:
        for key, value in totals.items():
            self._kept[key] = self._kept.get(key, 0.0) + sign * value

    @contextlib.contextmanager
    def _noting(self, what: str, subject: str) -> Iterator[None]:
        """Note why something cannot be done, or that it was."""
        try:
            yield
        except FileNotFoundError:
            self._trouble[what] = f"{os.path.dirname(subject)} does not exist"
        except OSError as error:
            self._trouble[what] = f"{subject}: {error.strerror}"
        else:
            self._trouble.pop(what, None)


def samples_text(samples: Samples, labels: Mapping[str, str]) -> bytes:
    """The samples in the Prometheus text format."""
    from prometheus_client import generate_latest

    class Told:
        """What prometheus_client collects from."""

        def collect(self) -> Iterator[Any]:
            return families(samples, labels)

    return generate_latest(_registry(Told()))


def _registry(source: Any) -> Any:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(source)
    return registry


def families(samples: Samples, labels: Mapping[str, str]) -> Iterator[Any]:
    """The samples as families of prometheus_client, in the order of the table; `labels`: of all of them."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    by_name: dict[str, list[series.Key]] = {}
    for key in samples:
        by_name.setdefault(key[0], []).append(key)
    for name, row in NAMES.items():
        keys = by_name.get(name, [])
        if not keys:
            continue
        names = (*labels, *row.labels)
        if row.kind == HISTOGRAM:
            family: Any = HistogramMetricFamily(name, row.help, labels=names)
            for own, buckets, total in _histograms(keys, samples):
                family.add_metric((*labels.values(), *own), buckets, total)
        else:
            make: Any = GaugeMetricFamily if row.kind == GAUGE else CounterMetricFamily
            family = make(name, row.help, labels=names)
            for key in sorted(keys):
                family.add_metric((*labels.values(), *key[1:]), samples[key])
        yield family


def _histograms(
    keys: Iterable[series.Key], samples: Samples
) -> Iterator[tuple[tuple[str, ...], list[tuple[str, float]], float]]:
    """Labels, buckets and sum of each histogram among these samples."""
    bounds = [*map(str, series.RECOVERY_BOUNDS_S), "+Inf"]
    for name, *own in sorted({key[:-1] for key in keys}):
        place = (name, *own)
        yield (
            tuple(own),
            [(bound, samples.get((*place, bound), 0.0)) for bound in bounds],
            samples[*place, "sum"],
        )


def labels_of(home: str, user: str = "") -> dict[str, str]:
    """The labels of all samples: the user; the home where it is not the usual one."""
    import getpass

    with contextlib.suppress(OSError, KeyError):
        user = user or getpass.getuser()
    labels = {"user": series.label_text(user) or str(os.getuid())}
    env = {key: value for key, value in os.environ.items() if key != "FTRUN_HOME"}
    return labels if os.path.abspath(home_dir(env)) == home else {**labels, "home": series.label_text(home)}


def file_name(labels: Mapping[str, str]) -> str:
    """The name of the text file: each user and home has one."""
    user = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in labels["user"])
    mark = f"-{zlib.crc32(labels['home'].encode()):08x}" if "home" in labels else ""
    return f"ftrun-{user}{mark}.prom"


def _read_floor(path: str) -> Totals:
    with contextlib.suppress(ValueError, RecursionError):
        return series.totals_from_json(json.loads(run_dir.read_untrusted(path, 1 << 22) or b""))
    return {}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    with contextlib.suppress(PackageNotFoundError):
        return version("ftrun")
    return "unknown"


class CheckpointAges:
    """`written_s`: run -> Unix seconds, of the live runs that have a checkpoint."""

    def __init__(self) -> None:
        self.written_s: Mapping[str, float] = {}
        self._looked_s = float("-inf")
        self._thread: threading.Thread | None = None

    def look(self, runs: Mapping[str, FollowedRun], mono_s: float) -> None:
        """Begin to look where it is due."""
        if mono_s - self._looked_s < CHECKPOINTS_EVERY_S or (
            self._thread is not None and self._thread.is_alive()
        ):
            return
        self._looked_s = mono_s
        wanted = {run_id: (one.dir, one.run) for run_id, one in runs.items() if one.run.state in _LIVE}
        self._thread = threading.Thread(target=self.look_now, args=(wanted,), daemon=True)
        self._thread.start()

    def look_now(self, wanted: Mapping[str, tuple[str, Run]]) -> None:
        """Look at these, however long it takes."""
        found: dict[str, float] = {}
        for run_id, (folder, run) in wanted.items():
            with contextlib.suppress(OSError, ValueError, LookupError):
                pattern = text_of(run.settings, "checkpoint")
                if pattern:
                    marker = text_of(run.settings, "checkpoint-marker")
                    cwd = submission_context.cwd(folder)
                    newest = checkpoints.newest_checkpoint(pattern, marker=marker, cwd=cwd)
                    written_s = checkpoints.modified_s(newest) if newest else None
                    if written_s is not None:
                        found[run_id] = written_s
        self.written_s = found
