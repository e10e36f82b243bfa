"""Environment variables that point the compile caches of frameworks to the run's folder on its node. (pure)

A variable is set only where the user set neither it nor one that decides the same: a user's own location
stays. What is set names a folder, or switches on what newer releases do by default. A cache that has given
wrong results is not switched on unless asked for. XLA_FLAGS is left alone: an option that a release does
not know ends the process, and JAX itself puts XLA's own caches into its folder.

`EXPORTS` is what batch.sh sets (setting `caches`), `LEFT` what was considered and left alone. `ftrun
sbatch` imports this module, so it imports nothing.
"""

from __future__ import annotations

FOLDER = "ftrun-{uid}/cache-"
"""How the run's folder on its nodes begins, below `cache-base`. batch.sh fills in the user's number."""

TORCH = "docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html"
TRITON = "github.com/triton-lang/triton, README: tips for hacking"
JAX = "docs.jax.dev/en/latest/persistent_compilation_cache.html"
MINDSPORE = "www.mindspore.cn/docs/en/master/api_python/env_var_list.html"
CANN = "www.hiascend.com/document, CANN: maintenref/envvar"


class Export:
    """One variable, set where neither it nor any of `aliases` is.

    Value ({caches} is the folder), settings, source, reason.
    """

    __slots__ = ("aliases", "name", "settings", "source", "value", "why")

    def __init__(
        self,
        name: str,
        value: str,
        source: str,
        why: str,
        *,
        aliases: tuple[str, ...] = (),
        settings: tuple[str, ...] = ("auto", "all"),
    ) -> None:
        self.name = name
        self.value = value
        self.aliases = aliases
        self.settings = settings
        self.source = source
        self.why = why


EXPORTS = (
    Export(
        "FTRUN_CACHE_DIR",
        "{caches}",
        "this page",
        "the folder itself, for caches of your own; those stay on their node",
    ),
    Export(
        "TORCHINDUCTOR_CACHE_DIR",
        "{caches}/inductor",
        TORCH,
        "the default is a folder in /tmp, which another node does not have",
    ),
    Export("TORCHINDUCTOR_FX_GRAPH_CACHE", "1", TORCH, "the default of newer releases"),
    Export(
        "TRITON_CACHE_DIR",
        "{caches}/triton",
        TRITON,
        "the default lies in the home folder, which all nodes of a job would write into at once",
        aliases=("TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR"),
    ),
    Export("JAX_COMPILATION_CACHE_DIR", "{caches}/jax", JAX, "JAX keeps nothing unless it is told where"),
    Export(
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
        "0",
        JAX,
        "the default, 1, leaves out the many small programs of a start",
        aliases=("JAX_COMPILATION_CACHE_DIR",),
    ),
    Export(
        "ASCEND_CACHE_PATH",
        "{caches}/ascend",
        CANN,
        "the operators that CANN compiled, for PyTorch, TensorFlow and MindSpore on NPUs; set only where the first node has NPUs",
        aliases=("ASCEND_WORK_PATH",),
    ),
    Export(
        "MS_COMPILER_CACHE_ENABLE",
        "1",
        MINDSPORE,
        "MindSpore warns of it itself: its names do not stand for all that the graph depends on",
        aliases=("MS_COMPILER_CACHE_PATH",),
        settings=("all",),
    ),
    Export(
        "MS_COMPILER_CACHE_PATH",
        "{caches}/mindspore",
        MINDSPORE,
        "the default is the working folder",
        aliases=("MS_COMPILER_CACHE_ENABLE",),
        settings=("all",),
    ),
)

LEFT_ALONE = (
    (
        "XLA_FLAGS",
        "an option that a release does not know ends the process at its start; JAX hands the options for XLA's caches to the compiler itself",
    ),
    (
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES",
        "by default results of autotuning on GPUs, in JAX's folder, written by the first process; the other kind, a file of kernels, is no file for several processes",
    ),
    (
        "CUDA_CACHE_PATH",
        "holds what the driver compiles for GPUs newer than the program, which training frameworks seldom need",
    ),
    (
        "TORCHINDUCTOR_AUTOGRAD_CACHE",
        "on by default since PyTorch 2.6, and an experiment before; it lies in the folder of the graphs",
    ),
    ("ASCEND_MAX_OP_CACHE_SIZE", "500 MB by default, and CANN keeps it itself"),
)


def export_lines(setting: str) -> str:
    """What batch.sh reads: lines `NAME[,ALIAS...]=VALUE` with `{caches}` to fill in; "" for `never`."""
    return "\n".join(
        f"{','.join((one.name, *one.aliases))}={one.value}" for one in EXPORTS if setting in one.settings
    )
