"""What `ftrun init` proposes for a training program: its framework, where it saves, how it resumes. (I/O)

One row of FRAMEWORKS for each framework: how it is recognised, and the function that finds its checkpoints and
the way in which it loads one. What a rule does not know for sure it asks as a question, and a line that might be
wrong is not proposed at all. The layouts themselves are those of `ftrun.hooks.checkpoints`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ftrun.supervisor.submission.python_facts import PythonFacts
from ftrun.supervisor.submission.training_script import TrainingScript

CHECKPOINT, ROOT, STEP = "{checkpoint}", "{checkpoint_root}", "{step}"


class Program(NamedTuple):
    """The batch script and its Python files."""

    script: TrainingScript
    facts: PythonFacts

    def value(self, *names: str) -> str:
        """What the first of these options or keys is given in the script or by default; "" = not known."""
        for name in names:
            found = self.script.options.get(name) or self.facts.value(f"--{name}")
            if found:
                return found
        return ""

    def has(self, *names: str) -> bool:
        """Whether the command has one of these options or keys."""
        return any(name in self.script.options for name in names)


@dataclass
class Proposal:
    """`lines`: settings as (name, value); `questions`: what a person must answer; `notes`: what else could be had."""

    framework: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def checkpoint(self, folder: str | None, pattern: str, otherwise: str) -> None:
        """Propose this pattern below the folder, or ask where the checkpoints are."""
        if folder and "$" not in folder:
            glob = os.path.normpath(os.path.join(folder, pattern)) if pattern else os.path.normpath(folder)
            self.lines.append(("checkpoint", glob))
        elif folder:
            self.questions.append(
                f"Where are the checkpoints? {folder} depends on a variable that the script does not set; it must be one folder"
                f" for all attempts. Then: #FTRUN --checkpoint=FOLDER/{pattern}"
            )
        else:
            self.questions.append(
                f"Where are the checkpoints? {otherwise} Then: #FTRUN --checkpoint=FOLDER/{pattern}"
            )

    def resume(self, *arguments: str) -> None:
        """Propose arguments that load a checkpoint."""
        self.lines += [("resume-arg", one) for one in arguments]


_RESUME_NAMES = (
    "resume_from_checkpoint", "resume_from", "resume_path", "resume_ckpt", "resume", "ckpt_path", "load_checkpoint", "load_dir", "load_from",
    "load", "restore_from", "restore", "checkpoint_path", "checkpoint", "ckpt", "from_checkpoint",
)  # fmt: skip
_FOLDER_NAMES = (
    "output_dir", "save_dir", "checkpoint_dir", "ckpt_dir", "checkpoints", "save", "out_dir", "out", "dirpath", "default_root_dir",
    "logdir", "log_dir", "workdir", "project_dir", "output",
)  # fmt: skip


def _resume_by_code(made: Proposal, program: Program, template: str, example: str) -> None:
    """How the program's own code takes a checkpoint: a variable of ftrun's, an option, a variable, else a question."""
    facts = program.facts
    if {"FTRUN_RESUME_FROM", "FTRUN_RESUME_ROOT"} & facts.read_variables.keys():
        made.notes.append("The program itself reads the checkpoint that ftrun names (FTRUN_RESUME_FROM).")
        return
    for plain in _RESUME_NAMES:
        option = facts.options.get(plain)
        if option is not None:
            made.resume(option.name if option.is_flag else f"{option.name}={template}")
            if option.is_flag:
                made.questions.append(
                    f"Does {option.name} load the newest checkpoint? ftrun cannot tell it which one."
                )
            return
    for name in facts.read_variables:
        if any(word in name.upper() for word in ("RESUME", "LOAD_DIR", "LOAD_FROM", "RESTORE", "CKPT_PATH")):
            made.lines.append(("resume-env", f"{name}={template}"))
            return
    made.questions.append(
        f"How does the program load a checkpoint? No option and no variable for it was found. For instance: {example}"
    )


def _saved_by(
    program: Program, names: tuple[str, ...], owner: str = "", keyword: str = "", position: int | None = 0
) -> str | None:
    """The path that the first such call gets which is known."""
    for call in program.facts.called(*names, owner=owner):
        path = program.facts.path(call.argument(keyword, position))
        if path:
            return re.sub(r"[._-](tmp|temp|partial)$", "", path)  # written under another name, then renamed
    return None


# ---------------------------------------------------------------------- one function a framework


def _megatron(made: Proposal, program: Program) -> None:
    made.checkpoint(program.value("save"), "iter_*", "Megatron-LM saves to --save, which the command lacks.")
    made.resume("--load", ROOT)


def _torchtitan(made: Proposal, program: Program) -> None:
    base = program.value("job.dump_folder", "dump_folder") or "./outputs"
    inside = program.value("checkpoint.folder") or "checkpoint"
    made.checkpoint(os.path.join(base, inside), "step-*", "")
    made.resume(f"--checkpoint.load_step={STEP}")
    if not program.has("checkpoint.enable", "checkpoint.enable_checkpoint"):
        made.questions.append(
            "Are checkpoints enabled in the TOML file, or by the function of --config? The command has no --checkpoint.enable."
        )


_NEMO_BY_RANK = (
    "nemo.lightning", "megatron", *(f"nemo.collections.{name}" for name in ("diffusion", "llm", "multimodal", "nlp", "vision", "vlm")),
)  # fmt: skip
"""Parts of NeMo whose checkpoints may be folders, or lie in a folder for each rank."""


def _nemo(made: Proposal, program: Program) -> None:
    folder = program.value("exp_manager.explicit_log_dir") or _saved_by(
        program, ("exp_manager",), keyword="explicit_log_dir", position=None
    )
    made.checkpoint(
        folder and os.path.join(folder, "checkpoints"),
        # `*.ckpt` leaves out `default.nemo`: weights alone, from which nothing resumes. Folders and ranks need `*`.
        "*.ckpt" if program.facts.uses("nemo") and not program.facts.uses(*_NEMO_BY_RANK) else "*",
        "NeMo saves to exp_manager.explicit_log_dir/checkpoints.",
    )
    if program.script.options.get("exp_manager.resume_if_exists", "").lower() == "true" or program.facts.uses(
        "nemo.lightning"
    ):
        made.questions.append(
            "Does it resume by itself (exp_manager.resume_if_exists, AutoResume)? Then no resume line is needed."
        )
    else:
        # Quoted for Hydra: NeMo's own file names have `=` in them.
        made.resume(f"++exp_manager.resume_from_checkpoint='{CHECKPOINT}'")


def _mindspore(made: Proposal, program: Program) -> None:
    folder = program.value("output_dir") if program.has("load_checkpoint", "config") else ""
    folder = (
        folder
        or _saved_by(program, ("ModelCheckpoint",), keyword="directory", position=1)
        or program.value(*_FOLDER_NAMES)
    )
    direct = _saved_by(program, ("save_checkpoint",), position=1)
    if direct and not folder:
        made.checkpoint(direct, "", "")
    else:
        made.checkpoint(folder, "*.ckpt", "MindSpore saves to ModelCheckpoint(directory=...).")
    _resume_by_code(made, program, CHECKPOINT, 'mindspore.load_checkpoint(os.environ["FTRUN_RESUME_FROM"])')


def _lightning(made: Proposal, program: Program) -> None:
    folder = _saved_by(program, ("ModelCheckpoint",), keyword="dirpath", position=0)
    root = _saved_by(program, ("Trainer",), keyword="default_root_dir", position=None)
    root = root or program.value("trainer.default_root_dir", "default_root_dir")
    if folder:
        made.checkpoint(folder, "*.ckpt", "")
    else:
        made.checkpoint(os.path.join(root or ".", "lightning_logs/version_*/checkpoints"), "*.ckpt", "")
        made.questions.append(
            "Is that where the logger writes? ModelCheckpoint(dirpath=...) gives the checkpoints one folder for all attempts."
        )
    if list(program.facts.called("LightningCLI")):
        made.resume(f"--ckpt_path={CHECKPOINT}")
    else:
        _resume_by_code(
            made, program, CHECKPOINT, 'trainer.fit(model, ckpt_path=os.environ.get("FTRUN_RESUME_FROM"))'
        )


def _trainer(made: Proposal, program: Program) -> None:
    arguments = (
        "TrainingArguments",
        "Seq2SeqTrainingArguments",
        "SFTConfig",
        "DPOConfig",
        "GRPOConfig",
        "RewardConfig",
    )
    folder = program.value("output_dir") or _saved_by(program, arguments, keyword="output_dir", position=0)
    made.checkpoint(folder, "checkpoint-*", "The Trainer saves to --output_dir.")
    if list(program.facts.called("HfArgumentParser", "TrlParser")) or not program.facts.files:
        made.resume(f"--resume_from_checkpoint={CHECKPOINT}")
        return
    for call in program.facts.called("train"):
        given = call.argument("resume_from_checkpoint", 0)
        if given is not None and getattr(given, "value", None) is True:
            made.notes.append(
                "trainer.train(resume_from_checkpoint=True) loads the newest one by itself, and fails where there is none yet."
            )
    example = 'trainer.train(resume_from_checkpoint=os.environ.get("FTRUN_RESUME_FROM"))'
    _resume_by_code(made, program, CHECKPOINT, example)


def _accelerate(made: Proposal, program: Program) -> None:
    path = _saved_by(program, ("save_state",), keyword="output_dir")
    if path:
        made.checkpoint(path, "", "")
    else:
        folder = _saved_by(program, ("ProjectConfiguration",), keyword="project_dir") or program.value(
            "project_dir", "output_dir"
        )
        made.checkpoint(
            folder and os.path.join(folder, "checkpoints"),
            "checkpoint_*",
            "Accelerate saves to save_state(FOLDER).",
        )
    _resume_by_code(made, program, CHECKPOINT, 'accelerator.load_state(os.environ["FTRUN_RESUME_FROM"])')


def _deepspeed(made: Proposal, program: Program) -> None:
    folder = _saved_by(program, ("save_checkpoint",), keyword="save_dir") or program.value(*_FOLDER_NAMES)
    tagged = any(call.argument("tag", 1) is not None for call in program.facts.called("save_checkpoint"))
    tag = _saved_by(program, ("save_checkpoint",), keyword="tag", position=1) if tagged else "global_step*"
    made.checkpoint(folder, tag or "*", "DeepSpeed saves to save_checkpoint(FOLDER).")
    _resume_by_code(made, program, ROOT, 'engine.load_checkpoint(os.environ["FTRUN_RESUME_ROOT"])')


def _orbax(made: Proposal, program: Program) -> None:
    folder = _saved_by(program, ("CheckpointManager",), keyword="directory") or program.value(*_FOLDER_NAMES)
    saved = _saved_by(program, ("save",), owner="heckpointer", keyword="directory")
    if saved and "*" in saved:
        made.checkpoint(saved, "", "")
    else:
        made.checkpoint(folder, "*", "Orbax saves to CheckpointManager(FOLDER).")
    if list(program.facts.called("latest_step")):
        made.notes.append(
            "The program restores manager.latest_step() by itself; with FTRUN_RESUME_FROM it would skip a torn one."
        )
    else:
        _resume_by_code(
            made,
            program,
            CHECKPOINT,
            'os.path.basename(os.environ["FTRUN_RESUME_FROM"]) is the step to restore',
        )


def _submitit(made: Proposal, program: Program) -> None:
    made.questions.append(
        "submitit calls sbatch itself and requeues its jobs after a time limit or a preemption. Which of the two is to act?"
        " ftrun looks after such a job by: ftrun adopt JOBID, with slurm_additional_parameters={'requeue': False}"
    )
    path = _saved_by(program, ("save",), owner="torch", keyword="f", position=1)
    folder = program.value(*_FOLDER_NAMES)
    if path or folder:
        made.checkpoint(path or folder, "" if path else "*", "")


def _torch(made: Proposal, program: Program) -> None:
    path = _saved_by(program, ("save",), owner="torch", keyword="f", position=1)
    path = path or _saved_by(
        program, ("save", "async_save"), owner="dcp", keyword="checkpoint_id", position=None
    )
    path = path or _saved_by(
        program, ("save", "async_save"), owner="checkpoint", keyword="checkpoint_id", position=None
    )
    folder = "" if path else program.value(*_FOLDER_NAMES)
    made.checkpoint(path or folder, "" if path else "*", "The program saves none that was found.")
    if path and "*" not in path:
        made.questions.append(
            f"Is {path} written anew each time? Killed while it is written, it would be the only one; a name with the step is safer."
        )
    _resume_by_code(made, program, CHECKPOINT, 'torch.load(os.environ["FTRUN_RESUME_FROM"])')


# ---------------------------------------------------------------------- which one it is


class Framework(NamedTuple):
    """How a framework is recognised: words of the command, modules, calls; any of them is enough."""

    name: str
    words: tuple[str, ...]
    modules: tuple[str, ...]
    calls: tuple[str, ...]
    propose: Callable[[Proposal, Program], None]


# The first that fits: what builds on others stands before them.
FRAMEWORKS: tuple[Framework, ...] = (
    Framework("submitit", (), ("submitit",), (), _submitit),
    Framework("Megatron-LM", ("pretrain_gpt.py", "pretrain_bert.py", "pretrain_t5.py", "--tensor-model-parallel-size"), ("megatron",), (), _megatron),
    Framework("torchtitan", ("torchtitan.", "job."), ("torchtitan",), (), _torchtitan),
    Framework("NeMo", ("exp_manager.",), ("nemo",), (), _nemo),
    Framework("MindSpore", ("msrun",), ("mindspore", "mindformers"), (), _mindspore),
    Framework("JAX with Orbax", (), ("orbax",), (), _orbax),
    Framework("Lightning", (), ("lightning", "pytorch_lightning"), (), _lightning),
    Framework("Hugging Face Trainer", ("run_clm.py", "--per_device_train_batch_size"), ("trl",), ("TrainingArguments", "Seq2SeqTrainingArguments", "HfArgumentParser"), _trainer),
    Framework("Hugging Face Accelerate", (), ("accelerate",), (), _accelerate),
    Framework("DeepSpeed", ("deepspeed",), ("deepspeed",), (), _deepspeed),
    Framework("PyTorch", ("torchrun", "torch.distributed.run"), ("torch",), (), _torch),
)  # fmt: skip


def framework_of(program: Program) -> Framework | None:
    """The framework that the program uses; None where nothing of any was found."""
    words = [os.path.basename(word) if "/" in word else word.lstrip("+") for word in program.script.command]
    for one in FRAMEWORKS:
        said = any(
            word == mark or (mark.endswith(".") and word.lstrip("-").startswith(mark))
            for word in words
            for mark in one.words
        )
        if said or program.facts.uses(*one.modules) or any(True for _ in program.facts.called(*one.calls)):
            return one
    return None


def propose(script: TrainingScript) -> Proposal:
    """The lines, questions and notes for a script."""
    program = Program(script, PythonFacts(script.sources, script.options, script.variables))
    found = framework_of(program)
    made = Proposal(found.name if found is not None else "")
    if found is not None:
        found.propose(made, program)
    elif program.script.command:
        made.questions.append(
            "Which framework trains here? None of the known ones was found in the script and the Python files that it starts."
        )
        _torch(made, program)
    else:
        made.questions.append("Which line starts the training? None that starts a Python program was found.")
    if any(name == "resume-arg" for name, _ in made.lines) and not script.passes_arguments:
        where = f"line {script.line}" if script.line else "the line that starts the training"
        made.questions.append(
            f'Do the script\'s arguments reach the program? ftrun appends them to the script: {where} must end with "$@"'
        )
    _beside(made, program)
    return made


def _beside(made: Proposal, program: Program) -> None:
    """What is worth knowing beside the lines: beats, the tracker, staging, a sweep of several files."""
    facts = program.facts
    if not facts.files and program.script.command:
        made.notes.append(
            "The Python files of the command were not found from here, so only the script itself was read."
        )
    if not facts.uses("ftrun.hooks", "ftrun"):
        made.notes.append(
            "Beats: `from ftrun.hooks import beat` and beat(step=...) in the loop make a hang provable (docs/hangs.md)."
        )
    for library, variable in (("wandb", "WANDB_RUN_ID"), ("mlflow", "MLFLOW_RUN_ID")):
        if facts.uses(library) and variable not in program.script.text:
            made.notes.append(
                f"Tracker: #FTRUN --tracker=auto keeps all attempts in one run of {library} (docs/trackers.md)."
            )
    if any(name == "checkpoint" for name, _ in made.lines):
        made.notes.append(
            "Staging: with --stage=FOLDER, and the program saving to $FTRUN_STAGE_DIR, saving takes the time of memory (docs/stage.md)."
        )
