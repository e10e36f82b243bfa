"""Environment variables that make a collective library record what hung before it gives up. (pure)

No timeout is lowered: a lower one would end ranks that are slow for a good reason (an evaluation on one
rank, a checkpoint, a compilation) while the others wait in a collective. ftrun detects a hang earlier
anyway, from outside and with the run's own step times (`hang`). What is set makes the libraries record what
they do and write it into the attempt's folder at their own timeout. Each variable is a default of newer
releases, or only names a file. A variable that the user set, under any of its names, is left as it is.

`EXPORTS` is what batch.sh sets (setting `timeouts`), `LEFT` what was considered and left alone. `ftrun
sbatch` imports this module, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PYTORCH = "docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"
RECORDER = "docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html"
TORCH_NPU = "github.com/Ascend/pytorch, docs: collective_communication"
CANN = "www.hiascend.com/document, CANN: maintenref/envvar"
MINDSPORE = "www.mindspore.cn/tutorials/en/master/parallel/dynamic_cluster.html"
NCCL = "docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

STACKS = "{stacks}"
"""Placeholder for the folder of this start's stacks, `stacks/<launch>.<start>` of the attempt."""


class Export:
    """One variable, set where neither it nor any of `aliases` is.

    Value, where it is documented, why it is safe.
    """

    __slots__ = ("aliases", "name", "source", "value", "why")

    def __init__(self, name: str, value: str, aliases: tuple[str, ...], source: str, why: str) -> None:
        self.name = name
        self.value = value
        self.aliases = aliases
        self.source = source
        self.why = why


class LeftAlone:
    """One variable that is left alone, where it is documented, and why."""

    __slots__ = ("name", "source", "why")

    def __init__(self, name: str, source: str, why: str) -> None:
        self.name = name
        self.source = source
        self.why = why


_SIZE = "a ring of 2000 records in memory: the recommended size, and on by default in newer releases"
_FILE = "names a file that is written only when a collective timed out or failed; where it cannot be written, that is logged and nothing else"

EXPORTS = (
    Export("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", ("TORCH_FR_BUFFER_SIZE",), RECORDER, _SIZE),
    Export(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "1",
        ("TORCH_FR_DUMP_ON_TIMEOUT",),
        PYTORCH,
        "a default of newer releases; a rank that is about to die of a timeout waits for its dump, for a minute at most",
    ),
    Export(
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        f"{STACKS}/nccl_trace_rank_",
        ("TORCH_FR_DUMP_TEMP_FILE",),
        PYTORCH,
        _FILE,
    ),
    Export(
        "TORCH_HCCL_TRACE_BUFFER_SIZE",
        "2000",
        (),
        TORCH_NPU,
        "the same ring of torch_npu, off by default there",
    ),
    Export(
        "TORCH_HCCL_DUMP_ON_TIMEOUT",
        "1",
        (),
        TORCH_NPU,
        "the same of torch_npu; which collective hung is otherwise not known",
    ),
    Export("TORCH_HCCL_DEBUG_INFO_TEMP_FILE", f"{STACKS}/hccl_trace_rank_", (), TORCH_NPU, _FILE),
)

LEFT_ALONE = (
    LeftAlone(
        "timeout= of init_process_group",
        PYTORCH,
        "PyTorch's collective time-out (10 minutes with NCCL) is an argument of the user's own call and no variable; "
        "lowered from outside it would end a long evaluation of one rank",
    ),
    LeftAlone("TORCH_NCCL_ASYNC_ERROR_HANDLING", PYTORCH, "3, tear down after an error, is the default"),
    LeftAlone(
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        PYTORCH,
        "watches PyTorch's own watchdog; a long call of CUDA, as at a lazy load of kernels, would be taken for a hang",
    ),
    LeftAlone("TORCH_NCCL_BLOCKING_WAIT", PYTORCH, "makes every wait block the host: slower steps"),
    LeftAlone(
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "github.com/pytorch/pytorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp",
        "lets `ftrun-hook stacks` ask for a dump before any time-out; but a rank that cannot make the pipe ends at its start, so it is for "
        "the user to set, to a prefix in a folder that exists on every node, such as /dev/shm/nccl_pipe_",
    ),
    LeftAlone(
        "TORCH_HCCL_ENABLE_MONITORING",
        TORCH_NPU,
        "ends a process whose watchdog stands still for 10 minutes; off by default there",
    ),
    LeftAlone(
        "NCCL_IB_TIMEOUT", NCCL, "its retries outlast a link that flaps; lowered, a flap becomes a fault"
    ),
    LeftAlone(
        "HCCL_EXEC_TIMEOUT",
        CANN,
        "half an hour by default, so that one rank may save or evaluate while the others wait",
    ),
    LeftAlone("HCCL_CONNECT_TIMEOUT", CANN, "120 s by default is the least that is allowed"),
    LeftAlone(
        "MS_TOPO_TIMEOUT", MINDSPORE, "half an hour for all processes to come together: nodes may start late"
    ),
    LeftAlone(
        "MS_NODE_TIMEOUT",
        MINDSPORE,
        "a process that is silent for longer is given up: a long compilation is silent too",
    ),
)


def export_lines(setting: str) -> str:
    """What batch.sh reads: lines `NAME[,ALIAS...]=VALUE` with `{stacks}` to fill in; "" for `never`."""
    if setting != "auto":
        return ""
    return "\n".join(f"{','.join((one.name, *one.aliases))}={one.value}" for one in EXPORTS)


def explain_exports(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Name, value and reason of those of our variables that a start recorded as set."""
    known = {one.name: one for one in EXPORTS}
    return [(name, known[name].value, known[name].why) for name in names if name in known]
