#!/bin/bash
# A data-parallel training that saves at memory speed. Submit with: ftrun sbatch job.sh [--fsdp]
#
# The training writes its checkpoints into FTRUN_STAGE_DIR, which is in the memory of its node, and goes on; ftrun publishes them to ./checkpoints in the background, and keeps
# a copy of each node's files in the memory of another one.
#SBATCH --job-name=stage
#SBATCH --nodes=3 --ntasks-per-node=1
#SBATCH --output=stage.log
#FTRUN --stage=checkpoints

export MASTER_ADDR="${FTRUN_MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}" MASTER_PORT="${FTRUN_MASTER_PORT:-29500}"
srun python train.py "$@"
