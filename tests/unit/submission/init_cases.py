"""Ten small scripts for each framework, as people write them: what init proposes for each, and what it asks.

A case is (lines of the batch script, train.py beside it, the lines that are proposed, a word of each question in order).
"""

from __future__ import annotations

Case = tuple[str, str, tuple[str, ...], tuple[str, ...]]

HF = "from transformers import HfArgumentParser, Trainer, TrainingArguments\nparser = HfArgumentParser(TrainingArguments)\n"
OWN = "from transformers import Trainer, TrainingArguments\n"
FROM_OPTION = "--resume-arg=--resume_from_checkpoint={checkpoint}"
AL = "from accelerate import Accelerator\nimport argparse\np = argparse.ArgumentParser()\n"
PL = "import lightning as L\nfrom lightning.pytorch.callbacks import ModelCheckpoint\nimport argparse\np = argparse.ArgumentParser()\n"
DS = "import deepspeed\nimport argparse\np = argparse.ArgumentParser()\np = deepspeed.add_config_arguments(p)\n"
T = "import torch, argparse, os\np = argparse.ArgumentParser()\n"
JX = "import jax\nimport orbax.checkpoint as ocp\nimport argparse, os\np = argparse.ArgumentParser()\n"
MS = "import mindspore as ms\nfrom mindspore.train import ModelCheckpoint, CheckpointConfig\nimport argparse, os\np = argparse.ArgumentParser()\n"
SUB = "import submitit\nimport torch\n"
ITER, LOAD = "iter_*", "--resume-arg=--load | --resume-arg={checkpoint_root}"


def _lines(text: str) -> tuple[str, ...]:
    return tuple(f"#FTRUN {one}" for one in text.split(" | ")) if text else ()


def _case(script: str, python: str, lines: str, *questions: str) -> Case:
    return script, python, _lines(lines), questions


CASES: dict[str, list[Case]] = {
    "Hugging Face Trainer": [
        _case('python train.py --output_dir out "$@"', HF, f"--checkpoint=out/checkpoint-* | {FROM_OPTION}"),
        _case('torchrun --nproc-per-node 8 train.py --output_dir=/data/out "$@"', HF, f"--checkpoint=/data/out/checkpoint-* | {FROM_OPTION}"),
        _case('OUT=/data/x\nsrun python train.py \\\n  --output_dir ${OUT} "$@"', HF, f"--checkpoint=/data/x/checkpoint-* | {FROM_OPTION}"),
        _case("python train.py --output_dir out", HF, f"--checkpoint=out/checkpoint-* | {FROM_OPTION}", "must end with"),
        _case('python train.py --output_dir runs/$SLURM_JOB_ID "$@"', HF, FROM_OPTION, "depends on a variable"),
        _case('python train.py "$@"', HF, FROM_OPTION, "saves to --output_dir"),
        _case('python train.py "$@"', OWN + 'a = TrainingArguments(output_dir="res")\nTrainer(args=a).train()\n', "--checkpoint=res/checkpoint-*", "load a checkpoint"),
        _case('python train.py "$@"', OWN + 'import os\na = TrainingArguments("res")\nTrainer(args=a).train(resume_from_checkpoint=os.environ.get("FTRUN_RESUME_FROM"))\n', "--checkpoint=res/checkpoint-*"),
        _case('python train.py --resume "$CK" "$@"', OWN + 'import argparse\np = argparse.ArgumentParser()\np.add_argument("--resume")\nOUT = "res"\na = TrainingArguments(output_dir=OUT)\n', "--checkpoint=res/checkpoint-* | --resume-arg=--resume={checkpoint}"),
        _case('accelerate launch train.py --output_dir sft "$@"', "from trl import SFTConfig, SFTTrainer, TrlParser\nTrlParser(SFTConfig)\n", f"--checkpoint=sft/checkpoint-* | {FROM_OPTION}"),
    ],
    "Hugging Face Accelerate": [
        _case('accelerate launch train.py --output_dir o "$@"', AL + 'p.add_argument("--output_dir")\np.add_argument("--resume_from_checkpoint")\nargs = p.parse_args()\nAccelerator().save_state(args.output_dir + f"/step_{n}")\n', f"--checkpoint=o/step_* | {FROM_OPTION}"),
        _case('accelerate launch train.py "$@"', AL + 'import os\np.add_argument("--output_dir", default="d")\np.add_argument("--resume_from_checkpoint")\nargs = p.parse_args()\nout = f"epoch_{e}"\nout = os.path.join(args.output_dir, out)\naccelerator.save_state(out)\n', f"--checkpoint=d/epoch_* | {FROM_OPTION}"),
        _case('accelerate launch train.py "$@"', AL + 'from accelerate.utils import ProjectConfiguration\np.add_argument("--resume")\nc = ProjectConfiguration(project_dir="proj", automatic_checkpoint_naming=True)\naccelerator.save_state()\n', "--checkpoint=proj/checkpoints/checkpoint_* | --resume-arg=--resume={checkpoint}"),
        _case('accelerate launch train.py "$@"', AL + 'import os\naccelerator.save_state(f"ck/{step}")\naccelerator.load_state(os.environ["RESUME_PATH"])\n', "--checkpoint=ck/* | --resume-env=RESUME_PATH={checkpoint}"),
        _case('accelerate launch train.py "$@"', AL + 'accelerator.save_state(f"ck/{step}")\n', "--checkpoint=ck/*", "load a checkpoint"),
        _case('accelerate launch train.py "$@"', AL + 'p.add_argument("--resume")\n', "--resume-arg=--resume={checkpoint}", "save_state(FOLDER)"),
        _case('accelerate launch --num_processes 8 train.py', AL + 'p.add_argument("--resume")\naccelerator.save_state(f"ck/{step}")\n', "--checkpoint=ck/* | --resume-arg=--resume={checkpoint}", "must end with"),
        _case('accelerate launch train.py "$@"', AL + 'p.add_argument("--resume", action="store_true")\naccelerator.save_state("ck/step_%d" % 1 + "")\naccelerator.save_state(f"ck/step_{n}")\n', "--checkpoint=ck/step_* | --resume-arg=--resume", "newest checkpoint"),
        _case('python train.py --project_dir=p "$@"', AL + 'p.add_argument("--resume_from")\naccelerator.save_state()\n', "--checkpoint=p/checkpoints/checkpoint_* | --resume-arg=--resume_from={checkpoint}"),
        _case('srun bash -c "python train.py --output_dir o $@"', AL + 'from pathlib import Path\np.add_argument("--output_dir")\np.add_argument("--resume")\nargs = p.parse_args()\naccelerator.save_state(Path(args.output_dir) / f"s{n}")\n', "--checkpoint=o/s* | --resume-arg=--resume={checkpoint}"),
    ],
    "Lightning": [
        _case('python train.py "$@"', PL + 'p.add_argument("--ckpt_path")\nModelCheckpoint(dirpath="saved")\n', "--checkpoint=saved/*.ckpt | --resume-arg=--ckpt_path={checkpoint}"),
        _case('srun python train.py fit --config c.yaml "$@"', "from lightning.pytorch.cli import LightningCLI\nfrom lightning.pytorch.callbacks import ModelCheckpoint\nModelCheckpoint('w')\nLightningCLI()\n", "--checkpoint=w/*.ckpt | --resume-arg=--ckpt_path={checkpoint}"),
        _case('python train.py "$@"', PL + 'p.add_argument("--ckpt-path")\nL.Trainer(default_root_dir="root")\n', "--checkpoint=root/lightning_logs/version_*/checkpoints/*.ckpt | --resume-arg=--ckpt-path={checkpoint}", "logger writes"),
        _case('python train.py "$@"', PL + 'p.add_argument("--resume")\nL.Trainer()\n', "--checkpoint=lightning_logs/version_*/checkpoints/*.ckpt | --resume-arg=--resume={checkpoint}", "logger writes"),
        _case('python train.py "$@"', PL + 'ModelCheckpoint(dirpath="s")\ntrainer.fit(model)\n', "--checkpoint=s/*.ckpt", "load a checkpoint"),
        _case('python train.py "$@"', PL + 'import os\nModelCheckpoint(dirpath="s")\ntrainer.fit(m, ckpt_path=os.getenv("FTRUN_RESUME_FROM"))\n', "--checkpoint=s/*.ckpt"),
        _case('python train.py --save_dir /d/s "$@"', "import pytorch_lightning as pl\nimport argparse\np = argparse.ArgumentParser()\np.add_argument('--save_dir')\np.add_argument('--resume')\na = p.parse_args()\npl.callbacks.ModelCheckpoint(dirpath=a.save_dir)\n", "--checkpoint=/d/s/*.ckpt | --resume-arg=--resume={checkpoint}"),
        _case("python train.py", PL + 'p.add_argument("--ckpt_path")\nModelCheckpoint(dirpath="s")\n', "--checkpoint=s/*.ckpt | --resume-arg=--ckpt_path={checkpoint}", "must end with"),
        _case('python train.py "$@"', PL + 'import os\np.add_argument("--ckpt_path")\nModelCheckpoint(dirpath=os.path.join("a", "b"))\n', "--checkpoint=a/b/*.ckpt | --resume-arg=--ckpt_path={checkpoint}"),
        _case('export CKPT=/x\npython train.py "$@"', PL + 'import os\nModelCheckpoint(dirpath=os.environ["CKPT"])\ntrainer.fit(m, ckpt_path=os.environ.get("CKPT_PATH"))\n', "--checkpoint=/x/*.ckpt | --resume-env=CKPT_PATH={checkpoint}"),
    ],
    "DeepSpeed": [
        _case('deepspeed train.py --save_dir ds "$@"', DS + 'p.add_argument("--save_dir")\np.add_argument("--load_dir")\na = p.parse_args()\nengine.save_checkpoint(a.save_dir)\n', "--checkpoint=ds/global_step* | --resume-arg=--load_dir={checkpoint_root}"),
        _case('deepspeed --num_gpus 8 train.py --deepspeed "$@"', DS + 'p.add_argument("--load")\nengine.save_checkpoint("ds")\n', "--checkpoint=ds/global_step* | --resume-arg=--load={checkpoint_root}"),
        _case('torchrun train.py "$@"', DS + 'p.add_argument("--load_dir")\nengine.save_checkpoint("ds", tag=f"step{n}")\n', "--checkpoint=ds/step* | --resume-arg=--load_dir={checkpoint_root}"),
        _case('deepspeed train.py "$@"', DS + 'p.add_argument("--load_dir")\nengine.save_checkpoint("ds", client_tag)\n', "--checkpoint=ds/* | --resume-arg=--load_dir={checkpoint_root}"),
        _case('deepspeed train.py "$@"', DS + 'engine.save_checkpoint("ds")\n', "--checkpoint=ds/global_step*", "load a checkpoint"),
        _case('deepspeed train.py "$@"', DS + 'import os\nengine.save_checkpoint("ds")\nengine.load_checkpoint(os.environ["LOAD_DIR"])\n', "--checkpoint=ds/global_step* | --resume-env=LOAD_DIR={checkpoint_root}"),
        _case('deepspeed train.py "$@"', DS + 'import os\nengine.save_checkpoint("ds")\nengine.load_checkpoint(os.environ["FTRUN_RESUME_ROOT"])\n', "--checkpoint=ds/global_step*"),
        _case('deepspeed train.py "$@"', DS + 'p.add_argument("--load_dir")\nengine.save_checkpoint(where)\n', "--resume-arg=--load_dir={checkpoint_root}", "save_checkpoint(FOLDER)"),
        _case("deepspeed train.py", DS + 'p.add_argument("--load_dir")\nengine.save_checkpoint("ds")\n', "--checkpoint=ds/global_step* | --resume-arg=--load_dir={checkpoint_root}", "must end with"),
        _case('srun python -u train.py --output_dir=$SCRATCH/ds "$@"', DS + 'p.add_argument("--output_dir")\np.add_argument("--load_dir")\na = p.parse_args()\nengine.save_checkpoint(save_dir=a.output_dir)\n', "--resume-arg=--load_dir={checkpoint_root}", "depends on a variable"),
    ],
    "Megatron-LM": [
        _case('torchrun pretrain_gpt.py --save ck "$@"', "", f"--checkpoint=ck/{ITER} | {LOAD}"),
        _case('torchrun pretrain_gpt.py --save=/d/ck --load=/d/ck "$@"', "", f"--checkpoint=/d/ck/{ITER} | {LOAD}"),
        _case('CK=/d/ck\nsrun python -u pretrain_gpt.py --tensor-model-parallel-size 2 --save $CK --load $CK "$@"', "", f"--checkpoint=/d/ck/{ITER} | {LOAD}"),
        _case("torchrun pretrain_gpt.py --save ck", "", f"--checkpoint=ck/{ITER} | {LOAD}", "must end with"),
        _case('torchrun pretrain_gpt.py "$@"', "", LOAD, "--save"),
        _case('torchrun pretrain_bert.py --save ck "$@"', "", f"--checkpoint=ck/{ITER} | {LOAD}"),
        _case('torchrun train.py --save ck "$@"', "from megatron.training import pretrain\n", f"--checkpoint=ck/{ITER} | {LOAD}"),
        _case('torchrun train.py --tensor-model-parallel-size 2 --save ck "$@"', "", f"--checkpoint=ck/{ITER} | {LOAD}"),
        _case('torchrun /opt/megatron/pretrain_t5.py \\\n --save "${OUT:-runs/a}" "$@"', "", f"--checkpoint=runs/a/{ITER} | {LOAD}"),
        _case('torchrun pretrain_gpt.py --save $OUT/ck "$@"', "", LOAD, "depends on a variable"),
    ],
    "NeMo": [
        _case('python train.py exp_manager.explicit_log_dir=/r "$@"', "from nemo.utils.exp_manager import exp_manager\n", "--checkpoint=/r/checkpoints/*.ckpt | --resume-arg=++exp_manager.resume_from_checkpoint='{checkpoint}'"),
        _case('srun python train.py ++exp_manager.explicit_log_dir=r "$@"', "", "--checkpoint=r/checkpoints/* | --resume-arg=++exp_manager.resume_from_checkpoint='{checkpoint}'"),
        _case('python train.py exp_manager.explicit_log_dir=r exp_manager.resume_if_exists=True "$@"', "", "--checkpoint=r/checkpoints/*", "resume by itself"),
        _case('python train.py exp_manager.explicit_log_dir=r exp_manager.resume_if_exists=False "$@"', "", "--checkpoint=r/checkpoints/* | --resume-arg=++exp_manager.resume_from_checkpoint='{checkpoint}'"),
        _case('python train.py "$@"', "import nemo.collections.nlp\n", "--resume-arg=++exp_manager.resume_from_checkpoint='{checkpoint}'", "explicit_log_dir"),
        _case('python train.py exp_manager.explicit_log_dir=$R/x "$@"', "import nemo\n", "--resume-arg=++exp_manager.resume_from_checkpoint='{checkpoint}'", "depends on a variable"),
        _case("python train.py exp_manager.explicit_log_dir=r", "import nemo\n", "--checkpoint=r/checkpoints/*.ckpt | --resume-arg=++exp_manager.resume_from_checkpoint='{checkpoint}'", "must end with"),
        _case('python train.py "$@"', 'from nemo import lightning as nl\nimport nemo.lightning\nnl.NeMoLogger(log_dir="x")\n', "", "explicit_log_dir", "resume by itself"),
        _case('R=/r\npython train.py exp_manager.explicit_log_dir=${R} "$@"', "import nemo\n", "--checkpoint=/r/checkpoints/*.ckpt | --resume-arg=++exp_manager.resume_from_checkpoint='{checkpoint}'"),
        _case('torchrun train.py exp_manager.explicit_log_dir="/r" "$@"', "import nemo.collections.nlp as nlp\n", "--checkpoint=/r/checkpoints/* | --resume-arg=++exp_manager.resume_from_checkpoint='{checkpoint}'"),
    ],
    "torchtitan": [
        _case('torchrun -m torchtitan.train --job.config_file a.toml --checkpoint.enable "$@"', "", "--checkpoint=outputs/checkpoint/step-* | --resume-arg=--checkpoint.load_step={step}"),
        _case('torchrun -m torchtitan.train --checkpoint.enable --job.dump_folder /d "$@"', "", "--checkpoint=/d/checkpoint/step-* | --resume-arg=--checkpoint.load_step={step}"),
        _case('torchrun -m torchtitan.train --checkpoint.enable_checkpoint --checkpoint.folder ck "$@"', "", "--checkpoint=outputs/ck/step-* | --resume-arg=--checkpoint.load_step={step}"),
        _case('torchrun -m torchtitan.train --job.config_file a.toml "$@"', "", "--checkpoint=outputs/checkpoint/step-* | --resume-arg=--checkpoint.load_step={step}", "enabled in the TOML"),
        _case("torchrun -m torchtitan.train --checkpoint.enable", "", "--checkpoint=outputs/checkpoint/step-* | --resume-arg=--checkpoint.load_step={step}", "must end with"),
        _case('D=/d\nsrun torchrun -m torchtitan.train --checkpoint.enable --job.dump_folder=$D "$@"', "", "--checkpoint=/d/checkpoint/step-* | --resume-arg=--checkpoint.load_step={step}"),
        _case('torchrun -m torchtitan.train --checkpoint.enable --job.dump_folder=$D "$@"', "", "--resume-arg=--checkpoint.load_step={step}", "depends on a variable"),
        _case('torchrun train.py --checkpoint.enable "$@"', "from torchtitan.train import main\n", "--checkpoint=outputs/checkpoint/step-* | --resume-arg=--checkpoint.load_step={step}"),
        _case('torchrun \\\n -m torchtitan.train \\\n --checkpoint.enable \\\n "$@"', "", "--checkpoint=outputs/checkpoint/step-* | --resume-arg=--checkpoint.load_step={step}"),
        _case('torchrun train.py --job.config_file=b.toml --checkpoint.enable "$@"', "import torchtitan\n", "--checkpoint=outputs/checkpoint/step-* | --resume-arg=--checkpoint.load_step={step}"),
    ],
    "PyTorch": [
        _case('torchrun train.py "$@"', T + 'p.add_argument("--resume")\ntorch.save(s, f"ck/step_{n}.pt")\n', "--checkpoint=ck/step_*.pt | --resume-arg=--resume={checkpoint}"),
        _case('srun torchrun train.py --out /d "$@"', T + 'p.add_argument("--out")\np.add_argument("--resume")\na = p.parse_args()\ntorch.save(s, os.path.join(a.out, f"{n}.pt"))\n', "--checkpoint=/d/*.pt | --resume-arg=--resume={checkpoint}"),
        _case('python train.py "$@"', T + 'p.add_argument("--load")\ntorch.save(s, "ck/last.pt")\n', "--checkpoint=ck/last.pt | --resume-arg=--load={checkpoint}", "written anew"),
        _case('torchrun train.py "$@"', T + 'p.add_argument("--resume")\ntorch.save(s, f"ck/{n}.pt.tmp")\nos.replace("a", "b")\n', "--checkpoint=ck/*.pt | --resume-arg=--resume={checkpoint}"),
        _case('torchrun train.py "$@"', T + 'torch.save(s, f"ck/{n}.pt")\ntorch.load(os.environ["FTRUN_RESUME_FROM"])\n', "--checkpoint=ck/*.pt"),
        _case('torchrun train.py "$@"', T + 'torch.save(s, f"ck/{n}.pt")\n', "--checkpoint=ck/*.pt", "load a checkpoint"),
        _case('torchrun train.py "$@"', T + 'import torch.distributed.checkpoint as dcp\np.add_argument("--resume")\ndcp.save(s, checkpoint_id=f"ck/step-{n}")\n', "--checkpoint=ck/step-* | --resume-arg=--resume={checkpoint}"),
        _case("torchrun train.py", T + 'p.add_argument("--resume")\ntorch.save(s, f"ck/{n}.pt")\n', "--checkpoint=ck/*.pt | --resume-arg=--resume={checkpoint}", "must end with"),
        _case('python -m torch.distributed.run train.py --checkpoint-dir ck "$@"', T + 'p.add_argument("--checkpoint-dir")\np.add_argument("--resume-from")\n', "--checkpoint=ck/* | --resume-arg=--resume-from={checkpoint}"),
        _case('torchrun train.py "$@"', "import torch\n", "", "Where are the checkpoints", "load a checkpoint"),
    ],
    "JAX with Orbax": [
        _case('python train.py "$@"', JX + 'p.add_argument("--restore")\nocp.CheckpointManager("ck")\n', "--checkpoint=ck/* | --resume-arg=--restore={checkpoint}"),
        _case('srun python train.py --workdir /d "$@"', JX + 'p.add_argument("--workdir")\na = p.parse_args()\nm = ocp.CheckpointManager(os.path.abspath(a.workdir))\nm.restore(m.latest_step())\n', "--checkpoint=/d/*"),
        _case('python train.py "$@"', JX + 'ocp.CheckpointManager(directory="ck")\n', "--checkpoint=ck/*", "load a checkpoint"),
        _case('python train.py "$@"', JX + 'm = ocp.CheckpointManager("ck")\nm.restore(os.environ["FTRUN_RESUME_FROM"])\n', "--checkpoint=ck/*"),
        _case('python train.py "$@"', JX + 'p.add_argument("--resume")\ncheckpointer = ocp.StandardCheckpointer()\ncheckpointer.save(f"/d/ck_{n}", s)\n', "--checkpoint=/d/ck_* | --resume-arg=--resume={checkpoint}"),
        _case("python train.py", JX + 'p.add_argument("--resume")\nocp.CheckpointManager("ck")\n', "--checkpoint=ck/* | --resume-arg=--resume={checkpoint}", "must end with"),
        _case('python train.py "$@"', JX + 'p.add_argument("--resume")\nocp.CheckpointManager(where())\n', "--resume-arg=--resume={checkpoint}", "CheckpointManager(FOLDER)"),
        _case('python train.py "$@"', JX + 'from etils import epath\np.add_argument("--resume")\nocp.CheckpointManager(epath.Path("/d") / "ck")\n', "--checkpoint=/d/ck/* | --resume-arg=--resume={checkpoint}"),
        _case('CKPT=/x\nexport CKPT=/x\npython train.py "$@"', JX + 'm = ocp.CheckpointManager(os.getenv("CKPT", "ck"))\nm.latest_step()\n', "--checkpoint=/x/*"),
        _case('python train.py "$@"', JX + 'ocp.CheckpointManager("ck")\nstart = os.environ.get("RESTORE_FROM")\n', "--checkpoint=ck/* | --resume-env=RESTORE_FROM={checkpoint}"),
    ],
    "MindSpore": [
        _case('msrun --worker_num=8 train.py "$@"', MS + 'p.add_argument("--load_checkpoint")\nModelCheckpoint(prefix="n", directory="ck")\n', "--checkpoint=ck/*.ckpt | --resume-arg=--load_checkpoint={checkpoint}"),
        _case('msrun train.py "$@"', MS + 'p.add_argument("--resume")\nModelCheckpoint("n", "ck")\n', "--checkpoint=ck/*.ckpt | --resume-arg=--resume={checkpoint}"),
        _case('python train.py "$@"', MS + 'p.add_argument("--resume")\nms.save_checkpoint(net, f"ck/n-{s}.ckpt")\n', "--checkpoint=ck/n-*.ckpt | --resume-arg=--resume={checkpoint}"),
        _case('msrun train.py "$@"', MS + 'ModelCheckpoint(directory="ck")\n', "--checkpoint=ck/*.ckpt", "load a checkpoint"),
        _case("msrun train.py", MS + 'p.add_argument("--resume")\nModelCheckpoint(directory="ck")\n', "--checkpoint=ck/*.ckpt | --resume-arg=--resume={checkpoint}", "must end with"),
        _case('msrun train.py --output_dir out --load_checkpoint "" "$@"', "import mindformers\nimport argparse\np = argparse.ArgumentParser()\np.add_argument('--load_checkpoint')\n", "--checkpoint=out/*.ckpt | --resume-arg=--load_checkpoint={checkpoint}"),
        _case('msrun train.py "$@"', MS + 'p.add_argument("--resume")\nModelCheckpoint(directory=folder())\n', "--resume-arg=--resume={checkpoint}", "MindSpore saves to"),
        _case('msrun train.py --ckpt_dir $D "$@"', MS + 'p.add_argument("--ckpt_dir")\np.add_argument("--resume")\na = p.parse_args()\nModelCheckpoint(directory=a.ckpt_dir)\n', "--resume-arg=--resume={checkpoint}", "depends on a variable"),
        _case('msrun train.py "$@"', MS + 'ModelCheckpoint(directory="ck")\nms.load_checkpoint(os.environ["FTRUN_RESUME_FROM"])\n', "--checkpoint=ck/*.ckpt"),
        _case('mpirun -n 8 python train.py "$@"', MS + 'p.add_argument("--ckpt_path")\nModelCheckpoint(directory=os.path.join("a", "b"))\n', "--checkpoint=a/b/*.ckpt | --resume-arg=--ckpt_path={checkpoint}"),
    ],
    "submitit": [
        _case("python train.py", SUB, "", "submitit calls sbatch"),
        _case("python train.py", SUB + 'torch.save(s, f"ck/{n}.pt")\n', "--checkpoint=ck/*.pt", "submitit calls sbatch"),
        _case("python train.py", SUB + 'torch.save(s, "ck/last.pt")\n', "--checkpoint=ck/last.pt", "submitit calls sbatch"),
        _case("python train.py --output_dir o", SUB, "--checkpoint=o/*", "submitit calls sbatch"),
        _case('python train.py --checkpoint-dir c "$@"', SUB, "--checkpoint=c/*", "submitit calls sbatch"),
        _case("srun python -u train.py", "from submitit.helpers import Checkpointable\n", "", "submitit calls sbatch"),
        _case("python train.py", "import submitit\nexecutor = submitit.AutoExecutor(folder='logs')\n", "", "submitit calls sbatch"),
        _case("python train.py", SUB + "from transformers import TrainingArguments\n", "", "submitit calls sbatch"),
        _case("D=/d\npython train.py --save_dir $D", SUB, "--checkpoint=/d/*", "submitit calls sbatch"),
        _case("python train.py --save_dir $D", SUB, "", "submitit calls sbatch", "depends on a variable"),
    ],
}  # fmt: skip
