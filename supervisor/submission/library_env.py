"""Environment variables that ftrun sets for the libraries of a training, and why each is safe. (pure)

`COLLECTIVES` (setting `timeouts`) make a collective library record what hung before it gives up. No timeout is
lowered: that would end ranks that are slow for a good reason while the others wait in a collective, and ftrun
detects a hang earlier anyway, from outside (`hang`). The libraries write what they record into the attempt's
folder at their own timeout. Each variable is a default of newer releases, or only names a file.

`CACHES` (setting `caches`) lead compile caches into one folder on each node, which is kept from start to start.

`TRACKERS` (setting `tracker`) let a tracker of experiments go on in the same run at a later start.

A variable that the user set, under any of its names, is left as it is. docs/timeouts.md, docs/caches.md and
docs/trackers.md list what was considered and left alone. `ftrun sbatch` imports this module, so it imports nothing.
"""

from __future__ import annotations

CACHE_FOLDER = "ftrun-{uid}/cache-"
"""How the run's folder on its nodes begins, below `cache-base`. batch.sh fills in the user's number."""

STACKS = "{stacks}"
"""Placeholder for the folder of this start's stacks, `stacks/<launch>.<start>` of the attempt."""

PYTORCH = "docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"
RECORDER = "docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html"
TORCH_NPU = "github.com/Ascend/pytorch, docs: collective_communication"
TORCH = "docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html"
TRITON = "github.com/triton-lang/triton, README: tips for hacking"
JAX = "docs.jax.dev/en/latest/persistent_compilation_cache.html"
MINDSPORE = "www.mindspore.cn/docs/en/master/api_python/env_var_list.html"
WANDB = "docs.wandb.ai/guides/runs/resuming"
COMET = "comet.com/docs/v2/api-and-sdk/python-sdk/reference/start"
MLFLOW = "mlflow.org/docs/latest/api_reference/python_api/mlflow.html#mlflow.start_run"
CANN = "www.hiascend.com/document, CANN: maintenref/envvar"


class Export:
    """One variable, its value, for which values of its setting it is set, where it is documented, and why.

    It is set where neither it nor any of `aliases` is. In a value {caches} is the folder on the node.
    """

    __slots__ = ("aliases", "name", "settings", "source", "value", "why")

    def __init__(
        self, name: str, value: str, source: str, why: str, *, aliases: str = "", settings: str = "auto all"
    ) -> None:
        self.name = name
        self.value = value
        self.source = source
        self.why = why
        self.aliases = tuple(aliases.split())
        self.settings = tuple(settings.split())


_SIZE = "a ring of 2000 records in memory: the recommended size, and on by default in newer releases"
_DUMP = "a default of newer releases; a rank that is about to die of a timeout waits for its dump, for a minute at most"
_FILE = "names a file that is written only when a collective timed out or failed; where it cannot be written, that is logged and nothing else"
_GRAPHS = "the default is a folder in /tmp, which another node does not have"
_TRITON = "the default lies in the home folder, which all nodes of a job would write into at once"
_ASCEND = "the operators that CANN compiled, for PyTorch, TensorFlow and MindSpore on NPUs; set only where the first node has NPUs"
_WARNS = "MindSpore warns of it itself: its names do not stand for all that the graph depends on"

COLLECTIVES = (
    Export("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", RECORDER, _SIZE, aliases="TORCH_FR_BUFFER_SIZE"),
    Export("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", PYTORCH, _DUMP, aliases="TORCH_FR_DUMP_ON_TIMEOUT"),
    Export(
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        f"{STACKS}/nccl_trace_rank_",
        PYTORCH,
        _FILE,
        aliases="TORCH_FR_DUMP_TEMP_FILE",
    ),
    Export(
        "TORCH_HCCL_TRACE_BUFFER_SIZE", "2000", TORCH_NPU, "the same ring of torch_npu, off by default there"
    ),
    Export("TORCH_HCCL_DUMP_ON_TIMEOUT", "1", TORCH_NPU, "which collective hung is otherwise not known"),
    Export("TORCH_HCCL_DEBUG_INFO_TEMP_FILE", f"{STACKS}/hccl_trace_rank_", TORCH_NPU, _FILE),
)

CACHES = (
    Export("FTRUN_CACHE_DIR", "{caches}", "this page", "for caches of your own; those stay on their node"),
    Export("TORCHINDUCTOR_CACHE_DIR", "{caches}/inductor", TORCH, _GRAPHS),
    Export("TORCHINDUCTOR_FX_GRAPH_CACHE", "1", TORCH, "the default of newer releases"),
    Export(
        "TRITON_CACHE_DIR", "{caches}/triton", TRITON, _TRITON, aliases="TRITON_HOME TORCHINDUCTOR_CACHE_DIR"
    ),
    Export("JAX_COMPILATION_CACHE_DIR", "{caches}/jax", JAX, "JAX keeps nothing unless it is told where"),
    Export(
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
        "0",
        JAX,
        "the default, 1, leaves out the many small programs of a start",
        aliases="JAX_COMPILATION_CACHE_DIR",
    ),
    Export("ASCEND_CACHE_PATH", "{caches}/ascend", CANN, _ASCEND, aliases="ASCEND_WORK_PATH"),
    Export(
        "MS_COMPILER_CACHE_ENABLE", "1", MINDSPORE, _WARNS, aliases="MS_COMPILER_CACHE_PATH", settings="all"
    ),
    Export(
        "MS_COMPILER_CACHE_PATH",
        "{caches}/mindspore",
        MINDSPORE,
        "the default is the working folder",
        aliases="MS_COMPILER_CACHE_ENABLE",
        settings="all",
    ),
)

_WANDB = "a run that does not exist yet is begun under this id, one that exists goes on; never over a sweep's own ids"
TRACKERS = (
    Export("WANDB_RUN_ID", "{name}{task}", WANDB, _WANDB, aliases="WANDB_RESUME WANDB_SWEEP_ID"),
    Export("WANDB_RESUME", "allow", WANDB, _WANDB, aliases="WANDB_RUN_ID WANDB_SWEEP_ID"),
    Export(
        "MLFLOW_RUN_CONTEXT",
        '{"ftrun.run": "{name}{task}"}',
        MLFLOW,
        "a tag of new runs, by which a later start finds the run to go on with",
        aliases="MLFLOW_RUN_ID",
    ),
    Export(
        "COMET_EXPERIMENT_KEY",
        "{key}{task}",
        COMET,
        "for comet_ml.start() alone: the older classes refuse or overwrite an experiment that exists",
        settings="all",
    ),
)


def export_lines(table: tuple[Export, ...], setting: str) -> str:
    """What batch.sh reads: lines `NAME[,ALIAS...]=VALUE` with {stacks}, {caches} and {task} to fill in."""
    chosen = (one for one in table if setting in one.settings)
    return "\n".join(f"{','.join((one.name, *one.aliases))}={one.value}" for one in chosen)
