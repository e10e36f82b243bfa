"""The table of settings: name, kind, default, meaning, and who may set it. (pure)

One row holds all there is to know of a setting: `settings` parses values by it, and docs/settings.md is
made from it. A default that has to be learned or asked for is "" until somebody sets it.

A text can name a command, a path or a variable. So each row of a text says what its value allows its author
(`reach`): to run, read or write something of their choice, or nothing. There is no default for that: a new
row has to say it. Numbers, flags and choices name nothing.

`ftrun sbatch` reads this module, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    Value = bool | int | float | str | list[str]

INT, DURATION, SHARE, NUMBER, FLAG, TEXT, LIST, CHOICE = (
    "int", "duration", "share", "number", "flag", "text", "list", "choice"
)  # fmt: skip
NOTHING, RUNS, READS, WRITES, SENDS = "", "runs", "reads", "writes", "sends"
"""What a value can do. RUNS: a command, an interpreter, or what a program obeys; READS, WRITES: a path; SENDS: an
address that data leave for.
"""
BELOW, OPTION = "below", "option"
"""Forms of values that are harmless all the same: a path below the job's working folder; an option with what
ftrun puts in.
"""


class Setting:
    """One row of the table.

    `default` is in the form that `parse` returns. `least` is the smallest number allowed. `scope` says who
    may set it: "any", "admin" (site and user files), "site" (site file only), "once" (a single submission:
    script, environment, command line). `reach` says what a value can do, and has to be said of texts; values
    of the form `tame` can do nothing.
    """

    __slots__ = ("choices", "default", "doc", "key", "kind", "least", "reach", "scope", "tame", "value_name")

    def __init__(
        self,
        key: str,
        kind: str,
        default: Value,
        doc: str,
        *,
        choices: tuple[str, ...] = (),
        least: float = 0,
        scope: str = "any",
        value_name: str = "",
        reach: str | None = None,
        tame: str = "",
    ) -> None:
        if reach is None and kind in (TEXT, LIST):
            raise TypeError(f"{key}: say what its value can do: reach=")
        self.key = key
        self.kind = kind
        self.default = default
        self.doc = doc
        self.choices = choices
        self.least = least
        self.scope = scope
        self.reach = reach or NOTHING
        self.tame = tame
        self.value_name = value_name or {
            INT: "N",
            DURATION: "TIME",
            SHARE: "PERCENT",
            NUMBER: "X",
            FLAG: "",
        }.get(kind, "TEXT")

    @property
    def environment(self) -> str:
        """The name of its environment variable."""
        return "FTRUN_" + self.key.upper().replace("-", "_")


TABLE = (
    Setting("retries", INT, 20, "How often a run may be started again without net progress, over all fault classes (docs/retries.md); net progress refills it."
            " 0: watch and diagnose, never start again."),
    Setting("storm", TEXT, "10/1h", "So many restarts within so much time without net progress end the run, whatever `retries` leaves; never = no such rule.",
            value_name="N/TIME", reach=NOTHING),
    Setting("max-lost", NUMBER, "", "How many node-hours recovery may cost a run: after a fault, a run that has lost more is not started again (docs/retries.md)."
            " Empty: no such cap.", value_name="NODE_HOURS"),
    Setting("deadline", DURATION, "", "How long after its submission a run may still be started again. A start that runs then goes on. Empty: without end."),
    Setting("escalate", TEXT, "", "What a job that Slurm ends for want of it gets more of at the next try: mem=1.5x after it ran out of host memory, time=2x after a time limit"
            " without a newer checkpoint; within the partition's limits, twice each (docs/retries.md). Empty: nothing.", value_name="mem=Nx,time=Nx", reach=NOTHING),
    Setting("observe", FLAG, False, "Watch, diagnose and decide, but do nothing; the decisions are shown."),
    Setting("name", TEXT, "", "First half of the run's id; default: the job's name.", scope="once", reach=NOTHING),
    Setting("cluster", TEXT, "", "Which of your own clusters the run is submitted to (docs/cluster.md); none: none of them. Default: that of this host, where no"
            " other Slurm is configured.", scope="once", reach=NOTHING, value_name="NAME"),
    Setting("checkpoint", TEXT, "", "Where the script writes its checkpoints: a glob, relative to the job's working folder.",
            value_name="GLOB", reach=READS, tame=BELOW),
    Setting("checkpoint-marker", TEXT, "", "What makes a checkpoint complete: the name of a file inside a checkpoint folder, or a"
            " suffix of a file beside it. Default: any that is no longer growing.", value_name="NAME", reach=READS, tame=BELOW),
    Setting("checkpoint-verify", CHOICE, "structure", "How a start finds out which checkpoints are whole (docs/choosing.md): structure = by their layout, in 10 s at most;"
            " name = by name, marker and size alone, which is also what is done where a node has no Python.",
            choices=("structure", "name")),
    Setting("checkpoint-checksum", CHOICE, "auto", "Read the newest checkpoint to its end while the run runs, and compare every checksum in it (docs/checkpoints.md):"
            " auto = by a child of the job's agent on the node of the batch script, once for each checkpoint; never = only `ftrun checkpoints --deep` does.",
            choices=("auto", "never")),
    Setting("checkpoint-checksum-rate", TEXT, "200M", "How many bytes of it are read in a second. 0: no limit.", value_name="SIZE", reach=NOTHING),
    Setting("checkpoint-fresh", FLAG, False, "Where there are checkpoints and none of them may be used (broken, not loaded before, or of a training that had"
            " diverged), start from nothing, however much is lost by it. Default: as restart-from-zero-max says."),
    Setting("restart-from-zero-max", DURATION, 3600.0, "Where none of the checkpoints may be used that the run has written: how much training may be lost by beginning"
            " from nothing. A run that has trained for longer, or would throw away what was there before it, stops and names each checkpoint with its reason. 0: it always stops."),
    Setting("resume-arg", LIST, [], "Argument that is appended to the script's when there is a checkpoint; {checkpoint} is its"
            " path, {step} its step, {checkpoint_root} the folder to load the newest from (docs/choosing.md). May be given several"
            " times.", value_name="TEMPLATE", reach=RUNS, tame=OPTION),
    Setting("resume-env", LIST, [], "Variable that is set for the script when there is a checkpoint: NAME=TEMPLATE with"
            " {checkpoint}, {step}, {checkpoint_root}. May be given several times.", value_name="NAME=TEMPLATE", reach=RUNS),
    Setting("stage", TEXT, "", "Save checkpoints at memory speed (docs/stage.md): the script writes them into the folder FTRUN_STAGE_DIR in the memory of its"
            " node, and they are published in the background to this folder of the shared file system. Empty: off.", value_name="DIR", reach=WRITES),
    Setting("stage-dir", TEXT, "/dev/shm", "Where that memory is: a folder that each node has for itself, such as /dev/shm or a local NVMe. It has no"  # noqa: S108
            " variable: FTRUN_STAGE_DIR is what the script is told.", value_name="DIR", reach=WRITES),
    Setting("stage-limit", TEXT, "40%", "How much of a node staged checkpoints may take, those of its partner included: a size such as 200G, or a part of the"
            " node's memory. The oldest published ones go first.", value_name="SIZE", reach=NOTHING),
    Setting("stage-rate", TEXT, "0", "How many bytes a node may publish in a second, such as 500M. 0: no limit.", value_name="SIZE", reach=NOTHING),
    Setting("stage-keep", INT, 2, "How many published checkpoints stay in the memory of the nodes, to resume from.", least=1),
    Setting("stage-partner", CHOICE, "auto", "Keep each node's staged files in the memory of another node, too: auto = where there is one and its memory"
            " holds them.", choices=("auto", "never")),
    Setting("stage-flush-timeout", DURATION, 120.0, "How long the end of a start may take to publish what is staged, before the script is started again or the job ends."),
    Setting("caches", CHOICE, "auto", "Keep the compile caches of a run warm from start to start (docs/caches.md): auto = those of PyTorch, Triton, JAX and CANN, in runs that"
            " ftrun may start again (not arrays and heterogeneous jobs); all = MindSpore's, too, which may be wrong; never = every framework's own way.",
            choices=("auto", "all", "never")),
    Setting("cache-limit", TEXT, "4G", "How much the caches of a run may take in its folder; what was used least lately goes first.", value_name="SIZE",
            reach=NOTHING),
    Setting("cache-base", TEXT, "/tmp", "Folder of each node's own disk or memory below which its copy of the caches lies; the same on all nodes, and"  # noqa: S108
            " writable.", value_name="DIR", reach=WRITES),
    Setting("log", LIST, [], "Further log files to read, as globs; the job's own output is always read. May be given several"
            " times.", value_name="GLOB", reach=READS, tame=BELOW),
    Setting("exclude-for", DURATION, 86_400.0, "How long the run avoids a node that was blamed."),
    Setting("exclude-cap", SHARE, 0.10, "Largest part of a partition that a run may avoid at one time."),
    Setting("quarantine", CHOICE, "auto", "Avoid nodes that other runs of this user hold faults against, within `exclude-cap`; never ="
            " only those that this run itself blames.", choices=("auto", "never")),
    Setting("quarantine-max", DURATION, 2_592_000.0, "Longest quarantine of a node; the first lasts `exclude-for`, each further strike"
            " doubles it."),
    Setting("ledger-keep", DURATION, 15_552_000.0, "How long the ledger of nodes keeps what it knows.", least=86_400.0,
            scope="admin"),
    Setting("drain", CHOICE, "auto", "Drain bad nodes: auto = where Slurm permits it and the proof does not rest on the log alone, else ask"
            " the site's service where there is one; ask = always ask the site's service.", choices=("auto", "ask", "never")),
    Setting("drain-cap", SHARE, 0.05, "Largest part of a partition that ftrun may hold drained, all supervisors together; one node"
            " is always allowed."),
    Setting("site-spool", TEXT, "", "Folder in which supervisors that may not drain leave signed requests for `ftrun site`.",
            scope="site", value_name="DIR", reach=WRITES),
    Setting("site-action", CHOICE, "drain", "What the site's service does with a request that a node confirms: drain = drain it; none ="
            " note and answer it only.", choices=("drain", "none"), scope="site"),
    Setting("site-drains-per-hour", INT, 4, "How many nodes the site's service drains in an hour at most.", scope="site"),
    Setting("site-requests-per-user", INT, 10, "How many requests of one user the site's service checks in an hour.", scope="site"),
    Setting("site-priority", TEXT, "", "How the site's service raises a waiting job that replaces one lost to a broken node:"
            " nice:-N, priority:N or qos:NAME; empty: not at all.", scope="site", value_name="RULE", reach=NOTHING),
    Setting("site-raise-per-hour", INT, 10, "How many jobs the site's service raises in an hour at most.", scope="site"),
    Setting("site-raise-per-user", INT, 2, "How many of them may be one user's.", scope="site"),
    Setting("site-raise-after", DURATION, 300.0, "How long the lost job must have run for that.", scope="site"),
    Setting("recheck-passes", INT, 2, "How many clean rechecks in a row give a node back; one more for each time that it lied.",
            least=1, scope="admin"),
    Setting("recheck-spacing", DURATION, 600.0, "Pause between the first two clean rechecks of a node; longer for the next ones, after"
            " failures, and four times as long for each time that it lied.", scope="admin"),
    Setting("recheck-max-relapses", INT, 2, "How often a node may be given back and be blamed again before it is left to a person.", least=1,
            scope="admin"),
    Setting("recheck-step", LIST, [], "Command that `ftrun recheck` tries on a node that fails, {node} is its name; `hardware-gpu,network: COMMAND` is for these classes only; the next one after"
            " the next failure, each once. May be given several times.", scope="admin", value_name="COMMAND", reach=RUNS),
    Setting("ssh-config", TEXT, "", "ssh_config file for looking at nodes. Default: ~/.ssh/config, then /etc/ssh/ssh_config.",
            scope="admin", value_name="FILE", reach=RUNS),
    Setting(
        "log-quiet",
        DURATION,
        2.0,
        "How long a log must be quiet after the end before the fault is judged; up to the default, 0.5s are enough for the"
        " agent once every node has answered that nothing of the start is left there.",
    ),
    Setting("log-quiet-max", DURATION, 10.0, "How long to wait at most for that quiet."),
    Setting("fault-grace", DURATION, 60.0, "How long a live run must stand still after a fatal line, as stacks, beats and what its nodes"
            " use show it, before it is ended; never less than five median steps."),
    Setting("own-restart", DURATION, 0.0, "How long a script that restarts by itself within the job may take after a fault before ftrun acts"
            " (docs/other-recovery.md). Where the script names such a tool (30 min for srun --auto-resume, 10 min for NVRx's ft_launcher)."),
    Setting("fence-wait", DURATION, "", "How long a node that fell silent is waited for before its job counts as over. Default:"
            " Slurm's SlurmdTimeout + 30 s."),
    Setting("fence-command", TEXT, "", "Command that cuts off a node which Slurm has given up, {node} is its name (power off by its"
            " management controller or a cloud's API): where it exits 0 the node counts as fenced at once. Once for each node of a"
            " launch, within `hook-limit`.", scope="admin", value_name="COMMAND", reach=RUNS),
    Setting("recover", TEXT, "rank,step,swap,companion,shrink,resubmit", "The rungs of recovery in the order in which they are tried"
            " (docs/ladder.md): rank = only the dead process starts again, step = the script starts again on the same nodes, swap ="
            " a spare takes the bad node's place, companion = a small second job brings the missing nodes, shrink = on with fewer nodes (`nodes`), resubmit = a new job. What cannot apply to a job is left out of the default;"
            " `resubmit` alone: never inside the allocation.", value_name="RUNGS", reach=NOTHING),
    Setting("spares", INT, 0, "How many nodes are asked for beyond those that the script uses, to take the place of bad ones."),
    Setting("spares-refill", CHOICE, "never", "Ask for spares again before they are needed: auto = as soon as one is used up, by a companion job that queues while"
            " the script works (docs/companions.md); never = with the next job.", choices=("never", "auto")),
    Setting("nodes", TEXT, "", "Numbers of nodes at which the run may go on when a lost node is not replaced (docs/elastic.md): MIN-MAX, or"
            " MIN-MAX:UNIT where UNIT nodes make one data-parallel replica; MAX is what -N says. It has no variable: FTRUN_NODES is what"
            " commands of the user are told.", scope="once", value_name="MIN-MAX[:UNIT]", reach=NOTHING),
    Setting("nodes-valid", TEXT, "", "The same as a list, such as 2,4,8, where not every multiple of a unit will do.", scope="once",
            value_name="N,N,...", reach=NOTHING),
    Setting("unit", TEXT, "node", "What the framework needs whole (docs/topology.md): node = any nodes will do; segment = each UNIT of `nodes` shares a leaf switch or a"
            " block of Slurm's topology (NVL72), and a segment that is not whole is not used; segment:N = the same with N nodes, where `nodes` does not say it.",
            scope="once", value_name="node|segment[:N]", reach=NOTHING),
    Setting("resize-after", DURATION, 270.0, "How long a run with `nodes` waits in the queue at its present size before it is submitted at"
            " a smaller one that can start now."),
    Setting("global-batch", INT, 0, "Samples in one step of the whole run, kept at every size: FTRUN_GRAD_ACCUM tells the script how many"
            " micro steps each replica adds up. Wants `micro-batch`. 0: not told."),
    Setting("micro-batch", INT, 0, "Samples that one data-parallel replica takes in at once."),
    Setting("replicas", INT, 0, "Data-parallel replicas in one unit of `nodes`, for FTRUN_GRAD_ACCUM. 0: one for each GPU of a node (else"
            " each task), and one in all where a unit is several nodes."),
    Setting("queue-timeout", DURATION, 1800.0, "How long a run that must start again may wait in the queue before `on-queue-timeout` is"
            " done. Its first start of all is waited for without limit."),
    Setting("on-queue-timeout", CHOICE, "", "What is done then: shrink = go on at a smaller size of `nodes` as soon as one can start; wait = go"
            " on waiting, with one notice in the run's journal; notify = the same at every further `queue-timeout`; stop = end the run."
            " Default: shrink where `nodes` is set, else wait.", choices=("shrink", "wait", "stop", "notify")),
    Setting("rank-restart", FLAG, False, "The script's framework lets one process die and join again: the rung `rank` may be used."),
    Setting("policy", LIST, [], "One rule for a fault class or a signature, as NAME.KEY=VALUE; KEY is recover, budget, budget-RUNG or"
            " limit-RUNG (docs/ladder.md). In TOML: a table [policy.NAME]. May be given several times.",
            value_name="NAME.KEY=VALUE", reach=NOTHING),
    Setting("budget-rank", INT, 10, "How often single processes are started again without progress in between."),
    Setting("budget-step", INT, 3, "How often the script is started again on the same nodes without progress in between."),
    Setting("budget-swap", INT, 5, "How often spares take the place of bad nodes without progress in between."),
    Setting("pool", TEXT, "", "Where companion jobs for lost nodes are borrowed from, if it has enough idle ones: reservation:NAME or partition:NAME.",
            value_name="POOL", reach=NOTHING),
    Setting("budget-companion", INT, 4, "How often missing nodes are asked for as a companion job without progress in between."),
    Setting("budget-shrink", INT, 8, "How often the run goes on with fewer nodes inside its job without progress in between."),
    Setting("limit-rank", DURATION, 60.0, "How long it may take from the decision until the process runs again; then the next rung is"
            " tried. At most 9m, as for the other rungs.", least=1),
    Setting("limit-step", DURATION, 120.0, "How long it may take from the decision until the script runs again, the pause before it"
            " included.", least=1),
    Setting("limit-swap", DURATION, 180.0, "The same where a spare takes a node's place.", least=1),
    Setting("limit-companion", DURATION, 300.0, "The same where a companion job brings the missing nodes; its time in the queue is part of it.",
            least=1),
    Setting("limit-shrink", DURATION, 120.0, "The same where the script goes on with fewer nodes.", least=1),
    Setting("grow", CHOICE, "auto", "Let a run that goes on with fewer nodes than its full size grow again while it runs: auto = at a checkpoint,"
            " where enough nodes are idle and it pays; never = at a restart that happens anyway.", choices=("auto", "never")),
    Setting("grow-min-interval", DURATION, 1800.0, "Least time at one size before a planned growth."),
    Setting("agent", CHOICE, "auto", "Recover inside the allocation, by an agent beside the script on its first node: auto = where it can"
            " (not for arrays, heterogeneous jobs, `observe`, `retries=0`, nor where `recover` is `resubmit` alone).",
            choices=("auto", "never")),
    Setting("srun-label", CHOICE, "auto", "Let srun write each line's task in front of it: auto = in jobs of several nodes whose srun writes into"
            " the job's own log and was not told otherwise.", choices=("auto", "never")),
    Setting("container-mounts", CHOICE, "auto", "Show the containers of `srun --container-image` (pyxis) the run's folder, and what is staged or"
            " cached: auto = each such call in a job with an agent gets them as mounts under their own paths; never = only what you mount.",
            choices=("auto", "never")),
    Setting("hang", CHOICE, "auto", "End and recover a script that hangs: auto = once it stood still for longer than its own habit, by"
            " `hang-min`, `hang-max` and `hang-grace`; never = hangs are not looked for.", choices=("auto", "never")),
    Setting("hang-min", DURATION, 60.0, "Shortest standstill that is held to be a hang, where all ranks wait in a collective and no stack moves; ten"
            " median steps where that is longer, five times as much where nothing is used and the place is not known.", least=1),
    Setting("hang-max", DURATION, 1800.0, "Standstill that is held to be a hang by weaker witnesses: stacks that never move, beats that stopped. A"
            " silent log alone never is.", least=1),
    Setting("hang-grace", DURATION, 1800.0, "How long a start may take to its first steps (compiling, preparing data) before it is held to"
            " hang.", least=1),
    Setting("straggler", CHOICE, "warn", "What is done about a node that is steadily slower than its peers: warn = say so, and avoid it at the"
            " next start where others are free; swap = a spare takes its place at the next checkpoint; never = not looked for.",
            choices=("warn", "swap", "never")),
    Setting("straggler-ratio", NUMBER, 1.3, "From how many times its peers' step time on a node counts as slow.", least=1.01),
    Setting("straggler-window", DURATION, 60.0, "How long a window is in which step times are compared; a straggler was slow in eight of the"
            " last ten. A shorter one tells sooner and is more easily deceived.", least=5),
    Setting("drained", CHOICE, "leave", "What is done when somebody else drains a node of a live job: leave = after its next checkpoint a spare takes the"
            " node's place, or a new job does where other nodes are free to begin at once; warn = say so and go on; never = nothing"
            " (docs/leaving.md).", choices=("leave", "warn", "never")),
    Setting("save-signal", TEXT, "", "Signal that asks the script's tasks for a checkpoint before a planned stop, such as USR1; the file"
            " save-now in the run's folder asks for it in any case.", value_name="SIGNAL", reach=NOTHING),
    Setting("save-wait", DURATION, 120.0, "How long a new complete checkpoint is waited for before a planned stop."),
    Setting("fault-save-timeout", DURATION, 30.0, "The same after a fault that left most processes alive; 0: they are not asked."),
    Setting("timeouts", CHOICE, "auto", "Let the libraries of collectives record what they do and write it down at their own time-out, by"
            " variables that the user did not set (docs/timeouts.md); no time-out is lowered.", choices=("auto", "never")),
    Setting("tracker", CHOICE, "never", "Let the experiment tracker of the script go on in the same run after a restart (docs/trackers.md): auto = W&B and MLflow, by variables"
            " that the user did not set; all = Comet, too, where the script calls comet_ml.start(); never = each start is what the script makes of it.",
            choices=("auto", "all", "never")),
    Setting("second-opinion", TEXT, "", "Ask a language model where a failure stays unexplained (docs/second-opinion.md): the address of an"
            " OpenAI-compatible endpoint, such as https://models.example.org/v1. It gets at most 8 KB of redacted log lines. Empty: off, and nothing leaves.",
            scope="admin", value_name="URL", reach=SENDS),
    Setting("second-opinion-model", TEXT, "", "The model that is asked, by its name there.", scope="admin", value_name="NAME", reach=NOTHING),
    Setting("second-opinion-key-file", TEXT, "", "File with the key of that endpoint, which only you can read. Without it: the variable FTRUN_SECOND_OPINION_KEY.",
            scope="admin", value_name="FILE", reach=READS),
    Setting("second-opinion-plain-http", FLAG, False, "Let the lines and the key leave this host without encryption.", scope="admin"),
    Setting("second-opinion-limit", DURATION, 20.0, "How long an answer is waited for; then the run goes on without it.", least=1, scope="admin"),
    Setting("second-opinion-per-day", INT, 20, "How many questions may be asked within 24 hours, for all runs of a home.", scope="admin"),
    Setting("notify", TEXT, "", "File with the addresses that get notices (docs/notices.md), one a line: mail, webhooks, any URL that apprise knows, and a heartbeat-url. Only you may"
            " be able to read it. Empty: off.", scope="admin", value_name="FILE", reach=READS),
    Setting("notify-now", TEXT, "gave-up,stalled,finished", "What is told at once: gave-up, stalled, finished, fault, recovered, budget, drained; all; none. The rest is in the daily summary.",
            scope="admin", value_name="KIND,KIND,...", reach=NOTHING),
    Setting("notify-summary", TEXT, "08:00", "When the rest is told, once a day, in the local time of the supervisor's host; never = not at all.", scope="admin",
            value_name="HH:MM", reach=NOTHING),
    Setting("notify-quiet", TEXT, "", "Hours in which no message leaves, such as 22:00-07:00; what there is to tell waits for their end.", scope="admin",
            value_name="HH:MM-HH:MM", reach=NOTHING),
    Setting("notify-per-hour", INT, 6, "How many messages may leave to one address within an hour; the last of them holds all that waits.", least=1, scope="admin"),
    Setting("notify-stalled-after", DURATION, 3600.0, "How long a run that should train may make no step, or wait to start again, until that is told.", least=60.0,
            scope="admin"),
    Setting("claim-wait", DURATION, 120.0, "How long a later attempt waits on its node for the run's folder before it gives up."),
    Setting("backoff", DURATION, 5.0, "Pause before a new attempt after a fault that time may heal; doubled each time."),
    Setting("backoff-max", DURATION, 600.0, "Longest such pause."),
    Setting("poll", DURATION, 2.0, "How often Slurm is asked about the jobs, once for all of them; 5 s to 30 s on a big site.",
            least=0.2),
    Setting("slurm-client", CHOICE, "auto", "How a supervisor asks Slurm (docs/pyslurm.md): auto = by the library pyslurm where it is installed, of the cluster's"
            " release and answers, else by Slurm's commands; pyslurm = the same, and one of an older release may be tried; commands = by them"
            " alone. At a submission: for the supervisor that it starts.", choices=("auto", "pyslurm", "commands")),
    Setting("pyslurm-python", TEXT, "", "Interpreter that has pyslurm, where that is not the one that ftrun runs on.", scope="admin",
            value_name="PATH", reach=RUNS),
    Setting("lease", DURATION, 20.0, "How long a supervisor may be silent before another takes over.", least=1),
    Setting("watch", CHOICE, "auto", "Look after the nodes while the script runs, by a step that takes nothing from it: auto = where it"
            " can (not for tasks of arrays).", choices=("auto", "never")),
    Setting("watch-period", DURATION, 60.0, "How often the watch looks at a node; it begins after half of it, at most 30 s.",
            least=1),
    Setting("after-checks", CHOICE, "auto", "Check the nodes of a script that failed before its job ends or it is started again: auto = unless it failed"
            " within 5 s or somebody ended it; ssh = where the job is gone already, over SSH as well.",
            choices=("auto", "ssh", "never")),
    Setting("preflight", FLAG, False, "Check the nodes before the script starts, in every attempt; where a few of them are bad the script"
            " starts on others instead."),
    Setting("checks", TEXT, "", "File with thresholds of the checks before the script, as JSON; {node} in it is the node's name. Default:"
            " /etc/ftrun/checks.json of each node, where there is one.", value_name="FILE", reach=READS),
    Setting("pre-hook", TEXT, "", "Command that each attempt runs before the script (docs/hooks.md).", value_name="COMMAND",
            reach=RUNS),
    Setting("pre-hook-where", CHOICE, "first-node", "Where pre-hook runs: on the first node of the job, or on all its nodes at once, of"
            " all components.", choices=("first-node", "all-nodes")),
    Setting("pre-hook-failed", CHOICE, "start", "What becomes of the script where pre-hook fails or takes longer than its limit: start, or hold ="
            " it is not started, and the next attempt avoids the nodes that failed.", choices=("start", "hold")),
    Setting("post-hook", TEXT, "", "Command that each attempt runs on its first node after the script, however that ended.",
            value_name="COMMAND", reach=RUNS),
    Setting("on-fault", TEXT, "", "Command that the supervisor runs once a fault is diagnosed and the next step is decided.",
            value_name="COMMAND", reach=RUNS),
    Setting("on-give-up", TEXT, "", "Command that the supervisor runs when it stops a run for good.", value_name="COMMAND", reach=RUNS),
    Setting("metrics-folder", TEXT, "", "Folder into which the supervisor writes metrics of the runs as a text file for node_exporter's textfile collector"
            " (docs/metrics.md). Empty: none.", scope="admin", value_name="DIR", reach=WRITES),
    Setting("metrics-port", INT, 0, "Port on 127.0.0.1 where Prometheus finds the same metrics; every user of that host can read them. 0: none.",
            scope="admin"),
    Setting("hook-limit", DURATION, 60.0, "How long such a command may take before it is ended; it never costs more than this.",
            least=1),
    Setting("supervisor", CHOICE, "auto", "auto: a submission starts a supervisor where none is alive; none: somebody else runs"
            " `ftrun supervise`.", choices=("auto", "none")),
    Setting("idle-exit", DURATION, 120.0, "How long a supervisor that was started by a command stays when there is nothing to look"
            " after.", scope="admin"),
    Setting("strict", FLAG, False, "Refuse to submit where the run's folder cannot be written, instead of submitting a plain job, and where a remark on the script's"
            " containers would be printed."),
    Setting("check", FLAG, False, "Look at the script, and say what its recovery lacks; submit nothing.", scope="once"),
    Setting("dry-run", FLAG, False, "Print the command and the file that would be submitted; submit nothing.", scope="once"),
    Setting("home", TEXT, "", "Folder of all runs, on a file system that the nodes see. Default: ~/.local/state/ftrun.",
            scope="admin", value_name="DIR", reach=WRITES),
    Setting("lock", LIST, [], "Settings that nobody but the site may set.", scope="site", value_name="KEY", reach=NOTHING),
)  # fmt: skip
BUDGET_CLASSES = (
    "hardware-gpu hardware-other network storage node scheduler oom-gpu oom-host user-code data checkpoint preempted"
    " timelimit cancelled hang library-bug config port-conflict unknown healthy"
)
