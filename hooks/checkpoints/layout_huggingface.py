"""Hugging Face: `transformers` (Trainer), `accelerate` (save_state), `safetensors` (save_pretrained). (I/O)

`transformers`: `trainer_state.json` is written last, and resuming reads it first. `accelerate`: the main
process writes its random state last, so `random_states_0.pkl` proves that all is there. Random states of other
ranks are written independently, and resuming works without them: they must only be sound.

`safetensors`: the name of a shard has the number of shards (`model-00002-of-00004.safetensors`), and the
index, written after all shards, names each of them. The index takes precedence: shards of an earlier save
with another count may be beside it. `.bin` shards have the same names.

Both loops keep FSDP's or DeepSpeed's checkpoint in a folder of its own, which is judged by its own layout.

Sources: transformers/trainer.py (_save_checkpoint, _save_optimizer_and_scheduler, _load_rng_state,
_load_optimizer_and_scheduler), folders written by 5.23; accelerate/{checkpointing,accelerator}.py,
accelerate/utils/fsdp_utils.py, folders written by 1.15; huggingface_hub/serialization and
transformers/modeling_utils.py (names, index).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Optional

from ftrun.hooks.checkpoints import names
from ftrun.hooks.checkpoints.layout_deepspeed import DEEPSPEED
from ftrun.hooks.checkpoints.layout_torch import DCP, TORCH_FILE
from ftrun.hooks.checkpoints.model import TORN, UNREADABLE, Damaged, Expected, Layout, Need

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.listing import Candidate, Tree

Folders = Mapping[re.Pattern[str], Layout]
"""By the names of the folders that a loop gives to others, whose checkpoint lies in them."""


TRAINER_STATE = "trainer_state.json"
ARGUMENTS = "training_args.bin"  # written with the model, before all else
OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"
TRAINER_FOLDER = re.compile(r"checkpoint-[0-9]+")
RNG_STATE = re.compile(r"rng_state_([0-9]+)\.pth")
ANY_RNG_STATE = re.compile(r"rng_state(?:_[0-9]+)?\.pth")
TRAINER_FOLDERS: Folders = {
    re.compile(r"(?:pytorch_model_fsdp|optimizer)(?:_[0-9]+)?"): DCP,
    re.compile(r"global_step[0-9]+"): DEEPSPEED,
}


def _is_transformers(candidate: Candidate) -> bool:
    """A folder with the Trainer's state, or with its name and what only the Trainer writes. Hand-written
    loops have folders of that name, too, and an optimizer.pt in them; all of them without the state. The
    Trainer's output folder has its state too in the end: where checkpoints lie in it, it is none.
    """
    has = candidate.names
    if any(TRAINER_FOLDER.fullmatch(name) and has[name] for name in has):
        return False
    if TRAINER_STATE in has:
        return True
    own = ARGUMENTS in has or (
        OPTIMIZER in has and SCHEDULER in has and any(ANY_RNG_STATE.fullmatch(name) for name in has)
    )
    return own and TRAINER_FOLDER.fullmatch(candidate.name) is not None


def _expect_transformers(tree: Tree) -> Expected:
    """The state, all shards of the model, and what FSDP or DeepSpeed has in folders of its own."""
    by = f"{TRAINER_STATE}, which is written last"
    told = _expect_loop(tree, {TRAINER_STATE: Need("json")}, by, TRAINER_FOLDERS)
    needs = dict(told.needs)
    if {
        ARGUMENTS,
        OPTIMIZER,
    } <= tree.files.keys():  # without its scheduler it is not loaded, and nobody is told
        needs[SCHEDULER] = TORCH_FILE
    _check_state(tree, TRAINER_FOLDERS)
    world = _world(tree, RNG_STATE) or (1 if "rng_state.pth" in tree.files else told.world)
    return told._replace(needs=needs, world=world)


FIRST_RANDOM = "random_states_0.pkl"
RANDOM_STATES = re.compile(r"random_states_([0-9]+)\.pkl")
AUTOMATIC = re.compile(r"/checkpoints/checkpoint_[0-9]+$")
MODELS = re.compile(r"(?:model|pytorch_model)(?:_[0-9]+|-[0-9]{5}-of-[0-9]{5})?\.(?:safetensors|bin)")
ACCELERATE_FOLDERS: Folders = {
    re.compile(r"(?:pytorch_model_fsdp|optimizer)_[0-9]+"): DCP,
    re.compile(r"pytorch_model(?!_fsdp).*"): DEEPSPEED,  # the tag that save_state gives it
}


def _is_accelerate(candidate: Candidate) -> bool:
    """A folder with random states, or with a model under the path and name that Accelerate gives."""
    if any(RANDOM_STATES.fullmatch(name) for name in candidate.names):
        return True
    # Other loops use the same names for their files, and write no random states.
    return AUTOMATIC.search(candidate.path) is not None and any(map(MODELS.fullmatch, candidate.names))


def _expect_accelerate(tree: Tree) -> Expected:
    """The main process's random state, all shards of the model, and the folders of FSDP or DeepSpeed."""
    by = f"{FIRST_RANDOM}, which the main process writes last"
    told = _expect_loop(tree, {FIRST_RANDOM: TORCH_FILE}, by, ACCELERATE_FOLDERS)
    if FIRST_RANDOM in tree.files:
        _check_state(tree, ACCELERATE_FOLDERS)
    return told._replace(world=_world(tree, RANDOM_STATES))


TORCH_ENDINGS = (".bin", ".ckpt", ".pkl", ".pt", ".pth")
OTHER_ENDINGS = (".json", ".safetensors")
# What a training keeps beside its weights, and what says how to read them.
STATE_FILE = re.compile(
    r"training_args\.bin|(?:.*[-_])?optimi[sz]er.*|scheduler.*|scaler.*|sampler.*|dl_state_dict.*|rng_state.*|random_states_.*"
)
TEXT_FILE = re.compile(r"events\.out.*|.*\.(?:csv|html|jinja|jsonl?|log|md|model|out|py|txt|ya?ml)")


def _expect_loop(tree: Tree, last: Mapping[str, Need], by: str, folders: Folders) -> Expected:
    """The file that a loop writes last, all that it reads, all shards of the model, and `folders`."""
    shards, by_shards = _model_shards(tree)
    needs = {**_loaded_files(tree), **last, **shards}
    told, sure, world = [by, by_shards] if by_shards else [by], True, None
    for folder in sorted({name.partition("/")[0] for name in tree.files if "/" in name}):
        for layout in (layout for pattern, layout in folders.items() if pattern.fullmatch(folder)):
            part = layout.expected_in(tree, folder)
            needs.update(part.needs)
            told.append(part.by)
            sure, world = sure and part.sure, world or part.world
    return Expected(needs, "; ".join(told), sure, world)


def _loaded_files(tree: Tree) -> dict[str, Need]:
    """The files at the top of the tree that a library reads: none of them may be empty."""
    top = [name for name in tree.files if "/" not in name and name.endswith(TORCH_ENDINGS + OTHER_ENDINGS)]
    return {name: TORCH_FILE if name.endswith(TORCH_ENDINGS) else Need() for name in top}


def _check_state(tree: Tree, folders: Folders) -> None:
    """Raises Damaged if all weights are missing, or the optimizer of an existing scheduler. No library writes
    the rest alone, and some resume without a message. DeepSpeed's folders have both in them.
    """
    tops = {name.partition("/")[0] for name in tree.files}
    if any(pattern.fullmatch(top) and folders[pattern] is DEEPSPEED for top in tops for pattern in folders):
        return
    if not any(map(_is_weight, tree.files)):
        raise Damaged(TORN, "its weights are missing: there is nothing but the state of the training")
    for ending in (".pt", ".bin"):
        if f"scheduler{ending}" in tree.files and not any("optim" in name.lower() for name in tree.files):
            raise Damaged(TORN, f"optimizer{ending} is missing: scheduler{ending} is there")


def _is_weight(name: str) -> bool:
    top, last = name.partition("/")[0], name.rpartition("/")[2]
    return not (STATE_FILE.fullmatch(top) or STATE_FILE.fullmatch(last) or TEXT_FILE.fullmatch(last))


def _world(tree: Tree, of_rank: re.Pattern[str]) -> Optional[int]:
    """How many ranks wrote, by the highest that has a file."""
    ranks = [int(match[1]) for match in map(of_rank.fullmatch, tree.files) if match]
    return max(ranks) + 1 if ranks else None


MODEL_SHARD = re.compile(
    r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<end>\.safetensors|\.bin)"
)
STEP_NAME = re.compile(r"(?:step|iter|epoch|checkpoint|ckpt)[a-z_=.-]*[0-9]", re.IGNORECASE)
INDEX = ".index.json"
ENDINGS = (".safetensors", ".safetensors" + INDEX)
INDEX_BYTES_MAX = 64 << 20


def _is_safetensors(candidate: Candidate) -> bool:
    """A file of that ending, or a folder with one or with an index, unless it is a folder of steps."""
    if candidate.is_folder:
        return not _has_steps(candidate) and any(name.endswith(ENDINGS) for name in candidate.names)
    return candidate.name.endswith(".safetensors")


def _has_steps(candidate: Candidate) -> bool:
    """Whether folders in it have steps, or files of several steps lie in a folder that has none."""
    stepped = {name: is_folder for name, is_folder in candidate.names.items() if STEP_NAME.search(name)}
    if any(stepped.values()):
        return True
    steps = {names.step_of(name) for name in stepped if name.endswith(".safetensors")}
    return len(steps) > 1 and names.step_of(candidate.path) is None


def _expect_safetensors(tree: Tree) -> Expected:
    """The shards that the indices name, or else those that the names count."""
    if tree.path != tree.base:
        return Expected({name: Need() for name in tree.files}, "one file")
    needs, by = _model_shards(tree)
    return Expected({**_loaded_files(tree), **needs}, by or "the files in it", sure=bool(by))


def _model_shards(tree: Tree) -> tuple[dict[str, Need], str]:
    """The files that indices or names of shards ask for, and by what ("" for nothing). Raises Damaged."""
    here = {name for name in tree.files if "/" not in name}
    wanted: list[str] = []
    by = []
    indexed = set()
    for index in sorted(name for name in here if name.endswith(INDEX)):
        if (
            index[: -len(INDEX)] in here
        ):  # loaders take the whole model in one file: the index is of an earlier save
            continue
        shards = _shards_by_index(tree, index)
        wanted += shards
        indexed |= {(one["stem"], one["end"]) for one in map(MODEL_SHARD.fullmatch, shards) if one}
        by += [f"{len(shards)} shards in {index}"] if shards else []
    for stem, count, end in sorted(
        {one.group("stem", "count", "end") for one in map(MODEL_SHARD.fullmatch, here) if one}
    ):
        if (stem, end) not in indexed:
            wanted += [f"{stem}-{number:05d}-of-{count}{end}" for number in range(1, int(count) + 1)]
            by.append(f"{int(count)} shards by their names")
    return dict.fromkeys(wanted, Need()), "; ".join(by)


def _shards_by_index(tree: Tree, index: str) -> list[str]:
    """The files that an index names; none if it is empty or JSON of another kind."""
    text = tree.read(index, INDEX_BYTES_MAX)
    try:
        told = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        if len(text) == INDEX_BYTES_MAX:
            return []
        raise Damaged(TORN, f"{index} cannot be read") from None
    try:
        return sorted({str(shard) for shard in told["weight_map"].values()})
    except UNREADABLE:
        return []


TRANSFORMERS = Layout(
    name="transformers",
    recognise=_is_transformers,
    expected=_expect_transformers,
    within=("checkpoint-*", "*/checkpoint-*"),
)
ACCELERATE = Layout(
    name="accelerate",
    recognise=_is_accelerate,
    expected=_expect_accelerate,
    within=("checkpoint_*", "checkpoints/checkpoint_*", "checkpoint-*", "step_*", "epoch_*"),
)
SAFETENSORS = Layout(
    name="safetensors",
    recognise=_is_safetensors,
    expected=_expect_safetensors,
    within=("*.safetensors", "*[0-9]*", "last*"),
)
